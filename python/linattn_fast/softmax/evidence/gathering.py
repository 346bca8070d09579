"""Gathering all evidence for a layer that was found."""

from __future__ import annotations

from ..descent.descent import Method
from ..descent.levenberg_marquardt import levenberg_marquardt
from ..descent.objective import SOLVED, Point
from ..examples.split import Split
from ..search.many_starts import Found
from ..search.pruning import pruned
from .held_out import held_out_error
from .identifiability import identifiability
from .named_cases import named_cases
from .report import Report
from .verdict import judge

_BRIEF_STEPS, _BRIEF_EVALUATIONS = 40, 200
"""Iterations of the fit with one head fewer, of Levenberg-Marquardt and of L-BFGS: it is there for
comparison only."""


def gather(found: Found, point: Point, split: Split, descend: Method, tolerance: float) -> Report:
    """Collect the evidence for what was found: ``point``, in the coordinates of the data."""
    m = len(point.Theta)
    known = identifiability(point)
    fewer = 1.0 if m == 1 else _without_one(found.point, descend)
    # Each unknown that fits noise alone lowers the squared error by its share of the equations
    spared = known.unknowns / m / max(1, known.equations - known.unknowns)
    fewer_fits = fewer**2 <= max((1 + 3 * spared) * point.loss, SOLVED**2)
    return judge(
        training_error=point.error,
        held_out=held_out_error(split.held_out, point.Theta, point.W, tolerance),
        tolerance=tolerance,
        solved=found.solved,
        starts=found.starts,
        fewer_heads_error=fewer,
        fewer_fits=fewer_fits,
        more_heads_error=found.more_heads_error,
        uncertain_heads=known.uncertain_heads(point.Theta, point.W),
        identifiability=known.in_units(split.units),
        cases=named_cases(point, known, fewer_fits=fewer_fits),
    )


def _without_one(point: Point, descend: Method) -> float:
    """Relative training error of the other heads without the least useful one, after a descent."""
    steps = _BRIEF_STEPS if descend is levenberg_marquardt else _BRIEF_EVALUATIONS
    fewer = len(point.Theta) - 1
    found = pruned(point.objective, point.Theta, fewer, descend, tried=1, iterations=steps)
    return found.point.error
