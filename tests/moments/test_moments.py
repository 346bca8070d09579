import pickle

import numpy as np
import pytest
from conftest import EPS, assert_moments_agree, home, magnitudes, random_targets, rounding_steps
from hypothesis import given
from hypothesis import strategies as st
from oracles import loops
from oracles.batches import arrays_of, samples_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.reference import NumpyBackend
from linattn_fast.data.tokens import Tokens, as_tokens


def gram_of(H, w=None):
    return (H * (1.0 if w is None else w[:, None])).T @ H


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 6])
def test_moments_are_the_definition(rng, backend, positions, d, n):
    Z, w = rng.standard_normal((40, n, d)), rng.random(40)
    tokens = as_tokens(Z)
    y = random_targets(rng, tokens, 2, positions).storage
    given = y[:, 0] if positions == "last" else y
    moments = la.Moments(d, 2, positions=positions, backend=backend)
    moments.update(Z, given, sample_weight=w)
    rows = y.reshape(-1, 2)
    weights = loops.per_sample(w, Z, positions)
    H = loops.all_features(Z, positions)
    size = loops.all_features(np.abs(Z), positions)
    scale = rounding_steps(tokens, positions) * EPS
    gram = home(moments.gram())
    assert (np.abs(gram - gram_of(H, weights)) <= scale * gram_of(size, weights)).all()
    cross, bound = ((h * weights[:, None]).T @ t for h, t in ((H, rows), (size, np.abs(rows))))
    assert (np.abs(home(moments.cross()) - cross) <= scale * bound).all()
    np.testing.assert_allclose(home(moments.sums.energy), weights @ rows**2, rtol=1e-13)
    assert moments.total_weight == pytest.approx(weights.sum(), rel=1e-14)
    np.testing.assert_allclose(
        home(moments.second_moment()), gram / weights.sum(), rtol=1e-13, atol=1e-300
    )
    np.testing.assert_array_equal(home(moments.gram_diagonal()), np.diag(gram))
    assert moments.n_samples == len(H)
    assert moments.dimension == d * d * (d + 1) // 2


# Sizes on both sides of every block, group and tile edge, and of slabs against rows.
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 7, 8, 9, 11])
@pytest.mark.parametrize("N", [1, 7, 31, 33, 511, 513, 1100])
def test_every_instruction_set_agrees_with_numpy(rng, isa, positions, d, N):
    tokens = as_tokens(rng.standard_normal((N, 3, d)))
    y, w = random_targets(rng, tokens, 3, positions), rng.random(N)
    expected = NumpyBackend().moments(samples_of(tokens, y, w, positions))
    found = get_backend("cpu").moments(samples_of(tokens, y, w, positions))
    assert_moments_agree(found, expected, tokens, y, w, positions)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
def test_long_and_short_sequences(rng, isa, positions, dtype, n):
    tokens = as_tokens(rng.standard_normal((37, n, 4)).astype(dtype))
    expected = NumpyBackend().moments(samples_of(tokens, None, None, positions))
    found = get_backend("cpu").moments(samples_of(tokens, None, None, positions))
    assert_moments_agree(found, expected, tokens, None, None, positions)


@pytest.mark.parametrize("d", [3, 9])  # slabs and rows
def test_sequences_longer_than_many_blocks_carry_their_prefix_over(rng, isa, d):
    tokens = as_tokens([rng.standard_normal((n, d)) for n in (3000, 1, 512, 1023, 2, 1300)])
    y = random_targets(rng, tokens, 1, "causal")
    expected = NumpyBackend().moments(samples_of(tokens, y, None, "causal"))
    found = get_backend("cpu").moments(samples_of(tokens, y, None, "causal"))
    assert_moments_agree(found, expected, tokens, y, None, "causal")


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_mixed_precision_errs_within_its_bound(rng, backend, positions, scale):
    tokens = as_tokens(scale * rng.standard_normal((600, 5, 5)))
    y, w = random_targets(rng, tokens, 2, positions), rng.random(600)
    expected = NumpyBackend().moments(samples_of(tokens, y, w, positions))
    found = get_backend(backend).moments(samples_of(tokens, y, w, positions), "mixed").get()
    size = magnitudes(tokens, y, w, positions).gram
    # float32 roundings of an entry: both factors, their product, and the sum: at most 256 terms
    # compiled; in numpy, where each s is rounded by itself, over whatever BLAS does.
    terms = {"cpu": 256 + 3, "numpy": 256 * 5 + 7, "cuda": 1024 + 3}[backend]
    bound = terms * 2.0**-24 + rounding_steps(tokens, positions) * EPS
    error = np.abs(found.gram - expected.gram)
    assert (error <= bound * size).all()
    assert error.max() > 1e-12 * size.max()  # it is float32 that was tested
    np.testing.assert_allclose(
        found.cross, expected.cross, rtol=1e-9, atol=1e-12 * size.max() ** 0.5
    )


@pytest.mark.parametrize("d", [4, 9, 11])
def test_mixed_precision_is_the_same_for_every_instruction_set(rng, isa, positions, d):
    tokens = as_tokens(rng.standard_normal((300, 3, d)))
    expected = NumpyBackend().moments(samples_of(tokens, None, None, positions))
    found = get_backend("cpu").moments(samples_of(tokens, None, None, positions), "mixed")
    bound = (256 + 3) * 2.0**-24 + rounding_steps(tokens, positions) * EPS
    size = magnitudes(tokens, None, None, positions).gram
    assert (np.abs(found.gram - expected.gram) <= bound * size).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [4, 7, 8, 13, 16, 17])
def test_tokens_side_by_side_and_far_apart_give_the_same_bits(rng, isa, dtype, d):
    # Side by side, short tokens are vectors; far apart, they are gathered. 300 tokens are several
    # chunks of either way.
    near = [rng.standard_normal((n, d)).astype(dtype) for n in (8, 300, 9, 129, 300, 31, 64, 65)]
    far = [np.asfortranarray(z) for z in near]
    found, expected = (la.Moments(d, 0, backend="cpu").update(Z).sums.gram for Z in (near, far))
    np.testing.assert_array_equal(found, expected)


def test_ragged_forms_and_strides_give_the_same_bits(rng, isa, positions):
    def moments(Z, offsets=None):
        found = la.Moments(5, 0, positions=positions, backend="cpu").update(Z, offsets=offsets)
        return found.sums.gram

    lengths = rng.integers(1, 30, 150)
    sequences = [rng.standard_normal((n, 5)) for n in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.concatenate(sequences)
    expected = moments(sequences)
    forms = {
        "flat": (flat, offsets),
        "fortran": (np.asfortranarray(flat), offsets),
        "every second column": (np.repeat(flat, 2, axis=1)[:, ::2], offsets),
        "backwards in memory": (flat[::-1].copy()[::-1], offsets),
        "list of fortran": ([np.asfortranarray(z) for z in sequences], None),
        "int32 offsets": (flat, offsets.astype(np.int32)),
    }
    for name, (Z, given_offsets) in forms.items():
        np.testing.assert_array_equal(moments(Z, given_offsets), expected, err_msg=name)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_dense_batches_of_any_memory_order_give_the_same_bits(rng, isa, axes):
    Z = rng.standard_normal((70, 6, 3))
    expected = la.Moments(3, 0, backend="cpu").update(Z).sums.gram
    turned = np.ascontiguousarray(Z.transpose(axes)).transpose(np.argsort(axes))
    assert turned.shape == Z.shape
    np.testing.assert_array_equal(
        la.Moments(3, 0, backend="cpu").update(turned).sums.gram, expected
    )
    broadcast = np.broadcast_to(Z[:1], Z.shape)
    np.testing.assert_array_equal(
        la.Moments(3, 0, backend="cpu").update(broadcast).sums.gram,
        la.Moments(3, 0, backend="cpu").update(broadcast.copy()).sums.gram,
    )


@given(
    d=st.integers(1, 6),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=60),
    d_out=st.integers(0, 4),
    scale=st.sampled_from([1e-40, 1e-3, 1.0, 1e30]),
    positions=st.sampled_from(["last", "all", "causal"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_compiled_moments_agree_with_numpy_on_ragged_data(
    d, lengths, d_out, scale, positions, seed
):
    rng = np.random.default_rng(seed)
    tokens = Tokens(tuple(scale * rng.standard_normal((n, d)) for n in lengths))
    y = random_targets(rng, tokens, d_out, positions) if d_out else None
    w = rng.random(len(lengths))
    expected = NumpyBackend().moments(samples_of(tokens, y, w, positions))
    found = get_backend("auto").moments(samples_of(tokens, y, w, positions))
    assert_moments_agree(found, expected, tokens, y, w, positions)


def test_one_hot_tokens_give_exact_counts(backend, positions):
    Z = np.eye(3)[np.random.default_rng(0).integers(0, 3, (200, 5))]
    gram = la.Moments(3, 0, positions=positions, backend=backend).update(Z).gram()
    np.testing.assert_array_equal(home(gram), gram_of(loops.all_features(Z, positions)))


@given(
    cut=st.integers(1, 299),
    positions=st.sampled_from(["last", "all", "causal"]),
    seed=st.integers(0, 1000),
)
def test_merging_two_parts_equals_one_pass(cut, positions, seed):
    rng = np.random.default_rng(seed)
    Z, w = rng.standard_normal((300, 4, 3)), rng.random(300)
    targets = random_targets(rng, as_tokens(Z), 2, positions)
    y = targets.storage[:, 0] if positions == "last" else targets.storage

    def moments(rows):
        empty = la.Moments(3, 2, positions=positions)
        return empty.update(Z[rows], y[rows], sample_weight=w[rows])

    whole, first, second = moments(slice(None)), moments(slice(cut)), moments(slice(cut, None))
    tokens = as_tokens(Z)
    assert_moments_agree((first + second).sums, whole.sums, tokens, targets, w, positions)
    assert (first + second).n_samples == whole.n_samples
    assert (first + second).total_weight == pytest.approx(whole.total_weight, rel=1e-14)
    for a, b in zip(*map(arrays_of, ((first + second).sums, (second + first).sums)), strict=True):
        np.testing.assert_array_equal(a, b)
    with_nothing = first + la.Moments(3, 2, positions=positions)
    for a, b in zip(*map(arrays_of, (with_nothing.sums, first.sums)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_updating_in_pieces_equals_merging(rng):
    Z, y = rng.standard_normal((100, 4, 3)), rng.standard_normal(100)
    streamed = la.Moments(3, 1)
    assert streamed.update(Z[:60], y[:60]) is streamed
    streamed.update(Z[60:], y[60:])
    merged = la.Moments(3, 1).update(Z[:60], y[:60]) + la.Moments(3, 1).update(Z[60:], y[60:])
    for a, b in zip(*map(arrays_of, (streamed.sums, merged.sums)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_merging_does_not_change_its_parts(rng):
    a = la.Moments(3, 0).update(rng.standard_normal((50, 4, 3)))
    b = la.Moments(3, 0).update(rng.standard_normal((50, 4, 3)))
    before = a.sums.gram.copy()
    merged = a + b
    merged.update(rng.standard_normal((50, 4, 3)))
    np.testing.assert_array_equal(a.sums.gram, before)


def test_moments_that_do_not_match_are_not_merged():
    with pytest.raises(ValueError, match="d: moments to merge must agree, got 3 and 4"):
        la.Moments(3, 1) + la.Moments(4, 1)
    with pytest.raises(ValueError, match="d_out: moments to merge must agree"):
        la.Moments(3, 1) + la.Moments(3, 2)
    with pytest.raises(ValueError, match="positions: moments to merge must agree"):
        la.Moments(3, 1) + la.Moments(3, 1, positions="causal")
    with pytest.raises(TypeError, match="unsupported operand type"):
        la.Moments(3, 1) + 1


def test_integer_weights_repeat_samples(rng, backend):
    Z, y, w = rng.standard_normal((40, 4, 3)), rng.standard_normal((40, 2)), rng.integers(0, 4, 40)
    weighted = la.Moments(3, 2, backend=backend).update(Z, y, sample_weight=w)
    repeated = la.Moments(3, 2, backend=backend).update(
        np.repeat(Z, w, axis=0), np.repeat(y, w, axis=0)
    )
    assert weighted.total_weight == repeated.total_weight
    tokens = as_tokens(np.repeat(Z, w, axis=0))
    targets = Tokens(np.repeat(y, w, axis=0)[:, None])
    assert_moments_agree(weighted.get().sums, repeated.get().sums, tokens, targets)


def test_cancellation_stays_within_the_bound(rng, isa):
    # Huge coordinates of both signs whose products nearly cancel in S.
    Z = rng.standard_normal((200, 6, 3))
    Z[:, ::2, 0] *= 1e8
    Z[:, 1::2, 0] = -Z[:, ::2, 0]
    Z[:, 1::2, 1] = Z[:, ::2, 1]
    tokens = as_tokens(Z)
    found = get_backend("cpu").moments(samples_of(tokens, None, None))
    expected = NumpyBackend().moments(samples_of(tokens, None, None))
    assert_moments_agree(found, expected, tokens, None)


def test_a_failed_update_changes_nothing(rng, backend):
    Z, y = rng.standard_normal((300, 4, 3)), rng.standard_normal(300)
    moments = la.Moments(3, 1, backend=backend).update(Z, y)
    before = pickle.dumps(moments)
    bad = Z.copy()
    bad[299, 3, 2] = np.inf
    attempts = [(bad, y), (Z * 1e60, y), (Z, y[:-1]), (Z[:, :, :2], y), (Z, np.full(300, np.nan))]
    for tokens, targets in attempts:
        with pytest.raises(ValueError, match="[Zy]: "):
            moments.update(tokens, targets)
        assert pickle.dumps(moments) == before


def test_pickling_keeps_everything(rng):
    moments = la.Moments(3, 2).update(rng.standard_normal((50, 4, 3)), rng.standard_normal((50, 2)))
    copy = pickle.loads(pickle.dumps(moments))
    for a, b in zip(*map(arrays_of, (copy.sums, moments.sums)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(copy) == repr(moments)
    assert (copy.n_samples, copy.total_weight) == (50, 50.0)


def test_empty_moments_have_zeros_and_no_average():
    moments = la.Moments(2, 1)
    assert not moments.gram().any()
    assert moments.cross().shape == (6, 1)
    with pytest.raises(ValueError, match="moments: nothing to average"):
        moments.second_moment()
    with pytest.raises(ValueError, match="moments: nothing to average"):
        moments.fit()


def test_loss_is_the_training_error(rng, positions):
    Z, w = rng.standard_normal((60, 4, 3)), rng.random(60)
    y = random_targets(rng, as_tokens(Z), 2, positions).storage
    moments = la.Moments(3, 2, positions=positions)
    moments.update(Z, y[:, 0] if positions == "last" else y, sample_weight=w)
    C = rng.standard_normal((2, 18))
    errors = ((loops.all_features(Z, positions) @ C.T - y.reshape(-1, 2)) ** 2).sum(axis=1)
    weights = loops.per_sample(w, Z, positions)
    assert moments.loss(C) == pytest.approx(np.average(errors, weights=weights), rel=1e-12)


def test_gram_times_is_a_product_with_the_gram(rng, positions):
    moments = la.Moments(4, 0, positions=positions).update(rng.standard_normal((60, 5, 4)))
    x = rng.standard_normal((40, 3))
    gram = moments.gram()
    error = np.abs(moments.gram_times(x) - gram @ x)
    assert (error <= 100 * EPS * np.abs(gram) @ np.abs(x)).all()
