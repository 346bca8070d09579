"""Bytes each step needs, told before anything is allocated."""

from __future__ import annotations

import math

from . import compact
from .features import Features, as_features, pair_count
from .machine import usable_memory
from .tokens import Positions, as_positions, as_size


def compact_bytes(features: Features, d_out: int, positions: Positions = "last") -> int:
    """Bytes of the compact Gram, the cross moment and the energy."""
    return 8 * (math.prod(compact.shape(features, positions)) + d_out * (features.count + 1))


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
        Number of samples, which the dual solver's memory depends on.
    features
        Which features take part; None is all.

    Returns
    -------
    dict
        ``"moments"``: accumulation, the totals and those of one batch. ``"cholesky"``, ``"eigh"``
        and ``"qr"``: a fit by that solver, the moments included. ``"dual"``, when ``n_samples`` is
        given: a fit from the kernel of the samples.

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
        "cholesky": max(2 * moments, moments + 2 * dense + 4 * vectors),
        # LAPACK's divide and conquer works in 2 p^2 beside the matrix and its eigenvectors
        "eigh": max(2 * moments, moments + 5 * dense + 4 * vectors),
        # A batch of 2 p rows beside the triangle and their copy, or the triangle's SVD
        "qr": max(2 * moments, moments + 8 * dense + 4 * vectors),
    }
    if n_samples is not None:
        n = as_size(n_samples, "n_samples")
        # The kernel and the product it is formed from; s, z and their copies; the answer.
        estimate["dual"] = 8 * (2 * n * n + 3 * n * (pair_count(d) + d + d_out)) + 4 * vectors
    return estimate


def as_memory_limit(memory_limit: object) -> int | None:
    """Check a number of bytes, or None."""
    if memory_limit is None:
        return None
    if isinstance(memory_limit, bool):
        raise TypeError("memory_limit: a number of bytes is needed, got bool")
    return as_size(memory_limit, "memory_limit")


def in_words(size: int) -> str:
    """Bytes for people."""
    if size < 1000:
        return f"{size} bytes"
    number = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        number /= 1000
        if number < 1000 or unit == "PB":
            break
    return f"{number:.3g} {unit}"


def require_memory(needed: int, what: str, memory_limit: int | None = None) -> None:
    """Raise MemoryError, before any work, when ``needed`` bytes are more than may be used."""
    limit = usable_memory() if memory_limit is None else memory_limit
    if needed > limit:
        source = "this machine has" if memory_limit is None else "memory_limit is"
        raise MemoryError(f"{what} needs {in_words(needed)}, {source} {in_words(limit)}")
