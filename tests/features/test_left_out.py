"""That features are left out because the data never has them is known of all data, or not said."""

import itertools
import pickle

import numpy as np
import pytest
from oracles import loops

import linattn_fast as la

Z = np.eye(4)[[[0, 1, 2], [2, 1, 2], [0, 0, 1]]]  # x3 never occurs, x0 never asks
ACTIVE = la.Features.active(Z)
CHOSEN = la.Features(4, ACTIVE.pairs, ACTIVE.queries)
NEW = np.eye(4)[[[0, 3], [1, 2]]]  # x3 asks; x2 asks
BEYOND = np.eye(4)[[[0, 1, 2], [0, 3, 2]]]  # x3 occurs in the second


def moments(features, data=Z):
    return la.Moments(4, 0, features=features).update(data)


def test_merged_in_any_order_moments_certify_the_same():
    parts = [moments(ACTIVE), moments(CHOSEN), moments(ACTIVE, Z[:2])]
    both = parts[0] + parts[2]
    assert both.features == ACTIVE
    assert la.certify(both).covers(NEW).tolist() == la.certify(parts[0]).covers(NEW).tolist()
    assert not la.certify(both).covers(NEW)[0]
    for a, b, c in itertools.permutations(parts):
        for merged in (a + b + c, a + (b + c), a.merged([b, c]), a.merged([b]).merged([c])):
            assert merged.features == CHOSEN
            assert not merged.features.others_are_zero
            assert la.certify(merged).covers(NEW)[0]  # x3 has no part in the layer
    for part, features in zip(parts, (ACTIVE, CHOSEN, ACTIVE), strict=True):
        assert part.features == features  # merging changes none of them


def test_merged_moments_without_data_make_the_same_claims_in_any_order():
    empty = la.Moments(4, 0, features=CHOSEN)
    assert (empty + moments(ACTIVE)).features == (moments(ACTIVE) + empty).features == CHOSEN
    empty = la.Moments(4, 0, features=ACTIVE)
    assert (empty + moments(ACTIVE)).features == (moments(ACTIVE) + empty).features == ACTIVE


def test_moments_of_other_features_do_not_merge():
    other = la.Moments(4, 0, features=la.Features(4, [(0, 0)], [2]))
    for a, b in itertools.permutations([moments(ACTIVE), other]):
        with pytest.raises(ValueError, match="^features: moments to merge must agree"):
            a + b


def test_features_are_equal_when_they_say_the_same_of_the_others():
    assert ACTIVE != CHOSEN
    assert ACTIVE.same_choice(CHOSEN)
    assert CHOSEN.because(others_are_zero=True) == ACTIVE
    assert hash(CHOSEN.because(others_are_zero=True)) == hash(ACTIVE)
    assert len({ACTIVE, CHOSEN, pickle.loads(pickle.dumps(ACTIVE))}) == 2
    assert repr(ACTIVE) != repr(CHOSEN)
    with pytest.raises(AttributeError, match="others_are_zero"):
        CHOSEN.others_are_zero = True
    everything = la.Features.active(np.random.default_rng(0).standard_normal((5, 4, 3)))
    assert everything == la.Features(3)  # nothing is left out, for whatever reason
    assert hash(everything) == hash(la.Features(3))


def test_a_fit_from_a_file_knows_why_features_were_left_out(tmp_path):
    for features in (ACTIVE, CHOSEN):
        fit = la.fit(Z, Z[:, 0], features=features, heads=None)
        fit.save(tmp_path / "fit.npz")
        assert la.load(tmp_path / "fit.npz").features == features


def cases():
    y = np.zeros((2, 1))
    stream = [(Z, np.zeros((3, 1))), (BEYOND, y)]
    yield "update", lambda features: la.Moments(4, 0, features=features).update(BEYOND)
    yield "stream", lambda features: la.Moments(4, 1, features=features).update(stream)
    for solver in ("auto", "eigh", "dual", "qr", "pcg", "blocks"):
        yield (
            solver,
            lambda features, solver=solver: la.fit(
                BEYOND, y, features=features, solver=solver, heads=None
            ),
        )
    yield "fit of a stream", lambda features: la.fit(stream, features=features, heads=None)
    yield "iterator", lambda features: la.fit(iter(stream), features=features, heads=None)
    yield (
        "pcg of a stream",
        lambda features: la.fit(stream, features=features, heads=None, solver="pcg"),
    )


@pytest.mark.parametrize(("name", "work"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_data_that_has_what_was_left_out_as_zero_is_refused(name, work):
    """By choice it may be left out."""
    with pytest.raises(ValueError, match="^features: Features.active .* sequence 1 has some"):
        work(ACTIVE)
    work(CHOSEN)


def test_refused_data_leaves_moments_as_they_were():
    held = moments(ACTIVE)
    before = held.gram()
    with pytest.raises(ValueError, match="^features: "):
        held.update(BEYOND)
    np.testing.assert_array_equal(held.gram(), before)
    assert held.update(Z[:2]).features == ACTIVE


def test_samples_of_weight_zero_are_no_part_of_the_data():
    held = la.Moments(4, 0, features=ACTIVE).update(BEYOND, sample_weight=[1.0, 0.0])
    assert held.features.others_are_zero
    with pytest.raises(ValueError, match="^features: "):
        la.Moments(4, 0, features=ACTIVE).update(BEYOND, sample_weight=[0.0, 1.0])


def test_parts_on_a_cluster_are_checked_and_merged_alike():
    dask, lad = pytest.importorskip("dask"), pytest.importorskip("linattn_fast.dask")
    good = [dask.delayed({"Z": Z[i : i + 1]}) for i in range(3)]
    assert lad.moments(good, features=ACTIVE).features == ACTIVE
    with pytest.raises(ValueError, match="^features: "):
        lad.moments([*good, dask.delayed({"Z": BEYOND})], features=ACTIVE)


@pytest.mark.filterwarnings("ignore::linattn_fast.PaddingWarning")  # three sparse sequences
@pytest.mark.parametrize("positions", ["last", "all", "causal"])
def test_refused_is_what_has_a_feature_that_the_obvious_way_finds(rng, positions):
    outcomes = set()
    for _ in range(50):
        known = rng.integers(-1, 2, (4, 3, 4)) * (rng.random((4, 3, 4)) > 0.6)
        batch = rng.integers(-1, 2, (3, 3, 4)) * (rng.random((3, 3, 4)) > 0.6)
        active = la.Features.active(known, positions=positions)
        H = loops.all_features(batch, positions)
        beyond = bool(np.delete(H, loops.columns(active), axis=1).any())
        outcomes.add(beyond)
        held = la.Moments(4, 0, features=active, positions=positions)
        if beyond:
            with pytest.raises(ValueError, match="^features: "):
                held.update(batch)
        else:
            held.update(batch)
    assert outcomes == {True, False}


def test_products_that_cancel_exactly_are_absent_whatever_rounding_leaves_of_them(rng):
    """Tokens (a, b) and (a, -b) in any order: S_01 is zero, and its computed sum is not."""
    a, b = rng.standard_normal((2, 20))
    tokens = np.concatenate([np.stack([a, b], axis=1), np.stack([a, -b], axis=1)])
    batch = np.zeros((1, 41, 4))
    batch[0, :-1, :2] = rng.permutation(tokens)
    batch[0, -1, 2] = 1.0  # asks
    assert (batch[0].T @ batch[0])[0, 1] != 0
    assert moments(ACTIVE, batch).n_samples == 1
    batch[0, 0, 1] = np.nextafter(batch[0, 0, 1], 9.0)
    with pytest.raises(ValueError, match="^features: .* sequence 0 has some"):
        moments(ACTIVE, batch)


def test_how_sums_came_about_does_not_depend_on_the_order_of_two(rng):
    data = rng.standard_normal((60, 4, 3))
    a = la.Moments(3, 0, precision="mixed").update(data[:20], sample_weight=rng.random(20))
    b = la.Moments(3, 0).update(data[20:])
    assert (a + b).precision == (b + a).precision == "mixed"
    assert (a + b).accumulation == (b + a).accumulation
    assert la.certify(a + b).verdict == la.certify(b + a).verdict
    assert la.certify(a + b).lower_bound == la.certify(b + a).lower_bound
