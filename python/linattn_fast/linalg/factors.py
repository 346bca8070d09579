"""Solving (Lambda + alpha I) x = b for a second moment Lambda, and judging how well that can go.

Everything starts from the equilibrated matrix

    A = D (Lambda + alpha I) D,    D = diag(2^k), so that A has a diagonal in [1/2, 2]

(features that are nothing but rounding stay small in A, see :mod:`linattn_fast.moments.cancellation`).
Powers of two round nothing, and A does not see how the tokens are scaled, so what counts as zero in
A is a matter of rounding and not of units. With p features, machine precision eps and `steps` the
number of additions that the entries of Lambda have gone through:

    rounding level   (p + steps) eps            what forming and decomposing A may have added,
                                                relative to its largest eigenvalue
    margin           10 (p + steps) eps         eigenvalues above it are taken to be real

- ``cholesky``: A = L L', safe when LAPACK's estimate of the reciprocal condition is above the
  margin.
- ``eigh``: A = U diag(w) U'; eigenvalues up to the margin count as zero and the solution of least
  norm (in the caller's units, not in those of A) is returned. Singular values of the features
  below about sqrt(margin) are lost in a Gram; :mod:`linattn_fast.linalg.orthogonal` finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from ..arrays.device import is_on_device, module_of, put, to_host
from ..arrays.types import Floats
from . import device_algebra, host_algebra
from .least_norm import Lift, RidgeTriangle, ridge_among, shortest_lift

MatrixMaker: TypeAlias = Callable[[], Floats]
"""Makes a fresh symmetric matrix (p, p) that may be overwritten."""

Solver: TypeAlias = Literal["auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks"]
SOLVERS: tuple[Solver, ...] = ("auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks")
"""The first three are here; the others in :mod:`linattn_fast.solvers.dual`, ``orthogonal``, ``pcg`` and
``block_fit``."""

Safe = TypeVar("Safe", bound="Factorisation")
"""A factorisation of a kind of its own."""

EPS = float(np.finfo(np.float64).eps)
MARGIN = 10.0
"""Eigenvalues of A count as real above MARGIN times the rounding level."""
CLOSE = 100.0
"""Singular values within this factor of what counts as zero leave the rank uncertain."""
MOST_CONDITION = 1 / np.sqrt(EPS)
"""Largest condition of Lambda + alpha I for Cholesky with a ridge. Where Lambda is singular, the
ridge alone is what rounding is divided by; the range of Lambda, taken on its own, never sees it."""
_MOST_NOISE = 0.01
"""Largest noise in orthonormal vectors: above it, they say nothing at all."""


def algebra_of(matrix: Floats) -> ModuleType:
    """The factorisations of the place where a matrix is: LAPACK's, or cuSOLVER's."""
    return device_algebra if is_on_device(matrix) else host_algebra


class Factorisation(Protocol):
    """Lambda + alpha I, ready to solve with."""

    @property
    def name(self) -> str:
        """Of the solver."""

    @property
    def scale(self) -> Floats:
        """Diagonal of D, (p,)."""

    @property
    def rank(self) -> int:
        """Eigenvalues of A that count as real."""

    @property
    def uncertain(self) -> bool:
        """Whether the rank might be another."""

    @property
    def condition(self) -> float:
        """Condition number of A: estimated by LAPACK, or computed over the eigenvalues kept."""

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue of A relative to its largest: a lower estimate, or computed."""

    @property
    def level(self) -> float:
        """The rounding level of ``smallest``."""

    @property
    def margin(self) -> float:
        """Above it, ``smallest`` is taken to be real."""

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k): the solution of least norm."""

    def multiply(self, x: Floats) -> Floats:
        """(Lambda + alpha I) x for x (p,)."""


def power_of_two_scale(diagonal: Floats) -> Floats:
    """D with D^2 diagonal in [1/2, 2]; 1 where the diagonal is zero."""
    xp = module_of(diagonal)
    scale: Floats = xp.exp2(-xp.rint(xp.log2(xp.where(diagonal > 0, diagonal, 1.0)) / 2))
    return scale


def equilibrate(matrix: Floats, sizes: Floats | None = None) -> Floats:
    """Scale a symmetric matrix in place to a diagonal in [1/2, 2]; return D's diagonal.

    ``sizes``, (p,), stand in for the diagonal of the matrix where D is to be taken from them.
    """
    scale = power_of_two_scale(matrix.diagonal() if sizes is None else sizes)
    matrix *= scale
    matrix *= scale[:, None]
    return scale


def add_to_diagonal(matrix: Floats, value: float) -> None:
    """Add a number to the diagonal of a square matrix in C order, in place."""
    diagonal = matrix.reshape(-1)[:: len(matrix) + 1]
    diagonal += value


@dataclass(frozen=True)
class CholeskyFactor:
    """A = L L'."""

    factor: Floats
    scale: Floats
    norm: float
    """Largest column sum of A."""
    smallest: float
    level: float
    name: str = "cholesky"

    def get(self) -> CholeskyFactor:
        """The same, on the host."""
        factor = np.asfortranarray(to_host(self.factor))
        return replace(self, factor=factor, scale=to_host(self.scale))

    @property
    def margin(self) -> float:
        """MARGIN times the level."""
        return MARGIN * self.level

    @property
    def rank(self) -> int:
        """Full: a factorisation is only made of matrices that allow it."""
        return len(self.scale)

    @property
    def uncertain(self) -> bool:
        """Never: the rank is full."""
        return False

    @property
    def condition(self) -> float:
        """LAPACK's estimate in the 1-norm."""
        return 1 / self.smallest

    def solve(self, b: Floats) -> Floats:
        """x = D L'^-1 L^-1 D b."""
        x: Floats = algebra_of(self.factor).cholesky_solve(self.factor, self.scale[:, None] * b)
        return self.scale[:, None] * x

    def multiply(self, x: Floats) -> Floats:
        """D^-1 L L' D^-1 x."""
        y: Floats = algebra_of(self.factor).cholesky_times(self.factor, x / self.scale)
        return y / self.scale


@dataclass(frozen=True)
class SpectralFactor:
    """A = V diag(w) V' over the eigenvalues that count, and the way back to the caller's units.

    A is the equilibrated Lambda, without the ridge. What Lambda = D^-1 A D^-1 determines of
    coefficients x is a = V' D^-1 x, and x = K a is the shortest of all with that a
    (:mod:`linattn_fast.linalg.least_norm`):

        x = K (diag(w) + alpha K'K)^-1 K' b

    Of full rank, K = D V; for b in the range of Lambda, K'b = V'D b.
    """

    values: Floats
    """All eigenvalues of A, ascending."""
    vectors: Floats
    """V, (p, r): eigenvectors of the last r."""
    scale: Floats
    lift: Lift | None
    """K; None for D V."""
    ridge: RidgeTriangle | None
    """Triangle of diag(w) + alpha K'K; None without a ridge."""
    level: float
    margin: float
    name: str = "eigh"
    """"eigh", or "qr" when values and vectors come from the features themselves."""

    def get(self) -> SpectralFactor:
        """The same, on the host."""
        return replace(
            self,
            values=to_host(self.values),
            vectors=to_host(self.vectors),
            scale=to_host(self.scale),
            lift=self.lift and Lift(to_host(self.lift.turned), to_host(self.lift.turn)),
        )

    @property
    def rank(self) -> int:
        """Eigenvalues that count."""
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
        """Whether an eigenvalue is so close to the margin that the rank might be another."""
        near = self.margin * self.values[-1]
        close = (self.values > near / self.closeness) & (self.values < near * self.closeness)
        return bool(close.any())

    @property
    def closeness(self) -> float:
        """A factor of 100, of singular values where they were computed, else of eigenvalues."""
        return CLOSE**2 if self.name == "qr" else CLOSE

    def solve(self, b: Floats) -> Floats:
        """The shortest of all solutions."""
        if self.rank == 0:
            nothing: Floats = module_of(b).zeros_like(b)
            return nothing
        if self.ridge is not None:
            x: Floats = put(self.ridge.solve(to_host(b)), like=b)
            return x
        return self.shortest((self.vectors.T @ (self.scale[:, None] * b)) / self.kept[:, None])

    def shortest(self, inner: Floats) -> Floats:
        """K inner: the shortest x with V' D^-1 x = inner."""
        if self.lift is None:
            return self.scale[:, None] * (self.vectors @ inner)
        return self.lift(inner)

    def multiply(self, x: Floats) -> Floats:
        """D^-1 V diag(w) V' D^-1 x: Lambda x, without the ridge."""
        y = self.kept * (self.vectors.T @ (x / self.scale))
        return (self.vectors @ y) / self.scale


def rounding_level(p: int, steps: int = 0) -> float:
    """What rounding may have added to an eigenvalue of A, relative to the largest."""
    return (p + steps) * EPS


def _norm(matrix: Floats) -> float:
    """Largest column sum, without a second matrix."""
    xp = module_of(matrix)
    step = max(1, _AT_ONCE // len(matrix))
    parts = (matrix[first : first + step] for first in range(0, len(matrix), step))
    return float(max(xp.abs(rows).sum(axis=1).max() for rows in parts))


_AT_ONCE = 1 << 20
"""Entries of a matrix that are looked at together."""


def try_cholesky(
    matrix: Floats, steps: int = 0, sizes: Floats | None = None
) -> CholeskyFactor | str:
    """Factorise in place, or say why that is not safe; either way the matrix is overwritten."""
    p = len(matrix)
    scale = equilibrate(matrix, sizes)
    norm = _norm(matrix)
    algebra = algebra_of(matrix)
    factor, failed = algebra.cholesky(matrix)
    if failed:
        pivot = f" (pivot {failed} of {p})" if failed > 0 else ""
        return f"the Gram is singular to rounding{pivot}"
    reciprocal = algebra.reciprocal_condition(factor, norm)
    level = rounding_level(p, steps)
    if not reciprocal > MARGIN * level:
        return ill_conditioned(reciprocal)
    return CholeskyFactor(factor, scale, norm, float(reciprocal), level)


def safe_for_ridge(factor: Safe | str, alpha: float) -> Safe | str:
    """The factorisation of Lambda + alpha I, or why the range of Lambda is to be told apart."""
    if isinstance(factor, str) or alpha == 0 or factor.condition <= MOST_CONDITION:
        return factor
    return f"the Gram with its ridge is ill-conditioned (about {factor.condition:.1g})"


def ill_conditioned(reciprocal: float) -> str:
    """Why Cholesky is not safe."""
    return f"the Gram is too ill-conditioned (about {1 / max(reciprocal, 1e-300):.1g})"


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
    # Of graded matrices, LAPACK has QR with pivots and cuSOLVER has not, so this is on the host
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
    """Eigendecomposition of the equilibrated matrix, which is overwritten and has no ridge yet.

    Not ``scaled``, D = I: for a kernel matrix, whose null space matters in its own units.
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


@dataclass(frozen=True)
class Choice:
    """A factorisation, why it was chosen, and how long it took."""

    factorisation: Factorisation
    reason: str
    seconds: float


def factorise(
    form: MatrixMaker,
    solver: str = "auto",
    *,
    steps: int = 0,
    sizes: Floats | None = None,
    scaled: bool = True,
) -> Choice:
    """Factorise the matrix that ``form`` makes, by the solver asked for or the one that is safe.

    Parameters
    ----------
    form
        Makes the matrix; called again when the first attempt has overwritten it.
    solver
        "cholesky", "eigh", or "auto": try Cholesky and fall back to the eigendecomposition, saying
        why.
    steps
        Additions that the entries of the matrix have gone through.
    sizes
        (p,), from which D is taken in the place of the diagonal.
    scaled
        Whether the eigendecomposition is of the equilibrated matrix.

    Raises
    ------
    numpy.linalg.LinAlgError
        "cholesky" was asked for and is not safe.
    """
    return choose(
        lambda: try_cholesky(form(), steps, sizes),
        lambda: decompose(form(), steps, sizes, scaled=scaled),
        solver,
    )


def choose(
    attempt: Callable[[], Factorisation | str],
    least_norm: Callable[[], Factorisation],
    solver: str,
) -> Choice:
    """Cholesky if ``attempt`` makes one, else what finds the solution of least norm.

    The rule of :func:`factorise`, for whatever way there is to do either.
    """
    start = time.perf_counter()
    reason = "asked for"
    if solver != "eigh":
        factor = attempt()
        if not isinstance(factor, str):
            reason = "well-conditioned Gram" if solver == "auto" else reason
            return Choice(factor, reason, time.perf_counter() - start)
        if solver == "cholesky":
            raise np.linalg.LinAlgError(f"solver: 'cholesky' is not possible: {factor}; use 'auto'")
        reason = f"{factor}, so the solution of least norm was taken"
    return Choice(least_norm(), reason, time.perf_counter() - start)
