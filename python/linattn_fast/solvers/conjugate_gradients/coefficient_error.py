"""A bound on the error of coefficients, from the gradient recomputed from the data.

With C* the best coefficients and g = mean w (y - C h) h' - alpha C, a row of each for one output,

    C* - C = (Lambda + alpha I)^-1 g        so with mu <= lambda_min(Lambda + alpha I)

    ||C* - C||  <=  ||g|| / mu              mu = alpha, or better
    ||C* - C||  <=  sqrt(g' E K^-1 E' g / mu)

in coordinates C = E(v), where K = E' (Lambda + alpha I) E and kappa <= lambda_min(K): the first
factor of (Lambda + alpha I)^-1/2 (Lambda + alpha I)^-1/2 g is at most 1 / sqrt(mu), and the square
of the second is g' E K^-1 E' g. For mu, alpha and kappa / ||E||^2 both do. That energy is at most
||E' g||^2 / kappa. The iteration knows more about its own residual r, r' K^-1 r <= c ||r||^2
(:meth:`.lanczos.Lanczos.inverse_energy`), so that

    sqrt(g' E K^-1 E' g)  <=  sqrt(c) ||r|| + ||E' g - r|| / sqrt(kappa)

What rounding has done to g counts with it. Residuals r = y - C h are off by about
eps (|y| + sum_u |C_u h_u|), which moves C* by at most its root mean square over sqrt(mu); the sum
of w r h adds eps times the root mean squares of r and of each h_u, which E' takes to coordinates
by the lengths of its rows. Where mu is small, a small residual says little about coefficients, and
the bound shows that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors, NormalOperator
from ...features.compact import pair_table
from ...linalg.factors import EPS
from .iteration import row_squares
from .whitening import Coordinates

_GROWTH = 4.0
"""Rounding of a sum in practice, in units of eps times the sum of absolute values."""


@dataclass(frozen=True)
class Point:
    """Coefficients, and what the data says about them."""

    C: Floats
    """The coefficients, (d_out, p)."""
    gradient: Floats
    """(d_out, p): mean w (y - C h) h' - alpha C."""
    squared_error: Floats
    """(d_out,): mean w (y - C h)^2; on the host."""


@dataclass(frozen=True)
class KnownPart:
    """A part of the gradient in coordinates, about which more is known than its length."""

    residual: Floats
    """r, (d_out, r, t)."""
    inverse_energy: Floats
    """(d_out,): c with r' K^-1 r <= c ||r||^2."""

    def energy(self, gradient: Floats, kappa: float) -> Floats:
        """Bound on the root of g' K^-1 g for a gradient in coordinates, (d_out,)."""
        of_part = np.sqrt(self.inverse_energy) * norms(self.residual)
        rest = norms(gradient - self.residual)
        whole: Floats = of_part + rest / np.sqrt(kappa)
        return whole


@dataclass(frozen=True)
class Rounding:
    """What rounding may have added to a :class:`Point`."""

    mean_squares: Floats
    """(p,): mean squares of the summands of the features, which rounding is relative to."""
    squared_target: Floats
    """(d_out,): mean w y^2."""

    def of_residuals(self, C: Floats) -> Floats:
        """Root mean square of the error in y - C h, (d_out,)."""
        xp = module_of(C)
        outputs = to_host(xp.abs(C) @ xp.sqrt(self.mean_squares))
        off: Floats = _GROWTH * EPS * (np.sqrt(self.squared_target) + outputs)
        return off

    def of_objective(self, point: Point) -> Floats:
        """Error in the mean squared error of a point, (d_out,)."""
        off = self.of_residuals(point.C)
        return 2 * np.sqrt(point.squared_error) * off + off**2

    def of_gradient(self, point: Point, coordinates: Coordinates) -> Floats:
        """Norm of the error in a gradient in coordinates, (d_out,)."""
        return self._size(coordinates) * (self.of_residuals(point.C) + self._of_sum(point))

    def _size(self, coordinates: Coordinates) -> float:
        """Root mean square of the rounding of all features in these coordinates, over eps."""
        return float(np.sqrt(float(self.mean_squares @ coordinates.row_squares())))

    def _of_sum(self, point: Point) -> Floats:
        return _GROWTH * EPS * np.sqrt(point.squared_error)

    def error(
        self,
        point: Point,
        coordinates: Coordinates,
        alpha: float,
        kappa: float,
        known: KnownPart | None = None,
    ) -> Floats:
        """Bound on ||C* - C|| / ||C*||, (d_out,); infinite where nothing is known.

        Parameters
        ----------
        coordinates
            E, and its norm.
        alpha
            Ridge.
        kappa
            Lower bound on lambda_min(K), or 0.
        known
            What is known about the gradient in coordinates, or None.
        """
        moved, summed = self.of_residuals(point.C), self._of_sum(point)
        bounds = [np.full(len(moved), np.inf)]
        if alpha > 0:
            slope = norms(point.gradient) + summed * np.sqrt(float(self.mean_squares.sum()))
            bounds.append(slope / alpha + moved / np.sqrt(alpha))
        if kappa > 0:
            gradient = coordinates.transpose(point.gradient)
            energy = norms(gradient) / np.sqrt(kappa)
            if known is not None:
                energy = np.minimum(energy, known.energy(gradient, kappa))
            energy = energy + summed * self._size(coordinates) / np.sqrt(kappa)
            mu = max(alpha, kappa / coordinates.norm / coordinates.norm)
            bounds.append((energy + moved) / np.sqrt(mu))
        return relative(np.minimum.reduce(bounds), point.C)


def mean_summands(
    factors: KroneckerFactors, operator: NormalOperator, larger: Floats | None
) -> Floats:
    """Upper bound on mean w S_jj S_kk z_l^2, (p,), as far as it is known.

    With all features it is sqrt(Lambda[(j,j),l] Lambda[(k,k),l]), by Cauchy and Schwarz. Otherwise
    ``larger``, (p,), is its ratio to the mean squares of the features; None for one.
    """
    features, diagonal = operator.features, factors.diagonal / operator.total_weight
    xp = module_of(diagonal)
    if features.everything and features.sums_cancel:
        roots = xp.sqrt(diagonal[xp.asarray(np.diagonal(pair_table(features.d)))])  # (d, d)
        j, k = (xp.asarray(index) for index in features.pairs.T)
        summands: Floats = (roots[j] * roots[k]).reshape(-1)
        return summands
    flat: Floats = diagonal.reshape(-1)
    return flat if larger is None else flat * xp.asarray(larger)


def norms(rows: Floats) -> Floats:
    """Euclidean norm of each row, (m,); on the host."""
    xp = module_of(rows)
    flat = rows.reshape(len(rows), -1)
    largest = to_host(xp.abs(flat).max(axis=1)) if flat.shape[1] else np.zeros(len(flat))
    unit = np.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor underflow
    return unit * np.sqrt(row_squares(flat / xp.asarray(unit)[:, None]))


def relative(error: Floats, C: Floats) -> Floats:
    """Bound on ||C* - C|| / ||C*||, (d_out,), from a bound ``error`` on ||C* - C||."""
    left = norms(C) - error
    share = np.divide(error, left, out=np.full(len(left), np.inf), where=left > 0)
    return np.where(error == 0, 0.0, share)
