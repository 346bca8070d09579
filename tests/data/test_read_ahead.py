"""Reading a stream ahead of the work: overlap, failures, Ctrl-C."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from conftest import run_python

import linattn_fast as la
from linattn_fast.data.read_ahead import read_ahead

# ----------------------------------------------------------------------------------- reading ahead


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "linattn_fast reader"]


def test_reading_and_computing_overlap_and_no_more_than_two_items_exist():
    alive, most, events = 0, 0, []

    class Item:
        def __init__(self, i):
            nonlocal alive, most
            self.i = i
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def items():
        for i in range(5):
            events.append(f"read {i}")
            yield Item(i)

    with read_ahead(items()) as stream:
        for item in stream:
            if item.i < 4:  # the next one is read while this one is in use
                deadline = time.monotonic() + 10
                while f"read {item.i + 1}" not in events and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert f"read {item.i + 1}" in events
                assert f"read {item.i + 2}" not in events
            del item
    assert most == 2
    assert alive == 0
    assert not readers()


def test_a_reader_ends_with_the_work_that_failed(rng):
    def endless():
        while True:
            yield rng.standard_normal((5, 4, 3)), rng.standard_normal(4)

    with pytest.raises(ValueError, match="in batch 0$"):
        la.Moments(3, 1).update(endless())
    assert not readers()


def test_ctrl_c_stops_a_stream_and_leaves_the_moments_as_they_were(rng):
    Z, y = rng.standard_normal((2000, 5, 8)), rng.standard_normal(2000)

    def endless():
        while True:
            yield Z, y

    moments = la.Moments(8, 1).update(Z[:9], y[:9])
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):  # has no message
        moments.update(endless())
    assert moments.n_samples == 9
    assert not readers()


def test_ctrl_c_works_while_nothing_comes(rng):
    """A reader that is stuck for good is left behind; it does not keep the program alive."""
    outcome = run_python(
        """
import os, signal, threading, time
import linattn_fast as la, linattn_fast.data.read_ahead
linattn_fast.data.read_ahead._PATIENCE = 0.1
def stuck():
    time.sleep(1000)
    yield
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    la.Moments(2, 1).update(stuck())
except KeyboardInterrupt:
    print("stopped")
"""
    )
    assert outcome.stdout == "stopped\n", outcome.stderr
    assert outcome.returncode == 0


def test_settings_of_the_caller_hold_for_the_reading():
    seen = []

    def stream():
        seen.append(np.geterr()["over"])
        yield np.ones((2, 2, 2)), np.ones(2)

    with np.errstate(over="raise"):
        la.Moments(2, 1).update(stream())
    assert seen == ["raise"]
