"""The call that people write, on small arrays: tried before anything else is looked at.

Checks, plans and reports take longer than the arithmetic of a small problem. So plain arrays are
handed to compiled code as they are (:mod:`linattn_fast.fitting.small`), which solves and proves,
and the report, the certificate and what the search for heads needs are put together when they are
first asked for. Every argument that is not plain, and every doubt (shapes that do not fit, numbers
that are not finite, sequences that may be padded, a problem that is not safe), is left to
:func:`linattn_fast.fit` itself, which has the errors, the warnings and the other solvers. No BLAS
is used here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import compiled
from ..arrays.types import Array
from ..backend.cpu import CpuBackend
from ..data.tokens import Tokens
from ..features.features import as_features, feature_count
from ..features.samples import Samples
from ..heads.pending import NOT_YET, PendingHeads
from ..heads.recovery import METHODS, Wanted
from ..problem.in_memory import InMemory
from .result import Fit, info_of
from .small import (
    MOST_FEATURES,
    MOST_NUMBERS,
    MOST_SAMPLES,
    WHY,
    Limits,
    SmallFit,
    bytes_of_small,
    limits_of,
)


def fit_at_once(
    Z: object,
    y: object = None,
    *,
    offsets: object = None,
    positions: object = "last",
    alpha: object = 0.0,
    sample_weight: object = None,
    features: object = None,
    heads: object = "minimal",
    solver: object = "auto",
    backend: object = "auto",
    precision: object = "float64",
    certify: object = True,
    memory_limit: object = None,
    progress: object = False,
) -> Fit | None:
    """Fit plain arrays of a small problem; None for whatever is not plain, small and safe."""
    if type(Z) is not np.ndarray or type(y) is not np.ndarray or Z.size > MOST_NUMBERS:
        return None
    if not (
        offsets is sample_weight is features is memory_limit is None
        and progress is False
        and type(certify) is bool
        and (type(alpha) is float or type(alpha) is int)
        and 0 <= alpha <= sys.float_info.max
        and _is(positions, "last")
        and _is(solver, "auto")
        and _is(backend, "auto")
        and _is(precision, "float64")
        and (heads is None or (type(heads) is str and heads in METHODS))
        and _are_plain(Z, y)
        and compiled.MISSING is None
        and not os.environ.get("LINATTN_BACKEND")
    ):
        return None
    N, n, d = Z.shape
    bounds = limits_of(feature_count(d), N, n)
    if bounds is None:
        return None
    rows = y.reshape(N, 1, -1)
    numbers = compiled.core.fit_small_arrays(Z, rows, alpha, bounds.limits, certify)
    if numbers is None:
        return None
    found = SmallFit(*numbers)
    if not found.coefficient_error(alpha, bounds) < 1:
        return None
    return _fit_of(found, _Later(found, bounds, Z, rows, y.ndim == 1, alpha, heads), certify)


def _is(value: object, expected: str) -> bool:
    return type(value) is str and value == expected


def _are_plain(Z: Array, y: Array) -> bool:
    """Whether compiled code can read tokens (N, n, d) and targets as they are, and they are few.

    Shapes that look as if tokens were columns are left to those who warn of it.
    """
    if Z.ndim != 3 or y.ndim not in (1, 2) or Z.dtype.char not in "fd" or y.dtype.char not in "fd":
        return False
    N, n, d = Z.shape
    d_out = 1 if y.ndim == 1 else y.shape[1]
    flags, own = Z.flags, y.flags
    return (
        flags.c_contiguous
        and flags.aligned
        and own.c_contiguous
        and own.aligned
        and Z.dtype.isnative
        and y.dtype.isnative
        and 0 < feature_count(d) <= min(N, MOST_FEATURES)
        and N <= MOST_SAMPLES
        and len(y) == N
        and n > 0
        and d_out > 0
        and not (1 < n < d and d_out == n)
    )


def _fit_of(found: SmallFit, later: _Later, certify: bool) -> Fit:
    """The fit, whose other parts are made when they are asked for."""
    found.coefficients.flags.writeable = False
    made = object.__new__(Fit)
    state = vars(made)
    state["coefficients"] = found.coefficients
    state["features"] = as_features(None, later.Z.shape[2])
    state["scalar_targets"] = later.scalar
    if not certify:
        state["certificate"] = None
    if later.heads is None:
        state["heads"] = None
    state["_later"] = later
    return made


class _Later:
    """Parts of a fit, each made once, by whichever thread asks for it first."""

    def __init__(
        self,
        found: SmallFit,
        bounds: Limits,
        Z: Array,
        rows: Array,
        scalar: bool,
        alpha: float,
        heads: str | None,
    ) -> None:
        self.found, self.bounds, self.Z, self.rows = found, bounds, Z, rows
        self.scalar, self.alpha, self.heads = scalar, alpha, heads
        self._made: dict[str, Any] = {}
        self._lock = threading.RLock()

    def make(self, name: str) -> Any:
        """The part of that name, a key of ``PARTS``."""
        with self._lock:
            if name not in self._made:
                self._made[name] = PARTS[name](self)
            return self._made[name]

    def problem(self) -> InMemory:
        """The data as other fits have it."""
        features = as_features(None, self.Z.shape[2])
        targets = Tokens(self.rows, scalar=self.scalar)
        samples = Samples(Tokens(self.Z), targets, None, "last", features)
        return InMemory(samples, CpuBackend())

    def info(self) -> Any:
        """How the fit went, before heads were asked for."""
        problem: InMemory = self.make("problem")
        solved = self.found.solved(problem, self.alpha, self.bounds)
        told = "" if self.heads is None else NOT_YET
        needed = bytes_of_small(problem)
        return info_of(solved, solved.solution, WHY, needed, self.found.seconds, told)

    def certificate(self) -> Any:
        """What the data determines."""
        problem: InMemory = self.make("problem")
        return self.found.certificate(problem.samples, self.bounds)

    def pending(self) -> PendingHeads:
        """The search for heads."""
        assert self.heads is not None
        problem: InMemory = self.make("problem")
        solved = self.found.solved(problem, self.alpha, self.bounds)
        features = problem.features
        wanted = Wanted.of_fit(self.heads, features.d, solved, self.alpha)
        return PendingHeads(self.found.coefficients, features, wanted)


PARTS: dict[str, Callable[[_Later], Any]] = {
    "problem": _Later.problem,
    "info": _Later.info,
    "certificate": _Later.certificate,
    "_pending": _Later.pending,
}
"""What is made later, and how."""
