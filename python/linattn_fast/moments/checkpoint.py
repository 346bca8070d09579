"""Checkpoints: a long accumulation that was killed goes on where its last checkpoint was made.

A checkpoint is a file of moments, moved into place whole, that also says how far the stream had
been read, and has digests of the batches (:mod:`linattn_fast.moments.digests`). The stream is read
again from its beginning: batches that were added before are compared with their digests, which
takes no Gram, and the others are added in the same order. So the result has the bits of a run that
was never interrupted, and other data is an error instead of an old answer.
"""

from __future__ import annotations

import errno
import math
import numbers
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.sources import Batch, Source
from ..features.files import PathLike
from ..features.samples import Samples
from .digests import BatchDigest, digest_of
from .file import Reached, read_moments, write_moments

if TYPE_CHECKING:
    from .moments import Moments

_MUST_AGREE = ("d", "d_out", "positions", "features", "precision")
_WHAT_TO_DO = "give another path, or delete the file to begin anew"


def _size(total: int | None, unit: str) -> str:
    return f"{'an unknown number of' if total is None else total} {unit}"


class Checkpoint:
    """Saves moments now and then while a source is read, with digests of the batches.

    Parameters
    ----------
    path
        The file, in a folder that exists.
    every
        Seconds from one save to the next, at least; 0 saves after each batch.
    source
        What is being read.
    """

    def __init__(self, path: PathLike, every: object, source: Source) -> None:
        try:
            self.path = Path(os.fspath(path))
        except TypeError:
            kind = type(path).__name__
            raise TypeError(f"checkpoint: the path of a file is needed, got {kind}") from None
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(self.path.parent))
        if isinstance(every, bool) or not isinstance(every, numbers.Real):
            kind = type(every).__name__
            raise TypeError(f"checkpoint_every: a number of seconds is needed, got {kind}")
        self._every = float(every)
        if not 0 <= self._every < math.inf:
            raise ValueError(f"checkpoint_every: must be finite and not negative, got {every!r}")
        self._source = source
        self._saved = time.monotonic()
        self._complete = False
        self._seen: list[tuple[int, BatchDigest]] = []
        """Where each batch that was added ended, and its digests."""
        self._compared = 0
        """How many of them have come again."""

    # ------------------------------------------------------------------------------------ resuming

    def resume(self, empty: Moments) -> tuple[Moments, int]:
        """Read the moments so far and how far the stream was read; ``empty`` without a file.

        Raises
        ------
        ValueError
            The file is not whole, or is not a checkpoint of such a stream.
        """
        if not self.path.exists():
            return empty, 0
        token_map = empty.features.map
        own = None if token_map is None else token_map.map
        moments, stream = read_moments(self.path, type(empty), empty.backend, own)
        if stream is None:
            raise ValueError(
                f"checkpoint: {self.path} holds moments that are no checkpoint; "
                "give another path, or load them with Moments.load"
            )
        if stream.batches is None:
            raise ValueError(
                f"checkpoint: {self.path} is of an older version, which kept no digests; it cannot "
                "be compared with this stream; give another path, or load what it has, "
                f"{stream.done} {stream.unit}, with Moments.load and add the rest"
            )
        for name in _MUST_AGREE:
            mine, theirs = getattr(empty, name), getattr(moments, name)
            if mine != theirs:
                raise ValueError(
                    f"checkpoint: {self.path} is of another accumulation: "
                    f"{name} is {theirs!r}, not {mine!r}; {_WHAT_TO_DO}"
                )
        mine, theirs = (_size(each.total, each.unit) for each in (self._source, stream))
        if mine != theirs:
            raise self._other(f"it has {theirs}, and this one has {mine}")
        self._complete = stream.complete
        self._seen = [(end, BatchDigest(*digests)) for end, *digests in stream.batches.tolist()]
        return moments, stream.done

    def _other(self, difference: str) -> ValueError:
        """The error for a stream that is not the one of the file."""
        return ValueError(
            f"checkpoint: {self.path} is of another stream: {difference}; {_WHAT_TO_DO}"
        )

    def holds(self, batch: Batch, samples: Samples) -> bool:
        """Whether the next batch was added before; one that differs is an error."""
        if self._compared == len(self._seen):
            if self._complete:
                raise self._other(
                    f"it had ended after {self._seen[-1][0]} {self._source.unit}, "
                    "and this one goes on"
                )
            return False
        end, before = self._seen[self._compared]
        if end != batch.end:
            raise self._other(
                f"its batch {self._compared} ended after {end} {self._source.unit}, and that of "
                f"this one ends after {batch.end}"
            )
        now = digest_of(samples)
        differ = [
            name for name in BatchDigest._fields if getattr(now, name) != getattr(before, name)
        ]
        if differ:
            raise self._other(
                f"{', '.join(differ)} of {batch.where.partition(',')[0]} differ from those that "
                "were added"
            )
        self._compared += 1
        return True

    # -------------------------------------------------------------------------------------- saving

    def note(self, batch: Batch, samples: Samples) -> None:
        """Remember a batch that has been added."""
        self._seen.append((batch.end, digest_of(samples)))
        self._compared = len(self._seen)

    def save_if_due(self, moments: Moments) -> None:
        """Save the moments when enough time has passed."""
        if time.monotonic() - self._saved >= self._every:
            self.save(moments)

    def finish(self, moments: Moments, resumed: int, reached: int) -> None:
        """Save the moments of the whole stream, marked as complete, unless the file has them."""
        if reached < resumed:
            raise self._other(
                f"it had read {resumed} {self._source.unit}, and this one ends after {reached}"
            )
        if not self._complete:
            self._complete = True
            self.save(moments)

    def save(self, moments: Moments) -> None:
        """Save the moments now."""
        rows = [(end, *digest) for end, digest in self._seen]
        reached = Reached(
            self._source.unit,
            self._source.total,
            done=rows[-1][0],
            complete=self._complete,
            batches=np.array(rows, dtype=np.uint64),
        )
        write_moments(moments, self.path, reached)
        self._saved = time.monotonic()
