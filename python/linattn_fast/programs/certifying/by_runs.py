"""Runs of a program, looked at step by step: is the fit determined there, and is it right?

The program itself makes the run; the fit is asked at each of its steps. A run that is right in
every step is also what the fit makes of the context by itself, because at each step it has the same
tokens before it.

If every context is run, the counts are the answer. If contexts are drawn at random and k of n runs
are covered, the fraction of all runs that is covered is at least the bound of Clopper and Pearson,
which is (1 - confidence)^(1/n) for k = n.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from ...arrays.types import Floats
from ...certificate.program import ProgramCertificate
from ..language.program import Program
from ..running.appending import kinds, rounded, run_many
from ..running.layer import Layer
from .determined import Determined

Mask = npt.NDArray[np.bool_]


@dataclass
class Tally:
    """What was counted over runs, by the names that a certificate has for it."""

    counts: Counter[str] = field(default_factory=Counter)
    """All "runs" and "answers", those that are covered and those that are right; and the answers
    that are "covered_but_wrong"."""
    residual: float = 0.0
    """Largest relative distance from the range of the training features, of what is covered."""

    def add(self, what: Literal["runs", "answers"], covered: Mask, right: Mask) -> None:
        """Count runs or answers (N,)."""
        self.counts[what] += len(covered)
        self.counts[f"covered_{what}"] += int(covered.sum())
        self.counts[f"right_{what}"] += int(right.sum())

    def look_at(
        self, program: Layer, learned: Layer, determined: Determined, Z: Floats, tokens: int
    ) -> None:
        """Look at runs of at most ``tokens`` from contexts (N, n, d)."""
        N, n, _ = Z.shape
        runs = run_many(program, Z, tokens)
        s = learned.sums(Z)
        unseen = _has_unseen(learned, runs)
        covered, right = np.ones(N, bool), np.ones(N, bool)
        for t in range(n, n + tokens):
            for z, rows in kinds(runs[:, t - 1]):
                if not z.any():
                    continue
                action = learned.action(z)
                if t > n:
                    s[np.ix_(rows, action.where)] += action.products
                asking = rows[runs[rows, t].any(axis=1)]  # the others end here
                if len(asking) == 0:
                    continue
                residuals = determined.asked(z).residuals(s[asking])
                here = (residuals <= determined.tolerance) & ~unseen[asking, t - 1]
                good = (rounded(action.many(s[asking])) == runs[asking, t]).all(axis=1)
                covered[asking] &= here
                right[asking] &= good
                self.add("answers", here, good)
                self.counts["covered_but_wrong"] += int((here & ~good).sum())
                self.residual = max(self.residual, float(residuals[here].max(initial=0.0)))
        self.add("runs", covered, right)


def _has_unseen(learned: Layer, runs: Floats) -> Mask:
    """Whether S of a prefix has a pair that the fit never saw, (N, n + tokens)."""
    N, length, d = runs.shape
    flat = runs.reshape(-1, d)
    numbers = learned.pair_numbers
    unseen: dict[tuple[int, int], list[npt.NDArray[np.intp]]] = {}
    for z, rows in kinds(flat):
        present = np.flatnonzero(z)
        for j in present:
            for k in present[present >= j]:
                if numbers[j, k] < 0:
                    unseen.setdefault((int(j), int(k)), []).append(rows)
    found = np.zeros((N, length), bool)
    for (low, high), parts in unseen.items():
        rows = np.concatenate(parts)
        products = np.zeros(len(flat))
        products[rows] = flat[rows, low] * flat[rows, high]
        found |= np.cumsum(products.reshape(N, length), axis=1) != 0
    return found


def certificate_of_runs(
    program: Program,
    determined: Determined,
    tally: Tally,
    steps: int,
    *,
    confidence: float | None,
    why: str,
) -> ProgramCertificate:
    """What the runs of a tally show; without a ``confidence`` they are those of every context.

    ``why`` says why there is no proof by invariants.
    """
    counts: dict[str, Any] = tally.counts
    n, k = counts["runs"], counts["covered_runs"]
    in_words = (
        f"{k:,} of {n:,} runs of {steps} steps are covered ({counts['covered_answers']:,} of "
        f"{counts['answers']:,} answers), {counts['right_runs']:,} are right, and "
        f"{counts['covered_but_wrong']:,} covered answers are wrong"
    )
    if confidence is None:
        at_least = k / n
        evidence = f"every context was run: {in_words}; nothing is shown for longer runs"
        all_covered: Literal["covered", "undecided"] = "covered"
    else:
        at_least = float(beta.ppf(1 - confidence, k, n - k + 1)) if k else 0.0
        evidence = (
            f"sampled, not proved: of {program.family.count:,} contexts, {in_words}; with "
            f"confidence {confidence:g}, at least {at_least:.4%} of all such runs are covered"
        )
        all_covered = "undecided"
    if counts["covered_but_wrong"]:
        all_covered = "undecided"  # the range is there, but the fit on it is not the program's
    return ProgramCertificate(
        verdict=all_covered if k == n else "not covered",
        method="exhaustive" if confidence is None else "sampled",
        program=program.description,
        contexts=program.family.count,
        steps=steps,
        rank=determined.rank,
        evidence=evidence + why,
        at_least=at_least,
        confidence=1.0 if confidence is None else confidence,
        tolerance=determined.tolerance,
        residual=tally.residual,
        **counts,
    )
