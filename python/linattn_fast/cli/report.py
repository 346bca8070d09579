"""A certificate as one page of HTML that needs nothing else: no scripts, no files, no network."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape

import numpy as np

from .. import __version__
from ..certificate import Certificate
from .charts import minus, share_bar, spectrum_chart
from .covered import Covered


@dataclass(frozen=True)
class Report:
    """What the page is about."""

    path: str
    """Of the data."""
    certificate: Certificate
    directions: tuple[str, ...]
    """The least determined ones, in words."""
    covered: Covered | None


def in_words(certificate: Certificate) -> str:
    """What a verdict means."""
    if certificate.verdict == "identifiable":
        return (
            "The data determines the layer: every layer that fits it best computes the same "
            "function, on every input. That is proved, all rounding accounted for."
        )
    missing = certificate.dimension - certificate.rank
    if certificate.verdict == "undecided" and missing:
        return (
            f"Numerically, the data says nothing along {missing:,} of {certificate.dimension:,} "
            "directions: what it may say is as small as rounding. But it is not proved to say "
            "nothing, so that the layer may yet be determined, in exact arithmetic."
        )
    if certificate.verdict == "undecided":
        return (
            "The data may determine the layer, but double precision is not enough to prove it. "
            "Better scaled tokens, or more of them, may decide it."
        )
    least = "at least " if certificate.n_samples < certificate.dimension else ""
    return (
        "The data does not determine the layer: layers that fit equally well compute different "
        f"functions. That is proved. Along {least}{missing:,} of {certificate.dimension:,} "
        "directions, by the numerical rank, the data says nothing; predictions for inputs that do "
        "not need them are determined all the same."
    )


_TONE = {"identifiable": "good", "not identifiable": "bad", "undecided": "open"}

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #e2e6ec; --card: #fff; --page: #f5f6f8;
        --blue: #2f6fb2; --red: #b3402f; --good: #1f7a4d; --bad: #b3402f; --open: #96690b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #333c49; --card: #1d232c; --page: #14181e;
          --blue: #6ea8e0; --red: #e28b7b; --good: #62c794; --bad: #e28b7b; --open: #d9ae55; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
             sans-serif; }
main { max-width: 940px; margin: 0 auto; padding: 40px 20px 56px; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
h1 { margin: 4px 0 24px; font-size: 28px; line-height: 1.2; letter-spacing: -0.01em; }
h2 { margin: 0 0 4px; font-size: 18px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
          padding: 22px 26px; margin: 0 0 18px; }
.verdict { border-left: 6px solid var(--tone); padding-left: 21px; }
.verdict strong { display: block; font-size: 24px; line-height: 1.25; color: var(--tone); }
.verdict p { margin: 8px 0 0; }
.good { --tone: var(--good); } .bad { --tone: var(--bad); } .open { --tone: var(--open); }
.note { margin: 0 0 14px; color: var(--soft); font-size: 15px; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
           gap: 18px 24px; margin: 0; }
.numbers div { min-width: 0; }
.numbers dt { color: var(--soft); font-size: 13.5px; }
.numbers dd { margin: 0; font-size: 21px; font-variant-numeric: tabular-nums; }
.numbers small { display: block; color: var(--soft); font-size: 13px; line-height: 1.35; }
ol { margin: 0; padding-left: 24px; }
li { padding: 5px 0; overflow-wrap: anywhere; }
li::marker { color: var(--soft); }
code { font: 14px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono",
       monospace; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.tick, .label { fill: var(--soft); } .label { font-size: 13px; }
.line { fill: none; stroke: var(--blue); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--blue); }
.mark { stroke: var(--red); stroke-dasharray: 5 4; } .mark-text { fill: var(--red); }
.mark-text { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.chart { overflow-x: auto; } .chart svg { min-width: 560px; }
.missing { fill: var(--red); opacity: 0.09; } .missing-text { fill: var(--red); }
.share { height: 14px; margin: 0 0 16px; }
.share-rest { fill: var(--red); opacity: 0.3; } .share-part { fill: var(--good); }
footer { color: var(--soft); font-size: 13.5px; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""


def page(report: Report) -> str:
    """The page as text."""
    certificate = report.certificate
    tone = _TONE[certificate.verdict]
    sections = [_verdict(certificate, tone), _numbers(certificate), _spectrum(certificate)]
    sections.append(_directions(report))
    if report.covered is not None:
        sections.append(_coverage(report.covered))
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(certificate.verdict)}: {escape(report.path)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<header><p>{escape(report.path)}</p>"
        "<h1>Does the data determine the layer?</h1></header>",
        *sections,
        f"<footer>linattn_fast {escape(__version__)}. The second moment is the mean of h h' over "
        "the data, with the cubic features h = S[j,k] z[l] of linear attention, "
        "j&nbsp;&le;&nbsp;k.</footer>",
        "</main>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


def _section(title: str, note: str, *content: str) -> str:
    return "\n".join(
        ["<section>", f"<h2>{title}</h2>", f'<p class="note">{note}</p>', *content, "</section>"]
    )


def _verdict(certificate: Certificate, tone: str) -> str:
    name = certificate.verdict.capitalize()
    evidence = certificate.evidence[:1].upper() + certificate.evidence[1:]
    return (
        f'<section class="verdict {tone}"><strong>{name}</strong>'
        f"<p>{escape(in_words(certificate))}</p>"
        f'<p class="note" style="margin-bottom:0">{escape(evidence)}.</p></section>'
    )


def _cell(name: str, value: str, note: str) -> str:
    return f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"


def _number(value: float) -> str:
    """Four digits, powers of ten as such."""
    if math.isinf(value):
        return "&infin;"
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa} &times; 10<sup>{minus(exponent)}</sup>" if exponent else text


def _numbers(certificate: Certificate) -> str:
    bound = certificate.lower_bound
    queries = {
        "last": "last tokens",
        "all": "tokens, each with its whole sequence",
        "causal": "tokens, each with its prefix",
    }[certificate.positions]
    cells = [
        _cell("Smallest eigenvalue", _number(certificate.lambda_min),
              f"proved: at least {_number(bound)}" if bound > 0 else "nothing above 0 is proved"),
        _cell("Rank", f"{certificate.rank:,}", f"of {certificate.dimension:,} features"),
        _cell("Condition", _number(certificate.condition), "largest over smallest eigenvalue"),
        _cell("Samples", f"{certificate.n_samples:,}", queries),
    ]  # fmt: skip
    return f'<section><dl class="numbers">{"".join(cells)}</dl></section>'


def _spectrum(certificate: Certificate) -> str:
    note = "Eigenvalues of the second moment: how much the data varies along each direction."
    if certificate.spectrum is None:
        left_out = (
            f"<p>Left out: {certificate.dimension:,} features take a while. "
            "<code>--spectrum</code> computes it.</p>"
        )
        return _section("Spectrum", note, left_out)
    chart = spectrum_chart(certificate.spectrum, certificate.lambda_min, certificate.rank)
    return _section("Spectrum", note, f'<div class="chart">{chart}</div>')


def _directions(report: Report) -> str:
    missing = report.certificate.rank < report.certificate.dimension
    note = (
        "What the layer does along these directions has no effect on the data. Data in which they "
        "vary would settle it."
        if missing
        else "All are determined; along these, noise in the targets is amplified most."
    )
    items = "".join(f"<li>{_with_code(text)}</li>" for text in report.directions)
    return _section("Least determined directions", note, f"<ol>{items}</ol>")


def _with_code(text: str) -> str:
    """The formula of a direction in the type of code."""
    found = re.fullmatch(
        r"(tokens (?:never vary|vary little) along )(.*?)( \(relative .*\))?", text
    )
    if found is None:
        return escape(text)
    before, formula, after = found.groups(default="")
    return f"{escape(before)}<code>{escape(formula)}</code>{escape(after)}"


def _coverage(covered: Covered) -> str:
    n, yes = len(covered.covered), int(covered.covered.sum())
    note = (
        f"Predictions for <strong>{escape(covered.path)}</strong>: does every best-fitting layer "
        "give the same?"
    )
    cells = [_cell("Determined", f"{yes:,}", f"of {n:,} predictions, {covered.share:.1%}")]
    if len(covered.finite) and covered.rank:
        relative = covered.finite / covered.rank
        cells.append(_cell("Leverage, median", _number(float(np.median(relative))),
                           "times the mean over the data"))  # fmt: skip
        cells.append(_cell("Leverage, largest", _number(float(relative.max())),
                           "1 is usual; more means less certain"))  # fmt: skip
    content = [share_bar(covered.share), f'<dl class="numbers">{"".join(cells)}</dl>']
    if covered.uncovered:
        shown = ", ".join(f"{i:,}" for i in covered.uncovered[:20])
        more = f" and {len(covered.uncovered) - 20:,} more" if len(covered.uncovered) > 20 else ""
        content.append(
            f'<p class="note" style="margin:14px 0 0">Not determined: queries {shown}{more}, '
            "counted from 0.</p>"
        )
    return _section("Coverage of a second file", note, *content)
