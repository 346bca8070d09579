"""What tokens attend to, where keywords say more than positions do.

A mask alone leaves tokens that exist, as sequences of their own lengths. A scale, gates, tokens
that do not see themselves, and weights of single queries make :class:`Streams` of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ..arrays.device import to_host
from ..arrays.floats import as_floats
from ..arrays.types import Kind, Positions
from .sources import as_source
from .states import States
from .stream_forms import QueryRows, as_kept, only, rows_of
from .streams import Streams
from .tokens import Tokens, as_tokens


class Attending(TypedDict, total=False):
    """Keywords that say what tokens attend to; see :class:`Streams`."""

    mask: object
    lengths: object
    scale: object
    decay: object
    attend_self: bool


@dataclass(frozen=True)
class MaskedTokens(Tokens):
    """The tokens that exist, of a batch that was given with a mask."""

    form: QueryRows | None = None
    """The queries among all tokens that were given; None for a part."""
    exist: npt.NDArray[np.bool_] | None = None
    """Which sequences have a token, (N,); None for all."""

    def part(self, first: int, last: int) -> Tokens:
        """Sequences first, .., last - 1; nothing is copied."""
        return replace(super().part(first, last), form=None, exist=None)  # type: ignore[call-arg]

    def given_rows(self, given: object, name: str) -> object:
        """Targets of the queries that exist, one after the other."""
        return given if self.form is None else self.form.of(given, name, axes=1)

    def given_weights(self, sample_weight: object) -> object:
        """Weights of the sequences that exist."""
        if self.exist is None or sample_weight is None:
            return sample_weight
        weights = to_host(as_floats(sample_weight, "sample_weight"))
        return weights[self.exist] if weights.shape == self.exist.shape else weights

    def restore(self, rows: npt.NDArray[Kind]) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
        """Rows of the queries that exist in the form of all tokens; 0 for the others."""
        return super().restore(rows) if self.form is None else self.form.restored(rows)


def _masked(tokens: Tokens, mask: object, lengths: object, positions: Positions) -> Tokens:
    """The tokens that exist; for "last", each sequence must have one."""
    kept = as_kept(mask, lengths, tokens)
    if kept is None:
        return tokens
    form = rows_of(tokens, tokens, kept, positions, of_tokens=True)
    left = only(tokens, kept)
    exist = left.lengths > 0
    if not exist.any():
        raise ValueError("mask: at least one token must exist, and all are masked")
    assert left.offsets is not None
    offsets = np.concatenate([[0], left.offsets[1:][exist]])
    some = None if exist.all() else exist
    return MaskedTokens(left.storage, offsets, form=form, exist=some)


def attended(
    Z: object,
    offsets: object,
    positions: Positions,
    sample_weight: object = None,
    *,
    mask: object = None,
    lengths: object = None,
    scale: object = None,
    decay: object = None,
    attend_self: bool = True,
) -> tuple[object, object]:
    """Z and offsets as they are, or tokens with what keywords say about them.

    ``sample_weight`` is looked at for its form alone: one weight a query makes streams of tokens.
    """
    plain = scale is None and decay is None and attend_self is True
    one_a_query = not isinstance(Z, Streams | States) and _one_a_query(sample_weight, positions)
    if plain and mask is None and lengths is None and not one_a_query:
        return Z, offsets
    given = {"mask": mask, "lengths": lengths, "scale": scale, "decay": decay}
    name = next((name for name, value in given.items() if value is not None), "attend_self")
    if isinstance(Z, Streams | States):
        raise ValueError(f"{name}: it is for tokens; {type(Z).__name__} bring their own")
    if isinstance(Z, Iterator | Mapping) or as_source(Z, None) is not None:
        raise ValueError(
            f"{name}: Z is read a batch at a time, and batches bring their own: give Streams as Z "
            "of each batch"
        )
    if plain and not one_a_query:
        return _masked(as_tokens(Z, offsets), mask, lengths, positions), None
    streams = Streams.of_tokens_alone(
        Z,
        offsets=offsets,
        mask=mask,
        lengths=lengths,
        scale=scale,
        decay=decay,
        attend_self=attend_self,
    )
    return streams, None


def _one_a_query(sample_weight: object, positions: Positions) -> bool:
    """Whether weights have an axis of queries, or are a list of arrays."""
    if sample_weight is None or positions == "last":
        return False
    if isinstance(sample_weight, list | tuple):
        return len(sample_weight) > 0 and np.ndim(sample_weight[0]) == 1
    return getattr(sample_weight, "ndim", 1) == 2
