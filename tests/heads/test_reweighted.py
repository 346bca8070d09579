"""Coefficients of reduced rank near those given, by reweighted least squares."""

import numpy as np
import pytest
from conftest import plant, relative

import linattn_fast as la
from linattn_fast.heads import bilinear, reweighted


def planted(d, H):
    """Coefficients of a layer that does not depend on the other tests."""
    return plant(np.random.default_rng([d, H, d, 0]), d, H, d).coefficients()


@pytest.mark.parametrize(("d", "d_out"), [(3, 3), (4, 2), (3, 5), (2, 1)])
def test_a_step_minimises_the_weighted_norm(rng, d, d_out):
    """X is the smallest in the harmonic mean of the weights, of all with the symmetric part T."""
    C = rng.standard_normal((d_out, d * d * (d + 1) // 2))
    by = reweighted.Reweighting(C, d)
    shape = (d_out * d, d * d)
    X, e = rng.standard_normal(shape), 0.3
    T = by.T.reshape(shape)
    new = by._step(X, e, by._coordinates(by.T), by.T)
    np.testing.assert_allclose(reweighted._symmetric(new, by.T.shape).reshape(shape), T, atol=1e-12)
    # The weights are the inverse of Y -> X X' Y + Y X' X + 2 e^2 Y; its dense matrix is the oracle
    inverse = np.kron(X @ X.T, np.eye(d * d)) + np.kron(np.eye(d_out * d), X.T @ X)
    weighted = np.linalg.solve(inverse + 2 * e**2 * np.eye(len(inverse)), new.ravel())
    # Stationary: the weighted X is orthogonal to every antisymmetric change
    W = weighted.reshape(by.T.shape)
    np.testing.assert_allclose(W, W.transpose(0, 2, 1, 3), atol=1e-10)


def test_reduced_ranks_end_near_the_coefficients_whatever_was_stretched():
    C = planted(5, 8)
    C /= np.linalg.norm(C)
    by = reweighted.Reweighting(C, 5)
    ends = [by.reduce(8, seed, bilinear.Budget(1e12)) for seed in (0, 1, 2, 3)]
    near = [(V, Q) for V, Q, left in ends if left <= reweighted.NEAR]
    assert len(near) >= 2
    for V, Q in near:  # settled by Gauss-Newton steps
        assert relative(la.Heads(V, Q).coefficients(), C) <= 1e-10


def test_reducing_a_rank_ends_with_its_budget():
    C = planted(4, 6)
    by, budget = reweighted.Reweighting(C, 4), bilinear.Budget(1e6)
    by.reduce(6, 0, budget)
    assert -by.flops <= budget.left <= 0
