"""Options that several commands share, and the values they take."""

from __future__ import annotations

import argparse
import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from ..arrays.types import POSITIONS
from ..backend.choice import NAMES
from .command import UsageError

_UNITS = {"": 1, **{f"{prefix}b": 1000**i for i, prefix in enumerate(("", "k", "m", "g", "t"))}}
_UNITS |= {f"{prefix}ib": 1024**i for i, prefix in enumerate(("k", "m", "g", "t"), start=1)}


def size_in_bytes(text: str) -> int:
    """A number of bytes, such as 8GB, 500MB, 2GiB or 1000000.

    Examples
    --------
    >>> size_in_bytes("1.5GB"), size_in_bytes("2 GiB")
    (1500000000, 2147483648)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ArgumentTypeError(f"a size such as 8GB or 500MB is needed, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def ridge(text: str) -> float:
    """A finite number that is not negative."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"a finite number that is not negative is needed, got {text!r}")
    return number


def whole(text: str, least: int = 0) -> int:
    """A whole number of at least ``least``."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise ArgumentTypeError(f"a whole number of at least {least} is needed, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """A whole number of at least one."""
    return whole(text, least=1)


def add_data(parser: ArgumentParser, *, targets: bool, moments: bool = True) -> None:
    """The file with the data, and what its arrays are called."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help=".npz, .npy (memory-mapped), .zarr or .h5 (.hdf5)"
        + ("; or moments that were saved" if moments else ""),
    )
    group = parser.add_argument_group(
        "arrays", "a name inside DATA (such as train/Z), or a .npy file of its own"
    )
    group.add_argument("--tokens", metavar="NAME", help="(N, n, d), or (rows, d) with offsets [Z]")
    if targets:
        group.add_argument("--targets", metavar="NAME", help="(N, d_out), or one row a token [y]")
    group.add_argument(
        "--offsets", metavar="NAME", help="N + 1 integers, of flat tokens [offsets, if there]"
    )


def add_weights(parser: ArgumentParser) -> None:
    """What the weights of the sequences are called."""
    parser.add_argument(
        "--weights", metavar="NAME", help="one weight a sequence [sample_weight, if there]"
    )


def add_positions(parser: ArgumentParser, default: str | None = "last") -> None:
    """Which tokens of a sequence query."""
    parser.add_argument(
        "--positions",
        choices=POSITIONS,
        default=default,
        help="which tokens query: the last of each sequence, every one (attending to the whole "
        f"sequence), or every one and its prefix [{default or 'as the model was fitted'}]",
    )


def add_work(parser: ArgumentParser, *, memory: bool = True) -> None:
    """Where and how the work is done."""
    group = parser.add_argument_group("work")
    group.add_argument(
        "--backend", choices=("auto", *NAMES), default="auto", help="what computes [auto]"
    )
    add_threads(group)
    if memory:
        group.add_argument(
            "--memory-limit",
            type=size_in_bytes,
            metavar="SIZE",
            help="memory to use beside the data, such as 8GB [the machine's]",
        )
    add_progress(group)


def add_threads(parser: ArgumentParser | argparse._ArgumentGroup) -> None:
    """How many threads the compiled code has."""
    parser.add_argument(
        "--threads", type=count, metavar="N", help="threads of the compiled code [cores]"
    )


def add_progress(parser: ArgumentParser | argparse._ArgumentGroup) -> None:
    """Whether there is a bar."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a bar with the time left [on a terminal]",
    )


def add_output(parser: ArgumentParser, what: str, *, required: bool) -> None:
    """The file that the result goes to."""
    parser.add_argument("-o", "--output", metavar="FILE", required=required, help=what)


def require_writable(output: str, arguments: Namespace) -> None:
    """Raise, before any work, when a result could not be written or would replace its input."""
    target = Path(output)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{output}: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{output}: this is a folder")
    given = [getattr(arguments, name, None) for name in ("data", "targets_file", "model", "covers")]
    for source in filter(None, given):
        if Path(source).resolve() == target.resolve():
            raise UsageError(f"linattn-fast: {output} is read from; write to another file")
