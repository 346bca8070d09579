import numpy as np
import pytest
from conftest import home
from hypothesis import given
from hypothesis import strategies as st
from oracles.batches import samples_of

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.linalg.cholesky import largest_eigenvalue


@pytest.mark.parametrize("d", [1, 2, 4, 6])  # dense and iterative
def test_lambda_min_and_condition_are_those_of_the_second_moment(rng, backend, d):
    Z = rng.standard_normal((400, 7, d)) * np.linspace(1, 2, d)
    H = la.cubic_features(Z)
    values = np.linalg.eigvalsh(H.T @ H / len(H))
    certificate = la.certify(Z, backend=backend, spectrum=True)
    # The smallest eigenvalue is known to rounding relative to the largest.
    tolerance = 1e-9 + 1e-13 * values[-1] / values[0]
    assert certificate.lambda_min == pytest.approx(values[0], rel=tolerance)
    assert certificate.condition == pytest.approx(values[-1] / values[0], rel=tolerance)
    np.testing.assert_allclose(home(certificate.spectrum), values, atol=1e-13 * values[-1])
    assert certificate.verdict == "identifiable"
    assert certificate.rank == certificate.dimension == H.shape[1]
    assert certificate.n_samples == 400
    assert 0.0 <= certificate.lower_bound <= values[0]
    assert "identifiable" in str(certificate)


def test_the_spectrum_is_computed_only_when_asked_for(rng):
    assert la.certify(rng.standard_normal((100, 4, 2))).spectrum is None


def test_tokens_moments_and_fits_have_the_same_certificate(rng):
    Z, y = rng.standard_normal((100, 5, 3)), rng.standard_normal(100)
    from_tokens = la.certify(Z)
    assert la.certify(la.Moments(3, 0).update(Z)) == from_tokens
    assert la.certify(la.Moments(3, 1).update(Z, y)) == from_tokens
    assert la.fit(Z, y, certify="sharp").certificate == from_tokens
    with_ridge = la.fit(Z, y, alpha=5.0, certify="sharp").certificate  # which plays no part
    assert with_ridge == from_tokens
    for alpha in (0.0, 5.0):  # by default, with the same verdict for less
        found = la.fit(Z, y, alpha=alpha).certificate
        assert found.verdict == from_tokens.verdict
        assert found.lambda_min == pytest.approx(from_tokens.lambda_min, rel=1e-9)
        assert 0 < found.lower_bound <= from_tokens.lambda_min
    assert la.fit(Z, y, certify=False).certificate is None
    with pytest.raises(ValueError, match="moments carry their own data"):
        la.certify(la.Moments(3, 0).update(Z), sample_weight=np.ones(100))


def test_weights_count(rng):
    Z = rng.standard_normal((60, 5, 2))
    w = rng.random(60)
    H = la.cubic_features(Z)
    expected = np.linalg.eigvalsh((H * w[:, None]).T @ H / w.sum())[0]
    assert la.certify(Z, sample_weight=w).lambda_min == pytest.approx(expected, rel=1e-8)


def test_fewer_samples_than_features_are_not_enough_by_counting(rng):
    certificate = la.certify(rng.standard_normal((17, 5, 3)))
    assert certificate.verdict == "not identifiable"
    assert certificate.lambda_min == 0.0
    assert certificate.condition == np.inf
    assert certificate.rank == 17
    assert "17 samples are fewer than the 18 features" in certificate.evidence


def test_samples_of_weight_zero_do_not_count(rng):
    Z = rng.standard_normal((17, 5, 3))
    certificate = la.certify(Z, sample_weight=np.r_[np.ones(5), np.zeros(12)])
    assert (certificate.verdict, certificate.rank, certificate.n_samples) == (
        "not identifiable", 5, 17)  # fmt: skip
    assert "5 of 17 samples have positive weight" in certificate.evidence
    many = rng.standard_normal((100, 5, 3))
    certificate = la.certify(many, sample_weight=np.r_[np.ones(17), np.zeros(83)])
    assert (certificate.verdict, certificate.rank) == ("not identifiable", 17)
    assert "17 samples of positive weight are fewer than the 18" in certificate.evidence


def test_moments_alone_prove_only_what_they_can(rng):
    Z = rng.standard_normal((100, 5, 3))
    Z[:, :, 2] = 0.0
    assert la.certify(la.Moments(3, 0).update(Z)).verdict == "not identifiable"
    Z[:, :, 2] = Z[:, :, 1]
    certificate = la.certify(la.Moments(3, 0).update(Z))
    assert (certificate.verdict, certificate.rank) == ("undecided", 6)
    assert "moments alone cannot tell" in certificate.evidence
    Z[:, :, 2] = 1e-110 * rng.standard_normal((100, 5))  # its squares underflow: it is not zero
    for data in (Z, la.Moments(3, 0).update(Z)):
        assert la.certify(data).verdict == "undecided"


def one_hot(rng, N=500, n=6, d=3):
    return np.eye(d)[rng.integers(0, d, (N, n))]


def constant(rng):
    Z = rng.standard_normal((500, 6, 3))
    Z[:, :, 0] = 0.0
    return Z


def repeated(rng):
    Z = rng.standard_normal((500, 6, 3))
    Z[:, :, 2] = Z[:, :, 1]
    return Z


def dependent(rng):
    Z = rng.standard_normal((500, 6, 3))
    Z[:, :, 2] = 0.3 * Z[:, :, 0] - 1.7 * Z[:, :, 1]
    return Z


def same_every_time(rng):
    return np.broadcast_to(rng.standard_normal((1, 6, 3)), (500, 6, 3))


@pytest.mark.parametrize("make", [one_hot, constant, repeated, dependent, same_every_time])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_degenerate_tokens_are_never_called_identifiable(rng, backend, make, scale):
    Z = scale * make(rng)
    H = la.cubic_features(make(np.random.default_rng(1)))
    certificate = la.certify(Z, backend=backend)
    assert certificate.lambda_min == 0.0
    assert certificate.rank == np.linalg.matrix_rank(H)
    if make is dependent:  # up to rounding only: in exact arithmetic the rank is 18
        assert certificate.verdict == "undecided"
        assert certificate.evidence.startswith("numerically: rank 6 of 18; ")
        assert "the exact rank is 18, proved modulo a prime" in certificate.evidence
    else:
        assert certificate.verdict == "not identifiable"
        assert certificate.evidence.startswith("proved")


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_a_bias_coordinate_is_not_mistaken_for_noise(rng, size):
    Z = rng.standard_normal((500, 6, 3))
    Z[:, :, 2] = size
    certificate = la.certify(Z)
    assert certificate.verdict == "identifiable"
    assert certificate.lower_bound > 0.99 * certificate.lambda_min
    hot = np.concatenate([one_hot(rng), np.full((500, 6, 1), size)], axis=2)
    unscaled = np.concatenate([one_hot(rng), np.ones((500, 6, 1))], axis=2)
    assert la.certify(hot).rank == np.linalg.matrix_rank(la.cubic_features(unscaled))


def test_one_hot_features_that_never_occur_are_named(rng):
    assert "features are zero in every sample" in la.certify(one_hot(rng)).evidence


@given(scale=st.lists(st.floats(-8, 8), min_size=3, max_size=3), seed=st.integers(0, 99))
def test_the_verdict_does_not_depend_on_the_units_of_the_tokens(scale, seed):
    Z = np.random.default_rng(seed).standard_normal((200, 6, 3))
    assert la.certify(Z * 10.0 ** np.array(scale)).verdict == "identifiable"


def test_nearly_dependent_tokens_go_from_identifiable_to_undecided_until_they_are_the_same(rng):
    Z = rng.standard_normal((300, 6, 2))
    noise = rng.standard_normal((300, 6))
    certificates = []
    for size in 10.0 ** -np.arange(0.0, 12.0, 0.25):
        Z[:, :, 1] = Z[:, :, 0] + size * noise
        certificates.append(la.certify(Z))
    decided = [each.verdict == "identifiable" for each in certificates]
    assert decided == sorted(decided, reverse=True)
    assert decided[0]
    assert certificates[-1].verdict == "undecided"
    assert (certificates[-1].rank, certificates[-1].dimension) == (2, 6)  # numerically
    Z[:, :, 1] = Z[:, :, 0]
    assert la.certify(Z).verdict == "not identifiable"


@pytest.mark.parametrize("seed", range(6))
def test_many_small_updates_do_not_make_singular_data_look_identifiable(seed):
    pool = np.random.default_rng(seed).random((5, 3, 2)) + 0.5  # 5 samples, 6 features
    moments = la.Moments(2, 0, backend="numpy")
    batch = moments.totals_of(samples_of(as_tokens(pool)))
    for _ in range(30_000):
        moments.add(batch)
    assert moments.n_samples == 150_000
    assert la.certify(moments).verdict != "identifiable"


@pytest.mark.parametrize("p", [1, 2, 5, 80, 200])
def test_the_largest_eigenvalue_is_found(rng, p):
    values = np.sort(rng.random(p))
    values[-1] = 2.0
    U = np.linalg.qr(rng.standard_normal((p, p)))[0]
    found = largest_eigenvalue(lambda x: U @ (values * (U.T @ x)), p)
    assert found == pytest.approx(2.0, rel=1e-9)
    assert largest_eigenvalue(lambda x: 3.0 * x, p) == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("p", [2, 80])
def test_an_eigenvalue_beyond_the_range_of_floats_is_infinite(p):
    if p == 2:  # without an iteration, whose vectors are longer than one
        assert largest_eigenvalue(lambda x: 1.5e308 * x, p) == pytest.approx(1.5e308, rel=1e-9)
    with np.errstate(all="ignore"):
        assert largest_eigenvalue(lambda x: 1e308 * (1e10 * x), p) == np.inf


@pytest.mark.parametrize("d", [3, 5])
def test_lambda_min_below_the_smallest_number_is_zero(rng, d):
    Z = rng.standard_normal((2 * d**3, 6, d))
    Z[..., 0] *= 1e-53
    certificate = la.certify(Z)
    assert certificate.lambda_min == 0
    assert certificate.verdict != "identifiable"


def test_certify_reports_its_progress_and_refuses_what_cannot_show_it(rng):
    Z, calls = rng.standard_normal((100, 4, 2)), []
    la.certify(Z, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (100, 100)
    with pytest.raises(TypeError, match="^progress: "):
        la.certify(Z, progress="yes")
