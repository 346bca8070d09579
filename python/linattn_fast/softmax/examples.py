"""Sequences and targets in groups of one length, so that each group is a dense array.

Tokens and targets are brought to unit size before anything is learned: with s (d,) the root mean
squares of the tokens' coordinates and t that of all targets, x_j = X_j / s_j and y = Y / t have the
layer

    Theta_jl = s_j s_l Theta^X_jl,    W_ja = s_j W^X_ja / t

Starting points and tolerances then mean the same for every unit. For +-1 tokens s is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..arrays.types import Floats
from ..data.tokens import Tokens

Indices = npt.NDArray[np.int64]

_LEAST = 1e-75
"""Size of a coordinate: 1 / (s_j s_l), t / s_j and their squares must be numbers."""


@dataclass(frozen=True)
class Group:
    """Sequences of one length."""

    x: Floats
    """(n, k, d)."""
    rows: Indices
    """(n, k): where the tokens stand among those of the whole batch."""
    y: Floats | None = None
    """(n, k, d_out)."""
    weights: Floats | None = None
    """(n,), positive: what a sequence counts in squared errors; None is 1 each."""

    @property
    def keys(self) -> Floats:
        """Tokens less their sequence's mean, (n, k, d): softmax and covariances do not see it."""
        return np.asarray(self.x - self.x.mean(axis=1, keepdims=True))

    def chosen(self, members: Indices) -> Group:
        """Some of the sequences."""
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


@dataclass(frozen=True)
class Examples:
    """A batch of sequences with targets, one a token."""

    groups: tuple[Group, ...]
    """By length, the shortest first."""

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        targets: Tokens | None,
        chosen: Indices | None = None,
        weights: Floats | None = None,
    ) -> Examples:
        """Of checked tokens, targets and weights, or of chosen sequences among them."""
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
        """Coordinates of a token."""
        return int(self.groups[0].x.shape[2])

    @property
    def d_out(self) -> int:
        """Outputs."""
        y = self.groups[0].y
        return 0 if y is None else int(y.shape[2])

    @property
    def n_sequences(self) -> int:
        """Sequences."""
        return sum(len(group.x) for group in self.groups)

    @property
    def n_queries(self) -> int:
        """Tokens in all sequences, each of which is a query."""
        return sum(group.rows.size for group in self.groups)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.groups[-1].x.shape[1])

    def queries(self) -> Floats:
        """All tokens, group after group, (n_queries, d)."""
        return np.concatenate([group.x.reshape(-1, self.d) for group in self.groups])

    def targets(self) -> Floats:
        """Their targets, (n_queries, d_out)."""
        known = [group.y for group in self.groups if group.y is not None]
        return np.concatenate([y.reshape(-1, self.d_out) for y in known])

    def weight_roots(self) -> Floats | None:
        """sqrt of each query's weight, (n_queries,): rows of a regression are multiplied by it."""
        if self.groups[0].weights is None:
            return None
        parts = [
            np.repeat(group.weights, group.x.shape[1])
            for group in self.groups
            if group.weights is not None
        ]
        return np.asarray(np.sqrt(np.concatenate(parts)))

    def scaled(self, units: Units) -> Examples:
        """The same with tokens and targets of unit size."""
        return Examples(
            tuple(
                replace(g, x=g.x / units.tokens, y=None if g.y is None else g.y / units.targets)
                for g in self.groups
            )
        )

    def mixed(self, R: Floats) -> Examples:
        """The same with tokens R x."""
        return Examples(tuple(replace(g, x=g.x @ R.T) for g in self.groups))


@dataclass(frozen=True)
class Units:
    """Sizes of tokens and targets as they were given."""

    tokens: Floats
    """s (d,), of each coordinate."""
    targets: float
    """t."""

    @classmethod
    def of(cls, examples: Examples) -> Units:
        """Root mean squares; a ValueError where the layer could not be written in these units."""
        tokens, targets = _sizes(examples.queries()), _sizes(examples.targets().reshape(-1, 1))
        for name, sizes in (("X", tokens), ("Y", targets)):
            bad = sizes[(sizes < _LEAST) | (sizes > 1 / _LEAST)]
            if bad.size:
                raise ValueError(
                    f"{name}: a root mean square between {_LEAST:g} and {1 / _LEAST:g} is needed, "
                    f"got {bad[0]:.3g}; rescale it"
                )
        return cls(tokens, float(targets[0]))

    def theta_in(self, Theta: Floats) -> Floats:
        """Theta (m, d, d) for the tokens as given, as Theta for x."""
        return np.asarray(Theta * np.outer(self.tokens, self.tokens))

    def theta_out(self, Theta: Floats) -> Floats:
        """Theta (m, d, d) for x, or its errors, as that for the tokens as given."""
        return np.asarray(Theta / np.outer(self.tokens, self.tokens))

    def values_out(self, W: Floats) -> Floats:
        """W (m, d, d_out) for x and y, or its errors, as that for tokens and targets as given."""
        return np.asarray(W * (self.targets / self.tokens)[:, None])


def _sizes(values: Floats) -> Floats:
    """Root mean square of each column, without overflow; 1 where all are zero."""
    largest = np.abs(values).max(axis=0)
    zero = largest == 0
    squares = np.mean((values / np.where(zero, 1.0, largest)) ** 2, axis=0)
    return np.where(zero, 1.0, largest * np.sqrt(squares))
