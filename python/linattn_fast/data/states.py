"""States: what a query attends to, given as it is, in the place of tokens that it is summed from.

A state is a memory s (q numbers) with a query c (d_q numbers), and its features are s_u c_l. The
memory may be a matrix M (d_v, d_k), s its entries row by row, so that M[j,k] c[l] is feature
(j d_k + k) d_q + l; or a symmetric one, of which only the pairs j <= k count, ordered as in S.

A state is also a sequence of one token,

    x = (1, s, c)    whose S = x x' has S[0, 1 + u] = 1 s_u,    so h = S[0, 1 + u] x[1 + q + l]

without a rounding. So whatever is true of chosen features of tokens is true of states, and whatever
is written for tokens works on states (``sequence``, ``storage`` and ``rows`` are these tokens).
What reads much data reads ``entries`` and ``query`` where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from ..arrays.device import device_of, module_of, put
from ..arrays.floats import as_floats
from ..arrays.types import Array, Floats, Numbers, Positions
from .tokens import Tokens

_NUMBERS_AT_ONCE = 1 << 17
"""Numbers of the memory that are looked at together: they stay in the cache."""


class StateShape(NamedTuple):
    """What states look like, however many there are."""

    memory: tuple[int, ...]
    """(q,), or (d_v, d_k)."""
    query: int
    """Number of coordinates of a query, d_q."""
    symmetric: bool = False
    """Whether only the pairs j <= k of a matrix (d, d) count."""

    @property
    def entries(self) -> int:
        """Number q of entries of the memory that count."""
        d = self.memory[0]
        return d * (d + 1) // 2 if self.symmetric else prod(self.memory)

    @property
    def matrix(self) -> tuple[int, int]:
        """The memory as a matrix (d_v, d_k): one without that form is a column, (q, 1)."""
        return (self.memory[0], 1) if len(self.memory) == 1 else (self.memory[0], self.memory[1])

    @property
    def width(self) -> int:
        """Number of coordinates of a state as a token, 1 + q + d_q."""
        return 1 + self.entries + self.query

    def __str__(self) -> str:
        """Say it in words, as messages do."""
        size = " x ".join(map(str, self.memory))
        kind = "symmetric " if self.symmetric else ""
        return f"{kind}memory {size}, query {self.query}"


class States(Tokens):
    """States of a linear attention layer, in the place of tokens.

    Parameters
    ----------
    memory
        (N, d_v, d_k): the matrix M of each state, in y = sum_h V_h M Q_h c. Or (N, q): rows of any
        meaning, with features memory[u] query[l].
    query
        (N, d_q): the query c of each state.
    symmetric
        Whether the matrices, (N, d, d), are symmetric; then only the entries j <= k are used, and
        features and their order are those of tokens. Entries that differ from their mirror image by
        more than rounding are an error.

    Notes
    -----
    Arrays are used as they lie in memory, float32 or float64, with any strides. There is one target
    row a state, and ``positions`` are "last".

    A sequence of tokens has the state ``States((Z.transpose(0, 2, 1) @ Z), Z[:, -1],
    symmetric=True)``, with the same features. With keys, values and gates, whatever M is summed
    from them makes a state, and so do sufficient statistics that are drawn without any tokens.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 4, 6)))
    >>> M, c = rng.standard_normal((500, 5, 4)), rng.standard_normal((500, 6))
    >>> states = la.States(M, c)
    >>> fit = la.fit(states, truth(states))
    >>> fit.certificate.verdict, len(fit.heads)
    ('identifiable', 2)
    """

    memory: Array
    """The memory of each state, (N, q) or (N, d_v, d_k)."""
    query: Array
    """The query of each state, (N, d_q)."""
    symmetric: bool
    """Whether only the entries j <= k of the memory are used."""
    are_tokens = False
    summed = False
    """Whether the memory is summed from keys and values, which may cancel."""

    def __init__(self, memory: object, query: object, *, symmetric: bool = False) -> None:
        M = as_floats(memory, "memory")
        c = put(as_floats(query, "query"), like=M)
        if M.ndim not in (2, 3):
            raise ValueError(
                f"memory: an array (N, d_v, d_k) or (N, q) is needed, got shape {M.shape}"
            )
        if 0 in M.shape:
            raise ValueError(f"memory: at least one state is needed, got shape {M.shape}")
        if c.ndim != 2 or len(c) != len(M) or c.shape[1] == 0:
            raise ValueError(
                f"query: one row a state is needed, shape ({len(M)}, d_q), got {c.shape}"
            )
        if not isinstance(symmetric, bool | np.bool_):
            raise TypeError(f"symmetric: True or False is needed, got {symmetric!r}")
        if symmetric:
            _require_symmetric(M)
        self._set(M, c, bool(symmetric))

    def _set(self, memory: Array, query: Array, symmetric: bool) -> None:
        # Past the guard of a frozen class; storage, which is made on demand, has no field here
        vars(self).update(
            memory=memory, query=query, symmetric=symmetric, offsets=None, scalar=False
        )

    def _with(self, memory: Array, query: Array) -> States:
        """States of this kind with other arrays, which are known to be right."""
        made = States.__new__(States)
        made._set(memory, query, self.symmetric)
        return made

    @property
    def kind(self) -> StateShape:
        """What each state looks like."""
        return StateShape(self.memory.shape[1:], int(self.query.shape[1]), self.symmetric)

    def __repr__(self) -> str:
        return f"States({len(self)} states, {self.kind})"

    def __reduce__(self) -> tuple[Callable[..., States], tuple[object, ...]]:
        """Pickle the arrays; tokens made of them are made again where they are needed."""
        return _known_states, (self.memory, self.query, self.symmetric)

    # ------------------------------------------------------------------------------- the factors

    def entries(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The factor s of each state, (N, q), or some of its columns, in float64."""
        M = self.memory
        rows: Array
        if self.symmetric:
            xp = module_of(M)
            j, k = (xp.asarray(index[chosen]) for index in np.triu_indices(M.shape[1]))
            rows = M[:, j, k]
        else:
            rows = M.reshape(len(M), -1)[:, chosen]
        return rows.astype(np.float64, copy=False)

    def pieces(self, numbers: int = _NUMBERS_AT_ONCE) -> Iterator[tuple[slice, States]]:
        """Yield states with about so many numbers in their memories, and where they are."""
        step = max(1, numbers // max(1, self.memory[:1].size))
        for first in range(0, len(self), step):
            where = slice(first, min(first + step, len(self)))
            yield where, self.part(where.start, where.stop)

    # -------------------------------------------------------------------- as sequences of a token

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.memory)

    def _as_tokens(self) -> Array:
        """The tokens x = (1, s, c), (N, 1, 1 + q + d_q)."""
        s = self.entries()
        xp = module_of(s)
        x: Array = xp.empty((len(s), 1, self.d))
        x[:, 0, 0] = 1.0
        x[:, 0, 1 : 1 + s.shape[1]] = s
        x[:, 0, 1 + s.shape[1] :] = self.query
        return x

    @property
    def storage(self) -> Array:
        """The states as tokens, (N, 1, 1 + q + d_q); made anew whenever they are asked for."""
        return self._as_tokens()

    def sequence(self, i: int) -> Array:
        """State i as a sequence of one token, (1, 1 + q + d_q)."""
        token: Array = self.part(i, i + 1)._as_tokens()[0]
        return token

    def rows(self) -> Array:
        """The states as tokens, (N, 1 + q + d_q)."""
        return self._as_tokens()[:, 0]

    def part(self, first: int, last: int) -> States:
        """States first, .., last - 1; nothing is copied."""
        return self._with(self.memory[first:last], self.query[first:last])

    def every(self, step: int) -> States:
        """Every so many-th state, from the first on; nothing is copied."""
        return self._with(self.memory[::step], self.query[::step])

    def chosen(self, numbers: Numbers) -> States:
        """Copies of the states with these numbers."""
        return self._with(self.memory[numbers], self.query[numbers])

    kept = chosen

    def mapped(self, of: Callable[[Array], Array]) -> States:
        """Put another number in the place of each; the constant stays 1."""
        return self._with(of(self.memory), of(self.query))

    def put(self, like: object) -> States:
        """Put the states on the device of ``like``; no copy if they are there already."""
        if device_of(like) == self.device:
            return self
        return self._with(put(self.memory, like), put(self.query, like))

    @property
    def d(self) -> int:
        """Number of coordinates of a state as a token."""
        return self.kind.width

    @property
    def device(self) -> int | None:
        """The CUDA device that the memory is on; None for the host."""
        return device_of(self.memory)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The memory and the query, with everything that was given."""
        return self.memory, self.query

    def asked(self, positions: Positions) -> Positions:
        """Positions as sums over samples take them: a state has one query."""
        return "last"

    @property
    def lengths(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Number of tokens in each sequence: one."""
        return np.ones(len(self), dtype=np.int64)

    @property
    def longest(self) -> int:
        """Number of roundings of S: none, since nothing is summed."""
        return 0

    @property
    def beginnings(self) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
        """A number for each state; all differ."""
        return np.arange(len(self))

    @property
    def n_rows(self) -> int:
        """Number of states."""
        return len(self)


def _known_states(memory: Array, query: Array, symmetric: bool) -> States:
    """States of arrays that have been checked before; out of a socket they need not be aligned."""
    made = States.__new__(States)
    made._set(as_floats(memory, "memory"), as_floats(query, "query"), symmetric)
    return made


def joined_states(parts: list[States]) -> States:
    """All states of several batches of one shape, copied into one."""
    xp = module_of(parts[0].memory)
    memory, query = (
        xp.concatenate([getattr(part, name) for part in parts]) for name in ("memory", "query")
    )
    return _known_states(memory, query, parts[0].symmetric)


def _require_symmetric(memory: Array) -> None:
    """Raise where matrices differ from their transposes by more than rounding."""
    if memory.ndim != 3 or memory.shape[1] != memory.shape[2]:
        raise ValueError(
            f"memory: symmetric=True needs square matrices, (N, d, d), got shape {memory.shape}"
        )
    # What sums in another order may differ by, and far less than another matrix would
    tolerance = float(np.sqrt(np.finfo(memory.dtype).eps))
    xp, step = module_of(memory), max(1, _NUMBERS_AT_ONCE // memory[0].size)
    for first in range(0, len(memory), step):
        some = memory[first : first + step]
        apart = xp.abs(some - some.transpose(0, 2, 1)).max(axis=(1, 2))
        wrong = apart > tolerance * xp.abs(some).max(axis=(1, 2))  # false for NaN, found later
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(
                "symmetric: the memory must be symmetric, and that of state "
                f"{first + i} differs from its transpose by {float(apart[i]):.3g}"
            )


def require_last(tokens: Tokens, positions: Positions) -> None:
    """Raise where every token of a sequence is to query, and the data is states as they are."""
    if isinstance(tokens, States) and not tokens.summed and positions != "last":
        raise ValueError(
            f"positions: a state has one query, so 'last' is needed, got {positions!r}"
        )
