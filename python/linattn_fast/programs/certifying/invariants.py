"""What holds in every run of a program, however long: proved by linear algebra.

Over the finitely many tokens that can ever be appended (:mod:`.findings`), and from every context
of the family at once, one closure that does not depend on the number of steps: for every token z
that can be the last one, the s = (S[j,k] over pairs) of all sequences that end with it lie in an
affine space A_z, the least with

    contexts that start with z are in A_z
    s in A_z with the finding o of z  =>  s + products(next) in A_next,  next what z, o gives

The condition "finding o" is a linear equation in s, so each step is linear algebra over whole
numbers (:mod:`.integer_span`), and dimensions can only grow, so it ends. It is the analysis of
affine relations that is known for programs with variables, with the last token in the place of the
line of code, and S in the place of the variables.

A learned layer is determined on every run of the family when for every z the features s (x) z of
A_z lie in the range of its training data (:mod:`.by_invariants`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np

from ...arrays.types import Floats
from ..language.family import Family
from ..language.program import Program
from ..running.layer import Indices
from .findings import Findings, NotFiniteError, Transition, Vector
from .integer_span import IntegerSpan, eliminated

_MOST_PRODUCTS = 200_000_000_000
"""Products of numbers in the linear algebra of the spaces: a count of work, the same on any
machine."""
_MOST_BYTES = 2 << 30
"""Bytes that the bases of all spaces may take."""


class Invariants:
    """For every token that can be the last one, a space that holds the s of all such sequences.

    Parameters
    ----------
    program
        The program, made with its contexts.
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
        """For every token that something can follow, the span of s, as ``directions`` has it."""
        return {token: span for token, span in self.directions.items() if self._steps[token]}
