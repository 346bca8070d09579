"""A mean squared error from moments alone says how far off it may be, and is not farther off."""

import numpy as np
import pytest
from conftest import plant
from oracles.exact import exact_loss

import linattn_fast as la
from linattn_fast.features.features import pair_count


def ill_conditioned(rng, collinear, N=60, d=3):
    """Tokens whose last two coordinates differ by a little alone."""
    Z = rng.standard_normal((N, 4, d))
    Z[..., -1] = Z[..., -2] + collinear * rng.standard_normal(Z.shape[:2])
    return Z


@pytest.mark.parametrize("solver", ["auto", "eigh"])
@pytest.mark.parametrize("collinear", [1.0, 0.05, 7e-3, 1e-3, 1e-5])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_error_from_moments_is_as_near_as_its_bound_says(rng, solver, collinear, noise):
    Z = ill_conditioned(rng, collinear)
    y = plant(rng, 3, 1, 2)(Z) + noise * rng.standard_normal((len(Z), 2))
    fit = la.Moments(3, 2).update(Z, y).fit(heads=None, solver=solver)
    info = fit.info
    true = exact_loss(Z, y, fit.coefficients)
    assert abs(info.mean_squared_error - true) <= info.mean_squared_error_bound
    assert 0 < info.mean_squared_error_bound < np.inf


def test_large_coefficients_make_the_bound_matter_and_the_report_says_so(rng):
    """Coefficients in the thousands that nearly cancel: the loss is nothing like its terms."""
    Z = ill_conditioned(rng, 5e-3)
    y = rng.standard_normal((len(Z), 2))
    fit = la.Moments(3, 2).update(Z, y).fit(heads=None)
    true = exact_loss(Z, y, fit.coefficients)
    info = fit.info
    assert info.condition > 1e11
    assert abs(info.mean_squared_error - true) > 1e-10 * true  # 1e-16 times the target it is not
    assert abs(info.mean_squared_error - true) <= info.mean_squared_error_bound
    assert info.error_in_words in str(info)
    assert "+-" in info.error_in_words


def test_a_stream_that_is_fitted_exactly_does_not_claim_an_error_of_exactly_zero(rng):
    truth = plant(rng, 3, 1, 2)
    Z = rng.standard_normal((200, 6, 3))
    batches = [(part, truth(part)) for part in np.split(Z, 4)]
    once = la.fit(iter(batches)).info
    assert once.mean_squared_error <= once.mean_squared_error_bound < 1e-8 * 200
    assert "mean squared error at most" in str(once)
    again = la.fit(batches).info  # can be read again: from residuals on the data
    assert again.mean_squared_error_bound == 0
    assert again.mean_squared_error < 1e-20


def test_with_noise_the_report_is_one_number(rng):
    Z = rng.standard_normal((300, 6, 3))
    info = la.Moments(3, 1).update(Z, rng.standard_normal(300)).fit().info
    assert 0 < info.mean_squared_error_bound < 1e-9
    assert info.error_in_words == f"{info.mean_squared_error:.3g}"


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_the_bound_holds_for_all_positions_precisions_and_weights(rng, positions, precision):
    Z, truth = ill_conditioned(rng, 0.3, N=40), plant(rng, 3, 1, 2)
    y, w = truth(Z, positions=positions), rng.uniform(0, 3, 40)
    moments = la.Moments(3, 2, positions=positions, precision=precision)
    fit = moments.update(Z, y, sample_weight=w).fit(heads=2)
    left = np.square(fit.predict(Z) - y).reshape(40, -1).sum(axis=1)
    queries = 1 if positions == "last" else Z.shape[1]
    true = float(w @ left) / (queries * w.sum())
    assert abs(fit.info.mean_squared_error - true) <= fit.info.mean_squared_error_bound
    assert fit.features.n_pairs == pair_count(3)
