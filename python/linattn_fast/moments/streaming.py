"""Accumulating a stream: batch after batch, the next one read while the last is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..arrays.types import Positions, Values
from ..data.read_ahead import read_ahead
from ..data.sources import Batch, Source
from ..features.features import Features
from ..features.samples import Samples, warn_of_padding
from ..system.progress import Bar
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from .moments import Moments


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say in which batch an argument was wrong; the message still begins with its name.

    Nothing is added where ``where`` is empty: a batch that was given on its own needs no place.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError) or not where:
            raise
        raise type(error)(f"{error}; in {where}") from error.__cause__


def checked_batch(
    batch: Batch,
    positions: Positions,
    features: Features | None,
    d: int | None,
    d_out: int | None,
    values: Values = "mixed",
) -> Samples:
    """Check a batch that was read, see :meth:`Samples.checked`; errors say which batch it was."""
    with located(batch.where):
        return Samples.checked(
            batch.Z,
            batch.y,
            offsets=batch.offsets,
            sample_weight=batch.sample_weight,
            positions=positions,
            features=features,
            values=values,
            d=d,
            d_out=d_out,
        )


def accumulate(
    source: Source,
    empty: Moments,
    progress: bool | Callable[[int, Any], object],
    checkpoint: Checkpoint | None = None,
    *,
    doubt: bool = False,
) -> Moments:
    """Accumulate the moments of a whole source in ``empty``, which has none yet, and return them.

    A checkpoint may return others, which it has resumed. With ``doubt``, a first batch that looks
    padded is warned of.
    """
    total, done = (empty, 0) if checkpoint is None else checkpoint.resume(empty)
    reached = 0
    with (
        Bar(source.total, "moments", progress, unit=source.unit, done=done) as report,
        read_ahead(source.read()) as batches,  # from the first on, to compare those added before
    ):
        for batch in batches:
            reached = batch.end
            samples = checked_batch(
                batch, total.positions, total.features, d=total.d, d_out=total.d_out
            )
            if doubt:
                warn_of_padding(samples.tokens, total.positions)
                doubt = False
            if checkpoint is not None and checkpoint.holds(batch, samples):
                continue
            with located(batch.where):
                total.add(total.totals_of(samples))
            if report is not None:
                report(reached)
            if checkpoint is not None:
                checkpoint.note(batch, samples)
                checkpoint.save_if_due(total)
            del batch, samples  # before the next is taken, or three would exist
    if reached == 0 and done == 0:
        raise ValueError("Z: the stream is empty; at least one batch is needed")
    if checkpoint is not None:
        checkpoint.finish(total, done, reached)
    return total
