"""The cubic features h(Z), and their order.

    h(Z)[(j,k), l] = S[j,k] * z_n[l]    for pairs j <= k, S = sum_t z_t z_t', z_n the last token

Pairs are ordered as the upper triangle, row by row; the index of a feature is pair * d + l, and
there are p = d (d + 1) / 2 * d of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ..arrays.device import module_of, to_host
from ..arrays.libraries import brought_over
from ..arrays.types import Floats, Mask, Numbers, Positions
from ..data.mapping.token_map import Map, TokenMap
from ..data.prefixes import Prefixes, occurring_pairs
from ..data.states import States
from ..data.streams import Streams
from ..data.tokens import Tokens, as_positions, as_tokens
from ..maps.stored import told
from ..system.arguments import as_size
from ..system.machine import same_bits

_QUERIES_AT_ONCE = 1 << 13
"""Number of queries that are looked at together."""
_SEQUENCES_AT_ONCE = 64
"""Number of sequences whose chosen pairs are summed together."""


def pair_count(d: int) -> int:
    """Count the pairs j <= k of d coordinates."""
    return d * (d + 1) // 2


def feature_count(d: int) -> int:
    """Count the features p of tokens in R^d."""
    return pair_count(d) * d


def samples_of(tokens: Tokens, positions: Positions = "last") -> tuple[Floats, Floats]:
    """The pairs s of S, (samples, q), and the query z, (samples, d), of each sample.

    There is one sample per sequence for "last", and one per token otherwise. S sums over the whole
    sequence, or for "causal" over the prefix that ends with the query.
    """
    xp = module_of(*tokens.arrays[:1])
    j, k = (xp.asarray(index) for index in np.triu_indices(tokens.d))
    if not isinstance(tokens.storage, tuple) and tokens.offsets is None:
        Z = tokens.storage.astype(np.float64, copy=False)
        if positions == "last":
            return (Z.transpose(0, 2, 1) @ Z)[:, j, k], Z[:, -1]
        n, d = Z.shape[1:]
        if positions == "all":
            return xp.repeat((Z.transpose(0, 2, 1) @ Z)[:, j, k], n, axis=0), Z.reshape(-1, d)
        prefixes = xp.cumsum(Z[:, :, j] * Z[:, :, k], axis=1)  # (N, n, q)
        return prefixes.reshape(-1, len(j)), Z.reshape(-1, d)
    s, z = [], []
    for given in tokens:
        sequence = given.astype(np.float64, copy=False)
        products = sequence[:, j] * sequence[:, k]  # (n, q)
        if positions == "last":
            s.append(products.sum(axis=0, keepdims=True))
            z.append(sequence[-1:])
        elif positions == "all":
            s.append(xp.repeat(products.sum(axis=0, keepdims=True), len(sequence), axis=0))
            z.append(sequence)
        else:
            s.append(xp.cumsum(products, axis=0))
            z.append(sequence)
    return xp.concatenate(s), xp.concatenate(z)


def _as_numbers(value: object, name: str, ndim: int, end: int) -> npt.NDArray[np.intp]:
    """Check an array of whole numbers from 0 to ``end - 1``."""
    shape = "(m, 2)" if ndim == 2 else "(m,)"
    try:
        array = np.asarray(to_host(brought_over(value, name)))
    except ValueError:  # rows of different lengths
        raise ValueError(f"{name}: an array {shape} is needed, got {value!r}") from None
    if array.ndim != ndim or array.size == 0:
        raise ValueError(f"{name}: an array {shape} is needed, m > 0, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: whole numbers are needed, got dtype {array.dtype}")
    if not (array.min() >= 0 and array.max() < end):
        raise ValueError(
            f"{name}: numbers from 0 to {end - 1} are needed, got {array.min()} to {array.max()}"
        )
    return array.astype(np.intp)


def _distinct(numbers: npt.NDArray[np.intp], name: str) -> npt.NDArray[np.intp]:
    """The numbers in ascending order; it is an error if one occurs twice."""
    ordered = np.unique(numbers)
    if len(ordered) < len(numbers):
        raise ValueError(f"{name}: each may be given once, got {len(numbers) - len(ordered)} twice")
    ordered.setflags(write=False)
    return ordered


class Features:
    """Which of the features S[j,k] z[l] take part.

    Parameters
    ----------
    d
        Number of coordinates of a token.
    pairs
        Pairs {j, k}, (m, 2); None takes all.
    queries
        Coordinates l of the query, (m,); None takes all.

    Notes
    -----
    Every chosen pair is combined with every chosen query. Both are kept in ascending order, in
    whatever order they were given; the features follow it, pair by pair.

    Examples
    --------
    >>> import linattn_fast as la
    >>> features = la.Features(3, pairs=[(0, 2), (1, 2), (2, 2)], queries=[0, 1])
    >>> features.count, la.Features(3).count
    (6, 18)
    """

    d: int
    """Number of coordinates of a token."""
    n_pairs: int
    """Number of pairs chosen."""
    n_queries: int
    """Number of query coordinates chosen."""
    count: int
    """Number of features, p."""
    everything: bool
    """Whether all features take part."""
    map: TokenMap | None = None
    """What tokens are mapped by before their features are taken; None for tokens as they are."""

    def __init__(self, d: int, pairs: object = None, queries: object = None) -> None:
        self.d = d if type(d) is int and d > 0 else as_size(d, "d")
        # None for all: a list of all pairs may not even fit in memory
        self._chosen_pairs: npt.NDArray[np.intp] | None = None
        self._chosen_queries: npt.NDArray[np.intp] | None = None
        self._others_are_zero = False
        if pairs is not None:
            given = _as_numbers(pairs, "pairs", 2, self.d)
            if given.shape[1] != 2:
                raise ValueError(f"pairs: an array (m, 2) is needed, got shape {given.shape}")
            low, high = given.min(axis=1), given.max(axis=1)
            numbers = low * self.d - low * (low - 1) // 2 + high - low
            self._chosen_pairs = _distinct(numbers, "pairs")
        if queries is not None:
            self._chosen_queries = _distinct(_as_numbers(queries, "queries", 1, self.d), "queries")
        q, k = self._chosen_pairs, self._chosen_queries
        self.n_pairs = pair_count(self.d) if q is None else len(q)
        self.n_queries = self.d if k is None else len(k)
        self.count = self.n_pairs * self.n_queries
        self.everything = self.count == feature_count(self.d)

    @classmethod
    @same_bits
    def active(
        cls, Z: object, *, offsets: object = None, positions: Positions = "last"
    ) -> Features:
        """Find the features that can ever be non-zero in the data: one pass over the tokens.

        A pair takes part when some token has both coordinates, a query when some querying token has
        it. For one-hot tokens, that is a small part of all features.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets.
        positions
            Which tokens query: "last", "all" or "causal".

        Returns
        -------
        Features
            Those pairs and queries, with ``others_are_zero``. For a certificate of such a fit,
            inputs with any other feature are not covered; training data with any other feature is
            an error.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> la.Features.active(np.eye(4)[[[0, 1, 2], [2, 1, 2]]])  # one-hot; x3 never occurs
        Features(d=4, 3 of 10 pairs, 1 of 4 queries: 3 features, the others zero in the data)
        """
        positions = as_positions(positions)
        tokens = as_tokens(Z, offsets).put(np.zeros(0))  # looked at on the host
        together = occurring_pairs(tokens)
        queries = np.diagonal(together)
        if positions == "last":
            parts = Prefixes.of(tokens, positions).parts(_QUERIES_AT_ONCE)
            queries = np.any([(part.query_tokens() != 0).any(axis=0) for _, part in parts], axis=0)
        pairs = np.argwhere(np.triu(together))
        if len(pairs) == 0 or not queries.any():
            raise ValueError(
                "Z: every feature is zero in every sequence; there is nothing to learn"
            )
        return cls(tokens.d, pairs, np.flatnonzero(queries)).because(others_are_zero=True)

    @property
    def others_are_zero(self) -> bool:
        """Whether features are left out because the data never has them, as by :meth:`active`.

        If not, those that are left out, if any, have no part in the layer by choice.
        """
        return self._others_are_zero and not self.everything

    def because(self, *, others_are_zero: bool) -> Features:
        """Say why the other features are left out: because the data lacks them, or by choice.

        Parameters
        ----------
        others_are_zero
            Whether the others are zero in the data.

        Returns
        -------
        Features
            The same choice with that reason; this object stays as it is.
        """
        features = copy(self)
        features._others_are_zero = bool(others_are_zero)
        return features

    def mapped_by(self, token_map: TokenMap | None) -> Features:
        """The same choice of features, of tokens that are mapped first."""
        features = copy(self)
        features.map = token_map
        return features

    @property
    def d_given(self) -> int:
        """Number of coordinates of a token as callers give it, before any map."""
        return self.d if self.map is None else self.map.d

    @property
    def constant(self) -> int | None:
        """The coordinate of a mapped token that is always 1; None where no map has one."""
        return None if self.map is None else self.map.constant

    @property
    def constant_feature(self) -> int | None:
        """Number of the feature that is constant in all three places; None without it."""
        c = self.constant
        return None if c is None else self.number_of(c, c, c)

    @cached_property
    def pair_numbers(self) -> npt.NDArray[np.intp]:
        """Chosen pairs, (n_pairs,), numbered as in the upper triangle."""
        chosen = self._chosen_pairs
        return np.arange(pair_count(self.d)) if chosen is None else chosen

    def number_of(self, j: int, k: int, l: int) -> int | None:
        """The number of the feature S[j,k] z[l], j <= k, among those that take part, if it does."""
        number, q, at = j * self.d - j * (j - 1) // 2 + k - j, self._chosen_pairs, l
        if q is not None:
            number = int(np.searchsorted(q, pair := number))
            if number == len(q) or q[number] != pair:
                return None
        if self._chosen_queries is not None:
            at = int(np.searchsorted(self._chosen_queries, l))
            if at == self.n_queries or self._chosen_queries[at] != l:
                return None
        return number * self.n_queries + at

    @cached_property
    def queries(self) -> npt.NDArray[np.intp]:
        """Chosen query coordinates, (n_queries,)."""
        return np.arange(self.d) if self._chosen_queries is None else self._chosen_queries

    @cached_property
    def pairs(self) -> npt.NDArray[np.intp]:
        """Chosen pairs (j, k), j <= k: (n_pairs, 2)."""
        return np.stack(np.triu_indices(self.d), axis=1)[self.pair_numbers]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Features):
            return NotImplemented
        return self.others_are_zero == other.others_are_zero and self.same_choice(other)

    def same_choice(self, other: Features) -> bool:
        """Tell whether the same features take part, whatever the reason to leave out the others.

        Parameters
        ----------
        other
            Features to compare with.

        Returns
        -------
        bool
            True if d, pairs, queries and the map of the tokens agree.
        """
        return (
            self.d == other.d
            and self.map == other.map
            and np.array_equal(self.pair_numbers, other.pair_numbers)
            and np.array_equal(self.queries, other.queries)
        )

    def __hash__(self) -> int:
        numbers = self.pair_numbers.tobytes(), self.queries.tobytes()
        return hash((self.d, *numbers, self.others_are_zero))

    def __repr__(self) -> str:
        return (
            f"Features(d={self.d}, {self.n_pairs} of {pair_count(self.d)} pairs, "
            f"{self.n_queries} of {self.d} queries: {self.count} features"
            + (", the others zero in the data" if self.others_are_zero else "")
            + ("" if self.map is None else f", of tokens mapped by {told(self.map.map)}")
            + ")"
        )

    @same_bits
    def samples(self, tokens: Tokens, positions: Positions = "last") -> tuple[Floats, Floats]:
        """The chosen pairs s (samples, n_pairs) and queries z (samples, n_queries) of samples."""
        dense = not isinstance(tokens.storage, tuple) and tokens.offsets is None
        if dense and positions == "last" and 3 * self.n_pairs < pair_count(self.d):
            return self._few_samples(tokens.arrays[0])
        s, z = samples_of(tokens, positions)
        if self.everything:
            return s, z
        xp = module_of(s)
        return s[:, xp.asarray(self.pair_numbers)], z[:, xp.asarray(self.queries)]

    def _few_samples(self, Z: Floats) -> tuple[Floats, Floats]:
        """s and z for tokens (N, n, d), without summing pairs that are not chosen."""
        xp = module_of(Z)
        j, k = (xp.asarray(index) for index in self.pairs.T)
        s = xp.empty((len(Z), self.n_pairs))
        for first in range(0, len(Z), _SEQUENCES_AT_ONCE):
            some = slice(first, first + _SEQUENCES_AT_ONCE)
            part = Z[some].astype(np.float64, copy=False)
            s[some] = xp.einsum("ntu,ntu->nu", part[:, :, j], part[:, :, k])
        return s, Z[:, -1][:, xp.asarray(self.queries)].astype(np.float64)

    @property
    def made_of(self) -> str:
        """What the features are made of, in words that messages use."""
        return f"d = {self.d}"

    @property
    def sums_cancel(self) -> bool:
        """Whether S[j,k] may be far smaller than its summands, so that rounding goes by those."""
        return True

    def occurring(self, tokens: Tokens, positions: Positions) -> tuple[Mask, Mask]:
        """Which chosen pairs occur in some token, (n_pairs,), and which queries, (n_queries,)."""
        together = occurring_pairs(tokens)
        asked = np.diagonal(together)
        if positions == "last":
            asked = (Prefixes.of(tokens, positions).query_tokens() != 0).any(axis=0)
        j, k = self.pairs.T
        return together[j, k], asked[self.queries]

    def subset(self, pairs: Numbers | slice, queries: Numbers | slice) -> Features:
        """Some of these pairs and queries, by their numbers among the chosen ones."""
        return Features(self.d, self.pairs[pairs], self.queries[queries])

    def named(self, names: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
        """Names of the chosen pairs and queries, from those of the d coordinates."""
        given = [f"x{i}" for i in range(self.d)] if names is None else [str(x) for x in names]
        if len(given) != self.d:
            raise ValueError(f"names: {self.d} names are needed, got {len(given)}")
        return [f"{given[j]}*{given[k]}" for j, k in self.pairs], [given[l] for l in self.queries]

    def batch(self, Z: object, offsets: object, positions: Positions) -> Tokens:
        """Check a batch that these features are wanted of; the tokens are not mapped yet."""
        if isinstance(Z, States | Streams):
            raise TypeError(f"Z: tokens with d = {self.d_given} are needed, got {Z!r}")
        return as_tokens(Z, offsets, d=self.d_given)

    def parts(self, tokens: Tokens) -> Iterator[Tokens]:
        """The tokens that features are taken of: mapped, a part of them at a time."""
        return iter([tokens]) if self.map is None else self.map.parts(tokens)

    @same_bits
    def of(self, tokens: Tokens, positions: Positions = "last") -> Floats:
        """The features h = s (x) z of each sample, (samples, count)."""
        s, z = self.samples(tokens, positions)
        return (s[:, :, None] * z[:, None, :]).reshape(len(s), -1)

    def expand(self, coefficients: Floats) -> Floats:
        """Coefficients (d_out, p) of all features, zero but for those given, (d_out, count)."""
        if self.everything:
            return coefficients
        xp = module_of(coefficients)
        full: Floats = xp.zeros((len(coefficients), pair_count(self.d), self.d))
        chosen = coefficients.reshape(len(coefficients), self.n_pairs, self.n_queries)
        full[:, xp.asarray(self.pair_numbers[:, None]), xp.asarray(self.queries)] = chosen
        return full.reshape(len(coefficients), -1)


@lru_cache(maxsize=64)
def _all_of(d: int) -> Features:
    """All features of tokens in R^d."""
    return Features(d)


def as_features(features: object, d: int) -> Features:
    """Check a choice of features for tokens in R^d; None means all of them."""
    if features is None:
        return _all_of(d)
    if not isinstance(features, Features):
        raise TypeError(f"features: Features or None is needed, got {type(features).__name__}")
    if features.d != d:
        raise ValueError(f"features: they are for d = {features.d}, but the tokens have d = {d}")
    return features


def map_of_features(features: object) -> Map | None:
    """The map that features of mapped tokens bring with them; None for anything else."""
    if not isinstance(features, Features) or features.map is None:
        return None
    return features.map.map


def features_of_all(parts: Sequence[Features]) -> Features:
    """Features of several parts of data together, which have made the same choice.

    The others are zero in all of the data if they are zero in each part; if one part has left them
    out by choice, nothing is known about them.
    """
    return parts[0].because(others_are_zero=all(part.others_are_zero for part in parts))
