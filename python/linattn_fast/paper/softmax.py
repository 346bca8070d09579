"""Softmax attention: how often a planted layer is learned, and parities, which are not.

The layers are those of Chen & Li (arXiv 2402.04084) on uniform +-1 sequences, learned by
:func:`linattn_fast.softmax.fit` from several numbers of equations for each unknown. A layer counts
as learned where its error on new sequences is below 1e-6. Three panels vary the heads, the
dimension and the standard deviation of the logits; in the fourth, targets are the product of some
coordinates of each token, which a layer with few heads can learn only while these are few.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeAlias

import numpy as np

from ..softmax.layer.planted import parity, planted_layer, uniform_tokens
from ..softmax.learning.fit import fit
from .figure import Figure, Finding, Settings, machine

Row: TypeAlias = dict[str, Any]
"""Row of the table: one instance."""

_M, _D, _K, _LOGITS = 2, 6, 4, 4.0
"""Heads, coordinates, tokens of a sequence and deviation of the logits, where they do not vary."""
_HEADS, _DIMENSIONS, _SCALES = (
    (1, 2, 3, 4, 5),
    (4, 6, 8, 10),
    (0.25, 1.0, 4.0, 16.0, 64.0, 256.0),
)
_QUICK_HEADS, _QUICK_DIMENSIONS, _QUICK_SCALES = (1, 2), (4, 5), (1.0, 16.0)
"""Numbers of heads, of coordinates, and standard deviations of the logits that the panels show."""
_EQUATIONS = (1.5, 3.0, 10.0, 50.0)
"""Numbers of equations for each unknown."""
_BITS, _QUICK_BITS, _PARITY_D, _PARITY_N = (1, 2, 3, 4), (1, 3), 10, 500
"""Numbers of coordinates that a parity multiplies, of all coordinates, and of sequences."""
_INSTANCES, _QUICK_INSTANCES, _PARITIES = 8, 2, 5
"""Numbers of instances of each layer, and of each parity."""
_STARTS = 4
"""Number of starts at most."""
_LEARNED, _TESTS = 1e-6, 300
"""Relative error below which a layer counts as learned, and the number of new sequences for it."""


def _planted(panel: str, m: int, d: int, logits: float, ratio: float, seed: Any) -> Row:
    """Learn one planted layer from ``ratio`` equations for each unknown."""
    rng = np.random.default_rng(seed)
    N = math.ceil(ratio * 2 * m * d * d / (_K * d) / 0.8)  # a fifth is held out
    truth = planted_layer(rng, m, d, logits=logits)
    X, new = uniform_tokens(rng, N, _K, d), uniform_tokens(rng, _TESTS, _K, d)
    start = time.perf_counter()
    found = fit(X, truth(X), heads=m, starts=_STARTS)
    seconds = time.perf_counter() - start
    expected = np.asarray(truth(new))
    error = float(np.linalg.norm(np.asarray(found.predict(new)) - expected))
    return {
        "panel": panel,
        "heads": m,
        "d": d,
        "logits": logits,
        "equations_per_unknown": ratio,
        "sequences": N,
        "error": error / float(np.linalg.norm(expected)),
        "held_out_error": found.report.held_out.error,
        "verdict": found.report.verdict,
        "seconds": round(seconds, 3),
    }


def _parity(bits: int, seed: Any) -> Row:
    """Try to learn a parity of so many bits."""
    X = uniform_tokens(np.random.default_rng(seed), _PARITY_N, _K, _PARITY_D)
    start = time.perf_counter()
    report = fit(X, parity(X, tuple(range(bits))), heads=_M, starts=_STARTS).report
    return {
        "panel": "parity",
        "heads": _M,
        "d": _PARITY_D,
        "bits": bits,
        "sequences": _PARITY_N,
        "error": report.held_out.error,
        "held_out_error": report.held_out.error,
        "verdict": report.verdict,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _work(settings: Settings) -> list[tuple[str, tuple[Any, ...]]]:
    """Every instance: "planted" or "parity", and the arguments that make it."""
    quick = settings.quick
    heads = _QUICK_HEADS if quick else _HEADS
    dimensions = _QUICK_DIMENSIONS if quick else _DIMENSIONS
    scales = _QUICK_SCALES if quick else _SCALES
    shapes = [("heads", m, _D, _LOGITS) for m in heads]
    shapes += [("dimension", _M, d, _LOGITS) for d in dimensions]
    shapes += [("logits", _M, _D, scale) for scale in scales]
    instances = _QUICK_INSTANCES if quick else _INSTANCES
    work: list[tuple[str, tuple[Any, ...]]] = [
        ("planted", (*shape, ratio, [settings.seed, i, number]))
        for number, shape in enumerate(shapes)
        for ratio in _EQUATIONS
        for i in range(instances)
    ]
    parities = _QUICK_INSTANCES if quick else _PARITIES
    bits = _QUICK_BITS if quick else _BITS
    return work + [("parity", (b, [settings.seed, i, b])) for b in bits for i in range(parities)]


def _run(settings: Settings) -> Finding:
    work, rows = _work(settings), []
    for done, (kind, arguments) in enumerate(work):
        settings.report(done, len(work))
        rows.append(_parity(*arguments) if kind == "parity" else _planted(*arguments))
    settings.report(len(work), len(work))
    rates = {
        ratio: _rate([r for r in rows if r.get("equations_per_unknown") == ratio])
        for ratio in _EQUATIONS
    }
    parities = [r for r in rows if r["panel"] == "parity"]
    hard = [r for r in parities if r["bits"] >= 3]
    failed = sum(r["verdict"] == "not learned" for r in hard)
    least = min(r["error"] for r in hard)
    wrongly = sum(r["verdict"] == "learned" and r["error"] > _LEARNED for r in rows)
    lines = [
        f"Planted softmax layers on uniform +-1 tokens, k = {_K}, {_STARTS} starts at most, "
        f"{machine()}.",
        f"Learned (error on new sequences below {_LEARNED:g}), all heads, dimensions and logits "
        "together:",
        *(f"  {ratio:g} equations an unknown: {rates[ratio]:.0%}" for ratio in _EQUATIONS),
        f'Parities of 3 and more of {_PARITY_D} bits: {failed} of {len(hard)} "not learned", least '
        f"held-out error {least:.2g}.",
        f'Verdicts "learned" with an error above {_LEARNED:g}: {wrongly} of {len(rows)}.',
    ]
    data = {
        "rates": {str(k): v for k, v in rates.items()},
        "parity_failures": failed,
        "wrongly": wrongly,
    }
    return Finding(rows, "\n".join(lines), lambda figure: _draw(figure, rows), (11, 3.6), data)


def _rate(rows: list[Row]) -> float:
    """Share of rows whose layer was learned."""
    return sum(bool(r["error"] < _LEARNED) for r in rows) / max(1, len(rows))


def _draw(figure: Any, rows: list[Row]) -> None:
    axes = figure.subplots(1, 4)
    panels = (
        ("heads", "heads", "heads m"),
        ("dimension", "d", "dimension d"),
        ("logits", "logits", "logit deviation"),
    )
    for axis, (panel, key, label) in zip(axes, panels, strict=False):
        mine = [r for r in rows if r["panel"] == panel]
        values = sorted({r[key] for r in mine})
        for ratio, mark in zip(_EQUATIONS, "osd^", strict=True):
            rates = [
                _rate([r for r in mine if r[key] == v and r["equations_per_unknown"] == ratio])
                for v in values
            ]
            axis.plot(values, rates, f"{mark}-", label=f"{ratio:g} equations / unknown")
        axis.set(xlabel=label, ylim=(-0.05, 1.05))
        if panel == "logits":
            axis.set_xscale("log", base=4)
        else:
            axis.set_xticks(values)
    axes[0].set_ylabel("learned")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    parities = [r for r in rows if r["panel"] == "parity"]
    axes[3].semilogy([r["bits"] for r in parities], [max(r["error"], 1e-16) for r in parities], "x")
    axes[3].axhline(0.1, color="gray", ls=":")
    axes[3].set(xlabel=f"parity of bits, d = {_PARITY_D}", ylabel="held-out error")
    axes[3].set_xticks(sorted({r["bits"] for r in parities}))


FIGURE = Figure(
    name="softmax",
    title="softmax attention: how often planted layers are learned, and parities are not",
    description="softmax attention layers on random +-1 sequences: the rate at which planted ones "
    "are learned\nagainst heads, dimension and logit scale, and the held-out error of parities. A "
    "few minutes.",
    run=_run,
)
