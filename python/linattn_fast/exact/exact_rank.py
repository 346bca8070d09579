"""The exact rank of the features: what is proved about it, by counting and modulo primes.

At least: the rank modulo a prime q is at most the rank over the rationals, since a minor that is
not zero modulo q is not zero.

At most, in the order tried:

1. Samples of positive weight are counted, features that no sample has, distinct tokens and
   distinct samples (:mod:`linattn_fast.exact.sample_counts`).
2. Each linear equation that the features of every sample obey takes one from p
   (:mod:`linattn_fast.exact.null_vectors`).
3. Modulo each of several primes the rank is r, and their product exceeds every minor of order
   r + 1 that the features can have (Hadamard): those are whole numbers that all primes divide, so
   they are zero, and the rank is r.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from ..arrays.types import Array, Positions
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from .modular import BITS, Span, primes, product, reduced
from .modular_features import ModularData, Units, features_modulo, sums_and_queries
from .null_vectors import Equations
from .sample_counts import WORK_OF_A_SAMPLE, absent_features, distinct_samples, distinct_tokens

BUDGET = 5e10
"""Multiply-adds of matrix products that a question about the exact rank may cost."""
_PRIMES = 3
_SPARE = 16
"""Random combinations of rows beyond the rank that they can have."""
_CHECKS = 2
"""Random null vectors that tell whether a row is in a span."""


def span_of(data: ModularData, q: int) -> Span:
    """The span of the samples' features modulo q.

    Whatever a row needs to be in it is asked of two random null vectors first: p multiply-adds a
    vector, and the answer is wrong once in q^2 > 10^13 rows. Only rows that fail are eliminated.
    Rows of the span are combinations of samples in any case, so its rank is never too high.
    """
    if q in data.spans:
        return data.spans[q]
    rng = np.random.default_rng([data.seed, q])
    p = data.features.count
    span = Span.empty(p, q)
    checks = span.null_vectors(_CHECKS, rng)
    for H in data.rows(q, first=p + _SPARE):
        left = p - span.rank
        new = H[product(H, checks, q).any(axis=1)]
        if len(new) > 2 * (left + _SPARE):  # random combinations of them have the same span
            mixing = rng.integers(0, q, (left + _SPARE, len(new))).astype(np.float64)
            new = product(reduced(mixing, q), new, q)
        if len(new):
            span = span.extended(new)
            checks = span.null_vectors(_CHECKS, rng)
        if span.rank == p:
            break
    data.spans[q] = span
    return span


def allowed_primes(data: ModularData) -> Iterator[int]:
    """Primes, in an order given by a digest of the data, that divide no unit of it."""
    return filter(data.units.allow, primes(data.seed))


def elimination_work(data: ModularData) -> float:
    """Multiply-adds of :func:`span_of`, beside the pass over the data."""
    p = data.features.count
    rank = min(p, data.n_samples)
    return float(rank * rank * p)


@dataclass(frozen=True)
class ModularRange:
    """The span of the samples' features modulo primes.

    A query is said to be in the span where it is modulo every prime. That can be wrong only where
    all primes divide certain minors of the features, which happens by chance with probability
    2^-66 for three primes of more than 22 bits. That it is not in the span is exact wherever
    ``rank`` is the exact rank, which it fails to be by chance with the same probability.
    """

    rank: int
    """At most the exact rank: proved."""
    spans: tuple[Span, ...]
    """Modulo each prime, of rank ``rank``."""
    features: Features
    units: Units

    def contains(self, tokens: Tokens, positions: Positions) -> npt.NDArray[np.bool_]:
        """Is h(Z) in the span modulo the primes? One answer a query, (rows,)."""
        if self.rank == self.features.count:
            return np.ones(tokens.n_samples(positions), dtype=bool)
        parts = [self._contains(part, positions) for part in _parts(tokens, positions, self)]
        return np.concatenate(parts)

    def _contains(self, tokens: Tokens, positions: Positions) -> npt.NDArray[np.bool_]:
        found: Array = np.ones(tokens.n_samples(positions), dtype=bool)
        for span in self.spans:
            rows = np.flatnonzero(found)
            s, z = sums_and_queries(
                tokens, positions, self.features, self.units.factors(span.q), span.q
            )
            if len(rows) == 0:
                break
            h = features_modulo(s[rows], z[rows], span.q)
            found[rows] = ~span.left_over(h).any(axis=1)
        return found


def _parts(tokens: Tokens, positions: Positions, known: ModularRange) -> list[Tokens]:
    """Sequences, so many that their features fit in a few megabytes."""
    at_home = tokens.put(np.zeros(0))
    longest = int(at_home.lengths.max())
    rows = 1 if positions == "last" else longest
    step = max(1, (1 << 22) // (known.features.count * rows + longest * at_home.d))
    return [at_home.part(i, min(i + step, len(at_home))) for i in range(0, len(at_home), step)]


def modular_range(samples: Samples, *, budget: float = BUDGET) -> ModularRange | None:
    """Span of the features of samples of positive weight; None where it would cost more.

    ``budget`` is in multiply-adds of matrix products: a second has some 10^10 of them.
    """
    data = ModularData.of(samples)
    if _PRIMES * (data.work() + elimination_work(data)) > budget:
        return None
    spans = _spans(data, _PRIMES)
    rank = max(span.rank for span in spans)
    best = tuple(span for span in spans if span.rank == rank)
    return ModularRange(rank, best, samples.features, data.units)


def modular_rank(data: ModularData, *, budget: float) -> int | None:
    """The rank modulo two primes, those that :func:`exact_rank` begins with; None if too costly.

    It is at most the exact rank, and less by chance with probability 2^-44.
    """
    if 2 * (data.work() + elimination_work(data)) > budget:
        return None
    return max(span.rank for span in _spans(data, 2))


def _spans(data: ModularData, count: int) -> list[Span]:
    chosen = allowed_primes(data)
    return [span_of(data, next(chosen)) for _ in range(count)]


@dataclass(frozen=True)
class ExactRank:
    """What is proved about the rank in exact arithmetic."""

    at_least: int
    at_most: int
    reason: str
    """What the bounds rest on, in words."""


def exact_rank(data: ModularData, *, budget: float = BUDGET) -> ExactRank:
    """Prove what can be proved about the rank, in so many multiply-adds of matrix products."""
    p = data.features.count
    counted = _counted(data, budget)
    if counted is not None:
        return counted
    if data.work() + elimination_work(data) > budget / 2:
        return ExactRank(0, p, "its exact rank is too much work to find")
    chosen = allowed_primes(data)
    first = span_of(data, next(chosen))
    if first.rank == p:
        return _full(p)
    second = span_of(data, next(chosen))
    best = max(first, second, key=lambda span: span.rank)
    if best.rank == p:
        return _full(p)
    if np.array_equal(first.pivots, second.pivots):
        proved = Equations(data, first, second).proved(chosen, budget / 4)
        if proved:
            rank = f"; the exact rank is {best.rank} of {p}" if best.rank + proved == p else ""
            many = "a linear equation" if proved == 1 else f"{proved} linear equations"
            return ExactRank(
                best.rank,
                p - proved,
                f"proved in exact arithmetic: the features of every sample obey {many}, "
                f"so that other layers fit as well{rank}",
            )
    return _by_minors(data, best, chosen, budget)


def _full(p: int) -> ExactRank:
    said = f"the exact rank is {p}, proved modulo a prime, so that lambda_min is above zero"
    return ExactRank(p, p, said)


def _counted(data: ModularData, budget: float) -> ExactRank | None:
    """A short rank by counting samples and features; None where they are enough."""
    p, n = data.features.count, data.n_samples
    if n < p:
        return ExactRank(0, n, counting(n, p, _many(n, "sample") + " of positive weight"))
    absent, all_of_them = absent_features(data, budget)
    if absent:
        return ExactRank(0, p - absent, unseen_features(absent, p, exactly=all_of_them))
    bounds = [_by_vocabulary(data)]
    if n * WORK_OF_A_SAMPLE <= budget:
        distinct = distinct_samples(data, p)
        bounds.append((distinct, _many(distinct, "distinct sample")))
    least, what = min(bounds)
    return ExactRank(0, least, counting(least, p, what)) if least < p else None


def _by_vocabulary(data: ModularData) -> tuple[int, str]:
    """Distinct tokens, or pairs, times distinct queries, or query coordinates; and that in words.

    They bound the rank: see :mod:`linattn_fast.exact.sample_counts`.
    """
    features = data.features
    tokens, queries = distinct_tokens(data)
    sums = _many(tokens, "pair" if tokens == features.n_pairs else "distinct token")
    one = "query coordinate" if queries == features.n_queries else "distinct query token"
    return tokens * queries, f"{sums} times {_many(queries, one)}"


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def counting(n: int, p: int, what: str) -> str:
    """Say that what there are n of is too few."""
    verb = "is" if what.startswith("1 ") else "are"
    return (
        f"proved by counting: {what} {verb} fewer than the {p} features, so the rank is at most {n}"
    )


def unseen_features(zeros: int, p: int, *, exactly: bool = True) -> str:
    """Say that features are zero in every sample."""
    number = f"{zeros}" if exactly else f"at least {zeros}"
    return (
        f"proved: {number} of {p} features are zero in every sample, so that other layers fit "
        "as well"
    )


def _by_minors(data: ModularData, best: Span, chosen: Iterator[int], budget: float) -> ExactRank:
    """Show that all minors of one order more are zero, if so many primes are within the budget."""
    p, order = data.features.count, best.rank + 1
    largest = float(np.sort(data.feature_bits)[-order:].sum())
    # Hadamard: the product of the lengths of the columns, each below sqrt(order) 2^bits
    needed = ceil((largest + order * log2(order) / 2 + 1) / BITS)
    inside = float(data.n_samples) * best.rank * (p - best.rank)
    work = needed * (2 * data.work() + elimination_work(data) + inside)
    found = f"the rank is {best.rank} of {p} modulo two primes"
    if work > budget:
        return ExactRank(best.rank, p, f"{found}; a proof that it is no more is too much work")
    for _ in range(needed):
        span = span_of(data, next(chosen))
        if span.rank == p:
            return _full(p)
        if span.rank > best.rank:
            return ExactRank(span.rank, p, f"the exact rank is at least {span.rank}")
        if any(span.left_over(H).any() for H in data.rows(span.q)):
            return ExactRank(best.rank, p, found)
    return ExactRank(
        best.rank,
        best.rank,
        f"proved in exact arithmetic: the rank is {best.rank} of {p}, since all larger minors "
        f"are divisible by {needed} primes and so zero; other layers fit as well",
    )
