"""Programs learned from traces: what is covered, what is right, and the certificate of both."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import linattn_fast as la
from linattn_fast import programs
from linattn_fast.programs.certifying import certify, determined
from linattn_fast.programs.running.appending import run_many

TURING = programs.TuringSimulator(2, 2, 3)


@pytest.fixture(scope="module")
def automata():
    return programs.DfaSimulator(3, 2, 4)


@pytest.fixture(scope="module")
def few(automata):
    """Learned from too few traces."""
    return programs.learn(automata, automata.traces(100, 4, seed=0))


@pytest.fixture(scope="module")
def enough(automata):
    return programs.learn(automata, automata.traces(500, 4, seed=0))


@pytest.fixture(scope="module")
def universal():
    """The universal machine from 150 traces of 12 steps."""
    return programs.learn(TURING, TURING.traces(150, 12, seed=0))


# ----------------------------------------------------------------------------------------- automata


def test_all_automata_are_simulated_and_covered_after_500_traces(automata, enough):
    assert automata.family.count == 729 * 16
    (Z,) = automata.family.chunks(20_000)
    learned = run_many(programs.Layer.of(enough, automata.d), Z, 8)
    np.testing.assert_array_equal(learned, run_many(automata.layer, Z, 8))
    proved = programs.certify(enough, automata)
    assert (proved.verdict, proved.method, proved.steps) == ("covered", "invariants", None)
    counted = programs.certify(enough, automata, method="exhaustive", steps=4)
    assert (counted.verdict, counted.covered_runs, counted.right_runs) == ("covered", 11664, 11664)


def test_with_too_few_traces_the_certificate_says_so_and_covered_answers_are_right(automata, few):
    found = programs.certify(few, automata, steps=4)
    assert (found.verdict, found.method, found.runs) == ("not covered", "exhaustive", 11664)
    assert 0 < found.covered_runs < found.right_runs < found.runs
    assert found.covered_but_wrong == 0
    assert found.at_least == found.covered_runs / found.runs
    assert "no proof for any number of steps" in found.evidence


def test_a_fit_that_is_wrong_on_what_is_covered_is_found_out(automata, enough):
    """The certificate compares the fit with the program, and does not only look at the range."""
    broken = replace(enough, coefficients=enough.coefficients + 0.05)
    counted = programs.certify(broken, automata, method="exhaustive", steps=4)
    assert counted.covered_but_wrong > 0
    assert (counted.verdict, counted.covered_runs) == ("undecided", counted.runs)
    proof = programs.certify(broken, automata, method="invariants")
    assert proof.verdict == "undecided"
    assert "does not fit its data" in proof.evidence


# ---------------------------------------------------------------------------------- Turing machines


def test_the_universal_machine_is_learned_from_150_traces_of_12_steps(universal):
    found = programs.certify(universal, TURING)
    assert found.verdict == "covered"
    assert (found.rank, found.contexts) == (1294, 4096 * 8 * 6)
    assert found.steps == int(found.exact_steps) > 1e9
    assert f"contexts and {found.steps:,} steps" in found.evidence
    assert "any number of steps" not in str(found)  # its runs never end, and errors grow with s


def exact_steps_of_runs(fit, steps, machines=12):
    """For how many steps runs of random machines stay exact."""
    Z = TURING.family.sample(machines, np.random.default_rng(3))
    layer = programs.Layer.of(fit, TURING.d)
    wrong = (run_many(layer, Z, 2 * steps) != run_many(TURING.layer, Z, 2 * steps)).any(axis=2)
    first = np.where(wrong.any(axis=1), wrong.argmax(axis=1) - Z.shape[1], 2 * steps)
    return first // 2


@pytest.mark.parametrize(("noise", "longest"), [(1e-2, 0), (3e-4, 100), (1e-4, 300)])
def test_no_machine_fails_within_the_steps_that_are_claimed(universal, noise, longest):
    """Coefficients that are a little off: errors grow with the run until rounding does not help."""
    off = np.random.default_rng(0).standard_normal(universal.coefficients.shape)
    fit = replace(universal, coefficients=universal.coefficients + noise * off)
    found = programs.certify(fit, TURING, method="invariants")
    if longest == 0:
        assert found.verdict == "undecided"
        return
    done = exact_steps_of_runs(fit, 3000)
    assert found.verdict == "covered"
    assert 1 <= found.steps == int(found.exact_steps) < longest
    assert f"and {found.steps:,} step" in str(found)
    assert "any number" not in str(found)
    assert done.min() >= found.steps
    assert done.max() < 3000  # what "any number of steps" would have said


def test_auto_looks_at_runs_where_the_proof_is_for_fewer_steps_than_asked():
    turing = programs.TuringSimulator(1, 2, 2)
    fit = programs.learn(turing, turing.traces(60, 12, seed=0))
    off = np.random.default_rng(0).standard_normal(fit.coefficients.shape)
    fit = replace(fit, coefficients=fit.coefficients + 1e-3 * off)
    proof = programs.certify(fit, turing, method="invariants")
    assert (proof.verdict, proof.steps) == ("covered", int(proof.exact_steps))
    assert programs.certify(fit, turing, steps=proof.steps) == proof
    longer = programs.certify(fit, turing, steps=proof.steps + 1)
    assert (longer.method, longer.steps) == ("exhaustive", proof.steps + 1)
    assert f"and {proof.steps:,} step" in longer.evidence
    far = programs.certify(fit, turing, steps=1_000_000)  # too long to look at: what is proved
    assert far == proof


def test_machines_of_all_kinds_are_simulated_by_the_learned_layer(universal):
    """Every seventh machine with every tape, from every start that comes with it."""
    layer, done = programs.Layer.of(universal, TURING.d), 0
    for Z in TURING.family.chunks(8192):
        part = Z[:: 7 * 6 + 1]
        np.testing.assert_array_equal(run_many(layer, part, 24), run_many(TURING.layer, part, 24))
        done += len(part)
    assert done > 4500


def test_runs_of_1000_steps_stay_exact(universal):
    rng = np.random.default_rng(5)
    for _ in range(5):
        machine = programs.TuringMachine.random(2, 2, rng)
        word = rng.integers(2, size=3).tolist()
        done = TURING.execute(machine, word, steps=1000, heads=universal)
        assert done == machine.run(word, n_cells=3, steps=1000)
        assert len(done) == 1000


def test_a_machine_of_the_user_s_own_runs_on_the_learned_layer(universal):
    """One state that works, and one that halts: write ones until there is one already."""
    machine = programs.TuringMachine(
        {("go", "0"): ("go", "1", "R"), ("go", "1"): ("stop", "1", "L")}, halting=["stop"]
    )
    done = TURING.execute(machine, "00", steps=50, heads=universal)
    assert (done.text, done.state, len(done)) == ("111", "stop", 4)


# ------------------------------------------------------------------------------------- certificates


def test_the_certificate_goes_into_the_saved_model(automata, enough, tmp_path):
    found = programs.certify(enough, automata)
    enough.with_program(found).save(tmp_path / "model.npz")
    loaded = la.load(tmp_path / "model.npz")
    assert loaded.program == found
    automaton, word = programs.Automaton.random(3, 2, 1), [0, 1, 1, 0]
    run = automata.run(loaded, automata.context(automaton, word), 4)
    assert automata.states(run) == automaton.run(word)
    enough.save(tmp_path / "plain.npz")
    assert la.load(tmp_path / "plain.npz").program is None
    with pytest.raises(ValueError, match="fit: one with a certificate that still has its moments"):
        programs.certify(loaded, automata)


def test_files_without_a_program_s_certificate_are_read(enough, tmp_path):
    enough.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays["meta"]))
    del meta["program"]  # as written before there was one
    np.savez(tmp_path / "older.npz", **{**arrays, "meta": np.array(json.dumps(meta))})
    assert la.load(tmp_path / "older.npz").program is None


def test_samples_give_the_bound_of_their_number(automata, enough, few):
    found = programs.certify(enough, automata, method="sampled", samples=100, steps=4)
    assert (found.verdict, found.runs, found.confidence) == ("undecided", 100, 0.95)
    assert found.at_least == pytest.approx(0.05 ** (1 / 100))  # about 1 - 3/n
    assert "sampled, not proved" in found.evidence
    some = programs.certify(few, automata, method="sampled", samples=300, steps=4, confidence=0.9)
    assert 0 < some.covered_runs < 300
    assert some.verdict == "not covered"
    # Clopper and Pearson: with that fraction, as many covered runs have probability 1 - confidence
    chance = binom.sf(some.covered_runs - 1, 300, some.at_least)
    assert chance == pytest.approx(0.1)


def test_auto_samples_where_contexts_are_too_many(automata, few, monkeypatch):
    monkeypatch.setattr(certify, "_EXHAUSTIVE_UP_TO", 1000)
    assert programs.certify(few, automata, steps=4, samples=50).method == "sampled"


def test_progress_is_reported_chunk_by_chunk(automata, few, monkeypatch):
    monkeypatch.setattr(certify, "_CHUNK_BYTES", 40_000_000)
    calls = []
    programs.certify(
        few, automata, method="exhaustive", steps=4, progress=lambda *call: calls.append(call)
    )
    assert len(calls) > 3
    assert calls[-1] == (11664, 11664)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_chunks_change_nothing(automata, few, monkeypatch):
    whole = programs.certify(few, automata, method="exhaustive", steps=2)
    monkeypatch.setattr(certify, "_CHUNK_BYTES", 10_000_000)
    assert programs.certify(few, automata, method="exhaustive", steps=2) == whole


def test_a_proof_reports_its_rounds_and_its_tokens(enough):
    calls = []
    simulator = programs.DfaSimulator(3, 2, 4)  # a new one, whose closures are not known yet
    programs.certify(enough, simulator, progress=lambda *call: calls.append(call))
    rounds = [call for call in calls if call[1] is None]
    tokens = calls[len(rounds) :]
    assert rounds == [(n, None) for n in range(1, len(rounds) + 1)]
    assert len(rounds) > 10
    total = tokens[-1][1]
    assert tokens == [(n, total) for n in range(total + 1)]


def test_learning_reports_its_samples(automata):
    calls = []
    traces = automata.traces(10, 4, seed=0)
    programs.learn(automata, traces, progress=lambda *call: calls.append(call))
    assert len(calls) > 5
    assert calls[-1] == (80, 80)


def test_a_bad_seed_is_refused_before_the_proof_begins(automata, few, monkeypatch):
    monkeypatch.setattr(certify, "certify_by_invariants", lambda *_: pytest.fail("work has begun"))
    with pytest.raises(ValueError, match="^seed: "):
        programs.certify(few, automata, seed="x")


def test_a_cache_without_room_changes_nothing(automata, few, monkeypatch):
    found = programs.certify(few, automata, method="sampled", steps=4, samples=50)
    monkeypatch.setattr(determined, "_CACHE_BYTES", 0)
    assert programs.certify(few, automata, method="sampled", steps=4, samples=50) == found


def recall():
    """A user's own program: keys with values, and questions that are answered one by one."""
    record = programs.Record(key=2, value=3, position=3, ask=(3, 2), answer=3)
    answer = programs.Lookup("ask", "key", "value", "answer", match=lambda ask: ask[1])
    forward = programs.Lookup(
        "ask", "position", "ask", "ask", match=lambda ask: ask[0] + 1 if ask[0] < 2 else None
    )
    table = [[{"key": k, "value": v} for v in range(3)] for k in range(2)]
    questions = [[{"position": t, "ask": (t, k)} for k in range(2)] for t in range(3)]
    slots = [*table, *questions, [{"ask": (0, k)} for k in range(2)]]
    return programs.Program(record, [answer, forward], slots=slots)


def test_a_program_of_the_user_s_own_is_learned_certified_and_run():
    program = recall()
    fit = programs.learn(program, program.traces(200, 3, seed=0))
    for method in ("invariants", "exhaustive"):
        found = programs.certify(fit, program, method=method, steps=3)
        assert (found.verdict, found.contexts) == ("covered", 3**2 * 2**4)
    context = [
        *({"key": k, "value": v} for k, v in ((0, 2), (1, 1))),
        *({"position": t, "ask": (t, k)} for t, k in enumerate((0, 0, 1))),
        {"ask": (0, 1)},
    ]
    run = program.run(fit, context, 3)
    assert [token["answer"] for token in program.decode(run.appended)] == [1, 2, 1]


def test_runs_of_another_program_are_found_out():
    """Answers that are always one more: the traces determine a layer, but not this program."""
    program = recall()
    other = []
    for trace in program.traces(200, 3, seed=0):
        tokens = trace.tokens.copy()
        answers = slice(program.record.starts["answer"], None)
        tokens[trace.n_context :, answers] = np.roll(tokens[trace.n_context :, answers], 1, axis=1)
        other.append(programs.Run(tokens, trace.n_context))
    found = programs.certify(programs.learn(program, other), program, steps=1)
    assert found.verdict != "covered"
    assert found.right_runs < found.runs


def test_pairs_that_training_never_saw_are_not_covered():
    """Traces with one letter alone: the other letter's features do not even exist in the fit."""
    simulator = programs.DfaSimulator(2, 2, 2)
    automata = [programs.Automaton.random(2, 2, seed) for seed in range(40)]
    contexts = [simulator.context(automaton, [0, 0]) for automaton in automata]
    fit = programs.learn(simulator, [simulator.trace(context, 2) for context in contexts])
    found = programs.certify(fit, simulator, steps=2)
    assert found.verdict == "not covered"
    assert found.covered_but_wrong == 0
    assert 0 < found.covered_runs <= found.runs / 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, f: programs.learn("x", []), "program: a Program is needed, got str"),
        (lambda p, f: programs.learn(p, []), "traces: at least one step is needed"),
        (lambda p, f: programs.learn(p, [1]), "traces: Runs are needed, got int"),
        (lambda p, f: programs.certify(p, p), "fit: a Fit is needed"),
        (lambda p, f: programs.certify(f, "x"), "program: a Program is needed"),
        (lambda p, f: programs.certify(f, p, method="x"), "method: 'auto', 'invariants'"),
        (lambda p, f: programs.certify(f, p, samples=0), "samples: "),
        (lambda p, f: programs.certify(f, p, confidence=1.5), "confidence: a number between"),
        (lambda p, f: programs.certify(f, programs.DfaSimulator(2, 2, 2)), "^fit: d = d_out"),
        (lambda p, f: programs.learn(p, p.traces(1, 1)[0]), "^traces: a list of Runs is needed"),
        (lambda p, f: programs.certify(f, p, steps=0), "^steps: must be at least 1, got 0"),
        (lambda p, f: programs.certify(f, p, progress=1), "^progress: "),
        (lambda p, f: f.with_program("x"), "certificate: a ProgramCertificate is needed"),
    ],
)
def test_errors_name_the_argument(call, message, automata, few):
    with pytest.raises((ValueError, TypeError), match=message):
        call(automata, few)
