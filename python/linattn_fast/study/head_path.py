"""What each head is worth: the training objective against the number of heads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..arrays.types import Floats
from ..fitting.call import fit_moments
from ..heads.heads import Heads
from ..heads.number.given_number import FewHeads, Optimum, require_every_feature
from ..moments.moments import Moments
from ..solvers.accuracy import Solution
from ..system.arguments import as_size
from ..system.machine import same_bits
from ..system.packages import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class HeadPath:
    """The best layers with 1, 2, .. heads. Made by :func:`head_path`."""

    n_heads: tuple[int, ...]
    """Numbers of heads: 1, 2, .. max_heads."""
    losses: Floats
    """Training objective (1/W) sum w ||C h - y||^2 + alpha ||C||_F^2 with at most that many heads;
    it never increases."""
    heads: list[Heads] = field(repr=False)
    """The heads, in normal form; fewer than allowed where more would not help."""
    convex_loss: float
    """Objective of the convex optimum, a lower bound for every number of heads."""

    def plot(self, path_or_ax: str | os.PathLike[str] | Axes | None = None) -> Axes:
        """Draw the losses, on a logarithmic scale, and the convex optimum as a line.

        Parameters
        ----------
        path_or_ax
            A file to write, axes to draw in, or None for a new figure. Needs matplotlib:
            ``pip install linattn-fast[plot]``.

        Returns
        -------
        matplotlib.axes.Axes
            The axes with the drawing.
        """
        # A logarithmic scale has no zero: an exact fit is drawn at rounding level
        floor = float(np.finfo(np.float64).eps) * (float(self.losses.max()) or 1.0)
        with axes_for(path_or_ax) as ax:
            ax.semilogy(
                self.n_heads, np.maximum(self.losses, floor), "o-", label="best with H heads"
            )
            ax.axhline(
                max(self.convex_loss, floor), color="tab:red", ls="--", label="convex optimum"
            )
            ax.set(xlabel="heads", ylabel="training objective", xticks=self.n_heads)
            ax.legend()
        return ax


@same_bits
def head_path(moments: Moments, max_heads: int, *, alpha: float = 0.0) -> HeadPath:
    """Fit with 1, 2, .. max_heads heads, to see what each head is worth.

    Parameters
    ----------
    moments
        Moments with targets.
    max_heads
        Largest number of heads.
    alpha
        Ridge, as in :func:`fit`.

    Returns
    -------
    HeadPath
        ``n_heads``, ``losses``, ``heads``, ``convex_loss`` and ``plot()``.

    Notes
    -----
    The search for each number of heads starts from the heads before it with the best one added, and
    also from scratch (see ``heads=H`` of :func:`fit`). The better result is kept, so losses never
    increase.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, 4)))
    >>> Z = rng.standard_normal((500, 8, 4))
    >>> y = truth(Z) + 0.1 * rng.standard_normal((500, 4))
    >>> path = la.head_path(la.Moments(4, 4).update(Z, y), 3)
    >>> bool(path.losses[0] > 100 * path.losses[1]), bool(path.losses[1] < 1.2 * path.convex_loss)
    (True, True)
    """
    if not isinstance(moments, Moments):
        raise TypeError(f"moments: Moments are needed, got {type(moments).__name__}")
    max_heads = as_size(max_heads, "max_heads")
    require_every_feature(moments.features)
    moments = moments.get()
    convex = fit_moments(
        moments, alpha=alpha, heads=None, solver="auto", certify=False, memory_limit=None
    )
    solution = Solution(convex.coefficients, (), convex.info.mean_squared_error)
    optimum = Optimum.of(moments, float(alpha), solution)
    few = FewHeads(optimum)
    heads: list[Heads] = []
    losses: list[float] = []
    for H in range(1, max_heads + 1):
        proposals = [few.with_one_more(heads[-1])] if heads and heads[-1].V.any() else []
        found = few.nearest(H, proposals)
        loss = found.recovery.loss if found.recovery else None
        assert loss is not None
        if losses and not loss < losses[-1]:
            found, loss = heads[-1], losses[-1]
        heads.append(found)
        losses.append(loss)
    mapped = [each.for_features(moments.features) for each in heads]
    return HeadPath(tuple(range(1, max_heads + 1)), np.array(losses), mapped, optimum.loss)
