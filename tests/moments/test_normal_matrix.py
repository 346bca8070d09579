"""The dense, equilibrated matrix of moments in compiled code, against numpy's way, bit by bit."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.features import compact
from linattn_fast.moments.factors import moments_of

pytestmark = pytest.mark.skipif(compiled.MISSING is not None, reason="needs the extension")

SOME = la.Features(4, pairs=[(0, 1), (2, 2), (1, 3)], queries=[1, 3])


@pytest.fixture(params=[None, SOME, "group"], ids=["all", "chosen", "some queries"])
def moments(request, rng, positions):
    Z = rng.standard_normal((30, 5, 4)) * [1.0, 1e-3, 40.0, 1.0]
    features = SOME if request.param is SOME else None
    whole = la.Moments(4, 0, positions=positions, features=features).update(Z)
    return moments_of(whole, np.array([0, 2])) if request.param == "group" else whole


def by_numpy(monkeypatch, result):
    """What the functions of numpy and CuPy say."""
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "MISSING", "left out")
        return result()


def test_the_dense_gram_and_its_sizes_are_copies_of_its_entries(moments, monkeypatch):
    np.testing.assert_array_equal(moments.gram(), by_numpy(monkeypatch, moments.gram))
    given = moments.sums.gram, moments.features, moments.positions
    found, expected = compact.sizes(*given), by_numpy(monkeypatch, lambda: compact.sizes(*given))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[0], np.diagonal(moments.gram()))
    assert (found[1] is None) == (expected[1] is None) == (moments.features.n_pairs < 10)
    if expected[1] is not None:
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_scaling_by_powers_of_two_rounds_nothing(moments, monkeypatch, alpha):
    found = moments.equilibrated(alpha)
    expected = by_numpy(monkeypatch, lambda: moments.equilibrated(alpha))
    np.testing.assert_array_equal(found.matrix, expected.matrix)
    np.testing.assert_array_equal(found.scale, expected.scale)
    assert found.norm == pytest.approx(np.abs(found.matrix).sum(axis=1).max(), rel=1e-14)
    proved = moments.equilibrated_gram()
    D = proved.scale
    np.testing.assert_array_equal(proved.matrix, moments.gram() * D * D[:, None])
    assert ((np.diagonal(proved.matrix) >= 0.5) & (np.diagonal(proved.matrix) <= 2)).all()


def test_a_matrix_for_several_threads_has_the_same_bits(rng):
    moments = la.Moments(11, 0).update(rng.standard_normal((40, 4, 11)))  # p = 726
    matrices = []
    for threads in (1, 3):
        la.set_num_threads(threads)
        matrices.append(moments.equilibrated(0.1))
    la.set_num_threads(None)
    np.testing.assert_array_equal(matrices[0].matrix, matrices[1].matrix)
    assert matrices[0].norm == matrices[1].norm


def test_a_matrix_that_is_not_finite_has_no_finite_norm(rng):
    moments = la.Moments(2, 0).update(rng.standard_normal((9, 4, 2)))
    gram = moments.sums.gram.copy()
    gram[1, 2] = np.nan
    sizes = np.ones(moments.dimension)
    assert np.isnan(compact.equilibrated(gram, moments.features, "last", sizes)[2])


def test_sizes_follow_the_moments(rng):
    moments = la.Moments(3, 0).update(rng.standard_normal((20, 4, 3)))
    before = moments.gram_diagonal()
    before *= 0  # a copy
    np.testing.assert_array_equal(moments.gram_diagonal(), np.diagonal(moments.gram()))
    moments.update(rng.standard_normal((20, 4, 3)))
    np.testing.assert_array_equal(moments.gram_diagonal(), np.diagonal(moments.gram()))
    np.testing.assert_array_equal(
        moments.summand_sizes(), compact.magnitudes(moments.sums.gram, moments.features, "last")
    )


def test_arrays_of_another_size_are_refused(rng):
    with pytest.raises(ValueError, match="^gram: does not have the entries"):
        compiled.core.dense_gram(np.ones((3, 3)), 3, 3, False, 1.0, 0.0, None, 1)
    with pytest.raises(ValueError, match="^sizes: must be"):
        compiled.core.dense_gram(np.ones((6, 6)), 3, 3, False, 1.0, 0.0, np.ones(8), 1)
    with pytest.raises(ValueError, match="^triples: all pairs"):
        compiled.core.gram_sizes(np.ones(10), 3, 3, True, 0)
    with pytest.raises(ValueError, match="^steps: more than"):
        compiled.core.ritz_values(np.eye(9), np.ones(9), 2, 1, 1)
