"""Weights of sequences in softmax fits: a weight of 2 is a sequence that stands there twice."""

import numpy as np
import pytest
from conftest import needs_cpu

import linattn_fast as la
from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.softmax.descent.levenberg_marquardt import levenberg_marquardt
from linattn_fast.softmax.descent.normal_matrix import normal_matrix
from linattn_fast.softmax.descent.objective import Objective
from linattn_fast.softmax.evidence.held_out import HeldOut
from linattn_fast.softmax.evidence.identifiability import identifiability
from linattn_fast.softmax.examples.groups import Examples
from linattn_fast.softmax.layer.planted import planted_layer, uniform_tokens

softmax = la.softmax
engines = pytest.mark.parametrize(
    "compiled", [pytest.param(True, marks=needs_cpu), False], ids=["cpu", "numpy"]
)


def objective(X, Y, weights=None, *, compiled: bool = True) -> Objective:
    tokens = as_tokens(X)
    examples = Examples.of(tokens, as_targets(Y, tokens, "all"), weights=weights)
    return Objective(examples, compiled=compiled)


@pytest.fixture
def ragged(rng):
    """Sequences of several lengths, and how often each is there."""
    X = [rng.standard_normal((k, 3)) for k in (4, 2, 5, 4, 3, 2, 6, 1, 5, 4)]
    Y = [rng.standard_normal((len(x), 2)) for x in X]
    return X, Y, np.array([1, 3, 2, 1, 4, 1, 2, 1, 1, 3])


@engines
def test_weights_are_repetitions(rng, ragged, compiled):
    X, Y, times = ragged
    weighted = objective(X, Y, times.astype(float), compiled=compiled)
    repeated = objective(
        [x for x, t in zip(X, times, strict=True) for _ in range(t)],
        [y for y, t in zip(Y, times, strict=True) for _ in range(t)],
        compiled=compiled,
    )
    Theta = rng.standard_normal((2, 3, 3))
    ours, theirs = weighted.at(Theta), repeated.at(Theta)
    assert np.isclose(ours.loss, theirs.loss, rtol=1e-12)
    assert np.allclose(ours.W, theirs.W, rtol=1e-9)
    assert np.allclose(ours.gradient(), theirs.gradient(), rtol=0, atol=1e-12)
    mine, other = normal_matrix(ours), normal_matrix(theirs)
    for name in ("H", "gradient", "cross", "diagonal"):
        a, b = getattr(mine, name), getattr(other, name)
        assert np.abs(a - b).max() < 1e-11 * np.abs(b).max(), name
    ends = [levenberg_marquardt(each, Theta).point for each in (weighted, repeated)]
    assert np.allclose(ends[0].Theta, ends[1].Theta, rtol=0, atol=1e-5)


def test_standard_errors_know_that_repetitions_are_no_new_equations(rng):
    """Weights of one size change nothing; true repetitions pass for twice the equations."""
    X, Y = rng.standard_normal((60, 4, 3)), rng.standard_normal((60, 4, 2))
    Theta = rng.standard_normal((1, 3, 3))
    plain = identifiability(objective(X, Y).at(Theta))
    heavy = identifiability(objective(X, Y, np.full(60, 7.0)).at(Theta))
    assert np.allclose(heavy.theta_errors, plain.theta_errors, rtol=1e-9)
    assert np.allclose(heavy.value_errors, plain.value_errors, rtol=1e-9)
    assert (heavy.equations, heavy.unknowns) == (plain.equations, plain.unknowns)
    twice = identifiability(objective(np.tile(X, (2, 1, 1)), np.tile(Y, (2, 1, 1))).at(Theta))
    n, p = plain.equations, plain.unknowns  # sigma^2 is over n - p; H and B'B double
    shrunk = np.sqrt((n - p) / (2 * n - p))
    assert np.allclose(twice.theta_errors, shrunk * plain.theta_errors, rtol=1e-9)
    assert np.allclose(twice.value_errors, shrunk * plain.value_errors, rtol=1e-9)


def test_sequences_of_weight_zero_take_no_part(rng):
    truth = planted_layer(rng, 2, 4, logits=3.0)
    X = uniform_tokens(rng, 200, 4, 4)
    Y = truth(X) + 0.05 * rng.standard_normal((200, 4, 4))
    weights = rng.integers(3, size=200).astype(float)
    Y[weights == 0] = 1e6
    used = weights > 0
    whole = softmax.fit(X, Y, heads=2, sample_weight=weights)
    part = softmax.fit(X[used], Y[used], heads=2, sample_weight=weights[used])
    assert np.array_equal(whole.Theta, part.Theta)
    assert np.array_equal(whole.W, part.W)
    assert str(whole.report) == str(part.report)
    assert whole.report.verdict == "learned"


def test_only_ratios_of_weights_matter(rng):
    truth = planted_layer(rng, 1, 3, logits=2.0)
    X = uniform_tokens(rng, 100, 4, 3)
    Y = truth(X) + 0.1 * rng.standard_normal((100, 4, 3))
    plain = softmax.fit(X, Y, heads=1)
    for size in (1.0, 2.0**900, 2.0**-900):
        same = softmax.fit(X, Y, heads=1, sample_weight=np.full(100, size))
        assert np.allclose(same.Theta, plain.Theta, rtol=1e-9)
        assert np.isclose(same.report.held_out.error, plain.report.held_out.error)


def test_weights_are_worth_having_where_noise_differs(rng):
    truth = planted_layer(rng, 2, 4, logits=3.0)
    X, noise = uniform_tokens(rng, 400, 4, 4), np.where(np.arange(400) % 2, 0.01, 1.0)
    Y = truth(X) + noise[:, None, None] * rng.standard_normal((400, 4, 4))
    new = uniform_tokens(rng, 100, 4, 4)
    errors = [
        np.linalg.norm(
            softmax.fit(X, Y, heads=2, start=truth, sample_weight=w).predict(new) - truth(new)
        )
        for w in (None, noise**-2)
    ]
    assert errors[1] < 0.1 * errors[0]  # 0.02 in theory: the noise of half the data


def test_the_held_out_error_is_weighted():
    errors, targets = np.array([1.0, 0.0, 4.0]), np.array([2.0, 1.0, 5.0])
    held = HeldOut.of(errors, targets, 0.5, np.array([3.0, 1.0, 0.5]))
    assert np.isclose(held.error**2, (3 + 0 + 2) / (6 + 1 + 2.5))
    # Above 0.5^2 of the mean target, 9.5 / 4.5; sequences are counted, not weighed
    assert (held.violations, held.sequences) == (2, 3)


def test_the_path_of_heads_takes_weights(rng):
    truth = planted_layer(rng, 2, 3, logits=3.0)
    X = uniform_tokens(rng, 200, 4, 3)
    Y, weights = np.array(truth(X)), np.ones(200)
    Y[:50], weights[:50] = rng.standard_normal((50, 4, 3)), 0.0
    path = softmax.head_path(X, Y, 2, sample_weight=weights)
    assert path.suggested == 2
    assert path.held_out_errors[1] < 1e-9


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(5), r"^sample_weight: one weight a sequence is needed, shape \(6,\)"),
        (np.array([1, 1, 1, 1, 1, -1.0]), "^sample_weight: must be finite and not negative"),
        (np.full(6, np.nan), "^sample_weight: must be finite"),
        (np.zeros(6), "^X: at least 2 sequences of positive weight are needed"),
        (np.eye(6)[0], "^X: at least 2 sequences of positive weight are needed"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    X, Y = np.zeros((6, 2, 3)), np.zeros((6, 2))
    with pytest.raises(ValueError, match=message):
        softmax.fit(X, Y, heads=1, sample_weight=weights)
    with pytest.raises(ValueError, match=message):
        softmax.head_path(X, Y, 1, sample_weight=weights)
