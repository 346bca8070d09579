"""Values passed through, where memories are summed from keys and values and shared by queries.

Queries that see the same keys have one memory M (d_v, d_k). With T = sum w c c' over these queries,
features m_j (x) c and residuals r = y - M B c, sums over all rows of all memories are

    gram   sum (M'M) (x) T        cross   sum w (M'y) c'        gradient   sum w (M'r) c'

one term of the Gram for each memory, however many queries share it. Both factors of a piece of the
memories are formed packed, and the Gram is one matrix product of theirs; nothing of a piece stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..arrays.compiled import core
from ..arrays.floats import all_finite
from ..arrays.types import Floats, Numbers
from ..data.non_finite import non_finite_error
from ..data.passed import PassedStates
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.accumulation import Accumulation
from ..features.samples import Samples
from ..system.machine import get_num_threads
from ..system.progress import Progress
from .interface import sizes_of
from .normal_operator import Gradient, KroneckerFactors, NormalProduct
from .totals import Totals

_NUMBERS_AT_ONCE = 1 << 21
"""Numbers of memories, or of what is made of them, that are formed together."""
_PACKED_AT_ONCE = 1 << 24
"""Numbers in both factors of the Gram before they are multiplied: adding a product to the totals
costs as much as a few hundred memories."""


@dataclass(frozen=True)
class Piece:
    """Some memories, with the queries that share each, side by side; zeros where there are less."""

    of: StreamStates
    """One query of each memory."""
    memory: Floats
    """M, (m, d_v, d_k)."""
    rows: slice
    """Which queries these are, among all."""
    place: tuple[Numbers, Numbers]
    """The memory of each query, and its number among those that share it."""
    query: Floats
    """c, (m, most, d_q)."""
    weights: Floats
    """w, (m, most, 1); 0 where there is no query."""

    def spread(self, values: Floats) -> Floats:
        """Values (queries, a) side by side as the queries are, (m, most, a)."""
        m, most = self.weights.shape[:2]
        if len(values) == m * most:  # as a rule, each memory has as many queries
            return values.reshape(m, most, -1)
        side = np.zeros((m, most, values.shape[1]))
        side[self.place] = values
        return side

    def outputs(self, B: Floats) -> Floats:
        """M B c, (m, most, d_v), for B (d_k, d_q)."""
        return np.asarray((self.query @ B.T) @ self.memory.transpose(0, 2, 1))


def pieces(rows: Tokens, weights: Floats | None) -> Iterator[Piece]:
    """Yield all memories whose values are passed, some at a time."""
    assert isinstance(rows, PassedStates)
    states = rows.of
    assert isinstance(states, StreamStates)
    (d_v, d_k), d_q = states.kind.matrix, states.kind.query
    new = (np.diff(states.sequences) != 0) | (np.diff(states.seen) != 0)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1, [len(states)]])
    counts = np.diff(starts)
    most = int(counts.max())
    w = np.ones(len(states)) if weights is None else weights
    step = max(1, _NUMBERS_AT_ONCE // max(d_v * d_k, d_k * d_k, d_q * (d_q + most), most * d_v))
    for first in range(0, len(counts), step):
        last = min(first + step, len(counts))
        here = slice(int(starts[first]), int(starts[last]))
        memory_of = np.repeat(np.arange(last - first), counts[first:last])
        number = np.arange(here.start, here.stop) - starts[first:last][memory_of]
        some = states.chosen(starts[first:last])
        blank = np.zeros((last - first, int(counts[first:last].max()), 1))
        piece = Piece(some, memories(some), here, (memory_of, number), blank, blank)
        yield Piece(
            some,
            piece.memory,
            here,
            piece.place,
            piece.spread(states.query[here].astype(np.float64, copy=False)),
            piece.spread(w[here, None]),
        )


def memories(states: StreamStates) -> Floats:
    """M of each state, (states, d_v, d_k): a product of matrices where all keys of one length."""
    keys = states.keys
    values = keys if states.values is None else states.values
    dense = all(not isinstance(x.storage, tuple) and x.offsets is None for x in (keys, values))
    if not dense or states.gates is not None or (states.seen < keys.longest).any():
        return states.memory
    b, a = (x.arrays[0][states.sequences].astype(np.float64, copy=False) for x in (keys, values))
    return np.asarray(a.transpose(0, 2, 1) @ b)


class GramOfFactors:
    """The sum of W (x) T over memories, from the pairs of both, many memories at a time."""

    def __init__(self, d_k: int, d_q: int, memories: int) -> None:
        self._upper = [j * d + k for d in (d_k, d_q) for j, k in [np.triu_indices(d)]]
        rows = [len(upper) for upper in self._upper]
        self.at_once = min(memories, max(256, _PACKED_AT_ONCE // sum(rows)))
        self._factors = [np.empty((count, self.at_once)) for count in rows]
        self._filled, self.products = 0, 0
        self.total = np.zeros(rows)

    def add(self, W: Floats, T: Floats) -> None:
        """Add W (m, d_k, d_k) and T (m, d_q, d_q) of some memories."""
        for first in range(0, len(W), self.at_once):
            count = min(len(W) - first, self.at_once)
            if self._filled + count > self.at_once:
                self.multiply()
            here = slice(self._filled, self._filled + count)
            for factor, upper, matrices in zip(self._factors, self._upper, (W, T), strict=True):
                some = matrices[first : first + count].reshape(count, -1)
                factor[:, here] = np.take(some, upper, axis=1).T
            self._filled += count

    def multiply(self) -> None:
        """Add the product of what has been taken to the total."""
        if self._filled == 0:
            return
        left, right = (np.ascontiguousarray(x[:, : self._filled]) for x in self._factors)
        self.total += core.multiply_transposed(left, right, get_num_threads())
        self._filled, self.products = 0, self.products + 1


# ------------------------------------------------------------------------------------- moments


def moments(samples: Samples, progress: Progress = None) -> Totals:
    """Sum the moments of a batch; see :meth:`Backend.moments`."""
    rows, features = samples.tokens, samples.features
    assert isinstance(rows, PassedStates)
    k, l = features.n_pairs, features.n_queries
    gram = GramOfFactors(k, l, len(rows))
    cross, energy = np.zeros((samples.d_out, l, k)), np.zeros(samples.d_out)
    sizes = np.zeros((k, l))
    largest, most, count = 0, 0, 0  # queries of a piece and of a memory, pieces
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in pieces(rows, samples.weights):
            M, c, w = piece.memory, piece.query, piece.weights
            T = (w * c).transpose(0, 2, 1) @ c
            gram.add(M.transpose(0, 2, 1) @ M, T)
            A = memories(piece.of.sizes())
            sizes += (A**2).sum(axis=1).T @ (w * c**2).sum(axis=1)
            if samples.targets is not None:
                y = piece.spread(targets_of(samples, piece.rows))
                cross[0] += _flat(w * c).T @ _flat(y @ M)
                energy[0] += float((w * y**2).sum())
            largest, most = max(largest, c.shape[0] * c.shape[1]), max(most, c.shape[1])
            count += 1
            if progress is not None:
                progress(piece.rows.stop * rows.d_v)
        gram.multiply()
    if not all(map(all_finite, (gram.total, cross, energy, sizes))):
        raise non_finite_error(rows, others=sizes_of(samples))
    # BLAS may sum in any order: the queries of a memory and then the memories of a product, or all
    # queries of a piece; besides the rows of a memory, and the products and pieces
    roundings = max(largest, gram.at_once + most) + rows.d_v + count + gram.products + 8
    return Totals(
        gram.total,
        cross,
        energy,
        n_samples=samples.n_samples,
        total_weight=samples.total_weight,
        accumulation=Accumulation(
            roundings, 0, samples.longest, may_underflow(samples), samples.largest_weight
        ),
        magnitudes=sizes,
        scalar_targets=samples.scalar_targets,
    )


def targets_of(samples: Samples, queries: slice) -> Floats:
    """Targets of some queries, (queries, d_v), one a row of their memories."""
    assert samples.targets is not None
    y = samples.targets.part(queries.start, queries.stop).rows()
    return y.reshape(queries.stop - queries.start, -1).astype(np.float64, copy=False)


def _flat(side: Floats) -> Floats:
    """Arrays (m, most, a) as rows, (m most, a)."""
    return side.reshape(-1, side.shape[2])


def may_underflow(samples: Samples) -> bool:
    """Whether a result on the way to the Gram could be below the smallest normal number.

    As in :mod:`linattn_fast.backend.reference`, with gates of at least g in products of up to n.
    """
    rows = samples.tokens
    assert isinstance(rows, PassedStates)
    states = rows.of
    assert isinstance(states, StreamStates)
    smallest = [1.0]
    for array in states.arrays:
        size = np.abs(array)
        smallest.append(float(size.min(initial=1.0, where=size > 0)))
    least = 0.0 if samples.weights is None else _log2_of_least(samples.weights)
    gates = 0.0 if states.gates is None else 2 * states.longest * _log2_of_least(states.gates)
    return least + gates + 6 * math.log2(min(smallest)) < -650


def _log2_of_least(numbers: Floats) -> float:
    """log2 of the smallest number that is not zero, at most 0."""
    return math.log2(float(numbers.min(initial=1.0, where=numbers > 0)))


# -------------------------------------------------------------------------------------- passes


class SharedNormalOperator:
    """The normal equations of rows of memories; see :class:`NormalOperator`.

    Parameters
    ----------
    samples
        A checked batch with targets, which must not change while this object is in use.
    """

    def __init__(self, samples: Samples) -> None:
        self.features = samples.features
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.total_weight = samples.total_weight
        self._samples = samples

    def _pieces(self) -> Iterator[Piece]:
        return pieces(self._samples.tokens, self._samples.weights)

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        k, l = self.features.n_pairs, self.features.n_queries
        pairs, queries, diagonal = np.zeros((k, k)), np.zeros((l, l)), np.zeros((k, l))
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in self._pieces():
                M, c, w = piece.memory, piece.query, piece.weights
                weighted = M * w.sum(axis=1)[:, :, None]
                pairs += _flat(weighted).T @ _flat(M)
                queries += M.shape[1] * (_flat(w * c).T @ _flat(c))
                diagonal += (M**2).sum(axis=1).T @ (w * c**2).sum(axis=1)
        return KroneckerFactors(*map(self._finite, (pairs, queries, diagonal)))

    def _finite(self, sums: Floats) -> Floats:
        if not all_finite(sums):
            raise non_finite_error(self._samples.tokens)
        return sums

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        forms = C.reshape(len(C), self.features.n_pairs, self.features.n_queries)
        product, energy = np.zeros(forms.shape), np.zeros(len(C))
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in self._pieces():
                for a, B in enumerate(forms):
                    f = piece.outputs(B)
                    weighted = piece.weights * f
                    energy[a] += float((weighted * f).sum())
                    product[a] += _flat(weighted @ piece.memory).T @ _flat(piece.query)
        return NormalProduct(self._finite(product.reshape(C.shape)), self._finite(energy))

    def narrow(self, C: Floats) -> None:
        """See :meth:`NormalOperator.narrow`: there is none."""

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        B = C.reshape(self.features.n_pairs, self.features.n_queries)
        gradient, error = np.zeros(B.shape), np.zeros(1)
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in self._pieces():
                y = piece.spread(targets_of(self._samples, piece.rows))
                r = y - piece.outputs(B)  # of weight 0 where there is no query
                weighted = piece.weights * r
                error[0] += float((weighted * r).sum())
                gradient += _flat(weighted @ piece.memory).T @ _flat(piece.query)
        return Gradient(self._finite(gradient.reshape(C.shape)), self._finite(error))


def apply_forms(C: Floats, rows: PassedStates) -> Floats:
    """Outputs m_j' B_a c of each row, (N d_v, m), for forms C (m, d_k d_q)."""
    y = np.empty((rows.n_rows, len(C)))
    forms = C.reshape(len(C), rows.kind.entries, rows.kind.query)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in pieces(rows, None):
            where = slice(piece.rows.start * rows.d_v, piece.rows.stop * rows.d_v)
            for a, B in enumerate(forms):
                y[where, a] = piece.outputs(B)[piece.place].reshape(-1)
    return y
