"""A fit from a stream is the fit from memory."""

import numpy as np
import pytest
from conftest import EPS, plant
from stand_ins.stored import on_disk

import linattn_fast as la
from linattn_fast.data import sources
from linattn_fast.solvers.conjugate_gradients import solver

# ------------------------------------------------------------------------------------------ fitting


def planted(rng, positions, n=600, d=3, condition=1.0):
    """Mixed tokens of a condition number, and the targets of a planted layer."""
    Z = rng.standard_normal((n, 6, d)) * np.geomspace(1, 1 / condition, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    truth = plant(rng, d, 2, 2)
    return Z, truth(Z, positions), truth


@pytest.mark.parametrize("form", ["memmap", "list", "generator"])
def test_a_fit_from_a_stream_is_the_fit_from_memory(tmp_path, rng, positions, form, small_batches):
    Z, y, _ = planted(rng, positions)
    y = y + 0.1 * rng.standard_normal(y.shape)
    w = rng.random(len(Z))
    expected = la.fit(Z, y, positions=positions, sample_weight=w)
    if form == "memmap":
        fit = la.fit(on_disk(tmp_path, "Z", Z), y, positions=positions, sample_weight=w)
    else:
        parts = [slice(i, i + 70) for i in range(0, 600, 70)]
        stream = [(Z[part], y[part], w[part]) for part in parts]
        fit = la.fit(stream if form == "list" else iter(stream), positions=positions)
    assert_same_fit(fit, expected)
    assert fit.certificate.verdict == expected.certificate.verdict == "identifiable"
    assert fit.info.n_samples == expected.info.n_samples
    assert bool(fit.info.refinements) == (form != "generator")
    assert ("read once" in fit.info.reason) == (form == "generator")
    assert ("no data at hand" in str(fit.info)) == (form == "generator")


def assert_same_fit(fit, expected):
    """Coefficients to the rounding that their condition allows, errors to that of the targets."""
    size = np.linalg.norm(expected.coefficients)
    distance = np.linalg.norm(fit.coefficients - expected.coefficients)
    assert distance <= 100 * EPS * fit.info.condition * size
    assert fit.info.mean_squared_error == pytest.approx(
        expected.info.mean_squared_error, rel=1e-9, abs=1e-24
    )
    assert fit.info.mean_squared_target == pytest.approx(expected.info.mean_squared_target)


def test_a_second_reading_recovers_what_the_gram_lost(tmp_path, rng, small_batches):
    """Tokens of condition 30, features of 30^3 and a Gram of 30^6, which keeps half the digits."""
    Z, y, truth = planted(rng, "last", condition=30.0)
    wanted = truth.coefficients()
    refined = la.fit(on_disk(tmp_path, "Z", Z), y, heads=None)
    once = la.fit(((Z[i : i + 50], y[i : i + 50]) for i in range(0, 600, 50)), heads=None)
    errors = [np.linalg.norm(fit.coefficients - wanted) for fit in (refined, once)]
    assert errors[0] < errors[1] / 100
    assert refined.info.solver == once.info.solver == "cholesky"


@pytest.mark.parametrize("form", ["memmap", "list"])
@pytest.mark.parametrize("held", [True, False])
def test_conjugate_gradients_hold_a_stream_or_read_it_in_every_pass(
    tmp_path, rng, positions, form, held, small_batches, monkeypatch
):
    if not held:
        monkeypatch.setattr(solver, "room_for_samples", lambda *_, **__: 0)
    Z, y, _ = planted(rng, positions)
    y = y + 0.1 * rng.standard_normal(y.shape)
    w = rng.random(len(Z))
    expected = la.fit(Z, y, positions=positions, sample_weight=w, solver="pcg", heads=None)
    if form == "memmap":
        data = (on_disk(tmp_path, "Z", Z), y)
        fit = la.fit(*data, positions=positions, sample_weight=w, solver="pcg", heads=None)
    else:
        stream = [(Z[i : i + 90], y[i : i + 90], w[i : i + 90]) for i in range(0, 600, 90)]
        fit = la.fit(stream, positions=positions, solver="pcg", heads=None)
    assert_same_fit(fit, expected)
    assert fit.info.solver == "pcg"
    how = "held in float32" if held else "read in every pass"
    assert how in fit.info.reason
    assert ("passes in float32" in fit.info.reason) == held
    assert fit.certificate.lambda_min == pytest.approx(expected.certificate.lambda_min, rel=1e-6)
    assert fit.certificate.noise_samples == pytest.approx(expected.certificate.noise_samples)


def test_a_stream_whose_gram_does_not_fit_is_fitted_without_it(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 200_000)
    Z, y = rng.standard_normal((1500, 6, 10)), rng.standard_normal(1500)
    fit = la.fit(on_disk(tmp_path, "Z", Z), y, heads=None, certify=False, memory_limit=3_000_000)
    assert fit.info.solver == "pcg"
    assert fit.info.reason.startswith("Cholesky needs 6.4 MB, more than the 3 MB that may be used")
    assert_same_fit(fit, la.fit(Z, y, heads=None, certify=False, solver="cholesky"))


@pytest.mark.parametrize("form", ["memmap", "list"])
def test_singular_streams_are_solved_on_the_data(tmp_path, rng, form, small_batches):
    Z = rng.standard_normal((400, 5, 3))
    Z[:, :, 2] = Z[:, :, 0]
    y = plant(rng, 3, 1, 2)(Z)
    expected = la.fit(Z, y)
    data = (on_disk(tmp_path, "Z", Z), y)
    if form == "list":
        data = ([(Z[i : i + 7], y[i : i + 7]) for i in range(0, 400, 7)],)
    fit = la.fit(*data)
    assert fit.info.solver == expected.info.solver == "qr"
    assert fit.certificate.rank == expected.certificate.rank == 6
    assert fit.certificate.verdict == "not identifiable"
    np.testing.assert_allclose(fit.coefficients, expected.coefficients, atol=1e-10)


@pytest.mark.parametrize("form", ["memmap", "list", "generator"])
def test_streams_of_fewer_samples_than_features(tmp_path, rng, form, small_batches):
    Z, y = rng.standard_normal((100, 5, 6)), rng.standard_normal((100, 2))
    expected = la.fit(Z, y, heads=None)
    stream = [(Z[:60], y[:60]), (list(Z[60:]), y[60:])]
    data = {
        "memmap": (on_disk(tmp_path, "Z", Z), y),
        "list": (stream,),
        "generator": (iter(stream),),
    }[form]
    fit = la.fit(*data, heads=None)
    assert fit.info.solver == ("eigh" if form == "generator" else "dual")
    np.testing.assert_allclose(fit.coefficients, expected.coefficients, atol=1e-8)
    assert fit.certificate.rank == 100


@pytest.mark.parametrize("form", ["memmap", "iterable", "list"])
def test_what_the_dual_loads_counts_as_memory_and_is_told(tmp_path, rng, form, small_batches):
    Z, y = rng.standard_normal((100, 300, 6)), rng.standard_normal((100, 2))
    stream = [(Z[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]

    class Again:
        def __iter__(self):
            return iter(stream)

    given = {"memmap": (on_disk(tmp_path, "Z", Z), y), "iterable": (Again(),), "list": (stream,)}
    settings = {"heads": None, "certify": False}
    fit = la.fit(*given[form], solver="dual", **settings)
    assert "all samples of the stream loaded into memory" in fit.info.reason
    limit = la.estimate_memory(6, 2, n_samples=100)["qr"]
    assert la.estimate_memory(6, 2, n_samples=100)["dual"] < limit < Z.nbytes
    if form == "list":  # at hand already
        limited = la.fit(*given[form], solver="dual", memory_limit=limit, **settings)
        np.testing.assert_array_equal(limited.coefficients, fit.coefficients)
        return
    with pytest.raises(MemoryError, match="^Z: the stream, .* needs .* MB, memory_limit is"):
        la.fit(*given[form], solver="dual", memory_limit=limit, **settings)
    if form == "memmap":  # whose size is known, so another solver is taken
        other = la.fit(*given[form], memory_limit=limit, **settings)
        assert other.info.solver != "dual"
        np.testing.assert_allclose(other.coefficients, fit.coefficients, atol=1e-8)


def test_a_certificate_estimated_on_a_stream_says_what_can_answer_for_single_inputs(rng):
    Z, y = rng.standard_normal((300, 5, 3)), rng.standard_normal(300)
    stream = [(Z[:100], y[:100]), (Z[100:], y[100:])]
    certificate = la.fit(stream, solver="pcg", heads=None).certificate
    message = "^certificate: .*solver='pcg' on a stream or a cluster; make it with la.certify"
    for ask in (certificate.covers, certificate.leverage):
        with pytest.raises(ValueError, match=message):
            ask(Z[:2])
    moments = la.Moments(3, 1).update(stream)
    assert la.certify(moments).covers(Z[:2]).all()


def test_small_stored_arrays_give_the_bits_of_arrays(tmp_path, rng, positions):
    Z, y, _ = planted(rng, positions)
    expected = la.fit(Z, y, positions=positions)
    fit = la.fit(on_disk(tmp_path, "Z", Z), on_disk(tmp_path, "y", y), positions=positions)
    np.testing.assert_array_equal(fit.coefficients, expected.coefficients)


def test_bad_streams_of_a_fit_are_named(rng, small_batches):
    Z, y = rng.standard_normal((50, 4, 2)), rng.standard_normal(50)
    for stream, named, message in [
        (iter([]), {}, "^Z: the stream is empty"),
        ([(Z, y), (Z[:, :, :1], y)], {}, "^Z: tokens must have d = 2 .*in batch 1$"),
        ([(Z, y), (Z, np.ones((50, 2)))], {}, "^y: d_out = 1 targets.*in batch 1$"),
        ([(Z, y, 0 * y)] * 2, {}, "^sample_weight: at least one weight must be positive"),
        ([(Z, y, 0 * y)], {"solver": "dual"}, "^sample_weight: at least one weight must be"),
        (iter([(Z, y)]), {"solver": "qr"}, "^solver: 'qr' reads the data again"),
        (iter([(Z, y)]), {"solver": "pcg"}, "^solver: 'pcg' reads the data again"),
        ([(Z, y, 0 * y)] * 2, {"solver": "pcg"}, "^sample_weight: at least one weight"),
        (iter([(Z, y)]), {"sample_weight": y}, "^sample_weight: Z is an iterable of batches"),
    ]:
        with pytest.raises(ValueError, match=message):
            la.fit(stream, **named)
    with pytest.raises(TypeError, match="^y: "):
        la.fit(iter([Z]))


@pytest.mark.parametrize("size", [1e-52, 1e-170])
def test_conjugate_gradients_refuse_streams_whose_features_underflow(rng, size):
    batches = [(size * rng.standard_normal((30, 4, 2)), rng.standard_normal((30, 1))) for _ in "ab"]
    with pytest.raises(ValueError, match="underflow"):
        la.fit(batches, solver="pcg")
