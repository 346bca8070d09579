"""A slice of the campaign (``make attack``): adversarial data against exact arithmetic."""

import numpy as np
import pytest
from attack.claims import CLAIMS, examine
from attack.data import KINDS, case_of
from attack.oracle import Exact, relative_error, root
from attack.trial import one

import linattn_fast as la


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_no_promise_breaks(first):
    broken = [message for seed in range(first, first + 100) if (message := one(seed)[2])]
    assert not broken, "\n\n".join(broken)


def test_the_slice_has_every_kind_of_data_and_every_promise():
    cases = [case_of(seed) for seed in range(300)]
    assert {case.kind for case in cases} == {make.__name__ for make in KINDS}
    assert {examine(case, seed)[0] for seed, case in enumerate(cases)} == set(CLAIMS)


# ------------------------------------------------------------------------- the oracle's own answers


def exact_of(Z, y=None, weights=None, positions="last"):
    features = la.Features(Z[0].shape[1])
    return Exact.of(list(Z), positions, weights, features.pairs, features.queries, y)


def test_the_oracle_agrees_with_numpy_on_healthy_data(rng):
    Z, y, w = rng.standard_normal((40, 5, 2)), rng.standard_normal((40, 2)), rng.random(40)
    exact = exact_of(Z, y, w)
    H = la.cubic_features(Z)
    Lambda = (H * w[:, None]).T @ H / w.sum()
    smallest = np.linalg.eigvalsh(Lambda)[0]
    assert exact.rank == 6
    assert exact.exceeds(0.999 * smallest)
    assert not exact.exceeds(1.001 * smallest)
    for alpha in (0.0, 0.1):
        C = np.linalg.solve(Lambda + alpha * np.eye(6), (H * w[:, None]).T @ y / w.sum()).T
        assert relative_error(C, exact.coefficients(alpha)) < 1e-12
    C = np.zeros((2, 6))
    loss = exact.mean_squared_error([[0] * 6] * 2)
    assert float(loss) == pytest.approx(float(w @ (y**2).sum(axis=1) / w.sum()))
    h, unit = exact.features[7], exact.unit
    assert root(exact.leverage(h, unit)) ** 2 == pytest.approx(
        float(H[7] @ np.linalg.solve(Lambda, H[7]))
    )
    assert relative_error(C, exact.coefficients(0.0)) == pytest.approx(1.0)


def test_the_oracle_knows_the_solution_of_least_norm_and_the_range(rng):
    Z, y = rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 1))
    exact = exact_of(Z, y)
    H = la.cubic_features(Z)
    C = np.linalg.lstsq(H, y, rcond=None)[0].T
    assert exact.rank == 4
    assert not exact.exceeds(0.0)
    assert relative_error(C, exact.coefficients(0.0)) < 1e-10
    assert root(exact.leverage(exact.features[0], exact.unit)) ** 2 == pytest.approx(4.0)
    other = exact_of(rng.standard_normal((1, 3, 2)))
    assert exact.leverage(other.features[0], other.unit) is None
