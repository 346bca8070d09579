"""The exact rank of the features: what is proved about it, by arithmetic modulo primes.

The rank modulo a prime q is at most the rank over the rationals: minors that are not zero modulo q
are not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from .features import Features
from .modular import Span, primes, product, reduced
from .modular_features import ModularData, Units, sums_and_queries
from .tokens import Array, Floats, Positions, Tokens

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
    rng = np.random.default_rng([data.seed, q])
    p = data.features.count
    span = Span.empty(p, q)
    checks = span.null_vectors(_CHECKS, rng)
    for H in data.rows(q, p + _SPARE):
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
    return span


def allowed_primes(data: ModularData, k: int) -> list[int]:
    """k primes, chosen by a digest of the data, that divide no unit of it."""
    return list(islice(filter(data.units.allow, primes(data.seed)), k))


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
            h = reduced((s[rows, :, None] * z[rows, None, :]).reshape(len(rows), -1), span.q)
            found[rows] = ~span.left_over(h).any(axis=1)
        return found


def _parts(tokens: Tokens, positions: Positions, known: ModularRange) -> list[Tokens]:
    """Sequences, so many that their features fit in a few megabytes."""
    at_home = tokens.put(np.zeros(0))
    longest = int(at_home.lengths.max())
    rows = 1 if positions == "last" else longest
    step = max(1, (1 << 22) // (known.features.count * rows + longest * at_home.d))
    return [at_home.part(i, min(i + step, len(at_home))) for i in range(0, len(at_home), step)]


def modular_range(
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
    features: Features,
    *,
    budget: float = BUDGET,
) -> ModularRange | None:
    """Span of the features of samples of positive weight; None where it would cost more.

    ``budget`` is in multiply-adds of matrix products: a second has some 10^10 of them.
    """
    data = ModularData.of(tokens, weights, positions, features)
    if _PRIMES * (data.work + elimination_work(data)) > budget:
        return None
    spans = [span_of(data, q) for q in allowed_primes(data, _PRIMES)]
    rank = max(span.rank for span in spans)
    best = tuple(span for span in spans if span.rank == rank)
    return ModularRange(rank, best, features, data.units)
