"""Forms in which users give what belongs to streams, one number or one row a key or a query.

Whatever belongs to the keys becomes one array over all keys, sequence after sequence. Queries
become rows of those that exist, and :class:`QueryRows` knows the way there and back: targets,
weights and factors come in the form of the queries, and so do predictions go.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from ..arrays.device import to_host
from ..arrays.floats import as_array, as_floats
from ..arrays.types import Array, Floats, Kind, Mask, Positions
from .tokens import Tokens, as_tokens, is_ragged

Integers = npt.NDArray[np.int64]


# --------------------------------------------------------------------------------- one for each key


def _flat(given: object, keys: Tokens, name: str) -> Array:
    """One number a key in the form of the keys, as an array over all of them, (rows,)."""
    if isinstance(keys.storage, tuple):
        if not isinstance(given, list | tuple) or len(given) != len(keys):
            raise ValueError(f"{name}: keys are a list, so a list of {len(keys)} arrays is needed")
        parts = [as_array(one, f"{name}[{i}]") for i, one in enumerate(given)]
        for i, (part, n) in enumerate(zip(parts, keys.lengths, strict=True)):
            if part.shape != (n,):
                raise ValueError(f"{name}[{i}]: one a key is needed, ({n},), got {part.shape}")
        return np.concatenate([to_host(part) for part in parts])
    array, shape = to_host(as_array(given, name)), keys.storage.shape[:-1]
    if array.shape != shape:
        raise ValueError(f"{name}: one a key is needed, shape {shape}, got {array.shape}")
    return array.reshape(-1)


def as_kept(mask: object, lengths: object, keys: Tokens) -> Mask | None:
    """Check which keys exist, (rows,); None for all of them."""
    kept = None
    if mask is not None:
        kept = _flat(mask, keys, "mask")
        if kept.dtype.kind in "iu" and ((kept == 0) | (kept == 1)).all():
            kept = kept.astype(bool)
        if kept.dtype != bool:
            raise TypeError(f"mask: True or False for each key is needed, got dtype {kept.dtype}")
    if lengths is not None:
        many = to_host(as_array(lengths, "lengths"))
        if many.shape != (len(keys),) or many.dtype.kind not in "iu":
            raise ValueError(
                f"lengths: one integer a sequence is needed, shape ({len(keys)},), got shape "
                f"{many.shape} of dtype {many.dtype}"
            )
        if (bad := np.flatnonzero((many < 0) | (many > keys.lengths))).size:
            i = int(bad[0])
            raise ValueError(
                f"lengths: 0 to the number of keys, {keys.lengths[i]}, is needed, "
                f"got [{i}] = {many[i]}"
            )
        place = np.arange(keys.n_rows) - np.repeat(_starts(keys.lengths), keys.lengths)
        short = place < np.repeat(many, keys.lengths)
        kept = short if kept is None else kept & short
    return None if kept is None or kept.all() else kept


def as_gates(decay: object, keys: Tokens, kept: Mask | None) -> Floats | None:
    """Check gates, a number, one a sequence or one a key: (rows,), or None where all are 1."""
    if decay is None:
        return None
    if isinstance(keys.storage, tuple) and isinstance(decay, list | tuple) and np.ndim(decay[0]):
        given = _flat(decay, keys, "decay")
    else:
        given = to_host(as_array(decay, "decay"))
    if given.dtype.kind not in "fiu":
        raise TypeError(f"decay: numbers are needed, got dtype {given.dtype}")
    rows = given.astype(np.float64)
    if rows.ndim == 0:
        rows = np.broadcast_to(rows, keys.n_rows)
    elif rows.shape == (len(keys),) and (keys.offsets is None or len(keys) != keys.n_rows):
        rows = np.repeat(rows, keys.lengths)
    elif isinstance(keys.storage, tuple):
        if rows.shape != (keys.n_rows,):
            raise ValueError(_WRONG_GATES.format(len(keys), "a list of (n_i,)", given.shape))
    elif rows.shape != keys.storage.shape[:-1]:
        raise ValueError(_WRONG_GATES.format(len(keys), keys.storage.shape[:-1], given.shape))
    rows = rows.reshape(-1)
    wrong = ~((rows > 0) & (rows <= 1))  # true for NaN
    if kept is not None:
        wrong &= kept
    if wrong.any():
        row = int(np.argmax(wrong))
        i = int(np.searchsorted(np.cumsum(keys.lengths), row, side="right"))
        raise ValueError(
            f"decay: gates above 0 and at most 1 are needed, got {rows[row]} for key "
            f"{row - _starts(keys.lengths)[i]} of sequence {i}"
        )
    exist = rows if kept is None else rows[kept]
    return None if (exist == 1).all() else rows


def only(tokens: Tokens, kept: Mask) -> Tokens:
    """The rows that are kept, one after the other; a sequence may have none."""
    lengths = tokens.lengths
    ends = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(lengths)])]
    storage = tokens.storage
    if isinstance(storage, tuple) or tokens.offsets is not None:
        rows = tokens.rows()[kept]
    else:
        rows = storage[kept.reshape(storage.shape[:2])]
    return Tokens(rows, np.ascontiguousarray(ends, dtype=np.int64))


_WRONG_GATES = "decay: a number, one a sequence ({},) or one a key {} is needed, got shape {}"


def _starts(lengths: Integers) -> Integers:
    return np.asarray(np.cumsum(lengths) - lengths)


# ------------------------------------------------------------------------------- one for each query


def as_queries(queries: object) -> Tokens | Array:
    """Check the kind of queries: a list of arrays, or one array, (N, d_q), rows, or (N, m, d_q)."""
    if isinstance(queries, Tokens):
        return queries
    if isinstance(queries, tuple) and len(queries) == 0:  # filled in by the caller
        return np.zeros((0, 0))
    if is_ragged(queries):
        return as_tokens(queries, name="queries")
    array = as_floats(queries, "queries")
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(
            "queries: an array (N, d_q) or (N, m, d_q), a list of (m_i, d_q) arrays, or rows with "
            f"offsets is needed, got shape {array.shape}"
        )
    return array


@dataclass(frozen=True)
class QueryRows:
    """The queries that exist, one after the other, and the form in which all were given."""

    rows: Array
    """(existing, d_q)."""
    lengths: Integers
    """How many exist in each sequence, (N,)."""
    shape: tuple[int, ...] | Integers
    """Leading axes of the form: (N,), (N, m) or (rows,); or the lengths of a list of arrays."""
    kept: Mask | None
    """Which of those that were given exist, (given,); None for all."""

    def starts(self) -> Integers:
        """Where the queries of each sequence begin among the rows, (N,)."""
        return _starts(self.lengths)

    def sequences(self) -> npt.NDArray[np.intp]:
        """The sequence of each query, (existing,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def in_words(self) -> str:
        """The form, as messages have it."""
        if isinstance(self.shape, tuple):
            return f"shape {self.shape}"
        return f"a list of {len(self.shape)} arrays"

    def of(self, given: object, name: str, *, axes: int) -> Array:
        """What was given for each query, (existing,) or with one of ``axes`` more axes."""
        if isinstance(self.shape, tuple):
            array = as_floats(given, name)
            leading = len(self.shape)
            if array.shape[:leading] != self.shape or array.ndim > leading + axes:
                raise ValueError(
                    f"{name}: one a query is needed, {self.in_words}, got {array.shape}"
                )
            flat = array.reshape(prod(self.shape), *array.shape[leading:])
        else:
            if not isinstance(given, list | tuple) or len(given) != len(self.shape):
                raise ValueError(f"{name}: one a query is needed, {self.in_words}")
            parts = [as_floats(one, f"{name}[{i}]") for i, one in enumerate(given)]
            for i, (part, m) in enumerate(zip(parts, self.shape, strict=True)):
                if len(part) != m or part.shape[1:] != parts[0].shape[1:] or part.ndim > 1 + axes:
                    raise ValueError(
                        f"{name}[{i}]: one a query is needed, {m} of them alike, got shape "
                        f"{part.shape}"
                    )
            flat = np.concatenate([to_host(part) for part in parts])
        flat = to_host(flat)
        return flat if self.kept is None else flat[self.kept]

    def weights(self, sample_weight: object) -> object:
        """Weights, one a sequence or one a query, as one for each row."""
        if sample_weight is None:
            return None
        if isinstance(self.shape, tuple):
            given = to_host(as_floats(sample_weight, "sample_weight"))
            if given.shape == (len(self.lengths),) and given.shape != self.shape:
                return np.repeat(given, self.lengths)
            if given.shape != self.shape:
                raise ValueError(
                    f"sample_weight: one weight a sequence, shape ({len(self.lengths)},), or one a "
                    f"query, {self.in_words}, is needed, got {given.shape}"
                )
        elif np.ndim(sample_weight[0]) == 0:  # type: ignore[index]
            return np.repeat(to_host(as_floats(sample_weight, "sample_weight")), self.lengths)
        return self.of(sample_weight, "sample_weight", axes=0)

    def restored(self, values: npt.NDArray[Kind]) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Values (existing,) or (existing, m) in the form of the queries; 0 for the others."""
        if self.kept is not None:
            every = np.zeros((len(self.kept), *values.shape[1:]), values.dtype)
            every[self.kept] = values
            values = every
        if isinstance(self.shape, tuple):
            return values.reshape(*self.shape, *values.shape[1:])
        ends = np.cumsum(self.shape)
        return [values[end - m : end] for m, end in zip(self.shape, ends, strict=True)]


def one_a_query(given: object, queries: QueryRows, name: str) -> Floats:
    """Finite numbers, one a query, of those that exist, (existing,)."""
    found = queries.of(given, name, axes=0).astype(np.float64, copy=False)
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        i = int(queries.sequences()[row])
        raise ValueError(f"{name}: must be finite, got {found[row]} for a query of sequence {i}")
    return np.asarray(found)


def rows_of(
    queries: Tokens | Array, keys: Tokens, kept: Mask | None, positions: Positions, of_tokens: bool
) -> QueryRows:
    """The queries that exist, for some positions."""
    N = len(keys)
    if of_tokens:
        assert isinstance(queries, Tokens)
        return _last_tokens(queries, kept) if positions == "last" else _in_form(queries, kept)
    if positions == "last":
        if isinstance(queries, Tokens) or queries.shape[:-1] != (N,):
            got = "a list" if isinstance(queries, Tokens) else f"shape {queries.shape}"
            raise ValueError(
                f"queries: one query a sequence is needed for positions='last', ({N}, d_q), "
                f"got {got}"
            )
        return QueryRows(queries, np.ones(N, np.int64), (N,), None)
    tokens = _as_sequences(queries, keys, positions)
    if len(tokens) != N:
        raise ValueError(f"queries: as many sequences as keys are needed, {N}, got {len(tokens)}")
    if positions == "all":
        return _in_form(tokens, None)
    if (bad := np.flatnonzero(tokens.lengths != keys.lengths)).size:
        i = int(bad[0])
        raise ValueError(
            "queries: one query a key is needed for positions='causal', and sequence "
            f"{i} has {keys.lengths[i]} keys, got {tokens.lengths[i]} queries"
        )
    return _in_form(tokens, kept)


def _as_sequences(queries: Tokens | Array, keys: Tokens, positions: Positions) -> Tokens:
    """Queries of sequences, any number each."""
    if isinstance(queries, Tokens):
        return queries
    if queries.ndim == 3:
        return Tokens(queries)
    if keys.offsets is not None and len(queries) == keys.n_rows:
        return Tokens(queries, keys.offsets)
    wanted = "(N, m, d_q), a list of (m_i, d_q)"
    if keys.offsets is not None:
        wanted += f", or {keys.n_rows} rows, one a key,"
    raise ValueError(
        f"queries: an array {wanted} is needed for positions={positions!r}, "
        f"got shape {queries.shape}"
    )


def _in_form(tokens: Tokens, kept: Mask | None) -> QueryRows:
    rows, lengths = tokens.rows(), tokens.lengths
    shape: tuple[int, ...] | Integers = lengths
    if not isinstance(tokens.storage, tuple):
        shape = tokens.storage.shape[:-1]
    if kept is not None:
        counted = np.concatenate([[0], np.cumsum(kept)])
        ends = np.cumsum(lengths)
        rows, lengths = rows[kept], counted[ends] - counted[ends - lengths]
    return QueryRows(rows, lengths, shape, kept)


def _last_tokens(tokens: Tokens, kept: Mask | None) -> QueryRows:
    """The last token of each sequence that exists."""
    N, lengths = len(tokens), tokens.lengths
    ends = np.cumsum(lengths)
    if kept is None:
        last = ends - 1
    else:
        place = np.where(kept, np.arange(len(kept)), -1)
        last = np.maximum.reduceat(place, ends - lengths)
        missing = last < ends - lengths
        if missing.any():
            raise ValueError(
                f"mask: sequence {int(np.argmax(missing))} has no token, and positions='last' "
                "needs its last one"
            )
    storage = tokens.storage
    if isinstance(storage, tuple):
        places = last - (ends - lengths)
        rows = np.stack([one[t] for one, t in zip(storage, places, strict=True)])
    elif tokens.offsets is None:
        rows = storage[np.arange(N), last - (ends - lengths)]
    else:
        rows = storage[last]
    return QueryRows(rows, np.ones(N, np.int64), (N,), None)
