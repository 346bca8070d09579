"""The table of python/linattn_fast/solvers/rates.py, measured here and printed as it stands there.

    make bench-rates

Each rate is the best of a few rounds in turns, so that all see the same machine; the multiply-add
peak of the same rounds is printed beside it. On a quiet machine, put what is printed in the place
of ``AVX512`` there; ``make bench-choices`` then says whether "auto" still takes the right solver.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import linattn_fast as la
from linattn_fast import _cpu
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples
from linattn_fast.linalg.cholesky import try_cholesky
from linattn_fast.system.machine import one_blas_thread

ROUNDS = 5


class Work:
    """Something to be timed: flops, bytes or calls in a run."""

    def __init__(self, amount: float, run: Callable[[], object], shared: bool) -> None:
        self.amount, self.run = amount, run
        self.share = la.get_num_threads() if shared else 1
        """Threads that the rate is divided by."""
        self.seconds = np.inf

    def once(self) -> None:
        """Run, and keep the least time."""
        start = time.perf_counter()
        self.run()
        self.seconds = min(self.seconds, time.perf_counter() - start)

    @property
    def rate(self) -> float:
        """Amount a second, and a thread where threads share it."""
        return self.amount / self.seconds / self.share


def works() -> dict[str, Work]:
    """What is timed for each rate."""
    rng = np.random.default_rng(0)
    d, N = 20, 4000
    q = d * (d + 1) // 2
    Z = rng.standard_normal((N, 16, d))
    compact = la.Moments(d, 0).update(Z)

    large = Samples.checked(rng.standard_normal((20_000, 4, 40)), rng.standard_normal(20_000))
    operator = get_backend("cpu").normal_operator(large, keep=True)
    C = rng.standard_normal((1, large.features.count))
    flops = 4 * large.n_samples * large.features.count

    p, small = 3000, 800
    A = rng.standard_normal((p, p))
    A = A @ A.T / p + np.eye(p)
    few = np.ascontiguousarray(A[:small, :small])
    return {
        "gram": Work(N * (q * d) ** 2 / 2, lambda: la.Moments(d, 0).update(Z), True),
        "float64_pass": Work(flops, lambda: operator.normal(C), True),
        "float32_pass": Work(flops, lambda: operator.narrow(C), True),
        "cholesky": Work(p**3 / 3, lambda: try_cholesky(A.copy(), p), True),
        "lapack": Work(10 * small**3, lambda: np.linalg.eigh(few), False),
        "bytes": Work(8 * (q * d) ** 2, compact.gram, False),
    }


def overheads() -> dict[str, float]:
    """Seconds of small fits, which hardly compute, and of an iteration of conjugate gradients."""
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((400, 16, 4)), rng.standard_normal(400)

    def fitted(solver: str | la.Pcg, samples: int = 400) -> la.Fit:
        return la.fit(Z[:samples], y[:samples], alpha=0.1, solver=solver)

    timed = {
        "cholesky_call": Work(1.0, lambda: fitted("cholesky"), False),
        "dual_call": Work(1.0, lambda: fitted("dual", 30), False),
        "rough": Work(1.0, lambda: fitted(la.Pcg(1e-2)), False),
        "pcg_call": Work(1.0, lambda: fitted("pcg"), False),
    }
    for _ in range(20 * ROUNDS):
        for work in timed.values():
            work.once()
    found = {name: work.seconds for name, work in timed.items()}
    few, many = (timed[name].run().info.iterations for name in ("rough", "pcg_call"))
    found["iteration"] = (found["pcg_call"] - found.pop("rough")) / (many - few)
    found["pcg_call"] -= many * found["iteration"]
    return found


def main() -> None:
    """Print each rate, and the seconds beside them."""
    threads = la.get_num_threads()
    timed, peaks = works(), []
    with one_blas_thread():
        for work in timed.values():
            work.run()
        for _ in range(ROUNDS):
            peaks.append(_cpu.multiply_add_rate(threads) / threads)
            for work in timed.values():
                work.once()
    peak = max(peaks)
    print(f"# {threads} threads, {_cpu.instruction_set()}, peak {peak / 1e9:.0f} GFlop/s each")
    for name, work in timed.items():
        share = f"  # {work.rate / peak:.0%} of peak" if name != "bytes" else ""
        print(f"    {name}={work.rate / 1e9:.3g}e9,{share}")
    for name, seconds in overheads().items():
        print(f"    {name}={seconds:.2g},")


if __name__ == "__main__":
    main()
