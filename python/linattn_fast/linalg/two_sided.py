"""L X R' without BLAS, whose one thread would leave the other processors idle between passes.

An iteration goes back and forth between passes over the data and small matrix products; these run
on the threads of the passes, which end with each call.
"""

from __future__ import annotations

import numpy as np

from ..arrays import compiled
from ..arrays.device import is_on_device
from ..arrays.types import Floats


def two_sided(left: Floats, X: Floats, right: Floats) -> Floats:
    """L X_a R' (m, q, k) for L (q, r), X (m, r, t) and R (k, t)."""
    if compiled.MISSING is not None or is_on_device(X):
        return left @ X @ right.T
    (m, r, t), (q, k) = X.shape, (len(left), len(right))
    rows = np.ascontiguousarray(X).reshape(m * r, t)
    inner = compiled.multiply_transposed(right, rows).reshape(k, m, r)  # R X_a'
    stacked = np.ascontiguousarray(inner.transpose(1, 0, 2)).reshape(m * k, r)
    product = compiled.multiply_transposed(left, stacked).reshape(q, m, k)
    return np.ascontiguousarray(product.transpose(1, 0, 2))
