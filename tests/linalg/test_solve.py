import numpy as np
import pytest
from conftest import EPS
from hypothesis import given
from hypothesis import strategies as st

from linattn_fast.linalg import host_algebra
from linattn_fast.linalg.cholesky import CholeskyFactor, equilibrate
from linattn_fast.linalg.choosing import factorise
from linattn_fast.linalg.spectral import SpectralFactor, decompose


def gram(rng, rows, p, spread=0.0):
    """Second moment of random rows whose columns differ by up to 10^spread in scale."""
    H = rng.standard_normal((rows, p)) * 10.0 ** rng.uniform(-spread, spread, p)
    return H, H.T @ H / rows


@given(p=st.integers(1, 12), spread=st.floats(0, 30), seed=st.integers(0, 999))
def test_equilibration_is_exact_and_evens_the_diagonal(p, spread, seed):
    _, G = gram(np.random.default_rng(seed), 20, p, spread)
    scaled = G.copy()
    scale = equilibrate(scaled)
    assert (np.diag(scaled) >= 0.49).all()
    assert (np.diag(scaled) <= 2.01).all()
    np.testing.assert_array_equal(scaled / scale / scale[:, None], G)


def test_equilibration_leaves_zero_features_alone():
    G = np.diag([4.0, 0.0, 16.0])
    np.testing.assert_array_equal(equilibrate(G), [0.5, 1.0, 0.25])


@given(p=st.integers(1, 10), spread=st.floats(0, 12), seed=st.integers(0, 999))
def test_both_solvers_solve_whatever_the_scaling(p, spread, seed):
    rng = np.random.default_rng(seed)
    _, G = gram(rng, 6 * p + 20, p, spread)
    truth = rng.standard_normal((p, 2)) / np.sqrt(np.diag(G))[:, None]
    b = G @ truth
    for solver in ("cholesky", "eigh"):
        factor = factorise(G.copy, solver).factorisation
        error = (factor.solve(b) - truth) * np.sqrt(np.diag(G))[:, None]
        assert np.abs(error).max() <= 100 * p * EPS * factor.condition
        assert factor.rank == p
        y = factor.multiply(truth[:, 0])
        assert (np.abs(y - b[:, 0]) <= 100 * p * EPS * (np.abs(G) @ np.abs(truth[:, 0]))).all()


@given(
    p=st.integers(2, 10), rank=st.integers(1, 9), spread=st.floats(0, 4), seed=st.integers(0, 999)
)
def test_the_shortest_solution_is_found_in_the_callers_units(p, rank, spread, seed):
    rng = np.random.default_rng(seed)
    rank = min(rank, p - 1)
    H, G = gram(rng, rank, p, spread)
    y = rng.standard_normal((rank, 1))
    choice = factorise(G.copy)
    assert choice.factorisation.name == "eigh"
    assert choice.factorisation.rank == rank
    assert "least norm" in choice.reason
    expected = np.linalg.lstsq(H, y, rcond=None)[0]
    found = choice.factorisation.solve(H.T @ y / rank)
    # Forming the Gram squares the condition of H.
    s = np.linalg.svd(H, compute_uv=False)[:rank]
    tolerance = 1000 * p * EPS * (s[0] / s[-1]) ** 2
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def test_zero_and_duplicate_features_get_the_least_norm(rng):
    H = rng.standard_normal((40, 4))
    H = np.column_stack([H, H[:, 0], np.zeros(40)])  # feature 4 repeats 0, feature 5 is zero
    y = H[:, :1] * 6.0
    x = factorise(lambda: H.T @ H / 40).factorisation.solve(H.T @ y / 40)[:, 0]
    np.testing.assert_allclose(x, [3, 0, 0, 0, 3, 0], atol=1e-12)


def test_a_zero_matrix_has_rank_zero():
    factor = decompose(np.zeros((3, 3)))
    assert (factor.rank, factor.condition) == (0, np.inf)
    np.testing.assert_array_equal(factor.solve(np.ones((3, 1))), np.zeros((3, 1)))


def test_the_choice_is_explained(rng):
    _, G = gram(rng, 50, 5)
    assert factorise(G.copy).reason == "well-conditioned Gram"
    assert factorise(G.copy, "eigh").reason == "asked for"
    assert factorise(G.copy, "cholesky").reason == "asked for"
    singular = np.ones((3, 3))
    assert isinstance(factorise(singular.copy).factorisation, SpectralFactor)
    with pytest.raises(
        np.linalg.LinAlgError, match="^solver: 'cholesky' is not possible: .*use 'auto'"
    ):
        factorise(singular.copy, "cholesky")
    # Positive definite in floating point, but within rounding of singular.
    nearly = np.ones((3, 3)) + 4 * EPS * np.eye(3)
    assert "least norm" in factorise(nearly.copy).reason


def test_scaling_alone_is_not_ill_conditioning():
    G = np.diag([1e-80, 1.0, 1e80])
    factor = factorise(G.copy).factorisation
    assert isinstance(factor, CholeskyFactor)
    np.testing.assert_allclose(factor.solve(np.diag(G)[:, None])[:, 0], 1.0, rtol=1e-15)


@pytest.mark.parametrize("shape", [(0, 4), (3, 5), (9, 4), (400, 90), (400, 300)])
def test_the_triangle_of_a_matrix_has_its_gram(rng, shape):
    A = rng.standard_normal(shape)
    given = A.copy()
    R = host_algebra.triangle_of(A)
    np.testing.assert_array_equal(A, given)
    np.testing.assert_array_equal(R, np.triu(R))
    np.testing.assert_allclose(R.T @ R, A.T @ A, rtol=0, atol=1e-14 * max(shape) ** 2)


@pytest.mark.parametrize("shape", [(4, 0), (4, 1), (5, 5), (400, 90), (400, 300)])
def test_the_complement_is_orthonormal_and_orthogonal_to_the_columns(rng, shape):
    p = shape[0]
    columns = np.linalg.qr(rng.standard_normal(shape))[0]
    rest = host_algebra.complement_of(columns)
    whole = np.concatenate([columns, rest], axis=1)
    assert whole.shape == (p, p)
    np.testing.assert_allclose(whole.T @ whole, np.eye(p), rtol=0, atol=1e-15 * p)
