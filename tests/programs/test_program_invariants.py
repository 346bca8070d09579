"""Invariants: spaces that hold every run of a program, however long, and no more than needed."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.random_programs import random_programs

from linattn_fast import programs
from linattn_fast.programs import DfaSimulator, Lookup, Program, Record, TuringSimulator
from linattn_fast.programs.certifying import findings, invariants
from linattn_fast.programs.certifying.findings import Findings, NotFiniteError
from linattn_fast.programs.certifying.integer_span import IntegerSpan, eliminated
from linattn_fast.programs.certifying.invariants import Invariants
from linattn_fast.programs.running.appending import run_many


def rank_by_fractions(rows):
    """Gaussian elimination, the obvious way."""
    rows = [[Fraction(int(x)) for x in row] for row in rows]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] / rows[rank][column]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


def contains(span, vectors):
    """Whether all vectors (m, n) lie in a span."""
    return len(span.outside(vectors)) == 0


matrices = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(-4, 4), min_size=n, max_size=n), min_size=1, max_size=7)
)


@settings(max_examples=200)
@given(matrices, st.data())
def test_a_span_has_the_rank_and_the_members_of_its_vectors(given_rows, data):
    rows = np.array(given_rows, dtype=float)
    span = IntegerSpan(rows.shape[1])
    cut = data.draw(st.integers(0, len(rows)))
    for part in (rows[:cut], rows[cut:]):
        before = len(span)
        assert span.add(part) == (len(span) > before)
    assert len(span) == rank_by_fractions(rows)
    assert contains(span, rows)
    vector = np.array([data.draw(st.integers(-4, 4)) for _ in range(rows.shape[1])], dtype=float)
    inside = rank_by_fractions([*rows, vector]) == len(span)
    assert contains(span, vector[None]) == inside


def test_numbers_that_might_not_be_exact_are_refused():
    rows = np.array([[2.0**27, 1.0], [2.0**27 - 1, 1.0]])
    with pytest.raises(OverflowError, match="exact"):
        eliminated(rows, np.arange(2))


def span_of(*rows):
    span = IntegerSpan(len(rows[0]))
    for row in rows:
        span.add(np.array([row], dtype=float))
    return span


def test_a_product_that_rounding_would_make_zero_is_refused():
    """(2^27 + 1)^2 - 2^28 (2^26 + 1) is 1, and 0 in float64: the vector is not in the span."""
    span = span_of([1, 0, 2**27 + 1], [0, 1, -(2**26) - 1])
    with pytest.raises(OverflowError, match="exact"):
        span.outside(np.array([[2.0**27 + 1, 2.0**28, 0.0]]))


def test_pivots_whose_common_multiple_is_beyond_int64_are_refused():
    """Two numbers without a common divisor, whose product is 3 more than a multiple of 2^64."""
    pivots = [56_195, 656_526_170_431_873]
    assert math.prod(pivots) % 2**64 == math.lcm(*pivots) % 2**64 == 3
    span = IntegerSpan(3)
    span.rows, span._pivots = np.column_stack([np.diag(pivots), [1.0, 1.0]]), np.arange(2)
    with pytest.raises(OverflowError, match="exact"):
        span.outside(np.array([[1.0, 0, 0]]))


# -------------------------------------------------------------------------------- what they contain


def all_runs(program, tokens):
    """Every run of the family, or many of them: (contexts, n + tokens, d)."""
    if program.family.count > 2000:
        return run_many(
            program.layer, program.family.sample(2000, np.random.default_rng(0)), tokens
        )
    return np.concatenate([run_many(program.layer, Z, tokens) for Z in program.family.chunks(500)])


def sequences_by_last_token(program, found, tokens):
    """s of all prefixes of all runs over the pairs of the invariants, by their last token."""
    n = len(program.family.slots)
    runs = all_runs(program, tokens)
    j, k = found.pairs.T
    by_last = {}
    for run in runs:
        s = np.cumsum(run[:, j] * run[:, k], axis=0)
        for t in range(n - 1, len(run)):
            if t >= n and not run[t].any():
                break
            by_last.setdefault(tuple(run[t].tolist()), set()).add(tuple(s[t].tolist()))
    return {token: np.array(sorted(rows)) for token, rows in by_last.items()}


@settings(max_examples=60)
@given(random_programs(slots=True))
def test_no_run_of_a_random_program_leaves_its_spaces(program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "_MOST_TOKENS", 60)
        patch.setattr(findings, "_MOST_FINDINGS", 2000)
        try:
            found = Invariants(program)
        except (NotFiniteError, OverflowError):
            assume(False)
    for token, rows in sequences_by_last_token(program, found, 9).items():
        assert contains(found.spaces[token], np.column_stack([rows, np.ones(len(rows))]))


@pytest.mark.parametrize(
    ("program", "tokens"),
    [
        (DfaSimulator(2, 2, 3), 6),
        (DfaSimulator(3, 2, 2), 4),
        (TuringSimulator(2, 1, 3), 24),
        (TuringSimulator(2, 1, 1), 24),
        (TuringSimulator(1, 2, 2), 24),
        (TuringSimulator(2, 2, 2), 24),
    ],
)
def test_the_spaces_of_machines_are_those_of_all_their_runs(program, tokens):
    """Not too small, for then a run would leave them; and not larger than the runs span."""
    found = Invariants(program)
    by_last = sequences_by_last_token(program, found, tokens)
    assert set(by_last) == set(found.spaces)
    for token, rows in by_last.items():
        space = found.spaces[token]
        assert contains(space, np.column_stack([rows, np.ones(len(rows))]))
    assert rank_of_features(found.directions) == rank_of_features(
        {token: basis(rows) for token, rows in by_last.items()}
    )


def test_spaces_can_be_larger_than_what_runs_span():
    """One state on one cell: what is written there is tied to the table, more than linearly."""
    program = TuringSimulator(1, 2, 1)
    found = Invariants(program)
    by_last = sequences_by_last_token(program, found, 40)
    assert set(by_last) == set(found.spaces)
    spanned = rank_of_features({token: basis(rows) for token, rows in by_last.items()})
    assert (spanned, rank_of_features(found.directions)) == (50, 54)


def basis(rows):
    span = IntegerSpan(rows.shape[1])
    span.add(rows)
    return span.rows


def rank_of_features(rows_by_token):
    """Of s (x) z, all tokens together."""
    features = [
        np.einsum("nu,l->nul", rows, np.array(token)).reshape(len(rows), -1)
        for token, rows in rows_by_token.items()
    ]
    H = np.concatenate(features)
    H = H[:, H.any(axis=0)]
    values = np.linalg.eigvalsh(H @ H.T if len(H) < H.shape[1] else H.T @ H)
    return int((values > 1e-9 * values[-1]).sum())


def test_every_cell_of_a_tape_holds_one_symbol_at_any_time():
    program = TuringSimulator(2, 3, 4)
    found = Findings(program)
    symbols = {tuple(np.eye(3)[a]) for a in range(3)}
    for token, sums in found.reached.items():
        assert set(sums) >= {(0, program.record.coordinate("cell", cell)) for cell in range(4)}
        for (instruction, _), given_sums in sums.items():
            assert instruction == 1 or given_sums <= symbols, token


def test_what_never_ends_is_not_called_finite(monkeypatch):
    """A counter whose weight grows with every token: each one is new."""
    record = Record(amount=programs.signed(1))
    program = Program(
        record,
        [Lookup("amount", "amount", "amount", "amount")],
        slots=[[{"amount": {0: 2}}]],
    )
    monkeypatch.setattr(findings, "_MOST_TOKENS", 20)
    with pytest.raises(NotFiniteError, match="more than 20 tokens|very large"):
        Invariants(program)


def test_sums_of_contexts_that_are_too_many_are_not_gone_through(monkeypatch):
    """Each of 40 tokens adds one of two amounts to a place of its own: 2^40 sums."""
    record = Record(key=1, amount=programs.signed(40), ask=1)
    slots = [[{"key": 0, "amount": {i: w}} for w in (0, 1)] for i in range(40)]
    program = Program(
        record, [Lookup("ask", "key", "amount", "amount")], slots=[*slots, [{"ask": 0}]]
    )
    monkeypatch.setattr(findings, "_MOST_NUMBERS", 100_000)
    with pytest.raises(NotFiniteError, match="contexts have too many different sums"):
        Findings(program)


def test_steps_that_are_too_many_are_not_gone_through(monkeypatch):
    """Three lookups that find one of four things each: 64 ways to go on."""
    names = "pqr"
    record = Record(**dict.fromkeys(names, 4), key=1, one=1)
    lookups = [Lookup("one", "key", name, name) for name in names]
    slots = [[{"key": 0, name: v} for v in range(4)] for name in names]
    program = Program(record, lookups, slots=[*slots, [{"one": 0}]])
    assert len(Invariants(program).spaces) == 1 + 4**3
    monkeypatch.setattr(findings, "_MOST_TRANSITIONS", 63)
    with pytest.raises(NotFiniteError, match="more than 63 steps would have to be tried"):
        Findings(program)
    monkeypatch.setattr(findings, "_MOST_TRANSITIONS", 64)
    assert len(Invariants(program).spaces) == 1 + 4**3  # each is tried once


def endless():
    """One token that follows itself, and sums under a key that grow with every step."""
    record = Record(first=1, ask=1, count=1, never=1)
    anchor = ("first", 0)
    lookups = [
        programs.if_then("ask", lambda a: a, "ask", anchor=anchor),
        programs.if_then("ask", lambda a: a, "count", anchor=anchor),
        Lookup("never", "count", "count", "count"),
    ]
    return Program(record, lookups, slots=[[{"first": 0}], [{"ask": 0, "count": 0}]])


def test_only_new_sums_are_handed_on(monkeypatch):
    """A closure that hands on all it has, again and again, adds the square of this many."""
    added = []
    plain = findings._sum
    monkeypatch.setattr(findings, "_sum", lambda a, b: added.append(1) or plain(a, b))
    monkeypatch.setattr(findings, "_MOST_FINDINGS", 2000)
    with pytest.raises(NotFiniteError, match="lookups can find more than 2,000 things"):
        Findings(endless())
    assert 1900 < len(added) < 2100


@pytest.mark.parametrize(
    ("module", "limit", "number", "message"),
    [
        (findings, "_MOST_HANDED_ON", 5, "more than 5 sums would have to be handed on"),
        (invariants, "_MOST_PRODUCTS", 500, "would take more than 5e\\+02 products"),
    ],
)
def test_work_without_end_is_given_up_and_the_reason_said(
    module, limit, number, message, monkeypatch
):
    simulator = DfaSimulator(2, 2, 2)
    fit = programs.learn(simulator, simulator.traces(100, 2, seed=0))
    monkeypatch.setattr(module, limit, number)
    found = programs.certify(fit, simulator, method="invariants")
    assert found.verdict == "undecided"
    assert re.search(message, found.evidence)
    assert programs.certify(fit, simulator, steps=2).method == "exhaustive"


def test_weights_that_are_not_whole_prove_nothing():
    record = Record(amount=programs.signed(1), one=1)
    half = Lookup("one", "one", "one", "amount", write=lambda *_: {0: 0.5})
    program = Program(record, [half], slots=[[{"one": 0}]])
    with pytest.raises(NotFiniteError, match="not whole"):
        Invariants(program)
