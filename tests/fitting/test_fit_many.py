"""Many problems at once: each answer is that of the problem alone."""

import numpy as np
import pytest
from conftest import EPS, plant

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.data.tokens import as_tokens
from linattn_fast.fitting import many as module


def problems(rng, B=7, N=120, n=5, d=3, d_out=2, positions="last", dtype=np.float64):
    Z = rng.standard_normal((B, N, n, d)).astype(dtype)
    shape = (B, N, d_out) if positions == "last" else (B, N, n, d_out)
    return Z, rng.standard_normal(shape).astype(dtype)


def by_lstsq(Z, y, alpha=0.0, positions="last"):
    """Ridge regression on the features, written out."""
    truth = la.Features(Z.shape[2])
    s, z = truth.samples(as_tokens(Z), positions)
    H = (s[:, :, None] * z[:, None, :]).reshape(len(s), -1).astype(np.float64)
    y = y.reshape(len(H), -1).astype(np.float64)
    H = np.concatenate([H / np.sqrt(len(H)), np.sqrt(alpha) * np.eye(H.shape[1])])
    y = np.concatenate([y / np.sqrt(len(y)), np.zeros((H.shape[1], y.shape[1]))])
    return np.linalg.lstsq(H, y, rcond=None)[0].T


def assert_same(many, i, expected):
    """Coefficients to the rounding that their condition allows."""
    size = np.linalg.norm(expected.coefficients)
    p = expected.coefficients.shape[1]
    distance = np.linalg.norm(many.coefficients[i] - expected.coefficients)
    assert distance <= 10 * p * EPS * max(many.condition[i], expected.info.condition) * size
    target = expected.info.mean_squared_target
    assert many.mean_squared_target[i] == pytest.approx(target, rel=1e-12)
    assert many.mean_squared_error[i] == pytest.approx(
        expected.info.mean_squared_error, rel=1e-8, abs=1e-20 * target
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_each_problem_has_the_answer_that_it_has_alone(rng, positions, alpha, dtype):
    Z, y = problems(rng, positions=positions, dtype=dtype)
    many = la.fit_many(Z, y, positions=positions, alpha=alpha)
    assert many.together.all()
    assert set(many.solver) == {"cholesky"}
    assert len(many) == 7
    for i in range(7):
        assert_same(many, i, la.fit(Z[i], y[i], positions=positions, alpha=alpha, heads=None))
        np.testing.assert_allclose(
            many.coefficients[i], by_lstsq(Z[i], y[i], alpha, positions), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize(("d", "N"), [(1, 40), (2, 60), (5, 300), (8, 600)])
def test_sizes_from_one_coordinate_to_blocks_of_features(rng, d, N):
    """p = 1, 6, 75 and 288: the last by the blocked factorisation."""
    Z, y = problems(rng, B=3, N=N, d=d, d_out=1)
    many = la.fit_many(Z, y[..., 0], alpha=1e-3)
    for i in range(3):
        assert_same(many, i, la.fit(Z[i], y[i], alpha=1e-3, heads=None))


def test_one_ridge_for_each_problem(rng):
    Z, y = problems(rng)
    alphas = np.geomspace(1e-4, 10, 7)
    many = la.fit_many(Z, y, alpha=alphas)
    np.testing.assert_array_equal(many.alpha, alphas)
    for i, alpha in enumerate(alphas):
        assert_same(many, i, la.fit(Z[i], y[i], alpha=alpha, heads=None))


@pytest.mark.parametrize("where", ["last", "all"])
def test_chosen_features(rng, where):
    Z, y = problems(rng, positions=where)
    features = la.Features(3, pairs=[(0, 2), (1, 1), (2, 2)], queries=[0, 2])
    many = la.fit_many(Z, y, features=features, positions=where)
    assert many.coefficients.shape == (7, 2, 6)
    assert many.together.all()
    for i in range(7):
        expected = la.fit(Z[i], y[i], features=features, positions=where, heads=None)
        assert_same(many, i, expected)


def test_members_that_are_not_safe_are_fitted_alone(rng):
    Z, y = problems(rng)
    Z[1, :, :, 2] = 0  # features that never occur
    Z[2, :, :, 2] = Z[2, :, :, 1]  # the same coordinate twice
    Z[3, :, :, 2] *= 1e-30  # units do not matter
    Z[4] = Z[4, :1]  # one sequence, again and again
    Z[5] = Z[5] @ np.diag([1, 1, 0]) + 1e-7 * Z[5]  # nearly in a plane: mixed afterwards
    Z[5] = Z[5] @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    many = la.fit_many(Z, y)
    assert many.together.tolist() == [True, False, False, True, False, False, True]
    for i in range(7):
        expected = la.fit(Z[i], y[i], heads=None)
        if many.together[i]:
            assert_same(many, i, expected)
        else:
            np.testing.assert_array_equal(many.coefficients[i], expected.coefficients)
            assert many.solver[i] == expected.info.solver


def test_fewer_samples_than_features_are_fitted_alone(rng):
    Z, y = problems(rng, B=2, N=10)
    many = la.fit_many(Z, y)
    assert set(many.solver) == {"dual"}
    for i in range(2):
        np.testing.assert_array_equal(many.coefficients[i], la.fit(Z[i], y[i]).coefficients)
    with_ridge = la.fit_many(Z, y, alpha=0.1)
    expected = la.fit(Z[1], y[1], alpha=0.1).coefficients
    np.testing.assert_allclose(with_ridge.coefficients[1], expected, rtol=1e-9, atol=1e-12)


def test_the_error_of_an_exact_fit_does_not_cancel(rng, positions):
    Z, _ = problems(rng)
    truth = plant(rng, 3, 2, 2)
    y = np.stack([truth(each, positions) for each in Z])
    many = la.fit_many(Z, y, positions=positions)
    assert many.together.all()
    assert (many.mean_squared_error <= 1e-24 * many.mean_squared_target).all()


def test_problems_of_several_blocks_after_each_other_do_not_mix(rng, positions):
    """More samples than a block holds, and a singular problem between others: nothing is kept."""
    Z, y = problems(rng, B=5, N=700, n=9, d=4, d_out=1, positions=positions)
    Z[2, :, :, 3] = 0
    many = la.fit_many(Z, y, positions=positions)
    assert many.together.tolist() == [True, True, False, True, True]
    for i in (0, 1, 3, 4):
        alone = la.fit_many(Z[i : i + 1], y[i : i + 1], positions=positions)
        np.testing.assert_array_equal(many.coefficients[i], alone.coefficients[0])
        assert_same(many, i, la.fit(Z[i], y[i], positions=positions, heads=None))


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("where", ["last", "causal"])
@pytest.mark.parametrize("d", [2, 4, 5, 6])
def test_a_problem_has_the_same_bits_whichever_others_are_beside_it(rng, d, where, chosen):
    """Eleven problems fill the lanes of a vector once and leave some of them empty."""
    Z, y = problems(rng, B=11, N=500, n=9, d=d, d_out=2, positions=where)
    features = la.Features(d, pairs=[(0, 1), (1, 1)], queries=[1]) if chosen else None
    many = la.fit_many(Z, y, positions=where, features=features)
    assert many.together.all()
    for i in (0, 7, 8, 10):
        few = la.fit_many(Z[i:], y[i:], positions=where, features=features)
        for name in ("coefficients", "condition", "mean_squared_error", "mean_squared_target"):
            np.testing.assert_array_equal(getattr(many, name)[i], getattr(few, name)[0])
        expected = la.fit(Z[i], y[i], positions=where, features=features, heads=None)
        assert_same(many, i, expected)


def test_small_errors_with_more_samples_than_are_kept(rng):
    """Their samples are formed again; a neighbour with much noise has its error from moments."""
    Z, _ = problems(rng, B=3, N=12_000, n=8, d=3)
    truth = plant(rng, 3, 2, 2)
    y = np.stack([truth(each, "last") for each in Z])
    y += np.array([1e-5, 1.0, 1e-4])[:, None, None] * rng.standard_normal(y.shape)
    many = la.fit_many(Z, y)
    assert many.together.all()
    for i in range(3):
        assert_same(many, i, la.fit(Z[i], y[i], heads=None))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_token_that_is_not_finite_is_named_with_its_problem(rng, positions, bad):
    Z, y = problems(rng, B=9, d=4, positions=positions)
    Z[5, 3, 2, 1] = bad
    with pytest.raises(ValueError, match=r"^Z: .*\(in problem 5\)$"):
        la.fit_many(Z, y, positions=positions)


def test_a_member_is_a_fit_with_certificate_and_heads(rng):
    Z, y = problems(rng, d_out=1)
    many = la.fit_many(Z, y[..., 0], alpha=0.01)
    one = many[3]
    expected = la.fit(Z[3], y[3, :, 0], alpha=0.01)
    np.testing.assert_array_equal(one.coefficients, expected.coefficients)
    assert one.certificate.verdict == "identifiable"
    assert one.predict(Z[3]).shape == (120,)
    assert one.heads is not None
    np.testing.assert_array_equal(many[-1].coefficients, many[6].coefficients)
    assert len(list(many)) == 7
    with pytest.raises(IndexError, match="^index: there are 7 problems"):
        many[7]


def test_threads_do_not_change_a_bit(rng):
    Z, y = problems(rng, B=30)
    before = la.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            la.set_num_threads(threads)
            found.append(la.fit_many(Z, y).coefficients)
    finally:
        la.set_num_threads(before)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_without_the_extension_each_is_fitted_alone(rng, monkeypatch):
    Z, y = problems(rng, B=2)
    expected = la.fit_many(Z, y)
    monkeypatch.setattr(compiled, "MISSING", "not there")
    found = module._together(Z, y, "last", np.zeros(2), la.Features(3), None)
    assert not found.safe.any()
    assert expected.together.all()


def test_progress_counts_problems_and_may_stop(rng):
    Z, y = problems(rng)
    seen = []
    la.fit_many(Z, y, progress=lambda *told: seen.append(told))
    assert seen[-1] == (7, 7)

    def stop(done, total):
        raise KeyboardInterrupt

    Z[:, :, :, 2] = 0  # all alone, one after the other
    with pytest.raises(KeyboardInterrupt):
        la.fit_many(Z, y, progress=stop)


def test_inputs_are_not_changed_and_results_are_read_only(rng):
    Z, y = problems(rng)
    copies = Z.copy(), y.copy()
    many = la.fit_many(Z[:, ::-1], y[:, ::-1])  # any strides
    np.testing.assert_allclose(many.coefficients, la.fit_many(Z, y).coefficients, rtol=1e-9)
    np.testing.assert_array_equal(Z, copies[0])
    np.testing.assert_array_equal(y, copies[1])
    with pytest.raises(ValueError, match="read-only"):
        many.coefficients[0] = 0


def with_nan(array, *place):
    array = array.copy()
    array[place] = np.nan
    return array


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda Z, y: la.fit_many(Z[0], y), r"^Z: tokens of shape \(B, N, n, d\)"),
        (lambda Z, y: la.fit_many(Z[:, :0], y[:, :0]), "^Z: tokens of shape"),
        (lambda Z, y: la.fit_many(Z, y[:-1]), r"^y: shape \(7, 120\) or \(7, 120, 'd_out'\)"),
        (lambda Z, y: la.fit_many(Z, y, positions="all"), r"^y: shape \(7, 120, 5\)"),
        (lambda Z, y: la.fit_many(Z, with_nan(y, 2, 3, 1)), r"^y: must be finite, got nan at \[2"),
        (lambda Z, y: la.fit_many(with_nan(Z, 2, 3, 1), y), r"^Z: .*\(in problem 2\)$"),
        (lambda Z, y: la.fit_many(Z, y, alpha=-1.0), "^alpha: must be finite and not negative"),
        (lambda Z, y: la.fit_many(Z, y, alpha=[1.0, 2.0]), r"^alpha: a number or shape \(7,\)"),
        (lambda Z, y: la.fit_many(Z, y, positions="first"), "^positions: "),
        (lambda Z, y: la.fit_many(Z, y, features=la.Features(4)), "^features: "),
    ],
)
def test_errors_name_the_argument(rng, call, message):
    with pytest.raises(ValueError, match=message):
        call(*problems(rng))


@pytest.mark.parametrize("alpha", [True, "1.0", None])
def test_a_ridge_is_a_number(rng, alpha):
    with pytest.raises(TypeError, match="^alpha: a real number"):
        la.fit_many(*problems(rng), alpha=alpha)
