"""Values passed through on streams: queries that share a memory give the answers of their rows."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples

FORMS = ["last", "all", "causal", "decay", "ragged", "symmetric", "float32", "masked"]


def streams_of(rng, form, N=40, n=6, m=4):
    """Streams in some form, and the positions they are for."""
    keys, values = rng.standard_normal((N, n, 4)), rng.standard_normal((N, n, 5))
    queries = rng.standard_normal((N, m, 3))
    if form == "last":
        return la.Streams(queries[:, 0], keys, values, scale="mean"), "last"
    if form in ("causal", "decay"):
        decay = rng.uniform(0.5, 1.0, (N, n)) if form == "decay" else None
        return la.Streams(rng.standard_normal((N, n, 3)), keys, values, decay=decay), "causal"
    if form == "ragged":
        lengths, counts = rng.integers(1, n + 1, N), rng.integers(1, m + 1, N)
        cut = [[x[i, :k] for i, k in enumerate(lengths)] for x in (keys, values)]
        asked = [queries[i, :k] for i, k in enumerate(counts)]
        return la.Streams(asked, *cut, scale="mean"), "all"
    if form == "symmetric":
        return la.Streams(queries, keys), "all"
    if form == "masked":
        mask = rng.random((N, n)) < 0.7
        mask[:, 0] = True
        return la.Streams(queries, keys, values, mask=mask), "all"
    if form == "float32":
        keys, queries = keys.astype(np.float32), queries.astype(np.float32)
    return la.Streams(queries, keys, values), "all"


def written_out(streams, positions):
    """The rows of the memories of all queries, (rows, d_k), with their queries."""
    states = streams.states(positions)
    memory = states.memory
    return memory.reshape(-1, memory.shape[2]), np.repeat(
        states.query.astype(float), memory.shape[1], axis=0
    )


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("form", FORMS)
def test_sums_and_passes_are_those_of_all_rows(rng, backend, form):
    streams, positions = streams_of(rng, form)
    s, c = written_out(streams, positions)
    kind = streams.states(positions).kind
    d_v, d_k = kind.matrix
    truth = la.Heads(np.eye(d_v)[None], rng.standard_normal((1, d_k, 3)))
    y = truth(streams, positions)
    flat = np.concatenate([np.reshape(part, (-1, d_v)) for part in y]).ravel()
    w = rng.uniform(0.5, 2.0, len(streams))
    samples = Samples.checked(streams, y, positions=positions, sample_weight=w, values="passed")
    weights = samples.weight_of_each()
    h = (s[:, :, None] * c[:, None, :]).reshape(len(s), -1)
    close = {"rtol": 1e-11, "atol": 1e-10 * (1 + abs(flat).max())}
    moments = la.Moments.of_states(
        kind.memory,
        3,
        d_v,
        symmetric=kind.symmetric,
        positions=positions,
        values="passed",
        backend=backend,
    ).update(streams, y, sample_weight=w)
    assert np.allclose(moments.gram(), (weights[:, None] * h).T @ h, **close)
    assert np.allclose(moments.cross()[:, 0], (weights * flat) @ h, **close)
    assert np.isclose(moments.sums.energy[0], weights @ flat**2, rtol=1e-11)
    assert (moments.summand_sizes() >= moments.gram_diagonal() * (1 - 1e-12)).all()
    operator = get_backend(backend).normal_operator(samples, keep=False)
    C = rng.standard_normal((2, h.shape[1]))
    found = operator.normal(C)
    assert np.allclose(found.product, (weights[:, None] * (h @ C.T)).T @ h, **close)
    assert np.allclose(found.energy, weights @ (h @ C.T) ** 2, rtol=1e-10)
    residual = flat[:, None] - h @ C[:1].T
    gradient = operator.gradient(C[:1])
    assert np.allclose(gradient.gradient, (weights[:, None] * residual).T @ h, **close)
    assert np.allclose(gradient.squared_error, weights @ residual**2, rtol=1e-10)
    factors = operator.kronecker_factors()
    assert np.allclose(factors.pairs, (weights[:, None] * s).T @ s, **close)
    assert np.allclose(factors.queries, (weights[:, None] * c).T @ c, **close)
    assert np.allclose(factors.diagonal.ravel(), weights @ h**2, **close)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("solver", ["auto", "pcg"])
def test_a_planted_form_is_found(rng, form, solver):
    streams, positions = streams_of(rng, form, N=60)
    d_v, d_k = streams.states(positions).kind.matrix
    B = rng.standard_normal((d_k, 3))
    y = la.Heads(np.eye(d_v)[None], B[None])(streams, positions)
    fit = la.fit(streams, y, positions=positions, values="passed", solver=solver)
    assert np.allclose(fit.heads.Q[0], B, rtol=0, atol=1e-8)
    assert fit.certificate.verdict == "identifiable"
    assert fit.positions == positions
    for mine, theirs in zip(fit.predict(streams), y, strict=True):
        assert np.allclose(mine, theirs, rtol=0, atol=1e-8)
    covered = fit.certificate.covers(streams)
    leverage = fit.certificate.leverage(streams)
    for flags, sizes, one in zip(covered, leverage, y, strict=True):
        assert np.shape(flags) == np.shape(one)[:-1]
        assert np.shape(sizes) == np.shape(one)
        assert np.all(flags)


def test_many_memories_are_multiplied_in_parts(rng, monkeypatch):
    from linattn_fast.backend import passed_streams

    streams, positions = streams_of(rng, "all", N=700)
    y = rng.standard_normal((700, 4, 5))
    once = la.fit(streams, y, positions=positions, values="passed", alpha=0.1)
    monkeypatch.setattr(passed_streams, "_SUMMED_AT_ONCE", 1)
    monkeypatch.setattr(passed_streams, "_NUMBERS_AT_ONCE", 1000)
    parts = la.fit(streams, y, positions=positions, values="passed", alpha=0.1)
    assert np.allclose(once.coefficients, parts.coefficients, rtol=0, atol=1e-13)


def test_streams_of_other_outputs_are_refused(rng):
    streams, positions = streams_of(rng, "all")
    with pytest.raises(ValueError, match=r'^values: "passed" takes as many outputs'):
        la.fit(streams, np.ones((40, 4, 2)), positions=positions, values="passed")
