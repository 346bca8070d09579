"""Settings of a search: what users tell ``fit`` and ``head_path``, checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...backend.choice import get_backend
from ...system.arguments import as_size
from ..descent.descent import Method
from ..descent.levenberg_marquardt import levenberg_marquardt
from ..descent.quasi_newton import LARGE_THETA, quasi_newton

Solver: TypeAlias = Literal["auto", "lm", "lbfgs"]
_SOLVERS = ("auto", "lm", "lbfgs")


@dataclass(frozen=True)
class SearchSettings:
    """Checked settings of a search."""

    starts: int
    """Number of starts at most."""
    agreeing: int
    """Number of agreeing starts that ends the search."""
    held_out: float
    """Share of the sequences that is held out."""
    solver: Solver
    """Method of descent; "auto" goes by the number of unknowns."""
    seed: int
    """Seed of the starts and of the split."""
    compiled: bool
    """Whether normal matrices are formed in the compiled core."""

    @classmethod
    def of(
        cls, starts: int, agreeing: int, held_out: float, solver: Solver, seed: int, backend: str
    ) -> SearchSettings:
        """Check the arguments that users give, before any work."""
        share = positive_number(held_out, "held_out")
        if share >= 1:
            raise ValueError(f"held_out: must be below 1, got {held_out}")
        if solver not in _SOLVERS:
            raise ValueError(f"solver: must be one of {', '.join(_SOLVERS)}, got {solver!r}")
        if backend == "cuda":
            raise ValueError(
                "backend: softmax layers are learned on the host; 'auto', 'cpu' or 'numpy' is "
                "needed, got 'cuda'"
            )
        name = get_backend(backend).name
        return cls(
            as_size(starts, "starts"),
            as_size(agreeing, "agreeing"),
            share,
            solver,
            as_size(seed, "seed", least=0),
            name != "numpy",
        )

    def descent(self, unknowns: int) -> Method:
        """The method of descent for so many entries of Theta."""
        large = self.solver == "auto" and unknowns > LARGE_THETA
        return quasi_newton if large or self.solver == "lbfgs" else levenberg_marquardt


def positive_number(value: float, name: str) -> float:
    """A number that was checked to be positive and finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: a number is needed, got {type(value).__name__}") from None
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name}: must be positive, got {value}")
    return number
