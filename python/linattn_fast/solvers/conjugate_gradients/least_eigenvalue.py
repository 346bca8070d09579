"""A lower bound on the least eigenvalue of K, from conjugate gradients on a random vector.

After k steps from b the residual is q(K) b, with

    q(x) = prod_j (1 - x / theta_j)        theta_1 <= ... <= theta_k the Ritz values of K

The component of b along the eigenvector of lambda_min is c = xi ||b|| / sqrt(n), with xi standard
normal for a random b of n entries, and that of the residual is q(lambda_min) c. So a residual of
relative size tau leaves only

    q(lambda_min) <= tau sqrt(n) / |xi|

and q falls from q(0) = 1 to q(theta_1) = 0: lambda_min is at least the point where it has fallen so
far. Nothing but |xi| >= 1e-3 is assumed, which fails for one b in a thousand. Ritz values alone
approach lambda_min from above, and may stop anywhere on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...arrays.device import put
from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator
from ...system.progress import Watch
from .iteration import Iterate, conjugate_gradients
from .narrow import Products
from .whitening import Coordinates

_LEAST_SHARE = 1e-3
"""Value that |xi| is below with a probability of 8e-4."""
_FALLEN = 0.5
"""Value that q(lambda_min) is brought down to."""
_NULL = 1e-14
"""A Ritz value below this share of the largest one counts as zero."""
_LOOK = 10
"""Iterations between two looks at Ritz values."""
_HALVINGS = 60
"""Halvings of an interval, which leave it at rounding."""
_LARGER = 4.0
"""How many times what is measured on one vector ||D|| may be."""


@dataclass(frozen=True)
class LeastEigenvalue:
    """What a random vector tells about lambda_min(K)."""

    lower: float
    """At least this, with a probability of 0.999; 0 where nothing is known."""
    singular: bool
    """Whether K has a direction in which it is zero to rounding."""
    iterations: int
    """Number of iterations that were taken."""


def lower_bound(ritz: Floats, fallen: float) -> float:
    """The point x, from 0 to the least Ritz value, where prod(1 - x / ritz) falls to ``fallen``."""
    if len(ritz) == 0 or not ritz[0] > 0 or not fallen < 1:
        return 0.0
    low, high = 0.0, float(ritz[0])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            above = np.log1p(-middle / ritz).sum() > np.log(fallen)
        low, high = (middle, high) if above else (low, middle)
    return low


def least_eigenvalue(
    operator: NormalOperator,
    coordinates: Coordinates,
    alpha: float,
    place: Floats,
    *,
    limit: int,
    watch: Watch | None = None,
    products: Products | None = None,
) -> LeastEigenvalue:
    """Bound lambda_min(K) of K = E' (Lambda + alpha I) E from a fixed random vector.

    With products in float32 the bound is that of K + D, so it counts only where D is clearly
    smaller; else the iteration is done again in float64.

    Parameters
    ----------
    place
        An array that is where vectors are to be.
    limit
        Most iterations.
    products
        How to multiply; None is in float64.
    """
    b = np.random.default_rng(0).standard_normal((1, *coordinates.shape))
    if b.size == 0:
        return LeastEigenvalue(0.0, False, 0)
    share = np.sqrt(b.size) / _LEAST_SHARE

    def is_null(ritz: Floats) -> bool:
        return len(ritz) > 0 and bool(ritz[0] < _NULL * ritz[-1])

    narrow = products is not None and products.narrow

    def is_too_rough() -> bool:
        return narrow and products is not None and not products.narrow

    def has_null_direction(state: Iterate) -> bool:
        looked = state.iterations % _LOOK == 0 and is_null(state.ritz_values())
        return is_too_rough() or looked

    state = conjugate_gradients(
        operator,
        coordinates,
        alpha,
        put(b, like=place),
        tolerance=_FALLEN / share,
        limit=limit,
        watch=watch,
        enough=has_null_direction,
        products=products,
    )
    ritz = state.ritz_values()
    singular = state.singular or is_null(ritz)
    lower = 0.0 if singular else lower_bound(ritz, state.residual * share)
    if narrow and products is not None and products.off is not None:
        off = _LARGER * products.off
        if is_too_rough() or not lower > 2 * off:
            again = least_eigenvalue(operator, coordinates, alpha, place, limit=limit, watch=watch)
            return replace(again, iterations=again.iterations + state.iterations)
        lower -= off
    return LeastEigenvalue(lower, singular, state.iterations)
