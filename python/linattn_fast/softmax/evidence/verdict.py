"""The verdict that follows from the evidence, and the reasons why it is not a better one.

No verdict is better than its evidence:

    "not learned"            sequences that were held out are predicted with too large an error
    "fits, not identified"   they are predicted, but other layers may do the same
    "learned"                they are predicted, and enough of them that the error is within the
                             tolerance with 95 % confidence; the data determines Theta and W near
                             the solution, several starts (or an exact fit) agree on it, one head
                             fewer does not do as well and one head more not far better
"""

from __future__ import annotations

from ..search.many_starts import Start
from .held_out import HeldOut
from .identifiability import Identifiability
from .named_cases import Case
from .report import Report, Verdict

_WORSE_THAN_TRAINING = 3.0
"""Ratio of held-out to training error above which the training error says nothing."""
_ROUNDING = 1e-6
"""Relative error below which errors are not compared."""
_FEW_HELD_OUT = 3
"""Number of held-out sequences of which the rule of three says nothing: 3 / n is 1."""
_FEW_IF_INEXACT = 9
"""Number of held-out sequences that may be predicted well by luck where the fit is not exact: 3 / n
is above 0.3, and their spread bounds nothing."""
_FAR_BETTER = 0.5
"""Training error with one head more, relative to the layer's own, below which a head is missing.

Unknowns that fit noise alone lower the squared error by their share of the spare equations: where
there are at least two equations an unknown, one head more lowers it by a third at most. It falls to
a quarter only where there is something to fit."""


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
    """Weigh the evidence, and report the verdict with its reasons."""
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
    """Reasons to doubt that held-out sequences are predicted, and by what was learned."""
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
    """Reasons to think that other layers nearby do the same, or as well up to the noise."""
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
    """Reasons to think that another number of heads does as well, or better."""
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
    """Reasons to think that there were too few sequences or starts to say."""
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
