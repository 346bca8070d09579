"""Directions of the coefficients in words: which pairs and queries they consist of."""

from __future__ import annotations

import numpy as np

from ..arrays.types import Floats


def describe(
    direction: Floats, mean_square: float, pairs: list[str], queries: list[str], what: str
) -> str:
    """A sentence on the pairs and queries, by their names, that a direction (p,) consists of."""
    by_query = direction.reshape(len(pairs), len(queries)) / np.abs(direction).max()
    groups = []
    sizes = np.abs(by_query).round(9)  # equal up to rounding is a tie, and the first one wins
    for l in np.argsort(-sizes.max(axis=0), kind="stable"):
        column = by_query[:, l]
        order = np.argsort(-sizes[:, l], kind="stable")
        terms = [(float(column[u]), pairs[u]) for u in order if abs(column[u]) > 0.1]
        if terms:
            groups.append((terms[0][0], f"{_sum_of(terms, 4)} with query {queries[l]}"))
    # A group's text starts with plus, so its own sign goes before it.
    text = _joined([(np.sign(first), group) for first, group in groups], 3)
    if mean_square == 0:
        return f"{what} never vary along {text}"
    return f"{what} vary little along {text} (relative mean square {mean_square:.2g})"


def _sum_of(terms: list[tuple[float, str]], most: int) -> str:
    """A sum of terms, the first one positive; in brackets when there are several."""
    text = _joined(terms, most)
    return f"({text})" if len(terms) > 1 else text


def _joined(terms: list[tuple[float, str]], most: int) -> str:
    """A text such as ``a - 0.5 b and 2 more``; its first term is positive, as only lines count."""
    sign = np.sign(terms[0][0])
    text = ""
    for value, name in terms[:most]:
        size = "" if abs(value) > 0.995 else f"{abs(value):.2g} "
        before = "" if not text else (" + " if value * sign > 0 else " - ")
        text += f"{before}{size}{name}"
    return text + (f" and {len(terms) - most} more" if len(terms) > most else "")
