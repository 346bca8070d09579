"""Fits by conjugate gradients: memory, certificate, progress, and when they are chosen."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from conftest import needs_cpu, plant, relative, run_python

import linattn_fast as la
from linattn_fast.solvers.costs import predict


def test_auto_turns_to_pcg_where_cholesky_fails_and_orthogonal_transformations_do_not_fit(rng):
    d = 8
    Z = rng.standard_normal((1200, 12, d)) * np.logspace(0, -3, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    C = rng.standard_normal((1, la.Features(d).count))
    y = la.cubic_features(Z) @ C.T
    given = {"heads": None, "certify": False}
    roomy = la.fit(Z, y, **given)
    assert roomy.info.solver == "qr"
    estimate = la.estimate_memory(d, 1, n_samples=1200)
    limit = (max(estimate["cholesky"], estimate["pcg"]) + estimate["qr"]) // 2
    fit = la.fit(Z, y, memory_limit=limit, **given)
    assert fit.info.solver == "pcg"
    assert "orthogonal transformations do not fit" in fit.info.reason
    assert {"moments", "solve"} <= fit.info.seconds.keys()
    assert relative(fit.coefficients, C) < 10 * relative(roomy.coefficients, C)


@needs_cpu
def test_samples_are_kept_only_where_memory_allows(rng):
    Z, y = rng.standard_normal((5000, 4, 6)), rng.standard_normal(5000)
    least = la.estimate_memory(6, 1, n_samples=5000)["pcg"]
    given = {"solver": "pcg", "heads": None, "certify": False}
    kept, made = la.fit(Z, y, **given), la.fit(Z, y, memory_limit=least, **given)
    assert "samples kept" in kept.info.reason
    assert "samples made anew" in made.info.reason
    assert made.info.bytes == least < kept.info.bytes
    np.testing.assert_array_equal(kept.coefficients, made.coefficients)
    with pytest.raises(MemoryError, match=r"solver 'pcg', needs .* memory_limit is"):
        la.fit(Z, y, memory_limit=least - 1, **given)


@needs_cpu
@pytest.mark.skipif("LINATTN_SANITIZED" in os.environ, reason="sanitizers use memory themselves")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_memory_stays_within_the_estimate():
    outcome = run_python(
        """
import numpy as np, linattn_fast as la
Z = np.random.default_rng(0).standard_normal((20_000, 2, 20))
y = Z[:, 0, 0].copy()
given = {"solver": "pcg", "heads": None, "certify": False, "alpha": 1.0}
la.fit(Z[:, :, :3], y, **given)  # load everything that is loaded once
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
info = la.fit(Z, y, **given).info
print((peak() - before) * 1024, info.bytes, la.estimate_memory(20, n_samples=20_000)["cholesky"])
""",
        LINATTN_NUM_THREADS="2",
    )
    assert outcome.returncode == 0, outcome.stderr
    used, estimated, gram = map(int, outcome.stdout.split())
    assert used < estimated < gram / 2


def one_spike(rng, positions):
    Z = rng.standard_normal((900, 5, 5))  # 75 features: an iteration, not a dense matrix
    y = np.zeros(900 if positions == "last" else (900, 5))
    y[0] = 1.0
    return Z, y


def test_a_part_of_the_samples_proves_the_certificate(rng, positions):
    Z, y = one_spike(rng, positions)
    certificate = la.fit(Z, y, positions=positions, solver="pcg", heads=None).certificate
    sharp = la.certify(Z, positions=positions)
    assert certificate.verdict == "identifiable"
    assert re.search(r"of \d+ of the \d+ samples", certificate.evidence)
    assert 0 < certificate.lower_bound < sharp.lower_bound
    assert sharp.lower_bound <= certificate.lambda_min < 1.05 * sharp.lambda_min
    assert certificate.condition == pytest.approx(sharp.condition, rel=0.1)
    assert certificate.rank == 75
    np.testing.assert_allclose(certificate.leverage(Z[:3]), sharp.leverage(Z[:3]), rtol=1e-6)
    np.testing.assert_array_equal(certificate.covers(Z[:3], positions=positions), True)


def test_the_certificate_of_a_stream_is_proved_by_its_beginning_where_that_fits(rng, positions):
    Z, y = one_spike(rng, positions)
    batches = [(Z[:400], y[:400]), (Z[400:], y[400:])]
    how = {"positions": positions, "solver": "pcg", "heads": None}
    sharp = la.certify(Z, positions=positions)
    proved = la.fit(batches, **how).certificate
    assert proved.verdict == "identifiable"
    assert "of the first " in proved.evidence
    assert 0 < proved.lower_bound <= sharp.lambda_min
    # Too little memory for a proof leaves an estimate, which says so
    limit = la.estimate_memory(5, 1, positions=positions)["proof"] - 1
    estimated = la.fit(batches, **how, memory_limit=limit).certificate
    assert estimated.verdict == "undecided"
    assert "nothing is proved" in estimated.evidence
    assert estimated.lower_bound == 0
    assert estimated.rank is None  # no estimate from above tells it
    assert "rank unknown of 75" in str(estimated)
    for certificate in (proved, estimated):
        assert sharp.lower_bound <= certificate.lambda_min < 1.05 * sharp.lambda_min
        assert certificate.condition == pytest.approx(sharp.condition, rel=0.1)


def test_counting_and_zero_features_still_decide(rng):
    Z, y = rng.standard_normal((60, 5, 5)), rng.standard_normal(60)
    few = la.fit(Z, y, solver="pcg", heads=None).certificate
    assert few.verdict == "not identifiable"
    assert "proved by counting" in few.evidence
    Z = rng.standard_normal((400, 5, 5))
    Z[:, -1, 2] = 0
    zeros = la.fit(Z, np.ones(400), solver="pcg", heads=None).certificate
    assert zeros.verdict == "not identifiable"
    assert "15 of 75 features are zero" in zeros.evidence


def test_heads_are_recovered_and_files_stay_readable(rng, tmp_path):
    truth = plant(rng, 6, 2, 3)
    Z = rng.standard_normal((600, 10, 6))
    fit = la.fit(Z, truth(Z), solver="pcg")
    assert fit.heads.distance(truth) < 1e-10 * np.linalg.norm(truth.coefficients())
    assert len(fit.heads) == 2
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.coefficients, fit.coefficients)
    assert again.info == fit.info
    assert again.certificate == fit.certificate
    few = la.fit(Z, truth(Z), solver="pcg", heads=1)
    assert len(few.heads) == 1


def test_progress_tells_iterations_and_an_estimate_of_their_number(rng, capsys):
    Z, y = rng.standard_normal((300, 5, 4)), rng.standard_normal(300)
    seen = []
    given = {"solver": "pcg", "heads": None}
    fit = la.fit(Z, y, progress=lambda done, total: seen.append((done, total)), **given)
    assert [done for done, _ in seen[:-1]] == list(range(1, fit.info.iterations + 1))
    assert all(done <= total for done, total in seen)
    assert seen[-1] == (fit.info.iterations, fit.info.iterations)
    la.fit(Z, y, progress=True, **given)
    assert "residual=" in capsys.readouterr().err


def test_an_exception_from_the_callback_brings_the_iterate_along(rng):
    truth = plant(rng, 4, 1, 2)
    Z = rng.standard_normal((300, 5, 4))
    y = truth(Z)

    def stop(done, total):
        if done == 20:
            raise KeyboardInterrupt("the callback's")

    with pytest.raises(KeyboardInterrupt, match="the callback's") as caught:
        la.fit(Z, y, solver="pcg", heads=None, progress=stop)
    assert relative(caught.value.iterate, truth.coefficients()) < 1e-3


@needs_cpu
@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_ctrl_c_stops_a_pass(rng):
    Z = rng.standard_normal((400_000, 2, 12)).astype(np.float32)
    y = rng.standard_normal(400_000)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()

    def fit_again_and_again():
        while True:
            la.fit(Z, y, solver="pcg", heads=None, certify=False)

    with pytest.raises(KeyboardInterrupt):  # has no message
        fit_again_and_again()
    assert time.perf_counter() - start < 20
    timer.join()


def test_moments_alone_cannot_be_solved_so(rng):
    moments = la.Moments(2, 1).update(rng.standard_normal((20, 3, 2)), np.ones(20))
    with pytest.raises(ValueError, match="solver: 'pcg' needs the data"):
        moments.fit(solver="pcg")


def test_auto_takes_cholesky_for_few_features_and_says_what_it_expected(rng):
    Z, y = rng.standard_normal((2100, 5, 3)), rng.standard_normal(2100)  # more than one call takes
    info = la.fit(Z, y).info
    assert info.solver == "cholesky"
    assert "s by PCG" in info.reason or "PCG needs" in info.reason


def test_auto_takes_pcg_where_a_gram_does_not_fit(rng):
    Z, y = rng.standard_normal((4000, 3, 12)), rng.standard_normal(4000)  # p = 936
    estimate = la.estimate_memory(12, 1, n_samples=4000)
    assert estimate["pcg"] < estimate["cholesky"]
    limit = (estimate["pcg"] + estimate["cholesky"]) // 2
    fit = la.fit(Z, y, memory_limit=limit, heads=None, certify=False)
    assert fit.info.solver == "pcg"
    assert "Cholesky needs" in fit.info.reason
    assert relative(fit.coefficients, la.fit(Z, y, heads=None).coefficients) < 1e-9


def test_the_cost_model_prefers_pcg_for_many_features_and_cholesky_for_few_samples_a_feature():
    large = predict(la.Features(32), 1, "last", 40_000, 40_000, proof=False)
    assert large.pcg < large.cholesky / 8
    small = predict(la.Features(8), 8, "last", 300, 300, proof=False)
    assert small.cholesky < small.pcg
    context = la.Features(101, pairs=[(k, 100) for k in range(101)], queries=range(100))
    chosen = predict(context, 1, "last", 50_000, 50_000, proof=False)
    assert chosen.pcg < chosen.cholesky / 10
