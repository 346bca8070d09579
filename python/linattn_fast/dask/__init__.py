"""Moments and fits from data on a Dask cluster; needs the extra ``linattn_fast[dask]``.

    import linattn_fast.dask as lad

    fit = lad.fit(Z, y)          # Dask arrays; or a bag, or delayed batches, of (Z, y)
    moments = lad.moments(Z, y)

Data stays where it is. Every worker turns its parts into moments, which are added up in a tree; or,
for ``solver="pcg"`` and for refinement, it holds its parts and answers each pass with its share of
the normal equations, of the size of the coefficients. Sums are added in the order of the parts, so
the answer does not depend on which worker did what, when, or again because another one was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np

from ..arrays.floats import as_array
from ..arrays.types import Floats, Positions, as_positions
from ..backend.choice import get_backend
from ..backend.interface import Precision, as_precision
from ..data.tokens import require_positive
from ..features.features import Features, as_features
from ..fitting.call import assemble_factorised
from ..fitting.doubtful import warn_of_interpolation
from ..fitting.matrix_free import fit_operator
from ..fitting.result import Fit
from ..fitting.settings import Settings
from ..linalg.factors import Choice, NotSafe
from ..moments.factors import factorise_moments, try_cholesky_of_moments
from ..moments.moments import Moments
from ..problem.summed import SummedOperator
from ..solvers.conjugate_gradients.pcg import Pcg
from ..solvers.memory import estimate_memory
from ..solvers.residuals import refine_on_data
from ..system.machine import as_memory_limit, in_words, num_threads, same_bits, usable_memory
from ..system.progress import Bar, Stages
from .parts import Described, Kind, Part, merged_moments, merged_sizes, merged_sums

_WIDTH = 8
"""Results added up by one task."""


def _module(name: str) -> Any:
    """A module of Dask, which is an optional extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"linattn_fast.dask: Dask is needed ({error}); pip install 'linattn_fast[dask]'"
        ) from error


def _blocks(array: Any, name: str, rows: tuple[int, ...]) -> list[Any]:
    """Delayed blocks of an array, cut along its first axis only."""
    da = _module("dask.array")
    if not isinstance(array, da.Array):
        array = da.from_array(as_array(array, name), chunks=-1)
    if array.ndim == 0 or array.shape[0] != sum(rows):
        raise ValueError(
            f"{name}: one entry a sequence is needed along its first axis, {sum(rows)}, "
            f"got shape {array.shape}"
        )
    return list(array.rechunk((rows, *((-1,) * (array.ndim - 1)))).to_delayed().ravel())


def _delayed_batches(Z: Any, y: Any, sample_weight: Any) -> list[Any]:
    """The batches of each part of the data: a delayed list of them, or a list of delayed ones."""
    da, db = _module("dask.array"), _module("dask.bag")
    if isinstance(Z, da.Array):
        if Z.ndim != 3 or any(np.isnan(size) for size in Z.shape):
            raise ValueError(
                "Z: a Dask array (N, n, d) with chunks of known size is needed (see "
                f"compute_chunk_sizes), got shape {Z.shape}"
            )
        rows = Z.chunks[0]
        given = {"Z": Z, "y": y, "sample_weight": sample_weight}
        columns = [
            [None] * len(rows) if array is None else _blocks(array, name, rows)
            for name, array in given.items()
        ]
        return [[block] for block in zip(*columns, strict=True)]
    parts: list[Any] = []
    if isinstance(Z, db.Bag):
        parts = Z.to_delayed()
    elif isinstance(Z, list | tuple) and all(map(_is_delayed, Z)):
        parts = [[batch] for batch in Z]
    if not parts:
        raise TypeError(
            "Z: a Dask array, a bag of batches, or a list of delayed batches is needed, "
            f"got {type(Z).__name__}; for data in this process use linattn_fast.fit"
        )
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name}: Z has batches, which bring their own {name}; "
                "give (Z, y, sample_weight), or a mapping with these names, as a batch"
            )
    return parts


def _is_delayed(value: object) -> bool:
    """Tell what Dask will compute, or has computed elsewhere, from data."""
    is_future = type(value).__name__ == "Future" and hasattr(value, "key")
    return is_future or bool(_module("dask").is_dask_collection(value))


class _Cluster:
    """The parts of the data, and sums over them."""

    def __init__(self, Z: Any, y: Any, sample_weight: Any, kind: Kind) -> None:
        self._dask = _module("dask")
        self._batches = _delayed_batches(Z, y, sample_weight)
        self._parts: list[Any] | None = None
        self.kind = kind

    def persist(self) -> None:
        """Have the parts made now, and kept on the workers."""
        make = self._dask.delayed(Part, pure=False)
        parts = (make(batches, i, self.kind) for i, batches in enumerate(self._batches))
        self._parts = list(self._dask.persist(*parts))

    def _results(self, method: str, shared: list[Any]) -> list[Any]:
        """Delayed results of a method of each part.

        What all tasks have in common is bound to their function: Dask looks through arguments, one
        by one and task by task, for what it has to compute.
        """
        if self._parts is not None:
            call = self._dask.delayed(partial(_call, method), pure=False)
            return [call(part, *shared) for part in self._parts]
        # In one task: a part between two tasks would invite the scheduler to move it
        call = self._dask.delayed(partial(_make_and_call, self.kind, method), pure=False)
        return [call(batches, i, *shared) for i, batches in enumerate(self._batches)]

    def total(self, add: Callable[[list[Any]], Any], method: str, *arrays: Floats) -> Any:
        """Results of a method of each part, added up in a tree whose form never changes."""
        delayed = self._dask.delayed
        shared = [delayed(array, pure=False) for array in arrays]  # sent once, not a part
        level = self._results(method, shared)
        while len(level) > 1:
            level = [
                delayed(add, pure=False)(level[first : first + _WIDTH])
                for first in range(0, len(level), _WIDTH)
            ]
        found = level[0].compute()
        if found is None:
            raise ValueError("Z: every part is empty; at least one batch is needed")
        return found

    def moments(self) -> Moments:
        """Moments of all parts."""
        found = self.total(merged_moments, "moments")
        assert isinstance(found, Moments)
        return found

    def sizes(self) -> Described:
        """Sizes of all parts together."""
        found = self.total(merged_sizes, "describe")
        assert isinstance(found, Described)
        return found

    def operator(self, sizes: Described) -> SummedOperator:
        """The normal equations, with the data on the workers."""
        return SummedOperator(
            as_features(self.kind.features, sizes.d),
            sizes.d_out,
            sizes.n_samples,
            sizes.total_weight,
            sizes.largest_weight,
            partial(self.total, merged_sums),
        )


def _call(method: str, part: Part, *arrays: Floats) -> Any:
    return getattr(part, method)(*arrays)


def _make_and_call(
    kind: Kind, method: str, batches: list[object], number: int, *arrays: Floats
) -> Any:
    return _call(method, Part(batches, number, kind), *arrays)


def _kind(
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
    threads: int,
) -> Kind:
    """Check what every part is asked for."""
    if features is not None:
        as_features(features, getattr(features, "d", 0))
    with num_threads(threads):  # checks it
        pass
    name = get_backend(backend).name if backend != "auto" else "auto"
    return Kind(as_positions(positions), features, name, as_precision(precision), threads)


@same_bits
def moments(
    Z: Any,
    y: Any = None,
    *,
    positions: Positions = "last",
    sample_weight: Any = None,
    features: Features | None = None,
    backend: str = "auto",
    precision: Precision = "float64",
    threads: int = 1,
) -> Moments:
    """Accumulate the moments of data on a cluster; the scheduler is Dask's current one.

    Parameters
    ----------
    Z
        Tokens: a Dask array (N, n, d), cut along its first axis; or batches with all that belongs
        to them, ``(Z, y)``, ``(Z, y, sample_weight)`` or mappings with these names and "offsets":
        a Dask bag of them, or a list of delayed ones or futures.
    y, sample_weight
        Targets and weights beside an array, as Dask or numpy arrays; see
        :meth:`linattn_fast.Moments.update`.
    positions, features, backend, precision
        As for :class:`linattn_fast.Moments`.
    threads
        Threads of each task; Dask runs a task on each thread of a worker, so one is right unless
        workers have more cores than threads.

    Returns
    -------
    Moments
        In this process. Without targets, d_out is 0.

    Examples
    --------
    >>> import dask.array, linattn_fast.dask as lad
    >>> Z = dask.array.random.default_rng(0).standard_normal((400, 8, 3), chunks=(100, 8, 3))
    >>> lad.moments(Z, Z[:, 0])
    Moments(d=3, d_out=3, positions='last', n_samples=400, dimension=18)
    """
    kind = _kind(positions, features, backend, precision, threads)
    return _Cluster(Z, y, sample_weight, kind).moments()


@same_bits
def fit(
    Z: Any,
    y: Any = None,
    *,
    positions: Positions = "last",
    alpha: float = 0.0,
    sample_weight: Any = None,
    features: Features | None = None,
    heads: Literal["minimal", "svd"] | int | None = "minimal",
    solver: Literal["auto", "cholesky", "eigh", "pcg"] | Pcg = "auto",
    backend: str = "auto",
    precision: Precision = "float64",
    certify: bool = True,
    memory_limit: int | None = None,
    threads: int = 1,
    persist: bool = True,
    progress: bool | Callable[[int, Any], object] = False,
) -> Fit:
    """Learn the layer that fits best from data on a cluster; see :func:`linattn_fast.fit`.

    Parameters
    ----------
    Z, y, sample_weight, threads
        As for :func:`moments`.
    positions, alpha, features, heads, backend, precision, certify
        As for :func:`linattn_fast.fit`.
    solver
        "cholesky" or "eigh": moments from the workers, solved here, refined on the data. "pcg", or
        ``la.Pcg(tol=...)``: conjugate gradients, every pass on the workers. "auto": Cholesky where
        its memory is at hand and it is safe, else "pcg".
    memory_limit
        Bytes that may be used in this process.
    persist
        Keep the data in the memory of the workers from one pass to the next. False makes every pass
        compute it again.
    progress
        Of conjugate gradients: True shows a bar; a function is called with the iterations done and
        an estimate of their number. Dask has its own means for the rest.

    Returns
    -------
    Fit
        In this process.

    Examples
    --------
    >>> import dask.array, linattn_fast.dask as lad
    >>> Z = dask.array.random.default_rng(0).standard_normal((400, 8, 3), chunks=(100, 8, 3))
    >>> lad.fit(Z, Z[:, 0]).certificate.verdict
    'identifiable'
    """
    kind = _kind(positions, features, backend, precision, threads)
    settings = Settings.of(alpha, heads, solver, certify, memory_limit)
    Bar(0, "", progress)  # checked before any work, as everything else
    if settings.solver in ("dual", "qr", "blocks"):
        raise ValueError(
            f"solver: {settings.solver!r} needs the data in one place; on a cluster, 'cholesky', "
            "'eigh' or 'pcg'"
        )
    cluster = _Cluster(Z, y, sample_weight, kind)
    if persist:
        cluster.persist()
    stages = Stages()
    with stages.timed("data"):
        sizes = cluster.sizes()
    operator = cluster.operator(sizes)
    found = _fit(cluster, operator, settings, stages, progress)
    warn_of_interpolation(found, alpha)
    return replace(found, scalar_targets=sizes.scalar_targets)


def _fit(
    cluster: _Cluster,
    operator: SummedOperator,
    settings: Settings,
    stages: Stages,
    progress: bool | Callable[[int, Any], object],
) -> Fit:
    """Fit with checked settings."""
    kind = cluster.kind
    require_positive(operator.total_weight)
    why = "asked for"
    if settings.solver == "auto":
        limit = as_memory_limit(settings.memory_limit)
        needed = _needed(operator, kind.positions)
        available = usable_memory() if limit is None else limit
        if needed > available:
            settings = replace(settings, solver="pcg")
            why = f"Cholesky needs {in_words(needed)} here, where {in_words(available)} may be used"
    settings.require_possible(operator.features, operator.d_out, kind.positions, operator.n_samples)
    if settings.solver != "pcg":
        with stages.timed("moments"):
            sums = cluster.moments()
        with stages.timed("solve"):
            choice = _factorised(sums, settings)
        if isinstance(choice, Choice):
            return _fit_factorised(choice, sums, operator, settings, stages)
        why = f"{choice}, so the equations are solved on the data"
    return fit_operator(
        operator,
        settings,
        f"{why}; passes on the workers",
        progress,
        positions=kind.positions,
        backend=get_backend(kind.backend).name,
        noise_samples=operator.noise_samples,
        source=None,
        moments=cluster.moments,
    )


def _needed(operator: SummedOperator, positions: Positions) -> int:
    """Bytes of Cholesky."""
    features = operator.features
    return estimate_memory(features.d, operator.d_out, positions=positions, features=features)[
        "cholesky"
    ]


def _fit_factorised(
    choice: Choice, sums: Moments, operator: SummedOperator, settings: Settings, stages: Stages
) -> Fit:
    """Solve here, refine on the workers."""
    weight, alpha = sums.required_weight(), float(settings.alpha)
    with stages.timed("refine"):
        start = choice.factorisation.solve(sums.cross() / weight).T
        solution = refine_on_data(start, choice, alpha, weight, operator.gradient)
    return assemble_factorised(solution, choice, sums, settings, stages)


def _factorised(moments: Moments, settings: Settings) -> Choice | NotSafe:
    """Factorise the normal equations; or, for "auto", why that is not safe."""
    alpha = float(settings.alpha)
    if settings.solver != "auto":
        return factorise_moments(moments, alpha, settings.solver)
    return try_cholesky_of_moments(moments, alpha)
