"""From tokens and targets to a learned, certified layer.

The objective, everywhere, with features h, weights w, W = sum w and C the coefficients (d_out, p):

    (1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2

Among equal minimisers the one of least ||C||_F is returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ..arrays.device import device_memory, device_of, on_device
from ..arrays.types import Floats, Positions, as_positions
from ..backend.choice import get_backend
from ..backend.interface import Precision, as_precision
from ..certificate.certificate import Certificate
from ..certificate.certifying import certificate_from, certifying_factor
from ..exact.modular_features import Reading
from ..features.features import Features
from ..linalg.factors import Choice, Solver
from ..linalg.orthogonal import solve_on_data
from ..linalg.refine import Solution
from ..moments.cancellation import feature_sizes
from ..moments.factors import factorise_moments, try_cholesky_of_moments
from ..moments.loss_error import loss_error
from ..moments.moments import Moments
from ..problem.in_memory import Problem
from ..problem.streamed import Data, StreamedProblem, as_data, in_memory, tokens_of
from ..solvers.accuracy import confirmed, converged, doubts_of, error_of_factorised
from ..solvers.conjugate_gradients.pcg import Pcg
from ..solvers.memory import dual_bytes
from ..solvers.residuals import gradient_of, refine_on_data
from ..system.machine import as_memory_limit, same_bits
from ..system.progress import Bar, Stages
from .assembling import assemble
from .block_choice import as_blocks
from .blocks import fit_blocks
from .doubtful import memory_hint, warn_of_interpolation
from .dual import fit_dual
from .exact_part import fit_exact_part
from .matrix_free import fit_pcg
from .plan import chosen_by_auto, may_factorise
from .result import Fit
from .settings import Settings


def _solve_primal(moments: Moments, settings: Settings) -> tuple[Floats, Choice]:
    """C (d_out, p) from the normal equations (Lambda + alpha I) C' = mean w h y'."""
    choice = factorise_moments(moments, float(settings.alpha), settings.solver)
    return choice.factorisation.solve(moments.cross() / moments.required_weight()).T, choice


def _solve_with_data(
    moments: Moments, problem: Data, settings: Settings, distrust: str = ""
) -> tuple[Floats, Choice] | str:
    """The same, but what the Gram cannot resolve is taken from the features themselves.

    ``distrust`` is why "auto" does not even try Cholesky. A string where memory allows only
    conjugate gradients to do so: why.
    """
    alpha, reason = float(settings.alpha), "asked for"
    start = time.perf_counter()
    if settings.solver == "auto":
        choice = distrust or try_cholesky_of_moments(moments, alpha)
        if isinstance(choice, Choice):
            cross = moments.cross() / moments.required_weight()
            return choice.factorisation.solve(cross).T, choice
        sizes = moments.features, moments.d_out, moments.positions, moments.n_samples
        try:
            replace(settings, solver="qr").require_possible(*sizes)
        except MemoryError as refusal:
            try:
                replace(settings, solver="pcg").require_possible(*sizes)
            except MemoryError:
                raise refusal from None
            return f"{choice}, and orthogonal transformations do not fit: {refusal}"
        reason = f"{choice}, so the features were reduced by orthogonal transformations"
    elif settings.solver != "qr":
        return _solve_primal(moments, settings)
    weight = moments.required_weight()
    with problem.parts() as parts:
        coefficients, spectral = solve_on_data(
            ((part.tokens, part.targets.rows(), part.weights) for part in parts),
            moments.n_samples,
            weight,
            problem.positions,
            alpha,
            feature_sizes(moments),
            moments.features,
            moments.d_out,
        )
    if spectral.rank < moments.dimension:
        reason += f"; rank {spectral.rank} of {moments.dimension}, least norm"
    return coefficients, Choice(spectral, reason, time.perf_counter() - start)


def fit_moments(
    moments: Moments,
    *,
    alpha: float,
    heads: str | int | None,
    solver: str,
    certify: bool,
    memory_limit: int | None,
) -> Fit:
    """Fit from moments alone: :meth:`Moments.fit`."""
    # Any string may turn up as solver: Settings checks it.
    settings = Settings(alpha, heads, solver, certify, memory_limit)  # type: ignore[arg-type]
    found = _fit_moments(moments, settings)
    warn_of_interpolation(found, alpha)
    return found


def _fit_moments(moments: Moments, settings: Settings) -> Fit:
    if settings.solver in ("dual", "qr", "pcg", "blocks"):
        raise ValueError(
            f"solver: {settings.solver!r} needs the data; from moments, 'cholesky' or 'eigh'"
        )
    if moments.d_out == 0:
        raise ValueError(
            "d_out: these moments have no targets (d_out = 0); there is nothing to fit"
        )
    moments.required_weight()
    settings.require_possible(moments.features, moments.d_out, moments.positions, moments.n_samples)
    stages = Stages()
    with on_device(moments.device), np.errstate(all="ignore"):  # as in fit
        with stages.timed("solve"):
            coefficients, choice = _solve_primal(moments, settings)
        with stages.timed("loss"):
            loss, bound = moments.loss(coefficients), loss_error(moments, coefficients)
            solution = Solution(coefficients, (), loss, bound)
        found = assemble_factorised(solution, choice, moments, settings, stages)
        return replace(found, scalar_targets=moments.scalar_targets)


def assemble_factorised(
    solution: Solution,
    choice: Choice,
    moments: Moments,
    settings: Settings,
    stages: Stages,
    *,
    why: str = "",
    problem: Data | None = None,
) -> Fit:
    """The result of a fit whose normal equations were factorised; ``why`` auto chose to."""
    factor = choice.factorisation
    error = error_of_factorised(solution, factor, moments, float(settings.alpha))
    if isinstance(problem, Problem):
        error = confirmed(error, factor.rank, problem.modular)
    elif factor.rank < moments.dimension:  # which nobody has compared with the exact one
        error = None
    reasons = choice.reason, why, doubts_of(error, factor, moments, solution)
    return assemble(
        solution,
        "; ".join(filter(None, reasons)),
        factor.condition,
        factor.name,
        _certificate(moments, choice, settings, stages, problem),
        settings,
        stages,
        features=moments.features,
        positions=moments.positions,
        n_samples=moments.n_samples,
        mean_squared_target=float(moments.sums.energy.sum()) / moments.required_weight(),
        backend=(engine := get_backend(moments.backend, moments)).name,
        path=engine.path(moments.precision),
        moments=moments,
        coefficient_error=error,
    )


def _certificate(
    moments: Moments,
    choice: Choice,
    settings: Settings,
    stages: Stages,
    problem: Data | None = None,
) -> Certificate | None:
    """Certificate from the factorisation at hand, when it is one of Lambda itself."""
    if not settings.certify:
        return None
    with stages.timed("certify"):
        own = choice.factorisation if settings.alpha == 0 else None
        if problem is None:
            return certificate_from(moments, own)

        def read() -> Reading:
            return tokens_of(problem)

        limit = as_memory_limit(settings.memory_limit)
        factor = own if own is not None else certifying_factor(moments, read, limit)
        data, modular = None, None
        if isinstance(problem, Problem):
            data, modular = (problem.tokens, problem.weights, problem.positions), problem.modular
        return certificate_from(moments, factor, read=read, data=data, modular=modular)


@same_bits
def fit(
    Z: object,
    y: object = None,
    *,
    offsets: object = None,
    positions: Positions = "last",
    alpha: float = 0.0,
    sample_weight: object = None,
    features: Features | None = None,
    heads: Literal["minimal", "svd"] | int | None = "minimal",
    solver: Solver | Pcg = "auto",
    backend: str = "auto",
    precision: Precision = "float64",
    certify: bool = True,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
) -> Fit:
    """Learn the linear attention layer that fits best, to the global optimum.

    Minimises ``(1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2`` over the coefficients C of
    the cubic features h; among equal minimisers the one of least norm is returned.

    Parameters
    ----------
    Z, offsets
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets. float32, float64 or
        integers. Or data larger than memory, as for :meth:`Moments.update`: a numpy memory map or
        another stored array, or an iterable of batches ``(Z, y)``. What can be read again is, to
        refine the solution; from an iterator, the fit is one from moments alone.
    y
        Targets: (N, d_out) for "last"; one row a token, in the form of Z, for "all" and "causal".
        The last axis may be left out for d_out = 1. None for an iterable of batches.
    positions
        Which tokens are queries with a target: "last", the last of each sequence; "all", every
        token, each attending to the whole sequence; "causal", every token, each attending to the
        prefix that ends with it.
    alpha
        Ridge, added to the mean loss.
    sample_weight
        Weights (N,), not negative, one a sequence and the same for all its queries; 1 by default.
        W is the sum over queries.
    features
        Which features take part, :class:`Features`; None is all. Heads get zeros elsewhere.
    heads
        "minimal" recovers as few heads as reproduce C, "svd" those of the SVD (see
        :func:`recover_heads`), None does not. A number H asks for the best layer that at most H
        heads can compute, found from the moments; ``coefficients`` and ``predict`` are then those
        of the heads, and ``heads.recovery`` has their training objective beside the convex optimum.
    solver
        "dual" (the kernel of the samples, for fewer samples than features), "cholesky", "eigh"
        (least norm, from the Gram), "qr" (orthogonal transformations of the features: slower, for
        ill-conditioned and singular problems), "pcg" (conjugate gradients without a Gram, for many
        features; its certificate is an estimate), "blocks" (queries that never occur together, as
        of one-hot tokens, each group with its own samples and features), or "auto": "blocks" where
        there are such groups and the whole would take longer; the dual where the samples are fewer;
        else Cholesky, followed by "qr" where that is not safe, or "pcg", by predicted time and
        memory (docs/learn.md). ``fit.info`` says which ran and why. "pcg" goes on to
        rounding; ``la.Pcg(tol=1e-8)`` in its place stops at that accuracy of the coefficients.
        ``fit.info.coefficient_error`` bounds their error, or is None where it is unknown.
    backend
        "cpu", "numpy", "cuda" or "auto". With CuPy arrays, or other arrays on a CUDA device, "auto"
        is "cuda"; results then stay on the device, and ``fit.get()`` brings them home
        (docs/cuda.md).
    precision
        "float64", or "mixed": the Gram from float32 products with float64 totals. Refinement on the
        data, in float64, makes up for it unless the problem is ill-conditioned.
    certify
        Make the certificate as well.
    memory_limit
        Bytes that may be used beside the data; the machine's memory by default. MemoryError when
        that is not enough, before any work. "pcg" keeps samples between passes where it allows.
    progress
        True shows a bar; a function is called with the sequences done and their number, or with the
        iterations of "pcg" done and their predicted number. An exception that stops "pcg", such as
        KeyboardInterrupt, has an attribute ``iterate``: the coefficients found so far.

    Returns
    -------
    Fit
        Coefficients, heads, certificate and how the fit went.

    Raises
    ------
    ValueError, TypeError
        An argument that does not fit, or tokens or targets that are not finite; the message begins
        with the name of the argument. Shapes and kinds are checked before any work.
    MemoryError
        No solver, or not the one asked for, fits in ``memory_limit``; raised before any work.

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
    positions = as_positions(positions)
    precision = as_precision(precision)
    settings = Settings.of(alpha, heads, solver, certify, memory_limit)
    Bar(0, "", progress)  # checked before any work, as everything else
    # What overflows is refused when the result is put together, in this package's words
    with on_device(device_of(Z)), np.errstate(all="ignore"):
        problem = as_data(Z, y, offsets, sample_weight, positions, features, backend, precision)
        try:
            if (blocks := as_blocks(problem, settings)) is not None:
                found = fit_blocks(*blocks, progress=progress)
            else:
                found = _fit(problem, settings, progress)
        except MemoryError as error:
            if type(error) is MemoryError and error.args:  # one of ours, before any work
                hint = memory_hint(problem.shape, problem.d_out, positions, memory_limit)
                error.args = (f"{error}{hint}",)
            raise
    warn_of_interpolation(found, alpha)
    return replace(found, scalar_targets=problem.scalar_targets)


def _fit(problem: Data, settings: Settings, progress: bool | Callable[[int, Any], object]) -> Fit:
    """Fit to checked data, on the current device if the backend is "cuda"."""
    solver, positions = settings.solver, problem.positions
    if problem.backend == "cuda" and settings.memory_limit is None:
        settings = replace(settings, memory_limit=device_memory())
    once = isinstance(problem, StreamedProblem) and not problem.source.rereadable
    if once and settings.solver in ("dual", "qr", "pcg"):
        raise ValueError(
            f"solver: {settings.solver!r} reads the data again, and an iterator can be read only "
            "once; give a list of batches or stored arrays, or take 'cholesky' or 'eigh'"
        )
    why = "asked for"
    if solver == "auto" and not once:
        settings, why = chosen_by_auto(settings, problem)
        if isinstance(problem, Problem) and (exact := fit_exact_part(problem, settings)):
            return exact
    settings.require_possible(problem.features, problem.d_out, positions, problem.n_samples)
    if settings.solver == "dual":
        limit = as_memory_limit(settings.memory_limit)
        loaded, why = in_memory(problem, limit, why, dual_bytes(problem))
        settings.require_possible(loaded.features, loaded.d_out, positions, loaded.n_samples)
        return fit_dual(loaded, settings, why, progress=progress)
    if settings.solver == "pcg":
        otherwise = None
        if solver == "auto" and may_factorise(settings, problem):
            dense = replace(settings, solver="auto")
            otherwise = partial(
                _fit_by_factorising, problem, dense, once=False, auto=True, progress=progress
            )
        return fit_pcg(problem, settings, why, progress, otherwise)

    return _fit_by_factorising(problem, settings, why, once, solver == "auto", progress)


def _fit_by_factorising(
    problem: Data,
    settings: Settings,
    why: str,
    once: bool,
    auto: bool,
    progress: bool | Callable[[int, Any], object],
) -> Fit:
    """Fit from the Gram; ``once`` if the data can be read only once, ``auto`` if it was chosen."""
    positions = problem.positions
    stages = Stages()
    with stages.timed("moments"):
        moments = problem.moments(progress)
    if once:
        return _fit_once(moments, settings, stages)
    few = problem.n_samples is None and moments.n_samples < moments.dimension  # known only now
    if auto and few:
        settings = replace(settings, solver="dual")
        settings.require_possible(problem.features, problem.d_out, positions, moments.n_samples)
        why = f"{moments.n_samples} samples are fewer than the {moments.dimension} features"
        limit = as_memory_limit(settings.memory_limit)
        loaded, why = in_memory(problem, limit, why, dual_bytes(problem))
        return fit_dual(loaded, settings, why, progress=False)
    distrust = ""
    while True:
        with stages.timed("solve"):
            solved = _solve_with_data(moments, problem, settings, distrust)
        if isinstance(solved, str):
            del moments  # conjugate gradients have the memory to themselves
            turned = fit_pcg(problem, replace(settings, solver="pcg"), f"{why}; {solved}", progress)
            return _after(stages, turned)
        coefficients, choice = solved
        with stages.timed("refine"):
            solution = refine_on_data(
                coefficients,
                choice,
                float(settings.alpha),
                moments.required_weight(),
                partial(gradient_of, problem),
            )
        if settings.solver != "auto" or distrust or converged(solution, choice.factorisation):
            break
        distrust = "corrections on the data do not bring what the Gram has lost"
    chosen = why if auto else ""
    return assemble_factorised(
        solution, choice, moments, settings, stages, why=chosen, problem=problem
    )


def _fit_once(moments: Moments, settings: Settings, stages: Stages) -> Fit:
    """Fit from the moments of a stream that is gone."""
    fit = _fit_moments(moments, settings)
    reason = f"{fit.info.reason}; a stream that is read once, so nothing is refined on the data"
    return _after(stages, replace(fit, info=replace(fit.info, reason=reason)))


def _after(stages: Stages, fit: Fit) -> Fit:
    """The fit with the seconds of what went before it."""
    seconds = {name: stages.get(name, 0.0) + fit.info.seconds.get(name, 0.0) for name in stages}
    return replace(fit, info=replace(fit.info, seconds={**fit.info.seconds, **seconds}))
