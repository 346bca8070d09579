"""What each solver costs, told before anything is allocated: seconds predicted, and bytes counted.

    cholesky     Gram N q^2 k^2 / 2 (all: N q^3 / 3), factorisation p^3 / 3, a reading for the
                 refinement; with a certificate one more factorisation, and lambda_min from it
    dual         kernel 2 N^2 q, factorisation N^3 / 3
    pcg          Kronecker factors N q^2, their eigenvectors 10 q^3, iterations 4 N p d_out each;
                 with a certificate passes for lambda_min, and Gram and factorisation of a part

with N samples, q pairs, k queries and p = q k features, over the rates of :mod:`.rates`. The number
of iterations follows from the spectrum that random features would have (:mod:`.expected`).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..arrays import compiled
from ..arrays.types import Positions
from ..data.tokens import as_positions
from ..features.compact import compact_bytes
from ..features.features import Features, as_features, pair_count
from ..features.samples import Samples
from ..linalg.cholesky import factor_bytes
from ..problem.in_memory import InMemory
from ..problem.interface import Problem
from ..problem.survey import Survey
from ..system.arguments import as_size
from ..system.machine import get_num_threads, usable_cores, usable_memory
from .conjugate_gradients.expected import expected_iterations
from .conjugate_gradients.narrow import WORTHWHILE
from .conjugate_gradients.restarts import TOLERANCE
from .rates import Rates, rates

_SVD = 22
"""Multiples of p^3 flops that an SVD with vectors takes."""
_ITERATIONS, _ITERATIONS_WITH_RIDGE = 2.3, 1.7
"""Iterations to rounding over those of one solve of whitened random samples: a second solve from
recomputed residuals, heavier tails, and without a ridge more digits to go."""
_FEW_SAMPLES_LIMIT = 400.0
"""Iterations of one solve with fewer samples than features and a ridge, at most."""
_LEAST_RIDGE = 1e-7
"""Ridge, relative to the mean square of a feature, below which conjugate gradients are not taken
for fewer samples than features: their error would be too large."""
_SOME = 64
"""Sequences that tell the size of a feature."""
_KEPT_FREELY, _HELD_FREELY = 256_000_000, 350_000_000
"""Bytes of samples that are kept between passes without anybody asking for it, and of a stream in
float32."""
_STREAMED, _READINGS = 0.3e9, 8
"""Bytes a second of a stream that is read or drawn, and how often conjugate gradients read it."""
_ESTIMATE_PASSES = 32
"""Passes that lambda_min is estimated with for a certificate of conjugate gradients."""
_DENSE, _DENSE_CERTIFICATE, _DENSE_DUAL = 2, 8, 12
"""Times that a dense matrix is gone through: by Cholesky, for lambda_min from its factor, and in
the work on the kernel."""
PATIENCE = 20.0
"""Seconds that a proof, or a second attempt at a solution, is worth."""
WORTH = 4.0
"""How many times as long as conjugate gradients a proof may take beyond that."""
PART = 1.5
"""Samples a feature that a proof needs, at least."""
_WORTH_LOOKING = 0.1
"""Predicted seconds of the whole below which it is not worth looking for blocks."""


_HEAD_PRODUCTS, _HEAD_OVERHEAD = 300, 3e-4
"""Products that heads take to be found from passes, and seconds of each beside its flops."""
_ROUGH_PASSES = 40
"""Passes for coefficients that they take as well."""
HEAD_BLOCK_BYTES = 1 << 21
"""Bytes of the matrices S of samples that are worked on together: they stay in the cache."""
HEAD_RATE = 10e9
"""Flops a second of products with S, a sample at a time."""


@dataclass(frozen=True)
class Costs:
    """Predicted seconds of each solver."""

    cholesky: float
    """Seconds of moments, Cholesky and, where it is wanted, its proof."""
    dual: float
    pcg: float
    """Seconds of the passes, without a proof."""
    proof: float
    """Seconds of the proof of a certificate, on a part of the samples."""


def predicted_iterations(n_samples: int, dimension: int, ridge: float) -> float:
    """Iterations of a fit, with a ridge relative to the mean square of a feature.

    Fewer samples than features have no least eigenvalue but the ridge: from 1 + r^-1/2, squared,
    down to it, with r = N / p.
    """
    many = _ITERATIONS_WITH_RIDGE if ridge > 0 else _ITERATIONS
    if n_samples >= dimension:
        return many * expected_iterations(n_samples, dimension, TOLERANCE)
    if ridge < _LEAST_RIDGE:
        return math.inf
    largest = 1 + math.sqrt(dimension / n_samples)
    one = 0.5 * math.sqrt(1 + largest**2 / ridge) * math.log(2 / TOLERANCE)
    return many * min(one, _FEW_SAMPLES_LIMIT)


def predict(
    features: Features,
    d_out: int,
    positions: Positions,
    n_samples: int,
    columns: int,
    *,
    proof: bool,
    ridge: float = 0.0,
    data_bytes: int = 0,
    kept: bool = True,
    narrow: bool = True,
) -> Costs:
    """Predict the seconds of each solver; ``columns`` are samples, or sequences for "all".

    All cores count, not the threads that are set: solvers differ in the last bits, and results are
    to have the same bits for every number of threads.

    Parameters
    ----------
    features, d_out, positions, n_samples, columns
        The problem.
    proof
        Whether Cholesky is followed by a certificate.
    ridge
        alpha relative to the mean square of a feature.
    data_bytes
        Bytes of the tokens, each of which is read.
    kept
        Whether conjugate gradients keep samples between passes; else each reads the tokens again.
    narrow
        Whether they may take passes in float32.
    """
    sizes = features.d, features.n_pairs, features.n_queries
    triples = positions == "all" and features.everything
    how = proof, ridge, data_bytes, kept, narrow, usable_cores(), rates()
    return _predicted(sizes, d_out, triples, n_samples, columns, *how)


@lru_cache(maxsize=64)
def _predicted(
    sizes: tuple[int, int, int],
    d_out: int,
    triples: bool,
    n_samples: int,
    columns: int,
    proof: bool,
    ridge: float,
    data_bytes: int,
    kept: bool,
    narrow: bool,
    threads: int,
    rate: Rates,
) -> Costs:
    """The seconds of :func:`predict`, remembered: many fits have the sizes of the one before."""
    (d, q, k), n = sizes, n_samples
    p = q * k
    gram = columns * (q**3 / 3 if triples else q * q * k * k / 2) / rate.gram / threads
    factor = p**3 / 3 / rate.cholesky / threads
    dense = 8 * p * p / rate.bytes
    # Tokens are read, and S is formed of them, 2 q flops a token of d numbers
    reading = data_bytes / rate.bytes + data_bytes / 8 / d * 2 * q / rate.gram / threads
    work = 4.0 * columns * p
    exact_pass = work / rate.float64_pass / threads
    fast = rate.float32_pass if narrow and work >= WORTHWHILE else rate.float64_pass
    # The whitening: products with the factors' eigenvectors on either side
    iteration = d_out * (work / fast + 4 * p * (q + k) / rate.float64_pass) / threads
    iteration += rate.iteration + (0.0 if kept else reading)
    setup = columns * q * q / rate.gram / threads + 10 * q**3 / rate.lapack
    part = min(1.0, PART * p / n)
    certificate = factor + _DENSE_CERTIFICATE * dense if proof else 0.0
    return Costs(
        cholesky=gram + factor + _DENSE * dense + 2 * reading + 2 * d_out * exact_pass
        + certificate,
        dual=reading + (2 * n * n * q + n**3 / 3) / rate.cholesky / threads
        + _DENSE_DUAL * 8 * n * n / rate.bytes,
        pcg=reading + setup + predicted_iterations(n, p, ridge) * iteration,
        proof=part * (gram + reading) + factor + _DENSE * dense
        + _ESTIMATE_PASSES * (exact_pass + rate.iteration),
    )  # fmt: skip


def predicted_seconds(
    problem: InMemory, alpha: float, kept: Kept, *, certify: bool
) -> dict[str, float]:
    """Predict the seconds of a fit of data in memory by each solver, the certificate included."""
    n, p, rate = problem.n_samples, problem.features.count, rates()
    certify = certify and n >= p  # else counting is enough
    shape = problem.features, problem.d_out, problem.positions
    costs = predict(
        *shape,
        n,
        problem.n_columns,
        proof=certify,
        ridge=relative_ridge(problem.samples, alpha),
        data_bytes=problem.samples.nbytes,
        kept=kept.packed > 0,
        narrow=kept.narrow > 0,
    )
    proof = costs.proof if certify and worth_proving(costs) else 0.0
    by_features = predict_orthogonal(problem.features, n) + costs.cholesky
    return {
        "cholesky": rate.cholesky_call + costs.cholesky,
        "pcg": rate.pcg_call + costs.pcg + proof,
        # The kernel of more samples than features is singular, and they are decomposed
        "dual": rate.dual_call + costs.dual + (by_features if n >= p else 0.0),
        "qr": rate.cholesky_call + by_features,
    }


def seconds_of_stream(problem: Problem, survey: Survey, *, proof: bool) -> tuple[float, float]:
    """Predict the seconds of Cholesky and of conjugate gradients for a stream that is held.

    Cholesky reads it once for the moments and once to refine. Conjugate gradients read it some
    times for residuals, and what is held in every pass; they estimate lambda_min by passes.
    """
    shape = problem.features, problem.d_out, problem.positions
    n, p = survey.n_samples, problem.features.count
    if n < p:
        return 0.0, math.inf
    held = survey.held
    costs = predict(
        *shape, n, survey.n_columns, proof=proof, data_bytes=held, kept=False, narrow=False
    )
    reading = survey.nbytes / _STREAMED
    by_passes = costs.pcg + (costs.proof if proof else 0.0)
    return costs.cholesky + 2 * reading, by_passes + _READINGS * reading


@dataclass(frozen=True)
class Kept:
    """What conjugate gradients keep of the samples between passes; the rest is made anew."""

    packed: int = 0
    """Bytes of packed samples in float64; 0 where they are not kept."""
    narrow: int = 0
    """Bytes of s in float32 beside them, for passes in it; 0 where it is not kept."""

    @classmethod
    def of(cls, problem: Problem, memory_limit: int | None, *, sparing: bool) -> Kept:
        """Keep what fits in the limit, or in half of the machine's memory.

        Where nobody asked for conjugate gradients (``sparing``), no more is kept than 256 MB or a
        tenth of the data: memory is not to grow with the number of samples.
        """
        if problem.samples is None or problem.n_columns is None:  # a stream or a cluster
            return cls()
        shape = problem.features, problem.d_out, problem.positions
        packed = kept_samples_bytes(*shape, problem.n_columns)
        narrow = narrow_samples_bytes(problem.features, problem.n_columns)
        room = room_for_samples(problem, memory_limit, sparing=sparing)
        if packed + narrow <= room:
            return cls(packed, narrow)
        return cls(packed) if packed <= room else cls()


def room_for_samples(problem: Problem, memory_limit: int | None, *, sparing: bool) -> int:
    """Bytes that samples may be kept in from pass to pass; see :meth:`Kept.of`."""
    room = usable_memory() // 2 if memory_limit is None else memory_limit
    room -= bytes_of(problem).get("pcg", 0)
    if not sparing:
        return room
    if problem.samples is None:
        return min(room, _HELD_FREELY)
    return min(room, max(_KEPT_FREELY, problem.samples.nbytes // 10))


def relative_ridge(samples: Samples, alpha: float) -> float:
    """Return alpha over the mean square of a feature, |s|^2 |z|^2 / p of some sequences.

    Only fewer samples than features need it; otherwise any ridge counts as the smallest number.
    """
    if alpha == 0:
        return 0.0
    p = samples.features.count
    if samples.n_samples >= p or samples.device is not None:
        return sys.float_info.min
    count = min(samples.n_sequences, _SOME)
    some = samples.chosen(np.linspace(0, samples.n_sequences - 1, count).astype(np.intp))
    s, z = some.rows()
    size = float(((s**2).sum(axis=1) * (z**2).sum(axis=1)).mean()) / p
    return alpha / size if size > 0 else sys.float_info.max


@dataclass(frozen=True)
class HeadCosts:
    """Flops of one product with the derivative of H heads and its adjoint; bytes to save some."""

    n_samples: int
    d: int
    d_out: int
    H: int

    @classmethod
    def of(cls, problem: Problem, H: int, n_samples: int) -> HeadCosts:
        """The costs of heads of a problem with so many samples."""
        return cls(n_samples, problem.features.d, problem.d_out, H)

    @property
    def by_coefficients(self) -> float:
        """Flops of a pass for the coefficients of the heads."""
        return 4.0 * self.n_samples * pair_count(self.d) * self.d * self.d_out

    @property
    def by_samples(self) -> float:
        """Flops where S is at hand: three products with S, three with Q, and V."""
        return 4.0 * self.n_samples * self.H * self.d * (3 * self.d + self.d_out)

    @property
    def by_derivatives(self) -> float:
        """Flops where S Q_h z and S V_h' are at hand."""
        return 4.0 * self.n_samples * self.H * self.d * (self.d + 1 + self.d_out)

    @property
    def bytes(self) -> int:
        """Bytes at work beside those of conjugate gradients: a block of samples, and a row of P."""
        block = min(HEAD_BLOCK_BYTES, 8 * self.n_samples * self.d**2) + 8 * self.d**2
        return 2 * block + 2 * 8 * self.d**3

    @property
    def _bytes_kept(self) -> tuple[int, int]:
        """Bytes of s; and of S Q_h z and S V_h', at a point and at the next one that is tried."""
        s = 8 * self.n_samples * pair_count(self.d)
        return s, 2 * 8 * self.n_samples * (1 + self.d_out) * self.H * self.d

    def bytes_with(self, keep: bool, derivatives: bool) -> int:
        """Bytes at work with what is kept."""
        s, more = self._bytes_kept
        return self.bytes + keep * s + derivatives * more

    def kept(self, memory: int, *, again: bool) -> tuple[bool, bool]:
        """Whether s, and whether S Q_h z and S V_h', are kept of all samples in so many bytes.

        Where the data is not in memory (``again``), neither is.
        """
        s, derivatives = self._bytes_kept
        if not again:
            return False, False
        few = self.d_out * self.H <= 2 * self.d
        if few and derivatives <= memory:
            return derivatives + s <= memory, True
        return s <= memory, False

    @property
    def seconds(self) -> float:
        """Seconds of a fit of so many heads, by some hundred products."""
        rough = _ROUGH_PASSES * self.by_coefficients / rates().float64_pass / usable_cores()
        return _HEAD_PRODUCTS * (self.by_samples / HEAD_RATE + _HEAD_OVERHEAD) + rough


def seconds_worth_cutting(problem: Problem, memory: int, *, proof: bool) -> float | None:
    """Predicted seconds of a factorisation of all features, infinite where memory is short.

    None where they are so few that looking for blocks is not worth it, for states, and on a device,
    which would wait for hundreds of small factorisations.
    """
    n, columns, features = problem.n_samples, problem.n_columns, problem.features
    if n is None or columns is None or problem.engine.on_device or not features.sums_cancel:
        return None
    name = "dual" if n < features.count else "cholesky"
    if bytes_of(problem)[name] > memory:
        return math.inf
    costs = predict(features, problem.d_out, problem.positions, n, columns, proof=proof)
    seconds = costs.dual if name == "dual" else costs.cholesky
    return seconds if seconds >= _WORTH_LOOKING else None


def worth_proving(costs: Costs) -> bool:
    """Whether a proof takes few seconds, or is in proportion to the solution that it is about."""
    return costs.proof <= max(PATIENCE, WORTH * costs.pcg)


def predict_orthogonal(features: Features, n_samples: int) -> float:
    """Predict the seconds of "qr": a triangle of the features, and its singular vectors."""
    p = features.count
    return (2 * n_samples * p**2 + _SVD * p**3) / rates().lapack


# ------------------------------------------------------------------------------------------ bytes


def kept_samples_bytes(features: Features, d_out: int, positions: Positions, columns: int) -> int:
    """Number of bytes of the packed samples that PCG keeps between passes where there is room.

    A column is a sample, or for "all" a sequence, with S of its queries in the place of z.
    """
    q, k = features.n_pairs, features.n_queries
    rows = q + pair_count(k) + 1 if positions == "all" else q + k + d_out + 1
    return 8 * rows * (columns + compiled.SAMPLE_QUANTUM)


def narrow_samples_bytes(features: Features, columns: int) -> int:
    """Bytes of s in float32, which PCG keeps beside the packed samples where there is room."""
    return 4 * features.n_pairs * (columns + compiled.SAMPLE_QUANTUM)


def _slabs_bytes(n_samples: int, entries: int) -> int:
    """Number of bytes of the partial sums of a pass: one a slab; without the extension, one."""
    if compiled.MISSING is not None:
        return 8 * entries
    # Where a number does not fit the extension's integers, neither do the sums fit any memory.
    most = sys.maxsize
    return 8 * entries * compiled.core.pass_slabs(min(n_samples, most), min(entries, most))


def _pcg_bytes(q: int, k: int, d_out: int, n_samples: int, threads: int) -> int:
    """Number of bytes of conjugate gradients whose samples are made anew in every pass."""
    p = q * k
    # The blocks at work, one a thread.
    rows = 8 * compiled.BLOCK_STRIDE * (3 * q + 4 * (k + d_out)) * threads
    factors = q * q + k * k + q * k
    # Sums of the Kronecker factors; then their eigenvectors, with LAPACK's work space, beside the
    # vectors of the iteration and, once more for the certificate, the sums of a pass.
    setup = _slabs_bytes(n_samples, factors) + 16 * factors
    vectors = 8 * 16 * max(d_out + 1, 3) * p
    decomposition = 8 * 9 * (q * q + k * k)
    passes = _slabs_bytes(n_samples, (d_out + 1) * (p + 1))  # with the random row
    return rows + vectors + max(setup, decomposition + passes)


def estimate_memory(
    d: int,
    d_out: int = 1,
    *,
    positions: Positions = "last",
    n_samples: int | None = None,
    features: Features | None = None,
) -> dict[str, int]:
    """Bytes that each part of a fit holds at its peak, beside the data.

    Parameters
    ----------
    d
        Coordinates of a token.
    d_out
        Outputs.
    positions
        "last", "all" or "causal".
    n_samples
        Number of samples, which the memory of "dual" and "pcg" depends on.
    features
        Which features take part; None is all.

    Returns
    -------
    dict
        ``"moments"``: accumulation, the totals and those of one batch. ``"cholesky"``, ``"eigh"``
        and ``"qr"``: a fit by that solver, the moments included. ``"dual"``, when ``n_samples`` is
        given: a fit from the kernel of the samples; ``"pcg"``, then too: conjugate gradients that
        make the samples anew in every pass (they are kept between passes where there is room).
        ``"proof"``: the proof of a certificate from a part of a stream.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.estimate_memory(16)["moments"]  # 20 megabytes, however many sequences there are
    20306448
    """
    chosen = as_features(features, as_size(d, "d"))
    n = None if n_samples is None else as_size(n_samples, "n_samples")
    return _bytes_by_solver(chosen, as_size(d_out, "d_out", least=0), as_positions(positions), n)


def _bytes_by_solver(
    features: Features, d_out: int, positions: Positions, n_samples: int | None
) -> dict[str, int]:
    """The estimate of :func:`estimate_memory`, for sizes that have been checked."""
    q, k = features.n_pairs, features.n_queries
    formed = pair_count(features.d) + features.d if features.sums_cancel else q + k
    moments = compact_bytes(features, d_out, positions)
    how = get_num_threads(), compiled.MISSING is None
    return dict(_counted_bytes(q, k, formed, d_out, moments, n_samples, *how))


@lru_cache(maxsize=64)
def _counted_bytes(
    q: int,
    k: int,
    formed: int,
    d_out: int,
    moments: int,
    n_samples: int | None,
    threads: int,
    own_code: bool,
) -> dict[str, int]:
    """Count the bytes, and remember them: many fits have the sizes of the one before.

    ``formed`` counts the numbers of a sample that the kernel is made of; ``own_code`` says whether
    the compiled extension is there, whose buffers count.
    """
    p = q * k
    dense, vectors = 8 * p * p, 8 * p * max(d_out, 1)
    estimate = {
        "moments": 2 * moments,
        # Of a part of a stream, factorised by halves
        "proof": moments + dense * 3 // 4,
        # A second matrix when a ridge makes the certificate need a factorisation of its own
        "cholesky": max(2 * moments, moments + 2 * dense + 4 * vectors + factor_bytes(p)),
        # LAPACK's divide and conquer works in 2 p^2 beside the matrix and its eigenvectors
        "eigh": max(2 * moments, moments + 5 * dense + 4 * vectors),
        # A batch of 2 p rows beside the triangle and their copy, or the triangle's SVD
        "qr": max(2 * moments, moments + 8 * dense + 4 * vectors),
    }
    if n_samples is not None:
        n = n_samples
        # The kernel and the product it is formed from; s, z and their copies; the answer.
        estimate["pcg"] = _pcg_bytes(q, k, d_out, n, threads)
        estimate["dual"] = 8 * (2 * n * n + 3 * n * (formed + d_out)) + 4 * vectors
    return estimate


def bytes_of(problem: Problem, n_samples: int | None = None) -> dict[str, int]:
    """Estimate the bytes of each solver; "dual" and "pcg" only where samples are counted."""
    n = problem.n_samples if n_samples is None else n_samples
    return _bytes_by_solver(problem.features, problem.d_out, problem.positions, n)


def dual_bytes(problem: Problem) -> int:
    """Estimate the bytes of the dual; 0 where the number of samples is not known yet."""
    return bytes_of(problem).get("dual", 0)


def what_needs(features: Features, solver: str) -> str:
    """The words of a refusal for a fit that needs too much memory."""
    return f"fit: {features.made_of} ({features.count} features), solver {solver!r},"
