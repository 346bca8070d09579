"""Small problems in one call: held to the usual path, to numpy, and to exact arithmetic."""

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest
from conftest import needs_cpu, ragged
from oracles.exact import Exact, relative_error
from scipy.optimize import brentq

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.fitting import small

pytestmark = needs_cpu


@pytest.fixture
def usual(monkeypatch):
    """A fit that does not try one call."""

    def fit(*arguments, **named):
        with monkeypatch.context() as patch:
            for name in ("fit_small", "fit_small_arrays"):
                patch.setattr(compiled.core, name, lambda *_: None)
            made = la.fit(*arguments, **named)
        assert small.WHY not in made.info.reason
        return made

    return fit


def planted(rng, d, N=150, n=7, d_out=2, noise=0.1):
    truth = la.Heads(rng.standard_normal((2, d_out, d)), rng.standard_normal((2, d, d)))
    Z = rng.standard_normal((N, n, d))
    return Z, truth(Z) + noise * rng.standard_normal((N, d_out))


def is_small(fit):
    return fit.info.reason.startswith(small.WHY)


def agree(one, other):
    """Coefficients to the errors that both claim; the rest to what estimates are good for."""
    assert one.info.solver == other.info.solver == "cholesky"
    assert one.info.n_samples == other.info.n_samples
    unit = np.abs(other.coefficients).max()  # whose square may overflow
    C, D = one.coefficients / unit, other.coefficients / unit
    claimed = one.info.coefficient_error + other.info.coefficient_error
    assert np.linalg.norm(C - D) <= 1.01 * claimed * np.linalg.norm(D)
    assert 0.1 < one.info.coefficient_error / other.info.coefficient_error < 10
    assert 0.1 < one.info.condition / other.info.condition < 10
    error, target = other.info.mean_squared_error, other.info.mean_squared_target
    assert one.info.mean_squared_target == pytest.approx(target, rel=1e-12)
    assert one.info.mean_squared_error == pytest.approx(error, rel=1e-9, abs=1e-24 * target)
    assert one.scalar_targets == other.scalar_targets
    mine, theirs = one.certificate, other.certificate
    assert mine.verdict == theirs.verdict == "identifiable"
    assert (mine.rank, mine.dimension) == (theirs.rank, theirs.dimension)
    assert mine.noise_samples == theirs.noise_samples
    assert mine.lambda_min == pytest.approx(theirs.lambda_min, rel=1e-3)
    assert mine.lower_bound > 0.998 * theirs.lower_bound
    assert mine.lower_bound < mine.lambda_min
    assert mine.condition == pytest.approx(theirs.condition, rel=0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 2])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
def test_it_agrees_with_the_usual_path(rng, usual, d, alpha):
    Z, y = planted(rng, d)
    fit = la.fit(Z, y, alpha=alpha)
    # Where a ridge is most of the matrix that is solved with, it tells little about lambda_min
    assert is_small(fit) == (fit.certificate.lambda_min > alpha)
    assert is_small(la.fit(Z, y, alpha=alpha, certify=False))
    agree(fit, usual(Z, y, alpha=alpha))


@pytest.mark.parametrize("unit", [1e-40, 1e-12, 1e9, 1e40])
@pytest.mark.parametrize("of_targets", [1e-90, 1.0, 1e90])
def test_units_do_not_matter(rng, usual, unit, of_targets):
    Z, y = planted(rng, 3)
    fit, other = la.fit(Z * unit, y * of_targets), usual(Z * unit, y * of_targets)
    agree(fit, other)
    assert np.allclose(fit.coefficients * (unit**3 / of_targets), la.fit(Z, y).coefficients)


@pytest.mark.parametrize("kind", ["float32", "weights", "list", "causal", "view", "integers"])
def test_every_form_of_data_agrees(rng, usual, kind):
    Z, y = planted(rng, 3)
    named = {}
    if kind == "float32":
        Z, y = Z.astype(np.float32), y.astype(np.float32)
    elif kind == "weights":
        named["sample_weight"] = rng.random(len(Z))
    elif kind == "list":
        Z = ragged(rng, len(Z), 3)
    elif kind == "causal":
        y, named["positions"] = rng.standard_normal(Z.shape[:2]), "causal"
    elif kind == "view":
        Z, y = Z[::2, :, ::-1], y[::2]
    else:
        Z = rng.integers(-9, 10, Z.shape)
    fit = la.fit(Z, y, **named)
    assert is_small(fit)
    agree(fit, usual(Z, y, **named))


@pytest.mark.parametrize("n_samples", [200, 256, 257, 2048])
def test_sequences_that_go_on_in_the_next_block_are_whole(rng, usual, n_samples):
    lengths = [5] * (n_samples // 5) + [n_samples % 5] * (n_samples % 5 > 0)
    Z = [rng.standard_normal((length, 2)) for length in lengths]
    y = [rng.standard_normal(length) for length in lengths]
    fit = la.fit(Z, y, positions="causal")
    assert is_small(fit)
    agree(fit, usual(Z, y, positions="causal"))


def test_numpy_finds_the_same(rng):
    Z, y = planted(rng, 4)
    H = la.cubic_features(Z)
    fit = la.fit(Z, y)
    expected = np.linalg.lstsq(H, y, rcond=None)[0].T
    assert np.allclose(fit.coefficients, expected, rtol=1e-10, atol=1e-12)
    values = np.linalg.eigvalsh(H.T @ H / len(H))
    assert fit.certificate.lambda_min == pytest.approx(values[0], rel=1e-8)
    assert fit.certificate.condition == pytest.approx(values[-1] / values[0], rel=1e-3)
    assert fit.info.mean_squared_error == pytest.approx(
        ((H @ expected.T - y) ** 2).sum(axis=1).mean(), rel=1e-12
    )


def held_to_exact_arithmetic(fit, Z, y, weights=None, alpha=0.0):
    """What is proved is true, and what is claimed of the coefficients."""
    exact = Exact.of(Z, "last", weights, targets=y.reshape(len(y), -1))
    certificate = fit.certificate
    assert certificate.lower_bound == 0 or exact.exceeds(certificate.lower_bound)
    assert (certificate.lower_bound > 0) == (certificate.verdict == "identifiable")
    if (claimed := fit.info.coefficient_error) is not None:
        assert relative_error(fit.coefficients, exact.coefficients(alpha)) <= claimed
    return exact


@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 1e5])
def test_ill_conditioned_tokens_keep_what_is_claimed(rng, condition, alpha):
    for _ in range(5):
        Z = rng.standard_normal((30, 4, 2)) * [1.0, 1 / condition]
        Z = Z @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
        y = rng.standard_normal((30, 1))
        fit = la.fit(Z, y, alpha=alpha)
        exact = held_to_exact_arithmetic(fit, Z, y, alpha=alpha)
        if condition == 1 and alpha == 0:
            assert is_small(fit)
            assert not exact.exceeds(1.0001 * fit.certificate.lambda_min)  # the oracle can say no


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 3e6, 1e7, 3e7, 1e8])
def test_violent_cancellation_does_not_fool_it(rng, size):
    """Tokens in pairs whose products cancel in S up to something ``size`` times smaller."""
    for _ in range(10):
        z = rng.standard_normal((40, 2, 2)) * size
        Z = np.concatenate([z, z * [1.0, -1.0], rng.standard_normal((40, 1, 2))], axis=1)
        y = rng.standard_normal(40)
        held_to_exact_arithmetic(la.fit(Z, y), Z, y)


@pytest.mark.parametrize("ratio", [0.0, 1e-14, 1e-10, 1e-6])
def test_small_eigenvalues_are_not_overclaimed(rng, ratio):
    """A few samples of full weight, and enough for full rank with a weight of ``ratio``."""
    for _ in range(10):
        Z, y = rng.standard_normal((24, 3, 2)), rng.standard_normal(24)
        weights = np.array([1.0] * 3 + [ratio] * 21)
        fit = la.fit(Z, y, sample_weight=weights)
        held_to_exact_arithmetic(fit, Z, y, weights)
        if ratio == 0:
            assert fit.certificate.verdict == "not identifiable"


@pytest.mark.parametrize("error", [2.0**-40, 2.0**-30, 2.0**-26])
def test_samples_that_nearly_coincide_are_not_overclaimed(rng, error):
    for _ in range(10):
        Z = np.repeat(rng.standard_normal((5, 3, 2)), 4, axis=0)  # rank 5 of 6, but for the error
        Z += error * rng.standard_normal(Z.shape)
        y = rng.standard_normal(20)
        held_to_exact_arithmetic(la.fit(Z, y), Z, y)


def test_bounds_count_what_rounding_may_have_taken(rng, monkeypatch):
    """A bound that forgets to round down, or its shift, is caught by the oracle."""
    Z, y = rng.standard_normal((30, 4, 2)), rng.standard_normal(30)
    exact = Exact.of(Z)
    honest = small.bound_on_mean
    monkeypatch.setattr(small, "bound_on_mean", lambda *given: 1.0011 * honest(*given))
    fit = la.fit(Z, y)
    assert is_small(fit)
    assert not exact.exceeds(fit.certificate.lower_bound)


@pytest.mark.parametrize(
    ("kept", "fraction"), [(0.9995, 0.999), (0.995, 0.99), (0.95, 0.9), (0.8, None)]
)
@pytest.mark.parametrize("taken", ["lost", "backward", "margin"])
def test_what_rounding_takes_is_subtracted_before_the_proof(rng, taken, kept, fraction):
    """A limit that leaves so much of lambda_min leaves the proof no more than that."""
    Z, y = rng.standard_normal((40, 5, 2)), rng.standard_normal((40, 1, 1))
    H, S = la.cubic_features(Z), np.einsum("nti,nti->ni", Z, Z)
    G = H.T @ H
    j, k = np.triu_indices(2)
    m = np.einsum("np,nl->pl", S[:, j] * S[:, k], Z[:, -1] ** 2).reshape(-1)
    D = np.exp2(-(np.frexp(np.diag(G))[1] >> 1))  # the diagonal of D G D is in [1/2, 2)
    whole = np.linalg.eigvalsh(G)[0]

    def left(limit):
        """lambda_min that is left, in the units of G."""
        if taken == "lost":
            return np.linalg.eigvalsh(G - limit * np.diag(m))[0]
        theta = limit * ((np.diag(G) - kept * whole) * D**2).sum() if taken == "backward" else limit
        return np.linalg.eigvalsh(G - theta * np.diag(D**-2.0))[0]

    limit = brentq(lambda limit: left(limit) - kept * whole, 0.0, 1.0, xtol=1e-14)
    none = {"lost": 0.0, "backward": 0.0, "margin": 0.0}
    limits = compiled.core.SmallLimits(
        level=1e-13, cancelled=1e-24, ridge=1e7, rounding=1.0, **(none | {taken: limit})
    )
    found = compiled.core.fit_small_arrays(Z, y, 0.0, limits, True)
    if fraction is None:
        assert found is None
        return
    *_, tau, proved, _ = found
    assert proved == fraction
    assert tau == pytest.approx(fraction * whole, rel=1e-9)


# ----------------------------------------------------------------------- what is left to others


def test_what_is_not_plain_sailing_goes_the_usual_way(rng, usual):
    Z, y = planted(rng, 3)
    hot = np.eye(3)[rng.integers(0, 3, (150, 7))]
    flat = Z * [1.0, 1.0, 0.0]
    single = rng.standard_normal((150, 1, 3))  # S = z z', so features repeat
    for tokens, targets in ((hot, y), (flat, y), (single, y), (Z, 0 * y), (Z[:12], y[:12])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit, other = la.fit(tokens, targets), usual(tokens, targets)
        assert not is_small(fit)
        assert np.array_equal(fit.coefficients, other.coefficients)
        assert fit.info.reason == other.info.reason
        assert fit.certificate == other.certificate


def test_underflow_goes_the_usual_way(rng, usual):
    Z, y = planted(rng, 2)
    Z[0] *= 1e-80  # whose products are below 2^-1022, while the others prove full rank
    assert not is_small(la.fit(Z, y))
    assert la.fit(Z, y).certificate == usual(Z, y).certificate


def test_bad_arguments_are_named(rng):
    Z, y = planted(rng, 3)
    broken = Z.copy()
    broken[5, 1, 2] = np.nan
    wrong = y.copy()
    wrong[3, 1] = np.inf
    calls = [
        ("Z: ", (broken, y), {}),
        ("y: ", (Z, wrong), {}),
        ("y: ", (Z, y[:-1]), {}),
        ("y: ", (Z, y[:, :0]), {}),
        ("Z: ", (Z[:, :0], y), {}),
        ("Z: ", (Z[0], y), {}),
        ("alpha: ", (Z, y), {"alpha": -1.0}),
        ("alpha: ", (Z, y), {"alpha": np.nan}),
        ("heads: ", (Z, y), {"heads": "few"}),
        ("solver: ", (Z, y), {"solver": "best"}),
        ("certify: ", (Z, y), {"certify": "quickly"}),
        ("precision: ", (Z, y), {"precision": "half"}),
        ("positions: ", (Z, y), {"positions": np.array(["last", "all"])}),
        ("backend: ", (Z, y), {"backend": "gpu"}),
        ("progress: ", (Z, y), {"progress": 3}),
        (r"fit\(\) got an unexpected keyword", (Z, y), {"alhpa": 1.0}),
    ]
    for message, arguments, named in calls:
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            la.fit(*arguments, **named)


def test_warnings_are_given_as_ever(rng):
    Z, y = planted(rng, 3, N=60)
    padded = Z.copy()
    padded[::2, -2:] = 0.0
    with pytest.warns(la.PaddingWarning):
        la.fit(padded, y)
    columns = rng.standard_normal((60, 2, 3))
    with pytest.warns(la.LayoutWarning):
        la.fit(columns, y)


def test_another_backend_is_taken_where_it_is_asked_for(rng, monkeypatch):
    Z, y = planted(rng, 2)
    assert la.fit(Z, y, backend="numpy").info.backend == "numpy"
    monkeypatch.setenv("LINATTN_BACKEND", "numpy")
    assert la.fit(Z, y).info.backend == "numpy"


# ---------------------------------------------------------------------- parts that are made later


def test_parts_are_made_once_whichever_thread_asks(rng):
    fit = la.fit(*planted(rng, 3))
    assert not {"info", "certificate", "heads"} & vars(fit).keys()
    found, barrier = [], threading.Barrier(8)

    def ask(name):
        barrier.wait()
        found.append((name, id(getattr(fit, name))))

    names = ("certificate", "heads") * 4
    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2
    assert fit.info.heads.startswith(str(len(fit.heads)))
    assert "heads" in fit.info.seconds


@pytest.mark.parametrize("asked", ["info", "heads", "nothing"])
def test_copies_and_pickles_are_whole(rng, asked):
    fit = la.fit(*planted(rng, 3, noise=0.0))
    getattr(fit, asked, None)
    for other in (copy.copy(fit), pickle.loads(pickle.dumps(fit))):
        assert "_later" not in vars(other)
        assert other.certificate.lambda_min == fit.certificate.lambda_min
        assert other.heads.distance(fit.heads) == 0
        assert other.info.reason == fit.info.reason
        assert other.info.heads == fit.info.heads


def test_later_parts_do_not_see_data_that_changed(rng):
    Z, y = planted(rng, 3)
    fit, same = la.fit(Z, y), la.fit(Z.copy(), y.copy())
    Z[:], y[:] = 0.0, 0.0
    assert fit.certificate == same.certificate
    assert fit.info.mean_squared_target == same.info.mean_squared_target


def test_what_was_not_asked_for_is_none(rng):
    fit = la.fit(*planted(rng, 3), heads=None, certify=False)
    assert is_small(fit)
    assert fit.heads is None
    assert fit.certificate is None
    assert fit.info.heads == ""
    with pytest.raises(AttributeError, match="no attribute 'head'"):
        _ = fit.head


def test_bits_do_not_depend_on_the_threads(rng):
    Z, y = planted(rng, 5)
    before = la.get_num_threads()
    try:
        la.set_num_threads(1)
        one = la.fit(Z, y)
        la.set_num_threads(3)
        three = la.fit(Z, y)
    finally:
        la.set_num_threads(before)
    assert np.array_equal(one.coefficients, three.coefficients)
    assert one.certificate == three.certificate
