"""Figure 1: a random head, learned by least squares and by AdamW, over epochs and over seconds."""

from __future__ import annotations

from typing import Any

from ..system.tables import seconds as in_words
from ..system.tables import table
from .figure import Figure, Finding, Settings, machine
from .random_attention import QUICK, Curve, Experiment, Sizes, run
from .random_attention_text import TABLE, rows_of, setting_of

COLOURS = {
    "1 head": "#a6cee3", "2 heads": "#74b3d8", "4 heads": "#4292c6", "8 heads": "#2171b5",
    "16 heads": "#08306b", "2 layers": "#fd8d3c", "4 layers": "#d94801",
    "softmax Transformer": "#756bb1",
}  # fmt: skip
"""More heads are darker blue, more layers darker orange."""
CONVEX = "#d62728"
"""Colour of the convex solution: red."""


def draw_curve(axis: Any, curve: Curve, x: Any) -> None:
    """The mean over seeds of the logarithm, and its standard error as a band."""
    mean, error = curve.log10_mean()
    colour = COLOURS[curve.model]
    axis.plot(x, 10**mean, color=colour, lw=1.4, label=curve.model)
    axis.fill_between(x, 10 ** (mean - error), 10 ** (mean + error), color=colour, alpha=0.25, lw=0)


def draw(experiment: Experiment, figure: Any) -> None:
    """A column for each d; loss over epochs above, over seconds below."""
    sizes = experiment.sizes
    axes = figure.subplots(2, len(sizes.dimensions), sharey=True, squeeze=False)
    for (above, below), convex in zip(axes.T, experiment.convex, strict=True):
        for model in experiment.models:
            curve = experiment.best(convex.d, model, sizes.batches[0])
            draw_curve(above, curve, curve.epochs)
            draw_curve(below, curve, curve.epochs * curve.seconds)
        fastest = experiment.fastest(convex.d)
        above.axhline(convex.loss, color=CONVEX, ls="--", lw=1.5, label="convex solution")
        below.plot(convex.seconds, convex.loss, "*", color=CONVEX, ms=13, zorder=5)
        below.axvline(fastest.seconds, color="0.6", ls=":", lw=1)
        below.annotate(
            f"convex solution\n{in_words(convex.seconds)}",
            (convex.seconds, convex.loss), (-3, 9), textcoords="offset points",
            color=CONVEX, fontsize=9,
        )  # fmt: skip
        below.annotate(
            f"fastest epoch\n{in_words(fastest.seconds)}",
            (fastest.seconds, 1e-16), (3, 0), textcoords="offset points",
            color="0.4", fontsize=8, va="center",
        )  # fmt: skip
        above.set(title=f"d = {convex.d}", xlabel="epochs", xscale="log")
        below.set(xlabel="seconds of one model alone", xscale="log")
        for axis in (above, below):
            axis.set(yscale="log", ylim=(1e-34, 1e4))
            axis.grid(alpha=0.25)
    for axis in axes[:, 0]:
        axis.set_ylabel("training loss / variance of the targets")
    figure.suptitle(
        f"One random head, causal targets, batches of {sizes.batches[0]}, the better learning rate "
        f"of each model ({machine()})",
        fontsize=11,
    )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False)


def _text(experiment: Experiment, settings: Settings) -> str:
    sizes = experiment.sizes
    shown, reached = [], []
    for convex in experiment.convex:
        fastest = experiment.fastest(convex.d)
        shown.append(
            [convex.d, f"{convex.loss:.1e}", in_words(convex.seconds),
             in_words(convex.heads_seconds + convex.proof_seconds), in_words(convex.whole_seconds),
             in_words(fastest.seconds), f"{fastest.seconds / convex.seconds:.1f}x"]
        )  # fmt: skip
        best = min(
            (experiment.best(convex.d, model, batch)
             for model in experiment.models for batch in sizes.batches),
            key=lambda curve: float(curve.log10_mean()[0].min()),
        )  # fmt: skip
        mean = best.log10_mean()[0]
        reached.append(
            [convex.d, best.model, best.batch, f"{best.rate:g}", f"{10 ** mean.min():.1e}",
             int(mean.argmin()) + 1, in_words((int(mean.argmin()) + 1) * best.seconds)]
        )  # fmt: skip
    proofs = ", ".join(
        f"{one.proof_sequences} at d = {one.d}: {one.proof}" for one in experiment.convex
    )
    header = ["d", "convex loss", "coefficients", "+ heads, proof", "with all", "fastest epoch",
              "epoch / convex"]  # fmt: skip
    return (
        f"{setting_of(experiment, settings)}\n\n"
        "The convex solution against the fastest epoch of any trained model. Losses are training\n"
        "losses over the variance of the targets, the largest of all seeds.\n\n"
        f"{table(header, shown)}\n\n"
        "coefficients: la.fit(Z, y, positions='causal', heads=None, certify=False), from tokens\n"
        "  to coefficients; a part of the sequences determines the layer, and that it fits all of\n"
        "  them to rounding is checked, which is part of the time.\n"
        "+ heads, proof: the same with heads, and la.certify of the first sequences, whose\n"
        f"  verdict more data can only strengthen\n  ({proofs}).\n"
        "with all: la.fit(Z, y, positions='causal'), heads and lambda_min of all of the data.\n"
        "fastest epoch: of one model alone, the shortest of a few epochs, batch "
        f"{' or '.join(map(str, sizes.batches))}.\n\n"
        "The best that training reached (mean of log10 over seeds):\n\n"
        + table(["d", "model", "batch", "rate", "loss", "epoch", "time alone"], reached)
    )


def _run(settings: Settings) -> Finding:
    experiment = run(QUICK if settings.quick else Sizes(), settings)
    found = {
        str(one.d): {"loss": one.loss, "seconds": one.seconds,
                     "fastest_epoch_seconds": experiment.fastest(one.d).seconds}
        for one in experiment.convex
    }  # fmt: skip
    return Finding(
        rows_of(experiment),
        _text(experiment, settings),
        lambda figure: draw(experiment, figure),
        (3.3 * len(experiment.sizes.dimensions) + 0.8, 7.2),
        {"dimensions": found},
    )


FIGURE = Figure(
    name="fig1",
    title="a random head learned by AdamW and by least squares, over epochs and seconds",
    description="one random linear attention head, d = 2, 4, 8, 16, causal targets, 2,048 "
    "sequences of\n100 tokens. Multi-head and multi-layer linear attention and a small softmax "
    "Transformer\ntrained by AdamW, against the convex solution: loss over epochs and "
    "over seconds. Needs\nPyTorch; about half an hour on two cores, kept part by part in "
    "FOLDER/paper-runs and shared\nwith fig3.",
    run=_run,
    needs=("torch",),
    table=TABLE,
)
