"""Whether a fit goes block by block: when asked to, or when that is predicted to be faster.

Blocks need the rows of H of a block in memory, on the host. They cost, with n samples and p
features of each block,

    rows of H n p, Gram 2 n p^2, eigenvectors 10 p^3
"""

from __future__ import annotations

import numpy as np

from ..arrays.types import Floats, Positions
from ..data.tokens import Tokens
from ..features.features import Features
from ..problem.in_memory import Problem
from ..problem.streamed import Data, in_memory
from ..solvers.blocks.partition import Partition, partition
from ..solvers.costs import LAPACK_RATE, predict
from ..solvers.memory import dual_bytes, estimate_memory
from ..system.machine import as_memory_limit, usable_cores, usable_memory
from .blocks import blocks_bytes
from .settings import Settings

_WORTH_LOOKING = 0.1
"""Seconds of the whole below which nobody looks for blocks."""
_SECONDS_A_BLOCK = 2e-3
"""Of Python, about."""


def as_blocks(problem: Data, settings: Settings) -> tuple[Problem, Partition, Settings, str] | None:
    """What :func:`fit_blocks` takes, or None where the fit is to go as a whole."""
    limit = as_memory_limit(settings.memory_limit)
    if settings.solver == "blocks":
        if problem.backend == "cuda":
            raise ValueError(
                "solver: 'blocks' works on the host; bring the arrays home, or take 'auto'"
            )
        loaded, why = in_memory(problem, limit, "asked for", dual_bytes(problem))
        cut = partition(
            loaded.tokens, loaded.weights, loaded.positions, loaded.features, forced=True
        )
        assert cut is not None
        return loaded, cut, settings, f"{why}; {_found(cut)}"
    if settings.solver != "auto" or isinstance(settings.heads, int):
        return None
    if not isinstance(problem, Problem) or problem.backend == "cuda":
        return None
    tokens, weights, positions = problem.tokens, problem.weights, problem.positions
    cut = blocks_worth_it(
        tokens, weights, positions, problem.features, problem.d_out, limit, proof=settings.certify
    )
    return None if cut is None else (problem, cut, settings, _found(cut))


def blocks_worth_it(
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
    features: Features,
    d_out: int,
    limit: int | None,
    *,
    proof: bool,
) -> Partition | None:
    """Blocks of data on the host, if they fit in memory and take less time than the whole."""
    seconds = _whole(tokens, positions, features, d_out, limit, proof=proof)
    if seconds < _WORTH_LOOKING:
        return None
    cut = partition(tokens, weights, positions, features)
    return cut if cut is not None and _worth(cut, d_out, limit, seconds) else None


def _found(cut: Partition) -> str:
    n = len(cut.blocks)
    return f"{n} block{'s' if n != 1 else ''} of queries that never occur together"


def _whole(
    tokens: Tokens,
    positions: Positions,
    features: Features,
    d_out: int,
    limit: int | None,
    *,
    proof: bool,
) -> float:
    """Predicted seconds of a factorisation of all features; infinite where memory is short."""
    n = tokens.n_samples(positions)
    name = "dual" if n < features.count else "cholesky"
    estimate = estimate_memory(
        features.d, d_out, positions=positions, n_samples=n, features=features
    )
    if estimate[name] > (usable_memory() if limit is None else limit):
        return float("inf")
    columns = len(tokens) if positions == "all" else n
    costs = predict(features, d_out, positions, n, columns, proof=proof)
    return costs.dual if name == "dual" else costs.cholesky


def _worth(cut: Partition, d_out: int, limit: int | None, seconds: float) -> bool:
    """Whether blocks fit in memory and are predicted to take less than the whole."""
    if blocks_bytes(cut, d_out) > (usable_memory() if limit is None else limit):
        return False
    p, n = cut.features_at_most.astype(np.float64), cut.samples_of_each
    flops = float((2 * n * p * p + 10 * p**3).sum())
    own = flops / LAPACK_RATE / usable_cores() + _SECONDS_A_BLOCK * len(cut.blocks)
    return own < seconds
