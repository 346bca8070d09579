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
from collections.abc import Sequence

import numpy as np

from ...fitting.result import Fit
from ...heads.heads import Heads
from ...system.arguments import as_size
from ...system.machine import same_bits
from ..language.lookup import Lookup
from ..language.record import Record, Token
from ..language.run import Run
from ..running.layer import Layer
from .automaton import Automaton, letters_of
from .simulator import Simulator


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
            One with the simulator's numbers of states and symbols.
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
        letters = letters_of(word, self.n_symbols)
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
            As for :meth:`states`.
        """
        return self.states(self.run(heads, self.context(automaton, word), self.length))

    @same_bits
    def states(self, run: Run) -> list[int]:
        """The states that a run went through.

        Parameters
        ----------
        run
            The history of an automaton, by any layer.

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
