"""What a factorisation of Lambda + alpha I is, Lambda a second moment, and when it is safe.

Everything starts from the equilibrated matrix

    A = D (Lambda + alpha I) D,    D = diag(2^k), so that A has a diagonal in [1/2, 2]

(features that are nothing but rounding stay small in A, see
:mod:`linattn_fast.moments.sums`). Powers of two round nothing, and A does not see how the
tokens are scaled, so what counts as zero in A is a matter of rounding and not of units. With p
features, machine precision eps and `steps` the number of additions that the entries of Lambda have
gone through:

    rounding level   (p + steps) eps            what forming and decomposing A may have added,
                                                relative to its largest eigenvalue
    margin           10 (p + steps) eps         eigenvalues above it are taken to be real

- ``cholesky`` (:mod:`linattn_fast.linalg.cholesky`): A = L L', safe when LAPACK's estimate of the
  reciprocal condition is above the margin.
- ``eigh`` (:mod:`linattn_fast.linalg.spectral`): A = U diag(w) U'; eigenvalues up to the margin
  count as zero and the solution of least norm (in the caller's units, not in those of A) is
  returned. Singular values of the features below about sqrt(margin) are lost in a Gram;
  :mod:`linattn_fast.linalg.orthogonal` finds them.

:mod:`linattn_fast.linalg.choosing` takes the first that is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from ..arrays.types import Floats

MatrixMaker: TypeAlias = Callable[[], Floats]
"""Makes a fresh symmetric matrix (p, p) that may be overwritten."""

EPS = float(np.finfo(np.float64).eps)
"""Distance from 1 to the next float64, 2^-52."""
MARGIN = 10.0
"""Eigenvalues of A count as real above MARGIN times the rounding level."""
MOST_CONDITION = 1 / np.sqrt(EPS)
"""Largest condition of Lambda + alpha I for Cholesky with a ridge. Where Lambda is singular, the
ridge alone is what rounding is divided by; the range of Lambda, taken on its own, never sees it."""


class Factorisation(Protocol):
    """Lambda + alpha I, ready to solve with."""

    @property
    def name(self) -> str:
        """The name of the solver, "cholesky", "eigh" or "qr"."""

    @property
    def scale(self) -> Floats:
        """Diagonal of D, (p,)."""

    @property
    def rank(self) -> int:
        """Number of eigenvalues of A that count as real."""

    @property
    def uncertain(self) -> bool:
        """Whether the rank is in doubt."""

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
        """The margin above which ``smallest`` is taken to be real."""

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k), with the solution of least norm."""

    def multiply(self, x: Floats) -> Floats:
        """Multiply Lambda + alpha I with x (p,)."""


@dataclass(frozen=True)
class NotSafe:
    """The value of an attempt that rounding would spoil; printed, it is the reason."""

    reason: str
    """The reason, such as "the Gram is singular to rounding (pivot 3 of 40)"."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class ChosenFactor:
    """A factorisation, why it was chosen, and how long it took."""

    factorisation: Factorisation
    reason: str
    """Why this one was taken."""
    seconds: float
    """Seconds that it took."""
