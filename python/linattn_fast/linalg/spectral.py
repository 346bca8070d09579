"""Eigenvectors of the equilibrated second moment: rank, and the solution of least norm.

    A = D Lambda D = U diag(w) U'

Eigenvalues up to the margin (:mod:`linattn_fast.linalg.factors`) count as zero; the ridge, which is
a matter of the caller's units, is solved for among the others
(:mod:`linattn_fast.linalg.least_norm`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays.device import module_of, put, to_host
from ..arrays.types import Floats
from .algebra import algebra_of
from .cholesky import equilibrate, rounding_level
from .factors import MARGIN
from .least_norm import Lift, RidgeTriangle, ridge_among, shortest_lift

CLOSE = 100.0
"""Singular values within this factor of what counts as zero leave the rank uncertain."""
_MOST_NOISE = 0.01
"""Largest noise in orthonormal vectors: above it, they say nothing at all."""


@dataclass(frozen=True)
class SpectralFactor:
    """A = V diag(w) V' over the eigenvalues that count, and the way back to the caller's units.

    A is the equilibrated Lambda, without the ridge. What Lambda = D^-1 A D^-1 determines of
    coefficients x is a = V' D^-1 x, and x = K a is the shortest of all with that a
    (:mod:`linattn_fast.linalg.least_norm`):

        x = K (diag(w) + alpha K'K)^-1 K' b

    At full rank, K = D V; for b in the range of Lambda, K'b = V'D b.
    """

    values: Floats
    """All eigenvalues of A, ascending."""
    vectors: Floats
    """The eigenvectors V of the last r of them, (p, r)."""
    scale: Floats
    lift: Lift | None
    """The map K; None where it is D V."""
    ridge: RidgeTriangle | None
    """Triangle of diag(w) + alpha K'K; None without a ridge."""
    level: float
    margin: float
    name: str = "eigh"
    """"eigh", or "qr" when values and vectors come from the features themselves."""

    def get(self) -> SpectralFactor:
        """Copy the factorisation to the host."""
        return replace(
            self,
            values=to_host(self.values),
            vectors=to_host(self.vectors),
            scale=to_host(self.scale),
            lift=self.lift and Lift(to_host(self.lift.turned), to_host(self.lift.turn)),
        )

    @property
    def rank(self) -> int:
        """Number of eigenvalues that count."""
        return int(self.vectors.shape[1])

    @property
    def kept(self) -> Floats:
        """The eigenvalues that count, (r,), ascending."""
        return self.values[len(self.values) - self.rank :]

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue of A over its largest."""
        return float(self.values[0] / self.values[-1]) if self.rank else 0.0

    @property
    def condition(self) -> float:
        """Largest over smallest eigenvalue kept, with the ridge if any; infinite when none is."""
        if self.rank == 0:
            return float("inf")
        if self.ridge is not None:
            return self.ridge.condition
        return float(self.values[-1] / self.values[-self.rank])

    @property
    def uncertain(self) -> bool:
        """Whether an eigenvalue is so close to the margin that the rank is in doubt."""
        near = self.margin * self.values[-1]
        close = (self.values > near / self.closeness) & (self.values < near * self.closeness)
        return bool(close.any())

    @property
    def closeness(self) -> float:
        """The ratio of eigenvalues that CLOSE means: its square for singular values."""
        return CLOSE**2 if self.name == "qr" else CLOSE

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k), with the shortest of all solutions."""
        if self.rank == 0:
            nothing: Floats = module_of(b).zeros_like(b)
            return nothing
        if self.ridge is not None:
            x: Floats = put(self.ridge.solve(to_host(b)), like=b)
            return x
        return self.shortest((self.vectors.T @ (self.scale[:, None] * b)) / self.kept[:, None])

    def shortest(self, inner: Floats) -> Floats:
        """The shortest x with V' D^-1 x = inner, which is K inner."""
        if self.lift is None:
            return self.scale[:, None] * (self.vectors @ inner)
        return self.lift(inner)

    def multiply(self, x: Floats) -> Floats:
        """Multiply Lambda = D^-1 V diag(w) V' D^-1, without the ridge, with x (p,)."""
        y = self.kept * (self.vectors.T @ (x / self.scale))
        return (self.vectors @ y) / self.scale


def spectral_factor(
    values: Floats,
    vectors: Floats,
    scale: Floats,
    *,
    level: float,
    margin: float,
    name: str = "eigh",
    alpha: float = 0.0,
) -> SpectralFactor:
    """Keep the eigenpairs of A above the margin; the ridge is solved for among them.

    Vectors that belong to the first, zero eigenvalues may be missing.
    """
    rank = int((values > margin * values[-1]).sum()) if values[-1] > 0 else 0
    kept = vectors[:, vectors.shape[1] - rank :]
    if rank == 0 or (rank == len(values) and alpha == 0):
        return SpectralFactor(values, kept, scale, None, None, level, margin, name)
    # Graded matrices need QR with pivots, which cuSOLVER lacks, so this is on the host
    real = to_host(values[len(values) - rank :])
    noise = level * real[-1] / real[0]  # of the vectors: rounding over the gap to zero
    noise = MARGIN * (np.sqrt(noise) if name == "qr" else noise)
    lift = shortest_lift(to_host(kept), to_host(scale), min(float(noise), _MOST_NOISE))
    ridge = None
    if alpha > 0:
        ridge = ridge_among(np.sqrt(real), lift, alpha, np.zeros((rank, 0)))[1]
    placed = Lift(put(lift.turned, like=kept), put(lift.turn, like=kept))
    return SpectralFactor(values, kept, scale, placed, ridge, level, margin, name)


def decompose(
    matrix: Floats,
    steps: int = 0,
    sizes: Floats | None = None,
    *,
    scaled: bool = True,
    alpha: float = 0.0,
) -> SpectralFactor:
    """Decompose the equilibrated matrix, which is overwritten and has no ridge yet.

    Where it is not ``scaled``, D = I: the null space of a kernel matrix matters in its own units.
    """
    values, vectors, scale = eigenpairs(matrix, sizes, scaled=scaled)
    level = rounding_level(len(matrix), steps)
    return spectral_factor(values, vectors, scale, level=level, margin=MARGIN * level, alpha=alpha)


def eigenpairs(
    matrix: Floats, sizes: Floats | None = None, *, scaled: bool = True
) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues, ascending, and vectors of A, and D's diagonal; the matrix is overwritten."""
    scale = equilibrate(matrix, sizes) if scaled else module_of(matrix).ones(len(matrix))
    values, vectors = algebra_of(matrix).eigenpairs(matrix)
    return values, vectors, scale
