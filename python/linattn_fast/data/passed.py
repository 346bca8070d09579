"""States whose values are passed through: each row of a memory is a sample of one bilinear form.

With V = I the layer is one matrix B (d_k, d_q) for all outputs,

    y_j = sum_kl B[k,l] M[j,k] c[l]

so row j of M, the query c and the target y_j are a sample of a layer with one output. A memory of
d_v rows is d_v states m_j with the same query: N d_v states of memory d_k, one output, p = d_k d_q.

They are never written out as a whole. What reads much data reads ``memory`` (N, d_v, d_k) and
``query`` (N, d_q) where they are; everything else sees some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device import module_of
from ..arrays.types import Array, Floats, Kind, Numbers, Positions
from .states import States, StateShape, known_states

_NUMBERS_AT_ONCE = 1 << 17
"""Numbers of the memory that are looked at together: they stay in the cache."""


class PassedStates(States):
    """The rows of the memories of states, each a state of its own.

    Parameters
    ----------
    states
        N states with a memory (d_v, d_k); one that is not a matrix, (N, q), is a column.
    """

    def __init__(self, states: States) -> None:
        self._set(states.memory.reshape(len(states), *states.kind.matrix), states.query, False)

    def _with(self, memory: Array, query: Array) -> PassedStates:
        """Rows of other memories, which are known to be right."""
        made = PassedStates.__new__(PassedStates)
        made._set(memory, query, False)
        return made

    @property
    def kind(self) -> StateShape:
        """What each row looks like: a memory of d_k numbers."""
        return StateShape((int(self.memory.shape[2]),), int(self.query.shape[1]))

    @property
    def d_v(self) -> int:
        """Number of rows of each memory."""
        return int(self.memory.shape[1])

    @property
    def n_inputs(self) -> int:
        """Number of states, N, each of d_v samples."""
        return len(self.memory)

    def __len__(self) -> int:
        """Return the number of rows, N d_v."""
        return len(self.memory) * self.d_v

    def __repr__(self) -> str:
        return f"PassedStates({self.n_inputs} states of {self.d_v} rows, {self.kind})"

    def __reduce__(self) -> tuple[Callable[..., States], tuple[Any, ...]]:
        """Pickle the arrays."""
        return _known_passed, (self.memory, self.query)

    # ------------------------------------------------------------------------------- the factors

    def entries(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The rows m_j, (N d_v, d_k), or some of their columns, in float64."""
        rows: Array = self.memory.reshape(len(self), -1)[:, chosen]
        return rows.astype(np.float64, copy=False)

    def coordinates(self, chosen: Numbers | slice = slice(None)) -> Floats:
        """The query of each row, (N d_v, d_q), or some of its coordinates, in float64."""
        some = self.query[:, chosen].astype(np.float64, copy=False)
        rows: Floats = module_of(some).repeat(some, self.d_v, axis=0)
        return rows

    def pieces(self, numbers: int = _NUMBERS_AT_ONCE) -> Iterator[tuple[slice, PassedStates]]:
        """Yield whole states with about so many numbers in their memories, and where rows are."""
        step = max(1, numbers // max(1, self.memory[:1].size))
        for first in range(0, self.n_inputs, step):
            some = self._with(self.memory[first : first + step], self.query[first : first + step])
            start = first * self.d_v
            yield slice(start, start + len(some)), some

    # ------------------------------------------------------------------------------- some of them

    def part(self, first: int, last: int) -> States:
        """Rows first, .., last - 1; nothing is copied where they are those of whole states."""
        if first % self.d_v == 0 and last % self.d_v == 0:
            where = slice(first // self.d_v, last // self.d_v)
            return self._with(self.memory[where], self.query[where])
        return self.chosen(np.arange(first, last))

    def every(self, step: int) -> States:
        """Every so many-th row, copied."""
        return self.chosen(np.arange(0, len(self), step))

    def chosen(self, numbers: Numbers) -> States:
        """Copies of the rows with these numbers, each with its query."""
        i, j = np.divmod(numbers, self.d_v)
        return known_states(self.memory[i, j], self.query[i], False)

    def kept(self, numbers: Numbers) -> States:
        """Rows with these numbers; where they are those of whole states, these."""
        whole = np.unique(numbers // self.d_v)
        if len(whole) * self.d_v == len(numbers):
            return self._with(self.memory[whole], self.query[whole])
        return self.chosen(numbers)

    # ------------------------------------------------------- what belongs to a state, not to a row

    def target_rows(self, given: Array) -> Array:
        """Targets (N, d_v), one a row of the memory, as (N d_v, 1)."""
        N, d_v = self.n_inputs, self.d_v
        if given.shape != (N, d_v) and (d_v != 1 or given.shape != (N,)):
            raise ValueError(
                'values: "passed" takes as many outputs as a memory has rows, so targets y of '
                f"shape ({N}, {d_v}) are needed, got {given.shape}"
            )
        return given.reshape(N * d_v, 1)

    def weight_rows(self, weights: Floats | None) -> Floats | None:
        """Weights (N,) of the states, for each of their rows, (N d_v,)."""
        return None if weights is None else np.repeat(weights, self.d_v)

    def by_output(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
        """Outputs (N d_v, 1) as those of the states, (N, d_v)."""
        return rows.reshape(self.n_inputs, self.d_v)

    def per_query(self, values: npt.NDArray[Kind], positions: Positions) -> npt.NDArray[Kind]:
        """Values (N d_v,), one a row, as (N, d_v)."""
        return self.by_output(values)

    def worst(self, values: npt.NDArray[Kind], positions: Positions, of: np.ufunc) -> Array:
        """The worst value of each state, (N,): a state is as good as its worst row."""
        return np.asarray(of.reduce(self.by_output(values), axis=1))

    def as_predictions(self, rows: Floats, positions: Positions, scalar: bool) -> Floats:
        """Outputs (N d_v, 1) in the form of the targets: (N, d_v), or (N,) if ``scalar``."""
        return rows[:, 0] if scalar else self.by_output(rows)


def _known_passed(memory: Array, query: Array) -> PassedStates:
    """Rows of memories that have been checked before."""
    return PassedStates(known_states(memory, query, False))
