"""Chosen features: everything as with all of them, restricted to their rows and columns."""

import pickle

import numpy as np
import pytest
from conftest import home, ragged, rows_of, targets_for
from hypothesis import given
from hypothesis import strategies as st
from oracles import loops
from oracles.exact import Exact, root

import linattn_fast as la
from linattn_fast.arrays.device import put
from linattn_fast.data.tokens import as_tokens

POSITIONS = ["last", "all", "causal"]
SOME = la.Features(4, pairs=[(0, 1), (1, 1), (3, 2), (0, 3)], queries=[2, 0])


def some_sequences(rng, N=70):
    return ragged(rng, N, 4, longest=6)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("features", [SOME, la.Features(4, queries=[1]), la.Features(4, [(2, 2)])])
def test_moments_are_rows_and_columns_of_all_moments(rng, backend, positions, precision, features):
    sequences, w = some_sequences(rng, 600), rng.random(600)
    y = targets_for(rng, sequences, positions)
    options = {"positions": positions, "backend": backend, "precision": precision}
    every = la.Moments(4, 2, **options).update(sequences, y, sample_weight=w)
    some = la.Moments(4, 2, features=features, **options).update(sequences, y, sample_weight=w)
    i = loops.columns(features)
    assert some.dimension == len(i)
    gram, cross = home(some.gram()), home(every.cross())
    expected = home(every.gram())[np.ix_(i, i)]
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    tolerance = 1e-12 if precision == "float64" else 1e-4
    assert (np.abs(gram - expected) <= tolerance * size).all()
    np.testing.assert_allclose(home(some.cross()), cross[i], atol=1e-11 * np.abs(cross).max())
    np.testing.assert_allclose(home(some.gram_diagonal()), np.diag(gram), rtol=1e-15)
    x = rng.standard_normal((len(i), 3))
    product = home(some.gram_times(put(x, like=some)))
    np.testing.assert_allclose(product, gram @ x, rtol=1e-9, atol=1e-9 * size.max())


def test_a_choice_of_everything_is_no_choice(rng):
    Z = rng.standard_normal((50, 5, 3))
    pairs = [(k, j) for j in range(3) for k in range(j, 3)][::-1]
    chosen = la.Features(3, pairs, [2, 1, 0])
    assert chosen == la.Features(3)
    assert chosen.everything
    for positions in POSITIONS:
        a = la.Moments(3, 0, positions=positions, features=chosen).update(Z)
        b = la.Moments(3, 0, positions=positions).update(Z)
        np.testing.assert_array_equal(a.sums.gram, b.sums.gram)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "dual"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_fits_are_least_squares_on_the_chosen_features(rng, positions, solver, alpha):
    sequences, w = some_sequences(rng), rng.random(70) + 0.1
    y = targets_for(rng, sequences, positions)
    settings = {"positions": positions, "features": SOME, "solver": solver, "alpha": alpha}
    fit = la.fit(sequences, y, sample_weight=w, **settings)
    H = loops.all_features(sequences, positions)[:, loops.columns(SOME)]
    rows, weights = rows_of(y, positions), loops.per_sample(w, sequences, positions)
    Lambda = (H * weights[:, None]).T @ H / weights.sum() + alpha * np.eye(SOME.count)
    expected = np.linalg.solve(Lambda, (H * weights[:, None]).T @ rows / weights.sum()).T
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-9, atol=1e-9)
    assert fit.features == SOME
    assert fit.info.dimension == SOME.count
    # Heads are those coefficients with zeros elsewhere, and predict as the fit does.
    full = np.zeros((2, 40))
    full[:, loops.columns(SOME)] = fit.coefficients
    np.testing.assert_allclose(fit.heads.coefficients(), full, atol=1e-9)
    predicted = np.concatenate([np.atleast_2d(part) for part in fit.predict(sequences)])
    np.testing.assert_allclose(predicted, H @ fit.coefficients.T, rtol=1e-9, atol=1e-9)


def test_few_samples_take_the_dual_and_count_the_chosen_features(rng):
    sequences = some_sequences(rng, SOME.count - 1)
    fit = la.fit(sequences, rng.standard_normal(len(sequences)), features=SOME)
    assert fit.info.solver == "dual"
    assert fit.certificate.verdict == "not identifiable"
    assert fit.certificate.dimension == SOME.count
    assert fit.certificate.covers(sequences).all()
    assert not fit.certificate.covers(some_sequences(rng, 5)).any()


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_certificate_is_that_of_the_chosen_features(rng, backend, positions):
    sequences, w = some_sequences(rng), rng.random(70) + 0.1
    certificate = la.certify(
        sequences, positions=positions, features=SOME, sample_weight=w, backend=backend
    )
    exact = Exact.of(sequences, positions, w, SOME)
    assert certificate.verdict == "identifiable"
    assert 0.99 * certificate.lambda_min < certificate.lower_bound
    assert exact.exceeds(certificate.lower_bound)
    assert not exact.exceeds(1.001 * certificate.lambda_min)
    expected = [root(exact.leverage(h, exact.unit)) ** 2 for h in exact.features]
    leverage = home(certificate.leverage(sequences))
    found = np.concatenate([np.atleast_1d(part) for part in leverage])
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert all(
        "with query x0" in said or "with query x2" in said for said in certificate.explain(3)
    )


@pytest.mark.parametrize("positions", POSITIONS)
def test_sizes_of_summands_are_those_that_the_whole_gram_has(rng, positions):
    sequences, w = some_sequences(rng), rng.random(70)
    every = la.Moments(4, 0, positions=positions).update(sequences, sample_weight=w)
    some = la.Moments(4, 0, positions=positions, features=SOME).update(sequences, sample_weight=w)
    expected = every.summand_sizes()[loops.columns(SOME)]
    np.testing.assert_allclose(some.summand_sizes(), expected, rtol=1e-12)


def test_a_false_bound_would_be_found(rng):
    """Cancellation in S, with the pairs that would show it left out."""
    features = la.Features(2, pairs=[(0, 1)], queries=[0, 1])
    for _ in range(20):
        z = rng.standard_normal((20, 3, 2))
        Z = np.concatenate([1e8 * z, 1e8 * z * [1, -1], rng.standard_normal((20, 1, 2))], axis=1)
        certificate = la.certify(Z, features=features)
        if certificate.lower_bound:
            assert Exact.of(Z, features=features).exceeds(certificate.lower_bound)


def test_merging_pickling_and_files_keep_the_choice(rng, tmp_path):
    sequences = some_sequences(rng)
    y = rng.standard_normal(70)
    whole = la.Moments(4, 1, features=SOME).update(sequences, y)
    halves = la.Moments(4, 1, features=SOME).update(sequences[:30], y[:30])
    halves = halves + la.Moments(4, 1, features=SOME).update(sequences[30:], y[30:])
    np.testing.assert_allclose(halves.gram(), whole.gram(), rtol=1e-12)
    np.testing.assert_allclose(halves.magnitudes, whole.magnitudes, rtol=1e-12)
    whole.save(tmp_path / "moments.npz")
    for copy in (la.Moments.load(tmp_path / "moments.npz"), pickle.loads(pickle.dumps(whole))):
        assert copy.features == SOME
        np.testing.assert_array_equal(copy.gram(), whole.gram())
        assert la.certify(copy) == la.certify(whole)
    fit = whole.fit()
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    assert again.features == SOME
    assert again.certificate == fit.certificate
    np.testing.assert_array_equal(again.predict(sequences), fit.predict(sequences))
    with pytest.raises(ValueError, match="features: moments to merge must agree"):
        whole + la.Moments(4, 1)


def test_active_features_of_one_hot_tokens_lose_nothing(rng):
    d = 12
    groups = [rng.integers(0, 4, (60, 5)), 4 + rng.integers(0, 4, (60, 5))]
    Z = np.eye(d)[groups[0]] + np.eye(d)[groups[1]]  # coordinates 8 to 11 never occur
    Z[:, -1, 3] = 0.0  # never a query, though it occurs
    y = rng.standard_normal((60, 1))
    features = la.Features.active(Z)
    assert 3 not in features.queries
    assert features.count < la.Features(d).count / 4
    assert set(features.queries) == set(np.flatnonzero(Z[:, -1].any(axis=0)))
    every = la.cubic_features(Z)
    assert set(np.flatnonzero(every.any(axis=0))) <= set(loops.columns(features))
    some, full = la.fit(Z, y, features=features, heads=None), la.fit(Z, y, heads=None)
    np.testing.assert_allclose(some.predict(Z), full.predict(Z), atol=1e-9)
    np.testing.assert_allclose(features.expand(some.coefficients), full.coefficients, atol=1e-9)
    assert la.Features.active(Z, positions="causal").n_queries == 8
    with pytest.raises(ValueError, match="every feature is zero"):
        la.Features.active(np.zeros((2, 3, 2)))


@given(
    pairs=st.sets(st.integers(0, 9), min_size=1),
    queries=st.sets(st.integers(0, 3), min_size=1),
    seed=st.integers(0, 99),
)
def test_any_choice_gives_its_part_of_the_gram(pairs, queries, seed):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((9, 3, 4))
    j, k = np.triu_indices(4)
    numbers = sorted(pairs)
    features = la.Features(4, np.stack([k[numbers], j[numbers]], axis=1), sorted(queries))
    np.testing.assert_array_equal(features.pair_numbers, numbers)
    H = la.cubic_features(Z)[:, loops.columns(features)]
    found = la.Moments(4, 0, features=features).update(Z).gram()
    np.testing.assert_allclose(found, H.T @ H, rtol=1e-9, atol=1e-12 * np.abs(H).max() ** 2)


def test_wrong_choices_are_named():
    with pytest.raises(ValueError, match=r"pairs: numbers from 0 to 2 are needed, got 0 to 3"):
        la.Features(3, pairs=[(0, 3)])
    with pytest.raises(ValueError, match=r"pairs: an array \(m, 2\) is needed"):
        la.Features(3, pairs=[(0, 1, 2)])
    with pytest.raises(ValueError, match=r"pairs: each may be given once, got 1 twice"):
        la.Features(3, pairs=[(0, 1), (1, 0)])
    with pytest.raises(ValueError, match=r"queries: an array \(m,\) is needed"):
        la.Features(3, queries=[])
    with pytest.raises(TypeError, match=r"queries: whole numbers are needed, got dtype float64"):
        la.Features(3, queries=[0.5])
    with pytest.raises(ValueError, match="d: must be at least 1, got 0"):
        la.Features(0)
    Z = np.ones((9, 3, 2))
    with pytest.raises(ValueError, match="features: they are for d = 3, but the tokens have d = 2"):
        la.fit(Z, np.ones(9), features=la.Features(3))
    with pytest.raises(TypeError, match="features: Features or None is needed, got list"):
        la.Moments(2, 0, features=[(0, 1)])
    assert "4 of 10 pairs, 2 of 4 queries: 8 features" in repr(SOME)
    assert hash(SOME) == hash(la.Features(4, SOME.pairs, SOME.queries))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_of_few_pairs_are_columns_of_all_samples(rng, dtype):
    tokens = as_tokens(rng.standard_normal((150, 5, 8)).astype(dtype))
    few = la.Features(8, pairs=[(0, 1), (7, 7), (3, 6)], queries=[5, 1])
    s, z = few.samples(tokens)
    every_s, every_z = la.Features(8).samples(tokens)
    np.testing.assert_allclose(s, every_s[:, few.pair_numbers], rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(z, every_z[:, few.queries])


@pytest.mark.parametrize("positions", ["last", "causal", "all"])
def test_what_the_data_never_has_is_not_covered(positions):
    """Features left out because they are zero in the data, unlike those left out by choice."""
    Z = np.eye(4)[[[0, 1, 2], [2, 1, 2], [0, 0, 1]]]
    active = la.Features.active(Z, positions=positions)
    assert active.others_are_zero
    new = [
        Z[0],
        np.array([[1.0, 1, 0, 0], [0, 0, 1, 0]]),  # x0 and x1 in one token
        np.array([[1.0, 1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, 0]]),  # whose products cancel
        np.eye(4)[[0, 3]],  # x3 asks
        np.eye(4)[[1, 0]],  # x0 asks, which is there in the data, but never the last token
        np.array([[1.0, 1, 0, 0], [0, 0, 0, 0]]),  # nothing asks
    ]
    beyond = []
    for z in new:
        features = (z.T @ z)[:, :, None] * z[-1]  # S[j,k] z[l], the obvious way
        for j, k in active.pairs:
            features[j, k, active.queries] = features[k, j, active.queries] = 0.0
        beyond.append(features.any())
    assert beyond == [False, True, False, True, positions == "last", False]
    by_choice = la.certify(
        Z, positions=positions, features=la.Features(4, active.pairs, active.queries)
    )
    unseen = la.certify(Z, positions=positions, features=active)
    covered, residual = unseen.covers(new, positions="last", return_residual=True)
    np.testing.assert_array_equal(
        covered, by_choice.covers(new, positions="last") & ~np.array(beyond)
    )
    assert covered.any()
    np.testing.assert_array_equal(residual[beyond], 1.0)
    leverage = unseen.leverage(new, positions="last")
    np.testing.assert_array_equal(np.isinf(leverage), ~covered)
    np.testing.assert_array_equal(
        leverage[covered], by_choice.leverage(new, positions="last")[covered]
    )
    assert np.isinf(unseen.error_bound(new, 1.0, positions="last")[beyond]).all()


def test_files_and_pickles_know_that_the_others_are_zero(tmp_path):
    Z = np.eye(4)[[[0, 1, 2], [2, 1, 2], [0, 0, 1]]]
    new = np.eye(4)[[[0, 3]]]  # x3 asks
    for features in (la.Features.active(Z), SOME):
        moments = la.Moments(4, 0, features=features).update(Z)
        moments.save(tmp_path / "moments.npz")
        for copy in (
            la.Moments.load(tmp_path / "moments.npz"),
            pickle.loads(pickle.dumps(moments)),
        ):
            assert copy.features.others_are_zero == features.others_are_zero
            np.testing.assert_array_equal(
                la.certify(copy).covers(new), la.certify(moments).covers(new)
            )
    assert not la.certify(Z, features=la.Features.active(Z)).covers(new).any()
