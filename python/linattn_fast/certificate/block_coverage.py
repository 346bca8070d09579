"""What the data determines, input by input, where queries fall into blocks that never meet.

The range of a block-diagonal Lambda is the sum of the ranges of its blocks
(:mod:`linattn_fast.solvers.blocks.partition`). So an input is determined when its features are in
the range block by block, and every feature that is zero in all samples is zero in it; leverages add
up. Each block has its own exact range and its own bound on leverages, found when an input first
touches it, and gives one of the three answers of
:mod:`linattn_fast.certificate.determined_range`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..arrays.types import Floats, Mask, Numbers, Positions
from ..data.non_finite import may_underflow, non_finite_error
from ..data.prefixes import Prefixes
from ..data.tokens import Tokens
from ..exact.exact_rank import BUDGET, ModularRange, modular_range
from ..features.features import Features
from ..features.left_out import nonzero_sums, sums_are_exact
from ..features.samples import Samples
from ..solvers.blocks.partition import Partition, QueryBlock
from .coverage import Coverage
from .leverage import PIECE_BYTES, LeverageBound, bound_from_data, whitener_of


@dataclass(frozen=True)
class BlockRange:
    """The range of one block."""

    block: QueryBlock
    columns: Numbers
    """Numbers of its features that some sample has, among all features, (p_b,)."""
    coverage: Coverage

    def mean_square(self, x: Floats) -> float:
        """Mean square along x (p_b,), in units where every feature has mean square one."""
        return float(x @ self.coverage.factor.multiply(x) / (x**2 @ self.coverage.diagonal))


@dataclass(frozen=True)
class _Touched:
    """Queries that touch one block, with their features in it."""

    found: BlockRange
    exactly: _ExactBlock
    rows: Numbers
    """Which of the queries in this piece touch the block."""
    samples: Prefixes
    h: Floats
    """Features of these queries in the block, (rows, p_b)."""
    g: Floats
    """Sizes of their summands, (rows, p_b); see :mod:`linattn_fast.certificate.leverage`."""


@dataclass(frozen=True)
class _ExactBlock:
    """What exact arithmetic and proofs say about a block."""

    exact: ModularRange | None
    """Its exact range, where that was needed and not too much work."""
    full: bool
    """Whether every vector of the block's features is in the range, exactly."""
    bound: LeverageBound | None
    """A bound on leverages, where the numerical range is the exact one."""

    def contains(self, samples: Prefixes) -> Mask:
        """Which samples are in the exact range, (M,); all of them where that is unknown."""
        if self.full or self.exact is None:
            return np.ones(len(samples), dtype=bool)
        return self.exact.contains(_as_sequences(samples), "last")


@dataclass(frozen=True)
class BlockCoverage:
    """The range of a block-diagonal second moment, on the host; see :class:`Coverage`."""

    blocks: Sequence[BlockRange]
    partition: Partition
    """The data in blocks; not copied."""
    _exact: dict[int, _ExactBlock] = field(default_factory=dict, repr=False, compare=False)

    @property
    def features(self) -> Features:
        """Which features take part."""
        return self.partition.features

    @property
    def tolerance(self) -> float:
        """Residual that counts as zero: the largest tolerance of a block, or 0 if one has 0."""
        tolerances = [block.coverage.tolerance for block in self.blocks]
        return max(tolerances) if tolerances and min(tolerances) > 0 else 0.0

    # -------------------------------------------------------------------------------- exact answers

    @cached_property
    def _exact_sums(self) -> bool:
        """Whether S of the data is formed without rounding, so that zeros in it are zeros."""
        return sums_are_exact(self.partition.prefixes.tokens)

    @cached_property
    def _underflow(self) -> bool:
        return bool(may_underflow(self.partition.prefixes.tokens).any())

    @cached_property
    def _most(self) -> float:
        """W over the smallest weight: the most that the leverage of a sample can be."""
        weights = self.partition.weights
        least = 1.0 if weights is None else float(weights[weights > 0].min())
        return self.partition.total_weight / least

    def _exactly(self, number: int) -> _ExactBlock:
        """What exact arithmetic and proofs say about a block, found once."""
        if number not in self._exact:
            self._exact[number] = self._find(self.blocks[number])
        return self._exact[number]

    def _find(self, found: BlockRange) -> _ExactBlock:
        features, rank = self.features, found.coverage.factor.rank
        samples = self.partition.prefixes.take(found.block.rows)
        bound = None if self._underflow else self._bound(found, samples)
        all_seen = len(found.columns) == features.n_pairs * len(found.block.queries)
        if bound is not None and rank == len(found.columns) and (all_seen or self._exact_sums):
            return _ExactBlock(None, True, bound)
        chosen = Features(
            features.d,
            features.pairs[self.partition.pairs],
            features.queries[found.block.queries],
        )
        sequences = Samples(_as_sequences(samples), None, None, "last", chosen)
        exact = modular_range(sequences, budget=BUDGET / len(self.blocks))
        same = exact is not None and exact.rank == rank
        return _ExactBlock(exact, False, bound if same else None)

    def _bound(self, found: BlockRange, samples: Prefixes) -> LeverageBound | None:
        s, root, z = self._sums_of(samples)
        rows = np.arange(len(samples))
        h, g = self._features_of(found, rows, s, root, z)
        w = self.partition.weights
        shares = np.ones(len(rows)) if w is None else w[found.block.rows]
        shares = np.sqrt(shares / self.partition.total_weight)
        return bound_from_data(
            whitener_of(found.coverage.factor),
            lambda: [(h, g, shares)],
            len(self.partition.prefixes),
            int(samples.lengths.max()),
        )

    # ------------------------------------------------------------------------------------ questions

    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Relative distance of each query's features from the range, (rows,).

        For a query that touches several blocks, it is the largest of their distances.
        """

        def join(answers: Floats, part: _Touched) -> None:
            coverage = part.found.coverage
            said = coverage.residual_of(part.h * coverage.factor.scale)
            answers[part.rows] = np.maximum(answers[part.rows], said)

        return self._judged(tokens, positions, join, 0.0, 1.0)

    def covered(self, tokens: Tokens, positions: Positions) -> Mask:
        """Which queries are in the range, (rows,)."""

        def join(answers: Floats, part: _Touched) -> None:
            said = part.exactly.contains(part.samples)
            if part.exactly.bound is None:
                coverage = part.found.coverage
                scale, longest = coverage.factor.scale, int(part.samples.lengths.max())
                most = 0.0 if part.exactly.exact is None else self._most
                said = said & coverage.covers(part.h * scale, part.g * scale, longest, most)
            answers[part.rows] *= said

        return self._judged(tokens, positions, join, 1.0, 0.0) > 0

    def leverages(self, tokens: Tokens, positions: Positions) -> Floats:
        """Upper bounds on h' Lambda^+ h of each query, (rows,); infinite where none is known."""
        small = may_underflow(tokens.put(np.zeros(0)))

        def join(answers: Floats, part: _Touched) -> None:
            bound = part.exactly.bound
            said = np.full(len(part.rows), np.inf)
            if bound is None:
                said[~part.g.any(axis=1)] = 0.0
            else:
                inside = part.exactly.contains(part.samples) & ~small[part.samples.sequences]
                longest = int(part.samples.lengths.max())
                said[inside] = bound.of(part.h, part.g, longest)[inside]
            answers[part.rows] += said

        return self._judged(tokens, positions, join, 0.0, np.inf)

    def _judged(
        self,
        tokens: Tokens,
        positions: Positions,
        join: Callable[[Floats, _Touched], None],
        start: float,
        unseen: float,
    ) -> Floats:
        """Judge every query block by block, joining the answers of the blocks to ``start``.

        ``unseen`` is the answer for queries with a feature that no sample has.
        """
        samples = Prefixes.of(tokens.put(np.zeros(0)), positions)
        exact = sums_are_exact(samples.tokens)
        answers = np.full(len(samples), start)
        step = max(1, PIECE_BYTES // (16 * (self.features.n_pairs + self.features.d)))
        for where, part in samples.parts(step):
            s, root, z = self._sums_of(part)
            with np.errstate(over="ignore", invalid="ignore"):
                if not np.isfinite(np.abs(s).max(axis=1) * np.abs(z).max(axis=1)).all():
                    raise non_finite_error(tokens)
            here = np.full(len(part), start)
            present = z != 0
            nonzero = s != 0 if exact else nonzero_sums(part, self.features.pairs)
            # Features that no sample has are in no block: count all, then subtract block by block
            missing = nonzero.sum(axis=1) * present.sum(axis=1)
            for rows, number in self._touched(present):
                found = self.blocks[number]
                u, l = np.divmod(found.columns, self.features.n_queries)
                missing[rows] -= (nonzero[np.ix_(rows, u)] & present[np.ix_(rows, l)]).sum(axis=1)
                h, g = self._features_of(found, rows, s, root, z)
                join(here, _Touched(found, self._exactly(number), rows, part.take(rows), h, g))
            here[missing > 0] = unseen
            answers[where] = here
        return answers

    def _sums_of(self, samples: Prefixes) -> tuple[Floats, Floats, Floats]:
        """S of the chosen pairs (M, n_pairs), sqrt(S_jj) (M, d), and queries z (M, n_queries)."""
        pairs, d = self.features.pairs, self.features.d
        squares = np.stack([np.arange(d), np.arange(d)], axis=1)
        sums = samples.pair_sums(np.concatenate([pairs, squares]))
        z = samples.query_tokens()[:, self.features.queries]
        return sums[:, : len(pairs)], np.sqrt(sums[:, len(pairs) :]), z

    def _features_of(
        self, found: BlockRange, rows: Numbers, s: Floats, root: Floats, z: Floats
    ) -> tuple[Floats, Floats]:
        """Features h of a block and the sizes g of their summands, (rows, p_b) each."""
        u, l = np.divmod(found.columns, self.features.n_queries)
        j, k = self.features.pairs[u].T
        asked = z[np.ix_(rows, l)]
        return (
            s[np.ix_(rows, u)] * asked,
            root[np.ix_(rows, j)] * root[np.ix_(rows, k)] * np.abs(asked),
        )

    def _touched(self, present: Mask) -> Iterator[tuple[Numbers, int]]:
        """Yield the rows of the queries that touch a block, and the number of the block."""
        used = np.asarray(present.any(axis=0))
        for number, each in enumerate(self.blocks):
            queries = each.block.queries
            if used[queries].any():
                yield np.flatnonzero(present[:, queries].any(axis=1)), number

    # ------------------------------------------------------------------ least determined directions

    def least_determined(self, k: int) -> tuple[Floats, Floats]:
        """The k directions (k, p) along which the data says least, and their mean squares (k,).

        They come in the order of :meth:`Coverage.least_determined`.
        """
        p = self.features.count
        seen = np.zeros(p, dtype=bool)
        for block in self.blocks:
            seen[block.columns] = True
        blanks = np.flatnonzero(~seen)[:k]
        directions, values = np.zeros((k, p)), np.zeros(k)
        directions[np.arange(len(blanks)), blanks] = 1.0
        found = len(blanks)
        if found < k:
            rows = [(b, row) for b in self.blocks for row in b.coverage.undetermined()]
            rows.sort(key=lambda each: int((each[1] != 0).sum()))
            for block, row in rows[: k - found]:
                directions[found, block.columns] = row
                found += 1
        if found < k:
            weak = [
                (block.mean_square(row), block, row)
                for block in self.blocks
                for row in block.coverage.weakest(k - found)[1]
            ]
            weak.sort(key=lambda each: each[0])
            for value, block, row in weak[: k - found]:
                directions[found, block.columns] = row
                values[found] = value
                found += 1
        return directions, values


def _as_sequences(samples: Prefixes) -> Tokens:
    """Samples as sequences that end with their query; S does not depend on the order of tokens."""
    sequences = []
    for i, n, t in zip(samples.sequences, samples.lengths, samples.queries, strict=True):
        tokens = samples.tokens.sequence(int(i))[:n]
        if t < n - 1:
            tokens = np.concatenate([tokens[:t], tokens[t + 1 :], tokens[t : t + 1]])
        sequences.append(tokens)
    return Tokens(tuple(sequences))
