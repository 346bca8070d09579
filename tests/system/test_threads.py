"""The same bits for any number of threads; safe from several Python threads and after fork."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import needs_cpu, plant, run_python
from oracles.batches import arrays_of

import linattn_fast as la

pytestmark = needs_cpu


@pytest.mark.parametrize("d", [2, 5, 8, 10])  # slabs and rows
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_results_have_the_same_bits_for_any_number_of_threads(rng, isa, positions, precision, d):
    Z, y, w = rng.standard_normal((1500, 5, d)), rng.standard_normal((1500, 5, 3)), rng.random(1500)
    targets = y[:, 0] if positions == "last" else y
    heads = plant(rng, d, 2, d)

    def everything(threads):
        la.set_num_threads(threads)
        moments = la.Moments(d, 3, positions=positions, precision=precision, backend="cpu")
        moments.update(Z, targets, sample_weight=w)
        layer = heads(Z, positions, backend="cpu")
        return [*arrays_of(moments.sums), layer, heads.generate(0.1 * Z[:70], 3, backend="cpu")]

    expected = everything(1)
    for threads in (2, 3, 17):
        for found, wanted in zip(everything(threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_calls_from_several_python_threads_do_not_disturb_each_other(rng):
    batches = [rng.standard_normal((700, 6, d)) for d in (3, 6, 9, 10) * 3]

    def gram(Z):
        return la.Moments(Z.shape[2], 0, backend="cpu").update(Z).sums.gram

    expected = [gram(Z) for Z in batches]
    with ThreadPoolExecutor(6) as pool:
        for found, wanted in zip(pool.map(gram, batches), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_gil_is_released_during_work(rng):
    Z = rng.standard_normal((6000, 8, 14))
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    clock = threading.Thread(target=tick)
    clock.start()
    start = time.perf_counter()
    la.Moments(14, 0, backend="cpu").update(Z)
    end = time.perf_counter()
    done.set()
    clock.join()
    during = [moment for moment in ticks if start < moment < end]
    # A held GIL would let through a tick or two at the edges; a free one hundreds.
    assert len(during) > 5


def test_work_after_fork_gives_the_same_bits():
    outcome = run_python(
        """
import os, numpy as np, linattn_fast as la
Z = np.random.default_rng(0).standard_normal((2000, 5, 9))
la.set_num_threads(4)
expected = la.Moments(9, 0, backend="cpu").update(Z).sums.gram
import warnings; warnings.simplefilter("ignore")  # Python warns of forking beside BLAS threads
child = os.fork()
if child == 0:
    same = (la.Moments(9, 0, backend="cpu").update(Z).sums.gram == expected).all()
    os._exit(0 if same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert outcome.returncode == 0, outcome.stderr


def test_the_number_of_threads_can_be_set_and_asked_for():
    la.set_num_threads(3)
    assert la.get_num_threads() == 3
    la.set_num_threads(None)
    assert 1 <= la.get_num_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-2, ValueError), (10**9, ValueError), (1.5, TypeError)]
)
def test_a_wrong_number_of_threads_is_refused(value, error):
    with pytest.raises(error, match="^n: "):
        la.set_num_threads(value)


def test_the_environment_sets_the_default(monkeypatch):
    monkeypatch.setenv("LINATTN_NUM_THREADS", "7")
    assert la.get_num_threads() == 7
    for wrong in ("many", "0", "-1", "1.5"):
        monkeypatch.setenv("LINATTN_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match="^LINATTN_NUM_THREADS: "):
            la.get_num_threads()


class Stopped(Exception):
    """Raised by nothing but the tests' own handlers and callbacks, so that it needs no match."""


@pytest.mark.parametrize("d", [3, 16])  # slabs and rows
def test_a_signal_stops_the_work_and_changes_nothing(rng, d):
    # Broadcast: hours of work from little memory.
    Z = np.broadcast_to(rng.standard_normal((1, 8, d)), (10**9 if d == 3 else 10**7, 8, d))
    moments = la.Moments(d, 0, backend="cpu").update(Z[:10])
    before = moments.sums.gram.copy()

    def stop(*_):
        raise Stopped

    previous = signal.signal(signal.SIGALRM, stop)
    # The first reading for NaN cannot be interrupted; the moments themselves can.
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Stopped):
            moments.update(Z[: 10**8])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    np.testing.assert_array_equal(moments.sums.gram, before)
    assert moments.n_samples == 10


@pytest.mark.parametrize("positions", ["all", "causal", "generate"])
def test_a_signal_stops_a_long_layer(rng, positions):
    heads = la.Heads(np.full((1, 3, 3), 1e-9), np.zeros((1, 3, 3)))
    Z = np.broadcast_to(np.ones((1, 1, 3)), (1, 10**8, 3))

    def run():
        if positions == "generate":
            heads.generate(np.ones((2, 3)), 10**8, backend="cpu")
        else:
            heads(Z, positions, backend="cpu")

    def stop(*_):
        raise Stopped

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    start = time.perf_counter()
    try:
        with pytest.raises(Stopped):
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.perf_counter() - start < 60  # hours without the signal


def test_one_object_updated_from_several_threads_loses_nothing(rng):
    la.set_num_threads(1)
    Z = rng.integers(-3, 4, (2, 6, 9)).astype(float)  # sums of integers are exact
    moments = la.Moments(9, 0, backend="cpu")

    def work(_):
        for _ in range(40):
            moments.update(Z)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert moments.n_samples == 320
    one = la.Moments(9, 0, backend="cpu").update(Z)
    np.testing.assert_array_equal(moments.sums.gram, 160 * one.sums.gram)


def test_a_progress_function_sees_the_end_and_may_stop_the_work(rng, backend):
    Z = rng.standard_normal((600, 4, 3))
    seen = []
    la.Moments(3, 0, backend=backend).update(
        Z, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (600, 600)
    assert all(done <= total == 600 for done, total in seen)

    def refuse(done, total):
        raise Stopped

    moments = la.Moments(3, 0, backend=backend)
    with pytest.raises(Stopped):
        moments.update(Z, progress=refuse)
    assert moments.n_samples == 0


def test_a_progress_bar_is_shown_on_request(rng, capsys):
    la.fit(rng.standard_normal((300, 4, 2)), np.zeros(300), progress=True)
    assert "300/300" in capsys.readouterr().err
    la.fit(rng.standard_normal((300, 4, 2)), np.zeros(300))
    assert capsys.readouterr().err == ""
