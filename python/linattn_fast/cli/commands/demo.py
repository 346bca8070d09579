"""``linattn-fast demo``: learn a planted layer, certify it, recover its heads."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from ...arrays.types import Floats
from ...fitting.call import fit
from ...fitting.certify import certify
from ...fitting.result import Fit
from ...heads.heads import Heads
from ...heads.matching import match_heads
from ...moments.moments import Moments
from ...study.head_path import head_path
from ...system import tables
from ...system.machine import get_num_threads
from ...system.packages import matplotlib_figure
from ..arguments import add_work, require_writable
from ..command import Command, Outcome
from ..comparison import compare, planted, relative_error

_D, _HEADS, _SEQUENCES, _LENGTH = 8, 3, 4000, 32
_NEW_LENGTH = 3 * _LENGTH
"""Tokens of the new sequences: longer than any that was learned from."""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--picture", metavar="FILE", help="plot the spectrum and the coefficients (matplotlib)"
    )
    add_work(parser, memory=False)


def _plot(picture: str, spectrum: Floats, truth: Floats, found: Floats) -> None:
    figure = matplotlib_figure("--picture")(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
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
    right.plot([-limit, limit], [-limit, limit], color="0.8", zorder=0)
    right.plot(truth.ravel(), found.ravel(), ".", ms=3, color="tab:green")
    right.set(
        title=f"All {truth.size:,} coefficients,\nrelative error "
        f"{relative_error(found, truth):.1e}",
        xlabel="true",
        ylabel="learned",
        aspect="equal",
    )
    figure.savefig(picture, dpi=120)


def _run(arguments: Namespace) -> Outcome:
    if arguments.picture is not None:
        require_writable(arguments.picture, arguments)
        matplotlib_figure("--picture")
    backend = arguments.backend
    data = planted(_D, _HEADS, _SEQUENCES, _LENGTH)
    Z, y, truth = data
    rng = np.random.default_rng(1)
    layer = fit(Z, y, backend=backend)
    heads, certificate = layer.heads, layer.certificate
    assert heads is not None  # both were asked for
    assert certificate is not None
    C = truth.coefficients()
    new = rng.standard_normal((500, _NEW_LENGTH, _D))
    noisy = y + 0.2 * y.std() * rng.standard_normal(y.shape)
    path = head_path(Moments(_D, _D, backend=backend).update(Z, noisy), 5)
    timed = compare(data, 5, backend)
    found: dict[str, Any] = {
        "sequences": _SEQUENCES, "length": _LENGTH, "d": _D, "planted_heads": _HEADS,
        "n_heads": len(heads),
        "coefficients_error": relative_error(layer.coefficients, C),
        "function_error": heads.distance(truth) / float(np.linalg.norm(C)),
        "new_sequences_error": relative_error(
            np.asarray(layer.predict(new)), np.asarray(truth(new))
        ),
        "noisy_losses": [float(loss / path.convex_loss) for loss in path.losses],
        "verdict": certificate.verdict,
        "lambda_min": certificate.lambda_min,
        "lower_bound": certificate.lower_bound,
        "seconds": timed.ours, "numpy_seconds": timed.numpy, "ratio": timed.ratio,
        "threads": get_num_threads(),
        "picture": arguments.picture,
    }  # fmt: skip
    if arguments.picture is not None:
        spectrum = certify(Z, spectrum=True, backend=backend).spectrum
        assert spectrum is not None
        _plot(arguments.picture, spectrum, C, layer.coefficients)
    return Outcome(_text(layer, truth, found), found)


def _text(layer: Fit, truth: Heads, found: dict[str, Any]) -> str:
    heads = layer.heads
    assert heads is not None  # asked for
    d_out, p = layer.coefficients.shape
    rows: list[tuple[str, object]] = [
        ("coefficients", f"{d_out} x {p}, relative error {found['coefficients_error']:.1e}"),
        ("heads", f"{len(heads)} found of {_HEADS} planted, the layer as a function "
                  f"{found['function_error']:.1e} away (relative)\n{heads.recovery}\n"
                  f"{match_heads(truth, heads)}"),
        ("with noise", "loss over the convex optimum, with 1, 2, .. heads: "
                       + ", ".join(f"{loss:.2f}" for loss in found["noisy_losses"])),
        ("new sequences", f"{_NEW_LENGTH} tokens, relative error "
                          f"{found['new_sequences_error']:.1e}"),
        ("certificate", layer.certificate),
        ("solver", str(layer.info).removeprefix("solver ")),
        ("time", f"{tables.seconds(found['seconds'])} to the coefficients, chunked numpy "
                 f"{tables.seconds(found['numpy_seconds'])} ({found['ratio']:.1f}x), "
                 f"{found['threads']} threads"),
    ]  # fmt: skip
    if found["picture"] is not None:
        rows.append(("picture", found["picture"]))
    return (
        f"{_SEQUENCES} sequences of {_LENGTH} tokens in R^{_D}, targets from {_HEADS} planted "
        f"heads\n\n{tables.facts(rows)}"
    )


COMMAND = Command(
    summary="learn a planted layer, certify it, recover its heads",
    description="Learn a planted layer, certify it, recover its heads, and time it against numpy; "
    "no files needed.",
    example="linattn-fast demo --picture demo.png",
    add_arguments=_add_arguments,
    run=_run,
)
