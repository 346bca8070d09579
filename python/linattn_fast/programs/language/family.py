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

from ...arrays.types import Array, Floats
from ...system.arguments import as_size
from ...system.seeds import Seed, as_generator
from .record import Record, Token


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


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
        if not isinstance(record, Record):
            raise TypeError(f"record: a Record is needed, got {type(record).__name__}")
        if not _is_list(slots) or not all(_is_list(slot) for slot in slots):
            raise TypeError("slots: a list is needed, for each slot a list of tokens")
        if len(slots) == 0 or any(len(slot) == 0 for slot in slots):
            raise ValueError("slots: at least one is needed, each with at least one alternative")
        self.slots: list[Floats] = []
        """Distinct alternatives of each slot, (m, d)."""
        for at, slot in enumerate(slots):
            try:
                alternatives = np.array([record.vector(token) for token in slot])
            except (TypeError, ValueError) as error:
                raise type(error)(f"slots[{at}]: {error}") from None
            self.slots.append(np.unique(alternatives, axis=0))
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

    def sample(self, number: int, seed: Seed = None) -> Floats:
        """Draw contexts, uniformly and independently.

        Parameters
        ----------
        number
            How many.
        seed
            A number or numpy's generator.

        Returns
        -------
        array (number, n, d)
            Encoded.
        """
        number, rng = as_size(number, "number"), as_generator(seed)
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
        size = as_size(size, "size")
        for first in range(0, self.count, size):
            number = np.arange(first, min(first + size, self.count))
            choices = np.empty((len(number), len(self.slots)), np.intp)
            for at in reversed(range(len(self.slots))):
                number, choices[:, at] = np.divmod(number, len(self.slots[at]))
            yield self._contexts(choices)
