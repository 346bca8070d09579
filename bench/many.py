"""Thousands of small fits in one call, against numpy that fits them one by one.

    python bench/many.py

Answers are compared first. numpy takes the Gram of the features and solves; S comes from an einsum,
or from a batched matrix product, which is faster. Ratios are measured in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import linattn_fast as la

PROBLEMS, SAMPLES, TOKENS, D = 10_000, 400, 16, 4
REPEATS = 3


def numpy_fit(Z: np.ndarray, y: np.ndarray, sums: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Coefficients (p,) of one problem."""
    j, k = np.triu_indices(Z.shape[2])
    H = (sums(Z)[:, j, k][:, :, None] * Z[:, -1][:, None, :]).reshape(len(Z), -1)
    return np.asarray(np.linalg.solve(H.T @ H, H.T @ y))


def least_seconds(work: Callable[[], object]) -> float:
    """The shortest of a few runs."""
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def main() -> None:
    """Print microseconds a problem, and ratios."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((PROBLEMS, SAMPLES, TOKENS, D))
    y = rng.standard_normal((PROBLEMS, SAMPLES))
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "einsum": lambda Z: np.einsum("itj,itk->ijk", Z, Z),
        "matmul": lambda Z: Z.transpose(0, 2, 1) @ Z,
    }
    many = la.fit_many(Z, y)
    some = range(0, PROBLEMS, PROBLEMS // 100)
    for i in some:
        expected = numpy_fit(Z[i], y[i], ways["matmul"])
        np.testing.assert_allclose(many.coefficients[i, 0], expected, rtol=1e-8, atol=1e-12)
    ours = least_seconds(lambda: la.fit_many(Z, y)) / PROBLEMS
    print(f"la.fit_many: {1e6 * ours:.1f} us a problem")
    for name, way in ways.items():
        one_by_one = least_seconds(
            lambda way=way: [numpy_fit(*each, way) for each in zip(Z, y, strict=True)]
        )
        spent = one_by_one / PROBLEMS
        print(f"numpy, S by {name}: {1e6 * spent:.1f} us a problem, {spent / ours:.1f}x")


if __name__ == "__main__":
    main()
