"""What traces determine, step by step: tokens and pairs that never were, and all the others."""

import numpy as np
import pytest

from linattn_fast import programs
from linattn_fast.programs.certifying import by_runs
from linattn_fast.programs.certifying.determined import Determined

AUTOMATA = programs.DfaSimulator(3, 2, 4)


@pytest.fixture(scope="module", params=["blocks", "dual"])
def few(request):
    """Learned from too few traces, in blocks and as a whole."""
    return programs.learn(AUTOMATA, AUTOMATA.traces(60, 4, seed=0), solver=request.param)


@pytest.mark.parametrize("solver", ["blocks", "dual"])
@pytest.mark.parametrize("number", [1, 3, 10, 30])
def test_however_few_the_traces_no_covered_answer_is_wrong(number, solver):
    """Tokens that never asked, pairs that never were: neither certificate calls them covered."""
    simulator = programs.DfaSimulator(2, 2, 3)
    traces = simulator.traces(number, 3, seed=0)
    fit = programs.learn(simulator, traces, solver=solver)
    found = programs.certify(fit, simulator, steps=3)
    assert (found.method, found.verdict) == ("exhaustive", "not covered")
    seen = {trace.context.tobytes() for trace in traces}
    assert len(seen) <= found.covered_runs < found.runs
    assert found.covered_but_wrong == 0
    runs = simulator.traces(100, 3, seed=9)
    pairs = [pair for run in runs for pair in run.pairs()]
    Z, y = [Z for Z, _ in pairs], np.array([y for _, y in pairs])
    covered = fit.certificate.covers(Z)
    right = (np.rint(fit.predict(Z)) == y).all(axis=1)
    assert not (covered & ~right).any()
    assert not right.all()
    np.testing.assert_array_equal(np.isinf(fit.certificate.leverage(Z)), ~covered)


def test_a_token_that_never_asked_is_not_covered_whatever_was_there_before():
    simulator = programs.DfaSimulator(2, 2, 2)
    automaton = programs.Automaton([[0, 0], [0, 0]])  # state 1 never asks
    words = [[0, 0], [0, 1], [1, 0], [1, 1]]
    fit = programs.learn(
        simulator, [simulator.trace(simulator.context(automaton, word), 2) for word in words]
    )
    span = Determined(fit)
    s = programs.Layer.of(fit, simulator.d).sums(
        np.array([simulator.encode(simulator.context(automaton, word)) for word in words])
    )
    for state, expected in ((0, 0.0), (1, 1.0)):
        asked = span.asked(simulator.record.vector({"state": (0, state)}))
        np.testing.assert_allclose(asked.residuals(s), expected, atol=1e-12)
        assert asked.largest(s[:1]) == pytest.approx(expected, abs=1e-12)


def test_a_pair_that_never_was_is_not_covered_though_all_else_is_as_before():
    """A token with a and b together, where training has them in two: S is alike elsewhere."""
    record = programs.Record(a=1, b=1, ask=1, found=1, always=1)
    program = programs.Program(
        record,
        [
            programs.Lookup("ask", key="a", value="b", into="found"),
            programs.Lookup("ask", key="a", value="a", into="always"),
        ],
        slots=[[{"a": 0}, {"a": 0, "b": 0}], [{"b": 0}, {}], [{"ask": 0}]],
    )
    apart = [[{"a": 0}, {"b": 0}, {"ask": 0}], [{"a": 0}, {}, {"ask": 0}]]
    fit = programs.learn(program, [program.trace(context, 1) for context in apart])
    together = program.encode([{"a": 0, "b": 0}, {}, {"ask": 0}])
    assert fit.certificate.covers([program.encode(apart[0]), together]).tolist() == [True, False]
    found = programs.certify(fit, program, steps=1)
    assert (found.verdict, found.covered_runs, found.runs) == ("not covered", 2, 4)
    assert found.right_runs == 2
    assert found.covered_but_wrong == 0
    assert "is not within the range of the training data" in found.evidence


def test_the_largest_residual_of_a_span_is_at_least_that_of_each_member(few):
    layer, span = programs.Layer.of(few, AUTOMATA.d), Determined(few)
    Z = AUTOMATA.family.sample(4, 0)
    s, z = layer.sums(Z), Z[0, -1]
    mixtures = np.random.default_rng(0).standard_normal((200, 4)) @ s
    asked = span.asked(z)
    residuals, largest = asked.residuals(mixtures), asked.largest(s)
    assert residuals.max() <= largest * (1 + 1e-12)
    assert largest < 2 * residuals.max()  # the bound takes all singular values, here of 4


def test_coverage_is_that_of_the_fit_s_own_certificate(few):
    runs = AUTOMATA.traces(60, 4, seed=9)
    Z = [prefix for run in runs for prefix, _ in run.pairs()]
    layer, span = programs.Layer.of(few, AUTOMATA.d), Determined(few)
    covers, residuals = few.certificate.covers(Z, return_residual=True)
    mine = np.array([span.asked(z[-1]).residuals(layer.sums(z[None]))[0] for z in Z])
    assert 0 < covers.mean() < 1
    np.testing.assert_array_equal(mine <= span.tolerance, covers)
    seen = residuals < 1  # unseen features count as 1 there, and as what they are here
    np.testing.assert_allclose(mine[seen], residuals[seen], atol=1e-9)


def test_a_feature_that_was_never_seen_is_not_covered():
    """A token of the end among those of the beginning: known by itself, but not to that query."""
    enough = programs.learn(AUTOMATA, AUTOMATA.traces(500, 4, seed=0))
    run = AUTOMATA.traces(1, 4, seed=0)[0]
    prefix, end = run.tokens[: run.n_context], run.tokens[-2:-1]
    layer, span = programs.Layer.of(enough, AUTOMATA.d), Determined(enough)
    for Z, expected in ((prefix, True), (np.concatenate([end, prefix]), False)):
        assert enough.certificate.covers([Z]).tolist() == [expected]
        residual = span.asked(Z[-1]).residuals(layer.sums(Z[None]))
        assert (residual <= span.tolerance).tolist() == [expected]


def test_pairs_outside_the_fit_are_seen_as_long_as_they_do_not_cancel():
    simulator = programs.TuringSimulator(1, 2, 2)
    layer = programs.Layer.of(simulator, simulator.d)  # has the pairs (cell, symbol), (key, action)
    record = simulator.record
    a, b = {"cell": 0, "head": (1, 0)}, {"cell": 0, "symbol": {0: 1}}
    strange = record.vector(a)  # cell with head, which the layer has no pair for
    known = record.vector(b)
    runs = np.array([[known * 0, strange, known, strange * 0], [known * 0] * 4])
    back = strange.copy()
    back[record.coordinate("cell", 0)] *= -1
    runs[1, 1], runs[1, 2] = strange, back  # the products of the pair cancel
    diagonals = [(int(i), int(i)) for i in np.flatnonzero(strange)] + [
        (record.coordinate("cell", 0),) * 2,
        (record.coordinate("symbol", 0),) * 2,
    ]
    pairs = np.array(sorted({*map(tuple, layer.pairs.tolist()), *diagonals}))
    wider = programs.Layer(simulator.d, simulator.d, pairs, layer._maps)
    assert by_runs._has_unseen(wider, runs).tolist() == [
        [False, True, True, True],
        [False, True, False, False],
    ]


def test_blocks_and_the_whole_agree_on_what_is_covered():
    simulator = programs.DfaSimulator(2, 2, 3)
    traces = simulator.traces(40, 3, seed=3)
    found = [
        programs.certify(
            programs.learn(simulator, traces, solver=solver), simulator, method="sampled", steps=3
        )
        for solver in ("blocks", "dual")
    ]
    assert 0 < found[0].covered_answers < found[0].answers
    assert found[0].covered_answers == found[1].covered_answers
    assert found[0].right_answers == found[1].right_answers
    assert found[0].rank == found[1].rank
