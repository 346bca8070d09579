"""The contract of ``linattn_fast._cuda`` in numpy: what the backend's Python code is run against.

Arrays are read and written through the pointers they hand out, so a copy where there should be none
shows. Every call checks what the contract lets it check, and leaves ("launch", name, stream,
pointers) in the log of the make-believe CuPy.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from oracles.batches import arrays_of, samples_of, with_rows
from stand_ins import fake_cupy

from linattn_fast.backend.normal_operator import NumpyNormalOperator
from linattn_fast.backend.reference import NumpyBackend
from linattn_fast.data.tokens import Tokens
from linattn_fast.features import compact
from linattn_fast.features.features import Features

State = types.SimpleNamespace(driver=13000, devices=2)


def _read(array: Any, name: str, dtypes: tuple[Any, ...], ndim: int | None = None) -> np.ndarray:
    """The memory of an array on the current device, in C order."""
    described = array.__cuda_array_interface__
    if described.get("strides") is not None:
        raise ValueError(f"{name}: C order is needed")
    if array._device != fake_cupy.State.device:
        raise ValueError(f"{name}: is on device {array._device}")
    fields = ("shape", "typestr", "data", "version")
    holder = types.SimpleNamespace(
        __array_interface__={key: described[key] for key in fields}, keep=array
    )
    memory = np.asarray(holder)
    if memory.dtype not in [np.dtype(each) for each in dtypes]:
        raise TypeError(f"{name}: dtype must be one of {dtypes}, got {memory.dtype}")
    if ndim is not None and memory.ndim != ndim:
        raise ValueError(f"{name}: {ndim} dimensions are needed, got {memory.shape}")
    return memory


def _launch(name: str, stream: int, *arrays: Any) -> None:
    assert isinstance(stream, int)
    pointers = [None if a is None else a.__cuda_array_interface__["data"][0] for a in arrays]
    fake_cupy.log.append(("launch", name, stream, pointers))


class Sizes:
    """What the sizes of memory follow from."""

    def __init__(
        self, *, positions, n_sequences, n_rows, d, d_out=0, n_pairs=None, n_queries=None
    ) -> None:
        assert (n_pairs is None) == (n_queries is None)
        self._text = f"{positions} {n_sequences} {n_rows} {d} {n_pairs} {n_queries}"
        self._total = n_sequences + n_rows + d
        self._d_out = d_out
        self.kept_bytes = 64 * (n_rows + n_sequences)  # more than the tokens
        self.summation_steps = n_sequences if positions == "last" else n_rows

    def workspace_bytes(self, operation, *, m=0, d_out=None, kept=False) -> int:
        """Different for all arguments, so that a wrong one shows."""
        outputs = self._d_out if d_out is None else d_out
        text = f"{operation} {self._text} {outputs} {m}"
        return 64 + sum(text.encode()) + 1000 * (self._total + outputs + m) + kept


class Samples:
    """A batch as the numpy backend takes it."""

    def __init__(
        self, *, tokens, offsets=None, targets=None, weights=None, positions, pairs=None,
        queries=None,
    ) -> None:  # fmt: skip
        self.given = types.SimpleNamespace(tokens=tokens, targets=targets)
        Z = _read(tokens, "tokens", (np.float32, np.float64))
        bounds = None if offsets is None else _read(offsets, "offsets", (np.int64,), 1)
        self.tokens = Tokens(Z, bounds)
        self.positions = positions
        d = Z.shape[-1]
        self.features = Features(d)
        if pairs is not None:
            numbers = _read(pairs, "pairs", (np.int64,), 1)
            chosen = np.stack(np.triu_indices(d), axis=1)[numbers]
            self.features = Features(d, chosen, _read(queries, "queries", (np.int64,), 1))
        self.weights = None if weights is None else _read(weights, "weights", (np.float64,), 1)
        self.targets = None
        if targets is not None:
            y = _read(targets, "targets", (np.float32, np.float64))
            y = y.reshape(-1, y.shape[-1])
            last = positions == "last"
            self.targets = Tokens(y[:, None]) if last else with_rows(self.tokens, y)

    @property
    def sizes(self) -> Sizes:
        chosen = self.features
        return Sizes(
            positions=self.positions,
            n_sequences=len(self.tokens),
            n_rows=self.tokens.n_rows,
            d=self.tokens.d,
            d_out=0 if self.targets is None else self.targets.d,
            n_pairs=None if chosen.everything else chosen.n_pairs,
            n_queries=None if chosen.everything else chosen.n_queries,
        )

    def require_workspace(self, operation, workspace, **more) -> None:
        assert workspace.nbytes >= self.sizes.workspace_bytes(operation, **more)


def driver_version() -> int:
    return State.driver


def runtime_version() -> int:
    return 13000


def device_count() -> int:
    return State.devices


def architectures() -> list[str]:
    return ["80-real", "90-real"]


def accumulate(samples, *, gram, cross, energy, workspace, stream) -> None:
    given = samples.given
    samples.require_workspace("accumulate", workspace)
    _launch("accumulate", stream, given.tokens, given.targets, gram, cross, energy)
    outputs = [
        None if out is None else _read(out, name, (np.float64,))
        for name, out in (("gram", gram), ("cross", cross), ("energy", energy))
    ]
    try:
        sums = arrays_of(
            NumpyBackend().moments(
                samples_of(
                    samples.tokens,
                    samples.targets,
                    samples.weights,
                    samples.positions,
                    features=samples.features,
                )
            )
        )
    except ValueError:  # what is not finite makes sums that are not
        sums = (np.nan, np.nan, np.nan)
    assert (cross is None) == (energy is None) == (given.targets is None)
    if gram is not None:
        assert outputs[0].shape == compact.shape(samples.features, samples.positions)
    for memory, total in zip(outputs, sums, strict=True):
        if memory is not None:
            np.add(memory, total, out=memory)


def first_non_finite(tokens, offsets, index, stream) -> None:
    Z = _read(tokens, "tokens", (np.float32, np.float64))
    bounds = None if offsets is None else _read(offsets, "offsets", (np.int64,), 1)
    _launch("first_non_finite", stream, tokens, index)
    bad = [i for i, z in enumerate(Tokens(Z, bounds)) if not np.isfinite(z).all()]
    _read(index, "index", (np.int64,), 1)[0] = bad[0] if bad else -1


def _fingerprint(samples: Samples) -> float:
    return float(np.nansum(samples.tokens.rows())) + len(samples.tokens) / 7


def keep_samples(samples, *, kept, workspace, stream) -> None:
    samples.require_workspace("keep_samples", workspace)
    _launch("keep_samples", stream, samples.given.tokens, kept)
    memory = _read(kept, "kept", (np.uint8,), 1)
    assert memory.nbytes == samples.sizes.kept_bytes
    memory.view(np.float64)[...] = _fingerprint(samples)


def _operator(samples: Samples, kept: Any) -> NumpyNormalOperator:
    if kept is not None:
        assert (_read(kept, "kept", (np.uint8,)).view(np.float64) == _fingerprint(samples)).all()
    y, positions = samples.targets, samples.positions
    if y is None:
        none = np.zeros((samples.tokens.n_samples(positions), 1))
        last = positions == "last"
        y = Tokens(none[:, None]) if last else with_rows(samples.tokens, none)
    with np.errstate(all="ignore"):
        operator = NumpyNormalOperator(
            samples_of(samples.tokens, y, samples.weights, positions, samples.features)
        )
    operator._finite = lambda array: array
    return operator


def kronecker_factors(samples, *, kept, of_pairs, of_queries, diagonal, workspace, stream) -> None:
    name = "kronecker_factors"
    samples.require_workspace(name, workspace, kept=kept is not None)
    _launch(name, stream, samples.given.tokens, of_pairs, of_queries, diagonal)
    found = _operator(samples, kept).kronecker_factors()
    for out, total in zip((of_pairs, of_queries, diagonal), found, strict=True):
        _read(out, name, (np.float64,), 2)[...] = total


def normal(samples, *, kept, coefficients, product, energy, workspace, stream) -> None:
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    samples.require_workspace("normal", workspace, m=len(C), kept=kept is not None)
    _launch("normal", stream, samples.given.tokens, coefficients, product, energy)
    found = _operator(samples, kept).normal(C)
    _read(product, "product", (np.float64,), 2)[...] = found.product
    _read(energy, "energy", (np.float64,), 1)[...] = found.energy


def gradient(samples, *, kept, coefficients, gradient, squared_error, workspace, stream) -> None:
    given = samples.given
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    samples.require_workspace("gradient", workspace, kept=kept is not None)
    _launch("gradient", stream, given.tokens, given.targets, coefficients, gradient, squared_error)
    found = _operator(samples, kept).gradient(C)
    _read(gradient, "gradient", (np.float64,), 2)[...] = found.gradient
    _read(squared_error, "squared_error", (np.float64,), 1)[...] = found.squared_error


def _evaluated(out: Any, make: Any) -> None:
    memory = _read(out, "out", (np.float64,), 2)
    try:
        memory[...] = make()
    except ValueError:
        memory[...] = np.nan


def evaluate_heads(V, Q, samples, *, out, workspace, stream) -> None:
    tokens, positions = samples.tokens, samples.positions
    values, queries = (_read(a, "V", (np.float64,), 3) for a in (V, Q))
    m, d_out, _ = values.shape
    samples.require_workspace("evaluate_heads", workspace, m=m, d_out=d_out)
    _launch("evaluate_heads", stream, V, Q, samples.given.tokens, out)
    _evaluated(out, lambda: NumpyBackend().heads(values, queries, tokens, positions))


def evaluate_coefficients(coefficients, samples, *, out, workspace, stream) -> None:
    tokens, positions = samples.tokens, samples.positions
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    samples.require_workspace("evaluate_coefficients", workspace, d_out=len(C))
    _launch("evaluate_coefficients", stream, coefficients, samples.given.tokens, out)
    _evaluated(out, lambda: NumpyBackend().coefficients(C, tokens, positions))
