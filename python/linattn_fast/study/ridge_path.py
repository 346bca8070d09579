"""Every ridge from one factorisation, and the choice of one, from moments alone.

With Lambda = U diag(w) U' the second moment, b = mean w h y' (p, d_out) and g = U'b:

    C' = U diag(1 / (w + alpha)) g      coefficients
    sum_i w_i / (w_i + alpha)           degrees of freedom

Lambda is decomposed without equilibration (:mod:`linattn_fast.linalg.factors`), which would turn
alpha I into another diagonal matrix. So eigenvalues are known only to the rounding level of the
largest one. Where Lambda + alpha I is close to singular, the equilibrated matrix of that alpha is
factorised as well, which resolves tokens of very different units and finds the least norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..arrays.device import to_host
from ..arrays.libraries import brought_over
from ..arrays.types import Floats, Positions
from ..features.features import Features
from ..linalg.cholesky import rounding_level
from ..linalg.factors import MARGIN, MOST_CONDITION
from ..linalg.spectral import eigenpairs
from ..moments.factors import (
    factorise_moments,
    features_of_group,
    moments_of,
    query_groups,
    rounding_steps_of,
)
from ..moments.loss_error import loss_error
from ..moments.moments import Moments
from ..moments.rounding import MomentRounding
from ..moments.sums import MomentSums
from ..solvers.accuracy import Solution, error_of_factorised
from ..solvers.costs import estimate_memory
from ..system.machine import require_memory, same_bits


@dataclass(frozen=True, eq=False)
class RidgePath:
    """The best layer for each alpha. Made by :func:`ridge_path`."""

    alphas: Floats
    """Ridges as given, (m,)."""
    coefficients: Floats = field(repr=False)
    """Coefficients for each alpha, (m, d_out, p)."""
    mean_squared_errors: Floats
    """Training errors (1/W) sum w ||C h - y||^2 of these coefficients, without the ridge, (m,)."""
    mean_squared_error_bounds: Floats
    """Bounds on the errors of ``mean_squared_errors``, (m,): these are differences of sums, which
    may cancel."""
    degrees_of_freedom: Floats
    """The trace of Lambda (Lambda + alpha I)^-1, (m,); without a ridge it is the rank."""
    factorisations: int
    """Number of factorisations: 1, and one for each alpha with Lambda + alpha I near singular."""
    coefficient_errors: Floats
    """Bounds on the relative errors of the coefficients, to first order in rounding, (m,); NaN
    where none is known."""


@dataclass(frozen=True, eq=False)
class AlphaChoice:
    """Errors on held-out data. Made by :func:`choose_alpha` and :func:`leave_one_out`."""

    alphas: Floats
    """Ridges as given, (m,)."""
    errors: Floats
    """Mean squared error on fold k, or sequence k, of the layer fitted to the others, (m, K)."""
    mean_errors: Floats
    """Weighted mean of the errors over all folds or sequences, (m,)."""
    alpha: float
    """The alpha of least mean error; the largest one if there are several."""
    moments: Moments
    """Moments of all data together, to be fitted with that alpha."""
    error_bounds: Floats = field(repr=False)
    """Bounds on the effect of rounding on the errors, (m, K). With :func:`choose_alpha`, they hold
    for the errors of the coefficients as computed."""


@dataclass(frozen=True)
class EigenBlock:
    """Lambda = U diag(w) U' on the features of one group of queries, and g = U'b."""

    features: npt.NDArray[np.intp]
    values: Floats
    """Eigenvalues w, (r,), ascending; those that rounding made negative are zero."""
    vectors: Floats
    """Eigenvectors U, (r, r)."""
    projected: Floats
    """The projection g = U'b, (r, d_out)."""

    def coefficients(self, alphas: Floats) -> Floats:
        """Coefficients C for each alpha, (m, d_out, r)."""
        filtered = self.projected / (self.values[:, None] + alphas[:, None, None])  # (m, r, d_out)
        return np.asarray((self.vectors @ filtered).transpose(0, 2, 1))

    def degrees_of_freedom(self, alphas: Floats) -> Floats:
        """The sums of w_i / (w_i + alpha), (m,)."""
        return np.asarray((self.values / (self.values + alphas[:, None])).sum(axis=1))


def as_alphas(alphas: object) -> Floats:
    """Check an array of ridges, (m,)."""
    try:
        given = np.asarray(to_host(brought_over(alphas, "alphas")))
    except ValueError:  # rows of different lengths
        raise ValueError(f"alphas: numbers (m,) are needed, got {alphas!r}") from None
    if given.dtype.kind not in "fiu":
        raise TypeError(f"alphas: real numbers are needed, got dtype {given.dtype}")
    if given.ndim != 1 or given.size == 0:
        raise ValueError(f"alphas: numbers (m,) are needed, m > 0, got shape {given.shape}")
    array = given.astype(np.float64)
    if not (np.isfinite(array).all() and (array >= 0).all()):
        i = int(np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[0])
        raise ValueError(f"alphas: must be finite and not negative, got [{i}] = {array[i]}")
    return array


def _require_targets(moments: object, name: str) -> Moments:
    """Check that these are moments with targets and weight, and bring them to the host."""
    if not isinstance(moments, Moments):
        raise TypeError(f"{name}: Moments are needed, got {type(moments).__name__}")
    if moments.d_out == 0:
        raise ValueError(f"{name}: these have no targets (d_out = 0); there is nothing to fit")
    if not moments.total_weight > 0:
        raise ValueError(
            f"{name}: {moments.n_samples} samples of total weight 0; update with data first"
        )
    return moments.get()


def require_room(
    name: str, features: Features, d_out: int, positions: Positions, solutions: int
) -> None:
    """Raise MemoryError when the decomposition and that many solutions do not fit in memory."""
    estimate = estimate_memory(features.d, d_out, positions=positions, features=features)
    more = 8 * 3 * solutions * d_out * features.count  # filtered, rotated, collected
    what = f"{name}: {features.made_of} ({features.count} features), {solutions} alphas,"
    require_memory(estimate["eigh"] + more, what)


def decomposed(moments: MomentSums, scale: Floats | None = None) -> list[EigenBlock]:
    """Eigendecomposition of Lambda, block by block where queries never occur together.

    With a ``scale``, (p,), features are multiplied by it first.
    """
    b = moments.cross() / moments.required_weight()
    blocks = []
    for group in query_groups(moments):
        matrix = moments_of(moments, group).second_moment()
        where = features_of_group(moments.features, group)
        own = np.ones(len(where)) if scale is None else scale[where]
        matrix *= own
        matrix *= own[:, None]
        values, vectors, _ = eigenpairs(matrix, scaled=False)
        projected = vectors.T @ (own[:, None] * b[where])
        blocks.append(EigenBlock(where, np.maximum(values, 0.0), vectors, projected))
    return blocks


@same_bits
def ridge_path(moments: Moments, alphas: object) -> RidgePath:
    """Fit with every alpha, all from one eigendecomposition of the second moment.

    Parameters
    ----------
    moments
        Moments with targets.
    alphas
        Ridges (m,), in any order; 0 gives the solution of least norm.

    Returns
    -------
    RidgePath
        ``coefficients``, ``mean_squared_errors`` and ``degrees_of_freedom`` for each alpha, with
        bounds on what rounding has done to the first two.

    Notes
    -----
    The path is as exact as ``moments.fit(alpha=...)`` with each alpha, which costs a factorisation
    every time; neither is refined on the data. Where Lambda + alpha I is close to singular, the two
    are the same.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> moments = la.Moments(3, 2).update(rng.standard_normal((90, 5, 3)), np.ones((90, 2)))
    >>> path = la.ridge_path(moments, [0.0, 1.0, 100.0])
    >>> path.coefficients.shape, path.degrees_of_freedom.round(1)
    ((3, 2, 18), array([18. , 15.2,  2.7]))
    """
    moments, given = _require_targets(moments, "moments"), as_alphas(alphas)
    require_room("ridge_path", moments.features, moments.d_out, moments.positions, len(given))
    blocks = decomposed(moments)
    p = moments.dimension
    largest = max(float(block.values[-1]) for block in blocks)
    smallest = min(float(block.values[0]) for block in blocks)
    # The same margins that Moments.fit demands of Cholesky
    level = MARGIN * rounding_level(p, rounding_steps_of(moments))
    safe = smallest + given > level * (largest + given)
    safe &= (given == 0) | (largest + given <= MOST_CONDITION * (smallest + given))

    coefficients = np.empty((len(given), moments.d_out, p))
    freedom, off = np.zeros(len(given)), np.full(len(given), np.nan)
    for block in blocks:
        where = np.ix_(safe, np.arange(moments.d_out), block.features)
        coefficients[where] = block.coefficients(given[safe])
        freedom[safe] += block.degrees_of_freedom(given[safe])
    rounding = MomentRounding.of(moments, largest)
    for i in np.flatnonzero(safe):
        error = rounding.coefficients(coefficients[i], smallest + float(given[i]))
        off[i] = np.nan if error is None else error
    for i in np.flatnonzero(~safe):
        coefficients[i], freedom[i], off[i] = _on_its_own(moments, float(given[i]))
    return RidgePath(
        given,
        coefficients,
        _errors_of(moments, coefficients),
        _bounds_of(moments, coefficients),
        freedom,
        1 + int((~safe).sum()),
        off,
    )


def _on_its_own(moments: MomentSums, alpha: float) -> tuple[Floats, float, float]:
    """Coefficients (d_out, p), degrees of freedom and error bound by a factorisation of its own."""
    factor = factorise_moments(moments, alpha).factorisation
    C = factor.solve(moments.cross() / moments.required_weight()).T
    error = error_of_factorised(Solution(C, (), 0.0), factor, moments, alpha)
    off = np.nan if error is None else error
    if alpha == 0:
        return C, float(factor.rank), off
    # trace Lambda (Lambda + alpha I)^-1 = rank - alpha trace (Lambda + alpha I)^-1
    inverse = factor.solve(np.eye(moments.dimension))
    return C, factor.rank - alpha * float(np.trace(inverse)), off


def _errors_of(moments: MomentSums, coefficients: Floats) -> Floats:
    """The errors (energy - 2 <C, cross> + C G C') / W for each C of (m, d_out, p), (m,)."""
    m, d_out, p = coefficients.shape
    x = coefficients.reshape(m * d_out, p).T
    # Summed over outputs: |C h - y|^2 = |y|^2 + <C, C G - 2 cross'>
    with np.errstate(over="ignore", invalid="ignore"):
        gradient = (moments.gram_times(x) - 2 * np.tile(moments.cross(), (1, m))).T
        quadratic = (coefficients * gradient.reshape(m, d_out, p)).sum(axis=(1, 2))
    energy = float(moments.sums.energy.sum())
    errors = np.maximum(0.0, (energy + quadratic) / moments.required_weight())
    return np.where(np.isfinite(errors), errors, np.inf)  # beyond float64


def _bounds_of(moments: MomentSums, coefficients: Floats) -> Floats:
    """Bounds on the rounding errors of :func:`_errors_of`, (m,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = np.array([loss_error(moments, C) for C in coefficients])
    return np.where(np.isfinite(bounds), bounds, np.inf)


@same_bits
def choose_alpha(folds: Sequence[Moments], alphas: object) -> AlphaChoice:
    """Choose a ridge by K-fold cross-validation, without touching the data again.

    For each fold a layer is fitted to the sum of the others' moments, with every alpha from one
    factorisation, and its error is taken from the fold's own moments,
    (energy - 2 <C, cross> + C gram C') / W.

    Parameters
    ----------
    folds
        K >= 2 moments of parts of the data, with targets; whole sequences belong to one fold.
    alphas
        Ridges (m,).

    Returns
    -------
    AlphaChoice
        ``errors`` (m, K), ``mean_errors`` (m,), the best ``alpha`` and the merged ``moments``.

    Notes
    -----
    An error is a difference of sums, which may cancel: ``error_bounds`` (m, K) bound the effect.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> V, Q, Z = (rng.standard_normal(shape) for shape in [(1, 1, 3), (1, 3, 3), (60, 5, 3)])
    >>> y = la.Heads(V, Q)(Z) + 5 * rng.standard_normal((60, 1))
    >>> folds = [la.Moments(3, 1).update(Z[k::5], y[k::5]) for k in range(5)]
    >>> choice = la.choose_alpha(folds, [0.0, 1.0, 10.0, 100.0, 1e6])
    >>> choice.errors.shape, choice.alpha
    ((5, 5), 10.0)
    >>> fit = choice.moments.fit(alpha=choice.alpha)
    """
    if isinstance(folds, Moments) or not isinstance(folds, list | tuple):
        raise TypeError(f"folds: a list of Moments is needed, got {type(folds).__name__}")
    if len(folds) < 2:
        raise ValueError(f"folds: at least two are needed, got {len(folds)}")
    parts = [_require_targets(fold, f"folds[{k}]") for k, fold in enumerate(folds)]
    given = as_alphas(alphas)
    everything = parts[0].merged(parts[1:])  # raises where the folds are of different kinds
    errors, bounds = np.empty((2, len(given), len(parts)))
    for k, fold in enumerate(parts):
        # Added up, not subtracted from the total, which would cancel if a fold is most of the data
        first, *others = parts[:k] + parts[k + 1 :]
        path = ridge_path(first.merged(others), given)
        errors[:, k] = _errors_of(fold, path.coefficients)
        bounds[:, k] = _bounds_of(fold, path.coefficients)
    shares = np.array([fold.total_weight for fold in parts]) / everything.total_weight
    with np.errstate(over="ignore", invalid="ignore"):  # infinite errors are infinite in the mean
        mean = errors @ shares
    return AlphaChoice(given, errors, mean, best_alpha(given, mean), everything, bounds)


def best_alpha(alphas: Floats, errors: Floats) -> float:
    """The alpha of least error; the largest one if there are several."""
    return float(alphas[errors == errors.min()].max())
