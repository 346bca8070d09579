"""Fits on streams: every position, gate, scale and mask against features written out in numpy."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.stream_features import sequences, stream_rows, written_out

import linattn_fast as la

POSITIONS = ["last", "all", "causal"]


class Case:
    """Streams with everything that the written-out features need of them."""

    def __init__(
        self,
        rng,
        positions,
        *,
        N=24,
        n=5,
        m=3,
        d_v=2,
        d_k=3,
        d_q=2,
        form="dense",
        symmetric=False,
        gates=None,
        scale=None,
        masked=False,
        attend_self=True,
        dtype=np.float64,
    ):
        self.positions, self.symmetric = positions, symmetric
        lengths = np.full(N, n) if form == "dense" else rng.integers(1, n + 1, N)
        many = {"last": np.ones(N, int), "all": np.full(N, m), "causal": lengths}[positions]
        if form == "list" and positions == "all":
            many = rng.integers(1, m + 1, N)
        if form == "flat" and positions == "all":
            many = lengths

        def of(sizes, d):
            return [rng.standard_normal((size, d)).astype(dtype) for size in sizes]

        keys, queries = of(lengths, d_k), of(many, d_q)
        values = None if symmetric else of(lengths, d_v)
        keep = [rng.random(size) < 0.7 for size in lengths] if masked else None
        if masked and scale == "mean" and positions != "causal":
            for kept in keep:
                kept[-1] = True
        g = {
            None: None,
            "number": [np.full(size, 0.8) for size in lengths],
            "sequence": [np.full(size, rng.uniform(0.1, 1)) for size in lengths],
            "key": [rng.uniform(0.1, 1, size) for size in lengths],
        }[gates]
        factors = [rng.uniform(-2, 2, size) for size in many] if scale == "array" else scale
        self.M, self.c, self.exist = stream_rows(
            queries,
            keys,
            values,
            positions=positions,
            keep=keep,
            gates=g,
            scale=factors,
            attend_self=attend_self,
        )
        self.h = written_out(self.M, self.c, symmetric=symmetric)
        self.lengths, self.many, self.form = lengths, many, form
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]) if form == "flat" else None
        decay = g
        if gates == "number":
            decay = 0.8
        elif gates == "sequence":
            decay = np.array([one[0] for one in g])
        elif gates == "key":
            decay = self.whole(g)
        self.streams = la.Streams(
            np.concatenate(queries) if positions == "last" else self.whole(queries),
            self.whole(keys),
            None if symmetric else self.whole(values),
            offsets=self.offsets,
            mask=None if keep is None else self.whole(keep),
            decay=decay,
            scale=self.rows_to_form(np.concatenate(factors), all_of_them=True)
            if scale == "array"
            else scale,
            attend_self=attend_self,
        )

    def whole(self, parts):
        """Parts of the sequences in the form of the case."""
        if self.form == "dense":
            return np.stack(parts)
        return np.concatenate(parts) if self.form == "flat" else parts

    def rows_to_form(self, rows, *, all_of_them=False, missing=np.nan):
        """One row for each query that exists, in the form of the queries."""
        if not all_of_them:
            every = np.full((sum(self.many), *rows.shape[1:]), missing)
            every[np.concatenate(self.exist)] = rows
            rows = every
        if self.positions == "last":
            return rows
        ends = np.cumsum(self.many)
        parts = [rows[end - size : end] for size, end in zip(self.many, ends, strict=True)]
        return self.whole(parts)

    def rows(self, given):
        """The other way round."""
        if self.form == "list" and self.positions != "last":
            given = np.concatenate(given)
        elif self.form == "dense" and self.positions != "last":
            given = given.reshape(-1, *given.shape[2:])
        return given[np.concatenate(self.exist)]

    def tolerance(self):
        """Rounding of features, relative to their summands' sizes, over all samples: generous."""
        return 1e-12


def close(found, expected, tolerance=1e-11):
    return np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def moments_are_those_of(case, rng, backend):
    """Gram and cross moment, with weights one a query."""
    y, w = rng.standard_normal((len(case.h), 2)), rng.uniform(0.5, 2.0, len(case.h))
    d_v, d_k = case.M.shape[1:]
    moments = la.Moments.of_states(
        (d_v, d_k),
        case.c.shape[1],
        2,
        symmetric=case.symmetric,
        positions=case.positions,
        backend=backend,
    )
    moments.update(
        case.streams, case.rows_to_form(y), sample_weight=case.rows_to_form(w, missing=1.0)
    )
    assert moments.n_samples == len(case.h)
    scale = np.sqrt((case.h**2).sum(axis=0)) + 1e-300
    assert np.abs((moments.gram() - (case.h.T * w) @ case.h) / np.outer(scale, scale)).max() < 1e-11
    assert close(moments.cross(), (case.h.T * w) @ y)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("gates", [None, "number", "sequence", "key"])
@pytest.mark.parametrize("scale", [None, "mean", "array"])
@pytest.mark.parametrize("masked", [False, True])
def test_moments_equal_the_features_written_out(rng, backend, positions, gates, scale, masked):
    for symmetric in (False, True):
        case = Case(
            rng, positions, gates=gates, scale=scale, masked=masked, symmetric=symmetric, N=12
        )
        moments_are_those_of(case, rng, backend)


@pytest.mark.parametrize("form", ["dense", "flat", "list"])
@pytest.mark.parametrize("attend_self", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_form_of_causal_streams(rng, form, attend_self, dtype):
    case = Case(rng, "causal", form=form, attend_self=attend_self, gates="key", dtype=dtype)
    moments_are_those_of(case, rng, "cpu")


@settings(max_examples=60, deadline=None)
@given(
    positions=st.sampled_from(POSITIONS),
    form=st.sampled_from(["dense", "flat", "list"]),
    sizes=st.tuples(*[st.integers(1, 9)] * 6),
    gates=st.sampled_from([None, "number", "sequence", "key"]),
    scale=st.sampled_from([None, "mean", "array"]),
    masked=st.booleans(),
    symmetric=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_shapes_of_all_kinds(positions, form, sizes, gates, scale, masked, symmetric, seed):
    rng = np.random.default_rng(seed)
    N, n, m, d_v, d_k, d_q = sizes
    case = Case(
        rng,
        positions,
        N=N,
        n=n,
        m=m,
        d_v=d_v,
        d_k=d_k,
        d_q=d_q,
        form=form,
        gates=gates,
        scale=scale,
        masked=masked,
        symmetric=symmetric,
    )
    if len(case.h) == 0:
        with pytest.raises(ValueError, match=r"^mask: at least one query"):
            case.streams.states(positions)
        return
    moments_are_those_of(case, rng, "cpu")


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("gates", [None, "key"])
@pytest.mark.parametrize("scale", [None, "mean"])
@pytest.mark.parametrize("solver", ["cholesky", "qr", "pcg"])
def test_planted_layers_are_recovered(rng, positions, gates, scale, solver):
    case = Case(
        rng, positions, N=200, n=6, d_v=3, d_k=4, d_q=3, gates=gates, scale=scale, masked=True
    )
    truth = la.Heads(rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 4, 3)))
    expected = np.einsum("haj,njk,hkl,nl->na", truth.V, case.M, truth.Q, case.c, optimize=True)
    found = truth(case.streams, positions)
    assert close(case.rows(found), expected)
    y = case.rows_to_form(expected)  # NaN where there is no query
    fit = la.fit(case.streams, y, positions=positions, solver=solver)
    assert fit.positions == positions
    assert fit.certificate.verdict == "identifiable"
    assert len(fit.heads) == 2
    assert fit.heads.distance(truth) < 1e-8
    predicted = fit.predict(case.streams)
    assert np.shape(predicted) == np.shape(y)
    assert close(case.rows(predicted), expected, 1e-8)
    assert fit.score(case.streams, y) > 1 - 1e-12
    assert case.rows(fit.certificate.covers(case.streams)).all()
    mean = case.rows(fit.certificate.leverage(case.streams)).mean()
    assert mean == pytest.approx(36, rel=1e-6)
    assert np.isfinite(case.rows(fit.certificate.error_bound(case.streams, 1e-3))).all()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("solver", ["auto", "pcg", "dual", "eigh"])
def test_tokens_as_streams_have_the_answers_of_tokens(rng, positions, solver):
    N = 2 if solver == "dual" else 100
    Z = rng.standard_normal((N, 6, 3))
    truth = la.Heads(rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 3, 3)))
    y = truth(Z, positions)
    streams = la.Streams(Z[:, -1] if positions == "last" else Z, Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", la.InterpolationWarning)
        one = la.fit(Z, y, positions=positions, solver=solver)
        other = la.fit(streams, y, positions=positions, solver=solver)
    assert close(other.coefficients, one.coefficients, 1e-9)
    assert other.certificate.verdict == one.certificate.verdict
    assert other.certificate.lower_bound == pytest.approx(one.certificate.lower_bound, rel=1e-3)
    assert np.allclose(other.predict(streams), one.predict(Z))
    assert np.allclose(truth(streams, positions), y)
    certificate = la.certify(streams, positions=positions)
    assert certificate.verdict == la.certify(Z, positions=positions).verdict
    assert certificate.positions == positions


@pytest.mark.parametrize("positions", POSITIONS)
def test_padded_tokens_are_the_sequences_without_their_padding(rng, positions):
    Z, lengths = rng.standard_normal((80, 7, 3)), rng.integers(1, 8, 80)
    mask = np.arange(7) < lengths[:, None]
    truth = la.Heads(rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 3, 3)))
    ragged = [z[:size] for z, size in zip(Z, lengths, strict=True)]
    Z[~mask] = np.nan
    y, of_ragged = truth(Z, positions, lengths=lengths), truth(ragged, positions)
    if positions == "last":
        assert np.allclose(y, of_ragged)
    else:
        assert np.allclose(y[mask], np.concatenate(of_ragged))
        assert not y[~mask].any()
        y[~mask] = np.nan
    expected = la.fit(ragged, of_ragged, positions=positions)
    weights = np.ones(80)
    for keywords in ({"mask": mask}, {"lengths": lengths}):
        fit = la.fit(Z, y, positions=positions, sample_weight=weights, **keywords)
        assert close(fit.coefficients, expected.coefficients, 1e-9)
        predicted = fit.predict(Z, **keywords)
        assert np.allclose(predicted, np.nan_to_num(y))
        assert fit.score(Z, y, **keywords) > 1 - 1e-12
        covered = fit.certificate.covers(Z, **keywords)
        assert (covered == (True if positions == "last" else mask)).all()
        moments = la.Moments(3, 2, positions=positions).update(Z, y, **keywords)
        assert moments.n_samples == expected.info.n_samples
        assert la.certify(Z, positions=positions, **keywords).verdict == "identifiable"


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("keywords", [{"scale": "mean"}, {"decay": 0.7}, {"attend_self": False}])
def test_tokens_with_keywords_are_symmetric_streams(rng, positions, keywords):
    if positions == "all" and "attend_self" in keywords:
        return
    Z = rng.standard_normal((80, 5, 3))
    keep = rng.random((80, 5)) < 0.8
    keep[:, 1:3] = True
    gates = [np.full(5, keywords.get("decay", 1.0))] * 80
    queries = [z[k][-1:] if positions == "last" else z for z, k in zip(Z, keep, strict=True)]
    seen = keep
    if positions == "last" and "attend_self" in keywords:
        seen = keep & (np.cumsum(keep, axis=1) < keep.sum(axis=1)[:, None])
    if positions == "all":  # whose masked tokens ask for nothing
        queries = [z[k] for z, k in zip(Z, keep, strict=True)]
    M, c, _ = stream_rows(
        queries,
        sequences(Z),
        positions=positions,
        keep=seen,
        gates=gates,
        scale=keywords.get("scale"),
        attend_self=keywords.get("attend_self", True),
    )
    h = written_out(M, c, symmetric=True)
    C = rng.standard_normal((2, h.shape[1]))
    y = h @ C.T
    if positions != "last":
        given = np.full((80, 5, 2), np.nan)
        given[keep] = y
        y = given
    fit = la.fit(Z, y, positions=positions, mask=keep, **keywords)
    assert close(fit.coefficients, C, 1e-8)
    assert np.allclose(fit.predict(Z, mask=keep, **keywords), np.nan_to_num(y))
    moments = la.Moments(3, 2, positions=positions).update(Z, y, mask=keep, **keywords)
    assert close(moments.fit().coefficients, C, 1e-8)


def test_weights_one_a_query_of_tokens(rng):
    Z, y = rng.standard_normal((40, 6, 3)), rng.standard_normal((40, 6))
    w = rng.uniform(0.5, 2.0, (40, 6))
    h = la.fit(Z, y, positions="causal", sample_weight=w)
    M, c, _ = stream_rows(sequences(Z), sequences(Z), positions="causal")
    features = written_out(M, c, symmetric=True)
    root = np.sqrt(w.reshape(-1, 1))
    expected = np.linalg.lstsq(root * features, root[:, 0] * y.ravel(), rcond=None)[0]
    assert close(h.coefficients[0], expected, 1e-9)
    assert h.info.n_samples == 240


@pytest.mark.parametrize("solver", ["auto", "pcg", "dual"])
def test_streams_of_batches(rng, solver):
    case = Case(rng, "causal", N=40, gates="key", scale="mean", masked=True)
    y = case.rows_to_form(rng.standard_normal((len(case.h), 2)))
    batches = [(case.streams.part(i, i + 10), y[i : i + 10]) for i in range(0, 40, 10)]
    whole = la.fit(case.streams, y, positions="causal", alpha=0.1)
    fit = la.fit(batches, None, positions="causal", alpha=0.1, solver=solver)
    assert close(fit.coefficients, whole.coefficients, 1e-9)
    assert fit.positions == "causal"
    if solver == "auto":
        once = la.fit(iter(batches), None, positions="causal", alpha=0.1)
        assert close(once.coefficients, whole.coefficients, 1e-9)


def test_moments_of_states_and_of_streams_are_merged(rng):
    case = Case(rng, "causal", N=60, gates="key")
    y = rng.standard_normal((len(case.h), 2))
    as_states = la.Moments.of_states((2, 3), 2, 2, positions="causal")
    as_states.update(case.streams, case.rows_to_form(y))
    other = la.Moments.of_states((2, 3), 2, 2).update(la.States(case.M, case.c), y)
    assert close(as_states.gram(), other.gram())
    own = la.Moments.of_states((2, 3), 2, 2)
    own.add(as_states._totals, other._totals)
    assert np.allclose(own.summand_sizes(), as_states.summand_sizes() + other.gram_diagonal())
    sizes = la.Moments.of_states((2, 3), 2, 2, positions="causal", backend="numpy")
    sizes.update(case.streams, case.rows_to_form(y))  # which has them exactly
    assert (as_states.summand_sizes() >= sizes.summand_sizes() * (1 - 1e-12)).all()
    assert (as_states.summand_sizes() < 10 * sizes.summand_sizes()).all()
    assert own.fit().certificate.verdict == "identifiable"


def test_files_and_checkpoints(rng, tmp_path):
    case = Case(rng, "causal", N=60, gates="key", scale="mean")
    y = case.rows_to_form(rng.standard_normal((len(case.h), 2)))
    fit = la.fit(case.streams, y, positions="causal")
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    assert (again.predict(case.streams) == fit.predict(case.streams)).all()
    batches = [(case.streams.part(i, i + 20), y[i : i + 20]) for i in range(0, 60, 20)]

    def moments():
        return la.Moments.of_states((2, 3), 2, 2, positions="causal")

    def broken():
        yield from batches[:2]
        raise KeyboardInterrupt

    path = tmp_path / "moments.npz"
    with pytest.raises(KeyboardInterrupt):
        moments().update(broken(), checkpoint=path, checkpoint_every=0)
    resumed = moments().update(iter(batches), checkpoint=path, checkpoint_every=0)
    straight = moments().update(batches)
    assert (resumed.gram() == straight.gram()).all()
    assert (resumed.magnitudes == straight.magnitudes).all()
    loaded = la.Moments.load(path)
    assert (loaded.magnitudes == straight.magnitudes).all()
    assert loaded.fit().certificate.lower_bound == straight.fit().certificate.lower_bound


@pytest.mark.parametrize("positions", POSITIONS)
def test_bits_do_not_depend_on_threads(rng, positions):
    case = Case(rng, positions, N=90, n=20, m=9, d_v=4, d_k=5, d_q=3, gates="key", masked=True)
    y = case.rows_to_form(rng.standard_normal((len(case.h), 2)))
    found = []
    before = la.get_num_threads()
    try:
        for threads in (1, 2):
            la.set_num_threads(threads)
            fit = la.fit(case.streams, y, positions=positions)
            found.append((fit.coefficients, fit.predict(case.streams), fit.certificate.lower_bound))
    finally:
        la.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
