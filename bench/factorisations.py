"""Dense factorisations: ours against LAPACK's, and LAPACK's on one thread of BLAS and on all.

.venv/bin/python bench/factorisations.py [largest p]

Everything in linattn_fast holds BLAS to one thread (docs/design.md); this shows what that costs,
and what Cholesky on our own threads gives back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.linalg import eigh, lapack, svd
from threadpoolctl import threadpool_limits

import linattn_fast as la
from linattn_fast.linalg.cholesky import cholesky_in_place


def seconds(work: Callable[[], object], budget: float = 1.0) -> float:
    """Least time of two runs, or of as many as the budget allows."""
    spent: list[float] = []
    while len(spent) < 2 or sum(spent) < budget:
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def cholesky_rates(A: np.ndarray, cores: int) -> list[float]:
    """GFlop/s: LAPACK on all threads and on one, ours on one and on all."""
    work, flops = np.empty_like(A), len(A) ** 3 / 3

    def rate(factorise: Callable[[], object]) -> float:
        def once() -> None:
            nonlocal filling
            start = time.perf_counter()
            work[:] = A
            filling += time.perf_counter() - start
            factorise()

        least = np.inf
        for _ in range(max(2, int(3e9 // flops))):
            filling = 0.0
            start = time.perf_counter()
            once()
            least = min(least, time.perf_counter() - start - filling)
        return float(flops / least / 1e9)

    rates = []
    for threads in (cores, 1):
        with threadpool_limits(threads, user_api="blas"):
            rates.append(rate(lambda: lapack.dpotrf(work.T, lower=True, clean=0, overwrite_a=1)))
    for threads in (1, cores):
        la.set_num_threads(threads)
        rates.append(rate(lambda: cholesky_in_place(work)))
    return rates


def main() -> None:
    """Check Cholesky, then print both tables."""
    largest, cores = int(sys.argv[1]) if len(sys.argv) > 1 else 8000, la.get_num_threads()
    rng = np.random.default_rng(0)
    print(f"{cores} threads at most; load of the machine {os.getloadavg()[0]:.1f}")
    print("Cholesky, GFlop/s: p, LAPACK on all threads, on one; ours on one, on all")
    for p in (100, 300, 500, 1000, 2000, 4000, 8000):
        if p > largest:
            break
        A = rng.standard_normal((p, p)) * (0.3 / np.sqrt(p))
        A = A + A.T + 2 * np.eye(p)
        L = np.tril(cholesky_in_place(A.copy())[0])
        assert np.abs(L @ L.T - A).max() < 1e-13 * p
        print(f"{p:6d}", *(f"{rate:8.1f}" for rate in cholesky_rates(A, cores)), flush=True)
    print("seconds of LAPACK on one thread, on all: eigenvectors, singular vectors, QR of 2 p rows")
    for p in (400, 1200):
        if p > largest:
            break
        A = rng.standard_normal((2 * p, p))
        S = A[:p] + A[:p].T
        for name, work in {
            "eigh": lambda S=S: eigh(S, driver="evd", check_finite=False),
            "svd": lambda A=A, p=p: svd(A[:p], full_matrices=False, check_finite=False),
            "qr": lambda A=A: lapack.dgeqrt(32, np.array(A, order="F"), overwrite_a=1),
        }.items():
            spent = []
            for threads in (1, cores):
                with threadpool_limits(threads, user_api="blas"):
                    spent.append(seconds(work, 0.5))
            print(f"{p:6d} {name:5}", *(f"{one:8.3f}" for one in spent), flush=True)


if __name__ == "__main__":
    main()
