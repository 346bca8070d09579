"""Thousands of small fits in one call, against numpy that fits them one by one.

    python bench/many.py

Answers are compared first. Targets are noise, or planted: then errors are zero but for rounding and
cannot be taken from moments. numpy takes the Gram of the features and solves; S comes from an
einsum, or from a batched matrix product, which is faster. Ratios are measured in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

import linattn_fast as la

PROBLEMS, SAMPLES, TOKENS, D = 10_000, 400, 16, 4
NUMPY_PROBLEMS = 500
"""numpy fits so many of them; they do not fit into the cache."""
REPEATS = 10


Sums = Callable[[np.ndarray], np.ndarray]
WAYS: dict[str, Sums] = {
    "einsum": lambda Z: np.einsum("itj,itk->ijk", Z, Z),
    "matmul": lambda Z: Z.transpose(0, 2, 1) @ Z,
}


def numpy_features(Z: np.ndarray, sums: Sums) -> np.ndarray:
    """Features (N, p) of one problem."""
    j, k = np.triu_indices(Z.shape[2])
    return (sums(Z)[:, j, k][:, :, None] * Z[:, -1][:, None, :]).reshape(len(Z), -1)


def numpy_fit(Z: np.ndarray, y: np.ndarray, sums: Sums) -> np.ndarray:
    """Coefficients (p,) of one problem."""
    H = numpy_features(Z, sums)
    return np.asarray(np.linalg.solve(H.T @ H, H.T @ y))


def in_turns(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Shortest seconds of each, in turns, so that all see the same machine."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def numpy_fits(Z: np.ndarray, y: np.ndarray, sums: Sums) -> None:
    """Fit one after the other, with one thread of BLAS: more only wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        for i in range(NUMPY_PROBLEMS):
            numpy_fit(Z[i], y[i], sums)


def check(Z: np.ndarray, y: np.ndarray) -> None:
    """Coefficients and errors of every hundredth problem are numpy's."""
    many = la.fit_many(Z, y)
    assert many.together.all()
    for i in range(0, len(Z), len(Z) // 100):
        H = numpy_features(Z[i], WAYS["matmul"])
        expected = numpy_fit(Z[i], y[i], WAYS["matmul"])
        np.testing.assert_allclose(many.coefficients[i, 0], expected, rtol=1e-8, atol=1e-12)
        error = np.mean((H @ expected - y[i]) ** 2)
        size = np.mean(y[i] ** 2)
        np.testing.assert_allclose(many.mean_squared_error[i], error, rtol=1e-8, atol=1e-22 * size)


def main() -> None:
    """Print microseconds a problem, and ratios."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((PROBLEMS, SAMPLES, TOKENS, D))
    truth = rng.standard_normal(D * D * (D + 1) // 2)
    targets = {
        "noise": rng.standard_normal((PROBLEMS, SAMPLES)),
        "planted": np.stack([numpy_features(each, WAYS["matmul"]) @ truth for each in Z]),
    }
    for y in targets.values():
        check(Z, y)
    theirs = {way: partial(numpy_fits, Z, targets["noise"], sums) for way, sums in WAYS.items()}
    ours = {kind: partial(la.fit_many, Z, y) for kind, y in targets.items()}
    spent = in_turns({**theirs, **ours})
    each = {way: spent[way] / NUMPY_PROBLEMS for way in theirs}
    for way, seconds in each.items():
        print(f"numpy, S by {way}: {1e6 * seconds:.1f} us a problem")
    for kind in ours:
        seconds = spent[kind] / PROBLEMS
        ratios = ", ".join(f"{t / seconds:.1f}x ({way})" for way, t in each.items())
        print(f"la.fit_many, {kind}: {1e6 * seconds:.1f} us a problem, {ratios}")


if __name__ == "__main__":
    main()
