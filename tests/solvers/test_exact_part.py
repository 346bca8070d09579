"""Data that a layer fits exactly is learned from a part of it, and only then."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.solvers import exact_part

D, N, T = 3, 400, 50  # 18 features; 20,000 causal samples are more than 8 times 1,024


def data(rng, positions="causal", sequences=N, length=T):
    return la.datasets.random_linear_attention(
        sequences, length, D, heads=2, d_out=2, positions=positions, seed=rng
    )


def learned(*arguments, **options):
    return la.fit(*arguments, certify=False, **options)


def from_a_part(fit):
    return "to rounding: no loss is below zero" in fit.info.reason


@pytest.mark.parametrize(
    ("positions", "sequences", "length"), [("causal", N, T), ("last", 20_000, 6)]
)
def test_an_exact_fit_of_a_part_is_that_of_all(rng, positions, sequences, length):
    Z, y, truth = data(rng, positions, sequences, length)
    fit = learned(Z, y, positions=positions)
    assert from_a_part(fit)
    assert len(fit.heads) == 2
    assert fit.info.n_samples == la.fit(Z, y, positions=positions).info.n_samples
    C = truth.coefficients()
    assert np.linalg.norm(fit.coefficients - C) < 1e-12 * np.linalg.norm(C)
    rest = fit.predict(Z, positions=positions) - y
    assert fit.info.mean_squared_error == pytest.approx((rest**2).sum(-1).mean(), rel=0.5, abs=0)
    assert fit.info.mean_squared_target == pytest.approx((y**2).sum(-1).mean(), rel=1e-12)


def test_ragged_and_weighted_data(rng):
    Z, y, truth = data(rng)
    lengths = rng.integers(5, T + 1, N)
    ragged = [z[:n] for z, n in zip(Z, lengths, strict=True)]
    targets = [t[:n] for t, n in zip(y, lengths, strict=True)]
    w = rng.uniform(0.5, 2, N)
    fit = learned(ragged, targets, positions="causal", sample_weight=w)
    assert from_a_part(fit)
    np.testing.assert_allclose(fit.coefficients, truth.coefficients(), rtol=1e-9, atol=1e-12)
    each = np.repeat(w, lengths)
    energy = each @ (np.concatenate(targets) ** 2).sum(1) / each.sum()
    assert fit.info.mean_squared_target == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("where", ["everywhere", "in the last sequence"])
def test_noise_anywhere_means_a_fit_of_all_data(rng, where):
    Z, y, _ = data(rng)
    y = y.copy()
    if where == "everywhere":
        y += 1e-10 * rng.standard_normal(y.shape)
    else:
        y[-1, -1, 0] += 1.0
    fit = learned(Z, y, positions="causal", heads=None)
    assert not from_a_part(fit)
    expected = la.fit(Z, y, positions="causal", heads=None, solver="cholesky").coefficients
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-9, atol=1e-13)


def test_noise_in_a_small_output_beside_a_large_one_is_not_overlooked(rng):
    Z, y, _ = data(rng)
    y = y * np.array([1e15, 1.0])
    y[..., 1] += 0.1 * rng.standard_normal(y.shape[:2])
    fit = learned(Z, y, positions="causal", heads=None)
    assert not from_a_part(fit)
    expected = la.fit(Z, y[..., 1], positions="causal", heads=None, solver="cholesky")
    np.testing.assert_allclose(fit.coefficients[1:], expected.coefficients, rtol=1e-9, atol=1e-12)


def test_a_part_that_determines_nothing_is_not_believed(rng):
    # The first half lies in a plane, where many layers fit exactly
    Z, _, truth = data(rng)
    Z = Z.copy()
    Z[: N // 2, :, 2] = 0
    y = truth(Z, positions="causal")
    fit = learned(Z, y, positions="causal", heads=None)
    assert not from_a_part(fit)
    np.testing.assert_allclose(fit.coefficients, truth.coefficients(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 1e-3}, {"solver": "cholesky"}, {"certify": True}, {"heads": 2},
        {"solver": "pcg"}, {"positions": "all"},
    ],
)  # fmt: skip
def test_what_needs_all_of_the_data_gets_it(rng, options):
    asked = {"positions": "causal", "certify": False, **options}
    Z, y, _ = data(rng, asked["positions"])
    fit = la.fit(Z, y, **asked)
    assert not from_a_part(fit)


def test_a_weight_of_zero_in_the_part_means_a_fit_of_all_data(rng):
    Z, y, _ = data(rng)
    w = np.ones(N)
    w[0] = 0
    assert not from_a_part(learned(Z, y, positions="causal", sample_weight=w))


def test_few_samples_are_not_worth_a_look(rng, monkeypatch):
    monkeypatch.setattr(exact_part, "try_cholesky_of_moments", None)  # would fail if called
    Z, y, _ = data(rng, sequences=20)
    assert not from_a_part(learned(Z, y, positions="causal"))


@pytest.mark.parametrize("row", [0, N - 1])
def test_data_that_is_not_finite_is_found_in_the_part_and_beyond(rng, row):
    Z, y, _ = data(rng)
    Z = Z.copy()
    Z[row, 3, 1] = np.nan
    with pytest.raises(ValueError, match=f"^Z: .*{row}"):
        learned(Z, y, positions="causal")
    Z, y, _ = data(rng)
    y = y.copy()
    y[row, 3, 1] = np.inf
    with pytest.raises(ValueError, match="^y: "):
        learned(Z, y, positions="causal")


def test_the_same_bits_on_any_number_of_threads(rng):
    Z, y, _ = data(rng)
    found = []
    for threads in (1, 2):
        before = la.get_num_threads()
        la.set_num_threads(threads)
        try:
            found.append(learned(Z, y, positions="causal").coefficients)
        finally:
            la.set_num_threads(before)
    np.testing.assert_array_equal(*found)
