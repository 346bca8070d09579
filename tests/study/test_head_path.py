"""The best layer with a given number of heads, from moments."""

import sys

import numpy as np
import pytest
from conftest import plant
from scipy.optimize import minimize

import linattn_fast as la


def noisy(rng, d, H, d_out, N=600, n=8, noise=0.1):
    """Tokens and targets of a planted layer with noise of a relative size."""
    truth = plant(rng, d, H, d_out)
    Z = rng.standard_normal((N, n, d))
    y = truth(Z)
    return Z, y + noise * y.std() * rng.standard_normal(y.shape)


def objective(fit_or_C, Z, y, alpha=0.0):
    C = getattr(fit_or_C, "coefficients", fit_or_C)
    return np.mean(np.sum((la.cubic_features(Z) @ C.T - y) ** 2, axis=1)) + alpha * np.sum(C**2)


def by_quasi_newton(Z, y, H, d, d_out, alpha, rng, starts=5):
    """An independent optimiser: L-BFGS on the entries of V and Q, from many random starts."""
    h = la.cubic_features(Z)
    gram, cross = h.T @ h / len(h), h.T @ y / len(h)
    energy = np.mean(np.sum(y**2, axis=1))
    unit = np.sqrt(np.sqrt(np.abs(np.linalg.solve(gram, cross)).mean()))
    j, k = np.triu_indices(d)
    split = H * d_out * d

    def value(x):
        V, Q = unit * x[:split].reshape(H, d_out, d), unit * x[split:].reshape(H, d, d)
        C = la.Heads(V, Q).coefficients()
        G = 2 * (C @ gram - cross.T + alpha * C)  # (d_out, p)
        W = np.zeros((d_out, d, d, d))
        W[:, j, k] = W[:, k, j] = G.reshape(d_out, -1, d)
        gradient = [np.einsum("ajkl,hkl->haj", W, Q), np.einsum("ajkl,haj->hkl", W, V)]
        loss = np.vdot(C @ gram, C) - 2 * np.vdot(C, cross.T) + energy + alpha * np.sum(C**2)
        return loss / energy, unit * np.concatenate([g.ravel() for g in gradient]) / energy

    size = split + H * d * d
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}
    ends = [
        minimize(value, rng.standard_normal(size), jac=True, method="L-BFGS-B", options=options)
        for _ in range(starts)
    ]
    return energy * min(end.fun for end in ends)


@pytest.mark.parametrize(
    ("d", "H", "d_out", "alpha"), [(2, 1, 1, 0.0), (3, 1, 2, 0.0), (3, 2, 3, 0.0), (3, 1, 3, 2.0)]
)
def test_no_other_optimiser_finds_better_heads(rng, d, H, d_out, alpha):
    Z, y = noisy(rng, d, H + 1, d_out, N=120, noise=0.3)
    fit = la.fit(Z, y, heads=H, alpha=alpha)
    assert len(fit.heads) == H
    other = by_quasi_newton(Z, y, H, d, d_out, alpha, rng)
    assert objective(fit, Z, y, alpha) <= other * (1 + 1e-6)


def test_the_best_single_head_of_one_coordinate_is_exact(rng):
    Z, y = rng.standard_normal((50, 3, 1)), rng.standard_normal((50, 1))
    fit = la.fit(Z, y, heads=1)
    h = la.cubic_features(Z)
    np.testing.assert_allclose(fit.coefficients, y.T @ h / (h.T @ h), rtol=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_a_fit_with_few_heads_is_what_its_heads_compute(rng, alpha):
    Z, y = noisy(rng, 4, 3, 2)
    fit = la.fit(Z, y, heads=2, alpha=alpha)
    convex = la.fit(Z, y, alpha=alpha, heads=None)
    assert len(fit.heads) == 2
    np.testing.assert_allclose(fit.coefficients, fit.heads.coefficients(), rtol=1e-12)
    np.testing.assert_allclose(fit.predict(Z), fit.heads(Z), rtol=1e-9, atol=1e-9)
    report = fit.heads.recovery
    assert report.method == "fit"
    assert report.loss == pytest.approx(objective(fit, Z, y, alpha), rel=1e-10)
    assert report.convex_loss == pytest.approx(objective(convex, Z, y, alpha), rel=1e-10)
    assert report.loss > report.convex_loss
    assert fit.info.mean_squared_error == pytest.approx(objective(fit, Z, y), rel=1e-10)
    assert "convex optimum" in str(fit.info)


def test_moments_and_data_give_the_same_heads(rng):
    Z, y = noisy(rng, 4, 2, 3)
    few = la.Moments(4, 3).update(Z, y).fit(heads=2)
    np.testing.assert_allclose(few.heads.V, la.fit(Z, y, heads=2).heads.V, rtol=1e-4, atol=1e-6)


def test_few_heads_with_fewer_samples_than_features(rng):
    Z, y = noisy(rng, 4, 2, 4, N=30)
    fit = la.fit(Z, y, heads=1)
    assert fit.info.solver == "dual"
    assert fit.heads.recovery.loss == pytest.approx(objective(fit, Z, y), rel=1e-8)
    with pytest.raises(MemoryError, match="heads = 1"):
        la.fit(Z, y, heads=1, memory_limit=100)


@pytest.mark.parametrize("positions", ["all", "causal"])
def test_few_heads_of_every_position(rng, positions):
    truth = plant(rng, 3, 1, 3)
    Z = rng.standard_normal((60, 6, 3))
    y = truth(Z, positions)
    fit = la.fit(Z, y + 0.01 * rng.standard_normal(y.shape), positions=positions, heads=1)
    assert fit.heads.distance(truth) <= 0.01 * np.linalg.norm(truth.coefficients())


def test_enough_heads_cost_nothing(rng):
    Z, y = noisy(rng, 4, 2, 4, noise=0.0)
    fit = la.fit(Z, y, heads=3)
    assert len(fit.heads) == 2 or fit.heads.recovery.residual < 1e-10
    assert fit.info.mean_squared_error <= 1e-20 * fit.info.mean_squared_target


def test_a_layer_of_zeros_has_one_zero_head(rng):
    Z = rng.standard_normal((50, 4, 3))
    fit = la.fit(Z, np.zeros((50, 2)), heads=2)
    assert len(fit.heads) == 1
    assert not fit.coefficients.any()
    path = la.head_path(la.Moments(3, 2).update(Z, np.zeros((50, 2))), 2)
    assert path.losses.tolist() == [0.0, 0.0]


def test_units_do_not_matter(rng):
    Z, y = noisy(rng, 3, 2, 3)
    plain = la.fit(Z, y, heads=1)
    for tokens, targets in [(1e6, 1.0), (1e-6, 1.0), (1.0, 1e30), (1.0, 1e-30)]:
        fit = la.fit(tokens * Z, targets * y, heads=1)
        expected = plain.coefficients * targets / tokens**3
        np.testing.assert_allclose(
            fit.coefficients, expected, rtol=1e-5, atol=1e-6 * expected.max()
        )


def test_the_path_has_its_knee_at_the_true_number(rng):
    Z, y = noisy(rng, 5, 3, 5, N=2000, noise=0.1)
    moments = la.Moments(5, 5).update(Z, y)
    path = la.head_path(moments, 5)
    assert path.n_heads == (1, 2, 3, 4, 5)
    assert [len(heads) for heads in path.heads] == [1, 2, 3, 4, 5]
    excess = path.losses - path.convex_loss
    assert excess[1] > 5 * excess[2]
    assert excess[2] < 3 * excess[4]
    assert (np.diff(path.losses) <= 0).all()
    assert (excess >= 0).all()
    for heads, loss in zip(path.heads, path.losses, strict=True):
        assert moments.loss(heads.coefficients()) == pytest.approx(loss, rel=1e-9)
        np.testing.assert_allclose(heads.normalized().V, heads.V, atol=1e-6)
    fit = moments.fit(heads=3)
    assert fit.heads.recovery.loss == pytest.approx(path.losses[2], rel=1e-6)


def test_the_path_of_exact_data_ends_where_the_heads_do(rng):
    Z, y = noisy(rng, 4, 2, 4, noise=0.0)
    path = la.head_path(la.Moments(4, 4).update(Z, y), 4)
    assert [len(heads) for heads in path.heads] == [1, 2, 2, 2]
    energy = np.mean(np.sum(y**2, axis=1))
    assert path.losses[0] > 1e-3 * energy
    assert path.losses[1] < 1e-14 * energy


def test_a_ridge_is_part_of_the_path(rng):
    Z, y = noisy(rng, 3, 2, 2)
    path = la.head_path(la.Moments(3, 2).update(Z, y), 3, alpha=10.0)
    assert path.convex_loss == pytest.approx(
        objective(la.fit(Z, y, alpha=10.0, heads=None), Z, y, 10.0)
    )
    for heads, loss in zip(path.heads, path.losses, strict=True):
        assert objective(heads.coefficients(), Z, y, 10.0) == pytest.approx(loss)
    assert (np.diff(path.losses) <= 0).all()


def test_few_heads_repeat_bit_by_bit(rng):
    Z, y = noisy(rng, 4, 2, 4)
    moments = la.Moments(4, 4).update(Z, y)
    first, second = moments.fit(heads=2), moments.fit(heads=2)
    assert first.heads.V.tobytes() == second.heads.V.tobytes()


def test_the_path_is_drawn(rng, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    Z, y = noisy(rng, 3, 1, 3, noise=0.0)
    path = la.head_path(la.Moments(3, 3).update(Z, y), 2)
    path.plot(tmp_path / "path.png")
    assert (tmp_path / "path.png").stat().st_size > 1000
    ax = Figure().subplots()
    assert path.plot(ax) is ax
    assert ax.get_yscale() == "log"
    assert len(ax.lines) == 2
    assert path.plot().get_xlabel() == "heads"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"linattn-fast\[plot\]"):
        path.plot()


@pytest.mark.parametrize("heads", ["minimal", 1])
def test_saved_fits_keep_how_heads_were_found(rng, tmp_path, heads):
    Z, y = noisy(rng, 3, 2, 3, noise=0.0)
    fit = la.fit(Z, y, heads=heads)
    fit.save(tmp_path / "fit.npz")
    loaded = la.load(tmp_path / "fit.npz")
    assert loaded.heads.recovery == fit.heads.recovery
    assert loaded.info == fit.info
    np.testing.assert_array_equal(loaded.heads.Q, fit.heads.Q)


@pytest.mark.parametrize("heads", ["magic", 0, -1, 1.5, True, [2], "2"])
def test_wrong_numbers_of_heads_are_named(rng, heads):
    with pytest.raises(ValueError, match="^heads: "):
        la.fit(np.ones((5, 2, 2)), np.ones(5), heads=heads)


def test_wrong_arguments_of_a_path_are_named(rng):
    moments = la.Moments(2, 1).update(rng.standard_normal((30, 3, 2)), rng.standard_normal(30))
    with pytest.raises(ValueError, match="^max_heads"):
        la.head_path(moments, 0)
    with pytest.raises(TypeError, match="^moments: Moments are needed"):
        la.head_path(np.zeros(3), 2)
    with pytest.raises(ValueError, match="^alpha"):
        la.head_path(moments, 2, alpha=-1.0)
    with pytest.raises(ValueError, match="^moments: nothing to average"):
        la.head_path(la.Moments(2, 1), 2)
