"""Checkpoints: a long accumulation that was killed goes on where its last checkpoint was made.

A checkpoint is a file of moments, moved into place whole, that also says how far the stream had
been read. The same stream read again adds the same batches in the same order, so the result has
the bits of a run that was never interrupted.
"""

from __future__ import annotations

import errno
import math
import numbers
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .moments_file import read_moments, write_moments
from .sources import Source
from .storage import PathLike

if TYPE_CHECKING:
    from .moments import Moments

_MUST_AGREE = ("d", "d_out", "positions", "features", "precision")


class Checkpoint:
    """Saves moments now and then while a source is read.

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

    def resume(self, empty: Moments) -> tuple[Moments, int]:
        """Moments of what was read before, and how far that was; as given if there is no file.

        Raises
        ------
        ValueError
            The file is not whole, or is not a checkpoint of such a stream.
        """
        if not self.path.exists():
            return empty, 0
        moments, stream = read_moments(self.path, type(empty), empty.backend)
        if stream is None:
            raise ValueError(
                f"checkpoint: {self.path} holds moments that are no checkpoint; "
                "give another path, or load them with Moments.load"
            )
        for name in _MUST_AGREE:
            mine, theirs = getattr(empty, name), getattr(moments, name)
            if mine != theirs:
                raise ValueError(
                    f"checkpoint: {self.path} is of another accumulation: "
                    f"{name} is {theirs!r}, not {mine!r}"
                )
        mine, theirs = self._describe(), {name: stream.get(name) for name in self._describe()}
        if mine != theirs:
            raise ValueError(
                f"checkpoint: {self.path} is of another stream: {theirs}, and this one is {mine}"
            )
        return moments, int(stream["done"])

    def _describe(self) -> dict[str, object]:
        return {"unit": self._source.unit, "total": self._source.total}

    def require_same(self, moments: Moments, done: int, skipped: int) -> None:
        """Raise when the batches skipped do not have the samples of those once added."""
        if moments.n_samples != skipped:
            raise ValueError(
                f"checkpoint: {self.path} is of another stream: its first {done} batches had "
                f"{moments.n_samples} samples, and those of this one have {skipped}"
            )

    def save_if_due(self, moments: Moments, done: int) -> None:
        """Save when enough time has passed."""
        if time.monotonic() - self._saved >= self._every:
            self.save(moments, done)

    def finish(self, moments: Moments, resumed: int, reached: int) -> None:
        """Save the whole; resumed from its end, the same stream is not read again."""
        if reached < resumed:
            raise ValueError(
                f"checkpoint: {self.path} is of another stream: it had read {resumed} "
                f"{self._source.unit}, and this one ends after {reached}"
            )
        if reached > resumed:
            self.save(moments, reached)

    def save(self, moments: Moments, done: int) -> None:
        """Save now."""
        write_moments(moments, self.path, {**self._describe(), "done": done})
        self._saved = time.monotonic()
