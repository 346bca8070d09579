"""The normal equations on a CUDA device: :class:`NormalOperator` over batches there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from ...arrays.device import cupy, on_device, to_host
from ...arrays.types import Floats
from ...data.non_finite import non_finite_error
from ...data.tokens import non_finite_target_error
from ...features.samples import Samples
from ..normal_operator import Gradient, KroneckerFactors, NormalProduct, PassResult, added
from . import extension
from .batches import (
    DeviceBatch,
    chosen_indices,
    current_stream,
    device_batches,
    device_samples,
    on_current_device,
    whole_batch,
    workspace,
)

RowResult = TypeVar("RowResult", NormalProduct, Gradient)
"""The result of a pass with coefficients."""

_SHARE = 2
"""What is kept may take up one part in this many of the free memory of the device."""


class CudaNormalOperator:
    """The normal equations by our kernels; coefficients and results of size p are on the device.

    Energies and squared errors, one number an output, are on the host, where conjugate gradients
    decide by them.

    Parameters
    ----------
    samples
        A checked batch with targets, which must not change while this object is in use.
    keep
        Whether to keep, where the free memory of the device allows, the samples of its tokens
        after the first pass, and copies of host tokens; else every pass makes them anew.
    """

    def __init__(self, samples: Samples, *, keep: bool) -> None:
        assert samples.targets is not None
        self.features = samples.features
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.total_weight = samples.total_weight
        self._data = samples.tokens, samples.targets, samples.weights
        self._positions = samples.positions
        with on_device(samples.device):
            self._device = int(cupy().cuda.Device().id)
            self._indices = chosen_indices(samples.features)
            self._batch = self._whole_batch(keep)
            self._kept = self._kept_samples(keep)

    def _free(self) -> int:
        """Number of bytes of device memory that may be taken for what is kept."""
        return int(cupy().cuda.Device().mem_info[0]) // _SHARE

    def _whole_batch(self, keep: bool) -> DeviceBatch | None:
        """The whole batch on the device, if it is there or is to be kept there; else None."""
        tokens, targets, weights = self._data
        size = sum(array.nbytes for array in (*tokens.arrays, *targets.arrays))
        if tokens.device is None and not (keep and size <= self._free()):
            return None
        return whole_batch(tokens, targets, weights)

    def _kept_samples(self, keep: bool) -> Any:
        """The samples, formed once, if there is room for them; else None."""
        if self._batch is None or not keep:
            return None
        samples = self._samples(self._batch)
        size = samples.sizes.kept_bytes
        if size > self._free():
            return None
        kept = cupy().empty(size, np.uint8)
        space = workspace("keep_samples", samples)
        extension.kernels.keep_samples(samples, kept=kept, workspace=space, stream=current_stream())
        return kept

    def _samples(self, batch: DeviceBatch) -> extension.kernels.Samples:
        return device_samples(batch, self._positions, self._indices)

    def _batches(self) -> Iterable[DeviceBatch]:
        return device_batches(*self._data) if self._batch is None else [self._batch]

    def _memory(
        self, operation: str, samples: extension.kernels.Samples, m: int = 0
    ) -> dict[str, Any]:
        """Keyword arguments of every pass: kept samples, workspace and stream."""
        space = workspace(operation, samples, m=m, kept=self._kept is not None)
        return {"kept": self._kept, "workspace": space, "stream": current_stream()}

    def _require_finite(self, *numbers: Floats) -> None:
        """Raise where sums are not finite, and name what made them so."""
        if all(np.isfinite(array).all() for array in numbers):
            return
        tokens, targets, _ = self._data
        home = targets.put(np.zeros(0))
        raise non_finite_target_error(home, self._positions) or non_finite_error(tokens)

    def _total(self, of_batch: Callable[[DeviceBatch], PassResult]) -> PassResult:
        """Sum over the batches; each is queued before the next is asked for."""
        return reduce(added, map(of_batch, self._batches()))

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        P, L = self.features.n_pairs, self.features.n_queries

        def of_batch(batch: DeviceBatch) -> KroneckerFactors:
            of_pairs, of_queries, diagonal = map(cupy().empty, ((P, P), (L, L), (P, L)))
            samples = self._samples(batch)
            extension.kernels.kronecker_factors(
                samples,
                of_pairs=of_pairs,
                of_queries=of_queries,
                diagonal=diagonal,
                **self._memory("kronecker_factors", samples),
            )
            return KroneckerFactors(of_pairs, of_queries, diagonal)

        with on_device(self._device):
            total = self._total(of_batch)
            self._require_finite(*(to_host(part.sum()) for part in total))
        return total

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        return self._rows(NormalProduct, extension.kernels.normal, C, m=len(C))

    def narrow(self, C: Floats) -> None:
        """See :meth:`NormalOperator.narrow`: passes on a card are float64."""

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        return self._rows(Gradient, extension.kernels.gradient, C)

    def _rows(
        self, result: type[RowResult], operation: Callable[..., None], C: Floats, m: int = 0
    ) -> RowResult:
        """Make a pass whose result has an array like C (m, p) and one number a row, (m,)."""
        rows: Floats

        def of_batch(batch: DeviceBatch) -> RowResult:
            arrays = cupy().empty(rows.shape), cupy().empty(len(rows))
            named = dict(zip(result._fields, arrays, strict=True))
            samples = self._samples(batch)
            memory = self._memory(operation.__name__, samples, m)
            operation(samples, coefficients=rows, **named, **memory)
            return result(*arrays)

        with on_device(self._device):
            rows = on_current_device(C)
            array, numbers = self._total(of_batch)
            numbers = to_host(numbers)
        self._require_finite(numbers)
        return result(array, numbers)
