"""The exact rank of the features: what is proved about it, by counting and modulo primes.

The lower bound is the rank modulo a prime q: a minor that is not zero modulo q is not zero.

Upper bounds, in the order they are tried:

1. The number of samples of positive weight, the number of features that some sample has, and bounds
   from distinct tokens and distinct samples (:mod:`linattn_fast.exact.sample_counts`).
2. p minus the number of independent linear equations that the features of every sample obey
   (:mod:`linattn_fast.exact.null_vectors`).
3. The rank r modulo each of several primes whose product exceeds every minor of order r + 1 that
   the features can have (Hadamard): those minors are whole numbers that all the primes divide, so
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
from .modular_features import (
    ModularData,
    Units,
    features_modulo,
    is_rounded,
    sums_and_queries,
)
from .null_vectors import Equations
from .sample_counts import WORK_OF_A_SAMPLE, absent_features, distinct_samples, distinct_tokens

BUDGET = 5e10
"""Multiply-adds of matrix products that a question about the exact rank may cost."""
_PRIMES = 3
"""Number of primes that membership in a range is decided by."""
_SPARE = 16
"""Number of random combinations of rows beyond the largest rank that they can have."""
_CHECKS = 2
"""Number of random null vectors that tell whether a row is in a span."""
_NUMBERS_AT_ONCE = 1 << 22
"""Number of features and tokens that are looked at together."""


def span_of(data: ModularData, q: int) -> Span:
    """The span of the samples' features modulo q.

    Two random null vectors tell first whether a row is in the span already. They cost p
    multiply-adds each, and are wrong for one row in q^2 > 10^13. Only rows that fail this test are
    eliminated. Rows of the span are combinations of samples in any case, so its rank is never too
    high.
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
    """Yield primes that divide no unit of the data, in an order given by a digest of it."""
    return filter(data.units.allow, primes(data.seed))


def elimination_work(data: ModularData) -> float:
    """Multiply-adds of :func:`span_of`, not counting the pass over the data."""
    p = data.features.count
    rank = min(p, data.counts.samples)
    return float(rank * rank * p)


@dataclass(frozen=True)
class ModularRange:
    """The span of the samples' features modulo primes.

    A query counts as in the span if it is in the span modulo every prime. That can be wrong only if
    all primes divide certain minors of the features, which happens by chance with probability
    2^-66 for three primes of more than 22 bits. The answer that a query is not in the span is exact
    wherever ``rank`` is the exact rank, and it is not by chance with the same probability.
    """

    rank: int
    """A proved lower bound on the exact rank."""
    spans: tuple[Span, ...]
    """The span modulo each prime, of rank ``rank``."""
    features: Features
    units: Units

    def contains(self, tokens: Tokens, positions: Positions) -> npt.NDArray[np.bool_]:
        """Which queries have h(Z) in the span modulo the primes, (rows,)."""
        if self.rank == self.features.count:
            return np.ones(tokens.n_samples(positions), dtype=bool)
        if is_rounded(tokens):
            return np.zeros(tokens.n_samples(positions), dtype=bool)
        parts = [
            self._contains(part, positions) for part in _pieces(tokens, positions, self.features)
        ]
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


def _pieces(tokens: Tokens, positions: Positions, features: Features) -> list[Tokens]:
    """Pieces of a batch, each of as many sequences as have _NUMBERS_AT_ONCE features and tokens."""
    at_home = tokens.put(np.zeros(0))
    longest = int(at_home.lengths.max())
    rows = 1 if positions == "last" else longest
    step = max(1, _NUMBERS_AT_ONCE // (features.count * rows + longest * at_home.d))
    return [at_home.part(i, min(i + step, len(at_home))) for i in range(0, len(at_home), step)]


def modular_range(samples: Samples, *, budget: float = BUDGET) -> ModularRange | None:
    """The span of the features of samples of positive weight; None where it costs too much.

    ``budget`` is in multiply-adds of matrix products: a second has some 10^10 of them.
    """
    if is_rounded(samples.tokens):
        return None
    data = ModularData.of(samples)
    if _PRIMES * (data.work() + elimination_work(data)) > budget:
        return None
    spans = _spans(data, _PRIMES)
    rank = max(span.rank for span in spans)
    best = tuple(span for span in spans if span.rank == rank)
    return ModularRange(rank, best, samples.features, data.units)


def modular_rank(data: ModularData, *, budget: float) -> int | None:
    """The rank modulo the first two primes of :func:`exact_rank`; None where that costs too much.

    It is at most the exact rank, and less than it by chance with probability 2^-44.
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
    """Prove bounds on the rank with at most ``budget`` multiply-adds of matrix products."""
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
    """Prove by counting samples and features that the rank is short; None where they suffice."""
    p, n = data.features.count, data.counts.samples
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
    """Bound the rank by the vocabulary, and say in words how.

    The bound is the number of distinct tokens, or pairs, times the number of distinct queries, or
    query coordinates: see :mod:`linattn_fast.exact.sample_counts`.
    """
    features = data.features
    tokens, queries = distinct_tokens(data)
    sums = _many(tokens, "pair" if tokens == features.n_pairs else "distinct token")
    one = "query coordinate" if queries == features.n_queries else "distinct query token"
    return tokens * queries, f"{sums} times {_many(queries, one)}"


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def counting(n: int, p: int, what: str) -> str:
    """Say that n things, named by ``what``, are fewer than the p features."""
    verb = "is" if what.startswith("1 ") else "are"
    return (
        f"proved by counting: {what} {verb} fewer than the {p} features, so the rank is at most {n}"
    )


def unseen_features(zeros: int, p: int, *, exactly: bool = True) -> str:
    """Say that some of p features are zero in every sample."""
    number = f"{zeros}" if exactly else f"at least {zeros}"
    return (
        f"proved: {number} of {p} features are zero in every sample, so that other layers fit "
        "as well"
    )


def _by_minors(data: ModularData, best: Span, chosen: Iterator[int], budget: float) -> ExactRank:
    """Show that all minors of the next order are zero, if the budget allows for enough primes."""
    p, order = data.features.count, best.rank + 1
    largest = float(np.sort(data.feature_bits)[-order:].sum())
    # Hadamard: the product of the lengths of the columns, each below sqrt(order) 2^bits
    needed = ceil((largest + order * log2(order) / 2 + 1) / BITS)
    inside = float(data.counts.samples) * best.rank * (p - best.rank)
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
