"""The numpy backend: every result the slow, obvious way. Read it as the specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Array, Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens
from ..features import compact
from ..features.accumulation import summand_sizes
from ..features.features import Features
from ..system.progress import Progress
from .interface import (
    BatchMoments,
    Precision,
    Roundings,
    divergence_error,
    require_finite_outputs,
    sizes_of,
)
from .normal_operator import NumpyNormalOperator

Layer: TypeAlias = Callable[[Floats, Floats], Floats]
"""S (d, d) and queries (n, d) to outputs (n, d_out)."""

_SEQUENCES_AT_ONCE = 256


def _parts(tokens: Tokens) -> Iterator[tuple[slice, Tokens]]:
    """Cut the batch so that no intermediate grows with the number of sequences."""
    for start in range(0, len(tokens), _SEQUENCES_AT_ONCE):
        stop = min(start + _SEQUENCES_AT_ONCE, len(tokens))
        yield slice(start, stop), Tokens(tuple(tokens.sequence(i) for i in range(start, stop)))


def _answers(layer: Layer, sequence: Floats, positions: Positions) -> Floats:
    """Answer the queries of one sequence (n, d): (1, d_out) for "last", else (n, d_out)."""
    if positions == "last":
        return layer(sequence.T @ sequence, sequence[-1:])
    if positions == "all":
        return layer(sequence.T @ sequence, sequence)
    prefixes = (sequence[: t + 1] for t in range(len(sequence)))
    return np.concatenate([layer(z.T @ z, z[-1:]) for z in prefixes])


def _evaluate(layer: Layer, tokens: Tokens, positions: Positions) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([_answers(layer, z.astype(np.float64), positions) for z in tokens])


def narrowed(columns: Floats, precision: Precision) -> tuple[Array, Floats | None]:
    """Columns as they are, and None; or in float32 with a largest entry near one, and scales."""
    if precision == "float64":
        return columns, None
    xp = module_of(columns)
    _, exponents = xp.frexp(xp.abs(columns).max(axis=0))
    scale = xp.exp2(xp.maximum(exponents, -1000))
    return (columns / scale).astype(np.float32), scale


def _smallest(tokens: Tokens) -> float:
    """Smallest size of a coordinate that is not zero."""
    return min(
        (float(np.abs(z, where=z != 0, out=np.full(z.shape, np.inf)).min()) for z in tokens),
        default=np.inf,
    )


def may_underflow(smallest: float, weights: Floats | None) -> bool:
    """Whether a result on the way to the Gram could be rounded below the smallest normal number.

    Coordinates of size at least t are multiples of 2^-53 t, so S, however it is summed and fused,
    is a multiple of 2^-106 t^2, and zero or at least that. The factors s_u s_v and w s_w (or
    w z_l z_m) of a summand are then zero or at least 2^-212 t^4 and 2^-106 w t^2, and their exact
    product is a multiple of 2^-106 times both: 2^-424 w t^6. Where that is at least 2^-1074, with
    t and w at most 1, every result below 2^-1022 is exact. In float32 no such bound is of use.
    """
    least = 1.0
    if weights is not None:
        least = float(weights.min(initial=1.0, where=weights > 0))
    return math.log2(least) + 6 * math.log2(min(smallest, 1.0)) < -650


class NumpyBackend:
    """Moments and layers in numpy alone."""

    name = "numpy"
    underflow = False
    magnitudes: Floats | None = None

    def moments(
        self,
        tokens: Tokens,
        targets: Tokens | None,
        weights: Floats | None,
        positions: Positions = "last",
        precision: Precision = "float64",
        *,
        features: Features | None = None,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> BatchMoments:
        """Sum w s_u s_v z_l z_m, w y_a z_l s_u and w y_a^2 over the samples."""
        chosen = Features(tokens.d) if features is None else features
        l, m = np.triu_indices(chosen.n_queries)
        u, v = np.triu_indices(chosen.n_pairs)
        d_out = 0 if targets is None else targets.d
        gram = np.zeros((len(u) if with_gram else 0, len(l)))
        cross = np.zeros((d_out, chosen.n_queries, chosen.n_pairs))
        energy = np.zeros(d_out)
        done = 0
        self.underflow = precision == "mixed" or may_underflow(_smallest(tokens), weights)
        with np.errstate(over="ignore", invalid="ignore"):
            for sequences, part in _parts(tokens):
                s, z = chosen.samples(part, positions)  # (K, n_pairs), (K, n_queries)
                w = np.ones(len(part)) if weights is None else weights[sequences]
                w = w if positions == "last" else np.repeat(w, part.lengths)  # (K,)
                if with_gram:
                    left, left_scale = narrowed(s, precision)
                    right, right_scale = narrowed(w[:, None] * z[:, l] * z[:, m], precision)
                    products = (left[:, u] * left[:, v]).T @ right
                    if left_scale is not None:
                        products = (left_scale[u] * left_scale[v])[:, None] * products * right_scale
                    gram += products
                if targets is not None:
                    indices = range(sequences.start, sequences.stop)
                    y = np.concatenate([targets.sequence(i) for i in indices]).astype(np.float64)
                    cross += np.einsum("k,ka,kl,ku->alu", w, y, z, s, optimize=True)
                    energy += w @ y**2
                done += len(s)
                if progress is not None:
                    progress(done)
            self.magnitudes = None
            if with_gram and not chosen.everything:
                self.magnitudes = summand_sizes(tokens, weights, positions, chosen)
        totals = [gram, cross, energy, *([] if self.magnitudes is None else [self.magnitudes])]
        if not all(np.isfinite(total).all() for total in totals):
            raise non_finite_error(tokens, others=sizes_of(targets, weights))
        if compact.is_triples(chosen, positions) and with_gram:
            # Here sum z_l z_m = S_lm, so the Gram is the third moment of s: keep w >= v.
            gram = np.concatenate([row[first:] for row, first in zip(gram, v, strict=True)])
        return BatchMoments(gram if with_gram else gram[:0], cross, energy)

    def roundings(self, n_samples: int, precision: Precision) -> Roundings:
        """See :meth:`Backend.roundings`: BLAS may sum in any order, and parts are added up."""
        return Roundings(n_samples + 8, n_samples + 7 if precision == "mixed" else 0)

    summand_sizes = staticmethod(summand_sizes)

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`."""
        return ""

    def normal_operator(
        self,
        tokens: Tokens,
        targets: Tokens,
        weights: Floats | None,
        positions: Positions,
        features: Features,
        *,
        keep: bool,  # the samples are always written out here
    ) -> NumpyNormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return NumpyNormalOperator(tokens, targets, weights, positions, features)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y = sum_h V_h S Q_h z."""

        def layer(S: Floats, z: Floats) -> Floats:
            y: Floats = np.einsum("haj,jk,hkl,nl->na", V, S, Q, z, optimize=True)
            return y

        y = _evaluate(layer, tokens, positions)
        return require_finite_outputs(y, tokens, {"V": V, "Q": Q})

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y_a = sum over pairs (j,k) and l of C[a,(j,k),l] S[j,k] z_l."""
        j, k = np.triu_indices(tokens.d)
        by_pair = C.reshape(len(C), len(j), tokens.d)

        def layer(S: Floats, z: Floats) -> Floats:
            y: Floats = np.einsum("aul,u,nl->na", by_pair, S[j, k], z, optimize=True)
            return y

        y = _evaluate(layer, tokens, positions)
        return require_finite_outputs(y, tokens, {"coefficients": C})

    def generate(
        self, V: Floats, Q: Floats, prompts: Floats, steps: int, decimals: int | None
    ) -> Floats:
        """Append the layer's output as the next token, ``steps`` times."""
        Z = prompts
        for _ in range(steps):
            try:
                y = self.heads(V, Q, Tokens(Z), "last")
            except ValueError:  # the prompts are finite, so what was generated is not
                raise divergence_error() from None
            if decimals is not None:
                y = np.round(y, decimals)
            Z = np.concatenate([Z, y[:, None, :]], axis=1)
        return Z
