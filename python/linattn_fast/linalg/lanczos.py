"""The extreme eigenvalues of an operator, by Lanczos iterations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from ..arrays.device import put, to_host
from ..arrays.types import Floats
from .factors import Factorisation

_DENSE_UP_TO = 64
"""Below this size a dense eigendecomposition is faster than an iteration."""


def largest_eigenvalue(
    apply: Callable[[Floats], Floats], p: int, *, tolerance: float = 1e-10
) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite operator on R^p, by Lanczos.

    The iteration approaches it from below; it stops at a relative change of about ``tolerance``. It
    starts from a fixed vector, so the result is the same every time. What overflows is infinite.
    """
    if p <= _DENSE_UP_TO:
        matrix = np.stack([apply(column) for column in np.eye(p)])
        if not np.isfinite(matrix).all():
            return float("inf")
        return float(eigvalsh(matrix / 2 + matrix.T / 2)[-1])  # the sum alone might overflow
    operator = LinearOperator((p, p), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    try:
        values = eigsh(
            operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False
        )
        found = float(values[0])
    except ArpackError:  # hundreds of eigenvalues within the tolerance: any of them will do
        vector = start
        for _ in range(100):
            vector = apply(vector / np.linalg.norm(vector))
        found = float(np.linalg.norm(vector))
    return found if np.isfinite(found) else float("inf")


def extreme_eigenvalues(factor: Factorisation) -> tuple[float, float]:
    """Smallest and largest eigenvalue of Lambda, from its factorisation of full rank."""
    p, place = factor.rank, factor.scale

    def inverse(x: Floats) -> Floats:
        return to_host(factor.solve(put(x, place).reshape(p, 1))[:, 0])

    def forward(x: Floats) -> Floats:
        return to_host(factor.multiply(put(x, place)))

    with np.errstate(over="ignore", invalid="ignore"):  # 1 / lambda_min may be infinite
        return 1 / largest_eigenvalue(inverse, p), largest_eigenvalue(forward, p)
