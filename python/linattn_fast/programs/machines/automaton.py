"""Deterministic finite automata, and their runs in plain Python.

An automaton is a table: for each state and symbol, the next state. It starts in state 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...arrays.floats import as_array
from ...system.arguments import as_size
from ...system.seeds import Seed, as_generator


def letters_of(word: object, n_symbols: int) -> list[int]:
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
        self.n_states: int = self.table.shape[0]
        """Number of states."""
        self.n_symbols: int = self.table.shape[1]
        """Number of symbols."""
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
        return cls(as_generator(seed).integers(shape[0], size=shape))

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
        for letter in letters_of(word, self.n_symbols):
            states.append(int(self.table[states[-1], letter]))
        return states

    def accepts(self, word: Sequence[int]) -> bool:
        """Whether it ends in an accepting state.

        Parameters
        ----------
        word
            As for :meth:`run`.

        Returns
        -------
        bool
            True where its last state is accepting.
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
