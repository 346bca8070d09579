"""Data on a Dask cluster as a problem: its parts stay on the workers, which answer with sums.

Results of the parts are added up in a tree whose form never changes, so the answer does not depend
on which worker did what and when, or on work that was done again because a worker was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from ..arrays.floats import as_array
from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..backend.interface import Precision
from ..backend.normal_operator import Gradient
from ..data.tokens import require_positive
from ..features.features import Features
from ..moments.moments import Moments
from ..problem.in_memory import InMemory
from ..problem.interface import Needs, Passes, ShowProgress
from ..problem.passes import SummedOperator
from .parts import Part, PartSettings, PartSizes, merged_moments, merged_sizes, merged_sums

_WIDTH = 8
"""Results that one task adds up."""


def dask_module(name: str) -> Any:
    """A module of Dask, which is an optional extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"linattn_fast.dask: Dask is needed ({error}); pip install 'linattn_fast[dask]'"
        ) from error


def _chunks(array: Any, name: str, rows: tuple[int, ...]) -> list[Any]:
    """Delayed chunks of an array, cut along its first axis only."""
    da = dask_module("dask.array")
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
    da, db = dask_module("dask.array"), dask_module("dask.bag")
    if isinstance(Z, da.Array):
        if Z.ndim != 3 or any(np.isnan(size) for size in Z.shape):
            raise ValueError(
                "Z: a Dask array (N, n, d) with chunks of known size is needed (see "
                f"compute_chunk_sizes), got shape {Z.shape}"
            )
        rows = Z.chunks[0]
        given = {"Z": Z, "y": y, "sample_weight": sample_weight}
        columns = [
            [None] * len(rows) if array is None else _chunks(array, name, rows)
            for name, array in given.items()
        ]
        return [[batch] for batch in zip(*columns, strict=True)]
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
    """Whether a value is one that Dask will compute, or has computed elsewhere."""
    is_future = type(value).__name__ == "Future" and hasattr(value, "key")
    return is_future or bool(dask_module("dask").is_dask_collection(value))


class Cluster:
    """The parts of the data, and sums over them; see :mod:`linattn_fast.problem.interface`.

    Parameters
    ----------
    Z, y, sample_weight
        As for :func:`linattn_fast.dask.fit`.
    settings
        What is asked of every part.
    """

    samples = None
    read = None
    modular = None
    note = ""
    bytes_to_gather = 0
    n_columns = None  # nothing of the samples is kept in this process

    def __init__(self, Z: Any, y: Any, sample_weight: Any, settings: PartSettings) -> None:
        self._dask = dask_module("dask")
        self._batches = _delayed_batches(Z, y, sample_weight)
        self._parts: list[Any] | None = None
        self.settings = settings
        self.positions: Positions = settings.positions
        self.precision: Precision = settings.precision
        self.engine = get_backend(settings.backend)

    def persist(self) -> None:
        """Have the parts made now, and kept on the workers."""
        make = self._dask.delayed(Part, pure=False)
        parts = (make(batches, i, self.settings) for i, batches in enumerate(self._batches))
        self._parts = list(self._dask.persist(*parts))

    def _results(self, method: str, shared: list[Any]) -> list[Any]:
        """Delayed results that a method has on each part.

        What all tasks have in common is bound to their function: Dask looks through all arguments
        of every task for what it has to compute.
        """
        if self._parts is not None:
            call = self._dask.delayed(partial(_call, method), pure=False)
            return [call(part, *shared) for part in self._parts]
        # In one task, since the scheduler might move a part between two
        call = self._dask.delayed(partial(_make_and_call, self.settings, method), pure=False)
        return [call(batches, i, *shared) for i, batches in enumerate(self._batches)]

    def _total(self, add: Callable[[list[Any]], Any], method: str, *arrays: Floats) -> Any:
        """Sum the results of a method over the parts, in a tree whose form never changes."""
        delayed = self._dask.delayed
        shared = [delayed(array, pure=False) for array in arrays]  # sent once, not with every part
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

    # ------------------------------------------------------------------------------- as a problem

    @cached_property
    def sizes(self) -> PartSizes:
        """Sizes of all parts together, for which the workers are asked first of all."""
        found = self._total(merged_sizes, "sizes")
        assert isinstance(found, PartSizes)
        require_positive(found.total_weight)
        return found

    @property
    def features(self) -> Features:
        """See :attr:`Problem.features`."""
        return self.sizes.features

    @property
    def d_out(self) -> int:
        """See :attr:`Problem.d_out`."""
        return self.sizes.d_out

    @property
    def n_samples(self) -> int:
        """See :attr:`Problem.n_samples`."""
        return self.sizes.n_samples

    @property
    def scalar_targets(self) -> bool:
        """See :attr:`Problem.scalar_targets`."""
        return self.sizes.scalar_targets

    def refusal(self, solver: str, needs: Needs) -> str | None:
        """See :meth:`Problem.refusal`: the data is never in one place."""
        if needs in ("moments", "passes"):
            return None
        return (
            f"solver: {solver!r} needs the data in one place; on a cluster, 'cholesky', 'eigh' or "
            "'pcg'"
        )

    def moments(self, progress: ShowProgress = False) -> Moments:
        """See :meth:`Problem.moments`; Dask shows the progress of its tasks itself."""
        found = self._total(merged_moments, "moments")
        assert isinstance(found, Moments)
        return found

    def gradient(self, C: Floats) -> Gradient:
        """See :attr:`Problem.gradient`."""
        return Gradient(*self._total(merged_sums, "gradient", C))

    def beginning(self, count: int) -> None:
        """See :meth:`Problem.beginning`: the samples are on workers."""

    def survey(self, room: int) -> None:
        """See :meth:`Problem.survey`: the workers have counted."""

    def passes(self, *, keep: bool, room: int = 0) -> Passes:
        """See :meth:`Problem.passes`: every part decides for itself what it keeps."""
        sizes = self.sizes
        operator = SummedOperator(
            self.features,
            sizes.d_out,
            sizes.n_samples,
            sizes.total_weight,
            partial(self._total, merged_sums),
        )
        noise_samples = sizes.total_weight / sizes.largest_weight
        return Passes(operator, noise_samples, "passes on the workers")

    def gathered(self, memory_limit: int | None, beside: int) -> InMemory:
        """See :meth:`Problem.gathered`: the data stays where it is, and no plan asks for it."""
        raise AssertionError("data on a cluster is never in one place")


def _call(method: str, part: Part, *arrays: Floats) -> Any:
    return getattr(part, method)(*arrays)


def _make_and_call(
    settings: PartSettings, method: str, batches: list[object], number: int, *arrays: Floats
) -> Any:
    return _call(method, Part(batches, number, settings), *arrays)
