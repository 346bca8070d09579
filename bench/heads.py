"""Heads of coefficients: what finding them takes against an SVD of these, in the same run.

.venv/bin/python bench/heads.py

Planted heads, which ranks give; and the answer to noise, which is an SVD. Answers are checked
before they are timed.
"""

from __future__ import annotations

import os

import numpy as np
from factorisations import seconds
from threadpoolctl import threadpool_limits

import linattn_fast as la
from linattn_fast.arrays.types import Floats
from linattn_fast.heads.svd import svd_factors


def planted(rng: np.random.Generator, d: int, d_out: int, H: int) -> Floats:
    """Coefficients of H random heads."""
    V, Q = rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d))
    return np.asarray(la.Heads(V, Q).coefficients())


def row(C: Floats, d: int, count: int, noise: float) -> str:
    """Seconds of the heads of coefficients, of which there are so many, and of an SVD alone."""

    def found() -> la.Heads:
        return la.recover_heads(C, d, noise=noise)

    heads = found()
    assert len(heads) == count
    assert np.linalg.norm(heads.coefficients() - C) <= 1e-12 * np.linalg.norm(C)
    ours, alone = seconds(found), seconds(lambda: svd_factors(C, d))
    return (
        f"{d:6d} {len(C):6d} {count:6d} {1e3 * ours:9.2f} {1e3 * alone:9.2f} {ours / alone:6.1f}x"
    )


def main() -> None:
    """Print both tables."""
    rng = np.random.default_rng(0)
    print(f"one thread of BLAS; load of the machine {os.getloadavg()[0]:.1f}")
    print("milliseconds: d, outputs, heads; recover_heads, an SVD alone, and the ratio")
    with threadpool_limits(1, user_api="blas"):
        print("planted heads")
        sizes = (4, 1, 2), (8, 1, 3), (8, 8, 3), (16, 1, 2), (32, 1, 1), (64, 4, 4), (128, 1, 1)
        for d, d_out, H in sizes:
            print(row(planted(rng, d, d_out, H), d, H, 0.0), flush=True)
        print("noise")
        for d, d_out in ((16, 16), (64, 1), (32, 32)):
            C = rng.standard_normal((d_out, d * d * (d + 1) // 2))
            print(row(C, d, min(d_out * d, d * d), 1.0), flush=True)


if __name__ == "__main__":
    main()
