"""What is known about a learned program: on which machines and inputs it is right, and how.

Made by :func:`linattn_fast.programs.certify`; it is plain numbers and words, so that a saved fit
carries it (docs/files.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ProgramCertificate:
    """Whether a fit is determined on every run of a program.

    Made by :func:`linattn_fast.programs.certify`; ``print`` shows the verdict and the evidence.
    """

    verdict: Literal["covered", "not covered", "undecided"]
    """"covered": every step of every run, of as many steps as ``steps`` says, from every context of
    the family. "not covered": some step is not. "undecided": no such step was found, but not all
    were looked at."""
    method: Literal["invariants", "exhaustive", "sampled"]
    """"invariants": proved for all contexts at once. "exhaustive": every context was run.
    "sampled": random ones were."""
    program: str
    """Which program."""
    contexts: int
    """In the family: machines times inputs times starts."""
    steps: int | None
    """Up to which step of a run the verdict speaks; None for any number of steps. Of "invariants"
    the whole steps in ``exact_steps``, and None where every run ends before."""
    rank: int
    """Of the training features."""
    evidence: str
    """What was shown and what was only sampled, in words."""
    runs: int = 0
    """Runs that were looked at; 0 where the proof needs none."""
    covered_runs: int = 0
    """Of these, covered in every step."""
    right_runs: int = 0
    """Of these, right in every step, whether covered or not."""
    answers: int = 0
    """Tokens that these runs asked for."""
    covered_answers: int = 0
    """Of these, determined by the training data."""
    right_answers: int = 0
    """Of these, right, whether covered or not."""
    covered_but_wrong: int = 0
    """Tokens that were covered, and wrong all the same: 0 unless the arithmetic failed."""
    at_least: float = 0.0
    """The fraction of all runs that is covered is at least this, with ``confidence``."""
    confidence: float = 1.0
    """Of ``at_least``; 1 where nothing was sampled."""
    residual: float = 0.0
    """Largest relative distance from the range of the training features, of what is covered."""
    tolerance: float = 0.0
    """The distance up to which it counts as none."""
    error: float = float("inf")
    """Of "invariants": the largest error of an answer, for s of length one."""
    exact_steps: float = 0.0
    """Of "invariants": for this many steps errors are below one half whatever happens, so that
    rounding removes them. Errors grow with the length of s, and s with the run."""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.evidence}"
