"""Many problems of the same shapes in one call, in parallel over problems.

Each is solved from its own moments by Cholesky, in compiled code (csrc/core/many.cpp), where a
bound on the condition number says that this is safe without a correction on the data:

    relative error of the coefficients  <=  about  p eps cond(A),    A = D (Lambda + alpha I) D

The others, singular ones among them, are fitted by :func:`linattn_fast.fit` one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import compiled
from ..arrays.device import device_of
from ..arrays.floats import as_array, as_floats
from ..arrays.types import Array, Floats, Positions
from ..data.tokens import as_positions
from ..features.features import Features, as_features
from ..system.machine import get_num_threads, same_bits
from ..system.progress import Bar
from .call import fit
from .result import Fit

_MOST_CONDITION = 1e6
"""Bound on the condition number up to which coefficients are taken as Cholesky gives them."""


@dataclass(frozen=True, eq=False)
class FitMany:
    """Fits of many problems. Made by :func:`fit_many`; ``many[i]`` is the :class:`Fit` of one."""

    coefficients: Floats = field(repr=False)
    """(B, d_out, p)."""
    mean_squared_error: Floats = field(repr=False)
    """(B,): the mean over the samples of ||C h - y||^2, on the training data."""
    mean_squared_target: Floats = field(repr=False)
    """(B,): the mean of ||y||^2, to compare it with."""
    condition: Floats = field(repr=False)
    """(B,): a bound on the condition number of the equilibrated matrix where Cholesky was safe,
    what ``fit.info.condition`` says elsewhere."""
    solver: npt.NDArray[np.str_] = field(repr=False)
    """(B,): "cholesky" where the batch was solved together; else the solver of :func:`fit`."""
    together: npt.NDArray[np.bool_] = field(repr=False)
    """(B,): whether Cholesky was safe, so that :func:`fit` was not called for the problem."""
    features: Features
    """Which features take part."""
    positions: Positions
    """Which tokens query."""
    alpha: Floats = field(repr=False)
    """(B,): ridges."""
    Z: Array = field(repr=False)
    """The tokens, (B, N, n, d), for fits that are made on demand."""
    y: Array = field(repr=False)
    """The targets."""

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.coefficients)

    def __getitem__(self, index: int) -> Fit:
        """Fit one problem by itself, with its certificate and its heads.

        The coefficients are those of :attr:`coefficients` up to rounding. It is made anew on every
        call.
        """
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"index: there are {len(self)} problems, got {i}")
        return fit(
            self.Z[i],
            self.y[i],
            positions=self.positions,
            alpha=float(self.alpha[i]),
            features=self.features,
        )

    def __iter__(self) -> Iterator[Fit]:
        """Yield the fits, one after the other."""
        return (self[i] for i in range(len(self)))


@same_bits
def fit_many(
    Z: object,
    y: object,
    *,
    positions: Positions = "last",
    alpha: object = 0.0,
    features: Features | None = None,
    progress: bool | Callable[[int, Any], object] = False,
) -> FitMany:
    """Fit many problems of the same shapes, each as :func:`fit` would, in parallel over problems.

    Parameters
    ----------
    Z
        Tokens of all problems, (B, N, n, d); float32, float64 or integers, on the host.
    y
        Targets: (B, N) or (B, N, d_out) for "last"; (B, N, n) or (B, N, n, d_out) otherwise.
    positions
        Which tokens are queries with a target, as for :func:`fit`.
    alpha
        Ridge, added to the mean loss: one for all, or one for each problem, (B,).
    features
        Which features take part; None is all.
    progress
        True shows a bar; a function is called with the problems done and their number.

    Returns
    -------
    FitMany
        Coefficients (B, d_out, p) and training errors. ``many[i]`` is the fit of a problem with its
        certificate and heads, made when it is asked for.

    Raises
    ------
    ValueError, TypeError
        An argument that does not fit; the message begins with its name.

    Notes
    -----
    Where Cholesky is safe (a condition number of at most 1e6, which is bounded), nothing is refined
    on the data: coefficients err by about ``eps * condition``. ``together`` says for which
    problems that is so; the others are fitted by :func:`fit` one by one.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> Z, y = rng.standard_normal((50, 100, 8, 3)), rng.standard_normal((50, 100))
    >>> many = la.fit_many(Z, y, alpha=0.1)
    >>> many.coefficients.shape, bool(many.together.all())
    ((50, 1, 18), True)
    >>> bool(np.allclose(many.coefficients[7], la.fit(Z[7], y[7], alpha=0.1).coefficients))
    True
    >>> many[7].certificate.verdict
    'identifiable'
    """
    positions = as_positions(positions)
    tokens = _tokens(Z)
    targets, scalar = _targets(y, tokens, positions)
    alphas = _ridges(alpha, len(tokens))
    chosen = as_features(features, tokens.shape[3])
    Bar(0, "", progress)  # checked before any work
    given = targets[..., 0] if scalar else targets
    with np.errstate(all="ignore"), Bar(len(tokens), "problems", progress) as report:
        found = _together(tokens, targets, positions, alphas, chosen, report)
        fits: dict[int, Fit] = {}
        for i in np.flatnonzero(~found.safe).tolist():
            named = {"positions": positions, "features": chosen, "alpha": float(alphas[i])}
            fits[i] = one = _located(i, tokens[i], given[i], named)
            found.coefficients[i] = one.coefficients
            found.error[i] = one.info.mean_squared_error
            found.target[i] = one.info.mean_squared_target
            found.condition[i] = one.info.condition
            if report is not None:
                report(int(found.safe.sum()) + len(fits))
    names = np.array(["cholesky", *(one.info.solver for one in fits.values())])
    number = np.zeros(len(tokens), int)
    number[list(fits)] = np.arange(1, len(names))
    for array in (found.coefficients, found.error, found.target, found.condition, found.safe):
        array.setflags(write=False)
    return FitMany(
        found.coefficients,
        found.error,
        found.target,
        found.condition,
        names[number],
        found.safe,
        chosen,
        positions,
        alphas,
        tokens,
        given,
    )


# ---------------------------------------------------------------------------- what callers give


def _tokens(Z: object) -> Array:
    """Tokens (B, N, n, d) in C order."""
    array = as_floats(Z, "Z")
    if device_of(array) is not None:
        raise ValueError("Z: fit_many works on the host; bring the arrays home")
    if array.ndim != 4 or 0 in array.shape:
        raise ValueError(
            f"Z: tokens of shape (B, N, n, d), none of them 0, are needed, got {array.shape}"
        )
    return np.ascontiguousarray(array)


def _targets(y: object, tokens: Array, positions: Positions) -> tuple[Array, bool]:
    """Targets with an axis of outputs, in C order, and whether they came without one."""
    array = as_floats(y, "y")
    shape = tokens.shape[: 2 if positions == "last" else 3]
    scalar = array.shape == shape
    if not scalar and (array.shape[:-1] != shape or array.shape[-1] == 0):
        raise ValueError(f"y: shape {shape} or {(*shape, 'd_out')} is needed, got {array.shape}")
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"y: must be finite, got {array[tuple(place)]} at {place}")
    return np.ascontiguousarray(array[..., None] if scalar else array), scalar


def _ridges(alpha: object, problems: int) -> Floats:
    """One ridge for each problem."""
    given = as_array(alpha, "alpha")
    if given.dtype.kind not in "fiu":
        raise TypeError(f"alpha: a real number, or one for each problem, is needed, got {alpha!r}")
    given = given.astype(np.float64)
    if given.shape not in ((), (problems,)):
        raise ValueError(f"alpha: a number or shape ({problems},) is needed, got {given.shape}")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError(f"alpha: must be finite and not negative, got {alpha!r}")
    return np.ascontiguousarray(np.broadcast_to(given, (problems,)))


def _located(i: int, Z: Array, y: Array, named: dict[str, Any]) -> Fit:
    """The fit of problem i alone, whose errors say which it is."""
    try:
        return fit(Z, y, heads=None, certify=False, **named)
    except (ValueError, MemoryError) as error:
        error.args = (f"{error} (in problem {i})",)
        raise


# ------------------------------------------------------------------------------ all of them at once


@dataclass
class _Found:
    """What compiled code found; only where it is ``safe``."""

    coefficients: Floats
    error: Floats
    target: Floats
    condition: Floats
    safe: npt.NDArray[np.bool_]


def _together(
    tokens: Array,
    targets: Array,
    positions: Positions,
    alphas: Floats,
    features: Features,
    report: Callable[[int], object] | None,
) -> _Found:
    """Solve all problems by Cholesky, and say for which ones that was safe."""
    B, N, n, d = tokens.shape
    d_out, p = targets.shape[-1], features.count
    found = _Found(
        np.zeros((B, d_out, p)), np.zeros(B), np.zeros(B), np.full(B, np.inf), np.zeros(B, bool)
    )
    samples = N if positions == "last" else N * n
    if compiled.MISSING is not None or samples < p:
        return found
    rows = 1 if positions == "last" else n
    everything = features.everything
    try:
        C, target, error, condition = compiled.core.solve_many(
            compiled.core.Samples(
                tokens=tokens.reshape(B * N, n, d),
                targets=targets.reshape(B * N, rows, d_out),
                positions=positions,
                pairs=None if everything else features.pair_numbers,
                queries=None if everything else features.queries,
            ),
            B,
            alphas,
            get_num_threads(),
            report,
        )
    except compiled.core.NonFiniteError:
        return found  # each alone says which it is
    safe = (condition <= _MOST_CONDITION) & np.isfinite(C).all(axis=(1, 2)) & np.isfinite(target)
    return _Found(C, error, target, condition, safe)
