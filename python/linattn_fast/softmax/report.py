"""What was shown about a fitted layer, and the verdict that follows from it.

No verdict is better than its evidence:

    "not learned"            sequences that were held out are predicted with too large an error
    "fits, not identified"   they are predicted, but other layers may do the same
    "learned"                they are predicted, and enough of them that the error is within the
                             tolerance with 95 % confidence; the data determines Theta and W near
                             the solution, several starts (or an exact fit) agree on it, one head
                             fewer does not do as well and one head more not far better
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import betaincinv, chdtri, stdtrit

from ..arrays.types import Floats
from .cases import Case
from .identifiability import Identifiability
from .search import Start

Verdict: TypeAlias = Literal["learned", "fits, not identified", "not learned"]

_WORSE_THAN_TRAINING = 3.0
"""Held-out over training error, above which the training error says nothing."""
_ROUNDING = 1e-6
"""Errors below are not compared."""
_FEW_HELD_OUT = 3
"""Held-out sequences of which the rule of three says nothing: 3 / n is 1."""
_FEW_IF_INEXACT = 9
"""The same where held-out sequences are predicted with an error: so few may be predicted well by
luck (3 / n is above 0.3), and their spread bounds nothing."""
_CONFIDENCE = 0.95
_FAR_BETTER = 0.5
"""Training error with one head more, relative to that of the layer.

Unknowns that fit noise alone lower the squared error by their share of the spare equations: with
at least two equations an unknown, and a layer of m heads made one of m + 1, by a third at most. A
quarter is left only where there is something to fit."""


@dataclass(frozen=True)
class HeldOut:
    """How the layer does on sequences that were used for nothing else."""

    error: float
    """||F(X) - Y|| / ||Y|| over all of them, with their weights."""
    sequences: int
    """How many they are."""
    violations: int
    """Sequences with an error above the tolerance, relative to the root mean square sequence."""
    error_bound: float | None = None
    """The error over all sequences is at most this with 95 % confidence, as far as errors have no
    longer tails than Gaussian ones; infinite for a single sequence, None in files of older
    releases."""

    @property
    def violation_bound(self) -> float:
        """Share of all sequences that violate the tolerance, at most, with 95 % confidence.

        Without a violation among n it is 3 / n, otherwise that of Clopper and Pearson.
        """
        n, v = self.sequences, self.violations
        if v == n:
            return 1.0
        return min(1.0, 3 / n) if v == 0 else float(betaincinv(v + 1, n - v, 0.95))

    @classmethod
    def of(
        cls, errors: Floats, targets: Floats, tolerance: float, weights: Floats | None = None
    ) -> HeldOut:
        """From squared errors, squared targets and weights of each sequence, (n,) each."""
        weights = np.ones(len(errors)) if weights is None else weights
        total = float(weights @ targets)
        size = total / float(weights.sum()) if total > 0 else 1.0
        violations = int((errors > tolerance**2 * size).sum())
        error = float(np.sqrt(weights @ errors / (total or 1.0)))
        return cls(error, len(errors), violations, _upper(weights * errors, total))


def _upper(errors: Floats, total: float) -> float:
    """Bound on the relative error, from the squared errors of sequences (n,) and sum ||y||^2.

    The larger of two bounds on their mean: Student's, mean + t sd / sqrt(n), which sees sequences
    of different size, and n mean / chi2, chi2 the 5 % quantile with n degrees of freedom, which is
    right for squares of Gaussian numbers. Their tail is too long for Student's t alone.
    """
    n = len(errors)
    if n == 1:
        return float("inf")
    mean = errors.mean()
    student = mean + stdtrit(n - 1, _CONFIDENCE) * np.std(errors, ddof=1) / np.sqrt(n)
    gaussian = n * mean / chdtri(n, _CONFIDENCE)
    return float(np.sqrt(max(student, gaussian) * n / (total or 1.0)))


@dataclass(frozen=True, eq=False)
class Report:
    """The evidence for a fitted layer. Made by :func:`linattn_fast.softmax.fit`."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Why not a better one; empty for "learned"."""
    training_error: float
    """Relative, ||F(X) - Y|| / ||Y||."""
    held_out: HeldOut
    """The same on sequences that were used for nothing else."""
    tolerance: float
    """Held-out error up to which the layer counts as fitting."""
    solved: bool
    """Whether the training data is fitted exactly, but for rounding."""
    starts: tuple[Start, ...]
    """Every start, in order, and where it led."""
    fewer_heads_error: float
    """Relative training error of the best layer with one head fewer that was found."""
    more_heads_error: float
    """Likewise with one head more; nan where no start had one."""
    identifiability: Identifiability = field(repr=False)
    """What the data determines near the solution."""
    cases: tuple[Case, ...]
    """Known reasons why the data does not determine the layer."""

    @property
    def agreeing(self) -> int:
        """Starts that found this layer, up to the order of its heads."""
        return sum(start.agrees for start in self.starts)

    def __str__(self) -> str:
        known, held = self.identifiability, self.held_out
        lines = [
            self.verdict + "".join(f"\n  because: {reason}" for reason in self.reasons),
            f"  held-out error {held.error:.2g} on {held.sequences} sequences (training "
            f"{self.training_error:.2g}){_at_most(held)}; {held.violations} above "
            f"{self.tolerance:g}, so at most {held.violation_bound:.2g} of all with 95 % "
            "confidence",
            f"  {self.agreeing} of {len(self.starts)} starts agree"
            + ("; the fit is exact" if self.solved else ""),
            f"  training error with one head fewer {self.fewer_heads_error:.2g}"
            + (
                "" if np.isnan(self.more_heads_error) else f", one more {self.more_heads_error:.2g}"
            ),
            f"  Theta: nullity {known.theta_nullity}, condition {known.theta_condition:.2g}; "
            f"W: nullity {known.value_nullity}, condition {known.value_condition:.2g}",
            f"  {known.equations} equations, {known.unknowns} unknowns; largest standard error "
            f"{known.theta_errors.max():.2g} of Theta, {known.value_errors.max():.2g} of W",
        ]
        return "\n".join(lines)


def _at_most(held_out: HeldOut) -> str:
    """The bound on the held-out error in words; nothing where it is not known."""
    bound = held_out.error_bound
    return "" if bound is None else f", at most {bound:.2g} with 95 % confidence"


def judge(
    *,
    training_error: float,
    held_out: HeldOut,
    tolerance: float,
    solved: bool,
    starts: tuple[Start, ...],
    fewer_heads_error: float,
    fewer_fits: bool,
    more_heads_error: float,
    uncertain_heads: tuple[int, ...],
    identifiability: Identifiability,
    cases: tuple[Case, ...],
) -> Report:
    """Weigh the evidence."""
    wrong = _why_not_fitting(training_error, held_out, tolerance)
    open_ends = [
        *map(str, cases),
        *_why_not_determined(identifiability, uncertain_heads),
        *_why_other_heads(
            training_error, fewer_fits and not cases, more_heads_error, identifiability
        ),
        *_why_too_little(held_out, tolerance, solved, starts),
    ]
    verdict: Verdict = "learned"
    if wrong:
        verdict = "not learned"
    elif open_ends:
        verdict = "fits, not identified"
    return Report(
        verdict=verdict,
        reasons=(*wrong, *open_ends),
        training_error=training_error,
        held_out=held_out,
        tolerance=tolerance,
        solved=solved,
        starts=starts,
        fewer_heads_error=fewer_heads_error,
        more_heads_error=more_heads_error,
        identifiability=identifiability,
        cases=cases,
    )


def _why_not_fitting(training: float, held_out: HeldOut, tolerance: float) -> list[str]:
    """Held-out sequences are not predicted, or not for what was learned."""
    reasons = []
    if held_out.error > tolerance:
        reasons.append(
            f"the held-out error {held_out.error:.2g} is above the tolerance {tolerance:g} (if the "
            "targets are known to have noise of that size, give a larger tolerance)"
        )
    if held_out.error > max(_WORSE_THAN_TRAINING * training, _ROUNDING):
        reasons.append(
            f"the held-out error {held_out.error:.2g} is far above the training error "
            f"{training:.2g}: the training data alone does not say how to go on"
        )
    return reasons


def _why_not_determined(known: Identifiability, uncertain_heads: tuple[int, ...]) -> list[str]:
    """Other layers nearby do the same, or as well as far as the noise goes."""
    reasons = []
    if known.theta_nullity:
        reasons.append(f"{known.theta_nullity} directions of Theta change nothing (nullity of H)")
    if known.value_nullity:
        reasons.append(f"{known.value_nullity} directions of W change nothing (nullity of B'B)")
    if uncertain_heads:
        names = ", ".join(map(str, uncertain_heads))
        reasons.append(f"the standard errors of head {names} are above half of its Theta or W")
    return reasons


def _why_other_heads(
    training: float, fewer_fits: bool, more_heads_error: float, known: Identifiability
) -> list[str]:
    """Another number of heads does as well, or better."""
    reasons = []
    if fewer_fits:
        reasons.append("one head fewer fits as well")
    m = len(known.theta_errors)
    with_one_more = known.unknowns // m * (m + 1)
    enough = known.equations >= 2 * with_one_more
    if enough and more_heads_error < _FAR_BETTER * training and training > _ROUNDING:
        reasons.append(
            f"one head more has a training error of {more_heads_error:.2g}, against {training:.2g}"
        )
    return reasons


def _why_too_little(
    held_out: HeldOut, tolerance: float, solved: bool, starts: tuple[Start, ...]
) -> list[str]:
    """Too few sequences or starts to say."""
    reasons = []
    n, exact = held_out.sequences, solved or held_out.error <= _ROUNDING
    if n <= _FEW_HELD_OUT:
        reasons.append(f"{n} held-out sequence{'s' * (n > 1)} cannot bound the violations: 3 / n")
    elif not exact and n <= _FEW_IF_INEXACT:
        reasons.append(
            f"{n} held-out sequences are too few to tell the error {held_out.error:.2g} from luck: "
            f"{_FEW_IF_INEXACT + 1} are needed where the fit is not exact"
        )
    elif not exact and held_out.error_bound is not None and held_out.error_bound > tolerance:
        reasons.append(
            f"the held-out error may be {held_out.error_bound:.2g} with 95 % confidence, above the "
            f"tolerance {tolerance:g}: {n} sequences are too few to tell"
        )
    if not solved and sum(start.agrees for start in starts) < 2:
        reasons.append(f"only one of {len(starts)} starts found it, and the fit is not exact")
    return reasons
