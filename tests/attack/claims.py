"""What the package claims about a case, held against exact arithmetic: one function a promise.

Each returns how often something was claimed, by name; a claim that exact arithmetic denies raises
:class:`~attack.calls.Broken`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from oracles.exact import as_fractions, features_of, relative_error, root

import linattn_fast as la

from .calls import Broken, Counts, Generator, arguments_of, attempt, moments_of
from .cases import Case
from .ridges import leave_one_out, ridge_paths

SOLVERS = ("auto", "auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks")


# ------------------------------------------------------------------------------------ certificates


def require_true(certificate: la.Certificate, case: Case, counts: Counts, what: str) -> None:
    """Hold a certificate's verdict and bound to the exact second moment."""
    counts[f"{what}: {certificate.verdict}"] += 1
    exact = case.exact
    if certificate.lower_bound > 0:
        counts[f"{what}: lower_bound"] += 1
        if not exact.exceeds(np.nextafter(certificate.lower_bound, 0)):
            raise Broken(f"{what}: lambda_min is below {certificate.lower_bound}: {certificate}")
    if certificate.verdict == "identifiable":
        if not certificate.lower_bound > 0:
            raise Broken(f"{what}: identifiable without a bound: {certificate}")
        if exact.rank < exact.p:
            raise Broken(f"{what}: rank {exact.rank} of {exact.p}, but {certificate}")
    if certificate.verdict == "not identifiable" and exact.rank == exact.p:
        raise Broken(f"{what}: full rank {exact.p}, but {certificate}")


def certificates(case: Case, rng: Generator) -> Counts:
    """Verdicts and lower bounds, from data and from moments that came in parts."""
    counts: Counts = Counter()
    arguments = arguments_of(case, rng)
    if rng.random() < 0.5:
        found = attempt("verdict", lambda: la.certify(case.sequences, **arguments), counts)
    else:
        found = attempt(
            "verdict", lambda: la.certify(moments_of(case, slice(None), rng, 0)), counts
        )
    if found is not None:
        require_true(found, case, counts, "verdict")
    return counts


# ---------------------------------------------------------------------------------------- coverage


def _inputs(case: Case, rng: Generator) -> list[np.ndarray]:
    """Inputs to ask about: of the data, a last bit beside it, mixed, and new ones."""
    sequences = case.sequences
    one = sequences[int(rng.integers(len(sequences)))]
    beside = one.copy()
    i = tuple(int(rng.integers(n)) for n in beside.shape)
    beside[i] = np.nextafter(beside[i], np.inf if rng.random() < 0.5 else -np.inf)
    other = sequences[int(rng.integers(len(sequences)))]
    mixed = np.concatenate([one, other])
    size = float(np.abs(one).max())
    new = rng.standard_normal(one.shape) * size
    whole = np.rint(rng.standard_normal(one.shape) * 2)
    choices = [one, beside, mixed, new, whole, one * 2, one * 3]
    return [choices[i] for i in rng.choice(len(choices), 3, replace=False)]


def coverage(case: Case, rng: Generator) -> Counts:
    """``covers``, ``leverage`` and ``error_bound`` at single inputs."""
    counts: Counts = Counter()
    arguments = arguments_of(case, rng)
    from_data = rng.random() < 0.7
    if from_data:
        make = partial(la.certify, case.sequences, **arguments)
    else:
        moments = attempt("coverage", lambda: moments_of(case, slice(None), rng, 0), counts)
        if moments is None:
            return counts
        make = partial(la.certify, moments)
    certificate = attempt("coverage", make, counts)
    if certificate is None:
        return counts
    eps = 10.0 ** rng.uniform(-6, 6)
    for Z in _inputs(case, rng):
        answers = attempt(
            "coverage",
            lambda Z=Z: [
                np.ravel(np.concatenate([np.ravel(part) for part in found]))
                for found in (
                    certificate.covers([Z]),
                    certificate.leverage([Z]),
                    certificate.error_bound([Z], eps),
                )
            ],
            counts,
        )
        if answers is None:
            continue
        rows, unit = features_of([Z], case.positions, case.features)
        for h, covered, leverage, bound in zip(rows, *answers, strict=True):
            _one_input(case, h, unit, (covered, leverage, bound), eps, from_data, counts)
    return counts


def _one_input(
    case: Case,
    h: list[int],
    unit: Fraction,
    answers: tuple[bool, float, float],
    eps: float,
    from_data: bool,
    counts: Counts,
) -> None:
    covered, leverage, bound = answers
    exact = case.exact.leverage(h, unit)
    told = f"covered {covered}, leverage {leverage}, bound {bound}, exact leverage "
    told += "infinite" if exact is None else f"{root(exact):.17g}^2"
    counts["covers: True" if covered else "covers: False"] += 1
    if covered and exact is None and from_data:
        raise Broken(f"covers: the input is outside the range; {told}")
    if np.isfinite(bound):
        counts["error_bound: finite"] += 1
        if exact is None:
            raise Broken(f"error_bound: any two layers may differ there; {told}")
        if bound < 2 * np.sqrt(eps) * root(exact):
            raise Broken(f"error_bound: it is exceeded; {told}, eps {eps}")
    if np.isfinite(leverage) and exact is not None:
        counts["leverage: finite"] += 1
        if np.sqrt(leverage) < root(exact) * (1 - 1e-9):
            raise Broken(f"leverage: it is larger; {told}")


# -------------------------------------------------------------------------------------------- fits


def _alpha(rng: Generator) -> float:
    return 0.0 if rng.random() < 0.6 else float(10.0 ** rng.uniform(-20, 2))


def fits(case: Case, rng: Generator) -> Counts:
    """Coefficients of every solver against rational least squares."""
    counts: Counts = Counter()
    arguments = arguments_of(case, rng)
    solver: Any = str(rng.choice(SOLVERS))
    name, alpha = solver, _alpha(rng)
    if solver == "pcg" and rng.random() < 0.5:
        solver = la.Pcg(tol=float(10.0 ** rng.uniform(-10, -3)))
        name = "pcg to an accuracy"
    if rng.random() < 0.15:
        name = "moments"
        call = lambda: moments_of(case, slice(None), rng, case.targets[0].shape[1]).fit(  # noqa: E731
            alpha=alpha, heads=None, certify=False
        )
    else:
        call = lambda: la.fit(  # noqa: E731
            case.sequences,
            case.y,
            alpha=alpha,
            heads=None,
            solver=solver,
            certify=bool(rng.random() < 0.2),
            precision="mixed" if rng.random() < 0.1 else "float64",
            **arguments,
        )
    fit = attempt(f"fit, {name}", call, counts)
    if fit is None:
        return counts
    if not np.isfinite(fit.coefficients).all():
        raise Broken(f"fit, {name}: coefficients are not finite\n{fit.info}")
    exact = case.exact.coefficients(alpha)
    error = relative_error(fit.coefficients, exact)
    stated = fit.info.coefficient_error
    if stated is None:
        counts[f"fit, {name}: accuracy unknown"] += 1
    else:
        counts[f"fit, {name}: accuracy stated"] += 1
        if error > stated:
            raise Broken(
                f"fit, {name}, alpha {alpha}: C errs by {error:.3g}, stated {stated:.3g}\n"
                f"{fit.info}"
            )
    _loss(case, fit, alpha, exact, name, counts)
    return counts


def _loss(
    case: Case,
    fit: la.Fit,
    alpha: float,
    exact: list[list[Fraction]],
    name: str,
    counts: Counts,
) -> None:
    """Hold the reported mean squared error to that of the coefficients returned."""
    loss = case.exact.mean_squared_error(as_fractions(fit.coefficients))
    if not np.isfinite(fit.info.mean_squared_error_bound):
        counts[f"loss, {name}: unknown"] += 1
        return
    off = abs(Fraction(fit.info.mean_squared_error) - loss)
    allowed = Fraction(fit.info.mean_squared_error_bound) + _rounding_of_loss(case, fit, loss)
    counts[f"loss, {name}"] += 1
    if off > allowed:
        raise Broken(
            f"loss, {name}: {fit.info.mean_squared_error:.17g} reported, {float(loss):.17g} true, "
            f"stated to err by {float(allowed):.3g}\n{fit.info}"
        )


def _rounding_of_loss(case: Case, fit: la.Fit, loss: Fraction) -> Fraction:
    """What rounding in residuals does to their mean square.

    A residual errs by gamma times |y| and the sizes of C h's summands, gamma for as many roundings
    as S, the sum over features and that over samples have.
    """
    longest = max(map(len, case.sequences))
    roundings = 3 * longest + case.features.count + case.exact.samples + 20
    sizes = case.exact.sizes(as_fractions(np.abs(fit.coefficients)))
    error = Fraction(roundings * 2.0**-53) * sizes
    lost = Fraction(2) ** -1000 / min(1, case.exact.total_weight)  # below the smallest normal one
    return (
        2 * Fraction(root(loss)) * error
        + error**2
        + 2 * Fraction(roundings * 2.0**-53) * loss
        + lost
    )


# ------------------------------------------------------------------------------------------ merges


def merges(case: Case, rng: Generator) -> Counts:
    """Parts merged in any order and association say the same, and it is true."""
    counts: Counts = Counter()
    N = len(case.sequences)
    cuts = np.sort(rng.integers(0, N + 1, 2))
    edges = [0, *cuts, N]
    slices = [slice(a, b) for a, b in pairwise(edges) if a < b]
    parts = attempt("merge", lambda: [moments_of(case, part, rng, 0) for part in slices], counts)
    if parts is None:
        return counts
    order = rng.permutation(len(parts))
    forward = attempt("merge", lambda: la.certify(_sum(parts)), counts)
    backward = attempt("merge", lambda: la.certify(_sum([parts[i] for i in order])), counts)
    if forward is None or backward is None:
        return counts
    for certificate in (forward, backward):
        require_true(certificate, case, counts, "merge")
    if forward.verdict != backward.verdict and "undecided" not in (
        forward.verdict,
        backward.verdict,
    ):
        raise Broken(f"merge: {forward}\nin another order: {backward}")
    return counts


def _sum(parts: list[la.Moments]) -> la.Moments:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# ------------------------------------------------------------------------------------------- files


def files(case: Case, rng: Generator) -> Counts:
    """What was saved says the same as what was not."""
    counts: Counts = Counter()
    d_out = case.targets[0].shape[1]
    moments = attempt("file", lambda: moments_of(case, slice(None), rng, d_out), counts)
    if moments is None:
        return counts
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "moments.npz"
        moments.save(path)
        again = la.Moments.load(path)
        if again.gram().tobytes() != moments.gram().tobytes():
            raise Broken("file: another Gram")
        pair = [attempt("file", partial(la.certify, which), counts) for which in (moments, again)]
        if (pair[0] is None) != (pair[1] is None):
            raise Broken("file: refused only once")
        if pair[0] is None:
            return counts
        if str(pair[0]) != str(pair[1]):
            raise Broken(f"file: {pair[0]}\nafter loading: {pair[1]}")
        require_true(pair[1], case, counts, "file")
        fit = attempt("file", lambda: moments.fit(heads=None), counts)
        if fit is not None:
            path = Path(folder) / "fit.npz"
            fit.save(path)
            loaded = la.load(path)
            if loaded.coefficients.tobytes() != fit.coefficients.tobytes():
                raise Broken("file: another layer")
            require_true(loaded.certificate, case, counts, "file")
    return counts


CLAIMS: dict[str, tuple[Callable[[Case, Generator], Counts], float]] = {
    "certificates": (certificates, 0.25),
    "coverage": (coverage, 0.3),
    "fits": (fits, 0.2),
    "leave one out": (leave_one_out, 0.05),
    "ridge path": (ridge_paths, 0.05),
    "merges": (merges, 0.1),
    "files": (files, 0.05),
}
"""The promises, and the share of the cases that each is tried on."""


def examine(case: Case, seed: int) -> tuple[str, Counts]:
    """Try one promise on a case, both chosen by the seed."""
    rng = np.random.default_rng([41010, seed])
    names = list(CLAIMS)
    name = str(rng.choice(names, p=[CLAIMS[each][1] for each in names]))
    return name, CLAIMS[name][0](case, rng)
