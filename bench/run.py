"""Our moments against what users write today, on answers checked first.

    make bench

Writes bench/results/ (table.md, table.json, plot.png) and puts the table into the README.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import competitors
import matplotlib as mpl
import numpy as np
from machine import alternate, extra_memory, flop_rate, processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la
from linattn_fast import _cpu
from linattn_fast.features.compact import shape
from linattn_fast.system.machine import in_words

REPEATS = 7


class Row(NamedTuple):
    """One comparison."""

    scenario: str
    against: str
    ours_seconds: float
    theirs_seconds: float
    peak_fraction: float | None = None
    """Flops of the compact Gram, or of the layer, over the measured multiply-add peak."""
    memory: int | None = None
    """Bytes beyond the input."""

    @property
    def ratio(self) -> float:
        return self.theirs_seconds / self.ours_seconds


def check(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    """Agreement to rounding, relative to the diagonal as for any Gram."""
    size = np.sqrt(np.diag(expected))
    error = np.abs(found - expected) / (size * size[:, None])
    assert error.max() < tolerance, f"answers differ by {error.max():.1e}"


def accumulate(Z: np.ndarray, positions: str, precision: str = "float64") -> la.Moments:
    moments = la.Moments(Z.shape[2], 0, positions=positions, precision=precision, backend="cpu")
    return moments.update(Z)


def gram_flops(positions: str, d: int, N: int, n: int) -> int:
    samples = N * n if positions == "causal" else N
    return 2 * samples * int(np.prod(shape(la.Features(d), positions)))


def compare(
    positions: str, d: int, N: int, n: int, others: dict[str, Callable[[np.ndarray], np.ndarray]]
) -> list[Row]:
    """Ours against each of the others, all in turns."""
    Z = np.random.default_rng(d).standard_normal((N, n, d))
    gram = accumulate(Z, positions).gram()
    for name, other in others.items():
        answer = other(Z)
        check(gram, competitors.symmetric_part(answer, d) if name.startswith("literal") else answer)
    runs = [lambda: accumulate(Z, positions), *(partial(other, Z) for other in others.values())]
    ours, *theirs = alternate(runs, REPEATS)
    fraction = flop_rate(
        f"Z = np.random.default_rng({d}).standard_normal({Z.shape})",
        f"la.Moments({d}, 0, positions={positions!r}, backend='cpu').update(Z)",
        gram_flops(positions, d, N, n),
        REPEATS,
    )
    memory = extra_memory(positions, d, N, n)
    scenario = f"{positions}, d = {d}, n = {n}, N = {N:,}"
    return [
        Row(scenario, name, ours, seconds, fraction, memory)
        for name, seconds in zip(others, theirs, strict=True)
    ]


def layer_flops(positions: str, d: int, N: int, n: int, H: int) -> int:
    """Of y = sum_h V_h S Q_h z with one output: the fewest of the ways in csrc/core/layer.cpp."""
    q = d * (d + 1) // 2
    if positions == "causal":
        return 2 * N * n * (H * (d * d + 2 * d) + d)
    if positions == "all":
        return 2 * N * (n * q + min(2 * H * d * d, d * q) + n * d)
    return 2 * N * (n * q + min(H * (2 * d * d + d), d * q + d))


def predict(positions: str, d: int, N: int, n: int, H: int = 4) -> list[Row]:
    """A layer applied to many sequences, against numpy and against one reading of the tokens."""
    rng = np.random.default_rng(d)
    Z = rng.standard_normal((N, n, d))
    heads = la.Heads(rng.standard_normal((H, 1, d)), rng.standard_normal((H, d, d)))
    others = {
        "expert numpy": partial(competitors.expert_predict, heads.V, heads.Q, Z, positions),
        "one reading of Z": partial(_cpu.first_non_finite, Z, None, la.get_num_threads()),
    }
    found, expected = heads(Z, positions), others["expert numpy"]()
    assert np.abs(found - expected).max() < 1e-11 * np.abs(expected).max()
    ours, *theirs = alternate([lambda: heads(Z, positions), *others.values()], REPEATS)
    fraction = flop_rate(
        f"rng = np.random.default_rng({d}); Z = rng.standard_normal({Z.shape});"
        f"V, Q = rng.standard_normal({heads.V.shape}), rng.standard_normal({heads.Q.shape});"
        "heads = la.Heads(V, Q)",
        f"heads(Z, {positions!r})",
        layer_flops(positions, d, N, n, H),
        REPEATS,
    )
    scenario = f"apply {H} heads, {positions}, d = {d}, n = {n}, N = {N:,}"
    return [Row(scenario, name, ours, t, fraction) for name, t in zip(others, theirs, strict=True)]


def against_ourselves(d: int = 16, N: int = 8_000, n: int = 32) -> list[Row]:
    """Mixed precision against float64, and all threads against one."""
    Z = np.random.default_rng(d).standard_normal((N, n, d))
    check(accumulate(Z, "last", "mixed").gram(), accumulate(Z, "last").gram(), 1e-5)
    threads = la.get_num_threads()

    def alone() -> None:
        la.set_num_threads(1)
        accumulate(Z, "last")
        la.set_num_threads(threads)

    mixed, both, one = alternate(
        [
            lambda: accumulate(Z, "last", "mixed"),
            lambda: accumulate(Z, "last"),
            alone,
        ],
        REPEATS,
    )
    scenario = f"last, d = {d}, n = {n}, N = {N:,}"
    return [
        Row(f"{scenario}, mixed precision", "our float64", mixed, both),
        Row(f"{scenario}, {threads} threads", "our 1 thread", both, one),
    ]


def installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def scenarios() -> list[Callable[[], list[Row]]]:
    expert = {"expert numpy": competitors.expert_last}
    literal = {"literal d^3 numpy": competitors.literal_last}
    torch = {}
    if installed("torch"):
        torch = {"PyTorch": partial(competitors.torch_last, threads=la.get_num_threads())}
    chosen = [
        partial(compare, "last", 4, 300_000, 32, expert),
        partial(compare, "last", 8, 40_000, 32, {**expert, **literal, **torch}),
        partial(compare, "last", 12, 20_000, 32, expert),
        partial(compare, "last", 16, 8_000, 32, {**expert, **literal, **torch}),
        partial(compare, "last", 24, 2_000, 32, expert),
        partial(compare, "all", 8, 5_000, 64, {"expert numpy": competitors.expert_all}),
        partial(compare, "causal", 8, 400, 100, {"expert numpy": competitors.expert_causal}),
        against_ourselves,
        partial(predict, "last", 8, 100_000, 32),
        partial(predict, "last", 16, 50_000, 32),
        partial(predict, "all", 16, 20_000, 32),
        partial(predict, "causal", 16, 10_000, 32),
    ]
    if installed("sklearn"):
        small = {"PolynomialFeatures": competitors.sklearn_last}
        chosen.insert(1, partial(compare, "last", 4, 20_000, 32, small))
    return chosen


def table(rows: list[Row], machine: str) -> str:
    cells = []
    for row in rows:
        fraction = "" if row.peak_fraction is None else f"{100 * row.peak_fraction:.0f} %"
        memory = "" if row.memory is None else in_words(row.memory)
        cells.append(
            [row.scenario, row.against, f"{1e3 * row.ours_seconds:.1f} ms",
             f"{1e3 * row.theirs_seconds:.1f} ms", f"{row.ratio:.1f}x", fraction, memory]
        )  # fmt: skip
    return markdown_table(
        f"{machine}. Median of {REPEATS} runs in turns; answers checked before timing.",
        ["tokens to moments", "against", "ours", "theirs", "ratio", "of peak", "our memory"],
        cells,
    )


def plot(rows: list[Row], machine: str) -> None:
    """Time against d, and the fraction of the peak."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    last = {}
    for row in rows:
        if row.scenario.startswith("last") and row.against == "expert numpy":
            parts = dict(part.split(" = ") for part in row.scenario.split(", ", 1)[1].split(", "))
            last[int(parts["d"])] = row, int(parts["N"].replace(",", ""))
    d = sorted(last)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, color in (("theirs", "tab:orange"), ("ours", "tab:blue")):
        seconds = [getattr(last[k][0], f"{name}_seconds") / last[k][1] * 1e6 for k in d]
        label = "expert numpy" if name == "theirs" else "linattn_fast"
        left.loglog(d, seconds, "o-", color=color, label=label)
    for k in d:
        row, N = last[k]
        left.annotate(
            f"{row.ratio:.1f}x",
            (k, row.ours_seconds / N * 1e6),
            textcoords="offset points",
            xytext=(6, -12),
        )
    left.set(title="Tokens to moments, last position", xlabel="d", ylabel="µs per sequence")
    left.margins(0.12)
    left.set_xticks(d, [str(k) for k in d])
    left.minorticks_off()
    left.legend()
    right.plot(d, [100 * last[k][0].peak_fraction for k in d], "o-", color="tab:blue")
    right.set(
        title="Gram flops over the measured multiply-add peak",
        xlabel="d",
        ylabel="%",
        ylim=(0, 100),
        xticks=d,
    )
    figure.suptitle(machine, fontsize=8)
    figure.savefig(RESULTS / "plot.png", dpi=110)


def main() -> None:
    peak, alone = (
        max(_cpu.multiply_add_rate(threads) for _ in range(5)) / 1e9
        for threads in (la.get_num_threads(), 1)
    )
    machine = (
        f"{processor()}, {la.get_num_threads()} threads, {_cpu.instruction_set()}, "
        f"peak {peak:.0f} GFlop/s (one thread {alone:.0f}), numpy {np.__version__}"
    )
    rows = []
    for scenario in scenarios():
        rows += scenario()
        print(f"{rows[-1].scenario}: {rows[-1].ratio:.1f}x {rows[-1].against}", flush=True)
    text = table(rows, machine)
    figures = [{**row._asdict(), "ratio": row.ratio} for row in rows]
    keep(RESULTS, "table", text, {"machine": machine, "rows": figures})
    plot(rows, machine)
    print("\n" + text)


if __name__ == "__main__":
    main()
