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

from ..arrays.floats import as_array
from ..datasets import Seed, _generator
from ..fitting.result import Fit
from ..heads.heads import Heads
from ..system.arguments import as_size
from ..system.machine import same_bits
from .layer import Layer
from .lookup import Lookup
from .program import Run
from .record import Record, Token
from .simulator import Simulator


def _letters(word: object, n_symbols: int) -> list[int]:
    """Check a word: numbers of symbols."""
    letters = as_array(word, "word")
    if letters.ndim == 1 and letters.size == 0:
        return []
    if letters.ndim != 1 or letters.dtype.kind not in "iu":
        raise ValueError(f"word: a list of whole numbers is needed, got {word!r}")
    if letters.min() < 0 or letters.max() >= n_symbols:
        raise ValueError(f"word: letters from 0 to {n_symbols - 1} are needed, got {word!r}")
    return [int(letter) for letter in letters]


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
        if not isinstance(accepting, Iterable):
            raise TypeError(f"accepting: a list of states is needed, got {accepting!r}")
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
        for letter in _letters(word, self.n_symbols):
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


class DfaSimulator(Simulator):
    """A program that simulates every automaton of a size on every word of a length.

    Parameters
    ----------
    n_states, n_symbols, length
        States and symbols of the automata, letters of the words.

    Notes
    -----
    A step is a letter, two tokens. A token has

        d = states symbols + states + length + symbols + (length + 1) states
            + length states symbols

    coordinates, and the compiled program length (states + 1) heads.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> simulator = programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    >>> parity = programs.Automaton([[0, 1], [1, 0]])
    >>> simulator.execute(parity, [1, 0, 1], heads=simulator.heads())
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
        sizes = {"n_states": Q, "n_symbols": A, "length": L}
        slots = [*table, *word, [self._start()]]
        super().__init__(sizes, record, read=read, step=step, slots=slots)

    @staticmethod
    def _entry(key: tuple[int, ...], state: int) -> Token:
        return {"key": key, "next": state}

    @staticmethod
    def _letter(position: int, letter: int) -> Token:
        return {"position": position, "letter": letter}

    @staticmethod
    def _start() -> Token:
        return {"state": (0, 0)}

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
        letters = _letters(word, self.n_symbols)
        if len(letters) != self.length:
            raise ValueError(f"word: {self.length} letters are needed, got {len(letters)}")
        table = [
            self._entry((state, symbol), int(after))
            for (state, symbol), after in np.ndenumerate(automaton.table)
        ]
        return [*table, *(self._letter(t, a) for t, a in enumerate(letters)), self._start()]

    @same_bits
    def execute(
        self,
        automaton: Automaton,
        word: Sequence[int],
        *,
        heads: Heads | Fit | Layer | None = None,
    ) -> list[int]:
        """Let a layer run an automaton on a word.

        Parameters
        ----------
        automaton, word
            As for :meth:`context`.
        heads
            The layer, compiled or learned; None for the program itself.

        Returns
        -------
        list of int
            States before the first letter and after each one, as the layer says.

        Raises
        ------
        ValueError
            The layer wrote something else than states.
        """
        return self.states(self.run(heads, self.context(automaton, word), self.length))

    @same_bits
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
        states = []
        for number, token in enumerate(self.decode(self._after_steps(run))):
            at = token.get("state")
            if not isinstance(at, tuple) or at[0] != number:
                raise ValueError(f"run: token {number} of the history is no state, but {token}")
            states.append(at[1])
        return states
