"""Estimates of extreme eigenvalues from a few products: the ends of the spectrum on a small space.

The smallest Ritz value is the least Rayleigh quotient over a space that grows by one preconditioned
residual a step (Davidson's method), so it is an upper bound on the smallest eigenvalue; the largest
Ritz value of a Krylov space is a lower bound on the largest eigenvalue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.linalg import eigh, eigvalsh

from ..arrays.types import Floats

Operator: TypeAlias = Callable[[Floats], Floats]
"""A symmetric linear map of vectors (p,)."""

_ENOUGH = 1e-3
"""Relative residual of a Ritz value at which the iteration stops."""


def _outside(basis: list[Floats], x: Floats) -> Floats | None:
    """What x has outside an orthonormal basis, of length one; None where that is nothing."""
    for _ in range(2):  # twice is enough for rounding
        for v in basis:
            x = x - (v @ x) * v
    size = float(np.linalg.norm(x))
    return x / size if 0 < size < np.inf else None


def smallest_ritz_value(
    times: Operator, precondition: Operator, start: Floats, *, steps: int
) -> tuple[float, Floats]:
    """The smallest Ritz value after so many products, and its vector (p,), of length one."""
    basis, products = list[Floats](), list[Floats]()
    x = start
    value, vector = np.inf, start
    for _ in range(min(steps, len(start))):
        if (v := _outside(basis, x)) is None:
            break
        basis.append(v)
        products.append(times(v))
        V, AV = np.stack(basis, axis=1), np.stack(products, axis=1)  # (p, k)
        values, small = eigh(V.T @ AV)
        value, vector = float(values[0]), V @ small[:, 0]
        residual = AV @ small[:, 0] - value * vector
        if np.linalg.norm(residual) <= _ENOUGH * abs(value):
            break
        x = precondition(residual)
    return value, vector


def largest_ritz_value(times: Operator, p: int, *, steps: int) -> float:
    """The largest Ritz value of a Krylov space of so many products."""
    x = np.random.default_rng(0).standard_normal(p)
    basis = [x / np.linalg.norm(x)]
    products = [times(basis[0])]
    while len(basis) < min(steps, p):
        if (v := _outside(basis, products[-1])) is None:
            break
        basis.append(v)
        products.append(times(v))
    return float(eigvalsh(np.stack(basis) @ np.stack(products, axis=1))[-1])
