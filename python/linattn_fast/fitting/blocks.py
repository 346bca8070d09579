"""A fit, or a certificate, block by block: queries that never occur together.

No Gram of all features is formed, nor their product set: of one-hot tokens with d in the hundreds,
a block has some hundred features and as many samples as query its coordinate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.types import Array, Floats, Positions
from ..backend.interface import sizes_of
from ..certificate.block_coverage import BlockRange
from ..certificate.blocks import certificate_of_blocks
from ..certificate.certificate import Certificate
from ..certificate.coverage import Coverage
from ..certificate.leverage import may_underflow
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens
from ..features.features import feature_count
from ..linalg.refine import Solution, norm
from ..linalg.spectral import SpectralFactor
from ..problem.in_memory import Problem
from ..solvers.accuracy import confirmed, squares_underflow
from ..solvers.blocks.least_squares import BlockSolution, Factor, factorise_block, solve_block
from ..solvers.blocks.partition import SUMS_BYTES, BlockRows, Partition
from ..system.machine import as_memory_limit, require_memory, usable_memory
from ..system.progress import Bar, Stages
from .assembling import assemble
from .result import Fit
from .settings import Settings

_WAYS = {"cholesky": "Cholesky", "eigh": "eigenvectors", "qr": "orthogonal transformations"}


def blocks_bytes(partition: Partition, d_out: int) -> int:
    """Bytes that a fit in blocks holds at its peak, beside the data."""
    p, n = partition.features_at_most, partition.samples_of_each
    if len(p) == 0:
        return 8 * d_out * partition.features.count
    sums = 8 * partition.sums_of_each * n
    # Rows, a scaled copy and targets; the Gram, its copies and LAPACK's work space; what is kept
    working = int((8 * (n * (3 * p + 2 * d_out) + 5 * p * p)).max())
    kept = int((8 * p * np.minimum(n, p)).sum())
    formed = max(int(sums.max()), min(int(sums.sum()), SUMS_BYTES)) + int(sums.max())
    return formed + working + kept + 16 * d_out * partition.features.count


def fit_blocks(
    problem: Problem,
    partition: Partition,
    settings: Settings,
    why: str,
    *,
    progress: bool | Callable[[int, Any], object],
) -> Fit:
    """Fit every block by itself, and put the coefficients together."""
    limit = as_memory_limit(settings.memory_limit)
    features, d_out, alpha = partition.features, problem.d_out, float(settings.alpha)
    needed = blocks_bytes(partition, d_out)
    what = f"fit: d = {features.d} ({features.count} features), solver 'blocks',"
    require_memory(needed, what, limit)
    if settings.heads is not None:  # the search wants coefficients of all features
        whole = 8 * d_out * feature_count(features.d)
        require_memory(
            needed + 3 * whole, f"{what} with heads (heads=None fits the coefficients alone)", limit
        )
    stages = Stages()
    y = problem.targets.rows()
    coefficients = np.zeros((d_out, features.count))
    ranges: list[BlockRange] = []
    energy, error = _energies(y, partition)
    if not np.isfinite(energy):  # then, with finite features, so are all products
        sizes = sizes_of(problem.targets, problem.weights)
        raise non_finite_error(problem.tokens, others=sizes)
    condition, ways, done, rank = 1.0, Counter[str](), 0, 0
    steps: tuple[float, ...] = ()
    errors: list[float | None] = []  # of the coefficients of each block
    with Bar(problem.n_samples, "blocks", progress) as report, stages.timed("solve"):
        for rows in partition.rows():
            Y = rows.root[:, None] * y[rows.block.rows]
            if len(rows.columns) == 0:
                error += float((Y**2).sum())
                continue
            solution = solve_block(rows.H, Y, alpha, rows.sizes(), rows.at_most, rows.longest)
            rank += solution.solved.rank
            coefficients[:, rows.columns] = solution.coefficients
            error += solution.squared_error
            errors.append(solution.error)
            condition = max(condition, solution.solved.condition)
            steps = max(steps, solution.steps)
            ways[_WAYS[solution.solved.name]] += 1
            if settings.certify:
                ranges.append(_range_of(rows, solution, alpha, partition))
            done += len(rows.H)
            if report is not None:
                report(done)
    certificate = None
    if settings.certify:
        with stages.timed("certify"):
            certificate = certificate_of_blocks(
                partition,
                ranges,
                problem.tokens,
                problem.weights,
                problem.positions,
                problem.backend,
                usable_memory() if limit is None else limit,
            )
    moments = None
    if isinstance(settings.heads, int):
        with stages.timed("moments"):
            moments = problem.moments(progress)
    found = _known_error(errors, coefficients, rank, problem)
    how = ", ".join(f"{count} by {way}" for way, count in sorted(ways.items()))
    return assemble(
        Solution(coefficients, steps, error),
        f"{why}: {how or 'no query has a feature'}{_doubts(errors, found)}",
        condition,
        "blocks",
        certificate,
        settings,
        stages,
        features=features,
        positions=problem.positions,
        n_samples=problem.n_samples,
        mean_squared_target=energy,
        backend=problem.backend,
        moments=moments,
        kept_bytes=needed,
        coefficient_error=found,
    )


def _relative(errors: list[float | None], coefficients: Floats) -> float | None:
    """Relative error of all coefficients from those of the blocks; None where one is not known."""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return None
    size = norm(coefficients)
    return norm(np.array(known)) / size if size > 0 else 0.0


def _known_error(
    errors: list[float | None], coefficients: Floats, rank: int, problem: Problem
) -> float | None:
    """Relative error of all coefficients, at most; None where it is not known.

    Queries of different blocks never meet, so the ranks of blocks add up to that of the whole.
    """
    if may_underflow(problem.tokens).any() or squares_underflow(problem.targets):
        return None
    return confirmed(_relative(errors, coefficients), rank, problem.modular)


def _doubts(errors: list[float | None], found: float | None) -> str:
    unknown = errors.count(None)
    if unknown:
        return (
            f"; error of the coefficients unknown in {unknown}: rank uncertain, or ill-conditioned"
        )
    if found is None:
        return "; error of the coefficients unknown: underflow, or a rank short by rounding alone"
    return ""


def _energies(y: Array, partition: Partition) -> tuple[float, float]:
    """Mean of w ||y||^2 over all samples, and the part of those that query nothing."""
    with np.errstate(over="ignore"):
        squares = (y.astype(np.float64, copy=False) ** 2).sum(axis=1) / partition.total_weight
        if partition.weights is not None:
            squares *= partition.weights
    idle = np.ones(len(squares), dtype=bool)
    for block in partition.blocks:
        idle[block.rows] = False
    return float(squares.sum()), float(squares[idle].sum())


def certify_blocks(
    partition: Partition,
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
    backend: str,
    memory_limit: int | None,
    progress: bool | Callable[[int, Any], object],
) -> Certificate:
    """Certificate of tokens, block by block."""
    features = partition.features
    what = f"certify: d = {features.d} ({features.count} features) in blocks"
    require_memory(blocks_bytes(partition, 0), what, memory_limit)
    ranges: list[BlockRange] = []
    done = 0
    with Bar(len(partition.samples), "blocks", progress) as report:
        for rows in partition.rows():
            if len(rows.columns):
                factor = factorise_block(rows.H, rows.sizes())
                ranges.append(_range(rows, factor, partition))
            done += len(rows.H)
            if report is not None:
                report(done)
    limit = usable_memory() if memory_limit is None else memory_limit
    return certificate_of_blocks(partition, ranges, tokens, weights, positions, backend, limit)


def _range_of(
    rows: BlockRows, solution: BlockSolution, alpha: float, partition: Partition
) -> BlockRange:
    """The range of a block of Lambda; with a ridge, that takes a factorisation of its own."""
    factor = solution.solved if alpha == 0 else factorise_block(rows.H, rows.sizes())
    return _range(rows, factor, partition)


def _range(rows: BlockRows, factor: Factor, partition: Partition) -> BlockRange:
    if isinstance(factor, SpectralFactor):  # the basis is for solving
        factor = SpectralFactor(
            factor.values,
            np.ascontiguousarray(factor.vectors),
            factor.scale,
            None,
            None,
            factor.level,
            factor.margin,
            factor.name,
        )
    coverage = Coverage(factor, rows.diagonal, partition.features)
    return BlockRange(rows.block, rows.columns, coverage)
