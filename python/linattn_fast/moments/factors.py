"""The normal equations of moments, factorised block by block where queries form groups.

    G[(u,l), (v,m)] = sum w s_u s_v z_l z_m    ("all": S_lm in the place of z_l z_m)

is zero for every u and v where l and m are in different groups; for one-hot queries, every
coordinate is a group of its own. The p = n_pairs n_queries features then fall into blocks of
n_pairs |group|, and factorising costs the sum of the cubes of the blocks instead of the cube of p.
Groups are read off the sums: l and m are in one group when an entry that joins them is not exactly
zero, or a chain of such entries leads from one to the other. Coordinates that occur together, but
whose products cancel to the last bit for every u and v, are apart as well, and rightly: the matrix
that is factorised has these zeros.

With A = D (Lambda + alpha I) D block diagonal, each block is factorised on its own and no p x p
matrix is formed. Norms and eigenvalues of A are those of its blocks taken together,

    ||A|| = max_b ||A_b||    ||A^-1|| = max_b ||A_b^-1||    eigenvalues(A) = those of all A_b

so what is safe for Cholesky, and which eigenvalues count as zero, is decided by the rules of
:mod:`linattn_fast.linalg` for A as a whole, with its p: blocks change the cost and not the answer.
The range of A is the sum of the ranges of its blocks, so the solution of least norm consists of
theirs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from ..arrays.device import module_of
from ..arrays.types import Floats
from ..features import compact
from ..features.features import Features
from ..linalg.cholesky import (
    CholeskyFactor,
    add_to_diagonal,
    factor_if_safe,
    ill_conditioned,
    rounding_level,
    safe_for_ridge,
    try_cholesky,
)
from ..linalg.choosing import choose
from ..linalg.factors import MARGIN, ChosenFactor, Factorisation, MatrixMaker, NotSafe
from ..linalg.spectral import SpectralFactor, decompose, eigenpairs, spectral_factor
from .sums import MomentSums

Group: TypeAlias = npt.NDArray[np.intp]
"""A group of query coordinates: their numbers among those of the features, ascending."""


# ------------------------------------------------------------------------------------------ groups


def query_groups(moments: MomentSums) -> list[Group]:
    """Find the groups; there is one where the Gram is not block diagonal."""
    gram, features = moments.sums.gram, moments.features
    if compact.first_meets_all(gram, features):  # as a rule
        return [np.arange(features.n_queries)]
    meeting = compact.meeting(gram, features, moments.positions)
    if meeting[0].all():  # every coordinate meets the first
        return [np.arange(len(meeting))]
    count, labels = groups_of(meeting)
    return [np.flatnonzero(labels == group) for group in range(count)]


def groups_of(meeting: npt.NDArray[np.bool_]) -> tuple[int, npt.NDArray[np.int32]]:
    """The number of groups, and the group of each coordinate, from which of them meet."""
    count, labels = connected_components(meeting.astype(np.int8), directed=False)
    return int(count), labels


def features_of_group(features: Features, group: Group) -> npt.NDArray[np.intp]:
    """Numbers of the features (u, l) of a group among all, (n_pairs |group|,), ascending."""
    starts = np.arange(features.n_pairs) * features.n_queries
    return np.asarray((starts[:, None] + group).reshape(-1))


def moments_of(moments: MomentSums, group: Group) -> MomentSums:
    """Moments of the same samples with the queries of one group alone.

    Their Gram is a diagonal block of the whole. Magnitudes of summands, where there are any, are
    those of the group; otherwise all pairs take part, and the block has them.
    """
    features, positions = moments.features, moments.positions
    if len(group) == features.n_queries:
        return moments
    totals = moments.sums
    gram = compact.of_queries(totals.gram, features, positions, group)
    where = module_of(gram).asarray(group)
    part = replace(
        totals,
        gram=gram,
        cross=totals.cross[:, where],
        magnitudes=None if totals.magnitudes is None else totals.magnitudes[:, where],
    )
    chosen = features.subset(slice(None), group)
    return MomentSums(chosen, positions, moments.d_out, moments.precision, part)


# ------------------------------------------------------------------------------------------ blocks


@dataclass(frozen=True)
class DiagonalBlock:
    """One diagonal block of Lambda + alpha I."""

    features: npt.NDArray[np.intp]
    """Numbers of its features among all."""
    form: MatrixMaker
    """Makes its matrix."""
    sizes: Floats
    """Mean squares that D is taken from, one a feature."""


@dataclass(frozen=True)
class BlockFactor:
    """A block-diagonal Lambda + alpha I, each block factorised; see :class:`Factorisation`."""

    factors: Sequence[CholeskyFactor | SpectralFactor]
    features: Sequence[npt.NDArray[np.intp]]
    """Numbers of the features of each block among all."""
    smallest: float
    condition: float
    level: float
    name: str

    @property
    def margin(self) -> float:
        """The margin, MARGIN times the rounding level."""
        return MARGIN * self.level

    @property
    def rank(self) -> int:
        """Sum of the ranks of the blocks."""
        return sum(factor.rank for factor in self.factors)

    @property
    def uncertain(self) -> bool:
        """Whether the rank of some block is in doubt."""
        return any(factor.uncertain for factor in self.factors)

    @property
    def scale(self) -> Floats:
        """The diagonal of D, (p,)."""
        return self._each(lambda factor, _: factor.scale)

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k), block by block: the solution of least norm."""
        return self._each(lambda factor, where: factor.solve(b[where]), b.shape[1:])

    def multiply(self, x: Floats) -> Floats:
        """Multiply Lambda + alpha I with x (p,)."""
        return self._each(lambda factor, where: factor.multiply(x[where]))

    def _each(
        self,
        part: Callable[[CholeskyFactor | SpectralFactor, npt.NDArray[np.intp]], Floats],
        tail: tuple[int, ...] = (),
    ) -> Floats:
        """Put an array (p, ..) together from a part for each block."""
        xp = module_of(self.factors[0].scale)
        whole: Floats = xp.empty((sum(map(len, self.features)), *tail))
        for factor, features in zip(self.factors, self.features, strict=True):
            where = xp.asarray(features)
            whole[where] = part(factor, where)
        return whole


def try_cholesky_blocks(blocks: Sequence[DiagonalBlock], steps: int = 0) -> BlockFactor | NotSafe:
    """Factorise every block by Cholesky, or say why that is not safe for the whole matrix."""
    factors = []
    for block in blocks:
        factor = try_cholesky(block.form(), steps, block.sizes)
        if isinstance(factor, NotSafe):  # A is at least as ill-conditioned as any of its blocks
            return factor
        factors.append(factor)
    norm = max(factor.norm for factor in factors)
    of_inverse = max(1 / (factor.smallest * factor.norm) for factor in factors)
    smallest = 1 / (norm * of_inverse)
    level = rounding_level(sum(len(block.features) for block in blocks), steps)
    if not smallest > MARGIN * level:
        return ill_conditioned(smallest)
    where = [block.features for block in blocks]
    return BlockFactor(factors, where, smallest, 1 / smallest, level, "cholesky")


def decompose_blocks(
    blocks: Sequence[DiagonalBlock], steps: int = 0, alpha: float = 0.0
) -> BlockFactor:
    """Decompose every block; which eigenvalues count is decided by the largest of all blocks.

    The blocks have no ridge yet: it is solved for in their range.
    """
    level = rounding_level(sum(len(block.features) for block in blocks), steps)
    pairs = [eigenpairs(block.form(), block.sizes) for block in blocks]
    largest = max(float(values[-1]) for values, _, _ in pairs)
    factors = []
    for values, vectors, scale in pairs:
        # spectral_factor compares with the block's own largest eigenvalue
        relative = largest / float(values[-1]) if values[-1] > 0 else 1.0
        margin = MARGIN * level * relative
        factors.append(
            spectral_factor(values, vectors, scale, level=level, margin=margin, alpha=alpha)
        )
    kept = [factor.values[-factor.rank] for factor in factors if factor.rank]
    least = min(float(factor.values[0]) for factor in factors)
    condition = largest / float(min(kept)) if kept else float("inf")
    if alpha > 0 and kept:
        condition = max(factor.condition for factor in factors if factor.rank)
    return BlockFactor(
        factors,
        [block.features for block in blocks],
        least / largest if kept else 0.0,
        condition,
        level,
        "eigh",
    )


def normal_matrix(moments: MomentSums, alpha: float) -> Callable[[], Floats]:
    """A function that forms Lambda + alpha I, anew at each call."""

    def form() -> Floats:
        matrix = moments.gram()
        matrix /= moments.required_weight()
        add_to_diagonal(matrix, alpha)
        return matrix

    return form


def _blocks(moments: MomentSums, alpha: float, groups: Sequence[Group]) -> list[DiagonalBlock]:
    """The diagonal blocks of Lambda + alpha I."""

    def form(group: npt.NDArray[np.intp]) -> Floats:
        return normal_matrix(moments_of(moments, group), alpha)()

    sizes = moments.feature_sizes(alpha)
    where = [(group, features_of_group(moments.features, group)) for group in groups]
    return [
        DiagonalBlock(features, partial(form, group), sizes[module_of(sizes).asarray(features)])
        for group, features in where
    ]


def _explained(choice: ChosenFactor, groups: Sequence[Group]) -> ChosenFactor:
    if len(groups) == 1:
        return choice
    told = f"in {len(groups)} blocks, of queries that never occur together"
    return replace(choice, reason="; ".join(filter(None, (choice.reason, told))))


def rounding_steps_of(moments: MomentSums) -> int:
    """Number of float64 roundings that are as bad as those that entries of the Gram went through.

    A float32 rounding is 2^29 times a float64 one, and n of random sign add up like sqrt(n).
    """
    wide, narrow = moments.rounding_steps, moments.accumulation.narrow
    return wide + int(2**29 * math.sqrt(narrow))


def factorise_moments(
    moments: MomentSums, alpha: float = 0.0, solver: str = "auto"
) -> ChosenFactor:
    """Factorise Lambda + alpha I as :mod:`linattn_fast.linalg.choosing` does, in blocks if any."""
    groups = query_groups(moments)

    def attempt() -> Factorisation | NotSafe:
        factor = _cholesky(moments, alpha, groups)
        return factor if solver == "cholesky" else safe_for_ridge(factor, alpha)

    def least_norm() -> Factorisation:
        ridge_in_matrix = alpha == 0 or (solver == "eigh" and not isinstance(attempt(), NotSafe))
        if ridge_in_matrix:
            return _eigenvectors(moments, groups, in_matrix=alpha)
        return _eigenvectors(moments, groups, alpha)

    return _explained(choose(attempt, least_norm, solver), groups)


def decompose_moments(moments: MomentSums, alpha: float) -> ChosenFactor:
    """Factorise Lambda by eigenvectors, the ridge solved for in its range: of least norm."""
    start = time.perf_counter()
    groups = query_groups(moments)
    factor = _eigenvectors(moments, groups, alpha)
    return _explained(ChosenFactor(factor, "", time.perf_counter() - start), groups)


def try_cholesky_of_moments(moments: MomentSums, alpha: float = 0.0) -> ChosenFactor | NotSafe:
    """Factorise Lambda + alpha I by Cholesky, in blocks if there are any, or say why not."""
    start = time.perf_counter()
    groups = query_groups(moments)
    factor = safe_for_ridge(_cholesky(moments, alpha, groups), alpha)
    if isinstance(factor, NotSafe):
        return factor
    choice = ChosenFactor(factor, "well-conditioned Gram", time.perf_counter() - start)
    return _explained(choice, groups)


def _cholesky(
    moments: MomentSums, alpha: float, groups: Sequence[Group]
) -> Factorisation | NotSafe:
    steps = rounding_steps_of(moments)
    if len(groups) == 1:
        return factor_if_safe(moments.equilibrated(alpha), steps)
    return try_cholesky_blocks(_blocks(moments, alpha, groups), steps)


def _eigenvectors(
    moments: MomentSums, groups: Sequence[Group], alpha: float = 0.0, *, in_matrix: float = 0.0
) -> Factorisation:
    """Decompose Lambda, with a ridge that is solved for in its range, or one in the matrix."""
    blocks, steps = _blocks(moments, in_matrix, groups), rounding_steps_of(moments)
    if len(blocks) == 1:
        return decompose(blocks[0].form(), steps, blocks[0].sizes, alpha=alpha)
    return decompose_blocks(blocks, steps, alpha)
