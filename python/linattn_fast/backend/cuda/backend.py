"""The CUDA backend: kernels and cuBLAS on CuPy arrays, behind the interface of :class:`Backend`.

Arrays on a device are read where they are, on their device and on CuPy's current stream; host
arrays are brought over piece by piece (:mod:`linattn_fast.backend.cuda.batches`). Workspace and
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
from ...features.accumulation import Accumulation
from ...features.samples import Samples
from ...system.progress import Progress
from ..interface import Precision, divergence_error, require_finite_outputs, sizes_of
from ..normal_operator import NormalOperator
from ..reference import may_underflow
from ..totals import Totals
from . import blas as cuda_blas
from . import extension
from .batches import (
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
"""Numbers whose absolute values are compared together."""


def obstacle() -> str | None:
    """What keeps the backend from being used here; None where nothing does."""
    return extension.MISSING or _no_device() or _no_cupy()


def _no_device() -> str | None:
    """What keeps a device from being used; None where nothing does."""
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
    """What keeps CuPy from being used; None where nothing does."""
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
    """Describe the devices, and what the kernels are compiled for."""
    count, compiled = extension.kernels.device_count(), ", ".join(extension.kernels.architectures())
    path, why = choose_path()
    devices = f"{count} device" + ("s" if count > 1 else "")
    return f"{devices}, kernels for sm {compiled}; Gram by {path} on the current device: {why}"


class CudaBackend:
    """Moments and layers on the device of the tokens, or on the current one for host tokens."""

    name = "cuda"
    on_device = True

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`."""
        path, why = choose_path(precision)
        return f"{path}: {why}"

    def moments(
        self,
        samples: Samples,
        precision: Precision = "float64",
        progress: Progress = None,
        into: NormalOperator | None = None,
    ) -> Totals:
        """See :meth:`Backend.moments`."""
        chosen, positions = samples.features, samples.positions
        with on_device(samples.device):
            xp = cupy()
            by_kernels = choose_path(precision)[0] == "kernels"
            gram: Floats = xp.zeros(compact.shape(chosen, positions))
            cross: Floats = xp.zeros((samples.d_out, chosen.n_queries, chosen.n_pairs))
            energy: Floats = xp.zeros(samples.d_out)
            with_sizes = not chosen.everything
            sizes: Floats = xp.zeros((chosen.n_pairs, chosen.n_queries) if with_sizes else 0)
            additions = cuda_blas.AdditionCount()
            smallest = xp.full(1, np.inf)
            steps, deepest, done = 0, 0, 0
            indices = chosen_indices(chosen)
            for batch in device_batches(samples.tokens, samples.targets, samples.weights):
                part = device_samples(batch, positions, indices)
                if not by_kernels:
                    steps += cuda_blas.add_gram(gram, batch, positions, chosen, precision)
                    deepest = cuda_blas.CHUNK
                else:
                    steps += 1
                    deepest = max(deepest, part.sizes.summation_steps)
                sums = gram if by_kernels else None, cross, energy
                _accumulate(part, sums, with_targets=batch.targets is not None)
                if with_sizes:
                    cuda_blas.summand_sizes(batch, positions, chosen, sizes, additions)
                smallest = xp.minimum(smallest, _smallest_size(batch.tokens))
                done += batch.n_rows if positions != "last" else batch.n_sequences
                if progress is not None:
                    progress(done)
            _require_finite((gram, cross, energy, sizes), samples)
            loose = not by_kernels and precision == "mixed"
            if not by_kernels or with_sizes:  # cuBLAS forms the Gram, or the sizes
                loose = loose or emulates_float64()
            return Totals(
                gram,
                cross,
                energy,
                n_samples=samples.n_samples,
                total_weight=samples.total_weight,
                accumulation=Accumulation(
                    max(steps + deepest, additions.steps) + _PRODUCTS,
                    cuda_blas.CHUNK + 3 if precision == "mixed" else 0,
                    samples.longest,
                    loose or may_underflow(float(smallest[0]), samples.weights),
                    samples.largest_weight,
                ),
                magnitudes=sizes if with_sizes else None,
                scalar_targets=samples.scalar_targets,
            )

    def summand_sizes(self, samples: Samples) -> Floats:
        """See :meth:`Backend.summand_sizes`."""
        chosen = samples.features
        with on_device(samples.device):
            total: Floats = cupy().zeros((chosen.n_pairs, chosen.n_queries))
            additions = cuda_blas.AdditionCount()
            for batch in device_batches(samples.tokens, None, samples.weights):
                cuda_blas.summand_sizes(batch, samples.positions, chosen, total, additions)
            return total

    def normal_operator(self, samples: Samples, *, keep: bool) -> NormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return CudaNormalOperator(samples, keep=keep)

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
    samples: extension.kernels.Samples,
    sums: tuple[Any, Any, Any],
    *,
    with_targets: bool,
) -> None:
    """Queue the kernels that add samples to (gram, cross, energy); no Gram where that is None."""
    gram, cross, energy = sums  # CuPy arrays
    if gram is None and not with_targets:
        return
    extension.kernels.accumulate(
        samples,
        gram=gram,
        cross=cross if with_targets else None,
        energy=energy if with_targets else None,
        workspace=workspace("accumulate", samples),
        stream=current_stream(),
    )


def first_non_finite(arrays: Iterable[tuple[Any, Any]]) -> list[int]:
    """Number of the first sequence with NaN or infinity in each (tokens, offsets), or -1.

    The host waits for the device once.
    """
    given = list(arrays)
    found = cupy().empty(len(given), np.int64)
    for i, (array, offsets) in enumerate(given):
        extension.kernels.first_non_finite(array, offsets, found[i : i + 1], current_stream())
    return [int(index) for index in found.get()]


def _require_finite(sums: Iterable[Floats], samples: Samples) -> None:
    """Raise where sums are not finite, and name what made them so."""
    totals = [(total.reshape(1, 1, -1), None) for total in sums if total.size]
    if max(first_non_finite(totals), default=-1) < 0:
        return
    tokens, targets = samples.tokens, samples.targets
    if tokens.device is not None:
        (batch,) = device_batches(tokens)
        (first,) = first_non_finite([(batch.tokens, batch.offsets)])
        if first >= 0:
            raise non_finite_error(tokens, first)
    if targets is not None:
        home = targets.put(np.zeros(0))
        if (error := non_finite_target_error(home, samples.positions)) is not None:
            raise error
    raise non_finite_error(tokens, others=sizes_of(samples))


def _smallest_size(array: Any) -> Any:
    """Smallest absolute value of a number that is not zero, (1,); infinite if there is none."""
    xp = cupy()
    flat, smallest = array.reshape(-1), xp.full(1, np.inf)
    for first in range(0, flat.size, _AT_ONCE):
        part = flat[first : first + _AT_ONCE]
        smallest = xp.minimum(smallest, xp.where(part != 0, xp.abs(part), np.inf).min())
    return smallest
