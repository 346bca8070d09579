"""The experiment of figures 1 and 3 in words and as a table."""

from __future__ import annotations

from typing import Any

from .figure import Settings, machine
from .random_attention import Experiment

TABLE = "fig1"
"""Name of the table of every epoch, which both figures write."""


def setting_of(experiment: Experiment, settings: Settings) -> str:
    """What was run, and on what."""
    import torch  # noqa: PLC0415  # an optional extra; it has trained by now

    sizes = experiment.sizes
    dimensions = ", ".join(map(str, sizes.dimensions))
    return (
        f"One random head with V of shape (1, d), d = {dimensions}; {sizes.sequences:,} sequences "
        f"of {sizes.length} Gaussian tokens,\na causal target at every token "
        f"({sizes.sequences * sizes.length:,} samples), {sizes.seeds} data sets "
        f"(seed {settings.seed}).\n"
        "AdamW in float32 without weight decay, learning rates "
        f"{' and '.join(f'{rate:g}' for rate in sizes.rates)}, batches of "
        f"{' and '.join(map(str, sizes.batches))} sequences,\n{sizes.epochs} epochs of single "
        f"layers, {sizes.long_epochs} of deeper models and of the Transformer (one block, width "
        f"16).\n{machine()}, PyTorch {torch.__version__.split('+')[0]}.\n"
        f"Every epoch of every model is a row of {TABLE}.csv."
    )


def rows_of(experiment: Experiment) -> list[dict[str, Any]]:
    """Every curve, an epoch a row, and the convex solutions."""
    rows: list[dict[str, Any]] = []
    for convex in experiment.convex:
        rows.append(
            {"d": convex.d, "model": "convex solution", "seconds": convex.seconds,
             "loss": convex.loss, "seconds_with_heads": convex.heads_seconds,
             "seconds_of_proof": convex.proof_seconds, "seconds_with_all": convex.whole_seconds,
             "distance": convex.distance, "lambda_min": convex.lambda_min, "proof": convex.proof,
             "heads_found": convex.n_heads}
        )  # fmt: skip
    for curve in experiment.curves:
        mean, error = curve.log10_mean()
        for i, epoch in enumerate(curve.epochs):
            rows.append(
                {"d": curve.d, "model": curve.model, "batch": curve.batch, "rate": curve.rate,
                 "epoch": int(epoch), "seconds": float(f"{epoch * curve.seconds:.5g}"),
                 "loss": float(f"{10 ** mean[i]:.5g}"),
                 "log10_standard_error": float(f"{error[i]:.3g}")}
            )  # fmt: skip
    return rows
