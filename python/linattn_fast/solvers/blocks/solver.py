"""Fits and factorisations block by block: queries that never occur together.

Neither a Gram of all features is formed nor their product set: for one-hot tokens with d in the
hundreds, a block has some hundred features, and the samples that query its coordinate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...arrays.types import Array, Floats, Numbers
from ...backend.interface import sizes_of
from ...data.non_finite import may_underflow, non_finite_error
from ...features.samples import Samples
from ...problem.in_memory import InMemory
from ...problem.interface import ShowProgress
from ...system.machine import require_memory
from ...system.progress import Bar
from ..accuracy import Solution, confirmed, norm, squares_underflow
from ..costs import dual_bytes, what_needs
from ..solved import Solved, Task
from .choice import blocks_bytes, in_words
from .least_squares import Factor, factorise_block, solve_block
from .partition import BlockRows, Partition, QueryBlock, partition

_WAYS = {"cholesky": "Cholesky", "eigh": "eigenvectors", "qr": "orthogonal transformations"}


@dataclass(frozen=True)
class FactorisedBlock:
    """One block of Lambda, factorised."""

    block: QueryBlock
    columns: Numbers
    """Numbers of its features that some sample has, (p_b,)."""
    factor: Factor
    diagonal: Floats
    """Diagonal of the block, (p_b,)."""


@dataclass(frozen=True)
class SolvedBlocks:
    """The blocks of a fit, each with the factorisation of its part of Lambda."""

    partition: Partition
    factorised: list[FactorisedBlock]


def solve(task: Task) -> Solved:
    """Solve block by block, as asked for: a single group of queries is a block, too."""
    problem = task.problem
    gathered = problem.gathered(task.memory_limit, dual_bytes(problem))
    cut = partition(gathered.samples, forced=True)
    assert cut is not None
    solved = solve_partition(task, gathered, cut)
    task.problem = gathered  # what follows must not read a stream again
    return solved


def solve_partition(task: Task, problem: InMemory, cut: Partition) -> Solved:
    """Solve every block by itself, and put the coefficients together."""
    samples, d_out, alpha = problem.samples, problem.d_out, task.alpha
    assert samples.targets is not None
    needed = blocks_bytes(cut, d_out)
    what = what_needs(cut.features, "blocks")
    require_memory(needed, what, task.memory_limit)
    y = samples.targets.rows()
    coefficients = np.zeros((d_out, cut.features.count))
    factorised: list[FactorisedBlock] = []
    energy, error = _energies(y, cut)
    if not np.isfinite(energy):  # then, with finite features, so are all products
        raise non_finite_error(samples.tokens, others=sizes_of(samples))
    condition, ways, done, rank = 1.0, Counter[str](), 0, 0
    steps: tuple[float, ...] = ()
    errors: list[float | None] = []  # of the coefficients of each block
    with Bar(problem.n_samples, "blocks", task.progress) as report, task.stages.timed("solve"):
        for rows in cut.rows():
            Y = rows.root[:, None] * y[rows.block.rows]
            if len(rows.columns) == 0:
                error += float((Y**2).sum())
                continue
            found = solve_block(rows.H, Y, alpha, rows.sizes(), rows.at_most, rows.longest)
            rank += found.solved.rank
            coefficients[:, rows.columns] = found.coefficients
            error += found.squared_error
            errors.append(found.error)
            condition = max(condition, found.solved.condition)
            steps = max(steps, found.steps)
            ways[_WAYS[found.solved.name]] += 1
            if task.certify:  # with a ridge, Lambda takes a factorisation of its own
                factorised.append(_factorised(rows, found.solved if alpha == 0 else None))
            done += len(rows.H)
            if report is not None:
                report(done)
    known = _known_error(errors, coefficients, rank, problem)
    how = ", ".join(f"{count} by {way}" for way, count in sorted(ways.items()))
    loaded = "" if task.problem is problem else "all samples of the stream loaded into memory; "
    return Solved(
        "blocks",
        problem,
        Solution(coefficients, steps, error),
        f"{loaded}{in_words(cut)}: {how or 'no query has a feature'}{_doubts(errors, known)}",
        condition=condition,
        mean_squared_target=energy,
        n_samples=problem.n_samples,
        coefficient_error=known,
        bytes=needed,
        blocks=SolvedBlocks(cut, factorised),
    )


def factorise_partition(cut: Partition, progress: ShowProgress) -> SolvedBlocks:
    """Factorise every block of Lambda, without targets."""
    factorised: list[FactorisedBlock] = []
    done = 0
    with Bar(len(cut.prefixes), "blocks", progress) as report:
        for rows in cut.rows():
            if len(rows.columns):
                factorised.append(_factorised(rows))
            done += len(rows.H)
            if report is not None:
                report(done)
    return SolvedBlocks(cut, factorised)


def _factorised(rows: BlockRows, factor: Factor | None = None) -> FactorisedBlock:
    if factor is None:
        factor = factorise_block(rows.H, rows.sizes())
    return FactorisedBlock(rows.block, rows.columns, factor, rows.diagonal)


def _known_error(
    errors: list[float | None], coefficients: Floats, rank: int, problem: InMemory
) -> float | None:
    """Bound on the relative error of all coefficients; None where it is not known.

    Queries of different blocks never meet, so the ranks of blocks add up to that of the whole.
    """
    samples: Samples = problem.samples
    assert samples.targets is not None
    known = [error for error in errors if error is not None]
    if may_underflow(samples.tokens).any() or squares_underflow(samples.targets):
        return None
    if len(known) < len(errors):
        return None
    size = norm(coefficients)
    relative = norm(np.array(known)) / size if size > 0 else 0.0
    assert problem.modular is not None  # blocks are of tokens
    return confirmed(relative, rank, problem.modular)


def _doubts(errors: list[float | None], found: float | None) -> str:
    unknown = errors.count(None)
    if unknown:
        return (
            f"; error of the coefficients unknown in {unknown}: rank uncertain, or ill-conditioned"
        )
    if found is None:
        return "; error of the coefficients unknown: underflow, or a rank short by rounding alone"
    return ""


def _energies(y: Array, cut: Partition) -> tuple[float, float]:
    """Mean of w ||y||^2 over all samples, and the share in it of those that query nothing."""
    with np.errstate(over="ignore"):
        squares = (y.astype(np.float64, copy=False) ** 2).sum(axis=1) / cut.total_weight
        if cut.weights is not None:
            squares *= cut.weights
    idle = np.ones(len(squares), dtype=bool)
    for block in cut.blocks:
        idle[block.rows] = False
    return float(squares.sum()), float(squares[idle].sum())
