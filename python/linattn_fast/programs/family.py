"""Every context a program may start from, as a product of choices.

A context has one token for each slot, chosen from the slot's alternatives whatever the others are:
each entry of a transition table, each letter of a word, the start. So there are

    count = product over slots of the number of alternatives

contexts; they can be counted off one by one, drawn at random, and all of them together span what
one context and its single changes span (:mod:`.invariants`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..tokens import Array, Floats
from .record import Record, Token


class Family:
    """Contexts with one token for each slot.

    Parameters
    ----------
    record
        The layout of the tokens.
    slots
        For each token of the context its alternatives; the last token is the one that starts to
        ask.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> record = programs.Record(name=2, number=3, asked=2)
    >>> entries = [[{"name": k, "number": v} for v in range(3)] for k in range(2)]
    >>> programs.Family(record, [*entries, [{"asked": 0}, {"asked": 1}]])
    Family(18 contexts of 3 tokens, d=7)
    """

    def __init__(self, record: Record, slots: Sequence[Sequence[Token]]) -> None:
        if len(slots) == 0 or any(len(slot) == 0 for slot in slots):
            raise ValueError("slots: at least one is needed, each with at least one alternative")
        self.slots: list[Floats] = [
            np.unique(np.array([record.vector(token) for token in slot]), axis=0) for slot in slots
        ]
        """Distinct alternatives of each slot, (m, d)."""
        self.d = record.d

    @property
    def count(self) -> int:
        """Number of contexts."""
        return math.prod(len(slot) for slot in self.slots)

    def __repr__(self) -> str:
        return f"Family({self.count:,} contexts of {len(self.slots)} tokens, d={self.d})"

    def _contexts(self, choices: Array) -> Floats:
        """Contexts (N, n, d) of the alternatives' numbers (N, n)."""
        Z = np.empty((len(choices), len(self.slots), self.d))
        for at, slot in enumerate(self.slots):
            Z[:, at] = slot[choices[:, at]]
        return Z

    def sample(self, number: int, rng: np.random.Generator) -> Floats:
        """Draw contexts, uniformly and independently.

        Parameters
        ----------
        number
            How many.
        rng
            Numpy's generator.

        Returns
        -------
        array (number, n, d)
            Encoded.
        """
        choices = [rng.integers(len(slot), size=number) for slot in self.slots]
        return self._contexts(np.stack(choices, axis=1))

    def chunks(self, size: int) -> Iterator[Floats]:
        """Every context once.

        Parameters
        ----------
        size
            Contexts at a time, at most.

        Yields
        ------
        array (N, n, d)
            Encoded.
        """
        for first in range(0, self.count, size):
            number = np.arange(first, min(first + size, self.count))
            choices = np.empty((len(number), len(self.slots)), np.intp)
            for at in reversed(range(len(self.slots))):
                number, choices[:, at] = np.divmod(number, len(self.slots[at]))
            yield self._contexts(choices)
