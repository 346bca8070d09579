"""The path over the number of heads: training and held-out error with 1, 2, .. of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays.types import Floats
from ...data.tokens import as_weights
from ...system.arguments import as_size
from ...system.machine import same_bits
from ...system.packages import axes_for
from ...system.progress import Bar
from ..descent.objective import SOLVED, Objective, Point
from ..evidence.held_out import held_out_error
from ..examples.given import tokens_and_targets
from ..examples.groups import Examples
from ..examples.split import split_examples
from ..layer.layer import Layer
from ..search.many_starts import search
from ..search.settings import SearchSettings, Solver
from ..search.token_space import NORMS, TokenSpace
from ..search.whitening import Whitening
from .result import layer_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AS_GOOD = 1.05
"""Ratio of a held-out error to the least one, up to which it is as good."""


@dataclass(frozen=True, eq=False)
class HeadPath:
    """The best layers found with 1, 2, .. heads. Made by :func:`head_path`."""

    n_heads: tuple[int, ...]
    """Numbers of heads: 1, 2, .. max_heads."""
    training_errors: Floats
    """Relative errors ||F(X) - Y|| / ||Y|| on the training sequences; never increasing."""
    held_out_errors: Floats
    """Relative errors on sequences that were held out, by which ``suggested`` is chosen."""
    layers: list[Layer] = field(repr=False)
    """A layer for each number of heads, with fewer heads where more would add nothing."""

    @property
    def suggested(self) -> int:
        """The fewest heads whose held-out error is within 5 % of the least, or exact."""
        enough = self.held_out_errors <= max(_AS_GOOD * self.held_out_errors.min(), SOLVED)
        return self.n_heads[int(np.argmax(enough))]

    def plot(self, path_or_ax: str | os.PathLike[str] | Axes | None = None) -> Axes:
        """Draw both errors, on a logarithmic scale.

        Parameters
        ----------
        path_or_ax
            As for :meth:`linattn_fast.HeadPath.plot`, which draws the same for linear attention.

        Returns
        -------
        matplotlib.axes.Axes
            The axes with both curves.
        """
        floor = float(np.finfo(np.float64).eps)  # a logarithmic scale has no zero
        with axes_for(path_or_ax) as ax:
            ax.semilogy(
                self.n_heads, np.maximum(self.training_errors, floor), "o-", label="training"
            )
            ax.semilogy(
                self.n_heads, np.maximum(self.held_out_errors, floor), "s--", label="held out"
            )
            ax.set(xlabel="heads", ylabel="relative error", xticks=self.n_heads)
            ax.legend()
        return ax


@same_bits
def head_path(
    X: object,
    Y: object,
    max_heads: int,
    *,
    offsets: object = None,
    sample_weight: object = None,
    starts: int = 6,
    agreeing: int = 2,
    held_out: float = 0.2,
    solver: Solver = "auto",
    seed: int = 0,
    backend: str = "auto",
    progress: bool | Callable[[int, Any], object] = False,
) -> HeadPath:
    """Fit with 1, 2, .. max_heads heads, to choose their number.

    Each number of heads starts from the heads before it and a random one, and also from scratch.

    Parameters
    ----------
    X, Y, offsets, sample_weight
        As for :func:`fit`.
    max_heads
        Largest number of heads.
    starts, agreeing, held_out, solver, seed, backend, progress
        As for :func:`fit`, for each number of heads; progress counts these numbers.

    Returns
    -------
    HeadPath
        Errors and layers for each number of heads, ``suggested`` and ``plot()``.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.softmax.Layer(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 3)))
    >>> X = rng.choice([-1.0, 1.0], size=(200, 4, 3))
    >>> la.softmax.head_path(X, truth(X), 3).suggested
    2
    """
    max_heads = as_size(max_heads, "max_heads")
    settings = SearchSettings.of(starts, agreeing, held_out, solver, seed, backend)
    bar = Bar(max_heads, "heads", progress, unit="heads")
    tokens, targets = tokens_and_targets(X, Y, offsets)
    weights = as_weights(sample_weight, len(tokens))
    split = split_examples(tokens, targets, weights, settings.held_out, settings.seed)
    whitening = Whitening.of(split.training)
    objective = whitening.objective(split.training, compiled=settings.compiled)
    there = Objective(split.training, compiled=settings.compiled)
    points: list[Point] = []  # in the coordinates of the data
    Theta: Floats | None = None  # heads of the last point, in the coordinates of the search
    with bar as watch:
        for m in range(1, max_heads + 1):
            given = (
                None
                if Theta is None
                else _with_one_more(Theta, objective.examples, [settings.seed, m])
            )
            descend = settings.descent(m * tokens.d**2)
            found = search(objective, m, descend, settings, given=given).point.Theta
            point = there.at(whitening.out_of(found))
            if points and point.loss > points[-1].loss:
                points.append(points[-1])  # a head that does nothing is always allowed
            else:
                points.append(point)
                Theta = found
            if watch is not None:
                watch(m)
    return HeadPath(
        tuple(range(1, max_heads + 1)),
        np.array([point.error for point in points]),
        np.array([held_out_error(split.held_out, p.Theta, p.W, 1.0).error for p in points]),
        [layer_at(point, split) for point in points],
    )


def _with_one_more(Theta: Floats, examples: Examples, seed: list[int]) -> Floats:
    """Theta with one more head, a random one."""
    rng = np.random.default_rng(seed)
    return np.concatenate([Theta, TokenSpace.of(examples).random(rng, 1, NORMS[0])])
