"""The Gram on a GPU by cuBLAS: panels of pair products, multiplied with ``cupy.matmul``.

    gram[(u,v), (l,m)] += sum_i (s_u s_v)[i] (w z_l z_m)[i]

a chunk of samples i and a panel of rows (u,v) at a time, so that the panel is still in the card's
L2 cache when the product reads it. Samples are formed by CuPy as well: S = Z'Z for whole sequences,
running sums for "causal". Ragged sequences are grouped by length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays.device import cupy
from ...arrays.types import Positions
from ...features import compact
from ...features.features import Features
from ..interface import Precision
from ..reference import narrowed
from .batches import DeviceBatch

CHUNK = 1024
"""Samples that are summed by one product: an entry of the Gram is then read and written once for
2048 flops."""
_TOKENS = 1 << 22
"""Tokens that are gathered or converted at a time."""
_LEAST_ROWS = 64
"""Rows of a panel, at least."""


def _panel_rows() -> int:
    """Number of rows of a panel of pair products, which fill half of the L2 cache."""
    cache = int(cupy().cuda.Device().attributes["L2CacheSize"])
    return max(_LEAST_ROWS, cache // 2 // (8 * CHUNK))


def _dense_groups(batch: DeviceBatch, positions: Positions) -> Iterator[tuple[Any, Any]]:
    """Yield sequences of one length, (k, n, d) of float64, and their weights (k,), or None.

    They come as many at a time as have about CHUNK samples, and at least one.
    """
    xp = cupy()
    if batch.bounds is None:
        lengths = np.full(batch.n_sequences, batch.tokens.shape[1])
    else:
        lengths = np.diff(batch.bounds)
    for n in np.unique(lengths).tolist():
        members = np.flatnonzero(lengths == n)
        count = max(1, CHUNK // n if positions == "causal" else min(CHUNK, _TOKENS // n))
        for first in range(0, len(members), count):
            some = members[first : first + count]
            if batch.bounds is None:
                Z = batch.tokens[first : first + count]
            else:
                Z = batch.tokens[xp.asarray(batch.bounds[some][:, None] + np.arange(n))]
            w = None if batch.weights is None else batch.weights[xp.asarray(some)]
            yield Z.astype(np.float64, copy=False), w


class _Samples:
    """The two factors of the Gram, for sequences of one length."""

    def __init__(self, positions: Positions, features: Features) -> None:
        xp = cupy()
        self._positions = positions
        self._pairs = [xp.asarray(index) for index in features.pairs.T]
        pairs_of_queries = np.triu_indices(features.n_queries)
        self._queries = [xp.asarray(features.queries[index]) for index in pairs_of_queries]

    def __call__(self, Z: Any, w: Any) -> tuple[Any, Any]:
        """Form s (K, n_pairs) and w z_l z_m (K, pairs of queries) of sequences Z (k, n, d)."""
        (j, k), (l, m) = self._pairs, self._queries
        if self._positions == "causal":
            s = cupy().cumsum(Z[:, :, j] * Z[:, :, k], axis=1).reshape(-1, len(j))
            right = (Z[:, :, l] * Z[:, :, m]).reshape(-1, len(l))
            w = None if w is None else cupy().repeat(w, Z.shape[1])
        else:
            S = Z.transpose(0, 2, 1) @ Z
            s = S[:, j, k]
            # The sum of z z' over all tokens of a sequence is S itself.
            all_tokens = self._positions == "all"
            right = S[:, l, m] if all_tokens else Z[:, -1][:, l] * Z[:, -1][:, m]
        return s, (right if w is None else w[:, None] * right)


def add_gram(
    gram: Any, batch: DeviceBatch, positions: Positions, features: Features, precision: Precision
) -> int:
    """Add the Gram of a batch to ``gram``; return how many products were added in a row."""
    samples = _Samples(positions, features)
    triples = compact.is_triples(features, positions)
    total: _Pairs | _Triples = _Triples(gram, features) if triples else _Pairs(gram, features)
    chunks = 0
    for Z, w in _dense_groups(batch, positions):
        s, right = samples(Z, w)
        for first in range(0, len(s), CHUNK):
            part = slice(first, first + CHUNK)
            total.add(*narrowed(s[part], precision), *narrowed(right[part], precision))
            chunks += 1
    total.finish()
    return chunks


class _Pairs:
    """A Gram of rows (u, v), u <= v, and columns (l, m), formed in panels of rows."""

    def __init__(self, gram: Any, features: Features) -> None:
        indices = np.triu_indices(features.n_pairs)
        self._gram = gram
        self._u, self._v = (cupy().asarray(index) for index in indices)
        self._rows = _panel_rows()

    def add(self, s: Any, s_scale: Any, right: Any, right_scale: Any) -> None:
        """Add the products of a chunk."""
        for first in range(0, len(self._u), self._rows):
            part = slice(first, first + self._rows)
            u, v = self._u[part], self._v[part]
            product = cupy().matmul((s[:, u] * s[:, v]).T, right)
            if s_scale is not None:
                product = (s_scale[u] * s_scale[v])[:, None] * product * right_scale
            self._gram[part] += product

    def finish(self) -> None:
        """Do nothing: all sums are in place."""


class _Triples:
    """A Gram of entries (u, v, w), u <= v <= w: for each u the triangle of a square product."""

    def __init__(self, gram: Any, features: Features) -> None:
        q = features.n_pairs
        self._gram = gram
        self._squares = [cupy().zeros((q - u, q - u)) for u in range(q)]

    def add(self, s: Any, s_scale: Any, right: Any, right_scale: Any) -> None:
        """Add the products of a chunk."""
        for u in range(len(self._squares)):
            product = cupy().matmul((s[:, u : u + 1] * s[:, u:]).T, right[:, u:])
            if s_scale is not None:
                product = (s_scale[u] * s_scale[u:])[:, None] * product * right_scale[u:]
            self._squares[u] += product

    def finish(self) -> None:
        """Write out the triangles, one after the other."""
        first = 0
        for square in self._squares:
            v, w = (cupy().asarray(index) for index in np.triu_indices(len(square)))
            self._gram[first : first + len(v)] += square[v, w]
            first += len(v)


@dataclass
class AdditionCount:
    """How many additions the summands of a total have gone through."""

    products: int = 0
    """Number of matrix products that were added to the total."""
    longest: int = 0
    """Largest number of samples that one of them summed over."""

    @property
    def steps(self) -> int:
        """Number of additions that a summand goes through, at most."""
        return self.longest + self.products


def summand_sizes(
    batch: DeviceBatch,
    positions: Positions,
    features: Features,
    total: Any,
    additions: AdditionCount,
) -> None:
    """Add sum w S_jj S_kk z_l^2 to ``total`` (n_pairs, n_queries), and count the additions."""
    xp = cupy()
    j, k = (xp.asarray(index) for index in features.pairs.T)
    queries = xp.asarray(features.queries)
    for Z, weights in _dense_groups(batch, positions):
        squares, w = Z**2, weights  # (k, n, d)
        if positions == "causal":
            diagonal = xp.cumsum(squares, axis=1).reshape(-1, batch.d)
            of_query = squares.reshape(-1, batch.d)
            w = None if w is None else xp.repeat(w, Z.shape[1])
        else:
            diagonal = squares.sum(axis=1)
            of_query = diagonal if positions == "all" else squares[:, -1]
        right = of_query[:, queries] if w is None else w[:, None] * of_query[:, queries]
        total += (diagonal[:, j] * diagonal[:, k]).T @ right
        additions.products += 1
        additions.longest = max(additions.longest, len(right))
