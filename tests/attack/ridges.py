"""What is claimed about ridges and the choice of one, held against exact arithmetic."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from oracles.exact import Exact, as_fractions, relative_error

import linattn_fast as la

from .calls import Broken, Counts, Generator, arguments_of, attempt, moments_of
from .cases import Case

LOST = Fraction(2) ** -1000
"""To numbers below the smallest normal one."""
MOST = 3
"""Sequences of a case that are left out; each is an exact fit of its own."""


def _alphas(rng: Generator) -> np.ndarray:
    return np.concatenate([[0.0], 10.0 ** rng.uniform([-20, -8], [-8, 3])])


def leave_one_out(case: Case, rng: Generator) -> Counts:
    """Errors on single sequences against exact fits to all others."""
    counts: Counts = Counter()
    alphas, arguments = _alphas(rng), arguments_of(case, rng)
    choice = attempt(
        "leave one out",
        lambda: la.leave_one_out(case.sequences, case.y, alphas, **arguments),
        counts,
    )
    if choice is None:
        return counts
    N = len(case.sequences)
    if np.isnan(choice.errors).any() or np.isnan(choice.error_bounds).any():
        raise Broken(f"leave one out: not a number\n{choice}")
    for i in rng.permutation(N)[:MOST]:
        rest = case.exactly(j for j in range(N) if j != i)
        own = case.exactly([i], weighted=False)
        for k, alpha in enumerate(alphas):
            found, allowed = choice.errors[k, i], choice.error_bounds[k, i]
            if np.isinf(found) or np.isinf(allowed):
                counts["leave one out: unknown"] += 1
                continue
            counts["leave one out: error"] += 1
            told = f"leave one out, sequence {i}, alpha {alpha}: {found:.17g}"
            if alpha == 0 and any(rest.leverage(h, own.unit) is None for h in own.features):
                raise Broken(f"{told}, but the others do not determine it")
            exact = own.mean_squared_error(rest.coefficients(float(alpha)))
            if abs(Fraction(found) - exact) > Fraction(allowed) + LOST:
                raise Broken(f"{told}, {float(exact):.17g} true, stated to err by {allowed:.3g}")
    return counts


def ridge_paths(case: Case, rng: Generator) -> Counts:
    """Coefficients and errors of every ridge, and those of two folds."""
    counts: Counts = Counter()
    alphas, d_out, N = _alphas(rng), case.targets[0].shape[1], len(case.sequences)
    moments = attempt("ridge path", lambda: moments_of(case, slice(None), rng, d_out), counts)
    path = moments and attempt("ridge path", lambda: la.ridge_path(moments, alphas), counts)
    if path:
        for k, alpha in enumerate(alphas):
            stated = path.coefficient_errors[k]
            counts["ridge path: coefficients"] += bool(stated < 1)
            error = relative_error(path.coefficients[k], case.exact.coefficients(float(alpha)))
            if error > stated:
                raise Broken(f"ridge path, {alpha}: C errs by {error:.3g}, stated {stated:.3g}")
            found, allowed = path.mean_squared_errors[k], path.mean_squared_error_bounds[k]
            _hold_loss(case.exact, path.coefficients[k], found, allowed, counts)
    half = N // 2
    if half == 0 or (case.weights is not None and not _both_weigh(case.weights, half)):
        return counts
    parts = [slice(0, half), slice(half, N)]
    folds = attempt("folds", lambda: [moments_of(case, each, rng, d_out) for each in parts], counts)
    choice = folds and attempt("folds", lambda: la.choose_alpha(folds, alphas), counts)
    if choice:
        for f, some in enumerate(parts):
            fitted = la.ridge_path(folds[1 - f], alphas).coefficients
            own = case.exactly(range(N)[some])
            for k, C in enumerate(fitted):
                _hold_loss(own, C, choice.errors[k, f], choice.error_bounds[k, f], counts)
    return counts


def _both_weigh(weights: np.ndarray, half: int) -> bool:
    return bool(weights[:half].any() and weights[half:].any())


def _hold_loss(exact: Exact, C: np.ndarray, found: float, allowed: float, counts: Counts) -> None:
    """Hold an error from moments to that of the coefficients."""
    if not (np.isfinite(C).all() and np.isfinite(allowed)):
        counts["ridge path: error unknown"] += 1
        return
    counts["ridge path: error"] += 1
    loss = exact.mean_squared_error(as_fractions(C))
    if not abs(Fraction(found) - loss) <= Fraction(allowed) + LOST:
        raise Broken(
            f"ridge path: error {found:.17g}, {float(loss):.17g} true, stated to err by "
            f"{allowed:.3g}"
        )
