"""The compact Gram: each distinct entry of sum w h h' once.

With h = s (x) z, q pairs and d coordinates, the dense Gram is G[(u,l), (v,m)]. Distinct entries:

    "last", "causal"   gram[(u,v), (l,m)] = sum w s_u s_v z_l z_m    for u <= v and l <= m
    "all"              gram[(u,v,w)]      = sum w s_u s_v s_w        for u <= v <= w

With chosen features, u and v are chosen pairs, l and m chosen queries, and the first form serves
all positions.

because summing z z' over every token of a sequence gives S itself. Pairs of anything are ordered as
the upper triangle, row by row; the entries (u, v, .) of a third moment follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .features import Features, pair_count, pair_table
from .tokens import Array, Floats, Positions


def is_triples(features: Features, positions: Positions) -> bool:
    """Whether the Gram is a third moment of s, kept once for all orders of its indices."""
    return positions == "all" and features.everything


def shape(features: Features, positions: Positions) -> tuple[int, ...]:
    """Shape of the compact Gram: pairs of pairs by pairs of queries, or triples of pairs."""
    q = features.n_pairs
    if is_triples(features, positions):
        return (q * (q + 1) * (q + 2) // 6,)
    return pair_count(q), pair_count(features.n_queries)


def triple_starts(q: int) -> npt.NDArray[np.intp]:
    """Where the entries (u, v, v), (u, v, v + 1), .. start, (q, q), for u <= v."""
    u, v = np.triu_indices(q)
    starts = np.zeros((q, q), dtype=np.intp)
    starts[u, v] = np.concatenate([[0], np.cumsum(q - v)[:-1]])
    return starts


def bands(compact: Array, features: Features, positions: Positions) -> Iterator[Floats]:
    """Yield the rows (u, .) of the dense Gram, (n_queries, count), for each pair u in turn."""
    q, d = features.n_pairs, features.n_queries
    columns = pair_table(d)
    if not is_triples(features, positions):
        rows = pair_table(q)
        for u in range(q):
            # (v, l, m) -> (l, v, m)
            yield compact[rows[u]][:, columns].transpose(1, 0, 2).reshape(d, q * d)
        return
    starts = triple_starts(q)
    v, w = np.indices((q, q))
    for u in range(q):
        low, high = np.minimum(np.minimum(u, v), w), np.maximum(np.maximum(u, v), w)
        middle = u + v + w - low - high
        moments = compact[starts[low, middle] + high - middle]  # (v, w)
        yield moments[:, columns].transpose(1, 0, 2).reshape(d, q * d)


def expand(compact: Array, features: Features, positions: Positions) -> Floats:
    """Write out the dense Gram, (count, count)."""
    d = features.n_queries
    gram = np.empty((features.count, features.count))
    for u, band in enumerate(bands(compact, features, positions)):
        gram[u * d : (u + 1) * d] = band
    return gram


def times(compact: Array, x: Floats, features: Features, positions: Positions) -> Floats:
    """Multiply the Gram with x (count, k), a band at a time; no square matrix is formed."""
    return np.concatenate([band @ x for band in bands(compact, features, positions)])


def diagonal(compact: Array, features: Features, positions: Positions) -> Floats:
    """Diagonal of the dense Gram, (count,): sum w s_u^2 z_l^2."""
    q = features.n_pairs
    squares = np.diagonal(pair_table(features.n_queries))  # the pairs (l, l)
    u = np.arange(q)
    if not is_triples(features, positions):
        return np.asarray(compact[np.diagonal(pair_table(q))][:, squares].reshape(-1))
    low, high = np.minimum(u[:, None], squares), np.maximum(u[:, None], squares)
    middle = np.broadcast_to(u[:, None], low.shape)
    return np.asarray(compact[triple_starts(q)[low, middle] + high - middle].reshape(-1))
