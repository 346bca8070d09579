"""Calls of the package with a case: its arguments, and which refusals are in order."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import linattn_fast as la

from .cases import Case

Generator = np.random.Generator
Counts = Counter[str]

ARGUMENTS = (
    "Z", "y", "sample_weight", "alpha", "alphas", "features", "solver", "fit", "moments",
    "coefficients",
)  # fmt: skip
"""What messages of refusals begin with."""


class Broken(AssertionError):
    """A promise that does not hold."""


def refused(error: Exception) -> str | None:
    """The argument that an error names; None for somebody else's words."""
    name = str(error).partition(":")[0]
    return name if name in ARGUMENTS else None


def attempt(what: str, call: Callable[[], Any], counts: Counts) -> Any:
    """The result of a call; None where it was refused with a reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", la.DataWarning)
            return call()
    except (ValueError, TypeError, np.linalg.LinAlgError, Warning) as error:
        if refused(error) is None:
            kind = type(error).__name__
            raise Broken(f"{what}: in somebody else's words, {kind}: {error}") from error
        counts[f"{what}: refused"] += 1
        return None


def arguments_of(case: Case, rng: Generator) -> dict[str, Any]:
    """What a case is called with, beside its data."""
    backend = "numpy" if rng.random() < 0.2 else "auto"
    return {
        "positions": case.positions,
        "sample_weight": case.weights,
        "features": case.features,
        "backend": backend,
    }


def moments_of(case: Case, part: slice, rng: Generator, d_out: int) -> la.Moments:
    """Moments of some of the sequences, in one update or several."""
    moments = la.Moments(
        case.d,
        d_out,
        positions=case.positions,  # type: ignore[arg-type]  # one of the three
        features=case.features,
        precision="mixed" if rng.random() < 0.1 else "float64",
    )
    sequences = case.sequences[part]
    targets = case.targets[part]
    weights = None if case.weights is None else case.weights[part]
    step = int(rng.integers(1, len(sequences) + 1))
    for first in range(0, len(sequences), step):
        some = slice(first, first + step)
        y = targets[some]
        moments.update(
            sequences[some],
            None if d_out == 0 else (np.concatenate(y) if case.positions == "last" else y),
            sample_weight=None if weights is None else weights[some],
        )
    return moments
