"""Turing machines: one layer that simulates every one with given numbers of states and symbols.

The context holds the machine's table, the tape and the head; the layer appends two tokens for each
step of the machine, and a token has the same d however many steps there are:

    table   key (state, symbol), action (next state, written symbol, move)
    tape    cell, symbol
    head    head (cell, state)                 asks the tape for the symbol in its cell
    reading (cell, state, symbol)              asks the table for what to do
    step    cell, +new -old symbol, head       the answer, which is the next head as well

The tape is a log of differences. Linear attention sums the symbols of all tokens with a cell, so a
step that says "+new -old" there makes the sum the present content: one symbol, because the old one
is what was just read. The tape is circular.

    d = cells + symbols + 3 states symbols + cells states (1 + symbols)
    heads = cells (states + symbols)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ...arrays.types import Floats
from ...fitting.result import Fit
from ...heads.heads import Heads
from ...system.arguments import as_size
from ...system.machine import same_bits
from ..language.lookup import Lookup
from ..language.record import Record, Token, Value, signed
from ..language.run import Run
from ..running.layer import Layer
from .simulator import Simulator
from .turing_machine import Computation, Configuration, TuringMachine


class TuringSimulator(Simulator):
    """A program that simulates every Turing machine of a size on every tape.

    Parameters
    ----------
    n_states, n_symbols, n_cells
        States and symbols of the machines, cells of the circular tape.

    Notes
    -----
    A machine with fewer states or symbols fits as well. Its halting states have table entries that
    leave the tape as it is and move on, so that every machine is one of the family;
    :meth:`execute` stops when it is in one of them.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> simulator = programs.TuringSimulator(n_states=3, n_symbols=3, n_cells=6)
    >>> simulator
    TuringSimulator(n_states=3, n_symbols=3, n_cells=6)
    >>> done = simulator.execute(programs.binary_increment(), "1011", at=1, steps=20)
    >>> done.text, done.halted, len(done)
    ('_1100_', True, 8)
    """

    def __init__(self, n_states: int, n_symbols: int, n_cells: int) -> None:
        Q, A = as_size(n_states, "n_states"), as_size(n_symbols, "n_symbols")
        n = as_size(n_cells, "n_cells")
        self.n_states, self.n_symbols, self.n_cells = Q, A, n
        record = Record(
            cell=n, symbol=signed(A), key=(Q, A), action=(Q, A, 2), head=(n, Q), reading=(n, Q, A)
        )
        read = Lookup(
            query="head",
            key="cell",
            value="symbol",
            into="reading",
            match=lambda head: head[0],
            write=lambda head, symbol: (*head, symbol),
        )
        step = Lookup(
            query="reading",
            key="key",
            value="action",
            match=lambda reading: reading[1:],
            write=self._step,
        )
        table = [
            [self._entry(key, action) for action in itertools.product(range(Q), range(A), range(2))]
            for key in itertools.product(range(Q), range(A))
        ]
        tape = [[self._symbol(cell, symbol) for symbol in range(A)] for cell in range(n)]
        starts: list[Token] = [{"head": at} for at in itertools.product(range(n), range(Q))]
        sizes = {"n_states": Q, "n_symbols": A, "n_cells": n}
        super().__init__(sizes, record, read=read, step=step, slots=[*table, *tape, starts])

    def _step(self, reading: tuple[int, int, int], action: tuple[int, int, int]) -> Token:
        """The token after a step: what changes in the cell, and where the head is next."""
        (cell, _, old), (state, new, move) = reading, action
        changes: dict[Value, float] = {} if new == old else {new: 1.0, old: -1.0}
        return {
            "cell": cell,
            "symbol": changes,
            "head": ((cell + (1 if move else -1)) % self.n_cells, state),
        }

    @staticmethod
    def _entry(key: tuple[int, ...], action: tuple[int, ...]) -> Token:
        return {"key": key, "action": action}

    @staticmethod
    def _symbol(cell: int, symbol: int) -> Token:
        return {"cell": cell, "symbol": symbol}

    def context(
        self,
        machine: TuringMachine,
        word: Sequence[object] = (),
        *,
        at: int = 0,
    ) -> list[Token]:
        """The tokens of a machine, of a tape with a word on it, and of the head.

        Parameters
        ----------
        machine
            One with at most the simulator's states and symbols.
        word
            Symbols of the machine, a string if they are letters; blanks everywhere else.
        at
            Cell of the word's first symbol, where the head starts.

        Returns
        -------
        list
            Tokens: the table, with entries for states that the machine does not have, the tape,
            and the head.
        """
        if not isinstance(machine, TuringMachine):
            raise TypeError(f"machine: a TuringMachine is needed, got {type(machine).__name__}")
        if machine.n_states > self.n_states or machine.n_symbols > self.n_symbols:
            raise ValueError(
                f"machine: at most {self.n_states} states and {self.n_symbols} symbols are needed, "
                f"got {machine!r}"
            )
        tape = machine.tape(word, self.n_cells, at=at)
        table: list[Token] = []
        for key in itertools.product(range(self.n_states), range(self.n_symbols)):
            # Where it has halted, or never is: the same state and symbol, to the right
            state, symbol, move = machine.numbers.get(key, (*key, 1))
            table.append(self._entry(key, (state, symbol, move)))
        cells = [self._symbol(cell, symbol) for cell, symbol in enumerate(tape)]
        head: Value = (at, machine.start)
        return [*table, *cells, {"head": head}]

    @same_bits
    def execute(
        self,
        machine: TuringMachine,
        word: Sequence[object] = (),
        *,
        at: int = 0,
        steps: int,
        heads: Heads | Fit | Layer | None = None,
    ) -> Computation:
        """Let a layer run a machine on a word until it halts.

        Parameters
        ----------
        machine, word, at
            As for :meth:`context`.
        steps
            Steps of the machine, at most.
        heads
            The layer, compiled or learned; None for the program itself.

        Returns
        -------
        Computation
            What the layer says the machine did.

        Raises
        ------
        ValueError
            As for :meth:`configurations`.
        """
        context = self.context(machine, word, at=at)
        halting = [
            self.record.coordinate("head", (cell, state))
            for state in machine.halting_numbers
            for cell in range(self.n_cells)
        ]

        def halted(z: Floats) -> bool:
            return bool(z[halting].any())

        steps = as_size(steps, "steps", least=0)
        begun = machine.start in machine.halting_numbers
        run = self.run(heads, context, 0 if begun else steps, until=halted)
        return Computation(machine, tuple(self.configurations(run)))

    @same_bits
    def configurations(self, run: Run) -> list[Configuration]:
        """State, head and tape during a run.

        Parameters
        ----------
        run
            Steps of a machine, by any layer.

        Returns
        -------
        list of Configuration
            Before the first step and after each one.

        Raises
        ------
        ValueError
            A token is no step: it has no head, or a cell would have no symbol or several.
        """
        tokens = self._after_steps(run)
        offset = self.record.starts["cell"], self.record.starts["symbol"]
        cells = slice(offset[0], offset[0] + self.n_cells)
        symbols = slice(offset[1], offset[1] + self.n_symbols)
        found = []
        tape = run.context[:-1, cells].T @ run.context[:-1, symbols]  # (n_cells, n_symbols)
        for number, z in enumerate(tokens):
            tape += np.outer(z[cells], z[symbols])
            head = self.record.token(z).get("head")
            if not isinstance(head, tuple) or not self._is_tape(tape):
                raise ValueError(
                    f"run: step {number} is none of a Turing machine: {self.record.weights(z)}"
                )
            found.append(Configuration(head[1], head[0], tuple(tape.argmax(axis=1).tolist())))
        return found

    @staticmethod
    def _is_tape(tape: Floats) -> bool:
        """Whether every cell has one symbol."""
        return bool(((tape == 0) | (tape == 1)).all() and (tape.sum(axis=1) == 1).all())
