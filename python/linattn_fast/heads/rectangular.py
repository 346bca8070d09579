"""Heads of layers on states: y = sum_h V_h M Q_h c, with V_h (d_out, d_v) and Q_h (d_k, d_q).

Nothing is lost of a memory M without symmetry: C[a, j, k, l] = sum_h V_h[a,j] Q_h[k,l] are the
coefficients themselves, so the fewest heads are the rank of C as a matrix of rows (a, j) and
columns (k, l), and the best approximation by fewer is that of its singular values.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd

from ..arrays.types import Floats
from ..data.states import StateShape
from ..linalg.factors import EPS
from .heads import Heads, Recovery, known_heads, with_signs


def rectangular_heads(
    C: Floats, shape: StateShape, method: str, tol: float, max_heads: int | None
) -> Heads:
    """Heads in normal form of coefficients (d_out, q d_q) on the host, from one SVD.

    For "minimal", ``tol`` is the relative residual up to which C counts as reproduced; for "svd",
    singular values up to ``tol`` times the largest are dropped. A zero layer has one zero head.
    """
    (d_v, d_k), d_q, d_out = shape.matrix, shape.query, len(C)
    matrix = C.reshape(d_out * d_v, d_k * d_q)
    if not matrix.any():
        recovery = Recovery(method, 0.0, 0, (), 0.0, "all coefficients are zero")
        return known_heads(np.zeros((1, d_out, d_v)), np.zeros((1, d_k, d_q)), recovery)
    scale = float(np.abs(matrix).max())
    left, sigma, right = svd(matrix / scale, full_matrices=False, check_finite=False)
    # What fewer heads leave: left_by[H] is the relative residual of the best H heads
    left_by = np.sqrt(np.append(np.cumsum(sigma[::-1] ** 2)[::-1], 0.0) / (sigma**2).sum())
    rounding = max(matrix.shape) * EPS
    tolerance = max(tol, rounding)
    least = int(np.argmax(left_by <= tolerance))
    count = least
    if method == "svd":
        count = int((sigma > tolerance * sigma[0]).sum())
    reason = "the rank of the coefficients, rows (a, j) by columns (k, l): no fewer are possible"
    if max_heads is not None and max_heads < count:
        count, reason = max_heads, f"the nearest {max_heads}; {count} are needed"
    root = np.sqrt(sigma[:count] * scale)
    V, Q = with_signs(left[:, :count] * root, right[:count].T * root, d_v, d_q)
    made = np.tensordot(V, Q, axes=(0, 0)).reshape(matrix.shape)
    recovery = Recovery(
        method,
        residual=float(np.linalg.norm((made - matrix) / scale) / np.linalg.norm(matrix / scale)),
        at_least=least,
        tried=(),
        fewer_leave=float(left_by[count - 1]),
        reason=reason,
        tolerance=tolerance,
    )
    return known_heads(V, Q, recovery)
