"""Cholesky factorisation and triangular systems on our own threads, against the bounds of theory.

docs/certificate.md, section 2, is proved for whatever sums in any order and multiplies with
reciprocals of pivots; these tests hold the factorisation to that bound, entry by entry.
"""

import signal
from fractions import Fraction

import numpy as np
import pytest
from conftest import needs_cpu
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linattn_fast.arrays import compiled
from linattn_fast.arrays.compiled import core
from linattn_fast.certificate.lower_bound import UNIT, gamma
from linattn_fast.linalg import cholesky, host_algebra

SIZES = [1, 2, 31, 32, 33, 47, 49, 95, 127, 128, 129, 161, 300, 577]
"""Around the edges of small triangles (32), tasks (48) and blocks (128)."""


@pytest.fixture(params=["lapack", pytest.param("compiled", marks=needs_cpu)])
def engine(request, monkeypatch):
    """With the compiled extension, and as if it were missing."""
    if request.param == "lapack":
        monkeypatch.setattr(compiled, "MISSING", "taken away")
    return request.param


def definite(rng, p, condition=10.0):
    """A symmetric matrix of about the condition number, with a diagonal near one."""
    U = np.linalg.qr(rng.standard_normal((p, p)))[0]
    A = (U * np.geomspace(1 / condition, 1, p)) @ U.T
    A = (A + A.T) / 2
    scale = 2.0 ** -np.rint(np.log2(np.diag(A)) / 2)
    return A * scale * scale[:, None]


def backward_errors(A, L):
    """|L L' - A| in units of c sqrt(A_ii A_jj), the bound of docs/certificate.md."""
    p, wide = len(A), np.tril(L).astype(np.longdouble)
    size = np.sqrt(np.diag(A))
    c = gamma(2 * p + 10) / (1 - gamma(2 * p + 10))
    # The product is rounded too where long double is no wider than double
    own = p * float(np.finfo(np.longdouble).eps)
    return np.abs(wide @ wide.T - A) / ((c + own) * size * size[:, None])


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("condition", [10.0, 1e13])
def test_the_factorisation_obeys_the_bound_that_proofs_rest_on(rng, engine, p, condition):
    A = definite(rng, p, condition)
    given = A.copy()
    factor, failed = cholesky.cholesky_in_place(given)
    assert failed == 0
    assert backward_errors(A, factor).max() <= 1


@needs_cpu
@pytest.mark.parametrize("p", [1, 40, 129])
def test_every_instruction_set_obeys_it(rng, isa, p):
    A = definite(rng, p, 1e6)
    factor, failed = cholesky.cholesky_in_place(A.copy())
    assert failed == 0
    assert backward_errors(A, factor).max() <= 1


@needs_cpu
@pytest.mark.parametrize("p", [3, 35])
def test_the_bound_holds_in_exact_arithmetic(rng, p):
    A = definite(rng, p, 1e12)
    L = np.tril(cholesky.cholesky_in_place(A.copy())[0])
    exact = [[Fraction(float(x)) for x in row] for row in L]
    k = (2 * p + 10) * Fraction(UNIT)
    c = k / (1 - k) / (1 - k / (1 - k))
    for i in range(p):
        for j in range(i + 1):
            error = sum((a * b for a, b in zip(exact[i], exact[j], strict=True)), Fraction(0))
            error -= Fraction(float(A[i, j]))
            assert error**2 <= c**2 * Fraction(float(A[i, i])) * Fraction(float(A[j, j]))


@needs_cpu
@pytest.mark.parametrize("p", [*SIZES, 1600])
def test_factors_and_solutions_have_the_same_bits_for_any_number_of_threads(rng, p):
    A, B = definite(rng, p), rng.standard_normal((min(p, 100), p))

    def everything(threads):
        factor, lower, both = A.copy(), B.copy(), B.copy()
        assert core.factor_cholesky(factor, threads) == 0
        core.solve_triangular(factor, lower, False, threads)
        core.solve_triangular(factor, both, True, threads)
        return np.tril(factor), lower, both

    expected = everything(1)
    for threads in (2, 3, 17):
        for found, wanted in zip(everything(threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@needs_cpu
@pytest.mark.parametrize("p", SIZES)
def test_only_the_lower_triangle_is_read(rng, p):
    A = definite(rng, p)
    spoiled = A.copy()
    spoiled[np.triu_indices(p, 1)] = np.nan
    for matrix in (A, spoiled):
        assert core.factor_cholesky(matrix, 1) == 0
    np.testing.assert_array_equal(np.tril(A), np.tril(spoiled))
    spoiled[np.triu_indices(p, 1)] = np.nan
    for transposed in (False, True):
        rows, same = np.ones((2, 20, p))
        core.solve_triangular(np.tril(A), rows, transposed, 1)
        core.solve_triangular(spoiled, same, transposed, 1)
        np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize("p", [1, 5, 33, 130, 300])
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan])
def test_the_first_pivot_that_is_not_positive_is_named(rng, engine, p, value):
    for place in {0, p // 2, p - 1}:
        A = definite(rng, p)
        A[place, place] = value
        assert cholesky.cholesky_in_place(A.copy())[1] == place + 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_either_order_of_the_matrix_will_do(rng, engine, order):
    A = definite(rng, 50)
    factor, _ = cholesky.cholesky_in_place(np.array(A, order=order))
    assert factor.flags.c_contiguous
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(A), rtol=0, atol=1e-13)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("k", [0, 1, 15, 16, 49, 130])
def test_solutions_are_those_of_nearby_systems(rng, engine, p, k):
    """Substitution: |L x - b| <= gamma(p + 2) |L| |x|, entry by entry (Higham, theorem 8.5)."""
    factor, _ = cholesky.cholesky_in_place(definite(rng, p, 1e4))
    L, b = np.tril(factor), rng.standard_normal((p, k))
    x = host_algebra.solve_lower(factor, b)
    own = gamma(2 * p)  # of evaluating both sides
    assert (np.abs(L @ x - b) <= (gamma(p + 2) + own) * (np.abs(L) @ np.abs(x))).all()
    y = host_algebra.cholesky_solve(factor, b)
    sizes = np.abs(L) @ (np.abs(L.T) @ np.abs(y))
    assert (np.abs(L @ (L.T @ y) - b) <= (3 * gamma(p + 2) + 2 * own) * sizes).all()
    assert y.shape == x.shape == (p, k)


@given(p=st.integers(1, 70), k=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_products_with_the_factor_undo_the_solution(p, k, seed):
    rng = np.random.default_rng(seed)
    A = definite(rng, p)
    factor, _ = host_algebra.cholesky(A.copy())
    b = rng.standard_normal((p, k))
    x = host_algebra.cholesky_solve(factor, b)
    np.testing.assert_allclose(host_algebra.cholesky_times(factor, x[:, 0]), b[:, 0], atol=1e-10)
    norm = float(np.abs(A).sum(axis=0).max())
    exact = 1 / (norm * np.abs(np.linalg.inv(A)).sum(axis=0).max())
    # LAPACK's estimate of ||A^-1|| is a lower bound, rarely off by more than a factor of three
    assert exact * (1 - 1e-9) <= host_algebra.reciprocal_condition(factor, norm) <= 10 * exact


@needs_cpu
def test_wrong_arrays_are_refused():
    with pytest.raises(ValueError, match="^matrix: must be"):
        core.factor_cholesky(np.ones((2, 3)), 1)
    # a copy would be overwritten, and lost
    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.factor_cholesky(np.ones((4, 4), np.float32), 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.factor_cholesky(np.ones((4, 4))[::2, ::2], 1)
    fixed = np.eye(3)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        core.factor_cholesky(fixed, 1)
    with pytest.raises(ValueError, match="^rows: must be"):
        core.solve_triangular(np.eye(3), np.ones((2, 4)), False, 1)
    assert core.factor_cholesky(np.zeros((0, 0)), 1) == 0
    core.solve_triangular(np.eye(3), np.ones((0, 3)), False, 1)


class Stopped(Exception):
    pass


@needs_cpu
def test_a_signal_stops_a_long_factorisation():
    def stop(*_):
        raise Stopped

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Stopped):  # which only the signal's handler raises
            core.factor_cholesky(np.eye(5000), 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@needs_cpu
@pytest.mark.parametrize("n", [1, 2, 5, 40, 64])
@pytest.mark.parametrize("spread", [0.0, 4.0, 12.0])
@pytest.mark.parametrize("size", [1e-220, 1.0, 1e220])
def test_extreme_eigenvalues_are_those_of_lapack(rng, n, spread, size):
    U = np.linalg.qr(rng.standard_normal((n, n)))[0]
    for values in (np.geomspace(1, 10.0**-spread, n), np.linspace(-1, 1, n), np.ones(n)):
        A = (U * values) @ U.T * size
        A = (A + A.T) / 2
        expected = np.linalg.eigvalsh(A)[[0, -1]]
        # Both reduce the matrix with errors of some n eps, and intervals end at 1e-12 of their ends
        assert_allclose(cholesky._extremes(A), expected, rtol=2e-12, atol=20 * n * 2e-16 * size)


@needs_cpu
def test_extreme_eigenvalues_of_what_is_diagonal_or_not_finite():
    assert_allclose(core.extreme_eigenvalues(np.array([3.0]), np.zeros(0)), (3, 3), rtol=2e-12)
    found = core.extreme_eigenvalues(np.array([2.0, -5.0, 0.0]), np.zeros(2))
    assert_allclose(found, (-5, 2), rtol=2e-12)
    assert core.extreme_eigenvalues(np.zeros(4), np.zeros(3)) == (0, 0)
    for bad in (np.nan, np.inf):
        assert np.isnan(core.extreme_eigenvalues(np.array([1.0, bad]), np.zeros(1))).all()
        assert np.isnan(core.extreme_eigenvalues(np.ones(2), np.array([bad]))).all()


def scaled_factor(rng, n, condition):
    """L and D (n,) of powers of two, and the eigenvalues of D^-1 L L' D^-1."""
    U = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.geomspace(1, 1 / condition, n)
    scale = 2.0 ** rng.integers(-2, 3, n)
    M = (U * values) @ U.T
    L = np.linalg.cholesky(scale[:, None] * (M / 2 + M.T / 2) * scale)
    return np.ascontiguousarray(L), scale, values


@needs_cpu
@pytest.mark.parametrize("n", [64, 96, 288])
@pytest.mark.parametrize("condition", [2.0, 1e3, 1e8])
def test_ritz_values_on_the_whole_space_are_the_extreme_eigenvalues(rng, isa, n, condition):
    L, scale, values = scaled_factor(rng, n, condition)
    inverse, forward = core.ritz_values(L, scale, n // 8, n // 8, 2)
    # Factorising and solving err by some n eps, times the condition number for the smallest
    assert_allclose(forward, values[0], rtol=20 * n * 2e-16)
    assert_allclose(1 / inverse, values[-1], rtol=20 * n * 2e-16 * condition)


@needs_cpu
@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_ritz_values_on_a_part_of_it_are_within_the_spectrum(rng, steps):
    L, scale, values = scaled_factor(rng, 200, 1e4)
    found = [core.ritz_values(L, scale, steps, steps, threads) for threads in (1, 2)]
    assert found[0] == found[1]  # the same bits
    inverse, forward = found[0]
    rounding = 1e-10  # of the condition number, as above
    assert values[-1] * (1 - rounding) <= 1 / inverse
    assert forward <= values[0] * (1 + rounding)
    if steps == 8:  # a space of 64 dimensions
        assert_allclose((1 / inverse, forward), (values[-1], values[0]), rtol=1e-2)


@needs_cpu
def test_ritz_values_of_what_overflows_are_no_numbers_or_nothing(rng):
    L = np.eye(64)
    assert not core.ritz_values(L, np.full(64, 1e-200), 4, 4, 1)[1] < np.inf
    with pytest.raises(ValueError, match="^steps: "):
        core.ritz_values(L, np.ones(64), 9, 4, 1)
