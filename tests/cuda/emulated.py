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
    """A batch with the arguments that describe it to the binding."""

    def __init__(
        self,
        tokens: Tokens,
        targets: Tokens | None = None,
        weights: np.ndarray | None = None,
        positions: str = "last",
        features: Features | None = None,
    ) -> None:
        self.tokens, self.targets, self.weights, self.positions = (
            tokens,
            targets,
            weights,
            positions,
        )
        self.features = Features(tokens.d) if features is None else features
        chosen = not self.features.everything
        self.d_out = 0 if targets is None else targets.d
        self.given = {
            "tokens": device(tokens.storage),
            "offsets": device(tokens.offsets),
        }
        self.chosen = {
            "pairs": device_numbers(self.features.pair_numbers if chosen else None),
            "queries": device_numbers(self.features.queries if chosen else None),
        }
        self.sizes = {
            "positions": positions,
            "n_sequences": len(tokens),
            "n_rows": tokens.n_rows,
            "d": tokens.d,
            "n_pairs": self.features.n_pairs if chosen else None,
            "n_queries": self.features.n_queries if chosen else None,
        }

    def workspace(self, operation: str, **more: Any) -> DeviceArray:
        """Memory of exactly the size that is said to be enough."""
        more.setdefault("d_out", self.d_out)
        needed = cuda.workspace_bytes(operation, **self.sizes, **more)
        return DeviceArray(unknown(needed // 8))

    def _weighted(self) -> dict[str, Any]:
        return {
            **self.given,
            **self.chosen,
            "weights": device(self.weights),
            "positions": self.positions,
            "stream": 0,
        }

    def moments(self, with_gram: bool = True) -> Arrays:
        f, d_out = self.features, self.d_out
        gram = np.zeros(compact.shape(f, self.positions)) if with_gram else None
        cross, energy = np.zeros((d_out, f.n_queries, f.n_pairs)), np.zeros(d_out)
        with_targets = self.targets is not None
        cuda.accumulate(
            **self._weighted(),
            targets=device(self.targets.storage) if with_targets else None,
            gram=device(gram),
            cross=device(cross) if with_targets else None,
            energy=device(energy) if with_targets else None,
            workspace=self.workspace("accumulate"),
        )
        return Arrays(np.zeros(0) if gram is None else gram, cross, energy)

    def kept(self) -> np.ndarray:
        kept = unknown(cuda.kept_bytes(**self.sizes) // 8)
        cuda.keep_samples(
            **self._weighted(), kept=device(kept), workspace=self.workspace("keep_samples")
        )
        return kept

    def kronecker_factors(self, kept: np.ndarray | None = None) -> KroneckerFactors:
        P, L = self.features.n_pairs, self.features.n_queries
        sums = unknown(P, P), unknown(L, L), unknown(P, L)
        cuda.kronecker_factors(
            **self._weighted(),
            kept=device(kept),
            of_pairs=device(sums[0]),
            of_queries=device(sums[1]),
            diagonal=device(sums[2]),
            workspace=self.workspace("kronecker_factors", kept=kept is not None),
        )
        return KroneckerFactors(*sums)

    def normal(self, C: np.ndarray, kept: np.ndarray | None = None) -> NormalProduct:
        product, energy = unknown(*C.shape), unknown(len(C))
        cuda.normal(
            **self._weighted(),
            kept=device(kept),
            coefficients=device(C),
            product=device(product),
            energy=device(energy),
            workspace=self.workspace("normal", m=len(C), kept=kept is not None),
        )
        return NormalProduct(product, energy)

    def gradient(self, C: np.ndarray, kept: np.ndarray | None = None) -> Gradient:
        gradient, error = unknown(*C.shape), unknown(len(C))
        cuda.gradient(
            **self._weighted(),
            targets=device(self.targets.storage),
            kept=device(kept),
            coefficients=device(C),
            gradient=device(gradient),
            squared_error=device(error),
            workspace=self.workspace("gradient", kept=kept is not None),
        )
        return Gradient(gradient, error)

    def _out(self, d_out: int) -> np.ndarray:
        return unknown(len(self.tokens) if self.positions == "last" else self.tokens.n_rows, d_out)

    def heads(self, V: np.ndarray, Q: np.ndarray) -> np.ndarray:
        out = self._out(V.shape[1])
        cuda.evaluate_heads(
            **self.given,
            V=device(V),
            Q=device(Q),
            positions=self.positions,
            out=device(out),
            workspace=self.workspace("evaluate_heads", m=len(V), d_out=V.shape[1]),
            stream=0,
        )
        return out

    def coefficients(self, C: np.ndarray) -> np.ndarray:
        out = self._out(len(C))
        cuda.evaluate_coefficients(
            **self.given,
            coefficients=device(C),
            positions=self.positions,
            out=device(out),
            workspace=self.workspace("evaluate_coefficients", d_out=len(C)),
            stream=0,
        )
        return out

    def first_non_finite(self) -> int:
        index = np.array([7], dtype=np.int64)
        cuda.first_non_finite(**self.given, index=device(index), stream=0)
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
