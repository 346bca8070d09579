"""``linattn-fast predict``: apply a model to a file of tokens."""

from __future__ import annotations

import csv
import io
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from ...arrays.types import Floats, Positions
from ...data.sources import BATCH_BYTES, StoredArrays
from ...data.tokens import Tokens, as_offsets, as_targets, require_form
from ...features.files import replacing
from ...fitting.result import Fit
from ...system import tables
from ..arguments import add_data, add_output, add_positions, add_work, require_writable
from ..bar import terminal_bar
from ..command import Command, Outcome, UsageError
from ..files import Input, model_in, opened

_FORMATS = (".npy", ".npz", ".csv")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model that 'linattn-fast fit' saved")
    add_data(parser, targets=True, moments=False)
    add_output(
        parser, ".npy, .npz (an array y) or .csv; without it, CSV is printed", required=False
    )
    add_positions(parser, default=None)
    add_work(parser, memory=False)


def _predict(layer: Fit, data: Input, positions: Positions, arguments: Namespace) -> Floats:
    """Predictions in the form of the targets, a part of the tokens at a time."""
    shape = tuple(int(size) for size in data.Z.shape)
    require_form(shape, flat=data.offsets is not None, name="Z")
    offsets = None if data.offsets is None else as_offsets(data.offsets, shape[0], "Z")
    source = StoredArrays(data.Z, None, offsets, None, positions, BATCH_BYTES)
    parts = []
    with terminal_bar(arguments, "predict") as progress:
        for batch in source.read():
            y = layer.predict(batch.Z, positions, offsets=batch.offsets, backend=arguments.backend)
            assert isinstance(y, np.ndarray)  # one array gives one array
            parts.append(y)
            if callable(progress):
                progress(batch.end, source.total)
    return np.concatenate(parts)


def _written(y: Floats, d_out: int, index: dict[str, Any], output: str) -> None:
    """Write predictions, whole or not at all."""
    suffix = Path(output).suffix
    with replacing(output) as file:
        if suffix == ".npy":
            np.save(file, y)
        elif suffix == ".npz":
            np.savez(file, y=y)
        else:
            file.write((_csv(y, d_out, index) + "\n").encode())


def _index(data: Input, y: Floats, positions: Positions) -> dict[str, Any]:
    """Columns that say which sequence, and which token of it, a row of predictions is for."""
    if positions == "last":
        return {"sequence": np.arange(len(y))}
    dense = data.offsets is None
    lengths = np.full(y.shape[0], y.shape[1]) if dense else np.diff(data.offsets)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return {
        "sequence": np.repeat(np.arange(len(lengths)), lengths),
        "token": np.arange(len(starts)) - starts,
    }


def _csv(y: Floats, d_out: int, index: dict[str, Any]) -> str:
    """A header, then a line a query; numbers with all their digits."""
    rows = y.reshape(-1, d_out)
    keys = zip(*(column.tolist() for column in index.values()), strict=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*index, *(f"y{a}" for a in range(d_out))])
    writer.writerows([*key, *row] for key, row in zip(keys, rows.tolist(), strict=True))
    return file.getvalue().rstrip()


def _score(data: Input, y: Floats, d_out: int, positions: Positions) -> dict[str, float]:
    """Mean squares of errors and targets."""
    flat = None if data.offsets is None else np.asarray(data.offsets, np.int64)
    form = Tokens(np.broadcast_to(0.0, tuple(data.Z.shape)), flat)  # only its shape is looked at
    wanted = as_targets(np.asarray(data.y), form, positions, d_out=d_out).rows()
    rows = y.reshape(-1, d_out)
    return {
        "mean_squared_error": float(((rows - wanted) ** 2).sum(axis=1).mean()),
        "mean_squared_target": float((wanted.astype(np.float64) ** 2).sum(axis=1).mean()),
    }


def _compared(
    data: Input, y: Floats, d_out: int, positions: Positions, arguments: Namespace
) -> tuple[dict[str, float] | None, str]:
    """The score and what to say of it; targets that only happen to be there need not fit."""
    if data.y is None:
        return None, "none given"
    try:
        score = _score(data, y, d_out, positions)
    except (ValueError, TypeError) as error:
        if arguments.targets is not None:
            raise
        return None, f"not compared: {error}"
    return score, (f"mean square {score['mean_squared_target']:.4g}, "
                   f"of the errors {score['mean_squared_error']:.4g}")  # fmt: skip


def _run(arguments: Namespace) -> Outcome:
    output = arguments.output
    if output is not None:
        if Path(output).suffix not in _FORMATS:
            raise UsageError(f"linattn-fast: {output}: must end in {', '.join(_FORMATS)}")
        require_writable(output, arguments)
    layer = model_in(arguments.model)
    positions = arguments.positions or layer.positions
    with opened(arguments, targets="welcome") as data:
        if data.moments is not None:
            raise ValueError(f"{data.path} holds moments, and tokens are needed")
        y = _predict(layer, data, positions, arguments)
        score, words = _compared(data, y, layer.d_out, positions, arguments)
        index = _index(data, y, positions)
    found: dict[str, Any] = {"shape": y.shape, "positions": positions, "score": score}
    if output is None:
        return Outcome(_csv(y, layer.d_out, index), {**found, "y": y})
    _written(y, layer.d_out, index, output)
    shown = tables.facts([
        ("predictions", f"{' x '.join(map(str, y.shape))}, positions {positions!r}"),
        ("targets", words),
        ("saved", output),
    ])  # fmt: skip
    return Outcome(shown, {**found, "output": output})


COMMAND = Command(
    summary="apply a model to tokens",
    description="Apply a model to new tokens. Where the file has targets, the error is reported.",
    example="linattn-fast predict model.npz new.npz -o y.npy\n"
    "linattn-fast predict model.npz new.npz | head",
    add_arguments=_add_arguments,
    run=_run,
)
