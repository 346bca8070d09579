"""Leave-one-out errors of every ridge, from one factorisation and two passes over the data.

With Lambda = U diag(w) U' and b = mean w h y' of all data, let sequence i have the features H_i
(n_i, p), one row a query, the targets y_i, the weight w_i and the share v_i = w_i n_i / W of all
weight. The layer fitted to the other sequences errs on it by

    e_i = (I - K_i)^-1 (y_i - f_i)      P = H_i U,  D = diag(1 / (w + alpha (1 - v_i)))
                                        K_i = (w_i / W) P D P',  f_i = P D U'b

(Woodbury's formula). The factor 1 - v_i turns alpha into the ridge for the mean over the others, so
e_i is exactly the error of a fit to them with that alpha.

Where Lambda is singular, all H_i are in its range, and the eigenvectors that span the range are
enough. Their number is the exact rank, which is found modulo primes
(:mod:`linattn_fast.exact.exact_rank`). Without a ridge the outputs do not depend on the units of
the features, so Lambda may be equilibrated then.

If the others do not determine an output at sequence i, I - K_i has an eigenvalue 0. Rounding
(:mod:`linattn_fast.moments.rounding`) moves f_i and K_i, and where it may move an eigenvalue of
I - K_i to zero, e_i is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays.device import to_host
from ..arrays.floats import gamma
from ..arrays.types import Floats, Mask, Positions
from ..data.tokens import Tokens, as_positions
from ..exact.exact_rank import ModularRange, modular_range
from ..features.features import Features
from ..features.samples import Samples
from ..fitting.call import as_problem
from ..linalg.cholesky import power_of_two_scale
from ..linalg.factors import EPS, MOST_CONDITION
from ..moments.moments import Moments
from ..moments.rounding import MOST, MomentRounding
from ..moments.sums import MomentSums
from ..problem.interface import Problem
from ..system.machine import same_bits
from .ridge_path import AlphaChoice, EigenBlock, as_alphas, best_alpha, decomposed, require_room

PerSequence: TypeAlias = Floats | float
"""One number for each sequence, or one for a single sequence."""

_PIECE_BYTES = 32 << 20
"""Bytes of features that are formed at a time."""
_RANK_BUDGET = 2e9
"""Multiply-adds that the exact rank may cost: some tenths of a second."""


@dataclass(frozen=True)
class _Piece:
    """Some sequences: their tokens, features H, (rows, p), and targets, (rows, d_out)."""

    positions: Positions
    features: Features
    tokens: Tokens
    H: Floats
    targets: Floats
    weights: Floats
    """Weights of the sequences, (sequences,)."""
    lengths: npt.NDArray[np.int64]
    """Number of queries in each sequence, (sequences,)."""
    inside: Mask
    """Which sequences have all their features in the range of Lambda, (sequences,)."""

    @property
    def roundings(self) -> int:
        """Number of roundings that an entry of H goes through."""
        return self.tokens.longest + 4

    def summands(self, scale: Floats) -> Floats:
        """Bounds on the lengths, over features, of |z_l| sum_t |z_tj z_tk| times scale, (rows,)."""
        if (
            self.features.sums_cancel and (scale == scale[0]).all()
        ):  # at most |z| trace S, of the whole sequence
            squares = (self.tokens.rows().astype(np.float64) ** 2).sum(axis=1)
            ends = np.cumsum(self.tokens.lengths)
            traces = np.add.reduceat(squares, ends - self.tokens.lengths)
            if self.positions == "last":
                return np.asarray(np.sqrt(squares[ends - 1]) * traces * scale[0])
            repeated = np.repeat(traces, self.tokens.lengths)
            return np.asarray(np.sqrt(squares) * repeated * scale[0])
        sizes = self.tokens.mapped(np.abs)
        return np.asarray(np.linalg.norm(self.features.of(sizes, self.positions) * scale, axis=1))


class _Spectrum:
    """Lambda = U diag(w) U' in the units D, with U'b, and bounds on its rounding errors."""

    def __init__(self, moments: MomentSums, scale: Floats | None = None, rank: int | None = None):
        self.unit = 1.0  # a power of two, so that squares of eigenvalues stay within float64
        if scale is None:
            self.unit = float(power_of_two_scale(moments.feature_sizes().max(keepdims=True))[0])
            scale = np.full(moments.dimension, self.unit)
        blocks: list[EigenBlock] = decomposed(moments, scale)
        self.scale, self.blocks = scale, blocks
        self.weight, self.p = moments.required_weight(), moments.dimension
        values = np.concatenate([block.values for block in blocks])
        self.rounding = MomentRounding.of(moments, float(values.max()), scale)
        order = np.argsort(values, kind="stable")
        self.kept = np.sort(order[self.p - (self.p if rank is None else rank) :])
        self.values = values[self.kept]
        self.projected = np.concatenate([block.projected for block in blocks])[self.kept]
        self.on_range = rank is not None

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue that takes part."""
        return float(self.values.min(initial=np.inf))

    def coordinates(self, piece: _Piece) -> tuple[Floats, Floats, Floats]:
        """P = H D U (rows, r), the lengths |H D|, and the rounding errors of rows, (rows,)."""
        H = piece.H * self.scale
        P = np.hstack([H[:, block.features] @ block.vectors for block in self.blocks])
        off = (gamma(piece.roundings) + self.p * EPS) * piece.summands(self.scale)
        return P[:, self.kept], np.linalg.norm(H, axis=1), off

    def doubt(self, shift: PerSequence, ridge: float) -> Floats:
        """Rounding error delta over the least eigenvalue of Lambda + shift I.

        The shift errs by the rounding of weights.
        """
        smallest = np.asarray(self.smallest + shift)
        known = smallest > 0
        with np.errstate(all="ignore"):
            return np.where(known, self._delta(shift, ridge) / smallest, np.inf)

    def doubt_of(self, alpha: float) -> float:
        """Rounding error delta over the least eigenvalue of Lambda + alpha I."""
        ridge = alpha * self.unit * self.unit  # a power would raise where it overflows
        return float(self.doubt(ridge, ridge))

    def _delta(self, shift: PerSequence, ridge: float) -> Floats:
        delta = np.asarray(self.rounding.second_moment + 4 * self.rounding.weight * ridge)
        # The ridge is on a range that rounding has tilted by delta over the smallest eigenvalue
        return delta * (1 + 2 * shift / np.float64(self.smallest)) if self.on_range else delta

    def errors(
        self, piece: _Piece, coordinates: tuple[Floats, Floats, Floats], alpha: float
    ) -> tuple[Floats, Floats]:
        """Mean of |e_i|^2 over the queries of each sequence, and bounds on its rounding error."""
        P, lengths, off = coordinates
        alpha = alpha * self.unit * self.unit
        if piece.positions == "last":
            return self._of_queries(P, lengths, off, piece, alpha)
        ends = np.cumsum(piece.lengths)[:-1]
        parts = zip(
            np.split(P, ends),
            (float(np.linalg.norm(each)) for each in np.split(lengths, ends)),
            (float(np.linalg.norm(each)) for each in np.split(off, ends)),
            np.split(piece.targets, ends),
            piece.weights,
            piece.inside,
            strict=True,
        )
        found = np.array([self._of_sequence(alpha, *part) for part in parts])
        return found[:, 0], found[:, 1]

    def _of_queries(
        self, P: Floats, lengths: Floats, off: Floats, piece: _Piece, alpha: float
    ) -> tuple[Floats, Floats]:
        """Errors and bounds of sequences with one query each, all at once."""
        shares = piece.weights / self.weight
        shifts = alpha * np.maximum(1 - shares, 0.0)
        inverse = 1 / (self.values + shifts[:, None])  # D, (rows, r)
        scaled = P * inverse
        kept = 1 - shares * (scaled * P).sum(axis=1)  # 1 - K
        residuals = np.linalg.norm(piece.targets - scaled @ self.projected, axis=1)
        solution = np.sqrt(inverse**2 @ (self.projected**2).sum(axis=1))  # |D U'b|
        solved = np.linalg.norm(scaled, axis=1)
        bounds = self._moved(
            solved, lengths, off, solution, shares, shifts, alpha, inside=piece.inside
        )
        return _squares(residuals / kept, residuals, kept, *bounds, 1)

    def _of_sequence(
        self,
        alpha: float,
        P: Floats,
        length: float,
        off: float,
        y: Floats,
        weight: float,
        inside: bool,
    ) -> tuple[Floats, Floats]:
        """Error and bound of one sequence."""
        n, share = len(P), weight / self.weight
        shift = alpha * max(1 - share * n, 0.0)
        inverse = 1 / (self.values + shift)
        scaled = P * inverse
        K = share * (scaled @ P.T)
        solution = float(np.linalg.norm(inverse[:, None] * self.projected))
        solved = float(np.linalg.norm(scaled))
        bounds = self._moved(
            solved, length, off, solution, share, shift, alpha, inside=np.asarray(inside)
        )
        if not np.isfinite(K).all():
            return np.asarray(np.inf), np.asarray(np.inf)
        values, vectors = np.linalg.eigh(np.eye(n) - K)  # in [0, 1]
        residual = vectors.T @ (y - scaled @ self.projected)
        size = float(np.linalg.norm(residual / values[:, None]))
        return _squares(size, float(np.linalg.norm(residual)), float(values[0]), *bounds, n)

    def _moved(
        self,
        solved: PerSequence,
        lengths: PerSequence,
        off: PerSequence,
        solution: PerSequence,
        share: PerSequence,
        shift: PerSequence,
        alpha: float,
        *,
        inside: Mask,
    ) -> tuple[Floats, Floats]:
        """Bounds on the rounding errors of f and K, in the Frobenius norm.

        ``solved`` is |M^-1 H'| and ``solution`` is |M^-1 b|, for M = Lambda + shift I; ``lengths``
        and ``off`` are |H| and its rounding error. Only sequences of weight 0, with K = 0, may be
        outside the range of Lambda. Without a ridge, the others do not determine the outputs there.
        With one, C has no part outside the range, and any part that a tilted range gives it there
        counts in full.
        """
        delta, doubt = self._delta(shift, alpha), self.doubt(shift, alpha)
        evaluated = gamma(2 * self.p + 8) * solved
        b = float(np.linalg.norm(self.projected))
        tilted = doubt**2 * lengths if self.on_range else 0.0
        fully = np.where(inside, tilted, doubt * lengths) if self.on_range else 0.0
        f = solved * (delta * solution + self.rounding.cross) + (off + fully) * solution
        K = solved * (solved * delta + 2 * off + tilted) + evaluated * lengths
        of_share = 2 * self.rounding.weight * share * solved * lengths
        unknown = np.where((doubt <= MOST) & (inside | (alpha > 0)), 0.0, np.inf)
        return 2 * (f + evaluated * b) + unknown, 2 * share * K + of_share + unknown


def _squares(
    size: PerSequence, residual: PerSequence, kept: PerSequence, f: Floats, K: Floats, n: int
) -> tuple[Floats, Floats]:
    """The mean |e|^2 / n and a bound on its error, from |e| and the errors of f and K.

    (I - K)(e + de) = y - f + df + dK e, and solving with I - K, of order n, rounds. Both are
    infinite where I - K, with the smallest eigenvalue ``kept``, may be singular.
    """
    K = K + 8 * n * EPS
    least = kept - K
    known = (kept > 2 * K) & np.isfinite(size)
    off = (f + K * size + 8 * n * EPS * residual) / np.where(known, least, np.inf)
    with np.errstate(over="ignore"):
        bound = (2 * size * off + off**2) / n + 32 * EPS * size**2
    known &= np.isfinite(bound)  # overflow makes 0 times infinity
    return np.where(known, size**2 / n, np.inf), np.where(known, bound, np.inf)


def _pieces(part: Samples, range_: ModularRange | None) -> Iterator[_Piece]:
    """Yield some sequences at a time; ``range_`` is the range of Lambda, or None if that is all."""
    assert part.targets is not None
    tokens, features = part.tokens, part.features
    y = to_host(part.targets.rows()).astype(np.float64)
    weights = np.ones(len(tokens)) if part.weights is None else part.weights
    lengths = np.ones(len(tokens), np.int64) if part.positions == "last" else tokens.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = max(1, _PIECE_BYTES // (8 * features.count))
    first = 0
    while first < len(tokens):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + rows, "right")) - 1)
        some = tokens.part(first, last).put(np.zeros(0))
        inside = weights[first:last] > 0
        if range_ is not None:
            for i in np.flatnonzero(~inside).tolist():
                inside[i] = range_.contains(some.part(i, i + 1), part.positions).all()
        else:
            inside[:] = True
        yield _Piece(
            part.positions,
            features,
            some,
            features.of(some, part.positions),
            y[starts[first] : starts[last]],
            weights[first:last],
            lengths[first:last],
            inside,
        )
        first = last


class _Spectra:
    """Decompositions of Lambda, made when they are needed, and the choice among them."""

    def __init__(self, problem: Problem, moments: MomentSums) -> None:
        self.problem, self.moments = problem, moments
        self.plain = _Spectrum(moments)

    def best(self, alpha: float) -> _Spectrum:
        """The first spectrum that loses at most half of the digits, or the one that loses least."""
        for each in self._candidates(alpha):
            if each.doubt_of(alpha) <= EPS * MOST_CONDITION:
                return each
        return min(self._candidates(alpha), key=lambda each: each.doubt_of(alpha))

    def _candidates(self, alpha: float) -> Iterator[_Spectrum]:
        yield self.plain
        if self.plain.doubt_of(0.0) <= MOST:  # full rank, even if it is less modulo primes
            if alpha == 0:
                yield self.equilibrated
            return
        if alpha == 0 and (self.rank is None or self.rank == self.moments.dimension):
            yield self.equilibrated
        if self.rank is not None and self.rank < self.moments.dimension:
            yield self.on_range
            if alpha == 0:
                yield self.equilibrated_on_range

    @cached_property
    def range(self) -> ModularRange | None:
        """Exact range of the features; None where it is not known."""
        if self.problem.samples is None:
            return None
        return modular_range(self.problem.samples, budget=_RANK_BUDGET)

    @property
    def rank(self) -> int | None:
        """Exact rank of the features; None where it is not known."""
        return None if self.range is None else self.range.rank

    @cached_property
    def _scale(self) -> Floats:
        return power_of_two_scale(self.moments.feature_sizes())

    @cached_property
    def equilibrated(self) -> _Spectrum:
        """Spectrum of the features brought to one length."""
        return _Spectrum(self.moments, self._scale)

    @cached_property
    def on_range(self) -> _Spectrum:
        """Spectrum on the range of a singular Lambda."""
        return _Spectrum(self.moments, None, self.rank)

    @cached_property
    def equilibrated_on_range(self) -> _Spectrum:
        """Spectrum of the features brought to one length, on the range of a singular Lambda."""
        return _Spectrum(self.moments, self._scale, self.rank)


@same_bits
def leave_one_out(
    Z: object,
    y: object,
    alphas: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    sample_weight: object = None,
    features: Features | None = None,
    backend: str = "auto",
) -> AlphaChoice:
    """Choose a ridge by leaving out one sequence at a time, without fitting again.

    Parameters
    ----------
    Z, y, offsets, positions, sample_weight, features, backend
        As for :func:`fit`; data that is not in memory is read twice.
    alphas
        Ridges (m,).

    Returns
    -------
    AlphaChoice
        ``errors`` (m, N): mean squared error on each sequence of the layer fitted to all others;
        infinite where those do not determine its outputs there, or rounding cannot tell.
        ``error_bounds`` (m, N): bounds on the effect of rounding on them. ``mean_errors`` (m,), the
        best ``alpha``, and the ``moments`` of all data.

    Notes
    -----
    The cost is one eigendecomposition, and then p^2 multiplications per query. With moments alone,
    :func:`choose_alpha` costs less and needs no second pass.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> Z, noise = rng.standard_normal((60, 5, 3)), rng.standard_normal(60)
    >>> choice = la.leave_one_out(Z, noise, [0.0, 1.0, 10.0, 100.0, 1e6])
    >>> choice.errors.shape, choice.alpha  # noise alone is best predicted by nearly nothing
    ((5, 60), 1000000.0)
    """
    positions, given = as_positions(positions), as_alphas(alphas)
    problem = as_problem(Z, y, offsets, sample_weight, positions, features, backend)
    if problem.read is None:
        raise ValueError("Z: the data is read twice, and an iterator can be read only once")
    require_room("leave_one_out", problem.features, problem.d_out, positions, len(given))
    moments = Moments.holding(problem.moments(False).get())
    spectra = _Spectra(problem, moments)
    chosen = [spectra.best(float(alpha)) for alpha in given]
    found, weights = [], []
    with problem.read() as parts, np.errstate(all="ignore"):
        short = spectra.range if any(each.on_range for each in chosen) else None
        for piece in (piece for each in parts for piece in _pieces(each, short)):
            weights.append(piece.weights * piece.lengths)
            at = {spectrum: spectrum.coordinates(piece) for spectrum in set(chosen)}
            pairs = zip(chosen, given, strict=True)
            found.append([each.errors(piece, at[each], float(alpha)) for each, alpha in pairs])
    shares = np.concatenate(weights) / moments.required_weight()
    counted = shares > 0
    if counted.sum() < 2:
        raise ValueError("sample_weight: at least two sequences of positive weight are needed")
    errors, bounds = np.concatenate(found, axis=2).transpose(1, 0, 2)
    mean = errors[:, counted] @ shares[counted]
    if not np.isfinite(mean).any():
        raise ValueError(
            "alphas: with none of them do the other sequences determine the layer, or rounding "
            "cannot tell; give a larger one"
        )
    return AlphaChoice(given, errors, mean, best_alpha(given, mean), moments, bounds)
