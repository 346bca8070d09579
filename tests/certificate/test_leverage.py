"""Leverages, error bounds and what is covered, against exact rational arithmetic."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from oracles import loops
from oracles.exact import Exact, features_of

import linattn_fast as la

KINDS = (
    "generic",
    "nearly equal",
    "equal",
    "a third",
    "integers",
    "decimals",
    "one-hot",
    "never occurs",
    "lines",
    "repeated",
    "one-hot queries",
)
SOURCES = ("tokens", "moments", "fit", "ridge", "blocks", "qr")


def sequences(rng, kind, N, n, d):
    Z = rng.standard_normal((N, n, d))
    if kind == "nearly equal":
        Z[:, :, 1] = Z[:, :, 0] + 10.0 ** -rng.integers(1, 10) * Z[:, :, 1]
    elif kind == "equal":
        Z[:, :, 1] = Z[:, :, 0]
    elif kind == "a third":  # but for rounding
        Z[:, :, 1] = Z[:, :, 0] / 3
    elif kind == "integers":
        Z = rng.integers(-2, 3, (N, n, d)).astype(float)
    elif kind == "decimals":
        Z = rng.integers(-5, 6, (N, n, d)) / 10
    elif kind == "one-hot":
        Z = np.eye(d)[rng.integers(0, d, (N, n))] * rng.choice([1.0, 0.3])
    elif kind == "never occurs":
        Z[:, :, -1] = 0
    elif kind == "lines":
        Z = rng.standard_normal((N, n, 1)) * rng.standard_normal((N, 1, d))
    elif kind == "repeated":
        Z = Z[rng.integers(0, max(1, N // 4), N)]
    elif kind == "one-hot queries":
        Z[:, -1] = np.eye(d)[rng.integers(0, d, N)]
    return Z


def one_ulp_away(rng, Z):
    moved = Z.copy()
    place = tuple(rng.integers(0, size) for size in Z.shape)
    moved[place] = np.nextafter(moved[place], np.inf)
    return moved


def chosen_features(rng, Z, positions):
    d = Z.shape[2]
    how = rng.random()
    if how < 0.15 and Z[:, -1].any():
        return la.Features.active(Z, positions=positions)
    if how < 0.3:
        pairs = np.argwhere(np.triu(np.ones((d, d))))
        some = rng.choice(len(pairs), rng.integers(1, len(pairs) + 1), replace=False)
        return la.Features(d, pairs[some], rng.choice(d, rng.integers(1, d + 1), replace=False))
    return None


def certificate_of(source, Z, y, **how):
    if source == "tokens":
        return la.certify(Z, **how)
    if source == "moments":
        weights = how.pop("sample_weight")
        return la.certify(la.Moments(Z.shape[2], 0, **how).update(Z, sample_weight=weights))
    if source == "ridge":
        how["alpha"] = 1.0
    elif source != "fit":
        how["solver"] = source
    return la.fit(Z, y, heads=None, **how).certificate


def exactly(Z, weights, new, positions, features):
    """Leverages of new queries as fractions; None where some best fits differ."""
    exact = Exact.of(Z, positions, weights, features)
    rows, unit = features_of(new, positions, features)
    found = [exact.leverage(h, unit) for h in rows]
    if features.others_are_zero and not features.everything:
        every = np.array(features_of(new, positions)[0], dtype=object)
        beyond = np.delete(every, loops.columns(features), axis=1).any(axis=1)
        found = [None if out else each for out, each in zip(beyond, found, strict=True)]
    return found


def check_problem(seed, seen):
    """No bound is too small, nothing outside the range is covered, and samples are."""
    rng = np.random.default_rng(seed)
    kind, source = KINDS[seed % len(KINDS)], SOURCES[seed // len(KINDS) % len(SOURCES)]
    d = 2 if rng.random() < 0.85 else 3
    N, n = int(rng.choice([1, 2, 3, 5, 9, 20, 40])), int(rng.integers(1, 6))
    unit = 10.0 ** rng.integers(-6, 7, d) if rng.random() < 0.4 else np.ones(d)
    Z = sequences(rng, kind, N, n, d) * unit
    positions = str(rng.choice(["last", "last", "all", "causal"]))
    weights = None if rng.random() < 0.6 else rng.random(N) * 10.0 ** rng.integers(-3, 3, N)
    features = chosen_features(rng, Z, positions)
    others = [Z[:3], sequences(rng, kind, 2, n, d) * unit, rng.standard_normal((2, n, d))]
    new = np.concatenate([*others, one_ulp_away(rng, Z[:2]), 3.7 * Z[:1], np.zeros((1, n, d))])
    y = rng.standard_normal(N if positions == "last" else (N, n))
    how = {"positions": positions, "sample_weight": weights, "features": features}
    certificate = certificate_of(source, Z, y, **how)
    expected = exactly(Z, weights, new, positions, certificate.features)
    covered = np.ravel(certificate.covers(new))
    leverage = np.ravel(certificate.leverage(new))
    bound = np.ravel(certificate.error_bound(new, 1.0))
    nothing = np.ravel(certificate.error_bound(new, 0.0))
    samples = len(Z[:3]) * (1 if positions == "last" else n)
    for i, exact in enumerate(expected):
        where = f"problem {seed}, {kind}, {source}, query {i}"
        if exact is None:
            assert np.isinf([leverage[i], bound[i], nothing[i]]).all(), where
            assert not covered[i] or source == "moments", where
            continue
        if source != "moments":
            seen[kind, "determined"] += 1
            seen[kind, "covered"] += bool(covered[i])
            seen[kind, "bounded"] += bool(np.isfinite(leverage[i]))
        assert covered[i] or i >= samples or source == "moments", where
        if np.isfinite(leverage[i]):
            assert covered[i], where
            assert nothing[i] == 0, where
            assert Fraction(float(leverage[i])) >= exact, where
            assert Fraction(float(bound[i])) ** 2 >= 4 * exact, where


@pytest.mark.parametrize("part", range(4))
def test_bounds_hold_and_nothing_outside_the_range_is_covered(part):
    seen = Counter()
    for seed in range(part, 198, 4):
        check_problem(seed, seen)
    # And not by saying "unknown": all of that is known but of numbers near 5e-324, one ulp from 0
    for kind in ("generic", "integers", "decimals", "one-hot queries", "repeated"):
        assert seen[kind, "covered"] == seen[kind, "determined"] > 0
        assert seen[kind, "bounded"] >= 0.8 * seen[kind, "determined"]


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("source", SOURCES)
def test_leverages_of_healthy_data_are_exact_to_eight_digits(rng, positions, source):
    Z, new = rng.standard_normal((40, 4, 2)), rng.standard_normal((5, 4, 2))
    y = rng.standard_normal(40 if positions == "last" else (40, 4))
    weights = rng.random(40) + 0.1
    how = {"positions": positions, "sample_weight": weights, "features": None}
    certificate = certificate_of(source, Z, y, **how)
    expected = np.array(exactly(Z, weights, new, positions, certificate.features), dtype=float)
    assert certificate.covers(new).all()
    np.testing.assert_allclose(np.ravel(certificate.leverage(new)), expected, rtol=1e-8)


@pytest.mark.parametrize("source", ["tokens", "moments", "fit"])
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-6])
def test_layers_that_fit_alike_differ_by_no_more_than_the_bound_on_correlated_data(
    rng, source, size
):
    """Two layers of mean squared error one, the furthest apart, in exact arithmetic."""
    Z = rng.standard_normal((300, 4, 2))
    Z[:, :, 1] = Z[:, :, 0] + size * Z[:, :, 1]
    new = rng.standard_normal((4, 4, 2))
    how = {"positions": "last", "sample_weight": None, "features": None}
    certificate = certificate_of(source, Z, rng.standard_normal(300), **how)
    expected = exactly(Z, None, new, "last", certificate.features)
    bound = certificate.error_bound(new, 1.0)
    for each, leverage in zip(bound, expected, strict=True):
        # C and -C with C = Lambda^-1 h / sqrt(leverage): errors of one at target 0
        assert np.isinf(each) or Fraction(float(each)) ** 2 >= 4 * leverage
    if size == 1e-2 and source != "moments":  # where the features can tell
        apart = 2 * np.sqrt(np.array(expected, dtype=float))
        np.testing.assert_allclose(bound, apart, rtol=1e-3)


@pytest.mark.parametrize("solver", ["auto", "qr", "blocks"])
def test_a_sample_moved_by_one_ulp_is_no_longer_in_the_range(rng, solver):
    Z = rng.standard_normal((60, 4, 2))
    Z[:, :, 1] = Z[:, :, 0]
    certificate = la.fit(Z, np.ones(60), heads=None, solver=solver).certificate
    assert certificate.covers(Z).all()
    assert np.isfinite(certificate.leverage(Z)).all()
    moved = Z[:3].copy()
    moved[:, -1, 1] = np.nextafter(moved[:, -1, 1], np.inf)
    covered, residual = certificate.covers(moved, return_residual=True)
    assert not covered.any()
    assert (residual < 1e-12).all()  # but for rounding they are
    assert certificate.covers(moved, tol=1e-12).all()
    assert np.isinf(certificate.error_bound(moved, 0.0)).all()


def test_products_that_cancel_to_rounding_alone_are_features_that_the_data_never_has(rng):
    """S_01 of the first two is -2^-60 and 1e-400, which rounding and underflow make zero."""
    Z = np.zeros((40, 2, 2))
    Z[:, 0, 0], Z[:, 1, 1] = rng.standard_normal((2, 40))
    cancels = [[1 + 2**-30, 1 - 2**-30], [1.0, -1.0], [0.0, 1.0]]
    underflows = [[1e-200, 1e-200], [1.0, 0.0], [0.0, 1.0]]
    new = np.array([cancels, underflows, [[2.0, 0.0], [0.0, 0.0], [0.0, 3.0]]])
    for features in (None, la.Features.active(Z)):
        certificate = la.certify(Z, features=features)
        assert certificate.covers(new).tolist() == [False, False, True]
        assert np.isinf(certificate.leverage(new)).tolist() == [True, True, False]


def test_moments_that_take_in_more_data_leave_the_certificate_as_it_is(rng):
    Z, new = rng.standard_normal((50, 4, 2)), rng.standard_normal((3, 4, 2))
    moments = la.Moments(2, 0).update(Z)
    certificate = la.certify(moments)
    moments.update(100 * rng.standard_normal((50, 4, 2)))
    np.testing.assert_array_equal(
        certificate.leverage(new), la.certify(la.Moments(2, 0).update(Z)).leverage(new)
    )


def test_moments_know_the_features_of_a_coordinate_that_never_occurs(rng):
    Z = rng.standard_normal((60, 4, 3))
    Z[:, :, 2] = 0
    certificate = la.certify(la.Moments(3, 0).update(Z))
    assert np.mean(certificate.leverage(Z)) == pytest.approx(6, rel=1e-9)
    assert np.isinf(certificate.leverage(rng.standard_normal((2, 4, 3)))).all()


def test_what_moments_cannot_know_is_unknown(rng):
    """Equal coordinates, or coordinates equal to 1e-9: their Gram is the same to rounding."""
    Z = rng.standard_normal((60, 4, 2))
    Z[:, :, 1] = Z[:, :, 0]
    certificate = la.certify(la.Moments(2, 0).update(Z))
    assert certificate.covers(Z).all()
    assert np.isinf(certificate.error_bound(Z, 1.0)).all()
    assert np.isfinite(la.certify(Z).error_bound(Z, 1.0)).all()
