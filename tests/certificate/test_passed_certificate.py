"""Certificates with values passed through: what is proved is true of all rows, exactly."""

import numpy as np
import pytest
from oracles.exact import exact_of_states

import linattn_fast as la


def written_out(memory: np.ndarray, query: np.ndarray) -> la.States:
    """Each row of each memory as a state of its own."""
    N, d_v, d_k = memory.shape
    return la.States(memory.reshape(N * d_v, d_k), np.repeat(query, d_v, axis=0))


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("N", [5, 6, 20])
def test_the_bound_holds_in_exact_arithmetic(rng, backend, N):
    M, c, w = rng.standard_normal((N, 4, 3)), rng.standard_normal((N, 2)), rng.uniform(0.1, 2.0, N)
    certificate = la.certify(la.States(M, c), values="passed", sample_weight=w, backend=backend)
    exact = exact_of_states(written_out(M, c), np.repeat(w, 4))
    assert certificate.verdict == "identifiable"
    assert exact.exceeds(certificate.lower_bound)
    assert not exact.exceeds(1.001 * certificate.lambda_min)  # the oracle can say no
    assert certificate.lower_bound > 0.9 * certificate.lambda_min
    assert certificate.n_samples == 4 * N


@pytest.mark.parametrize("ratio", [0.0, 1e-17, 1e-16, 1e-15, 1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_false_is_proved_near_singularity(ratio, seed):
    """One column of the memories is almost a combination of others, down to exactly."""
    rng = np.random.default_rng(seed)
    M = rng.integers(-8, 9, (20, 3, 4)).astype(float)
    c = rng.integers(-8, 9, (20, 2)).astype(float)
    M[:, :, 3] = M[:, :, 0] - 2 * M[:, :, 1] + ratio * rng.standard_normal((20, 3))
    certificate = la.certify(la.States(M, c), values="passed")
    exact = exact_of_states(written_out(M, c))
    regular = exact.exceeds(0.0)
    assert certificate.lower_bound == 0 or exact.exceeds(certificate.lower_bound)
    assert (certificate.verdict == "identifiable") <= regular
    assert (certificate.verdict == "not identifiable") <= (not regular)
    if ratio == 0.0:
        assert certificate.verdict == "not identifiable"
        assert certificate.rank == 6
    if ratio >= 1e-4:
        assert certificate.verdict == "identifiable"


def test_a_state_is_covered_if_all_of_its_rows_are(rng):
    M, c = rng.standard_normal((60, 3, 4)), rng.standard_normal((60, 2))
    M[:, :, 3] = 0.0
    fit = la.fit(la.States(M, c), M.sum(axis=2), values="passed")
    assert fit.certificate.rank == 6
    new, query = rng.standard_normal((4, 3, 4)), rng.standard_normal((4, 2))
    new[:, :, 3] = 0.0
    new[1, 2, 3] = 1e-6  # one row of the second state
    states = la.States(new, query)
    covered, distance = fit.certificate.covers(states, return_residual=True)
    assert covered.tolist() == [True, False, True, True]
    assert distance.shape == (4,)
    assert distance[1] == 1.0
    leverage = fit.certificate.leverage(states)
    assert leverage.shape == (4, 3)
    assert np.isinf(leverage).tolist() == [[False] * 3, [False, False, True], *[[False] * 3] * 2]
    bound = fit.certificate.error_bound(states, 0.1)
    assert np.allclose(bound, 2 * np.sqrt(0.1 * leverage), rtol=1e-12)


def test_leverages_are_those_of_the_rows(rng):
    M, c = rng.standard_normal((60, 3, 4)), rng.standard_normal((60, 2))
    states = la.States(M, c)
    certificate = la.certify(states, values="passed")
    h = la.cubic_features(written_out(M, c))
    exact = np.einsum("ne,ef,nf->n", h, np.linalg.inv(h.T @ h / len(h)), h).reshape(60, 3)
    found = certificate.leverage(states)
    assert (found >= exact * (1 - 1e-12)).all()
    assert np.allclose(found, exact, rtol=1e-6)
    assert np.isclose(found.mean(), 8, rtol=1e-6)  # the rank
