"""Leave-one-out errors on singular and badly weighted data, held to exact fits to the others."""

from fractions import Fraction

import numpy as np
import pytest
from conftest import plant
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exact import Exact

import linattn_fast as la


def exact_of(Z, y, weights, positions):
    targets = np.asarray(y) if positions == "last" else np.concatenate(y)
    return Exact.of(Z, positions, weights, targets=targets)


def exact_error(Z, y, weights, positions, i, alpha):
    """Error on sequence i of the exact fit to the others, which must not leave it open."""
    others = [j for j in range(len(Z)) if j != i]
    w = None if weights is None else weights[others]
    rest = exact_of([Z[j] for j in others], [y[j] for j in others], w, positions)
    own = exact_of([Z[i]], [y[i]], None, positions)
    assert alpha > 0 or all(rest.contains(h) for h in own.features)
    return own.mean_squared_error(rest.coefficients(alpha))


def singular(rng, kind, N=16):
    if kind == "one-hot":
        return np.eye(2)[rng.integers(0, 2, (N, 3))]
    if kind == "signs":
        return rng.choice([-1.0, 1.0], (N, 3, 2))
    return rng.standard_normal((4, 3, 2))[rng.integers(0, 4, N)]  # repeated


@pytest.mark.parametrize("kind", ["one-hot", "signs", "repeated"])
@pytest.mark.parametrize("alpha", [0.0, 1e-300, 1e-18, 1e-12, 1e-6, 1.0])
def test_singular_data_has_the_errors_of_fits_to_the_others(rng, positions, kind, alpha):
    Z = singular(rng, kind)
    y = rng.standard_normal((16, 1) if positions == "last" else (16, 3, 1))
    choice = la.leave_one_out(Z, y, [alpha, 1.0], positions=positions)
    known = np.isfinite(choice.errors[0])
    assert known.sum() >= 12
    for i in np.flatnonzero(known)[:4]:
        expected = exact_error(Z, y, None, positions, i, alpha)
        assert abs(Fraction(choice.errors[0, i]) - expected) <= choice.error_bounds[0, i]
        assert choice.error_bounds[0, i] <= 1e-9 * (1 + choice.errors[0, i])


@pytest.mark.parametrize("heavy", [1e8, 1e12, 1e15])
def test_a_sequence_of_nearly_all_weight_is_left_out_or_said_to_be_unknown(rng, positions, heavy):
    """The others' share of all weight, 1 - v, cancels, and with it their ridge."""
    Z, w = rng.standard_normal((12, 3, 2)), np.ones(12)
    y = rng.standard_normal((12, 1) if positions == "last" else (12, 3, 1))
    w[5] = heavy
    alphas = [0.0, 1e-3, 1.0, 1e3]
    try:
        choice = la.leave_one_out(Z, y, alphas, positions=positions, sample_weight=w)
    except ValueError as error:
        assert "rounding cannot tell" in str(error)
        assert heavy > 1e8
        return
    for k, alpha in enumerate(alphas):
        for i in (0, 5):
            if np.isfinite(choice.errors[k, i]):
                off = Fraction(choice.errors[k, i]) - exact_error(Z, y, w, positions, i, alpha)
                assert abs(off) <= choice.error_bounds[k, i]


def test_a_sequence_of_no_weight_outside_the_range_is_infinite_without_a_ridge(rng):
    Z, w = rng.standard_normal((10, 3, 2)), np.ones(10)
    Z[1:, :, 1], w[0] = 0.0, 0.0
    y = rng.standard_normal((10, 1))
    choice = la.leave_one_out(Z, y, [0.0, 1e-15, 1.0], sample_weight=w)
    assert np.isinf(choice.errors[0, 0])
    assert np.isfinite(choice.errors[0, 1:]).all()
    for k, alpha in ((1, 1e-15), (2, 1.0)):
        expected = exact_error(Z, y, w, "last", 0, alpha)
        assert abs(Fraction(choice.errors[k, 0]) - expected) <= choice.error_bounds[k, 0]


@settings(max_examples=40)
@given(size=st.floats(-9, 0), alpha=st.sampled_from([0.0, 1e-12, 1e-6]), seed=st.integers(0, 99))
def test_a_direction_that_one_sequence_nearly_has_alone_is_known_to_its_bound(size, alpha, seed):
    rng = np.random.default_rng(seed)
    Z, y = rng.standard_normal((14, 3, 2)), rng.standard_normal((14, 1))
    Z[:-1, :, 1] *= 10.0**size
    choice = la.leave_one_out(Z, y, [alpha, 1.0])
    if np.isfinite(choice.errors[0, -1]):
        off = Fraction(choice.errors[0, -1]) - exact_error(Z, y, None, "last", 13, alpha)
        assert abs(off) <= choice.error_bounds[0, -1]


def test_units_of_coordinates_are_no_matter_without_a_ridge(rng):
    Z = rng.standard_normal((30, 4, 2)) * [1e-9, 1e9]
    y = rng.standard_normal((30, 1))
    choice = la.leave_one_out(Z, y, [0.0])
    expected = exact_error(Z, y, None, "last", 3, 0.0)
    assert choice.errors[0, 3] == pytest.approx(float(expected), rel=1e-9)


def test_factors_beyond_float64_make_no_error_that_is_not_a_number():
    Z = [np.array([[1e-78], [1e-23], [5e-99]]), np.array([[3e-3], [-6e-26], [-2e-83]])]
    choice = la.leave_one_out(Z, np.array([3e-100, -1e-88]), [0.0, 5e-9, 400.0])
    assert not np.isnan(choice.errors).any()
    assert not np.isnan(choice.error_bounds).any()
    assert np.isinf(choice.error_bounds[np.isinf(choice.errors)]).all()


def test_a_sequence_of_no_weight_far_larger_than_all_others_spoils_nothing(rng, positions):
    """Its features over the others' eigenvalues are beyond float64; 0 times infinity is no K."""
    Z, w = 1e-25 * rng.standard_normal((12, 3, 2)), np.ones(12)
    y = 1e90 * rng.standard_normal((12, 1) if positions == "last" else (12, 3, 1))
    Z[0], w[0] = Z[0] * 1e75, 0.0
    choice = la.leave_one_out(Z, y, [0.0, 1e-150], positions=positions, sample_weight=w)
    assert np.isinf(choice.errors[:, 0]).all()
    for k, alpha in enumerate((0.0, 1e-150)):
        off = Fraction(choice.errors[k, 3]) - exact_error(Z, y, w, positions, 3, alpha)
        assert abs(off) <= choice.error_bounds[k, 3]


def test_bounds_of_errors_are_of_use_on_healthy_data(rng):
    Z = rng.standard_normal((200, 6, 4))
    y = plant(rng, 4, 2, 1)(Z) + rng.standard_normal((200, 1))
    folds = [la.Moments(4, 1).update(Z[k::2], y[k::2]) for k in range(2)]
    alphas = [0.0, 1.0]
    path = la.ridge_path(folds[0] + folds[1], alphas)
    assert (path.mean_squared_error_bounds < 1e-6 * path.mean_squared_errors).all()
    assert (path.coefficient_errors < 1e-6).all()
    for choice in (la.leave_one_out(Z, y, alphas), la.choose_alpha(folds, alphas)):
        assert (choice.error_bounds < 1e-6 * choice.mean_errors[:, None]).all()
