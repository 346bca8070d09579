"""What each head is worth: training and held-out error against the number of heads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.types import Floats
from ..data.tokens import as_weights
from ..system.arguments import as_size
from ..system.machine import same_bits
from ..system.packages import axes_for
from ..system.progress import Bar
from .examples import Examples
from .fitting import checked, layer_of
from .layer import Layer
from .reduced import Objective, Point
from .search import search
from .settings import SearchSettings, Solver
from .split import held_out_error, split_examples
from .starts import NORMS, SOLVED, Coordinates, TokenSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AS_GOOD = 1.05
"""Held-out errors within five percent of the least are as good."""


@dataclass(frozen=True, eq=False)
class HeadPath:
    """The best layers found with 1, 2, .. heads. Made by :func:`head_path`."""

    n_heads: tuple[int, ...]
    """1, 2, .. max_heads."""
    training_errors: Floats
    """||F(X) - Y|| / ||Y|| on the training sequences; never increasing."""
    held_out_errors: Floats
    """The same on sequences that no layer was fitted to; ``suggested`` is chosen by them."""
    layers: list[Layer] = field(repr=False)
    """One for each number of heads; fewer than that where more would add nothing."""

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
            A file to write, axes to draw in, or None for a new figure. Needs matplotlib:
            ``pip install linattn-fast[plot]``.

        Returns
        -------
        matplotlib.axes.Axes
            What was drawn in.
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
    tokens, targets = checked(X, Y, offsets)
    weights = as_weights(sample_weight, len(tokens))
    split = split_examples(tokens, targets, weights, settings.held_out, settings.seed)
    coordinates = Coordinates.of(split.training)
    objective = coordinates.objective(split.training, compiled=settings.compiled)
    there = Objective(split.training, compiled=settings.compiled)
    points: list[Point] = []  # where the examples are
    Theta: Floats | None = None  # the heads of the last one, in the coordinates of the search
    with bar as watch:
        for m in range(1, max_heads + 1):
            given = (
                None
                if Theta is None
                else _with_one_more(Theta, objective.examples, [settings.seed, m])
            )
            descend = settings.descent(m * tokens.d**2)
            found = search(objective, m, descend, settings, given=given).point.Theta
            point = there.at(coordinates.out_of(found))
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
        [layer_of(point, split) for point in points],
    )


def _with_one_more(Theta: Floats, examples: Examples, seed: list[int]) -> Floats:
    """Heads and a random one beside them."""
    rng = np.random.default_rng(seed)
    return np.concatenate([Theta, TokenSpace.of(examples).random(rng, 1, NORMS[0])])
