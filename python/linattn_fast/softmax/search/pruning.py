"""Heads that are taken away, the least useful first."""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats
from ..descent.descent import Descent, Method
from ..descent.objective import SOLVED, Objective

_TRIED_REMOVALS = 3
"""Number of heads whose removal is tried at most, each followed by a descent."""


def pruned(
    objective: Objective,
    Theta: Floats,
    heads: int,
    descend: Method,
    *,
    tried: int = _TRIED_REMOVALS,
    iterations: int | None = None,
) -> Descent:
    """Take away heads, each time the one without which the others fit best, and go down again.

    Where that is not an exact fit, the next best are tried as well, ``tried`` of them in all.
    ``iterations`` limits each descent.
    """
    best: Descent | None = None
    while best is None or len(Theta) > heads:
        without = [np.delete(Theta, i, axis=0) for i in range(len(Theta))]
        losses = [objective.at(each).loss for each in without]
        best = None
        for i in np.argsort(losses, kind="stable")[:tried]:
            limit = {} if iterations is None else {"iterations": iterations}
            found = descend(objective, without[i], **limit)
            if best is None or found.point.loss < best.point.loss:
                best = found
            if best.point.error <= SOLVED:
                break
        assert best is not None
        Theta = best.point.Theta
    return best
