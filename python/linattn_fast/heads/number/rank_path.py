"""Forms of smaller rank near a learned form B (d_k, d_q), and what each leaves of the targets.

    B = sum_i sigma_i u_i v_i'        B_r = its r largest terms

B_r is the form of rank r nearest to B in the Frobenius norm (Eckart and Young). Nothing more is
claimed: with other data than white rows and queries that are independent of each other, another
form of that rank may fit better. So what B_r costs on the training data is computed. With
D = B - B_r, and because B solves Lambda B + alpha B = b,

    mean w (y - B_r h)^2 = mean w (y - B h)^2 + <D, Lambda D> + 2 alpha sum_(i >= r) sigma_i^2

where no two terms cancel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.linalg import svd

from ...arrays.types import Floats
from ...moments.sums import MomentSums
from ...problem.interface import Problem
from ...system.packages import axes_for
from ...system.tables import table
from ..heads import Heads, Recovery, known_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MeanSquares: TypeAlias = Callable[[Floats], Floats]
"""From forms (m, p) to the mean squares <D, Lambda D> of what they add to outputs, (m,)."""


@dataclass(frozen=True, eq=False)
class RankPath:
    """Forms of rank 1, 2, .. near a learned one. Made by :meth:`Fit.rank_path`."""

    ranks: tuple[int, ...]
    """Ranks: 1, 2, .. up to the smaller side of the form."""
    singular_values: Floats
    """Singular values of the learned form, (ranks,)."""
    mean_squared_errors: Floats
    """Training error (1/W) sum w (y - B_r h)^2 of each rank, (ranks,); the last is the fit's."""
    heads: list[Heads] = field(repr=False)
    """The layer of each rank, as one head."""

    def __str__(self) -> str:
        columns = zip(self.ranks, self.singular_values, self.mean_squared_errors, strict=True)
        rows = [[r, f"{sigma:.4g}", f"{error:.4g}"] for r, sigma, error in columns]
        return table(["rank", "singular value", "mean squared error"], rows)

    def plot(self, path_or_ax: str | os.PathLike[str] | Axes | None = None) -> Axes:
        """Draw the training errors, on a logarithmic scale, against the rank.

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
        floor = float(np.finfo(np.float64).eps) * (float(self.mean_squared_errors.max()) or 1.0)
        with axes_for(path_or_ax) as ax:
            ax.semilogy(self.ranks, np.maximum(self.mean_squared_errors, floor), "o-")
            ax.set(xlabel="rank of the form", ylabel="mean squared training error")
        return ax


class PendingErrors:
    """Training errors of the ranks of a form, found once; pickles and copies have them found.

    Parameters
    ----------
    form
        B, (d_k, d_q).
    alpha, error
        The ridge that B was learned with, and its mean squared training error.
    mean_squares
        What forms add to outputs.
    """

    def __init__(self, form: Floats, alpha: float, error: float, mean_squares: MeanSquares) -> None:
        self._form, self._alpha, self._error = form, alpha, error
        self._mean_squares = mean_squares
        self._found: Floats | None = None

    @classmethod
    def known(cls, errors: Floats) -> PendingErrors:
        """Errors that were found before, as those in a file."""
        made = cls.__new__(cls)
        made._found = errors
        return made

    def find(self) -> Floats:
        """The mean squared training error of each rank, (ranks,)."""
        if self._found is None:
            left, sigma, right = svd(self._form, full_matrices=False, check_finite=False)
            terms = sigma[:, None, None] * left.T[:, :, None] * right[:, None, :]
            lost = np.cumsum(terms[:0:-1], axis=0)[::-1]  # D of rank 1, 2, .., one less than full
            squares = np.zeros(len(sigma))
            squares[:-1] = self._mean_squares(lost.reshape(len(lost), -1)) if len(lost) else 0.0
            tails = np.append(np.cumsum(sigma[:0:-1] ** 2)[::-1], 0.0)
            self._found = self._error + squares + 2 * self._alpha * tails
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {"_found": self.find()}


def mean_squares_of(problem: Problem, moments: MomentSums | None) -> MeanSquares:
    """Mean squares of what forms add, from the moments where there are any, else from the data."""
    if moments is not None:
        sums = moments.fixed()

        def from_moments(D: Floats) -> Floats:
            squares: Floats = (D * sums.gram_times(D.T).T).sum(axis=1) / sums.required_weight()
            return np.maximum(squares, 0.0)

        return from_moments

    def from_data(D: Floats) -> Floats:
        operator = problem.passes(keep=False).operator
        return operator.normal(D).energy / operator.total_weight

    return from_data


def head_of_form(form: Floats, d_v: int) -> Heads:
    """The layer y = M B c as one head: V = I (1, d_v, d_v), Q = B (1, d_k, d_q)."""
    reason = "values are passed through, V = I, so one head is the layer"
    one = int(form.any())
    return known_heads(
        np.eye(d_v)[None], form[None].copy(), Recovery("minimal", 0.0, one, (), float(one), reason)
    )


def rank_path_of(form: Floats, d_v: int, errors: Floats) -> RankPath:
    """The path of a form B (d_k, d_q) whose ranks have these training errors."""
    left, sigma, right = svd(form, full_matrices=False, check_finite=False)
    ranks = tuple(range(1, len(sigma) + 1))
    forms = [(left[:, :r] * sigma[:r]) @ right[:r] for r in ranks[:-1]]
    heads = [head_of_form(B, d_v) for B in (*forms, form)]
    return RankPath(ranks, sigma, errors, heads)
