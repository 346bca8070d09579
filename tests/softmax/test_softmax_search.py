"""Starts of a softmax fit: their order, which of them agree, when they end, what is pruned."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_fast.data.tokens import as_targets, as_tokens
from linattn_fast.softmax.descent.descent import Descent
from linattn_fast.softmax.descent.levenberg_marquardt import levenberg_marquardt
from linattn_fast.softmax.descent.objective import SOLVED, Objective
from linattn_fast.softmax.examples.groups import Examples
from linattn_fast.softmax.layer.planted import parity, planted_layer, uniform_tokens
from linattn_fast.softmax.learning.head_path import HeadPath, head_path
from linattn_fast.softmax.search.many_starts import agree, search
from linattn_fast.softmax.search.pruning import pruned
from linattn_fast.softmax.search.settings import SearchSettings
from linattn_fast.softmax.search.token_space import NORMS, TokenSpace
from linattn_fast.softmax.search.whitening import Whitening


@pytest.fixture
def planted(rng):
    truth, X = planted_layer(rng, 3, 3, logits=2.0), uniform_tokens(rng, 80, 4, 3)
    tokens = as_tokens(X)
    return truth, Objective(Examples.of(tokens, as_targets(truth(X), tokens, "all")))


def stay(objective, Theta, **_):
    """A descent that goes nowhere."""
    return Descent(objective.at(Theta), 0)


def settings(starts=12, agreeing=3) -> SearchSettings:
    return SearchSettings.of(starts, agreeing, 0.2, "auto", 0, "numpy")


def end(error, Theta):
    """Where a descent might have ended."""
    return Descent(SimpleNamespace(error=error, loss=error**2, Theta=np.asarray(Theta)), 7)


def scripted(monkeypatch, ends):
    """A descent that ends where it is told to, also after pruning; and the starts it was given."""
    ends, begun = iter(ends), []

    def descend(objective, Theta, **_):
        begun.append(Theta)
        return end(0.9, Theta) if len(Theta) > 1 else next(ends)

    monkeypatch.setattr("linattn_fast.softmax.search.many_starts.pruned", lambda *_: next(ends))
    return descend, begun


def test_the_head_that_costs_least_is_pruned(rng, planted):
    truth, objective = planted
    Theta = np.concatenate([truth.Theta[:2], rng.standard_normal((1, 3, 3)), truth.Theta[2:]])
    assert np.array_equal(pruned(objective, Theta, 3, stay, tried=1).point.Theta, truth.Theta)
    left = pruned(objective, Theta, 2, stay, tried=1).point
    without = [np.delete(truth.Theta, i, axis=0) for i in range(3)]
    assert left.loss == min(objective.at(each).loss for each in without)


def test_pruning_tries_the_next_best_and_stops_at_an_exact_fit(rng, planted):
    _, objective = planted
    Theta, tried = rng.standard_normal((4, 3, 3)), []

    def descend(objective, Theta, **_):
        tried.append(Theta)
        return end((0.5, SOLVED, 0.1)[len(tried) - 1], Theta)

    found = pruned(objective, Theta, 3, descend)
    assert (found.point.error, len(tried)) == (SOLVED, 2)
    losses = [objective.at(each).loss for each in tried]
    assert losses == sorted(objective.at(np.delete(Theta, i, axis=0)).loss for i in range(4))[:2]


def test_heads_agree_in_any_order(rng):
    space = TokenSpace(*[np.eye(3)] * 4)
    Theta = rng.standard_normal((3, 3, 3))
    point = end(0.1, Theta).point
    assert agree(end(0.1, Theta[[2, 0, 1]]).point, point, space)
    assert agree(end(0.1, 1.009 * Theta).point, point, space)
    assert not agree(end(0.1, 1.011 * Theta).point, point, space)
    assert not agree(end(0.1, Theta[[0, 0, 1]]).point, point, space)


def test_losses_agree_to_a_thousandth_or_where_both_are_exact(rng):
    space, Theta = TokenSpace(*[np.eye(3)] * 4), rng.standard_normal((1, 3, 3))
    for a, b, same in ((0.1, 0.10004, True), (0.1, 0.1001, False), (1e-15, 0.9 * SOLVED, True)):
        ends = end(a, Theta).point, end(b, Theta).point
        assert agree(*ends, space) == agree(*ends[::-1], space) == same


def test_what_no_logit_depends_on_need_not_agree(rng):
    X = uniform_tokens(rng, 50, 4, 3)
    X[:, :, 1] = 1.0
    space = TokenSpace.of(Examples.of(as_tokens(X), None))
    Theta = rng.standard_normal((1, 3, 3))
    other = Theta.copy()
    other[:, :, 1] += 5.0
    assert agree(end(0.1, other).point, end(0.1, Theta).point, space)
    assert not agree(end(0.1, other.transpose(0, 2, 1)).point, end(0.1, Theta).point, space)


def test_starts_alternate_between_as_many_heads_and_one_more(monkeypatch, planted):
    _, objective = planted
    ends = [end(1 - 0.01 * i, [np.eye(3) * i]) for i in range(1, 13)]
    descend, begun = scripted(monkeypatch, ends)
    seen = []
    found = search(objective, 1, descend, settings(), watch=seen.append)
    assert [len(Theta) for Theta in begun] == [1, 2] * 6
    assert [each.kind for each in found.starts] == ["random", "pruned"] * 6
    assert [each.norm for each in found.starts] == [n for n in NORMS for _ in range(2)] * 2
    assert (found.point, found.more_heads_error) == (ends[-1].point, 0.9)
    assert [each.agrees for each in found.starts] == [False] * 11 + [True]
    assert seen == list(range(1, 13))
    space = TokenSpace.of(objective.examples)
    for Theta, each in zip(begun, found.starts, strict=True):
        logits = np.linalg.inv(space.query_root) @ Theta @ np.linalg.inv(space.key_root)
        assert np.allclose(np.linalg.norm(logits, axis=(1, 2)), each.norm)


def test_the_least_training_loss_is_chosen(monkeypatch, planted):
    ends = [end(e, [np.eye(3) * i]) for i, e in enumerate((0.3, 0.2, 0.4, 0.25), 1)]
    descend, _ = scripted(monkeypatch, ends)
    found = search(planted[1], 1, descend, settings(starts=4))
    assert found.point is ends[1].point
    assert [each.error for each in found.starts] == [0.3, 0.2, 0.4, 0.25]
    assert not found.solved


def test_a_search_ends_when_enough_starts_agree_on_the_best(monkeypatch, planted):
    a, b = [np.eye(3)], [np.ones((3, 3))]
    ends = [end(0.3, a), end(0.3, a), end(0.2, b), end(0.2, b), end(0.3, a), end(0.2, b)]
    descend, _ = scripted(monkeypatch, ends)
    found = search(planted[1], 1, descend, settings(agreeing=3))
    assert [each.agrees for each in found.starts] == [False, False, True, True, False, True]


def test_a_search_ends_at_an_exact_fit(monkeypatch, planted):
    ends = [end(0.3, [np.eye(3)]), end(SOLVED, [np.ones((3, 3))]), end(0.0, [np.eye(3)])]
    descend, _ = scripted(monkeypatch, ends)
    found = search(planted[1], 1, descend, settings())
    assert (len(found.starts), found.solved) == (2, True)
    given = np.full((1, 3, 3), 2.0)
    descend, begun = scripted(monkeypatch, ends[1:])
    found = search(planted[1], 1, descend, settings(), given=given)
    assert [each.kind for each in found.starts] == ["given"]
    assert begun[0] is given
    assert np.isnan(found.more_heads_error)


def test_descents_run_on_tokens_of_unit_second_moment(rng):
    """Mixed tokens that span two of three directions: the third is left as it is."""
    X = rng.standard_normal((50, 4, 2)) @ (rng.standard_normal((2, 3)) * [1.0, 10.0, 0.1])
    tokens = as_tokens(X)
    examples = Examples.of(tokens, as_targets(rng.standard_normal((50, 4, 2)), tokens, "all"))
    whitening = Whitening.of(examples)
    inside = whitening.objective(examples, compiled=False)
    x = inside.examples.queries()
    # A projection of rank 2, up to eps times the condition number of the tokens' moment, 1e5 or so
    moment = x.T @ x / len(x)
    assert np.abs(moment @ moment - moment).max() < 1e-10
    assert np.isclose(np.trace(moment), 2)
    missing = np.linalg.svd(X.reshape(-1, 3))[2][2]
    assert np.abs(whitening.R @ missing - missing).max() < 1e-10
    Theta = rng.standard_normal((2, 3, 3))
    outside = Objective(examples, compiled=False).at(whitening.out_of(Theta))
    assert np.isclose(inside.at(Theta).loss, outside.loss, rtol=1e-9)
    assert np.allclose(whitening.into(whitening.out_of(Theta)), Theta, atol=1e-8)


def test_a_descent_that_hardly_helps_ends(rng):
    X = uniform_tokens(rng, 200, 3, 6)
    tokens = as_tokens(X)
    problem = Objective(Examples.of(tokens, as_targets(parity(X, (0, 2, 4)), tokens, "all")))
    Theta = rng.standard_normal((2, 6, 6))
    found = levenberg_marquardt(problem, Theta, iterations=2000)
    assert 15 < found.iterations < 500
    assert found.point.loss < problem.at(Theta).loss


@pytest.mark.parametrize(
    ("errors", "suggested"),
    [
        ([0.5, 0.104, 0.1], 2),
        ([0.5, 0.106, 0.1], 3),
        ([0.5, 0.9e-8, 1e-15], 2),  # both are exact
        ([0.5, 2e-8, 1e-15], 3),
        ([0.1, 0.1, 0.1], 1),
    ],
)
def test_the_fewest_heads_within_five_percent_are_suggested(errors, suggested):
    assert HeadPath((1, 2, 3), np.zeros(3), np.array(errors), []).suggested == suggested


def test_one_more_head_never_costs_on_the_path(monkeypatch, rng):
    """A search with two heads that finds less than one head has is not taken."""
    truth, X = planted_layer(rng, 1, 3, logits=2.0), uniform_tokens(rng, 60, 4, 3)

    def worse(objective, m, descend, settings, *, given):
        Theta = truth.Theta if m == 1 else np.zeros((2, 3, 3))
        return SimpleNamespace(point=objective.at(Theta))

    monkeypatch.setitem(inspect.unwrap(head_path).__globals__, "search", worse)
    path = head_path(X, truth(X), 2)
    assert path.training_errors[0] == path.training_errors[1] < 0.5
    assert [len(layer) for layer in path.layers] == [1, 1]


@pytest.mark.parametrize("seed", range(4))
def test_nor_does_it_cost_a_rounding(seed):
    """Layers of one head, which all numbers of heads fit to rounding."""
    rng = np.random.default_rng(seed)
    truth, X = planted_layer(rng, 1, 3, logits=2.0), uniform_tokens(rng, 60, 4, 3)
    assert (np.diff(head_path(X, truth(X), 3).training_errors) <= 0).all()
