"""States whose values are passed through: each row of a memory is a sample of one bilinear form.

With V = I the layer is one matrix B (d_k, d_q) for all outputs,

    y_j = sum_kl B[k,l] M[j,k] c[l]

so row j of M, the query c and the target y_j are a sample of a layer with one output. A state is
then a sequence of d_v tokens x_j = (1, m_j, c), every one of which is a sample (positions "all"),
with features m_j (x) c: p = d_k d_q unknowns.

The N d_v rows are never written out as a whole. What reads much data reads ``memory`` (N, d_v, d_k)
and ``query`` (N, d_q) where they are; everything else sees some states at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device import module_of
from ..arrays.floats import as_floats
from ..arrays.types import Array, Floats, Kind, Numbers, Positions
from .states import States, StateShape, known_states


class PassedStates(States):
    """States as sequences of the rows of their memories.

    Parameters
    ----------
    states
        N states with a memory (d_v, d_k); one that is not a matrix, (N, q), is a column.
    """

    of: States
    """The states whose rows these are, N of them."""

    def __init__(self, states: States) -> None:
        vars(self).update(of=states, offsets=None, scalar=False)  # past the guard of a frozen class

    @property
    def d_v(self) -> int:
        """Number of rows of each memory."""
        return self.of.kind.matrix[0]

    @property
    def kind(self) -> StateShape:
        """What each row looks like: a memory of d_k numbers."""
        whole = self.of.kind
        return StateShape((whole.matrix[1],), whole.query)

    @property
    def memory(self) -> Array:  # type: ignore[override]
        """The memory of each state, (N, d_v, d_k)."""
        memory: Array = self.of.memory.reshape(len(self), *self.of.kind.matrix)
        return memory

    @property
    def query(self) -> Array:  # type: ignore[override]
        """The query of each state, (N, d_q)."""
        return self.of.query

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether only pairs count: rows have none."""
        return False

    @property
    def summed(self) -> bool:  # type: ignore[override]
        """Whether the memory is summed from keys and values, which may cancel."""
        return self.of.summed

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.of)

    def __repr__(self) -> str:
        return f"{self.of!r}, values passed"

    def __reduce__(self) -> tuple[Callable[..., States], tuple[Any, ...]]:
        """Pickle the states."""
        return PassedStates, (self.of,)

    # ------------------------------------------------------------------------------- the factors

    def entries(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The rows m_j, (N d_v, d_k), or some of their columns, in float64."""
        rows: Array = self.memory.reshape(self.n_rows, -1)[:, chosen]
        return rows.astype(np.float64, copy=False)

    def coordinates(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The query of each row, (N d_v, d_q), or some of its coordinates, in float64."""
        some = self.of.coordinates(chosen)
        rows: Floats = module_of(some).repeat(some, self.d_v, axis=0)
        return rows

    def sizes(self) -> PassedStates:
        """The same rows of sums of absolute values."""
        return PassedStates(self.of.sizes())

    def presence(self) -> PassedStates:
        """The same rows of sums that are zero where nothing is summed."""
        return PassedStates(self.of.presence())

    # ---------------------------------------------------------------------------- as sequences

    def asked(self, positions: Positions) -> Positions:
        """Positions as sums over samples take them: every row is a sample."""
        return "all"

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of rows of each state, d_v."""
        return np.full(len(self), self.d_v, dtype=np.int64)

    @property
    def n_rows(self) -> int:
        """Number of rows of all states, N d_v."""
        return len(self) * self.d_v

    @property
    def longest(self) -> int:
        """Number of roundings of a memory and its query."""
        return self.of.longest

    @property
    def storage(self) -> Array:
        """The rows as tokens, (N, d_v, 1 + d_k + d_q); made anew whenever they are asked for."""
        tokens: Array = self._as_tokens().reshape(len(self), self.d_v, -1)
        return tokens

    def sequence(self, i: int) -> Array:
        """The rows of state i as tokens, (d_v, 1 + d_k + d_q)."""
        return self.part(i, i + 1).rows()

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Everything that was given."""
        return self.of.arrays

    @property
    def nbytes(self) -> int:
        """Number of bytes of it."""
        return self.of.nbytes

    @property
    def device(self) -> int | None:
        """The CUDA device that the states are on; None for the host."""
        return self.of.device

    def one_by_one(self) -> RowStates:
        """Every row as a state of its own."""
        return RowStates(self.of)

    # ------------------------------------------------------------------------------- some of them

    def pieces(self, numbers: int = 1 << 17) -> Iterator[tuple[slice, PassedStates]]:
        """Yield states with about so many numbers in their memories, and where their rows are."""
        d_v = self.d_v
        for where, some in self.of.pieces(numbers):
            yield slice(where.start * d_v, where.stop * d_v), PassedStates(some)

    def part(self, first: int, last: int) -> PassedStates:
        """States first, .., last - 1; nothing is copied."""
        return PassedStates(self.of.part(first, last))

    def every(self, step: int) -> PassedStates:
        """Every so many-th state, from the first on; nothing is copied."""
        return PassedStates(self.of.every(step))

    def chosen(self, numbers: Numbers) -> PassedStates:
        """The states with these numbers."""
        return PassedStates(self.of.chosen(numbers))

    kept = chosen

    def mapped(self, of: Callable[[Array], Array]) -> PassedStates:
        """Put another number in the place of each."""
        return PassedStates(self.of.mapped(of))

    def put(self, like: object) -> PassedStates:
        """Put the states on the device of ``like``; no copy if they are there already."""
        return PassedStates(self.of.put(like))

    # ---------------------------------------------------------------------- forms that users give

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """The form of what is given once a row: (N, d_v)."""
        return len(self), self.d_v

    def given_rows(self, given: object, name: str) -> object:
        """Targets in the form of the queries, as (N, d_v): one a row of each memory."""
        rows = as_floats(self.of.given_rows(given, name), name)
        if rows.shape != self.rows_shape:
            raise ValueError(
                'values: "passed" takes as many outputs as a memory has rows, so targets y of '
                f"shape {self.rows_shape} are needed, got {rows.shape}"
            )
        return rows

    def given_weights(self, sample_weight: object) -> object:
        """Weights as one for each state."""
        return self.of.given_weights(sample_weight)

    def by_output(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
        """Values of all rows, (N d_v,) or (N d_v, 1), by state and output, (N, d_v)."""
        return rows.reshape(len(self), self.d_v)

    def per_query(
        self, values: npt.NDArray[Kind], positions: Positions
    ) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Values of all rows, by output, in the form of the queries."""
        return self.of.per_query(self.by_output(values), self.of.asked(positions))

    def worst(
        self, values: npt.NDArray[Kind], positions: Positions, of: np.ufunc
    ) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """The worst value of each state, in the form of the queries: that of its worst row."""
        found = np.asarray(of.reduce(self.by_output(values), axis=1))
        return self.of.per_query(found, self.of.asked(positions))


class RowStates(PassedStates):
    """The same rows, each a state of its own: N d_v states of one sample, with memory m_j.

    Exact arithmetic looks at samples one by one, in this form.
    """

    def __len__(self) -> int:
        """Return the number of rows, N d_v."""
        return len(self.of) * self.d_v

    @property
    def memory(self) -> Array:  # type: ignore[override]
        """The rows, (N d_v, d_k)."""
        return self.entries()

    @property
    def query(self) -> Array:  # type: ignore[override]
        """The query of each row, (N d_v, d_q)."""
        return self.coordinates()

    def entries(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The rows m_j, (N d_v, d_k), or some of their columns, in float64."""
        return PassedStates(self.of).entries(chosen)

    def one_by_one(self) -> RowStates:
        """Return these rows, which are one by one already."""
        return self

    def asked(self, positions: Positions) -> Positions:
        """Positions as sums over samples take them: a row has one query."""
        return "last"

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens in each sequence: one."""
        return np.ones(len(self), dtype=np.int64)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self)

    @property
    def storage(self) -> Array:
        """The rows as tokens, (N d_v, 1, 1 + d_k + d_q)."""
        return self._as_tokens()

    def __reduce__(self) -> tuple[Callable[..., States], tuple[Any, ...]]:
        """Pickle the states."""
        return RowStates, (self.of,)

    def pieces(self, numbers: int = 1 << 17) -> Iterator[tuple[slice, RowStates]]:
        """Yield rows of states with about so many numbers, and where they are."""
        for where, some in super().pieces(numbers):
            yield where, RowStates(some.of)

    def part(self, first: int, last: int) -> States:  # type: ignore[override]
        """Rows first, .., last - 1; nothing is copied where they are those of whole states."""
        d_v = self.d_v
        if first % d_v == 0 and last % d_v == 0:
            return RowStates(self.of.part(first // d_v, last // d_v))
        return self.chosen(np.arange(first, last))

    def every(self, step: int) -> States:  # type: ignore[override]
        """Every so many-th row, copied."""
        return self.chosen(np.arange(0, len(self), step))

    def chosen(self, numbers: Numbers) -> States:  # type: ignore[override]
        """Copies of the rows with these numbers, each with its query."""
        i, j = np.divmod(numbers, self.d_v)
        states, place = np.unique(i, return_inverse=True)
        memory = PassedStates(self.of.chosen(states)).memory
        return known_states(memory[place, j], self.of.query[i], False)

    def kept(self, numbers: Numbers) -> States:  # type: ignore[override]
        """Copies of the rows with these numbers."""
        return self.chosen(numbers)

    def mapped(self, of: Callable[[Array], Array]) -> RowStates:
        """Put another number in the place of each."""
        return RowStates(self.of.mapped(of))

    def put(self, like: object) -> RowStates:
        """Put the rows on the device of ``like``; no copy if they are there already."""
        return RowStates(self.of.put(like))
