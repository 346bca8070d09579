"""Values passed through, where memories are summed from keys and values and shared by queries.

Queries that see the same keys have one memory M (d_v, d_k). With T = sum w c c' over these queries,
features m_j (x) c and residuals r = y - M B c, sums over all rows of all memories are

    gram   sum (M'M) (x) T        cross   sum w (M'y) c'        gradient   sum w (M'r) c'

one term of the Gram for each memory, however many queries share it. Compiled code forms both
factors of the Gram and multiplies them (csrc/core/samples.hpp: several s are given beside S);
weights go into the queries, as sqrt(w) c. The other sums are small, and come from numpy, a piece of
the memories at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np

from ..arrays.compiled import core
from ..arrays.floats import all_finite
from ..arrays.types import Floats, Numbers
from ..data.non_finite import non_finite_error
from ..data.passed import PassedStates
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.accumulation import Accumulation
from ..features.features import pair_count
from ..features.samples import Samples
from ..system.machine import get_num_threads
from ..system.progress import Progress
from .interface import sizes_of
from .normal_operator import Gradient, KroneckerFactors, NormalProduct, added
from .totals import Totals

_NUMBERS_AT_ONCE = 1 << 21
"""Numbers of memories, or of what is made of them, that are formed together."""
_SUMMED_AT_ONCE = 1 << 24
"""Numbers of memories and queries that are summed together."""

Found = TypeVar("Found")


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

    def targets(self, samples: Samples) -> Floats:
        """Targets of the rows, (m, most, d_v)."""
        assert samples.targets is not None
        y = samples.targets.part(self.rows.start, self.rows.stop).rows()
        y = y.reshape(self.rows.stop - self.rows.start, -1).astype(np.float64, copy=False)
        m, most = self.weights.shape[:2]
        return _spread(y, self.place, (m, most))

    def outputs(self, B: Floats) -> Floats:
        """M B c, (m, most, d_v), for B (d_k, d_q)."""
        return np.asarray((self.query @ B.T) @ self.memory.transpose(0, 2, 1))


class SharedMemories:
    """All memories whose values are passed, with the queries that share them, cut into pieces.

    Parameters
    ----------
    rows
        Rows of the memories of streams.
    weights
        Of the queries; None means that all are 1.
    """

    def __init__(self, rows: Tokens, weights: Floats | None) -> None:
        assert isinstance(rows, PassedStates)
        states = rows.of
        assert isinstance(states, StreamStates)
        self.states, self.weights = states, weights
        (d_v, d_k), d_q = states.kind.matrix, states.kind.query
        new = (np.diff(states.sequences) != 0) | (np.diff(states.seen) != 0)
        self.starts = np.concatenate([[0], np.flatnonzero(new) + 1, [len(states)]])
        self.most = int(np.diff(self.starts).max())
        numbers = max(d_v * d_k, d_k * d_k, d_q * (d_q + self.most), self.most * d_v)
        self.step = max(1, _NUMBERS_AT_ONCE // numbers)
        self.n_memories = len(self.starts) - 1
        self.n_pieces = -(-self.n_memories // self.step)

    def piece(self, i: int) -> Piece:
        """Memories i step, .. and their queries."""
        starts = self.starts[i * self.step : (i + 1) * self.step + 1]
        counts, here = np.diff(starts), slice(int(starts[0]), int(starts[-1]))
        memory_of = np.repeat(np.arange(len(counts)), counts)
        place = memory_of, np.arange(here.start, here.stop) - starts[:-1][memory_of]
        shape = len(counts), int(counts.max())
        w = np.ones(len(memory_of)) if self.weights is None else self.weights[here]
        query = self.states.query[here].astype(np.float64, copy=False)
        some = self.states.chosen(starts[:-1])
        return Piece(
            some,
            memories(some),
            here,
            place,
            _spread(query, place, shape),
            _spread(w[:, None], place, shape),
        )

    def each(self, of: Callable[[Piece], Found], pieces: range | None = None) -> Iterator[Found]:
        """Yield what a function finds in each piece, in order; threads work at several of them."""

        def found(i: int) -> Found:
            with np.errstate(over="ignore", invalid="ignore"):  # each thread has its own
                return of(self.piece(i))

        with ThreadPoolExecutor(get_num_threads()) as threads:
            yield from threads.map(found, range(self.n_pieces) if pieces is None else pieces)


def _spread(values: Floats, place: tuple[Numbers, Numbers], shape: tuple[int, int]) -> Floats:
    """Values (queries, a) side by side for each memory, (m, most, a)."""
    m, most = shape
    if len(values) == m * most:  # as a rule, each memory has as many queries
        return values.reshape(m, most, -1)
    side = np.zeros((m, most, values.shape[1]))
    side[place] = values
    return side


def memories(states: StreamStates, *, of_sizes: bool = False) -> Floats:
    """M of each state, (states, d_v, d_k), or the sum of absolute values in its place.

    It is a product of matrices where all keys are seen, and sequences have one length.
    """
    keys = states.keys
    values = keys if states.values is None else states.values
    dense = all(not isinstance(x.storage, tuple) and x.offsets is None for x in (keys, values))
    if not dense or states.gates is not None or (states.seen < keys.longest).any():
        near = states.near()
        return (near.sizes() if of_sizes else near).memory
    b, a = (x.arrays[0][states.sequences].astype(np.float64, copy=False) for x in (keys, values))
    if of_sizes:
        b, a = np.abs(b), np.abs(a)
    return np.asarray(a.transpose(0, 2, 1) @ b)


# ------------------------------------------------------------------------------------- moments


class _Sums(NamedTuple):
    """What a piece adds, besides its factors of the Gram."""

    cross: Floats
    """Its part of sum w c (M'y)', (d_q, d_k)."""
    sizes: Floats
    """Its part of the sizes of summands, (d_k, d_q)."""
    energy: float


def moments(samples: Samples, progress: Progress = None) -> Totals:
    """Sum the moments of a batch; see :meth:`Backend.moments`."""
    rows, features = samples.tokens, samples.features
    assert isinstance(rows, PassedStates)
    shared = SharedMemories(rows, samples.weights)
    k, l = features.n_pairs, features.n_queries
    gram = np.zeros(pair_count(l) * pair_count(k))
    cross, energy = np.zeros((samples.d_out, l, k)), np.zeros(samples.d_out)
    sizes = np.zeros((k, l))
    # Adding a Gram to the totals costs as much as some hundred memories, so many are taken at once
    numbers = rows.d_v * k + shared.most * l
    pieces_at_once = max(1, _SUMMED_AT_ONCE // (numbers * shared.step))
    underflow, wide, calls = may_underflow(samples), 0, 0
    for first in range(0, shared.n_pieces, pieces_at_once):
        pieces = range(first, min(first + pieces_at_once, shared.n_pieces))
        start = first * shared.step
        count = min(pieces.stop * shared.step, shared.n_memories) - start
        memory, asked = np.empty((count, rows.d_v, k)), np.zeros((count, shared.most, l))

        def add(
            piece: Piece, memory: Floats = memory, asked: Floats = asked, start: int = start
        ) -> _Sums:
            M, c, w = piece.memory, piece.query, piece.weights
            place = int(np.searchsorted(shared.starts, piece.rows.start)) - start
            memory[place : place + len(M)] = M
            asked[place : place + len(M), : c.shape[1]] = np.sqrt(w) * c
            A = memories(piece.of, of_sizes=True)
            of_sizes = (A**2).sum(axis=1).T @ (w * c**2).sum(axis=1)
            if samples.targets is None:
                return _Sums(np.zeros((l, k)), of_sizes, 0.0)
            y = piece.targets(samples)
            return _Sums(_flat(w * c).T @ _flat(y @ M), of_sizes, float((w * y**2).sum()))

        with np.errstate(over="ignore", invalid="ignore"):
            for found in shared.each(add, pieces):
                cross += found.cross
                sizes += found.sizes
                energy += found.energy
        summed = _summed(memory, asked, rows)
        gram += summed.gram
        underflow, wide, calls = underflow or summed.underflow, summed.roundings[0], calls + 1
        if progress is not None:
            progress(int(shared.starts[start + count]) * rows.d_v)
    if not all(map(all_finite, (gram, cross, energy, sizes))):
        raise non_finite_error(rows, others=sizes_of(samples))
    # Of the Gram: queries and rows of a memory, and two roots of weights with their products.
    # Of the others, BLAS may sum all queries of a piece in any order.
    of_queries = min(shared.n_memories, shared.step) * shared.most + shared.n_pieces
    roundings = max(wide + shared.most + 4, of_queries) + rows.d_v + calls + 8
    return Totals(
        np.ascontiguousarray(gram.reshape(pair_count(l), pair_count(k)).T),
        cross,
        energy,
        n_samples=samples.n_samples,
        total_weight=samples.total_weight,
        accumulation=Accumulation(roundings, 0, samples.longest, underflow, samples.largest_weight),
        magnitudes=sizes,
        scalar_targets=samples.scalar_targets,
    )


def _summed(memory: Floats, asked: Floats, rows: PassedStates) -> core.Moments:
    """The Gram of memories (m, d_v, d_k) and the queries that share each, (m, most, d_q)."""
    given = core.Samples(tokens=memory, memory=asked, positions="all")
    try:
        return core.accumulate(
            given, precision="float64", with_gram=True, threads=get_num_threads(), progress=None
        )
    except core.NonFiniteError:
        raise non_finite_error(rows) from None


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

    @property
    def _shared(self) -> SharedMemories:
        return SharedMemories(self._samples.tokens, self._samples.weights)

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""

        def of(piece: Piece) -> KroneckerFactors:
            M, c, w = piece.memory, piece.query, piece.weights
            weighted = M * w.sum(axis=1)[:, :, None]
            return KroneckerFactors(
                _flat(weighted).T @ _flat(M),
                M.shape[1] * (_flat(w * c).T @ _flat(c)),
                (M**2).sum(axis=1).T @ (w * c**2).sum(axis=1),
            )

        sums = reduce(added, self._shared.each(of))
        return KroneckerFactors(*map(self._finite, sums))

    def _finite(self, sums: Floats) -> Floats:
        if not all_finite(sums):
            raise non_finite_error(self._samples.tokens)
        return sums

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        forms = C.reshape(len(C), self.features.n_pairs, self.features.n_queries)

        def of(piece: Piece) -> NormalProduct:
            product, energy = np.empty(forms.shape), np.empty(len(C))
            for a, B in enumerate(forms):
                f = piece.outputs(B)
                weighted = piece.weights * f
                energy[a] = (weighted * f).sum()
                product[a] = _flat(weighted @ piece.memory).T @ _flat(piece.query)
            return NormalProduct(product.reshape(C.shape), energy)

        sums = reduce(added, self._shared.each(of))
        return NormalProduct(*map(self._finite, sums))

    def narrow(self, C: Floats) -> None:
        """See :meth:`NormalOperator.narrow`: there is none."""

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        B = C.reshape(self.features.n_pairs, self.features.n_queries)

        def of(piece: Piece) -> Gradient:
            r = piece.targets(self._samples) - piece.outputs(B)  # of weight 0 without a query
            weighted = piece.weights * r
            gradient = _flat(weighted @ piece.memory).T @ _flat(piece.query)
            return Gradient(gradient.reshape(C.shape), np.array([(weighted * r).sum()]))

        sums = reduce(added, self._shared.each(of))
        return Gradient(*map(self._finite, sums))


def apply_forms(C: Floats, rows: PassedStates) -> Floats:
    """Outputs m_j' B_a c of each row, (N d_v, m), for forms C (m, d_k d_q)."""
    y = np.empty((rows.n_rows, len(C)))
    forms = C.reshape(len(C), rows.kind.entries, rows.kind.query)

    def write(piece: Piece) -> None:
        where = slice(piece.rows.start * rows.d_v, piece.rows.stop * rows.d_v)
        for a, B in enumerate(forms):
            y[where, a] = piece.outputs(B)[piece.place].reshape(-1)

    list(SharedMemories(rows, None).each(write))
    return y
