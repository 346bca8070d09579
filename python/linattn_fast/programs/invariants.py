"""What holds in every run of a program, however long: proved by linear algebra.

Two closures over the finitely many tokens that can ever be appended, each from every context of the
family at once, and each independent of the number of steps:

1. *Findings.* What a lookup with key k finds is the vector o = (S[k, v] for all values v), and a
   token z adds z[k] z[v] to it. For every key the set of reachable (last token, o) is closed under
   appending what can follow. So the tokens that can occur, and what each of them can find, are
   known; for a Turing machine this proves that every cell holds one symbol at any time.

2. *Spans.* For every token z that can be the last one, the s = (S[j,k] over pairs) of all sequences
   that end with it lie in an affine space A_z, the least with

       contexts that start with z are in A_z
       s in A_z with the finding o of z  =>  s + products(next) in A_next,  next what z, o gives

   The condition "finding o" is a linear equation in s, so each step is linear algebra over whole
   numbers (:mod:`.integer_span`), and dimensions can only grow, so it ends. It is the analysis of
   affine relations that is known for programs with variables, with the last token in the place of
   the line of code, and S in the place of the variables.

A learned layer is determined on every run of the family when for every z the features s (x) z of
A_z lie in the range of its training data (:mod:`.certifying`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..tokens import Floats
from .family import Family
from .integer_span import IntegerSpan, eliminated
from .layer import Indices
from .program import Program

Vector = tuple[float, ...]
Key = tuple[int, int]
"""Number of the instruction and coordinate of the key: what can be found."""

_MOST_TOKENS = 4096
_MOST_FINDINGS = 2_000_000
_MOST_NUMBERS = 10_000_000
"""In all that contexts can have under one key."""
_MOST_TRANSITIONS = 2_000_000
_MOST_BYTES = 2 << 30
_LARGEST = 2.0**20
"""Weights up to this: products of them are exact, and so are sums of many."""


class NotFiniteError(Exception):
    """The closures are too large, or not finite: nothing is proved."""


@dataclass(frozen=True)
class Transition:
    """After ``last``, where its lookups find ``found``, comes ``token``."""

    last: Vector
    found: tuple[tuple[Key, Vector], ...]
    token: Vector


class Findings:
    """Which tokens can occur in runs, and what they can find."""

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
        self._additions: dict[Vector, list[tuple[Key, Vector]]] = {}
        self._waiting: dict[Vector, None] = {}
        self._size = 0
        self._tried = 0
        self._start(family)
        while self._waiting:
            token = next(iter(self._waiting))
            del self._waiting[token]
            for step in self.transitions(token):
                found = {key: {sums} for key, sums in step.found}
                self._append(step.token, self.reached[token] | found)

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
            self._waiting[token] = None
        additions = dict(self._addition(token))
        for key in self.keys:
            own = additions.get(key)
            sums = before[key] if own is None else {_sum(each, own) for each in before[key]}
            new = sums - known[key]
            if new:
                known[key] |= new
                self._size += len(new)
                self._waiting[token] = None
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

    def transitions(self, token: Vector) -> Iterator[Transition]:
        """What can follow a token, for all that its lookups can find; not an output of zeros."""
        asked = self.asked(token)
        keys = list(dict.fromkeys(key for key, _, _ in asked))
        self._tried += math.prod(len(self.reached[token][key]) for key in keys)
        if self._tried > _MOST_TRANSITIONS:
            raise NotFiniteError(f"more than {_MOST_TRANSITIONS:,} steps would have to be tried")
        for found in itertools.product(*(sorted(self.reached[token][key]) for key in keys)):
            at = dict(zip(keys, found, strict=True))
            y = np.zeros(len(token))
            for key, weight, l in asked:
                writes = self.program.tables[key[0]].writes[l]
                for j, amount in zip(self._values[key[0]], at[key], strict=True):
                    if amount:
                        for out, w in writes.get(j, ()):
                            y[out] += weight * amount * w
            if y.any():
                yield Transition(token, tuple(at.items()), tuple((y + 0.0).tolist()))

    def columns(self, key: Key) -> list[tuple[int, int]]:
        """The pairs (j, k), j <= k, in which the finding of a key stands."""
        return [(min(key[1], j), max(key[1], j)) for j in self._values[key[0]]]


def _require_whole(token: Vector) -> None:
    """Raise where arithmetic with a token is not exact."""
    if any(abs(weight) > _LARGEST or weight != round(weight) for weight in token):
        raise NotFiniteError("tokens have weights that are not whole, or very large")


def _sum(a: Vector, b: Vector) -> Vector:
    return tuple(x + y for x, y in zip(a, b, strict=True))


class Invariants:
    """For every token that can be the last one, a space that holds the s of all such sequences.

    Parameters
    ----------
    program
        With its family of contexts.
    progress
        Called with the rounds done.
    """

    def __init__(self, program: Program, progress: Callable[[int], object] | None = None) -> None:
        self.findings = Findings(program)
        family = program.family
        tokens = {tuple(z.tolist()) for slot in family.slots for z in slot}
        tokens |= set(self.findings.reached)
        together = np.zeros((program.d, program.d), bool)
        for token in tokens:
            present = np.array(token) != 0
            together |= np.outer(present, present)
        # A pair that no token has is always zero, and a finding there is zero as well
        self.pairs: Indices = np.argwhere(np.triu(together))
        """Pairs that some token has, (n_pairs, 2)."""
        self._number = {(int(j), int(k)): u for u, (j, k) in enumerate(self.pairs)}
        n = len(self.pairs)
        if 8 * len(self.findings.reached) * n * n > _MOST_BYTES:
            raise NotFiniteError(f"{len(self.findings.reached)} spaces of {n} pairs are too large")
        # Homogeneous coordinates (s, 1): affine spaces and equations become linear
        self.spaces = {token: IntegerSpan(n + 1) for token in self.findings.reached}
        self._close(family, progress)

    def products(self, z: Floats) -> Floats:
        """z[j] z[k] over the pairs."""
        return np.asarray(z[self.pairs[:, 0]] * z[self.pairs[:, 1]])

    def _close(self, family: Family, progress: Callable[[int], object] | None) -> None:
        *before, starts = family.slots
        n = len(self.pairs)
        first = sum((self.products(slot[0]) for slot in before), np.zeros(n))
        # All choices together span what the first ones and single changes span
        changes = [self.products(z) - self.products(slot[0]) for slot in before for z in slot[1:]]
        waiting: dict[Vector, None] = {}
        for z in starts:
            rows = [np.append(first + self.products(z), 1.0), *(np.append(c, 0.0) for c in changes)]
            self.spaces[tuple(z.tolist())].add(np.array(rows))
            waiting[tuple(z.tolist())] = None
        self._steps = {token: list(self.findings.transitions(token)) for token in self.spaces}
        rounds = 0
        while waiting:
            token = next(iter(waiting))
            del waiting[token]
            for step in self._steps[token]:
                arriving = self._after(step)
                if len(arriving) and self.spaces[step.token].add(arriving):
                    waiting[step.token] = None
            rounds += 1
            if progress is not None:
                progress(rounds)

    def _after(self, step: Transition) -> Floats:
        """Where the space of a token goes in one step: (m, n_pairs + 1); none if it cannot."""
        rows = self.spaces[step.last].rows
        conditions = []
        for key, found in step.found:
            for pair, amount in zip(self.findings.columns(key), found, strict=True):
                number = self._number.get(pair)
                entry = np.zeros(len(rows)) if number is None else rows[:, number]
                conditions.append(entry - amount * rows[:, -1])
        left = np.stack(conditions, axis=1) if conditions else np.zeros((len(rows), 0))
        reduced, pivots = eliminated(np.concatenate([left, rows], axis=1), np.arange(left.shape[1]))
        kept = reduced[len(pivots) :, left.shape[1] :]
        if not kept[:, -1].any():  # directions alone: no sequence meets the condition
            return np.zeros((0, rows.shape[1]))
        kept[:, :-1] += kept[:, -1:] * self.products(np.array(step.token))
        return kept

    @cached_property
    def directions(self) -> dict[Vector, Floats]:
        """For every token the span of s, (dimension, n_pairs), of whole numbers."""
        found = {}
        for token, space in self.spaces.items():
            if len(space):
                span = IntegerSpan(len(self.pairs))
                span.add(space.rows[:, :-1])
                found[token] = span.rows
        return found

    @property
    def asking(self) -> dict[Vector, Floats]:
        """The same for tokens that something can follow."""
        return {token: span for token, span in self.directions.items() if self._steps[token]}
