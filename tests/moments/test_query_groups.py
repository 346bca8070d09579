"""Queries that never occur together: the Gram is block diagonal, and solved block by block."""

import numpy as np
import pytest
from conftest import EPS, home
from hypothesis import given
from hypothesis import strategies as st

import linattn_fast as la
from linattn_fast.certificate import lower_bound
from linattn_fast.certificate.certifying import certificate_from
from linattn_fast.features import compact
from linattn_fast.linalg.choosing import factorise
from linattn_fast.moments import factors as block_factors
from linattn_fast.moments.factors import (
    BlockFactor,
    factorise_moments,
    features_of_group,
    moments_of,
    normal_matrix,
    query_groups,
)

GROUPS = [[0, 2], [1, 3, 4]]


def grouped(rng, n, groups=GROUPS, scales=None):
    """Gaussian sequences (n, 6, d) whose last token has the coordinates of one group only."""
    d = sum(map(len, groups))
    Z = rng.standard_normal((n, 6, d))
    mask = np.zeros((len(groups), d))
    for i, group in enumerate(groups):
        mask[i, group] = 1.0 if scales is None else scales[i]
    Z[:, -1] *= mask[np.arange(n) % len(groups)]
    return Z


def moments_from(Z, y=None, **options):
    d_out = 0 if y is None else y.shape[-1]
    weights = options.pop("sample_weight", None)
    return la.Moments(Z.shape[-1], d_out, **options).update(Z, y, sample_weight=weights)


def found(moments):
    return [group.tolist() for group in query_groups(moments)]


@pytest.fixture
def one_group(monkeypatch):
    """A switch that makes every Gram one block, as if no groups were looked for."""

    def switch():
        for module in (block_factors, lower_bound):
            monkeypatch.setattr(
                module, "query_groups", lambda moments: [np.arange(moments.features.n_queries)]
            )

    return switch


def no_whole_gram(monkeypatch, p):
    """Let no dense Gram of p features or more be formed."""
    dense = compact.expand

    def expand(gram, features, positions):
        assert features.count < p, "the whole Gram was formed"
        return dense(gram, features, positions)

    monkeypatch.setattr(compact, "expand", expand)


@pytest.mark.parametrize("groups", [[[0], [1], [2]], [[0, 2], [1]], [[0, 1, 2]]])
def test_groups_are_found_and_their_blocks_are_the_gram(rng, groups, backend):
    moments = moments_from(grouped(rng, 60, groups), backend=backend)
    assert found(moments) == groups
    gram = home(moments.gram())
    rest = gram.copy()
    for group in query_groups(moments):
        where = features_of_group(moments.features, group)
        block = home(moments_of(moments, group).gram())
        np.testing.assert_array_equal(block, gram[np.ix_(where, where)])
        rest[np.ix_(where, where)] = 0.0
    assert not rest.any()


@given(
    d=st.integers(1, 5),
    positions=st.sampled_from(["last", "all", "causal"]),
    chosen=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_zeros_of_sparse_tokens_are_used_and_no_entry_is_lost(d, positions, chosen, seed):
    rng = np.random.default_rng(seed)
    Z = rng.integers(-2, 3, (3, 2, d)) * (rng.random((3, 2, d)) < 0.5)
    features = la.Features(d, queries=np.arange(0, d, 2)) if chosen else None
    moments = moments_from(Z.astype(float), positions=positions, features=features)
    gram = moments.gram()
    k = moments.features.n_queries
    by_query = gram.reshape(-1, k, moments.features.n_pairs, k).any(axis=(0, 2))
    # Two queries are together exactly when a power of the graph of non-zero entries joins them.
    joined = np.linalg.matrix_power(by_query.astype(int) + np.eye(k, dtype=int), k) > 0
    expected = np.zeros((k, k), dtype=bool)
    rebuilt = np.zeros_like(gram)
    for group in query_groups(moments):
        expected[np.ix_(group, group)] = True
        where = features_of_group(moments.features, group)
        rebuilt[np.ix_(where, where)] = moments_of(moments, group).gram()
    np.testing.assert_array_equal(joined, expected)
    np.testing.assert_array_equal(rebuilt, gram)


@given(d=st.integers(1, 4), nonzeros=st.integers(0, 3), seed=st.integers(0, 999))
def test_no_entry_of_a_third_moment_is_overlooked(d, nonzeros, seed):
    """Entries at random, also such as no data would leave alone."""
    rng = np.random.default_rng(seed)
    features = la.Features(d)
    sums = np.zeros(compact.shape(features, "all"))
    sums[rng.integers(0, len(sums), nonzeros)] = 1.0
    gram = compact.expand(sums, features, "all")
    by_query = gram.reshape(-1, d, features.n_pairs, d).any(axis=(0, 2))
    np.testing.assert_array_equal(compact.meeting(sums, features, "all"), by_query)


@pytest.mark.parametrize("chosen", [False, True])
def test_the_magnitudes_of_a_block_are_those_of_the_whole(rng, chosen):
    features = la.Features(5, pairs=[(0, 1), (2, 2), (1, 4)]) if chosen else None
    moments = moments_from(grouped(rng, 50), features=features)
    whole = moments.summand_sizes()
    for group in query_groups(moments):
        part = moments_of(moments, group)
        where = features_of_group(moments.features, group)
        np.testing.assert_array_equal(part.summand_sizes(), whole[where])


def test_a_chain_of_queries_is_one_group(rng):
    Z = rng.standard_normal((60, 5, 3))
    Z[::2, -1, 2] = Z[1::2, -1, 0] = 0.0  # 0 meets 1, 1 meets 2, 0 never meets 2
    assert found(moments_from(Z)) == [[0, 1, 2]]


def test_an_entry_however_small_joins(rng):
    Z = grouped(rng, 60, [[0], [1]])
    Z[0, -1] = [1.0, 1e-60]
    assert found(moments_from(Z)) == [[0, 1]]


def test_signs_that_cancel_in_one_entry_do_not_part_queries(rng):
    """sum w s_u^2 z_l z_m = 0 by signs for every u, but not sum w s_u s_v z_l z_m."""
    Z = np.zeros((2, 2, 2))
    Z[:, -1] = [[1.0, 1.0], [1.0, -1.0]]  # S = [[1, +-1], [+-1, 1]]
    moments = moments_from(Z)
    assert moments.gram()[0, 1] == 0.0
    assert found(moments) == [[0, 1]]


def test_cancellation_in_every_entry_parts_queries_and_the_answer_is_the_same(rng, one_group):
    """Mirrored queries under the same S: z_0 z_1 sums to zero although both occur together."""
    X = rng.integers(-3, 4, (200, 4, 2)).astype(float)  # integers: S and all sums are exact
    z = rng.integers(1, 4, (200, 1, 2)).astype(float)
    mirrored = z * [1.0, -1.0]
    Z = np.concatenate(
        [np.concatenate([X, mirrored, z], axis=1), np.concatenate([X, z, mirrored], axis=1)]
    )
    y = rng.standard_normal((400, 1))
    moments = moments_from(Z, y)
    assert found(moments) == [[0], [1]]
    fit = moments.fit(heads=None)
    assert fit.certificate.verdict == "identifiable"
    one_group()
    dense = moments.fit(heads=None)
    np.testing.assert_allclose(fit.coefficients, dense.coefficients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("from_moments", [False, True])
def test_blocks_give_the_fit_of_the_whole(
    rng, monkeypatch, one_group, alpha, weighted, chosen, from_moments
):
    features = la.Features(5, pairs=[(0, 0), (0, 1), (1, 3), (2, 4), (4, 4)]) if chosen else None
    Z = grouped(rng, 400)
    y = rng.standard_normal((400, 3))
    weights = rng.uniform(0.5, 2, 400) if weighted else None

    def fit():
        if from_moments:
            moments = moments_from(Z, y, features=features, sample_weight=weights)
            return moments.fit(alpha=alpha, heads=None)
        return la.fit(
            Z, y, alpha=alpha, sample_weight=weights, features=features, heads=None, solver="auto"
        )

    with monkeypatch.context() as patch:
        no_whole_gram(patch, (la.Features(5) if features is None else features).count)
        blocks = fit()
    one_group()
    whole = fit()
    assert blocks.info.solver == whole.info.solver == "cholesky"
    assert "in 2 blocks" in blocks.info.reason
    assert "blocks" not in whole.info.reason
    assert blocks.info.condition == pytest.approx(whole.info.condition, rel=0.5)  # an estimate
    tolerance = 100 * whole.info.dimension * EPS * whole.info.condition
    size = np.abs(whole.coefficients).max()
    np.testing.assert_allclose(
        blocks.coefficients, whole.coefficients, rtol=0, atol=tolerance * size
    )
    ours, theirs = blocks.certificate, whole.certificate
    assert ours.verdict == theirs.verdict == "identifiable"
    assert ours.lambda_min == pytest.approx(theirs.lambda_min, rel=1e-3)  # an estimate
    assert ours.condition == pytest.approx(theirs.condition, rel=1e-3)
    assert ours.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-2)
    assert 0 < ours.lower_bound <= ours.lambda_min
    assert ours.rank == theirs.rank == whole.info.dimension


@pytest.mark.parametrize("positions", ["all", "causal"])
def test_groups_of_other_positions_are_solved_in_blocks(rng, monkeypatch, one_group, positions):
    """Sparse sequences: a sequence has the coordinates of one group in all of its tokens."""
    groups = [[0, 1], [2]]
    Z = rng.standard_normal((200, 5, 3))
    Z[::2, :, 2] = 0.0
    Z[1::2][:, :, [0, 1]] = 0.0
    y = rng.standard_normal((200, 5, 2))
    moments = moments_from(Z, y, positions=positions)
    assert found(moments) == groups
    with monkeypatch.context() as patch:
        no_whole_gram(patch, moments.dimension)
        blocks = moments.fit(heads=None)
        ridge = moments.fit(heads=None, alpha=0.1)
    one_group()
    assert blocks.info.solver == "eigh"  # pairs across groups are always zero
    assert ridge.info.solver == "cholesky"
    for mine, alpha in ((blocks, 0.0), (ridge, 0.1)):
        whole = moments.fit(heads=None, alpha=alpha)
        assert mine.certificate.rank == whole.certificate.rank < moments.dimension
        assert mine.certificate.verdict == whole.certificate.verdict == "not identifiable"
        np.testing.assert_allclose(mine.coefficients, whole.coefficients, atol=1e-9)


@pytest.mark.parametrize("solver", ["auto", "eigh"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_singular_blocks_give_the_least_norm_of_the_whole(
    rng, monkeypatch, one_group, solver, scale
):
    """Group 0 has fewer samples than features; the groups differ in scale."""
    groups = [[0], [1, 2]]
    Z = grouped(rng, 200, groups, scales=[scale, 1.0])
    keep = np.arange(200) % 2 == 1
    keep[:8:2] = True  # four samples of group 0, which has 6 features
    Z, y = Z[keep], rng.standard_normal((keep.sum(), 2))
    moments = moments_from(Z, y)
    with monkeypatch.context() as patch:
        no_whole_gram(patch, moments.dimension)
        blocks = moments.fit(heads=None, solver=solver)
        alone = la.certify(moments)
    one_group()
    whole = moments.fit(heads=None, solver=solver)
    assert blocks.info.solver == whole.info.solver == "eigh"
    assert "in 2 blocks" in blocks.info.reason
    for certificate in (blocks.certificate, alone):
        assert certificate.rank == whole.certificate.rank == 16
        assert certificate.verdict == whole.certificate.verdict
    assert blocks.info.condition == pytest.approx(whole.info.condition, rel=1e-6)
    h = la.cubic_features(Z)
    least = np.linalg.lstsq(h, y, rcond=1e-9)[0].T
    tolerance = 1e3 * EPS * whole.info.condition
    for a in (blocks.coefficients, whole.coefficients):
        for l in range(3):
            part = least[:, l::3]
            np.testing.assert_allclose(a[:, l::3], part, atol=tolerance * np.abs(part).max())


def block_diagonal(blocks):
    """The dense matrix and its blocks as block_factors wants them."""
    p = sum(map(len, blocks))
    whole, start, made = np.zeros((p, p)), 0, []
    for block in blocks:
        where = np.arange(start, start + len(block))
        whole[np.ix_(where, where)] = block
        made.append(block_factors.DiagonalBlock(where, block.copy, np.diagonal(block)))
        start += len(block)
    return whole, made


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    nearly=st.floats(-17, 0),
    steps=st.sampled_from([0, 10_000]),
    seed=st.integers(0, 999),
)
def test_what_counts_as_zero_is_what_the_whole_matrix_says(sizes, nearly, steps, seed):
    """Two features of the first block are as good as equal; the last has a large eigenvalue."""
    rng = np.random.default_rng(seed)
    made = [(H := rng.standard_normal((3 * m + 5, m))).T @ H for m in sizes]
    made[0] = np.array([[1.0, 1.0], [1.0, 1.0 + 10.0**nearly]])
    made[-1] = np.ones((6, 6)) + 0.5 * np.eye(6)
    whole, blocks = block_diagonal(made)
    expected = factorise(whole.copy, steps=steps).factorisation
    values = np.linalg.eigvalsh(whole)
    p = len(whole)
    ours = block_factors.choose(
        lambda: block_factors.try_cholesky_blocks(blocks, steps),
        lambda: block_factors.decompose_blocks(blocks, steps),
        "auto",
    ).factorisation
    spectral = block_factors.decompose_blocks(blocks, steps)
    dense = factorise(whole.copy, "eigh", steps=steps).factorisation
    assert (ours.level, ours.margin) == (expected.level, expected.margin)
    np.testing.assert_array_equal(ours.scale, expected.scale)
    assert abs(spectral.smallest - dense.smallest) <= 10 * p * EPS
    border = abs(dense.smallest - dense.margin) <= 10 * p * EPS
    if border or 0.1 < expected.smallest / expected.margin < 10:
        return  # rounding, or LAPACK's estimate, decides
    assert (ours.name, ours.rank) == (expected.name, expected.rank)
    assert spectral.rank == dense.rank
    if expected.rank == p:
        b = rng.standard_normal((p, 2))
        tolerance = 100 * p * EPS * values[-1] / values[0]
        theirs = expected.solve(b)
        assert np.abs(ours.solve(b) - theirs).max() <= tolerance * np.abs(theirs).max()
        x = rng.standard_normal(p)
        np.testing.assert_allclose(ours.multiply(x), whole @ x, atol=1e-12 * values[-1] * p)


def test_blocks_that_are_safe_alone_may_not_be_safe_together():
    """||A|| is that of one block and ||A^-1|| that of the other."""
    large, small = np.ones((40, 40)) + 0.5 * np.eye(40), np.array([[1.0, 1.0], [1.0, 1 + 3e-13]])
    _, blocks = block_diagonal([small, large])
    assert isinstance(block_factors.try_cholesky_blocks(blocks[:1]), BlockFactor)
    assert "ill-conditioned" in block_factors.try_cholesky_blocks(blocks).reason


def test_conditions_of_blocks_combine_to_that_of_the_whole():
    whole, blocks = block_diagonal(
        [np.array([[1.0, 1.0], [1.0, 1 + 1e-6]]), np.ones((40, 40)) + 0.5 * np.eye(40)]
    )
    factor = block_factors.try_cholesky_blocks(blocks)
    assert factor.condition == pytest.approx(np.linalg.cond(whole, 1), rel=1e-6)


def test_an_eigenvalue_counts_by_the_largest_of_all_blocks():
    """1e-12 is above the margin relative to its own block, and below it relative to the whole."""
    whole, blocks = block_diagonal(
        [np.array([[1.0, 1.0], [1.0, 1 + 2e-12]]), np.ones((40, 40)) + 0.5 * np.eye(40)]
    )
    dense = factorise(whole.copy, "eigh").factorisation
    factor = block_factors.decompose_blocks(blocks)
    assert factor.rank == dense.rank == 41
    assert factor.condition == pytest.approx(dense.condition)
    b = np.ones((42, 1))
    np.testing.assert_allclose(factor.solve(b), dense.solve(b), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")
def test_cholesky_of_a_singular_block_is_refused(rng):
    Z = grouped(rng, 100, [[0], [1]])
    Z[:, -1, 1] = 0.0
    moments = moments_from(Z, rng.standard_normal((100, 1)))
    with pytest.raises(np.linalg.LinAlgError, match="^solver: 'cholesky' is not possible"):
        moments.fit(solver="cholesky", heads=None)
    fit = moments.fit(heads=None)
    assert fit.certificate.rank == 3
    assert not fit.coefficients[:, 1::2].any()


def test_nothing_is_proved_of_blocks_one_of_which_is_singular(rng):
    """The bound must hold for the least block, not for the first."""
    Z = grouped(rng, 300, [[0], [1, 2]])
    good = certificate_from(moments_from(Z))
    assert good.lower_bound > 0
    Z[1::2, -1, 2] = Z[1::2, -1, 1]  # the second group has a zero direction
    moments = moments_from(Z)
    assert found(moments) == [[0], [1, 2]]
    assert lower_bound.prove(moments, good.lambda_min).bound == 0


def test_a_bound_beyond_the_least_block_is_not_proved(rng):
    moments = moments_from(grouped(rng, 300, [[0], [1]], scales=[1.0, 0.1]))
    smallest = np.linalg.eigvalsh(moments.second_moment())[0]
    for estimate in (smallest, 50 * smallest):
        assert 0 < lower_bound.prove(moments, estimate).bound <= smallest


def test_predictions_of_blocks_are_covered(rng):
    Z = grouped(rng, 300)
    certificate = la.fit(Z, rng.standard_normal((300, 1)), heads=None).certificate
    assert certificate.covers(Z).all()
    assert np.mean(certificate.leverage(Z)) == pytest.approx(certificate.rank)


def test_factors_take_the_memory_of_the_blocks(rng):
    moments = moments_from(grouped(rng, 400, [[0], [1], [2], [3]]))
    factor = factorise_moments(moments).factorisation
    assert isinstance(factor, BlockFactor)
    assert sum(part.factor.size for part in factor.factors) == moments.dimension**2 // 4
    np.testing.assert_allclose(
        factor.multiply(np.ones(moments.dimension)), normal_matrix(moments, 0.0)().sum(axis=1)
    )
