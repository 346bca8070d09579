"""The call that people write, from tokens to result, against numpy that stops at coefficients.

    make bench-defaults

The largest problem (icl100) takes numpy minutes and 12 GB, and is measured when asked for by name.
Ours is ``la.fit`` with default arguments and ``fit.heads``: coefficients, a proved verdict and
heads. numpy is features, ``H.T @ H`` and ``solve``, as an expert writes it; then the same with
``eigvalsh``, which is what lambda_min takes there. Every answer is checked before it is timed.
Writes bench/results/defaults.md and .json, which docs/performance.md includes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from competitors import expert_last
from machine import alternate, processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la


class Problem(NamedTuple):
    """Data, what is asked of a fit, and numpy's way to coefficients."""

    name: str
    fit: Callable[[], la.Fit]
    by_numpy: Callable[[], tuple[np.ndarray, np.ndarray]]
    """Coefficients (d_out, p), and the second moment that they were solved with."""
    n_heads: int
    repeats: int


def planted(name: str, d: int, N: int, n: int, H: int = 2, d_out: int = 1) -> Problem:
    """All features, targets of a few heads."""
    rng = np.random.default_rng(d)
    truth = la.Heads(rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d)))
    Z = rng.standard_normal((N, n, d))
    y = truth(Z)
    j, k = np.triu_indices(d)

    def by_numpy() -> tuple[np.ndarray, np.ndarray]:
        if N * len(j) * d > 1 << 25:  # the features of all samples would not fit in the cache
            gram = expert_last(Z)
            cross = np.zeros((len(gram), d_out))
            for first in range(0, N, 1024):
                z = Z[first : first + 1024]
                S = z.transpose(0, 2, 1) @ z
                h = (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), -1)
                cross += h.T @ y[first : first + 1024]
        else:
            S = Z.transpose(0, 2, 1) @ Z
            h = (S[:, j, k, None] * Z[:, -1, None, :]).reshape(N, -1)
            gram, cross = h.T @ h, h.T @ y
        return np.linalg.solve(gram, cross).T, gram

    return Problem(name, lambda: la.fit(Z, y), by_numpy, H, 7)


def in_context(d: int, N: int, n: int, dtype: type, repeats: int) -> Problem:
    """In-context regression: tokens (x, y), the pairs (x_k, y) and (y, y), queries l < d."""
    rng = np.random.default_rng(d)
    w = rng.standard_normal((N, d)).astype(dtype)
    Z = np.empty((N, n, d + 1), dtype)
    Z[:, :, :d] = rng.standard_normal((N, n, d), np.float32)
    Z[:, :, d] = np.einsum("nti,ni->nt", Z[:, :, :d], w)
    y = Z[:, -1, d].astype(np.float64)
    Z[:, -1, d] = 0.0
    features = la.Features(d + 1, [*((k, d) for k in range(d)), (d, d)], range(d))
    alpha = 1e-6 / d

    def by_numpy() -> tuple[np.ndarray, np.ndarray]:
        s = np.einsum("nti,nt->ni", Z, Z[:, :, d], optimize=True)
        h = (s[:, :, None] * Z[:, -1, None, :d]).reshape(N, -1).astype(np.float64)
        gram = h.T @ h / N
        cross = h.T @ y / N
        gram[np.diag_indices(len(gram))] += alpha
        return np.linalg.solve(gram, cross)[None], gram

    name = f"in-context regression, d = {d}, context {n}, N = {N:,}, p = {features.count:,}"
    name += ", float32 tokens" if dtype is np.float32 else ""
    return Problem(name, lambda: la.fit(Z, y, features=features, alpha=alpha), by_numpy, 1, repeats)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "tiny": lambda: planted("all features, d = 4, N = 400, n = 16", 4, 400, 16),
    "readme": lambda: planted("all features, d = 8, N = 4,000, n = 16", 8, 4000, 16, H=3),
    "d16": lambda: planted("all features, d = 16, N = 8,000, n = 32", 16, 8000, 32),
    "icl16": lambda: in_context(16, 5 * 16**2, 32, np.float64, 7),
    "icl32": lambda: in_context(32, 5 * 32**2, 64, np.float64, 5),
    "icl64": lambda: in_context(64, 5 * 64**2, 128, np.float64, 3),
    "icl100": lambda: in_context(100, 50_000, 200, np.float32, 1),
}


def checked(problem: Problem) -> la.Fit:
    """The fit, whose answer is numpy's, whose verdict is proved and whose heads are found."""
    fit, (expected, _) = problem.fit(), problem.by_numpy()
    size = np.abs(expected).max()
    assert np.abs(fit.coefficients - expected).max() < 1e-4 * size, "coefficients differ"
    assert fit.certificate is not None
    assert fit.certificate.verdict == "identifiable", fit.certificate
    assert len(fit.heads) == problem.n_heads, fit.heads.recovery
    return fit


def main(names: list[str]) -> None:
    rows, figures = [], []
    for name in names or [name for name in PROBLEMS if name != "icl100"]:
        problem = PROBLEMS[name]()
        fit = checked(problem)

        def ours(fitted: Callable[[], la.Fit] = problem.fit) -> object:
            return fitted().heads

        def with_eigenvalues(by: Callable[[], tuple] = problem.by_numpy) -> object:
            return np.linalg.eigvalsh(by()[1])

        runs = [ours, problem.fit, problem.by_numpy]
        if fit.info.dimension <= 5000:
            runs.append(with_eigenvalues)
        seconds = alternate(runs, problem.repeats)
        mine, bare, theirs = seconds[:3]
        more = seconds[3] / mine if len(seconds) > 3 else None
        rows.append(
            (
                problem.name,
                f"{mine * 1e3:.3g} ms ({fit.info.solver})",
                f"{bare * 1e3:.3g} ms",
                f"{theirs * 1e3:.3g} ms",
                f"**{theirs / mine:.1f}x**",
                "-" if more is None else f"{more:.1f}x",
            )
        )
        figures.append(
            {"problem": problem.name, "ours": mine, "without heads": bare, "numpy": theirs,
             "with eigvalsh": more}
        )  # fmt: skip
        print(*rows[-1], sep="  ", flush=True)
    above = (
        f"From tokens to result with default arguments: coefficients, proved verdict and heads "
        f"({processor()}, {la.get_num_threads()} threads; median of runs in turns)."
    )
    header = (
        "problem", "`la.fit(Z, y)` and `fit.heads`", "`la.fit(Z, y)`", "numpy to coefficients",
        "ratio", "ratio with `eigvalsh`",
    )  # fmt: skip
    text = markdown_table(above, header, rows)
    if not names:
        keep(RESULTS, "defaults", text, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
