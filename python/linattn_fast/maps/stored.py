"""Maps in files: built-in ones are kept with their parameters, others only by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.types import Floats
from .chain import Chain
from .feature_map import FeatureMap
from .landmark_kernel import landmarks
from .pointwise import elu1, hedgehog, relu, with_constant
from .random_exponential import exponential
from .taylor import taylor2

_WITHOUT_PARAMETERS = {each.name: each for each in (elu1, hedgehog, relu, taylor2, with_constant)}


@dataclass(frozen=True, repr=False)
class OwnMap(FeatureMap):
    """The place of a map that a file could not keep, until it is given again."""

    told: str
    """What it was called."""

    name = "own"

    def __call__(self, block: object) -> Floats:
        """Say that the map must be given again."""
        raise ValueError(
            f"map: the layer was learned with a map of your own, {self.told}, which files do not "
            "keep; give it again, la.load(path, map=...)"
        )

    def __repr__(self) -> str:
        return f"{self.told} (not kept in the file)"


def told(value: Callable[[Any], Any]) -> str:
    """What a map is called in a file or a report: a function by its name."""
    if isinstance(value, FeatureMap):
        return repr(value)
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def map_meta(value: Callable[[Any], Any]) -> dict[str, Any]:
    """A map as entries of a file."""
    if isinstance(value, Chain):
        return {"name": value.name, "maps": [map_meta(each) for each in value.maps]}
    if isinstance(value, OwnMap):
        return {"name": value.name, "told": value.told}
    if not isinstance(value, FeatureMap):
        return {"name": OwnMap.name, "told": told(value)}
    parameters = {
        name: given.tolist() if isinstance(given, np.ndarray) else given
        for name, given in vars(value).items()
        if not name.startswith("_")
    }
    return {"name": value.name, **parameters}


def map_of(meta: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Make a map of entries of a file."""
    given = dict(meta)
    name = given.pop("name")
    if name == Chain.name:
        return Chain(tuple(map_of(each) for each in given["maps"]))
    if name == OwnMap.name:
        return OwnMap(str(given["told"]))
    if name == "exponential":
        return exponential(**given)
    if name == "landmarks":
        return landmarks(**given)
    if name not in _WITHOUT_PARAMETERS:
        raise ValueError(f"a map {name!r} that this version does not know")
    return _WITHOUT_PARAMETERS[name]


def given_again(
    value: Callable[[Any], Any], own: Callable[[Any], Any] | None
) -> Callable[[Any], Any]:
    """Put a map that is given again in the place of the one that a file could not keep.

    It may be the whole chain, or the map of one's own in it.
    """
    if own is None:
        return value
    if isinstance(value, Chain):
        whole = isinstance(own, Chain) and len(own.maps) == len(value.maps)
        given = own.maps if isinstance(own, Chain) and whole else (own,) * len(value.maps)
        return Chain(tuple(map(given_again, value.maps, given)))
    return own if isinstance(value, OwnMap) else value
