import numpy as np
import pytest
from oracles import loops

import linattn_fast as la


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_cubic_features_are_the_definition(rng, d):
    Z = rng.standard_normal((7, 4, d))
    expected = np.array([loops.features(z) for z in Z])
    np.testing.assert_allclose(la.cubic_features(Z), expected, rtol=1e-13, atol=1e-13)


def test_features_of_ragged_forms_agree(rng):
    sequences = [rng.standard_normal((n, 3)) for n in (1, 5, 2)]
    flat = la.cubic_features(np.concatenate(sequences), offsets=[0, 1, 6, 8])
    np.testing.assert_array_equal(la.cubic_features(sequences), flat)
    np.testing.assert_allclose(flat[1], loops.features(sequences[1]), rtol=1e-13)


def test_paper_features_repeat_each_pair_in_both_orders(rng):
    Z = rng.standard_normal((3, 4, 3))
    H = la.paper_features(Z)
    S = np.einsum("itj,itk->ijk", Z, Z)
    np.testing.assert_allclose(
        H.reshape(3, 3, 3, 3), np.einsum("ijk,il->ijkl", S, Z[:, -1]), rtol=1e-13
    )


def test_a_layer_is_linear_in_the_paper_features_too(rng):
    Z = rng.standard_normal((6, 5, 3))
    V, Q = rng.standard_normal((2, 1, 3)), rng.standard_normal((2, 3, 3))
    W = np.einsum("haj,hkl->ajkl", V, Q).reshape(1, 3, 9)
    y = np.einsum("ajm,ijm->ia", W, la.paper_features(Z))
    np.testing.assert_allclose(la.Heads(V, Q)(Z), y, rtol=1e-12)


def test_overflow_in_features_is_reported():
    with pytest.raises(ValueError, match=r"Z: values up to 1e\+150 overflow"):
        la.cubic_features(np.full((1, 2, 2), 1e150))
