"""The oracles themselves: exact arithmetic and loops against numpy, on data that numpy can do."""

from fractions import Fraction

import numpy as np
import pytest
from oracles import loops
from oracles.adversarial import KINDS, adversarial
from oracles.exact import Exact, as_fractions, exact_loss, features_of, relative_error, root

import linattn_fast as la


def test_the_oracle_agrees_with_numpy_on_healthy_data(rng):
    Z, y, w = rng.standard_normal((40, 5, 2)), rng.standard_normal((40, 2)), rng.random(40)
    exact = Exact.of(Z, weights=w, targets=y)
    H = loops.all_features(Z, "last")
    Lambda = (H * w[:, None]).T @ H / w.sum()
    smallest = np.linalg.eigvalsh(Lambda)[0]
    assert exact.rank == 6
    assert exact.exceeds(0.999 * smallest)
    assert not exact.exceeds(1.001 * smallest)
    for alpha in (0.0, 0.1):
        C = np.linalg.solve(Lambda + alpha * np.eye(6), (H * w[:, None]).T @ y / w.sum()).T
        assert relative_error(C, exact.coefficients(alpha)) < 1e-12
        freedom = np.trace(np.linalg.solve(Lambda + alpha * np.eye(6), Lambda))
        assert alpha == 0 or float(exact.degrees_of_freedom(alpha)) == pytest.approx(freedom)
        loss = exact.mean_squared_error(as_fractions(C))
        expected = w @ ((H @ C.T - y) ** 2).sum(axis=1) / w.sum()
        assert float(loss) == pytest.approx(expected, rel=1e-12)
    h, unit = exact.features[7], exact.unit
    assert root(exact.leverage(h, unit)) ** 2 == pytest.approx(
        float(H[7] @ np.linalg.solve(Lambda, H[7]))
    )
    assert relative_error(np.zeros((2, 6)), exact.coefficients(0.0)) == pytest.approx(1.0)


def test_the_oracle_knows_the_solution_of_least_norm_and_the_range(rng):
    Z, y = rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 1))
    exact = Exact.of(Z, targets=y)
    H = loops.all_features(Z, "last")
    C = np.linalg.lstsq(H, y, rcond=None)[0].T
    assert exact.rank == 4
    assert not exact.exceeds(0.0)
    assert relative_error(C, exact.coefficients(0.0)) < 1e-10
    assert root(exact.leverage(exact.features[0], exact.unit)) ** 2 == pytest.approx(4.0)
    other = Exact.of(rng.standard_normal((1, 3, 2)))
    assert exact.leverage(other.features[0], other.unit) is None


def test_the_oracle_knows_positive_definite_from_singular():
    """A Gram of [[2, 1], [1, 1]] over 2: less 0.19 it is definite, less 0.2 it is not."""
    Z = [np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])]
    exact = Exact.of(Z, features=la.Features(2, pairs=[(0, 0)]))
    assert exact.gram.tolist() == [[2, 1], [1, 1]]
    assert exact.exceeds(0.19)  # (3 - sqrt(5)) / 4 = 0.19098...
    assert not exact.exceeds(0.191)
    assert not Exact.of(Z[:1], features=la.Features(2, pairs=[(0, 0)])).exceeds(0.0)


@pytest.mark.parametrize("chosen", [None, la.Features(3, [(0, 2), (1, 1)], [2, 0])])
def test_the_oracle_has_the_features_of_the_loops(rng, positions, chosen):
    Z = [rng.integers(-8, 9, (n, 3)) / 8 for n in (1, 4, 2)]
    weights = np.array([1.0, 0.0, 0.25])
    expected = loops.all_features(Z, positions)
    if chosen is not None:
        expected = expected[:, loops.columns(chosen)]
    found, unit = features_of(Z, positions, chosen)
    np.testing.assert_array_equal(np.array(found, dtype=object) * unit, expected)
    per_query = loops.per_sample(weights, Z, positions)
    exact = Exact.of(Z, positions, weights, chosen)
    kept = np.array(exact.features, dtype=object) * exact.unit
    np.testing.assert_array_equal(kept, expected[per_query > 0])
    assert exact.total_weight == per_query.sum()


def test_a_loss_is_rounded_once():
    Z, y = np.array([[[1.0]], [[1.0]]]), np.array([[0.1], [0.3]])
    assert exact_loss(Z, y, np.array([[0.2]])) == pytest.approx(0.01, rel=1e-15)
    assert exact_loss(Z, y, np.array([[0.1]])) == float((Fraction(0.3) - Fraction(0.1)) ** 2 / 2)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_data_is_finite_and_has_weight(rng, kind, d):
    for N in (1, 7):
        Z, weights = adversarial(rng, kind, N, d)
        assert len(Z) == N
        assert all(z.shape[1] == d and len(z) >= 1 and np.isfinite(z).all() for z in Z)
        assert weights is None or (len(weights) == N and (weights >= 0).all() and weights.any())
