"""The call that people write, from tokens to result, against numpy that stops at coefficients.

    make bench-defaults                      all rows but the largest, icl100
    python bench/defaults.py --all           with it: numpy takes minutes
    python bench/defaults.py icl16 tiny      some of them; nothing is written

Ours is ``la.fit`` with default arguments and ``fit.heads``: coefficients, a proved verdict and
heads. numpy is features, ``H.T @ H`` and ``solve``, as an expert writes it; then the same with
``eigvalsh``, which is what lambda_min takes there. Every answer is checked before it is timed.
Writes bench/results/defaults.md and .json, and puts the table into the README.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import many
import numpy as np
import readme
from machine import alternate, processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la

CHUNK_DOUBLES = 1 << 25
"""Numbers of the features that numpy forms at once, 256 MB."""
WITH_EIGENVALUES = 5000
"""Features up to which numpy's eigenvalues are waited for."""
HEADER = (
    "problem", "`la.fit(Z, y)` and `fit.heads`", "`la.fit(Z, y)`", "numpy to coefficients",
    "ratio", "ratio with `eigvalsh`",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Data, what is asked of a fit, and numpy's way to coefficients."""

    name: str
    fit: Callable[[], la.Fit]
    by_numpy: Callable[[], tuple[np.ndarray, np.ndarray]]
    """Coefficients (d_out, p), and the second moment that they were solved with."""
    n_heads: int
    floor: float
    """Times as fast as numpy to coefficients that ours, to heads, is to be."""
    repeats: int = 7

    def ours(self) -> la.Heads:
        """The whole result."""
        return self.fit().heads

    def with_eigenvalues(self) -> np.ndarray:
        """numpy's way, with the eigenvalues of the second moment as well."""
        _, gram = self.by_numpy()
        return np.linalg.eigvalsh(gram)


def solved_by_numpy(
    features: Callable[[slice], np.ndarray], y: np.ndarray, p: int, alpha: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and second moment from the features of chunks of samples, each (rows, p)."""
    N = len(y)
    gram, cross = np.zeros((p, p)), np.zeros((p, y.shape[1]))
    for rows in _chunks(N, p):
        h = features(rows)
        if len(h) == N:  # without a copy of the Gram
            gram, cross = h.T @ h, h.T @ y
        else:
            gram += h.T @ h
            cross += h.T @ y[rows]
    gram[np.diag_indices(p)] += alpha * N
    return np.linalg.solve(gram, cross).T, gram


def _chunks(N: int, p: int) -> Iterator[slice]:
    size = max(1, CHUNK_DOUBLES // p)
    return (slice(first, min(first + size, N)) for first in range(0, N, size))


def planted(d: int, N: int, n: int, H: int, d_out: int, floor: float) -> Problem:
    """All features, targets of a few heads."""
    rng = np.random.default_rng(d)
    truth = la.Heads(rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d)))
    Z = rng.standard_normal((N, n, d))
    y = truth(Z)
    j, k = np.triu_indices(d)

    def features(rows: slice) -> np.ndarray:
        z = Z[rows]
        S = z.transpose(0, 2, 1) @ z
        return (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), -1)

    def by_numpy() -> tuple[np.ndarray, np.ndarray]:
        return solved_by_numpy(features, y, len(j) * d)

    outputs = "1 output" if d_out == 1 else f"{d_out} outputs"
    name = f"all features, d = {d}, N = {N:,}, n = {n}, {outputs}, p = {len(j) * d:,}"
    return Problem(name, lambda: la.fit(Z, y), by_numpy, H, floor)


def in_context_data(
    d: int, N: int, n: int, dtype: type = np.float64
) -> tuple[np.ndarray, np.ndarray, la.Features]:
    """In-context regression: tokens (x, y), the pairs (x_k, y) and (y, y), queries l < d."""
    rng = np.random.default_rng(d)
    w = rng.standard_normal((N, d)).astype(dtype)
    Z = np.empty((N, n, d + 1), dtype)
    Z[:, :, :d] = rng.standard_normal((N, n, d), np.float32)
    Z[:, :, d] = np.einsum("nti,ni->nt", Z[:, :, :d], w)
    y = Z[:, -1, d].astype(np.float64)
    Z[:, -1, d] = 0.0
    return Z, y, la.Features(d + 1, [*((k, d) for k in range(d)), (d, d)], range(d))


def in_context(d: int, N: int, floor: float, dtype: type = np.float64, repeats: int = 7) -> Problem:
    """In-context regression with a context of 2 d, a small ridge and one head to be found."""
    n, alpha = 2 * d, 1e-6 / d
    Z, y, chosen = in_context_data(d, N, n, dtype)

    def features(rows: slice) -> np.ndarray:
        z = Z[rows]
        s = np.einsum("nti,nt->ni", z, z[:, :, d], optimize=True)
        return (s[:, :, None] * z[:, -1, None, :d]).reshape(len(z), -1).astype(np.float64)

    def by_numpy() -> tuple[np.ndarray, np.ndarray]:
        return solved_by_numpy(features, y[:, None], chosen.count, alpha)

    name = f"in-context regression, d = {d}, N = {N:,}, n = {n}, 1 output, p = {chosen.count:,}"
    name += ", float32 tokens" if dtype is np.float32 else ""
    return Problem(
        name, lambda: la.fit(Z, y, features=chosen, alpha=alpha), by_numpy, 1, floor, repeats
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "tiny": lambda: planted(4, 400, 16, 2, 1, floor=1),
    "readme": lambda: planted(8, 4000, 32, 3, 8, floor=3),
    "d16": lambda: planted(16, 8000, 32, 2, 1, floor=3),
    "icl16": lambda: in_context(16, 5 * 16**2, floor=1),
    "icl32": lambda: in_context(32, 5 * 32**2, floor=2),
    "icl64": lambda: in_context(64, 5 * 64**2, floor=3, repeats=3),
    "icl100": lambda: in_context(100, 50_000, floor=6, dtype=np.float32, repeats=1),
}
"""Problems by name; README's own is "readme"."""
LARGEST = "icl100"


def checked(problem: Problem) -> la.Fit:
    """The fit, whose answer is numpy's, whose verdict is proved and whose heads are found."""
    fit, (expected, _) = problem.fit(), problem.by_numpy()
    size = np.abs(expected).max()
    assert np.abs(fit.coefficients - expected).max() < 1e-4 * size, "coefficients differ"
    assert fit.certificate is not None
    assert fit.certificate.verdict == "identifiable", fit.certificate
    assert len(fit.heads) == problem.n_heads, fit.heads.recovery
    return fit


def measured(problem: Problem) -> dict[str, object]:
    """One row: seconds of each, and ratios."""
    fit = checked(problem)
    runs = [problem.ours, problem.fit, problem.by_numpy]
    if fit.info.dimension <= WITH_EIGENVALUES:
        runs.append(problem.with_eigenvalues)
    mine, bare, theirs, *eigenvalues = alternate(runs, problem.repeats)
    return {
        "problem": problem.name,
        "solver": fit.info.solver,
        "ours": mine,
        "without heads": bare,
        "numpy": theirs,
        "with eigvalsh": eigenvalues[0] if eigenvalues else None,
        "ratio": theirs / mine,
        "floor": problem.floor,
    }


def batch() -> dict[str, object]:
    """Thousands of tiny problems in one call, against numpy one by one (bench/many.py)."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((many.PROBLEMS, many.SAMPLES, many.TOKENS, many.D))
    y = rng.standard_normal((many.PROBLEMS, many.SAMPLES))

    def sums(tokens: np.ndarray) -> np.ndarray:
        return tokens.transpose(0, 2, 1) @ tokens

    def one_by_one() -> list[np.ndarray]:
        return [many.numpy_fit(*each, sums) for each in zip(Z, y, strict=True)]

    expected = np.array(one_by_one())
    found = la.fit_many(Z, y).coefficients[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    mine, theirs = alternate([lambda: la.fit_many(Z, y), one_by_one], 3)
    return {
        "problem": f"`la.fit_many`, {many.PROBLEMS:,} problems of d = {many.D}, "
        f"N = {many.SAMPLES}, n = {many.TOKENS}, 1 output (no heads)",
        "solver": "together",
        "ours": mine,
        "without heads": mine,
        "numpy": theirs,
        "with eigvalsh": None,
        "ratio": theirs / mine,
        "floor": 20.0,
    }


def cells(row: dict[str, object]) -> tuple[str, ...]:
    """A row as it is shown."""
    eigenvalues = "-"
    if row["with eigvalsh"] is not None:
        eigenvalues = f"{row['with eigvalsh'] / row['ours']:.1f}x"
    return (
        str(row["problem"]),
        f"{in_words(row['ours'])} ({row['solver']})",
        in_words(row["without heads"]),
        in_words(row["numpy"]),
        f"**{row['ratio']:.1f}x**",
        eigenvalues,
    )


def in_words(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def rows_of(names: list[str]) -> Iterator[dict[str, object]]:
    """Measure the problems of these names; "batch" is the batch."""
    for name in names:
        yield batch() if name == "batch" else measured(PROBLEMS[name]())


def main(arguments: list[str]) -> None:
    """Print the rows that are asked for, and write them where they are all."""
    usual = [*(name for name in PROBLEMS if name != LARGEST), "batch"]
    names = [name for name in arguments if name != "--all"]
    figures = []
    for row in rows_of(names or ([*usual, LARGEST] if "--all" in arguments else usual)):
        figures.append(row)
        print(*cells(row), sep="  ", flush=True)
    if names:
        return
    above = (
        f"From tokens to result with default arguments: coefficients, proved verdict and heads "
        f"({processor()}, {la.get_num_threads()} threads; median of runs in turns)."
    )
    text = markdown_table(above, HEADER, map(cells, figures))
    keep(RESULTS, "defaults", text, figures)
    readme.show("defaults.md", text)


if __name__ == "__main__":
    main(sys.argv[1:])
