"""What underflows proves nothing: not the Gram, not the sizes of its summands, nowhere."""

import json
import math
import platform
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exact import Exact

import linattn_fast as la
from linattn_fast.arrays import floats
from linattn_fast.backend.reference import may_underflow
from linattn_fast.certificate.lower_bound import rounded_down
from linattn_fast.moments import factors
from linattn_fast.system.machine import num_threads

HOST = ["cpu", "numpy"]
POSITIONS = ["last", "all", "causal"]
ONE = la.Features(2, pairs=[(0, 1)], queries=[1])
U = 2.0**-53


def cancelling(a, b, query=1.0):
    """Tokens with S_01 = a b - a b = 0, of which fused arithmetic leaves the rounding of a b."""
    return np.array([[a, b], [a, -b], [0.0, query]])


def is_true(certificate, sequences, positions, weights, features):
    """Whether exact arithmetic confirms the bound."""
    if certificate.lower_bound == 0:
        return certificate.verdict != "identifiable"
    return Exact.of(sequences, positions, weights, features).exceeds(certificate.lower_bound)


# ------------------------------------------------------------------------------ sizes of summands


@pytest.mark.parametrize("name", HOST)
def test_a_feature_that_is_only_rounding_is_not_proved_where_its_size_underflows(name):
    Z = [cancelling(1e-165 / 3, 1e40 / 7)]  # S_00 is below the smallest number, S_01 is not
    certificate = la.certify(Z, features=ONE, backend=name)
    assert certificate.lower_bound == 0
    assert certificate.verdict != "identifiable"
    assert la.Moments(2, 0, features=ONE, backend=name).update(Z).accumulation.underflow


@pytest.mark.parametrize("name", HOST)
def test_nor_where_only_the_weight_lifts_a_small_query(name):
    Z = [cancelling(1e-20 / 3, 1e40 / 7, query=1e-165)]  # w z_l z_l is a number, z_l^2 is not
    certificate = la.certify(Z, features=ONE, sample_weight=[1e300], backend=name)
    assert certificate.lower_bound == 0


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", HOST)
def test_sizes_without_underflow_are_still_proved(rng, positions, name):
    features = la.Features(3, pairs=[(0, 1), (1, 2)], queries=[0, 2])
    sequences = [rng.standard_normal((rng.integers(1, 6), 3)) for _ in range(60)]
    w = rng.random(60) + 0.1
    certificate = la.certify(
        sequences, positions=positions, features=features, sample_weight=w, backend=name
    )
    assert certificate.verdict == "identifiable"
    assert is_true(certificate, sequences, positions, w, features)


def hostile_sequence(rng, d, small, large):
    """Tokens of all sizes, in pairs whose products cancel, exactly or nearly so."""
    z = rng.standard_normal((rng.integers(1, 4), d)) * 10.0 ** rng.uniform(small, large, d)
    if rng.random() < 0.7:
        signs = np.where(np.arange(d) == rng.integers(d), -1.0, 1.0)
        nearly = rng.choice([1.0, 1.0, 1 + 2.0 ** -rng.integers(20, 53)])
        query = rng.choice([0.0, 1.0, 10.0 ** rng.uniform(small, large)], (1, d))
        z = np.concatenate([z, z * signs * nearly, query])
    return z


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")  # queries of zeros
@settings(max_examples=600, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    positions=st.sampled_from(POSITIONS),
    name=st.sampled_from(["cpu", "cpu", "numpy"]),
    small=st.floats(-170, 0),
    large=st.floats(0, 50),
    weighted=st.booleans(),
)
def test_no_claim_on_chosen_features_is_above_the_truth(
    seed, positions, name, small, large, weighted
):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 4))
    pairs = [(0, 1)] if rng.random() < 0.6 else [(0, 1), (d - 1, d - 1)]
    features = la.Features(d, pairs=pairs, queries=[int(rng.integers(d))])
    sequences = [hostile_sequence(rng, d, small, large) for _ in range(rng.integers(1, 5))]
    weights = 10.0 ** rng.uniform(-300, 300, len(sequences)) if weighted else None
    try:
        certificate = la.certify(
            sequences, positions=positions, features=features, sample_weight=weights, backend=name
        )
    except ValueError as error:  # the only way out
        assert "float64" in str(error)
        return
    assert is_true(certificate, sequences, positions, weights, features)


@pytest.mark.parametrize("name", HOST)
def test_cancelling_features_of_every_size_are_never_proved(rng, name):
    """Chosen where the sizes of summands are near the end of the range, and the Gram is not."""
    for _ in range(300):
        a, b = 10.0 ** rng.uniform(-172, -120) / 3, 10.0 ** rng.uniform(0, 60) / 7
        query, weight = 10.0 ** rng.uniform(-165, 2) / 3, 10.0 ** rng.uniform(-300, 300)
        Z = [cancelling(a, b, query)]
        try:
            certificate = la.certify(Z, features=ONE, sample_weight=[weight], backend=name)
        except ValueError as error:
            assert "float64" in str(error)
            continue
        assert certificate.lower_bound == 0


def test_numpy_counts_on_what_fused_arithmetic_may_leave():
    """S of tokens near 2^-100 can be an ulp of an ulp, 2^-304, and then w z z s s underflows."""
    t = 2.0**-100
    assert may_underflow(t, np.array([2.0**-250]))
    assert not may_underflow(t, None)
    assert may_underflow(2.0**-109, None)
    assert not may_underflow(1.0, np.array([2.0**-600, 0.0]))
    assert may_underflow(1.0, np.array([2.0**-651]))
    assert not may_underflow(math.inf, None)  # no token but zero
    # Large weights do not make up for small tokens, whose S come first
    assert may_underflow(2.0**-300, np.array([2.0**900]))


# ------------------------------------------------------------------------ what the flag goes along


def test_merges_files_streams_and_groups_keep_the_flag(rng, tmp_path):
    features = la.Features(2, pairs=[(0, 1)])
    healthy = rng.standard_normal((10, 3, 2))
    lost = np.array([cancelling(1e-165 / 3, 1e40 / 7)])

    def moments(Z):
        return la.Moments(2, 0, features=features).update(Z)

    assert not (moments(healthy) + moments(healthy)).accumulation.underflow
    assert (moments(healthy) + moments(lost)).accumulation.underflow
    assert (moments(lost) + moments(healthy)).accumulation.underflow
    whole = moments((Z, None) for Z in (healthy, lost, healthy))
    assert whole.accumulation.underflow
    group = factors.moments_of(whole, np.array([1]))
    assert group.accumulation.underflow
    whole.save(tmp_path / "m.npz")
    assert la.Moments.load(tmp_path / "m.npz").accumulation.underflow
    assert la.certify(la.Moments.load(tmp_path / "m.npz")).lower_bound == 0


def test_sizes_in_older_files_prove_nothing(rng, tmp_path):
    """They were formed without a watch; sums of all features have them among their entries."""
    for features, proved in ((la.Features(2, pairs=[(0, 1)]), False), (None, True)):
        path = tmp_path / "m.npz"
        la.Moments(2, 0, features=features).update(rng.standard_normal((50, 4, 2))).save(path)
        assert la.certify(la.Moments.load(path)).verdict == "identifiable"
        with np.load(path) as archive:
            entries = dict(archive)
        meta = json.loads(str(entries["meta"]))
        del meta["magnitudes_watched"]
        np.savez(path, **{**entries, "meta": np.array(json.dumps(meta))})
        certificate = la.certify(la.Moments.load(path))
        assert (certificate.lower_bound > 0) == proved


def test_a_progress_function_does_not_hide_an_underflow(rng):
    """numpy clears the processor's flags whenever it is called, on the thread that calls it."""
    Z = rng.standard_normal((8_000, 2, 14))  # some tenths of a second
    Z[0] *= 1e-170
    calls = []

    def progress(done, total):
        calls.append(done)
        np.add(np.ones(100), np.ones(100))

    with num_threads(1):
        moments = la.Moments(14, 0).update(Z, progress=progress)
    assert len(calls) > 1
    assert moments.accumulation.underflow


# -------------------------------------------------------------------- subnormal numbers as zero


@pytest.fixture
def flushing():
    """The processor takes numbers below 2^-1022 for zero, as other libraries may tell it to."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("the control word is that of x86-64")
    cpu = pytest.importorskip("linattn_fast._cpu")
    before = cpu.set_default_environment()
    kept = bytearray(before)
    control = int.from_bytes(kept[28:32], "little") | 0x8040  # the last word of fenv_t
    kept[28:32] = control.to_bytes(4, "little")
    cpu.restore_environment(bytes(kept))
    assert not floats.keeps_subnormals()
    yield
    cpu.restore_environment(before)
    assert floats.keeps_subnormals()


@pytest.mark.parametrize("name", HOST)
@pytest.mark.parametrize("features", [None, ONE])
def test_sums_have_the_same_bits_where_others_flush_subnormal_numbers(rng, name, features, request):
    Z = rng.standard_normal((300, 3, 2)) * 1e40
    w = np.where(np.arange(300) < 10, 1e-310, 1e-300)

    def accumulated():
        with num_threads(2):
            moments = la.Moments(2, 0, features=features, backend=name)
            moments.update(Z[5:], sample_weight=w[5:])
            others = la.Moments(2, 0, features=features, backend=name)
            return moments + others.update(Z[:5], sample_weight=w[:5])

    expected = accumulated()
    request.getfixturevalue("flushing")
    found = accumulated()
    assert not floats.keeps_subnormals()  # the caller's environment is left as it was
    assert found.sums.gram.tobytes() == expected.sums.gram.tobytes()
    if features is not None:
        assert found.magnitudes.tobytes() == expected.magnitudes.tobytes()
    assert found.total_weight == expected.total_weight
    assert found.accumulation == expected.accumulation


@pytest.mark.parametrize("name", HOST)
def test_tokens_that_others_read_as_zero_count_as_underflow(name, flushing):
    Z = [[[1e-310, 1.0], [3.0, 1.0]]]
    assert la.Moments(2, 0, features=ONE, backend=name).update(Z).accumulation.underflow


def test_healthy_data_is_proved_where_others_flush_subnormal_numbers(rng, flushing):
    assert la.certify(rng.standard_normal((100, 4, 2))).verdict == "identifiable"


# ------------------------------------------------------------------------------ counted roundings


def staircase(slabs, blocks, block=256):
    """Weights, (slabs blocks block,), that lose 0.99 u in every addition to the first of them.

    1, then as many 0.99 u as complete a block; blocks of that sum, then slabs of that sum.
    """
    rest = 0.99 * U
    w = np.full((slabs, blocks, block), rest / (blocks * block))
    w[0] = rest / block
    w[0, 0] = rest
    w[0, 0, 0] = 1.0
    return w.reshape(-1)


def lost_additions(sum_found, weights):
    """How often 0.99 u of one has been lost."""
    return (math.fsum([*weights, -float(sum_found)])) / (0.99 * U)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chosen", [False, True])
# A slab has at least two blocks, and eight where there are more than four slabs
@pytest.mark.parametrize(("slabs", "blocks"), [(1, 1), (1, 3), (2, 2), (4, 2), (4, 8), (64, 8)])
def test_the_roundings_that_are_counted_are_those_that_happen(positions, chosen, slabs, blocks):
    """Sums of slabs: a summand of one, in as many additions as the core says, and no more."""
    w = staircase(slabs, blocks)
    Z = np.zeros((len(w), 1, 2))
    Z[:, 0, 0] = 1.0  # every summand is its weight
    features = la.Features(2, pairs=[(0, 0)], queries=[0]) if chosen else None
    moments = la.Moments(2, 0, positions=positions, features=features, backend="cpu")
    moments.update(Z, sample_weight=w)
    seen = lost_additions(moments.gram_diagonal()[0], w)
    assert seen == pytest.approx(255 + blocks - 1 + slabs - 1, abs=0.01)
    # Four products, which are exact here, and the addition of the first slab to zero
    assert moments.accumulation.wide == round(seen) + 5
    if chosen:
        assert lost_additions(moments.magnitudes[0, 0], w) == pytest.approx(seen, abs=0.01)


def test_so_are_those_of_sums_that_are_shared_by_threads():
    w = staircase(1, 40)
    Z = np.zeros((len(w), 1, 10))  # 84,700 entries: no slabs
    Z[:, 0, 0] = 1.0
    moments = la.Moments(10, 0, backend="cpu").update(Z, sample_weight=w)
    seen = lost_additions(moments.gram_diagonal()[0], w)
    assert seen == pytest.approx(255 + 39, abs=0.01)
    assert moments.accumulation.wide == round(seen) + 5


def test_mixed_precision_counts_a_block_in_float32():
    w = np.where(np.arange(256) == 0, 1.0, 0.99 * 2.0**-24)
    Z = np.ones((256, 1, 1))
    moments = la.Moments(1, 0, backend="cpu", precision="mixed").update(Z, sample_weight=w)
    seen = (w.sum() - moments.gram_diagonal()[0]) / (0.99 * 2.0**-24)
    assert seen == pytest.approx(255, abs=0.01)
    assert moments.accumulation.narrow == round(seen) + 3  # both factors and their product


# ---------------------------------------------------------------------------- the bound as printed


def test_a_bound_below_the_smallest_normal_number_is_rounded_down():
    for bound in (5e-324, 1e-323, 1.5e-310, 2.3e-308, 1.0, 0.0):
        lower = rounded_down(bound)
        assert 0 <= lower <= bound
        assert lower < bound or bound == 0
    assert rounded_down(1.0) > 1 - 1e-14


@pytest.mark.parametrize("exponent", range(-1074, -940, 7))
def test_grams_of_subnormal_numbers_are_not_overclaimed(exponent):
    """Powers of two: every product is exact, and what is taken off the Gram is subnormal.

    The other products are below the smallest number from some exponent on, and refused. With 2 in
    the place of the last 1 the data is healthy, and proved to be where no number is subnormal.
    """
    w = np.full(9, 2.0**exponent)
    for last in (1.0, 1 + 2.0**-26, 2.0):
        sequences = [np.array([[1.0, 1.0]])] * 8 + [np.array([[1.0, last]])]
        features = la.Features(2, pairs=[(0, 0), (0, 1)], queries=[0])
        if 1 < last < 2 and exponent < -1030:
            with pytest.raises(ValueError, match="underflow"):
                la.certify(sequences, features=features, sample_weight=w)
            continue
        certificate = la.certify(sequences, features=features, sample_weight=w)
        assert is_true(certificate, sequences, "last", w, features)
        if exponent > -960:
            assert (certificate.lower_bound > 0) == (last == 2)


def test_chosen_features_whose_squares_are_next_to_nothing_are_refused_as_all_of_them_are():
    Z = np.full((3, 2, 2), 1e-54)
    for features in (None, la.Features(2, queries=[0])):
        with pytest.raises(ValueError, match="^Z: .*underflow"):
            la.Moments(2, 0, features=features).update(Z)
