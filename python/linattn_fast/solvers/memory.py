"""Bytes each step needs, told before anything is allocated."""

from __future__ import annotations

import sys

from ..arrays import compiled
from ..arrays.types import Positions, as_positions
from ..features.compact import compact_bytes
from ..features.features import Features, as_features, pair_count
from ..linalg.cholesky import factor_bytes
from ..problem.streamed import Data
from ..system.arguments import as_size
from ..system.threads import get_num_threads


def kept_samples_bytes(features: Features, d_out: int, positions: Positions, columns: int) -> int:
    """Bytes of the packed samples that PCG keeps between passes where there is room.

    A column is a sample, or for "all" a sequence, with S of its queries in the place of z.
    """
    q, k = features.n_pairs, features.n_queries
    rows = q + pair_count(k) + 1 if positions == "all" else q + k + d_out + 1
    return 8 * rows * (columns + compiled.SAMPLE_QUANTUM)


def _slabs_bytes(n_samples: int, entries: int) -> int:
    """Bytes of the partial sums of a pass: one sum a slab, and one alone without the extension."""
    if compiled.MISSING is not None:
        return 8 * entries
    # Where a number does not fit the extension's integers, neither do the sums fit any memory.
    most = sys.maxsize
    return 8 * entries * compiled.core.pass_slabs(min(n_samples, most), min(entries, most))


def _pcg_bytes(features: Features, d_out: int, n_samples: int) -> int:
    """Bytes of a fit by conjugate gradients whose samples are made anew in every pass."""
    q, k, p = features.n_pairs, features.n_queries, features.count
    # The blocks at work, one a thread.
    rows = 8 * compiled.BLOCK_STRIDE * (3 * q + 4 * (k + d_out)) * get_num_threads()
    factors = q * q + k * k + q * k
    # Sums of the Kronecker factors; then their eigenvectors, with LAPACK's work space, beside the
    # vectors of the iteration and, once more for the certificate, the sums of a pass.
    setup = _slabs_bytes(n_samples, factors) + 16 * factors
    vectors = 8 * 16 * max(d_out, 3) * p
    decomposition = 8 * 7 * (q * q + k * k)
    passes = _slabs_bytes(n_samples, max(d_out, 1) * (p + 1))
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

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.estimate_memory(16)["moments"]  # 20 megabytes, however many sequences there are
    20306448
    """
    d, d_out = as_size(d, "d"), as_size(d_out, "d_out", least=0)
    features = as_features(features, d)
    p = features.count
    moments = compact_bytes(features, d_out, as_positions(positions))
    dense, vectors = 8 * p * p, 8 * p * max(d_out, 1)
    estimate = {
        "moments": 2 * moments,
        # A second matrix when a ridge makes the certificate need a factorisation of its own
        "cholesky": max(2 * moments, moments + 2 * dense + 4 * vectors + factor_bytes(p)),
        # LAPACK's divide and conquer works in 2 p^2 beside the matrix and its eigenvectors
        "eigh": max(2 * moments, moments + 5 * dense + 4 * vectors),
        # A batch of 2 p rows beside the triangle and their copy, or the triangle's SVD
        "qr": max(2 * moments, moments + 8 * dense + 4 * vectors),
    }
    if n_samples is not None:
        n = as_size(n_samples, "n_samples")
        # The kernel and the product it is formed from; s, z and their copies; the answer.
        estimate["pcg"] = _pcg_bytes(features, d_out, n)
        estimate["dual"] = 8 * (2 * n * n + 3 * n * (pair_count(d) + d + d_out)) + 4 * vectors
    return estimate


def dual_bytes(problem: Data) -> int:
    """Bytes of a fit from the kernel of the samples; 0 where their number is not known yet."""
    estimate = estimate_memory(
        problem.features.d,
        problem.d_out,
        positions=problem.positions,
        n_samples=problem.n_samples,
        features=problem.features,
    )
    return estimate.get("dual", 0)
