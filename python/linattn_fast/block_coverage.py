"""What the data determines, input by input, where queries fall into groups that never meet.

The range of a block-diagonal Lambda is the sum of the ranges of its blocks
(:mod:`linattn_fast.query_blocks`), so an input is determined when its features are in the range
block by block, and none is non-zero that was zero in every sample; leverages add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .coverage import BATCH_BYTES, Coverage
from .features import Features
from .non_finite import non_finite_error
from .prefixes import Numbers, Samples
from .query_blocks import QueryBlock
from .tokens import Floats, Positions, Tokens

Judge = Callable[[Coverage, Floats], Floats]
"""A number for each row D h of a block."""


@dataclass(frozen=True)
class BlockRange:
    """The range of one block."""

    block: QueryBlock
    columns: Numbers
    """Its features among all, those that some sample has, (p_b,)."""
    coverage: Coverage

    def mean_square(self, x: Floats) -> float:
        """Of the direction x (p_b,), in units where every feature has mean square one."""
        return float(x @ self.coverage.factor.multiply(x) / (x**2 @ self.coverage.diagonal))


@dataclass(frozen=True)
class BlockCoverage:
    """The range of a block-diagonal second moment, on the host; see :class:`Coverage`."""

    blocks: Sequence[BlockRange]
    features: Features

    @property
    def tolerance(self) -> float:
        """Residuals up to this count as zero: the largest of the blocks."""
        return max((block.coverage.tolerance for block in self.blocks), default=0.0)

    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Distance of each query's features from the range, relative: (rows,).

        Of a query that touches several blocks, the largest of them.
        """
        return self._judged(tokens, positions, Coverage.residual_of, np.maximum, 1.0)

    def leverages(self, tokens: Tokens, positions: Positions) -> Floats:
        """h' Lambda^+ h of each query, infinite where the data does not determine it: (rows,)."""
        return self._judged(tokens, positions, Coverage.leverage_of, np.add, np.inf)

    def _judged(
        self,
        tokens: Tokens,
        positions: Positions,
        judge: Judge,
        join: Callable[[Floats, Floats], Floats],
        unseen: float,
    ) -> Floats:
        """Judge every query block by block, and join what the blocks say."""
        samples = Samples.of(tokens.put(np.zeros(0)), positions)
        answers = np.zeros(len(samples))
        step = max(1, BATCH_BYTES // (8 * (self.features.n_pairs + self.features.d)))
        for where, part in samples.parts(step):
            s = part.pair_sums(self.features.pairs)
            z = part.query_tokens()[:, self.features.queries]
            answers[where] = self._of_samples(s, z, judge, join, unseen)
            if np.isnan(answers[where]).any():
                raise non_finite_error(tokens)
        return answers

    def _of_samples(
        self,
        s: Floats,
        z: Floats,
        judge: Judge,
        join: Callable[[Floats, Floats], Floats],
        unseen: float,
    ) -> Floats:
        answers = np.zeros(len(s))
        present = z != 0
        # A feature that was never seen has no block; those that have one are counted instead
        missing = (s != 0).sum(axis=1) * present.sum(axis=1)
        for rows, block in self._touched(present):
            u, l = np.divmod(block.columns, self.features.n_queries)
            x = s[np.ix_(rows, u)] * z[np.ix_(rows, l)]
            missing[rows] -= (x != 0).sum(axis=1)
            said = judge(block.coverage, x * block.coverage.factor.scale)
            answers[rows] = join(answers[rows], said)
        answers[missing > 0] = unseen
        return answers

    def _touched(self, present: npt.NDArray[np.bool_]) -> Iterator[tuple[Numbers, BlockRange]]:
        """Blocks that some query touches, with the rows of those queries."""
        used = np.asarray(present.any(axis=0))
        for each in self.blocks:
            queries = each.block.queries
            if used[queries].any():
                yield np.flatnonzero(present[:, queries].any(axis=1)), each

    def least_determined(self, k: int) -> tuple[Floats, Floats]:
        """The k directions (k, p) along which the data says least, and their mean squares (k,).

        In the order of :meth:`Coverage.least_determined`.
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
