"""A fit in blocks of queries that never occur together, from the samples of each block."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import EPS
from exact import exact_gram, exceeds
from hypothesis import given
from hypothesis import strategies as st

import linattn_fast as la
from linattn_fast import block_certificate, block_choice, chosen_layer, prefixes, query_blocks
from linattn_fast.block_solver import factorise_block, solve_block
from linattn_fast.prefixes import Samples
from linattn_fast.tokens import as_tokens

POSITIONS = ["last", "causal", "all"]


@dataclass
class Expected:
    """Everything the slow, obvious way, in numpy, from the features themselves."""

    h: np.ndarray
    """Features of the training samples, (N, p)."""
    w: np.ndarray
    """Weights over W."""

    @classmethod
    def of(cls, sequences, positions, features, weights=None):
        h = features.of(as_tokens(sequences), positions)
        w = np.ones(len(sequences)) if weights is None else np.asarray(weights)
        if positions != "last":
            w = np.repeat(w, [len(z) for z in sequences])
        return cls(h, w / w.sum())

    @property
    def second_moment(self):
        return (self.w[:, None] * self.h).T @ self.h

    def coefficients(self, y, alpha):
        root = np.sqrt(self.w)[:, None]
        if alpha == 0:
            return np.linalg.lstsq(root * self.h, root * y, rcond=1e-11)[0].T
        matrix = self.second_moment + alpha * np.eye(self.h.shape[1])
        return np.linalg.solve(matrix, (self.w[:, None] * self.h).T @ y).T

    @property
    def rank(self):
        return np.linalg.matrix_rank(np.sqrt(self.w)[:, None] * self.h, rtol=1e-11)

    def leverages(self, h):
        """h' Lambda^+ h, infinite outside the range."""
        _, sigma, Vt = np.linalg.svd(np.sqrt(self.w)[:, None] * self.h, full_matrices=False)
        keep = sigma > 1e-11 * sigma[0]
        inside = h @ Vt[keep].T
        left = np.linalg.norm(h - inside @ Vt[keep], axis=1)
        covered = left <= 1e-7 * np.linalg.norm(h, axis=1)
        return np.where(covered, ((inside / sigma[keep]) ** 2).sum(axis=1), np.inf)


def one_hot(rng, shape, d):
    return np.eye(d)[rng.integers(0, d, shape)]


def two_groups(rng, shape, d):
    """Integers whose odd or even coordinates are zero, token by token."""
    Z = rng.integers(-2, 3, (*shape, d)).astype(float)
    odd = rng.random(shape) < 0.5
    Z[..., 1::2] *= odd[..., None]
    Z[..., ::2] *= ~odd[..., None]
    return Z


def gaussian(rng, shape, d):
    """One group."""
    return rng.standard_normal((*shape, d))


def targets(rng, Z, positions, d_out=2):
    return rng.standard_normal((len(Z), d_out) if positions == "last" else (*Z.shape[:2], d_out))


def rows_of(y, positions):
    return np.asarray(y) if positions == "last" else np.concatenate(list(y))


def agrees(fit, expected, y, positions, alpha, asked):
    """Coefficients, error, rank, verdict, coverage and leverage are those of numpy."""
    C = expected.coefficients(rows_of(y, positions), alpha)
    scale = np.abs(C).max() + 1e-300
    np.testing.assert_allclose(fit.coefficients, C, rtol=0, atol=1e-8 * scale)
    rest = rows_of(y, positions) - expected.h @ C.T
    error = float(expected.w @ (rest**2).sum(axis=1))
    assert fit.info.mean_squared_error == pytest.approx(error, rel=1e-8, abs=1e-12)
    target = float(expected.w @ (rows_of(y, positions) ** 2).sum(axis=1))
    assert fit.info.mean_squared_target == pytest.approx(target)
    certificate = fit.certificate
    p = expected.h.shape[1]
    assert certificate.rank == expected.rank
    assert certificate.dimension == p
    if expected.rank < p:
        assert certificate.verdict == "not identifiable"
        assert certificate.lambda_min == certificate.lower_bound == 0.0
    else:
        smallest = np.linalg.eigvalsh(expected.second_moment)[0]
        assert certificate.lambda_min == pytest.approx(smallest, rel=1e-6)
        assert certificate.verdict == "identifiable"
        assert 0 < certificate.lower_bound <= smallest * (1 + 1e-9)
    leverages = expected.leverages(fit.features.of(as_tokens(asked), positions))
    ours = rows_of(certificate.leverage(asked, positions=positions), positions)
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(leverages))
    finite = np.isfinite(leverages)
    np.testing.assert_allclose(ours[finite], leverages[finite], rtol=1e-6, atol=1e-12)
    covered = rows_of(certificate.covers(asked, positions=positions), positions)
    np.testing.assert_array_equal(covered, finite)


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
    y = targets(rng, Z, positions)
    weights = rng.uniform(0.5, 2.0, N)
    weights[::4] = 0.0
    fit = la.fit(
        Z,
        y,
        positions=positions,
        alpha=alpha,
        sample_weight=weights,
        features=features,
        heads=None,
        solver="blocks",
    )
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
    fit = la.fit(
        np.concatenate(sequences) if flat else sequences,
        given_y,
        offsets=offsets,
        positions=positions,
        alpha=alpha,
        sample_weight=weights,
        heads=None,
        solver="blocks",
    )
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
    fit = la.fit(
        Z,
        targets(rng, Z, positions),
        positions=positions,
        sample_weight=weights,
        features=features,
        heads=None,
        solver="blocks",
    )
    assert "2 blocks" in fit.info.reason
    certificate = fit.certificate
    G, unit, W = exact_gram(list(Z), positions, weights)
    where = (features.pair_numbers[:, None] * 3 + np.arange(3)).reshape(-1)
    gram = G[np.ix_(where, where)], unit, W
    assert certificate.verdict == "identifiable"
    assert certificate.lower_bound > 0.98 * certificate.lambda_min
    assert exceeds(gram, certificate.lower_bound)
    assert not exceeds(gram, 1.001 * certificate.lambda_min)


def test_a_proof_that_needs_too_much_memory_is_not_made(rng, monkeypatch):
    Z = rng.standard_normal((200, 4, 3))
    Z[::2, -1, 2] = 0.0
    Z[1::2, -1, :2] = 0.0
    monkeypatch.setattr(block_certificate, "compact_bytes", lambda *_: 1 << 60)
    certificate = la.fit(Z, np.ones(200), heads=None, solver="blocks").certificate
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


def test_the_null_space_has_unseen_features_first_and_then_the_sparsest(rng):
    Z = np.zeros((200, 6, 6))  # two attributes, each one-hot; the last token has a third
    Z[..., :2], Z[..., 2:4] = one_hot(rng, (200, 6), 2), one_hot(rng, (200, 6), 2)
    Z[:, -1] = one_hot(rng, 200, 6) * [0, 0, 0, 0, 1, 1]
    fit = la.fit(Z, rng.standard_normal(200), heads=None, solver="blocks")
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
    ours = la.fit(Z, y, heads=None, solver="blocks").certificate.null_space(3)
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
        fit = la.fit(Z, y, features=features, heads=None, solver="blocks")
        assert fit.info.reason.startswith("asked for; 2 blocks")
        certificate = fit.certificate
        np.testing.assert_array_equal(certificate.covers(new), covered)
        leverage = certificate.leverage(new)
        np.testing.assert_array_equal(np.isfinite(leverage), covered)
        assert leverage[1] == 0.0
        expected = Expected.of(list(Z), "last", fit.features)
        np.testing.assert_allclose(leverage, expected.leverages(fit.features.of(as_tokens(new))))


def test_samples_without_weight_or_query_have_no_block(rng):
    Z = one_hot(rng, (60, 4), 3)
    y = rng.standard_normal(60)
    weights = np.where(Z[:, -1, 2] > 0, 0.0, 1.0)
    Z[::5, -1] = 0.0
    fit = la.fit(Z, y, sample_weight=weights, heads=None, solver="blocks")
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
    fit = la.fit(Z, y, features=features, heads=None, solver="blocks")
    expected = Expected.of(list(Z), "last", features)
    agrees(fit, expected, y[:, None], "last", 0.0, Z)
    certificate = la.certify(Z, features=features)
    assert (certificate.rank, certificate.verdict) == (1, "not identifiable")


def test_queries_that_are_all_zero_leave_nothing_to_learn(rng):
    Z = one_hot(rng, (20, 4), 3)
    Z[:, -1] = 0.0
    y = rng.standard_normal(20)
    fit = la.fit(Z, y, heads=None, solver="blocks")
    assert not fit.coefficients.any()
    assert fit.info.mean_squared_error == pytest.approx((y**2).mean())
    assert fit.certificate.rank == 0
    assert fit.certificate.verdict == "not identifiable"
    assert fit.certificate.covers(Z).all()
    assert not fit.certificate.covers(one_hot(rng, (3, 4), 3)).any()


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
    s = Samples.of(tokens, "last").pair_sums(pairs)
    expected = [(z.T @ z)[tuple(pairs.T)] for z in tokens]
    np.testing.assert_array_equal(s, expected)
    assert sum(map(len, prefixes.distinct_rows(tokens))) == sum(lengths)


def test_arrays_that_only_begin_alike_are_not_taken_for_prefixes(rng):
    trace = rng.standard_normal((6, 6))
    tokens = as_tokens([trace[:3, :3], trace.T[:3, :3], trace[::2, :3], trace[:2, :3]])
    assert tokens.beginnings.tolist() == [0, 1, 2, 0]
    pairs = np.stack(np.triu_indices(3), axis=1)
    s = Samples.of(tokens, "last").pair_sums(pairs)
    np.testing.assert_allclose(s, [(z.T @ z)[tuple(pairs.T)] for z in tokens], rtol=1e-13)


def test_small_pieces_give_the_same_sums(rng, monkeypatch):
    Z = [rng.standard_normal((n, 5)) for n in rng.integers(1, 9, 40)]
    tokens = as_tokens(Z)
    pairs = np.array([(0, 0), (1, 4), (2, 3)])
    whole = {where: Samples.of(tokens, where).pair_sums(pairs) for where in POSITIONS}
    monkeypatch.setattr(prefixes, "_SUMS_AT_ONCE", 1)
    monkeypatch.setattr(prefixes, "_TOKENS_AT_ONCE", 60)
    for where, sums in whole.items():
        np.testing.assert_array_equal(Samples.of(tokens, where).pair_sums(pairs), sums)


def test_blocks_a_few_at_a_time_give_the_same_bits(rng, monkeypatch):
    Z = two_groups(rng, (80, 5), 5)
    y = rng.standard_normal((80, 5, 1))
    fit = la.fit(Z, y, positions="causal", heads=None, solver="blocks")
    monkeypatch.setattr(query_blocks, "SUMS_BYTES", 1)
    again = la.fit(Z, y, positions="causal", heads=None, solver="blocks")
    np.testing.assert_array_equal(fit.coefficients, again.coefficients)


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
    fit = la.fit(Z, y, features=features, heads=None, solver="blocks")
    expected = Expected.of(Z, "last", features)
    new, truth = traces(rng, 60)
    agrees(fit, expected, y, "last", 0.0, new)
    few = la.fit(Z[:120], y[:120], features=features, heads=None, solver="blocks").certificate
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
    monkeypatch.setattr(block_choice, "_WORTH_LOOKING", 0.0)
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
        la.fit(Z, y, features=features, heads=None, solver="blocks", memory_limit=1 << 20)
    with pytest.raises(MemoryError, match="with heads"):
        la.fit(Z, y, features=features, solver="blocks", memory_limit=limit)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_coefficients_of_few_features_are_applied_as_they_are(rng, monkeypatch, positions, backend):
    Z = one_hot(rng, (30, 5), 6) + 2.0 * one_hot(rng, (30, 5), 6)
    features = la.Features(6, [(0, 0), (1, 2), (5, 5)], [0, 2, 4, 5])
    y = targets(rng, Z, positions)
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
    fit = la.fit(Z, y, features=la.Features.active(Z), heads=None, solver="blocks")
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
    whole = la.fit(Z, y, heads=None, solver="blocks")
    parts = [(Z[:40], y[:40]), (Z[40:], y[40:])]
    for stream in (parts, iter(parts)):
        fit = la.fit(stream, heads=None, solver="blocks")
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
    la.fit(Z, y, heads=None, solver="blocks", progress=lambda *done: seen.append(done))
    assert seen[-1] == (len(Z), len(Z))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(rng, bad):
    Z = one_hot(rng, (20, 4), 3)
    Z[7, 1, 2] = bad
    features = la.Features(3, [(0, 0)], [0, 1])  # also where no feature needs them
    for chosen in (None, features):
        with pytest.raises(ValueError, match="Z: must be finite, got .* in sequence 7, token 1"):
            la.fit(Z, np.ones(20), heads=None, solver="blocks", features=chosen)


def test_values_too_large_or_too_small_are_named(rng):
    Z = one_hot(rng, (20, 4), 3)
    with pytest.raises(ValueError, match="Z: .*overflow"):
        la.fit(1e120 * Z, np.ones(20), heads=None, solver="blocks")
    with pytest.raises(ValueError, match="Z: .*with y up to 1e.200 overflow"):
        la.fit(Z, np.full(20, 1e200), heads=None, solver="blocks")
    with pytest.raises(ValueError, match="Z: .*underflow"):
        la.fit(1e-70 * Z, np.ones(20), heads=None, solver="blocks")
    fit = la.fit(Z, np.ones(20), heads=None, solver="blocks")
    with pytest.raises(ValueError, match="Z: .*overflow"):
        fit.certificate.covers(1e160 * Z)


def test_moments_know_no_samples(rng):
    moments = la.Moments(3, 1).update(one_hot(rng, (20, 4), 3), np.ones(20))
    with pytest.raises(ValueError, match="solver: 'blocks' needs the data"):
        moments.fit(solver="blocks")


def test_inputs_are_left_alone(rng):
    Z, y = traces(rng, 20)
    before = [z.copy() for z in Z], y.copy()
    fit = la.fit(Z, y, heads=None, solver="blocks")
    fit.certificate.covers(Z)
    assert all(np.array_equal(a, b) for a, b in zip(Z, before[0], strict=True))
    np.testing.assert_array_equal(y, before[1])
