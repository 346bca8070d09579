"""Nothing is ever proved that exact arithmetic denies, and healthy data is proved to be so."""

import numpy as np
import pytest
from conftest import needs_cpu, ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exact import Exact
from scipy.optimize import brentq

import linattn_fast as la
from linattn_fast.arrays.floats import gamma
from linattn_fast.certificate.lower_bound import positive_factor, prove
from linattn_fast.linalg import cholesky

POSITIONS = ["last", "all", "causal"]


def certified(sequences, positions="last", weights=None, **options):
    """Certificate, whether what it proves is true, and the data in exact arithmetic."""
    certificate = la.certify(sequences, positions=positions, sample_weight=weights, **options)
    exact = Exact.of(sequences, positions, weights)
    true = certificate.lower_bound == 0 or exact.exceeds(certificate.lower_bound)
    return certificate, true, exact


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_bound_is_true_and_close_on_healthy_data(rng, backend, positions, precision, d):
    sequences = ragged(rng, 60, d)
    weights = rng.random(60) + 0.5
    moments = la.Moments(d, 0, positions=positions, backend=backend, precision=precision)
    moments.update(sequences, sample_weight=weights)
    certificate = la.certify(moments)
    exact = Exact.of(sequences, positions, weights)
    if precision == "mixed" and backend == "numpy":
        assert certificate.lower_bound == 0  # underflow cannot be excluded there
        return
    assert exact.exceeds(certificate.lower_bound)
    if precision == "float64":
        assert certificate.lower_bound > 0.99 * certificate.lambda_min
        assert certificate.verdict == "identifiable"
        assert not exact.exceeds(1.001 * certificate.lambda_min)  # the oracle can say no


@pytest.mark.parametrize("d", [8, 16])
def test_the_bound_is_within_one_percent_for_many_features(rng, d):
    certificate = la.certify(rng.standard_normal((3000, 32, d)))
    assert certificate.dimension == d * d * (d + 1) // 2
    assert 0.99 * certificate.lambda_min < certificate.lower_bound < certificate.lambda_min


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("ratio", [0.0, 1e-14, 1e-8])
def test_small_eigenvalues_are_not_overclaimed(rng, positions, ratio):
    """Few samples of full weight, and enough for full rank with a weight of ``ratio``."""
    for _ in range(30):
        heavy, light = ragged(rng, 1, 2, 1), ragged(rng, 20, 2)
        sequences = heavy * 3 + light
        weights = np.array([1.0] * 3 + [ratio] * 20)
        certificate, true, exact = certified(sequences, positions, weights)
        assert true
        assert exact.exceeds(0.0) == (ratio > 0)
        if ratio == 0.0:
            assert certificate.lower_bound == 0
            assert certificate.verdict == "not identifiable"


def cancelling(rng, size):
    """Tokens in pairs whose products cancel in S up to something ``size`` times smaller."""
    z = rng.standard_normal((2, 2))
    opposite = z * [1.0, -1.0]
    return np.concatenate([z * size, opposite * size, rng.standard_normal((1, 2))])


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_violent_cancellation_does_not_fool_it(rng, size):
    for _ in range(20):
        certificate, true, _ = certified([cancelling(rng, size) for _ in range(30)])
        assert true
        if size <= 1e2:
            assert certificate.lower_bound > 0.9 * certificate.lambda_min


def test_an_estimate_that_is_nothing_but_rounding_of_the_gram_is_not_proved(rng):
    """What the proof takes off is enough by itself, whatever the numerical rank has said before."""
    features = la.Features(2, pairs=[(0, 1)])  # products that cancel, of which rounding is left
    false = 0
    for _ in range(20):
        sequences = [cancelling(rng, 3e8) for _ in range(30)]
        moments = la.Moments(2, 0, features=features).update(sequences)
        exact = Exact.of(sequences, features=features)
        estimate = np.linalg.eigvalsh(moments.second_moment())[0]
        false += not exact.exceeds(0.99 * estimate)
        bound = prove(moments, estimate).bound
        assert bound == 0 or exact.exceeds(bound)
    assert false > 0  # so that a proof of the estimate would be found out


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32 - 1),
    positions=st.sampled_from(POSITIONS),
    scale=st.floats(-30, 30),
    spread=st.floats(0, 12),
    dependence=st.floats(0, 12),
    N=st.integers(1, 30),
)
def test_no_claim_is_ever_above_the_truth(seed, positions, scale, spread, dependence, N):
    rng = np.random.default_rng(seed)
    units = 10.0 ** np.array([scale, scale - spread])
    sequences = [z * units for z in ragged(rng, N, 2)]
    for z in sequences:  # the second coordinate follows the first
        z[:, 1] = z[:, 0] + 10.0**-dependence * z[:, 1]
    certificate, true, exact = certified(sequences, positions)
    assert true
    if certificate.verdict == "identifiable":
        assert exact.exceeds(0.0)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1), N=st.integers(6, 40), d=st.sampled_from([2, 3]))
def test_integer_tokens_are_judged_rightly(seed, N, d):
    """Small integers: often exactly singular, and then never called identifiable."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(-1, 2, (rng.integers(1, 5), d)) for _ in range(N)]
    if not any(z[-1].any() for z in sequences):
        return
    certificate, true, exact = certified(sequences)
    assert true
    regular = exact.exceeds(0.0)
    assert not (certificate.verdict == "identifiable" and not regular)
    assert not (certificate.verdict == "not identifiable" and regular)


def test_updates_merges_and_files_keep_the_bound_true(rng, tmp_path):
    sequences = ragged(rng, 40, 2)
    moments = la.Moments(2, 0).update(sequences[:10])
    for z in sequences[10:30]:
        moments = moments + la.Moments(2, 0).update([z])
    moments.save(tmp_path / "m.npz")
    moments = la.Moments.load(tmp_path / "m.npz").update(sequences[30:])
    certificate = la.certify(moments)
    assert moments.accumulation.wide > la.Moments(2, 0).update(sequences).accumulation.wide
    assert Exact.of(sequences).exceeds(certificate.lower_bound)
    assert certificate.lower_bound > 0.99 * certificate.lambda_min


def test_underflow_proves_nothing_and_says_so(rng, backend):
    Z = rng.standard_normal((50, 4, 2))
    Z[3] *= 1e-170  # its S is below the smallest number
    certificate = la.certify(Z, backend=backend)
    assert certificate.lower_bound == 0
    assert certificate.verdict == "undecided"
    assert "underflow" in certificate.evidence
    assert la.certify(rng.standard_normal((50, 4, 2)), backend=backend).lower_bound > 0


def test_a_cholesky_that_runs_to_the_end_is_not_enough(rng):
    """A matrix with an eigenvalue of -1e-17 may well be factorised; that proves nothing."""
    U = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    values = np.linspace(0.5, 1.5, 30)
    healthy = (U * values) @ U.T
    assert positive_factor((healthy + healthy.T) / 2) is not None
    # Backward error of a 200 x 200 factorisation: at most 410 u tr, here about 9e-12.
    for smallest, proved in ((4e-12, False), (2e-11, True)):
        found = positive_factor(np.diag(np.r_[smallest, np.ones(199)]))
        assert (found is not None) == proved
    values[0] = 1e-17
    singular = (U * values) @ U.T
    assert positive_factor((singular + singular.T) / 2) is None


def shifted(moments, shift):
    """D (G - (lost m + tau) rounding) D - backward tr - margin, as it is defined."""
    lost, tau, rounding, backward, margin = shift
    G, m = moments.gram(), moments.summand_sizes()
    D = cholesky.power_of_two_scale(np.diag(G))
    A = (G - np.diag((lost * m + tau) * rounding)) * D * D[:, None]
    return A - (backward * np.trace(A) + margin) * np.eye(len(A))


@needs_cpu
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("larger", range(5))
def test_the_compiled_proof_takes_every_margin_into_account(rng, positions, chosen, larger):
    """Each margin in turn is so large that a proof without it would go too far."""
    d = 3
    features = la.Features(d, pairs=[(0, 0), (0, 1), (1, 1), (2, 2)]) if chosen else None
    moments = la.Moments(d, 0, positions=positions, features=features)
    moments.update(rng.standard_normal((60, 5, d)) * [1.0, 3.0, 0.2])
    margins = [1e-15, 0.0, 1.0 + 1e-15, 1e-14, 1e-14]
    margins[larger] = [1e-3, 0.0, 1.5, 1e-4, 1e-3][larger]

    def least(tau):
        return np.linalg.eigvalsh(shifted(moments, (margins[0], tau, *margins[2:])))[0]

    edge = brentq(least, 0.0, np.diag(moments.gram()).min(), xtol=1e-300, rtol=1e-12)
    assert least(0.0) > 0
    for tau, proved in ((edge * (1 - 1e-6), True), (edge * (1 + 1e-6), False)):
        assert moments.gram_exceeds((margins[0], tau, *margins[2:])) is proved


@needs_cpu
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("spread", [0.0, 3.0, 6.0])
def test_the_compiled_proof_is_the_one_in_numpy(rng, monkeypatch, positions, spread):
    """From healthy data to such as nothing is proved of, all queries and one-hot ones."""
    for one_hot in (False, True):
        Z = rng.standard_normal((200, 6, 3)) * 10.0 ** -np.array([0.0, spread / 2, spread])
        if one_hot:
            Z[:, -1] = np.eye(3)[rng.integers(3, size=200)]
        moments = la.Moments(3, 0, positions=positions).update(Z)
        estimate = max(np.linalg.eigvalsh(moments.second_moment())[0], 1e-300)
        found = prove(moments, estimate)
        with monkeypatch.context() as without:
            without.setattr(la.Moments, "gram_exceeds", lambda *_: None)
            assert prove(moments, estimate) == found


def test_magnitudes_bound_the_summands_of_every_feature(rng):
    Z = rng.standard_normal((20, 6, 3))
    moments = la.Moments(3, 0).update(Z)
    j, k = np.triu_indices(3)
    sums = np.abs(Z[:, :, j] * Z[:, :, k]).sum(axis=1)  # (N, q)
    g = (sums[:, :, None] * np.abs(Z[:, -1, None, :])).reshape(20, -1)
    found = moments.summand_sizes()
    assert (found * (1 + 1e-12) >= (g**2).sum(axis=0)).all()
    assert gamma(10) > 10 * 2.0**-53
    assert gamma(2.0**53) == np.inf
