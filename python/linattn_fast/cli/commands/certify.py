"""``linattn-fast certify``: does the data determine the layer? In a table, or as a page."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from ...certificate.certificate import Certificate
from ...data.sources import is_stored
from ...features.files import replacing
from ...fitting.certify import certify
from ...moments.moments import Moments
from ...system import tables
from ..arguments import add_data, add_positions, add_weights, add_work, count, require_writable
from ..bar import terminal_bar
from ..command import Command, Outcome, UsageError
from ..files import Input, loaded, opened
from ..report.covered import Covered, coverage_of
from ..report.page import Report, page, require_packages
from ..report.wording import certificate_fields, rank_in_words, verdict_in_words

_SPECTRUM_UP_TO = 4096
"""Features for which a report has the whole spectrum unasked: a minute or so."""


def _add_arguments(parser: ArgumentParser) -> None:
    add_data(parser, targets=False)
    add_weights(parser)
    add_positions(parser)
    parser.add_argument(
        "--report", metavar="FILE", help="write one self-contained page, such as out.html"
    )
    parser.add_argument(
        "--covers",
        metavar="OTHER",
        help="a second file of tokens: which of its predictions does DATA determine?",
    )
    parser.add_argument(
        "--directions", type=count, default=5, metavar="K", help="least determined ones, shown [5]"
    )
    parser.add_argument("--names", metavar="A,B,..", help="names of the coordinates [x0,x1,..]")
    parser.add_argument(
        "--spectrum",
        action="store_true",
        help="all eigenvalues, also of more than "
        f"{_SPECTRUM_UP_TO:,} features, where a report has none unasked",
    )
    add_work(parser)


def _certificate(data: Input, arguments: Namespace) -> Certificate:
    limit = arguments.memory_limit
    spectrum = _wants_spectrum(_coordinates(data), arguments)
    if data.moments is not None:
        return certify(data.moments, spectrum=spectrum, memory_limit=limit)
    Z = loaded(data.Z)
    given = {"offsets": data.offsets, "sample_weight": data.weights}
    setting = {"positions": arguments.positions, "backend": arguments.backend}
    with terminal_bar(arguments, "certify", then="factorising") as progress:
        if is_stored(Z) and not isinstance(Z, np.ndarray):  # too large: one reading
            moments = Moments(_coordinates(data), 0, **setting)
            moments.update(Z, progress=progress, **given)
            return certify(moments, spectrum=spectrum, memory_limit=limit)
        return certify(
            Z, spectrum=spectrum, memory_limit=limit, progress=progress, **given, **setting
        )


def _coordinates(data: Input) -> int:
    """Coordinates of a token; 0 for a number, which is no array of tokens and refused later."""
    return data.moments.d if data.moments is not None else int((data.Z.shape or (0,))[-1])


def _wants_spectrum(d: int, arguments: Namespace) -> bool:
    small = d * d * (d + 1) // 2 <= _SPECTRUM_UP_TO
    return bool(arguments.spectrum or (arguments.report and small))


def _names(arguments: Namespace, d: int) -> list[str] | None:
    if arguments.names is None:
        return None
    names = [name.strip() for name in arguments.names.split(",")]
    if len(names) != d:
        raise UsageError(
            f"linattn-fast certify: --names: {d} names with commas between them are needed, "
            f"got {len(names)}"
        )
    return names


def _covered(certificate: Certificate, arguments: Namespace) -> Covered | None:
    if arguments.covers is None:
        return None
    with opened(arguments, targets="ignored", path=arguments.covers) as other:
        if other.moments is not None:
            raise ValueError(f"{other.path} holds moments, and tokens are needed")
        return coverage_of(certificate, other)


def _run(arguments: Namespace) -> Outcome:
    if arguments.report is not None:
        require_writable(arguments.report, arguments)
        require_packages()
    with opened(arguments, targets="ignored") as data:
        names = _names(arguments, _coordinates(data))
        certificate = _certificate(data, arguments)
        directions = certificate.explain(arguments.directions, names=names)
        covered = _covered(certificate, arguments)
    found: dict[str, Any] = {
        "data": arguments.data,
        **(certificate_fields(certificate) or {}),
        "directions": directions,
        "covers": None if covered is None else covered.as_fields(),
    }
    if certificate.spectrum is not None and arguments.spectrum:
        found["spectrum"] = certificate.spectrum
    if arguments.report is not None:
        report = Report(arguments.data, certificate, tuple(directions), covered)
        with replacing(arguments.report) as file:
            file.write(page(report).encode())
        found["report"] = arguments.report
    return Outcome(_text(certificate, directions, covered, arguments), found)


def _text(
    certificate: Certificate, directions: list[str], covered: Covered | None, arguments: Namespace
) -> str:
    rows: list[tuple[str, object]] = [
        ("verdict", certificate.verdict),
        ("", verdict_in_words(certificate)),
        ("evidence", certificate.evidence),
        ("lambda_min", f"{certificate.lambda_min:.6g}, proved to be at least "
                       f"{certificate.lower_bound:.6g}"),
        ("condition", f"{certificate.condition:.3g}"),
        ("rank", f"{rank_in_words(certificate)} of {certificate.dimension:,} features, "
                 f"{certificate.n_samples:,} samples"),
        ("directions", "the least determined ones:"),
        *(("", f"{i}. {text}") for i, text in enumerate(directions, start=1)),
    ]  # fmt: skip
    if covered is not None:
        rows.append(("covers", covered.in_words()))
    if arguments.report is not None:
        rows.append(("report", arguments.report))
    return tables.facts(rows)


COMMAND = Command(
    summary="does the data determine the layer? (--report: as a page)",
    description="Say whether every best-fitting layer computes the same function, which "
    "directions the data\ndetermines least, and which predictions for a second file it determines.",
    example="linattn-fast certify data.npz --report out.html --covers new.npz",
    add_arguments=_add_arguments,
    run=_run,
)
