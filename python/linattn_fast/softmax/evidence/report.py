"""The report on a fitted layer: the verdict, its reasons, and all the evidence in one text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from ..search.many_starts import Start
from .held_out import HeldOut
from .identifiability import Identifiability
from .named_cases import Case

Verdict: TypeAlias = Literal["learned", "fits, not identified", "not learned"]


@dataclass(frozen=True, eq=False)
class Report:
    """The evidence for a fitted layer. Made by :func:`linattn_fast.softmax.fit`."""

    verdict: Verdict
    """Conclusion: "learned", "fits, not identified" or "not learned"."""
    reasons: tuple[str, ...]
    """Reasons why it is not a better verdict; none for "learned"."""
    training_error: float
    """Relative training error, ||F(X) - Y|| / ||Y||."""
    held_out: HeldOut
    """Errors on sequences that were used for nothing else."""
    tolerance: float
    """Held-out error up to which the layer counts as fitting."""
    solved: bool
    """Whether the training data is fitted exactly, but for rounding."""
    starts: tuple[Start, ...]
    """Every start, in order, and where it led."""
    fewer_heads_error: float
    """Relative training error of the best layer with one head fewer that was found."""
    more_heads_error: float
    """Relative training error of the best layer with one head more; nan where no start had one."""
    identifiability: Identifiability = field(repr=False)
    """What the data determines near the solution."""
    cases: tuple[Case, ...]
    """Known reasons why the data does not determine the layer."""

    @property
    def agreeing(self) -> int:
        """Number of starts that found this layer, up to the order of its heads."""
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
    """The bound on the held-out error in words; empty where it is not known."""
    bound = held_out.error_bound
    return "" if bound is None else f", at most {bound:.2g} with 95 % confidence"
