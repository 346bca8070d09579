"""Fits in blocks: common prefixes, programs, files, streams and errors."""

import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest
from conftest import EPS, targets_for
from hypothesis import given
from hypothesis import strategies as st
from oracles.batches import samples_of
from oracles.grouped_data import POSITIONS, Expected, agrees, gaussian, one_hot, two_groups

import linattn_fast as la
from linattn_fast.backend import chosen_layer
from linattn_fast.data import prefixes
from linattn_fast.data.prefixes import Prefixes
from linattn_fast.data.tokens import as_tokens
from linattn_fast.solvers import costs
from linattn_fast.solvers.blocks import choice as block_choice
from linattn_fast.solvers.blocks import groups as query_groups
from linattn_fast.solvers.blocks import partition as query_blocks

fit_in_blocks = partial(la.fit, heads=None, solver="blocks")

# ---------------------------------------------------------------------------------- common prefixes


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    d=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_prefixes_of_one_array_are_summed_once_and_right(lengths, d, seed):
    rng = np.random.default_rng(seed)
    traces = [rng.integers(-2, 3, (n, d)).astype(float) for n in lengths]
    views = [trace[:t] for trace in traces for t in range(1, len(trace) + 1)]
    order = rng.permutation(len(views))
    tokens = as_tokens([views[i] for i in order])
    assert len(np.unique(tokens.beginnings)) == len(traces)
    pairs = np.stack(np.triu_indices(d), axis=1)
    s = Prefixes.of(tokens, "last").pair_sums(pairs)
    expected = [(z.T @ z)[tuple(pairs.T)] for z in tokens]
    np.testing.assert_array_equal(s, expected)
    assert sum(map(len, prefixes.distinct_rows(tokens))) == sum(lengths)


def test_arrays_that_only_begin_alike_are_not_taken_for_prefixes(rng):
    trace = rng.standard_normal((6, 6))
    tokens = as_tokens([trace[:3, :3], trace.T[:3, :3], trace[::2, :3], trace[:2, :3]])
    assert tokens.beginnings.tolist() == [0, 1, 2, 0]
    pairs = np.stack(np.triu_indices(3), axis=1)
    s = Prefixes.of(tokens, "last").pair_sums(pairs)
    np.testing.assert_allclose(s, [(z.T @ z)[tuple(pairs.T)] for z in tokens], rtol=1e-13)


def test_small_pieces_give_the_same_sums(rng, monkeypatch):
    Z = [rng.standard_normal((n, 5)) for n in rng.integers(1, 9, 40)]
    tokens = as_tokens(Z)
    pairs = np.array([(0, 0), (1, 4), (2, 3)])
    whole = {where: Prefixes.of(tokens, where).pair_sums(pairs) for where in POSITIONS}
    monkeypatch.setattr(prefixes, "_SUMS_AT_ONCE", 1)
    monkeypatch.setattr(prefixes, "_NUMBERS_AT_ONCE", 60)
    for where, sums in whole.items():
        np.testing.assert_array_equal(Prefixes.of(tokens, where).pair_sums(pairs), sums)


def test_blocks_a_few_at_a_time_give_the_same_bits(rng, monkeypatch):
    Z = two_groups(rng, (80, 5), 5)
    y = rng.standard_normal((80, 5, 1))
    fit = fit_in_blocks(Z, y, positions="causal")
    monkeypatch.setattr(query_blocks, "SUMS_BYTES", 1)
    again = fit_in_blocks(Z, y, positions="causal")
    np.testing.assert_array_equal(fit.coefficients, again.coefficients)


# ------------------------------------------------------------------------------- looking for groups


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    form=st.sampled_from(["list", "offsets"]),
    positions=st.sampled_from(POSITIONS),
    at_once=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_one_group_is_told_as_from_all_samples_together(lengths, form, positions, at_once, seed):
    rng = np.random.default_rng(seed)
    rows = (rng.random((sum(lengths), 3)) < 0.4) * 1.0
    ends = np.cumsum(lengths)
    tokens = (
        as_tokens(rows, np.concatenate([[0], ends]))
        if form == "offsets"
        else as_tokens(np.split(rows, ends[:-1]))
    )
    queries = np.arange(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_groups, "_SAMPLES_AT_ONCE", at_once)
        told = query_groups.in_one_group(tokens, positions, queries)
        by_parts = query_groups.groups_of_samples(Prefixes.of(tokens, positions), queries)
    groups, asked = query_groups.groups_of_samples(Prefixes.of(tokens, positions), queries)
    assert told == (len(groups) == 1)
    assert [group.tolist() for group in by_parts[0]] == [group.tolist() for group in groups]
    np.testing.assert_array_equal(by_parts[1], asked)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_look_at_queries_of_one_group_takes_no_memory_of_the_size_of_the_data(rng, positions):
    tokens = as_tokens(rng.standard_normal((20_000, 16, 4)))  # 10 MB
    tracemalloc.start()
    try:
        assert query_blocks.partition(samples_of(tokens, positions=positions)) is None
        assert tracemalloc.get_traced_memory()[1] < 2e6  # 2^13 samples: z, and numbers of 8 bytes
    finally:
        tracemalloc.stop()


# ----------------------------------------------------------------------------------------- programs


def traces(rng, N, states=2, symbols=2, length=3):
    """Runs of random automata: a transition table, a word, the states; one-hot joint attributes."""
    Q, A, L = states, symbols, length
    K, V, P, W, HA = 0, Q * A, Q * A + Q, Q * A + Q + L, Q * A + Q + L + A
    HB = HA + (L + 1) * Q
    start = Q * A + L
    Z = np.zeros((N, start + 1 + 2 * L, HB + L * Q * A))
    r = np.arange(N)
    table, word = rng.integers(0, Q, (N, Q * A)), rng.integers(0, A, (N, L))
    state = rng.integers(0, Q, N)
    for k in range(Q * A):
        Z[:, k, K + k] = Z[r, k, V + table[:, k]] = 1
    for t in range(L):
        Z[:, Q * A + t, P + t] = Z[r, Q * A + t, W + word[:, t]] = 1
    Z[r, start, HA + state] = 1
    for t in range(L):
        key = state * A + word[:, t]
        Z[r, start + 1 + 2 * t, HB + t * Q * A + key] = 1
        state = table[r, key]
        Z[r, start + 2 + 2 * t, HA + (t + 1) * Q + state] = 1
    prefixes_of = [Z[i, :t] for i in range(N) for t in range(start + 1, Z.shape[1])]
    return prefixes_of, Z[:, start + 1 :].reshape(-1, Z.shape[2])


def test_a_program_is_learned_in_blocks_and_its_certificate_is_right(rng):
    Z, y = traces(rng, 150)
    features = la.Features.active(Z)
    fit = fit_in_blocks(Z, y, features=features)
    expected = Expected.of(Z, "last", features)
    new, truth = traces(rng, 60)
    agrees(fit, expected, y, "last", 0.0, new)
    few = fit_in_blocks(Z[:120], y[:120], features=features).certificate
    covered = la.fit(Z[:120], y[:120], features=features, heads=None, solver="dual")
    np.testing.assert_array_equal(few.covers(new), covered.certificate.covers(new))
    assert 0 < few.covers(new).mean() < 1
    right = (np.round(fit.predict(new)) == truth).all(axis=1)
    assert right[fit.certificate.covers(new)].all()


def test_auto_takes_blocks_where_the_whole_would_take_longer(rng, monkeypatch):
    Z, y = traces(rng, 100)
    features = la.Features.active(Z)
    small = la.fit(Z, y, features=features, heads=None)
    assert small.info.solver != "blocks"
    monkeypatch.setattr(costs, "_WORTH_LOOKING", 0.0)
    monkeypatch.setattr(block_choice, "_SECONDS_A_BLOCK", 0.0)
    fit = la.fit(Z, y, features=features, heads=None)
    assert fit.info.solver == "blocks"
    assert "blocks of queries that never occur together" in fit.info.reason
    np.testing.assert_allclose(fit.coefficients, small.coefficients, atol=1e-10)
    certificate = la.certify(Z, features=features)
    assert certificate.rank == fit.certificate.rank
    assert certificate.n_samples == len(Z)
    np.testing.assert_array_equal(certificate.covers(Z), True)
    together = rng.standard_normal((60, 5, 3))  # one group
    assert la.fit(together, together[:, 0], heads=None).info.solver != "blocks"
    together[:, -1, 2] = 0.0  # and a coordinate that nobody queries
    assert la.fit(together, together[:, 0], heads=None).info.solver != "blocks"
    assert la.fit(Z, y, features=features, heads=None, solver="qr").info.solver == "qr"


def test_auto_takes_blocks_where_nothing_else_fits_in_memory(rng):
    Z, y = traces(rng, 400, 3, 2, 4)
    features = la.Features.active(Z)
    limit = 100 << 20
    needed = la.estimate_memory(features.d, y.shape[1], n_samples=len(Z), features=features)
    assert min(needed["cholesky"], needed["dual"]) > limit
    fit = la.fit(Z, y, features=features, heads=None, memory_limit=limit)
    assert fit.info.solver == "blocks"
    assert fit.info.bytes <= limit
    with pytest.raises(MemoryError, match=r"fit: d = 54 .*'blocks', needs .* memory_limit is"):
        fit_in_blocks(Z, y, features=features, memory_limit=1 << 20)
    fit = la.fit(Z, y, features=features, solver="blocks", memory_limit=limit)
    with pytest.raises(
        MemoryError, match=r"^heads: finding .* d = 54, .* needs .* memory_limit is"
    ):
        _ = fit.heads  # coefficients of all features


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_coefficients_of_few_features_are_applied_as_they_are(rng, monkeypatch, positions, backend):
    Z = one_hot(rng, (30, 5), 6) + 2.0 * one_hot(rng, (30, 5), 6)
    features = la.Features(6, [(0, 0), (1, 2), (5, 5)], [0, 2, 4, 5])
    y = targets_for(rng, Z, positions)
    fit = la.fit(Z, y, positions=positions, features=features, heads=None, alpha=0.1)
    new = list(gaussian(rng, (4, 3), 6)) + list(gaussian(rng, (2, 7), 6))
    written_out = fit.predict(new, backend=backend)
    monkeypatch.setattr(chosen_layer, "_WRITTEN_OUT", -1)
    for mine, theirs in zip(fit.predict(new, backend=backend), written_out, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    again = la.fit(Z, y, positions=positions, features=features, heads=None, alpha=0.1)
    np.testing.assert_allclose(again.coefficients, fit.coefficients, atol=100 * EPS)
    with pytest.raises(ValueError, match="Z: .*nan"):
        fit.predict([np.full((2, 6), np.nan)])


# --------------------------------------------------------------------------- files, streams, errors


def test_a_fit_in_blocks_can_be_saved_and_pickled(rng, tmp_path):
    Z, y = traces(rng, 50)
    fit = fit_in_blocks(Z, y, features=la.Features.active(Z))
    fit.save(tmp_path / "fit.npz")
    for again in (la.load(tmp_path / "fit.npz"), pickle.loads(pickle.dumps(fit))):
        np.testing.assert_array_equal(again.predict(Z), fit.predict(Z))
        assert again.info == fit.info
        assert again.certificate == fit.certificate
        with pytest.raises(ValueError, match="certificate: "):
            again.certificate.covers(Z)
    assert fit.get() is fit
    assert fit.certificate.get().covers(Z).all()


def test_a_stream_is_loaded(rng):
    Z = two_groups(rng, (90, 4), 4)
    y = rng.standard_normal((90, 2))
    whole = fit_in_blocks(Z, y)
    parts = [(Z[:40], y[:40]), (Z[40:], y[40:])]
    for stream in (parts, iter(parts)):
        fit = fit_in_blocks(stream)
        np.testing.assert_allclose(fit.coefficients, whole.coefficients, atol=1e-12)
        assert "loaded into memory" in fit.info.reason


def test_a_number_of_heads_is_found_after_blocks(rng):
    Z = rng.standard_normal((300, 5, 3))
    Z[::2, -1, 2] = 0.0
    Z[1::2, -1, :2] = 0.0
    truth = la.Heads(rng.standard_normal((1, 2, 3)), rng.standard_normal((1, 3, 3)))
    fit = la.fit(Z, truth(Z), heads=1, solver="blocks")
    assert fit.heads.distance(truth) < 1e-8


def test_progress_counts_the_samples(rng):
    Z, y = traces(rng, 30)
    seen = []
    fit_in_blocks(Z, y, progress=lambda *done: seen.append(done))
    assert seen[-1] == (len(Z), len(Z))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(rng, bad):
    Z = one_hot(rng, (20, 4), 3)
    Z[7, 1, 2] = bad
    features = la.Features(3, [(0, 0)], [0, 1])  # also where no feature needs them
    for chosen in (None, features):
        with pytest.raises(ValueError, match="Z: must be finite, got .* in sequence 7, token 1"):
            fit_in_blocks(Z, np.ones(20), features=chosen)


def test_values_too_large_or_too_small_are_named(rng):
    Z = one_hot(rng, (20, 4), 3)
    with pytest.raises(ValueError, match="Z: .*overflow"):
        fit_in_blocks(1e120 * Z, np.ones(20))
    with pytest.raises(ValueError, match="Z: .*with y up to 1e.200 overflow"):
        fit_in_blocks(Z, np.full(20, 1e200))
    with pytest.raises(ValueError, match="Z: .*underflow"):
        fit_in_blocks(1e-70 * Z, np.ones(20))
    fit = fit_in_blocks(Z, np.ones(20))
    with pytest.raises(ValueError, match="Z: .*overflow"):
        fit.certificate.covers(1e160 * Z)


def test_moments_know_no_samples(rng):
    moments = la.Moments(3, 1).update(one_hot(rng, (20, 4), 3), np.ones(20))
    with pytest.raises(ValueError, match="solver: 'blocks' needs the data"):
        moments.fit(solver="blocks")


def test_inputs_are_left_alone(rng):
    Z, y = traces(rng, 20)
    before = [z.copy() for z in Z], y.copy()
    fit = fit_in_blocks(Z, y)
    fit.certificate.covers(Z)
    assert all(np.array_equal(a, b) for a, b in zip(Z, before[0], strict=True))
    np.testing.assert_array_equal(y, before[1])


def test_blocks_fit_zero_where_no_token_has_a_chosen_pair():
    Z = np.array([[[0.0, 0.0], [1.5, 0.0]]])
    features = la.Features(2, pairs=[(0, 1), (1, 1)])
    fit = la.fit(Z, Z[:, -1], features=features, solver="blocks", heads=None)
    assert not fit.coefficients.any()
    assert fit.certificate.verdict == "not identifiable"
