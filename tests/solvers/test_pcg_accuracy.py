"""What conjugate gradients say about their answer: its error, least norm, and that it fits best."""

import numpy as np
import pytest
import scipy.linalg
from conftest import EPS, relative
from oracles import loops
from oracles.batches import samples_of
from oracles.exact import exact_loss

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.solvers.conjugate_gradients.iteration import conjugate_gradients
from linattn_fast.solvers.conjugate_gradients.lanczos import Lanczos
from linattn_fast.solvers.conjugate_gradients.least_eigenvalue import Probe
from linattn_fast.solvers.conjugate_gradients.whitening import PlainCoordinates, whiten

GIVEN = {"heads": None, "certify": False}


def rows_of(Z, y, positions):
    """Features and targets, a row a query."""
    H = loops.all_features(list(Z), positions)
    return H, y if positions == "last" else y.reshape(len(H), -1)


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize("solver", ["pcg", la.Pcg(1e-6)])
@pytest.mark.parametrize("seed", range(6))
def test_repeated_sequences_with_noise_give_the_fit_of_least_norm(seed, solver, positions):
    """Three sequences, a thousand times each: rounding in null directions is not blown up."""
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((3, 4, 8))
    Z = np.repeat(few, 1000, axis=0)
    y = rng.standard_normal((3000, 1) if positions == "last" else (3000, 4, 1))
    fit = la.fit(Z, y, solver=solver, positions=positions, **GIVEN)
    H, _ = rows_of(few, y[:3], positions)
    means = y.reshape(3, 1000, -1).mean(axis=1).reshape(len(H), 1)  # of each feature vector
    expected = scipy.linalg.lstsq(H, means, cond=1e-11)[0].T
    assert relative(fit.coefficients, expected) < 1e-8
    assert fit.info.mean_squared_error <= fit.info.mean_squared_target


@pytest.mark.parametrize("solver", ["pcg", la.Pcg(1e-6)])
def test_few_samples_and_a_small_ridge_do_not_pass_for_an_accurate_fit(rng, solver):
    """A relative residual of 1e-9 goes with coefficients that are wrong as a whole."""
    d, N, alpha = 8, 100, 1e-5
    Z = rng.standard_normal((N, 8, d)) * np.linspace(1, 30, d)
    y = rng.standard_normal(N)
    H = la.cubic_features(Z)
    expected = H.T @ np.linalg.solve(H @ H.T + N * alpha * np.eye(N), y)
    fit = la.fit(Z, y, alpha=alpha, solver=solver, **GIVEN)
    assert relative(fit.coefficients[0], expected) > 1e-6  # what this is about
    assert fit.info.coefficient_error is None
    assert "accuracy of the coefficients unknown" in fit.info.reason


def some_problem(seed):
    """Tokens, targets, weights and a ridge: well or ill conditioned, singular, exact or noisy."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    p = d * d * (d + 1) // 2
    positions = str(rng.choice(["last", "all", "causal"]))
    N = max(1, int(rng.uniform(0, 4 * p)) // (1 if positions == "last" else n))
    Z = rng.standard_normal((N, n, d))
    kind = rng.choice(["iid", "scaled", "correlated", "one-hot", "dependent"])
    if kind == "scaled":
        Z = Z * np.logspace(0, rng.choice([1, 2, 3]), d)
    elif kind == "correlated":
        Z = Z[:, :, :1] + Z * 10.0 ** -rng.integers(1, 4)
    elif kind == "one-hot":
        Z = np.eye(d)[rng.integers(0, d, (N, n))]
    elif kind == "dependent":
        Z[:, :, -1] = 3 * Z[:, :, 0]
    if rng.random() < 0.3:
        Z = np.repeat(Z, 3, axis=0)
    H = loops.all_features(list(Z), positions)
    y = rng.standard_normal((len(H), 1))
    if rng.random() < 0.5:
        y = H @ rng.standard_normal((p, 1)) + y * rng.choice([0.0, 1e-3])
    w = rng.random(len(Z)) + 0.01 if rng.random() < 0.3 else None
    alpha = 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-12, 0)
    return Z, H, y, w, alpha, positions


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("solver", ["pcg", la.Pcg(1e-7)])
def test_what_is_said_of_a_fit_holds_on_random_problems(block, solver):
    """No error above its bound, no fit above the best one unless said, least norm where said."""
    known = 0
    for seed in range(40 * block, 40 * block + 40):
        Z, H, y, w, alpha, positions = some_problem(seed)
        shaped = y if positions == "last" else y.reshape(*Z.shape[:2], 1)
        fit = la.fit(
            Z, shaped, sample_weight=w, alpha=alpha, positions=positions, solver=solver, **GIVEN
        )
        weights = np.ones(len(H)) if w is None else np.repeat(w, len(H) // len(Z))
        root = np.sqrt(weights / weights.sum())[:, None]
        M = np.concatenate([root * H, np.sqrt(alpha) * np.eye(H.shape[1])])
        Y = np.concatenate([root * y, np.zeros((H.shape[1], 1))])
        best, _, rank, sigma = scipy.linalg.lstsq(M, Y, cond=1e-12)
        condition = sigma[0] / sigma[rank - 1] if rank else 1.0
        left, ours = (np.linalg.norm(Y - M @ C) for C in (best, fit.coefficients.T))
        size = np.linalg.norm(Y)
        # Of the reference: it is as exact as its singular values are apart
        own = 100 * EPS * condition * (1 + condition * left / max(size, 1e-300))
        assert ours <= size * (1 + 1e-12), seed
        error = fit.info.coefficient_error
        if error is not None:
            known += 1
            assert ours - left <= size * (error + 1e-9), seed
            off = np.linalg.norm(fit.coefficients.T - best)
            if own < 1e-3:
                assert off <= (error + own) * np.linalg.norm(best), seed
        else:
            assert "accuracy of the coefficients unknown" in fit.info.reason
        if "solution of least norm" in fit.info.reason and own < 1e-3:
            off = np.linalg.norm(fit.coefficients.T - best)
            assert off <= (1e-6 + own) * np.linalg.norm(best), seed
    assert known >= 20  # or nothing was tested


def test_directions_that_a_gram_of_pairs_loses_are_fitted_all_the_same(rng):
    """Pairs of singular values of 1e-8, which are nothing in their second moment."""
    Z = rng.standard_normal((60, 3, 2))
    Z = Z[:, :, :1] + 1e-4 * Z
    y = rng.standard_normal((60, 1))
    H = la.cubic_features(Z)
    best, without = (scipy.linalg.lstsq(H, y, cond=cond)[0].T for cond in (None, 1e-11))
    fit = la.fit(Z, y, solver="pcg", **GIVEN)
    assert "the data sees the others as well" in fit.info.reason
    # With coefficients of 1e11, H C in floats is itself off by 1e-4; so this is exact. Rounding
    # that moves outputs by eps |H| |C| = 1e-3 adds the square of that to the squared error.
    least = exact_loss(Z, y, best)
    assert exact_loss(Z, y, fit.coefficients) <= least * (1 + 1e-5)
    assert exact_loss(Z, y, without) > least * (1 + 1e-2)  # so these directions matter


@pytest.mark.parametrize("positions", ["last", "all"])
@pytest.mark.parametrize("coordinates", ["plain", "white"])
def test_the_least_eigenvalue_is_not_above_that_of_the_matrix(positions, coordinates):
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 5))
        p = d * d * (d + 1) // 2
        Z = rng.standard_normal((int(rng.integers(p // 2, 4 * p)), 3, d))
        tokens = as_tokens(Z * np.logspace(0, -rng.integers(0, 2), d))
        targets = as_targets(
            np.zeros((*Z.shape[:2], 1) if positions == "all" else len(Z)), tokens, positions
        )
        chosen = la.Features(d)
        operator = get_backend("numpy").normal_operator(
            samples_of(tokens, targets, None, positions, chosen), keep=True
        )
        W, alpha = operator.total_weight, float(rng.choice([0.0, 1e-3]))
        E = whiten(operator.kronecker_factors(), W, alpha, chosen)
        E = PlainCoordinates(p // d, d) if coordinates == "plain" else E
        basis = E.coefficients(np.eye(np.prod(E.shape)).reshape(-1, *E.shape))
        Lambda = operator.normal(np.eye(p)).product / W + alpha * np.eye(p)
        values = np.linalg.eigvalsh(basis @ Lambda @ basis.T)
        tried = Probe.random(E, Z)
        conjugate_gradients(operator, E, alpha, tried.b[:0], tolerance=1.0, limit=1000, probe=tried)
        assert tried.lower <= values[0] * (1 + 1e-9) + 1e-13 * values[-1]
        found += tried.lower > values[0] / 100
    assert found > 30  # nor is it nothing


def lanczos_of(K, b, steps):
    """Coefficients of conjugate gradients on K x = b, and the iterates."""
    found, x = Lanczos(), np.zeros(len(b))
    rest, direction, iterates = b.copy(), b.copy(), []
    for _ in range(steps):
        forward = K @ direction
        step = rest @ rest / (direction @ forward)
        x = x + step * direction
        new = rest - step * forward
        ratio = new @ new / (rest @ rest)
        rest, direction = new, new + ratio * direction
        found.add(float(step), float(ratio))
        iterates.append((x, rest))
    return found, iterates


@pytest.mark.parametrize("seed", range(10))
def test_an_eigenvalue_below_all_ritz_values_has_no_more_weight_than_is_said(seed):
    """For any right-hand side, and so that the bound is the least eigenvalue itself in the end."""
    rng = np.random.default_rng(seed)
    n = 40
    values = np.sort(10.0 ** rng.uniform(-4, 0, n))
    b = rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 0, n)
    K, weight = np.diag(values), b[0] ** 2 / (b @ b)
    bounds = [lanczos_of(K, b, k)[0].least_eigenvalue(weight) for k in range(n // 2)]
    assert all(bound <= values[0] * (1 + 1e-12) for bound in bounds)
    assert np.all(np.diff(bounds) >= -2 * values[0] / 64)  # places on a grid
    # What is said of a weight that is not there is false in the end
    more, rounds = 1e6 * weight, range(1, n)
    assert any(lanczos_of(K, b, k)[0].least_eigenvalue(more) > values[0] for k in rounds)


def test_nothing_is_said_of_weights_that_any_eigenvalue_could_have():
    assert Lanczos().least_eigenvalue(0.5) == 0
    one = Lanczos([2.0], [0.5])  # q(x) = 1 - 2 x, so that w <= 1 / (1 + 2 q(x)^2)
    assert one.least_eigenvalue(0.3) == 0
    assert one.least_eigenvalue(2 / 3) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("seed", range(10))
def test_the_energy_of_an_error_is_at_most_what_the_coefficients_say(seed, share):
    rng = np.random.default_rng(seed)
    n = 60
    values = 10.0 ** rng.uniform(-3, 0, n)
    b = rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 0, n)
    mu = share * values.min()
    _, iterates = lanczos_of(np.diag(values), b, 25)
    sharper = 0
    for k, (_, rest) in enumerate(iterates, 1):
        found = lanczos_of(np.diag(values), b, k)[0]
        energy, bound = (rest**2 / values).sum(), found.inverse_energy(mu) * (rest @ rest)
        assert energy <= bound * (1 + 1e-9)
        assert bound <= rest @ rest / mu * (1 + 1e-9)
        sharper += bound < 0.5 * rest @ rest / mu
    assert sharper > 10  # than what mu alone says


def test_residuals_that_were_replaced_as_a_whole_say_no_more_than_the_least_eigenvalue():
    found = Lanczos([1.0, 1.0], [0.5, 0.5])
    assert found.inverse_energy(0.1) < 10
    found.replaced = 0.2
    assert found.inverse_energy(0.1) == 10


@pytest.mark.parametrize("tol", [None, 1e-3, 1e-7])
@pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_small_eigenvalues_that_targets_do_not_show_are_not_overlooked(tol, distance):
    """Planted targets have next to no share in directions that the data hardly sees; C has."""
    known = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 5))
        p = d * d * (d + 1) // 2
        Z = np.tile(rng.standard_normal((p - 1, 5, d)), (5, 1, 1))  # one direction is missing
        Z = Z + distance * rng.standard_normal(Z.shape)
        C = rng.standard_normal((2, p))
        solver = "pcg" if tol is None else la.Pcg(tol)
        fit = la.fit(Z, la.cubic_features(Z) @ C.T, solver=solver, **GIVEN)
        if fit.info.coefficient_error is not None:
            known += 1
            for found, true in zip(fit.coefficients, C, strict=True):
                assert relative(found, true) <= fit.info.coefficient_error
    assert known or distance < 1e-3


@pytest.mark.parametrize("size", [1e-52, 1e-170])
def test_tokens_whose_features_underflow_raise(rng, backend, size):
    Z = size * rng.standard_normal((100, 4, 3))
    with pytest.raises(ValueError, match="^Z: values of .* underflow float64 in the squares"):
        la.fit(Z, np.ones(100), solver="pcg", backend=backend)


def test_underflow_in_a_stream_raises(rng):
    Z = 1e-52 * rng.standard_normal((100, 4, 3))
    batches = [(Z[:50], np.ones(50)), (Z[50:], np.ones(50))]
    with pytest.raises(ValueError, match="^Z: values of .* underflow float64 in the squares"):
        la.fit(batches, solver="pcg")


@pytest.mark.parametrize("size", [1e-200, 1e100])
def test_targets_of_any_size_have_coefficients_of_that_size(rng, size):
    Z, y = rng.standard_normal((200, 4, 3)), rng.standard_normal(200)
    plain = la.fit(Z, y, solver="pcg", **GIVEN).coefficients
    scaled = la.fit(Z, size * y, solver="pcg", **GIVEN).coefficients
    np.testing.assert_allclose(scaled, size * plain, rtol=1e-9)


def unclear_problem(rng):
    """Fewer sequences than features, of unequal scale: no solution of least norm without a Gram."""
    Z = np.repeat(rng.standard_normal((40, 4, 5)) * np.logspace(0, 5, 5), 4, axis=0)
    return Z, rng.standard_normal(len(Z))


def test_auto_factorises_where_conjugate_gradients_do_not_know_their_accuracy(rng, monkeypatch):
    Z, y = unclear_problem(rng)
    asked = la.fit(Z, y, solver="pcg", **GIVEN)
    assert asked.info.coefficient_error is None
    assert "one of many" in asked.info.reason
    fast = {"cholesky": 2.0, "pcg": 1.0}  # as if there were more features
    monkeypatch.setattr("linattn_fast.fitting.plan.predicted_seconds", lambda *_, **__: fast)
    fit = la.fit(Z, y, **GIVEN)
    assert fit.info.solver == "qr"
    assert "conjugate gradients took" in fit.info.reason
    expected = la.fit(Z, y, solver="qr", **GIVEN)
    assert relative(fit.coefficients, expected.coefficients) < 1e-9


def test_files_from_before_errors_were_bounded_still_load(rng, tmp_path):
    fit = la.fit(rng.standard_normal((90, 4, 3)), np.ones(90), solver="pcg")
    info = {name: value for name, value in vars(fit.info).items() if name != "coefficient_error"}
    assert type(fit.info)(**info).coefficient_error is None
    fit.save(tmp_path / "fit.npz")
    assert la.load(tmp_path / "fit.npz").info.coefficient_error == fit.info.coefficient_error
