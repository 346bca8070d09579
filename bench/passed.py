"""Values passed through: seconds of the moments and of the fit, beside the flops at the peak.

d_k = d_q = 64, d_v = 32, 8,000 sequences of 32 queries: 256,000 states, 8.2 million equations for
4,096 unknowns. Two forms of such data:

    streams   la.Streams, positions "all": the 32 queries of a sequence share its memory, so that
              the Gram has one term for each sequence
    states    la.States, a memory for each query, as of a causal layer; some of them, since all
              memories would take 4 GB

The peak of multiply-adds is measured in the same run. The answer is checked against the planted
form first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import linattn_fast as la
from linattn_fast import _cpu

D_V, D, SEQUENCES, QUERIES, KEYS = 32, 64, 8_000, 32, 48
PAIRS = D * (D + 1) // 2


def data(sequences: int) -> tuple[la.Streams, np.ndarray, np.ndarray]:
    """Streams, the planted form, and the outputs of all queries, (N, m, d_v)."""
    rng = np.random.default_rng(0)
    queries, keys, values = (
        rng.standard_normal((sequences, n, d)) for n, d in ((QUERIES, D), (KEYS, D), (KEYS, D_V))
    )
    B = rng.standard_normal((D, D)) / D
    memory = values.transpose(0, 2, 1) @ keys
    y = (queries @ B.T) @ memory.transpose(0, 2, 1)
    return la.Streams(queries, keys, values), B, y


def best(call: Callable[[], object], repeats: int) -> float:
    """Fewest seconds of some calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def report(what: str, seconds: float, flops: float, peak: float) -> None:
    """Print a line: seconds, those of the flops, and their ratio."""
    floor = flops / peak
    print(
        f"{what:34} {seconds:8.3f} s   flops at the peak {floor:7.3f} s   {seconds / floor:5.2f}x"
    )


def main() -> None:
    """Check the answer, then measure."""
    parser = argparse.ArgumentParser(description="Values passed through, against the flops.")
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--states", type=int, default=8_192, help="how many; 0 for none")
    given = parser.parse_args()
    threads, N = la.get_num_threads(), given.sequences
    streams, B, y = data(N)

    def learned() -> la.Fit:
        return la.fit(streams, y, positions="all", values="passed")

    fit = learned()
    error = np.linalg.norm(fit.heads.Q[0] - B) / np.linalg.norm(B)
    assert error < 1e-9, error
    assert fit.certificate is not None
    print(f"{fit.info.solver}, relative error {error:.1e}, {fit.certificate.verdict}")
    print(", ".join(f"{name} {spent:.2f} s" for name, spent in fit.info.seconds.items()))

    def moments() -> None:
        empty = la.Moments.of_states((D_V, D), D, D_V, positions="all", values="passed")
        empty.update(streams, y)

    peak = _cpu.multiply_add_rate(threads)
    print(f"peak {peak / 1e9:.0f} GFlop/s on {threads} threads")
    queries = N * QUERIES
    # The Gram; for each sequence M, M'M and the sizes of summands; for each query T, M'y and cross
    flops = 2.0 * N * PAIRS**2 + 2 * N * D_V * D * (2 * KEYS + D) + 2 * queries * D * (2 * D + D_V)
    seconds = best(moments, given.repeats)
    report("streams to moments", seconds, flops, peak)
    report("  against a term for each query", seconds, 2.0 * queries * PAIRS**2, peak)
    factorisation = (D * D) ** 3 / 3
    report("streams to certified fit", best(learned, 1), flops + 2 * factorisation, peak)
    if given.states:
        rng, count = np.random.default_rng(1), given.states
        states = la.States(rng.standard_normal((count, D_V, D)), rng.standard_normal((count, D)))
        targets = rng.standard_normal((count, D_V))
        empty = la.Moments.of_states((D_V, D), D, D_V, values="passed")
        seconds = best(lambda: (empty + empty).update(states, targets), given.repeats)
        report(f"{count:,} states to moments", seconds, 2.0 * count * (PAIRS + D_V) * PAIRS, peak)


if __name__ == "__main__":
    main()
