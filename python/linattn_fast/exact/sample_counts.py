"""Counting that proves a short rank: features that no sample has, samples and tokens that repeat.

A feature S[j,k] z[l] is zero in every sample if no sample has a token with both j and k and a query
with l. That is seen in which tokens are zero, where nothing rounds and nothing underflows.

S is a sum of z z' over tokens. So with a vocabulary of K tokens, K_q of them queries, S lies in a
space of K dimensions, z in one of K_q, and h in one of K K_q.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..arrays.types import Array
from ..data.prefixes import distinct_rows, last_tokens
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from .modular import primes
from .modular_features import ModularData

WORK_OF_A_SAMPLE = 2e5
"""Multiply-adds of a matrix product in the time that one sample's digest takes."""
_NUMBERS_AT_ONCE = 1 << 20
"""Number of entries of tokens that are replaced by ones together."""


def absent_features(data: ModularData, budget: float) -> tuple[int, bool]:
    """Count the features that no sample has, and say whether that is all of them.

    Pairs that no token has and queries that no sample has are counted first; then, if that is
    within the budget, features are looked for sample by sample. If the first count is not zero, the
    second can only make it larger, so it gets a small part of the budget.
    """
    features = data.features
    pairs, queries = np.zeros(features.n_pairs, bool), np.zeros(features.n_queries, bool)
    for tokens in data.sequences():
        with_pair, with_query = features.occurring(tokens, data.positions)
        pairs |= with_pair
        queries |= with_query
    if not (pairs.any() and queries.any()):
        return features.count, True
    occurring = features.subset(np.flatnonzero(pairs), np.flatnonzero(queries))
    presence = _presence(data, occurring)
    room = budget if occurring.count == features.count else budget / 50
    # A count of tokens below q/2 is zero modulo q only if it is zero
    if presence.work() > room or presence.counts.longest >= 1 << 21:
        return features.count - occurring.count, False
    found = np.zeros(occurring.count, dtype=bool)
    for H in presence.rows(next(primes(0))):
        found |= H.any(axis=0)
        if found.all():
            break
    return features.count - int(found.sum()), True


def _presence(data: ModularData, features: Features) -> ModularData:
    """The data with 1 in place of whatever is not zero: S then counts tokens."""

    @contextmanager
    def read() -> Iterator[Iterator[Samples]]:
        yield (
            Samples(_ones(part), None, None, data.positions, features)
            for tokens in data.sequences()
            for part in _parts(tokens)
        )

    return ModularData(read, data.positions, features, zeros_and_ones=True)


def _parts(tokens: Tokens) -> Iterator[Tokens]:
    """Yield some sequences at a time, since ones may take more memory than the tokens."""
    step = max(1, _NUMBERS_AT_ONCE // (int(tokens.lengths.max()) * tokens.d))
    return (
        tokens.part(first, min(first + step, len(tokens))) for first in range(0, len(tokens), step)
    )


def _ones(tokens: Tokens) -> Tokens:
    return tokens.mapped(lambda array: (array != 0).astype(np.float64))


def distinct_tokens(data: ModularData) -> tuple[int, int]:
    """Count distinct tokens and distinct queries, at most up to the numbers of pairs and queries.

    Only coordinates that are in a pair tell tokens apart; a token and its negative count once.
    """
    features = data.features
    used = np.unique(features.pairs)
    tokens_seen: set[bytes] = set()
    queries_seen: set[bytes] = set()
    for tokens in data.sequences():
        for rows in distinct_rows(tokens):
            if len(tokens_seen) < features.n_pairs:
                tokens_seen |= _directions(rows[:, used])
            if data.positions != "last" and len(queries_seen) < features.n_queries:
                queries_seen |= _directions(rows[:, features.queries])
        for rows in last_tokens(tokens) if data.positions == "last" else ():
            if len(queries_seen) < features.n_queries:
                queries_seen |= _directions(rows[:, features.queries])
        if len(tokens_seen) >= features.n_pairs and len(queries_seen) >= features.n_queries:
            break
    return min(len(tokens_seen), features.n_pairs), min(len(queries_seen), features.n_queries)


def _directions(rows: Array) -> set[bytes]:
    """Distinct rows that are not zero, as bytes, each with its first non-zero entry positive."""
    kept = rows[rows.any(axis=1)].astype(np.float64)
    leading = kept[np.arange(len(kept)), (kept != 0).argmax(axis=1)]
    signed = kept * np.sign(leading)[:, None] + 0.0  # -0.0 is 0.0
    as_bytes = np.ascontiguousarray(signed).view(f"V{8 * rows.shape[1]}").reshape(-1)
    return set(np.unique(as_bytes).tolist())


def distinct_samples(data: ModularData, enough: int) -> int:
    """Count distinct samples that are not zero, up to ``enough``.

    Two samples are the same if their queries are and their tokens are, in any order (for "causal",
    in the same order). They are told apart by digests of 256 bits.
    """
    used, queries = np.unique(data.features.pairs), data.features.queries
    seen: set[bytes] = set()
    for tokens in data.sequences():
        for sequence in tokens:
            z = sequence[:, used].astype(np.float64) + 0.0  # -0.0 is 0.0
            asked = sequence[:, queries].astype(np.float64) + 0.0
            if data.positions == "last":
                asked = asked[-1:]
            if data.positions != "causal":
                z = z[np.lexsort(z.T)]
            seen.update(_digests(z, asked, causal=data.positions == "causal"))
            if len(seen) >= enough:
                return enough
    return len(seen)


def _digests(z: Array, asked: Array, *, causal: bool) -> Iterator[bytes]:
    """Yield a digest of each sample of a sequence: of the tokens in its S, and of its query."""
    prefix = hashlib.blake2b(digest_size=32)
    if not causal:
        prefix.update(np.ascontiguousarray(z).data)
    for t, query in enumerate(asked):
        if causal:
            prefix.update(z[t].tobytes())
        if query.any():
            sample = prefix.copy()
            sample.update(query.tobytes())
            yield sample.digest()
