"""Fits on a cluster of processes are fits in one process, also when a worker is lost."""

import itertools
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import EPS, plant

import linattn_fast as la
from linattn_fast.backend.cpu import CpuBackend
from linattn_fast.dask.cluster import Cluster
from linattn_fast.dask.parts import Part, PartSettings
from linattn_fast.moments.factors import query_groups

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
db = pytest.importorskip("dask.bag")
lad = pytest.importorskip("linattn_fast.dask")
sizeof = pytest.importorskip("dask.sizeof").sizeof

pytestmark = [
    # Warnings of the cluster's own machinery are not ours to fail for.
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif("LINATTN_SANITIZED" in os.environ, reason="workers are other processes"),
]


@pytest.fixture(scope="module")
def cluster():
    """Three workers, each a process of its own with one thread."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=0,
        ) as running,
    ):
        yield running


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as connected:
        connected.wait_for_workers(3)
        yield connected


@pytest.fixture(params=["cluster", "threads", "synchronous"])
def scheduler(request):
    """Every kind of scheduler in turn."""
    if request.param == "cluster":
        request.getfixturevalue("client")
        yield request.param
    else:
        with dask.config.set(scheduler=request.param):
            yield request.param


def data(positions="last", n=700, d=3):
    rng = np.random.default_rng(3)
    Z = rng.standard_normal((n, 6, d))
    y = plant(rng, d, 2, 2)(Z, positions)
    return Z, y + 0.1 * rng.standard_normal(y.shape), rng.random(n)


def part_of(positions, first, last):
    """A batch as a task on a worker makes it."""
    return tuple(array[first:last] for array in data(positions))


def forms(positions):
    """The same data as a Dask array, a bag and delayed batches, each with its arguments."""
    Z, y, w = data(positions)
    cuts = [0, 100, 101, 330, 500, 700]
    spans = list(itertools.pairwise(cuts))
    array = da.from_array(Z, chunks=(tuple(b - a for a, b in spans), 4, 2))
    targets = da.from_array(y, chunks=(90, *y.shape[1:]))
    bag = db.from_sequence(spans, npartitions=3).map(lambda span: part_of(positions, *span))
    delayed = [dask.delayed(part_of)(positions, *span) for span in spans]
    return {
        "array": ((array, targets), {"sample_weight": w}),
        "bag": ((bag,), {}),
        "delayed": ((delayed,), {}),
    }


@pytest.mark.parametrize("form", ["array", "bag", "delayed"])
def test_moments_of_a_cluster_are_those_of_one_process(scheduler, positions, form):
    arguments, named = forms(positions)[form]
    found = lad.moments(*arguments, positions=positions, **named)
    Z, y, w = data(positions)
    expected = la.Moments(3, 2, positions=positions).update(Z, y, sample_weight=w)
    assert found.n_samples == expected.n_samples
    assert found.total_weight == pytest.approx(expected.total_weight, rel=1e-13)
    bound = expected.rounding_steps + found.rounding_steps + 6 * 6
    size = np.sqrt(expected.gram_diagonal())
    assert (np.abs(found.gram() - expected.gram()) <= bound * EPS * size * size[:, None]).all()
    np.testing.assert_allclose(found.cross(), expected.cross(), rtol=0, atol=1e-11 * size.max())


@pytest.mark.parametrize(
    ("form", "solver"), [("array", "auto"), ("bag", "auto"), ("delayed", "auto"), ("array", "pcg")]
)
def test_fits_of_a_cluster_are_those_of_one_process(client, positions, form, solver):
    arguments, named = forms(positions)[form]
    fit = lad.fit(*arguments, positions=positions, solver=solver, heads=None, **named)
    Z, y, w = data(positions)
    expected = la.fit(Z, y, positions=positions, sample_weight=w, heads=None)
    assert_same_fit(fit, expected)
    assert fit.info.solver == ("cholesky" if solver == "auto" else "pcg")
    assert fit.info.refinements
    assert fit.certificate.noise_samples == pytest.approx(expected.certificate.noise_samples)


def test_an_accuracy_can_be_asked_for_on_a_cluster(client):
    arguments, named = forms("last")["array"]
    rough, fine = (
        lad.fit(*arguments, solver=la.Pcg(tol), heads=None, certify=False, **named)
        for tol in (1e-3, 1e-9)
    )
    assert rough.info.iterations < fine.info.iterations
    Z, y, w = data("last")
    expected = la.fit(Z, y, sample_weight=w, heads=None).coefficients
    # The accuracy is an estimate: ten times is allowed for.
    assert np.linalg.norm(fine.coefficients - expected) <= 1e-8 * np.linalg.norm(expected)


def assert_same_fit(fit, expected):
    size = np.linalg.norm(expected.coefficients)
    distance = np.linalg.norm(fit.coefficients - expected.coefficients)
    assert distance <= 1000 * EPS * expected.info.condition * size
    assert fit.info.mean_squared_error == pytest.approx(expected.info.mean_squared_error, rel=1e-9)
    assert fit.info.mean_squared_target == pytest.approx(expected.info.mean_squared_target)
    assert fit.info.n_samples == expected.info.n_samples


def test_the_answer_does_not_depend_on_the_scheduler(client):
    arguments, named = forms("last")["array"]
    on_cluster = lad.fit(*arguments, heads=None, **named)
    with dask.config.set(scheduler="synchronous"):
        here = lad.fit(*arguments, heads=None, persist=False, **named)
    np.testing.assert_array_equal(on_cluster.coefficients, here.coefficients)


def test_parts_survive_a_journey_that_leaves_arrays_unaligned():
    """Sockets deliver arrays at any address."""
    Z, y, w = data()
    settings = PartSettings("last", None, "auto", "float64", 1)
    part = Part([(Z, y, w)], 0, settings)
    C = np.ones((2, 18))
    expected = part.gradient(C)
    buffers = []
    message = pickle.dumps((part, C), protocol=5, buffer_callback=buffers.append)
    assert len(message) < 10_000 < Z.nbytes
    odd = [np.frombuffer(b"." + bytes(buffer.raw()), np.uint8)[1:] for buffer in buffers]
    moved, C = pickle.loads(message, buffers=odd)
    assert not moved._given[0].Z.flags.aligned
    assert not C.flags.aligned
    for a, b in zip(moved.gradient(C), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(moved.moments().sums.gram, part.moments().sums.gram)


def ragged_batch(positions, i):
    """A batch of sequences of different lengths, as a list or, with offsets, flat."""
    rng = np.random.default_rng([7, i])
    lengths = rng.integers(1, 9, 80)
    Z = [rng.standard_normal((n, 3)) for n in lengths]
    y = [rng.standard_normal((1 if positions == "last" else n, 2)) for n in lengths]
    weights = rng.random(80)
    if i % 2:
        return (Z, np.concatenate(y) if positions == "last" else y, weights)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return {
        "Z": np.concatenate(Z),
        "y": np.concatenate(y),
        "offsets": offsets,
        "sample_weight": weights,
    }


@pytest.mark.parametrize("solver", ["auto", "pcg"])
def test_ragged_batches_on_a_cluster_are_those_of_one_process(client, positions, solver):
    parts = [ragged_batch(positions, i) for i in range(5)]
    bag = db.from_sequence(range(5), npartitions=2).map(partial(ragged_batch, positions))
    delayed = [dask.delayed(ragged_batch)(positions, i) for i in range(5)]
    expected = la.fit(parts, positions=positions, heads=None, certify=False)
    given = bag if solver == "auto" else delayed
    fit = lad.fit(given, positions=positions, solver=solver, heads=None, certify=False)
    assert_same_fit(fit, expected)


def state_batch(i):
    """A batch of states with its targets, of a layer with V (2, 3) and Q (4, 5)."""
    rng = np.random.default_rng(i)
    states = la.States(rng.standard_normal((90, 3, 4)), rng.standard_normal((90, 5)))
    seeded = np.random.default_rng(99)
    truth = la.Heads(seeded.standard_normal((2, 2, 3)), seeded.standard_normal((2, 4, 5)))
    return states, truth(states)


@pytest.mark.parametrize("solver", ["auto", "pcg"])
def test_states_on_a_cluster_are_those_of_one_process(client, solver):
    batches = [state_batch(i) for i in range(4)]
    delayed = [dask.delayed(state_batch)(i) for i in range(4)]
    expected = la.fit(batches, None, solver=solver)
    fit = lad.fit(delayed, solver=solver)
    assert np.allclose(fit.coefficients, expected.coefficients, atol=1e-10)
    assert len(fit.heads) == 2
    assert fit.features == expected.features
    moments = lad.moments(delayed)
    assert moments.n_samples == 360
    other = dask.delayed(lambda: (la.States(np.ones((9, 4, 3)), np.ones((9, 5))), np.ones((9, 2))))
    with pytest.raises(ValueError, match="features"):
        lad.fit([*delayed, other()], solver=solver)


def stream_batch(i):
    """A batch of streams with its targets, padded, of the same layer."""
    rng = np.random.default_rng(i)
    queries, keys, values = (rng.standard_normal((30, 5, d)) for d in (5, 4, 3))
    lengths = rng.integers(1, 6, 30)
    streams = la.Streams(queries, keys, values, lengths=lengths, decay=0.8, scale="mean")
    seeded = np.random.default_rng(99)
    truth = la.Heads(seeded.standard_normal((2, 2, 3)), seeded.standard_normal((2, 4, 5)))
    return streams, truth(streams, "causal")


@pytest.mark.parametrize("solver", ["auto", "pcg"])
def test_streams_on_a_cluster_are_those_of_one_process(client, solver):
    batches = [stream_batch(i) for i in range(4)]
    expected = la.fit(batches, None, solver=solver, positions="causal")
    delayed = [dask.delayed(stream_batch)(i) for i in range(4)]
    fit = lad.fit(delayed, solver=solver, positions="causal")
    assert np.allclose(fit.coefficients, expected.coefficients, atol=1e-9)
    assert fit.positions == "causal"
    assert len(fit.heads) == 2
    moments = lad.moments(delayed, positions="causal")
    assert moments.n_samples == sum(batch[0].kept.sum() for batch in batches)


def one_hot_batch(i):
    """Tokens whose coordinates 0-1, 2 and 3 never query together, and whose last is unused."""
    rng = np.random.default_rng([9, i])
    Z = np.zeros((300, 6, 5))
    Z[:, :-1, :4] = rng.standard_normal((300, 5, 4))
    groups = [[0, 1], [2], [3]]
    for n in range(300):
        group = groups[rng.integers(3)]
        Z[n, -1, group] = rng.standard_normal(len(group))
    return Z, rng.standard_normal((300, 2))


@pytest.mark.parametrize("solver", ["auto", "cholesky", "pcg"])
def test_queries_that_never_meet_are_found_across_the_parts_of_a_cluster(client, solver):
    """With features that the data ever has; the Gram is solved in blocks."""
    parts = [one_hot_batch(i) for i in range(4)]
    active = la.Features.active(np.concatenate([Z for Z, _ in parts]))
    assert (active.n_pairs, active.n_queries) == (10, 4)
    delayed = [dask.delayed(one_hot_batch)(i) for i in range(4)]
    moments = lad.moments(delayed, features=active)
    assert [group.tolist() for group in query_groups(moments)] == [[0, 1], [2], [3]]
    expected = la.fit(parts, features=active, heads=None)
    fit = lad.fit(delayed, features=active, solver=solver, heads=None)
    assert_same_fit(fit, expected)
    assert fit.coefficients.shape == (2, 40)
    if solver == "pcg":
        with pytest.raises(ValueError, match="^certificate: .*la.certify"):
            fit.certificate.covers(parts[0][0])
        assert la.certify(moments).covers(parts[0][0]).all()
    else:
        assert "in 3 blocks" in fit.info.reason
        assert fit.certificate.verdict == expected.certificate.verdict == "identifiable"
        assert fit.certificate.covers(parts[0][0]).all()


def test_dask_knows_how_large_moments_are():
    moments = la.Moments(6, 1).update(np.ones((2, 3, 6)), np.ones(2))
    assert moments.nbytes <= sizeof(moments) <= moments.nbytes + 1000


# ------------------------------------------------------------------------------------ lost workers


def fatal_once(flag, fatal, i):
    """Batch i; the worker that first makes batch ``fatal`` dies of it."""
    if i == fatal and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    rng = np.random.default_rng(i)
    return rng.standard_normal((200, 5, 4)), rng.standard_normal(200)


def batches_with(flag):
    return [dask.delayed(partial(fatal_once, str(flag), 5))(i) for i in range(12)]


def test_a_worker_that_dies_while_data_is_made_changes_nothing(client, tmp_path):
    expected = la.fit([fatal_once(__file__, 5, i) for i in range(12)])
    fit = lad.fit(batches_with(tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert_same_fit(fit, expected)
    assert fit.certificate.verdict == expected.certificate.verdict
    again = lad.fit(batches_with(__file__))  # nobody dies
    np.testing.assert_array_equal(fit.coefficients, again.coefficients)


@pytest.mark.parametrize("solver", ["auto", "pcg"])
def test_a_worker_killed_between_two_passes_changes_nothing(client, monkeypatch, solver):
    """Its parts of the data are made again elsewhere, and the fit goes on."""
    batches = batches_with(__file__)
    expected = lad.fit(batches, solver=solver, heads=None, certify=False)
    killed, total = [], Cluster._total

    def kill_first(self, add, method, *arrays):
        if method == "gradient" and not killed:
            holders = {w for where in client.who_has().values() for w in where}
            pids = client.run(os.getpid, workers=sorted(holders)[:1])
            killed.extend(pids.values())
            os.kill(killed[0], signal.SIGKILL)
        return total(self, add, method, *arrays)

    monkeypatch.setattr(Cluster, "_total", kill_first)
    fit = lad.fit(batches, solver=solver, heads=None, certify=False)
    assert killed
    np.testing.assert_array_equal(fit.coefficients, expected.coefficients)


def test_only_coefficients_travel_between_passes(client, monkeypatch):
    """To and from the workers goes less than a part of the data, and among them less than all.

    In dozens of passes, that is: Dask may move a part away from a worker that is busy, once.
    """
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((3000, 40, 3)), rng.standard_normal((3000, 1))
    sizes, moved, total = [], [], Cluster._total

    def among_workers():
        counts = client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total)
        return sum(counts.values())

    def measured(self, *arguments):
        if arguments[1] == "kronecker_factors":
            moved.append(among_workers())
        found = total(self, *arguments)
        parts = arguments[2:] + (tuple(found) if isinstance(found, tuple) else (found,))
        sizes.append(sum(x.nbytes for x in parts if hasattr(x, "nbytes")))
        return found

    monkeypatch.setattr(Cluster, "_total", measured)
    array = da.from_array(Z, chunks=(1000, 40, 3))
    lad.fit(array, y, solver="pcg", heads=None, certify=False)
    moved.append(among_workers())
    assert len(sizes) > 10
    factors = 18 + 6 * 6 + 3 * 3
    rows = 2 * (18 + 18 + 1)  # of the output and of the random row: coefficients, product, energy
    assert max(sizes) <= 8 * max(factors, rows)
    assert moved[-1] - moved[0] < Z.nbytes


# ------------------------------------------------------------------------------------- bad requests


def test_bad_requests_are_named(client):
    Z, y, w = data()
    array = da.from_array(Z, chunks=(100, 6, 3))
    bad = Z.copy()
    bad[250, 1, 2] = np.nan
    for arguments, named, message in [
        ((array[0],), {}, r"^Z: a Dask array \(N, n, d\).* got shape \(6, 3\)"),
        ((array[array[:, 0, 0] > 0], y), {}, "^Z: a Dask array .*chunks of known size"),
        ((array, y[:10]), {}, "^y: one entry a sequence .* 700, got shape"),
        ((array, y), {"sample_weight": w[:10]}, "^sample_weight: one entry a sequence"),
        ((array, y), {"solver": "qr"}, "^solver: 'qr' needs the data in one place"),
        ((array, y), {"solver": "fast"}, "^solver: must be one of"),
        ((array, y), {"threads": 0}, "^threads: must be between 1"),
        ((array, y), {"positions": "first"}, "^positions: must be one of"),
        ((array, y), {"sample_weight": 0 * w}, "^sample_weight: at least one weight"),
        ((array, y), {"sample_weight": 0 * w, "solver": "pcg"}, "^sample_weight: at least one"),
        ((array,), {}, "^y: targets are needed to fit, got None; in part [0-6]$"),
        (([dask.delayed((Z, y))], y), {}, "^y: Z has batches, which bring their own y"),
        ((db.from_sequence([], npartitions=1),), {}, "^Z: every part is empty"),
        (
            (da.from_array(bad, chunks=(100, 6, 3)), y),
            {},
            "^Z: must be finite, got nan in sequence 50, token 1, coordinate 2; in part 2",
        ),
        (
            ([dask.delayed((Z, y)), dask.delayed((Z[:, :, :2], y))],),
            {},
            r"^d: all parts must agree, got \[2, 3\]",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            lad.fit(*arguments, **named)
    with pytest.raises(TypeError, match="^Z: a Dask array.*got ndarray; for data in this process"):
        lad.fit(Z, y)


def test_without_dask_the_message_says_what_to_install(monkeypatch):
    for name in ("dask", "dask.array", "dask.bag"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'linattn_fast\[dask\]'"):
        lad.moments(np.zeros((2, 2, 2)))


def test_tasks_use_the_threads_asked_for_and_leave_the_setting_alone(monkeypatch):
    seen = []

    def count():
        seen.append(la.get_num_threads())
        return np.ones((2, 2, 2)), np.ones(2)

    right = CpuBackend.moments

    def counted(self, *arguments, **options):
        used.append(la.get_num_threads())
        return right(self, *arguments, **options)

    used = []
    monkeypatch.setattr(CpuBackend, "moments", counted)
    la.set_num_threads(7)
    with dask.config.set(scheduler="threads"):
        lad.moments([dask.delayed(count)()], threads=2)
    assert seen == [7]  # making the data is the caller's affair
    assert used == [2]
    assert la.get_num_threads() == 7


def test_a_number_of_heads_is_found_on_a_cluster_without_a_gram(client):
    arguments, named = forms("last")["array"]
    fit = lad.fit(*arguments, heads=1, solver="pcg", certify=False, **named)
    Z, y, w = data("last")
    expected = la.fit(Z, y, sample_weight=w, heads=1, certify=False)
    assert fit.heads.recovery.loss == pytest.approx(expected.heads.recovery.loss, rel=1e-6)
    assert fit.heads.recovery.gap == pytest.approx(expected.heads.recovery.gap, rel=1e-2)
