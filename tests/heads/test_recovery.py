"""As few heads as reproduce the coefficients, their normal form, and how they are compared."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from conftest import plant, relative
from hypothesis import given, settings
from hypothesis import strategies as st

import linattn_fast as la
from linattn_fast.features.cubic import head_coefficients
from linattn_fast.heads import bilinear, pending, ranks, recovery
from linattn_fast.heads import search as head_search

PLANTED = [
    (4, 1), (4, 2), (4, 3), (4, 4), (5, 6), (8, 1), (8, 3), (8, 7), (8, 8), (12, 5), (12, 8),
    (16, 1), (16, 8),
]  # fmt: skip


# --------------------------------------------------------------------------------- minimal recovery


@pytest.mark.parametrize(("d", "H"), PLANTED)
def test_the_planted_number_of_heads_is_found(rng, d, H):
    C = plant(rng, d, H, d).coefficients()
    heads = la.recover_heads(C, d)
    assert len(heads) == H
    assert relative(heads.coefficients(), C) <= 1e-13
    assert heads.recovery.method == "minimal"
    assert heads.recovery.residual == pytest.approx(
        relative(heads.coefficients(), C), rel=0.5, abs=1e-15
    )


@pytest.mark.parametrize(
    ("d", "d_out", "H"), [(6, 1, 1), (8, 1, 3), (8, 1, 5), (6, 2, 3), (4, 9, 3)]
)
def test_fewer_or_more_outputs_than_coordinates(rng, d, d_out, H):
    C = plant(rng, d, H, d_out).coefficients()
    heads = la.recover_heads(C, d)
    assert len(heads) == H
    assert relative(heads.coefficients(), C) <= 1e-13


def test_one_head_fewer_is_shown_to_be_too_few(rng):
    C = plant(rng, 6, 3, 6).coefficients()
    report = la.recover_heads(C, 6).recovery
    assert report.at_least == 3
    fewer = la.recover_heads(C, 6, max_heads=2)
    assert len(fewer) == 2
    assert (
        0 < report.fewer_leave <= relative(fewer.coefficients(), C)
    )  # a lower bound of what two heads leave


def test_numbers_that_were_tried_are_reported(rng):
    C = plant(rng, 6, 8, 6).coefficients()  # more heads than a rank of 6 can show
    heads = la.recover_heads(C, 6)
    assert len(heads) == 8
    tried = dict(heads.recovery.tried)
    assert tried[7] > 1e-3
    assert heads.recovery.at_least == 6
    assert heads.recovery.reason == "fewer were tried"


def test_the_lower_bound_holds_for_any_heads(rng):
    for d, d_out, H in [(5, 1, 2), (6, 2, 3), (4, 4, 3), (3, 7, 2), (7, 3, 2)]:
        C = plant(rng, d, H, d_out).coefficients()
        known = ranks.Ranks(C, d, 1e-9)
        assert 1 <= known.least_heads(1e-9 * np.linalg.norm(C)) <= H
        assert known.residual_of_fewer(H) <= 1e-12 * np.linalg.norm(C)


@settings(max_examples=25)
@given(
    d=st.integers(1, 5),
    d_out=st.integers(1, 6),
    H=st.integers(1, 3),
    rank=st.integers(1, 3),
    exponent=st.sampled_from([-200, -9, 0, 7, 100]),
    seed=st.integers(0, 999),
)
def test_coefficients_of_a_few_heads_of_any_rank_are_reproduced(d, d_out, H, rank, exponent, seed):
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((H, d_out, rank)) @ rng.standard_normal((H, rank, d))
    Q = rng.standard_normal((H, d, rank)) @ rng.standard_normal((H, rank, d))
    C = 10.0**exponent * la.Heads(V, Q).coefficients()
    heads = la.recover_heads(C, d)
    unit = np.abs(C).max()
    found = heads.coefficients() / unit
    assert np.linalg.norm(found - C / unit) <= 1.1e-9 * np.linalg.norm(C / unit)
    assert 1 <= heads.recovery.at_least <= min(H, len(heads))  # ranks never promise too much
    assert len(heads) <= len(la.recover_heads(C, d, "svd"))


def test_heads_that_share_a_factor_are_merged(rng):
    V, Q = rng.standard_normal((4, 6, 6)), rng.standard_normal((4, 6, 6))
    shared_V = la.Heads(np.repeat(V[:2], 2, axis=0), Q).coefficients()
    shared_Q = la.Heads(V, np.repeat(Q[:2], 2, axis=0)).coefficients()
    for C in (shared_V, shared_Q):
        heads = la.recover_heads(C, 6)
        assert len(heads) == 2
        assert relative(heads.coefficients(), C) <= 1e-13


def test_the_planted_number_is_found_for_nearly_every_layer():
    """A search may miss; what it must not do is miss often."""
    missed = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        d, d_out, H = rng.integers(4, 9), rng.integers(2, 9), rng.integers(1, 4)
        C = plant(rng, d, H, d_out).coefficients()
        missed += len(la.recover_heads(C, d)) > H
    assert missed == 0


def test_heads_of_rank_one_are_found(rng):
    V = rng.standard_normal((3, 6, 1)) * rng.standard_normal((3, 1, 6))
    Q = rng.standard_normal((3, 6, 1)) * rng.standard_normal((3, 1, 6))
    for heads in (la.Heads(V, Q), la.Heads(V, rng.standard_normal((3, 6, 6)))):
        found = la.recover_heads(heads.coefficients(), 6)
        assert len(found) == 3
        assert relative(found.coefficients(), heads.coefficients()) <= 1e-13


def test_one_coordinate_needs_one_head(rng):
    C = plant(rng, 1, 3, 4).coefficients()
    heads = la.recover_heads(C, 1)
    assert len(heads) == 1
    assert relative(heads.coefficients(), C) <= 1e-15


def test_zero_coefficients_have_one_zero_head():
    heads = la.recover_heads(np.zeros((2, 18)), 3)
    assert len(heads) == 1
    assert not heads.V.any()
    assert not heads.Q.any()
    assert heads.recovery.reason == "all coefficients are zero"


def test_recovery_repeats_bit_by_bit(rng):
    for d, H, d_out in [(6, 3, 6), (6, 6, 6), (6, 4, 1)]:
        C = plant(rng, d, H, d_out).coefficients()
        first, second = la.recover_heads(C, d), la.recover_heads(C.copy(), d)
        assert first.V.tobytes() == second.V.tobytes()
        assert first.Q.tobytes() == second.Q.tobytes()
        assert first.recovery == second.recovery


def test_noise_falls_back_to_the_svd_with_a_reason(rng, monkeypatch):
    C = rng.standard_normal((8, 288))
    monkeypatch.setattr(recovery, "FLOPS", 1e8)
    heads = la.recover_heads(C, 8)
    assert len(heads) == 64
    assert heads.recovery.method == "svd"
    assert heads.recovery.reason.startswith("no small number was found in 1e+08 flops; ")
    assert relative(heads.coefficients(), C) <= 1e-13


@pytest.mark.parametrize(("d", "d_out", "count"), [(12, 1, 12), (9, 2, 18), (9, 9, 81)])
def test_coefficients_that_are_said_to_have_noise_are_not_searched(
    rng, monkeypatch, d, d_out, count
):
    """By the rule that heads of a fit follow, which knows its noise."""
    monkeypatch.setattr(head_search.Search, "attempt", None)
    C = rng.standard_normal((d_out, d * d * (d + 1) // 2))
    heads = la.recover_heads(C, d, noise=1e-3)
    assert len(heads) == count
    assert heads.recovery.method == "svd"
    assert "because the coefficients have noise of 1.0e-03 of their size" in heads.recovery.reason


def test_noise_that_the_tolerance_allows_for_is_no_reason_not_to_search(rng):
    C = hard(4, 5, 4, 0)  # more heads than ranks can show
    assert len(la.recover_heads(C, 4, noise=1e-8)) == 5
    assert len(la.recover_heads(C, 4, noise=1e-5, tol=1e-6)) == 5


def test_heads_that_ranks_give_are_found_whatever_the_noise(rng):
    C = plant(rng, 6, 2, 3).coefficients()
    heads = la.recover_heads(C, 6, noise=1.0)
    assert len(heads) == 2
    assert heads.recovery.reason == "no fewer are possible"


def test_a_search_shows_its_progress(rng):
    seen = []
    la.recover_heads(hard(4, 5, 4, 0), 4, progress=lambda *done: seen.append(done))
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1] == (100, 100)


def test_few_heads_in_noise_are_named(rng):
    C = plant(rng, 8, 3, 8).coefficients()
    noise = rng.standard_normal(C.shape)
    C = C + 1e-3 * np.linalg.norm(C) / np.linalg.norm(noise) * noise
    heads = la.recover_heads(C, 8)
    assert heads.recovery.method == "svd"
    assert "but 3 heads leave" in heads.recovery.reason
    assert 1e-4 < dict(heads.recovery.tried)[3] < 1e-3  # some of the noise is fitted
    assert len(la.recover_heads(C, 8, tol=1e-3)) == 3
    assert relative(la.recover_heads(C, 8, max_heads=3).coefficients(), C) < 1e-3


def test_a_search_ends_with_its_budget(rng, monkeypatch):
    spent = []

    class Counted(bilinear.Budget):
        def __init__(self, *given):
            super().__init__(*given)
            spent.append(self)

    monkeypatch.setattr(recovery, "FLOPS", 5e8)
    monkeypatch.setattr(recovery, "Budget", Counted)
    la.recover_heads(rng.standard_normal((6, 126)), 6)
    one_step = 200 * 1e6  # inner products of a single step at this size, at most
    assert -one_step < spent[0].left <= 0


@pytest.mark.parametrize("needed", [1, 2, 5, 9, 14])
@pytest.mark.parametrize("power", [0.5, 1, 3])
def test_a_search_ends_at_a_number_whose_predecessor_failed(rng, monkeypatch, needed, power):
    """Whether the errors fall convexly or not."""

    def attempt(search, H):
        error = max(0.0, needed - H) ** power
        search.found[H] = bilinear.Descent(np.zeros(0), np.zeros(0), error)
        return error == 0

    monkeypatch.setattr(head_search.Search, "attempt", attempt)
    monkeypatch.setattr(head_search.Search, "_more_starts", attempt)
    known = ranks.Ranks(plant(rng, 4, 1, 4).coefficients(), 4, 1e-9)
    search = head_search.Search(known, bilinear.Budget(1e9))
    assert search.smallest(15) == needed
    assert needed == 1 or needed - 1 in search.found
    failing = head_search.Search(known, bilinear.Budget(1e9))
    assert failing.smallest(needed - 1) is None


def hard(d, H, d_out, seed):
    """Coefficients of a planted layer that does not depend on the other tests."""
    return plant(np.random.default_rng([d, H, d_out, seed]), d, H, d_out).coefficients()


@pytest.mark.parametrize(
    ("d", "H", "d_out", "seed"),
    [
        (4, 5, 4, 0), (4, 6, 4, 0), (4, 6, 4, 2), (4, 6, 4, 7), (4, 7, 4, 0), (5, 7, 5, 0),
        (5, 8, 5, 0), (5, 8, 5, 1), (5, 8, 5, 2), (6, 8, 6, 0), (7, 8, 7, 0), (4, 4, 2, 3),
        (6, 6, 2, 2), (4, 3, 1, 3), (7, 6, 1, 2), (6, 8, 3, 0),
    ],
)  # fmt: skip
def test_more_heads_than_ranks_can_show_are_found(d, H, d_out, seed):
    """Many of these have nearly as many free entries as there are coefficients."""
    C = hard(d, H, d_out, seed)
    heads = la.recover_heads(C, d)
    assert len(heads) == H
    assert heads.recovery.at_least <= H
    assert relative(heads.coefficients(), C) <= 1e-13
    tried = dict(heads.recovery.tried)
    assert heads.recovery.at_least == H or tried[H - 1] > 1e-4


def test_arbitrary_coefficients_have_as_many_heads_as_counting_says(rng):
    """At d = 4, eight planted heads are no better than arbitrary coefficients: seven do."""
    assert head_search.heads_by_counting(4, 4) == 7
    for C in (hard(4, 8, 4, 0), rng.standard_normal((4, 40))):
        heads = la.recover_heads(C, 4)
        assert len(heads) == 7
        assert relative(heads.coefficients(), C) <= 1e-13


@pytest.mark.parametrize(("d", "d_out"), [(3, 1), (4, 1), (3, 2), (4, 2), (3, 3), (4, 4), (3, 5)])
def test_free_entries_are_the_rank_of_the_derivative(rng, d, d_out):
    """Of the coefficients by the entries of V and Q, at a general point."""
    for H in range(1, head_search.heads_by_counting(d, d_out) + 1):
        V, Q = plant(rng, d, H, d_out)[:].V, plant(rng, d, H, d_out)[:].Q
        columns = [la.Heads(E, Q).coefficients() for E in np.eye(V.size).reshape(-1, *V.shape)]
        columns += [la.Heads(V, E).coefficients() for E in np.eye(Q.size).reshape(-1, *Q.shape)]
        rank = np.linalg.matrix_rank(np.array([C.ravel() for C in columns]))
        assert rank == min(head_search.free_entries(H, d, d_out), columns[0].size)


def test_one_head_fewer_is_tried_from_more_starts(monkeypatch):
    """Six heads at d = 4, which the first starts miss."""
    C = hard(4, 6, 4, 7)
    monkeypatch.setattr(head_search.Search, "_more_starts", lambda *_: False)
    assert len(la.recover_heads(C, 4)) > 6
    monkeypatch.undo()
    heads = la.recover_heads(C, 4)
    assert len(heads) == 6
    assert relative(heads.coefficients(), C) <= 1e-13


def test_fewer_heads_than_the_svd_has_are_tried_from_more_starts(monkeypatch):
    """Three heads of one output at d = 4, where the SVD has four."""
    C = hard(4, 3, 1, 3)
    monkeypatch.setattr(head_search.Search, "fewer_than", lambda *_: None)
    assert len(la.recover_heads(C, 4)) == 4
    monkeypatch.undo()
    assert len(la.recover_heads(C, 4)) == 3


def wishes(monkeypatch):
    """What is wanted of every search from here on."""
    seen = []
    original = pending.heads_of

    def watched(C, d, wanted, report):
        seen.append(wanted)
        return original(C, d, wanted, report)

    monkeypatch.setattr(pending, "heads_of", watched)
    return seen


def test_only_targets_that_a_layer_may_have_made_start_a_long_search(rng, monkeypatch):
    seen = wishes(monkeypatch)
    truth, Z = plant(rng, 3, 1, 1), rng.standard_normal((100, 5, 3))
    noise, wide = rng.standard_normal((100, 1)), rng.standard_normal((60, 5, 9))
    fits = [
        la.fit(Z, truth(Z)),
        la.fit(Z, truth(Z), alpha=1e-12),
        la.fit(wide, plant(rng, 9, 2, 2)(wide)),  # fewer samples than the 405 features
        la.fit(Z, truth(Z) + 1e-4 * noise),
        la.fit(Z, truth(Z), alpha=0.1),
    ]
    assert all(fit.heads is not None for fit in fits)
    doubtful = recovery.FLOPS_IF_DOUBTFUL
    assert [each.flops for each in seen] == [None, *[doubtful] * 4]
    assert [bool(each.noise) for each in seen] == [False, False, False, True, True]


def test_neither_search_nor_svd_is_needed_where_ranks_give_the_heads(rng, monkeypatch):
    class Reached(Exception):
        pass

    def fail(*_):
        raise Reached

    monkeypatch.setattr(recovery, "Search", fail)
    monkeypatch.setattr(head_search, "svd_factors", fail)
    assert len(la.recover_heads(plant(rng, 5, 2, 5).coefficients(), 5)) == 2
    with pytest.raises(Reached):  # has no message; more heads than ranks can show are searched for
        la.recover_heads(plant(rng, 4, 6, 4).coefficients(), 4)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_search_goes_on_from_what_ranks_gave(monkeypatch, stopped):
    """The ends of least squares from these starts are handed on, and none is computed twice."""
    # Six heads at d = 4 and d_out = 9 leave M(x) with rank 4, less than d_out: spans that do not do
    C = hard(4, 6, 9, 0)
    starts = []
    original = ranks.Ranks.spans

    def watched(self):
        for start in original(self):
            starts.append(start)
            yield start

    monkeypatch.setattr(ranks.Ranks, "spans", watched)
    if stopped:
        monkeypatch.setattr(recovery, "FLOPS", 1.0)
    heads = la.recover_heads(C, 4)
    assert len(starts) == 1
    assert stopped or 4 in dict(heads.recovery.tried)


def test_arbitrary_coefficients_of_one_output_need_as_many_heads_as_the_svd_has(rng):
    heads = la.recover_heads(rng.standard_normal((1, 40)), 4)
    assert len(heads) == 4
    assert heads.recovery.residual <= 1e-13


def test_the_svd_stays_possible(rng):
    C = plant(rng, 4, 2, 4).coefficients()
    heads = la.recover_heads(C, 4, "svd")
    assert len(heads) == 16
    assert heads.recovery.method == "svd"
    assert heads.recovery.reason == "asked for"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "magic"}, ValueError, "^method: must be one of minimal, svd, got 'magic'"),
        ({"method": None}, ValueError, "^method"),
        ({"max_heads": 0}, ValueError, "^max_heads: must be at least 1"),
        ({"max_heads": 2.5}, TypeError, "^max_heads: a whole number"),
        ({"tol": 1.0}, ValueError, "^tol: a number from 0"),
        ({"tol": float("nan")}, ValueError, "^tol"),
        ({"tol": True}, ValueError, "^tol"),
        ({"tol": "1"}, ValueError, "^tol"),
        ({"noise": -1e-9}, ValueError, "^noise: a number of at least 0"),
        ({"noise": float("nan")}, ValueError, "^noise"),
        ({"noise": None}, ValueError, "^noise"),
        ({"progress": "bar"}, TypeError, "^progress: True, False or a function"),
    ],
)
def test_wrong_arguments_are_named(changes, error, message):
    with pytest.raises(error, match=message):
        la.recover_heads(np.ones((1, 6)), 2, **changes)


@pytest.mark.parametrize("method", ["minimal", "svd"])
@pytest.mark.parametrize("H", [0, 1, 2, 6])
def test_recovered_heads_are_as_read_only_and_contiguous_as_given_ones(rng, method, H):
    """They are made without the checks that other heads go through."""
    C = plant(rng, 4, H, 3).coefficients() if H else np.zeros((3, 40))
    heads = la.recover_heads(C, 4, method)
    for array in (heads.V, heads.Q):
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    assert head_coefficients(heads.V, heads.Q).tobytes() == heads.coefficients().tobytes()
    again = la.Heads(heads.V, heads.Q)  # passes every check
    assert again.V.tobytes() == heads.V.tobytes()


def test_the_report_is_read_only_and_kept_by_copies(rng):
    heads = la.recover_heads(plant(rng, 4, 2, 4).coefficients(), 4)
    assert pickle.loads(pickle.dumps(heads)).recovery == heads.recovery
    with pytest.raises(AttributeError, match="recovery"):
        heads.recovery = None
    with pytest.raises(FrozenInstanceError, match="residual"):
        heads.recovery.residual = 0
    assert la.Heads(heads.V, heads.Q).recovery is None
    assert heads[:1].recovery is None
    with pytest.raises(TypeError, match="^recovery"):
        la.Heads(heads.V, heads.Q, "by hand")


# ------------------------------------------------------------------------------------ in the metric


@pytest.mark.parametrize("weighted", [False, True])
def test_the_derivative_is_that_of_the_coefficients(rng, weighted):
    heads, d = plant(rng, 3, 2, 4), 3
    A = rng.standard_normal((18, 18))
    metric = bilinear.Metric.of(A @ A.T, d) if weighted else bilinear.Metric.identity(d)
    at = bilinear._InMetric(heads.V, heads.Q, metric, rng.standard_normal((4, 18)))
    x, G = rng.standard_normal(heads.V.size + heads.Q.size), rng.standard_normal((4, 18))
    dV, dQ = at.split(x)
    step = 1e-6
    moved = [la.Heads(heads.V + s * dV, heads.Q + s * dQ).coefficients() for s in (step, -step)]
    np.testing.assert_allclose(at.forward(x), (moved[0] - moved[1]) / (2 * step), atol=1e-8)
    assert np.vdot(at.forward(x), G) == pytest.approx(x @ at.adjoint(G))
    np.testing.assert_allclose(at.precondition(at.damping(x)), x, atol=1e-8)
    n = heads.V.size  # the damping matrix is the diagonal block of V, in every metric
    only_V = np.concatenate([x[:n], np.zeros(len(x) - n)])
    np.testing.assert_allclose(at.damping(only_V)[:n], at.normal(only_V)[:n], rtol=1e-9)
    if not weighted:
        only_Q = np.concatenate([np.zeros(n), x[n:]])
        np.testing.assert_allclose(at.damping(only_Q)[n:], at.normal(only_Q)[n:], rtol=1e-9)


def test_half_steps_are_least_squares(rng):
    V, Q = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 3))
    T = rng.standard_normal((3, 18))
    metric = bilinear.Metric.identity(3)
    columns = [la.Heads(V, E).coefficients().ravel() for E in np.eye(18).reshape(18, 2, 3, 3)]
    expected = np.linalg.lstsq(np.array(columns).T, T.ravel(), rcond=None)[0]
    found = bilinear.best_queries(V, T, metric)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-8, atol=1e-10)
    columns = [la.Heads(E, Q).coefficients().ravel() for E in np.eye(18).reshape(18, 2, 3, 3)]
    expected = np.linalg.lstsq(np.array(columns).T, T.ravel(), rcond=None)[0]
    found = bilinear.best_values(Q, T, metric)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------------------------- bounds against rounding


@pytest.mark.parametrize("tol", [0.0, 1e-17, 1e-16, 1e-15, 1e-12, 1e-6, 1e-1])
@pytest.mark.parametrize("noise", [0.0, 1e-16, 1e-14, 1e-6])
@pytest.mark.parametrize("kind", ["general", "whole numbers", "rank one"])
def test_ranks_promise_no_more_than_the_planted_heads_whatever_the_tolerance(
    kind, noise, tol, monkeypatch
):
    monkeypatch.setattr(recovery, "FLOPS", 1e7)  # bounds are the same however long the search
    for seed, (d, d_out, H) in enumerate([(5, 1, 1), (3, 4, 2), (4, 3, 3), (2, 2, 1), (6, 5, 2)]):
        rng = np.random.default_rng(seed)
        V, Q = rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d))
        if kind == "whole numbers":
            V, Q = np.rint(2 * V), np.rint(2 * Q)
        if kind == "rank one":
            V, Q = V[:, :, :1] * V[:, :1], Q[:, :, :1] * Q[:, :1]
        exact = la.Heads(V, Q).coefficients()
        E = rng.standard_normal(exact.shape)
        C = exact + noise * np.linalg.norm(exact) / np.linalg.norm(E) * E
        left = relative(exact, C) + 1e-15  # what the planted heads leave, and their rounding
        heads = la.recover_heads(C, d, tol=tol)
        report = heads.recovery
        assert report.tolerance >= tol
        assert report.at_least <= len(heads)
        if left <= report.tolerance:
            assert report.at_least <= H
        if len(heads) > H:
            assert report.fewer_leave <= left
        assert ranks.Ranks(C, d, tol).residual_of_fewer(H) <= left * np.linalg.norm(C)


def test_a_search_that_fell_back_on_the_svd_says_so_in_its_first_word(rng, monkeypatch):
    monkeypatch.setattr(recovery, "FLOPS", 1e8)
    heads = la.recover_heads(rng.standard_normal((1, 40)), 4)
    assert len(heads) == 4
    assert str(heads.recovery).startswith("svd, ")
    C = plant(rng, 6, 2, 6).coefficients()
    C = C + 1e-3 * rng.standard_normal(C.shape)
    report = la.recover_heads(C, 6).recovery
    assert str(report).startswith("svd, ")
    assert "no small number was found" in report.reason


def test_too_few_heads_are_called_impossible_only_where_ranks_say_so(rng):
    C = plant(rng, 6, 8, 6).coefficients()
    assert "fewer than the 6 that are needed" in la.recover_heads(C, 6, max_heads=5).recovery.reason
    assert "were found to reproduce" in la.recover_heads(C, 6, max_heads=7).recovery.reason
