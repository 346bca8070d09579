"""The CUDA backend: kernels and cuBLAS on CuPy arrays, behind the interface of :class:`Backend`.

Arrays on a device are read where they are, on their device and on CuPy's current stream; host
arrays are brought over block by block (:mod:`linattn_fast.backend.cuda.batches`). Workspace and
results come from CuPy's memory pool, and results stay on the device. The host waits for it once a
call, to see whether the results are finite.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from ...arrays.device import INSTALL, cupy, device_of, on_device
from ...arrays.types import Floats, Positions
from ...data.non_finite import non_finite_error
from ...data.tokens import Tokens, non_finite_target_error
from ...features import compact
from ...features.features import Features
from ...system.progress import Progress
from ..interface import (
    BatchMoments,
    Precision,
    Roundings,
    divergence_error,
    require_finite_outputs,
    sizes_of,
)
from ..normal_operator import NormalOperator
from ..reference import may_underflow
from . import blas as cuda_blas
from . import extension
from .batches import (
    DeviceBatch,
    chosen_indices,
    current_stream,
    device_batches,
    device_samples,
    on_current_device,
    workspace,
)
from .normal import CudaNormalOperator
from .paths import choose_path, emulates_float64

_PRODUCTS = 8
"""Roundings of a summand beside the sums: its products, and a few to spare, as on the CPU."""
_AT_ONCE = 1 << 24
"""Numbers whose sizes are looked at together."""


def obstacle() -> str | None:
    """Why the backend cannot be used here, or None."""
    return extension.MISSING or _no_device() or _no_cupy()


def _no_device() -> str | None:
    """Why no device can be used, or None."""
    driver, runtime = extension.kernels.driver_version(), extension.kernels.runtime_version()
    if driver == 0:
        return "no NVIDIA driver found"
    if driver // 1000 < runtime // 1000:
        return (
            f"the NVIDIA driver supports CUDA {_version(driver)}, and CUDA {_version(runtime)} is "
            "needed; update the driver"
        )
    return "no CUDA device found" if extension.kernels.device_count() == 0 else None


def _no_cupy() -> str | None:
    """Why CuPy cannot be used, or None."""
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed: {INSTALL}"
    try:
        cupy()
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): {INSTALL}"
    return None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def describe() -> str:
    """Devices and what the kernels are compiled for, in words."""
    count, compiled = extension.kernels.device_count(), ", ".join(extension.kernels.architectures())
    path, why = choose_path()
    devices = f"{count} device" + ("s" if count > 1 else "")
    return f"{devices}, kernels for sm {compiled}; Gram by {path} on the current device: {why}"


class CudaBackend:
    """Moments and layers on the device of the tokens, or on the current one for host tokens."""

    name = "cuda"
    underflow = False
    magnitudes: Floats | None = None

    def __init__(self) -> None:
        self._steps = 0

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`."""
        path, why = choose_path(precision)
        return f"{path}: {why}"

    def moments(
        self,
        tokens: Tokens,
        targets: Tokens | None,
        weights: Floats | None,
        positions: Positions = "last",
        precision: Precision = "float64",
        *,
        features: Features | None = None,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> BatchMoments:
        """See :meth:`Backend.moments`."""
        chosen = Features(tokens.d) if features is None else features
        d_out = 0 if targets is None else targets.d
        with on_device(tokens.device):
            xp = cupy()
            by_kernels = choose_path(precision)[0] == "kernels"
            sums = BatchMoments(
                xp.zeros(compact.shape(chosen, positions) if with_gram else 0),
                xp.zeros((d_out, chosen.n_queries, chosen.n_pairs)),
                xp.zeros(d_out),
            )
            with_sizes = with_gram and not chosen.everything
            sizes: Floats = xp.zeros((chosen.n_pairs, chosen.n_queries) if with_sizes else 0)
            size_sums = cuda_blas.Sums()
            smallest = xp.full(1, np.inf)
            deepest, done = 0, 0
            self._steps = 0
            indices = chosen_indices(chosen)
            for batch in device_batches(tokens, targets, weights):
                samples = device_samples(batch, positions, indices)
                if with_gram and not by_kernels:
                    self._steps += cuda_blas.add_gram(
                        sums.gram, batch, positions, chosen, precision
                    )
                    deepest = cuda_blas.CHUNK
                elif with_gram:
                    self._steps += 1
                    deepest = max(deepest, samples.sizes.summation_steps)
                _accumulate(samples, batch, sums, with_gram and by_kernels)
                if with_sizes:
                    cuda_blas.summand_sizes(batch, positions, chosen, sizes, size_sums)
                if with_gram:
                    smallest = xp.minimum(smallest, _smallest_size(batch.tokens))
                done += batch.n_rows if positions != "last" else batch.n_sequences
                if progress is not None:
                    progress(done)
            self._steps = max(self._steps + deepest, size_sums.steps)
            _require_finite((*sums, sizes), tokens, targets, weights, positions)
            self.magnitudes = sizes if with_sizes else None
            loose = not by_kernels and precision == "mixed"
            if not by_kernels or with_sizes:  # cuBLAS forms the Gram, or the sizes
                loose = loose or emulates_float64()
            self.underflow = loose or may_underflow(float(smallest[0]), weights)
        return sums

    def roundings(self, n_samples: int, precision: Precision) -> Roundings:
        """See :meth:`Backend.roundings`."""
        narrow = cuda_blas.CHUNK + 3 if precision == "mixed" else 0
        return Roundings(self._steps + _PRODUCTS, narrow)

    def summand_sizes(
        self, tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
    ) -> Floats:
        """See :meth:`Backend.summand_sizes`."""
        with on_device(tokens.device):
            total: Floats = cupy().zeros((features.n_pairs, features.n_queries))
            for batch in device_batches(tokens, None, weights):
                cuda_blas.summand_sizes(batch, positions, features, total, cuda_blas.Sums())
            return total

    def normal_operator(
        self,
        tokens: Tokens,
        targets: Tokens,
        weights: Floats | None,
        positions: Positions,
        features: Features,
        *,
        keep: bool,
    ) -> NormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return CudaNormalOperator(tokens, targets, weights, positions, features, keep=keep)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.heads`."""
        return self._apply("evaluate_heads", {"V": V, "Q": Q}, tokens, positions)

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.coefficients`."""
        return self._apply("evaluate_coefficients", {"coefficients": C}, tokens, positions)

    def _apply(
        self,
        operation: Literal["evaluate_heads", "evaluate_coefficients"],
        layer: dict[str, Floats],
        tokens: Tokens,
        positions: Positions,
    ) -> Floats:
        """Outputs of a layer, on the device of the tokens, or of the layer for host tokens."""
        device = device_of(tokens, *layer.values())
        with on_device(device):
            xp = cupy()
            factors = [on_current_device(factor) for factor in layer.values()]
            d_out = factors[0].shape[-2]
            y: Floats = xp.empty((tokens.n_samples(positions), d_out))
            done = 0
            for batch in device_batches(tokens):
                queries = batch.n_sequences if positions == "last" else batch.n_rows
                part = y[done : done + queries]
                samples = device_samples(batch, positions)
                getattr(extension.kernels, operation)(
                    *factors,
                    samples,
                    out=part,
                    workspace=workspace(operation, samples, m=len(factors[0]), d_out=d_out),
                    stream=current_stream(),
                )
                done += queries
            return require_finite_outputs(y, tokens, layer)

    def generate(
        self, V: Floats, Q: Floats, prompts: Floats, steps: int, decimals: int | None
    ) -> Floats:
        """See :meth:`Backend.generate`: S is kept, and each new token added to it."""
        with on_device(device_of(prompts, V)):
            xp = cupy()
            V, Q, start = map(on_current_device, (V, Q, prompts))
            n = start.shape[1]
            Z: Floats = xp.concatenate([start, xp.empty((len(start), steps, start.shape[2]))], 1)
            S = start.transpose(0, 2, 1) @ start  # (N, d, d)
            for t in range(n, n + steps):
                inner = xp.einsum("hkl,nl->hnk", Q, Z[:, t - 1])
                y = xp.einsum("haj,njk,hnk->na", V, S, inner)
                Z[:, t] = y if decimals is None else xp.round(y, decimals)
                S += Z[:, t, :, None] * Z[:, t, None, :]
            if not xp.isfinite(Z).all():
                raise divergence_error()
            return Z


def _accumulate(
    samples: extension.kernels.Samples, batch: DeviceBatch, sums: BatchMoments, gram: bool
) -> None:
    """Queue the kernels that add a batch to the sums; the Gram if ``gram``."""
    if not gram and batch.targets is None:
        return
    totals: Any = sums  # CuPy arrays
    extension.kernels.accumulate(
        samples,
        gram=totals.gram if gram else None,
        cross=None if batch.targets is None else totals.cross,
        energy=None if batch.targets is None else totals.energy,
        workspace=workspace("accumulate", samples),
        stream=current_stream(),
    )


def first_non_finite(arrays: Iterable[tuple[Any, Any]]) -> list[int]:
    """Of each (tokens, offsets), the first sequence with NaN or infinity, or -1; waits once."""
    given = list(arrays)
    found = cupy().empty(len(given), np.int64)
    for i, (array, offsets) in enumerate(given):
        extension.kernels.first_non_finite(array, offsets, found[i : i + 1], current_stream())
    return [int(index) for index in found.get()]


def _require_finite(
    sums: Iterable[Floats],
    tokens: Tokens,
    targets: Tokens | None,
    weights: Floats | None,
    positions: Positions,
) -> None:
    """Raise where sums are not finite, and name what made them so."""
    totals = [(total.reshape(1, 1, -1), None) for total in sums if total.size]
    if max(first_non_finite(totals), default=-1) < 0:
        return
    if tokens.device is not None:
        (batch,) = device_batches(tokens)
        (first,) = first_non_finite([(batch.tokens, batch.offsets)])
        if first >= 0:
            raise non_finite_error(tokens, first)
    if targets is not None:
        home = targets.put(np.zeros(0))
        if (error := non_finite_target_error(home, positions)) is not None:
            raise error
    raise non_finite_error(tokens, others=sizes_of(targets, weights))


def _smallest_size(array: Any) -> Any:
    """Smallest size of a number that is not zero, (1,); infinite if there is none."""
    xp = cupy()
    flat, smallest = array.reshape(-1), xp.full(1, np.inf)
    for first in range(0, flat.size, _AT_ONCE):
        part = flat[first : first + _AT_ONCE]
        smallest = xp.minimum(smallest, xp.where(part != 0, xp.abs(part), np.inf).min())
    return smallest
