"""What "auto" predicts, and what it takes for it."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.fitting import plan
from linattn_fast.fitting.call import as_problem
from linattn_fast.linalg.factors import NotSafe
from linattn_fast.solvers import costs, rates
from linattn_fast.solvers.costs import Kept, predict, predicted_seconds, relative_ridge


def few_samples(rng, alpha):
    """20 samples of 40 features."""
    Z, y = rng.standard_normal((20, 6, 4)), rng.standard_normal(20)
    return as_problem(Z, y, None, None, "last", None, "auto"), {"Z": Z, "y": y, "alpha": alpha}


def predicting(monkeypatch, **seconds):
    """Let the plan believe these seconds."""
    monkeypatch.setattr(plan, "predicted_seconds", lambda *_, **__: seconds)


@pytest.mark.parametrize("faster", ["dual", "pcg"])
def test_few_samples_with_a_ridge_take_the_faster_of_dual_and_passes(rng, monkeypatch, faster):
    _, arguments = few_samples(rng, 0.1)
    expected = la.fit(**arguments, solver="dual")
    predicting(monkeypatch, dual=1.0, pcg=2.0 if faster == "dual" else 0.5)
    fit = la.fit(**arguments)
    assert fit.info.solver == faster
    assert np.allclose(fit.coefficients, expected.coefficients, rtol=1e-8, atol=1e-12)
    assert fit.certificate.verdict == "not identifiable"


def test_few_samples_without_a_ridge_take_the_dual_whatever_is_predicted(rng, monkeypatch):
    _, arguments = few_samples(rng, 0.0)
    predicting(monkeypatch, dual=1.0, pcg=0.1)
    with pytest.warns(la.InterpolationWarning):
        assert la.fit(**arguments).info.solver == "dual"


def test_passes_of_unknown_accuracy_are_followed_by_the_dual(rng, monkeypatch):
    _, arguments = few_samples(rng, 0.1)
    predicting(monkeypatch, dual=1.0, pcg=0.1)
    monkeypatch.setattr(
        plan.conjugate_gradients, "solve_if_accurate", lambda task: NotSafe("nobody knows")
    )
    info = la.fit(**arguments).info
    assert info.solver == "dual"
    assert "nobody knows, so the kernel was taken" in info.reason


def test_samples_are_kept_for_the_asking_and_else_where_they_are_small(rng, monkeypatch):
    Z, y = rng.standard_normal((2000, 6, 3)), rng.standard_normal(2000)
    problem = as_problem(Z, y, None, None, "last", None, "auto")
    packed, narrow = 8 * (6 + 3 + 2) * 2000, 4 * 6 * 2000  # s, z, y and w; s in float32

    def kept(*, sparing, limit=None):
        return Kept.of(problem, limit, sparing=sparing)

    assert kept(sparing=True).packed >= packed
    assert kept(sparing=True).narrow >= narrow
    monkeypatch.setattr(costs, "_KEPT_FREELY", packed + packed // 8)
    assert kept(sparing=True).packed >= packed
    assert kept(sparing=True).narrow == 0
    monkeypatch.setattr(costs, "_KEPT_FREELY", packed // 2)
    assert kept(sparing=True) == Kept()
    assert kept(sparing=False).narrow >= narrow
    assert kept(sparing=False, limit=packed // 2) == Kept()


def test_a_default_fit_makes_many_samples_anew_and_conjugate_gradients_asked_for_keep_them(
    rng, monkeypatch
):
    Z, y = rng.standard_normal((400, 6, 3)), rng.standard_normal(400)
    predicting(monkeypatch, cholesky=2.0, pcg=1.0)
    monkeypatch.setattr(costs, "_KEPT_FREELY", 0)
    for name in ("fit_small", "fit_small_arrays"):
        monkeypatch.setattr(compiled.core, name, lambda *_: None)
    assert "samples made anew in every pass" in la.fit(Z, y).info.reason
    assert "samples kept" in la.fit(Z, y, solver="pcg").info.reason


def test_the_dual_is_left_to_few_samples_and_weak_ridges():
    """Kernels grow with N^3, iterations fall with the ridge: d = 64, half as many samples."""
    features = la.Features(64)
    n = features.count // 2
    strong, weak, none = (
        predict(features, 1, "last", n, n, proof=False, ridge=ridge) for ridge in (1.0, 1e-3, 0.0)
    )
    assert strong.pcg < weak.pcg < weak.dual
    assert none.pcg == np.inf
    small = predict(la.Features(8), 1, "last", 140, 140, proof=False, ridge=1e-3)
    assert small.dual < small.pcg


def test_samples_that_are_made_anew_make_passes_slower(rng):
    Z, y = rng.standard_normal((3000, 16, 8)), rng.standard_normal(3000)
    problem = as_problem(Z, y, None, None, "last", None, "auto")
    kept, anew = (
        predicted_seconds(problem, 0.0, kept, certify=False)["pcg"] for kept in (Kept(1, 1), Kept())
    )
    assert anew > kept


def test_ridges_are_relative_to_the_size_of_the_features(rng):
    """Cubic features of tokens ten times as large have mean squares 10^6 times as large."""
    problem, arguments = few_samples(rng, 0.1)
    larger = as_problem(10 * arguments["Z"], arguments["y"], None, None, "last", None, "auto")
    s, z = problem.samples.rows()
    mean_square = float(np.mean((s[:, :, None] * z[:, None, :]) ** 2))
    own = relative_ridge(problem.samples, 0.1)
    assert own == pytest.approx(0.1 / mean_square)
    assert relative_ridge(larger.samples, 0.1) == pytest.approx(1e-6 * own)
    assert relative_ridge(problem.samples, 0.0) == 0


def test_a_ridge_far_below_the_features_leaves_few_samples_to_the_dual(rng):
    problem, _ = few_samples(rng, 0.0)
    assert predicted_seconds(problem, 1e-12, Kept(), certify=True)["pcg"] == np.inf


def test_other_instruction_sets_have_a_share_of_the_flops(monkeypatch):
    class Narrow:
        @staticmethod
        def instruction_set():
            return "avx2"

    monkeypatch.setattr(compiled, "MISSING", None)
    monkeypatch.setattr(compiled, "core", Narrow, raising=False)
    assert rates.rates().gram == rates.AVX512.gram / 2
    assert rates.rates().bytes == rates.AVX512.bytes
    assert costs.predicted_iterations(3000, 1000, 0.0) > costs.predicted_iterations(9000, 1000, 0.0)
