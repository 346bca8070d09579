"""Which tokens can occur in runs of a program, and what their lookups can find.

What a lookup with key k finds is the vector o = (S[k, v] for all values v), and a token z adds
z[k] z[v] to it. For every key the set of reachable (last token, o) is closed under appending what
can follow. So the tokens that can occur, and what each of them can find, are known, however long
the run; for a Turing machine this proves that every cell holds one symbol at any time.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..language.family import Family
from ..language.program import Program

Vector: TypeAlias = tuple[float, ...]
"""A token, or what is found under a key, as a key of a dictionary."""
Key: TypeAlias = tuple[int, int]
"""Number of the instruction and coordinate of the key: what can be found."""

# Counts of work, which are the same on any machine; past them nothing is proved.
_MOST_TOKENS = 4096
"""Tokens that can occur."""
_MOST_FINDINGS = 500_000
"""Vectors that lookups can find, over all tokens and keys."""
_MOST_NUMBERS = 10_000_000
"""Numbers in all the sums that contexts can have under one key."""
_MOST_TRANSITIONS = 500_000
"""Steps that are tried."""
_MOST_HANDED_ON = 10_000_000
"""Sums that tokens hand on to those that follow them."""
_LARGEST = 2.0**20
"""Weights up to this: products of them are exact, and so are sums of many."""


class NotFiniteError(Exception):
    """The closures are too large, or not finite: nothing is proved."""


@dataclass(frozen=True)
class Transition:
    """Where the lookups of a token find ``found``, the next one is ``token``."""

    found: tuple[tuple[Key, Vector], ...]
    token: Vector


class Findings:
    """Which tokens can occur in runs, and what they can find.

    The closure is semi-naive: a token hands on only the sums that are new since it last did, and
    only steps that find something new are tried, so that each step is tried once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        family, record = program.family, program.record
        self._values: list[range] = []
        for lookup in program.instructions:
            start = record.starts[lookup.value]
            self._values.append(range(start, start + record.attributes[lookup.value].size))
        self.keys: list[Key] = sorted(
            {(i, k) for i, table in enumerate(program.tables) for k in table.keys.values()}
        )
        self.reached: dict[Vector, dict[Key, set[Vector]]] = {}
        """For each token that can be the last one, what each key can have there."""
        self.steps: dict[Vector, list[Transition]] = {}
        """For each of them, what can follow it."""
        self._additions: dict[Vector, list[tuple[Key, Vector]]] = {}
        self._followers: dict[Vector, list[Vector]] = {}
        self._new: dict[Vector, dict[Key, set[Vector]]] = {}
        """What was reached and not handed on yet, first come first served."""
        self._size = self._tried = self._handed = 0
        self._start(family)
        while self._new:
            self._hand_on(next(iter(self._new)))

    def _hand_on(self, token: Vector) -> None:
        """Append what can follow a token, given the sums that are new there."""
        new, known = self._new.pop(token), self.reached[token]
        asked = {key for key, _, _ in self.asked(token)}
        earlier = self._followers[token]
        found: dict[Vector, dict[Key, set[Vector]]] = {follower: {} for follower in earlier}
        for step in self._steps(token, new):
            self.steps[token].append(step)
            at = found.setdefault(step.token, {})
            for key, sums in step.found:
                at.setdefault(key, set()).add(sums)
        self._followers[token] = list(found)
        for number, (follower, at) in enumerate(found.items()):
            # Under keys that were not asked for: what is new, or for a new follower all there is
            others = new if number < len(earlier) else known
            rest = {key: sums for key, sums in others.items() if key not in asked}
            self._append(follower, {**rest, **at})

    def _addition(self, token: Vector) -> list[tuple[Key, Vector]]:
        """What a token adds to the findings of each key, where that is not nothing."""
        if token not in self._additions:
            self._additions[token] = [
                ((i, k), tuple(token[k] * token[j] for j in self._values[i]))
                for i, k in self.keys
                if token[k] != 0
            ]
        return self._additions[token]

    def _start(self, family: Family) -> None:
        """Every context at once: the sums that each key can have are those of its slots."""
        *before, starts = family.slots
        sums: dict[Key, set[Vector]] = {
            (i, k): {(0.0,) * len(self._values[i])} for i, k in self.keys
        }
        for z in itertools.chain(*before):
            _require_whole(tuple(z.tolist()))
        for slot in before:
            choices: dict[Key, set[Vector]] = defaultdict(set)
            added = [dict(self._addition(tuple(z.tolist()))) for z in slot]
            for key in {key for each in added for key in each}:
                zero = (0.0,) * len(self._values[key[0]])
                choices[key] = {each.get(key, zero) for each in added}
            for key, given in choices.items():
                if len(sums[key]) * len(given) * len(self._values[key[0]]) > _MOST_NUMBERS:
                    raise NotFiniteError("contexts have too many different sums under one key")
                sums[key] = {_sum(a, b) for a in sums[key] for b in given}
        for z in starts:
            self._append(tuple(z.tolist()), sums)

    def _append(self, token: Vector, before: Mapping[Key, set[Vector]]) -> None:
        """Sequences with these sums may be followed by ``token``, whose own come on top."""
        known = self.reached.get(token)
        if known is None:
            if len(self.reached) >= _MOST_TOKENS:
                raise NotFiniteError(f"more than {_MOST_TOKENS:,} tokens can occur")
            _require_whole(token)
            known = self.reached[token] = {key: set() for key in self.keys}
            self.steps[token], self._followers[token] = [], []
            self._new[token] = {}
        self._handed += sum(map(len, before.values()))
        if self._handed > _MOST_HANDED_ON:
            raise NotFiniteError(f"more than {_MOST_HANDED_ON:,} sums would have to be handed on")
        additions = dict(self._addition(token))
        for key, given in before.items():
            own = additions.get(key)
            sums = given if own is None else {_sum(each, own) for each in given}
            new = sums - known[key]
            if new:
                known[key] |= new
                self._size += len(new)
                self._new.setdefault(token, {}).setdefault(key, set()).update(new)
        if self._size > _MOST_FINDINGS:
            raise NotFiniteError(f"lookups can find more than {_MOST_FINDINGS:,} things")

    def asked(self, token: Vector) -> list[tuple[Key, float, int]]:
        """Keys that a token asks for, with its weight and the coordinate that asks."""
        return [
            ((i, table.keys[l]), weight, l)
            for l, weight in enumerate(token)
            if weight != 0
            for i, table in enumerate(self.program.tables)
            if l in table.keys
        ]

    def _steps(self, token: Vector, new: Mapping[Key, set[Vector]]) -> Iterator[Transition]:
        """What can follow a token where a lookup finds something new; not an output of zeros."""
        asked, known = self.asked(token), self.reached[token]
        keys = list(dict.fromkeys(key for key, _, _ in asked))
        for at, key in enumerate(keys):
            if key not in new:
                continue
            # The first new finding is that of this key: older ones before it, any after it
            older = [known[each] - new.get(each, set()) for each in keys[:at]]
            choices = [*older, new[key], *(known[each] for each in keys[at + 1 :])]
            self._tried += math.prod(map(len, choices))
            if self._tried > _MOST_TRANSITIONS:
                raise NotFiniteError(
                    f"more than {_MOST_TRANSITIONS:,} steps would have to be tried"
                )
            for found in itertools.product(*map(sorted, choices)):
                finding = dict(zip(keys, found, strict=True))
                y = self._answer(asked, finding)
                if any(y):
                    yield Transition(tuple(finding.items()), tuple(y))

    def _answer(
        self, asked: Sequence[tuple[Key, float, int]], found: Mapping[Key, Vector]
    ) -> list[float]:
        """The next token, given what each key that is asked for finds."""
        y = [0.0] * self.program.d
        for key, weight, l in asked:
            writes = self.program.tables[key[0]].writes[l]
            for j, amount in zip(self._values[key[0]], found[key], strict=True):
                if amount:
                    for out, w in writes.get(j, ()):
                        y[out] += weight * amount * w
        return [number + 0.0 for number in y]

    def columns(self, key: Key) -> list[tuple[int, int]]:
        """The pairs (j, k), j <= k, in which the finding of a key stands."""
        return [(min(key[1], j), max(key[1], j)) for j in self._values[key[0]]]


def _require_whole(token: Vector) -> None:
    """Raise where arithmetic with a token is not exact."""
    if any(abs(weight) > _LARGEST or weight != round(weight) for weight in token):
        raise NotFiniteError("tokens have weights that are not whole, or very large")


def _sum(a: Vector, b: Vector) -> Vector:
    return tuple(x + y for x, y in zip(a, b, strict=True))
