"""Sequences and targets in groups of one length, so that each group is a dense array.

Tokens and targets are brought to unit size before anything is learned: with s the root mean square
of the tokens' coordinates and t that of the targets, x = X / s and y = Y / t have the layer

    Theta = s^2 Theta_X,    W = s W_X / t

Starting points and tolerances then mean the same for every unit. For +-1 tokens s is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..tokens import Floats, Tokens

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Sequences of one length."""

    x: Floats
    """(n, k, d)."""
    rows: Indices
    """(n, k): where the tokens stand among those of the whole batch."""
    y: Floats | None = None
    """(n, k, d_out)."""

    @property
    def keys(self) -> Floats:
        """Tokens less their sequence's mean, (n, k, d): softmax and covariances do not see it."""
        return np.asarray(self.x - self.x.mean(axis=1, keepdims=True))

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
    def of(cls, tokens: Tokens, targets: Tokens | None, chosen: Indices | None = None) -> Examples:
        """Of checked tokens and targets, or of chosen sequences among them."""
        rows = np.ascontiguousarray(tokens.rows(), dtype=np.float64)
        y = None if targets is None else np.ascontiguousarray(targets.rows(), dtype=np.float64)
        lengths = tokens.lengths
        starts = np.cumsum(lengths) - lengths
        chosen = np.arange(len(lengths)) if chosen is None else chosen
        groups = []
        for k in np.unique(lengths[chosen]):
            members = chosen[lengths[chosen] == k]
            where = starts[members][:, None] + np.arange(k)
            groups.append(Group(rows[where], where, None if y is None else y[where]))
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

    def scaled(self, tokens: float, targets: float) -> Examples:
        """The same in other units: x / tokens, y / targets."""
        return Examples(
            tuple(
                Group(g.x / tokens, g.rows, None if g.y is None else g.y / targets)
                for g in self.groups
            )
        )

    def mixed(self, R: Floats) -> Examples:
        """The same with tokens R x."""
        return Examples(tuple(Group(g.x @ R.T, g.rows, g.y) for g in self.groups))


def size_of(values: Floats) -> float:
    """Root mean square, without overflow; 1 where all are zero."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 1.0
    return largest * float(np.sqrt(np.mean((values / largest) ** 2)))
