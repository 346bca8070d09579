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


class _Batch:
    """A batch as the numpy backend takes it."""

    def __init__(self, tokens, offsets, targets, weights, positions, pairs, queries) -> None:
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

    def require_workspace(self, operation, workspace, m=0, d_out=None, kept=False) -> None:
        chosen = self.features
        if d_out is None:
            d_out = 0 if self.targets is None else self.targets.d
        needed = workspace_bytes(
            operation,
            positions=self.positions,
            n_sequences=len(self.tokens),
            n_rows=self.tokens.n_rows,
            d=self.tokens.d,
            d_out=d_out,
            n_pairs=None if chosen.everything else chosen.n_pairs,
            n_queries=None if chosen.everything else chosen.n_queries,
            m=m,
            kept=kept,
        )
        assert workspace.nbytes >= needed


def driver_version() -> int:
    return State.driver


def runtime_version() -> int:
    return 13000


def device_count() -> int:
    return State.devices


def architectures() -> list[str]:
    return ["80-real", "90-real"]


def gram_size(d, positions, n_pairs, n_queries) -> int:
    raise NotImplementedError  # nobody calls it


def workspace_bytes(
    operation, *, positions, n_sequences, n_rows, d, d_out, n_pairs, n_queries, m=0, kept=False
) -> int:
    """Different for all arguments, so that a wrong one shows."""
    assert (n_pairs is None) == (n_queries is None)
    text = f"{operation} {positions} {n_sequences} {n_rows} {d} {d_out} {n_pairs} {n_queries} {m}"
    return 64 + sum(text.encode()) + 1000 * (n_sequences + n_rows + d + d_out + m) + kept


def summation_steps(positions, n_sequences, n_rows, d, n_pairs, n_queries) -> int:
    return n_sequences if positions == "last" else n_rows


def accumulate(
    tokens, offsets, targets, weights, positions, pairs, queries, gram, cross, energy,
    workspace, stream,
) -> None:  # fmt: skip
    batch = _Batch(tokens, offsets, targets, weights, positions, pairs, queries)
    batch.require_workspace("accumulate", workspace)
    _launch("accumulate", stream, tokens, targets, gram, cross, energy)
    outputs = [
        None if out is None else _read(out, name, (np.float64,))
        for name, out in (("gram", gram), ("cross", cross), ("energy", energy))
    ]
    try:
        totals = NumpyBackend().moments(
            samples_of(
                batch.tokens, batch.targets, batch.weights, positions, features=batch.features
            ),
            with_gram=gram is not None,
        )
        sums = arrays_of(totals)
    except ValueError:  # what is not finite makes sums that are not
        sums = (np.nan, np.nan, np.nan)
    assert (cross is None) == (energy is None) == (targets is None)
    if gram is not None:
        assert outputs[0].shape == compact.shape(batch.features, positions)
    for memory, total in zip(outputs, sums, strict=True):
        if memory is not None:
            np.add(memory, total, out=memory)


def first_non_finite(tokens, offsets, index, stream) -> None:
    Z = _read(tokens, "tokens", (np.float32, np.float64))
    bounds = None if offsets is None else _read(offsets, "offsets", (np.int64,), 1)
    _launch("first_non_finite", stream, tokens, index)
    bad = [i for i, z in enumerate(Tokens(Z, bounds)) if not np.isfinite(z).all()]
    _read(index, "index", (np.int64,), 1)[0] = bad[0] if bad else -1


def kept_bytes(positions, n_sequences, n_rows, d, n_pairs, n_queries) -> int:
    return 64 * (n_rows + n_sequences)  # more than the tokens


def _fingerprint(batch: _Batch) -> float:
    return float(np.nansum(batch.tokens.rows())) + len(batch.tokens) / 7


def keep_samples(
    tokens, offsets, weights, positions, pairs, queries, kept, workspace, stream
) -> None:
    batch = _Batch(tokens, offsets, None, weights, positions, pairs, queries)
    batch.require_workspace("keep_samples", workspace)
    _launch("keep_samples", stream, tokens, kept)
    memory = _read(kept, "kept", (np.uint8,), 1)
    size = kept_bytes(positions, len(batch.tokens), batch.tokens.n_rows, 0, None, None)
    assert memory.nbytes == size
    memory.view(np.float64)[...] = _fingerprint(batch)


def _operator(name, tokens, offsets, targets, weights, positions, pairs, queries, kept):
    batch = _Batch(tokens, offsets, targets, weights, positions, pairs, queries)
    if kept is not None:
        assert (_read(kept, "kept", (np.uint8,)).view(np.float64) == _fingerprint(batch)).all()
    y = batch.targets
    if y is None:
        last = positions == "last"
        none = np.zeros((batch.tokens.n_samples(positions), 1))
        y = Tokens(none[:, None]) if last else with_rows(batch.tokens, none)
    with np.errstate(all="ignore"):
        operator = NumpyNormalOperator(
            samples_of(batch.tokens, y, batch.weights, positions, batch.features)
        )
    operator._finite = lambda array: array
    return batch, operator


def kronecker_factors(
    tokens, offsets, weights, positions, pairs, queries, kept, of_pairs, of_queries, diagonal,
    workspace, stream,
) -> None:  # fmt: skip
    name = "kronecker_factors"
    batch, operator = _operator(
        name, tokens, offsets, None, weights, positions, pairs, queries, kept
    )
    batch.require_workspace(name, workspace, kept=kept is not None)
    _launch(name, stream, tokens, of_pairs, of_queries, diagonal)
    for out, found in zip(
        (of_pairs, of_queries, diagonal), operator.kronecker_factors(), strict=True
    ):
        _read(out, name, (np.float64,), 2)[...] = found


def normal(
    tokens, offsets, weights, positions, pairs, queries, kept, coefficients, product, energy,
    workspace, stream,
) -> None:  # fmt: skip
    batch, operator = _operator(
        "normal", tokens, offsets, None, weights, positions, pairs, queries, kept
    )
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    batch.require_workspace("normal", workspace, m=len(C), kept=kept is not None)
    _launch("normal", stream, tokens, coefficients, product, energy)
    found = operator.normal(C)
    _read(product, "product", (np.float64,), 2)[...] = found.product
    _read(energy, "energy", (np.float64,), 1)[...] = found.energy


def gradient(
    tokens, offsets, targets, weights, positions, pairs, queries, kept, coefficients, gradient,
    squared_error, workspace, stream,
) -> None:  # fmt: skip
    batch, operator = _operator(
        "gradient", tokens, offsets, targets, weights, positions, pairs, queries, kept
    )
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    batch.require_workspace("gradient", workspace, m=len(C), kept=kept is not None)
    _launch("gradient", stream, tokens, targets, coefficients, gradient, squared_error)
    found = operator.gradient(C)
    _read(gradient, "gradient", (np.float64,), 2)[...] = found.gradient
    _read(squared_error, "squared_error", (np.float64,), 1)[...] = found.squared_error


def _evaluated(out: Any, make: Any) -> None:
    memory = _read(out, "out", (np.float64,), 2)
    try:
        memory[...] = make()
    except ValueError:
        memory[...] = np.nan


def evaluate_heads(V, Q, tokens, offsets, positions, out, workspace, stream) -> None:
    batch = _Batch(tokens, offsets, None, None, positions, None, None)
    values, queries = (_read(a, "V", (np.float64,), 3) for a in (V, Q))
    batch.require_workspace("evaluate_heads", workspace, len(values), values.shape[1])
    _launch("evaluate_heads", stream, V, Q, tokens, out)
    _evaluated(out, lambda: NumpyBackend().heads(values, queries, batch.tokens, positions))


def evaluate_coefficients(coefficients, tokens, offsets, positions, out, workspace, stream) -> None:
    batch = _Batch(tokens, offsets, None, None, positions, None, None)
    C = _read(coefficients, "coefficients", (np.float64,), 2)
    batch.require_workspace("evaluate_coefficients", workspace, d_out=len(C))
    _launch("evaluate_coefficients", stream, coefficients, tokens, out)
    _evaluated(out, lambda: NumpyBackend().coefficients(C, batch.tokens, positions))
