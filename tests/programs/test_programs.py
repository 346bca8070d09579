"""Programs of lookups: what they compute, compiled and interpreted, and how they are run."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.random_programs import random_programs

import linattn_fast as la
from linattn_fast import programs
from linattn_fast.programs import Lookup, Program, Record, copy, if_then, signed
from linattn_fast.programs.running import appending
from linattn_fast.programs.running import layer as layer_module

# ------------------------------------------------------------------------------------------ records


def test_a_record_lays_attributes_out_one_after_another():
    record = Record(a=2, b=(2, 3), c=signed(2))
    assert record.d == 2 + 6 + 2
    z = record.vector({"a": 1, "b": (1, 2), "c": {0: -1, 1: 2}})
    assert z.tolist() == [0, 1, 0, 0, 0, 0, 0, 1, -1, 2]
    assert record.token(z) == {"a": 1, "b": (1, 2), "c": {0: -1.0, 1: 2.0}}
    assert record.names[7] == "b[1, 2]"


@given(st.data())
def test_tokens_survive_encoding_and_decoding(data):
    record = Record(a=3, b=(2, 2), c=signed(3))
    token = {}
    for name in data.draw(st.sets(st.sampled_from("abc"))):
        value = st.sampled_from(list(record.attributes[name].values()))
        weights = st.dictionaries(value, st.integers(-3, 3).filter(bool), min_size=1)
        token[name] = data.draw(weights if name == "c" else value)
    assert record.token(record.vector(token)) == token


def test_a_vector_that_is_no_token_is_refused():
    record = Record(a=3, c=signed(2))
    with pytest.raises(ValueError, match="vector: a is not signed.*got {0: 1.0, 2: 1.0}"):
        record.token([1, 0, 1, 0, 0])
    with pytest.raises(ValueError, match=r"vector: shape \(5,\) is needed"):
        record.token([1, 0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: r.vector({"z": 0}), "token: one of the attributes a, b, c is needed, got 'z'"),
        (lambda r: r.vector({"a": 3}), "a: a whole number from 0 to 2 is needed, got 3"),
        (lambda r: r.vector({"a": {0: 1}}), "a: one value is needed, because it is not signed"),
        (lambda r: r.vector({"b": 1}), "b: a tuple within 2x2 is needed, got 1"),
        (lambda r: r.vector({"b": (0, 2)}), "b: a tuple within 2x2 is needed"),
        (lambda r: r.vector({"c": {0: np.inf}}), "c: finite weights are needed, got inf"),
        (lambda r: Record(), "attributes: at least one is needed"),
        (lambda r: Record(a=0), "a: shape: .*got 0"),
        (lambda r: Program(r, []), "instructions: at least one is needed"),
        (lambda r: Program(r, [Lookup("x", "a", "a", "a")]), "query: one of the attributes"),
        (lambda r: Program(r, [Lookup("a", "a", "a", "x")]), "into: one of the attributes"),
        (
            lambda r: Program(r, [Lookup("a", "b", "a", "a", match=lambda a: (a, a))]),
            r"match\(2\) in b: a tuple within 2x2 is needed, got \(2, 2\)",
        ),
        (
            lambda r: Program(r, [Lookup("a", "a", "a", "c", write=lambda a, v: a + v)]),
            r"^instructions\[0\]: write\(0, 2\): c: a whole number from 0 to 1 is needed, got 2",
        ),
        (lambda r: r.coordinate("z", 0), "^name: one of the attributes a, b, c is needed, got 'z'"),
        (lambda r: Lookup("a", "a", "a", "a", match=1), "^match: a function is needed, got 1"),
        (lambda r: if_then("a", 1, "a", anchor=("a", 0)), "^then: a function is needed, got 1"),
        (lambda r: if_then("a", int, "a", anchor="a"), r"^anchor: \(attribute, value\) is needed"),
        (lambda r: Program(r, Lookup("a", "a", "a")), "^instructions: a list of Lookups is needed"),
        (lambda r: programs.Family("x", [[{}]]), "^record: a Record is needed, got str"),
        (lambda r: programs.Family(r, [{"a": 0}]), "^slots: a list is needed, for each slot"),
        (lambda r: programs.Family(r, [[{}], [{"a": 3}]]), r"^slots\[1\]: a: a whole number"),
        (lambda r: programs.Family(r, [[{}]]).sample(0), "^number: must be at least 1, got 0"),
        (lambda r: next(programs.Family(r, [[{}]]).chunks(0)), "^size: must be at least 1, got 0"),
        (lambda r: programs.Run([[1.0]], 1), r"^tokens: an array \(n, d\) is needed, got list"),
        (lambda r: programs.Run(np.ones((2, 3)), 3), "^n_context: 1 to 2 is needed"),
    ],
)
def test_errors_name_what_was_wrong(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(Record(a=3, b=(2, 2), c=signed(2)))


# ------------------------------------------------------------------ heads and the plain interpreter


@settings(max_examples=150, deadline=None)
@given(random_programs())
def test_compiled_heads_compute_what_the_interpreter_does(made):
    program, tokens = made
    Z = program.encode(tokens)
    expected = program.interpret(tokens)
    (y,) = program.heads()([Z])
    assert program.record.weights(np.round(y, 9)) == expected
    layers = [program.layer, programs.Layer.of(program.heads(), program.d)]
    for layer in layers:
        assert program.record.weights(layer.action(Z[-1]).one(layer.sums(Z[None])[0])) == expected


def stepper():
    """From place to place; the token that starts to ask is itself what is found."""
    record = Record(at=5, note=2)
    forward = Lookup("at", "at", "at", "at", write=lambda at, _: at + 1 if at < 4 else None)
    slots = [[{"note": 0}, {"note": 1}], [{"at": at} for at in range(5)]]
    return Program(record, [forward], slots=slots, tokens_per_step=2)


@pytest.mark.parametrize("program", [programs.TuringSimulator(2, 2, 3), stepper()])
def test_many_runs_at_once_are_the_single_ones(program):
    Z = program.family.sample(40, np.random.default_rng(0))
    runs = appending.run_many(program.layer, Z, 30)
    for z, run in zip(Z, runs, strict=True):
        single = program.run(program.heads(), z, 15).tokens
        np.testing.assert_array_equal(run[: len(single)], single)
        assert not run[len(single) :].any()


def test_heads_that_are_not_sparse_run_as_they_are(monkeypatch):
    program = programs.DfaSimulator(2, 2, 3)
    context = program.context(programs.Automaton([[0, 1], [1, 0]]), [1, 1, 1])
    expected = program.trace(context, 3).tokens
    monkeypatch.setattr(layer_module, "_SPARSE_ENTRIES", 0)
    np.testing.assert_array_equal(program.run(program.heads(), context, 3).tokens, expected)
    generated = program.heads().generate(program.encode(context), 6, round=0)
    np.testing.assert_array_equal(generated, expected)


def test_a_cache_without_room_changes_nothing(monkeypatch):
    program = programs.DfaSimulator(2, 2, 3)
    context = program.context(programs.Automaton([[0, 1], [1, 1]]), [0, 1, 0])
    expected = program.trace(context, 3).tokens
    monkeypatch.setattr(layer_module, "_CACHE_BYTES", 0)
    layer = programs.Layer.of(program.heads(), program.d)
    np.testing.assert_array_equal(program.run(layer, context, 3).tokens, expected)
    assert not layer._actions


# -------------------------------------------------------------------------- copy, if-then, programs


def repeater(n, period):
    """Copy the letter ``period`` positions before, again and again, as far as position n."""
    record = Record(position=n, letter=3)
    forward = if_then(
        "position", lambda p: p + 1 if p + 1 < n else None, "position", anchor=("position", 0)
    )
    back = copy(
        "letter",
        "letter",
        position="position",
        source=lambda p: p + 1 - period if period <= p + 1 < n else None,
    )
    return Program(record, [forward, back])


def test_copy_by_position_repeats_a_word():
    n, word = 12, [2, 0, 1, 1]
    program = repeater(n, len(word))
    context = [{"position": t, "letter": letter} for t, letter in enumerate(word)]
    run = program.run(program.heads(), context, 100)
    assert [t.get("letter") for t in program.decode(run)] == list(
        itertools.islice(itertools.cycle(word), n)
    )
    assert [t["position"] for t in program.decode(run)] == list(range(n))


def test_a_run_ends_where_nothing_is_found():
    record = Record(at=3, letter=2)
    program = Program(
        record, [Lookup("at", "at", "at", "at", write=lambda at, _: at + 1 if at < 2 else None)]
    )
    run = program.run(program.heads(), [{"at": 0, "letter": 1}], 10)
    assert program.decode(run.appended) == [{"at": 1}, {"at": 2}]
    assert len(program.run(None, [{"at": 0}], 10, until=lambda z: z[1] == 1)) == 1


def test_if_then_chooses_by_the_value_of_an_attribute():
    record = Record(one=1, colour=3, sound=2)
    rule = if_then(
        "colour",
        {0: {"colour": 1}, 1: {"colour": 2, "sound": 1}}.get,  # and nothing after 2
        anchor=("one", 0),
    )
    program = Program(record, [rule])
    for layer in (None, program.heads()):
        run = program.run(layer, [{"one": 0}, {"colour": 0}], 5)
        assert program.decode(run.appended) == [{"colour": 1}, {"colour": 2, "sound": 1}]


def test_a_list_names_a_joint_value_as_a_tuple_does():
    record = Record(place=(2, 2), digit=3)
    count = if_then("digit", lambda d: (d + 1) % 3, "digit", anchor=("place", [1, 0]))
    find = Lookup("digit", "place", "place", "place", match=lambda _: [1, 0])
    program = Program(record, [count, find])
    context = [{"place": [1, 0]}, {"digit": 2}]
    (token,) = program.decode(program.run(program.heads(), context, 1).appended)
    assert token == {"place": (1, 0), "digit": 0}
    assert program.interpret(context) == {"place": {(1, 0): 1.0}, "digit": {0: 1.0}}


def test_tokens_that_match_are_added_up():
    """A log of differences: the sum of what was said about a key is its present value."""
    record = Record(key=2, amount=signed(3), ask=2, answer=signed(3))
    program = Program(record, [Lookup("ask", "key", "amount", "answer")])
    log = [
        {"key": 0, "amount": {1: 1}},
        {"key": 1, "amount": {0: 1}},
        {"key": 0, "amount": {1: -1, 2: 1}},
        {"ask": 0},
    ]
    assert program.decode(program.run(program.heads(), log, 1).appended) == [{"answer": {2: 1.0}}]


# ------------------------------------------------------------------------------------------ running


def test_tokens_are_told_apart_also_by_parts_of_one():
    """Their codes are of whole numbers, and those of 0.2 and 0.7 are the same."""
    z = np.array([[0.7, 0.0], [0.2, 0.0], [0.7, 0.0], [0.0, 0.0]])
    found = {tuple(token): rows.tolist() for token, rows in appending.kinds(z)}
    assert found == {(0.7, 0.0): [0, 2], (0.2, 0.0): [1], (0.0, 0.0): [3]}


def test_rounding_leaves_no_negative_zero_and_nothing_that_overflows():
    rounded = appending.rounded(np.array([-0.3, 0.6, 1e300, -1.2]))
    assert rounded.tolist() == [0.0, 1.0, 2.0**40, -1.0]
    assert not np.signbit(rounded[0])


def test_training_pairs_are_prefixes_and_what_follows():
    program = programs.DfaSimulator(2, 2, 2)
    trace = program.trace(program.context(programs.Automaton([[0, 1], [1, 0]]), [1, 1]), 2)
    pairs = trace.pairs()
    assert len(pairs) == len(trace) == 4
    for t, (Z, y) in enumerate(pairs):
        np.testing.assert_array_equal(Z, trace.tokens[: trace.n_context + t])
        np.testing.assert_array_equal(y, trace.tokens[trace.n_context + t])
        assert np.shares_memory(Z, trace.tokens)


def test_random_traces_repeat_with_their_seed_and_are_of_the_family():
    program = programs.DfaSimulator(2, 2, 2)
    first, again, other = (program.traces(20, 2, seed=seed) for seed in (1, 1, 2))
    same = [np.array_equal(a.tokens, b.tokens) for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(first, other, strict=True))
    everything = {z.tobytes() for Z in program.family.chunks(7) for z in Z}
    assert len(everything) == program.family.count == 2**4 * 2**2
    assert all(trace.context.tobytes() in everything for trace in first)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.run("x", p.encode([{"at": 0}]), 1), "heads: Heads, a Fit or a Program"),
        (lambda p: p.run(la.Heads([np.eye(2)], [np.eye(2)]), [{"at": 0}], 1), "heads: d = d_out"),
        (lambda p: p.run(None, [], 1), "context: at least one token"),
        (lambda p: p.run(None, np.zeros((2, 4)), 1), r"context: an array \(n, 3\)"),
        (lambda p: p.run(None, np.full((2, 3), np.nan), 1), "context: must be finite"),
        (lambda p: p.run(None, [{"at": 0}], -1), "steps: "),
        (lambda p: p.run(None, {"at": 0}, 1), "^context: a list of tokens or an array .* got dict"),
        (lambda p: p.run(None, [{"at": 0}, {"at": 3}], 1), r"^context\[1\]: at: a whole number"),
        (lambda p: p.run(None, [{"at": 0}], 1, until=1), "^until: a function is needed, got int"),
        (lambda p: p.run(p.record, [{"at": 0}], 1), "^heads: Heads, a Fit or a Program is needed"),
        (lambda p: p.run(stepper().layer, [{"at": 0}], 1), "^heads: d = d_out = 3 is needed"),
        (lambda p: p.run(stepper(), [{"at": 0}], 1), "^heads: d = d_out = 3 is needed"),
        (lambda p: p.interpret([]), "^tokens: at least one token is needed"),
        (lambda p: stepper().traces(2, 1, seed="x"), "^seed: "),
        (lambda p: p.traces(3, 1), "slots: this program was made without its contexts"),
        (lambda p: Program(p.record, p.instructions, slots=[[]]), "slots: at least one is needed"),
    ],
)  # fmt: skip
def test_errors_of_running_name_the_argument(call, message):
    program = Program(Record(at=3), [Lookup("at", "at", "at", "at")])
    with pytest.raises((ValueError, TypeError), match=message):
        call(program)


def test_more_runs_than_there_is_memory_for_are_refused_at_once():
    with pytest.raises(MemoryError, match="^number: 10000000000 runs of 2 tokens"):
        stepper().traces(10**10, 1)


def test_a_program_runs_itself_with_what_it_knows_already():
    program = stepper()
    context = [{"at": 0}]
    program.run(None, context, 2)
    known = dict(program.layer._actions)
    assert known
    program.run(None, context, 2)
    program.run(program, context, 2)
    assert all(program.layer._actions[name] is action for name, action in known.items())
    assert len(program.layer._actions) == len(known)


def test_programs_are_reached_without_being_imported_first():
    assert la.programs is programs
    assert "programs" in dir(la)
