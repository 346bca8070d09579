"""Thousands of small fits in one call, against numpy that fits them one by one.

    python bench/many.py

Answers are compared first. Targets are noise, or planted: then errors are zero but for rounding and
cannot be taken from moments. numpy takes the Gram of the features and solves; S comes from an
einsum, or from a batched matrix product, which is faster. Ratios are measured in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import linattn_fast as la

PROBLEMS, SAMPLES, TOKENS, D = 10_000, 400, 16, 4
NUMPY_PROBLEMS = 500
"""numpy fits so many of them; they do not fit into the cache."""
REPEATS = 3


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


def least_seconds(work: Callable[[], object]) -> float:
    """The shortest of a few runs."""
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


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
    noise = targets["noise"]
    spent = {
        name: least_seconds(
            lambda way=way: [numpy_fit(Z[i], noise[i], way) for i in range(NUMPY_PROBLEMS)]
        )
        / NUMPY_PROBLEMS
        for name, way in WAYS.items()
    }
    for name, seconds in spent.items():
        print(f"numpy, S by {name}: {1e6 * seconds:.1f} us a problem", flush=True)
    for kind, y in targets.items():
        ours = least_seconds(lambda y=y: la.fit_many(Z, y)) / PROBLEMS
        ratios = ", ".join(f"{t / ours:.1f}x ({name})" for name, t in spent.items())
        print(f"la.fit_many, {kind}: {1e6 * ours:.1f} us a problem, {ratios}", flush=True)


if __name__ == "__main__":
    main()
