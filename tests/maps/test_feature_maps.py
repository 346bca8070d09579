"""The built-in feature maps: what they compute, and that they are values."""

import pickle

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.maps.stored import OwnMap, given_again, map_meta, map_of

EPS = np.finfo(float).eps
POINTS = np.random.default_rng(5).standard_normal((6, 3))
EVERY = [
    la.maps.with_constant,
    la.maps.elu1,
    la.maps.relu,
    la.maps.hedgehog,
    la.maps.taylor2,
    la.maps.exponential(7, seed=3),
    la.maps.landmarks(POINTS, 1.5),
    la.maps.chain(la.maps.relu, la.maps.taylor2, la.maps.with_constant),
]


@pytest.fixture
def x(rng):
    return rng.standard_normal((40, 3))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("value", "formula"),
    [
        (la.maps.with_constant, lambda x: np.hstack([x, np.ones((len(x), 1))])),
        (la.maps.elu1, lambda x: np.where(x > 0, x, np.expm1(x)) + 1),
        (la.maps.relu, lambda x: x * (x > 0)),
        (la.maps.hedgehog, lambda x: np.hstack([softmax(x), softmax(-x)])),
    ],
)
def test_formulas(x, value, formula):
    assert np.allclose(value(x), formula(x), rtol=8 * EPS, atol=0)


@pytest.mark.parametrize("value", EVERY, ids=repr)
def test_a_map_is_a_value(x, value):
    y = value(x)
    assert y.shape == (40, value.width(3))
    assert y.dtype == np.float64
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert hash(again) == hash(value)
    assert np.array_equal(again(x), y)
    assert sum(value == other for other in EVERY) == 1
    assert repr(value).startswith("maps.")
    kept = map_of(map_meta(value))
    assert kept == value
    assert np.array_equal(kept(x), y)


@pytest.mark.parametrize("value", EVERY, ids=repr)
def test_a_row_has_the_same_bits_in_every_block(x, value):
    whole = value(x)
    for first, last in ((0, 1), (3, 20), (17, 40), (39, 40)):
        assert np.array_equal(value(x[first:last]), whole[first:last])
    assert np.array_equal(value(x.astype(np.float32)), value(x.astype(np.float32).astype(float)))


@pytest.mark.parametrize("value", EVERY, ids=repr)
def test_the_constant_coordinate_is_constant(x, value):
    number = value.constant(value.width(3))
    mapped = value(x)
    always = np.flatnonzero((mapped == 1).all(axis=0))
    assert number is None or number in always
    assert (number is None) == (value not in (EVERY[0], EVERY[4], EVERY[7]))


def test_the_block_is_left_as_it_is(x):
    before = x.copy()
    for value in EVERY:
        value(x)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("value", EVERY, ids=repr)
def test_what_is_no_block_is_refused(value):
    for wrong in (np.ones(3), np.ones((2, 2, 3)), np.ones((2, 0))):
        with pytest.raises(ValueError, match="^block: rows"):
            value(wrong)


def test_hedgehog_does_not_overflow():
    assert np.array_equal(la.maps.hedgehog([[2000.0, 0.0]]), [[1.0, 0.0, 0.0, 1.0]])


def test_taylor2_has_the_kernel_of_its_name(rng):
    x, y = rng.standard_normal((2, 50, 5))
    product = (x * y).sum(axis=1)
    found = (la.maps.taylor2(x) * la.maps.taylor2(y)).sum(axis=1)
    # 21 products with three roundings each, and their sum
    size = (np.abs(la.maps.taylor2(x)) * np.abs(la.maps.taylor2(y))).sum(axis=1)
    assert (np.abs(found - (1 + product + product**2 / 2)) <= 40 * EPS * size).all()


def test_exponential_has_the_kernel_as_its_mean(rng):
    x, y = rng.standard_normal((2, 30, 4)) * 0.4
    m = 100_000
    value = la.maps.exponential(m, seed=11)
    found = (value(x) * value(y)).sum(axis=1)
    kernel = np.exp((x * y).sum(axis=1))
    # Var phi(x)'phi(y) = (exp(2 x'y + |x + y|^2) - exp(2 x'y)) / m; five of it in all 30 cases
    deviation = kernel * np.sqrt(np.expm1(((x + y) ** 2).sum(axis=1)) / m)
    off = np.abs(found - kernel) / deviation
    assert off.max() < 5
    assert off.mean() > 0.2  # the bound is of the size of the errors
    assert (value(x) > 0).all()


def test_exponential_goes_by_its_seed(x):
    assert np.array_equal(la.maps.exponential(5, 1)(x), la.maps.exponential(5, 1)(x))
    assert not np.array_equal(la.maps.exponential(5, 1)(x), la.maps.exponential(5, 2)(x))


def gaussian(x, y, bandwidth):
    return np.exp(-((x[:, None] - y) ** 2).sum(axis=2) / (2 * bandwidth**2))


def test_landmarks_have_the_kernel_at_the_points(rng, x):
    value = la.maps.landmarks(POINTS, 1.5)
    K = gaussian(POINTS, POINTS, 1.5)
    rounding = 100 * EPS * np.linalg.cond(K)
    assert value.width(3) == len(POINTS)
    assert np.allclose(value(POINTS) @ value(x).T, gaussian(POINTS, x, 1.5), atol=rounding)
    # elsewhere it is the best that functions k(., p) can do
    cross = gaussian(x, POINTS, 1.5)
    nystrom = cross @ np.linalg.solve(K, cross.T)
    assert np.allclose(value(x) @ value(x).T, nystrom, atol=rounding)


def test_landmarks_pass_over_points_that_add_nothing(rng):
    points = np.vstack([POINTS, POINTS[2], POINTS[:1] + 1e-7])
    value = la.maps.landmarks(points, 1.5)
    assert value.width(3) == len(POINTS)
    phi = value(points)
    assert np.allclose(phi @ phi.T, gaussian(points, points, 1.5), atol=value.cut)
    assert la.maps.landmarks(POINTS, 1.5, cut=0.5).width(3) < len(POINTS)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: la.maps.exponential(0), ValueError, "^count: must be at least 1"),
        (lambda: la.maps.exponential(3, seed=-1), ValueError, "^seed: must be at least 0"),
        (lambda: la.maps.exponential(2.5), TypeError, "^count: a whole number"),
        (lambda: la.maps.landmarks(np.ones(3), 1.0), ValueError, "^points: an array of 2 axes"),
        (lambda: la.maps.landmarks(np.ones((0, 3)), 1.0), ValueError, "^points: at least one"),
        (lambda: la.maps.landmarks([[np.nan]], 1.0), ValueError, "^points: must be finite"),
        (lambda: la.maps.landmarks(POINTS, 0.0), ValueError, "^bandwidth: must be positive"),
        (lambda: la.maps.landmarks(POINTS, "1"), TypeError, "^bandwidth: a real number"),
        (lambda: la.maps.landmarks(POINTS, 1.0, 1.0), ValueError, "^cut: a number between"),
        (lambda: la.maps.landmarks(POINTS, 1.0)(np.ones((2, 4))), ValueError, "^points: .*R.3"),
        (la.maps.chain, TypeError, "^maps: at least one"),
        (lambda: la.maps.chain(3), TypeError, "^maps: at least one"),
        (lambda: la.maps.chain(abs).width(3), ValueError, "^map: .* does not tell"),
    ],
)
def test_wrong_parameters_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def cubes(block):
    return block**3


def test_a_map_of_ones_own_is_kept_by_its_name():
    whole = la.maps.chain(cubes, la.maps.with_constant)
    kept = map_of(map_meta(whole))
    assert repr(kept) == "maps.chain(cubes (not kept in the file), maps.with_constant)"
    with pytest.raises(ValueError, match="^map: .* a map of your own, cubes, which files do not"):
        kept(np.ones((2, 3)))
    assert given_again(kept, cubes) == given_again(kept, whole) == whole
    assert given_again(OwnMap("f"), cubes) is cubes
    assert given_again(la.maps.relu, cubes) is la.maps.relu
