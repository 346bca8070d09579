"""The reduced objective, its gradient and its normal matrix, against the dense definitions."""

from fractions import Fraction

import numpy as np
import pytest
from conftest import EPS, needs_cpu

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.arrays.compiled import core
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.softmax.descent.best_values import solve_values
from linattn_fast.softmax.descent.normal_matrix import normal_matrix, reference_query_sums
from linattn_fast.softmax.descent.objective import Objective
from linattn_fast.softmax.descent.quasi_newton import _Evaluations
from linattn_fast.softmax.evidence.identifiability import identifiability
from linattn_fast.softmax.examples.groups import Examples
from linattn_fast.softmax.layer.attention import attention, read, sensitivities
from linattn_fast.softmax.layer.planted import planted_layer, uniform_tokens

engines = pytest.mark.parametrize(
    "compiled", [pytest.param(True, marks=needs_cpu), False], ids=["cpu", "numpy"]
)


def objective(X, Y, *, compiled: bool = True) -> Objective:
    tokens = as_tokens(X)
    return Objective(Examples.of(tokens, as_targets(Y, tokens, "all")), compiled=compiled)


@pytest.fixture
def ragged(rng):
    """Sequences of several lengths with targets that no layer has."""
    X = [rng.standard_normal((k, 3)) for k in (4, 2, 5, 4, 3, 2, 6, 1)]
    return X, [rng.standard_normal((len(x), 2)) for x in X]


def outputs(problem: Objective, Theta, W):
    """F for fixed W, one row a query in the objective's order."""
    parts = [read(attention(g.x, Theta), g.x) for g in problem.examples.groups]
    return np.concatenate(parts) @ W.reshape(-1, W.shape[2])


def jacobian(problem: Objective, Theta, W):
    """Central differences of the outputs by Theta, (queries d_out, unknowns)."""
    step, columns = 1e-6, []
    for i in range(Theta.size):
        move = np.zeros(Theta.size)
        move[i] = step
        ahead, back = (outputs(problem, Theta + s * move.reshape(Theta.shape), W) for s in (1, -1))
        columns.append(((ahead - back) / (2 * step)).reshape(-1))
    return np.stack(columns, axis=1)


def test_the_gradient_is_that_of_the_reduced_objective(rng, ragged):
    problem = objective(*ragged)
    Theta = rng.standard_normal((2, 3, 3))
    gradient = problem.at(Theta).gradient()
    for _ in range(5):
        way = rng.standard_normal(Theta.shape)
        ahead, back = (problem.at(Theta + s * 1e-5 * way).loss for s in (1, -1))
        # The third derivative times step^2, and rounding over the step
        assert abs((ahead - back) / 2e-5 - np.sum(gradient * way)) < 1e-8


def test_lbfgs_goes_down_on_the_logarithm_with_its_gradient(rng, ragged):
    evaluate = _Evaluations(objective(*ragged), (2, 3, 3))
    Theta, way = rng.standard_normal(18), rng.standard_normal(18)
    value, gradient = evaluate(Theta)
    assert value == np.log(objective(*ragged).at(Theta.reshape(2, 3, 3)).loss)
    ahead, back = (evaluate(Theta + s * 1e-5 * way)[0] for s in (1, -1))
    assert abs((ahead - back) / 2e-5 - gradient @ way) < 1e-8 * max(1, np.abs(gradient).max())


def test_sensitivities_are_the_covariance_times_the_values(rng):
    X, layer = rng.standard_normal((4, 5, 3)) + 2, planted_layer(rng, 2, 3, d_out=4, logits=2.0)
    P = attention(X, layer.Theta)
    G = sensitivities(P, X, read(P, X), layer.W).reshape(4, 5, 4, 2, 3)
    for n in range(4):
        for i in range(2):
            for b in range(5):
                mean = P[i, n, b] @ X[n]
                covariance = (X[n].T * P[i, n, b]) @ X[n] - np.outer(mean, mean)
                assert np.abs(G[n, b, :, i].T - covariance @ layer.W[i]).max() < 1e-12


@engines
def test_the_normal_matrix_is_that_of_the_projected_jacobian(rng, ragged, compiled):
    problem = objective(*ragged, compiled=compiled)
    Theta = rng.standard_normal((2, 3, 3))
    point = problem.at(Theta)
    J = jacobian(problem, Theta, point.W)
    B = np.kron(point.B, np.eye(2))  # rows (query, output)
    projected = J - B @ np.linalg.lstsq(B, J, rcond=None)[0]
    normal = normal_matrix(point)
    size = np.abs(J.T @ J).max()
    assert np.abs(normal.H - projected.T @ projected).max() < 1e-7 * size
    assert np.abs(normal.gradient - J.T @ point.known.residual.reshape(-1)).max() < 1e-7 * size
    assert np.allclose(normal.diagonal, np.diag(J.T @ J), rtol=1e-6)
    C = np.einsum("qr,qon->ron", point.B, J.reshape(-1, 2, Theta.size))
    assert np.abs(normal.cross - C).max() < 1e-7 * size


def test_standard_errors_are_those_of_the_whole_regression(rng):
    """cov = sigma^2 ([J, B]'[J, B])^-1 over Theta and W together."""
    X, Y = rng.standard_normal((40, 4, 3)), rng.standard_normal((40, 4, 2))
    problem = objective(X, Y)
    Theta = rng.standard_normal((2, 3, 3))
    point = problem.at(Theta)
    whole = np.hstack([jacobian(problem, Theta, point.W), np.kron(point.B, np.eye(2))])
    variance = np.sum(point.known.residual**2) / (len(whole) - whole.shape[1])
    expected = np.sqrt(variance * np.diag(np.linalg.inv(whole.T @ whole)))
    known = identifiability(point)
    found = np.concatenate([known.theta_errors.ravel(), known.value_errors.ravel()])
    assert np.allclose(found, expected, rtol=1e-5)


def test_a_head_without_values_is_free_in_every_direction(rng):
    """Its derivatives are rounding errors, which must not pass for small numbers."""
    truth, X = planted_layer(rng, 1, 3, logits=2.0), uniform_tokens(rng, 100, 4, 3)
    Theta = np.concatenate([truth.Theta, rng.standard_normal((1, 3, 3))])
    known = identifiability(objective(X, truth(X)).at(Theta))
    assert (known.theta_nullity, known.value_nullity) == (9, 0)
    assert np.isinf(known.theta_errors[1]).all()
    assert np.isfinite(known.theta_errors[0]).all()


@needs_cpu
@pytest.mark.parametrize("M", [1, 15, 256, 700, 1300])
@pytest.mark.parametrize(("d", "p", "d_out"), [(1, 1, 1), (3, 6, 2), (5, 5, 7), (9, 18, 3)])
def test_compiled_sums_are_those_of_numpy(rng, isa, M, d, p, d_out):
    x, A, G = (rng.standard_normal(s) for s in ((M, d), (M, p), (M, d_out, p)))
    shapes = (p * (p + 1) // 2, d * (d + 1) // 2), (p * d, d_out * p)
    start = [rng.standard_normal(shape) for shape in shapes]
    found, expected, sizes = ([each.copy() for each in start] for _ in range(3))
    compiled.add_query_sums(x, A, G, *found)
    reference_query_sums(x, A, G, *expected)
    reference_query_sums(np.abs(x), np.abs(A), np.abs(G), *sizes)
    for ours, theirs, size in zip(found, expected, sizes, strict=True):
        # Products of four numbers, summed over outputs and queries, on both sides
        assert (np.abs(ours - theirs) <= 2 * (4 + d_out + M) * EPS * (np.abs(size) + 5)).all()


@needs_cpu
def test_compiled_sums_have_the_same_bits_on_any_number_of_threads(rng):
    x, A, G = (rng.standard_normal(s) for s in ((3000, 7), (3000, 14), (3000, 5, 14)))
    results = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        out = [np.zeros((105, 28)), np.zeros((98, 70))]
        compiled.add_query_sums(x, A, G, *out)
        results.append(np.concatenate([each.ravel() for each in out]))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@needs_cpu
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((4, 3))}, "x, A, G: must have as many queries"),
        ({"G": np.zeros((5, 2, 5))}, "x, A, G: must have as many queries, and A and G one p"),
        ({"x": np.zeros(5)}, "x, A, G: must be"),
        ({"squares": np.zeros((20, 6))}, "squares: must be"),
        ({"cross": np.zeros((18, 11))}, "cross: must be"),
        ({"x": np.zeros((0, 3)), "A": np.zeros((0, 6)), "G": np.zeros((0, 2, 6))}, "not be empty"),
        ({"threads": 0}, "threads: must be between"),
    ],
)
def test_compiled_sums_check_what_they_are_given(change, message):
    given = {
        "x": np.zeros((5, 3)),
        "A": np.zeros((5, 6)),
        "G": np.zeros((5, 2, 6)),
        "squares": np.zeros((21, 6)),
        "cross": np.zeros((18, 12)),
        "threads": 1,
    }
    with pytest.raises(ValueError, match=message):
        core.add_query_sums(**{**given, **change})
    fixed = np.zeros((18, 12))
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        core.add_query_sums(**{**given, "cross": fixed})
    # a copy would be added to, and lost
    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.add_query_sums(**{**given, "squares": np.zeros((21, 6), np.float32)})


def test_values_are_least_squares(rng):
    B, Y = rng.standard_normal((40, 6)) * 10.0 ** np.arange(-3, 3), rng.standard_normal((40, 2))
    values = solve_values(B, Y)
    assert np.allclose(values.W, np.linalg.lstsq(B, Y, rcond=None)[0], rtol=1e-10)
    assert np.abs(B.T @ values.residual).max() < 1e-10
    assert values.gram.rank == 6


def test_nearly_dependent_columns_are_told_apart(rng):
    """Columns 2e-6 apart have an eigenvalue of 1e-12 in B'B; rounding ends at 100 p eps, 1e-13."""
    B = rng.standard_normal((40, 6))
    B[:, 1] = B[:, 0] + 2e-6 * rng.standard_normal(40)
    W = rng.standard_normal((6, 2))
    values = solve_values(B, B @ W)
    assert values.gram.rank == 6
    assert 1e11 < values.gram.condition < 1e14
    assert np.allclose(values.W, W, atol=1e-3)


def test_values_of_dependent_columns_have_the_least_norm(rng):
    B = rng.standard_normal((40, 3))
    B = np.concatenate([B, B[:, :2], np.zeros((40, 1)), 3 * B[:, 2:]], axis=1)
    Y = rng.standard_normal((40, 2))
    values = solve_values(B, Y)
    assert np.allclose(values.W, np.linalg.pinv(B) @ Y, atol=1e-10)
    assert values.gram.rank == 3
    assert np.isinf(values.gram.condition)
    assert np.abs(B @ values.gram.null).max() < 1e-6


def test_large_common_parts_of_tokens_lose_no_digits(rng):
    """Covariances are taken without them."""
    X, shift = uniform_tokens(rng, 30, 4, 3), np.array([1e4, -1e4, 1e4])
    Theta, W = np.zeros((1, 3, 3)), rng.standard_normal((1, 3, 2))
    P, far = attention(X, Theta), attention(X + shift, Theta)
    near = sensitivities(P, X, read(P, X), W)
    assert np.abs(sensitivities(far, X + shift, read(far, X + shift), W) - near).max() < 1e-9


def test_logits_are_rounded_as_differences_of_keys_are(rng):
    """Exact logits are 1e4 here, those of differences 10: softmax sees these alone."""
    X = uniform_tokens(rng, 5, 4, 3) + np.array([1e4, -1e4, 1e4])
    Theta = 1e-4 * rng.standard_normal((1, 3, 3))
    exact, form = (np.vectorize(Fraction, otypes=[object])(each) for each in (X, Theta[0]))
    for x, P in zip(exact, attention(X, Theta)[0], strict=True):
        logits = x @ form @ (x - x[0]).T
        # 2 d roundings of a sum of products of these sizes, and what exp makes of them
        bound = 6 * EPS * float((abs(x) @ abs(form) @ abs(x - x[0]).T).max())
        weights = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(float))
        expected = weights / weights.sum(axis=1, keepdims=True)
        assert np.abs(P - expected).max() < 2 * bound + 10 * EPS
        assert 2 * bound < 1e-2 * EPS * float(abs(x @ form @ x.T).max())
