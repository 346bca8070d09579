"""What the data determines, input by input, against brute force."""

import itertools
import pickle

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.features.features import Features

POSITIONS = ["last", "all", "causal"]


def features(Z, positions="last"):
    tokens = as_tokens(Z)
    return Features(tokens.d).of(tokens, positions)


def disagreement(train, queries, rng):
    """How much two different best fits differ at each query, relative to the size of its features.

    They differ by a random element of the null space of the training features.
    """
    scale = np.abs(train).max(axis=0)
    scale[scale == 0] = 1.0
    _, sigma, Vt = np.linalg.svd(train / scale)
    null = Vt[int((sigma > 1e-10 * sigma[0]).sum()) :]
    other = rng.standard_normal((4, len(null))) @ null / scale
    return np.abs(queries @ other.T).max(axis=1) / np.linalg.norm(queries / scale, axis=1)


def lines(rng, N, n, d):
    """Tokens of each sequence on one line: S has rank one."""
    return rng.standard_normal((N, n, 1)) * rng.standard_normal((N, 1, d))


def equal_pair(rng, N, n, d):
    Z = rng.standard_normal((N, n, d))
    Z[:, :, 1] = Z[:, :, 0]
    return Z


def one_hot(rng, N, n, d):
    return np.eye(d)[rng.integers(0, d, (N, n))]


def generic(rng, N, n, d):
    return rng.standard_normal((N, n, d))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("make", [lines, equal_pair, one_hot, generic])
@pytest.mark.parametrize("N", [9, 200])  # fewer samples than features, and more
@pytest.mark.parametrize("source", ["tokens", "moments", "fit"])
def test_covers_where_different_best_fits_agree(rng, positions, make, N, source):
    d = 3
    Z = make(rng, N, 4, d)
    queries = np.concatenate([Z[:5], make(rng, 5, 4, d), generic(rng, 5, 4, d)])
    if source == "tokens":
        certificate = la.certify(Z, positions=positions)
    elif source == "moments":
        certificate = la.certify(la.Moments(d, 0, positions=positions).update(Z))
    else:
        y = rng.standard_normal(N if positions == "last" else (N, 4))
        certificate = la.fit(Z, y, positions=positions).certificate
    covered, residual = certificate.covers(queries, return_residual=True)
    apart = disagreement(features(Z, positions), features(queries, positions), rng)
    np.testing.assert_array_equal(np.ravel(covered), apart < 1e-6)
    assert np.ravel(covered)[: 5 if positions == "last" else 20].all()  # the data itself
    assert (np.ravel(residual) <= 1).all()


def test_a_feature_that_no_sample_has_is_not_covered_however_small_it_is(rng):
    Z = generic(rng, 200, 4, 3)
    Z[:, :, 2] = 0.0
    moments = la.Moments(3, 1).update(Z, np.ones(200))
    new = Z[:5].copy()
    new[:, 0, 2] = 1e-30
    for certificate in (la.certify(Z), la.certify(moments), moments.fit(heads=None).certificate):
        assert certificate.covers(Z).all()
        assert not certificate.covers(new).any()


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_mixed_precision_covers_nothing(seed):
    """17 samples of 18 features: the last eigenvalue is one of rounding in float32."""
    rng = np.random.default_rng(seed)
    moments = la.Moments(3, 0, precision="mixed").update(rng.standard_normal((17, 4, 3)))
    assert not la.certify(moments).covers(rng.standard_normal((50, 4, 3))).any()


@pytest.mark.parametrize("positions", POSITIONS)
def test_leverage_is_that_of_the_pseudo_inverse_and_sums_to_the_rank(rng, positions):
    for Z in (generic(rng, 60, 5, 3), equal_pair(rng, 60, 5, 3), one_hot(rng, 60, 5, 3)):
        certificate = la.certify(Z, positions=positions)
        H = features(Z, positions)
        inverse = np.linalg.pinv(H.T @ H / len(H), rcond=1e-10, hermitian=True)
        expected = np.einsum("ij,jk,ik->i", H, inverse, H)
        found = np.ravel(certificate.leverage(Z))
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
        assert found.mean() == pytest.approx(certificate.rank, rel=1e-9)
    outside = certificate.leverage(generic(rng, 2, 5, 3))  # never seen by one-hot data
    assert np.isinf(outside).all()


def test_leverage_counts_weights(rng):
    Z, w = generic(rng, 60, 5, 2), rng.random(60)
    H = features(Z)
    Lambda = (H * w[:, None]).T @ H / w.sum()
    expected = np.einsum("ij,ij->i", H, np.linalg.solve(Lambda, H.T).T)
    np.testing.assert_allclose(la.certify(Z, sample_weight=w).leverage(Z), expected, rtol=1e-9)


def test_ragged_queries_come_back_in_their_form(rng):
    certificate = la.certify(generic(rng, 60, 5, 2))
    queries = [rng.standard_normal((n, 2)) for n in (3, 1, 4)]
    assert certificate.covers(queries).shape == (3,)
    by_token = certificate.leverage(queries, positions="causal")
    assert [len(part) for part in by_token] == [3, 1, 4]
    for z, part in zip(queries, by_token, strict=True):
        assert part[-1] == pytest.approx(certificate.leverage([z])[0], rel=1e-12)


def test_the_error_bound_holds_for_layers_that_fit_almost_as_well(rng):
    Z, queries = generic(rng, 100, 5, 2), generic(rng, 20, 5, 2)
    certificate = la.certify(Z)
    H, Q = features(Z), features(queries)
    eps = 0.1
    bound = certificate.error_bound(queries, eps)
    # The worst pair: C and -C with C proportional to Lambda^-1 h, both of error eps at target 0.
    Lambda = H.T @ H / len(H)
    for h, allowed in zip(Q, bound, strict=True):
        C = np.linalg.solve(Lambda, h)
        C *= np.sqrt(eps / np.mean((H @ C) ** 2))
        assert 2 * abs(C @ h) == pytest.approx(allowed, rel=1e-9)  # attained, so it is sharp
    np.testing.assert_allclose(bound, 2 * np.sqrt(eps * certificate.leverage(queries)))
    looser = 2 * np.sqrt(eps / certificate.lambda_min) * np.linalg.norm(Q, axis=1)
    assert (bound <= looser * (1 + 1e-9)).all()


def test_the_noise_bound_holds_as_often_as_it_says(rng):
    Z, queries = generic(rng, 80, 5, 2), generic(rng, 10, 5, 2)
    w = rng.random(80) + 0.5
    truth = la.Heads(rng.standard_normal((1, 1, 2)), rng.standard_normal((1, 2, 2)))
    certificate = la.certify(Z, sample_weight=w)
    bound = certificate.error_bound(queries, noise=0.5, confidence=0.9)
    missed = []
    for _ in range(200):
        y = truth(Z)[:, 0] + 0.5 * rng.choice([-1.0, 1.0], 80)  # the worst noise of its size
        fit = la.fit(Z, y, sample_weight=w, heads=None, certify=False)
        missed.append(np.abs(fit.predict(queries) - truth(queries)[:, 0]) > bound)
    assert np.mean(missed) < 0.1
    assert np.mean(missed) > 0  # not so loose that nothing could fail


def test_undetermined_inputs_have_no_bound_even_without_error(rng):
    certificate = la.certify(one_hot(rng, 300, 4, 3))
    assert np.isinf(certificate.error_bound(generic(rng, 1, 4, 3), 0.0)).all()
    assert certificate.error_bound(one_hot(rng, 300, 4, 3)[:1], 0.0).max() == 0


def test_arguments_are_checked(rng):
    certificate = la.certify(generic(rng, 60, 5, 2))
    Z = generic(rng, 2, 5, 2)
    with pytest.raises(ValueError, match="eps, noise: give one"):
        certificate.error_bound(Z)
    with pytest.raises(ValueError, match="eps, noise: give one"):
        certificate.error_bound(Z, 1.0, noise=1.0)
    with pytest.raises(ValueError, match=r"eps: .* got -1"):
        certificate.error_bound(Z, -1)
    with pytest.raises(ValueError, match=r"confidence: .* got 1"):
        certificate.error_bound(Z, noise=1.0, confidence=1)
    with pytest.raises(ValueError, match=r"tol: .* got 2"):
        certificate.covers(Z, tol=2)
    with pytest.raises(ValueError, match="d = 2"):
        certificate.covers(generic(rng, 2, 5, 3))
    with pytest.raises(ValueError, match="Z: must be finite, got nan"):
        certificate.covers(np.full((1, 2, 2), np.nan))
    with pytest.raises(ValueError, match="k: "):
        certificate.null_space(0)
    with pytest.raises(ValueError, match="names: 2 names are needed, got 1"):
        certificate.explain(1, names=["a"])


def test_a_certificate_without_its_moments_says_so(rng, tmp_path):
    fit = la.fit(generic(rng, 60, 5, 2), rng.standard_normal(60))
    fit.save(tmp_path / "fit.npz")
    for certificate in (
        la.load(tmp_path / "fit.npz").certificate,
        pickle.loads(pickle.dumps(fit.certificate)),
    ):
        assert certificate == fit.certificate
        with pytest.raises(ValueError, match=r"la\.certify\(moments\)"):
            certificate.covers(generic(rng, 1, 5, 2))


# ------------------------------------------------------------------------------------ directions


@pytest.mark.parametrize("make", [lines, equal_pair, one_hot])
@pytest.mark.parametrize("N", [9, 300])
def test_null_directions_change_no_training_prediction_and_span_all_such(rng, make, N):
    Z = make(rng, N, 4, 3)
    H = features(Z)
    rank = np.linalg.matrix_rank(H)
    certificate = la.certify(Z)
    null = certificate.null_space(18 - rank)
    assert null.shape == (18 - rank, 18)
    np.testing.assert_allclose(np.linalg.norm(null, axis=1), 1.0)
    assert np.abs(H @ null.T).max() < 1e-9 * np.abs(H).max()
    assert np.linalg.matrix_rank(null) == 18 - rank
    more = certificate.null_space(18)
    assert len(more) == 18
    assert np.abs(H @ more[18 - rank]).max() > 1e-6 * np.abs(H).max()


@pytest.mark.parametrize("d", [3, 10])  # dense and iterative
def test_weak_directions_are_those_of_small_eigenvalues(rng, d):
    Z = generic(rng, 1500, 5, d)
    p = d * d * (d + 1) // 2
    weakest = la.certify(Z).null_space(3)
    H = features(Z)
    scale = 2.0 ** -np.rint(np.log2((H**2).mean(axis=0)) / 2)
    A = (H * scale).T @ (H * scale) / len(H)
    values, vectors = np.linalg.eigh(A)
    assert weakest.shape == (3, p)
    units = weakest / scale
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    for x, value in zip(units, values[:3], strict=True):
        assert x @ A @ x == pytest.approx(value, rel=1e-6)
    assert abs(units[0] @ vectors[:, 0]) > 0.99


def test_explain_names_pairs_and_queries(rng):
    Z = generic(rng, 200, 5, 3)
    Z[:, -1, 2] = 0.0
    said = la.certify(Z).explain(3, names=["a", "b", "c"])
    assert said[0] == "tokens never vary along a*a with query c"
    assert said[1] == "tokens never vary along a*b with query c"
    # Six features that are all the same one: five differences vanish, and the words say which.
    said = la.certify(equal_pair(rng, 200, 5, 2)).explain(6)
    for each in said[:5]:
        left, right = each.removeprefix("tokens never vary along ").split(" - ")
        assert left != right
    assert said[5].startswith("tokens vary little along (x0*x0 + x0*x1 + x1*x1) with query x")
    assert " - " not in said[5]
    healthy = la.certify(generic(rng, 200, 5, 2)).explain(1)
    assert healthy[0].startswith("tokens vary little along ")
    assert "relative mean square" in healthy[0]


# ----------------------------------------------------------------------- the cases it was made for


def test_the_certificate_of_associative_memory_falls_to_zero_with_the_mixture(rng):
    def memory(N, orthonormal, noise=0.0):
        return la.datasets.associative_memory(N, orthonormal=orthonormal, noise=noise, seed=rng)

    lambdas, distances = [], []
    for mixture in (0.95, 0.97, 0.98, 1.0):
        Z, y, truth = memory(2**14, mixture, 0.01)
        fit = la.fit(Z, y, heads=None)
        lambdas.append(fit.certificate.lambda_min)
        distances.append(np.linalg.norm(fit.coefficients - truth.coefficients()))
        expected = "identifiable" if mixture < 1 else "not identifiable"
        assert fit.certificate.verdict == expected
    assert lambdas == sorted(lambdas, reverse=True)
    assert lambdas[-1] == 0
    # Identifiable but ever less: noise counts for ever more. Of orthonormal tables alone, the
    # solution of least norm does not go where there is nothing but noise.
    assert distances[:3] == sorted(distances[:3])
    assert distances[3] < distances[2]
    certificate = la.certify(Z)
    assert certificate.rank < certificate.dimension
    said = certificate.explain(certificate.dimension - certificate.rank)
    assert len(said) == certificate.dimension - certificate.rank
    assert all(each.startswith("tokens never vary along ") for each in said)
    assert any("with query x7" in each for each in said)  # values never query
    # Tables the data knows are covered, Gaussian ones are not.
    assert certificate.covers(memory(20, 1.0).Z).all()
    assert not certificate.covers(memory(20, 0.0).Z).any()


def automaton_steps(delta, word, states, symbols):
    """Sequences that end before each step of a run, and what comes next; all tokens one-hot.

    Table tokens (state x symbol, next), word tokens (position, symbol), then in turn tokens
    (position x state) and (position x state x symbol).
    """
    length = len(word)
    sizes = [states * symbols, states, length, symbols, (length + 1) * states]
    starts = np.cumsum([0, *sizes, length * states * symbols])
    d = starts[-1]

    def token(*places):
        return np.eye(d)[list(places)].sum(axis=0)

    tokens = [
        token(s * symbols + a, starts[1] + delta[s, a])
        for s in range(states)
        for a in range(symbols)
    ]
    tokens += [token(starts[2] + t, starts[3] + a) for t, a in enumerate(word)]
    state = 0
    tokens.append(token(starts[4]))
    steps = []
    for t, a in enumerate(word):
        read = token(starts[5] + (t * states + state) * symbols + a)
        steps.append((np.array(tokens), read))
        tokens.append(read)
        state = delta[state, a]
        moved = token(starts[4] + (t + 1) * states + state)
        steps.append((np.array(tokens), moved))
        tokens.append(moved)
    return steps


def test_a_universal_automaton_is_covered_exactly_where_best_fits_agree(rng):
    states, symbols, length = 2, 2, 2
    machines = [
        np.array(each).reshape(states, symbols)
        for each in itertools.product(range(states), repeat=states * symbols)
    ]
    words = list(itertools.product(range(symbols), repeat=length))
    runs = [automaton_steps(delta, word, states, symbols) for delta in machines for word in words]
    everything = [step for run in runs for step in run]
    all_features = features([z for z, _ in everything])
    truth = np.array([y for _, y in everything])
    seen_shares = []
    for n_runs in (3, 12, 40):
        chosen = rng.choice(len(runs), n_runs, replace=False)
        steps = [step for i in chosen for step in runs[i]]
        Z, y = [z for z, _ in steps], np.array([y for _, y in steps])
        fit = la.fit(Z, y, heads=None)
        assert fit.certificate.verdict == "not identifiable"
        covered = fit.certificate.covers([z for z, _ in everything])
        # Brute force on the features that ever occur.
        active = all_features.any(axis=0)
        apart = disagreement(features(Z)[:, active], all_features[:, active], rng)
        np.testing.assert_array_equal(covered, apart < 1e-8)
        right = np.abs(fit.predict([z for z, _ in everything]) - truth).max(axis=1) < 1e-6
        assert right[covered].all()  # no covered step is ever wrong
        seen_shares.append(covered.mean())
    assert seen_shares[0] < seen_shares[-1]
    assert seen_shares[0] < 1
