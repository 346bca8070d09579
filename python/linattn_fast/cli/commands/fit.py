"""``linattn-fast fit``: learn a layer from a file, and save it."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from typing import Any

from ...backend.interface import PRECISIONS
from ...fitting.call import fit
from ...fitting.plan import SOLVER_NAMES
from ...fitting.result import Fit
from ...system import tables
from ...system.machine import in_words
from ..arguments import (
    add_data,
    add_output,
    add_positions,
    add_weights,
    add_work,
    count,
    require_writable,
    ridge,
)
from ..bar import terminal_bar
from ..command import Command, Outcome, UsageError
from ..files import Input, opened
from ..report.wording import certificate_fields, layer_facts


def which_heads(text: str) -> str | int | None:
    """``minimal``, ``svd``, ``none`` or a number."""
    if text in ("minimal", "svd"):
        return text
    if text == "none":
        return None
    try:
        return count(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"minimal, svd, none or a number of heads is needed, got {text!r}"
        ) from None


def _add_arguments(parser: ArgumentParser) -> None:
    add_data(parser, targets=True)
    parser.add_argument(
        "targets_file", metavar="TARGETS", nargs="?", help="targets, if DATA is one array of tokens"
    )
    add_output(parser, "the model, an .npz file", required=True)
    add_weights(parser)
    add_positions(parser)
    parser.add_argument(
        "--alpha", type=ridge, default=0.0, help="ridge, added to the mean loss [0]"
    )
    parser.add_argument(
        "--heads",
        type=which_heads,
        default="minimal",
        help="minimal (as few as have the coefficients), svd, none, or a number: the best layer "
        "with at most so many [minimal]",
    )
    parser.add_argument(
        "--solver", choices=SOLVER_NAMES, default="auto", help="what solves the equations [auto]"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float64", help="of the Gram [float64]"
    )
    parser.add_argument("--no-certify", action="store_true", help="make no certificate")
    add_work(parser)


def _fit(data: Input, arguments: Namespace) -> Fit:
    solving = {
        "alpha": arguments.alpha, "heads": arguments.heads, "solver": arguments.solver,
        "certify": not arguments.no_certify, "memory_limit": arguments.memory_limit,
    }  # fmt: skip
    if data.moments is not None:
        if arguments.solver not in ("auto", "cholesky", "eigh"):
            raise UsageError(
                f"linattn-fast: --solver {arguments.solver} needs the data, and {data.path} holds "
                "moments; take cholesky or eigh"
            )
        return data.moments.fit(**solving)
    with terminal_bar(arguments, "fit", then="solving") as progress:
        layer = fit(
            data.Z, data.y, offsets=data.offsets, sample_weight=data.weights,
            positions=arguments.positions, backend=arguments.backend,
            precision=arguments.precision, progress=progress, **solving,
        )  # fmt: skip
        _ = layer.heads  # found now, while there is a bar; the model will have them
        return layer


def _run(arguments: Namespace) -> Outcome:
    require_writable(arguments.output, arguments)
    with opened(arguments, targets="needed") as data:
        layer = _fit(data, arguments)
    layer.save(arguments.output)
    return Outcome(_text(layer, arguments), _fields(layer, arguments))


def _text(layer: Fit, arguments: Namespace) -> str:
    info = layer.info
    stages = ", ".join(f"{name} {tables.seconds(t)}" for name, t in info.seconds.items())
    return tables.facts(
        [
            *layer_facts(layer),
            ("solver", f"{info.solver}: {info.reason}"),
            ("condition", f"{info.condition:.3g}"),
            ("time", f"{tables.seconds(sum(info.seconds.values()))} ({stages})"),
            ("memory", f"about {in_words(info.bytes)}, backend {info.backend}"),
            ("saved", arguments.output),
        ]
    )


def _fields(layer: Fit, arguments: Namespace) -> dict[str, Any]:
    return {
        "model": arguments.output,
        "d": layer.d,
        "d_out": layer.d_out,
        "positions": layer.positions,
        "n_heads": None if layer.heads is None else len(layer.heads),
        "certificate": certificate_fields(layer.certificate),
        "info": asdict(layer.info),
    }


COMMAND = Command(
    summary="learn a layer from data, to the global optimum",
    description="Learn the linear attention layer that fits the data best, certify it, recover its "
    "heads,\nand save all of it as a model.",
    example="linattn-fast fit data.npz -o model.npz\n"
    "linattn-fast fit Z.npy y.npy -o model.npz --alpha 1e-3 --positions causal",
    add_arguments=_add_arguments,
    run=_run,
)
