"""Figure 3: the same experiment at every learning rate and batch size."""

from __future__ import annotations

from itertools import product
from typing import Any

from ..system.tables import table
from .fig1 import CONVEX, draw_curve
from .figure import Figure, Finding, Settings
from .random_attention import QUICK, Experiment, Sizes, run
from .random_attention_text import TABLE, rows_of, setting_of


def _draw(experiment: Experiment, figure: Any) -> None:
    """A row for each d, a column for each learning rate and batch size; loss over epochs."""
    sizes = experiment.sizes
    ways = list(product(sizes.batches, sizes.rates))
    axes = figure.subplots(
        len(sizes.dimensions), len(ways), sharex=True, sharey=True, squeeze=False
    )
    for row, convex in zip(axes, experiment.convex, strict=True):
        for axis, (batch, rate) in zip(row, ways, strict=True):
            for curve in experiment.curves:
                if (curve.d, curve.batch, curve.rate) == (convex.d, batch, rate):
                    draw_curve(axis, curve, curve.epochs)
            axis.axhline(convex.loss, color=CONVEX, ls="--", lw=1.5, label="convex solution")
            axis.set(xscale="log", yscale="log", ylim=(1e-34, 1e4))
            axis.grid(alpha=0.25)
        row[0].set_ylabel(f"d = {convex.d}\nloss / variance")
    for axis, (batch, rate) in zip(axes[0], ways, strict=True):
        axis.set_title(f"batch {batch}, learning rate {rate:g}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("epochs")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)


def _text(experiment: Experiment, settings: Settings) -> str:
    sizes = experiment.sizes
    ways = list(product(sizes.batches, sizes.rates))
    rows: list[list[object]] = []
    for d, model in product(sizes.dimensions, experiment.models):
        last = {
            (curve.batch, curve.rate): 10 ** float(curve.log10_mean()[0][-1])
            for curve in experiment.curves
            if (curve.d, curve.model) == (d, model)
        }
        rows.append([d, model, *(f"{last[way]:.1e}" for way in ways)])
    for convex in experiment.convex:
        rows.append([convex.d, "convex solution", *[f"{convex.loss:.1e}"] * len(ways)])
    header = ["d", "model", *(f"{batch}, {rate:g}" for batch, rate in ways)]
    return (
        f"{setting_of(experiment, settings)}\n\n"
        "Loss after the last epoch over the variance of the targets (mean of log10 over seeds),\n"
        f"by batch and learning rate:\n\n{table(header, rows)}"
    )


def _run(settings: Settings) -> Finding:
    experiment = run(QUICK if settings.quick else Sizes(), settings)
    size = len(experiment.sizes.batches) * len(experiment.sizes.rates)
    return Finding(
        rows_of(experiment),
        _text(experiment, settings),
        lambda figure: _draw(experiment, figure),
        (3.0 * size + 0.6, 2.3 * len(experiment.sizes.dimensions) + 1.0),
    )


FIGURE = Figure(
    name="fig3",
    title="the same at every learning rate, batch size and depth",
    description="the experiment of fig1 at every learning rate, batch size and depth: loss over "
    "epochs.\nNeeds PyTorch; what fig1 has trained in the same folder is not trained again.",
    run=_run,
    needs=("torch",),
    table=TABLE,
)
