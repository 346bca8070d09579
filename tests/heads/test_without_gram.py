"""The best layer with a given number of heads, by passes over the data."""

import numpy as np
import pytest
from conftest import plant
from stand_ins.stored import on_disk

import linattn_fast as la
from linattn_fast.backend.normal_operator import NumpyNormalOperator
from linattn_fast.features.samples import Samples
from linattn_fast.fitting import plan
from linattn_fast.heads.number.passes import ByCoefficients, BySamples
from linattn_fast.heads.number.without_gram import _leading, _White
from linattn_fast.problem.in_memory import InMemory
from linattn_fast.solvers.costs import HeadCosts


def data(rng, d, H, d_out, positions="last", N=400, noise=0.1):
    """Mixed tokens of different sizes, targets of a planted layer with noise, and the layer."""
    truth = plant(rng, d, H, d_out)
    Z = rng.standard_normal((N, 6, d)) * np.geomspace(1, 0.3, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    y = truth(Z, positions)
    return Z, y + noise * y.std() * rng.standard_normal(y.shape), truth


def by_loops(samples, V, Q):
    """Error and gradient of heads, one sample after another."""
    table = np.zeros((V.shape[2],) * 2, dtype=int)
    j, k = np.triu_indices(V.shape[2])
    table[j, k] = table[k, j] = np.arange(len(j))
    gV, gQ, error = np.zeros_like(V), np.zeros_like(Q), np.zeros(V.shape[1])
    for s, z, y, w in zip(
        *samples.rows(), samples.targets.rows(), samples.weight_of_each(), strict=True
    ):
        S = s[table]
        r = y - sum(v @ S @ q @ z for v, q in zip(V, Q, strict=True))
        error += w * r**2
        for h in range(len(V)):
            gV[h] += w * np.outer(r, S @ Q[h] @ z)
            gQ[h] += w * np.outer(S @ V[h].T @ r, z)
    return gV, gQ, error


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("derivatives", [False, True])
def test_sums_over_samples_are_those_of_loops(rng, positions, derivatives, ragged):
    d, d_out, lengths = 3, 2, rng.integers(1, 6, 20) if ragged else np.full(20, 4)
    Z = [rng.standard_normal((n, d)) for n in lengths]
    truth = plant(rng, d, 1, d_out)
    y = truth(Z, positions)
    samples = Samples.checked(Z, y, sample_weight=rng.random(20), positions=positions)
    problem = InMemory.of(samples)
    V, Q = rng.standard_normal((2, d_out, d)), rng.standard_normal((2, d, d))
    dV, dQ = rng.standard_normal(V.shape), rng.standard_normal(Q.shape)
    expected = by_loops(samples, V, Q)
    by = BySamples(problem.read, keep=True, keep_derivatives=derivatives)
    other = ByCoefficients(NumpyNormalOperator(samples)).at(V, Q)
    for point in (by.at(V, Q), by.at(V, Q), other):  # made, kept, and from coefficients
        for found, each in zip(point.sums, expected, strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-10, atol=1e-10 * abs(each).max())
        for found, each in zip(point.normal(dV, dQ), other.normal(dV, dQ), strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-10, atol=1e-10 * abs(each).max())


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize(("d", "H", "d_out"), [(3, 1, 1), (4, 2, 3), (5, 2, 5)])
def test_passes_find_what_the_gram_finds(rng, positions, d, H, d_out, alpha):
    Z, y, _ = data(rng, d, H, d_out, positions)
    gram = la.fit(Z, y, positions=positions, heads=H, alpha=alpha, solver="cholesky")
    fit = la.fit(Z, y, positions=positions, heads=H, alpha=alpha, solver="pcg")
    found, expected = fit.heads.recovery, gram.heads.recovery
    assert len(fit.heads) == H
    assert found.loss <= expected.loss * (1 + 1e-6)
    # The convex optimum has no local minima to differ by
    assert found.convex_loss == pytest.approx(expected.convex_loss, rel=1e-4)
    convex = la.fit(Z, y, positions=positions, heads=None, alpha=alpha)
    C = convex.coefficients
    best = convex.info.mean_squared_error + alpha * np.sum(C**2)
    true_gap = found.loss - best
    assert found.gap <= true_gap * (1 + 1e-6)  # something that good was seen
    assert found.gap >= 0.95 * true_gap
    assert true_gap <= found.gap_at_most * (1 + 1e-9)
    assert fit.info.mean_squared_error + alpha * np.sum(fit.coefficients**2) == pytest.approx(
        found.loss
    )
    np.testing.assert_allclose(fit.coefficients, fit.heads.coefficients(), rtol=1e-12)
    assert "gap" in str(fit.info)


@pytest.mark.parametrize(("d", "H", "d_out"), [(3, 1, 1), (4, 2, 1), (6, 3, 2), (5, 1, 5)])
@pytest.mark.parametrize("solver", ["cholesky", "pcg"])
def test_no_gap_is_left_where_the_heads_suffice(rng, positions, d, H, d_out, solver):
    Z, y, truth = data(rng, d, H, d_out, positions, noise=0.0)
    fit = la.fit(Z, y, positions=positions, heads=H, solver=solver)
    assert fit.heads.distance(truth) < 1e-7 * np.linalg.norm(truth.coefficients())
    assert fit.heads.recovery.gap <= 1e-20 * fit.info.mean_squared_target
    if solver == "pcg":  # a Gram has rounding of its own in the objective
        assert fit.heads.recovery.gap_at_most <= 1e-20 * fit.info.mean_squared_target


def test_heads_are_found_with_fewer_samples_than_features(rng):
    """150 samples, 288 features, 84 unknowns."""
    Z, y, truth = data(rng, 8, 1, 2, N=150, noise=0.0)
    fit = la.fit(Z, y, heads=1, solver="pcg")
    assert fit.heads.distance(truth) < 1e-7 * np.linalg.norm(truth.coefficients())
    assert fit.certificate.verdict == "not identifiable"  # of other layers with more heads


def test_passes_are_taken_where_a_gram_does_not_fit(rng):
    Z, y, _ = data(rng, 12, 2, 2, N=2500)
    limit = la.estimate_memory(12, 2)["cholesky"] - 1
    fit = la.fit(Z, y, heads=2, memory_limit=limit, certify=False)
    assert fit.info.solver == "pcg"
    assert "Cholesky needs" in fit.info.reason
    roomy = la.fit(Z, y, heads=2)
    assert roomy.info.solver == "cholesky"
    assert fit.heads.recovery.loss == pytest.approx(roomy.heads.recovery.loss, rel=1e-6)
    with pytest.raises(MemoryError, match="heads = 2"):
        la.fit(Z, y, heads=2, memory_limit=1000)


def test_passes_are_taken_where_a_gram_would_take_longer(rng, monkeypatch):
    Z, y, _ = data(rng, 4, 1, 1)
    monkeypatch.setattr(plan.HeadCosts, "seconds", 0.0)
    fit = la.fit(Z, y, heads=1)
    assert fit.info.solver == "pcg"
    assert "with a Gram and 0 s by passes" in fit.info.reason


@pytest.mark.parametrize("form", ["memmap", "list"])
def test_streams_are_read_in_every_pass(tmp_path, rng, positions, form, small_batches):
    Z, y, _ = data(rng, 3, 1, 2, positions)
    w = rng.random(len(Z))
    named = {"positions": positions, "heads": 1, "solver": "pcg"}
    expected = la.fit(Z, y, sample_weight=w, **named)
    if form == "memmap":
        fit = la.fit(on_disk(tmp_path, "Z", Z), y, sample_weight=w, **named)
    else:
        parts = [slice(i, i + 70) for i in range(0, 400, 70)]
        fit = la.fit([(Z[part], y[part], w[part]) for part in parts], **named)
    assert fit.heads.recovery.loss == pytest.approx(expected.heads.recovery.loss, rel=1e-7)


def test_an_iterator_cannot_be_read_again(rng):
    Z, y, _ = data(rng, 3, 1, 2)
    with pytest.raises(ValueError, match="^solver: 'pcg' reads the data again"):
        la.fit(iter([(Z, y)]), heads=1, solver="pcg")
    assert la.fit(iter([(Z, y)]), heads=1).info.solver == "cholesky"


def test_coefficients_do_where_samples_are_elsewhere(rng, monkeypatch):
    """As on a cluster, where nothing is read here."""
    Z, y, _ = data(rng, 4, 2, 2)
    expected = la.fit(Z, y, heads=2, solver="pcg")
    monkeypatch.setattr(InMemory, "read", None)
    fit = la.fit(Z, y, heads=2, solver="pcg", certify=False)
    assert fit.heads.recovery.loss == pytest.approx(expected.heads.recovery.loss, rel=1e-7)


def test_chosen_features_are_refused(rng):
    Z, y, _ = data(rng, 3, 1, 1)
    with pytest.raises(ValueError, match="^heads: a number of heads needs the moments of all"):
        la.fit(Z, y, heads=1, solver="pcg", features=la.Features(3, queries=[0]))


def test_zero_targets_have_a_zero_head(rng):
    Z = rng.standard_normal((60, 4, 3))
    fit = la.fit(Z, np.zeros((60, 2)), heads=2, solver="pcg")
    assert len(fit.heads) == 1
    assert not fit.coefficients.any()
    assert fit.heads.recovery.gap == fit.heads.recovery.gap_at_most == 0


def test_units_of_tokens_and_targets_do_not_matter(rng):
    Z, y, _ = data(rng, 3, 2, 2)
    plain = la.fit(Z, y, heads=1, solver="pcg")
    for tokens, targets in [(1e6, 1.0), (1e-6, 1.0), (1.0, 1e30), (1.0, 1e-30)]:
        fit = la.fit(tokens * Z, targets * y, heads=1, solver="pcg")
        expected = plain.coefficients * targets / tokens**3
        np.testing.assert_allclose(
            fit.coefficients, expected, rtol=1e-4, atol=1e-5 * abs(expected).max()
        )


def test_progress_is_told_and_an_interrupt_keeps_the_best(rng):
    Z, y, _ = data(rng, 4, 2, 2)
    seen = []
    la.fit(Z, y, heads=2, solver="pcg", progress=lambda *told: seen.append(told))
    starts = [i for i, (done, _) in enumerate(seen) if done == 1]
    assert len(starts) == 2  # conjugate gradients, then heads
    calls = len(seen[: starts[1]])

    def stop(done, total):
        nonlocal calls
        calls -= 1
        if calls < -3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        la.fit(Z, y, heads=2, solver="pcg", progress=stop)
    C = stopped.value.iterate
    assert C.shape == (2, 40)
    found = np.mean(np.sum((la.cubic_features(Z) @ C.T - y) ** 2, axis=1))
    assert found < np.mean(np.sum(y**2, axis=1))
    assert len(la.recover_heads(C, 4)) <= 2


def test_the_gap_is_kept_in_files(rng, tmp_path):
    Z, y, _ = data(rng, 3, 2, 2)
    fit = la.fit(Z, y, heads=1, solver="pcg")
    fit.save(tmp_path / "fit.npz")
    assert la.load(tmp_path / "fit.npz").heads.recovery == fit.heads.recovery


def test_white_coordinates_compute_the_same_function(rng):
    A = rng.standard_normal((4, 4))
    white = _White(A @ A.T)
    truth = plant(rng, 4, 2, 3)
    X = rng.standard_normal((5, 6, 4))
    inside = la.Heads(*_heads_of(white.coefficients(truth.coefficients())))
    np.testing.assert_allclose(inside(X), truth(X @ white.R.T), rtol=1e-8)
    outside = la.Heads(*white.back(inside.V, inside.Q))
    np.testing.assert_allclose(outside.coefficients(), truth.coefficients(), rtol=1e-7, atol=1e-9)


def _heads_of(C):
    heads = la.recover_heads(C, 4, "svd")
    return heads.V, heads.Q


def test_leading_values_are_those_of_the_svd(rng, monkeypatch):
    C = plant(rng, 5, 2, 4).coefficients() + 1e-3 * rng.standard_normal((4, 75))
    expected = _leading(C, 5, 2)
    monkeypatch.setattr("linattn_fast.heads.number.without_gram._DENSE", 0)
    found = _leading(C, 5, 2)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    for a, b in zip(found[2], expected[2], strict=True):
        assert abs(np.vdot(a, b)) == pytest.approx(1, abs=1e-4)


def test_what_is_kept_fits_in_memory():
    costs = HeadCosts(n_samples=1000, d=8, d_out=1, H=2)
    assert costs.kept(10**9, again=True) == (True, True)
    assert costs.kept(10**9, again=False) == (False, False)
    assert costs.kept(1000, again=True) == (False, False)
    assert HeadCosts(1000, 8, 8, 8).kept(10**9, again=True) == (True, False)
