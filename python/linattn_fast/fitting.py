"""From tokens and targets to a learned, certified layer.

The objective, everywhere, with features h, weights w, W = sum w and C the coefficients (d_out, p):

    (1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2

Among equal minimisers the one of least ||C||_F is returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from . import storage
from .backend import get_backend
from .certificate import Certificate, certificate_from
from .features import feature_count
from .heads import Heads, recover_heads
from .memory import estimate_memory, in_words, require_memory
from .moments import Moments, require_supported
from .progress import Bar
from .solve import EPS, SOLVERS, Choice, Factorisation, Solver, factorise
from .tokens import (
    Array,
    Floats,
    Positions,
    Tokens,
    as_positions,
    as_targets,
    as_tokens,
    as_weights,
)

_FILE_VERSION = 1
_MOST_REFINEMENTS = 4


@dataclass(frozen=True)
class FitInfo:
    """How a fit went."""

    solver: str
    """"cholesky" or "eigh"."""
    reason: str
    """Why that solver ran; a fallback is named here."""
    condition: float
    """Condition number of the equilibrated matrix that was solved with."""
    mean_squared_error: float
    """(1/W) sum w ||C h - y||^2 on the training data."""
    mean_squared_target: float
    """(1/W) sum w ||y||^2, to compare it with."""
    refinements: tuple[float, ...]
    """Relative size of each correction from residuals recomputed on the data: the first estimates
    the error before refinement, and each one the error that was left before it. Empty for a fit
    from moments alone, which cannot recover what forming the Gram has lost."""
    backend: str
    n_samples: int
    dimension: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    bytes: int = 0
    """Estimated peak of memory, beside the data."""

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {spent:.3g} s" for name, spent in self.seconds.items())
        steps = ", ".join(f"{step:.1e}" for step in self.refinements) or "none (no data at hand)"
        return (
            f"solver {self.solver}: {self.reason}\n"
            f"  {self.n_samples} samples, {self.dimension} features, "
            f"condition {self.condition:.2g}, backend {self.backend}\n"
            f"  mean squared error {self.mean_squared_error:.3g} "
            f"of mean squared target {self.mean_squared_target:.3g}\n"
            f"  refinement on the data: {steps}\n"
            f"  {stages}; about {in_words(self.bytes)}"
        )


@dataclass(frozen=True)
class Fit:
    """A learned layer. Made by :func:`fit`, :meth:`Moments.fit` and :func:`load`."""

    coefficients: Floats = field(repr=False)
    """(d_out, p)."""
    d: int
    heads: Heads | None
    certificate: Certificate | None
    info: FitInfo
    positions: Positions = "last"
    """What the layer was trained on."""

    @property
    def d_out(self) -> int:
        """Outputs."""
        return len(self.coefficients)

    def predict(
        self,
        Z: object,
        positions: Positions | None = None,
        *,
        offsets: object = None,
        backend: str = "auto",
    ) -> Floats | list[Floats]:
        """Apply the learned coefficients to new tokens, of any length.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets.
        positions
            "last", "all" or "causal", see :class:`Heads`; by default as in training.
        backend
            "auto", "cpu" or "numpy".

        Returns
        -------
        array or list
            (N, d_out) for "last"; otherwise one row a token, in the form of Z.
        """
        where = self.positions if positions is None else as_positions(positions)
        tokens = as_tokens(Z, offsets, d=self.d)
        y = get_backend(backend).coefficients(self.coefficients, tokens, where)
        return y if where == "last" else tokens.restore(y)

    def save(self, path: storage.PathLike) -> None:
        """Write to an ``.npz`` file, atomically (format in docs/files.md); read by :func:`load`."""
        arrays: dict[str, Array] = {"coefficients": self.coefficients}
        meta: dict[str, Any] = {"d": self.d, "positions": self.positions, "info": asdict(self.info)}
        empty = np.zeros((0, self.d_out, self.d)), np.zeros((0, self.d, self.d))
        arrays["V"], arrays["Q"] = (self.heads.V, self.heads.Q) if self.heads else empty
        meta["certificate"] = None
        arrays["spectrum"] = np.zeros(0)
        if self.certificate is not None:
            certificate = asdict(self.certificate)
            spectrum = certificate.pop("spectrum")
            meta["certificate"] = certificate
            if spectrum is not None:
                arrays["spectrum"] = spectrum
        storage.write(path, "fit", _FILE_VERSION, meta, arrays)


def load(path: storage.PathLike) -> Fit:
    """Read a layer that :meth:`Fit.save` wrote."""
    names = ("coefficients", "V", "Q", "spectrum")
    meta, arrays = storage.read(path, "fit", _FILE_VERSION, names)
    certificate = None
    if meta["certificate"] is not None:
        spectrum = arrays["spectrum"] if arrays["spectrum"].size else None
        certificate = Certificate(**meta["certificate"], spectrum=spectrum)
    info = meta["info"]
    info["refinements"] = tuple(info["refinements"])
    return Fit(
        coefficients=arrays["coefficients"],
        d=meta["d"],
        heads=Heads(arrays["V"], arrays["Q"]) if len(arrays["V"]) else None,
        certificate=certificate,
        info=FitInfo(**info),
        positions=meta["positions"],
    )


@dataclass(frozen=True)
class _Settings:
    """Checked settings of a fit."""

    alpha: float
    heads: str | None
    solver: Solver
    certify: bool
    memory_limit: int | None

    def __post_init__(self) -> None:
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
            raise TypeError(f"alpha: a number is needed, got {type(alpha).__name__}")
        if not (np.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"alpha: must be finite and not negative, got {alpha!r}")
        if self.heads not in ("svd", None):
            raise ValueError(f"heads: must be 'svd' or None, got {self.heads!r}")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: must be one of {', '.join(SOLVERS)}, got {self.solver!r}")
        limit = self.memory_limit
        if limit is not None and not (isinstance(limit, int) and limit > 0):
            raise ValueError(f"memory_limit: a positive number of bytes is needed, got {limit!r}")

    def require_memory(self, d: int, d_out: int) -> int:
        """Bytes of the solver that will run first; raises MemoryError when they are too many."""
        name = "eigh" if self.solver == "eigh" else "cholesky"
        needed = estimate_memory(d, d_out)[name]
        require_memory(needed, f"fit: d = {d} ({feature_count(d)} features)", self.memory_limit)
        return needed


def _normal_matrix(moments: Moments, alpha: float) -> Callable[[], Floats]:
    """Lambda + alpha I, formed anew at each call."""

    def form() -> Floats:
        matrix = moments.gram()
        matrix /= moments.required_weight()
        matrix[np.diag_indices(len(matrix))] += alpha
        return matrix

    return form


def _refine(
    coefficients: Floats,
    factor: Factorisation,
    alpha: float,
    gradient: Callable[[Floats], Floats],
) -> tuple[Floats, tuple[float, ...]]:
    """Correct C by (Lambda + alpha I)^-1 times the gradient recomputed on the data.

    ``gradient(C)`` is (1/W) sum w h (y - C h)', (p, d_out). A step leaves about its own square (the
    factorisation solves to the relative accuracy that the step shows), so one below sqrt(eps) is
    the last. One that is not less than half of the one before, or of C at first, shows that there
    is nothing to gain, and is not taken.
    """
    steps: list[float] = []
    size = float(np.linalg.norm(coefficients))
    while size > 0 and len(steps) < _MOST_REFINEMENTS:
        correction = factor.solve(gradient(coefficients) - alpha * coefficients.T).T
        step = float(np.linalg.norm(correction)) / size
        if not step <= (steps[-1] if steps else 1.0) / 2:
            break
        coefficients = coefficients + correction
        steps.append(step)
        if step < np.sqrt(EPS):
            break
    return coefficients, tuple(steps)


class _Stages(dict[str, float]):
    """Seconds per stage."""

    def timed(self, name: str, start: float) -> None:
        self[name] = time.perf_counter() - start


def _finish(
    moments: Moments,
    settings: _Settings,
    stages: _Stages,
    refine: Callable[[Floats, Factorisation], tuple[Floats, tuple[float, ...], float]] | None,
    backend: str,
) -> Fit:
    """Solve, refine, certify and recover heads."""
    peak = settings.require_memory(moments.d, moments.d_out)
    choice: Choice = factorise(_normal_matrix(moments, settings.alpha), settings.solver)
    factor = choice.factorisation
    start = time.perf_counter()
    coefficients = factor.solve(moments.cross() / moments.required_weight()).T
    stages["solve"] = choice.seconds + time.perf_counter() - start

    start = time.perf_counter()
    refinements: tuple[float, ...] = ()
    if refine is not None:
        coefficients, refinements, error = refine(coefficients, factor)
        stages.timed("refine", start)
    else:
        error = moments.loss(coefficients)
        stages.timed("loss", start)

    certificate = None
    if settings.certify:
        start = time.perf_counter()
        certificate = certificate_from(moments, factor if settings.alpha == 0 else None)
        stages.timed("certify", start)
    heads = None
    if settings.heads is not None:
        start = time.perf_counter()
        heads = recover_heads(coefficients, moments.d)
        stages.timed("heads", start)

    coefficients = np.ascontiguousarray(coefficients)
    coefficients.setflags(write=False)
    info = FitInfo(
        solver=factor.name,
        reason=choice.reason,
        condition=factor.condition,
        mean_squared_error=error,
        mean_squared_target=float(moments.sums.energy.sum()) / moments.required_weight(),
        refinements=refinements,
        backend=backend,
        n_samples=moments.n_samples,
        dimension=moments.dimension,
        seconds=dict(stages),
        bytes=max(peak, estimate_memory(moments.d, moments.d_out)[factor.name]),
    )
    return Fit(coefficients, moments.d, heads, certificate, info, moments.positions)


def fit_moments(
    moments: Moments,
    *,
    alpha: float,
    heads: str | None,
    solver: str,
    certify: bool,
    memory_limit: int | None,
) -> Fit:
    """Fit from moments alone: :meth:`Moments.fit`."""
    if moments.d_out == 0:
        raise ValueError(
            "d_out: these moments have no targets (d_out = 0); there is nothing to fit"
        )
    moments.required_weight()
    settings = _Settings(alpha, heads, solver, certify, memory_limit)  # type: ignore[arg-type]
    backend = get_backend(moments.backend).name
    return _finish(moments, settings, _Stages(), None, backend)


def fit(
    Z: object,
    y: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    alpha: float = 0.0,
    sample_weight: object = None,
    features: None = None,
    heads: Literal["svd"] | None = "svd",
    solver: Solver = "auto",
    backend: str = "auto",
    precision: Literal["float64"] = "float64",
    certify: bool = True,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, int], object] = False,
) -> Fit:
    """Learn the linear attention layer that fits best, to the global optimum.

    Minimises ``(1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2`` over the coefficients C of
    the cubic features h; among equal minimisers the one of least norm is returned.

    Parameters
    ----------
    Z, offsets
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets. float32, float64 or
        integers.
    y
        Targets (N, d_out); (N,) means d_out = 1.
    positions
        Which tokens have targets; "last" in this version.
    alpha
        Ridge, added to the mean loss.
    sample_weight
        Weights w, (N,), not negative; 1 by default. W is their sum.
    features
        None in this version: all features.
    heads
        "svd" recovers heads from C (see :func:`recover_heads`), None does not.
    solver
        "cholesky", "eigh" (least norm, for singular problems), or "auto": Cholesky where that is
        safe. ``fit.info`` says which ran and why.
    backend
        "cpu", "numpy" or "auto".
    precision
        "float64" in this version.
    certify
        Make the certificate as well.
    memory_limit
        Bytes that may be used beside the data; the machine's memory by default. MemoryError when
        that is not enough, before any work.
    progress
        True shows a bar; a function is called with the sequences done and their number.

    Returns
    -------
    Fit
        Coefficients, heads, certificate and how the fit went.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 4)))
    >>> Z = rng.standard_normal((400, 16, 4))
    >>> fit = la.fit(Z, truth(Z))
    >>> fit.certificate.verdict, bool(fit.heads.distance(truth) < 1e-9)
    ('identifiable', True)
    """
    require_supported(positions, features, precision)
    settings = _Settings(alpha, heads, solver, certify, memory_limit)
    tokens = as_tokens(Z, offsets)
    targets = as_targets(y, tokens)
    weights = as_weights(sample_weight, len(tokens))
    if weights is not None and not weights.any():
        raise ValueError("sample_weight: at least one weight must be positive, got all zero")
    settings.require_memory(tokens.d, targets.shape[1])
    name = get_backend(backend).name

    stages = _Stages()
    start = time.perf_counter()
    moments = Moments(tokens.d, targets.shape[1], backend=name)
    with Bar(len(tokens), "moments", progress) as report:
        moments.add_checked(tokens, targets, weights, report)
    stages.timed("moments", start)

    def refine(C: Floats, factor: Factorisation) -> tuple[Floats, tuple[float, ...], float]:
        return _refine_on_data(C, factor, settings.alpha, name, tokens, targets, weights)

    return _finish(moments, settings, stages, refine, name)


def _refine_on_data(
    coefficients: Floats,
    factor: Factorisation,
    alpha: float,
    backend: str,
    tokens: Tokens,
    targets: Array,
    weights: Floats | None,
) -> tuple[Floats, tuple[float, ...], float]:
    """Refine, and return the mean squared error on the data as well."""
    engine = get_backend(backend)
    total = float(len(tokens)) if weights is None else float(weights.sum())

    def residual(C: Floats) -> Floats:
        return np.asarray(targets - engine.coefficients(np.ascontiguousarray(C), tokens, "last"))

    def gradient(C: Floats) -> Floats:
        cross = engine.moments(tokens, residual(C), weights, with_gram=False).cross
        return cross.transpose(2, 1, 0).reshape(-1, len(C)) / total  # (a, l, u) -> (u, l, a)

    refined, steps = _refine(coefficients, factor, alpha, gradient)
    errors = (residual(refined) ** 2).sum(axis=1)
    return refined, steps, float(np.average(errors, weights=weights))
