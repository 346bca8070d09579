"""A layer made ready for tokens that come again and again.

    y[a] = sum over pairs u = {j,k} and l of C[a,u,l] S[j,k] z[l]

A program's tokens are few and sparse. For each one its *action* is worked out once: where its own
products z[j] z[k] are added to the running s, and the map from s to y that it asks for as a query,

    s += products        y = s M_z        M_z[u,a] = sum_l C[a,u,l] z[l]

so that a step adds a handful of numbers and multiplies s with a matrix that is sparse (of lookups)
or of n_pairs d_out entries (of a fit on the pairs that ever occur): O(d^2), whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from ...arrays.types import Floats
from ...features.features import Features
from ...fitting.result import Fit
from ...heads.heads import Heads
from ...linalg.host_algebra import product
from ...system.machine import same_bits

if TYPE_CHECKING:
    from ..language.program import Program

Indices: TypeAlias = npt.NDArray[np.intp]
Map: TypeAlias = Callable[[Floats], Floats]
Maps: TypeAlias = tuple[Map, Map, int]
"""The map to y of one s, that of many, and the bytes that both take."""

_CACHE_BYTES = 256 << 20
"""Bytes of actions that are kept; past it, they are worked out again."""
_SPARSE_ENTRIES = 4_000_000
"""Heads with more products of entries than this are multiplied as they are."""


def numbers_of(pairs: Indices, d: int) -> Indices:
    """Number of the pair {j, k} among some (n_pairs, 2), as a table (d, d); -1 for the others."""
    table = np.full((d, d), -1, dtype=np.intp)
    j, k = pairs.T
    table[j, k] = table[k, j] = np.arange(len(pairs))
    return table


@dataclass(frozen=True)
class Action:
    """What a token does: to s when it is appended, and to y when it is the query."""

    where: Indices
    """Numbers of its pairs among those of the layer."""
    products: Floats
    """Their products z[j] z[k]."""
    one: Map
    """y (d_out,) of s (n_pairs,)."""
    many: Map
    """y (N, d_out) of s (N, n_pairs)."""


class Layer:
    """Coefficients of chosen pairs, ready to be applied token by token. Made by ``of``.

    Examples
    --------
    What is worked out for a token is kept, so that further runs of the same layer are faster.

    >>> from linattn_fast import programs
    >>> simulator = programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    >>> layer = programs.Layer.of(simulator.heads(), simulator.d)
    >>> context = simulator.context(programs.Automaton([[0, 1], [1, 0]]), [1, 1, 0])
    >>> simulator.states(simulator.run(layer, context, steps=3))
    [0, 1, 0, 0]
    """

    def __init__(
        self,
        d: int,
        d_out: int,
        pairs: Indices,
        maps: Callable[[Floats], Maps],
    ) -> None:
        """Keep the pairs (n_pairs, 2), j <= k, and what makes the maps of an action for a token."""
        self.d, self.d_out, self.pairs = d, d_out, pairs
        self._maps = maps
        self._actions: dict[bytes, Action] = {}
        self._bytes = 0

    @cached_property
    def pair_numbers(self) -> Indices:
        """Number of the pair {j, k}, (d, d); -1 where the layer has no such pair."""
        return numbers_of(self.pairs, self.d)

    @same_bits
    def action(self, z: Floats) -> Action:
        """What a token (d,) does."""
        name = z.tobytes()
        known = self._actions.get(name)
        if known is not None:
            return known
        j, k = np.triu_indices(len(present := np.flatnonzero(z)))
        j, k = present[j], present[k]
        where = self.pair_numbers[j, k]
        kept = where >= 0
        one, many, size = self._maps(z)
        action = Action(where[kept], (z[j] * z[k])[kept], one, many)
        kept_bytes = size + len(name) + 2 * where.nbytes
        if self._bytes + kept_bytes <= _CACHE_BYTES:
            self._actions[name] = action
            self._bytes += kept_bytes
        return action

    @same_bits
    def sums(self, Z: Floats) -> Floats:
        """The s of whole sequences: (N, n, d) to (N, n_pairs)."""
        j, k = self.pairs.T
        s = np.zeros((len(Z), len(self.pairs)))
        for t in range(Z.shape[1]):
            s += Z[:, t, j] * Z[:, t, k]
        return s

    # ----------------------------------------------------------------------------- where it is from

    @classmethod
    @same_bits
    def of(cls, layer: Layer | Heads | Fit | Program, d: int, name: str = "heads") -> Layer:
        """Make any kind of layer ready.

        Parameters
        ----------
        layer
            Heads, a fit (its coefficients), or a program.
        d
            Coordinates of a token, which it must map to tokens.
        name
            What errors call the argument that gave the layer.

        Returns
        -------
        Layer
            What :meth:`Program.run` takes as heads.
        """
        given = getattr(layer, "layer", layer)  # a program has its own, ready
        if not isinstance(given, Layer | Heads | Fit):
            raise TypeError(
                f"{name}: Heads, a Fit or a Program is needed, got {type(layer).__name__}"
            )
        if given.d != d or given.d_out != d:
            raise ValueError(
                f"{name}: d = d_out = {d} is needed, as the program's tokens have, "
                f"got d = {given.d}, d_out = {given.d_out}"
            )
        if isinstance(given, Fit):
            return cls.of_fit(given.get())
        if isinstance(given, Heads):
            return cls.of_heads(given.get())
        return given

    @classmethod
    @same_bits
    def of_fit(cls, fit: Fit) -> Layer:
        """The layer of learned coefficients (d_out, n_pairs * n_queries)."""
        features: Features = fit.features
        C = fit.coefficients.reshape(fit.d_out, features.n_pairs, features.n_queries)
        C = np.ascontiguousarray(C.transpose(2, 1, 0))  # (n_queries, n_pairs, d_out)

        def maps(z: Floats) -> Maps:
            M = np.zeros(C.shape[1:])
            for size, map_of_query in zip(z[features.queries], C, strict=True):
                if size:
                    M += size * map_of_query
            return lambda s: s @ M, lambda s: product(s, M), M.nbytes

        return cls(fit.d, fit.d_out, features.pairs, maps)

    @classmethod
    @same_bits
    def of_entries(
        cls, d: int, out: Indices, j: Indices, k: Indices, l: Indices, weight: Floats
    ) -> Layer:
        """The layer with y[out] += weight S[j,k] z[l], entry by entry."""
        low, high = np.minimum(j, k), np.maximum(j, k)
        flat, u = np.unique(low * d + high, return_inverse=True)
        pairs = np.stack(np.divmod(flat, d), axis=1)
        order = np.argsort(l, kind="stable")
        out, u, weight = out[order], u[order], weight[order]
        starts = np.searchsorted(l[order], np.arange(d + 1))

        def maps(z: Floats) -> Maps:
            asked = [(slice(starts[l], starts[l + 1]), z[l]) for l in np.flatnonzero(z)]
            rows = np.concatenate([u[at] for at, _ in asked] or [u[:0]])
            columns = np.concatenate([out[at] for at, _ in asked] or [out[:0]])
            values = np.concatenate([weight[at] * size for at, size in asked] or [weight[:0]])
            M: Any = csr_matrix((values, (columns, rows)), shape=(d, len(pairs)))
            return (
                lambda s: np.asarray(np.bincount(columns, values * s[rows], d), np.float64),
                lambda s: np.asarray((M @ s.T).T),
                3 * values.nbytes,
            )

        return cls(d, d, pairs, maps)

    @classmethod
    @same_bits
    def of_heads(cls, heads: Heads) -> Layer:
        """The layer of heads: entry by entry where they are sparse, as all compiled ones are."""
        d = heads.d
        products = sum(np.count_nonzero(V) * np.count_nonzero(Q) for V, Q in heads)
        if products <= _SPARSE_ENTRIES:
            parts = []
            for V, Q in heads:
                (out, j), (k, l) = np.nonzero(V), np.nonzero(Q)
                a, b = (index.ravel() for index in np.indices((len(out), len(k))))
                weight = V[out, j][a] * Q[k, l][b]
                parts.append((out[a], j[a], k[b], l[b], weight))
            empty = (*(np.zeros(0, np.intp) for _ in range(4)), np.zeros(0))
            joined = (np.concatenate(each) for each in zip(empty, *parts, strict=True))
            return cls.of_entries(d, *joined)
        pairs = np.stack(np.triu_indices(d), axis=1)
        low, high = pairs.T

        def maps(z: Floats) -> Maps:
            X = heads.Q @ z  # (H, d)

            def many(s: Floats) -> Floats:
                S = np.zeros((len(s), d, d))
                S[:, low, high] = S[:, high, low] = s
                return np.asarray(np.einsum("haj,njh->na", heads.V, S @ X.T, optimize=True))

            return lambda s: many(s[None])[0], many, X.nbytes

        return cls(d, d, pairs, maps)
