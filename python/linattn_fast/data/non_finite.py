"""Errors for results that are not finite: where NaN is, or which values are too large or small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays.device import module_of, to_host
from ..arrays.floats import all_finite
from ..arrays.types import Array
from .states import States
from .stream_states import StreamStates
from .tokens import Tokens

_NUMBERS_AT_ONCE = 1 << 17
"""Numbers that are looked at together: what is computed from them stays in the cache."""
_SMALLEST_TOKEN = 2.0**-340
"""The smallest size of numbers whose products of three never underflow."""


def largest_size(batch: Tokens | Array | None) -> float:
    """Largest absolute value in a batch or an array; 0 for None."""
    if batch is None:
        return 0.0
    parts = batch.arrays if isinstance(batch, Tokens) else (batch,)
    return max((max(float(x.max()), -float(x.min())) for x in parts if x.size), default=0.0)


def underflow_error(tokens: Tokens, weights: Array | None = None) -> ValueError:
    """The error for values so small that their sixth powers, times the weights, underflow."""
    too, what = "", "tokens"
    if weights is not None and largest_size(weights) < 1:
        too, what = f", with sample_weight of at most {largest_size(weights):.3g},", "data"
    return ValueError(
        f"Z: values of at most {largest_size(tokens):.3g}{too} underflow float64 in the squares of "
        f"the cubic features; rescale the {what}"
    )


def non_finite_error(
    tokens: Tokens, first: int = 0, *, name: str = "Z", others: dict[str, float] | None = None
) -> ValueError:
    """The error that says where the first NaN or infinity is, or that finite values are too large.

    ``others`` are the names and sizes of the other factors in the products.
    """
    if isinstance(tokens, States):
        error = _in_streams(tokens) if isinstance(tokens, StreamStates) else _in_states(tokens)
        if error is not None:
            return error
        return _too_large(tokens, name, others)
    for i in range(first, len(tokens)):
        sequence = to_host(tokens.sequence(i))
        finite = np.isfinite(sequence)
        if not finite.all():
            t, j = (int(k) for k in np.argwhere(~finite)[0])
            value = sequence[t, j]
            return ValueError(
                f"{name}: must be finite, got {value} in sequence {i}, token {t}, coordinate {j}"
            )
    return _too_large(tokens, name, others)


def _too_large(tokens: Tokens, name: str, others: dict[str, float] | None) -> ValueError:
    """The error for finite values whose products are not."""
    sizes = "".join(f", with {what} up to {size:.3g}" for what, size in (others or {}).items())
    largest = largest_size(tokens)
    return ValueError(
        f"{name}: values up to {largest:.3g}{sizes} overflow float64 in the cubic features "
        "or their products; rescale the data"
    )


def _in_states(states: States) -> ValueError | None:
    """Say where the first NaN or infinity of states is; None if there is none."""
    for name, array in (("memory", states.memory), ("query", states.query)):
        for i, one in enumerate(to_host(array)):
            finite = np.isfinite(one)
            if not finite.all():
                place = tuple(int(k) for k in np.argwhere(~finite)[0])
                where = ", ".join(map(str, place))
                return ValueError(
                    f"{name}: must be finite, got {one[place]} in state {i}, entry [{where}]"
                )
    return None


def _in_streams(states: StreamStates) -> ValueError | None:
    """Say where the first NaN or infinity of keys, values or queries is; None if there is none."""
    for name, batch in (("keys", states.keys), ("values", states.values)):
        if batch is None or all(map(all_finite, batch.arrays)):
            continue
        for i, sequence in enumerate(batch):
            finite = np.isfinite(sequence)
            if not finite.all():
                t, j = (int(k) for k in np.argwhere(~finite)[0])
                return ValueError(
                    f"{name}: must be finite, got {sequence[t, j]} in sequence {i}, row {t} of "
                    f"those that exist, coordinate {j}"
                )
    if not all_finite(states.query):
        row, j = (int(k) for k in np.argwhere(~np.isfinite(states.query))[0])
        return ValueError(
            f"queries: must be finite, got {states.query[row, j]} in a query of sequence "
            f"{int(states.sequences[row])}, coordinate {j}"
        )
    return None


def may_underflow(tokens: Tokens) -> npt.NDArray[np.bool_]:
    """Which sequences have numbers so small that their products may underflow, (N,)."""
    if isinstance(tokens, StreamStates):
        safe = all(map(_has_no_small, tokens.arrays)) and not _gates_vanish(tokens)
        return np.full(len(tokens), not safe)
    small = np.zeros(len(tokens), dtype=bool)
    if all(_has_no_small(array) for array in tokens.arrays):
        return small
    for i, sequence in enumerate(tokens):
        small[i] = not _has_no_small(sequence)
    return small


def _gates_vanish(states: StreamStates) -> bool:
    """Whether a product of the gates of a sequence may be too small for its summands."""
    if states.gates is None:
        return False
    smallest = float(states.gates.min(initial=1.0, where=states.gates > 0))
    return bool(states.longest * np.log2(smallest) < np.log2(_SMALLEST_TOKEN))


def _has_no_small(array: Array) -> bool:
    """Whether every number is zero or of a size that is safe; a piece of the array at a time."""
    xp = module_of(array)
    step = max(1, _NUMBERS_AT_ONCE // max(1, array[:1].size))
    pieces = (array[first : first + step] for first in range(0, len(array), step))
    return not any(bool(((x != 0) & (xp.abs(x) < _SMALLEST_TOKEN)).any()) for x in pieces)
