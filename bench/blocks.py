"""Universal automata with one-hot tokens, learned block by block, d from 54 to 318.

    make bench-blocks

Every run of a random automaton is a sequence of tokens: its transition table, a word, and then what
the simulator has to append, two tokens a letter. Each scenario runs in a process of its own, checks
that every step it covers of runs it has not seen is predicted right, and where features are few
enough also compares coefficients and rank with numpy's on all features. Writes
bench/results/blocks.md and puts it into docs/scale.md.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import readme
from machine import in_fresh_process, processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la

SIZES = [(3, 2, 4, 500), (5, 2, 5, 2500), (7, 2, 8, 5000), (8, 2, 8, 6000), (9, 2, 10, 8000)]
"""States, symbols, letters of a word, and runs to learn from."""
WITH_NUMPY = 60
"""Coordinates of a token up to which numpy is run as well."""


def runs(
    Q: int, A: int, L: int, N: int, seed: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Prefixes of N runs as views, the tokens that follow them, and all tokens (N, n, d)."""
    rng = np.random.default_rng(seed)
    sizes = {
        "key": Q * A,
        "value": Q,
        "place": L,
        "letter": A,
        "at": (L + 1) * Q,
        "read": L * Q * A,
    }
    ends = np.cumsum(list(sizes.values()))
    start = dict(zip(sizes, ends - list(sizes.values()), strict=True))
    first = Q * A + L
    Z = np.zeros((N, first + 1 + 2 * L, int(ends[-1])), np.float32)
    r = np.arange(N)
    table, word = rng.integers(0, Q, (N, Q * A)), rng.integers(0, A, (N, L))
    state = rng.integers(0, Q, N)
    for k in range(Q * A):
        Z[:, k, start["key"] + k] = Z[r, k, start["value"] + table[:, k]] = 1
    for t in range(L):
        Z[:, Q * A + t, start["place"] + t] = Z[r, Q * A + t, start["letter"] + word[:, t]] = 1
    Z[r, first, start["at"] + state] = 1
    for t in range(L):
        key = state * A + word[:, t]
        Z[r, first + 1 + 2 * t, start["read"] + t * Q * A + key] = 1
        state = table[r, key]
        Z[r, first + 2 + 2 * t, start["at"] + (t + 1) * Q + state] = 1
    views = [Z[i, :t] for i in range(N) for t in range(first + 1, Z.shape[1])]
    return views, Z[:, first + 1 :].reshape(-1, Z.shape[2]), Z


def peak() -> int:
    """Bytes of this process at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def numpy_fit(Z: list[np.ndarray], y: np.ndarray, features: la.Features) -> tuple[np.ndarray, int]:
    """What people write: S of every prefix, the chosen features, np.linalg.lstsq."""
    j, k = features.pairs.T
    H = np.empty((len(Z), features.count))
    for row, given in zip(H, Z, strict=True):
        z = given.astype(np.float64)
        row[:] = np.outer((z.T @ z)[j, k], z[-1, features.queries]).ravel()
    C, _, rank, _ = np.linalg.lstsq(H, y.astype(np.float64), rcond=1e-11)
    return C.T, int(rank)


def measure(Q: int, A: int, L: int, N: int) -> dict[str, object]:
    """Learn, certify and check one size."""
    small, answers, _ = runs(2, 2, 2, 40, 0)  # what is loaded once
    la.fit(small, answers, heads=None, solver="blocks")
    Z, y, tokens = runs(Q, A, L, N, 0)
    before = peak()
    start = time.perf_counter()
    features = la.Features.active(Z)
    fit = la.fit(Z, y, features=features, heads=None)
    seconds = time.perf_counter() - start
    memory = peak() - before
    assert fit.info.solver == "blocks", fit.info
    new, truth, _ = runs(Q, A, L, 300, 1)
    certificate = fit.certificate
    covered = certificate.covers(new)
    right = (np.round(fit.predict(new)) == truth).all(axis=1)
    assert right[covered].all(), "a covered step is wrong"
    row: dict[str, object] = {
        "size": f"{Q} states, {A} symbols, words of {L}",
        "d": features.d,
        "samples": len(Z),
        "features": features.count,
        "rank": certificate.rank,
        "blocks": fit.info.reason.split(" ")[0],
        "seconds": seconds,
        "memory": memory,
        "tokens": tokens.nbytes,
        "covered": float(covered.mean()),
        "right": float(right.mean()),
    }
    if features.d <= WITH_NUMPY:
        start = time.perf_counter()
        C, rank = numpy_fit(Z, y, features)
        row["numpy"] = time.perf_counter() - start
        assert rank == certificate.rank, (rank, certificate.rank)
        error = np.linalg.norm(fit.coefficients - C) / np.linalg.norm(C)
        assert error < 1e-9, error
    return row


def table(rows: list[dict[str, object]]) -> str:
    """As Markdown."""
    above = (
        f"{processor()}, {la.get_num_threads()} threads. From tokens to coefficients (d outputs) "
        "and certificate; memory beside the tokens. Steps of 300 new runs: covered, and right; "
        "those covered were all right. numpy: features of every prefix and `np.linalg.lstsq`, same "
        "answer and rank."
    )
    header = ["automaton", "d", "samples", "features", "rank", "blocks", "seconds", "memory",
              "covered", "right", "numpy"]  # fmt: skip
    cells = []
    for row in rows:
        numpy = "-"
        if "numpy" in row:
            numpy = f"{row['numpy']:.1f} s: {row['numpy'] / row['seconds']:.0f}x"
        cells.append(
            [row["size"], row["d"], f"{row['samples']:,}", f"{row['features']:,}",
             f"{row['rank']:,}", row["blocks"], f"{row['seconds']:.1f}",
             f"{row['memory'] / 1e6:.0f} MB", f"{row['covered']:.1%}", f"{row['right']:.1%}", numpy]
        )  # fmt: skip
    return markdown_table(above, header, cells)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
        return
    here = Path(__file__).parent
    rows = []
    for size in SIZES:
        code = f"import sys; sys.path.insert(0, {str(here)!r}); import json, blocks\n"
        code += f"print(json.dumps(blocks.measure(*{size})))"
        rows.append(json.loads(in_fresh_process(code)))
        print(rows[-1], flush=True)
    text = table(rows)
    keep(RESULTS, "blocks", text, rows)
    readme.show("blocks.md", text, "docs/scale.md")
    print(text)


if __name__ == "__main__":
    main()
