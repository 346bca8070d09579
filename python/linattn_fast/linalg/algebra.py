"""Dense algebra in the place where a matrix is: by LAPACK and our own kernels, or by cuSOLVER."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ..arrays import compiled
from ..arrays.device import is_on_device
from ..arrays.types import Floats
from . import device_algebra, host_algebra


def algebra_of(matrix: Floats) -> ModuleType:
    """The module with the factorisations of the place where a matrix is."""
    return device_algebra if is_on_device(matrix) else host_algebra


def two_sided(left: Floats, X: Floats, right: Floats) -> Floats:
    """The products L X_a R', (m, q, k), for L (q, r), X (m, r, t) and R (k, t).

    The host uses our own kernels and not BLAS, whose one thread would leave the other processors
    idle between two passes over the data.
    """
    if compiled.MISSING is not None or is_on_device(X):
        return left @ X @ right.T
    (m, r, t), (q, k) = X.shape, (len(left), len(right))
    rows = np.ascontiguousarray(X).reshape(m * r, t)
    inner = compiled.multiply_transposed(right, rows).reshape(k, m, r)  # R X_a'
    stacked = np.ascontiguousarray(inner.transpose(1, 0, 2)).reshape(m * k, r)
    product = compiled.multiply_transposed(left, stacked).reshape(q, m, k)
    return np.ascontiguousarray(product.transpose(1, 0, 2))
