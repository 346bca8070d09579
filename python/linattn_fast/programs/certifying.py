"""Is a learned program right for every machine and input, and for how many steps?

Three ways to find out, the strongest first:

invariants
    The spaces of :mod:`.invariants` hold every s of every run from every context of the family,
    whatever the number of steps; they are computed exactly. For each token z that may ask, the
    whole space is held against the range of the training features, and the fit against the program
    on it, in floating point with the certificate's tolerance. The fit is off by an error times the
    length of s, which grows with the run; as long as that is below one half, rounding removes it.
    So the claim is for the number of steps that this holds for, and for any number of steps where
    every run ends before.
exhaustive
    Every context is run for a number of steps, and every step looked at.
sampled
    Random contexts are. With k of n runs covered, the fraction of all runs that is covered is at
    least the bound of Clopper and Pearson, (1 - confidence)^(1/n) where k = n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import solve_triangular
from scipy.stats import beta

from ..arrays.types import Floats
from ..certificate.program import ProgramCertificate
from ..datasets import Seed, _generator
from ..fitting.result import Fit
from ..linalg.factors import EPS
from ..linalg.host_algebra import triangle_of
from ..system.arguments import as_size
from ..system.machine import same_bits
from ..system.progress import Bar
from .determined import Determined
from .examining import Tally, examine
from .invariants import Invariants, NotFiniteError
from .layer import Layer
from .program import Program

_CHUNK_BYTES = 128 << 20
_EXHAUSTIVE_UP_TO = 20_000_000
"""Answers that "auto" looks at one by one before it samples."""

Method = Literal["auto", "invariants", "exhaustive", "sampled"]
Progress: TypeAlias = bool | Callable[[int, Any], object]


@same_bits
def certify(
    fit: Fit,
    program: Program,
    *,
    method: Method = "auto",
    steps: int = 12,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: Seed = 0,
    progress: Progress = False,
) -> ProgramCertificate:
    """Decide whether every machine and input of a program's family is covered by a fit.

    Parameters
    ----------
    fit
        From :func:`learn`, with its certificate.
    program
        The program that it learned.
    method
        "invariants" proves it for all contexts at once, and for as many steps as errors of the fit
        stay below one half, or finds that it cannot. "exhaustive" runs every context, "sampled"
        random ones. "auto" tries invariants; where they do not settle ``steps`` of them, it runs
        every context if these are few enough, or samples.
    steps
        Steps of each run, for "exhaustive" and "sampled"; for "auto", those that are asked about.
    samples, seed
        Runs that are sampled.
    confidence
        Of the bound from samples.
    progress
        True shows a bar; a function is called with what is done and how much there is: rounds of
        the closures (None, for how many is not known before), tokens whose space is held against
        the training data, then contexts that are run.

    Returns
    -------
    ProgramCertificate
        ``fit.with_program(certificate).save(path)`` keeps it with the model.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> simulator = programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    >>> fit = programs.learn(simulator, simulator.traces(200, steps=3, seed=0))
    >>> certificate = programs.certify(fit, simulator)
    >>> certificate.verdict, certificate.method, certificate.contexts
    ('covered', 'invariants', 128)
    """
    if not isinstance(fit, Fit):
        raise TypeError(f"fit: a Fit is needed, got {type(fit).__name__}")
    if not isinstance(program, Program):
        raise TypeError(f"program: a Program is needed, got {type(program).__name__}")
    if method not in ("auto", "invariants", "exhaustive", "sampled"):
        raise ValueError(
            f"method: 'auto', 'invariants', 'exhaustive' or 'sampled' is needed, got {method!r}"
        )
    steps = as_size(steps, "steps")
    tokens = steps * program.tokens_per_step
    samples = as_size(samples, "samples")
    if not (isinstance(confidence, int | float) and 0 < confidence < 1):
        raise ValueError(f"confidence: a number between 0 and 1 is needed, got {confidence!r}")
    Bar(0, "", progress)  # checked before any work, as everything else
    rng, family = _generator(seed), program.family
    learned = Layer.of(fit, program.d, "fit")
    determined = Determined(fit)
    why = ""
    exhaustive = method == "exhaustive" or (
        method == "auto" and family.count * tokens <= _EXHAUSTIVE_UP_TO
    )
    if method in ("auto", "invariants"):
        proof = _by_invariants(learned, program, determined, progress)
        far_enough = proof.steps is None or proof.steps >= steps or not exhaustive
        if method == "invariants" or (proof.verdict == "covered" and far_enough):
            return proof
        why = f" ({proof.evidence})"
    per_run = 8 * (len(family.slots) + tokens) * program.d
    size = max(1, min(_CHUNK_BYTES // per_run, family.count if exhaustive else samples))
    total = family.count if exhaustive else samples
    tally = Tally()
    with Bar(total, "runs", progress, unit="contexts") as report:
        contexts = family.chunks(size) if exhaustive else _drawn(program, samples, size, rng)
        for Z in contexts:
            tally += examine(program.layer, learned, determined, Z, tokens)
            if report is not None:
                report(tally.runs)
    return _by_runs(program, determined, tally, steps, confidence, exhaustive, why)


_KNOWN: WeakKeyDictionary[Program, Invariants] = WeakKeyDictionary()


def invariants_of(program: Program, progress: Progress = False) -> Invariants:
    """The invariants of a program, found once; they do not depend on what was learned."""
    if program not in _KNOWN:
        with Bar(None, "closures", progress, unit="rounds") as report:
            _KNOWN[program] = Invariants(program, report)
    return _KNOWN[program]


def _drawn(program: Program, samples: int, size: int, rng: np.random.Generator) -> Iterator[Floats]:
    for first in range(0, samples, size):
        yield program.family.sample(min(size, samples - first), rng)


def _by_runs(
    program: Program,
    determined: Determined,
    tally: Tally,
    steps: int,
    confidence: float,
    exhaustive: bool,
    why: str,
) -> ProgramCertificate:
    """What runs that were looked at show."""
    n, k = tally.runs, tally.covered_runs
    whole = k == n
    counts = (
        f"{k:,} of {n:,} runs of {steps} steps are covered ({tally.covered_answers:,} of "
        f"{tally.answers:,} answers), {tally.right_runs:,} are right, and "
        f"{tally.covered_but_wrong:,} covered answers are wrong"
    )
    verdict: Literal["covered", "not covered", "undecided"] = "not covered"
    if exhaustive:
        at_least, certain = k / n, 1.0
        what = f"every context was run: {counts}; nothing is shown for longer runs"
        verdict = "covered" if whole else verdict
    else:
        at_least, certain = float(beta.ppf(1 - confidence, k, n - k + 1)) if k else 0.0, confidence
        what = (
            f"sampled, not proved: of {program.family.count:,} contexts, {counts}; with confidence "
            f"{confidence:g}, at least {at_least:.4%} of all such runs are covered"
        )
        verdict = "undecided" if whole else verdict
    if whole and tally.covered_but_wrong:
        verdict = "undecided"  # the range is there, but the fit on it is not the program's
    return ProgramCertificate(
        verdict=verdict,
        method="exhaustive" if exhaustive else "sampled",
        program=program.description,
        contexts=program.family.count,
        steps=steps,
        rank=determined.rank,
        evidence=what + why,
        at_least=at_least,
        confidence=certain,
        tolerance=determined.tolerance,
        **asdict(tally),
    )


def _by_invariants(
    learned: Layer, program: Program, determined: Determined, progress: Progress
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
    numbers = _numbers(learned, invariants)
    inside = numbers >= 0
    bad, residual, error = 0, 0.0, 0.0
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
                bad += 1
                continue
            residual = max(residual, largest)
            error = max(error, _error(program.layer, learned, invariants.pairs, z, span, s))
    if bad:
        return found(
            "undecided",
            f"no proof for any number of steps: after {bad} of {len(spaces)} tokens that can "
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


def _numbers(learned: Layer, invariants: Invariants) -> Any:
    """Number among the fit's pairs of each pair of the invariants; -1 for none."""
    table = np.full((learned.d, learned.d), -1, np.intp)
    table[learned.pairs[:, 0], learned.pairs[:, 1]] = np.arange(len(learned.pairs))
    return table[invariants.pairs[:, 0], invariants.pairs[:, 1]]


def _error(program: Layer, learned: Layer, pairs: Any, z: Floats, span: Floats, s: Floats) -> float:
    """At least the largest |fit - program|, rounding included, over s of length one in a span.

    With the rows of the span scaled to length one, span' = Q R and k = sqrt(m) ||R^-1||, what is
    computed here errs by at most n_pairs k eps of the lengths it is computed from.
    """
    own = np.full((program.d, program.d), -1, np.intp)
    own[pairs[:, 0], pairs[:, 1]] = np.arange(len(pairs))
    numbers = own[program.pairs[:, 0], program.pairs[:, 1]]  # of the program's pairs
    theirs = np.where(numbers >= 0, span[:, numbers], 0.0)
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
