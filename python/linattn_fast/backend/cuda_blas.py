"""The Gram on a GPU by cuBLAS: panels of pair products, multiplied with ``cupy.matmul``.

    gram[(u,v), (l,m)] += sum_i (s_u s_v)[i] (w z_l z_m)[i]

a chunk of samples i and a panel of rows (u,v) at a time, so that the panel is still in the card's
L2 cache when the product reads it. Samples are formed by CuPy as well: S = Z'Z for whole sequences,
running sums for "causal". Ragged sequences are grouped by length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import compact
from ..device import cupy
from ..features import Features
from ..tokens import Positions
from . import Precision
from .cuda_batches import DeviceBatch

CHUNK = 1024
"""Samples that are summed by one product: an entry of the Gram is then read and written once for
2048 flops."""
_LEAST_ROWS = 64


def _panel_rows() -> int:
    """Rows of a panel of pair products: half of the L2 cache, the rest is for the other factor."""
    cache = int(cupy().cuda.Device().attributes["L2CacheSize"])
    return max(_LEAST_ROWS, cache // 2 // (8 * CHUNK))


def dense_groups(batch: DeviceBatch, step: int) -> Iterator[tuple[Any, Any]]:
    """Yield sequences of one length, (k, n, d) of float64, and their weights (k,), or None.

    k is as large as ``step`` tokens allow, and at least 1.
    """
    xp = cupy()
    if batch.bounds is None:
        lengths = np.full(batch.n_sequences, batch.tokens.shape[1])
    else:
        lengths = np.diff(batch.bounds)
    for n in np.unique(lengths):
        members = np.flatnonzero(lengths == n)
        count = max(1, step // int(n))
        for first in range(0, len(members), count):
            some = members[first : first + count]
            if batch.bounds is None:
                Z = batch.tokens[first : first + count]
            else:
                rows = batch.bounds[some][:, None] + np.arange(n)
                Z = batch.tokens[xp.asarray(rows)]
            w = None if batch.weights is None else batch.weights[xp.asarray(some)]
            yield Z.astype(np.float64, copy=False), w


def _factors(Z: Any, w: Any, positions: Positions, features: Features) -> tuple[Any, Any]:
    """s (K, n_pairs) and the weighted products of queries (K, pairs of queries) of sequences Z."""
    xp = cupy()
    j, k = (xp.asarray(index) for index in features.pairs.T)
    l, m = (xp.asarray(features.queries[i]) for i in np.triu_indices(features.n_queries))
    if positions == "causal":
        s = xp.cumsum(Z[:, :, j] * Z[:, :, k], axis=1).reshape(-1, len(j))
        right = (Z[:, :, l] * Z[:, :, m]).reshape(-1, len(l))
        w = None if w is None else xp.repeat(w, Z.shape[1])
    else:
        S = Z.transpose(0, 2, 1) @ Z
        s = S[:, j, k]
        # The sum of z z' over all tokens of a sequence is S itself.
        right = S[:, l, m] if positions == "all" else Z[:, -1][:, l] * Z[:, -1][:, m]
    return s, (right if w is None else w[:, None] * right)


def _narrowed(columns: Any, precision: Precision) -> tuple[Any, Any]:
    """Columns and their scales: as they are, or in float32 with a largest entry near one."""
    xp = cupy()
    if precision == "float64":
        return columns, xp.ones(columns.shape[1])
    largest = xp.abs(columns).max(axis=0)
    # 2^k above the largest entry; 1 for columns of zeros, and for NaN, which must come through
    exponent = xp.floor(xp.log2(xp.where(largest > 0, largest, 0.5))) + 1
    scale = xp.exp2(xp.clip(exponent, -1000, 1000))
    return (columns / scale).astype(np.float32), scale


def add_gram(
    gram: Any, batch: DeviceBatch, positions: Positions, features: Features, precision: Precision
) -> int:
    """Add the Gram of a batch to ``gram``; return how many products were added in a row."""
    chunks = 0
    for Z, w in dense_groups(batch, CHUNK):
        s, right = _factors(Z, w, positions, features)
        for first in range(0, len(s), CHUNK):
            part = slice(first, first + CHUNK)
            left, left_scale = _narrowed(s[part], precision)
            other, other_scale = _narrowed(right[part], precision)
            if compact.is_triples(features, positions):
                _add_triples(gram, left, left_scale, other, other_scale)
            else:
                _add_pairs(gram, left, left_scale, other, other_scale)
            chunks += 1
    return chunks


def _add_pairs(gram: Any, s: Any, s_scale: Any, right: Any, right_scale: Any) -> None:
    """Rows (u, v), a panel at a time."""
    xp, rows = cupy(), _panel_rows()
    u, v = (xp.asarray(index) for index in np.triu_indices(s.shape[1]))
    for first in range(0, len(u), rows):
        a, b = u[first : first + rows], v[first : first + rows]
        product = xp.matmul((s[:, a] * s[:, b]).T, right)
        scale = (s_scale[a] * s_scale[b])[:, None] * right_scale
        gram[first : first + rows] += scale * product


def _add_triples(gram: Any, s: Any, s_scale: Any, right: Any, right_scale: Any) -> None:
    """Entries (u, v, w), u <= v <= w, for each u in turn: the upper triangle of a product."""
    xp, q = cupy(), s.shape[1]
    first = 0
    for u in range(q):
        v, w = (xp.asarray(index) for index in np.triu_indices(q - u))
        product = xp.matmul((s[:, u : u + 1] * s[:, u:]).T, right[:, u:])
        scale = (s_scale[u] * s_scale[u:])[:, None] * right_scale[u:]
        gram[first : first + len(v)] += (scale * product)[v, w]
        first += len(v)


def summand_sizes(batch: DeviceBatch, positions: Positions, features: Features, total: Any) -> None:
    """Add sum w S_jj S_kk z_l^2 to ``total`` (n_pairs, n_queries)."""
    xp = cupy()
    j, k = (xp.asarray(index) for index in features.pairs.T)
    queries = xp.asarray(features.queries)
    for Z, w in dense_groups(batch, 8 * CHUNK):
        squares = Z**2  # (k, n, d)
        if positions == "causal":
            diagonal = xp.cumsum(squares, axis=1).reshape(-1, batch.d)
            of_query = squares.reshape(-1, batch.d)
            w = None if w is None else xp.repeat(w, Z.shape[1])  # noqa: PLW2901
        else:
            diagonal = squares.sum(axis=1)
            of_query = diagonal if positions == "all" else squares[:, -1]
        right = of_query[:, queries] if w is None else w[:, None] * of_query[:, queries]
        total += (diagonal[:, j] * diagonal[:, k]).T @ right
