"""A certificate as one page of HTML that needs nothing else: no scripts, no files, no network.

The page is the template ``certificate.html``, filled by Jinja2; the chart in it is drawn by
matplotlib. Both come with the extra ``report``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...certificate.certificate import Certificate
from ...system.packages import optional_module
from .charts import COLOURS, EXTRA, NEEDED_BY, spectrum_chart
from .covered import Covered
from .wording import rank_in_words, verdict_in_words

_TEMPLATE = Path(__file__).with_name("certificate.html")


@dataclass(frozen=True)
class Report:
    """What the page is about."""

    path: str
    """Name of the file with the data."""
    certificate: Certificate
    directions: tuple[str, ...]
    """The least determined ones, in words."""
    covered: Covered | None


def require_packages() -> None:
    """Raise, before any work, when a package that makes the page is missing."""
    for name in ("jinja2", "matplotlib.figure"):
        optional_module(name, NEEDED_BY, EXTRA)


def page(report: Report) -> str:
    """The page as text; the same text for the same report."""
    certificate = report.certificate
    spectrum, rank = certificate.spectrum, certificate.rank
    whole = certificate.dimension if rank is None else rank
    environment = optional_module("jinja2", NEEDED_BY, EXTRA).Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"number": _number, "direction": _direction}
    return str(
        environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
            report=report,
            certificate=certificate,
            meaning=verdict_in_words(certificate),
            rank=rank_in_words(certificate),
            all_determined=whole == certificate.dimension,
            chart=None if spectrum is None
            else spectrum_chart(spectrum, certificate.lambda_min, whole),
            colours=COLOURS,
            version=__version__,
        )
    )  # fmt: skip


def _number(value: float) -> tuple[str, str]:
    """Four digits, and the power of ten where there is one: 0.00001 is ("1", "-5").

    Examples
    --------
    >>> _number(0.00001234), _number(2.5)
    (('1.234', '\N{MINUS SIGN}5'), ('2.5', ''))
    """
    digits, _, exponent = f"{value:.4g}".replace("inf", "\N{INFINITY}").partition("e")
    return digits, str(int(exponent)).replace("-", "\N{MINUS SIGN}") if exponent else ""


def _direction(text: str) -> tuple[str, str, str]:
    """A direction in words as text, formula, text; the formula is empty where there is none."""
    found = re.fullmatch(
        r"(tokens (?:never vary|vary little) along )(.*?)( \(relative .*\))?", text
    )
    if found is None:
        return text, "", ""
    before, formula, after = found.groups(default="")
    return before, formula, after
