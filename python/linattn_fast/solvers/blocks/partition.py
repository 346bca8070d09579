"""Data cut into blocks: samples whose queries never meet those of other samples.

With the query coordinates in groups that never occur together, which
:mod:`linattn_fast.moments.factors` explains, each sample has its query in one group, and with W the
weight of all samples,

    Lambda = sum_b Lambda_b    Lambda_b = (1/W) sum w h h' over the samples of block b

where Lambda_b has rows and columns for the features of the group alone. So least squares falls into
problems of their own, with the samples of a block and those features that are not zero in all of
them. The others have no part in any prediction on the data: their coefficients of least norm are
zero, and nothing determines them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...arrays.types import Floats, Numbers
from ...data.non_finite import non_finite_error, underflow_error
from ...data.prefixes import Prefixes, distinct_rows, occurring_pairs
from ...features.features import Features
from ...features.samples import Samples
from ...moments.factors import Group
from ...moments.sums import rounding_of_feature, sizes
from .groups import groups_of_samples, in_one_group

SUMS_BYTES = 256 << 20
"""Bytes of s of blocks that are looked at together: their running sums are formed once."""


@dataclass(frozen=True)
class QueryBlock:
    """Samples that query one group of coordinates."""

    queries: Group
    """The group of coordinates."""
    rows: Numbers
    """Numbers of its samples, those of positive weight."""


@dataclass(frozen=True)
class BlockRows:
    """The samples of one block as rows of a least-squares problem."""

    block: QueryBlock
    columns: Numbers
    """Numbers of the features that are not zero in all of its samples, (p_b,)."""
    H: Floats
    """sqrt(w / W) h of these features, (rows, p_b)."""
    root: Floats
    """sqrt(w / W), (rows,)."""
    diagonal: Floats
    """The diagonal of H'H, (p_b,), all positive."""
    magnitudes: Floats
    """Mean w S_jj S_kk z_l^2, (p_b,), or 0 where it is far too small to matter."""
    at_most: Floats
    """Upper bound on mean w S_jj S_kk z_l^2, (p_b,)."""
    longest: int
    """Number of tokens of the longest sample."""

    def sizes(self, alpha: float = 0.0) -> Floats:
        """Mean squares that features of H'H + alpha I are scaled by, (p_b,)."""
        return sizes(self.diagonal + alpha, self.magnitudes, self.longest)


@dataclass(frozen=True)
class Partition:
    """All samples of a batch on the host, in blocks."""

    prefixes: Prefixes
    features: Features
    blocks: Sequence[QueryBlock]
    pairs: Numbers
    """Numbers of those chosen pairs that occur in some token."""
    weights: Floats | None
    """Weight of each sample; None where all are 1."""
    total_weight: float
    """W, the weight of all samples, including those that query nothing."""

    @property
    def features_at_most(self) -> npt.NDArray[np.int64]:
        """Number of features of each block, including those that may turn out to be zero."""
        return np.array([len(self.pairs) * len(block.queries) for block in self.blocks], np.int64)

    @property
    def samples_of_each(self) -> npt.NDArray[np.int64]:
        """Number of samples of each block."""
        return np.array([len(block.rows) for block in self.blocks], np.int64)

    @property
    def sums_of_each(self) -> int:
        """Number of entries of S formed for a sample: those of the pairs, and the squares."""
        return len(self.pairs) + len(self._coordinates)

    @cached_property
    def _coordinates(self) -> Numbers:
        """The coordinates of the pairs that occur, ascending."""
        return np.unique(self.features.pairs[self.pairs])

    def rows(self) -> Iterator[BlockRows]:
        """Form the rows of each block in turn; raises where all squares of features underflow."""
        lost, found = False, 0
        pairs = self.features.pairs[self.pairs]
        squares = np.stack([self._coordinates, self._coordinates], axis=1)
        for together in self._together():
            order = np.concatenate([block.rows for block in together])
            # With the squares (j, j), which say how large the summands of S_jk are
            s = self.prefixes.take(order).pair_sums(np.concatenate([pairs, squares]))
            last = 0
            for block in together:
                first, last = last, last + len(block.rows)
                here = s[first:last]
                rows, less = self._rows_of(block, here[:, : len(pairs)], here[:, len(pairs) :])
                lost |= less
                found += len(rows.columns)
                yield rows
        if lost and not found:
            raise underflow_error(self.prefixes.tokens)

    def _together(self) -> Iterator[list[QueryBlock]]:
        """Yield as many blocks at a time as have SUMS_BYTES of s."""
        waiting: list[QueryBlock] = []
        size = 0
        for block in self.blocks:
            more = 8 * len(block.rows) * self.sums_of_each
            if waiting and size + more > SUMS_BYTES:
                yield waiting
                waiting, size = [], 0
            waiting.append(block)
            size += more
        if waiting:
            yield waiting

    def _rows_of(self, block: QueryBlock, s: Floats, squares: Floats) -> tuple[BlockRows, bool]:
        """Form the rows of a block from s (rows, n_pairs); tell whether features underflow.

        ``squares`` are S_jj of the coordinates that occur in a pair, (rows, coordinates).
        """
        features = self.features
        z = self.prefixes.take(block.rows).query_tokens()[:, features.queries[block.queries]]
        w = np.ones(len(s)) if self.weights is None else self.weights[block.rows]
        root = np.sqrt(w / self.total_weight)
        seen = np.flatnonzero(s.any(axis=0))
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            H = (s[:, seen, None] * (root[:, None] * z)[:, None, :]).reshape(len(s), -1)
            diagonal = np.einsum("ij,ij->j", H, H)
        if not np.isfinite(diagonal).all():
            raise non_finite_error(self.prefixes.tokens)
        columns = (self.pairs[seen][:, None] * features.n_queries + block.queries).reshape(-1)
        kept = diagonal > 0
        lost = False
        if not kept.all():
            lost = bool(H[:, ~kept].any())
            H, columns, diagonal = np.ascontiguousarray(H[:, kept]), columns[kept], diagonal[kept]
        longest = int(self.prefixes.lengths[block.rows].max())
        magnitudes = np.zeros(len(columns))
        u, l = np.divmod(columns, features.n_queries)
        l = np.searchsorted(block.queries, l)
        with np.errstate(over="ignore", under="ignore"):
            energy = (root[:, None] * z) ** 2  # (rows, queries)
            most = (squares.max(axis=1, initial=0.0) ** 2) @ energy  # no magnitude is above this
            doubt = np.flatnonzero(diagonal <= rounding_of_feature(longest) ** 2 * most[l])
            j, k = np.searchsorted(self._coordinates, features.pairs[u[doubt]].T)
            summands = squares[:, j] * squares[:, k] * energy[:, l[doubt]]
            magnitudes[doubt] = summands.sum(axis=0)
        return BlockRows(block, columns, H, root, diagonal, magnitudes, most[l], longest), lost


def partition(samples: Samples, *, forced: bool = False) -> Partition | None:
    """Cut the samples of a batch on the host into blocks.

    None where samples query at most one group, unless that is to be a block, too (``forced``).
    """
    tokens, weights, features = samples.tokens, samples.weights, samples.features
    if not forced and in_one_group(tokens, samples.positions, features.queries):
        return None
    prefixes = Prefixes.of(tokens, samples.positions)
    groups, group = groups_of_samples(prefixes, features.queries)
    if not forced and len(np.unique(group[group >= 0])) < 2:
        return None
    if not all(np.isfinite(rows).all() for rows in distinct_rows(tokens)):
        raise non_finite_error(tokens)
    per_sample = None if weights is None else weights[prefixes.sequences]
    if per_sample is not None:
        group = np.where(per_sample > 0, group, -1)
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(len(groups) + 1))
    blocks = [
        QueryBlock(queries, order[first:last])
        for queries, first, last in zip(groups, ends[:-1], ends[1:], strict=True)
        if last > first
    ]
    j, k = features.pairs.T
    pairs = np.flatnonzero(occurring_pairs(tokens)[j, k])
    return Partition(prefixes, features, blocks, pairs, per_sample, samples.total_weight)
