"""From tokens and targets to a learned, certified layer.

The objective, everywhere, with features h, weights w, W = sum w and C the coefficients (d_out, p):

    (1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2

Among equal minimisers the one of least ||C||_F is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..arrays.device import device_of, frozen, module_of, on_device, put, to_host
from ..arrays.types import Positions, Values
from ..backend.choice import as_precision
from ..backend.interface import Precision
from ..certificate.certificate import Certificate
from ..data.attending import attended
from ..data.mapping.token_map import Map, as_map, with_intercept
from ..data.sources import as_source
from ..data.streams import Streams
from ..data.tokens import as_positions, as_values
from ..features.features import Features, map_of_features
from ..features.samples import Samples
from ..features.states import PassedFeatures
from ..heads.heads import Heads
from ..heads.number.given_number import best_layer
from ..heads.number.rank_path import PendingErrors, mean_squares_of
from ..heads.number.without_gram import WithoutGram
from ..heads.pending import NOT_YET, PendingHeads
from ..heads.recovery import Wanted
from ..moments.moments import Moments
from ..problem.accumulated import Accumulated
from ..problem.constant_target import ConstantTarget, with_constant_target
from ..problem.in_memory import InMemory
from ..problem.interface import Problem, ShowProgress
from ..problem.mapped import (
    mapped_problem,
    mapped_source_problem,
    stream_maps,
    streams_problem,
)
from ..problem.streamed import Streamed, streamed
from ..solvers.cholesky import accumulated
from ..solvers.conjugate_gradients.pcg import Pcg
from ..solvers.free_feature import with_free_feature
from ..solvers.solved import Solved, Task
from ..system.machine import same_bits
from ..system.progress import Bar
from .at_once import fit_at_once
from .doubtful import memory_hint, warn_of_interpolation
from .plan import Resources, Settings, Solver, make_plan
from .result import Fit, heads_in_words, info_of


@same_bits(first=fit_at_once)
def fit(
    Z: object,
    y: object = None,
    *,
    offsets: object = None,
    positions: Positions = "last",
    alpha: float = 0.0,
    sample_weight: object = None,
    features: Features | None = None,
    values: Values = "mixed",
    heads: Literal["minimal", "svd"] | int | None = "minimal",
    solver: Solver | Pcg = "auto",
    backend: str = "auto",
    precision: Precision = "float64",
    certify: bool | Literal["sharp"] = True,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
    map: Callable[[Any], Any] | None = None,
    intercept: bool = False,
    mask: object = None,
    lengths: object = None,
    scale: object = None,
    decay: object = None,
    attend_self: bool = True,
) -> Fit:
    """Learn the linear attention layer that fits best, to the global optimum.

    Minimises ``(1/W) sum_i w_i ||C h(Z_i) - y_i||^2 + alpha ||C||_F^2`` over the coefficients C of
    the cubic features h; among equal minimisers the one of least norm is returned.

    Parameters
    ----------
    Z, offsets
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets. float32, float64 or
        integers. Or :class:`States`, a memory and a query each; or :class:`Streams`, queries, keys
        and values apart. Or data larger than memory, as for
        :meth:`Moments.update`: a numpy memory map or another stored array, or an iterable of
        batches ``(Z, y)``. What can be read again is, to refine the solution; from an iterator, the
        fit is one from moments alone.
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
        Weights (N,), not negative, one a sequence and the same for all its queries, or one a query
        in the form of the targets; 1 by default. W is the sum over queries.
    features
        Which features take part, :class:`Features`; None is all. Heads get zeros elsewhere.
    values
        "mixed": outputs are learned mixtures of the values, as above. "passed", for :class:`States`
        with a memory (N, d_v, d_k): outputs are the values, V = I, weighted by one bilinear form B,
        ``y_j = sum_kl B[k,l] M[j,k] c[l]``, with targets (N, d_v). Each row of a memory is then a
        sample of the same d_k d_q unknowns, and W counts rows. ``fit.heads`` is one head with
        Q = B, and ``fit.rank_path()`` has forms of smaller rank.
    heads
        What ``fit.heads`` is. "minimal": as few heads as reproduce C; "svd": those of the SVD (see
        :func:`recover_heads`). Both are found when ``fit.heads`` is first asked for. None: none.
        A number H asks for the best layer that at most H heads can compute, found at once: from the
        moments, or by passes over the data where a Gram does not fit or would take longer
        (``solver="pcg"``: always). ``coefficients`` and ``predict`` are then those of the heads,
        and ``heads.recovery`` has their training objective and its gap to the convex optimum.
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
        Make the certificate as well. Its bound on lambda_min is proved by one factorisation, of a
        part of the samples where that is enough, and lambda_min itself is estimated; "sharp" proves
        a bound within 1 % of lambda_min, as :func:`certify` does.
    memory_limit
        Bytes that may be used beside the data; the machine's memory by default. MemoryError when
        that is not enough, before any work. "pcg" keeps samples between passes where it allows.
    progress
        True shows a bar; a function is called with the sequences done and their number, or with the
        iterations of "pcg" done and their predicted number, and again in the search for heads,
        when they are asked for, with the per cent of its flops that are spent, and 100. An
        exception that stops "pcg", such as KeyboardInterrupt, has an attribute ``iterate``: the
        coefficients found so far.
    map
        What tokens are mapped by first: one of :mod:`linattn_fast.maps`, or any function from rows
        (m, d) to rows (m, D), each made of its own row alone. It is applied to a part of the
        sequences at a time, so that mapped tokens are never held as a whole. Everything about the
        fit (``predict``, ``heads``, ``certificate``) takes tokens as they are before the map.
    intercept
        Append a constant coordinate to the tokens, after any map, unless the map has one, so that
        the layer contains affine maps; ``fit.heads.constant_coordinate`` says which it is. The
        ridge leaves out the feature that is constant in all three places: n for n tokens, so that
        it is a constant where all sequences are equally long. Without a ridge, it is the same as
        ``map=la.maps.with_constant``.
    mask, lengths, scale, decay, attend_self
        Which tokens of padded sequences exist, and what they attend to, as for :class:`Streams`,
        with tokens that are queries, keys and values at once: masked tokens are as if absent, their
        targets are not looked at, and for "last" the last token that exists is the query. With a
        scale, gates or ``attend_self=False`` the layer is one on :class:`Streams`, and is applied
        with the same keywords.

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
    >>> V, Q = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 4))
    >>> truth = la.Heads(V, Q)  # two heads, d = 4 coordinates, d_out = 3 outputs
    >>> Z = rng.standard_normal((400, 16, 4))
    >>> fit = la.fit(Z, truth(Z))
    >>> fit.certificate.verdict, bool(fit.heads.distance(truth) < 1e-9)
    ('identifiable', True)
    """
    positions = as_positions(positions)
    precision, values = as_precision(precision), as_values(values)
    settings = Settings.of(alpha, heads, solver, certify, memory_limit, intercept)
    map = as_map(map)
    Bar(0, "", progress)  # checked before any work, as everything else
    given = Z
    Z, offsets = attended(
        Z,
        offsets,
        positions,
        sample_weight,
        mask=mask,
        lengths=lengths,
        scale=scale,
        decay=decay,
        attend_self=attend_self,
    )
    # What overflows is refused when the result is put together, in this package's words
    with on_device(device_of(Z)), np.errstate(all="ignore"):
        problem = as_problem(
            Z,
            y,
            offsets,
            sample_weight,
            positions,
            features,
            backend,
            precision,
            values,
            map=map,
            intercept=intercept,
        )
        try:
            return fit_problem(problem, settings, progress)
        except MemoryError as error:
            if type(error) is MemoryError and error.args:  # one of ours, before any work
                shape = getattr(given, "shape", ()) if given is Z and offsets is None else ()
                hint = memory_hint(tuple(shape), problem.d_out, positions, settings.memory_limit)
                error.args = (f"{error}{hint}",)
            raise


def as_problem(
    Z: object,
    y: object,
    offsets: object,
    sample_weight: object,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision = "float64",
    values: Values = "mixed",
    map: Map | None = None,
    intercept: bool = False,
    d_out: int | None = None,
) -> InMemory | Streamed:
    """Check the data of a fit, and make a problem of it; ``positions`` have been checked.

    Features of mapped tokens bring their own map, where no other is given. ``d_out`` is 0 where
    there are no targets.
    """
    if values == "passed" and (map is not None or intercept):
        name = "map" if map is not None else "intercept"
        raise ValueError(f"{name}: it is not for values='passed'; map keys and queries yourself")
    if isinstance(Z, Streams) and values == "mixed":
        if offsets is not None:
            raise ValueError("offsets: states have none; they are for rows of tokens")
        return streams_problem(
            Z,
            y,
            stream_maps(Z, map, intercept),
            sample_weight=sample_weight,
            positions=positions,
            features=features,
            backend=backend,
            precision=precision,
            d_out=d_out,
        )
    map = with_intercept(map_of_features(features) if map is None else map, intercept)
    source = None
    if type(Z) is not np.ndarray and d_out != 0:  # a plain array is no stream
        source = as_source(Z, y, offsets=offsets, sample_weight=sample_weight, positions=positions)
    if source is not None and map is not None:
        return mapped_source_problem(source, map, positions, features, backend, precision)
    if source is not None:
        return streamed(source, positions, features, backend, precision, values)
    if map is not None:
        return mapped_problem(
            Z,
            y,
            map,
            offsets=offsets,
            sample_weight=sample_weight,
            positions=positions,
            features=features,
            backend=backend,
            precision=precision,
            d_out=d_out,
        )
    samples = Samples.checked(
        Z,
        y,
        offsets=offsets,
        sample_weight=sample_weight,
        positions=positions,
        features=features,
        values=values,
        d_out=d_out,
    )
    return InMemory.of(samples, backend, precision)


def fit_moments(
    moments: Moments,
    *,
    alpha: float,
    heads: str | int | None,
    solver: str,
    certify: bool | Literal["sharp"],
    memory_limit: int | None,
    intercept: bool = False,
) -> Fit:
    """Fit from moments alone; see :meth:`Moments.fit`."""
    # Settings checks the solver, which may be any string
    chosen: Solver = solver  # type: ignore[assignment]
    settings = Settings(alpha, heads, chosen, certify, memory_limit, intercept=intercept)
    if moments.d_out == 0:
        raise ValueError(
            "d_out: these moments have no targets (d_out = 0); there is nothing to fit"
        )
    moments.required_weight()
    with on_device(moments.device), np.errstate(all="ignore"):  # as in fit
        return fit_problem(Accumulated(moments), settings)


def fit_problem(problem: Problem, settings: Settings, progress: ShowProgress = False) -> Fit:
    """Plan, solve and certify, as every fit does, wherever its data is; heads follow on demand."""
    target = _constant_target(problem, settings)
    if target is not None:
        problem = target.problem
    resources = Resources.of(problem, settings.memory_limit)
    plan = make_plan(problem, settings, resources)
    task = Task(
        problem,
        float(settings.alpha),
        tol=settings.tol,
        certify=bool(settings.certify),
        sharp=settings.certify == "sharp",
        memory_limit=resources.limit,
        sparing=settings.solver == "auto",
        progress=progress,
    )
    step, solved, why = plan.follow(task)
    if target is not None:
        solved = with_free_feature(task, solved, target)
    _require_finite(solved)
    certificate = None
    if settings.certify:
        certificate = step.certify(task, solved)
    found = _assembled(task, solved, why, step.bytes, certificate, settings, resources.memory)
    unknowns = problem.features.count  # for each output
    if isinstance(settings.heads, int) and found.heads is not None:  # few heads fit little noise
        unknowns = min(unknowns, (found.heads.V.size + found.heads.Q.size) // problem.d_out)
    if task.alpha == 0 and solved.n_samples < unknowns:
        warn_of_interpolation(found)
    return found


def _constant_target(problem: Problem, settings: Settings) -> ConstantTarget | None:
    """The problem with the constant feature as a target, where the ridge is to leave it out."""
    if not settings.intercept:
        return None
    c, feature = problem.features.constant, problem.features.constant_feature
    if feature is None and c is None:
        raise ValueError(
            "intercept: no coordinate of these tokens is known to be constant; moments have one "
            "where they were updated with map=la.maps.with_constant"
        )
    if feature is None:
        raise ValueError(
            f"intercept: the features that were chosen leave out the constant one, the pair "
            f"({c}, {c}) with query {c}"
        )
    return with_constant_target(problem, feature) if settings.alpha > 0 else None


def _assembled(
    task: Task,
    solved: Solved,
    why: str,
    planned_bytes: int,
    certificate: Certificate | None,
    settings: Settings,
    memory: int,
) -> Fit:
    """Put everything together; heads follow when they are asked for, but for a number of them."""
    problem, solution, heads = task.problem, solved.solution, None
    place = solution.coefficients
    if isinstance(settings.heads, int) and solved.passes is not None:
        with task.stages.timed("heads"):
            without = WithoutGram(solved, task.alpha, settings.heads, memory)
            solution, few = without.best(task.progress)
            solved = replace(solved, bytes=without.bytes)
            heads = few.put(place).for_features(problem.features)
    elif isinstance(settings.heads, int):  # the layer itself is another one, and from moments
        moments = accumulated(task).get()
        with task.stages.timed("heads"):  # on the host, wherever the coefficients are
            home = replace(solution, coefficients=to_host(place))
            solution, few = best_layer(settings.heads, moments, task.alpha, home)
            heads = few.put(place).for_features(problem.features)
    coefficients = frozen(module_of(place).ascontiguousarray(put(solution.coefficients, place)))
    told = _told(settings.heads, heads)
    needed = planned_bytes if solved.bytes is None else solved.bytes
    info = info_of(solved, solution, why, needed, dict(task.stages), told)
    if heads is not None:  # their coefficients are others than those that were solved for
        info = replace(info, coefficient_error=None)
    found = Fit(
        coefficients,
        problem.features,
        heads,
        certificate,
        info,
        problem.positions,
        scalar_targets=problem.scalar_targets,
    )
    if isinstance(settings.heads, str):
        wanted = Wanted.of_fit(settings.heads, problem.features.d, solved, task.alpha)
        pending = PendingHeads(
            coefficients, problem.features, wanted, settings.memory_limit, task.progress
        )
        _find_heads_later(found, pending)
    if isinstance(problem.features, PassedFeatures):
        form = to_host(coefficients).reshape(problem.features.n_pairs, problem.features.n_queries)
        squares = mean_squares_of(solved.problem, task.moments)
        error = solution.mean_squared_error
        # Past the guard of a frozen class, as the heads
        vars(found)["_rank_errors"] = PendingErrors(form, task.alpha, error, squares)
    return found


def _find_heads_later(fit: Fit, pending: PendingHeads) -> None:
    """Leave the heads of a new fit to be found on first access."""
    state = vars(fit)  # past the guard of a frozen class
    state["_pending"] = pending
    del state["heads"]


def _told(asked: str | int | None, found: Heads | None) -> str:
    """What ``info.heads`` says at first."""
    if found is not None:
        return heads_in_words(found)
    return NOT_YET if isinstance(asked, str) else ""


def _require_finite(solved: Solved) -> None:
    """Raise where the coefficients, or the errors that they leave, are beyond float64."""
    C = solved.solution.coefficients
    if not np.isfinite(solved.mean_squared_target):
        raise ValueError("y: squares of the targets overflow float64; rescale y")
    if not module_of(C).isfinite(C).all():
        raise ValueError(
            f"y: targets of mean square {solved.mean_squared_target:.3g} have coefficients that "
            "overflow float64, for the size of the tokens; rescale Z or y"
        )
    if not np.isfinite(solved.solution.mean_squared_error):
        raise ValueError(
            "Z: products of tokens and coefficients overflow float64; rescale the tokens"
        )
