"""What a fit is asked for, checked."""

from __future__ import annotations

import numbers
import sys
from dataclasses import dataclass

import numpy as np

from ..arrays.types import Positions
from ..features.features import Features
from ..heads.given_number import require_every_feature
from ..heads.recovery import METHODS
from ..linalg.factors import SOLVERS, Solver
from ..solvers.conjugate_gradients.pcg import Pcg
from ..solvers.memory import estimate_memory
from ..system.arguments import as_size
from ..system.machine import as_memory_limit, require_memory


def as_heads(heads: object) -> str | int | None:
    """Check which heads are asked for."""
    if heads is None or (isinstance(heads, str) and heads in METHODS):
        return heads
    if isinstance(heads, bool | np.bool_) or not isinstance(heads, numbers.Integral):
        raise ValueError(
            f"heads: must be {', '.join(map(repr, METHODS))}, a number of heads or None, "
            f"got {heads!r}"
        )
    return as_size(heads, "heads")


@dataclass(frozen=True)
class Settings:
    """Checked settings of a fit."""

    alpha: float
    heads: str | int | None
    solver: Solver
    certify: bool
    memory_limit: int | None
    tol: float | None = None
    """Of conjugate gradients, see :class:`~linattn_fast.solvers.conjugate_gradients.pcg.Pcg`."""

    @classmethod
    def of(
        cls,
        alpha: float,
        heads: str | int | None,
        solver: Solver | Pcg,
        certify: bool,
        memory_limit: int | None,
    ) -> Settings:
        """Settings as users give them."""
        if isinstance(solver, Pcg):
            return cls(alpha, heads, "pcg", certify, memory_limit, solver.tol)
        return cls(alpha, heads, solver, certify, memory_limit)

    def __post_init__(self) -> None:
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
            raise TypeError(f"alpha: a real number is needed, got {type(alpha).__name__}")
        if not 0 <= alpha <= sys.float_info.max:  # also false for NaN
            raise ValueError(f"alpha: must be finite and not negative, got {alpha!r}")
        object.__setattr__(self, "heads", as_heads(self.heads))
        if not isinstance(self.solver, str) or self.solver not in SOLVERS:
            raise ValueError(
                f"solver: must be one of {', '.join(SOLVERS)} or Pcg(tol=...), got {self.solver!r}"
            )
        as_memory_limit(self.memory_limit)

    def require_possible(
        self, features: Features, d_out: int, positions: Positions, n_samples: int | None
    ) -> None:
        """Raise what speaks against the work, such as the memory of the solver that runs first."""
        if isinstance(self.heads, int):
            require_every_feature(features)
        d = features.d
        estimate = estimate_memory(
            d, d_out, positions=positions, n_samples=n_samples, features=features
        )
        name = "cholesky" if self.solver == "auto" else self.solver
        needed = estimate.get(name, 0)  # unknown before a stream of unknown length is read
        what = f"fit: d = {d} ({features.count} features), solver {name!r},"
        if isinstance(self.heads, int):  # the dense second moment is their metric
            needed = max(needed, estimate["cholesky"])
            what = f"{what} heads = {self.heads},"
        require_memory(needed, what, as_memory_limit(self.memory_limit))
