"""Features of the Gaussian kernel at chosen points, whitened (Nystrom).

    k(x, y) = exp(-|x - y|^2 / (2 bandwidth^2))       P the points, K = k(P, P) = L L'

    phi(x) = L^-1 k(P, x)

    phi(x)'phi(y) = k(x, P) K^-1 k(P, y)              k itself where x or y is one of the points

L is Cholesky's, of the points in their order. What is left of K in the place of a point is how much
of k(p, p) = 1 the points before p do not explain; a point that has at most ``cut`` left is passed
over, since it would only enlarge rounding. At such points phi(x)'phi(y) is within ``cut`` of k.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, sqrt

import numpy as np
from scipy.linalg import solve_triangular

from ..arrays.device import module_of, put, to_host
from ..arrays.floats import as_matrix
from ..arrays.types import Floats
from ..system.machine import same_bits
from .feature_map import FeatureMap, row_products

CUT = 1e-8
"""Share of k(p, p) that points before p leave, up to which p is passed over: rounding, about 1e-16,
then stays near 1e-12 in the features."""


@dataclass(frozen=True, repr=False, eq=False)
class Landmarks(FeatureMap):
    """Features of the Gaussian kernel at chosen points, whitened; see above."""

    points: Floats = field(repr=False)
    """The points P, (m, d)."""
    bandwidth: float
    """Distance at which the kernel is exp(-1/2)."""
    cut: float = CUT
    """What a point must have left after those before it, to take part."""

    name = "landmarks"

    @cached_property
    def _whitening(self) -> tuple[Floats, Floats]:
        """The points that take part, (D, d), and L^-1, (D, D)."""
        L, kept = _cholesky(self._kernel(self.points, self.points), self.cut)
        return self.points[kept], _inverse(L)

    def _kernel(self, x: Floats, points: Floats) -> Floats:
        """The kernel of each row with the points, (rows, m)."""
        xp = module_of(x)
        centre = put(self.points.mean(axis=0), like=x)  # distances cancel less around it
        p, x = put(points, like=x) - centre, x - centre
        squares = (x**2).sum(axis=1)[:, None] + (p**2).sum(axis=1) - 2 * row_products(x, p)
        kernel: Floats = xp.exp(xp.maximum(squares, 0.0) / (-2 * self.bandwidth**2))
        return kernel

    def of_rows(self, x: Floats) -> Floats:
        """Map each row."""
        points, inverse = self._whitening
        return row_products(self._kernel(x, points), put(inverse, like=x))

    def width(self, d: int) -> int:
        """Number of points that take part."""
        if d != self.points.shape[1]:
            raise ValueError(
                f"points: landmarks in R^{self.points.shape[1]} map tokens with as many "
                f"coordinates, got d = {d}"
            )
        return len(self._whitening[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Landmarks):
            return NotImplemented
        same = (self.bandwidth, self.cut) == (other.bandwidth, other.cut)
        return same and np.array_equal(self.points, other.points)

    def __hash__(self) -> int:
        return hash((self.points.tobytes(), self.bandwidth, self.cut))

    def __getstate__(self) -> dict[str, object]:
        """Everything but what can be computed again."""
        return {name: value for name, value in vars(self).items() if name != "_whitening"}

    def __repr__(self) -> str:
        m, d = self.points.shape
        return f"maps.landmarks({m} points in R^{d}, bandwidth={self.bandwidth:g})"


def _cholesky(K: Floats, cut: float) -> tuple[Floats, list[int]]:
    """L (D, D) of the points that have more than ``cut`` left, and their numbers."""
    rest, columns, kept = K.copy(), list[Floats](), list[int]()
    for i in range(len(K)):
        if rest[i, i] > cut:
            column = np.zeros(len(K))
            column[i:] = rest[i:, i] / sqrt(rest[i, i])
            rest[i:, i:] -= column[i:, None] * column[i:]
            columns.append(column)
            kept.append(i)
    return np.stack(columns, axis=1)[kept], kept


@same_bits
def _inverse(L: Floats) -> Floats:
    inverse: Floats = np.ascontiguousarray(solve_triangular(L, np.eye(len(L)), lower=True))
    return inverse


def landmarks(points: object, bandwidth: float, cut: float = CUT) -> Landmarks:
    """Features of the Gaussian kernel at chosen points, whitened.

    Parameters
    ----------
    points
        Landmarks, (m, d): a sample of the tokens, or centres of their clusters.
    bandwidth
        Distance at which the kernel is exp(-1/2).
    cut
        A point takes part if those before it leave more than this of k(p, p) = 1 to it.

    Returns
    -------
    Landmarks
        The map, (m, d) to (m, D), D the number of points that take part.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> phi = la.maps.landmarks(points, bandwidth=1.0)(points)
    >>> (phi @ phi.T).round(3)  # the kernel
    array([[1.   , 0.607, 0.135],
           [0.607, 1.   , 0.082],
           [0.135, 0.082, 1.   ]])
    """
    P = to_host(as_matrix(points, "points", 2))
    if 0 in P.shape:
        raise ValueError(f"points: at least one is needed, (m, d), got shape {P.shape}")
    for name, value in (("bandwidth", bandwidth), ("cut", cut)):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name}: a real number is needed, got {type(value).__name__}")
    if not (bandwidth > 0 and isfinite(bandwidth)):
        raise ValueError(f"bandwidth: must be positive and finite, got {bandwidth!r}")
    if not 0 < cut < 1:
        raise ValueError(f"cut: a number between 0 and 1 is needed, got {cut!r}")
    P.setflags(write=False)
    return Landmarks(P, float(bandwidth), float(cut))
