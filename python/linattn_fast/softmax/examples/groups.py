"""Sequences and targets in groups of one length, so that each group is a dense array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...arrays.types import Floats
from ...data.tokens import Tokens
from .units import Units

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of one length."""

    x: Floats
    """Tokens, (n, k, d)."""
    rows: Indices
    """Where the tokens stand among those of the whole batch, (n, k)."""
    y: Floats | None = None
    """Targets, (n, k, d_out)."""
    weights: Floats | None = None
    """Weights of the sequences' squared errors, (n,), positive; None means 1 each."""

    @property
    def keys(self) -> Floats:
        """Tokens less the mean of their sequence, which softmax does not see, (n, k, d)."""
        return np.asarray(self.x - self.x.mean(axis=1, keepdims=True))

    def chosen(self, members: Indices) -> Group:
        """The sequences with these numbers."""
        y, weights = self.y, self.weights
        return Group(
            self.x[members],
            self.rows[members],
            None if y is None else y[members],
            None if weights is None else weights[members],
        )

    def parts(self, queries: int) -> Iterator[slice]:
        """Slices of sequences, of about so many tokens each."""
        n, k = self.x.shape[:2]
        step = max(1, queries // k)
        return (slice(first, min(first + step, n)) for first in range(0, n, step))


@dataclass(frozen=True, eq=False)
class Examples:
    """A batch of sequences with one row of targets a token."""

    groups: tuple[Group, ...]
    """Groups in the order of their lengths, the shortest first."""

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        targets: Tokens | None,
        chosen: Indices | None = None,
        weights: Floats | None = None,
    ) -> Examples:
        """Group checked tokens, targets and weights, or the chosen sequences among them."""
        rows = np.ascontiguousarray(tokens.rows(), dtype=np.float64)
        y = None if targets is None else np.ascontiguousarray(targets.rows(), dtype=np.float64)
        lengths = tokens.lengths
        starts = np.cumsum(lengths) - lengths
        chosen = np.arange(len(lengths)) if chosen is None else chosen
        groups = []
        for k in np.unique(lengths[chosen]):
            members = chosen[lengths[chosen] == k]
            where = starts[members][:, None] + np.arange(k)
            groups.append(
                Group(
                    rows[where],
                    where,
                    None if y is None else y[where],
                    None if weights is None else weights[members],
                )
            )
        return cls(tuple(groups))

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return int(self.groups[0].x.shape[2])

    @property
    def d_out(self) -> int:
        """Number of outputs; 0 without targets."""
        y = self.groups[0].y
        return 0 if y is None else int(y.shape[2])

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return sum(len(group.x) for group in self.groups)

    @property
    def n_queries(self) -> int:
        """Number of tokens in all sequences, each of which is a query."""
        return sum(group.rows.size for group in self.groups)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return int(self.groups[-1].x.shape[1])

    def queries(self) -> Floats:
        """All tokens, group after group, (n_queries, d)."""
        return np.concatenate([group.x.reshape(-1, self.d) for group in self.groups])

    def targets(self) -> Floats:
        """Targets of all tokens, group after group, (n_queries, d_out)."""
        known = [group.y for group in self.groups if group.y is not None]
        return np.concatenate([y.reshape(-1, self.d_out) for y in known])

    def weight_roots(self) -> Floats | None:
        """Square roots (n_queries,) of the queries' weights, to multiply rows of a regression."""
        if self.groups[0].weights is None:
            return None
        parts = [
            np.repeat(group.weights, group.x.shape[1])
            for group in self.groups
            if group.weights is not None
        ]
        return np.asarray(np.sqrt(np.concatenate(parts)))

    def scaled(self, units: Units) -> Examples:
        """Bring tokens and targets to unit size."""
        return Examples(
            tuple(
                replace(g, x=g.x / units.tokens, y=None if g.y is None else g.y / units.targets)
                for g in self.groups
            )
        )

    def mixed(self, R: Floats) -> Examples:
        """Put tokens R x in the place of x."""
        return Examples(tuple(replace(g, x=g.x @ R.T) for g in self.groups))
