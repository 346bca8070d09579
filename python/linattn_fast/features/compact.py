"""The compact Gram: each distinct entry of sum w h h' once.

With h = s (x) z, q pairs and d coordinates, the dense Gram is G[(u,l), (v,m)]. Distinct entries:

    "last", "causal"   gram[(u,v), (l,m)] = sum w s_u s_v z_l z_m    for u <= v and l <= m
    "all"              gram[(u,v,w)]      = sum w s_u s_v s_w        for u <= v <= w

The second form exists because the sum of z z' over every token of a sequence is S itself. With
chosen features, u and v are chosen pairs, l and m chosen queries, and the first form serves all
positions. Pairs, of whatever kind, are ordered as the upper triangle, row by row; the entries
(u, v, .) of a third moment follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ..arrays import compiled
from ..arrays.device import is_on_device, module_of, to_host
from ..arrays.types import Array, Floats, Mask, Numbers, Positions
from ..system.machine import get_num_threads
from .features import Features, pair_count


@lru_cache(maxsize=64)
def pair_table(d: int) -> Numbers:
    """Index of the pair {j, k} in the upper triangle, (d, d), symmetric."""
    table = np.zeros((d, d), dtype=np.intp)
    j, k = np.triu_indices(d)
    table[j, k] = table[k, j] = np.arange(pair_count(d))
    table.setflags(write=False)  # the same one for every caller
    return table


@lru_cache(maxsize=64)
def pair_entries(d: int) -> tuple[Numbers, Numbers, Numbers]:
    """Where the pairs (j, k), j <= k, are in a (d, d) matrix that is written row by row.

    The entries (j, k), (q,); the numbers of the pairs with j < k; and their entries (k, j).
    """
    j, k = np.triu_indices(d)
    off = np.flatnonzero(j < k)
    places = j * d + k, off, k[off] * d + j[off]
    for each in places:
        each.setflags(write=False)  # the same ones for every caller
    return places


def is_triples(features: Features, positions: Positions) -> bool:
    """Whether the Gram is a third moment of s, kept once for all orders of its indices."""
    return positions == "all" and features.everything and features.sums_cancel


def shape(features: Features, positions: Positions) -> tuple[int, ...]:
    """Shape of the compact Gram: pairs of pairs by pairs of queries, or triples of pairs."""
    q = features.n_pairs
    if is_triples(features, positions):
        return (q * (q + 1) * (q + 2) // 6,)
    return pair_count(q), pair_count(features.n_queries)


def triple_starts(q: int) -> Numbers:
    """Start of the entries (u, v, v), (u, v, v + 1), .. for u <= v, (q, q)."""
    u, v = np.triu_indices(q)
    starts = np.zeros((q, q), dtype=np.intp)
    starts[u, v] = np.concatenate([[0], np.cumsum(q - v)[:-1]])
    return starts


Indices: TypeAlias = Numbers | int


def _triple(starts: Numbers, u: Indices, v: Indices, w: Indices) -> Indices:
    """Index of sum w s_u s_v s_w in the compact Gram, for u, v and w in any order."""
    xp = module_of(starts)
    low, high = xp.minimum(xp.minimum(u, v), w), xp.maximum(xp.maximum(u, v), w)
    middle = u + v + w - low - high
    where: Indices = starts[low, middle] + high - middle
    return where


def bands(compact: Array, features: Features, positions: Positions) -> Iterator[Floats]:
    """Yield the rows (u, .) of the dense Gram, (n_queries, count), for each pair u in turn."""
    q, d = features.n_pairs, features.n_queries
    xp = module_of(compact)
    columns = xp.asarray(pair_table(d))
    if not is_triples(features, positions):
        rows = xp.asarray(pair_table(q))
        for u in range(q):
            # (v, l, m) -> (l, v, m)
            yield compact[rows[u]][:, columns].transpose(1, 0, 2).reshape(d, q * d)
        return
    starts = xp.asarray(triple_starts(q))
    v, w = xp.indices((q, q))
    for u in range(q):
        moments = compact[_triple(starts, u, v, w)]  # (v, w)
        yield moments[:, columns].transpose(1, 0, 2).reshape(d, q * d)


def is_compiled(compact: Array) -> bool:
    """Whether compiled code reads a compact Gram (csrc/core/normal_matrix.hpp): on the host."""
    return compiled.MISSING is None and not is_on_device(compact)


def expand(compact: Array, features: Features, positions: Positions) -> Floats:
    """Write out the dense Gram, (count, count)."""
    if is_compiled(compact):
        return equilibrated(compact, features, positions, None)[0]
    d = features.n_queries
    gram: Floats = module_of(compact).empty((features.count, features.count))
    for u, band in enumerate(bands(compact, features, positions)):
        gram[u * d : (u + 1) * d] = band
    return gram


def equilibrated(
    compact: Array,
    features: Features,
    positions: Positions,
    sizes: Floats | None,
    *,
    weight: float = 1.0,
    ridge: float = 0.0,
) -> tuple[Floats, Floats, float]:
    """A = D (gram / weight + ridge I) D, D's diagonal, and A's largest sum of a row's sizes.

    D consists of powers of two, for ``sizes`` (count,) in the place of the diagonal; I for None.
    In compiled code, which must be there.
    """
    q, k, triples = features.n_pairs, features.n_queries, is_triples(features, positions)
    return compiled.core.dense_gram(compact, q, k, triples, weight, ridge, sizes, get_num_threads())


def exceeds(
    compact: Array,
    features: Features,
    positions: Positions,
    sizes: Floats,
    magnitudes: Floats,
    shift: tuple[float, float, float, float, float],
) -> bool:
    """Whether the Gram is proved to be more than a shift (csrc/core/shifted_gram.hpp).

    ``sizes`` are its diagonal, (count,), and ``magnitudes`` those of what features are summed from.
    In compiled code, which must be there.
    """
    q, k, triples = features.n_pairs, features.n_queries, is_triples(features, positions)
    threads = get_num_threads()
    return compiled.core.gram_exceeds(compact, q, k, triples, sizes, magnitudes, shift, threads)


def sizes(compact: Array, features: Features, positions: Positions) -> tuple[Floats, Floats | None]:
    """The diagonal of the Gram, and the magnitudes if all pairs take part, (count,) each."""
    q, k = features.n_pairs, features.n_queries
    all_pairs = q == pair_count(features.d)
    if not features.sums_cancel:
        own = diagonal(compact, features, positions)
        return own, own
    if is_compiled(compact):
        d, triples = features.d if all_pairs else 0, is_triples(features, positions)
        own, larger = compiled.core.gram_sizes(compact, q, k, triples, d)
        return own, larger if all_pairs else None
    own = diagonal(compact, features, positions)
    return own, magnitudes(compact, features, positions) if all_pairs else None


def times(compact: Array, x: Floats, features: Features, positions: Positions) -> Floats:
    """Multiply the Gram with x (count, k), a band at a time; no square matrix is formed."""
    products = [band @ x for band in bands(compact, features, positions)]
    product: Floats = module_of(compact).concatenate(products)
    return product


def diagonal(compact: Array, features: Features, positions: Positions) -> Floats:
    """Diagonal of the dense Gram, (count,): sum w s_u^2 z_l^2."""
    q, xp = features.n_pairs, module_of(compact)
    squares = np.diagonal(pair_table(features.n_queries))  # the pairs (l, l)
    entries: Floats
    if is_triples(features, positions):
        u = np.arange(q)[:, None]
        entries = compact[xp.asarray(_triple(triple_starts(q), u, u, squares))]
    else:
        rows = xp.asarray(np.diagonal(pair_table(q)))
        entries = compact[rows][:, xp.asarray(squares)]
    return entries.reshape(-1)


def magnitudes(compact: Array, features: Features, positions: Positions) -> Floats:
    """Sum of w S_jj S_kk z_l^2 for all features (j,k),l: (count,).

    These are the entries G[((j,j),l), ((k,k),l)]; of features that are summands themselves, the
    diagonal.
    """
    if not features.sums_cancel:
        return diagonal(compact, features, positions)
    d, xp = features.d, module_of(compact)
    j, k = np.triu_indices(d)
    squares = np.diagonal(pair_table(d))  # the pairs (j, j)
    first, second = squares[j][:, None], squares[k][:, None]
    queries = np.diagonal(pair_table(features.n_queries))  # the pairs (l, l)
    entries: Floats
    if is_triples(features, positions):
        entries = compact[xp.asarray(_triple(triple_starts(len(j)), first, second, queries))]
    else:
        entries = compact[xp.asarray(pair_table(len(j))[first, second]), xp.asarray(queries)]
    return entries.reshape(-1)


def first_meets_all(compact: Array, features: Features) -> bool:
    """Whether the first query is seen to meet every other, from a few entries: u = v = 0."""
    return bool(to_host(compact.reshape(-1)[: features.n_queries]).all())


def meeting(compact: Array, features: Features, positions: Positions) -> Mask:
    """Which queries l and m have an entry G[(u,l), (v,m)] that is not zero, (n_queries, n_queries).

    No entry is so small that it counts as zero. The answer is on the host.
    """
    columns = pair_table(features.n_queries)
    if not is_triples(features, positions):
        return np.asarray(to_host(compact.any(axis=0))[columns])
    q, compact = features.n_pairs, to_host(compact)
    used = np.zeros(q, dtype=bool)  # pairs w with an entry (u, v, w), in any order
    first = 0
    for u in range(q):
        v, w = np.triu_indices(q - u)
        nonzero = np.flatnonzero(compact[first : first + len(v)])
        used[u] |= len(nonzero) > 0
        used[u + v[nonzero]] = True
        used[u + w[nonzero]] = True
        first += len(v)
    return np.asarray(used[columns])


def of_queries(
    compact: Array, features: Features, positions: Positions, queries: Numbers
) -> Floats:
    """The compact Gram, in the first form, of some of the queries with all of the pairs.

    ``queries`` are ascending numbers among the features' queries, fewer than all of them.
    """
    l, m = np.triu_indices(len(queries))
    columns = pair_table(features.n_queries)[queries[l], queries[m]]
    xp = module_of(compact)
    part: Floats
    if not is_triples(features, positions):
        part = xp.ascontiguousarray(compact[:, xp.asarray(columns)])
        return part
    q = features.n_pairs
    starts = triple_starts(q)
    u, v = np.triu_indices(q)
    part = xp.empty((len(u), len(columns)))
    for i, w in enumerate(columns):
        part[:, i] = compact[xp.asarray(_triple(starts, u, v, int(w)))]
    return part


def compact_bytes(features: Features, d_out: int, positions: Positions = "last") -> int:
    """Bytes of the compact Gram, the cross moment and the energy."""
    return 8 * (math.prod(shape(features, positions)) + d_out * (features.count + 1))
