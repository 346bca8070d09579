"""A long accumulation that is killed goes on from its last checkpoint, to the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from oracles.batches import arrays_of

import linattn_fast as la


def batches(n=12, d=4):
    rng = np.random.default_rng(5)
    return [(rng.standard_normal((40 + i, 5, d)), rng.standard_normal(40 + i)) for i in range(n)]


def same_bits(a, b):
    assert (a.n_samples, a.total_weight) == (b.n_samples, b.total_weight)
    assert a.accumulation == b.accumulation
    for x, y in zip(arrays_of(a.sums), arrays_of(b.sums), strict=True):
        np.testing.assert_array_equal(x, y)


class Stop(Exception):
    """What the streams and callbacks of these tests raise."""


def stopping(stream, after):
    for i, batch in enumerate(stream):
        if i == after:
            raise Stop("enough")
        yield batch


@pytest.mark.parametrize("after", [0, 1, 7, 11])
def test_a_stream_that_failed_goes_on_to_the_same_bits(tmp_path, after):
    path = tmp_path / "checkpoint.npz"
    expected = la.Moments(4, 1).update(batches())
    moments = la.Moments(4, 1)
    with pytest.raises(Stop, match="enough"):
        moments.update(stopping(batches(), after), checkpoint=path, checkpoint_every=0)
    assert moments.n_samples == 0  # a stream is one update
    assert path.exists() == (after > 0)
    if after:
        assert la.Moments.load(path).n_samples == sum(len(y) for _, y in batches()[:after])
    same_bits(moments.update(iter(batches()), checkpoint=path, checkpoint_every=0), expected)
    same_bits(la.Moments.load(path), expected)


def test_a_finished_stream_is_not_added_again(tmp_path):
    path = tmp_path / "checkpoint.npz"
    first = la.Moments(4, 1).update(batches(), checkpoint=path)
    before = path.stat().st_mtime_ns
    same_bits(la.Moments(4, 1).update(batches(), checkpoint=path), first)
    assert path.stat().st_mtime_ns == before


def test_moments_that_hold_data_get_the_stream_beside_it(tmp_path):
    path = tmp_path / "checkpoint.npz"
    (Z, y), *rest = batches()
    moments = la.Moments(4, 1).update(Z, y).update(rest, checkpoint=path)
    same_bits(moments, la.Moments(4, 1).update(Z, y) + la.Moments(4, 1).update(rest))
    assert la.Moments.load(path).n_samples == moments.n_samples - len(y)


def test_stored_arrays_go_on_where_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr("linattn_fast.data.sources.BATCH_BYTES", 5000)
    monkeypatch.setattr("linattn_fast.data.sources._LARGEST_BATCH", 0)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "Z.npy", rng.standard_normal((900, 5, 4)))
    Z, y = np.load(tmp_path / "Z.npy", mmap_mode="r"), rng.standard_normal(900)
    expected = la.Moments(4, 1).update(Z, y)
    path, seen = tmp_path / "checkpoint.npz", []

    def refuse(done, total):
        if done > 400:
            raise Stop("enough")

    with pytest.raises(Stop, match="enough"):
        la.Moments(4, 1).update(Z, y, checkpoint=path, checkpoint_every=0, progress=refuse)
    found = la.Moments(4, 1).update(
        Z, y, checkpoint=path, progress=lambda done, total: seen.append(done)
    )
    same_bits(found, expected)
    assert seen[0] > 400  # nothing was added twice


def test_time_passes_between_checkpoints(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "linattn_fast.moments.checkpoint.write_moments", lambda *given: saved.append(given)
    )
    la.Moments(4, 1).update(batches(), checkpoint=tmp_path / "c.npz", checkpoint_every=3600)
    assert len(saved) == 1  # at the end
    la.Moments(4, 1).update(batches(), checkpoint=tmp_path / "c.npz", checkpoint_every=0)
    assert len(saved) == 1 + 12 + 1


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    la.Moments(4, 1).update(batches()[:5], checkpoint=path)
    whole = path.read_bytes()
    for moments, stream, message in [
        (la.Moments(4, 1, positions="all"), batches(), "another accumulation: positions is 'last'"),
        (la.Moments(4, 1), batches()[:6], "another stream: it has 5 batches, and this one has 6"),
        (la.Moments(4, 1), batches()[1:6], "tokens, targets, weights of batch 0 differ"),
        (la.Moments(4, 1), iter(batches()[:5]), "this one has an unknown number of batches"),
        (la.Moments(4, 1), np.zeros((5, 5, 4)), "Z is one batch in memory"),
    ]:
        y = np.zeros(5) if isinstance(stream, np.ndarray) else None
        with pytest.raises(ValueError, match=f"^checkpoint: .*{message}"):
            moments.update(stream, y, checkpoint=path)
        assert moments.n_samples == 0
        assert path.read_bytes() == whole
    unknown = tmp_path / "unknown.npz"  # streams whose length is not known
    la.Moments(4, 1).update(iter(batches()[:5]), checkpoint=unknown)
    with pytest.raises(ValueError, match="^checkpoint: .* had read 5 batches.* ends after 3"):
        la.Moments(4, 1).update(iter(batches()[:3]), checkpoint=unknown)
    with pytest.raises(ValueError, match="^checkpoint: .* had read 5 batches.* ends after 0"):
        la.Moments(4, 1).update(iter([]), checkpoint=unknown)
    with pytest.raises(ValueError, match="^checkpoint: .*ended after 5 batches.* this one goes on"):
        la.Moments(4, 1).update(iter(batches()[:6]), checkpoint=unknown)
    la.Moments(4, 1).update(*batches()[0]).save(path)
    with pytest.raises(ValueError, match="^checkpoint: .*no checkpoint"):
        la.Moments(4, 1).update(batches(), checkpoint=path)
    path.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match="^path: .*is not a whole linattn_fast.moments file"):
        la.Moments(4, 1).update(batches(), checkpoint=path)


def with_weights(changed=None, index=None):
    """Batches with weights, and one number of one of them changed."""
    rng = np.random.default_rng(6)
    for i, (Z, y) in enumerate(batches()):
        batch = {"Z": Z, "y": y, "sample_weight": rng.random(len(y)) + 0.5}
        if i == index:
            batch[changed] = batch[changed].copy()
            batch[changed].flat[-1] += 1e-9
        yield batch


@pytest.mark.parametrize("after", [4, 12])
@pytest.mark.parametrize(
    ("changed", "named"), [("Z", "tokens"), ("y", "targets"), ("sample_weight", "weights")]
)
def test_a_checkpoint_never_answers_for_other_data(tmp_path, after, changed, named):
    """Whether it is complete or not, one changed digit is found, and the message says where."""
    path = tmp_path / "checkpoint.npz"
    if after < 12:
        with pytest.raises(Stop, match="enough"):
            la.Moments(4, 1).update(
                stopping(with_weights(), after), checkpoint=path, checkpoint_every=0
            )
    else:
        la.Moments(4, 1).update(with_weights(), checkpoint=path)
    before = path.read_bytes()
    for index in (0, after - 1):
        moments = la.Moments(4, 1)
        message = rf"^checkpoint: .*another stream: {named} of batch {index} differ.*another path"
        with pytest.raises(ValueError, match=message):
            moments.update(with_weights(changed, index), checkpoint=path)
        assert moments.n_samples == 0
        assert path.read_bytes() == before
    if after < 12:  # what comes later is new to the checkpoint
        expected = la.Moments(4, 1).update(with_weights(changed, after))
        found = la.Moments(4, 1).update(with_weights(changed, after), checkpoint=path)
        same_bits(found, expected)


def test_the_readme_stream_with_another_seed_is_refused(tmp_path):
    def stream(seed):
        rng = np.random.default_rng(seed)
        return ((rng.standard_normal((100, 6, 4)), rng.standard_normal((100, 2))) for _ in range(5))

    path = tmp_path / "moments.npz"
    first = la.Moments(4, 2).update(stream(0), checkpoint=path)
    with pytest.raises(ValueError, match="^checkpoint: .*tokens, targets of batch 0 differ"):
        la.Moments(4, 2).update(stream(1), checkpoint=path)
    same_bits(la.Moments(4, 2).update(stream(0), checkpoint=path), first)


def test_stored_arrays_that_changed_are_refused(tmp_path, small_batches):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "Z.npy", rng.standard_normal((300, 5, 4)))
    Z, y = np.load(tmp_path / "Z.npy", mmap_mode="r+"), rng.standard_normal(300)
    path = tmp_path / "checkpoint.npz"
    expected = la.Moments(4, 1).update(Z, y, checkpoint=path)
    same_bits(la.Moments(4, 1).update(Z, y, checkpoint=path), expected)
    same_bits(la.Moments(4, 1).update(Z, y, sample_weight=np.ones(300), checkpoint=path), expected)
    Z[150, 2, 1] = 7.0
    with pytest.raises(ValueError, match=r"^checkpoint: .* tokens of sequences \d+:\d+ differ"):
        la.Moments(4, 1).update(Z, y, checkpoint=path)


def test_batches_cut_elsewhere_are_another_stream(tmp_path, monkeypatch, small_batches):
    """Sums in another order have other bits, and no digest to compare with."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "Z.npy", rng.standard_normal((300, 5, 4)))
    Z, y = np.load(tmp_path / "Z.npy", mmap_mode="r"), rng.standard_normal(300)
    path = tmp_path / "checkpoint.npz"
    la.Moments(4, 1).update(Z, y, checkpoint=path)
    for size in (1000, 5000, 10**6):
        monkeypatch.setattr("linattn_fast.data.sources.BATCH_BYTES", size)
        with pytest.raises(ValueError, match="^checkpoint: .*its batch 0 ended after 12 sequences"):
            la.Moments(4, 1).update(Z, y, checkpoint=path)


def test_the_form_of_sequences_is_not_part_of_the_data(tmp_path):
    path = tmp_path / "checkpoint.npz"
    first = la.Moments(4, 1).update(batches(), checkpoint=path)
    ragged = [(list(Z), y[:, None], np.ones(len(y))) for Z, y in batches()]
    same_bits(la.Moments(4, 1).update(ragged, checkpoint=path), first)
    single = [(Z.astype(np.float32), y) for Z, y in batches()]
    with pytest.raises(ValueError, match="^checkpoint: .*: tokens of batch 0 differ"):
        la.Moments(4, 1).update(single, checkpoint=path)


def test_a_checkpoint_without_digests_loads_and_is_not_resumed(tmp_path):
    """Files of versions before there were digests."""
    path = tmp_path / "checkpoint.npz"
    expected = la.Moments(4, 1).update(batches(), checkpoint=path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive if name != "batches"}
    meta = json.loads(str(arrays["meta"]))
    del meta["stream"]["complete"], meta["scalar_targets"], meta["others_are_zero"]
    np.savez(path, **{**arrays, "meta": np.array(json.dumps(meta))})
    same_bits(la.Moments.load(path), expected)
    with pytest.raises(ValueError, match="^checkpoint: .*older version.*12 batches.*Moments.load"):
        la.Moments(4, 1).update(batches(), checkpoint=path)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"checkpoint": 3.5}, TypeError, "^checkpoint: the path of a file is needed, got float"),
        ({"checkpoint": "no/such/folder/c.npz"}, FileNotFoundError, "no such folder"),
        ({"checkpoint_every": -1}, ValueError, "^checkpoint_every: .* got -1"),
        ({"checkpoint_every": "1"}, TypeError, "^checkpoint_every: .* got str"),
        ({"checkpoint_every": float("nan")}, ValueError, "^checkpoint_every: .* got nan"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_read(tmp_path, given, kind, message):
    def stream():
        raise AssertionError("read")
        yield

    with pytest.raises(kind, match=message):
        la.Moments(4, 1).update(stream(), **{"checkpoint": tmp_path / "c.npz", **given})


PROGRAM = """
import sys, numpy as np, linattn_fast as la
rng = np.random.default_rng(8)
def stream():
    for i in range(60):
        yield rng.standard_normal((300, 6, 10)), rng.standard_normal(300)
moments = la.Moments(10, 1).update(stream(), checkpoint=sys.argv[1], checkpoint_every=0)
moments.save(sys.argv[2])
"""


DIES = """
import os, signal, sys
import numpy as np
step, countdown = sys.argv[3], [int(sys.argv[4])]
def dying(call):
    def wrapped(*given, **named):
        countdown[0] -= 1
        if countdown[0] == 0 and step.startswith("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        if countdown[0] == 0 and step.startswith("within"):  # half of the bytes reach the disk
            given[0].write(b"PK" * 5000)
            given[0].flush()
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*given, **named)
        if countdown[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapped
place, name = {"savez": (np, "savez"), "fsync": (os, "fsync"), "replace": (os, "replace")}[
    step.split()[1]
]
setattr(place, name, dying(getattr(place, name)))
"""


@pytest.mark.skipif("LINATTN_SANITIZED" in os.environ, reason="many slow starts, nothing compiled")
@pytest.mark.parametrize(
    ("step", "lost"),
    [
        ("within savez", True),
        ("before fsync", True),
        ("before replace", True),
        ("after replace", False),
    ],
)
def test_killed_at_any_step_of_saving_the_file_is_the_last_one_or_the_new_one(tmp_path, step, lost):
    """SIGKILL in the fifth save: the fourth checkpoint is left, or the fifth; nothing between."""
    checkpoint, result = tmp_path / "checkpoint.npz", tmp_path / "moments.npz"
    short = PROGRAM.replace("range(60)", "range(8)").replace("(300, 6, 10)", "(300, 6, 4)")
    short = short.replace("la.Moments(10, 1)", "la.Moments(4, 1)")
    plain = short.replace(", checkpoint=sys.argv[1], checkpoint_every=0", "")
    program = [sys.executable, "-c", DIES + short, checkpoint, result, step, "5"]
    killed = subprocess.run(program, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert la.Moments.load(checkpoint).n_samples == 300 * (4 if lost else 5)
    subprocess.run([sys.executable, "-c", short, checkpoint, result], check=True)
    subprocess.run([sys.executable, "-c", plain, "", tmp_path / "expected.npz"], check=True)
    same_bits(la.Moments.load(result), la.Moments.load(tmp_path / "expected.npz"))


@pytest.mark.skipif("LINATTN_SANITIZED" in os.environ, reason="many slow starts, nothing compiled")
def test_killed_at_any_moment_the_last_checkpoint_is_whole_and_leads_to_the_same_bits(tmp_path):
    """Killed again and again while it saves as often as it can; every file found is whole."""
    checkpoint, result = tmp_path / "checkpoint.npz", tmp_path / "moments.npz"
    plain = PROGRAM.replace(", checkpoint=sys.argv[1], checkpoint_every=0", "")
    subprocess.run([sys.executable, "-c", plain, "", tmp_path / "expected.npz"], check=True)
    clock, kills, done = random.Random(3), 0, [0]
    for _ in range(60):
        run = subprocess.Popen([sys.executable, "-c", PROGRAM, checkpoint, result])
        start = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while run.poll() is None:  # until it has saved once more, and then a little
            now = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            if now > start:
                time.sleep(0.02 * clock.random())
                break
            time.sleep(0.001)
        if run.poll() is None and kills < 4:
            os.kill(run.pid, signal.SIGKILL)
            kills += 1
        if run.wait() == 0:
            break
        done.append(la.Moments.load(checkpoint).n_samples)
    assert kills > 1
    assert done == sorted(set(done))  # every life got further
    assert done[-1] < 60 * 300
    same_bits(la.Moments.load(result), la.Moments.load(tmp_path / "expected.npz"))
