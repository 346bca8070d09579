"""Every CUDA kernel, run on the CPU by the emulator, against the numpy reference."""

from __future__ import annotations

import os

import numpy as np
import pytest
from emulated import Batch, cuda, running
from oracles.batches import Arrays, arrays_of, samples_of, with_rows

from linattn_fast.arrays.types import POSITIONS
from linattn_fast.backend.normal_operator import NumpyNormalOperator
from linattn_fast.backend.reference import NumpyBackend
from linattn_fast.data.tokens import Tokens
from linattn_fast.features.features import Features

SANITIZED = "LINATTN_SANITIZED" in os.environ
EPS = np.finfo(np.float64).eps
REFERENCE = NumpyBackend()

# d, lengths of the sequences, d_out: single numbers, sizes on both sides of a tile (64 rows, 128
# columns, panels of 8 samples, spans of 32 rows, 128 tokens at once), and more samples than a slab
# has (256)
CASES = {
    "one number": (1, [1], 1),
    "one sequence": (3, [7], 2),
    "dense": (2, [4] * 9, 1),
    "ragged": (4, [1, 5, 2, 33, 64, 3], 3),
    "a tile and more": (5, [3] * 17, 2),
    "more columns than a tile": (16, [2, 1, 2], 1),
    "many outputs": (3, [2, 3], 41),
    "two slabs": (2, [1, 2] * 150, 1),
    "long sequences": (2, [150, 1, 131], 2),
}


def make_batch(
    name: str, positions: str, chosen: bool = False, single: bool = False, weighted: bool = True
) -> Batch:
    d, lengths, d_out = CASES[name]
    rng = np.random.default_rng(len(name))
    dtype = np.float32 if single else np.float64
    rows = rng.standard_normal((sum(lengths), d)).astype(dtype)
    if len(set(lengths)) == 1:
        tokens = Tokens(rows.reshape(len(lengths), -1, d))
    else:
        tokens = Tokens(rows, np.concatenate([[0], np.cumsum(lengths)]))
    n_targets = len(tokens) if positions == "last" else tokens.n_rows
    y = rng.standard_normal((n_targets, d_out)).astype(dtype)
    targets = Tokens(y[:, None]) if positions == "last" else with_rows(tokens, y)
    weights = rng.uniform(0.0, 2.0, len(tokens)) if weighted else None
    features = None
    if chosen:
        count = d * (d + 1) // 2
        j, k = np.triu_indices(d)
        pairs = np.sort(rng.permutation(count)[: max(1, count // 2)])
        queries = np.sort(rng.permutation(d)[: max(1, d - 1)])
        features = Features(d, np.stack([j[pairs], k[pairs]], axis=1), queries)
    return Batch(tokens, targets, weights, positions, features)


def operator(batch: Batch) -> NumpyNormalOperator:
    return NumpyNormalOperator(
        samples_of(batch.tokens, batch.targets, batch.weights, batch.positions, batch.features)
    )


def close(given: np.ndarray, expected: np.ndarray, terms: int) -> None:
    """Up to rounding of sums of so many terms, relative to the largest entry.

    Inputs are of the order of one, and cancellation is bounded by the largest entry's own sum: the
    diagonal of what is summed has no cancellation at all.
    """
    assert given.shape == expected.shape
    assert np.isfinite(given).all()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(given, expected, rtol=0, atol=8 * terms * EPS * max(scale, 1.0))


def terms(batch: Batch) -> int:
    """Additions in any of the sums: over samples, tokens, pairs and queries."""
    return int(batch.tokens.n_rows + batch.features.count + 8)


def reference_moments(batch: Batch) -> Arrays:
    return arrays_of(
        REFERENCE.moments(
            samples_of(
                batch.tokens, batch.targets, batch.weights, batch.positions, features=batch.features
            )
        )
    )


@pytest.mark.parametrize("chosen", [False, True], ids=["all features", "chosen"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_reference(name: str, positions: str, chosen: bool) -> None:
    batch = make_batch(name, positions, chosen, single=name == "ragged")
    for given, expected in zip(batch.moments(), reference_moments(batch), strict=True):
        close(given, expected, terms(batch))


@pytest.mark.parametrize("chosen", [False, True], ids=["all features", "chosen"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "more columns than a tile"])
def test_normal_equations_are_those_of_the_reference(
    name: str, positions: str, chosen: bool
) -> None:
    batch = make_batch(name, positions, chosen, weighted=name != "dense")
    expected = operator(batch)
    C = np.random.default_rng(3).standard_normal((batch.d_out, batch.features.count))
    several = np.concatenate([C, C[:1]])
    results = [
        (batch.kronecker_factors(), expected.kronecker_factors()),
        (batch.normal(several), expected.normal(several)),
        (batch.gradient(C), expected.gradient(C)),
    ]
    for given, wanted in results:
        for ours, theirs in zip(given, wanted, strict=True):
            close(ours, theirs, terms(batch))
    # Kept samples give the same bits.
    kept = batch.kept()
    again = (batch.kronecker_factors(kept), batch.normal(several, kept), batch.gradient(C, kept))
    for (given, _), other in zip(results, again, strict=True):
        for ours, theirs in zip(given, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "two slabs"])
def test_layers_are_those_of_the_reference(name: str, positions: str) -> None:
    batch = make_batch(name, positions, single=name == "a tile and more")
    d, d_out = batch.tokens.d, batch.d_out
    rng = np.random.default_rng(5)
    V, Q = rng.standard_normal((3, d_out, d)), rng.standard_normal((3, d, d))
    C = rng.standard_normal((d_out, batch.features.count))
    close(batch.heads(V, Q), REFERENCE.heads(V, Q, batch.tokens, positions), terms(batch))
    close(batch.coefficients(C), REFERENCE.coefficients(C, batch.tokens, positions), terms(batch))


@pytest.mark.parametrize("positions", POSITIONS)
def test_kernels_watched_for_races_are_right(positions: str) -> None:
    """What runs under the thread sanitizer, for which the other cases take too long."""
    rng = np.random.default_rng(13)
    tokens = Tokens(rng.standard_normal((40, 4)), np.array([0, 1, 6, 40]))
    rows = 3 if positions == "last" else 40
    targets = Tokens(rng.standard_normal((rows, 2))[:, None])
    if positions != "last":
        targets = with_rows(tokens, targets.storage[:, 0])
    batch = Batch(tokens, targets, np.array([1.0, 0.5, 2.0]), positions)
    V, Q = rng.standard_normal((2, 2, 4)), rng.standard_normal((2, 4, 4))
    C = rng.standard_normal((2, 40))
    expected = operator(batch)
    for given, wanted in (
        (batch.moments(), reference_moments(batch)),
        (batch.kronecker_factors(), expected.kronecker_factors()),
        (batch.normal(C), expected.normal(C)),
        (batch.gradient(C, batch.kept()), expected.gradient(C)),
        ((batch.heads(V, Q),), (REFERENCE.heads(V, Q, tokens, positions),)),
        ((batch.coefficients(C),), (REFERENCE.coefficients(C, tokens, positions),)),
        ((np.array(batch.first_non_finite()),), (np.array(-1),)),
    ):
        for ours, theirs in zip(given, wanted, strict=True):
            close(ours, theirs, terms(batch))


@pytest.mark.skipif(SANITIZED, reason="no other access than in fewer samples, and slow")
@pytest.mark.parametrize("positions", POSITIONS)
def test_samples_of_two_chunks_are_added_up(positions: str) -> None:
    """More than 8192 samples; a sequence of "causal" continues in the second chunk."""
    rng = np.random.default_rng(11)
    lengths = np.full(4100, 2)
    lengths[:30] = 9
    if positions != "causal":
        lengths = np.full(8200, 1)
    rows = rng.standard_normal((lengths.sum(), 2))
    tokens = Tokens(rows, np.concatenate([[0], np.cumsum(lengths)]))
    targets = with_rows(tokens, rng.standard_normal((len(rows), 1)))
    batch = Batch(tokens, targets, rng.uniform(0.5, 1.5, len(tokens)), positions)
    C = rng.standard_normal((1, 6))
    expected = operator(batch)
    with running(tensor_cores=False):  # the emulator is several times as fast
        results = [
            (batch.moments(), reference_moments(batch)),
            (batch.kronecker_factors(), expected.kronecker_factors()),
            (batch.gradient(C), expected.gradient(C)),
            (batch.gradient(C, batch.kept()), expected.gradient(C)),
            ((batch.coefficients(C),), (REFERENCE.coefficients(C, tokens, positions),)),
        ]
    for given, wanted in results:
        for ours, theirs in zip(given, wanted, strict=True):
            close(ours, theirs, terms(batch))


def everything(batch: Batch) -> list[np.ndarray]:
    """What all kernels make of a batch."""
    d, d_out = batch.tokens.d, batch.d_out
    rng = np.random.default_rng(7)
    V, Q = rng.standard_normal((2, d_out, d)), rng.standard_normal((2, d, d))
    C = rng.standard_normal((d_out, batch.features.count))
    whole = Batch(batch.tokens, positions=batch.positions)
    D = rng.standard_normal((d_out, whole.features.count))
    return [
        *batch.moments(),
        *batch.kronecker_factors(),
        *batch.normal(C),
        *batch.gradient(C),
        whole.heads(V, Q),
        whole.coefficients(D),
        np.array(batch.first_non_finite()),
    ]


@pytest.mark.parametrize("tensor_cores", [True, False], ids=["tensor cores", "fma"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_bits_do_not_depend_on_the_order_of_threads_and_blocks(
    positions: str, tensor_cores: bool
) -> None:
    batch = make_batch("ragged", positions, chosen=positions == "all")
    with running("forward", tensor_cores=tensor_cores):
        forward = everything(batch)
    for order, seed in (("reverse", 1), ("random", 1), ("random", 2)):
        with running(order, seed, tensor_cores):
            for other, same in zip(everything(batch), forward, strict=True):
                np.testing.assert_array_equal(other, same)


@pytest.mark.parametrize("positions", POSITIONS)
def test_fused_multiply_adds_give_what_tensor_cores_give(positions: str) -> None:
    batch = make_batch("ragged", positions)
    tensor = everything(batch)
    with running(tensor_cores=False):
        for plain, expected in zip(everything(batch), tensor, strict=True):
            close(plain, expected, terms(batch))


@pytest.mark.parametrize("positions", POSITIONS)
def test_moments_are_added_to_what_is_there(positions: str) -> None:
    batch = make_batch("one sequence", positions)
    once = batch.moments()
    sums = [np.full_like(total, 3.0) for total in once]
    batch.add_moments(*sums)
    for total, own in zip(sums, once, strict=True):
        np.testing.assert_array_equal(total, 3.0 + own)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32"])
def test_the_first_sequence_that_is_not_finite_is_found(bad: float, single: bool) -> None:
    batch = make_batch("ragged", "last", single=single)
    assert batch.first_non_finite() == -1
    rows = batch.tokens.storage.copy()
    offsets = batch.tokens.offsets
    for i in (5, 3):
        rows[offsets[i]] = bad
        assert Batch(Tokens(rows, offsets)).first_non_finite() == i
    moments = Batch(Tokens(rows, offsets)).moments()
    assert not np.isfinite(moments.gram).all()


@pytest.mark.parametrize("positions", POSITIONS)
def test_targets_and_gram_may_be_left_out(positions: str) -> None:
    batch = make_batch("dense", positions)
    whole = batch.moments()
    without_gram = batch.moments(with_gram=False)
    np.testing.assert_array_equal(without_gram.cross, whole.cross)
    alone = Batch(batch.tokens, None, batch.weights, positions)
    np.testing.assert_array_equal(alone.moments().gram, whole.gram)


@pytest.mark.parametrize("positions", POSITIONS)
def test_targets_of_another_precision_than_the_tokens(positions: str) -> None:
    batch = make_batch("dense", positions)
    narrow = Tokens(batch.targets.storage.astype(np.float32))
    mixed = Batch(batch.tokens, narrow, batch.weights, positions)
    for given, expected in zip(mixed.moments(), reference_moments(mixed), strict=True):
        close(given, expected, terms(mixed))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_lanes_of_a_warp_see_each_others_numbers(order: str) -> None:
    lanes = np.arange(64)
    with running(order):
        given = cuda.numbers_of_next_lanes(False)
    np.testing.assert_array_equal(given, lanes // 32 * 32 + (lanes + 1) % 32)


def test_an_operation_that_part_of_a_warp_reaches_is_refused() -> None:
    with pytest.raises(RuntimeError, match="an operation of a warp that not all its threads reach"):
        cuda.numbers_of_next_lanes(True)
    np.testing.assert_array_equal(cuda.numbers_of_next_lanes(False)[:2], [1.0, 2.0])
