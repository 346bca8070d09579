"""Lookup, the one instruction there is, and what is built from it.

A lookup takes the last token's query attribute, finds every token whose key attribute matches it,
and adds their value attribute into the next token:

    next[write(q, v)] += z[q] * sum_t z_t[match(q)] z_t[v]  =  z[q] * S[match(q), v]

q the values of the query attribute, v those of the value attribute. It is linear in the features
S[j,k] z[l], so a program of lookups is a linear attention layer. Tokens add up: several that match
are summed, and one that carries a difference changes what an earlier one said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .record import Record, Token, Value


def _itself(value: Any) -> Any:
    return value


def _found(_query: Any, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Lookup:
    """Find tokens by their key, and write their value into the next token.

    Parameters
    ----------
    query
        Attribute of the last token that asks.
    key
        Attribute of all tokens that is compared with it.
    value
        Attribute of the tokens found that is returned.
    into
        Attribute of the next token that is written; None where ``write`` returns whole tokens.
    match
        Function of the query's value: the key to look for, or None to look for nothing. By default
        the value itself.
    write
        Function of the query's value and the value found: what to write. A value of ``into`` (of a
        signed attribute also a dictionary of weights), or a token where ``into`` is None; None
        writes nothing. By default the value found.

    Examples
    --------
    Names and numbers in a context, and a token that asks for a name's number.

    >>> from linattn_fast import programs
    >>> record = programs.Record(name=3, number=10, asked=3, answer=10)
    >>> call = programs.Lookup(query="asked", key="name", value="number", into="answer")
    >>> program = programs.Program(record, [call])
    >>> book = [{"name": 0, "number": 7}, {"name": 1, "number": 4}, {"name": 2, "number": 9}]
    >>> program.decode(program.run(None, [*book, {"asked": 1}], steps=1).appended)
    [{'answer': 4}]
    """

    query: str
    key: str
    value: str
    into: str | None = None
    match: Callable[[Any], Value | None] = _itself
    write: Callable[[Any, Any], Any] = _found

    def __post_init__(self) -> None:
        for name in ("match", "write"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name}: a function is needed, got {getattr(self, name)!r}")

    def __str__(self) -> str:
        return f"{self.query} finds {self.key}, {self.value} goes into {self.into or 'the token'}"

    def written(self, query: Value, value: Value) -> Token:
        """What is added to the next token where a query has found a value."""
        given = self.write(query, value)
        if given is None:
            return {}
        token: Token = given if self.into is None else {self.into: given}
        return token


def copy(
    value: str, into: str, *, position: str, source: Callable[[Any], Value | None] = _itself
) -> Lookup:
    """Copy an attribute from the token at another position.

    Parameters
    ----------
    value, into
        Attribute that is copied, and where to.
    position
        Attribute that says where a token stands; one token has each position.
    source
        Function of the last token's position: the position to copy from, or None.

    Returns
    -------
    Lookup
        From position to position.

    Examples
    --------
    The last token is at position 2 and copies the letter of position 0.

    >>> from linattn_fast import programs
    >>> record = programs.Record(position=3, letter=2, copied=2)
    >>> back = programs.copy(
    ...     "letter", "copied", position="position", source=lambda p: p - 2 if p >= 2 else None
    ... )
    >>> print(back)
    position finds position, letter goes into copied
    >>> word = [{"position": t, "letter": letter} for t, letter in enumerate([1, 0, 0])]
    >>> program = programs.Program(record, [back])
    >>> program.decode(program.run(None, word, steps=1).appended)
    [{'copied': 1}]
    """
    return Lookup(query=position, key=position, value=value, into=into, match=source)


def if_then(
    attribute: str,
    then: Callable[[Any], Any],
    into: str | None = None,
    *,
    anchor: tuple[str, Value],
) -> Lookup:
    """Write what a function makes of an attribute of the last token.

    A layer can only write what it finds, so this looks up an anchor, a token that is always there.

    Parameters
    ----------
    attribute
        The attribute of the last token that decides.
    then
        Function of its value: what to write, as ``write`` of :class:`Lookup`; None is nothing.
    into
        Attribute of the next token that is written; None where ``then`` returns whole tokens.
    anchor
        Attribute and value that exactly one token has, such as ``("position", 0)``.

    Returns
    -------
    Lookup
        The instruction.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> record = programs.Record(digit=10, start=1)
    >>> double = programs.if_then("digit", lambda d: 2 * d % 10, "digit", anchor=("start", 0))
    >>> program = programs.Program(record, [double])
    >>> run = program.run(None, [{"start": 0, "digit": 3}], steps=3)
    >>> [token["digit"] for token in program.decode(run.appended)]
    [6, 2, 4]
    """
    if not isinstance(anchor, tuple) or len(anchor) != 2:
        raise ValueError(f"anchor: (attribute, value) is needed, got {anchor!r}")
    if not callable(then):
        raise TypeError(f"then: a function is needed, got {then!r}")
    name, given = anchor
    where = tuple(given) if isinstance(given, list) else given  # as values of joint ones are
    return Lookup(
        query=attribute,
        key=name,
        value=name,
        into=into,
        match=lambda _value: where,
        write=lambda value, found: then(value) if found == where else None,
    )


@dataclass(frozen=True)
class Table:
    """A lookup in coordinates: what each query looks for, and what it writes of each value."""

    keys: dict[int, int]
    """Coordinate l of a query to coordinate k of its key."""
    writes: dict[int, dict[int, tuple[tuple[int, float], ...]]]
    """Coordinate l of a query and j of a value to coordinates of the next token with weights."""

    @classmethod
    def of(cls, lookup: Lookup, record: Record) -> Table:
        """Evaluate a lookup's functions for every value; errors name the attribute."""
        query = record.require(lookup.query, "query")
        key = record.require(lookup.key, "key")
        value = record.require(lookup.value, "value")
        if lookup.into is not None:
            record.require(lookup.into, "into")
        keys: dict[int, int] = {}
        writes: dict[int, dict[int, tuple[tuple[int, float], ...]]] = {}
        for l, asked in enumerate(query.values(), record.starts[lookup.query]):
            wanted = lookup.match(asked)
            if wanted is None:
                continue
            k = record.starts[lookup.key] + key.index(wanted, f"match({asked!r}) in {lookup.key}")
            rows = {}
            for j, found in enumerate(value.values(), record.starts[lookup.value]):
                written = lookup.written(asked, found)
                try:
                    entries = record.entries(written)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"write({asked!r}, {found!r}): {error}") from None
                if entries:
                    rows[j] = tuple(entries)
            if rows:
                keys[l], writes[l] = k, rows
        return cls(keys, writes)
