"""The compact Gram: each distinct entry of sum w h h' once.

With h = s (x) z, q pairs and d coordinates, the dense Gram is G[(u,l), (v,m)]. Distinct entries:

    "last", "causal"   gram[(u,v), (l,m)] = sum w s_u s_v z_l z_m    for u <= v and l <= m
    "all"              gram[(u,v,w)]      = sum w s_u s_v s_w        for u <= v <= w

because summing z z' over every token of a sequence gives S itself. Pairs of anything are ordered as
the upper triangle, row by row; the entries (u, v, .) of a third moment follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .features import pair_count, pair_table
from .tokens import Array, Floats, Positions


def shape(d: int, positions: Positions) -> tuple[int, ...]:
    """Shape of the compact Gram: pairs of pairs by pairs, or triples of pairs."""
    q = pair_count(d)
    return (q * (q + 1) * (q + 2) // 6,) if positions == "all" else (pair_count(q), q)


def triple_starts(q: int) -> npt.NDArray[np.intp]:
    """Where the entries (u, v, v), (u, v, v + 1), .. start, (q, q), for u <= v."""
    u, v = np.triu_indices(q)
    starts = np.zeros((q, q), dtype=np.intp)
    starts[u, v] = np.concatenate([[0], np.cumsum(q - v)[:-1]])
    return starts


def bands(compact: Array, d: int, positions: Positions) -> Iterator[Floats]:
    """Yield the rows (u, .) of the dense Gram, (d, p), for each pair u in turn."""
    q = pair_count(d)
    columns = pair_table(d)
    if positions != "all":
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


def expand(compact: Array, d: int, positions: Positions) -> Floats:
    """Write out the dense Gram, (p, p)."""
    p = pair_count(d) * d
    gram = np.empty((p, p))
    for u, band in enumerate(bands(compact, d, positions)):
        gram[u * d : (u + 1) * d] = band
    return gram


def times(compact: Array, x: Floats, d: int, positions: Positions) -> Floats:
    """Multiply the Gram with x (p, k), a band at a time; no p x p matrix is formed."""
    return np.concatenate([band @ x for band in bands(compact, d, positions)])


def diagonal(compact: Array, d: int, positions: Positions) -> Floats:
    """Diagonal of the dense Gram, (p,): sum w s_u^2 z_l^2."""
    q = pair_count(d)
    squares = np.diagonal(pair_table(d))  # the pairs (l, l)
    u = np.arange(q)
    if positions != "all":
        return np.asarray(compact[np.diagonal(pair_table(q))][:, squares].reshape(-1))
    low, high = np.minimum(u[:, None], squares), np.maximum(u[:, None], squares)
    middle = np.broadcast_to(u[:, None], low.shape)
    return np.asarray(compact[triple_starts(q)[low, middle] + high - middle].reshape(-1))
