"""Which factorisation is taken: Cholesky where that is safe, else the one of least norm."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..arrays.types import Floats
from .cholesky import try_cholesky
from .factors import ChosenFactor, Factorisation, MatrixMaker, NotSafe
from .spectral import decompose


def factorise(
    form: MatrixMaker,
    solver: str = "auto",
    *,
    steps: int = 0,
    sizes: Floats | None = None,
    scaled: bool = True,
) -> ChosenFactor:
    """Factorise the matrix that ``form`` makes, by the solver asked for or the one that is safe.

    Parameters
    ----------
    form
        Makes the matrix; called again when the first attempt has overwritten it.
    solver
        "cholesky", "eigh", or "auto": try Cholesky and fall back to the eigendecomposition, saying
        why.
    steps
        Number of additions that the entries of the matrix have gone through.
    sizes
        Mean squares (p,) that D is taken from in place of the diagonal.
    scaled
        Whether the matrix is equilibrated before it is decomposed.

    Raises
    ------
    numpy.linalg.LinAlgError
        "cholesky" was asked for and is not safe.
    """
    return choose(
        lambda: try_cholesky(form(), steps, sizes),
        lambda: decompose(form(), steps, sizes, scaled=scaled),
        solver,
    )


def choose(
    attempt: Callable[[], Factorisation | NotSafe],
    least_norm: Callable[[], Factorisation],
    solver: str,
) -> ChosenFactor:
    """Take Cholesky if ``attempt`` makes one, else what finds the solution of least norm.

    This is the rule of :func:`factorise`, whichever way either is made.
    """
    start = time.perf_counter()
    reason = "asked for"
    if solver != "eigh":
        factor = attempt()
        if not isinstance(factor, NotSafe):
            reason = "well-conditioned Gram" if solver == "auto" else reason
            return ChosenFactor(factor, reason, time.perf_counter() - start)
        if solver == "cholesky":
            raise np.linalg.LinAlgError(f"solver: 'cholesky' is not possible: {factor}; use 'auto'")
        reason = f"{factor}, so the solution of least norm was taken"
    return ChosenFactor(least_norm(), reason, time.perf_counter() - start)
