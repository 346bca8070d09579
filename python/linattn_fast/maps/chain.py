"""One map after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays.types import Floats
from .feature_map import FeatureMap


@dataclass(frozen=True, repr=False)
class Chain(FeatureMap):
    """Maps one after the other, each on what the one before it returned."""

    maps: tuple[Callable[[Any], Any], ...]
    """The maps, the first first."""

    name = "chain"

    def __call__(self, block: object) -> Any:
        """Map rows (m, d) by each of the maps in turn."""
        for each in self.maps:
            block = each(block)
        return block

    def of_rows(self, x: Floats) -> Floats:
        """Map each row."""
        mapped: Floats = self(x)
        return mapped

    def width(self, d: int) -> int:
        """Number of coordinates after the last map; an error if one of them does not tell."""
        for each in self.maps:
            if not isinstance(each, FeatureMap):
                raise ValueError(f"map: {each!r} does not tell how many coordinates it returns")
            d = each.width(d)
        return d

    def constant(self, width: int) -> int | None:
        """The constant coordinate of the last map."""
        last = self.maps[-1]
        return last.constant(width) if isinstance(last, FeatureMap) else None

    def __repr__(self) -> str:
        names = (
            repr(each) if isinstance(each, FeatureMap) else getattr(each, "__qualname__", each)
            for each in self.maps
        )
        return f"maps.chain({', '.join(map(str, names))})"


def chain(*maps: Callable[[Any], Any]) -> Chain:
    """Put maps one after the other.

    Parameters
    ----------
    *maps
        Built-in ones, or functions of a block (m, d); the first is applied first.

    Returns
    -------
    Chain
        The map x -> last(.. first(x)).

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.maps.chain(la.maps.relu, la.maps.with_constant)([[1.0, -2.0]])
    array([[1., 0., 1.]])
    """
    if not maps or not all(map(callable, maps)):
        raise TypeError(f"maps: at least one function of a block is needed, got {maps!r}")
    return Chain(maps)
