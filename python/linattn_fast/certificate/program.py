"""The certificate of a learned program: on which machines and inputs it is right, and why.

:func:`linattn_fast.programs.certify` makes it. It holds plain numbers and words, so that a saved
fit can carry it (docs/files.md).
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
    """Conclusion. "covered": the data determines every step, up to ``steps``, of every run from
    every context of the family. "not covered": some step is not determined. "undecided": no such
    step was found, but not all of them were looked at."""
    method: Literal["invariants", "exhaustive", "sampled"]
    """How it was found. "invariants": proved for all contexts at once. "exhaustive": every context
    was run. "sampled": random contexts were run."""
    program: str
    """Name of the program."""
    contexts: int
    """Number of contexts in the family: machines times inputs times starts."""
    steps: int | None
    """Number of steps of a run that the verdict speaks of; None for any number of them. With
    "invariants", ``exact_steps`` rounded down, or None where every run ends before."""
    rank: int
    """Rank of the training features."""
    evidence: str
    """What was proved and what was only sampled, in words."""
    runs: int = 0
    """Number of runs that were looked at; 0 where the proof needs none."""
    covered_runs: int = 0
    """Number of these runs that are covered in every step."""
    right_runs: int = 0
    """Number of these runs that are right in every step, whether covered or not."""
    answers: int = 0
    """Number of tokens that these runs asked for."""
    covered_answers: int = 0
    """Number of these tokens that the training data determines."""
    right_answers: int = 0
    """Number of these tokens that are right, whether covered or not."""
    covered_but_wrong: int = 0
    """Number of tokens that are covered and yet wrong: 0 unless the arithmetic failed."""
    at_least: float = 0.0
    """Lower bound on the fraction of all runs that is covered, which holds with ``confidence``."""
    confidence: float = 1.0
    """Probability that ``at_least`` holds; 1 where nothing was sampled."""
    residual: float = 0.0
    """Largest relative distance of a covered token from the range of the training features."""
    tolerance: float = 0.0
    """Relative distance up to which a token counts as covered."""
    error: float = float("inf")
    """Largest error of an answer for s of length one, with "invariants"; else infinite."""
    exact_steps: float = 0.0
    """Number of steps for which errors stay below one half whatever happens, so that rounding
    removes them, with "invariants". Errors grow with the length of s, and s with the run."""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.evidence}"
