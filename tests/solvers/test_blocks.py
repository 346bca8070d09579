"""A fit in blocks of queries that never occur together: what it finds and proves."""

from functools import partial

import numpy as np
import pytest
from conftest import targets_for
from hypothesis import given
from hypothesis import strategies as st
from oracles.exact import Exact
from oracles.grouped_data import POSITIONS, Expected, agrees, gaussian, one_hot, two_groups

import linattn_fast as la
from linattn_fast.certificate import blocks as block_certificate
from linattn_fast.data.tokens import as_tokens
from linattn_fast.solvers.blocks.least_squares import factorise_block, solve_block

fit_in_blocks = partial(la.fit, heads=None, solver="blocks")


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", [one_hot, two_groups, gaussian])
@pytest.mark.parametrize("N", [12, 300])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("chosen", [False, True])
def test_blocks_agree_with_numpy(rng, positions, kind, N, alpha, chosen):
    d = 4
    features = la.Features(d, [(0, 0), (0, 2), (1, 1), (2, 3), (3, 3)], [0, 1, 3])
    features = features if chosen else la.Features(d)
    Z = kind(rng, (N, 5), d)
    y = targets_for(rng, Z, positions)
    weights = rng.uniform(0.5, 2.0, N)
    weights[::4] = 0.0
    settings = {"positions": positions, "alpha": alpha, "features": features}
    fit = fit_in_blocks(Z, y, sample_weight=weights, **settings)
    assert fit.info.solver == "blocks"
    assert fit.info.n_samples == as_tokens(Z).n_samples(positions)
    expected = Expected.of(list(Z), positions, features, weights)
    new = np.concatenate([Z[:8], kind(rng, (8, 5), d), gaussian(rng, (4, 5), d)])
    agrees(fit, expected, y, positions, alpha, new)


@given(
    d=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=25),
    density=st.sampled_from([0.15, 0.4, 0.8]),
    positions=st.sampled_from(POSITIONS),
    alpha=st.sampled_from([0.0, 0.5]),
    flat=st.booleans(),
    seed=st.integers(0, 9999),
)
def test_any_zeros_of_ragged_tokens_give_what_numpy_gives(
    d, lengths, density, positions, alpha, flat, seed
):
    """Chains of groups, queries that are zero, coordinates that never occur, few samples."""
    rng = np.random.default_rng(seed)
    sequences = [
        rng.integers(-2, 3, (n, d)) * (rng.random((n, d)) < density) * 1.0 for n in lengths
    ]
    y = [rng.standard_normal((1 if positions == "last" else n, 1)) for n in lengths]
    rows = np.concatenate(y)
    weights = rng.integers(1, 4, len(lengths)).astype(float)
    given_y = rows if positions == "last" or flat else y
    offsets = np.concatenate([[0], np.cumsum(lengths)]) if flat else None
    Z = np.concatenate(sequences) if flat else sequences
    settings = {"positions": positions, "alpha": alpha, "sample_weight": weights}
    fit = fit_in_blocks(Z, given_y, offsets=offsets, **settings)
    expected = Expected.of(sequences, positions, la.Features(d), weights)
    C = expected.coefficients(rows, alpha)
    np.testing.assert_allclose(fit.coefficients, C, atol=1e-8 * (np.abs(C).max() + 1))
    assert fit.certificate.rank == expected.rank
    leverages = expected.leverages(expected.h)
    assert np.isfinite(leverages).all()  # training data is covered
    ours = fit.certificate.leverage(sequences)
    ours = ours if positions == "last" else np.concatenate(ours)
    np.testing.assert_allclose(ours, leverages, rtol=1e-6, atol=1e-9)
    assert float(expected.w @ ours) == pytest.approx(expected.rank, rel=1e-6)


@pytest.mark.parametrize("solver", ["cholesky", "eigh", "dual", "qr"])
def test_every_solver_finds_the_layer_of_the_blocks(rng, solver):
    Z = two_groups(rng, (300, 5), 4)
    Z[:, 0] = rng.standard_normal((300, 4))  # so that every pair occurs
    y = rng.standard_normal((300, 2))
    blocks = la.fit(Z, y, solver="blocks")
    whole = la.fit(Z, y, solver=solver)
    np.testing.assert_allclose(blocks.coefficients, whole.coefficients, atol=1e-8)
    assert blocks.certificate.verdict == whole.certificate.verdict == "identifiable"
    assert blocks.certificate.lambda_min == pytest.approx(whole.certificate.lambda_min, rel=1e-8)
    assert blocks.certificate.condition == pytest.approx(whole.certificate.condition, rel=1e-8)
    assert "2 blocks of queries that never occur together" in blocks.info.reason
    assert "in 2 blocks" in blocks.certificate.evidence
    assert blocks.heads.distance(whole.heads) < 1e-6


# ----------------------------------------------------------------------------------- what is proved


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_lower_bound_holds_in_exact_arithmetic(rng, positions, weighted):
    """As large as it may be: lambda_min itself is not exceeded, and 0.98 of it is proved."""
    groups = rng.random((40, 4)) < 0.5  # of each token, which queries if positions are not "last"
    Z = rng.standard_normal((40, 4, 3))
    Z[..., 2] *= groups
    Z[..., :2] *= ~groups[..., None]
    weights = rng.integers(1, 5, len(Z)) / 4 if weighted else np.ones(len(Z))
    features = la.Features(3, [(0, 0), (0, 1), (1, 1), (2, 2)])  # pairs that ever occur
    settings = {"positions": positions, "sample_weight": weights, "features": features}
    fit = fit_in_blocks(Z, targets_for(rng, Z, positions), **settings)
    assert "2 blocks" in fit.info.reason
    certificate = fit.certificate
    exact = Exact.of(Z, positions, weights, features)
    assert certificate.verdict == "identifiable"
    assert certificate.lower_bound > 0.98 * certificate.lambda_min
    assert exact.exceeds(certificate.lower_bound)
    assert not exact.exceeds(1.001 * certificate.lambda_min)


def test_a_proof_that_needs_too_much_memory_is_not_made(rng, monkeypatch):
    Z = rng.standard_normal((200, 4, 3))
    Z[::2, -1, 2] = 0.0
    Z[1::2, -1, :2] = 0.0
    monkeypatch.setattr(block_certificate, "compact_bytes", lambda *_: 1 << 60)
    certificate = fit_in_blocks(Z, np.ones(200)).certificate
    assert certificate.verdict == "undecided"
    assert certificate.lower_bound == 0.0
    assert "memory" in certificate.evidence


def test_a_singular_value_that_a_gram_hides_is_found(rng):
    """1e-9 of the largest: its square is rounding in H'H, but the column counts as a feature."""
    H = rng.standard_normal((60, 5))
    H[:, 4] = H[:, 0] + H[:, 1] + 1e-9 * rng.standard_normal(60)
    assert factorise_block(H).rank == 5
    H[:, 4] = H[:, 0] + H[:, 1]
    factor = factorise_block(H)
    assert (factor.rank, factor.name) == (4, "eigh")
    Y = rng.standard_normal((60, 3))
    expected = np.linalg.lstsq(H, Y, rcond=1e-12)[0].T
    np.testing.assert_allclose(solve_block(H, Y, 0.0).coefficients, expected, atol=1e-12)


def test_fewer_rows_than_columns_give_the_least_norm(rng):
    H = rng.standard_normal((6, 20))
    Y = rng.standard_normal((6, 3))
    for rank in (6, 5):
        solution = solve_block(H, Y, 0.0)
        factor = solution.solved
        assert (factor.rank, factor.name) == (rank, "eigh")
        sigma = np.linalg.svd(H)[1][:rank]
        assert factor.condition == pytest.approx((sigma[0] / sigma[-1]) ** 2)
        expected = np.linalg.lstsq(H, Y, rcond=1e-12)[0].T
        np.testing.assert_allclose(solution.coefficients, expected, atol=1e-12)
        np.testing.assert_allclose(factor.vectors.T @ factor.vectors, np.eye(rank), atol=1e-12)
        np.testing.assert_allclose(H @ factor.vectors @ factor.vectors.T, H, atol=1e-12)
        H[5], Y[5] = H[4], Y[4]
    H[5] = H[4] + 1e-9 * rng.standard_normal(20)
    assert (factorise_block(H).rank, factorise_block(H).name) == (6, "qr")


def test_features_of_very_different_scales_are_told_from_zero(rng):
    scales = np.array([1e-8, 1.0, 1e8, 1.0, 1e-8])
    H = rng.standard_normal((60, 5))
    H[:, 3] = H[:, 0] + H[:, 1]
    factor = factorise_block(H * scales)
    assert (factor.rank, factor.name) == (4, "qr")


# --------------------------------------------------------------------------- what is not determined


def test_the_sparsest_directions_come_first_whichever_block_they_are_of(rng):
    Z = np.zeros((40, 3, 4))
    Z[:, :2, 2:] = rng.standard_normal((40, 2, 2))
    Z[:3, 2, 0] = Z[3:, 2, 1] = 1.0  # 3 samples for the 4 features of the first query
    Z[3:, :2, 3] = Z[3:, :2, 2]  # x2 = x3 where the second one asks
    features = la.Features.active(Z)
    certificate = fit_in_blocks(Z, np.ones(40), features=features).certificate
    directions = certificate.null_space(certificate.dimension - certificate.rank)
    assert (directions != 0).sum(axis=1).tolist() == [1, 1, 2, 2, 4]


def test_a_block_with_few_samples_is_undetermined_by_counting(rng):
    Z = rng.standard_normal((40, 5, 3))
    Z[:4, -1, 1:] = Z[4:, -1, 0] = 0.0  # 4 samples for the 6 features of the first query
    certificate = fit_in_blocks(Z, np.ones(40)).certificate
    assert (certificate.verdict, certificate.rank) == ("not identifiable", 4 + 12)
    assert certificate.evidence.endswith(
        "that of queries 0: proved by counting: 4 samples are fewer than the 6 features, "
        "so the rank is at most 4"
    )


def test_the_tolerance_is_that_of_the_block_that_is_known_worst(rng):
    Z = np.zeros((60, 3, 4))
    Z[:, :2, 2:] = rng.standard_normal((60, 2, 2))
    Z[:30, 2, 0] = Z[30:, 2, 1] = 1.0
    Z[:30, :2, 3] = Z[:30, :2, 2] + 1e-4 * Z[:30, :2, 3]  # nearly the same for the first query
    coverage = fit_in_blocks(Z, np.ones(60)).certificate.determined.coverage
    tolerances = [block.coverage.tolerance for block in coverage.blocks]
    assert len(tolerances) == 2
    assert max(tolerances) > 10 * min(tolerances)
    assert coverage.tolerance == max(tolerances)


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")
def test_the_null_space_has_unseen_features_first_and_then_the_sparsest(rng):
    Z = np.zeros((200, 6, 6))  # two attributes, each one-hot; the last token has a third
    Z[..., :2], Z[..., 2:4] = one_hot(rng, (200, 6), 2), one_hot(rng, (200, 6), 2)
    Z[:, -1] = one_hot(rng, 200, 6) * [0, 0, 0, 0, 1, 1]
    fit = fit_in_blocks(Z, rng.standard_normal(200))
    assert "2 blocks" in fit.info.reason
    certificate = fit.certificate
    h = la.cubic_features(Z)
    unseen = int((~h.any(axis=0)).sum())
    p = h.shape[1]
    directions = certificate.null_space(p)
    assert directions.shape == (p, p)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)
    assert np.linalg.matrix_rank(directions) == p
    nothing = p - certificate.rank
    assert nothing > unseen > 0  # S_00 + S_11 = S_22 + S_33
    np.testing.assert_allclose(h @ directions[:nothing].T, 0, atol=1e-9)
    assert ((directions[:unseen] != 0).sum(axis=1) == 1).all()
    assert (np.abs(h @ directions[nothing:].T).max(axis=0) > 1e-3).all()
    assert certificate.explain(1) == ["tokens never vary along x0*x0 with query x0"]


def test_the_weakest_directions_are_those_of_the_whole(rng):
    Z = rng.standard_normal((400, 5, 3))
    Z[::2, -1, 2] = 0.0
    Z[1::2, -1, :2] = 0.0
    Z[:, :, 1] *= 1e-3
    y = rng.standard_normal(400)
    ours = fit_in_blocks(Z, y).certificate.null_space(3)
    theirs = la.fit(Z, y, heads=None, solver="cholesky").certificate.null_space(3)
    for mine in ours:
        assert np.abs(theirs @ mine).max() > 0.99


def test_queries_that_no_sample_had_are_not_covered(rng):
    Z = one_hot(rng, (100, 4), 4)
    Z[:, -1] = np.eye(4)[rng.integers(0, 2, 100)]
    y = rng.standard_normal(100)
    new = Z[:4].copy()
    new[0, -1] = [0, 0, 1, 0]  # never queried
    new[1, -1] = 0.0  # queries nothing: y = 0 whatever the layer
    new[2, -1] = [1, 1, 0, 0]  # queries that never met
    new[3, 0] = [0, 0, 1, 1]  # a pair that never occurred
    squares = la.Features(4, [(0, 0), (1, 1), (2, 2), (3, 3)])
    for features, covered in ((None, [0, 1, 0, 0]), (squares, [0, 1, 1, 1])):
        fit = fit_in_blocks(Z, y, features=features)
        assert fit.info.reason.startswith("asked for; 2 blocks")
        certificate = fit.certificate
        np.testing.assert_array_equal(certificate.covers(new), covered)
        leverage = certificate.leverage(new)
        np.testing.assert_array_equal(np.isfinite(leverage), covered)
        assert leverage[1] == 0.0
        expected = Expected.of(list(Z), "last", fit.features)
        np.testing.assert_allclose(leverage, expected.leverages(fit.features.of(as_tokens(new))))


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")
def test_samples_without_weight_or_query_have_no_block(rng):
    Z = one_hot(rng, (60, 4), 3)
    y = rng.standard_normal(60)
    weights = np.where(Z[:, -1, 2] > 0, 0.0, 1.0)
    Z[::5, -1] = 0.0
    fit = fit_in_blocks(Z, y, sample_weight=weights)
    assert "2 blocks" in fit.info.reason
    assert not fit.coefficients.reshape(6, 3)[:, 2].any()
    expected = Expected.of(list(Z), "last", la.Features(3), weights)
    C = expected.coefficients(y[:, None], 0.0)
    np.testing.assert_allclose(fit.coefficients, C, atol=1e-10)
    error = expected.w @ (y - expected.h @ C[0]) ** 2
    assert fit.info.mean_squared_error == pytest.approx(error)


def test_a_block_without_a_feature_keeps_its_error(rng):
    Z = one_hot(rng, (40, 3), 3)
    Z[:, -1] = np.eye(3)[np.arange(40) % 2]
    Z[1::2, :-1] = [0, 0, 1]  # with query 1, coordinate 0 never occurs
    features = la.Features(3, [(0, 0)], [0, 1])
    y = rng.standard_normal(40)
    fit = fit_in_blocks(Z, y, features=features)
    expected = Expected.of(list(Z), "last", features)
    agrees(fit, expected, y[:, None], "last", 0.0, Z)
    certificate = la.certify(Z, features=features)
    assert (certificate.rank, certificate.verdict) == (1, "not identifiable")


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")
def test_queries_that_are_all_zero_leave_nothing_to_learn(rng):
    Z = one_hot(rng, (20, 4), 3)
    Z[:, -1] = 0.0
    y = rng.standard_normal(20)
    fit = fit_in_blocks(Z, y)
    assert not fit.coefficients.any()
    assert fit.info.mean_squared_error == pytest.approx((y**2).mean())
    assert fit.certificate.rank == 0
    assert fit.certificate.verdict == "not identifiable"
    assert fit.certificate.covers(Z).all()
    assert not fit.certificate.covers(one_hot(rng, (3, 4), 3)).any()
