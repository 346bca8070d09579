"""The rates that python/linattn_fast/solvers/costs.py assumes, measured here, per thread.

.venv/bin/python bench/rates.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.linalg import eigh, lapack

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples


def seconds(work: Callable[[], object], runs: int = 3) -> float:
    """Least time of a few runs."""
    spent = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def main() -> None:
    """Print each rate."""
    rng = np.random.default_rng(0)
    threads = la.get_num_threads()

    d, N = 20, 4000
    q = d * (d + 1) // 2
    Z = rng.standard_normal((N, 16, d))
    moments = la.Moments(d, 0)
    gram = N * q**2 * d**2 / 2 / seconds(lambda: moments.update(Z))
    print(f"GRAM_RATE   {gram / threads:.2g} flops a second")
    compact = la.Moments(d, 0).update(Z)
    print(f"BYTES_RATE  {8 * (q * d) ** 2 / seconds(compact.gram):.2g} bytes a second")

    d, N = 40, 20_000
    q = d * (d + 1) // 2
    samples = Samples.checked(rng.standard_normal((N, 4, d)), rng.standard_normal(N))
    features = samples.features
    operator = get_backend("cpu").normal_operator(samples, keep=True)
    C = rng.standard_normal((1, features.count))
    operator.normal(C)
    rate = 4 * N * q * d / seconds(lambda: operator.normal(C))
    print(f"PASS_RATE   {rate / threads:.2g} flops a second")

    p = 4000
    A = rng.standard_normal((p, p))
    A = A @ A.T / p + np.eye(p)
    cholesky = p**3 / 3 / seconds(lambda: lapack.dpotrf(A.T, lower=True))
    print(f"LAPACK_RATE {cholesky / threads:.2g} flops a second of Cholesky")
    small = A[:1500, :1500]
    spectral = 10 * 1500**3 / seconds(lambda: eigh(small), 1)
    print(f"            {spectral / threads:.2g} of the eigendecomposition, counted as 10 q^3")


if __name__ == "__main__":
    main()
