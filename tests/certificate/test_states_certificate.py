"""Certificates of states: nothing is proved that exact arithmetic denies, and inputs are judged."""

from fractions import Fraction

import numpy as np
import pytest
from oracles.exact import exact_of_states

import linattn_fast as la


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("N", [12, 13, 40])
def test_the_bound_holds_in_exact_arithmetic(rng, backend, N):
    states = la.States(rng.standard_normal((N, 2, 3)), rng.standard_normal((N, 2)))
    w = rng.uniform(0.1, 2.0, N)
    certificate = la.certify(states, sample_weight=w, backend=backend)
    exact = exact_of_states(states, w)
    assert certificate.verdict == "identifiable"
    assert exact.exceeds(certificate.lower_bound)
    assert not exact.exceeds(1.001 * certificate.lambda_min)  # the oracle can say no
    assert certificate.lower_bound > 0.9 * certificate.lambda_min


@pytest.mark.parametrize("ratio", [0.0, 1e-17, 1e-16, 1e-15, 1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_false_is_proved_near_singularity(ratio, seed):
    """One entry of the memory is almost a combination of others, down to exactly."""
    rng = np.random.default_rng(seed)
    s, c = rng.integers(-8, 9, (60, 5)).astype(float), rng.integers(-8, 9, (60, 2)).astype(float)
    s[:, 4] = s[:, 0] - 2 * s[:, 1] + ratio * rng.standard_normal(60)
    states = la.States(s, c)
    certificate = la.certify(states)
    exact = exact_of_states(states)
    regular = exact.exceeds(0.0)
    assert certificate.lower_bound == 0 or exact.exceeds(certificate.lower_bound)
    assert (certificate.verdict == "identifiable") <= regular
    assert (certificate.verdict == "not identifiable") <= (not regular)
    if ratio == 0.0:
        assert certificate.verdict == "not identifiable"
        assert certificate.rank == 8
    if ratio >= 1e-4:
        assert certificate.verdict == "identifiable"


def test_large_cancelling_features_are_no_problem(rng):
    """Symmetric matrices need not be of sums of squares: diagonals of zero prove nothing wrong."""
    M = rng.standard_normal((80, 3, 3))
    M = M + M.transpose(0, 2, 1)
    M[:, range(3), range(3)] *= 1e-9  # S_jj S_kk would bound nothing here
    states = la.States(M, rng.standard_normal((80, 2)), symmetric=True)
    certificate = la.certify(states)
    assert certificate.verdict == "identifiable"
    assert exact_of_states(states).exceeds(certificate.lower_bound)


def test_too_small_states_prove_nothing(rng):
    s, c = rng.standard_normal((50, 3)) * 1e-120, rng.standard_normal((50, 2)) * 1e-60
    certificate = la.certify(la.States(s, c))
    assert certificate.lower_bound == 0.0 or exact_of_states(la.States(s, c)).exceeds(
        certificate.lower_bound
    )


def test_coverage_and_leverage_of_states(rng):
    memory = rng.standard_normal((200, 3, 2))
    memory[:, 2, 1] = 0.0  # never seen
    train = la.States(memory, rng.standard_normal((200, 2)))
    fit = la.fit(train, rng.standard_normal((200, 1)))
    certificate = fit.certificate
    assert certificate.verdict == "not identifiable"
    new = rng.standard_normal((6, 3, 2))
    new[:3, 2, 1] = 0.0
    asked = la.States(new, rng.standard_normal((6, 2)))
    assert certificate.covers(asked).tolist() == [True] * 3 + [False] * 3
    leverage = certificate.leverage(asked)
    h = np.einsum("njk,nl->njkl", memory, train.query).reshape(200, -1)
    x = np.einsum("njk,nl->njkl", new, asked.query).reshape(6, -1)
    expected = np.einsum("ne,ef,nf->n", x, np.linalg.pinv(h.T @ h / 200), x)
    assert np.allclose(leverage[:3], expected[:3], rtol=1e-6)
    assert (leverage[:3] >= expected[:3] * (1 - 1e-12)).all()
    assert np.isinf(leverage[3:]).all()
    bound = certificate.error_bound(asked, eps=0.5)
    assert np.allclose(bound[:3], 2 * np.sqrt(0.5 * expected[:3]), rtol=1e-6)
    assert la.certify(train).covers(train).all()
    words = certificate.explain(2)
    assert words[0] == "states never vary along M[2,1] with query c[0]"
    with pytest.raises(ValueError, match=r"^names: they are for coordinates of tokens"):
        certificate.explain(1, names=["a"])


def test_unknown_leverages_are_infinite(rng):
    """From moments alone, nothing bounds the leverages of a singular second moment."""
    s = rng.standard_normal((100, 3))
    s[:, 2] = s[:, 0] + s[:, 1]
    states = la.States(s, rng.standard_normal((100, 2)))
    certificate = la.certify(la.Moments.of_states(3, 2, 0).update(states))
    s[0] = 0.0
    leverage = certificate.leverage(states)
    assert leverage[0] == 0.0
    assert np.isinf(leverage[1:]).all()


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e-7])
def test_leverages_are_never_below_the_exact_ones(rng, scale):
    s, c = rng.standard_normal((40, 3)), rng.standard_normal((40, 2))
    s[:, 2] = s[:, 0] + scale * s[:, 2]
    states = la.States(s, c)
    leverage = la.certify(states).leverage(states)
    exact = exact_of_states(states)
    for found, h in zip(leverage, exact.features, strict=True):
        true = exact.leverage(h, exact.unit)
        assert true is not None
        assert np.isinf(found) or Fraction(float(found)) >= true
        assert found <= 1.001 * float(true) or scale < 1


def test_coverage_of_few_states_is_exact(rng):
    states = la.States(rng.standard_normal((5, 2, 2)), rng.standard_normal((5, 3)))
    certificate = la.certify(states)
    assert certificate.verdict == "not identifiable"
    assert certificate.rank == 5
    assert certificate.covers(states).all()
    other = la.States(rng.standard_normal((5, 2, 2)), rng.standard_normal((5, 3)))
    assert not certificate.covers(other).any()
    # Twice the memory and half the query is the same sample
    assert certificate.covers(la.States(2 * states.memory, states.query / 2)).all()


def test_weights_of_zero_leave_states_out(rng):
    states = la.States(rng.standard_normal((60, 3)), rng.standard_normal((60, 2)))
    w = np.zeros(60)
    w[:5] = 1.0
    certificate = la.certify(states, sample_weight=w)
    assert certificate.verdict == "not identifiable"
    assert exact_of_states(states, w).rank == 5


def test_verdict_from_moments_alone(rng):
    states = la.States(rng.standard_normal((100, 2, 3)), rng.standard_normal((100, 2)))
    moments = la.Moments.of_states((2, 3), 2, 0).update(states)
    certificate = la.certify(moments)
    assert certificate.verdict == "identifiable"
    assert exact_of_states(states).exceeds(certificate.lower_bound)
    states.memory[:, 1, 1] = 0.0
    zero = la.certify(la.Moments.of_states((2, 3), 2, 0).update(states))
    assert zero.verdict == "not identifiable"


def test_queries_that_never_meet_are_blocks(rng):
    """Queries are one-hot: the Gram is block diagonal, and each block is proved."""
    c = np.eye(4)[rng.integers(0, 4, 400)] * rng.uniform(1.0, 2.0, 400)[:, None]
    states = la.States(rng.standard_normal((400, 3, 2)), c)
    certificate = la.certify(states)
    assert certificate.verdict == "identifiable"
    assert exact_of_states(states).exceeds(certificate.lower_bound)
