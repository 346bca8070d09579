"""A stream is read once before the work, and held in float32 where that takes little memory."""

import numpy as np
import pytest
from conftest import relative

import linattn_fast as la
from linattn_fast.arrays.floats import UNIT
from linattn_fast.data.sources import as_source
from linattn_fast.problem import survey as surveys
from linattn_fast.problem.streamed import streamed
from linattn_fast.problem.survey import joined, survey
from linattn_fast.solvers import costs


def stream_of(batches, positions="last"):
    return streamed(as_source(batches, positions=positions), positions, None, "auto", "float64")


def token_batches(rng, positions, weights):
    for size in (40, 1, 25):
        Z = rng.standard_normal((size, 4, 3))
        y = rng.standard_normal((size, 2) if positions == "last" else (size, 4, 2))
        yield (Z, y, rng.random(size)) if weights else (Z, y)


@pytest.mark.parametrize("weights", [False, True])
def test_a_survey_counts_and_holds_what_is_there(rng, positions, weights):
    batches = list(token_batches(rng, positions, weights))
    problem = stream_of(batches, positions)
    found = survey(problem.read, room=1 << 20)
    per_sequence = 1 if positions == "last" else 4
    assert found.n_samples == 66 * per_sequence
    assert found.n_columns == (66 if positions == "all" else found.n_samples)
    w = [batch[2] if weights else np.ones(len(batch[0])) for batch in batches]
    assert found.weight == pytest.approx(per_sequence * np.concatenate(w).sum(), rel=1e-14)
    assert found.largest_weight == np.concatenate(w).max()
    whole = joined(found.rounded)
    assert whole.targets is None
    assert {array.dtype for array in whole.tokens.arrays} == {np.dtype(np.float32)}
    exact = np.concatenate([batch[0] for batch in batches])
    np.testing.assert_array_equal(np.stack(list(whole.tokens)), exact.astype(np.float32))


def test_small_batches_are_held_together_and_large_ones_apart(rng, monkeypatch):
    problem = stream_of(list(token_batches(rng, "last", weights=True)))
    monkeypatch.setattr(surveys, "_TOGETHER", 4 * 4 * 3 * 30)
    sizes = [part.n_sequences for part in survey(problem.read, room=1 << 20).rounded]
    assert sizes == [40, 26]


def test_what_does_not_fit_or_overflows_is_not_held(rng):
    batches = list(token_batches(rng, "last", weights=False))
    needed = 66 * 4 * 3 * 4
    assert survey(stream_of(batches).read, room=needed).held >= needed
    none = survey(stream_of(batches).read, room=needed - 1)
    assert none.rounded is None
    assert none.n_samples == 66
    batches[1] = (batches[1][0] * 1e40, batches[1][1])  # float64 only
    assert survey(stream_of(batches).read, room=1 << 20).rounded is None


def test_a_batch_that_is_filled_anew_is_copied(rng):
    class Reused:
        def __iter__(self):
            Z = np.empty((5, 4, 3), np.float32)
            for i in range(3):
                Z[:] = i + 1
                yield Z, Z[:, 0]

    whole = joined(survey(stream_of(Reused()).read, room=1 << 20).rounded)
    assert np.unique(np.stack(list(whole.tokens))).tolist() == [1.0, 2.0, 3.0]


class Drawn:
    """States that are drawn in batches, whenever they are read."""

    def __init__(self, q, d, batches, size=1000, noise=0.1):
        self.q, self.d, self.batches, self.size, self.noise = q, d, batches, size, noise
        self.truth = np.random.default_rng(99).standard_normal((q, d))
        self.readings = 0

    def __iter__(self):
        self.readings += 1
        for i in range(self.batches):
            rng = np.random.default_rng(i)
            s, c = (
                rng.standard_normal((self.size, self.q)),
                rng.standard_normal((self.size, self.d)),
            )
            y = np.einsum("nu,ul,nl->n", s, self.truth, c)
            yield la.States(s, c), y + self.noise * rng.standard_normal(self.size)

    def in_memory(self):
        parts = list(iter(self))
        s, c = (np.concatenate([getattr(x, of) for x, _ in parts]) for of in ("memory", "query"))
        return la.States(s, c), np.concatenate([y for _, y in parts])


def test_a_stream_that_is_held_is_read_a_few_times_and_solved_to_rounding():
    stream = Drawn(40, 30, batches=30)
    fit = la.fit(stream, alpha=1e-3, solver="pcg")
    assert "held in float32" in fit.info.reason
    assert fit.info.iterations > stream.readings
    expected = la.fit(*stream.in_memory(), alpha=1e-3, solver="cholesky")
    assert relative(fit.coefficients, expected.coefficients) <= fit.info.coefficient_error + 1e-12
    assert relative(fit.coefficients, expected.coefficients) < 1e-8


@pytest.fixture
def read_quickly(monkeypatch):
    """Make the plan expect what it expects of a stream with far more features."""
    monkeypatch.setattr(costs, "_STREAMED", 1e12)


@pytest.mark.usefixtures("read_quickly")
def test_a_large_stream_is_solved_without_a_gram_and_its_beginning_proves_the_verdict():
    stream = Drawn(48, 40, batches=60)
    fit = la.fit(stream, alpha=1e-3)
    assert fit.info.solver == "pcg"
    assert "predicted" in fit.info.reason
    proved = fit.certificate
    assert proved.verdict == "identifiable"
    assert "of the first 2880 of 60000 samples" in proved.evidence
    states, y = stream.in_memory()
    h = (states.memory[:, :, None] * states.query[:, None]).reshape(len(y), -1)
    eigenvalues = np.linalg.eigvalsh(h.T @ h / len(y))
    assert 0 < proved.lower_bound <= eigenvalues[0]
    assert proved.lambda_min == pytest.approx(eigenvalues[0], rel=0.05)


@pytest.mark.usefixtures("read_quickly")
def test_a_stream_whose_beginning_is_short_of_rank_is_undecided():
    class Sorted(Drawn):
        def __iter__(self):
            for number, (states, y) in enumerate(super().__iter__()):
                if number < 7:  # more than twice 1.5 p samples
                    states.memory[:, 0] = 0.0
                yield states, y

    fit = la.fit(Sorted(48, 40, batches=60), alpha=1e-3)
    assert fit.certificate.verdict == "undecided"
    assert fit.certificate.lower_bound == 0.0


def test_a_stream_that_may_not_be_held_is_read_in_every_pass():
    stream = Drawn(12, 10, batches=3)
    problem = stream_of(stream)
    passes = problem.passes(keep=True, room=3000 * 22 * 4 - 1)
    assert not passes.kept
    assert passes.operator.narrow(np.ones((1, 120))) is None
    before = stream.readings
    passes.operator.normal(np.ones((1, 120)))
    assert stream.readings == before + 1


def test_a_slow_stream_of_few_features_takes_cholesky_and_nothing_stays_held():
    stream = Drawn(40, 30, batches=3)
    fit = la.fit(stream, alpha=1e-3)
    assert fit.info.solver == "cholesky"
    assert "a stream, which Cholesky reads least often" in fit.info.reason


def test_a_gram_is_factorised_by_halves_as_it_is_as_a_whole(rng):
    # The states a_i (x) b_j, whose Gram is A'A (x) B'B with known eigenvalues; p = 4,224
    A = np.eye(66) + 0.05 * rng.standard_normal((66, 66))
    B = np.eye(64) + 0.05 * rng.standard_normal((64, 64))
    states = la.States(np.repeat(A, 64, axis=0), np.tile(B, (66, 1)))
    moments = la.Moments.of_states(66, 64, 0).update(states)
    least = np.prod([np.linalg.svd(M, compute_uv=False)[-1] ** 2 for M in (A, B)])
    p = moments.dimension
    for fraction, expected in ((0.999, True), (1.001, False)):
        shift = (4 * p * UNIT, fraction * least, 1.0, 4 * p * UNIT, 4 * UNIT)
        assert moments.gram_exceeds(shift) is expected
