"""Accumulating a stream: batch after batch, the next one read while the last is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..arrays.types import Floats
from ..data.doubtful import warn_of_padding
from ..data.read_ahead import read_ahead
from ..data.sources import Batch, Source
from ..data.tokens import Tokens, as_tokens, as_weights
from ..features.left_out import require_none_left_out
from ..system.progress import Bar
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from .moments import Moments


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say in which batch an argument was wrong; the message still begins with its name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"{error}; in {where}") from error.__cause__


def checked(batch: Batch, moments: Moments) -> tuple[Tokens, Tokens | None, Floats | None]:
    """Tokens, targets and weights of a batch, as the moments need them."""
    tokens = as_tokens(batch.Z, batch.offsets, d=moments.d)
    targets = moments.checked_targets(batch.y, tokens)
    weights = as_weights(batch.sample_weight, len(tokens))
    require_none_left_out(tokens, weights, moments.positions, moments.features)
    return tokens, targets, weights


def accumulate(
    source: Source,
    empty: Moments,
    progress: bool | Callable[[int, Any], object],
    checkpoint: Checkpoint | None = None,
    *,
    doubt: bool = False,
) -> Moments:
    """Moments of a whole source; ``empty`` has none yet and may come back filled.

    With ``doubt``, a first batch that looks padded is warned of.
    """
    total, done = (empty, 0) if checkpoint is None else checkpoint.resume(empty)
    reached = 0
    with (
        Bar(source.total, "moments", progress, unit=source.unit, done=done) as report,
        read_ahead(source.read()) as batches,  # from the first on, to compare those added before
    ):
        for batch in batches:
            reached = batch.end
            with located(batch.where):
                tokens, targets, weights = checked(batch, total)
            if doubt:
                warn_of_padding(tokens, total.positions)
                doubt = False
            if checkpoint is not None and checkpoint.holds(batch, tokens, targets, weights):
                continue
            with located(batch.where):
                total.add_checked(tokens, targets, weights, None)
            if report is not None:
                report(reached)
            if checkpoint is not None:
                checkpoint.note(batch, tokens, targets, weights)
                checkpoint.save_if_due(total)
            del batch, tokens, targets, weights  # before the next is taken, or three would exist
    if reached == 0 and done == 0:
        raise ValueError("Z: the stream is empty; at least one batch is needed")
    if checkpoint is not None:
        checkpoint.finish(total, done, reached)
    return total
