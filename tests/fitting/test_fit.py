import numpy as np
import pytest
import scipy.linalg
from conftest import EPS, plant, relative
from oracles import loops

import linattn_fast as la
from linattn_fast.backend.normal_operator import Gradient
from linattn_fast.linalg.choosing import factorise
from linattn_fast.solvers.accuracy import refine_on_data


@pytest.mark.parametrize("d", [2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("H", [1, 3, 5])
@pytest.mark.parametrize("outputs", ["one", "d"])
def test_planted_layers_are_recovered(rng, d, H, outputs):
    truth = plant(rng, d, H, 1 if outputs == "one" else d)
    p = d * d * (d + 1) // 2
    Z = rng.standard_normal((p + p // 2 + 30, 10, d))
    fit = la.fit(Z, truth(Z))
    assert relative(fit.coefficients, truth.coefficients()) < 1e-9
    assert fit.heads.distance(truth) < 1e-9 * np.linalg.norm(truth.coefficients())
    assert fit.certificate.verdict == "identifiable"
    for n in (1, 3, 40):  # lengths never seen in training
        new = rng.standard_normal((25, n, d))
        for positions in ("last", "all", "causal"):
            assert relative(fit.predict(new, positions), truth(new, positions)) < 1e-9


@pytest.mark.parametrize("d", [2, 4, 8])
@pytest.mark.parametrize("form", ["dense", "list", "flat"])
@pytest.mark.parametrize("mode", ["all", "causal"])
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_planted_layers_are_recovered_from_targets_at_every_token(rng, d, form, mode, precision):
    truth = plant(rng, d, 2, 3)
    sequences = [rng.standard_normal((n, d)) for n in rng.integers(1, 20, 20 + d**3)]
    offsets = None
    Z = sequences
    if form == "dense":
        Z = rng.standard_normal((20 + d**3, 12, d))
    if form == "flat":
        Z = np.concatenate(sequences)
        offsets = np.concatenate([[0], np.cumsum([len(z) for z in sequences])])
    y = truth(Z, mode, offsets=offsets)
    fit = la.fit(Z, y, positions=mode, offsets=offsets, precision=precision)
    assert relative(fit.coefficients, truth.coefficients()) < 1e-9
    assert fit.positions == mode
    predicted = fit.predict(Z, offsets=offsets)  # as in training
    if form == "list":
        predicted, y = np.concatenate(predicted), np.concatenate(y)
    assert relative(predicted, y) < 1e-9


def test_causal_targets_cannot_be_learned_as_if_every_token_saw_the_whole_sequence(rng):
    truth = plant(rng, 3, 1, 1)
    Z = rng.standard_normal((300, 20, 3))
    y = truth(Z, "causal")
    right, wrong = la.fit(Z, y, positions="causal").info, la.fit(Z, y, positions="all").info
    assert right.mean_squared_error < 1e-20 * right.mean_squared_target
    assert wrong.mean_squared_error > 0.05 * wrong.mean_squared_target


def test_numpy_backend_recovers_planted_layers_too(rng):
    truth = plant(rng, 4, 2, 3)
    Z = rng.standard_normal((120, 6, 4))
    fit = la.fit(Z, truth(Z, backend="numpy"), backend="numpy")
    assert relative(fit.coefficients, truth.coefficients()) < 1e-9
    assert fit.info.backend == "numpy"
    assert relative(fit.predict(Z, backend="numpy"), truth(Z)) < 1e-9


@pytest.mark.parametrize("form", ["list", "flat", "float32"])
def test_every_form_of_input_can_be_learned_from(rng, backend, form):
    truth = plant(rng, 3, 2, 2)
    lengths = rng.integers(1, 12, 90)
    sequences = [rng.standard_normal((n, 3)).astype(np.float32) for n in lengths]
    y = truth(sequences)
    if form == "flat":
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        fit = la.fit(np.concatenate(sequences), y, offsets=offsets, backend=backend)
    elif form == "list":
        fit = la.fit([z.astype(np.float64) for z in sequences], y, backend=backend)
    else:
        fit = la.fit(sequences, y, backend=backend)
    assert relative(fit.get().coefficients, truth.coefficients()) < 1e-9


def test_a_one_dimensional_y_means_one_output(rng):
    Z = rng.standard_normal((60, 5, 2))
    y = rng.standard_normal(60)
    a, b = la.fit(Z, y), la.fit(Z, y[:, None])
    np.testing.assert_array_equal(a.coefficients, b.coefficients)
    assert a.coefficients.shape == (1, 6)
    assert a.predict(Z).shape == (60,)
    assert b.predict(Z).shape == (60, 1)


def objective(C, H, y, w, alpha):
    errors = ((H @ C.T - y) ** 2).sum(axis=1)
    return np.average(errors, weights=w) + alpha * (C**2).sum()


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 10.0])
def test_the_fit_minimises_the_stated_objective(rng, backend, alpha):
    Z, y, w = rng.standard_normal((80, 5, 3)), rng.standard_normal((80, 2)), rng.random(80)
    fit = la.fit(Z, y, alpha=alpha, sample_weight=w, backend=backend).get()
    H = la.cubic_features(Z)
    W = w.sum()
    normal = (H * w[:, None]).T @ H / W + alpha * np.eye(18)
    expected = scipy.linalg.solve(normal, (H * w[:, None]).T @ y / W, assume_a="pos").T
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-8, atol=1e-11)
    best = objective(fit.coefficients, H, y, w, alpha)
    for _ in range(20):
        other = fit.coefficients + 1e-3 * rng.standard_normal(fit.coefficients.shape)
        assert objective(other, H, y, w, alpha) > best
    assert fit.info.mean_squared_error == pytest.approx(
        objective(fit.coefficients, H, y, w, 0.0), rel=1e-10
    )


def test_among_equal_minimisers_the_shortest_is_taken(rng, backend):
    Z = np.eye(3)[rng.integers(0, 3, (300, 5))]  # one-hot: always singular
    y = rng.standard_normal((300, 2))
    expected = np.linalg.lstsq(la.cubic_features(Z), y, rcond=None)[0].T
    fit = la.fit(Z, y, backend=backend).get()
    np.testing.assert_allclose(fit.coefficients, expected, atol=1e-11)
    assert fit.info.solver == "qr"
    assert "least norm" in fit.info.reason
    assert la.fit(Z, y, backend=backend, solver="eigh").info.solver == "eigh"
    moments = la.Moments(3, 2, backend=backend).update(Z, y)
    np.testing.assert_allclose(moments.fit().get().coefficients, expected, atol=1e-11)


@pytest.mark.parametrize("alpha", [0.0, 1e-2, 10.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_dual_gives_the_same_answer_as_the_primal(rng, backend, positions, alpha, weighted):
    Z, w = rng.standard_normal((30, 3, 5)), rng.random(30) if weighted else None  # p = 75
    Z = Z[:, :2] if positions != "last" else Z
    y = rng.standard_normal((30, 2) if positions == "last" else (30, 2, 2))
    given = {"positions": positions, "alpha": alpha, "sample_weight": w, "backend": backend}
    given["heads"] = None  # random targets have no few heads, and looking for them takes longest
    dual, primal = la.fit(Z, y, **given).get(), la.fit(Z, y, solver="eigh", **given).get()
    assert dual.info.solver == "dual"
    assert "samples are fewer than the 75 features" in dual.info.reason
    assert relative(dual.coefficients, primal.coefficients) < 1e-9
    for name in ("mean_squared_error", "mean_squared_target"):
        assert getattr(dual.info, name) == pytest.approx(
            getattr(primal.info, name), rel=1e-9, abs=1e-20
        )
    assert dual.certificate.verdict == primal.certificate.verdict == "not identifiable"


def test_the_dual_can_be_asked_for_with_many_samples_and_repeated_ones(rng):
    Z, y = rng.standard_normal((60, 4, 2)), rng.standard_normal(60)  # p = 6: a singular kernel
    fit = la.fit(Z, y, solver="dual")
    assert relative(fit.coefficients, la.fit(Z, y).coefficients) < 1e-9
    assert fit.certificate.verdict == "identifiable"
    assert fit.info.reason.startswith("asked for; the kernel is")
    repeated, targets = np.concatenate([Z[:3], Z[:3]]), np.arange(6.0)  # two targets each
    expected = np.linalg.lstsq(la.cubic_features(repeated), targets[:, None], rcond=None)[0].T
    found = la.fit(repeated, targets, solver="dual").coefficients
    assert relative(found, expected) < 1e-9
    with pytest.raises(ValueError, match="solver: 'dual' needs the data"):
        la.Moments(2, 1).update(Z, y).fit(solver="dual")


def test_the_dual_reports_what_is_not_finite(rng):
    Z = rng.standard_normal((10, 4, 5))
    for value, message in (
        (np.nan, "Z: must be finite, got nan in sequence 3"),
        (1e80, "overflow"),
    ):
        bad = Z.copy()
        bad[3] = value
        with pytest.raises(ValueError, match=message):
            la.fit(bad, np.zeros(10))


def test_fewer_samples_than_features_are_interpolated_with_least_norm(rng):
    Z, y = rng.standard_normal((40, 6, 5)), rng.standard_normal(40)
    fit = la.fit(Z, y)
    expected = np.linalg.lstsq(la.cubic_features(Z), y[:, None], rcond=None)[0].T
    assert relative(fit.coefficients, expected) < 1e-9
    np.testing.assert_allclose(fit.predict(Z), y, atol=1e-9)
    assert fit.certificate.verdict == "not identifiable"


def test_moments_alone_give_the_same_fit(rng):
    Z, y = rng.standard_normal((90, 5, 3)), rng.standard_normal((90, 2))
    a, b = la.fit(Z, y, alpha=0.1), la.Moments(3, 2).update(Z, y).fit(alpha=0.1)
    np.testing.assert_allclose(a.coefficients, b.coefficients, rtol=1e-10)
    assert b.info.mean_squared_error == pytest.approx(a.info.mean_squared_error, rel=1e-10)
    assert b.info.refinements == ()
    assert len(a.info.refinements) >= 1
    with pytest.raises(ValueError, match="d_out = 0"):
        la.Moments(3, 0).update(Z).fit()


@pytest.mark.parametrize("condition", [1.0, 20.0, 1e2])
@pytest.mark.parametrize("rotated", [False, True])
def test_refinement_on_the_data_undoes_the_squared_condition(condition, rotated):
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((600, 20, 4)) * np.logspace(0, -np.log10(condition), 4)
    if rotated:
        Z = Z @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    truth = plant(rng, 4, 2, 1)
    y = truth(Z)
    C = truth.coefficients()
    fit = la.fit(Z, y)
    moments = la.Moments(4, 1).update(Z, y).fit()
    # What a backward-stable method guarantees: rounding times the condition, not its square.
    assert relative(fit.coefficients, C) <= 10 * EPS * np.linalg.cond(la.cubic_features(Z))
    if rotated and condition > 20:
        assert relative(fit.coefficients, C) < 1e-3 * relative(moments.coefficients, C)
    if fit.info.solver == "cholesky":  # the first step is what forming the Gram had cost
        same = la.fit(Z, y, solver="cholesky")  # with the sums of the moments, bit for bit
        first, *later = same.info.refinements
        left = relative(same.coefficients, C) + sum(later)  # by the triangle inequality
        assert abs(first - relative(moments.coefficients, C)) <= 1.01 * left


@pytest.mark.parametrize(
    ("noise", "passes"),
    [(4e-9, 1), (1e-12, 2)],  # the second leaves a millionth of the error before
)
def test_the_error_after_a_correction_needs_no_pass_unless_it_cancels(rng, noise, passes):
    H, alpha, seen = rng.standard_normal((300, 18)), 1e-20, []
    truth = rng.standard_normal((2, 18))
    y = H @ truth.T + noise * rng.standard_normal((300, 2))
    choice = factorise(lambda: H.T @ H / 300 + alpha * np.eye(18))

    def gradient(C):
        rest = y - H @ C.T
        seen.append((rest**2).mean(axis=0).sum())
        return Gradient(rest.T @ H, (rest**2).sum(axis=0))

    start = truth + 5e-10 * rng.standard_normal(truth.shape)
    solution = refine_on_data(start, choice, alpha, 300.0, gradient)
    expected = ((y - H @ solution.coefficients.T) ** 2).sum() / 300
    assert len(solution.refinements) == 1
    assert len(seen) == passes
    assert expected < 0.9 * seen[0]  # the correction is seen in the error
    assert solution.mean_squared_error == pytest.approx(expected, rel=1e-3, abs=0)


def test_the_solver_can_be_chosen(rng):
    Z, y = rng.standard_normal((90, 5, 3)), rng.standard_normal(90)
    a, b = la.fit(Z, y, solver="cholesky"), la.fit(Z, y, solver="eigh")
    assert (a.info.solver, b.info.solver) == ("cholesky", "eigh")
    np.testing.assert_allclose(a.coefficients, b.coefficients, rtol=1e-10, atol=1e-13)
    with pytest.raises(np.linalg.LinAlgError, match="solver: 'cholesky' is not possible"):
        la.fit(Z[:10], y[:10], solver="cholesky")


def test_info_tells_how_the_fit_went(rng):
    Z, y = rng.standard_normal((90, 5, 3)), rng.standard_normal(90)
    fit = la.fit(Z, y)
    assert set(fit.info.seconds) == {"moments", "solve", "refine", "certify"}
    assert fit.heads is not None
    info = fit.info
    assert info.solver == "cholesky"
    assert info.n_samples == 90
    assert info.dimension == 18
    assert info.condition > 1
    assert info.bytes > 0
    assert set(info.seconds) == {"moments", "solve", "refine", "certify", "heads"}
    assert all(spent >= 0 for spent in info.seconds.values())
    assert info.mean_squared_target == pytest.approx((y**2).mean())
    assert "solver cholesky: a small problem" in str(info)
    assert la.fit(Z, y, heads=None).heads is None


def test_zero_targets_give_the_zero_layer(rng):
    fit = la.fit(rng.standard_normal((30, 4, 2)), np.zeros(30))
    assert not fit.coefficients.any()
    assert len(fit.heads) == 1


def test_all_zero_tokens_give_the_zero_layer(backend):
    fit = la.fit(np.zeros((30, 4, 2)), np.ones(30), backend=backend)
    assert not fit.coefficients.any()
    assert fit.certificate.verdict == "not identifiable"
    assert fit.certificate.rank == 0


@pytest.mark.parametrize("mean", [3.0, 30.0, 100.0])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("N", [60, 500])
def test_ill_conditioned_features_are_fitted_to_the_optimum(rng, positions, mean, alpha, N):
    """Tokens far from zero: features of condition up to 1e8, a Gram of 1e16."""
    truth = plant(rng, 3, 2, 2)
    Z = mean + rng.standard_normal((N, 8, 3))
    y = truth(Z, positions)
    fit = la.fit(Z, y, alpha=alpha, positions=positions)
    H = loops.all_features(Z, positions)
    rows = y.reshape(len(H), -1)
    augmented = np.concatenate([H / np.sqrt(len(H)), np.sqrt(alpha) * np.eye(18)])
    targets = np.concatenate([rows / np.sqrt(len(H)), np.zeros((18, 2))])
    expected = scipy.linalg.lstsq(augmented, targets)[0].T

    def objective(C):
        return ((augmented @ C.T - targets) ** 2).sum()

    size = (targets**2).sum()
    assert objective(fit.coefficients) <= objective(expected) * (1 + 1e-9) + 1e-24 * size
    assert fit.certificate.verdict != "not identifiable"
    assert fit.certificate.rank == 18
    if alpha == 0:
        assert relative(fit.coefficients, expected) <= 100 * EPS * np.linalg.cond(H)


def test_few_ill_conditioned_samples_are_interpolated(rng):
    Z = 100 + rng.standard_normal((30, 6, 4))  # p = 40
    y = rng.standard_normal((30, 1))
    fit = la.fit(Z, y)
    expected = scipy.linalg.lstsq(la.cubic_features(Z), y)[0].T
    assert relative(fit.predict(Z), y) <= 10 * relative(la.cubic_features(Z) @ expected.T, y) + 1e-9
    assert "decomposed" in fit.info.reason


def test_a_fallback_obeys_the_memory_limit(rng):
    Z = np.eye(4)[rng.integers(0, 4, (300, 5))]
    limit = la.estimate_memory(4, 1)["cholesky"]
    with pytest.raises(MemoryError, match="solver 'qr', needs"):
        la.fit(Z, np.ones(300), memory_limit=limit)
