"""Token batches, targets and weights: every form the caller may use, checked before any work.

A batch is one of

- dense: an array (N, n, d), N sequences of n tokens in R^d;
- a list of arrays (n_i, d);
- flat: an array (sum n_i, d) with ``offsets``, N + 1 integers: sequence i is rows
  ``offsets[i]:offsets[i + 1]``.

float32 and float64 are used as they lie in memory, with any strides; integers become float64.
Targets have the same forms, and for positions="last" one row a sequence.

Arrays of other libraries are read in place (:mod:`linattn_fast.arrays.libraries`). Those on a CUDA
device stay there, as CuPy arrays (:mod:`linattn_fast.arrays.device`); targets follow the
tokens. Offsets and weights, one number per sequence, are brought to the host, whose part of the
work needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..arrays.device import device_of, module_of, put, put_all, to_host
from ..arrays.floats import all_finite, as_array, as_floats, gradual_underflow
from ..arrays.libraries import axes_of
from ..arrays.types import POSITIONS, VALUES, Array, Floats, Kind, Positions, Values

TRANSPOSE = "pass Z.transpose(0, 2, 1)"
"""Advice for tokens that are columns, in messages."""


def as_positions(positions: object) -> Positions:
    """Check which tokens query, and what they attend to."""
    for known in POSITIONS:
        if isinstance(positions, str) and positions == known:
            return known
    raise ValueError(f"positions: must be one of {', '.join(POSITIONS)}, got {positions!r}")


def as_values(values: object) -> Values:
    """Check what becomes of the values."""
    for known in VALUES:
        if isinstance(values, str) and values == known:
            return known
    raise ValueError(f"values: must be one of {', '.join(VALUES)}, got {values!r}")


@dataclass(frozen=True)
class Tokens:
    """A checked batch of sequences; nothing is copied that can be used where it is."""

    storage: Array | tuple[Array, ...]
    """(N, n, d), or (rows, d) with ``offsets``, or a tuple of (n_i, d)."""
    offsets: npt.NDArray[np.int64] | None = None
    scalar: bool = False
    """Whether these are targets that came without an axis of outputs, which means one."""
    are_tokens: ClassVar[bool] = True
    """Whether these are tokens, and not states in their place."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.storage) if self.offsets is None else len(self.offsets) - 1

    def __iter__(self) -> Iterator[Array]:
        """Yield each sequence as an array (n_i, d)."""
        return (self.sequence(i) for i in range(len(self)))

    def sequence(self, i: int) -> Array:
        """Sequence i, (n_i, d)."""
        if self.offsets is None:
            return self.storage[i]
        assert not isinstance(self.storage, tuple)
        return self.storage[self.offsets[i] : self.offsets[i + 1]]

    def part(self, first: int, last: int) -> Tokens:
        """Sequences first, .., last - 1 as a batch of the same form; nothing is copied."""
        if self.offsets is None:
            return replace(self, storage=self.storage[first:last])
        start, stop = self.offsets[first], self.offsets[last]
        assert not isinstance(self.storage, tuple)
        offsets = self.offsets[first : last + 1] - start
        return replace(self, storage=self.storage[start:stop], offsets=offsets)

    def every(self, step: int) -> Tokens:
        """Every so many-th sequence, from the first on; nothing is copied."""
        if self.offsets is None:
            return replace(self, storage=self.storage[::step])
        return Tokens(tuple(self.sequence(i) for i in range(0, len(self), step)))

    def chosen(self, numbers: npt.NDArray[np.intp]) -> Tokens:
        """Copies of the sequences with these numbers, as one array if this batch is one array."""
        if not isinstance(self.storage, tuple) and self.offsets is None:
            return replace(self, storage=self.storage[numbers])
        return Tokens(tuple(self.sequence(int(i)) for i in numbers))

    def kept(self, numbers: npt.NDArray[np.intp]) -> Tokens:
        """The sequences with these numbers; nothing is copied."""
        return Tokens(tuple(self.sequence(int(i)) for i in numbers))

    def mapped(self, of: Callable[[Array], Array]) -> Tokens:
        """Put another number in the place of each, by a function that keeps shapes."""
        arrays = tuple(of(array) for array in self.arrays)
        return replace(self, storage=arrays if isinstance(self.storage, tuple) else arrays[0])

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return int(self.sequence(0).shape[1])

    @property
    def device(self) -> int | None:
        """The CUDA device that the tokens are on; None for the host."""
        return device_of(self.storage)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The storage as a tuple, of one array or of many."""
        return self.storage if isinstance(self.storage, tuple) else (self.storage,)

    def put(self, like: object) -> Tokens:
        """Put the batch on the device of ``like``; no copy if it is there already."""
        if device_of(like) == self.device:
            return self
        moved = tuple(put(array, like) for array in self.arrays)
        return replace(self, storage=moved if isinstance(self.storage, tuple) else moved[0])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens in each sequence, (N,)."""
        if self.offsets is not None:
            return np.diff(self.offsets)
        if isinstance(self.storage, tuple):
            return np.array([len(sequence) for sequence in self.storage], dtype=np.int64)
        return np.full(len(self), self.storage.shape[1], dtype=np.int64)

    @property
    def longest(self) -> int:
        """Number of tokens in the longest sequence."""
        if self.offsets is None and not isinstance(self.storage, tuple):
            return int(self.storage.shape[1])
        return int(self.lengths.max())

    @cached_property
    def beginnings(self) -> npt.NDArray[np.intp]:
        """A number for each sequence, (N,), the same for those that begin at one place in memory.

        Such sequences are prefixes of the longest of them. On a device all numbers differ.
        """
        if not isinstance(self.storage, tuple) or self.device is not None:
            return np.arange(len(self))
        known: dict[tuple[object, ...], int] = {}
        places = ((a.__array_interface__["data"][0], a.strides) for a in self.storage)
        return np.array([known.setdefault(place, len(known)) for place in places], dtype=np.intp)

    @property
    def n_rows(self) -> int:
        """Number of tokens in all sequences together."""
        if isinstance(self.storage, tuple):
            return sum(len(sequence) for sequence in self.storage)
        return math.prod(self.storage.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Number of bytes of all sequences together."""
        return sum(array.nbytes for array in self.arrays)

    def asked(self, positions: Positions) -> Positions:
        """Positions as sums over samples take them."""
        return positions

    def given_rows(self, given: object, name: str) -> object:
        """What was given for each query, in a form that :func:`as_targets` knows."""
        return given

    def given_weights(self, sample_weight: object) -> object:
        """Weights in a form that :func:`as_weights` knows."""
        return sample_weight

    def n_samples(self, positions: Positions) -> int:
        """Number of queries: one per sequence for "last", else one per token."""
        return len(self) if positions == "last" else self.n_rows

    def rows(self) -> Array:
        """All tokens, one after the other, (n_rows, d)."""
        rows: Array
        if isinstance(self.storage, tuple):
            rows = module_of(*self.storage[:1]).concatenate(self.storage)
        else:
            rows = self.storage.reshape(self.n_rows, -1)
        return rows

    def restore(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Rows (n_rows, m) or (n_rows,), one per token, in the form of this batch."""
        if isinstance(self.storage, tuple):
            ends = np.cumsum(self.lengths)
            return [rows[end - n : end] for n, end in zip(self.lengths, ends, strict=True)]
        if self.offsets is not None:
            return rows
        return rows.reshape(*self.storage.shape[:2], *rows.shape[1:])

    def per_query(
        self, values: npt.NDArray[Kind], positions: Positions
    ) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Values (samples,) or (samples, m): as they are for "last", else in the form of Z."""
        return values if positions == "last" else self.restore(values)

    def as_predictions(
        self, rows: Floats, positions: Positions, scalar: bool
    ) -> Floats | list[Floats]:
        """Outputs (samples, d_out) in the form of targets of this batch, ``scalar`` or not."""
        if scalar:
            rows = rows[:, 0]
        return self.per_query(rows, positions)

    @property
    def rows_shape(self) -> tuple[int, ...] | None:
        """The form of what is given once a token; None where tokens are a list of arrays."""
        return None if isinstance(self.storage, tuple) else self.storage.shape[:-1]

    def one_by_one(self) -> Tokens:
        """The same samples as exact arithmetic takes them: of sequences."""
        return self

    def by_output(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
        """Outputs (samples, d_out) with a column for each output of an input."""
        return rows

    def worst(
        self, values: npt.NDArray[Kind], positions: Positions, of: np.ufunc
    ) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Values (samples,) in the form of Z; of inputs with several, the worst by ``of``."""
        return self.per_query(values, positions)


def is_ragged(value: object) -> bool:
    """Tell a list of sequences from everything else by its first item."""
    if not isinstance(value, list | tuple) or len(value) == 0:
        return False
    try:
        return axes_of(value[0]) == 2
    except ValueError:  # a sequence whose tokens differ in length
        return True


def _as_list(value: Any, name: str) -> tuple[Array, ...]:
    arrays = [as_floats(item, f"{name}[{i}]") for i, item in enumerate(value)]
    arrays = put_all(arrays, like=arrays[0])
    for i, array in enumerate(arrays):
        if array.ndim != 2:
            raise ValueError(
                f"{name}[{i}]: every sequence must be an array (n_i, d), got shape {array.shape}"
            )
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"{name}[{i}]: every sequence must have the same d; "
                f"sequence 0 has d = {arrays[0].shape[1]}, this one {array.shape[1]}"
            )
        if array.shape[0] == 0:
            raise ValueError(f"{name}[{i}]: the sequence is empty; at least one token is needed")
    return alike(arrays)


def alike(arrays: list[Array]) -> tuple[Array, ...]:
    """The arrays with one dtype: their own if it is the same for all, else float64."""
    if len({array.dtype for array in arrays}) > 1:
        return tuple(array.astype(np.float64, copy=False) for array in arrays)
    return tuple(arrays)


def as_offsets(offsets: object, n_rows: int, name: str) -> npt.NDArray[np.int64]:
    """Check where each of N sequences begins and ends among the rows of ``name``, (N + 1,)."""
    array = as_array(offsets, "offsets")
    if array.ndim != 1 or len(array) < 2 or array.dtype.kind not in "iu":
        raise ValueError(
            "offsets: a 1-D array of N + 1 integers is needed, "
            f"got shape {array.shape} of dtype {array.dtype}"
        )
    result = array.astype(np.int64)
    if result[0] != 0 or result[-1] != n_rows:
        raise ValueError(
            f"offsets: must start at 0 and end at the number of rows of {name}, {n_rows}; "
            f"got {result[0]} to {result[-1]}"
        )
    if (bad := np.flatnonzero(result[1:] <= result[:-1])).size:
        i = int(bad[0])
        raise ValueError(
            f"offsets: must increase, so that no sequence is empty; "
            f"offsets[{i}] = {result[i]}, offsets[{i + 1}] = {result[i + 1]}"
        )
    return np.ascontiguousarray(result)


def require_form(shape: tuple[int, ...], *, flat: bool, name: str) -> None:
    """Check the shape of one array of tokens: (sum n_i, d) if flat, else (N, n, d)."""
    if flat and len(shape) != 2:
        raise ValueError(
            f"{name}: with offsets, an array (sum n_i, d) is needed, got shape {shape}"
        )
    if not flat and len(shape) != 3:
        one = len(shape) == 2
        hint = f"; for one sequence pass {name}[None] (an array) or [{name}]" if one else ""
        raise ValueError(
            f"{name}: an array (N, n, d), a list of (n_i, d) arrays, or (sum n_i, d) with "
            f"offsets is needed, got shape {shape}{hint}"
        )
    if 0 in shape:
        raise ValueError(
            f"{name}: the batch is empty, shape {shape}; "
            "at least one sequence of one token with one coordinate is needed"
        )


def as_tokens(
    value: object, offsets: object = None, *, name: str = "Z", d: int | None = None
) -> Tokens:
    """Check a batch in any of its forms.

    Parameters
    ----------
    value, offsets
        The batch, in one of the forms above.
    name
        The name of the argument in error messages.
    d
        The number of coordinates it must have, if that is known.
    """
    if not getattr(value, "are_tokens", True):  # states, which only those take who ask for them
        raise TypeError(f"{name}: tokens are needed here, got {value!r}")
    if isinstance(value, Tokens):
        tokens = value
    elif offsets is not None:
        rows = as_floats(value, name)
        require_form(rows.shape, flat=True, name=name)
        tokens = Tokens(rows, as_offsets(offsets, len(rows), name))
    elif is_ragged(value):
        tokens = Tokens(_as_list(value, name))
    else:
        array = as_floats(value, name)
        require_form(array.shape, flat=False, name=name)
        tokens = Tokens(array)
    if d is not None and tokens.d != d:
        dense = not isinstance(tokens.storage, tuple) and tokens.offsets is None
        columns = dense and tokens.arrays[0].shape[1] == d
        hint = f"; if tokens are columns, (N, d, n), {TRANSPOSE}" if columns else ""
        raise ValueError(f"{name}: tokens must have d = {d} coordinates, got {tokens.d}{hint}")
    return tokens


def as_targets(
    y: object, tokens: Tokens, positions: Positions = "last", *, d_out: int | None = None
) -> Tokens:
    """Check targets: one row per sequence for "last", else one row per token in the form of Z.

    An array with one axis less means d_out = 1, and ``scalar`` of the result is true. Targets that
    have been checked are taken as they are.
    """
    if not isinstance(y, Tokens):
        y = tokens.given_rows(y, "y")
    if isinstance(y, Tokens):
        targets = y
    elif positions == "last":
        given = put(as_floats(y, "y"), like=tokens)
        array = given[:, None] if given.ndim == 1 else given
        if array.ndim != 2 or len(array) != len(tokens) or array.shape[1] == 0:
            raise ValueError(
                f"y: one row of targets a sequence is needed, shape ({len(tokens)},) or "
                f"({len(tokens)}, d_out), got {given.shape}"
            )
        targets = Tokens(array[:, None, :], scalar=given.ndim == 1)
    else:
        targets = _one_row_a_token(y, tokens)
    if d_out is not None and targets.d != d_out:
        raise ValueError(f"y: d_out = {d_out} targets a row are needed, got {targets.d}")
    if targets.device is not None:  # NaN shows up in the sums, which saves waiting for the device
        return targets
    if (error := non_finite_target_error(targets, positions)) is not None:
        raise error
    return targets


def non_finite_target_error(targets: Tokens, positions: Positions) -> ValueError | None:
    """Say where the first NaN or infinity in targets on the host is; None if there is none."""
    if all(map(all_finite, targets.arrays)):
        return None
    i, sequence = next((i, y) for i, y in enumerate(targets) if not np.isfinite(y).all())
    row, column = (int(k) for k in np.argwhere(~np.isfinite(sequence))[0])
    place = f"sequence {i}, output {column}" + ("" if positions == "last" else f", token {row}")
    return ValueError(f"y: must be finite, got {sequence[row, column]} for {place}")


def _one_row_a_token(y: object, tokens: Tokens) -> Tokens:
    shape = tokens.rows_shape
    if shape is None:
        if not isinstance(y, list | tuple) or len(y) != len(tokens):
            raise ValueError(
                f"y: Z is a list of {len(tokens)} sequences, so a list of as many arrays "
                "(n_i, d_out) is needed"
            )
        given = [as_floats(item, f"y[{i}]") for i, item in enumerate(y)]
        scalar = all(array.ndim == 1 for array in given)
        arrays = put_all(given, like=tokens)
        arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
        for i, (array, sequence) in enumerate(zip(arrays, tokens, strict=True)):
            if array.ndim != 2 or array.shape[1] == 0 or array.shape[1] != arrays[0].shape[-1]:
                raise ValueError(
                    f"y[{i}]: an array (n_i, d_out) with the d_out of y[0] is needed, "
                    f"got shape {array.shape}"
                )
            if len(array) != len(sequence):
                raise ValueError(
                    f"y[{i}]: one row a token is needed, {len(sequence)} rows, got {len(array)}"
                )
        return Tokens(alike(arrays), scalar=scalar)
    one = put(as_floats(y, "y"), like=tokens)
    array = one[..., None] if one.ndim == len(shape) else one
    if array.shape[:-1] != shape or array.shape[-1] == 0:
        wanted = ", ".join(str(size) for size in shape)
        columns = len(shape) == 2 and one.ndim > 1 and one.shape[-1] == tokens.d
        hint = f"; if tokens are the columns of Z, (N, d, n), {TRANSPOSE}" if columns else ""
        raise ValueError(
            f"y: one row of targets a token is needed, shape ({wanted}, d_out) or ({wanted}), "
            f"got {one.shape}{hint}"
        )
    return Tokens(array, tokens.offsets, scalar=one.ndim == len(shape))


def as_weights(sample_weight: object, n_sequences: int) -> Floats | None:
    """Check weights, one per sequence: a float64 array (n_sequences,), or None."""
    if sample_weight is None:
        return None
    array = to_host(as_floats(sample_weight, "sample_weight"))
    if array.shape != (n_sequences,):
        raise ValueError(
            f"sample_weight: one weight a sequence is needed, shape ({n_sequences},), "
            f"got {array.shape}"
        )
    if not (np.isfinite(array).all() and (array >= 0).all()):
        i = int(np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[0])
        raise ValueError(f"sample_weight: must be finite and not negative, got [{i}] = {array[i]}")
    weights = np.ascontiguousarray(array, dtype=np.float64)
    with np.errstate(over="ignore"):
        finite_weight(float(weights.sum()))
    return weights


def total_weight(tokens: Tokens, weights: Floats | None, positions: Positions) -> float:
    """Total weight W of all samples; every query of a sequence has the sequence's weight.

    A summand goes through at most one product and as many additions as there are sequences.
    """
    if weights is None:
        return float(tokens.n_samples(positions))
    with gradual_underflow(), np.errstate(over="ignore"):
        sum_of_weights = weights.sum() if positions == "last" else weights @ tokens.lengths
    return finite_weight(float(sum_of_weights))


def finite_weight(weight: float) -> float:
    """Return the total weight of samples; an overflow is an error."""
    if not weight < float("inf"):
        raise ValueError(
            "sample_weight: the weights of all samples must have a sum within float64, and these "
            "overflow; divide them by a common factor"
        )
    return weight


def require_positive(weight: float) -> None:
    """Check that the total weight of all samples is positive."""
    if not finite_weight(weight) > 0:
        raise ValueError("sample_weight: at least one weight must be positive, got all zero")
