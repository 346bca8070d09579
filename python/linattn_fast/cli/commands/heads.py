"""``linattn-fast heads``: the heads of a model."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict

import numpy as np

from ...fitting.result import Fit
from ...heads.heads import Heads
from ...system import tables
from ..command import Command, Outcome, UsageError
from ..files import model_in
from ..report.wording import certificate_fields, layer_facts


def which_head(text: str) -> int | None:
    """The number of a head; None for ``all``."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"the number of a head, or all, is needed, got {text!r}")
    return int(text)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model that 'linattn-fast fit' saved")
    parser.add_argument(
        "--show",
        type=which_head,
        action="append",
        metavar="H",
        help="print V and Q of head H, counted from 0; 'all' for every head",
    )
    parser.add_argument(
        "--normalized",
        action="store_true",
        help="in normal form: orthogonal, balanced, the largest first",
    )


def _chosen(show: list[int | None], n_heads: int) -> list[int]:
    """Heads to print in full."""
    if None in show:
        return list(range(n_heads))
    numbers = [h for h in show if h is not None]
    for h in numbers:
        if h >= n_heads:
            raise UsageError(f"linattn-fast heads: --show {h}: there are heads 0 to {n_heads - 1}")
    return numbers


def _sizes(heads: Heads) -> list[float]:
    """||V_h|| ||Q_h||, which no scaling of a head changes."""
    return [float(np.linalg.norm(V) * np.linalg.norm(Q)) for V, Q in heads]


def _run(arguments: Namespace) -> Outcome:
    layer = model_in(arguments.model)
    heads = layer.heads
    if heads is None:
        raise ValueError(f"{arguments.model} has no heads: it was fitted with --heads none")
    if arguments.normalized:
        heads = heads.normalized()
    shown = _chosen(arguments.show or [], len(heads))
    return Outcome(_text(layer, heads, shown), _fields(layer, heads, arguments))


def _text(layer: Fit, heads: Heads, shown: list[int]) -> str:
    sizes = _sizes(heads)
    largest = max(sizes) or 1.0
    rows = [
        [h, f"{size:.4g}", f"{size / largest:.3f}",
         np.linalg.matrix_rank(V), np.linalg.matrix_rank(Q)]
        for h, (size, (V, Q)) in enumerate(zip(sizes, heads, strict=True))
    ]  # fmt: skip
    parts = [
        tables.facts(layer_facts(layer)),
        tables.table(["head", "|V| |Q|", "of largest", "rank V", "rank Q"], rows),
    ]
    for h in shown:
        V, Q = heads[h]
        parts.append(f"head {h}\n\nV {V.shape}\n{tables.matrix(V)}\n\nQ {Q.shape}\n"
                     f"{tables.matrix(Q)}")  # fmt: skip
    return "\n\n".join(parts)


def _fields(layer: Fit, heads: Heads, arguments: Namespace) -> dict[str, object]:
    recovery = heads.recovery
    return {
        "model": arguments.model,
        "d": layer.d,
        "d_out": layer.d_out,
        "positions": layer.positions,
        "certificate": certificate_fields(layer.certificate),
        "recovery": None if recovery is None else asdict(recovery),
        "sizes": _sizes(heads),
        "V": heads.V,
        "Q": heads.Q,
    }


COMMAND = Command(
    summary="list and show the heads of a model",
    description="List the heads of a model, y = sum_h V_h S Q_h z, and print their matrices.",
    example="linattn-fast heads model.npz\nlinattn-fast heads model.npz --normalized --show 0",
    add_arguments=_add_arguments,
    run=_run,
)
