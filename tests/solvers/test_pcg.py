"""Conjugate gradients without a Gram: the same answers as from the features written out."""

import numpy as np
import pytest
import scipy.linalg
from conftest import EPS, needs_cpu, plant, relative, rows_of, targets_for
from oracles import loops
from oracles.batches import samples_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.solvers.conjugate_gradients.iteration import conjugate_gradients
from linattn_fast.solvers.conjugate_gradients.least_eigenvalue import Probe
from linattn_fast.solvers.conjugate_gradients.pcg import solve_pcg
from linattn_fast.solvers.conjugate_gradients.whitening import whiten

SOME = la.Features(4, pairs=[(0, 1), (1, 1), (3, 2), (0, 3)], queries=[2, 0])


def operator_of(Z, y, backend="auto", positions="last", features=None):
    tokens = as_tokens(Z)
    targets = as_targets(y, tokens, positions)
    chosen = la.Features(tokens.d) if features is None else features
    return get_backend(backend).normal_operator(
        samples_of(tokens, targets, None, positions, chosen), keep=True
    )


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
    w = rng.random(150) if weighted else None
    y = targets_for(rng, sequences, positions, 3)
    settings = {"positions": positions, "alpha": alpha, "features": features, "backend": backend}
    fit = la.fit(sequences, y, sample_weight=w, solver="pcg", heads=None, **settings).get()
    H = loops.all_features(sequences, positions)
    if features is not None:
        H = H[:, loops.columns(features)]
    rows = rows_of(y, positions)
    weights = loops.per_sample(w if weighted else np.ones(150), sequences, positions)
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
    y = rng.standard_normal((len(Z), 3))  # two outputs of two tokens would look transposed
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
    y = rng.standard_normal((len(Z), 3))
    least = np.linalg.norm(la.fit(Z, y, solver="pcg", heads=None).coefficients)
    monkeypatch.setattr(
        Probe, "random", lambda coordinates, _: Probe(np.zeros((1, *coordinates.shape)), done=True)
    )
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
        assert relative(asked.coefficients[a], full.coefficients[a]) < tol
    if tol > 1e-10:  # with a ridge, what the bound costs is more than so small an error saves
        assert asked.info.iterations < full.info.iterations
    # Rounding leaves the bound on scaled tokens at 1e-10, however long the iteration
    assert asked.info.coefficient_error <= max(tol, 1.1 * full.info.coefficient_error)
    missed = asked.info.coefficient_error > tol
    assert (f"not the {tol:.1e} asked for" in asked.info.reason) == missed
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
