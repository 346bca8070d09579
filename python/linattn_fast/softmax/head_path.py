"""What each head is worth: training and held-out error against the number of heads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plotting import matplotlib_figure
from ..progress import Bar
from ..tokens import Floats, as_size
from .examples import Examples
from .fitting import (
    Solver,
    as_share,
    checked,
    descent,
    held_out_error,
    host_backend,
    split_examples,
)
from .layer import Layer
from .reduced import Objective, Point
from .result import in_units
from .search import search
from .starts import NORMS, Coordinates, TokenSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AS_GOOD = 1.05
"""Held-out errors within five percent of the least are as good."""
_EXACT = 1e-8


@dataclass(frozen=True, eq=False)
class HeadPath:
    """The best layers found with 1, 2, .. heads. Made by :func:`head_path`."""

    n_heads: tuple[int, ...]
    """1, 2, .. max_heads."""
    training_errors: Floats
    """||F(X) - Y|| / ||Y|| on the training sequences; never increasing."""
    held_out_errors: Floats
    """The same on sequences that were used for nothing else."""
    layers: list[Layer] = field(repr=False)
    """One for each number of heads; fewer than that where more would add nothing."""

    @property
    def suggested(self) -> int:
        """The fewest heads whose held-out error is within 5 % of the least, or exact."""
        enough = self.held_out_errors <= max(_AS_GOOD * self.held_out_errors.min(), _EXACT)
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
        to_file = isinstance(path_or_ax, str | os.PathLike)
        if path_or_ax is None or isinstance(path_or_ax, str | os.PathLike):
            figure = matplotlib_figure("plot")(figsize=(5, 3.6), layout="constrained")
            ax: Axes = figure.subplots()
        else:
            ax = path_or_ax
        floor = float(np.finfo(np.float64).eps)  # a logarithmic scale has no zero
        ax.semilogy(self.n_heads, np.maximum(self.training_errors, floor), "o-", label="training")
        ax.semilogy(self.n_heads, np.maximum(self.held_out_errors, floor), "s--", label="held out")
        ax.set(xlabel="heads", ylabel="relative error", xticks=self.n_heads)
        ax.legend()
        if to_file:
            ax.figure.savefig(path_or_ax, dpi=120)  # type: ignore[union-attr, arg-type]  # to_file
        return ax


def head_path(
    X: object,
    Y: object,
    max_heads: int,
    *,
    offsets: object = None,
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
    X, Y, offsets
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
    starts, agreeing = as_size(starts, "starts"), as_size(agreeing, "agreeing")
    seed, share = as_size(seed, "seed", least=0), as_share(held_out, "held_out")
    compiled = host_backend(backend) == "cpu"
    bar = Bar(max_heads, "heads", progress, unit="heads")
    tokens, targets = checked(X, Y, offsets)
    split = split_examples(tokens, targets, share, seed)
    coordinates = Coordinates.of(split.training)
    objective = coordinates.objective(split.training, compiled=compiled)
    points: list[Point] = []
    with bar as watch:
        for m in range(1, max_heads + 1):
            given = (
                _with_one_more(points[-1].Theta, objective.examples, [seed, m]) if points else None
            )
            found = search(
                objective,
                m,
                descent(solver, m * tokens.d**2),
                starts=starts,
                agreeing=agreeing,
                seed=seed,
                given=given,
            ).point
            if (
                points and found.loss > points[-1].loss
            ):  # a head that does nothing is always allowed
                found = points[-1]
            points.append(found)
            if watch is not None:
                watch(m)
    there = Objective(split.training, compiled=compiled)
    points = [there.at(coordinates.out_of(point.Theta)) for point in points]
    units = split.token_size, split.target_size
    return HeadPath(
        tuple(range(1, max_heads + 1)),
        np.array([point.error for point in points]),
        np.array([held_out_error(split.held_out, p.Theta, p.W, 1.0).error for p in points]),
        [Layer(*in_units(point.Theta, point.W, *units)) for point in points],
    )


def _with_one_more(Theta: Floats, examples: Examples, seed: list[int]) -> Floats:
    """Heads and a random one beside them."""
    rng = np.random.default_rng(seed)
    return np.concatenate([Theta, TokenSpace.of(examples).random(rng, 1, NORMS[0])])
