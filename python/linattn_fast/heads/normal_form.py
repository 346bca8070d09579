"""The normal form of heads: the SVD of sum_h V_h (x) Q_h, which mixing heads leaves as it is.

    sum_h vec(V_h) vec(Q_h)' = (left A) (right B)' = left (A B') right'

with left A and right B the QR decompositions of all vec(V_h) and vec(Q_h) side by side, so that the
SVD is of an H x H matrix.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import qr, svd

from ..arrays.types import Floats
from ..linalg.factors import EPS


def normal_form(V: Floats, Q: Floats) -> tuple[Floats, Floats]:
    """V (H, d_out, d) and Q (H, d, d) in normal form, of fewer heads where some repeat others."""
    H, d_out, d = V.shape
    if H == 0 or not (V.any() and Q.any()):
        return V[:1] * 0, Q[:1] * 0
    left, A = qr(V.reshape(H, -1).T, mode="economic", check_finite=False)
    right, B = qr(Q.reshape(H, -1).T, mode="economic", check_finite=False)
    U, sigma, W = svd(A @ B.T, full_matrices=False, check_finite=False)
    count = max(1, int((sigma > 10 * H * EPS * sigma[0]).sum()))
    root = np.sqrt(sigma[:count])
    values, queries = (left @ U[:, :count]) * root, (right @ W[:count].T) * root  # (d_out d, H), ..
    sizes = np.abs(values)
    # Entries equal up to rounding tie, and the first of them decides
    first = (sizes >= (1 - 1e-8) * sizes.max(axis=0)).argmax(axis=0)
    sign = np.where(values[first, np.arange(count)] < 0, -1.0, 1.0)
    return (values * sign).T.reshape(count, d_out, d), (queries * sign).T.reshape(count, d, d)
