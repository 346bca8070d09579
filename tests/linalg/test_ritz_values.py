"""Extreme eigenvalues from a Cholesky factor, against all eigenvalues."""

import numpy as np
import pytest

from linattn_fast.arrays import compiled
from linattn_fast.linalg.cholesky import CholeskyFactor, ritz_values, try_cholesky

pytestmark = pytest.mark.skipif(compiled.MISSING is not None, reason="needs the extension")


@pytest.fixture(params=[name for name, there in compiled.core.instruction_sets() if there])
def instruction_set(request):
    before = compiled.core.instruction_set()
    compiled.core.select_instruction_set(request.param)
    yield
    compiled.core.select_instruction_set(before)


def wishart(rng, p, ratio=5):
    X = rng.standard_normal((ratio * p, p)) * np.exp2(rng.integers(-6, 6, p))
    return X.T @ X / len(X)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("p", [1, 2, 40, 64, 65, 66, 67, 72, 128, 301])
def test_they_are_within_the_spectrum_and_close_to_its_ends(rng, p):
    matrix = wishart(rng, p)
    values = np.linalg.eigvalsh(matrix)
    factor = try_cholesky(matrix.copy())
    assert isinstance(factor, CholeskyFactor)
    smallest, largest = ritz_values(factor)
    rounding = 1e-12 * values[-1]
    assert values[0] - rounding <= smallest <= 1.003 * values[0] + rounding
    assert 0.97 * values[-1] - rounding <= largest <= values[-1] + rounding


def test_a_single_small_eigenvalue_is_found(rng):
    p = 200
    U = np.linalg.qr(rng.standard_normal((p, p)))[0]
    matrix = (U * np.r_[1e-7, rng.uniform(1, 2, p - 1)]) @ U.T
    smallest, largest = ritz_values(try_cholesky((matrix + matrix.T) / 2))
    assert smallest == pytest.approx(1e-7, rel=1e-5)
    assert largest <= 2 + 1e-12


def test_a_multiple_of_the_identity_ends_the_space_at_once():
    assert ritz_values(try_cholesky(np.eye(100))) == pytest.approx((1.0, 1.0), rel=1e-12)


def test_what_overflows_is_no_estimate():
    factor = try_cholesky(np.diag(np.r_[np.full(90, 1e-200), np.full(10, 1e200)]))
    assert ritz_values(factor) is None or ritz_values(factor)[0] == pytest.approx(1e-200)
    broken = CholeskyFactor(np.full((80, 80), np.nan), np.ones(80), 1.0, 1.0, 1e-15)
    assert ritz_values(broken) is None
