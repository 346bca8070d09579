"""Bounds that one factorisation proves, of all samples or of a part: below the exact lambda_min."""

import numpy as np
import pytest
from conftest import ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.adversarial import KINDS, adversarial
from oracles.exact import Exact

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.backend.choice import get_backend
from linattn_fast.certificate import lower_bound, part_proof
from linattn_fast.certificate.part_proof import part_of, prove_on_part, prove_positive
from linattn_fast.certificate.ritz import largest_ritz_value, smallest_ritz_value
from linattn_fast.features import compact
from linattn_fast.features.samples import Samples
from linattn_fast.linalg import cholesky
from linattn_fast.moments.sums import MomentSums


def moments_of(samples):
    return MomentSums.over(samples, get_backend("auto"), "float64")


def lambda_min(samples):
    H = samples.features.of(samples.tokens, samples.positions)
    w = samples.weight_of_each()
    return np.linalg.eigvalsh((H * (w / w.sum())[:, None]).T @ H)[0]


def test_the_bound_of_all_samples_is_below_the_exact_lambda_min(rng, positions):
    sequences = ragged(rng, 60, 2)
    w = rng.random(60) + 0.1
    samples = Samples.checked(sequences, sample_weight=w, positions=positions, d_out=0)
    proof = prove_positive(moments_of(samples), samples.total_weight, samples.n_samples)
    assert proof is not None
    assert 0 < proof.bound <= lambda_min(samples)
    assert Exact.of(sequences, positions, w).exceeds(proof.bound)
    smallest, largest = proof.extreme_eigenvalues()
    assert smallest == pytest.approx(lambda_min(samples), rel=1e-9)
    assert largest > smallest


@pytest.mark.parametrize("weighted", [False, True])
def test_a_part_proves_the_whole(rng, positions, weighted):
    Z = rng.standard_normal((400, 3, 2))
    w = rng.random(400) * (rng.random(400) < 0.8) if weighted else None
    samples = Samples.checked(Z, sample_weight=w, positions=positions, d_out=0)
    proof = prove_on_part(samples, get_backend("auto"))
    assert proof is not None
    assert proof.moments.n_samples < samples.n_samples / 2
    assert 0 < proof.bound < lambda_min(samples)
    assert Exact.of(list(Z), positions, w).exceeds(proof.bound)


def test_a_part_shares_the_memory_of_the_whole(rng, positions):
    for Z, offsets in (
        (rng.standard_normal((500, 4, 2)), None),
        ([rng.standard_normal((3, 2)) for _ in range(500)], None),
        (rng.standard_normal((1000, 2)), np.arange(0, 1001, 2)),
    ):
        samples = Samples.checked(Z, offsets=offsets, positions=positions, d_out=0)
        part = part_of(samples, 1.5)
        assert part.n_samples >= 1.5 * 6
        whole = [a.__array_interface__["data"][0] for a in samples.tokens]
        assert {a.__array_interface__["data"][0] for a in part.tokens} < set(whole)
    few = Samples.checked(rng.standard_normal((12, 3, 2)), d_out=0)
    assert part_of(few, 1.5).n_samples == 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_adversarial_data_is_never_proved_beyond_the_truth(kind, seed):
    rng = np.random.default_rng([seed, 19])
    sequences, weights = adversarial(rng, kind, 24, 2)
    try:
        samples = Samples.checked(sequences, sample_weight=weights, d_out=0)
        proof = prove_positive(moments_of(samples), samples.total_weight, samples.n_samples)
    except ValueError:  # beyond float64, which is refused
        return
    if proof is not None:
        assert Exact.of(sequences, weights=weights).exceeds(proof.bound)


def test_singular_data_is_not_proved(rng):
    Z = rng.standard_normal((300, 3, 3))
    Z[:, :, 2] = Z[:, :, 1]
    samples = Samples.checked(Z, d_out=0)
    assert prove_on_part(samples, get_backend("auto")) is None
    assert prove_positive(moments_of(samples), samples.total_weight, samples.n_samples) is None


def test_a_part_that_happens_to_be_singular_proves_nothing_and_more_of_it_does(rng):
    Z = rng.standard_normal((400, 3, 2))
    step = int(400 // (1.5 * 6))
    Z[::step] = 0.0  # the first part that is tried
    proof = prove_on_part(Samples.checked(Z, d_out=0), get_backend("auto"))
    assert proof is not None
    assert proof.moments.n_samples >= 2 * 1.5 * 6


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 60), st.floats(1.0, 1e6))
def test_ritz_values_bound_the_spectrum_from_inside(seed, p, condition):
    rng = np.random.default_rng(seed)
    values = np.geomspace(1.0, condition, p)
    U = np.linalg.qr(rng.standard_normal((p, p)))[0]
    A = (U * values) @ U.T
    inverse = (U / values) @ U.T
    rounding = 1e-13 * condition * p
    found, x = smallest_ritz_value(
        lambda v: A @ v, lambda v: inverse @ v, rng.standard_normal(p), steps=16
    )
    assert found >= 1.0 - rounding
    assert found == pytest.approx(x @ A @ x / (x @ x), rel=1e-6, abs=rounding)
    assert largest_ritz_value(lambda v: A @ v, p, steps=8) <= condition + rounding


def test_the_estimate_of_many_features_is_near_lambda_min(rng, monkeypatch):
    samples = Samples.checked(rng.standard_normal((900, 5, 5)), d_out=0)  # 75 features
    proof = prove_positive(moments_of(samples), samples.total_weight, samples.n_samples)
    exact = proof.extreme_eigenvalues()
    monkeypatch.setattr(part_proof, "_DENSE_UP_TO", 0)
    estimated = proof.extreme_eigenvalues()
    assert exact[0] * (1 - 1e-9) <= estimated[0] <= 1.02 * exact[0]
    assert 0.9 * exact[1] <= estimated[1] <= exact[1] * (1 + 1e-9)


def test_the_rounding_of_the_gram_is_taken_off(rng, monkeypatch):
    """Sums with so many roundings that nothing is left prove nothing."""
    samples = Samples.checked(rng.standard_normal((80, 3, 2)), d_out=0)
    moments = moments_of(samples)
    assert prove_positive(moments, 80.0, 80) is not None
    monkeypatch.setattr(la.Moments.__mro__[1], "relative_errors", lambda _: (0.4, 0.0))
    assert prove_positive(moments, 80.0, 80) is None


@pytest.mark.parametrize(("alpha", "ridge"), [(0.0, "none"), (1e-6, "small"), (1e4, "large")])
@pytest.mark.parametrize("d", [3, 5, 10])  # 18, 75 and 550 features
def test_a_fit_proves_a_bound_close_to_lambda_min(rng, d, alpha, ridge):
    Z = rng.standard_normal((1200, 6, d))
    found = la.fit(Z, rng.standard_normal(1200), alpha=alpha, solver="cholesky").certificate
    smallest = lambda_min(Samples.checked(Z, d_out=0))
    assert found.verdict == "identifiable"
    assert 0 < found.lower_bound <= smallest <= found.lambda_min * (1 + 1e-9)
    if ridge != "large" or d < 10:
        assert found.lower_bound > 0.88 * smallest
        assert found.lambda_min < 1.01 * smallest


@pytest.mark.skipif(compiled.MISSING is not None, reason="needs the extension")
@pytest.mark.parametrize("alpha", [0.0, 1e-6])
@pytest.mark.parametrize("d", [4, 8])
def test_a_fit_factorises_once_to_solve_and_once_to_prove(rng, monkeypatch, d, alpha):
    made = []

    def counted(module, name, size):
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a: made.append((name, size(*a))) or right(*a))

    counted(cholesky, "cholesky_in_place", len)
    counted(lower_bound, "cholesky_in_place", len)
    counted(compact, "exceeds", lambda _, features, *rest: features.count)
    Z = rng.standard_normal((3000, 6, d))
    certificate = la.fit(Z, Z[:, 0], alpha=alpha, solver="cholesky").certificate
    assert "0.999 lambda_min" in certificate.evidence
    p = d * d * (d + 1) // 2
    assert made == [("cholesky_in_place", p), ("exceeds", p)]
