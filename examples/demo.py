"""Learn a planted layer from data, certify it, recover its heads; print and plot the outcome.

make demo
"""

from __future__ import annotations

import time
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np

import linattn_fast as la

D, HEADS, SEQUENCES, LENGTH = 8, 3, 4000, 32
PICTURE = "demo.png"


def numpy_coefficients(Z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What an expert writes in numpy: symmetric features in chunks, their Gram, one solve."""
    d = Z.shape[2]
    j, k = np.triu_indices(d)
    gram, cross = 0.0, 0.0
    for start in range(0, len(Z), 1024):
        z = Z[start : start + 1024]
        S = z.transpose(0, 2, 1) @ z
        features = (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), -1)
        gram = gram + features.T @ features
        cross = cross + features.T @ y[start : start + 1024]
    return np.linalg.solve(gram, cross).T


def best_time(run: Callable[[], object], repeats: int = 5) -> float:
    """Shortest of several runs: the machine may be busy with other things."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def relative_error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def plot(spectrum: np.ndarray, truth: np.ndarray, found: np.ndarray) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    left.semilogy(spectrum[::-1], color="tab:blue")
    left.axhline(spectrum[0], color="tab:red", lw=1, ls="--")
    left.annotate(
        f"$\\lambda_{{min}}$ = {spectrum[0]:.3g}",
        (0.03, spectrum[0]),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(0, 5),
        color="tab:red",
    )
    left.set(
        title="Spectrum of the second moment: above zero,\nso only one layer fits",
        xlabel="eigenvalue, largest first",
        ylabel="size",
    )
    limit = 1.05 * np.abs(truth).max()
    error = relative_error(found, truth)
    right.plot([-limit, limit], [-limit, limit], color="0.8", zorder=0)
    right.plot(truth.ravel(), found.ravel(), ".", ms=3, color="tab:green")
    right.set(
        title=f"All {truth.size:,} coefficients,\nrelative error {error:.1e}",
        xlabel="true",
        ylabel="learned",
        aspect="equal",
    )
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    rng = np.random.default_rng(0)
    truth = la.Heads(rng.standard_normal((HEADS, D, D)), rng.standard_normal((HEADS, D, D)))
    Z = rng.standard_normal((SEQUENCES, LENGTH, D))
    y = truth(Z)
    print(
        f"{SEQUENCES} sequences of {LENGTH} tokens in R^{D}, targets from {HEADS} planted heads\n"
    )

    fit = la.fit(Z, y)
    C = truth.coefficients()
    new = rng.standard_normal((500, 3 * LENGTH, D))  # longer than any seen
    print(f"coefficients    {C.shape[0]} x {C.shape[1]}, relative error "
          f"{relative_error(fit.coefficients, C):.1e}")  # fmt: skip
    print(f"heads           {len(fit.heads)} found of {HEADS} planted, the layer as a function "
          f"{fit.heads.distance(truth) / np.linalg.norm(C):.1e} away (relative)")  # fmt: skip
    print(f"                {fit.heads.recovery}")
    print(f"                {la.match_heads(truth, fit.heads)}")
    path = la.head_path(
        la.Moments(D, D).update(Z, y + 0.2 * y.std() * rng.standard_normal(y.shape)), 5
    )
    print("with noise      loss over the convex optimum, with 1, 2, .. heads: "
          + ", ".join(f"{loss / path.convex_loss:.2f}" for loss in path.losses))  # fmt: skip
    print(f"new sequences   {new.shape[1]} tokens, relative error "
          f"{relative_error(fit.predict(new), truth(new)):.1e}")  # fmt: skip
    print(f"\ncertificate: {fit.certificate}\n\n{fit.info}\n")

    # The answers agree before they are timed.
    assert relative_error(numpy_coefficients(Z, y), C) < 1e-9
    ours = best_time(lambda: la.fit(Z, y, certify=False, heads=None))
    theirs = best_time(lambda: numpy_coefficients(Z, y))
    print(f"time to the coefficients: {1e3 * ours:.0f} ms, chunked numpy {1e3 * theirs:.0f} ms "
          f"({theirs / ours:.1f} x), {la.get_num_threads()} threads")  # fmt: skip

    spectrum = la.certify(Z, spectrum=True).spectrum
    assert spectrum is not None
    plot(spectrum, C, fit.coefficients)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
