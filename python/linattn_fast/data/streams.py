"""Streams: queries, keys and values apart, with gates, a scale and a mask, in the place of tokens.

With queries c (d_q numbers), keys b_t (d_k), values a_t (d_v) and gates g_t in (0, 1], a query sees

    M_t = g_t M_(t-1) + a_t b_t'    (d_v, d_k),    M_0 = 0

after the keys that it attends to: all of its sequence ("last" and "all"), or those up to its own
place ("causal"). Each query with its M is a state (:mod:`linattn_fast.data.states`), whose memory
is made when it is read and never held (:mod:`linattn_fast.data.stream_states`). A scale belongs to
the query, since r M c = M (r c). Keys that are masked are left out before anything else happens, as
if they had never been there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..arrays.device import to_host
from ..arrays.floats import as_array, as_floats
from ..arrays.types import Array, Floats, Positions
from ..maps.pointwise import with_constant
from .mapping import token_map
from .mapping.token_map import Map, StreamMaps, TokenMap, as_map, one_after_the_other
from .states import StateShape
from .stream_forms import QueryRows, as_gates, as_kept, as_queries, one_a_query, only, rows_of
from .stream_states import StreamStates
from .tokens import Tokens, as_tokens


class Streams:
    """Queries, keys and values of a linear attention layer, in the place of tokens.

    Parameters
    ----------
    queries
        For positions="last" one query a sequence, (N, d_q). For "all" any number of queries,
        (N, m, d_q), each of which sees all keys. For "causal" one a key, in the form of the keys:
        query t sees the keys up to t. A list of (m_i, d_q) arrays and, with ``offsets``, rows one
        after the other are taken as well.
    keys
        (N, n, d_k), a list of (n_i, d_k), or (sum n_i, d_k) with offsets.
    values
        The same with d_v coordinates. None means the keys themselves; M is then symmetric, as it is
        for the same array, and only its pairs j <= k are used, as for tokens.
    offsets
        N + 1 integers: sequence i is rows ``offsets[i]:offsets[i + 1]`` of keys and values.
    lengths
        (N,): how many keys of each padded sequence exist, from the first on.
    mask
        (N, n), or in the form of the keys without their last axis: which keys exist. For "causal",
        a query exists where its key does; the targets of others are not looked at, and their
        predictions are 0.
    decay
        Gates g_t in (0, 1], with M_t = g_t M_(t-1) + a_t b_t': a number, one a sequence (N,), or
        one a key (N, n). None is 1.
    scale
        None; "mean", which divides by the number of keys seen, or with gates by D_t, where
        D_t = g_t D_(t-1) + 1; or an array, one factor a query.
    attend_self
        For "causal", whether query t sees key t, or only those before it.
    key_map, query_map
        What keys and queries are mapped by first, see :mod:`linattn_fast.maps`: a function from
        rows (m, d) to rows (m, D), each made of its own row alone. Values are as they are given;
        where they are the keys, they are the mapped keys.

    Notes
    -----
    Arrays are float32 or float64 and used as they lie in memory, unless a mask leaves some of them
    out. What a query attends to is never held for more than a block of queries.

    Where a query has no key, M is zero, and with ``scale="mean"`` an error.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((1, 2, 3)), rng.standard_normal((1, 4, 5)))
    >>> queries, keys, values = (rng.standard_normal((40, 20, d)) for d in (5, 4, 3))
    >>> streams = la.Streams(queries, keys, values, decay=0.9, scale="mean")
    >>> y = truth(streams, "causal")
    >>> fit = la.fit(streams, y, positions="causal")
    >>> y.shape, fit.certificate.verdict, len(fit.heads)
    ((40, 20, 2), 'identifiable', 1)
    """

    are_tokens = False
    first = 0
    """Number of the first sequence, of those that these are a part of."""

    def __init__(
        self,
        queries: object,
        keys: object,
        values: object = None,
        *,
        offsets: object = None,
        lengths: object = None,
        mask: object = None,
        decay: object = None,
        scale: object = None,
        attend_self: bool = True,
        key_map: Map | None = None,
        query_map: Map | None = None,
    ) -> None:
        self.keys = as_tokens(keys, offsets, name="keys")
        self.values = None
        if values is not None and values is not keys:
            self.values = as_tokens(values, offsets, name="values")
            self._require_one_a_key(self.values, "values")
            if _same_memory(self.keys, self.values):
                self.values = None
        self.queries = as_queries(queries)
        self.kept = as_kept(mask, lengths, self.keys)
        self.gates = as_gates(decay, self.keys, self.kept)
        self.scale = _as_scale(scale)
        if not isinstance(attend_self, bool | np.bool_):
            raise TypeError(f"attend_self: True or False is needed, got {attend_self!r}")
        self.attend_self = bool(attend_self)
        self.of_tokens = False
        if self.keys.device is not None:
            raise TypeError("keys: Streams are for arrays on the host; bring them home first")
        self.key_map: TokenMap | None = None
        self.query_map: TokenMap | None = None
        self.value_map: TokenMap | None = None
        self._try(StreamMaps(as_map(key_map, "key_map"), as_map(query_map, "query_map")))

    def _try(self, maps: StreamMaps) -> None:
        """Take maps for keys, queries and values, each tried on the first of them."""
        queries = self.queries
        if not isinstance(queries, Tokens) and maps.query is not None:
            queries = Tokens(queries.reshape(1, -1, queries.shape[-1]))
        for name, value, given in (
            ("key_map", maps.key, self.keys),
            ("query_map", maps.query, queries),
            ("value_map", maps.value, self.values),
        ):
            if value is not None:
                assert isinstance(given, Tokens)
                setattr(self, name, TokenMap.tried(value, given, name))

    def then(self, maps: StreamMaps) -> Streams:
        """The same streams, mapped by more maps after their own."""
        made = Streams.__new__(Streams)
        vars(made).update(vars(self))
        own = (None if one is None else one.map for one in self._maps)
        made._try(StreamMaps(*map(one_after_the_other, own, maps)))
        return made

    @property
    def _maps(self) -> tuple[TokenMap | None, TokenMap | None, TokenMap | None]:
        return self.key_map, self.query_map, self.value_map

    def appended(self) -> StreamMaps:
        """What appends a constant to keys, queries and values that do not have one."""
        known = [one is not None and one.constant is not None for one in self._maps]
        maps = [None if has else with_constant for has in known]
        return StreamMaps(maps[0], maps[1], None if self.symmetric else maps[2])

    @property
    def constants(self) -> tuple[int, int, int] | None:
        """The constant coordinates of values, keys and queries, where each has one."""
        maps = (self.key_map if self.symmetric else self.value_map, self.key_map, self.query_map)
        j, k, l = (None if one is None else one.constant for one in maps)
        return None if j is None or k is None or l is None else (j, k, l)

    @property
    def mapped_bytes(self) -> int:
        """Bytes that mapped keys, queries and values take; 0 without maps."""
        rows = (
            self.queries.n_rows if isinstance(self.queries, Tokens) else self.queries[..., 0].size
        )
        counts = (self.keys.n_rows, rows, self.keys.n_rows)
        sizes = zip(counts, self._maps, strict=True)
        return sum(8 * count * one.width for count, one in sizes if one is not None)

    @property
    def is_large(self) -> bool:
        """Whether they are better mapped a part at a time."""
        return self.mapped_bytes > token_map.PART_BYTES

    def unmapped(self) -> Streams:
        """The same streams without their maps."""
        made = Streams.__new__(Streams)
        vars(made).update(vars(self), key_map=None, query_map=None, value_map=None)
        return made

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Numbers (first, last) of sequences that are mapped at a time."""
        each = max(1, self.mapped_bytes // len(self))
        step = max(1, token_map.PART_BYTES // each)
        for first in range(0, len(self), step):
            yield first, min(first + step, len(self))

    @property
    def kind(self) -> StateShape:
        """What each query is as a state."""
        return StateShape((self.d_v, self.d_k), self.d_q, self.symmetric)

    @classmethod
    def of_tokens_alone(
        cls,
        Z: object,
        *,
        offsets: object = None,
        mask: object = None,
        lengths: object = None,
        scale: object = None,
        decay: object = None,
        attend_self: bool = True,
        d: int | None = None,
    ) -> Streams:
        """Make streams of tokens, which are queries, keys and values at once.

        A token that is masked asks for nothing, whatever the positions; for "last", the last token
        of a sequence that exists is its query.
        """
        tokens = as_tokens(Z, offsets, d=d)
        made = cls(
            (),
            tokens,
            mask=mask,
            lengths=lengths,
            scale=scale,
            decay=decay,
            attend_self=attend_self,
        )
        made.queries, made.of_tokens = tokens, True
        return made

    def _require_one_a_key(self, given: Tokens, name: str) -> None:
        if len(given) != len(self.keys):
            raise ValueError(
                f"{name}: as many sequences as keys are needed, {len(self.keys)}, got {len(given)}"
            )
        if (bad := np.flatnonzero(given.lengths != self.keys.lengths)).size:
            i = int(bad[0])
            raise ValueError(
                f"{name}: one row a key is needed, and sequence {i} has {self.keys.lengths[i]} "
                f"keys, got {given.lengths[i]} rows"
            )

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.keys)

    @property
    def symmetric(self) -> bool:
        """Whether values are the keys, so that M is symmetric."""
        return self.values is None

    @property
    def d_k(self) -> int:
        """Number of coordinates of a key, once it is mapped."""
        return self.keys.d if self.key_map is None else self.key_map.width

    @property
    def d_v(self) -> int:
        """Number of coordinates of a value, once it is mapped."""
        if self.values is None:
            return self.d_k
        return self.values.d if self.value_map is None else self.value_map.width

    @property
    def d_q(self) -> int:
        """Number of coordinates of a query, once it is mapped."""
        if self.query_map is not None:
            return self.query_map.width
        if isinstance(self.queries, Tokens):
            return self.queries.d
        return int(self.queries.shape[-1])

    def __repr__(self) -> str:
        kind = "symmetric " if self.symmetric else ""
        size = f"{kind}memory {self.d_v} x {self.d_k}, query {self.d_q}"
        return f"Streams({len(self)} sequences, {size})"

    def part(self, first: int, last: int) -> Streams:
        """Take sequences first, .., last - 1; nothing is copied.

        Parameters
        ----------
        first, last
            Numbers of the first sequence, and of the one after the last.

        Returns
        -------
        Streams
            These sequences alone.
        """
        made = Streams.__new__(Streams)
        ends = np.concatenate([[0], np.cumsum(self.keys.lengths)])
        rows = slice(int(ends[first]), int(ends[last]))
        queries: Tokens | Array
        if isinstance(self.queries, Tokens):
            queries = self.queries.part(first, last)
        elif len(self.queries) == len(self):
            queries = self.queries[first:last]
        else:  # rows one after the other, as those of the keys
            queries = self.queries[rows]
        scale = self.scale
        if isinstance(scale, tuple) or (
            not isinstance(scale, str | None) and len(scale) == len(self)
        ):
            scale = scale[first:last]
        elif not isinstance(scale, str | None):
            scale = scale[rows]
        vars(made).update(
            keys=self.keys.part(first, last),
            values=None if self.values is None else self.values.part(first, last),
            queries=queries,
            kept=None if self.kept is None else self.kept[rows],
            gates=None if self.gates is None else self.gates[rows],
            scale=scale,
            attend_self=self.attend_self,
            of_tokens=self.of_tokens,
            first=self.first + first,
            key_map=self.key_map,
            query_map=self.query_map,
            value_map=self.value_map,
        )
        return made

    # ------------------------------------------------------------------------------- as states

    def states(self, positions: Positions) -> StreamStates:
        """The queries that exist, each with what it attends to.

        Parameters
        ----------
        positions
            Which keys a query attends to, checked already.
        """
        queries = self._asked(positions)
        keys, values, gates = self.keys, self.values, self.gates
        if self.kept is not None:
            keys = only(keys, self.kept)
            values = None if values is None else only(values, self.kept)
            gates = None if gates is None else gates[self.kept]
        if self.key_map is not None:
            keys = self.key_map.of(keys, self.first)
        if self.value_map is not None and values is not None:
            values = self.value_map.of(values, self.first)
        counts = keys.lengths
        sequence = queries.sequences()
        if len(sequence) == 0:
            raise ValueError("mask: at least one query must exist, and all are masked")
        if positions == "causal":
            place = np.arange(len(sequence)) - queries.starts()[sequence]
            seen = place + (1 if self.attend_self else 0)
        else:
            seen = counts[sequence] - (0 if self.attend_self else 1)
        c = queries.rows if self.query_map is None else self.query_map.of_queries(queries.rows)
        factor = self._factor(queries, keys, gates, sequence, seen)
        if factor is not None:
            c = c.astype(np.float64, copy=False) * factor[:, None]
        most = int(seen.max(initial=0))
        return StreamStates(
            keys, values, gates, sequence, seen, c, queries, self._roundings(gates, most)
        )

    def has_queries(self, positions: Positions) -> bool:
        """Whether any query exists."""
        return len(self._asked(positions).rows) > 0

    def _asked(self, positions: Positions) -> QueryRows:
        """The queries that exist, one row each."""
        if (
            positions != "causal"
            and not self.attend_self
            and not (self.of_tokens and positions == "last")
        ):
            raise ValueError(
                "attend_self: a query that does not see itself needs positions='causal', got "
                f"{positions!r}"
            )
        return rows_of(self.queries, self.keys, self.kept, positions, of_tokens=self.of_tokens)

    def _roundings(self, gates: Floats | None, seen: int) -> int:
        """Number of roundings of M[j,k] and of the query together, where so many keys are seen.

        Each key is one product and one addition, of which the first is none, and one more product
        with a gate. A factor is one product; that of a mean is a quotient, of a sum of gates.
        """
        of_sums = seen if gates is None else 2 * seen
        if self.scale is None:
            return of_sums
        if not isinstance(self.scale, str):
            return of_sums + 1
        return of_sums + 2 + (0 if gates is None else of_sums)

    def _factor(
        self,
        queries: QueryRows,
        keys: Tokens,
        gates: Floats | None,
        sequence: npt.NDArray[np.intp],
        seen: npt.NDArray[np.int64],
    ) -> Floats | None:
        """What each query is multiplied with, (queries,); None for 1."""
        if self.scale is None:
            return None
        if not isinstance(self.scale, str):
            return one_a_query(self.scale, queries, "scale")
        if (seen == 0).any():
            i = int(sequence[np.argmin(seen)])
            raise ValueError(
                f"scale: 'mean' divides by the number of keys seen, and a query of sequence {i} "
                "sees none; leave the query out, or give factors, one a query"
            )
        if gates is None:
            return 1.0 / seen
        return 1.0 / gate_sums(keys, gates, sequence, seen)


def gate_sums(
    keys: Tokens, gates: Floats, sequence: npt.NDArray[np.intp], seen: npt.NDArray[np.int64]
) -> Floats:
    """D of each query, (queries,): the sum D_t = g_t D_(t-1) + 1 over the keys that it sees."""
    lengths = keys.lengths
    starts = np.cumsum(lengths) - lengths
    sums = np.empty(len(gates))
    running = np.zeros(len(lengths))
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max())
    alive = len(order)
    for t in range(longest):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        here = order[:alive]
        running[here] = gates[starts[here] + t] * running[here] + 1.0
        sums[starts[here] + t] = running[here]
    return np.asarray(sums[starts[sequence] + seen - 1])


def _same_memory(one: Tokens, other: Tokens) -> bool:
    """Whether two batches are the same arrays, of one library or another."""
    if len(one.arrays) != len(other.arrays):
        return False
    return all(
        isinstance(a, np.ndarray)
        and a.__array_interface__["data"] == b.__array_interface__["data"]
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
        for a, b in zip(one.arrays, other.arrays, strict=True)
    )


def _as_scale(scale: object) -> Literal["mean"] | Array | tuple[Array, ...] | None:
    """Check the form of a scale; how many factors are needed is known with the positions."""
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale != "mean":
            raise ValueError(f"scale: None, 'mean' or an array is needed, got {scale!r}")
        return "mean"
    if isinstance(scale, list | tuple) and len(scale) > 0 and np.ndim(scale[0]) == 1:
        return tuple(to_host(as_floats(one, f"scale[{i}]")) for i, one in enumerate(scale))
    given = as_array(scale, "scale")
    if given.ndim == 0:
        raise ValueError(
            "scale: None, 'mean' or an array, one factor a query, is needed; got a number"
        )
    return to_host(as_floats(scale, "scale"))
