"""Descents from many starts, the best of which is kept, chosen by training loss alone.

Starts have Theta of the norms in ``token_space.NORMS`` in turn; every other one has one head too
many, which is pruned. The search ends when the fit is exact, or when enough starts agree on the
best layer up to the order of its heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ...arrays.types import Floats
from ..descent.descent import Descent, Method
from ..descent.objective import SOLVED, Objective, Point
from .pruning import pruned
from .settings import SearchSettings
from .token_space import NORMS, TokenSpace

_SAME_LOSS = 1e-3
"""Relative difference of losses up to which two descents agree."""
_SAME_HEADS = 1e-2
"""Relative difference of each head's Theta below which two descents agree."""


@dataclass(frozen=True)
class Start:
    """One start and where it led."""

    kind: str
    """Kind of start: "random", "pruned" (from one head more) or "given"."""
    norm: float
    """Norm of each Theta at the start; nan for a given start."""
    error: float
    """Relative training error at the end."""
    iterations: int
    """Number of iterations of the last descent."""
    agrees: bool
    """Whether it found the layer that was chosen, up to the order of the heads."""


@dataclass(frozen=True, eq=False)
class Found:
    """The best that all starts have found."""

    point: Point
    """Where the best descent ended."""
    starts: tuple[Start, ...]
    """Every start, in order."""
    more_heads_error: float
    """Least relative training error with one head more, before it was pruned; nan where no start
    had one."""

    @property
    def solved(self) -> bool:
        """Whether the training data is fitted exactly, but for rounding."""
        return self.point.error <= SOLVED


def search(
    objective: Objective,
    heads: int,
    descend: Method,
    settings: SearchSettings,
    *,
    given: Floats | None = None,
    watch: Callable[[int], object] | None = None,
) -> Found:
    """Look for the best layer with so many heads.

    Parameters
    ----------
    settings
        Number of starts at most, how many must agree for an earlier end, and their seed.
    given
        A Theta (heads, d, d) to start from first.
    watch
        Called with the number of starts done.
    """
    space, rng = TokenSpace.of(objective.examples), np.random.default_rng(settings.seed)
    tried: list[tuple[str, float, Descent]] = []
    more_heads_error = np.nan
    best: Descent | None = None
    for number in range(settings.starts):
        if given is not None and number == 0:
            kind, norm, found = "given", np.nan, descend(objective, given)
        else:
            turn = number if given is None else number - 1
            norm, more = NORMS[(turn // 2) % len(NORMS)], turn % 2
            kind = "pruned" if more else "random"
            found = descend(objective, space.random(rng, heads + more, norm))
            if more:
                more_heads_error = float(np.fmin(more_heads_error, found.point.error))
                found = pruned(objective, found.point.Theta, heads, descend)
        tried.append((kind, norm, found))
        if best is None or found.point.loss < best.point.loss:
            best = found
        if watch is not None:
            watch(number + 1)
        if best.point.error <= SOLVED:
            break
        if sum(agree(each.point, best.point, space) for _, _, each in tried) >= settings.agreeing:
            break
    assert best is not None
    return Found(
        best.point,
        tuple(
            Start(
                kind, norm, each.point.error, each.iterations, agree(each.point, best.point, space)
            )
            for kind, norm, each in tried
        ),
        more_heads_error,
    )


def agree(a: Point, b: Point, space: TokenSpace) -> bool:
    """Whether two points fit equally well with the same heads in some order."""
    if max(a.loss, b.loss) > (1 + _SAME_LOSS) * min(a.loss, b.loss) + SOLVED**2:
        return False
    return head_distance(space.seen(a.Theta), space.seen(b.Theta)) < _SAME_HEADS


def head_distance(a: Floats, b: Floats) -> float:
    """Largest relative difference of Thetas (m, d, d) whose heads are paired in the best order."""
    sizes = np.maximum(np.linalg.norm(b, axis=(1, 2)), 1e-300)
    apart = np.linalg.norm(a[:, None] - b[None], axis=(2, 3)) / sizes
    rows, columns = linear_sum_assignment(apart)
    return float(apart[rows, columns].max())
