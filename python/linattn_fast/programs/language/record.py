"""Tokens as records of named attributes.

A record lays out the coordinates of a token, attribute after attribute. A token has some of the
attributes, each with one of its values, and is the sum of their unit vectors:

    z = sum over attributes of e[attribute, value]

or, for signed attributes, the sum of weight * e[attribute, value].

An attribute with a shape (m, n) has one coordinate for each pair of values: a joint one-hot.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...arrays.floats import as_array
from ...arrays.types import Floats
from ...system.arguments import as_size

Value: TypeAlias = "int | tuple[int, ...]"
"""What an attribute can be: a number, or a tuple for a joint one."""
Token: TypeAlias = "Mapping[str, Value | Mapping[Value, float]]"
"""Attribute to value; of a signed attribute also value to weight."""


@dataclass(frozen=True)
class Attribute:
    """One attribute of a token.

    Parameters
    ----------
    shape
        How many values it has; a tuple for joint values (i, j, ..).
    signed
        Whether a token may have several of its values, each with a weight of its own; otherwise it
        has one at most, with weight 1.
    """

    shape: int | tuple[int, ...]
    signed: bool = False

    def __post_init__(self) -> None:
        parts = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        if not parts:
            raise ValueError("shape: at least one number is needed, got ()")
        sizes = tuple(as_size(part, "shape") for part in parts)
        shape = sizes if isinstance(self.shape, tuple) else sizes[0]
        object.__setattr__(self, "shape", shape)
        if not isinstance(self.signed, bool):
            raise TypeError(f"signed: True or False is needed, got {self.signed!r}")

    @property
    def shapes(self) -> tuple[int, ...]:
        """The shape as a tuple."""
        return self.shape if isinstance(self.shape, tuple) else (self.shape,)

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shapes))

    def values(self) -> Iterator[Value]:
        """Every value, in the order of the coordinates.

        Returns
        -------
        iterator
            Numbers, or tuples of an attribute with joint values.
        """
        if isinstance(self.shape, tuple):
            return itertools.product(*map(range, self.shape))
        return iter(range(self.shape))

    def index(self, value: object, name: str) -> int:
        """Number of a value; ``name`` of the attribute, for errors."""
        joint = isinstance(self.shape, tuple)
        parts = tuple(value) if joint and isinstance(value, tuple | list) else (value,)
        number = 0
        try:
            if len(parts) != len(self.shapes):
                raise IndexError
            for part, size in zip(parts, self.shapes, strict=True):
                each = operator.index(part)
                if not 0 <= each < size:
                    raise IndexError
                number = number * size + each
        except (TypeError, IndexError):
            wanted = "x".join(map(str, self.shapes)) if joint else f"0 to {self.size - 1}"
            what = f"a tuple within {wanted}" if joint else f"a whole number from {wanted}"
            raise ValueError(f"{name}: {what} is needed, got {value!r}") from None
        return number


def signed(*shape: int) -> Attribute:
    """An attribute whose values have weights.

    Parameters
    ----------
    *shape
        How many values it has; several numbers for joint values.

    Returns
    -------
    Attribute
        One with ``signed=True``.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> programs.signed(3), programs.signed(3, 2).size
    (Attribute(shape=3, signed=True), 6)
    """
    return Attribute(shape[0] if len(shape) == 1 else shape, signed=True)


class Record:
    """The layout of a program's tokens.

    Parameters
    ----------
    **attributes
        Name to number of values, shape of joint values, or :class:`Attribute`.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> record = programs.Record(cell=3, symbol=programs.signed(2), head=(3, 2))
    >>> record.d
    11
    >>> record.vector({"cell": 1, "symbol": {0: -1, 1: 1}})
    array([ 0.,  1.,  0., -1.,  1.,  0.,  0.,  0.,  0.,  0.,  0.])
    >>> record.token(record.vector({"head": (2, 1)}))
    {'head': (2, 1)}
    """

    def __init__(self, **attributes: int | tuple[int, ...] | Attribute) -> None:
        if not attributes:
            raise ValueError("attributes: at least one is needed, got none")
        self.attributes: dict[str, Attribute] = {}
        self.starts: dict[str, int] = {}
        d = 0
        for name, given in attributes.items():
            try:
                attribute = given if isinstance(given, Attribute) else Attribute(given)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
            self.attributes[name], self.starts[name] = attribute, d
            d += attribute.size
        self.d = d

    def __repr__(self) -> str:
        shapes = (
            f"{name}={f'signed{each.shapes}' if each.signed else each.shape}"
            for name, each in self.attributes.items()
        )
        return f"Record({', '.join(shapes)}: d={self.d})"

    def require(self, name: object, argument: str) -> Attribute:
        """The attribute of that name; ``argument`` gave it."""
        if not isinstance(name, str) or name not in self.attributes:
            raise ValueError(
                f"{argument}: one of the attributes {', '.join(self.attributes)} is needed, "
                f"got {name!r}"
            )
        return self.attributes[name]

    def coordinate(self, name: str, value: object) -> int:
        """Where the value of an attribute stands in a token.

        Parameters
        ----------
        name
            The attribute.
        value
            One of its values.

        Returns
        -------
        int
            From 0 to d - 1.
        """
        attribute = self.require(name, "name")
        return self.starts[name] + attribute.index(value, name)

    @cached_property
    def places(self) -> list[tuple[str, Value]]:
        """Attribute and value of each coordinate, (d,)."""
        return [(name, value) for name, each in self.attributes.items() for value in each.values()]

    @cached_property
    def names(self) -> list[str]:
        """Each coordinate in words, for ``certificate.explain(names=..)``."""
        return [f"{name}[{str(value).strip('()')}]" for name, value in self.places]

    def entries(self, token: Token) -> list[tuple[int, float]]:
        """Coordinates of a token and their weights."""
        if not isinstance(token, Mapping):
            raise TypeError(f"token: a dictionary is needed, got {type(token).__name__}")
        entries = []
        for name, given in token.items():
            attribute = self.require(name, "token")
            if not isinstance(given, Mapping):
                entries.append((self.coordinate(name, given), 1.0))
                continue
            if not attribute.signed:
                raise ValueError(
                    f"{name}: one value is needed, because it is not signed; got {given!r}"
                )
            for value, weight in given.items():
                if not (isinstance(weight, int | float | np.number) and np.isfinite(weight)):
                    raise ValueError(f"{name}: finite weights are needed, got {weight!r}")
                entries.append((self.coordinate(name, value), float(weight)))
        return entries

    def vector(self, token: Token) -> Floats:
        """Encode a token as a vector.

        Parameters
        ----------
        token
            Attribute to value; of a signed attribute also value to weight.

        Returns
        -------
        array (d,)
            The sum of the values' unit vectors.

        Raises
        ------
        ValueError
            There is no such attribute or value, or several of an attribute that is not signed.
        """
        z = np.zeros(self.d)
        for coordinate, weight in self.entries(token):
            z[coordinate] += weight
        return z

    def token(self, vector: object) -> dict[str, Value | dict[Value, float]]:
        """Decode a vector as a token.

        Parameters
        ----------
        vector
            An array (d,).

        Returns
        -------
        dict
            Attribute to value; of a signed attribute value to weight. What is zero is left out.

        Raises
        ------
        ValueError
            An attribute that is not signed has several values, or one with another weight than 1.
        """
        z = np.asarray(as_array(vector, "vector"), dtype=np.float64)
        if z.shape != (self.d,):
            raise ValueError(f"vector: shape ({self.d},) is needed, got {z.shape}")
        token: dict[str, Value | dict[Value, float]] = {}
        for name, weights in self.weights(z).items():
            if self.attributes[name].signed:
                token[name] = weights
            elif list(weights.values()) == [1.0]:
                (token[name],) = weights
            else:
                raise ValueError(
                    f"vector: {name} is not signed, so that one value with weight 1 is needed, "
                    f"got {weights}"
                )
        return token

    def weights(self, z: Floats) -> dict[str, dict[Value, float]]:
        """Whatever is not zero in a vector, a token or not.

        Parameters
        ----------
        z
            An array (d,).

        Returns
        -------
        dict
            Attribute to value to weight.
        """
        found: dict[str, dict[Value, float]] = {}
        for coordinate in np.flatnonzero(z):
            name, value = self.places[coordinate]
            found.setdefault(name, {})[value] = float(z[coordinate])
        return found
