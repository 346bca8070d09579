import os

import numpy as np
import pytest
from conftest import needs_cpu, run_python
from oracles.batches import arrays_of

import linattn_fast as la
from linattn_fast.system.machine import in_words

sanitized = pytest.mark.skipif(
    "LINATTN_SANITIZED" in os.environ, reason="sanitizers use memory of their own"
)


@needs_cpu
@sanitized
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"
)
@pytest.mark.parametrize("form", ["dense", "list", "float32", "fit"])
def test_memory_does_not_grow_with_the_number_of_sequences(form):
    """100,000 sequences of 32 tokens at d = 12: below 100 MB beyond the input.

    Of "fit", 400,000 sequences of 8 tokens, whose packed samples would take 294 MB.
    """
    outcome = run_python(
        f"""
import numpy as np, linattn_fast as la
form = {form!r}
dtype = np.float32 if form == "float32" else np.float64
shape = (400_000, 8, 12) if form == "fit" else (100_000, 32, 12)
Z = np.random.default_rng(0).standard_normal(shape, dtype=dtype)
y = Z[:, 0, :1].astype(float)
given = list(Z) if form == "list" else Z
la.fit(Z[:10], y[:10], alpha=1.0)  # load everything that is loaded once
def peak():  # of this program alone; getrusage would count what the parent held when it forked
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
if form == "fit":
    la.fit(Z, y)
else:
    la.Moments(12, 1).update(given, y)
print((peak() - before) * 1024)
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    assert 1e6 < int(outcome.stdout) < 100e6  # the moments alone are 2 MB


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """300 MB of tokens."""
    path = tmp_path_factory.mktemp("streaming") / "Z.npy"
    Z = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(150_000, 32, 8))
    rng = np.random.default_rng(0)
    for first in range(0, len(Z), 10_000):
        Z[first : first + 10_000] = rng.standard_normal((10_000, 32, 8))
    del Z
    yield str(path)
    path.unlink()


@needs_cpu
@sanitized
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"
)
@pytest.mark.parametrize("form", ["memmap", "flat", "generator"])
def test_streaming_takes_memory_for_two_batches_and_not_for_the_file(large_file, form):
    """Two batches of at most 34 MB, what is read of one, and the moments of d = 8 are held."""
    outcome = run_python(
        f"""
import numpy as np, linattn_fast as la
form = {form!r}
Z = np.load({large_file!r}, mmap_mode="r")
y = np.ones(len(Z))
small = np.ones((60, 2, 3))
la.Moments(3, 1).update(iter([(small, small[:, 0, 0])]))  # load everything that is loaded once
def peak():  # of this program alone; getrusage would count what the parent held when it forked
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
moments = la.Moments(8, 1)
before = peak()
if form == "memmap":
    moments.update(Z, y)
elif form == "flat":
    moments.update(Z.reshape(-1, 8), y, offsets=np.arange(len(Z) + 1) * 32)
else:
    moments.update((np.load({large_file!r}, mmap_mode="r")[i : i + 10_000].copy(), y[:10_000])
                   for i in range(0, len(Z), 10_000))
assert moments.n_samples == len(Z)
print((peak() - before) * 1024)
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    assert 30e6 < int(outcome.stdout) < 130e6


def test_estimates_grow_as_the_formulas_say():
    q = 16 * 17 // 2
    compact = 8 * (q * (q + 1) // 2 * q + 3 * 16 * q + 3)
    estimate = la.estimate_memory(16, 3)
    assert estimate["moments"] == 2 * compact
    assert estimate["cholesky"] >= compact + 8 * (16 * q) ** 2
    assert estimate["eigh"] > estimate["cholesky"]


def test_the_accumulated_bytes_are_those_estimated(rng):
    moments = la.Moments(5, 2)
    assert moments.nbytes == 0
    moments.update(rng.standard_normal((20, 3, 5)), np.zeros((20, 2)))
    assert moments.nbytes == sum(total.nbytes for total in arrays_of(moments.sums))


def test_a_request_over_the_limit_is_refused_with_both_numbers(rng):
    Z = rng.standard_normal((200, 3, 6))
    message = (
        r"fit: d = 6 \(126 features\), no solver is possible: 'cholesky' needs .*, "
        r"'dual' needs .*, 'pcg' needs .*; memory_limit is 100 kB"
    )
    with pytest.raises(MemoryError, match=message):
        la.fit(Z, np.zeros(200), memory_limit=100_000)
    with pytest.raises(MemoryError, match="certify: the dense second moment of d = 6"):
        la.certify(Z, memory_limit=100_000)
    assert la.fit(Z[:20], np.zeros(20), memory_limit=100_000).info.solver == "dual"


@pytest.mark.parametrize(
    ("size", "words"), [(12, "12 bytes"), (1500, "1.5 kB"), (20e9, "20 GB"), (3e18, "3e+03 PB")]
)
def test_bytes_are_told_in_words(size, words):
    assert in_words(int(size)) == words
