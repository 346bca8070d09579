"""Features of states: s_u c_l, for every entry u of the memory and every coordinate l of the query.

The index of a feature is u d_q + l. A state is a sequence of one token x = (1, s, c) (see
:mod:`linattn_fast.data.states`), and its features are those of the pairs (0, 1 + u) and the queries
1 + q + l. Nothing in s is summed, so nothing can cancel: features are as large as their summands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats, Mask, Numbers, Positions, Values
from ..data.mapping.token_map import StreamMaps
from ..data.passed import PassedStates
from ..data.states import States, StateShape, require_last
from ..data.streams import Streams
from ..data.tokens import Tokens, as_tokens
from ..system.arguments import as_size
from .features import Features, as_features


class StateFeatures(Features):
    """Features of states of one shape.

    Parameters
    ----------
    shape
        What the states look like.
    entries, coordinates
        Numbers of entries of the memory and of coordinates of the query that take part, ascending;
        None for all.
    """

    shape: StateShape
    """What the states look like."""
    maps: StreamMaps | None = None
    """What streams are mapped by after their own maps; None for nothing."""
    constants: tuple[int, int, int] | None = None
    """Constant coordinates of values, keys and queries, where an intercept has appended them."""

    def __init__(
        self, shape: StateShape, entries: Numbers | None = None, coordinates: Numbers | None = None
    ) -> None:
        q = shape.entries
        entries = np.arange(q) if entries is None else entries
        coordinates = np.arange(shape.query) if coordinates is None else coordinates
        self.shape, self.d = shape, shape.width
        self._chosen_pairs, self._chosen_queries = 1 + entries, 1 + q + coordinates
        self._others_are_zero = False
        self.n_pairs, self.n_queries = len(entries), len(coordinates)
        self.count = self.n_pairs * self.n_queries
        self.everything = self.count == q * shape.query

    @property
    def made_of(self) -> str:
        """What the features are made of, in words that messages use."""
        return f"states ({self.shape})"

    @property
    def sums_cancel(self) -> bool:
        """Whether features may be far smaller than their summands: they have only one."""
        return False

    @cached_property
    def pairs(self) -> Numbers:
        """The pairs (0, 1 + u) of a state as a token: (n_pairs, 2)."""
        return np.stack([np.zeros(self.n_pairs, np.intp), self.pair_numbers], axis=1)

    @property
    def _columns(self) -> tuple[Numbers | slice, Numbers | slice]:
        """Chosen entries of the memory and coordinates of the query."""
        if self.everything:
            return slice(None), slice(None)
        return self.pair_numbers - 1, self.queries - 1 - self.shape.entries

    def samples(self, tokens: Tokens, positions: Positions = "last") -> tuple[Floats, Floats]:
        """The chosen entries s (N, n_pairs) and query coordinates c (N, n_queries) of states."""
        assert isinstance(tokens, States)
        entries, coordinates = self._columns
        return tokens.entries(entries), tokens.coordinates(coordinates)

    def occurring(self, tokens: Tokens, positions: Positions) -> tuple[Mask, Mask]:
        """Which chosen entries, and which coordinates of the query, are not always zero."""
        assert isinstance(tokens, States)
        entries, coordinates = np.zeros(self.n_pairs, bool), np.zeros(self.n_queries, bool)
        # Sums may be zero though their summands are not
        for _, some in tokens.presence().pieces():
            s, c = self.samples(some)
            entries |= s.any(axis=0)
            coordinates |= c.any(axis=0)
            if entries.all() and coordinates.all():
                break
        return entries, coordinates

    def subset(self, pairs: Numbers | slice, queries: Numbers | slice) -> StateFeatures:
        """Some of these entries and coordinates, by their numbers among the chosen ones."""
        coordinates = self.queries - 1 - self.shape.entries
        return StateFeatures(self.shape, (self.pair_numbers - 1)[pairs], coordinates[queries])

    def named(self, names: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
        """Names of the chosen entries, M[j,k] or m[u], and coordinates of the query, c[l]."""
        if names is not None:
            raise ValueError("names: they are for coordinates of tokens; states have M[j,k], c[l]")
        if self.shape.symmetric:
            places = np.stack(np.triu_indices(self.shape.memory[0]), axis=1)
        else:
            places = np.argwhere(np.ones(self.shape.memory, dtype=bool))
        letter = "m" if len(self.shape.memory) == 1 else "M"
        entries = [f"{letter}[{','.join(map(str, place))}]" for place in places]
        coordinates = self.queries - 1 - self.shape.entries
        return [entries[u - 1] for u in self.pair_numbers], [f"c[{l}]" for l in coordinates]

    def of_streams(self, streams: Streams, maps: StreamMaps) -> StateFeatures:
        """The same features, of streams that are mapped by such maps after their own."""
        features = copy(self)
        features.maps, features.constants = maps, streams.constants
        return features

    @property
    def constant_feature(self) -> int | None:
        """Number of the feature that is constant in all three places; None without one."""
        if self.constants is None:
            return None
        (j, k, l), d = self.constants, self.shape.memory[1]
        entry = k * d - k * (k - 1) // 2 if self.shape.symmetric else j * d + k
        return entry * self.shape.query + l

    def batch(self, Z: object, offsets: object, positions: Positions) -> States:
        """Check a batch that these features are wanted of; large streams are not mapped yet."""
        if isinstance(Z, Streams):
            Z = Z if self.maps is None else Z.then(self.maps)
            if Z.is_large and Z.kind == self.shape:
                return Z.unmapped().states(positions).to_be_mapped(Z, positions)
            Z = Z.states(positions)
        if not isinstance(Z, States):
            hint = ""
            if self.shape.symmetric:
                hint = "; for tokens give Streams(Z, Z), or the scale and decay of the data"
            raise TypeError(
                f"Z: States or Streams ({self.shape}) are needed, got {type(Z).__name__}{hint}"
            )
        if offsets is not None:
            raise ValueError("offsets: states have none; they are for rows of tokens")
        if Z.kind != self.shape:
            raise ValueError(f"Z: States or Streams ({self.shape}) are needed, got ({Z.kind})")
        require_last(Z, positions)
        return Z

    def parts(self, tokens: Tokens) -> Iterator[Tokens]:
        """The states that features are taken of: large streams are mapped a part at a time."""
        given = getattr(tokens, "given", None)
        if given is None:
            return iter([tokens])
        streams, positions = given
        parts = (streams.part(first, last) for first, last in streams.pieces())
        return (part.states(positions) for part in parts if part.has_queries(positions))

    def expand(self, coefficients: Floats) -> Floats:
        """Coefficients (d_out, p) of all features; all of them take part."""
        assert self.everything
        return coefficients

    def same_choice(self, other: Features) -> bool:
        """Tell whether the other features are those of such states as well."""
        if not isinstance(other, StateFeatures) or isinstance(other, PassedFeatures):
            return False
        alike = self.shape == other.shape and self.maps == other.maps
        return alike and super().same_choice(other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Features):
            return NotImplemented
        return self.same_choice(other)

    __hash__ = Features.__hash__

    def __repr__(self) -> str:
        return f"Features of states ({self.shape}): {self.count}"


class PassedFeatures(StateFeatures):
    """Features M[j,k] c[l] of the rows j of memories: all rows have the same p = d_k d_q unknowns.

    Parameters
    ----------
    whole
        What the states look like whose values are passed through.
    """

    whole: StateShape
    """What the states look like; ``shape`` is that of one row."""

    def __init__(self, whole: StateShape) -> None:
        super().__init__(StateShape((whole.matrix[1],), whole.query))
        self.whole = whole

    @property
    def d_v(self) -> int:
        """Number of rows of a memory, and of outputs."""
        return self.whole.matrix[0]

    @property
    def made_of(self) -> str:
        """What the features are made of, in words that messages use."""
        return f"states ({self.whole}) whose values are passed"

    def batch(self, Z: object, offsets: object, positions: Positions) -> PassedStates:
        """Check a batch that these features are wanted of."""
        return PassedStates(StateFeatures(self.whole).batch(Z, offsets, positions))

    def named(self, names: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
        """Names of the entries of a row, M[:,k], and coordinates of the query, c[l]."""
        entries, coordinates = super().named(names)
        return [f"M[:,{k}]" for k in range(len(entries))], coordinates

    def same_choice(self, other: Features) -> bool:
        """Tell whether the other features are those of such rows as well."""
        return isinstance(other, PassedFeatures) and self.whole == other.whole

    def __repr__(self) -> str:
        return f"Features of {self.made_of}: {self.count}"


def features_of_states(
    memory: object, query: int, symmetric: bool = False, values: Values = "mixed"
) -> StateFeatures:
    """Check the shape of states, (d_v, d_k) or q and d_q, and take all of their features."""
    given = memory if isinstance(memory, tuple | list) else (memory,)
    if len(given) not in (1, 2):
        raise ValueError(f"memory: q or (d_v, d_k) is needed, got {memory!r}")
    sizes = tuple(as_size(size, "memory") for size in given)
    if symmetric and (len(sizes) != 2 or sizes[0] != sizes[1]):
        raise ValueError(f"memory: symmetric=True needs (d, d), got {memory!r}")
    shape = StateShape(sizes, as_size(query, "query"), bool(symmetric))
    return (PassedFeatures if values == "passed" else StateFeatures)(shape)


def batch_and_features(
    Z: object,
    offsets: object,
    features: Features | None,
    positions: Positions,
    d: int | None,
    values: Values = "mixed",
) -> tuple[Tokens, Features]:
    """Check a batch of tokens or states, with ``d`` where it is known, and its features.

    None means all features that the batch has.
    """
    if isinstance(Z, Streams):
        Z = Z.states(positions)
    if isinstance(features, StateFeatures):
        return features.batch(Z, offsets, positions), features
    if isinstance(Z, States):
        if features is not None and d is None:
            raise ValueError(
                "features: a choice of pairs and queries is for tokens; give States with the "
                "entries and coordinates that are wanted"
            )
        if features is not None:
            return features.batch(Z, offsets, positions), features
        chosen = (PassedFeatures if values == "passed" else StateFeatures)(Z.kind)
        return chosen.batch(Z, offsets, positions), chosen
    if values == "passed":
        raise TypeError(f'values: "passed" needs States in the place of Z, got {type(Z).__name__}')
    tokens = as_tokens(Z, offsets, d=d)
    return tokens, as_features(features, tokens.d)


def state_coefficients(V: Floats, Q: Floats, *, symmetric: bool) -> Floats:
    """Coefficients (d_out, q d_q) of heads on states: C[a,j,k,l] = sum_h V_h[a,j] Q_h[k,l].

    Those of a symmetric memory are the sums of (j, k) and (k, j), for j <= k.
    """
    xp = module_of(V)
    W = xp.tensordot(V, Q, axes=(0, 0))  # (d_out, d_v, d_k, d_q)
    if symmetric:
        j, k = (xp.asarray(index) for index in np.triu_indices(V.shape[2]))
        W = W[:, j, k] + xp.where((j == k)[:, None], 0.0, W[:, k, j])
    coefficients: Floats = xp.ascontiguousarray(W.reshape(len(W), -1))
    return coefficients
