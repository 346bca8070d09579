"""What each verdict asks for: one piece of evidence at a time, and data made to deceive."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.softmax.evidence.held_out import HeldOut
from linattn_fast.softmax.evidence.identifiability import Identifiability
from linattn_fast.softmax.evidence.named_cases import Case
from linattn_fast.softmax.evidence.verdict import judge
from linattn_fast.softmax.layer.planted import parity, planted_layer, uniform_tokens
from linattn_fast.softmax.search.many_starts import Start

softmax = la.softmax


def known(**change) -> Identifiability:
    """A layer of 2 heads, d = d_out = 2, that the data determines."""
    good = {
        "theta_nullity": 0,
        "theta_condition": 10.0,
        "value_nullity": 0,
        "value_condition": 10.0,
        "unknowns": 16,
        "equations": 48,
        "theta_errors": np.zeros((2, 2, 2)),
        "value_errors": np.zeros((2, 2, 2)),
    }
    return Identifiability(**{**good, **change})


def start(*, agrees: bool) -> Start:
    return Start("random", 2.0, 0.05, 10, agrees)


GOOD = {
    "training_error": 0.04,
    "held_out": HeldOut(0.05, 100, 0),
    "tolerance": 0.1,
    "solved": False,
    "starts": (start(agrees=True), start(agrees=False), start(agrees=True)),
    "fewer_heads_error": 0.5,
    "fewer_fits": False,
    "more_heads_error": 0.039,
    "uncertain_heads": (),
    "identifiability": known(),
    "cases": (),
}


def test_all_evidence_together_is_learned():
    report = judge(**GOOD)
    assert (report.verdict, report.reasons, report.agreeing) == ("learned", (), 2)
    assert "training error with one head fewer 0.5, one more 0.039" in str(report)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({"held_out": HeldOut(0.11, 100, 0)}, "not learned", "above the tolerance 0.1"),
        (
            {"held_out": HeldOut(0.09, 10, 0), "training_error": 0.02},
            "not learned",
            "far above the",
        ),
        ({"identifiability": known(theta_nullity=3)}, "fits, not identified", "3 directions of Th"),
        ({"identifiability": known(value_nullity=1)}, "fits, not identified", "1 directions of W"),
        ({"uncertain_heads": (1,)}, "fits, not identified", "standard errors of head 1 are above"),
        ({"cases": (Case("k = 1", "why"),)}, "fits, not identified", "k = 1: why"),
        ({"fewer_fits": True}, "fits, not identified", "one head fewer fits as well"),
        ({"more_heads_error": 0.019}, "fits, not identified", "one head more has a training error"),
        ({"held_out": HeldOut(0.05, 3, 0)}, "fits, not identified", "3 held-out sequences cannot"),
        ({"held_out": HeldOut(0.05, 9, 0)}, "fits, not identified", "9 held-out sequences are too"),
        ({"held_out": HeldOut(0.05, 40, 0, 0.2)}, "fits, not identified", "may be 0.2 with 95 %"),
        ({"starts": (start(agrees=True),)}, "fits, not identified", "only one of 1 starts found"),
    ],
)
def test_each_piece_of_evidence_is_needed(change, verdict, reason):
    report = judge(**{**GOOD, **change})
    assert report.verdict == verdict
    assert len(report.reasons) == 1
    assert reason in report.reasons[0]


@pytest.mark.parametrize(
    "change",
    [
        {"held_out": HeldOut(0.1, 100, 0)},  # the tolerance itself
        {"held_out": HeldOut(9e-7, 4, 0), "training_error": 1e-15},  # rounding, not a difference
        {"more_heads_error": np.nan},
        {"more_heads_error": 1e-16, "training_error": 1e-9, "held_out": HeldOut(1e-9, 9, 0)},
        # 24 unknowns with one head more: of 40 equations, they may fit noise
        {"more_heads_error": 0.01, "identifiability": known(equations=40)},
        {"starts": (start(agrees=True),), "solved": True},
    ],
)
def test_what_does_not_count_against_a_layer(change):
    assert judge(**{**GOOD, **change}).verdict == "learned"


def test_uncertain_heads_are_those_with_errors_of_their_own_size():
    Theta, W = np.ones((2, 2, 2)), np.ones((2, 2, 2))  # heads of norm 2
    errors = np.zeros((2, 2, 2))
    errors[1] = 0.51
    assert known(value_errors=errors).uncertain_heads(Theta, W) == (1,)
    assert known(theta_errors=errors).uncertain_heads(Theta, W) == (1,)
    assert known(theta_errors=0.98 * errors).uncertain_heads(Theta, W) == ()
    # Logits near zero are known well enough where they are known to be near zero
    assert known(theta_errors=errors / 3).uncertain_heads(Theta / 1e3, W) == ()
    assert known(value_errors=errors / 3).uncertain_heads(Theta, W / 1e3) == (1,)
    errors[:] = np.inf  # the nullity says so already
    assert known(theta_errors=errors).uncertain_heads(Theta, W) == ()


# --------------------------------------------------------------------- data that is made to deceive


def fitted(truth, X, heads, noise=0.0, seed=0):
    Y = np.asarray(truth(X))
    rng = np.random.default_rng([seed, 99])
    return softmax.fit(X, Y + noise * Y.std() * rng.standard_normal(Y.shape), heads=heads)


def test_a_head_that_was_left_out_is_missed(rng):
    truth = planted_layer(rng, 2, 4, logits=3.0)
    truth = softmax.Layer(truth.Theta, truth.W * np.array([1.0, 0.05])[:, None, None])
    report = fitted(truth, uniform_tokens(rng, 300, 4, 4), heads=1).report
    assert report.held_out.error < 0.1  # which the tolerance alone would let pass
    assert report.more_heads_error < 1e-9
    assert report.verdict == "fits, not identified"
    assert "one head more has a training error" in report.reasons[-1]


@pytest.mark.parametrize("seed", range(3))
def test_heads_that_are_hardly_told_apart_are_not_learned(seed):
    """Thetas 1 % apart, with noise: W differ from the planted ones by their own size and more."""
    rng = np.random.default_rng([11, seed])
    truth = planted_layer(rng, 2, 4, logits=3.0)
    truth = softmax.Layer(truth.Theta[[0, 0]] + 0.01 * truth.Theta, truth.W)
    report = fitted(truth, uniform_tokens(rng, 300, 4, 4), 2, noise=0.03, seed=seed).report
    assert report.held_out.error < 0.1
    assert report.verdict == "fits, not identified"


@pytest.mark.parametrize(("true", "heads"), [(1, 2), (2, 3)])
def test_heads_that_fit_noise_alone_are_not_learned(rng, true, heads):
    truth = planted_layer(rng, true, 4, logits=3.0)
    fit = fitted(truth, uniform_tokens(rng, 100, 4, 4), heads, noise=0.05)
    assert fit.report.verdict == "fits, not identified"
    assert [case.name for case in fit.report.cases] == ["equal Thetas"]
    assert fit.report.fewer_heads_error > fit.report.training_error  # by what the noise is worth


def test_uniform_attention_with_noise_is_learned(rng):
    """Theta = 0 is known as well as any, although its standard errors are as large as itself."""
    truth = softmax.Layer(np.zeros((1, 3, 3)), rng.standard_normal((1, 3, 3)))
    report = fitted(truth, uniform_tokens(rng, 300, 4, 3), 1, noise=0.03).report
    assert report.verdict == "learned", str(report)


def test_one_sequence_held_out_shows_nothing(rng):
    truth, X = planted_layer(rng, 1, 3, logits=2.0), rng.standard_normal((5, 30, 3))
    report = fitted(truth, X, heads=1).report
    assert (report.held_out.sequences, report.held_out.violation_bound) == (1, 1.0)
    assert report.verdict == "fits, not identified"


def test_a_parity_beside_a_layer_is_noise_above_the_tolerance(rng):
    truth, X = planted_layer(rng, 1, 6, d_out=1, logits=2.0), uniform_tokens(rng, 300, 4, 6)
    Y = truth(X) + 0.5 * parity(X, (0, 1, 2)) * np.std(truth(X))
    report = softmax.fit(X, Y, heads=1).report
    assert report.verdict == "not learned"
