"""The proof for every context at once: spaces that hold every run, within the training range.

The spaces of :mod:`.invariants` hold every s of every run from every context of the family,
whatever the number of steps; they are computed exactly. For each token z that may ask, the whole
space is held against the range of the training features, and the fit against the program on it, in
floating point with the certificate's tolerance. The fit is off by an error times the length of s,
which grows with the run; as long as that is below one half, rounding removes it. So the claim is
for the number of steps that this holds for, and for any number of steps where every run ends
before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import solve_triangular

from ...arrays.types import Floats
from ...certificate.program import ProgramCertificate
from ...linalg.factors import EPS
from ...linalg.host_algebra import triangle_of
from ...system.progress import Bar
from ..language.program import Program
from ..running.layer import Layer, numbers_of
from .determined import Determined
from .findings import NotFiniteError
from .invariants import Invariants

_KNOWN: WeakKeyDictionary[Program, Invariants] = WeakKeyDictionary()


def invariants_of(program: Program, progress: Any = False) -> Invariants:
    """The invariants of a program, found once; they do not depend on what was learned."""
    if program not in _KNOWN:
        with Bar(None, "closures", progress, unit="rounds") as report:
            _KNOWN[program] = Invariants(program, report)
    return _KNOWN[program]


class _Agreement(NamedTuple):
    """The fit against the program, over every space."""

    outside: int
    """Tokens whose space is not within the range of the training features."""
    residual: float
    """Largest relative distance from that range, of the others."""
    error: float
    """Largest error of an answer, for s of length one, of the others."""


def certify_by_invariants(
    learned: Layer, program: Program, determined: Determined, progress: Any
) -> ProgramCertificate:
    """Hold the spaces of all runs against the range of the training features."""

    def found(verdict: Any, evidence: str, **more: Any) -> ProgramCertificate:
        return ProgramCertificate(
            verdict=verdict,
            method="invariants",
            program=program.description,
            contexts=program.family.count,
            rank=determined.rank,
            tolerance=determined.tolerance,
            evidence=evidence,
            **{"steps": None, **more},
        )

    try:
        invariants = invariants_of(program, progress)
    except (NotFiniteError, OverflowError) as reason:
        return found("undecided", f"no proof for any number of steps: {reason}")
    spaces = invariants.asking
    outside, residual, error = _compare(learned, program, determined, invariants, progress)
    if outside:
        return found(
            "undecided",
            f"no proof for any number of steps: after {outside} of {len(spaces)} tokens that can "
            "occur, the space that holds every run is not within the range of the training data",
        )
    exact = _exact_steps(error, invariants, program)
    if exact < 1:
        return found(
            "undecided",
            f"every run is within the range of the training data, but there the fit differs from "
            f"the program by {error:.1e} of the length of s: it does not fit its data, or these "
            "are runs of another program",
            residual=residual,
            error=error,
        )
    ends = invariants.longest_run <= exact * program.tokens_per_step
    steps = None if ends else math.floor(exact)
    return found(
        "covered",
        f"proved for all {program.family.count:,} contexts and {_so_many(steps)}: after each of "
        f"the {len(spaces)} tokens that can occur, every run lies in a space (found exactly, "
        f"{sum(map(len, spaces.values())):,} dimensions in all) that is within the range of the "
        f"training data (rank {determined.rank}, numerically: distance {residual:.1e}, tolerance "
        f"{determined.tolerance:.1e}). There the fit agrees with the program to {error:.1e} of the "
        f"length of s, so that rounding makes at least {exact:.2g} steps exact"
        + (f", and every run ends after {invariants.longest_run:g} tokens" if ends else ""),
        steps=steps,
        at_least=1.0,
        residual=residual,
        error=error,
        exact_steps=exact,
    )


def _so_many(steps: int | None) -> str:
    """A number of steps in words; None for any."""
    return "any number of steps" if steps is None else f"{steps:,} step{'s' * (steps != 1)}"


def _compare(
    learned: Layer,
    program: Program,
    determined: Determined,
    invariants: Invariants,
    progress: Any,
) -> _Agreement:
    """Compare the fit with the program on the space of every token that can ask."""
    spaces = invariants.asking
    numbers = learned.pair_numbers[invariants.pairs[:, 0], invariants.pairs[:, 1]]
    inside = numbers >= 0  # pairs that the fit has
    outside, residual, error = 0, 0.0, 0.0
    with Bar(len(spaces), "tokens", progress, unit="tokens") as report:
        for done, (token, span) in enumerate(spaces.items()):
            if report is not None:
                report(done)
            z = np.array(token)
            s = np.zeros((len(span), len(learned.pairs)))
            s[:, numbers[inside]] = span[:, inside]
            if (
                span[:, ~inside].any()
                or (largest := determined.asked(z).largest(s)) > determined.tolerance
            ):
                outside += 1
                continue
            residual = max(residual, largest)
            error = max(error, _error(program.layer, learned, invariants, z, span, s))
    return _Agreement(outside, residual, error)


def _error(
    program: Layer, learned: Layer, invariants: Invariants, z: Floats, span: Floats, s: Floats
) -> float:
    """At least the largest |fit - program|, rounding included, over s of length one in a span.

    With the rows of the span scaled to length one, span' = Q R and k = sqrt(m) ||R^-1||, what is
    computed here errs by at most n_pairs k eps of the lengths it is computed from. The span
    (m, pairs of the invariants) is given in the fit's pairs as well, s (m, n_pairs).
    """
    own = numbers_of(invariants.pairs, program.d)[program.pairs[:, 0], program.pairs[:, 1]]
    theirs = np.where(own >= 0, span[:, own], 0.0)  # the span in the program's pairs
    difference = learned.action(z).many(s) - program.action(z).many(theirs)  # (m, d)
    lengths = np.linalg.norm(span, axis=1)
    # Unit vectors of the span are R^-1: the largest row norm of their answers
    R = triangle_of((span / lengths[:, None]).T)
    answers: Floats = solve_triangular(
        R, difference / lengths[:, None], trans="T", check_finite=False
    )  # (m, d)
    largest = float(np.linalg.norm(answers, axis=0).max())
    # The sums of n_pairs products that a run forms, and those here, are themselves rounded
    M = learned.action(z).many(np.eye(s.shape[1]))  # (n_pairs, d)
    size = float(np.linalg.norm(M, axis=0).max())
    k = float(np.sqrt(len(R)) / np.linalg.svd(R, compute_uv=False)[-1])
    return float(largest + s.shape[1] * EPS * (size + k * (size + largest)))


def _exact_steps(error: float, invariants: Invariants, program: Program) -> float:
    """Steps until error * ||s|| may reach one half; ||s|| grows by at most ||products|| a token."""
    if error == 0:
        return math.inf
    sizes = [np.linalg.norm(invariants.products(np.array(z))) for z in invariants.spaces]
    slots = program.family.slots
    start = sum(max(float(np.linalg.norm(invariants.products(z))) for z in slot) for slot in slots)
    return max(0.0, (0.5 / error - start) / (float(max(sizes)) * program.tokens_per_step))
