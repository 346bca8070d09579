"""Least squares by orthogonal transformations: for problems whose Gram is singular or close to it.

A Gram matrix has the squared condition number of the features: what is below sqrt(eps) of the
largest singular value is lost in it. With the data at hand, the features themselves can be reduced
to a triangle, some rows at a time, without ever holding more than a few p x p matrices:

    [ sqrt(w) H D   sqrt(w) y ] = Q [ R  c ]      D = diag(2^k), columns of length near one
                                    [ 0  . ]

Then R = U diag(sigma) V' tells the rank (sigma up to 10 max(N, p) eps sigma_max is zero). The ridge
and the least norm are matters of the caller's units and are solved for in the range of V
(:mod:`linattn_fast.linalg.least_norm`): directions that the data does not have never see the ridge.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..arrays.device import module_of, put, to_host
from ..arrays.types import Floats
from .algebra import algebra_of
from .cholesky import power_of_two_scale
from .factors import EPS, MARGIN
from .least_norm import ridge_among
from .spectral import SpectralFactor, spectral_factor


def solve_rows(
    rows: Iterable[Floats], n_samples: int, alpha: float, sizes: Floats, d_out: int
) -> tuple[Floats, SpectralFactor]:
    """Best coefficients (d_out, p), of least norm, and a factorisation of Lambda + alpha I.

    Parameters
    ----------
    rows
        Rows sqrt(w / W) [h y] of the samples, some at a time.
    n_samples
        Number of samples.
    alpha
        Ridge.
    sizes
        Mean squares that D is taken from, (p,): the diagonal of Lambda, or nearly
        (:mod:`linattn_fast.moments.sums`).
    d_out
        Number of outputs; may be 0.
    """
    xp, algebra = module_of(sizes), algebra_of(sizes)
    scale = power_of_two_scale(sizes)
    triangle = None
    units = xp.concatenate([scale, xp.ones(d_out)])
    for some in rows:
        scaled = put(some, like=units) * units
        triangle = algebra.triangle_of(
            scaled if triangle is None else xp.concatenate([triangle, scaled])
        )
    assert triangle is not None
    kept, p = min(len(sizes), n_samples), len(sizes)  # the rest is zero
    return solve_triangle(triangle[:kept, :p], triangle[:kept, p:], n_samples, alpha, scale)


def solve_triangle(
    R: Floats, c: Floats, n_samples: int, alpha: float, scale: Floats
) -> tuple[Floats, SpectralFactor]:
    """Minimise |R D^-1 x - c|^2 + alpha |x|^2 for R (k, p), k <= p, and c (k, d_out).

    R has been scaled by D; the ridge is in the units of x.
    """
    p, xp = R.shape[1], module_of(R)
    # Features that are always zero, most of them for one-hot tokens, cost nothing
    present = np.flatnonzero(to_host((R != 0).any(axis=0)))
    used = xp.asarray(present if len(present) else np.arange(p))
    U, sigma, found = algebra_of(R).svd(R if len(used) == p else R[:, used])
    k = len(sigma)
    Vt = xp.zeros((k, p))
    Vt[:, used] = found
    values = xp.zeros(p)
    values[p - k :] = sigma[::-1] ** 2
    level = max(n_samples, p) * EPS  # of sigma; eigenvalues are squares
    factor = spectral_factor(
        values,
        Vt[::-1].T,
        scale,
        level=level**2,
        margin=(MARGIN * level) ** 2,
        name="qr",
        alpha=alpha,
    )
    r = factor.rank
    if r == 0:
        return xp.zeros((c.shape[1], p)), factor
    projected, s = (U.T @ c)[:r][::-1], sigma[:r][::-1]
    if factor.ridge is None:
        return factor.shortest(projected / s[:, None]).T, factor
    x = ridge_among(to_host(s), factor.ridge.lift, alpha, to_host(projected))[0]
    return put(x, like=R).T, factor
