"""``linattn-fast paper``: the paper's experiments, each as a picture, a table and a text."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...paper.figure import Settings, require_plotting, write
from ...paper.registry import BY_NAME, FIGURES
from ...system import tables
from ..arguments import add_progress, count, whole
from ..bar import terminal_bar
from ..command import Command, Outcome


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "figure",
        metavar="FIGURE",
        choices=list(BY_NAME),
        help="; ".join(f"{figure.name}: {figure.title}" for figure in FIGURES),
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, in seconds")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", default=".", help="where the files go [here]"
    )
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="of everything [0]")
    parser.add_argument("--threads", type=count, metavar="N", help="of the compiled code [cores]")
    add_progress(parser)


def _run(arguments: Namespace) -> Outcome:
    figure = BY_NAME[arguments.figure]
    require_plotting()
    figure.require()
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with terminal_bar(arguments, figure.name, then="drawing") as progress:
        settings = Settings(
            arguments.quick, arguments.seed, folder, progress if callable(progress) else None
        )
        finding = figure.run(settings)
        paths = [str(path) for path in write(finding, folder, figure.name)]
    spent = time.perf_counter() - start
    text = f"{finding.text}\n\nwrote {', '.join(paths)} in {tables.seconds(spent)}"
    return Outcome(
        text,
        {"figure": figure.name, "quick": arguments.quick, "seed": arguments.seed,
         "seconds": spent, "files": paths, **finding.data},
    )  # fmt: skip


COMMAND = Command(
    name="paper",
    summary="the paper's experiments: a picture, a table and a text each",
    description="Run an experiment of the paper and write FIGURE.png, FIGURE.csv and FIGURE.txt."
    "\n\n" + "\n\n".join(f"{figure.name}: {figure.description}" for figure in FIGURES),
    example="linattn-fast paper fig2\nlinattn-fast paper fig2 --quick -o figures",
    add_arguments=_add_arguments,
    run=_run,
)
