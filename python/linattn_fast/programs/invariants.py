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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np

from ..arrays.types import Floats
from .family import Family
from .integer_span import IntegerSpan, eliminated
from .layer import Indices
from .program import Program

Vector = tuple[float, ...]
Key = tuple[int, int]
"""Number of the instruction and coordinate of the key: what can be found."""

_MOST_TOKENS = 4096
_MOST_FINDINGS = 500_000
_MOST_NUMBERS = 10_000_000
"""In all that contexts can have under one key."""
_MOST_TRANSITIONS = 500_000
_MOST_HANDED_ON = 10_000_000
"""Sums that tokens hand on to those that follow them: a count of work, the same on any machine."""
_MOST_PRODUCTS = 200_000_000_000
"""In the linear algebra of the spaces; this too is a count of work."""
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
                    yield Transition(token, tuple(finding.items()), tuple(y))

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
        self._sent: dict[Vector, tuple[IntegerSpan, set[Vector]]] = {}
        """Directions that a token has handed on, and to which followers."""
        self._products = 0
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
        self._steps = self.findings.steps
        rounds = 0
        while waiting:
            token = next(iter(waiting))
            del waiting[token]
            for follower, arriving in self._after(token):
                if self.spaces[follower].add(arriving):
                    waiting[follower] = None
            rounds += 1
            if progress is not None:
                progress(rounds)

    def _after(self, token: Vector) -> Iterator[tuple[Vector, Floats]]:
        """Where the space of a token goes in one step: for each follower rows (m, n_pairs + 1).

        Rows that are zero in all that the token's lookups see, and in the last coordinate, meet
        every condition and go wherever a sequence goes; only those that are new are sent again.
        What a lookup finds is a condition on the few other rows.
        """
        rows, steps = self.spaces[token].rows, self._steps[token]
        if not steps:
            return
        findings = [self.findings.columns(key) for key, _ in steps[0].found]
        seen = sorted(
            {self._number[pair] for at in findings for pair in at if pair in self._number}
        )
        reduced, pivots = eliminated(rows, np.array([*seen, rows.shape[1] - 1], dtype=np.intp))
        head, free = reduced[: len(pivots)], reduced[len(pivots) :]
        self._count(rows.size * (len(seen) + 1) + head.size * len(steps) * (len(seen) + 1))
        arriving: dict[Vector, list[Floats]] = defaultdict(list)
        for step in steps:
            kept = self._meeting(step, head)
            if kept[:, -1].any():  # or it is directions alone: no sequence meets the condition
                kept[:, :-1] += kept[:, -1:] * self.products(np.array(step.token))
                arriving[step.token].append(kept)
        sent, followers = self._sent.setdefault(token, (IntegerSpan(rows.shape[1]), set()))
        new = sent.outside(free)
        sent.add(new)
        for follower, parts in arriving.items():
            directions = new if follower in followers else free
            followers.add(follower)
            self._count(len(directions) * self.spaces[follower].rows.size)
            yield follower, np.concatenate([*parts, directions])

    def _meeting(self, step: Transition, rows: Floats) -> Floats:
        """The part of a space (m, n_pairs + 1) in which a step finds what it finds."""
        conditions = []
        for key, found in step.found:
            for pair, amount in zip(self.findings.columns(key), found, strict=True):
                number = self._number.get(pair)
                entry = np.zeros(len(rows)) if number is None else rows[:, number]
                conditions.append(entry - amount * rows[:, -1])
        left = np.stack(conditions, axis=1) if conditions else np.zeros((len(rows), 0))
        reduced, pivots = eliminated(np.concatenate([left, rows], axis=1), np.arange(left.shape[1]))
        return reduced[len(pivots) :, left.shape[1] :]

    def _count(self, products: int) -> None:
        """Raise where the spaces take too much work, counted in products of numbers."""
        self._products += products
        if self._products > _MOST_PRODUCTS:
            raise NotFiniteError(
                f"the spaces of all runs would take more than {_MOST_PRODUCTS:.0e} products"
            )

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

    @cached_property
    def longest_run(self) -> float:
        """Tokens that a run can append at most; infinity where a token can come again."""
        followers = {token: {step.token for step in self._steps[token]} for token in self.spaces}
        try:
            last_first = tuple(TopologicalSorter(followers).static_order())
        except CycleError:
            return math.inf
        longest: dict[Vector, int] = {}
        for token in last_first:
            longest[token] = max((1 + longest[each] for each in followers[token]), default=0)
        return max(longest.values())

    @property
    def asking(self) -> dict[Vector, Floats]:
        """The same for tokens that something can follow."""
        return {token: span for token, span in self.directions.items() if self._steps[token]}
