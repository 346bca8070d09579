"""Queries of streams as states, whose memory is summed from keys and values when it is read.

    M = sum_(t <= n) (g_(t+1) .. g_n) a_t b_t'    for the first n keys of a sequence

by M_t = g_t M_(t-1) + a_t b_t' from the first key on, however many queries are read at a time, so
that its bits do not depend on that. Compiled code reads keys and values where they lie
(csrc/core/streams.hpp); ``memory`` is for rare paths, which read some states at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import compiled
from ..arrays.device import device_of
from ..arrays.floats import as_floats
from ..arrays.types import Array, Floats, Kind, Numbers, Positions
from ..system.machine import get_num_threads
from .states import States, StateShape
from .stream_forms import Integers, QueryRows
from .tokens import Tokens, alike

if TYPE_CHECKING:
    from .streams import Streams

_NUMBERS_AT_ONCE = 1 << 20
"""Numbers of memories that are summed side by side."""


class StreamStates(States):
    """States of queries that attend to the first keys of a sequence.

    Parameters
    ----------
    keys, values
        Sequences that exist as they are; a sequence may be empty if it is one of flat rows. Values
        None are the keys.
    gates
        One a key, (rows,); None for 1.
    sequences, seen
        Of each query, the number of its sequence and how many of its keys it sees, (states,).
    query
        The queries, scaled, (states, d_q).
    queries
        The form in which all queries were given.
    roundings
        Number of roundings that M and the query go through.
    """

    keys: Tokens
    values: Tokens | None
    gates: Floats | None
    sequences: Numbers
    seen: Integers
    queries: QueryRows | None
    roundings: int

    def __init__(
        self,
        keys: Tokens,
        values: Tokens | None,
        gates: Floats | None,
        sequences: Numbers,
        seen: Integers,
        query: Array,
        queries: QueryRows | None,
        roundings: int,
    ) -> None:
        vars(self).update(  # past the guard of a frozen class
            keys=keys,
            values=values,
            gates=gates,
            sequences=sequences,
            seen=seen,
            query=query,
            queries=queries,
            roundings=roundings,
            symmetric=values is None,
            offsets=None,
            scalar=False,
        )

    summed = True
    given: tuple[Streams, Positions] | None = None
    """The streams that are yet to be mapped, and for which positions; None as a rule."""

    def _changed(self, **changes: object) -> StreamStates:
        """Some of these states, or others made from them; their form is no longer known."""
        made = StreamStates.__new__(StreamStates)
        vars(made).update({**vars(self), "queries": None, "given": None, **changes})
        return made

    def to_be_mapped(self, streams: Streams, positions: Positions) -> StreamStates:
        """The form of queries whose keys and queries are mapped later, a part at a time."""
        return self._changed(queries=self.queries, given=(streams, positions))

    def without_form(self) -> StreamStates:
        """The same states, for targets and weights that are one row each already."""
        return self._changed()

    @property
    def kind(self) -> StateShape:
        """What each state looks like."""
        d_k = self.keys.d if len(self.keys.arrays) else 0
        d_v = d_k if self.values is None else self.values.d
        return StateShape((d_v, d_k), int(self.query.shape[1]), self.symmetric)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.query)

    def __repr__(self) -> str:
        return f"Streams({len(self)} queries, {self.kind})"

    def __reduce__(self) -> tuple[Callable[..., StreamStates], tuple[object, ...]]:
        """Pickle everything; out of a socket arrays need not be aligned."""
        names = ("keys", "values", "gates", "sequences", "seen", "query", "queries", "roundings")
        return _known_streams, tuple(getattr(self, name) for name in names)

    # ------------------------------------------------------------------------------- the memory

    @property
    def memory(self) -> Floats:  # type: ignore[override]
        """M of each query, (states, d_v, d_k); made anew whenever it is asked for."""
        if compiled.MISSING is not None:
            return self.summed_in_numpy()
        s = self._compiled_entries()
        if not self.symmetric:
            return s.reshape(len(self), *self.kind.matrix)
        j, k = np.triu_indices(self.keys.d)
        M = np.empty((len(self), self.keys.d, self.keys.d))
        M[:, j, k] = M[:, k, j] = s
        return M

    def _compiled_entries(self) -> Floats:
        """The factor s of each query, (states, q), summed by compiled code."""
        samples = compiled.core.Samples(**self.compiled_form(), positions="last")
        return compiled.core.stream_memories(samples, get_num_threads())

    def summed_in_numpy(self) -> Floats:
        """M of each query, (states, d_v, d_k), the slow way."""
        d_v, d_k = self.kind.matrix
        M = np.zeros((len(self), d_v, d_k))
        order = np.lexsort((self.seen, self.sequences))
        distinct, first = np.unique(self.sequences[order], return_index=True)
        ends = np.append(first[1:], len(order))
        step = max(1, _NUMBERS_AT_ONCE // (d_v * d_k))
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(0, len(distinct), step):
                last = min(i + step, len(distinct))
                rows = order[first[i] : ends[last - 1]]
                column = np.repeat(np.arange(last - i), ends[i:last] - first[i:last])
                self._run(distinct[i:last], rows, column, M)
        return M

    def _run(self, sequences: Numbers, rows: Numbers, column: Numbers, M: Floats) -> None:
        """Write M of some queries, whose sequences are side by side in the given columns."""
        seen = self.seen[rows]
        by_seen = np.argsort(seen, kind="stable")
        rows, column, seen = rows[by_seen], column[by_seen], seen[by_seen]
        most = int(seen[-1])
        ends = np.searchsorted(seen, np.arange(most + 2))
        lengths = np.zeros(len(sequences), np.int64)
        np.maximum.at(lengths, column, seen)
        b = _side_by_side(self.keys, sequences, lengths)
        a = b if self.values is None else _side_by_side(self.values, sequences, lengths)
        running = np.zeros((len(sequences), *M.shape[1:]))
        starts = None
        if self.gates is not None:
            every = self.keys.lengths
            starts = (np.cumsum(every) - every)[sequences]
        for t in range(most):
            if starts is not None and self.gates is not None:
                inside = t < lengths
                g = np.where(inside, self.gates[np.where(inside, starts + t, 0)], 1.0)
                running *= g[:, None, None]
            running += a[t][:, :, None] * b[t][:, None, :]
            here = slice(ends[t + 1], ends[t + 2])
            M[rows[here]] = running[column[here]]

    def entries(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The factor s of each query, (states, q), or some of its columns."""
        if compiled.MISSING is None:
            return self._compiled_entries()[:, chosen]
        return States._with(self, self.memory, self.query).entries(chosen)

    def sizes(self) -> StreamStates:
        """The same sums of absolute values, whose features are the sizes of these summands."""
        return self.mapped(np.abs)

    def presence(self) -> StreamStates:
        """Sums of products of 1 for each number that is not zero: zero where nothing is summed."""
        made = self.mapped(lambda array: (array != 0).astype(np.float64))
        return made._changed(gates=None)

    def pieces(self, numbers: int = 1 << 17) -> Iterator[tuple[slice, States]]:
        """Yield states with about so many numbers in their memories, and where they are."""
        d_v, d_k = self.kind.matrix
        step = max(1, numbers // (d_v * d_k))
        for first in range(0, len(self), step):
            where = slice(first, min(first + step, len(self)))
            yield where, self.part(where.start, where.stop)

    def compiled_form(self) -> dict[str, Any]:
        """Keywords by which compiled code takes these states (``_cpu.Samples``)."""
        return {
            "tokens": self.query[:, None],
            "keys": self.keys.storage,
            "key_offsets": self.keys.offsets,
            "values": None if self.values is None else self.values.storage,
            "gates": None if self.gates is None else np.ascontiguousarray(self.gates),
            "sequences": np.ascontiguousarray(self.sequences, dtype=np.int64),
            "seen": np.ascontiguousarray(self.seen),
        }

    def near(self) -> StreamStates:
        """The same states with no other sequences than those from their first to their last."""
        first, last = int(self.sequences.min()), int(self.sequences.max()) + 1
        ends = np.concatenate([[0], np.cumsum(self.keys.lengths)])
        return self._changed(
            keys=self.keys.part(first, last),
            values=None if self.values is None else self.values.part(first, last),
            gates=None if self.gates is None else self.gates[ends[first] : ends[last]],
            sequences=self.sequences - first,
        )

    # ---------------------------------------------------------------------------- some of them

    def _at(self, rows: slice | Numbers) -> StreamStates:
        return self._changed(
            sequences=self.sequences[rows], seen=self.seen[rows], query=self.query[rows]
        )

    def part(self, first: int, last: int) -> StreamStates:
        """Queries first, .., last - 1; nothing is copied."""
        return self._at(slice(first, last))

    def every(self, step: int) -> StreamStates:
        """Every so many-th query, from the first on; nothing is copied."""
        return self._at(slice(None, None, step))

    def chosen(self, numbers: Numbers) -> StreamStates:
        """The queries with these numbers; keys and values are shared."""
        return self._at(numbers)

    kept = chosen

    def mapped(self, of: Callable[[Array], Array]) -> StreamStates:
        """Put another number in the place of each in keys, values and queries."""
        return self._changed(
            keys=self.keys.mapped(of),
            values=None if self.values is None else self.values.mapped(of),
            query=of(self.query),
        )

    def put(self, like: object) -> StreamStates:
        """Return these states: they are for arrays on the host."""
        return self

    @property
    def device(self) -> int | None:
        """The CUDA device of the keys; None for the host."""
        return device_of(*self.keys.arrays[:1])

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Keys, values and queries, with everything that was given."""
        values = () if self.values is None else self.values.arrays
        return (*self.keys.arrays, *values, self.query)

    @property
    def longest(self) -> int:
        """Number of roundings of M and the query."""
        return self.roundings

    @property
    def nbytes(self) -> int:
        """Number of bytes of keys, values, gates and queries."""
        own = self.gates, self.sequences, self.seen
        return super().nbytes + sum(array.nbytes for array in own if array is not None)

    # ------------------------------------------------------------------ forms that users give

    def given_rows(self, given: object, name: str) -> object:
        """Targets in the form of the queries, as one row for each state."""
        return given if self.queries is None else self.queries.of(given, name, axes=1)

    def given_weights(self, sample_weight: object) -> object:
        """Weights, one a sequence or one a query, as one for each state."""
        return sample_weight if self.queries is None else self.queries.weights(sample_weight)

    def restore(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Rows (states, m) or (states,) in the form of the queries; 0 for those masked."""
        return rows if self.queries is None else self.queries.restored(rows)

    def per_query(
        self, values: npt.NDArray[Kind], positions: Positions
    ) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Values (states,) or (states, m) in the form of the queries."""
        return self.restore(values)


def _side_by_side(tokens: Tokens, sequences: Numbers, lengths: Integers) -> Floats:
    """The first tokens of some sequences, (most, sequences, d), zero past the length of each."""
    most = int(lengths.max(initial=0))
    if not isinstance(tokens.storage, tuple) and tokens.offsets is None:
        side = tokens.storage[sequences, :most].astype(np.float64).transpose(1, 0, 2).copy()
        side[np.arange(most)[:, None] >= lengths] = 0.0
        return side
    side = np.zeros((most, len(sequences), tokens.d))
    for column, (i, n) in enumerate(zip(sequences, lengths, strict=True)):
        side[:n, column] = tokens.sequence(int(i))[:n]
    return side


def joined_streams(parts: list[StreamStates]) -> StreamStates:
    """All queries of several batches of one shape; keys and values are not copied."""
    counts = np.cumsum([0, *(len(part.keys) for part in parts)])
    gates = None
    if any(part.gates is not None for part in parts):
        ones = (np.ones(part.keys.n_rows) if part.gates is None else part.gates for part in parts)
        gates = np.concatenate(list(ones))
    keys = [one for part in parts for one in part.keys]
    values = [one for part in parts if part.values is not None for one in part.values]
    return StreamStates(
        Tokens(alike(keys)),
        Tokens(alike(values)) if values else None,
        gates,
        np.concatenate([part.sequences + n for part, n in zip(parts, counts, strict=False)]),
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.query for part in parts]),
        None,
        max(part.roundings for part in parts),
    )


def _known_streams(
    keys: Tokens,
    values: Tokens | None,
    gates: Floats | None,
    sequences: Numbers,
    seen: Integers,
    query: Array,
    queries: QueryRows | None,
    roundings: int,
) -> StreamStates:
    """States of streams that have been checked before."""

    def aligned(array: Array) -> Array:
        return as_floats(array, "Z")

    return StreamStates(
        keys.mapped(aligned),
        None if values is None else values.mapped(aligned),
        None if gates is None else aligned(gates),
        np.require(sequences, requirements="A"),
        np.require(seen, requirements="A"),
        aligned(query),
        queries,
        roundings,
    )
