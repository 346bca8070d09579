"""In-context linear regression: the test error against the number of training sequences.

    .venv/bin/python examples/in_context_regression.py [--d 100]

A sequence has tokens (x_t, y_t) with y = <w, x> + noise and a w of its own, and ends with the query
(x, 0); the layer is to predict the y of the query. Only pairs (x_k, y) and (y, y) and the queries x
matter, p = d (d + 1) features. Each curve has a ridge alpha, or a length of the context. Never more
than one training set exists at a time.
"""

from __future__ import annotations

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np

import linattn_fast as la
from linattn_fast.datasets import ContextDataset

NOISE = 0.1
TEST = 2000
RATIOS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0)
"""Training sequences over d^2."""
RIDGES = (1e-3, 1e-2, 1e-1)
CONTEXTS = (0.5, 1.0, 2.0)
"""Tokens of the context over d."""


def sequences(rng: np.random.Generator, N: int, n: int, d: int) -> ContextDataset:
    """Tokens (N, n + 1, d + 1) in float32, targets (N,) and the features that matter."""
    return la.datasets.in_context_regression(N, n, d, noise=NOISE, dtype=np.float32, seed=rng)


def curve_point(
    train: ContextDataset, test: ContextDataset, alpha: float
) -> tuple[float, la.FitInfo]:
    """Mean squared test error of the layer learned, and how it was found."""
    Z, y, features = train
    fit = la.fit(Z, y, alpha=alpha, features=features, heads=None, certify=False)
    new, wanted, _ = test
    predicted = fit.predict(new)
    assert isinstance(predicted, np.ndarray)
    return float(((predicted - wanted) ** 2).mean()), fit.info


def main() -> None:
    """Compute and plot both families of curves."""
    parser = argparse.ArgumentParser(description="in-context regression, error against samples")
    parser.add_argument("--d", type=int, default=100, help="dimension of x; p = d (d + 1)")
    parser.add_argument("--picture", default="in_context_regression.png")
    arguments = parser.parse_args()
    d, start = arguments.d, time.perf_counter()
    rng = np.random.default_rng(0)
    curves: dict[str, list[float]] = {}
    sizes = [round(ratio * d * d) for ratio in RATIOS]
    for context in CONTEXTS:
        n = round(context * d)
        test = sequences(rng, TEST, n, d)
        ridges = RIDGES if context == 1.0 else RIDGES[1:2]
        for N in sizes:
            train = sequences(rng, N, n, d)
            for alpha in ridges:
                error, info = curve_point(train, test, alpha)
                curves.setdefault(f"context {n}, alpha = {alpha:g}", []).append(error)
                print(
                    f"context {n:4}  N = {N:6}  alpha = {alpha:<6g} test error {error:.4f}  "
                    f"({info.solver}, {sum(info.seconds.values()):.1f} s)",
                    flush=True,
                )
            del train
    print(f"p = {d * (d + 1)}: {time.perf_counter() - start:.0f} s in all")

    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for label, errors in curves.items():
        axis.semilogx(RATIOS, errors, "o-", label=label)
    axis.axhline(1 + NOISE**2, color="gray", linestyle=":", label="predicting 0")
    axis.set_ylim(bottom=0)
    axis.set(
        title=f"In-context regression, d = {d}, p = {d * (d + 1):,}",
        xlabel="training sequences / d²",
        ylabel="mean squared test error",
    )
    axis.legend()
    figure.savefig(arguments.picture, dpi=110)
    print(f"wrote {arguments.picture}")


if __name__ == "__main__":
    main()
