"""Coordinates that know what rotations do to the features: fewer iterations, the same answers."""

import numpy as np
import pytest
from conftest import needs_cpu, relative
from oracles.batches import samples_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.solvers.conjugate_gradients import rotations
from linattn_fast.solvers.conjugate_gradients.expected import expected_iterations
from linattn_fast.solvers.conjugate_gradients.iteration import conjugate_gradients
from linattn_fast.solvers.conjugate_gradients.pcg import solve_pcg
from linattn_fast.solvers.conjugate_gradients.rotations import (
    Kinds,
    Rotations,
    Tensors,
    aware_of_rotations,
)
from linattn_fast.solvers.conjugate_gradients.whitening import whiten

D = 5
Q = D * (D + 1) // 2
P = Q * D


@pytest.fixture(autouse=True)
def small_problems_count(monkeypatch):
    monkeypatch.setattr(rotations, "WORTHWHILE", 0.0)


def operator_of(Z, y, backend="auto", features=None):
    tokens = as_tokens(Z)
    chosen = la.Features(tokens.d) if features is None else features
    samples = samples_of(tokens, as_targets(y, tokens, "last"), None, "last", chosen)
    return get_backend(backend).normal_operator(samples, keep=True)


class Counted:
    """An operator that counts its passes, but for the first one, for the factors."""

    def __init__(self, operator):
        self._operator, self.passes = operator, 0

    def __getattr__(self, name):
        return getattr(self._operator, name)

    def normal(self, C):
        self.passes += 1
        return self._operator.normal(C)

    def gradient(self, C):
        self.passes += 1
        return self._operator.gradient(C)


def both(operator, alpha=0.0):
    """Whitened coordinates, and those that know rotations, or None."""
    factors = operator.kronecker_factors()
    whitening = whiten(factors, operator.total_weight, alpha, operator.features)
    return whitening, aware_of_rotations(operator, factors, alpha, whitening)


def iterations(operator, coordinates, tolerance=1e-9):
    gradient = operator.gradient(np.zeros((1, operator.features.count))).gradient
    right = coordinates.transpose(gradient / operator.total_weight)
    state = conjugate_gradients(operator, coordinates, 0.0, right, tolerance=tolerance, limit=900)
    assert state.converged
    return state.iterations


def times(kinds):
    """The matrix of a product with all tensors, (P, P)."""
    unit = np.eye(P).reshape(P, Q, D)
    return Tensors(D, unit).times(kinds, unit).reshape(P, P)


def rotated(T, U):
    """T_jkl in orthonormal coordinates (Q, D), all its indices rotated by U."""
    j, k = np.triu_indices(D)
    weights = np.where(j == k, 1.0, np.sqrt(2.0))[:, None]
    full = np.zeros((D, D, D))
    full[j, k] = full[k, j] = T / weights
    return np.einsum("aj,bk,cl,jkl->abc", U, U, U, full)[j, k] * weights


def test_the_four_kinds_are_orthogonal_and_are_all_that_there_is():
    none, vectors = np.zeros((2, 2)), [np.diag([1.0, 0.0]), np.diag([0.0, 1.0])]
    kinds = [Kinds(1.0, 0.0, none), Kinds(0.0, 1.0, none)]
    projections = [times(kind) for kind in kinds + [Kinds(0.0, 0.0, V) for V in vectors]]
    for i, one in enumerate(projections):
        np.testing.assert_allclose(one, one.T, atol=1e-14)
        for j, other in enumerate(projections):
            np.testing.assert_allclose(one @ other, one if i == j else 0 * one, atol=1e-14)
    np.testing.assert_allclose(sum(projections), np.eye(P), atol=1e-14)
    symmetric = D * (D + 1) * (D + 2) // 6
    ranks = [symmetric - D, P - symmetric - D, D, D]
    assert [round(np.trace(one)) for one in projections] == ranks


def test_products_commute_with_rotations(rng):
    V = rng.standard_normal((2, 2))
    kinds, T = Kinds(2.0, 0.3, V + V.T), rng.standard_normal((Q, D))
    U = np.linalg.qr(rng.standard_normal((D, D)))[0]
    tensors = Tensors(D, T)
    first = rotated(tensors.times(kinds, T[None])[0], U)
    np.testing.assert_allclose(first, tensors.times(kinds, rotated(T, U)[None])[0], atol=1e-13)


def test_the_inverse_root_takes_a_product_twice_to_the_identity(rng):
    V = rng.standard_normal((2, 2))
    kinds = Kinds(2.0, 0.3, V @ V.T + np.eye(2))
    root = times(kinds.inverse_root())
    np.testing.assert_allclose(root @ times(kinds) @ root, np.eye(P), atol=1e-13)
    assert np.linalg.norm(times(kinds), 2) == pytest.approx(kinds.largest)
    assert kinds.least == pytest.approx(np.linalg.eigvalsh(times(kinds))[0])


@pytest.mark.parametrize("alpha", [0.0, 1e-9])
def test_the_map_has_the_transpose_norm_and_rows_that_it_says(rng, backend, alpha):
    Z = rng.standard_normal((4 * P, 4, D)) @ (np.eye(D) + 0.2 * rng.standard_normal((D, D)))
    _, E = both(operator_of(Z, rng.standard_normal(len(Z)), backend), alpha)
    assert isinstance(E, Rotations)
    place = E.whitening.left
    unit = type(place)(np.eye(P)) if backend == "cuda" else np.eye(P)
    matrix = E.coefficients(unit.reshape(P, Q, D)).T  # from v to C
    np.testing.assert_allclose(
        E.transpose(unit).reshape(P, P).T, matrix.T, atol=1e-12 * abs(matrix).max()
    )
    norm = np.linalg.norm(matrix, 2)
    assert norm <= E.norm * (1 + 1e-12) < 3 * norm
    squares = (matrix**2).sum(axis=1)
    assert (squares <= E.row_squares() * (1 + 1e-12)).all()


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("mixed", [False, True])
def test_gaussian_tokens_take_far_fewer_iterations(rng, n, mixed):
    """The fewer the tokens, the more the query is in S, and the further A (x) B is off."""
    Z = rng.standard_normal((12 * P, n, D))
    if mixed:
        Z = Z * np.logspace(0, 1, D) @ np.linalg.qr(rng.standard_normal((D, D)))[0]
    operator = operator_of(Z, rng.standard_normal(len(Z)))
    whitening, E = both(operator)
    before, after = iterations(operator, whitening), iterations(operator, E)
    assert after < {2: 0.6, 3: 0.65, 8: 0.85}[n] * before


OTHER_TOKENS = {
    "uniform": lambda rng, Z: rng.uniform(-1, 1, Z.shape),
    "student": lambda rng, Z: rng.standard_t(4, Z.shape),
    "scales": lambda rng, Z: Z * rng.uniform(0.2, 3, (len(Z), 1, 1)),
    "constant": lambda rng, Z: Z + np.arange(D),
}


@pytest.mark.parametrize("kind", OTHER_TOKENS)
def test_tokens_of_other_kinds_take_no_more_iterations_than_before(kind):
    before = after = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        Z = OTHER_TOKENS[kind](rng, rng.standard_normal((6 * P, 4, D)))
        operator = operator_of(Z, rng.standard_normal(len(Z)))
        whitening, E = both(operator)
        before += iterations(operator, whitening)
        after += iterations(operator, E)
    assert after <= 1.05 * before


@needs_cpu
@pytest.mark.parametrize("alpha", [0.0, 1e-3])
@pytest.mark.parametrize("tol", [None, 1e-7])
def test_the_answer_is_that_of_whitened_coordinates(rng, monkeypatch, alpha, tol):
    Z, y = rng.standard_normal((3 * P, 3, D)), rng.standard_normal((3 * P, 2))
    operator = operator_of(Z, y)
    found = solve_pcg(operator, alpha, tol=tol)
    monkeypatch.setattr(rotations, "WORTHWHILE", np.inf)
    expected = solve_pcg(operator, alpha)
    assert found.iterations < expected.iterations
    off = relative(found.solution.coefficients, expected.solution.coefficients)
    assert off < (1e-12 if tol is None else tol)
    assert found.error is not None
    assert off <= found.error


def test_they_are_left_alone_where_they_could_not_be_right(rng):
    Z, y = rng.standard_normal((4 * P, 3, D)), rng.standard_normal(4 * P)
    assert both(operator_of(Z, y))[1] is not None
    assert both(operator_of(Z, y), alpha=10.0)[1] is None  # the ridge is not small
    some = la.Features(D, pairs=[(0, 1), (1, 1)], queries=[0, 1])
    assert both(operator_of(Z, y, features=some))[1] is None
    close = Z[:, :, :1] + 1e-4 * Z
    assert both(operator_of(close, y))[1] is None  # roots are not exact
    signs = np.sign(Z)  # S_jj is the same for all: A is singular
    assert both(operator_of(signs, y))[1] is None
    assert both(operator_of(Z[:, :, :2], y))[1] is None


@needs_cpu
@pytest.mark.parametrize(("ratio", "most"), [(1.5, 1.4), (2.5, 1.4), (6.0, 1.4)])
def test_all_iterations_of_a_fit_are_few_more_than_random_features_would_take(ratio, most):
    """Bounds on the least eigenvalue and the error, and the pass for rotations, are included."""
    d, tol = 12, 1e-8
    p = d * d * (d + 1) // 2
    counts, passes = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((int(ratio * p), 8, d))
        truth = la.Heads(rng.standard_normal((2, 1, d)), rng.standard_normal((2, d, d)))
        operator = Counted(operator_of(Z, truth(Z)))
        found = solve_pcg(operator, 0.0, tol=tol)
        assert relative(found.solution.coefficients, truth.coefficients()) < found.error <= tol
        counts.append(found.iterations)
        passes.append(operator.passes)
    expected = expected_iterations(int(ratio * p), p, tol)
    assert np.mean(counts) <= most * expected
    # Besides, the gradients at zero and at the end
    np.testing.assert_array_equal(passes, np.array(counts) + 2)


def test_small_problems_do_without(rng, monkeypatch):
    monkeypatch.undo()
    Z, y = rng.standard_normal((4 * P, 3, D)), rng.standard_normal(4 * P)
    assert both(operator_of(Z, y))[1] is None
