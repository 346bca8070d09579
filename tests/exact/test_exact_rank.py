"""The exact rank: bounds that whole-number arithmetic confirms, and verdicts that are proofs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.adversarial import KINDS, adversarial
from oracles.batches import samples_of
from oracles.exact import exact_features
from oracles.exact import exact_rank as rank_of

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.exact import exact_rank as module
from linattn_fast.exact.exact_rank import exact_rank, modular_range, span_of
from linattn_fast.exact.modular import Span, primes, product, residues
from linattn_fast.exact.modular_features import ModularData
from linattn_fast.exact.null_vectors import rationals
from linattn_fast.exact.sample_counts import absent_features, distinct_samples, distinct_tokens

POSITIONS = ["last", "all", "causal"]
Q = next(primes(7))


def data_of(sequences, positions="last", weights=None, features=None):
    return ModularData.of(samples_of(as_tokens(sequences), None, weights, positions, features))


# ----------------------------------------------------------------------------- arithmetic modulo q


def test_primes_are_primes_of_23_bits_that_the_seed_chooses():
    found = [q for q, _ in zip(primes(3), range(50), strict=False)]
    assert len(set(found)) == 50
    assert all(2**22 < q < 2**23 for q in found)
    assert all(q % k for q in found for k in range(2, 2897))
    assert found == [q for q, _ in zip(primes(3), range(50), strict=False)]
    assert found != [q for q, _ in zip(primes(4), range(50), strict=False)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_has_the_residue_of_its_fraction(x):
    exact = Fraction(x)
    expected = exact.numerator * pow(exact.denominator, -1, Q) % Q
    found = residues(np.array([x]), np.ones(1, np.int64), Q)[0]
    assert int(found) % Q == expected
    assert abs(found) <= Q / 2 + 1


@pytest.mark.parametrize("inner", [1, 255, 256, 257, 1000])
def test_products_are_exact_at_their_largest(rng, inner):
    most = Q // 2
    a = np.where(rng.random((5, inner)) < 0.9, most, rng.integers(-most, most, (5, inner)))
    b = np.where(rng.random((inner, 4)) < 0.9, most, rng.integers(-most, most, (inner, 4)))
    expected = a.astype(object) @ b.astype(object) % Q
    np.testing.assert_array_equal(product(a.astype(float), b.astype(float), Q) % Q, expected)


@pytest.mark.parametrize("shape", [(1, 1), (3, 90), (90, 3), (70, 70), (150, 100)])
@pytest.mark.parametrize("rank", [0, 1, 2, 40, 200])
def test_a_span_taken_in_by_parts_has_the_rows_and_no_others(rng, shape, rank):
    inner = min(rank, *shape)
    H = rng.integers(-3, 4, (shape[0], inner)) @ rng.integers(-3, 4, (inner, shape[1]))
    H = H.astype(float)
    span = Span.empty(shape[1], Q)
    for first in range(0, len(H), 37):
        span = span.extended(H[first : first + 37])
    assert span.rank == rank_of(H.astype(int).astype(object))
    assert not span.left_over(H).any()
    whole = np.zeros((span.rank, shape[1]))
    whole[:, span.pivots], whole[:, span.free] = np.eye(span.rank), span.B
    assert np.array_equal(np.sort(np.r_[span.pivots, span.free]), np.arange(shape[1]))
    assert not span.left_over(whole).any()
    assert not product(H, span.null_vectors(3, rng), Q).any()
    if span.rank < shape[1]:
        assert span.left_over(rng.integers(1, 99, (1, shape[1])).astype(float)).any()


@given(st.integers(-4000, 4000), st.integers(1, 4000))
def test_rationals_are_told_from_their_residue(numerator, denominator):
    modulus = Q * next(primes(8))
    exact = Fraction(numerator, denominator)
    residue = exact.numerator * pow(exact.denominator, -1, modulus) % modulus
    above, below = rationals(np.array([residue]), modulus)
    assert (above[0], below[0]) == (exact.numerator, exact.denominator)


# -------------------------------------------------------------------------- the range modulo primes


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_range_modulo_primes_is_the_exact_one(rng, kind, positions):
    for _ in range(8):
        d = int(rng.integers(1, 4))
        Z, weights = adversarial(rng, kind, int(rng.integers(1, 16)), d)
        chosen = [None, la.Features(d, pairs=[(0, d - 1)], queries=[d - 1])][int(rng.integers(2))]
        features = chosen or la.Features(d)
        found = modular_range(samples_of(as_tokens(Z), None, weights, positions, features))
        H = exact_features(Z, positions, weights, features)
        assert found.rank == rank_of(H)
        asked = [rng.integers(-1, 2, (3, d)).astype(float), Z[0], Z[-1] * 0.5]
        # Samples and queries in one unit
        both = exact_features([*Z, *asked], positions, None, features)
        used = exact_features([*Z, *asked], positions, np.r_[
            np.ones(len(Z)) if weights is None else weights, np.zeros(3)], features)  # fmt: skip
        queries = both[len(both) - sum(1 if positions == "last" else len(z) for z in asked) :]
        inside = [rank_of(np.concatenate([used, h[None]])) == found.rank for h in queries]
        np.testing.assert_array_equal(found.contains(as_tokens(asked), positions), inside)


def test_the_range_takes_every_form_of_tokens(rng):
    Z = rng.integers(-2, 3, (40, 4, 2))
    flat, offsets = Z.reshape(-1, 2), np.arange(0, 161, 4)
    forms = [(Z, None), (list(Z), None), (flat, offsets), (Z.astype(np.float32), None)]
    for positions in POSITIONS:
        for value, at in forms:
            tokens = as_tokens(value, at)
            found = modular_range(samples_of(tokens, positions=positions))
            assert found.rank == 6
            assert found.contains(tokens, positions).all()


def test_a_range_over_the_budget_is_not_made(rng):
    tokens = as_tokens(rng.standard_normal((30, 3, 2)))
    assert modular_range(samples_of(tokens), budget=1e6) is None


def test_many_rows_at_a_time_have_the_span_of_all(rng):
    """New directions come late, one by one, and in the last samples."""
    Z = np.zeros((6000, 2, 3))
    Z[:, :, 0] = 1.0
    Z[1000::1000] = rng.standard_normal((5, 2, 3))
    Z[-1] = rng.standard_normal((2, 3))
    span = span_of(data_of(Z), Q)
    assert span.rank == rank_of(exact_features(Z[np.r_[0, 1000:6000:1000, -1]], "last"))


# ----------------------------------------------------------------------------------------- counting


def test_features_that_underflow_are_not_absent(rng):
    Z = rng.standard_normal((30, 3, 2)) * [1.0, 1e-300]
    assert absent_features(data_of(Z), 1e12) == (0, True)
    Z[:, :, 1] = 0.0
    assert absent_features(data_of(Z), 1e12) == (5, True)
    Z[:15, :, 1] = 1.0  # but its queries have nothing to do with it
    Z[:15, -1] = 0.0
    assert absent_features(data_of(Z), 1e12) == (5, True)
    assert absent_features(data_of(Z), 0.0) == (3, False)  # no query has x1; the rest is too long
    assert absent_features(data_of(np.zeros((5, 2, 2))), 1e12) == (6, True)


@pytest.mark.parametrize("positions", POSITIONS)
def test_absent_features_are_those_that_are_zero_in_data_without_cancellation(rng, positions):
    for _ in range(50):
        Z = [abs(rng.integers(-3, 2, (rng.integers(1, 4), 3)).clip(0)) for _ in range(6)]
        expected = int((exact_features(Z, positions) == 0).all(axis=0).sum())
        assert absent_features(data_of(Z, positions), 1e12) == (expected, True)


def test_distinct_samples_do_not_count_twice(rng):
    Z = rng.standard_normal((4, 3, 2))
    swapped = Z[:, [1, 0, 2]]  # S is the same
    again = np.concatenate([Z, swapped, Z])
    assert distinct_samples(data_of(again), 99) == 4
    assert distinct_samples(data_of(again), 3) == 3
    assert distinct_samples(data_of(again, "all"), 99) == 12
    assert distinct_samples(data_of(again, "causal"), 99) == 24  # in their order
    weights = np.r_[1.0, np.zeros(11)]
    assert distinct_samples(data_of(again, weights=weights), 99) == 1
    assert distinct_samples(data_of(np.array([[[0.0, 1.0]], [[-0.0, 1.0]]])), 99) == 1
    assert distinct_samples(data_of(np.zeros((3, 2, 2))), 99) == 0


def test_a_vocabulary_bounds_the_rank(rng):
    table = rng.standard_normal((4, 3))
    ids = rng.integers(0, 4, (300, 6))
    Z = table[ids] * rng.choice([-1.0, 1.0], (300, 6, 1))
    assert distinct_tokens(data_of(Z)) == (4, 3)
    found = exact_rank(data_of(Z))
    assert found.at_most == 12 == rank_of(exact_features(Z, "last"))
    assert "4 distinct tokens times 3 query coordinates are fewer" in found.reason


# ----------------------------------------------------------------------------- bounds and verdicts


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_on_the_exact_rank_are_true(rng, kind):
    for _ in range(15):
        d = int(rng.integers(1, 4))
        positions = POSITIONS[int(rng.integers(3))]
        Z, weights = adversarial(rng, kind, int(rng.integers(1, 30)), d)
        truth = rank_of(exact_features(Z, positions, weights))
        found = exact_rank(data_of(Z, positions, weights))
        assert found.at_least <= truth <= found.at_most
        p = d * d * (d + 1) // 2
        assert (truth < p) == (found.at_most < p) or "too much work" in found.reason


def test_an_equation_that_holds_modulo_the_primes_it_was_found_by_is_refused(rng, monkeypatch):
    q, other = (next(primes(seed)) for seed in (1, 2))
    Z = rng.integers(-3, 4, (40, 3, 2)).astype(float)
    Z[:, :, 1] = Z[:, :, 0] + float(q * other) * rng.integers(0, 9, (40, 3))
    assert rank_of(exact_features(Z, "last")) == 6

    def chosen(_):
        yield from (q, other)
        yield from primes(5)

    monkeypatch.setattr(module, "primes", chosen)
    assert span_of(data_of(Z), q).rank == span_of(data_of(Z), other).rank < 6
    found = exact_rank(data_of(Z))
    assert found.at_most == 6
    assert found.at_least == 6  # a third prime sees it


def test_equations_with_large_coefficients_are_proved_by_minors(rng):
    """x1 = c x0 with c = m / 3^20, m large, both exact: no small numerator or denominator."""
    Z = rng.integers(-9, 10, (30, 3, 2)).astype(float)
    Z[:, :, 1] = Z[:, :, 0] * 3_486_784_401.0
    Z[:, :, 0] *= 1_162_261_467.0 + 1
    Z[0] = [[1.0, 0.0]] * 3  # units of 1, not of the factors
    Z[0, :, 0] = 0.0
    truth = rank_of(exact_features(Z, "last"))
    found = exact_rank(data_of(Z))
    assert (found.at_least, found.at_most) == (truth, truth)


def sign_table(rng):
    """Permuted rows of a table whose rows are orthogonal, with random signs."""
    table = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 3
    return rng.permuted(np.tile(table, (300, 1, 1)), axis=1) * rng.choice([1, -1], (300, 1, 4))


def biased_one_hot(rng):
    hot = np.eye(3)[rng.integers(0, 3, (300, 6))]
    return np.concatenate([hot, np.full((300, 6, 1), 0.1)], axis=2)


def proportional_coordinates(rng):
    Z = np.round(rng.standard_normal((300, 6, 4)) * 2**30) / 2**30
    Z[:, :, 3] = -0.75 * Z[:, :, 1]
    return Z


def constant_coordinates(rng):
    Z = rng.standard_normal((300, 6, 4))
    Z[:, :, 2:] = [0.3, 7.1]
    return Z


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.choice([-1.0, 1.0], (300, 6, 4)),
        lambda rng: np.eye(4)[rng.integers(0, 4, (300, 6))],
        sign_table,
        biased_one_hot,
        proportional_coordinates,
        constant_coordinates,
    ],
    ids=["signs", "one-hot", "sign table", "bias", "proportional", "constant"],
)
def test_singular_data_that_people_have_is_proved_singular(rng, make, positions):
    Z = make(rng)
    certificate = la.certify(Z, positions=positions)
    assert certificate.verdict == "not identifiable"
    assert certificate.evidence.startswith("proved")
    y = np.ones(300 if positions == "last" else Z.shape[:2])
    for solver in ("auto", "eigh", "pcg"):
        fit = la.fit(Z, y, positions=positions, heads=None, solver=solver)
        assert fit.certificate.verdict == "not identifiable"


def verdicts(Z, positions, weights, solver):
    """Certificates of one data set, by every way to one; those that refuse it are left out."""
    d = Z[0].shape[1]
    y = np.ones(len(Z)) if positions == "last" else [np.ones(len(z)) for z in Z]
    options = {"positions": positions, "sample_weight": weights}
    ways = {
        "certify": lambda: la.certify(Z, **options),
        "moments": lambda: la.certify(
            la.Moments(d, 0, positions=positions).update(Z, sample_weight=weights)
        ),
        "fit": lambda: la.fit(Z, y, heads=None, solver=solver, **options).certificate,
    }
    for name, way in ways.items():
        try:
            yield name, way()
        except (ValueError, np.linalg.LinAlgError):  # it overflows, or is too singular for Cholesky
            continue


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # solutions of data that underflows
@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    positions=st.sampled_from(POSITIONS),
    d=st.integers(1, 3),
    solver=st.sampled_from(["auto", "qr", "eigh", "cholesky", "pcg", "blocks", "dual"]),
)
def test_no_verdict_is_ever_false(seed, kind, positions, d, solver):
    rng = np.random.default_rng(seed)
    Z, weights = adversarial(rng, kind, int(rng.integers(1, 30)), d)
    p = d * d * (d + 1) // 2
    full = rank_of(exact_features(Z, positions, weights)) == p
    for way, certificate in verdicts(Z, positions, weights, solver):
        if certificate.verdict != "undecided":
            assert (certificate.verdict == "identifiable") == full, way
        if way == "certify" and kind in ("signs", "one hot") and weights is None:
            assert certificate.verdict != "undecided"


def test_too_much_work_is_said_and_nothing_is_claimed(rng, monkeypatch):
    Z = rng.standard_normal((60, 4, 2))
    Z[:, :, 1] = Z[:, :, 0]
    assert exact_rank(data_of(Z)).at_most == 1
    found = exact_rank(data_of(Z), budget=1e3)
    assert (found.at_least, found.at_most) == (0, 6)
    assert "too much work" in found.reason


def test_a_feature_that_is_zero_only_as_computed_is_not_called_zero(rng):
    """S_01 = (1 + e)(1 - e) - 1 is rounded to zero in every sample, and is not."""
    scale = rng.integers(1, 9, (60, 1, 1)) * 1.0
    Z = np.tile([[1 + 2.0**-30, 1 - 2.0**-30], [1.0, -1.0], [0.0, 0.0]], (60, 1, 1)) * scale
    Z[:, 2] = rng.integers(-4, 5, (60, 2))
    Z[:, 2][Z[:, 2, 0] != 0, 1] = 0.0  # so that the query adds nothing to S_01
    features = la.Features(2, pairs=[(0, 1)], queries=[0, 1])
    assert not la.Features(2, [(0, 1)], [0, 1]).of(as_tokens(Z)).any()
    assert rank_of(exact_features(Z, "last", None, features)) == 2
    moments = la.Moments(2, 0, features=features, backend="numpy").update(Z)
    assert la.certify(moments).verdict == "undecided"
    assert la.certify(Z, features=features, backend="numpy").verdict == "undecided"
