"""Automata and Turing machines, simulated by compiled heads."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_fast import programs
from linattn_fast.programs import Automaton, DfaSimulator, TuringMachine, TuringSimulator


def test_heads_simulate_every_small_automaton_on_every_word():
    simulator = DfaSimulator(2, 2, 3)
    heads = simulator.heads()
    assert (simulator.d, len(heads)) == (4 + 2 + 3 + 2 + 8 + 12, 3 * (2 + 1))
    for table in itertools.product(range(2), repeat=4):
        automaton = Automaton(np.reshape(table, (2, 2)))
        for word in itertools.product(range(2), repeat=3):
            run = simulator.run(heads, simulator.context(automaton, word), 3)
            assert simulator.states(run) == automaton.run(word)


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_the_program_simulates_automata_of_any_size(n_states, n_symbols, length, seed):
    automaton = Automaton.random(n_states, n_symbols, seed)
    word = np.random.default_rng(seed).integers(n_symbols, size=length).tolist()
    simulator = DfaSimulator(n_states, n_symbols, length)
    run = simulator.run(None, simulator.context(automaton, word), length)
    assert simulator.states(run) == automaton.run(word)
    assert len(simulator.run(None, run.tokens, 5)) == 0  # the word is over


@pytest.mark.parametrize("heads", [None, "compiled"])
def test_an_automaton_is_executed_on_a_word(heads):
    simulator = DfaSimulator(3, 2, 5)
    automaton, word = Automaton.random(3, 2, 0), np.array([0, 1, 1, 0, 1])
    layer = None if heads is None else simulator.heads()
    assert simulator.execute(automaton, word, heads=layer) == automaton.run(word)


def test_an_automaton_shows_its_table():
    automaton = Automaton([[0, 1], [1, 0]], accepting=[1])
    assert str(automaton).splitlines() == [
        "state |  0  1",
        "------+------",
        "   0  |  0  1",
        "   1* |  1  0",
    ]
    assert automaton.accepts([1, 0])
    assert not automaton.accepts([1, 1])


@pytest.mark.parametrize("size", [(2, 2, 4), (3, 2, 5), (4, 3, 6)])
def test_heads_simulate_random_turing_machines_token_by_token(size):
    simulator = TuringSimulator(*size)
    states, symbols, cells = size
    heads = simulator.heads()
    assert simulator.d == cells + symbols + 3 * states * symbols + cells * states * (1 + symbols)
    assert len(heads) == cells * (states + symbols)
    layer = programs.Layer.of(heads, simulator.d)
    rng = np.random.default_rng(0)
    for _ in range(50):
        machine = TuringMachine.random(states, symbols, rng)
        word, at = rng.integers(symbols, size=cells).tolist(), int(rng.integers(cells))
        run = simulator.run(layer, simulator.context(machine, word, at=at), 40)
        expected = machine.run(word, n_cells=cells, steps=40, at=at)
        assert simulator.configurations(run) == list(expected.configurations)
        np.testing.assert_array_equal(run.tokens, tokens_of(simulator, run, expected))


def tokens_of(simulator, run, computation):
    """All tokens of a run, written down from the configurations of a machine in plain Python."""
    record, tokens = simulator.record, list(run.context)
    for before, after in itertools.pairwise(computation.configurations):
        old, new = before.tape[before.cell], after.tape[before.cell]
        tokens.append(record.vector({"reading": (before.cell, before.state, old)}))
        changes = {} if old == new else {new: 1, old: -1}
        head = (after.cell, after.state)
        tokens.append(record.vector({"cell": before.cell, "symbol": changes, "head": head}))
    return np.array(tokens)


def test_the_layer_itself_agrees_with_the_runner():
    """``Heads.generate``, the package's own loop, on one machine."""
    simulator = TuringSimulator(2, 2, 3)
    context = simulator.context(TuringMachine.random(2, 2, 3), [1, 0, 1])
    run = simulator.run(simulator.heads(), context, 20)
    generated = simulator.heads().generate(simulator.encode(context), 40, round=0)
    np.testing.assert_array_equal(run.tokens, generated)


@pytest.mark.parametrize("number", [0, 1, 2, 7, 11, 15])
def test_binary_increment_adds_one(number):
    simulator = TuringSimulator(3, 3, 7)
    word = f"{number:04b}"
    done = simulator.execute(
        programs.binary_increment(), word, at=1, steps=50, heads=simulator.heads()
    )
    assert done.halted
    assert done.state == "done"
    assert int(done.text.strip("_"), 2) == number + 1
    assert done == programs.binary_increment().run(word, n_cells=7, steps=50, at=1)


@pytest.mark.parametrize("length", range(5))
def test_palindromes_are_told_from_other_words(length):
    machine = programs.palindrome()
    simulator = TuringSimulator(machine.n_states, machine.n_symbols, length + 2)
    for letters in itertools.product("01", repeat=length):
        word = "".join(letters)
        done = simulator.execute(machine, word, at=1, steps=100)
        assert done.halted
        assert done.state == ("yes" if word == word[::-1] else "no"), word


@pytest.mark.parametrize(("states", "steps", "ones"), [(2, 6, 4), (3, 14, 6), (4, 107, 13)])
def test_busy_beavers_leave_their_ones(states, steps, ones):
    machine = programs.busy_beaver(states)
    simulator = TuringSimulator(machine.n_states, 2, 16)
    done = simulator.execute(machine, at=8, steps=1000)
    assert (len(done), done.text.count("1"), done.halted) == (steps, ones, True)


def test_a_smaller_machine_runs_on_a_larger_simulator():
    simulator = TuringSimulator(6, 4, 8)
    done = simulator.execute(programs.binary_increment(), "111", at=2, steps=30)
    assert done.text == "_1000___"


def test_a_machine_that_does_not_halt_stops_with_its_steps():
    machine = TuringMachine({("go", "0"): ("go", "0", "R")})
    done = TuringSimulator(1, 1, 3).execute(machine, steps=7)
    assert len(done) == 7
    assert not done.halted
    assert str(done).endswith("did not halt after 7 steps")


def test_halting_states_leave_the_tape_and_move_on():
    """Their entries in the context, and those of states that the machine does not have."""
    machine = programs.binary_increment()  # 2 states that work, "done" is number 2
    entries = {
        token["key"]: token["action"]
        for token in TuringSimulator(4, 3, 3).context(machine)
        if "key" in token
    }
    assert len(entries) == 4 * 3
    for state, symbol in itertools.product((2, 3), range(3)):
        assert entries[state, symbol] == (state, symbol, 1)
    assert entries[0, 0] == machine.numbers[0, 0]


def test_a_machine_that_starts_halted_does_nothing():
    machine = TuringMachine({("a", 0): ("b", 0, "R")}, start="b", halting=["b"])
    assert len(TuringSimulator(2, 1, 3).execute(machine, steps=7)) == 0


def test_states_and_symbols_are_numbered_in_the_order_of_the_table():
    """Keys come first, then what is only written; the halting states last, the blank first."""
    machine = TuringMachine(
        {
            ("a", "x"): ("stop", "y", "R"),
            ("a", "y"): ("b", "x", "L"),
            ("b", "x"): ("a", "y", "R"),
            ("b", "y"): ("a", "y", "R"),
        },
        start="b",
        blank="y",
        halting="stop",  # text is one name
    )
    assert machine.states == ("a", "b", "stop")
    assert machine.symbols == ("y", "x")
    assert (machine.start, machine.halting_numbers) == (1, {2})
    drawn = TuringMachine.random(3, 2, 0)
    assert (drawn.states, drawn.symbols, drawn.start, drawn.blank) == ((0, 1, 2), (0, 1), 0, 0)


def test_a_machine_that_only_halts_shows_its_table():
    machine = TuringMachine({("a", "long"): ("a", "long", "R")}, halting=["a"])
    assert str(machine).splitlines() == [
        "state |  long",
        "------+------",
        "starts in a, halts in a, blank is long",
    ]


def test_computations_are_shown_as_tape_over_time():
    done = programs.binary_increment().run("1", n_cells=3, steps=10, at=1)
    assert str(done).splitlines() == [
        "    0  _ [1] _   right",
        "    1  _  1 [_]  right",
        "    2  _ [1] _   carry",
        "    3 [_] 0  _   carry",
        "    4  1  0 [_]  done",
        "halted after 4 steps",
    ]


def test_computations_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    figure = programs.busy_beaver(3).run(n_cells=8, steps=20, at=4).plot()
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000
    assert figure.axes[0].images[0].get_array().shape == (15, 8)


def test_a_run_that_is_none_of_a_machine_is_refused():
    simulator = TuringSimulator(2, 2, 3)
    run = simulator.trace(simulator.context(TuringMachine.random(2, 2, 0), [1]), 2)
    broken = run.tokens.copy()
    broken[-1] = broken[-3]  # the same step again: the cell would have two symbols, or none
    broken[-1, simulator.record.coordinate("symbol", 0)] += 1
    with pytest.raises(ValueError, match="run: step 2 is none of a Turing machine"):
        simulator.configurations(programs.Run(broken, run.n_context))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TuringMachine({}), "table: a dictionary with entries"),
        (lambda: TuringMachine({("a", 0): ("a", 0, "X")}), "table: .* 'L' or 'R'"),
        (lambda: TuringMachine({("a", 0): ("b", 0, "L")}), r"entry for \('b', 0\) is needed"),
        (lambda: TuringMachine({("a", 0): ("a", 1, "L")}), r"entry for \('a', 1\) is needed"),
        (lambda: TuringMachine({"ab": ("a", "b", "L")}), r"^table: keys \(state, symbol\)"),
        (lambda: TuringMachine({("a", 0): 5}), r"^table: .* is needed for \('a', 0\), got 5"),
        (lambda: TuringMachine({("a", 0): ([], 0, "L")}), "^table: names that can be keys"),
        (lambda: TuringMachine({("a", 0): ("a", 0, "L")}, start="b"), "^start: one of the states"),
        (lambda: TuringMachine({("a", 0): ("a", 0, "L")}, halting=1), "^halting: a list of states"),
        (lambda: TuringMachine.random(1, 1).run(n_cells=0, steps=1), "^n_cells: must be at least"),
        (lambda: TuringMachine.random(1, 1).run(n_cells=1, steps=-1), "^steps: must be at least 0"),
        (lambda: TuringMachine.random(1, 1).run(3, n_cells=1, steps=1), "^word: a list of symbols"),
        (lambda: TuringSimulator(1, 1, 1).execute(TuringMachine.random(1, 1), steps=-1), "^steps:"),
        (lambda: TuringSimulator(1, 1, 1).configurations(3), "^run: a Run of TuringSimulator"),
        (lambda: DfaSimulator(1, 1, 1).states("x"), "^run: a Run of DfaSimulator"),
        (lambda: Automaton([[0]]).run([-1]), "^word: letters from 0 to 0 are needed"),
        (lambda: Automaton([[0]]).run("0"), "^word: a list of whole numbers is needed, got '0'"),
        (lambda: Automaton([[0]], accepting=0), "^accepting: a list of states is needed, got 0"),
        (
            lambda: DfaSimulator(1, 1, 1).context(Automaton([[0]]), [1]),
            r"^word: letters from 0 to 0 are needed, got \[1\]",
        ),
        (lambda: programs.busy_beaver(5), "n_states: 2, 3 or 4 is needed, got 5"),
        (lambda: Automaton([[2]]), "table: states from 0 to 0"),
        (lambda: Automaton([0, 1]), r"table: an array \(n_states, n_symbols\)"),
        (lambda: Automaton([[0]], accepting=[1]), "accepting: states from 0 to 0"),
        (lambda: DfaSimulator(0, 1, 1), "n_states: "),
        (lambda: TuringSimulator(1, 1, "x"), "n_cells: "),
        (lambda: DfaSimulator(2, 2, 2).context(Automaton([[0]]), [0, 0]), "automaton: 2 states"),
        (
            lambda: DfaSimulator(1, 1, 2).context(Automaton([[0]]), [0]),
            "word: 2 letters are needed, got 1",
        ),
        (
            lambda: TuringSimulator(2, 2, 3).context(programs.palindrome()),
            "machine: at most 2 states",
        ),
        (
            lambda: TuringSimulator(3, 3, 3).context(programs.binary_increment(), "1x"),
            "word: symbols out of '_', '0', '1' are needed, got 'x'",
        ),
        (
            lambda: TuringSimulator(3, 3, 3).context(programs.binary_increment(), "0000"),
            "word: at most 3 symbols",
        ),
        (
            lambda: TuringSimulator(3, 3, 3).context(programs.binary_increment(), at=3),
            "at: a cell from 0 to 2 is needed, got 3",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
