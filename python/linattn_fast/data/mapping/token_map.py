"""Tokens under a feature map: phi(z_t) in the place of z_t, a part of the sequences at a time.

A map is any function from rows (m, d) to rows (m, D), each made of its own row alone. It is tried
on the first tokens before any work: what it returns has as many rows, and those of a block are
those of its two halves. Whatever it returns later must be finite, and of that width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...arrays.device import module_of
from ...arrays.floats import all_finite, as_floats
from ...arrays.types import Array
from ...maps.chain import Chain
from ...maps.feature_map import FeatureMap
from ...maps.pointwise import with_constant
from ..non_finite import non_finite_error
from ..tokens import Tokens

Map: TypeAlias = Callable[[Any], Any]
"""A function from rows (m, d) to rows (m, D)."""

_NAMES = {"key_map": "keys", "query_map": "queries", "value_map": "values"}
"""What the maps of streams are applied to."""
_TRIED = 64
"""Number of tokens that a map is tried on."""
PART_BYTES = 8 << 20
"""Bytes of mapped tokens that are made at a time, at least."""


def as_map(value: object, name: str = "map") -> Map | None:
    """Check that a map can be called; None means no map."""
    if value is None:
        return None
    if not callable(value) or isinstance(value, type):
        given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise TypeError(f"{name}: a function of a block (m, d) or None is needed, got {given}")
    return value


def with_intercept(value: Map | None, intercept: bool) -> Map | None:
    """A map with a constant coordinate after it, where one is asked for and it has none."""
    if not intercept or (isinstance(value, FeatureMap) and value.constant(1) is not None):
        return value
    return with_constant if value is None else Chain((value, with_constant))


def one_after_the_other(first: Map | None, then: Map | None) -> Map | None:
    """Two maps as one; None is no map."""
    if first is None or then is None:
        return first or then
    return Chain((first, then))


class StreamMaps(NamedTuple):
    """What keys, queries and values of streams are mapped by, after their own maps."""

    key: Map | None
    query: Map | None
    value: Map | None = None
    """For values that are not the keys."""


@dataclass(frozen=True)
class TokenMap:
    """A map for tokens of one width, tried."""

    map: Map
    d: int
    """Number of coordinates of a token as it is given."""
    width: int
    """Number of coordinates D of a mapped token."""
    name: str = "map"
    """Name of the argument, in messages."""

    @classmethod
    def tried(cls, value: Map, tokens: Tokens, name: str = "map") -> TokenMap:
        """Try a map on the first of some tokens; raises where it is not one."""
        block = _first_rows(tokens)
        mapped = _rows_of(value, block, name, "the first tokens")
        made = cls(value, tokens.d, int(mapped.shape[1]), name)
        if len(block) > 1:
            made._require_rows_alone(block, mapped, tokens)
        return made

    def _require_rows_alone(self, block: Array, mapped: Array, tokens: Tokens) -> None:
        """Raise where rows of a block are not those of its halves, to rounding."""
        middle = len(block) // 2
        xp = module_of(mapped)
        halves = [
            _rows_of(self.map, half, self.name, "the first tokens")
            for half in (block[:middle], block[middle:])
        ]
        if any(half.shape[1] != self.width for half in halves):
            widths = " and ".join(str(half.shape[1]) for half in halves)
            raise ValueError(
                f"{self.name}: it returns {self.width} coordinates for a block of {len(block)} "
                f"tokens, and {widths} for its halves"
            )
        apart = xp.abs(xp.concatenate(halves) - mapped).max(axis=1)
        # Sums in another order differ by far less, and what depends on the block by far more
        tolerance = float(np.sqrt(np.finfo(mapped.dtype).eps))
        wrong = apart > tolerance * xp.abs(mapped).max(axis=1)  # false for NaN, found later
        if wrong.any():
            row = int(wrong.argmax())
            i = int(np.searchsorted(np.cumsum(tokens.lengths[:_TRIED]), row, side="right"))
            raise ValueError(
                f"{self.name}: what it makes of a token must not depend on the block that the "
                f"token is in; a token of sequence {i} differs by {float(apart[row]):.3g} between "
                f"a block of {len(block)} tokens and its half"
            )

    @property
    def constant(self) -> int | None:
        """Which coordinate of a mapped token is always 1, as far as the map tells."""
        return self.map.constant(self.width) if isinstance(self.map, FeatureMap) else None

    def bytes_of(self, tokens: Tokens) -> int:
        """Bytes that all of the tokens have once they are mapped."""
        return 8 * tokens.n_rows * self.width

    def of(self, tokens: Tokens, first: int = 0) -> Tokens:
        """Map all tokens of a batch, in its form; ``first`` is the number of its first sequence."""
        where = f"sequences {first} to {first + len(tokens) - 1}"
        mapped = self._of_width(tokens.rows(), where)
        storage = Tokens.restore(tokens, mapped)  # of masked tokens, those that exist
        made = Tokens(tuple(storage) if isinstance(storage, list) else storage, tokens.offsets)
        on_host = made.device is None
        if not (all_finite(mapped) if on_host else module_of(mapped).isfinite(mapped).all()):
            raise self._not_finite(tokens, made, first)
        return made

    def _of_width(self, rows: Array, where: str) -> Array:
        """Map rows, (m, d), to (m, D)."""
        mapped = _rows_of(self.map, rows, self.name, where)
        if mapped.shape[1] != self.width:
            raise ValueError(
                f"{self.name}: it returns {mapped.shape[1]} coordinates for the tokens of {where}, "
                f"and {self.width} for the first ones"
            )
        return mapped

    def of_queries(self, rows: Array) -> Array:
        """Map queries, (m, d), to (m, D)."""
        mapped = self._of_width(rows, "the queries")
        if not all_finite(mapped):
            if not all_finite(rows):
                at = int(np.argmin(np.isfinite(rows).all(axis=1)))
                raise ValueError(f"queries: must be finite, got {rows[at]} for query {at}")
            at = int(np.argmin(np.isfinite(mapped).all(axis=1)))
            raise ValueError(
                f"{self.name}: it must return finite numbers, and does not for query {at}"
            )
        return mapped

    def _not_finite(self, tokens: Tokens, made: Tokens, first: int) -> ValueError:
        """Say where tokens, or what the map made of them, are not finite."""
        if not all(module_of(array).isfinite(array).all() for array in tokens.arrays):
            return non_finite_error(tokens, name=_NAMES.get(self.name, "Z"))
        at = next(i for i, z in enumerate(made) if not module_of(z).isfinite(z).all())
        return ValueError(
            f"{self.name}: it must return finite numbers, and does not for sequence {first + at}"
        )

    def parts(self, tokens: Tokens) -> Iterator[Tokens]:
        """Yield all tokens of a batch, mapped, a part of the sequences at a time."""
        for first, last in self.pieces(tokens):
            yield self.of(tokens.part(first, last), first)

    def pieces(self, tokens: Tokens, at_least: int = 0) -> Iterator[tuple[int, int]]:
        """Numbers (first, last) of sequences that are mapped at a time, by their bytes then."""
        ends = np.cumsum(tokens.lengths)
        rows, first = max(1, max(PART_BYTES, at_least) // (8 * self.width)), 0
        while first < len(tokens):
            before = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, before + rows, side="right")), first + 1)
            yield first, last
            first = last


def _first_rows(tokens: Tokens) -> Array:
    """Some tokens from the beginning of a batch, (m, d)."""
    lengths = np.cumsum(tokens.lengths[:_TRIED])
    sequences = int(np.searchsorted(lengths, _TRIED)) + 1
    return tokens.part(0, min(sequences, len(tokens))).rows()[:_TRIED]


def _rows_of(value: Map, block: Array, name: str, where: str) -> Array:
    """What a map makes of a block, checked to be as many rows."""
    if isinstance(value, FeatureMap) and not isinstance(value, Chain):
        mapped = as_floats(value(block), name)
    else:  # a function of the caller's, which may write in its argument or return the same array
        mapped = as_floats(value(block.copy()), name).copy()
    if mapped.ndim != 2 or len(mapped) != len(block) or mapped.shape[1] == 0:
        raise ValueError(
            f"{name}: one row of at least one number a token is needed, ({len(block)}, D) for "
            f"{where}, got shape {mapped.shape}"
        )
    return mapped
