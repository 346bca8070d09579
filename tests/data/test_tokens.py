"""Bad input: a clear error that names the argument, before any work."""

import numpy as np
import pytest
from conftest import home

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens


def good(rng, n=4, d=3):
    return rng.standard_normal((20, n, d))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda Z: Z.astype(np.float16), TypeError, "Z: dtype must be float32"),
        (lambda Z: Z.astype(np.longdouble), TypeError, "Z: dtype"),
        (lambda Z: Z.astype(complex), TypeError, "Z: dtype"),
        (lambda Z: Z.astype(object), TypeError, "Z: dtype"),
        (lambda Z: Z.astype(str), TypeError, "Z: dtype"),
        (lambda Z: np.ma.masked_array(Z, Z > 0), TypeError, "Z: masked"),
        (lambda Z: Z[0], ValueError, r"got shape \(4, 3\); for one sequence pass Z\[None\] "),
        (lambda Z: Z[0, 0], ValueError, r"Z: .*got shape \(3,\)"),
        (lambda Z: Z[None], ValueError, r"Z: .*got shape \(1, 20, 4, 3\)"),
        (lambda Z: 3.0, ValueError, r"Z: .*got shape \(\)"),
        (lambda Z: None, TypeError, "Z: dtype"),
        (lambda Z: "tokens", TypeError, "Z: dtype"),
        (lambda Z: [], ValueError, r"Z: .*got shape \(0,\)"),
        (lambda Z: Z[:0], ValueError, "Z: the batch is empty"),
        (lambda Z: Z[:, :0], ValueError, "Z: the batch is empty"),
        (lambda Z: Z[:, :, :0], ValueError, "Z: the batch is empty"),
        (lambda Z: [Z[0], Z[1, :, :2]], ValueError, r"Z\[1\]: every sequence must have the same d"),
        (lambda Z: [Z[0], Z[1, :0]], ValueError, r"Z\[1\]: the sequence is empty"),
        (lambda Z: [Z[0], Z[1, 0]], ValueError, r"Z\[1\]: every sequence must be an array"),
        (lambda Z: [Z[0], "x"], TypeError, r"Z\[1\]: dtype"),
        (lambda Z: [Z[0], Z[1].astype(complex)], TypeError, r"Z\[1\]: dtype"),
        (lambda Z: [[[1.0, 2.0], [3.0]]], TypeError, r"Z\[0\]: cannot be read"),
    ],
)
def test_wrong_tokens_are_named(rng, make, error, message):
    Z = make(good(rng))
    with pytest.raises(error, match=message):
        la.fit(Z, np.zeros(20))
    with pytest.raises(error, match=message):
        la.Moments(3, 0).update(Z)
    with pytest.raises(error, match=message):
        la.certify(Z)
    with pytest.raises(error, match=message):
        la.cubic_features(Z)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 5], "end at the number of rows of Z, 12; got 0 to 5"),
        ([1, 12], "start at 0"),
        ([0, 5, 5, 12], r"must increase.*offsets\[1\] = 5, offsets\[2\] = 5"),
        ([0, 9, 3, 12], "must increase"),
        ([0, -3, 12], "must increase"),
        (np.array([0, 2**63 - 1, -(2**63), -1, 12]), "must increase"),
        ([0, [1]], "cannot be read"),
        ([0], "N \\+ 1 integers"),
        ([[0, 12]], "1-D array"),
        ([0.0, 12.0], "integers"),
        ("0 12", "integers"),
    ],
)
def test_wrong_offsets_are_named(rng, offsets, message):
    with pytest.raises((ValueError, TypeError), match=f"offsets: .*{message}"):
        la.certify(rng.standard_normal((12, 3)), offsets=offsets)


def test_offsets_need_flat_rows(rng):
    with pytest.raises(ValueError, match=r"Z: with offsets, an array \(sum n_i, d\)"):
        la.certify(good(rng), offsets=[0, 20])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("d", [3, 12])  # found while working, and in a first reading
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_non_finite_tokens_are_located(rng, backend, value, d, dtype):
    Z = rng.standard_normal((900, 4, d)).astype(dtype)
    Z[700, 2, 1] = value
    message = f"Z: must be finite, got {value} in sequence 700, token 2, coordinate 1"
    moments = la.Moments(d, 0, backend=backend)
    with pytest.raises(ValueError, match=message):
        moments.update(Z)
    assert moments.n_samples == 0
    heads = la.Heads(np.zeros((1, 1, d)), np.zeros((1, d, d)))
    for positions in ("last", "all", "causal"):
        with pytest.raises(ValueError, match=message):
            heads(Z, positions, backend=backend)


def test_non_finite_tokens_are_located_in_ragged_and_strided_batches(rng, backend):
    sequences = [rng.standard_normal((n, 3)) for n in (2, 6, 3)]
    sequences[1][4, 2] = np.nan
    message = "sequence 1, token 4, coordinate 2"
    strided = np.asfortranarray(np.concatenate(sequences))
    for Z, offsets in ((sequences, None), (strided, [0, 2, 8, 11])):
        with pytest.raises(ValueError, match=message):
            la.Moments(3, 0, backend=backend).update(Z, offsets=offsets)


@pytest.mark.parametrize("size", [1e52, 1e120, 1e200])
def test_overflow_is_reported_not_returned(rng, backend, size):
    Z = size * rng.standard_normal((30, 4, 2))
    with pytest.raises(ValueError, match="Z: values up to .* overflow float64 .* rescale"):
        la.Moments(2, 0, backend=backend).update(Z)


def test_large_but_representable_values_are_accepted(rng, backend):
    Z = 1e45 * rng.standard_normal((30, 4, 2))
    assert np.isfinite(home(la.Moments(2, 0, backend=backend).update(Z).gram())).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda y: y[:-1], ValueError, r"y: one row of targets .*\(20,\) or \(20, d_out\)"),
        (lambda y: y[:, None, None], ValueError, "y: one row of targets"),
        (lambda y: y[:, None][:, :0], ValueError, "y: one row of targets"),
        (lambda y: y.astype(complex), TypeError, "y: dtype"),
        (
            lambda y: np.where(np.arange(20) == 7, np.nan, y),
            ValueError,
            "y: .*sequence 7, output 0",
        ),
        (lambda y: None, TypeError, "y: dtype"),
    ],
)
def test_wrong_targets_are_named(rng, make, error, message):
    with pytest.raises(error, match=message):
        la.fit(good(rng), make(np.zeros(20)))


@pytest.mark.parametrize("positions", ["all", "causal"])
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda y: y[:, 0], ValueError, r"y: one row of targets a token .*\(20, 4, d_out\)"),
        (lambda y: y[:, :-1], ValueError, "y: one row of targets a token"),
        (lambda y: y[:, :, :0], ValueError, "y: one row of targets a token"),
        (
            lambda y: np.where(y == y[3, 2, 1], np.nan, y),
            ValueError,
            "sequence 3, output 1, token 2",
        ),
    ],
)
def test_wrong_targets_of_every_token_are_named(rng, positions, make, error, message):
    Z, y = good(rng), rng.standard_normal((20, 4, 2))
    with pytest.raises(error, match=message):
        la.fit(Z, make(y), positions=positions)


@pytest.mark.parametrize("positions", ["all", "causal"])
def test_a_list_of_targets_of_equal_lengths_is_read_as_an_array(rng, positions):
    Z, y = good(rng), rng.standard_normal((20, 4, 2))
    found = la.fit(Z, list(y), positions=positions).coefficients
    np.testing.assert_array_equal(found, la.fit(Z, y, positions=positions).coefficients)


def test_wrong_targets_of_lists_are_named(rng):
    Z = [rng.standard_normal((n, 3)) for n in (2, 4)]
    for y, message in (
        (np.zeros((2, 4)), "y: Z is a list of 2 sequences, so a list of as many arrays"),
        ([np.zeros(2)], "y: Z is a list of 2 sequences"),
        ([np.zeros(2), np.zeros(3)], r"y\[1\]: one row a token is needed, 4 rows, got 3"),
        ([np.zeros((2, 1)), np.zeros((4, 2))], r"y\[1\]: an array \(n_i, d_out\)"),
        ([np.zeros((2, 1)), np.zeros((4, 1, 1))], r"y\[1\]: an array \(n_i, d_out\)"),
    ):
        with pytest.raises(ValueError, match=message):
            la.fit(Z, y, positions="causal")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(19), r"shape \(20,\), got \(19,\)"),
        (np.ones((20, 1)), r"shape \(20,\)"),
        (np.where(np.arange(20) == 3, -1.0, 1.0), r"not negative, got \[3\] = -1"),
        (np.full(20, np.nan), r"\[0\] = nan"),
        (np.zeros(20), "at least one weight must be positive"),
    ],
)
def test_wrong_weights_are_named(rng, weights, message):
    with pytest.raises(ValueError, match=f"sample_weight: .*{message}"):
        la.fit(good(rng), np.zeros(20), sample_weight=weights)


def test_d_and_d_out_must_match_the_moments(rng):
    moments = la.Moments(4, 2)
    with pytest.raises(ValueError, match="Z: tokens must have d = 4 coordinates, got 3"):
        moments.update(good(rng), np.zeros((20, 2)))
    with pytest.raises(ValueError, match="y: d_out = 2 targets"):
        moments.update(good(rng, d=4), np.zeros((20, 3)))
    with pytest.raises(ValueError, match="y: targets with d_out = 2 are needed"):
        moments.update(good(rng, d=4))
    with pytest.raises(ValueError, match="y: these moments have d_out = 0"):
        la.Moments(3, 0).update(good(rng), np.zeros(20))


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"alpha": -1.0}, ValueError),
        ({"alpha": np.nan}, ValueError),
        ({"alpha": "much"}, TypeError),
        ({"positions": "first"}, ValueError),
        ({"features": [0]}, TypeError),
        ({"heads": "many"}, ValueError),
        ({"solver": "magic"}, ValueError),
        ({"backend": "abacus"}, ValueError),
        ({"precision": "half"}, ValueError),
        ({"memory_limit": -5}, ValueError),
        ({"memory_limit": "1GB"}, TypeError),
        ({"memory_limit": True}, TypeError),
        ({"alpha": 1j}, TypeError),
        ({"alpha": 10**400}, ValueError),
        ({"alpha": True}, TypeError),
        ({"solver": np.ones(3)}, ValueError),
        ({"heads": np.ones(3)}, ValueError),
        ({"positions": np.ones(3)}, ValueError),
        ({"precision": np.ones(3)}, ValueError),
        ({"memory_limit": 10}, MemoryError),
        ({"progress": "yes"}, TypeError),
    ],
)
def test_wrong_settings_are_named(rng, setting, error):
    (name,) = setting
    expected = "fit" if error is MemoryError else name
    Z = np.concatenate([good(rng), good(rng)])
    with pytest.raises(error, match=f"^{expected}: "):
        la.fit(Z, np.zeros(40), **setting)


@pytest.mark.parametrize("d", [0, -1])
def test_wrong_sizes_are_named(d):
    with pytest.raises(ValueError, match="^d: must be at least 1"):
        la.Moments(d, 1)
    with pytest.raises(TypeError, match="^d_out: a whole number is needed, got float"):
        la.Moments(2, 1.5)


@pytest.mark.parametrize("d", [200, 100_000, 10**12])
def test_a_d_beyond_memory_is_refused_before_allocating(d):
    with pytest.raises(MemoryError, match=f"^d: the moments of d = {d}, d_out = 1 needs"):
        la.Moments(d, 1)


def test_integers_and_other_byte_orders_are_converted(rng, backend):
    Z = rng.integers(-3, 4, (30, 4, 2))
    expected = home(la.Moments(2, 0, backend=backend).update(Z.astype(float)).gram())
    swapped = Z.astype(np.dtype(float).newbyteorder())
    for given in (Z, Z.astype(np.int8), Z.tolist(), swapped, Z.astype(float).tolist()):
        gram = la.Moments(2, 0, backend=backend).update(given).gram()
        np.testing.assert_array_equal(home(gram), expected)


def test_inputs_are_not_copied_and_not_modified(rng):
    Z = rng.standard_normal((40, 6, 3))
    Z.setflags(write=False)
    assert as_tokens(Z).storage is not None
    assert np.shares_memory(as_tokens(Z).storage, Z)
    assert np.shares_memory(as_tokens(Z[::2, ::-1]).storage, Z)
    assert np.shares_memory(as_tokens(list(Z)).sequence(5), Z)
    before = Z.copy()
    la.fit(Z, Z[:, 0])
    np.testing.assert_array_equal(Z, before)


def test_overflow_names_what_is_large(rng, backend):
    Z = rng.standard_normal((60, 4, 3))
    heads = la.Heads(np.full((1, 1, 3), 1e200), np.full((1, 3, 3), 1e200))
    for call, large in (
        (
            lambda: la.fit(Z, np.ones(60), sample_weight=np.full(60, 1e305), backend=backend),
            "weight",
        ),
        (lambda: la.fit(Z, np.full(60, 1e300), backend=backend), r"y up to 1e\+300"),
        (lambda: heads(Z, backend=backend), r"V up to 1e\+200, with Q up to 1e\+200"),
    ):
        with pytest.raises(ValueError, match=f"Z: values up to .*{large}.* overflow"):
            call()


@pytest.mark.parametrize("size", [1e-60, 1e-100, 1e-300])
def test_underflow_is_reported(rng, backend, size):
    with pytest.raises(ValueError, match="Z: values of at most .* underflow .* rescale"):
        la.Moments(2, 0, backend=backend).update(size * rng.standard_normal((30, 4, 2)))


def test_odd_objects_are_named_without_impossible_advice(rng):
    class Stubborn:
        def __array__(self, *_, **__):
            raise OSError("disk on fire")

    for odd in (None, {"a": 1}, object(), (z for z in ())):
        with pytest.raises(TypeError, match=r"^Z: .*cannot be read as an array of numbers$"):
            la.certify(odd)
    with pytest.raises(TypeError, match=r"^Z: cannot be read .*disk on fire"):
        la.certify(Stubborn())
    with pytest.raises(TypeError, match=r"got complex128$"):
        la.certify(np.zeros((2, 2, 2), complex))
