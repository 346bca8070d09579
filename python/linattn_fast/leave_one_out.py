"""Leave-one-out errors of every ridge, from one factorisation and two passes over the data.

With Lambda = U diag(w) U' and b = mean w h y' of all data, let sequence i have the features H_i
(n_i, p), one row a query, the targets y_i, the weight w_i and the share v_i = w_i n_i / W of all
weight. The layer fitted to the other sequences errs on it by

    e_i = (I - K_i)^-1 (y_i - f_i)      P = H_i U,  D = diag(1 / (w + alpha (1 - v_i)))
                                        K_i = (w_i / W) P D P',  f_i = P D U'b

(Woodbury's formula). The factor 1 - v_i makes it the ridge of the others' own mean, so this is what
fitting to them with that alpha gives, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .blas_threads import same_bits
from .block_factors import rounding_steps_of
from .device import to_host
from .features import Features
from .moments import Moments
from .problem import Problem
from .ridge_path import AlphaChoice, EigenBlock, as_alphas, best_alpha, decomposed, require_room
from .solve import MARGIN, rounding_level
from .streamed_problem import StreamedProblem, as_data
from .tokens import Floats, Positions, Tokens, as_positions

_CHUNK_BYTES = 32 << 20
"""Features formed at a time."""


class _Spectrum:
    """All blocks of Lambda, and what is needed of the total."""

    def __init__(self, moments: Moments) -> None:
        self.blocks: list[EigenBlock] = decomposed(moments)
        self.values = np.concatenate([block.values for block in self.blocks])
        self.projected = np.concatenate([block.projected for block in self.blocks])
        self.weight = moments.required_weight()
        self.level = MARGIN * rounding_level(moments.dimension, rounding_steps_of(moments))

    def coordinates(self, H: Floats) -> Floats:
        """P = H U, (rows, p)."""
        return np.hstack([H[:, block.features] @ block.vectors for block in self.blocks])

    def rounding(self, alphas: Floats) -> Floats:
        """Rounding of Lambda relative to the smallest eigenvalue of Lambda + alpha I."""
        smallest = float(self.values.min()) + alphas
        ratio = np.full(len(alphas), np.inf)
        np.divide(float(self.values.max()) + alphas, smallest, out=ratio, where=smallest > 0)
        return np.asarray(self.level * ratio)

    def errors_of_queries(self, P: Floats, y: Floats, weights: Floats, alphas: Floats) -> Floats:
        """|e_i|^2 of sequences with one query, a row of P (r, p) each, (m, r)."""
        shares = weights / self.weight
        found = np.full((len(alphas), len(P)), np.inf)
        for errors, alpha in zip(found, alphas, strict=True):
            shifts = alpha * (1 - shares)
            rounding = self.rounding(shifts)
            safe = rounding < 1
            scaled = P[safe] / (self.values + shifts[safe, None])  # P D
            kept = 1 - shares[safe] * (scaled * P[safe]).sum(axis=1)  # 1 - K
            squares = ((y[safe] - scaled @ self.projected) ** 2).sum(axis=1)
            known = kept > rounding[safe]
            errors[np.flatnonzero(safe)[known]] = squares[known] / kept[known] ** 2
        return found

    def errors_of_sequence(self, P: Floats, y: Floats, weight: float, alphas: Floats) -> Floats:
        """Mean of |e_i|^2 over the queries of one sequence, (m,); infinite where rounding rules."""
        n, share = len(P), weight / self.weight
        found = np.full(len(alphas), np.inf)
        shifts = alphas * (1 - share * n)
        for i, (shift, rounding) in enumerate(zip(shifts, self.rounding(shifts), strict=True)):
            if not rounding < 1:
                continue
            scaled = P / (self.values + shift)  # P D
            kept = np.eye(n) - share * (scaled @ P.T)  # I - K, eigenvalues in [0, 1]
            values, vectors = np.linalg.eigh(kept)
            if values[0] > rounding:
                e = (vectors.T @ (y - scaled @ self.projected)) / values[:, None]
                found[i] = (e**2).sum() / n
        return found


def _chunks(
    part: Problem, features: Features
) -> Iterator[tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]]:
    """Features (rows, p) and targets (rows, d_out) of some sequences, their weights and lengths."""
    tokens, y = part.tokens, to_host(part.targets.rows()).astype(np.float64)
    weights = np.ones(len(tokens)) if part.weights is None else part.weights
    lengths = np.ones(len(tokens), np.int64) if part.positions == "last" else tokens.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = max(1, _CHUNK_BYTES // (8 * features.count))
    first = 0
    while first < len(tokens):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + rows, "right")) - 1)
        H = features.of(Tokens(tuple(map(tokens.sequence, range(first, last)))), part.positions)
        yield to_host(H), y[starts[first] : starts[last]], weights[first:last], lengths[first:last]
        first = last


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
        infinite where those do not determine the layer to rounding. ``mean_errors`` (m,), the best
        ``alpha``, and the ``moments`` of all data.

    Notes
    -----
    One eigendecomposition, then p^2 multiplications a query. From moments alone, which cost less
    and need no second pass, there is :func:`choose_alpha`.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((1, 1, 3)), rng.standard_normal((1, 3, 3)))
    >>> Z = rng.standard_normal((60, 5, 3))
    >>> y = truth(Z) + 5 * rng.standard_normal((60, 1))
    >>> choice = la.leave_one_out(Z, y, [0.0, 1.0, 10.0, 100.0, 1e6])
    >>> choice.errors.shape, choice.alpha
    ((5, 60), 10.0)
    """
    positions, given = as_positions(positions), as_alphas(alphas)
    problem = as_data(Z, y, offsets, sample_weight, positions, features, backend, "float64")
    if isinstance(problem, StreamedProblem) and not problem.source.rereadable:
        raise ValueError("Z: the data is read twice, and an iterator can be read only once")
    require_room("leave_one_out", problem.features, problem.d_out, positions, len(given))
    moments = problem.moments(False).get()
    spectrum = _Spectrum(moments)
    errors, weights = [], []
    with problem.parts() as parts:
        for H, targets, w, lengths in (
            c for each in parts for c in _chunks(each, problem.features)
        ):
            P = spectrum.coordinates(H)
            weights.append(w * lengths)
            if positions == "last":
                errors.append(spectrum.errors_of_queries(P, targets, w, given))
                continue
            ends = np.cumsum(lengths)[:-1]
            sequences = zip(np.split(P, ends), np.split(targets, ends), w, strict=True)
            errors.append(
                np.stack([spectrum.errors_of_sequence(*each, given) for each in sequences], axis=1)
            )
    shares = np.concatenate(weights) / spectrum.weight
    counted = shares > 0
    if counted.sum() < 2:
        raise ValueError("sample_weight: at least two sequences of positive weight are needed")
    table = np.concatenate(errors, axis=1)
    table[np.isnan(table)] = np.inf  # beyond float64: infinity minus infinity, on the way
    mean = table[:, counted] @ shares[counted]
    if not np.isfinite(mean).any():
        raise ValueError(
            "alphas: with none of them do the other sequences determine the layer; "
            "give a larger one"
        )
    return AlphaChoice(given, table, mean, best_alpha(given, mean), moments)
