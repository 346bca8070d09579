"""``linattn-fast bench``: this machine, this package, and numpy."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import numpy as np

from ...backend.choice import get_backend
from ...system import tables
from ...system.machine import get_num_threads
from ..arguments import add_work, count
from ..bar import terminal_bar
from ..command import Command, Outcome
from ..comparison import compare, planted

_SIZES = ((4, 100_000), (8, 40_000), (12, 20_000), (16, 8_000))
"""d and sequences, as in the README's table but fewer at d = 4: some ten seconds in all."""


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--d", type=count, help="one size: coordinates of a token [4, 8, 12, 16]")
    usual = ", ".join(f"{N:,} at d = {d}" for d, N in _SIZES)
    parser.add_argument("--sequences", type=count, metavar="N", help=f"[{usual}; 8,000 with --d]")
    parser.add_argument("--length", type=count, default=32, metavar="n", help="tokens in each [32]")
    parser.add_argument(
        "--repeats", type=count, default=3, help="turns of two runs; the shortest counts [3]"
    )
    add_work(parser, memory=False)


def _run(arguments: Namespace) -> Outcome:
    sizes = _SIZES if arguments.d is None else ((arguments.d, 8_000),)
    rows = []
    with terminal_bar(arguments, "bench") as progress:
        for i, (d, usual) in enumerate(sizes):
            N = arguments.sequences or usual
            features = d * d * (d + 1) // 2
            if features > N:
                raise ValueError(
                    f"{N:,} sequences are fewer than the {features:,} features of d = {d}, so that "
                    "no layer is determined; take more with --sequences"
                )
            timed = compare(
                planted(d, 2, N, arguments.length), arguments.repeats, arguments.backend
            )
            rows.append({"d": d, "sequences": N, "length": arguments.length, "features": features,
                         **timed._asdict(), "ratio": timed.ratio})  # fmt: skip
            if callable(progress):
                progress(i + 1, len(sizes))
    setting = {
        "backend": get_backend(arguments.backend).name,
        "threads": get_num_threads(),
        "numpy": np.__version__,
        "repeats": arguments.repeats,
    }
    shown = tables.table(
        ["d", "sequences", "features", "linattn_fast", "numpy", "ratio", "error", "numpy's"],
        [
            [row["d"], f"{row['sequences']:,}", f"{row['features']:,}",
             tables.seconds(row["ours"]), tables.seconds(row["numpy"]), f"{row['ratio']:.1f}x",
             f"{row['our_error']:.0e}", f"{row['numpy_error']:.0e}"]
            for row in rows
        ],
    )  # fmt: skip
    text = (
        f"Time from tokens to coefficients, sequences of {arguments.length} tokens, "
        f"{setting['threads']} threads, backend {setting['backend']}.\n\n{shown}\n\n"
        f"Shortest of {2 * arguments.repeats} runs, two of each in turns.\n"
        f"numpy {np.__version__}: symmetric features in chunks, their Gram, one solve.\n"
        "Errors are relative to the planted layer; "
        "both answers were checked before they were timed.\n"
        "linattn_fast refines its answer on the data, which is part of its time."
    )
    return Outcome(text, {**setting, "rows": rows})


COMMAND = Command(
    summary="a quick comparison with numpy on this machine",
    description="Time the way from tokens to coefficients, here and in numpy, on planted layers; a "
    "few\nseconds, no files needed.",
    example="linattn-fast bench\nlinattn-fast bench --d 16 --sequences 8000",
    add_arguments=_add_arguments,
    run=_run,
)
