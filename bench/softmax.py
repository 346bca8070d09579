"""Softmax layers: how often planted ones are learned, how exactly and how fast.

    .venv/bin/python bench/softmax.py [--quick] [scenario ...]

Every instance is a whole ``la.softmax.fit``, evidence included, and its error is measured on 500
new sequences. Figures of a scenario replace those of the same name in bench/results/softmax.json;
bench/results/softmax.md is the table of all, which stands in docs/softmax.md. ``--quick`` makes
three instances of each and writes nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import readme
from machine import processor

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.softmax.descent.normal_matrix import reference_query_sums
from linattn_fast.softmax.layer.planted import KINDS, parity, planted_layer, uniform_tokens

RESULTS = Path(__file__).parent / "results"
TESTS = 500  # new sequences that the error is measured on
EXACT = 1e-9  # largest relative error of a layer that was found


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str  # what was planted, and its sizes
    wanted: str  # what has to be found
    found: str
    error: str = ""  # on new sequences
    seconds: str = ""  # of a whole fit
    ok: bool = True  # whether what was wanted was found


@dataclass(frozen=True)
class Trial:
    """One planted layer that was learned, or not."""

    fit: la.softmax.Fit
    seconds: float
    error: float  # relative, on new sequences
    bound: float  # that the error has to keep

    @property
    def good(self) -> bool:
        return self.error <= self.bound


def trial(
    seed: int, m: int, d: int, k: int, N: int, logits: float, kind: str = KINDS[0], noise: float = 0
) -> Trial:
    """Plant a layer, learn it from N sequences, and take its error on new ones."""
    rng = np.random.default_rng([m, d, k, N, int(logits), KINDS.index(kind), seed])
    truth = planted_layer(rng, m, d, logits=logits, kind=kind)
    X, new = uniform_tokens(rng, N, k, d), uniform_tokens(rng, TESTS, k, d)
    Y, expected = truth(X), truth(new)
    Y = Y + noise * Y.std() * rng.standard_normal(Y.shape)
    start = time.perf_counter()
    fit = la.softmax.fit(X, Y, heads=m, seed=seed, tolerance=max(0.1, 1.2 * noise))
    seconds = time.perf_counter() - start
    error = float(np.linalg.norm(fit.predict(new) - expected) / np.linalg.norm(expected))
    known = fit.report.identifiability
    bound = 3 * noise * np.sqrt(known.unknowns / known.equations) if noise else EXACT
    return Trial(fit, seconds, error, bound)


def row(what: str, trials: list[Trial], needed: int, bound: str = f"{EXACT:g}") -> Row:
    good, n = sum(each.good for each in trials), len(trials)
    errors, seconds = [t.error for t in trials], [t.seconds for t in trials]
    learned = sum(t.fit.report.verdict == "learned" for t in trials)
    return Row(
        what,
        f"{needed} of {n}, error <= {bound}",
        f'{good} of {n} ({learned} "learned")',
        f"{np.median(errors):.0e}, worst {max(errors):.0e}",
        f"{np.median(seconds):.2f}, longest {max(seconds):.2f}",
        good >= needed,
    )


def generic(count: int) -> Iterator[Row]:
    shapes = [
        (1, 4, 3, 200),
        (1, 10, 4, 400),
        (2, 4, 3, 300),
        (2, 8, 4, 400),
        (3, 6, 6, 300),
        (3, 10, 4, 500),
    ]
    for m, d, k, N in shapes:
        for logits in (1, 4, 16):
            trials = [trial(seed, m, d, k, N, logits) for seed in range(count)]
            yield row(
                f"generic, m = {m}, d = {d}, k = {k}, N = {N}, logits {logits}", trials, count
            )


def sharp(count: int) -> Iterator[Row]:
    trials = [trial(seed, 2, 6, 4, 1000, 256) for seed in range(count)]
    yield row("generic, m = 2, d = 6, k = 4, N = 1,000, logits 256", trials, round(0.9 * count))


def structured(count: int) -> Iterator[Row]:
    for kind in KINDS[1:]:
        trials = [trial(seed, 3, 6, 4, 800, 4, kind) for seed in range(count)]
        yield row(f"{kind}, m = 3, d = 6, k = 4, N = 800, logits 4", trials, round(0.95 * count))


def noisy(count: int) -> Iterator[Row]:
    for noise in (0.01, 0.1, 0.5):
        trials = [trial(seed, 2, 6, 4, 1000, 4, noise=noise) for seed in range(count)]
        yield row(
            f"noise {noise:g}, m = 2, d = 6, k = 4, N = 1,000, logits 4",
            trials,
            count,
            f"3 v sqrt(unknowns / equations) = {trials[0].bound:.1g}",
        )


def nullity(count: int) -> Iterator[Row]:
    """What is not determined: d directions of Theta a head with a constant or one-hot tokens."""
    m, d, k, N = 2, 6, 5, 400
    for name, wanted, case in (
        ("uniform +-1 tokens", 0, None),
        ("constant coordinate", m * d, "constant coordinate"),
        ("one-hot tokens", m * d, "one-hot tokens"),
        ("equal Thetas", None, "equal Thetas"),
        ("k = 1", m * d * d, "k = 1"),
    ):
        right, errors, seconds = 0, [], []
        for seed in range(count):
            rng = np.random.default_rng([7, seed])
            truth = planted_layer(rng, m, d, logits=4)
            X = uniform_tokens(rng, N, 1 if name == "k = 1" else k, d)
            if name == "constant coordinate":
                X[:, :, 2] = 1
            elif name == "one-hot tokens":
                X = np.eye(d)[rng.integers(d, size=(N, k))]
            elif name == "equal Thetas":
                truth = la.softmax.Layer(truth.Theta[[0, 0]], truth.W)
            start = time.perf_counter()
            report = la.softmax.fit(X, truth(X), heads=m, seed=seed).report
            seconds.append(time.perf_counter() - start)
            errors.append(report.held_out.error)
            named = [each.name for each in report.cases] == ([case] if case else [])
            verdict = "fits, not identified" if case else "learned"
            known = wanted is None or report.identifiability.theta_nullity == wanted
            right += bool(named and known and report.verdict == verdict)
        expected = "named" if wanted is None else f"nullity {wanted}" + (", named" if case else "")
        yield Row(
            f"{name}, m = {m}, d = {d}",
            f"{expected}, {count} of {count}",
            f"{right} of {count}",
            f"{np.median(errors):.0e}, worst {max(errors):.0e}",
            f"{np.median(seconds):.2f}, longest {max(seconds):.2f}",
            right == count,
        )


def parities(count: int) -> Iterator[Row]:
    count, right, errors, seconds = max(1, count // 4), 0, [], []
    for seed in range(count):
        X = uniform_tokens(np.random.default_rng([3, seed]), 500, 3, 10)
        start = time.perf_counter()
        report = la.softmax.fit(X, parity(X, (1, 4, 7)), heads=2, seed=seed).report
        seconds.append(time.perf_counter() - start)
        errors.append(report.held_out.error)
        right += report.verdict == "not learned" and report.held_out.error > 0.1
    yield Row(
        "parity of 3 of 10 bits, k = 3, N = 500, 2 heads",
        f'"not learned", held-out error > 0.1, {count} of {count}',
        f"{right} of {count}",
        f"{np.median(errors):.2g}, least {min(errors):.2g}",
        f"{np.median(seconds):.2f}, longest {max(seconds):.2f}",
        right == count,
    )


def large(count: int) -> Iterator[Row]:
    trials = [trial(seed, 4, 16, 8, 600, 4) for seed in range(3)]
    within = "within 30 s, 3"
    yield _timed(
        row("generic, m = 4, d = 16, k = 8, N = 600, logits 4", trials, 3), trials, 30, within
    )


def largest(count: int) -> Iterator[Row]:
    trials = [trial(0, 2, 64, 8, 1000, 4)]
    yield _timed(
        row("generic, m = 2, d = 64, k = 8, N = 1,000, logits 4 (L-BFGS)", trials, 1),
        trials, 120, "within 120 s, 1",
    )  # fmt: skip


def _timed(line: Row, trials: list[Trial], limit: float, within: str) -> Row:
    ok = line.ok and max(t.seconds for t in trials) <= limit
    return Row(line.what, f"{within} of {len(trials)}", line.found, line.error, line.seconds, ok)


def sums(count: int) -> Iterator[Row]:
    """The compiled sums of the normal matrix against numpy with its BLAS, on the same queries."""
    for m, d, d_out, M in ((2, 6, 6, 4096), (3, 10, 10, 2048), (4, 16, 16, 2048)):
        rng, p = np.random.default_rng(0), m * d
        x, A, G = (rng.standard_normal(s) for s in ((M, d), (M, p), (M, d_out, p)))
        shapes = (p * (p + 1) // 2, d * (d + 1) // 2), (p * d, d_out * p)
        times: dict[str, list[float]] = {"ours": [], "numpy": []}
        for _ in range(7):
            found = {}
            for name, add in (
                ("ours", compiled.add_query_sums),
                ("numpy", reference_query_sums),
            ):
                out = [np.zeros(shape) for shape in shapes]
                start = time.perf_counter()
                add(x, A, G, *out)
                times[name].append(time.perf_counter() - start)
                found[name] = out
        for ours, theirs in zip(found["ours"], found["numpy"], strict=True):
            assert np.abs(ours - theirs).max() < 1e-12 * np.abs(theirs).max()
        ours, theirs = (float(np.median(times[name])) for name in ("ours", "numpy"))
        yield Row(
            f"sums of the normal matrix, m = {m}, d = d_out = {d}, {M:,} queries",
            "not slower than numpy with pair products in memory",
            f"{theirs / ours:.1f}x",
            "agree to 1e-12",
            f"{ours:.4f}, numpy {theirs:.4f}",
            ours < 1.1 * theirs,
        )


def apply(count: int) -> Iterator[Row]:
    """The layer against the same layer in PyTorch, where that is installed."""
    try:
        import torch
    except ImportError:
        print("apply: left out, PyTorch is not installed")
        return
    for m, d, k, N in ((2, 6, 4, 20000), (4, 16, 32, 2000), (8, 64, 64, 200)):
        rng = np.random.default_rng(0)
        layer, X = planted_layer(rng, m, d, logits=4), uniform_tokens(rng, N, k, d)
        module, tensor = layer.to_torch(), torch.from_numpy(X)
        ours, theirs = [], []
        with torch.no_grad():
            for _ in range(7):
                start = time.perf_counter()
                y = layer(X)
                between = time.perf_counter()
                other = module(tensor)
                theirs.append(time.perf_counter() - between)
                ours.append(between - start)
        error = np.abs(y - other.numpy()).max()
        assert error < 1e-10, error
        mine, torchs = float(np.median(ours)), float(np.median(theirs))
        yield Row(
            f"apply a layer, m = {m}, d = {d}, k = {k}, N = {N:,}",
            "not slower than PyTorch",
            f"{torchs / mine:.1f}x",
            "agree to 1e-10",
            f"{mine:.3f}, PyTorch {torchs:.3f}",
            mine < 1.1 * torchs,
        )


SCENARIOS: dict[str, Callable[[int], Iterator[Row]]] = {
    each.__name__: each
    for each in (generic, sharp, structured, noisy, nullity, parities, large, largest, sums, apply)
}


def table(rows: dict[str, list[dict[str, object]]]) -> str:
    lines = [
        f"{processor()}, {la.get_num_threads()} threads. Test error: median and worst; seconds of "
        "a whole fit with its evidence: median and longest.",
        "",
        "| planted layers | wanted | found | test error | seconds |",
        "|---|---|---|---|---|",
    ]
    for name in SCENARIOS:
        for each in rows.get(name, []):
            line = Row(**each)  # type: ignore[arg-type]  # read from JSON
            mark = "" if line.ok else " **(short)**"
            lines.append(
                f"| {line.what} | {line.wanted} | {line.found}{mark} | {line.error} "
                f"| {line.seconds} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = sys.argv[1:]
    quick = "--quick" in arguments
    chosen = [name for name in arguments if name != "--quick"] or list(SCENARIOS)
    record = RESULTS / "softmax.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    for name in chosen:
        known[name] = []
        for line in SCENARIOS[name](3 if quick else 20):
            print(*asdict(line).values(), sep=" | ", flush=True)
            known[name].append(asdict(line))
    if not quick:
        record.write_text(json.dumps(known, indent=1, default=bool) + "\n")
        (RESULTS / "softmax.md").write_text(table(known))
        readme.show("softmax.md", table(known), "docs/softmax.md")
    if not all(line["ok"] for name in chosen for line in known[name]):
        sys.exit("some figures fall short")


if __name__ == "__main__":
    main()
