"""Float32 inside conjugate gradients: half the time, and the answers of float64."""

import numpy as np
import pytest
import scipy.linalg
from conftest import EPS, needs_cpu, relative
from oracles.batches import samples_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.normal_operator import NormalProduct
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.solvers.conjugate_gradients import rotations, solver
from linattn_fast.solvers.conjugate_gradients.expected import (
    FASTEST,
    expected_iterations,
    more_would_be_faster,
    root_condition,
)
from linattn_fast.solvers.conjugate_gradients.pcg import solve_pcg

pytestmark = needs_cpu


@pytest.fixture(autouse=True)
def small_problems_count(monkeypatch):
    monkeypatch.setattr(solver, "WORTHWHILE", 0.0)
    monkeypatch.setattr(rotations, "WORTHWHILE", 0.0)


def operator_of(Z, y, positions="last"):
    tokens = as_tokens(Z)
    samples = samples_of(tokens, as_targets(y, tokens, positions), None, positions)
    return get_backend("cpu").normal_operator(samples, keep=True)


D = 6
P = D * D * (D + 1) // 2


KINDS = {
    "iid": lambda rng, Z: Z,
    "scaled 1e2": lambda rng, Z: Z * np.logspace(0, -2, D),
    "scaled 1e3": lambda rng, Z: Z * np.logspace(0, -3, D),
    "mixed": lambda rng, Z: Z @ rng.standard_normal((D, D)),
    "mixed 1e3": lambda rng, Z: (
        Z * np.logspace(0, -3, D) @ np.linalg.qr(rng.standard_normal((D, D)))[0]
    ),
    "heavy tails": lambda rng, Z: Z * np.abs(rng.standard_t(3, (len(Z), 1, 1))),
    "large": lambda rng, Z: 1e9 * Z,
    "small": lambda rng, Z: 1e-9 * Z,
}


def tokens_of(rng, kind):
    return KINDS[kind](rng, rng.standard_normal((3 * P, 10, D)))


@pytest.mark.parametrize("kind", KINDS)
def test_planted_coefficients_are_as_exact_as_those_of_float64(kind):
    """The mean of several draws, of which one alone says little."""
    ratios, taken = [], 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        Z = tokens_of(rng, kind)
        H = la.cubic_features(Z)
        C = rng.standard_normal((2, P))
        wide, narrow = (
            solve_pcg(operator_of(Z, H @ C.T), 0.0, narrow=allowed) for allowed in (False, True)
        )
        assert wide.narrow_passes == 0
        taken += narrow.narrow_passes
        errors = [relative(found.solution.coefficients, C) for found in (narrow, wide)]
        assert errors[0] < max(10 * EPS * np.linalg.cond(H), 2 * errors[1])
        ratios.append((errors[0] + EPS) / (errors[1] + EPS))
        assert narrow.iterations <= 1.15 * wide.iterations + 5
    assert np.exp(np.mean(np.log(ratios))) < 2
    assert (taken > 0) == (kind != "mixed 1e3")  # where float32 would lose what cancels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ridge", [1e-12, 1e-6, 1e-2, 10.0])
def test_ridge_fits_are_those_of_an_orthogonal_method(rng, kind, ridge):
    """Ridges relative to the mean square of a feature, from below what counts to most of it."""
    Z = tokens_of(rng, kind)
    H = la.cubic_features(Z)
    alpha = ridge * float((H**2).mean())
    y = rng.standard_normal((len(Z), 2)) * np.abs(H).max()
    found, wide = (solve_pcg(operator_of(Z, y), alpha, narrow=allowed) for allowed in (True, False))
    augmented = np.concatenate([H / np.sqrt(len(H)), np.sqrt(alpha) * np.eye(P)])
    targets = np.concatenate([y / np.sqrt(len(H)), np.zeros((P, 2))])
    # Columns of one size: else the oracle would lose small features
    sizes = np.sqrt((augmented**2).sum(axis=0))
    expected = scipy.linalg.lstsq(augmented / sizes, targets)[0].T / sizes
    error, of_float64 = (
        relative(one.solution.coefficients * sizes, expected * sizes) for one in (found, wide)
    )
    assert error < 4 * of_float64 + 1e-12


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("kind", ["iid", "mixed", "heavy tails"])
def test_the_bound_on_the_error_holds(rng, kind, tol):
    Z = tokens_of(rng, kind)
    H = la.cubic_features(Z)
    y = rng.standard_normal((len(Z), 1))
    expected = scipy.linalg.lstsq(H, y)[0].T
    found, wide = (
        solve_pcg(operator_of(Z, y), 0.0, tol=tol, narrow=allowed) for allowed in (True, False)
    )
    assert found.narrow_passes > 0 or kind == "mixed"
    assert found.error is not None
    assert wide.error is not None
    assert found.error <= max(tol, 1.5 * wide.error)
    assert relative(found.solution.coefficients, expected) <= found.error


@pytest.mark.parametrize("kind", ["duplicate", "single", "few", "one-hot"])
@pytest.mark.parametrize("tol", [None, 1e-6])
def test_degenerate_data_is_solved_as_in_float64(rng, kind, tol):
    Z = rng.standard_normal((300, 6, 4))
    if kind == "duplicate":
        Z[:, :, 3] = Z[:, :, 0]
    elif kind == "single":  # S = z z', so that Lambda is singular although A and B are not
        Z = Z[:, :1]
    elif kind == "few":
        Z = Z[:20]
    else:
        Z = np.eye(4)[rng.choice(4, (300, 6))]
    y = rng.standard_normal((len(Z), 2))
    found, wide = (
        solve_pcg(operator_of(Z, y), 0.0, tol=tol, narrow=allowed) for allowed in (True, False)
    )
    expected = scipy.linalg.lstsq(la.cubic_features(Z), y, cond=1e-11)[0].T
    assert found.least_norm == wide.least_norm
    error, of_float64 = (relative(one.solution.coefficients, expected) for one in (found, wide))
    assert error < 4 * of_float64 + 1e-9
    assert found.error is None or error <= found.error


class Spoilt:
    """An operator whose products in float32 are worse than those of float32."""

    def __init__(self, operator, spoil):
        self.inner, self.spoil, self.calls = operator, spoil, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def narrow(self, C):
        self.calls += 1
        return self.spoil(self.inner.narrow(C), self.calls)


def noise(size):
    rng = np.random.default_rng(3)

    def spoil(found, calls):
        return NormalProduct(
            found.product + size * np.abs(found.product).max() * rng.standard_normal((1, P)),
            found.energy * (1 + size * rng.standard_normal(1)),
        )

    return spoil


SPOILS = {
    "noise of 1e-4": noise(1e-4),
    "noise of 1e-1": noise(1e-1),
    "nothing after ten": lambda found, calls: found if calls <= 10 else None,
    "zero": lambda found, calls: NormalProduct(0 * found.product, 0 * found.energy),
    "negative": lambda found, calls: NormalProduct(-found.product, -found.energy),
}


@pytest.mark.parametrize("tol", [None, 1e-8])
@pytest.mark.parametrize("how", SPOILS)
def test_products_that_are_too_rough_cost_iterations_and_no_digits(rng, how, tol):
    Z = tokens_of(rng, "iid")
    H = la.cubic_features(Z)
    C = rng.standard_normal((1, P))
    operator = Spoilt(operator_of(Z, H @ C.T), SPOILS[how])
    found = solve_pcg(operator, 0.0, tol=tol, narrow=True)
    assert operator.calls > 0
    error = relative(found.solution.coefficients, C)
    assert error <= (1e-12 if tol is None else tol)
    assert found.error is not None
    assert error <= found.error


def test_small_problems_and_those_without_room_stay_in_float64(rng, monkeypatch):
    Z, y = rng.standard_normal((300, 6, 4)), rng.standard_normal(300)
    settings = {"solver": "pcg", "heads": None, "certify": False}
    assert "float32" in la.fit(Z, y, **settings).info.reason
    with_both = la.fit(Z, y, **settings).info.bytes
    fit = la.fit(Z, y, memory_limit=with_both - 1, **settings)
    assert "float32" not in fit.info.reason
    assert "samples kept" in fit.info.reason
    assert fit.info.bytes < with_both
    monkeypatch.undo()
    assert "float32" not in la.fit(Z, y, **settings).info.reason


def test_fits_have_the_same_bits_for_every_number_of_threads(rng, positions):
    Z = rng.standard_normal((700, 5, 4))
    y = rng.standard_normal((700, 2) if positions == "last" else (700, 5, 2))
    found = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        fit = la.fit(Z, y, positions=positions, solver="pcg", heads=None, certify=False)
        assert "float32" in fit.info.reason
        found.append(fit.coefficients)
    for others in found[1:]:
        np.testing.assert_array_equal(found[0], others)


# ------------------------------------------------------------------------------ expected iterations


def test_expected_iterations_are_those_of_whitened_gaussian_samples(rng):
    """Features that are random have the spectrum that is reckoned with."""
    p, tolerance = 300, 1e-8
    for ratio in (1.5, 3.0):
        N = int(ratio * p)
        H = rng.standard_normal((N, p))
        K = H.T @ H / N
        b = rng.standard_normal(p)
        rest, count = b.copy(), 0
        direction, squared = rest.copy(), rest @ rest
        while squared > tolerance**2 * (b @ b):
            forward = K @ direction
            rest -= squared / (direction @ forward) * forward
            new = rest @ rest
            direction, squared = rest + new / squared * direction, new
            count += 1
        assert 0.7 * count <= expected_iterations(N, p, tolerance) <= 1.3 * count


def test_passes_times_samples_are_least_where_it_is_said():
    p = 10_000
    ratios = np.linspace(1.05, 8, 400)
    times = [ratio * root_condition(int(ratio * p), p) for ratio in ratios]
    assert ratios[int(np.argmin(times))] == pytest.approx(FASTEST, rel=0.02)
    assert more_would_be_faster(int(1.2 * p), p)
    assert not more_would_be_faster(int(FASTEST * p), p)
    assert not more_would_be_faster(8 * p, p)
    assert not more_would_be_faster(p // 2, p)


def test_the_reason_says_what_was_expected_and_when_more_data_would_be_faster(rng):
    def reason(N):
        Z, y = rng.standard_normal((N, 6, 4)), rng.standard_normal(N)
        return la.fit(Z, y, solver=la.Pcg(1e-6), heads=None, certify=False).info.reason

    assert "for whitened random samples" in reason(160)
    assert "with about 104 samples" in reason(48)
    assert "times samples" not in reason(160)
