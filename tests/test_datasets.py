"""Data sets: shapes, the function that made them, the distribution, and errors."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast import datasets

MAKERS = {
    "random_linear_attention": lambda **k: datasets.random_linear_attention(40, 7, 3, **k),
    "associative_memory": lambda **k: datasets.associative_memory(40, 3, orthonormal=0.5, **k),
    "in_context_regression": lambda **k: datasets.in_context_regression(40, 7, 3, **k),
}


def sequences_at_once(monkeypatch, number):
    monkeypatch.setattr(datasets, "_BLOCK", number)


# ------------------------------------------------------------------ every data set


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_seed_gives_the_same_data_and_another_one_does_not(name):
    make = MAKERS[name]
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    np.testing.assert_array_equal(first.Z, again.Z)
    np.testing.assert_array_equal(first.y, again.y)
    assert (first.Z != other.Z).any()
    assert (make().Z != make().Z).any()


@pytest.mark.parametrize("name", MAKERS)
def test_a_generator_is_used_and_moves_on(name):
    make, rng = MAKERS[name], np.random.default_rng(3)
    np.testing.assert_array_equal(make(seed=rng).Z, make(seed=3).Z)
    assert (make(seed=rng).Z != make(seed=3).Z).any()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("argument", "value", "error", "said"),
    [
        ("seed", -1, ValueError, "seed: a whole number that is not negative"),
        ("seed", "dice", ValueError, "seed: a whole number .* got 'dice'"),
        ("noise", -0.5, ValueError, "noise: a finite number that is not negative"),
        ("noise", np.nan, ValueError, "noise: a finite number"),
        ("noise", "loud", TypeError, "noise: a number is needed, got str"),
    ],
)
def test_a_bad_argument_is_named(name, argument, value, error, said):
    with pytest.raises(error, match=f"^{said}"):
        MAKERS[name](**{argument: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: datasets.random_linear_attention(0, 5, 3), "N: must be at least 1, got 0"),
        (lambda: datasets.random_linear_attention(5, 0, 3), "n: must be at least 1"),
        (lambda: datasets.random_linear_attention(5, 5, 0), "d: must be at least 1"),
        (lambda: datasets.random_linear_attention(5, 5, 3, heads=0), "heads: must be at least 1"),
        (lambda: datasets.random_linear_attention(5, 5, 3, d_out=0), "d_out: must be at least 1"),
        (lambda: datasets.random_linear_attention(5, 5, 3, positions="any"), "positions: "),
        (lambda: datasets.associative_memory(0), "N: must be at least 1"),
        (lambda: datasets.associative_memory(5, orthonormal=1.5), "orthonormal: .* from 0 to 1"),
        (lambda: datasets.in_context_regression(5, 5, 0), "d: must be at least 1"),
    ],
)
def test_a_bad_size_is_named(make, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make()


def test_tokens_are_float64_or_float32():
    with pytest.raises(TypeError, match="^dtype: float64 or float32 is needed, got int64"):
        datasets.in_context_regression(5, 5, 3, dtype=np.int64)


# ------------------------------------------------------------------ random linear attention


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
def test_targets_are_those_of_the_planted_heads(positions):
    Z, y, truth = datasets.random_linear_attention(
        6, 5, 3, heads=2, d_out=2, positions=positions, seed=0
    )
    S = np.einsum("btj,btk->bjk", Z, Z)
    prefixes = np.cumsum(Z[..., :, None] * Z[..., None, :], axis=1)
    sums = {"last": S[:, None], "all": np.repeat(S[:, None], 5, 1), "causal": prefixes}[positions]
    queries = Z[:, -1:] if positions == "last" else Z
    expected = np.einsum("haj,btjk,hkl,btl->bta", truth.V, sums, truth.Q, queries)
    np.testing.assert_allclose(y, expected[:, 0] if positions == "last" else expected, rtol=1e-12)


def test_noise_has_the_standard_deviation_asked_for():
    Z, y, truth = datasets.random_linear_attention(400, 25, 3, noise=0.3, seed=0)
    rest = y - truth(Z, positions="causal")
    # 10,000 draws: the standard deviation of theirs is 0.3 / sqrt(20,000) = 0.7 %; five of those
    assert abs(rest.std() / 0.3 - 1) < 0.035
    assert abs(rest.mean()) < 5 * 0.3 / 100


@pytest.mark.parametrize(("n", "d"), [(10, 2), (100, 2), (100, 16)])
def test_outputs_have_about_the_size_of_a_standard_gaussian(n, d):
    sizes = [
        datasets.random_linear_attention(64, n, d, positions="last", seed=seed).y.std()
        for seed in range(20)
    ]
    assert 0.3 < np.sqrt(np.mean(np.square(sizes))) < 3


def test_the_planted_head_is_recovered():
    Z, y, truth = datasets.random_linear_attention(64, 30, 4, seed=1)
    fit = la.fit(Z, y, positions="causal")
    assert len(fit.heads) == 1
    assert fit.heads.distance(truth) < 1e-10 * np.linalg.norm(truth.coefficients())


# ------------------------------------------------------------------ associative memory


def test_an_orthonormal_table_answers_with_the_value_of_the_key():
    Z, y, truth = datasets.associative_memory(50, 4, seed=0)
    assert Z.shape == (50, 5, 8)
    assert y.shape == (50, 4)
    keys, values = Z[:, :4, :4], Z[:, :4, 4:]
    for half in (keys, values):
        np.testing.assert_allclose(half @ half.transpose(0, 2, 1), np.eye(4)[None] + 0 * half,
                                   atol=1e-14)  # fmt: skip
    asked = (keys @ Z[:, 4, :4, None])[..., 0].argmax(1)
    assert set(asked) == {0, 1, 2, 3}
    np.testing.assert_array_equal(Z[:, 4, :4], keys[np.arange(50), asked])
    np.testing.assert_array_equal(Z[:, 4, 4:], 0)
    np.testing.assert_allclose(y, values[np.arange(50), asked], atol=1e-14)
    np.testing.assert_allclose(truth(Z), y)


def test_orthonormal_tables_are_uniform():
    # Without the signs of R the first entry of a QR factor would never be positive
    Z = datasets.associative_memory(4000, 2, seed=0).Z
    first = Z[:, 0, 0]
    assert abs(first.mean()) < 5 * np.sqrt(0.5 / 4000)
    assert abs((first**2).mean() - 0.5) < 5 * np.sqrt(1 / 8 / 4000)


def test_the_share_of_orthonormal_tables_is_the_one_asked_for_and_they_come_first():
    Z = datasets.associative_memory(200, 3, orthonormal=0.75, seed=0).Z
    keys = Z[:, :3, :3]
    exact = np.abs(keys @ keys.transpose(0, 2, 1) - np.eye(3)).max((1, 2)) < 1e-12
    np.testing.assert_array_equal(exact, np.arange(200) < 150)
    assert (Z[150:, 3, 3:] != 0).all()  # Gaussian queries have a value part


# ------------------------------------------------------------------ in-context regression


def test_a_sequence_is_a_regression_of_its_own(monkeypatch):
    Z, y, features = datasets.in_context_regression(30, 8, 3, noise=0.0, seed=0)
    assert Z.shape == (30, 9, 4)
    assert features.count == 12
    np.testing.assert_array_equal(Z[:, -1, 3], 0)
    for tokens, wanted in zip(Z, y, strict=True):
        w = np.linalg.lstsq(tokens[:8, :3], tokens[:8, 3], rcond=None)[0]
        assert abs(tokens[-1, :3] @ w - wanted) < 1e-12


def test_noise_of_a_regression_and_the_scale_of_x():
    Z, _, _ = datasets.in_context_regression(300, 60, 4, noise=0.5, seed=0)
    left = []
    for tokens in Z:
        x, y = tokens[:60, :4], tokens[:60, 4]
        rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        left.append((rest**2).sum() / 56)
    assert abs(np.sqrt(np.mean(left)) / 0.5 - 1) < 0.03
    assert abs((Z[:, :, :4] ** 2).mean() * 4 - 1) < 0.03


def test_float32_tokens_are_the_float64_ones_rounded_whatever_is_drawn_at_once(monkeypatch):
    exact = datasets.in_context_regression(40, 5, 3, seed=1)
    rounded = datasets.in_context_regression(40, 5, 3, seed=1, dtype=np.float32)
    assert rounded.Z.dtype == np.float32
    assert rounded.y.dtype == np.float64
    np.testing.assert_array_equal(rounded.Z, exact.Z.astype(np.float32))
    sequences_at_once(monkeypatch, 16)  # other draws, the same distribution: every row is filled
    blocks = datasets.in_context_regression(40, 5, 3, seed=1)
    assert np.isfinite(blocks.Z).all()
    assert (np.abs(blocks.Z[:, :-1]) > 0).all()
