"""The numpy backend: every result the slow, obvious way. Read it as the specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Array, Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.passed import PassedStates
from ..data.states import States
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features import compact
from ..features.accumulation import Accumulation, sizes_are_apart, summand_sizes
from ..features.samples import Samples
from ..system.progress import Progress
from .interface import Precision, divergence_error, require_finite_outputs, sizes_of
from .normal_operator import NormalOperator, NumpyNormalOperator
from .state_layer import apply_coefficients, apply_heads
from .totals import Totals

Answer: TypeAlias = Callable[[Floats, Floats], Floats]
"""A layer as a function from S (d, d) and queries (n, d) to outputs (n, d_out)."""

_SEQUENCES_AT_ONCE = 256
"""Sequences whose samples are written out together."""


def _parts(samples: Samples) -> Iterator[Samples]:
    """Cut the batch so that no intermediate grows with the number of sequences."""
    for first in range(0, samples.n_sequences, _SEQUENCES_AT_ONCE):
        yield samples.part(first, min(first + _SEQUENCES_AT_ONCE, samples.n_sequences))


def _answers(layer: Answer, sequence: Floats, positions: Positions) -> Floats:
    """Answer the queries of one sequence (n, d): (1, d_out) for "last", else (n, d_out)."""
    if positions == "last":
        return layer(sequence.T @ sequence, sequence[-1:])
    if positions == "all":
        return layer(sequence.T @ sequence, sequence)
    prefixes = (sequence[: t + 1] for t in range(len(sequence)))
    return np.concatenate([layer(z.T @ z, z[-1:]) for z in prefixes])


def _evaluate(layer: Answer, tokens: Tokens, positions: Positions) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([_answers(layer, z.astype(np.float64), positions) for z in tokens])


def narrowed(columns: Floats, precision: Precision) -> tuple[Array, Floats | None]:
    """Columns in the precision of their products, and what they were divided by.

    For "mixed" they are float32, with a largest entry near one; otherwise they stay as they are,
    and the second value is None.
    """
    if precision == "float64":
        return columns, None
    xp = module_of(columns)
    _, exponents = xp.frexp(xp.abs(columns).max(axis=0))
    scale = xp.exp2(xp.maximum(exponents, -1000))
    return (columns / scale).astype(np.float32), scale


def _smallest(tokens: Tokens) -> float:
    """Smallest absolute value of a coordinate that is not zero."""
    arrays = tokens.arrays if isinstance(tokens, States) else tokens
    return min(
        (float(np.abs(z, where=z != 0, out=np.full(z.shape, np.inf)).min()) for z in arrays),
        default=np.inf,
    )


def _is_gated(tokens: Tokens) -> bool:
    """Whether sums are multiplied by gates, which leaves nothing to tell their smallest size."""
    if isinstance(tokens, PassedStates):
        return _is_gated(tokens.of)
    return isinstance(tokens, StreamStates) and tokens.gates is not None


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
    on_device = False

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`: there is one way."""
        return ""

    summand_sizes = staticmethod(summand_sizes)

    def moments(
        self,
        samples: Samples,
        precision: Precision = "float64",
        progress: Progress = None,
        into: NormalOperator | None = None,
    ) -> Totals:
        """Sum w s_u s_v z_l z_m, w y_a z_l s_u and w y_a^2 over the samples."""
        chosen, n = samples.features, samples.n_samples
        l, m = np.triu_indices(chosen.n_queries)
        u, v = np.triu_indices(chosen.n_pairs)
        gram = np.zeros((len(u), len(l)))
        cross = np.zeros((samples.d_out, chosen.n_queries, chosen.n_pairs))
        energy = np.zeros(samples.d_out)
        done, magnitudes = 0, None
        with np.errstate(over="ignore", invalid="ignore"):
            for part in _parts(samples):
                s, z = part.rows()  # (K, n_pairs), (K, n_queries)
                w = part.weight_of_each()  # (K,)
                left, left_scale = narrowed(s, precision)
                right, right_scale = narrowed(w[:, None] * z[:, l] * z[:, m], precision)
                products = (left[:, u] * left[:, v]).T @ right
                if left_scale is not None:
                    products = (left_scale[u] * left_scale[v])[:, None] * products * right_scale
                gram += products
                if part.targets is not None:
                    y = part.targets.rows().astype(np.float64)
                    cross += np.einsum("k,ka,kl,ku->alu", w, y, z, s, optimize=True)
                    energy += w @ y**2
                done += len(s)
                if progress is not None:
                    progress(done)
            if not chosen.everything or sizes_are_apart(samples):
                magnitudes = summand_sizes(samples)
        totals = [gram, cross, energy, *([] if magnitudes is None else [magnitudes])]
        if not all(np.isfinite(total).all() for total in totals):
            raise non_finite_error(samples.tokens, others=sizes_of(samples))
        if compact.is_triples(chosen, samples.positions):
            # Here sum z_l z_m = S_lm, so the Gram is the third moment of s: keep w >= v.
            gram = np.concatenate([row[first:] for row, first in zip(gram, v, strict=True)])
        mixed = precision == "mixed"
        return Totals(
            gram,
            cross,
            energy,
            n_samples=n,
            total_weight=samples.total_weight,
            accumulation=Accumulation(
                n + 8,  # BLAS may sum in any order, and parts are added up
                n + 7 if mixed else 0,
                samples.longest,
                mixed
                or _is_gated(samples.tokens)
                or may_underflow(_smallest(samples.tokens), samples.weights),
                samples.largest_weight,
            ),
            magnitudes=magnitudes,
            scalar_targets=samples.scalar_targets,
        )

    def normal_operator(self, samples: Samples, *, keep: bool) -> NumpyNormalOperator:
        """See :meth:`Backend.normal_operator`: the samples are always written out here."""
        return NumpyNormalOperator(samples)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y = sum_h V_h S Q_h z."""
        if isinstance(tokens, States):
            return apply_heads(V, Q, tokens)

        def layer(S: Floats, z: Floats) -> Floats:
            y: Floats = np.einsum("haj,jk,hkl,nl->na", V, S, Q, z, optimize=True)
            return y

        y = _evaluate(layer, tokens, positions)
        return require_finite_outputs(y, tokens, {"V": V, "Q": Q})

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y_a = sum over pairs (j,k) and l of C[a,(j,k),l] S[j,k] z_l."""
        if isinstance(tokens, States):
            return apply_coefficients(C, tokens)
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
