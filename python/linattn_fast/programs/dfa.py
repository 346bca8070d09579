"""Automata: one layer that simulates every one with given numbers of states and symbols.

The context holds the transition table and a word; the layer appends the history, two tokens for
each letter:

    table    key (state, symbol), next state        one for each key
    word     position, letter                       one for each position
    history  state (position, state)                asks the word for the letter at its position
             reading (position, state, letter)      asks the table for the next state

With the position in every history token, nothing is ever found twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from ..datasets import Seed, _generator
from ..floats import as_array
from ..tokens import as_size
from .lookup import Lookup
from .program import Program, Run
from .record import Record, Token


class Automaton:
    """A deterministic finite automaton.

    Parameters
    ----------
    table
        Next state of each state and symbol, (n_states, n_symbols) of whole numbers.
    accepting
        Accepting states.

    Notes
    -----
    It starts in state 0. ``print`` shows its table.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> parity = programs.Automaton([[0, 1], [1, 0]], accepting=[0])
    >>> parity.run([1, 0, 1]), parity.accepts([1, 0, 1])
    ([0, 1, 1, 0], True)
    """

    def __init__(self, table: object, accepting: Iterable[int] = ()) -> None:
        array = as_array(table, "table")
        if array.ndim != 2 or array.size == 0:
            raise ValueError(
                f"table: an array (n_states, n_symbols) is needed, got shape {array.shape}"
            )
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= len(array):
            raise ValueError(f"table: states from 0 to {len(array) - 1} are needed, got {table!r}")
        self.table = array.astype(np.intp)
        self.table.setflags(write=False)
        self.accepting = frozenset(accepting)
        for state in self.accepting:
            if state not in range(len(array)):
                raise ValueError(
                    f"accepting: states from 0 to {len(array) - 1} are needed, got {state!r}"
                )

    @classmethod
    def random(cls, n_states: int, n_symbols: int, seed: Seed = None) -> Automaton:
        """Draw a table uniformly.

        Parameters
        ----------
        n_states, n_symbols
            Its shape.
        seed
            A number or numpy's generator.

        Returns
        -------
        Automaton
            No state is accepting.
        """
        shape = as_size(n_states, "n_states"), as_size(n_symbols, "n_symbols")
        return cls(_generator(seed).integers(shape[0], size=shape))

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.table.shape[0])

    @property
    def n_symbols(self) -> int:
        """Number of symbols."""
        return int(self.table.shape[1])

    def run(self, word: Sequence[int]) -> list[int]:
        """Run it in plain Python.

        Parameters
        ----------
        word
            Numbers of symbols.

        Returns
        -------
        list of int
            States before the first letter and after each one.
        """
        states = [0]
        for letter in word:
            states.append(int(self.table[states[-1], letter]))
        return states

    def accepts(self, word: Sequence[int]) -> bool:
        """Whether it ends in an accepting state.

        Parameters
        ----------
        word
            Numbers of symbols.

        Returns
        -------
        bool
            Of its last state.
        """
        return self.run(word)[-1] in self.accepting

    def __repr__(self) -> str:
        return f"Automaton({self.n_states} states, {self.n_symbols} symbols)"

    def __str__(self) -> str:
        width = len(str(max(self.table.shape))) + 2
        cells = "".join(f"{symbol:>{width}}" for symbol in range(self.n_symbols))
        rows = [f"state |{cells}", "------+" + "-" * len(cells)]
        for state, row in enumerate(self.table):
            mark = "*" if state in self.accepting else " "
            rows.append(f"{state:>4}{mark} |" + "".join(f"{each:>{width}}" for each in row))
        return "\n".join(rows)


class DfaSimulator(Program):
    """A program that simulates every automaton of a size on every word of a length.

    Parameters
    ----------
    n_states, n_symbols, length
        States and symbols of the automata, letters of the words.

    Notes
    -----
    d = 3 n_states n_symbols .. see the layout above; a step is a letter, two tokens. Compiled, it
    has length * (n_states + 1) heads.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> simulator = programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    >>> parity = programs.Automaton([[0, 1], [1, 0]])
    >>> run = simulator.run(simulator.heads(), simulator.context(parity, [1, 0, 1]), steps=3)
    >>> simulator.states(run)
    [0, 1, 1, 0]
    """

    def __init__(self, n_states: int, n_symbols: int, length: int) -> None:
        Q, A = as_size(n_states, "n_states"), as_size(n_symbols, "n_symbols")
        L = as_size(length, "length")
        self.n_states, self.n_symbols, self.length = Q, A, L
        record = Record(
            key=(Q, A), next=Q, position=L, letter=A, state=(L + 1, Q), reading=(L, Q, A)
        )
        read = Lookup(
            query="state",
            key="position",
            value="letter",
            into="reading",
            match=lambda at: at[0] if at[0] < L else None,  # the word is over
            write=lambda at, letter: (*at, letter),
        )
        step = Lookup(
            query="reading",
            key="key",
            value="next",
            into="state",
            match=lambda reading: reading[1:],
            write=lambda reading, state: (reading[0] + 1, state),
        )
        table = [
            [self._entry(key, state) for state in range(Q)]
            for key in itertools.product(range(Q), range(A))
        ]
        word = [[self._letter(at, letter) for letter in range(A)] for at in range(L)]
        slots = [*table, *word, [self._start()]]
        super().__init__(record, [read, step], slots=slots, tokens_per_step=2)

    @staticmethod
    def _entry(key: tuple[int, ...], state: int) -> Token:
        return {"key": key, "next": state}

    @staticmethod
    def _letter(position: int, letter: int) -> Token:
        return {"position": position, "letter": letter}

    @staticmethod
    def _start() -> Token:
        return {"state": (0, 0)}

    @property
    def description(self) -> str:
        """What certificates call it."""
        return (
            f"DfaSimulator(n_states={self.n_states}, n_symbols={self.n_symbols}, "
            f"length={self.length})"
        )

    def context(self, automaton: Automaton, word: Sequence[int]) -> list[Token]:
        """The tokens of an automaton and a word.

        Parameters
        ----------
        automaton
            With the simulator's numbers of states and symbols.
        word
            Numbers of symbols, ``length`` of them.

        Returns
        -------
        list
            Tokens: the table, the word, and the start.
        """
        if not isinstance(automaton, Automaton):
            raise TypeError(f"automaton: an Automaton is needed, got {type(automaton).__name__}")
        if automaton.table.shape != (self.n_states, self.n_symbols):
            raise ValueError(
                f"automaton: {self.n_states} states and {self.n_symbols} symbols are needed, "
                f"got {automaton!r}"
            )
        if len(word) != self.length:
            raise ValueError(f"word: {self.length} letters are needed, got {len(word)}")
        table = [
            self._entry((state, symbol), int(after))
            for (state, symbol), after in np.ndenumerate(automaton.table)
        ]
        return [*table, *(self._letter(t, a) for t, a in enumerate(word)), self._start()]

    def states(self, run: Run) -> list[int]:
        """The states that a run went through.

        Parameters
        ----------
        run
            A run of this program, by any layer.

        Returns
        -------
        list of int
            Before the first letter and after each one.

        Raises
        ------
        ValueError
            The layer wrote something else than states.
        """
        tokens = self.record.token(run.context[-1]), *self.decode(run.appended)[1::2]
        states = []
        for number, token in enumerate(tokens):
            at = token.get("state")
            if not isinstance(at, tuple) or at[0] != number:
                raise ValueError(f"run: token {number} of the history is no state, but {token}")
            states.append(at[1])
        return states
