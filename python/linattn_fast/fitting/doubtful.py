"""What a fit finds doubtful in its own data, and what to write instead."""

from __future__ import annotations

from ..arrays.types import Positions
from ..data.data_warnings import InterpolationWarning, warn
from ..data.tokens import TRANSPOSE
from ..solvers.costs import estimate_memory
from ..system.machine import in_words, usable_memory
from .result import Fit

_EXACT = 1e-16
"""Mean squared error, relative to the targets, of a fit that passes through all of them."""


def warn_of_interpolation(fit: Fit) -> None:
    """Warn of a fit without a ridge that passes through fewer samples than it has features."""
    n, p = fit.info.n_samples, fit.info.dimension
    exact = fit.info.mean_squared_error <= _EXACT * fit.info.mean_squared_target
    if not exact:
        return
    rank = None if fit.certificate is None else fit.certificate.rank
    if rank is not None and rank < n:  # dependent samples agree
        return
    warn(
        f"alpha: without a ridge, {n} samples are fitted exactly whatever their targets are, "
        f"because there are {p} features; the training error says nothing then. Give more "
        "samples, a ridge (alpha > 0, see choose_alpha), or ask fit.certificate.covers(Z) which "
        "predictions are determined",
        InterpolationWarning,
    )


def memory_hint(
    shape: tuple[int, ...], d_out: int, positions: Positions, memory_limit: int | None
) -> str:
    """A hint for the message of a MemoryError, where Z (N, a, b) would fit as (N, b, a)."""
    if len(shape) != 3 or not shape[1] < shape[2]:
        return ""
    needed = estimate_memory(shape[1], d_out, positions=positions)["cholesky"]
    if needed > (usable_memory() if memory_limit is None else memory_limit):
        return ""
    return (
        f". Z has shape {shape}, which means d = {shape[2]}; if tokens are the columns of each "
        f"matrix, (N, d, n), {TRANSPOSE}: d = {shape[1]} needs {in_words(needed)}"
    )
