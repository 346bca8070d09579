"""``linattn-fast paper``: the paper's experiments, each as a picture, a table and a text.

:mod:`linattn_fast.paper` is imported here alone, and only when this command is asked for.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ...system import tables
from ..arguments import add_progress, add_threads, whole
from ..bar import terminal_bar
from ..command import Command, Outcome

if TYPE_CHECKING:
    from ...paper.figure import Figure


def _figures() -> dict[str, Figure]:
    """Every figure by its name."""
    from ...paper.registry import BY_NAME  # noqa: PLC0415  # no other command waits for it

    return BY_NAME


def _add_arguments(parser: ArgumentParser) -> None:
    figures = _figures()
    words = [f"{name}: {figure.description}" for name, figure in figures.items()]
    parser.description = "\n\n".join([str(parser.description), *words])
    parser.add_argument(
        "figure",
        metavar="FIGURE",
        choices=list(figures),
        help="; ".join(f"{name}: {figure.title}" for name, figure in figures.items()),
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, in seconds")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", default=".", help="where the files go [here]"
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="seed of everything drawn [0]"
    )
    add_threads(parser)
    add_progress(parser)


def _run(arguments: Namespace) -> Outcome:
    figure = _figures()[arguments.figure]
    start = time.perf_counter()
    with terminal_bar(arguments, figure.name, then="drawing") as progress:
        finding, paths = figure.make(
            Path(arguments.output),
            quick=arguments.quick,
            seed=arguments.seed,
            progress=progress if callable(progress) else None,
        )
    spent = time.perf_counter() - start
    files = [str(path) for path in paths]
    text = f"{finding.text}\n\nwrote {', '.join(files)} in {tables.seconds(spent)}"
    return Outcome(
        text,
        {"figure": figure.name, "quick": arguments.quick, "seed": arguments.seed,
         "seconds": spent, "files": files, **finding.numbers},
    )  # fmt: skip


COMMAND = Command(
    summary="the paper's experiments: a picture, a table and a text each",
    description="Run an experiment of the paper and write FIGURE.png, FIGURE.csv and FIGURE.txt;"
    "\nfig1 and fig3 have one table, fig1.csv.",
    example="linattn-fast paper fig2\nlinattn-fast paper fig2 --quick -o figures",
    add_arguments=_add_arguments,
    run=_run,
)
