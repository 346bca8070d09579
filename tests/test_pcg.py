"""Conjugate gradients without a Gram: the same answers as from the features written out."""

import os
import signal
import threading
import time

import loops
import numpy as np
import pytest
import scipy.linalg
from conftest import EPS, needs_cpu, plant, run_python

import linattn_fast as la
from linattn_fast.backend import get_backend
from linattn_fast.choosing import predict
from linattn_fast.conjugate_gradients import conjugate_gradients
from linattn_fast.pcg import solve_pcg
from linattn_fast.tokens import as_targets, as_tokens
from linattn_fast.whitening import whiten

SOME = la.Features(4, pairs=[(0, 1), (1, 1), (3, 2), (0, 3)], queries=[2, 0])


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def operator_of(Z, y, backend="auto", positions="last", features=None):
    tokens = as_tokens(Z)
    targets = as_targets(y, tokens, positions)
    chosen = la.Features(tokens.d) if features is None else features
    return get_backend(backend).normal_operator(tokens, targets, None, positions, chosen, keep=True)


def least_squares(H, y, w, alpha):
    """The optimum, of least norm, by an orthogonal method."""
    root = np.sqrt(w / w.sum())[:, None]
    augmented = np.concatenate([root * H, np.sqrt(alpha) * np.eye(H.shape[1])])
    targets = np.concatenate([root * y, np.zeros((H.shape[1], y.shape[1]))])
    return scipy.linalg.lstsq(augmented, targets)[0].T


@pytest.mark.parametrize("alpha", [0.0, 1e-9, 1e-2, 10.0])
@pytest.mark.parametrize("features", [None, SOME])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_fit_is_the_least_squares_solution(rng, backend, positions, alpha, features, weighted):
    sequences = [rng.standard_normal((n, 4)) for n in rng.integers(1, 9, 150)]
    lengths = [len(z) for z in sequences]
    w = rng.random(150) if weighted else None
    y = [rng.standard_normal((n, 3)) for n in lengths]
    y = np.stack([rows[-1] for rows in y]) if positions == "last" else y
    fit = la.fit(
        sequences,
        y,
        positions=positions,
        alpha=alpha,
        sample_weight=w,
        features=features,
        solver="pcg",
        heads=None,
        backend=backend,
    ).get()
    H = loops.all_features(sequences, positions)
    if features is not None:
        H = H[:, (features.pair_numbers[:, None] * 4 + features.queries).ravel()]
    rows = y if positions == "last" else np.concatenate(y)
    weights = np.ones(150) if w is None else w
    weights = weights if positions == "last" else np.repeat(weights, lengths)
    expected = least_squares(H, rows, weights, alpha)
    assert relative(fit.coefficients, expected) < 1e-11
    error = weights @ ((rows - H @ expected.T) ** 2).sum(axis=1) / weights.sum()
    assert fit.info.mean_squared_error == pytest.approx(error, rel=1e-10)
    assert fit.info.mean_squared_target == pytest.approx(
        weights @ (rows**2).sum(axis=1) / weights.sum()
    )
    assert fit.info.solver == "pcg"
    assert fit.info.iterations > 0
    assert len(fit.info.refinements) > 0
    assert fit.info.refinements[-1] < 1e-7


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e3])
@pytest.mark.parametrize("rotated", [False, True])
def test_planted_coefficients_are_no_worse_than_those_of_an_svd(condition, rotated):
    """Features of condition up to 3e9, where a Gram has lost everything; the mean of 40 draws."""
    d = 6
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((600, 20, d)) * np.logspace(0, -np.log10(condition), d)
        if rotated:
            Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
        H = la.cubic_features(Z)
        C = rng.standard_normal((1, H.shape[1]))
        y = H @ C.T
        ours = solve_pcg(operator_of(Z, y), 0.0).solution
        theirs = scipy.linalg.lstsq(H, y)[0].T
        ratios.append(relative(ours.coefficients, C) / relative(theirs, C))
        assert relative(ours.coefficients, C) < 10 * EPS * np.linalg.cond(H)
    assert np.exp(np.mean(np.log(ratios))) < 1


def iterations_to(tolerance, Z, y):
    operator = operator_of(Z, y)
    whitening = whiten(operator.kronecker_factors(), operator.total_weight, 0.0, operator.features)
    gradient = operator.gradient(np.zeros((1, operator.features.count))).gradient
    right = whitening.transpose(gradient / operator.total_weight)
    state = conjugate_gradients(operator, whitening, 0.0, right, tolerance=tolerance, limit=500)
    assert state.converged
    return state.iterations


@pytest.mark.parametrize("d", [5, 8])
def test_iterations_do_not_depend_on_how_tokens_are_scaled_or_mixed(rng, d):
    p = d * d * (d + 1) // 2
    Z = rng.standard_normal((4 * p, 16, d))
    y = rng.standard_normal(4 * p)
    plain = iterations_to(1e-10, Z, y)
    mixed = iterations_to(1e-10, Z @ rng.standard_normal((d, d)), y)
    scaled = iterations_to(1e-10, Z * np.logspace(0, -2, d), y)
    assert max(plain, mixed, scaled) - min(plain, mixed, scaled) <= 1
    assert plain < 80


def degenerate_tokens(rng, kind):
    Z = rng.standard_normal((300, 6, 4))
    if kind == "duplicate":
        Z[:, :, 3] = Z[:, :, 0]
    elif kind == "multiple":
        Z[:, :, 3] = 3 * Z[:, :, 0] - Z[:, :, 1]
    elif kind == "zero":
        Z[:, :, 2] = 0
    elif kind == "constant":
        Z[:] = Z[:1]
    elif kind == "one-hot":
        Z = np.eye(4)[rng.choice(4, (300, 6), p=[0.4, 0.3, 0.2, 0.1])]
    return Z


@pytest.mark.parametrize("kind", ["duplicate", "multiple", "zero", "one-hot", "constant"])
def test_dependent_coordinates_give_the_solution_of_least_norm(rng, backend, kind):
    """Directions that the Kronecker factors do not have are never entered."""
    Z = degenerate_tokens(rng, kind)
    y = rng.standard_normal((len(Z), 2))
    fit = la.fit(Z, y, solver="pcg", heads=None, backend=backend).get()
    expected = scipy.linalg.lstsq(la.cubic_features(Z), y, cond=1e-11)[0].T
    assert relative(fit.coefficients, expected) < 1e-9
    assert fit.certificate.verdict != "identifiable"
    assert fit.certificate.lower_bound == 0


def tokens_with_null_directions(rng, kind):
    """Tokens of which A and B have full rank, but not Lambda; coordinates of unequal scale.

    So the shortest of all solutions is not the one that is shortest in whitened coordinates.
    """
    scale = np.array([1.0, 0.5, 2.0, 1.5])
    if kind == "few":  # 20 samples, 40 features
        return rng.standard_normal((20, 6, 4)) * scale
    if kind == "repeated":  # 300 samples, of which 30 differ
        return np.repeat(rng.standard_normal((30, 6, 4)), 10, axis=0) * scale
    if kind == "single":  # S = z z', so the features are symmetric in j, k and l: rank 20
        return rng.standard_normal((300, 1, 4)) * scale
    if kind == "query twice":  # z occurs in S only as z z' + z z'
        Z = rng.standard_normal((300, 1, 4)) * scale
        return np.concatenate([Z, Z], axis=1)
    assert kind == "all but one"  # one direction of 40 is missing
    Z = rng.standard_normal((39, 6, 4)) * scale
    return np.concatenate([Z, Z])


NULL_KINDS = ["few", "repeated", "single", "query twice", "all but one"]


@pytest.mark.parametrize("kind", NULL_KINDS)
def test_null_directions_of_the_second_moment_are_found_and_left_out(rng, backend, kind):
    Z = tokens_with_null_directions(rng, kind)
    H = la.cubic_features(Z)
    y = rng.standard_normal((len(Z), 2))
    operator = operator_of(Z, y, backend)
    whitening = whiten(operator.kronecker_factors(), operator.total_weight, 0.0, operator.features)
    rank = np.linalg.matrix_rank(H)
    assert rank < whitening.shape[0] * whitening.shape[1]  # what this is about
    fit = la.fit(Z, y, solver="pcg", heads=None, backend=backend).get()
    expected = scipy.linalg.lstsq(H, y, cond=1e-11)[0].T
    assert relative(fit.coefficients, expected) < 1e-9
    assert "least norm from plain iterations" in fit.info.reason
    assert fit.certificate.verdict != "identifiable"


@pytest.mark.parametrize("kind", NULL_KINDS)
def test_without_the_search_for_null_directions_the_solution_would_be_longer(
    rng, monkeypatch, kind
):
    """So the test above can fail."""
    Z = tokens_with_null_directions(rng, kind)
    y = rng.standard_normal((len(Z), 2))
    least = np.linalg.norm(la.fit(Z, y, solver="pcg", heads=None).coefficients)
    monkeypatch.setattr("linattn_fast.pcg._NULL", -1.0)
    other = la.fit(Z, y, solver="pcg", heads=None)
    assert "plain iterations" not in other.info.reason
    assert np.linalg.norm(other.coefficients) > 1.001 * least


def test_a_full_second_moment_is_not_taken_for_a_singular_one(rng):
    """With hardly more samples than features its least eigenvalue is small, but not zero."""
    Z = rng.standard_normal((44, 6, 4)) * [1.0, 0.5, 2.0, 1.5]
    y = rng.standard_normal(44)
    fit = la.fit(Z, y, solver="pcg", heads=None)
    assert "singular" not in fit.info.reason
    expected = scipy.linalg.lstsq(la.cubic_features(Z), y[:, None])[0].T
    assert relative(fit.coefficients, expected) < 1e-9


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("kind", ["iid", "scaled", "few samples a feature", "ridge"])
def test_an_accuracy_that_is_asked_for_is_reached_with_fewer_iterations(rng, tol, kind):
    d = 6
    Z = rng.standard_normal((180 if kind == "few samples a feature" else 600, 8, d))
    if kind == "scaled":
        Z = Z * np.logspace(0, -1, d) @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    y = np.stack([plant(rng, d, 1, 1)(Z)[:, 0], rng.standard_normal(len(Z))], axis=1)
    given = {"alpha": 0.01 if kind == "ridge" else 0.0, "heads": None, "certify": False}
    full = la.fit(Z, y, solver="pcg", **given)
    asked = la.fit(Z, y, solver=la.Pcg(tol=tol), **given)
    for a in range(2):
        assert relative(asked.coefficients[a], full.coefficients[a]) < 3 * tol
    assert asked.info.iterations < full.info.iterations
    assert "coefficients estimated to err by" in asked.info.reason
    assert asked.info.solver == "pcg"


def test_an_accuracy_is_confirmed_on_the_data(rng):
    """Where rounding is in the way of one solve, residuals from the data show it."""
    d = 6
    Z = rng.standard_normal((600, 20, d)) * np.logspace(0, -3, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    H = la.cubic_features(Z)
    C = rng.standard_normal((1, H.shape[1]))
    fit = la.fit(Z, H @ C.T, solver=la.Pcg(tol=1e-6), heads=None, certify=False)
    assert relative(fit.coefficients, C) < 1e-6
    assert len(fit.info.refinements) > 0


def test_no_accuracy_means_to_rounding(rng):
    Z, y = rng.standard_normal((300, 5, 4)), rng.standard_normal(300)
    given = {"heads": None, "certify": False}
    plain, same = (la.fit(Z, y, solver=s, **given) for s in ("pcg", la.Pcg()))
    np.testing.assert_array_equal(plain.coefficients, same.coefficients)


@pytest.mark.parametrize("tol", [0, 0.0, 1.0, -1e-8, float("nan")])
def test_a_tolerance_must_be_between_0_and_1(tol):
    with pytest.raises(ValueError, match="^tol: must be between 0 and 1, got"):
        la.Pcg(tol=tol)


@pytest.mark.parametrize("tol", [True, "small", 1j])
def test_a_tolerance_must_be_a_number(tol):
    with pytest.raises(TypeError, match="^tol: a real number or None is needed, got"):
        la.Pcg(tol=tol)


def test_auto_turns_to_pcg_where_cholesky_fails_and_orthogonal_transformations_do_not_fit(rng):
    d = 8
    Z = rng.standard_normal((1200, 12, d)) * np.logspace(0, -3, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    C = rng.standard_normal((1, la.Features(d).count))
    y = la.cubic_features(Z) @ C.T
    given = {"heads": None, "certify": False}
    roomy = la.fit(Z, y, **given)
    assert roomy.info.solver == "qr"
    estimate = la.estimate_memory(d, 1, n_samples=1200)
    limit = (max(estimate["cholesky"], estimate["pcg"]) + estimate["qr"]) // 2
    fit = la.fit(Z, y, memory_limit=limit, **given)
    assert fit.info.solver == "pcg"
    assert "orthogonal transformations do not fit" in fit.info.reason
    assert {"moments", "solve"} <= fit.info.seconds.keys()
    assert relative(fit.coefficients, C) < 10 * relative(roomy.coefficients, C)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_zero_tokens_and_zero_targets_give_the_zero_layer(rng, backend, alpha):
    for Z, y in ((np.zeros((30, 4, 2)), np.ones(30)), (rng.random((30, 4, 2)), np.zeros(30))):
        fit = la.fit(Z, y, solver="pcg", alpha=alpha, backend=backend)
        assert not fit.coefficients.any()


def test_outputs_of_different_difficulty_converge_each_for_itself(rng):
    Z = rng.standard_normal((400, 6, 4))
    truth = plant(rng, 4, 1, 1)
    y = np.stack([truth(Z)[:, 0], np.zeros(400), 1e12 * rng.standard_normal(400)], axis=1)
    fit = la.fit(Z, y, solver="pcg", heads=None)
    for a in range(3):
        alone = la.fit(Z, y[:, a], solver="pcg", heads=None).coefficients[0]
        assert np.linalg.norm(fit.coefficients[a] - alone) <= 1e-12 * np.linalg.norm(alone)


@needs_cpu
def test_fits_have_the_same_bits_for_every_number_of_threads(rng, positions):
    Z = rng.standard_normal((1500, 4, 5))
    y = rng.standard_normal((1500, 2) if positions == "last" else (1500, 4, 2))
    found = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        fit = la.fit(Z, y, positions=positions, solver="pcg", heads=None, certify=False)
        found.append(fit.coefficients)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@needs_cpu
def test_samples_are_kept_only_where_memory_allows(rng):
    Z, y = rng.standard_normal((5000, 4, 6)), rng.standard_normal(5000)
    least = la.estimate_memory(6, 1, n_samples=5000)["pcg"]
    given = {"solver": "pcg", "heads": None, "certify": False}
    kept, made = la.fit(Z, y, **given), la.fit(Z, y, memory_limit=least, **given)
    assert "samples kept" in kept.info.reason
    assert "samples made anew" in made.info.reason
    assert made.info.bytes == least < kept.info.bytes
    np.testing.assert_array_equal(kept.coefficients, made.coefficients)
    with pytest.raises(MemoryError, match=r"solver 'pcg', needs .* memory_limit is"):
        la.fit(Z, y, memory_limit=least - 1, **given)


@needs_cpu
@pytest.mark.skipif("LINATTN_SANITIZED" in os.environ, reason="sanitizers use memory themselves")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_memory_stays_within_the_estimate():
    outcome = run_python(
        """
import numpy as np, linattn_fast as la
Z = np.random.default_rng(0).standard_normal((20_000, 2, 20))
y = Z[:, 0, 0].copy()
given = {"solver": "pcg", "heads": None, "certify": False, "alpha": 1.0}
la.fit(Z[:, :, :3], y, **given)  # load everything that is loaded once
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
info = la.fit(Z, y, **given).info
print((peak() - before) * 1024, info.bytes, la.estimate_memory(20, n_samples=20_000)["cholesky"])
""",
        LINATTN_NUM_THREADS="2",
    )
    assert outcome.returncode == 0, outcome.stderr
    used, estimated, gram = map(int, outcome.stdout.split())
    assert used < estimated < gram / 2


def test_the_certificate_is_an_estimate_and_says_so(rng, positions):
    Z = rng.standard_normal((900, 5, 5))  # 75 features: an iteration, not a dense matrix
    y = np.zeros(900 if positions == "last" else (900, 5))
    y[0] = 1.0
    certificate = la.fit(Z, y, positions=positions, solver="pcg", heads=None).certificate
    proved = la.certify(Z, positions=positions)
    assert certificate.verdict == "undecided"
    assert "estimated" in certificate.evidence
    assert "nothing is proved" in certificate.evidence
    assert certificate.lower_bound == 0
    assert certificate.lambda_min == pytest.approx(proved.lambda_min, rel=1e-2)
    assert certificate.lambda_min >= proved.lower_bound
    assert certificate.condition == pytest.approx(proved.condition, rel=2e-2)
    assert certificate.rank == 75
    np.testing.assert_allclose(certificate.leverage(Z[:3]), proved.leverage(Z[:3]), rtol=1e-6)


def test_counting_and_zero_features_still_decide(rng):
    Z, y = rng.standard_normal((60, 5, 5)), rng.standard_normal(60)
    few = la.fit(Z, y, solver="pcg", heads=None).certificate
    assert few.verdict == "not identifiable"
    assert "proved by counting" in few.evidence
    Z = rng.standard_normal((400, 5, 5))
    Z[:, -1, 2] = 0
    zeros = la.fit(Z, np.ones(400), solver="pcg", heads=None).certificate
    assert zeros.verdict == "not identifiable"
    assert "15 of 75 features are zero" in zeros.evidence


def test_heads_are_recovered_and_files_stay_readable(rng, tmp_path):
    truth = plant(rng, 6, 2, 3)
    Z = rng.standard_normal((600, 10, 6))
    fit = la.fit(Z, truth(Z), solver="pcg")
    assert fit.heads.distance(truth) < 1e-10 * np.linalg.norm(truth.coefficients())
    assert len(fit.heads) == 2
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.coefficients, fit.coefficients)
    assert again.info == fit.info
    assert again.certificate == fit.certificate
    few = la.fit(Z, truth(Z), solver="pcg", heads=1)
    assert len(few.heads) == 1


def test_progress_tells_iterations_and_an_estimate_of_their_number(rng, capsys):
    Z, y = rng.standard_normal((300, 5, 4)), rng.standard_normal(300)
    seen = []
    given = {"solver": "pcg", "heads": None}
    fit = la.fit(Z, y, progress=lambda done, total: seen.append((done, total)), **given)
    assert [done for done, _ in seen[:-1]] == list(range(1, fit.info.iterations + 1))
    assert all(done <= total for done, total in seen)
    assert seen[-1] == (fit.info.iterations, fit.info.iterations)
    la.fit(Z, y, progress=True, **given)
    assert "residual=" in capsys.readouterr().err


def test_an_exception_from_the_callback_brings_the_iterate_along(rng):
    truth = plant(rng, 4, 1, 2)
    Z = rng.standard_normal((300, 5, 4))
    y = truth(Z)

    def stop(done, total):
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        la.fit(Z, y, solver="pcg", heads=None, progress=stop)
    assert relative(caught.value.iterate, truth.coefficients()) < 1e-3


@needs_cpu
@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_ctrl_c_stops_a_pass(rng):
    Z = rng.standard_normal((400_000, 2, 12)).astype(np.float32)
    y = rng.standard_normal(400_000)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()

    def fit_again_and_again():
        while True:
            la.fit(Z, y, solver="pcg", heads=None, certify=False)

    with pytest.raises(KeyboardInterrupt):
        fit_again_and_again()
    assert time.perf_counter() - start < 20
    timer.join()


def test_moments_alone_cannot_be_solved_so(rng):
    moments = la.Moments(2, 1).update(rng.standard_normal((20, 3, 2)), np.ones(20))
    with pytest.raises(ValueError, match="solver: 'pcg' needs the data"):
        moments.fit(solver="pcg")


def test_auto_takes_cholesky_for_small_problems_and_says_what_it_expected(rng):
    Z, y = rng.standard_normal((90, 5, 3)), rng.standard_normal(90)
    info = la.fit(Z, y).info
    assert info.solver == "cholesky"
    assert "s by PCG" in info.reason or "PCG needs" in info.reason


def test_auto_takes_pcg_where_a_gram_does_not_fit(rng):
    Z, y = rng.standard_normal((4000, 3, 12)), rng.standard_normal(4000)  # p = 936
    estimate = la.estimate_memory(12, 1, n_samples=4000)
    assert estimate["pcg"] < estimate["cholesky"]
    limit = (estimate["pcg"] + estimate["cholesky"]) // 2
    fit = la.fit(Z, y, memory_limit=limit, heads=None, certify=False)
    assert fit.info.solver == "pcg"
    assert "Cholesky needs" in fit.info.reason
    assert relative(fit.coefficients, la.fit(Z, y, heads=None).coefficients) < 1e-9


def test_the_cost_model_prefers_pcg_for_many_features_and_cholesky_for_few_samples_a_feature():
    large = predict(la.Features(32), 1, "last", 40_000, 40_000, proof=False)
    assert large.pcg < large.cholesky / 8
    small = predict(la.Features(8), 8, "last", 300, 300, proof=False)
    assert small.cholesky < small.pcg
    context = la.Features(101, pairs=[(k, 100) for k in range(101)], queries=range(100))
    chosen = predict(context, 1, "last", 50_000, 50_000, proof=False)
    assert chosen.pcg < chosen.cholesky / 10
