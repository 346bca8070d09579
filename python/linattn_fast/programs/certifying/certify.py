"""Is a learned program right for every machine and input, and for how many steps?

Three ways to find out, the strongest first:

invariants
    A proof for all contexts at once, for as many steps as errors of the fit stay below one half
    (:mod:`.by_invariants`).
exhaustive
    Every context is run for a number of steps, and every step looked at (:mod:`.by_runs`).
sampled
    Random contexts are run in the same way, which bounds the fraction of all runs that is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from ...arrays.types import Floats
from ...certificate.program import ProgramCertificate
from ...fitting.result import Fit
from ...system.arguments import as_size
from ...system.machine import same_bits
from ...system.progress import Bar
from ...system.seeds import Seed, as_generator
from ..language.program import Program
from ..running.layer import Layer
from .by_invariants import certify_by_invariants
from .by_runs import Tally, certificate_of_runs
from .determined import Determined

_CHUNK_BYTES = 128 << 20
"""Bytes of the runs that are looked at together."""
_EXHAUSTIVE_UP_TO = 20_000_000
"""Answers that "auto" looks at one by one before it samples."""

Method = Literal["auto", "invariants", "exhaustive", "sampled"]


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
    progress: bool | Callable[[int, Any], object] = False,
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
        Probability with which the bound from samples holds.
    progress
        True shows a bar; a function is called with what is done and how much there is: rounds of
        the closures (of a number that is not known before, None), tokens whose space is held
        against the training data, then contexts that are run.

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
    rng, family = as_generator(seed), program.family
    learned = Layer.of(fit, program.d, "fit")
    determined = Determined(fit)
    why = ""
    exhaustive = method == "exhaustive" or (
        method == "auto" and family.count * tokens <= _EXHAUSTIVE_UP_TO
    )
    if method in ("auto", "invariants"):
        proof = certify_by_invariants(learned, program, determined, progress)
        far_enough = proof.steps is None or proof.steps >= steps or not exhaustive
        if method == "invariants" or (proof.verdict == "covered" and far_enough):
            return proof
        why = f" ({proof.evidence})"
    total = family.count if exhaustive else samples
    bytes_per_run = 8 * (len(family.slots) + tokens) * program.d
    size = max(1, min(_CHUNK_BYTES // bytes_per_run, total))
    tally = Tally()
    with Bar(total, "runs", progress, unit="contexts") as report:
        contexts = family.chunks(size) if exhaustive else _drawn(program, samples, size, rng)
        for Z in contexts:
            tally.look_at(program.layer, learned, determined, Z, tokens)
            if report is not None:
                report(tally.counts["runs"])
    bound = None if exhaustive else confidence
    return certificate_of_runs(program, determined, tally, steps, confidence=bound, why=why)


def _drawn(program: Program, samples: int, size: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Random contexts, at most ``size`` at a time."""
    for first in range(0, samples, size):
        yield program.family.sample(min(size, samples - first), rng)
