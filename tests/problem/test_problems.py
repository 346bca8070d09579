"""Problems behind one protocol: in memory, in a stream, accumulated, they answer alike."""

from functools import reduce

import numpy as np
import pytest
from conftest import relative
from oracles.batches import arrays_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.normal_operator import added
from linattn_fast.data.sources import as_source
from linattn_fast.features.samples import Samples
from linattn_fast.problem.accumulated import Accumulated
from linattn_fast.problem.in_memory import InMemory
from linattn_fast.problem.streamed import streamed

EPS = np.finfo(float).eps


@pytest.fixture
def data(rng, positions):
    Z = rng.standard_normal((90, 4, 3))
    y = rng.standard_normal((90, 2) if positions == "last" else (90, 4, 2))
    return Z, y, rng.random(90)


def in_memory(data, positions):
    Z, y, w = data
    return InMemory.of(Samples.checked(Z, y, sample_weight=w, positions=positions))


def in_stream(data, positions, once=False):
    Z, y, w = data
    batches = [(Z[i : i + 40], y[i : i + 40], w[i : i + 40]) for i in range(0, 90, 40)]
    source = as_source(iter(batches) if once else batches, positions=positions)
    return streamed(source, positions, None, "auto", "float64")


def test_a_stream_has_the_sums_of_its_data_in_memory(data, positions):
    whole, parts = in_memory(data, positions), in_stream(data, positions)
    expected = arrays_of(whole.moments().sums)
    for a, b in zip(arrays_of(parts.moments().sums), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e3 * EPS * np.abs(b).max())
    C = np.ones((2, whole.features.count))
    for a, b in zip(parts.gradient(C), whole.gradient(C), strict=True):
        assert relative(a, b) < 1e3 * EPS
    for name in ("features", "positions", "d_out", "precision"):
        assert getattr(parts, name) == getattr(whole, name)
    assert parts.n_samples is None  # a list of batches tells its length when it is read
    assert parts.gathered(None, 0).n_samples == whole.n_samples
    assert parts.samples is None


def test_passes_over_a_stream_are_those_over_its_parts(data, positions):
    parts = in_stream(data, positions)
    passes = parts.passes(keep=True)
    C = np.random.default_rng(1).standard_normal((2, parts.features.count))
    engine = get_backend("auto")
    with parts.read() as given:
        each = [engine.normal_operator(part, keep=False).normal(C) for part in given]
    np.testing.assert_array_equal(passes.operator.normal(C).product, reduce(added, each).product)
    assert not passes.kept
    assert passes.noise_samples == pytest.approx(in_memory(data, positions).samples.noise_samples)


def test_what_is_read_once_offers_no_second_reading(data, positions):
    once = in_stream(data, positions, once=True)
    assert once.read is None
    assert once.gradient is None
    assert once.modular is None
    assert "read once" in once.note
    moments = once.moments()
    np.testing.assert_array_equal(moments.gram(), in_stream(data, positions).moments().gram())


def test_moments_alone_offer_their_sums_and_nothing_else(data, positions):
    Z, y, w = data
    moments = la.Moments(3, 2, positions=positions).update(Z, y, sample_weight=w)
    gone = Accumulated(moments)
    assert gone.moments() is moments
    assert (gone.n_samples, gone.d_out) == (moments.n_samples, 2)
    assert gone.read is gone.gradient is gone.modular is gone.samples is None
