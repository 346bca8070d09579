"""Heads of coefficients: what finding them takes against the dense ways, in the same run.

.venv/bin/python bench/heads.py [largest d of the dense way]

The span of planted heads by iteration, against the eigenvectors of the matrix written out; and the
answer to noise, against the SVD that it is made of. Answers are checked before they are timed.
"""

from __future__ import annotations

import os
import sys

import numpy as np
from factorisations import seconds
from threadpoolctl import threadpool_limits

import linattn_fast as la
from linattn_fast.arrays.types import Floats
from linattn_fast.heads.ranks import contract_pairs
from linattn_fast.heads.recovery import TOLERANCE, Wanted, heads_of
from linattn_fast.heads.span import dense_span, points_needed, span
from linattn_fast.heads.svd import svd_factors


def planted(rng: np.random.Generator, d: int, d_out: int, H: int) -> Floats:
    """Coefficients of H random heads."""
    V, Q = rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d))
    return np.asarray(la.Heads(V, Q).coefficients())


def span_row(rng: np.random.Generator, d: int, d_out: int, H: int, largest: int) -> str:
    """Seconds of all heads, of their span, and of the dense span."""
    C = planted(rng, d, d_out, H)
    heads = la.recover_heads(C, d)
    assert len(heads) == H
    assert np.linalg.norm(heads.coefficients() - C) <= 1e-12 * np.linalg.norm(C)
    whole = seconds(lambda: la.recover_heads(C, d))
    x = rng.standard_normal((points_needed(H, d, d), d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    M = contract_pairs(C, x).transpose(0, 2, 1)
    ours = seconds(lambda: span(M, x, H))
    row = f"{d:6d} {d_out:6d} {H:6d} {whole:9.3f} {ours:9.3f}"
    if d > largest:
        return f"{row} {'':>9} {'':>7}"
    dense = seconds(lambda: dense_span(M, x, H), 0.0)
    return f"{row} {dense:9.3f} {dense / ours:6.1f}x"


def noise_row(rng: np.random.Generator, d: int, d_out: int) -> str:
    """Seconds of the heads of coefficients that a fit knows to have noise, and of an SVD."""
    C = rng.standard_normal((d_out, d * d * (d + 1) // 2))
    wanted = Wanted("minimal", TOLERANCE, noise="the benchmark made it so")
    count = min(d_out * d, d * d)
    assert len(heads_of(C, d, wanted)) == count
    ours, alone = seconds(lambda: heads_of(C, d, wanted)), seconds(lambda: svd_factors(C, d))
    return f"{d:6d} {d_out:6d} {count:6d} {ours:9.3f} {alone:9.3f} {ours / alone:6.1f}x"


def main() -> None:
    """Print both tables."""
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    rng = np.random.default_rng(0)
    print(f"one thread of BLAS; load of the machine {os.getloadavg()[0]:.1f}")
    with threadpool_limits(1, user_api="blas"):
        print("planted heads, seconds: d, outputs, heads; recover_heads, its span, the dense span")
        for d, d_out, H in ((40, 1, 1), (64, 1, 1), (64, 4, 4), (128, 1, 1)):
            print(span_row(rng, d, d_out, H, largest), flush=True)
        print("noise, seconds: d, outputs, heads; their recovery, an SVD alone")
        for d, d_out in ((16, 16), (64, 1), (32, 32)):
            print(noise_row(rng, d, d_out), flush=True)


if __name__ == "__main__":
    main()
