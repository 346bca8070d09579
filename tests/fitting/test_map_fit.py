"""Fits under feature maps: what the mapped tokens alone would give, at once and in parts."""

import pickle
import re

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.data import sources
from linattn_fast.data.mapping import token_map
from linattn_fast.problem.streamed import Streamed


def cubes(block):
    """A map of one's own, into R^4."""
    return np.hstack([block**3, block[:, :1]])


MAPS = [
    la.maps.with_constant,
    la.maps.elu1,
    la.maps.relu,
    la.maps.hedgehog,
    la.maps.exponential(4, seed=1),
    la.maps.landmarks(np.random.default_rng(0).standard_normal((4, 2)), 1.0),
    la.maps.chain(la.maps.elu1, la.maps.with_constant),
    cubes,
]
FORMS = ["dense", "list", "offsets"]
POSITIONS = ["last", "all", "causal"]


@pytest.fixture(params=[False, True], ids=["at once", "in parts"])
def in_parts(request, monkeypatch):
    """Mapped tokens are kept, or made anew a few sequences at a time."""
    if request.param:
        monkeypatch.setattr(sources, "BATCH_BYTES", 1)
        monkeypatch.setattr(token_map, "PART_BYTES", 3000)
    return request.param


def data(rng, form, positions, N=90, d=2, d_out=2):
    """Tokens of a form, with their offsets, and targets to go with them."""
    lengths = np.full(N, 5) if form == "dense" else rng.integers(3, 8, N)
    rows = rng.standard_normal((lengths.sum(), d))
    ends = np.cumsum(lengths)
    cut = np.split(rows, ends[:-1])
    y = rng.standard_normal((N if positions == "last" else len(rows), d_out))
    if form == "offsets":
        return rows, np.concatenate([[0], ends]), y
    if form == "list":
        return cut, None, y if positions == "last" else np.split(y, ends[:-1])
    return np.stack(cut), None, y if positions == "last" else y.reshape(N, 5, d_out)


def by_hand(value, Z, form):
    """The tokens mapped as a whole."""
    if form == "list":
        return [np.asarray(value(z)) for z in Z]
    return np.asarray(value(Z.reshape(-1, Z.shape[-1]))).reshape(*Z.shape[:-1], -1)


def close(a, b, rtol=1e-9):
    a, b = (np.concatenate(x) if isinstance(x, list) else x for x in (a, b))
    return np.allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("value", MAPS, ids=repr)
def test_a_fit_is_that_of_mapped_tokens(rng, in_parts, value, positions, form):
    Z, offsets, y = data(rng, form, positions)
    w = rng.uniform(0.5, 2.0, 90)
    asked = {"positions": positions, "sample_weight": w, "alpha": 1e-3}
    phi = by_hand(value, Z, form)
    plain = la.fit(phi, y, offsets=offsets, **asked)
    fit = la.fit(Z, y, offsets=offsets, map=value, **asked)
    assert close(fit.coefficients, plain.coefficients)
    assert fit.map == value
    assert fit.info.n_samples == plain.info.n_samples
    assert np.isclose(fit.info.mean_squared_error, plain.info.mean_squared_error, rtol=1e-9)
    assert fit.certificate.verdict == plain.certificate.verdict
    assert close(fit.predict(Z, offsets=offsets), plain.predict(phi, offsets=offsets))
    assert np.isclose(
        fit.score(Z, y, w, offsets=offsets), plain.score(phi, y, w, offsets=offsets), rtol=1e-9
    )
    heads, bare = fit.heads, la.Heads(fit.heads.V, fit.heads.Q)
    assert close(heads(Z, positions, offsets=offsets), bare(phi, positions, offsets=offsets))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("solver", ["cholesky", "eigh", "qr", "pcg", "dual"])
def test_every_solver_reads_mapped_parts(rng, in_parts, solver, positions):
    Z, _, y = data(rng, "dense", positions)
    asked = {"positions": positions, "alpha": 0.01, "solver": solver}
    plain = la.fit(by_hand(la.maps.elu1, Z, "dense"), y, **asked)
    assert close(la.fit(Z, y, map=la.maps.elu1, **asked).coefficients, plain.coefficients)


def test_the_bits_are_those_of_mapped_tokens_where_they_are_kept(rng):
    Z, _, y = data(rng, "dense", "last")
    plain = la.fit(by_hand(la.maps.elu1, Z, "dense"), y)
    fit = la.fit(Z, y, map=la.maps.elu1)
    assert np.array_equal(fit.coefficients, plain.coefficients)
    assert fit.certificate.lower_bound == plain.certificate.lower_bound


def test_mapped_tokens_are_never_held_as_a_whole(rng, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 1)
    monkeypatch.setattr(token_map, "PART_BYTES", 20 * 5 * 3 * 8)
    blocks = []

    def watched(block):
        blocks.append(len(block))
        return np.hstack([block, block[:, :1] ** 2])

    Z, _, y = data(rng, "dense", "last", N=400)
    fit = la.fit(Z, y, map=watched)
    fit.predict(Z)
    fit.heads(Z)
    fit.certificate.covers(Z)
    la.certify(Z, map=watched)
    la.Moments(3, 2).update(Z, y, map=watched)
    assert max(blocks) == 20 * 5
    assert len(blocks) > 7 * 400 // 20  # at least one reading each, and one to refine


@pytest.mark.parametrize("certified", [True, False])
def test_certificates_take_tokens_as_they_are_given(rng, in_parts, certified):
    Z, _, y = data(rng, "dense", "last", N=300)
    value = la.maps.with_constant
    phi = by_hand(value, Z, "dense")
    new = rng.standard_normal((7, 4, 2))
    given = by_hand(value, new, "dense")
    if certified:
        mine, plain = la.certify(Z, map=value), la.certify(phi)
    else:
        mine, plain = la.fit(Z, y, map=value).certificate, la.fit(phi, y).certificate
    assert (mine.verdict, mine.rank) == (plain.verdict, plain.rank) == ("identifiable", 18 + 0)
    assert mine.lower_bound > 0
    assert np.isclose(mine.lambda_min, plain.lambda_min, rtol=1e-6)
    assert np.array_equal(mine.covers(new), plain.covers(given))
    assert np.allclose(mine.leverage(new), plain.leverage(given), rtol=1e-5)
    assert np.allclose(mine.error_bound(new, 0.1), plain.error_bound(given, 0.1), rtol=1e-5)
    assert la.certify(Z, intercept=True).verdict == "identifiable"


def test_features_are_chosen_among_those_of_mapped_tokens(rng, in_parts):
    Z, _, y = data(rng, "dense", "causal")
    features = la.Features(3, pairs=[(0, 0), (0, 2), (1, 2)], queries=[1, 2])
    plain = la.fit(
        by_hand(la.maps.with_constant, Z, "dense"), y, positions="causal", features=features
    )
    fit = la.fit(Z, y, positions="causal", features=features, map=la.maps.with_constant)
    assert close(fit.coefficients, plain.coefficients)
    assert features.map is None
    # features of a fit bring their map with them
    again = la.fit(Z, y, positions="causal", features=fit.features)
    assert close(again.coefficients, plain.coefficients)
    assert again.map == la.maps.with_constant
    assert fit.features != features
    with pytest.raises(
        ValueError, match="^features: they are for d = 3, but the tokens have d = 2"
    ):
        la.fit(Z, y, positions="causal", features=features, map=la.maps.elu1)


@pytest.mark.parametrize("positions", POSITIONS)
def test_moments_of_mapped_tokens(rng, in_parts, positions):
    Z, _, y = data(rng, "dense", positions)
    value = la.maps.hedgehog
    plain = la.Moments(4, 2, positions=positions).update(by_hand(value, Z, "dense"), y)
    moments = la.Moments(4, 2, positions=positions).update(Z[:40], y[:40], map=value)
    moments.update(Z[40:], y[40:])  # the first has settled the map
    assert np.allclose(moments.gram(), plain.gram(), rtol=1e-12)
    assert np.allclose(moments.cross(), plain.cross(), atol=1e-12 * np.abs(plain.cross()).max())
    assert moments.n_samples == plain.n_samples
    fit = moments.fit(alpha=0.1)
    assert fit.map == value
    assert close(fit.predict(Z), plain.fit(alpha=0.1).predict(by_hand(value, Z, "dense")))
    both = moments + la.Moments(4, 2, positions=positions).update(Z, y, map=value)
    assert both.n_samples == 2 * plain.n_samples
    assert pickle.loads(pickle.dumps(moments)).features == moments.features


def test_moments_have_one_map(rng):
    Z, _, y = data(rng, "dense", "last")
    mapped_ones = la.Moments(2, 2).update(Z, y, map=la.maps.elu1)
    plain = la.Moments(2, 2).update(Z, y)
    with pytest.raises(ValueError, match="^map: all updates need the same one; .* maps.elu1, got"):
        mapped_ones.update(Z, y, map=la.maps.relu)
    with pytest.raises(ValueError, match="^map: all updates need the same one; .* none, got"):
        plain.update(Z, y, map=la.maps.relu)
    with pytest.raises(ValueError, match="^features: moments to merge must agree"):
        plain + mapped_ones
    with pytest.raises(ValueError, match="^map: it makes tokens of 3 coordinates, .* d = 2"):
        la.Moments(2, 2).update(Z, y, map=la.maps.with_constant)
    empty = la.Moments(3, 0)
    with pytest.raises(ValueError, match="^y: "):
        empty.update(Z, y, map=la.maps.with_constant)
    assert empty.update(Z, map=la.maps.with_constant).n_samples == 90


def test_streams_of_batches_are_mapped_batch_by_batch(rng, tmp_path):
    Z, _, y = data(rng, "dense", "last")
    plain = la.fit(by_hand(cubes, Z, "dense"), y)
    batches = [(Z[:30], y[:30]), (Z[30:50], y[30:50]), (Z[50:], y[50:])]
    assert close(la.fit(batches, map=cubes).coefficients, plain.coefficients)
    assert close(la.fit(iter(batches), map=cubes).coefficients, plain.coefficients, 1e-6)
    np.save(tmp_path / "Z.npy", Z)
    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    assert close(la.fit(stored, y, map=cubes).coefficients, plain.coefficients)
    moments = la.Moments(3, 2).update(iter(batches), map=la.maps.with_constant)
    assert close(moments.gram(), la.Moments(3, 2).update(Z, y, map=la.maps.with_constant).gram())


def test_stored_arrays_are_read_in_smaller_pieces(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 8000)
    Z, _, y = data(rng, "dense", "last", N=400)
    np.save(tmp_path / "Z.npy", Z)
    blocks = []

    def wide(block):
        blocks.append(len(block))
        return np.hstack([block] * 4)

    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    fit = la.fit(stored, y, map=wide, alpha=0.1)
    assert max(blocks[1:]) * 8 * 8 <= 8000
    assert close(fit.coefficients, la.fit(np.tile(Z, 4), y, alpha=0.1).coefficients)


def test_a_checkpoint_goes_on_with_a_map(rng, tmp_path):
    Z, _, y = data(rng, "dense", "last")
    path = tmp_path / "so_far.npz"
    batches = [(Z[i : i + 30], y[i : i + 30]) for i in (0, 30, 60)]

    def failing():
        yield from batches[:2]
        raise RuntimeError("the disk is gone")

    for value in (cubes, la.maps.hedgehog):
        d = 3 if value is cubes else 4
        whole = la.Moments(d, 2).update(batches, map=value)
        with pytest.raises(RuntimeError, match="the disk"):
            la.Moments(d, 2).update(failing(), map=value, checkpoint=path, checkpoint_every=0)
        moments = la.Moments(d, 2)
        moments.update(iter(batches), map=value, checkpoint=path)
        assert np.array_equal(moments.gram(), whole.gram())
        assert moments.features == whole.features
        path.unlink()


# ------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("value", MAPS[:-1], ids=repr)
def test_files_keep_maps_that_are_built_in(rng, tmp_path, value):
    Z, _, y = data(rng, "dense", "last")
    fit = la.fit(Z, y, map=value, alpha=0.1)
    fit.save(tmp_path / "layer.npz")
    again = la.load(tmp_path / "layer.npz")
    assert again.map == value
    assert again.features == fit.features
    assert again.heads.constant_coordinate == fit.heads.constant_coordinate
    assert np.array_equal(again.predict(Z), fit.predict(Z))
    assert np.array_equal(again.heads(Z), fit.heads(Z))
    moments = la.Moments(fit.d, 2).update(Z, y, map=value)
    moments.save(tmp_path / "moments.npz")
    loaded = la.Moments.load(tmp_path / "moments.npz")
    assert loaded.features == moments.features
    assert np.array_equal(loaded.update(Z, y).gram(), moments.update(Z, y).gram())


def test_a_map_of_ones_own_is_to_be_given_again(rng, tmp_path):
    Z, _, y = data(rng, "dense", "last")
    fit = la.fit(Z, y, map=cubes, intercept=True, alpha=0.1)
    path = tmp_path / "layer.npz"
    fit.save(path)
    again = la.load(path)
    assert np.array_equal(again.coefficients, fit.coefficients)
    for ask in (again.predict, again.heads):
        with pytest.raises(ValueError, match="^map: .* your own, cubes, which files do not keep"):
            ask(Z)
    given = la.load(path, map=cubes)
    assert np.array_equal(given.predict(Z), fit.predict(Z))
    assert given.heads.constant_coordinate == fit.heads.constant_coordinate == 3
    moments = la.Moments(3, 2).update(Z, y, map=cubes)
    moments.save(path)
    assert np.array_equal(
        la.Moments.load(path, map=cubes).fit().predict(Z), moments.fit().predict(Z)
    )
    la.fit(Z, y).save(path)
    assert la.load(path).map is None


def test_pickles_keep_the_map(rng):
    Z, _, y = data(rng, "dense", "last")
    for value in (la.maps.landmarks(Z[:4, 0], 1.0), cubes):
        fit = la.fit(Z, y, map=value)
        assert np.array_equal(pickle.loads(pickle.dumps(fit)).predict(Z), fit.predict(Z))
        heads = pickle.loads(pickle.dumps(fit.heads))
        assert np.array_equal(heads(Z), fit.heads(Z))
        assert heads.map == value


# ------------------------------------------------------------------------------------------ heads


def test_heads_have_a_map(rng):
    truth = la.Heads(
        rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 3, 3)), map=la.maps.with_constant
    )
    assert truth.constant_coordinate == 2
    assert repr(truth).endswith("map=maps.with_constant, coordinate 2 constant)")
    Z = rng.standard_normal((200, 6, 2))
    fit = la.fit(Z, truth(Z), intercept=True)
    assert len(fit.heads) == 2
    assert fit.heads.distance(truth) < 1e-9
    assert fit.heads[:1].map == fit.heads.normalized().map == la.maps.with_constant
    few = la.fit(Z, truth(Z), intercept=True, heads=2).heads
    assert few.constant_coordinate == 2
    assert few.distance(truth) < 1e-6
    assert la.Heads(truth.V, truth.Q).constant_coordinate is None
    with pytest.raises(ValueError, match="^Z: mapped tokens must have d = 3"):
        truth(rng.standard_normal((3, 4, 5)))
    with pytest.raises(ValueError, match="^generate: tokens are mapped by maps.with_constant"):
        truth.generate(Z[0], 3)
    with pytest.raises(TypeError, match="^map: a function"):
        la.Heads(truth.V, truth.Q, map=3)


# -------------------------------------------------------------------------------- maps that are not


def depends_on_the_block(block):
    return block - block.mean(axis=0)


def not_rows(block):
    return block.T


def fewer_rows(block):
    return block[:-1]


def wide_when_large(block):
    return block if len(block) < 60 else np.hstack([block, block])


def not_finite(block):
    with np.errstate(invalid="ignore"):
        return np.sqrt(block)


WRONG = [
    (depends_on_the_block, ValueError, "must not depend on the block .*a token of sequence 0 "),
    (not_rows, ValueError, r"one row of at least one number a token is needed, \(64, D\)"),
    (fewer_rows, ValueError, r"one row .* got shape \(63, 2\)"),
    (wide_when_large, ValueError, "returns 4 coordinates for a block of 64 tokens, and 2 and 2"),
    (not_finite, ValueError, "must return finite numbers, and does not for sequence 0"),
    (lambda block: "no array", TypeError, "dtype must be"),
    (lambda block: block[:, :0], ValueError, "one row of at least one number"),
    (3, TypeError, "a function of a block"),
    (la.maps.Landmarks, TypeError, "got the class Landmarks"),
]


@pytest.mark.parametrize(("value", "error", "message"), WRONG)
def test_wrong_maps_are_named(rng, in_parts, value, error, message):
    Z, _, y = data(rng, "dense", "last")
    heads = la.Heads(np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    calls = [
        lambda: la.fit(Z, y, map=value),
        lambda: la.certify(Z, map=value),
        lambda: la.Moments(2, 2).update(Z, y, map=value),
        lambda: la.Heads(heads.V, heads.Q, map=value)(Z),
    ]
    for call in calls:
        with pytest.raises(error, match="^map: .*" + message):
            call()


def test_a_map_that_changes_its_width_later_is_named(rng, in_parts):
    Z, _, y = data(rng, "dense", "last")
    Z[60:] += 100

    def another_width(block):
        return block if (block < 50).all() else np.hstack([block, block])

    with pytest.raises(ValueError, match=r"^map: it returns 4 coordinates for the tokens of seq"):
        la.fit(Z, y, map=another_width)


def test_the_sequence_that_a_map_spoils_is_named(rng, in_parts):
    Z, _, y = data(rng, "dense", "last")
    Z = np.abs(Z)
    Z[77, 2, 1] = -1.0
    with pytest.raises(ValueError, match="^map: it must return finite .* for sequence 77"):
        la.fit(Z, y, map=not_finite)
    Z[77, 2, 1] = np.nan
    with pytest.raises(ValueError, match="^Z: must be finite, got nan in sequence"):
        la.fit(Z, y, map=la.maps.elu1)


def test_the_block_that_a_map_is_given_is_its_own(rng):
    Z, _, y = data(rng, "dense", "last")
    before = Z.copy()
    kept = np.empty((10_000, 2))

    def careless(block):
        block *= 2
        out = kept[: len(block)]
        out[:] = block
        return out

    fit = la.fit(Z, y, map=careless)
    assert np.array_equal(Z, before)
    assert close(fit.coefficients, la.fit(2 * Z, y).coefficients)


def test_states_have_no_map(rng):
    states = la.States(rng.standard_normal((30, 4)), rng.standard_normal((30, 2)))
    y = rng.standard_normal(30)
    for call in (
        lambda: la.fit(states, y, map=la.maps.elu1),
        lambda: la.fit(states, y, intercept=True),
        lambda: la.certify(states, map=la.maps.elu1),
    ):
        with pytest.raises(TypeError, match=re.escape("map: maps are for tokens, got States")):
            call()


def test_padding_is_seen_before_the_map(rng, in_parts):
    Z, _, y = data(rng, "dense", "last")
    Z[:60, 3:] = 0.0
    with pytest.warns(la.PaddingWarning):
        la.fit(Z, y, intercept=True)


def test_a_large_problem_is_a_stream(rng, monkeypatch):
    from linattn_fast.fitting.call import as_problem

    Z, _, y = data(rng, "dense", "last")
    asked = (Z, y, None, None, "last", None, "auto")
    assert not isinstance(as_problem(*asked, map=la.maps.elu1), Streamed)
    monkeypatch.setattr(sources, "BATCH_BYTES", 1)
    problem = as_problem(*asked, map=la.maps.elu1)
    assert isinstance(problem, Streamed)
    assert (problem.n_samples, problem.bytes_to_gather) == (90, 8 * 90 * 5 * 2)


def test_stored_tokens_are_certified_as_they_are(rng, tmp_path):
    Z, _, _ = data(rng, "dense", "last")
    np.save(tmp_path / "Z.npy", Z)
    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    for value in (None, la.maps.with_constant):
        mine, plain = la.certify(stored, map=value), la.certify(Z, map=value)
        assert mine.lower_bound == plain.lower_bound > 0


def test_modules_of_torch_do_not_map(rng):
    Z, _, y = data(rng, "dense", "last")
    for heads in (None, "minimal"):
        with pytest.raises(ValueError, match="^to_torch: tokens are mapped by maps.elu1"):
            la.fit(Z, y, map=la.maps.elu1, heads=heads).to_torch()
