"""Programs: lookups over a record's attributes, compiled to heads and run.

The next token is the sum of what all lookups write. Compiled, a lookup becomes one head for each
set of queries that write alike:

    V_h[write(v), v] = weight        Q_h[match(q), q] = 1        y = sum_h V_h S Q_h z
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...arrays.floats import as_array
from ...arrays.types import Floats
from ...fitting.result import Fit
from ...heads.heads import Heads
from ...system.arguments import as_size
from ...system.machine import require_memory, same_bits
from ...system.seeds import Seed
from ..running.appending import run_many, run_one
from ..running.layer import Indices, Layer
from .family import Family
from .lookup import Lookup, Table
from .record import Record, Token, Value
from .run import Run

Decoded: TypeAlias = "dict[str, Value | dict[Value, float]]"
Context: TypeAlias = "Sequence[Token] | Floats"
"""Tokens as dictionaries, or encoded as an array (n, d)."""


class Program:
    """A program of lookups.

    Parameters
    ----------
    record
        The layout of the tokens.
    instructions
        Lookups; what they write is added up.
    slots
        The contexts it is meant for, as alternatives for each token (:class:`Family`). Needed for
        random traces and certificates, not for running.
    tokens_per_step
        Tokens that one step appends.

    Examples
    --------
    A counter modulo 3: the token after ``digit`` d has the digit d + 1, found by asking the start.

    >>> from linattn_fast import programs
    >>> record = programs.Record(digit=3, start=1)
    >>> count = programs.if_then("digit", lambda d: (d + 1) % 3, "digit", anchor=("start", 0))
    >>> program = programs.Program(record, [count])
    >>> run = program.run(program.heads(), [{"start": 0, "digit": 0}], steps=4)
    >>> [token["digit"] for token in program.decode(run.appended)]
    [1, 2, 0, 1]
    """

    def __init__(
        self,
        record: Record,
        instructions: Sequence[Lookup],
        *,
        slots: Sequence[Sequence[Token]] | None = None,
        tokens_per_step: int = 1,
    ) -> None:
        if not isinstance(record, Record):
            raise TypeError(f"record: a Record is needed, got {type(record).__name__}")
        if not isinstance(instructions, Sequence):
            kind = type(instructions).__name__
            raise TypeError(f"instructions: a list of Lookups is needed, got {kind}")
        self.record = record
        self.instructions = tuple(instructions)
        if not self.instructions:
            raise ValueError("instructions: at least one is needed, got none")
        for each in self.instructions:
            if not isinstance(each, Lookup):
                raise TypeError(f"instructions: Lookups are needed, got {type(each).__name__}")
        self.tables = tuple(self._table(i) for i in range(len(self.instructions)))
        """The instructions in coordinates."""
        self.tokens_per_step = as_size(tokens_per_step, "tokens_per_step")
        self._family = None if slots is None else Family(record, slots)

    def _table(self, number: int) -> Table:
        """An instruction in coordinates; errors say which instruction it is."""
        try:
            return Table.of(self.instructions[number], self.record)
        except (TypeError, ValueError) as error:
            raise type(error)(f"instructions[{number}]: {error}") from error

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return self.record.d

    @property
    def description(self) -> str:
        """What certificates call it."""
        return f"{type(self).__name__}(d={self.d}, {len(self.instructions)} instructions)"

    def __repr__(self) -> str:
        return self.description

    @property
    def family(self) -> Family:
        """The contexts it is meant for."""
        if self._family is None:
            raise ValueError(
                "slots: this program was made without its contexts; give Program(slots=..) the "
                "alternatives for each token of a context"
            )
        return self._family

    # ----------------------------------------------------------------------------------- as a layer

    @cached_property
    def entries(self) -> tuple[Indices, Indices, Indices, Indices, Floats]:
        """The layer entry by entry, y[out] += weight S[j,k] z[l]: out, j, k, l and weight."""
        rows = [
            (out, j, table.keys[l], l, weight)
            for table in self.tables
            for l, values in table.writes.items()
            for j, written in values.items()
            for out, weight in written
        ]
        columns = np.array(rows or np.zeros((0, 5))).T
        out, j, k, l = columns[:4].astype(np.intp)
        return out, j, k, l, columns[4]

    @same_bits
    def heads(self) -> Heads:
        """Compile the program.

        Returns
        -------
        Heads
            Heads (V_h, Q_h) that compute its next token.
        """
        groups = []
        for table in self.tables:
            alike: dict[tuple[tuple[int, tuple[tuple[int, float], ...]], ...], list[int]] = {}
            for l, values in table.writes.items():
                alike.setdefault(tuple(values.items()), []).append(l)
            groups += [(table, written, queries) for written, queries in alike.items()]
        H = max(1, len(groups))
        require_memory(4 * 8 * H * self.d**2, f"heads: {H} heads of d = {self.d}")
        V, Q = np.zeros((H, self.d, self.d)), np.zeros((H, self.d, self.d))
        for h, (table, written, queries) in enumerate(groups):
            for j, outputs in written:
                for out, weight in outputs:
                    V[h, out, j] += weight
            for l in queries:
                Q[h, table.keys[l], l] = 1.0
        return Heads(V, Q)

    @cached_property
    def layer(self) -> Layer:
        """The program itself, ready to run, without heads being formed."""
        return Layer.of_entries(self.d, *self.entries)

    def interpret(self, tokens: Sequence[Token]) -> dict[str, dict[Value, float]]:
        """The next token in plain Python, with no linear algebra: what the heads must compute.

        Parameters
        ----------
        tokens
            All tokens so far; the last one asks.

        Returns
        -------
        dict
            Attribute to value to weight, of what is not zero.
        """
        records = [self.record.weights(z) for z in self._encoded(tokens, "tokens")]
        sums = np.zeros(self.d)
        for lookup in self.instructions:
            for asked, amount in records[-1].get(lookup.query, {}).items():
                match = lookup.match(asked)
                wanted = tuple(match) if isinstance(match, list) else match
                for each in records:
                    found = 0.0 if wanted is None else each.get(lookup.key, {}).get(wanted, 0.0)
                    for value, weight in each.get(lookup.value, {}).items():
                        written = self.record.vector(lookup.written(asked, value))
                        sums += amount * found * weight * written
        return self.record.weights(sums)

    # -------------------------------------------------------------------------------------- running

    def encode(self, context: Context) -> Floats:
        """Encode tokens as an array.

        Parameters
        ----------
        context
            Tokens; an array (n, d) is checked.

        Returns
        -------
        array (n, d)
            The tokens in float64.

        Raises
        ------
        ValueError
            There is no token, one does not fit the record, or an array has another d or is not
            finite.
        """
        return self._encoded(context, "context")

    def _encoded(self, context: Context, name: str) -> Floats:
        """Tokens as an array (n, d); ``name`` of the argument, for errors."""
        if isinstance(context, np.ndarray):
            Z = np.asarray(as_array(context, name), dtype=np.float64)
            if Z.ndim != 2 or Z.shape[1] != self.d or len(Z) == 0:
                raise ValueError(
                    f"{name}: an array (n, {self.d}) is needed, n > 0, got shape {Z.shape}"
                )
            if not np.isfinite(Z).all():
                raise ValueError(f"{name}: must be finite")
            return Z
        if not isinstance(context, Sequence):
            raise TypeError(
                f"{name}: a list of tokens or an array (n, {self.d}) is needed, "
                f"got {type(context).__name__}"
            )
        if len(context) == 0:
            raise ValueError(f"{name}: at least one token is needed, got none")
        Z = np.empty((len(context), self.d))
        for t, token in enumerate(context):
            try:
                Z[t] = self.record.vector(token)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}[{t}]: {error}") from None
        return Z

    def decode(self, tokens: object) -> list[Decoded]:
        """Decode the rows of an array as tokens.

        Parameters
        ----------
        tokens
            An array (n, d), or a :class:`Run`, whose context is decoded as well.

        Returns
        -------
        list
            A dictionary for each row, see :meth:`Record.token`.

        Raises
        ------
        ValueError
            A row is no token of the record.
        """
        Z = tokens.tokens if isinstance(tokens, Run) else as_array(tokens, "tokens")
        if Z.ndim != 2:
            raise ValueError(f"tokens: an array (n, {self.d}) is needed, got shape {Z.shape}")
        return [self.record.token(z) for z in Z]

    @same_bits
    def run(
        self,
        heads: Heads | Fit | Layer | Program | None,
        context: Context,
        steps: int,
        *,
        until: Callable[[Floats], bool] | None = None,
    ) -> Run:
        """Let a layer append tokens to a context, rounding each.

        Parameters
        ----------
        heads
            Compiled or learned: :class:`~linattn_fast.Heads`, a :class:`~linattn_fast.Fit` (its
            coefficients), or None for the program itself.
        context
            Tokens, or an array (n, d).
        steps
            Steps, at most; each appends ``tokens_per_step`` tokens. An output of zeros ends the
            run.
        until
            Function of a token (d,): the run ends after a token for which it is true.

        Returns
        -------
        Run
            The context and what was appended.
        """
        layer = self.layer if heads is None else Layer.of(heads, self.d)
        if until is not None and not callable(until):
            raise TypeError(f"until: a function is needed, got {type(until).__name__}")
        Z = self.encode(context)
        tokens = as_size(steps, "steps", least=0) * self.tokens_per_step
        require_memory(8 * (len(Z) + tokens) * self.d, f"steps: a run of {tokens} tokens")
        return Run(run_one(layer, Z, tokens, until), len(Z))

    @same_bits
    def trace(self, context: Context, steps: int) -> Run:
        """Run the program itself.

        Parameters
        ----------
        context
            Tokens, or an array (n, d).
        steps
            Steps, at most.

        Returns
        -------
        Run
            ``trace.pairs()`` are training pairs.
        """
        return self.run(self.layer, context, steps)

    @same_bits
    def traces(self, number: int, steps: int, seed: Seed = None) -> list[Run]:
        """Run the program on random contexts of its family.

        Parameters
        ----------
        number
            Runs.
        steps
            Steps of each, at most.
        seed
            Seed of the contexts, which are drawn uniformly.

        Returns
        -------
        list of Run
            Each as long as it lasted.
        """
        number = as_size(number, "number")
        tokens = as_size(steps, "steps") * self.tokens_per_step
        n = len(self.family.slots)
        each = 8 * ((2 * n + tokens) * self.d + len(self.layer.pairs))  # contexts, runs and s
        require_memory(number * each, f"number: {number} runs of {tokens} tokens")
        Z = self.family.sample(number, seed)
        runs = run_many(self.layer, Z, tokens)
        lengths = n + runs[:, n:].any(axis=2).cumprod(axis=1).sum(axis=1)
        return [Run(run[:length], n) for run, length in zip(runs, lengths, strict=True)]
