"""The CUDA module over the emulator, as the tests call it: numpy arrays in and out.

``_cuda_emulated`` is the binding and the kernels of ``_cuda``, compiled by g++ against
tests/cuda/emulator. Host memory stands for that of the device, and numpy arrays are handed over
through ``__cuda_array_interface__``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from oracles.batches import Arrays

from linattn_fast.backend.normal_operator import Gradient, KroneckerFactors, NormalProduct
from linattn_fast.data.tokens import Tokens
from linattn_fast.features import compact
from linattn_fast.features.features import Features, pair_count


def load() -> ModuleType:
    """Find the module: the file that LINATTN_CUDA_EMULATED names, or the installed one."""
    path = os.environ.get("LINATTN_CUDA_EMULATED")
    if path is None:
        return pytest.importorskip(
            "linattn_fast._cuda_emulated", reason="built without LINATTN_CUDA_EMULATED=ON"
        )
    spec = importlib.util.spec_from_file_location("_cuda_emulated", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["_cuda_emulated"] = module
    spec.loader.exec_module(module)
    return module


cuda = load()


class DeviceArray:
    """A numpy array as an array of device 0."""

    def __init__(self, array: np.ndarray, **changed: Any) -> None:
        self.array = array
        self._changed = changed

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        given = self.array.__array_interface__
        interface = {key: given[key] for key in ("shape", "typestr", "data", "strides")}
        return {**interface, "version": 3, **self._changed}


def device(array: np.ndarray | None) -> DeviceArray | None:
    return None if array is None else DeviceArray(array)


def device_numbers(numbers: np.ndarray | None) -> DeviceArray | None:
    return None if numbers is None else DeviceArray(np.ascontiguousarray(numbers, dtype=np.int64))


def unknown(*shape: int) -> np.ndarray:
    """Memory that nobody has written to: NaN."""
    return np.full(shape, np.nan)


class Batch:
    """A batch as the binding takes it."""

    def __init__(
        self,
        tokens: Tokens,
        targets: Tokens | None = None,
        weights: np.ndarray | None = None,
        positions: str = "last",
        features: Features | None = None,
    ) -> None:
        self.tokens, self.targets, self.weights = tokens, targets, weights
        self.positions = positions
        self.features = Features(tokens.d) if features is None else features
        self.d_out = 0 if targets is None else targets.d

    def arguments(self) -> dict[str, Any]:
        """What ``Samples`` is made from."""
        chosen = not self.features.everything
        return {
            "tokens": device(self.tokens.storage),
            "offsets": device(self.tokens.offsets),
            "targets": None if self.targets is None else device(self.targets.storage),
            "weights": device(self.weights),
            "positions": self.positions,
            "pairs": device_numbers(self.features.pair_numbers if chosen else None),
            "queries": device_numbers(self.features.queries if chosen else None),
        }

    @cached_property
    def samples(self) -> Any:
        return cuda.Samples(**self.arguments())

    def workspace(self, operation: str, **more: Any) -> DeviceArray:
        """Memory of exactly the size that is said to be enough."""
        return DeviceArray(unknown(self.samples.sizes.workspace_bytes(operation, **more) // 8))

    def moments(self, with_gram: bool = True) -> Arrays:
        f, d_out = self.features, self.d_out
        gram = np.zeros(compact.shape(f, self.positions)) if with_gram else None
        sums = gram, np.zeros((d_out, f.n_queries, f.n_pairs)), np.zeros(d_out)
        self.add_moments(*sums)
        return Arrays(np.zeros(0) if gram is None else gram, *sums[1:])

    def add_moments(self, gram: np.ndarray | None, cross: np.ndarray, energy: np.ndarray) -> None:
        with_targets = self.targets is not None
        cuda.accumulate(
            self.samples,
            gram=device(gram),
            cross=device(cross) if with_targets else None,
            energy=device(energy) if with_targets else None,
            workspace=self.workspace("accumulate"),
            stream=0,
        )

    def kept(self) -> np.ndarray:
        kept = unknown(self.samples.sizes.kept_bytes // 8)
        space = self.workspace("keep_samples")
        cuda.keep_samples(self.samples, kept=device(kept), workspace=space, stream=0)
        return kept

    def _pass(
        self, operation: str, kept: np.ndarray | None, arrays: dict[str, np.ndarray], m: int = 0
    ) -> None:
        getattr(cuda, operation)(
            self.samples,
            kept=device(kept),
            **{name: device(array) for name, array in arrays.items()},
            workspace=self.workspace(operation, m=m, kept=kept is not None),
            stream=0,
        )

    def kronecker_factors(self, kept: np.ndarray | None = None) -> KroneckerFactors:
        P, L = self.features.n_pairs, self.features.n_queries
        sums = {"of_pairs": unknown(P, P), "of_queries": unknown(L, L), "diagonal": unknown(P, L)}
        self._pass("kronecker_factors", kept, sums)
        return KroneckerFactors(*sums.values())

    def normal(self, C: np.ndarray, kept: np.ndarray | None = None) -> NormalProduct:
        sums = {"product": unknown(*C.shape), "energy": unknown(len(C))}
        self._pass("normal", kept, {"coefficients": C, **sums}, m=len(C))
        return NormalProduct(*sums.values())

    def gradient(self, C: np.ndarray, kept: np.ndarray | None = None) -> Gradient:
        sums = {"gradient": unknown(*C.shape), "squared_error": unknown(len(C))}
        self._pass("gradient", kept, {"coefficients": C, **sums})
        return Gradient(*sums.values())

    def _layer(self, operation: str, d_out: int, *matrices: np.ndarray) -> np.ndarray:
        out = unknown(len(self.tokens) if self.positions == "last" else self.tokens.n_rows, d_out)
        space = self.workspace(operation, m=len(matrices[0]), d_out=d_out)
        getattr(cuda, operation)(
            *map(device, matrices), self.samples, out=device(out), workspace=space, stream=0
        )
        return out

    def heads(self, V: np.ndarray, Q: np.ndarray) -> np.ndarray:
        return self._layer("evaluate_heads", V.shape[1], V, Q)

    def coefficients(self, C: np.ndarray) -> np.ndarray:
        return self._layer("evaluate_coefficients", len(C), C)

    def first_non_finite(self) -> int:
        index = np.array([7], dtype=np.int64)
        tokens, offsets = device(self.tokens.storage), device(self.tokens.offsets)
        cuda.first_non_finite(tokens, offsets, device(index), 0)
        return int(index[0])


@contextmanager
def running(order: str = "forward", seed: int = 1, tensor_cores: bool = True) -> Iterator[None]:
    """Run threads and blocks in an order, with one of the two instructions."""
    cuda.set_order(order, seed)
    cuda.set_tensor_cores(tensor_cores)
    try:
        yield
    finally:
        cuda.set_order("forward")
        cuda.set_tensor_cores(True)


def triples_or_pairs(features: Features, positions: str) -> int:
    """Entries of the compact Gram, counted by hand."""
    q = features.n_pairs
    if positions == "all" and features.everything:
        return q * (q + 1) * (q + 2) // 6
    return pair_count(q) * pair_count(features.n_queries)
