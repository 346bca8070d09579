"""Weights that cannot be summed are refused everywhere, and zero weights are not underflow."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast import softmax

OVERFLOW = "^sample_weight: the weights of all samples must have a sum within float64"
SMALL = 1e-60  # so small that no product of the features overflows with the weights below


def data(rng, N=40):
    return rng.standard_normal((N, 5, 2)) * SMALL, rng.standard_normal((N, 5, 2))


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "dual", "pcg"])
def test_no_solver_takes_weights_whose_sum_overflows(rng, positions, solver):
    """With every token a query, a weight counts as often as its sequence has tokens."""
    Z, y = data(rng)
    w = np.full(40, 1e307 if positions == "last" else 4e306)
    targets = y[:, 0] if positions == "last" else y
    with pytest.raises(ValueError, match=OVERFLOW):
        la.fit(Z, targets, positions=positions, sample_weight=w, solver=solver)


@pytest.mark.parametrize(
    "use",
    [
        lambda Z, y, w: la.certify(Z, sample_weight=w),
        lambda Z, y, w: la.certify(Z[:2], sample_weight=[1e308, 1e308]),
        lambda Z, y, w: la.certify(Z, sample_weight=w, features=la.Features(2, [(0, 0)])),
        lambda Z, y, w: la.Moments(2, 0).update(Z, sample_weight=w),
        lambda Z, y, w: la.Moments(2, 0, backend="numpy").update(Z, sample_weight=w),
        lambda Z, y, w: la.leave_one_out(Z, y, alphas=[1.0], sample_weight=w),
        lambda Z, y, w: la.LinearAttentionRegressor().fit(Z, y, sample_weight=w),
        lambda Z, y, w: softmax.fit(Z, Z, 1, sample_weight=w),
    ],
)
def test_no_entry_takes_weights_whose_sum_overflows(rng, use):
    Z, y = data(rng)
    with pytest.raises(ValueError, match=OVERFLOW):
        use(Z, y[:, 0], np.full(40, 1e308))


@pytest.mark.parametrize("solver", ["auto", "qr", "pcg"])
def test_batches_whose_weights_overflow_together_are_refused(rng, solver):
    Z, y = data(rng)
    stream = [(Z, y[:, 0], np.full(40, 3e306))] * 2  # each is fine
    with pytest.raises(ValueError, match=OVERFLOW):
        la.fit(stream, solver=solver)


def test_moments_whose_weights_overflow_together_are_not_merged(rng):
    Z, _ = data(rng)
    half = la.Moments(2, 0).update(Z, sample_weight=np.full(40, 3e306))
    with pytest.raises(ValueError, match=OVERFLOW):
        half + half
    with pytest.raises(ValueError, match=OVERFLOW):
        half.update(Z, sample_weight=np.full(40, 3e306))
    assert half.n_samples == 40  # as it was


def test_moments_whose_sums_overflow_are_not_merged():
    half = la.Moments(1, 0).update([[[10.0**51]]])  # 1e306
    for _ in range(7):
        half = half + half
    with pytest.raises(ValueError, match="^moments: what is added up overflows float64"):
        half + half


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
def test_queries_of_zero_are_not_underflow(backend, positions):
    """Features of zero are zero, whatever sequences of weight zero hold."""
    Z = np.stack([np.zeros((3, 2)), np.ones((3, 2))])
    moments = la.Moments(2, 0, positions=positions, backend=backend)
    moments.update(Z, sample_weight=[1.0, 0.0])
    assert moments.total_weight == (1.0 if positions == "last" else 3.0)
    assert not moments.gram_diagonal().any()
    assert not moments.accumulation.underflow
    with pytest.raises(ValueError, match="^Z: values of at most 1, with sample_weight of at most"):
        la.Moments(2, 0, positions=positions, backend=backend).update(
            Z, sample_weight=[0.0, 1e-310]
        )


def test_a_fit_of_zero_queries_is_the_zero_layer():
    Z = np.stack([np.zeros((3, 2)), np.ones((3, 2))])
    fit = la.fit(Z, [[1.0], [2.0]], sample_weight=[1.0, 0.0])
    np.testing.assert_array_equal(fit.coefficients, 0.0)
    assert la.certify(Z, sample_weight=[1.0, 0.0]).verdict == "not identifiable"
