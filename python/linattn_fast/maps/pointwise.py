"""Maps without parameters that act on the coordinates of a token, or append to them."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.device import module_of
from ..arrays.types import Floats
from .feature_map import FeatureMap


@dataclass(frozen=True, repr=False)
class WithConstant(FeatureMap):
    """A constant coordinate after the others, x -> (x, 1): biases, and with them affine maps."""

    name = "with_constant"

    def of_rows(self, x: Floats) -> Floats:
        """Append a column of ones."""
        mapped: Floats = module_of(x).ones((len(x), x.shape[1] + 1))
        mapped[:, :-1] = x
        return mapped

    def width(self, d: int) -> int:
        """One more coordinate, d + 1."""
        return d + 1

    def constant(self, width: int) -> int:
        """The last coordinate."""
        return width - 1


@dataclass(frozen=True, repr=False)
class Elu1(FeatureMap):
    """The map of linear transformers, elu(x) + 1: x + 1 where x > 0, else exp(x); positive."""

    name = "elu1"

    def of_rows(self, x: Floats) -> Floats:
        """Map each coordinate."""
        xp = module_of(x)
        mapped: Floats = xp.where(x > 0, x + 1.0, xp.exp(xp.minimum(x, 0.0)))
        return mapped

    def width(self, d: int) -> int:
        """As many coordinates, d."""
        return d


@dataclass(frozen=True, repr=False)
class Relu(FeatureMap):
    """The positive part of each coordinate, max(x, 0)."""

    name = "relu"

    def of_rows(self, x: Floats) -> Floats:
        """Map each coordinate."""
        mapped: Floats = module_of(x).maximum(x, 0.0)
        return mapped

    def width(self, d: int) -> int:
        """As many coordinates, d."""
        return d


def _softmax(x: Floats) -> Floats:
    """The softmax over the coordinates of each row."""
    weights: Floats = module_of(x).exp(x - x.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


@dataclass(frozen=True, repr=False)
class Hedgehog(FeatureMap):
    """The softmax over the coordinates of x, and that of -x: (softmax(x), softmax(-x))."""

    name = "hedgehog"

    def of_rows(self, x: Floats) -> Floats:
        """Map each row."""
        mapped: Floats = module_of(x).concatenate([_softmax(x), _softmax(-x)], axis=1)
        return mapped

    def width(self, d: int) -> int:
        """Twice as many coordinates, 2 d."""
        return 2 * d


with_constant = WithConstant()
"""Append the coordinate 1 to each token."""
elu1 = Elu1()
"""elu(x) + 1 of each coordinate."""
relu = Relu()
"""max(x, 0) of each coordinate."""
hedgehog = Hedgehog()
"""(softmax(x), softmax(-x)) of each token."""
