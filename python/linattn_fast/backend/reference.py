"""The numpy backend: every result the slow, obvious way. Read it as the specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ..features import samples_of
from ..tokens import Array, Floats, Positions, Tokens, non_finite_error
from . import BatchMoments, Progress

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
        y = np.concatenate(
            [_answers(layer, z.astype(np.float64), positions) for z in tokens], axis=0
        )
    if not np.isfinite(y).all():
        raise non_finite_error(tokens)
    return y


class NumpyBackend:
    """Moments and layers in numpy alone."""

    name = "numpy"

    def moments(
        self,
        tokens: Tokens,
        targets: Array | None,
        weights: Floats | None,
        *,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> BatchMoments:
        """Sum w s_u s_v z_l z_m, w y_a z_l s_u and w y_a^2 over the samples."""
        d = tokens.d
        l, m = np.triu_indices(d)
        q = len(l)
        u, v = np.triu_indices(q)
        d_out = 0 if targets is None else targets.shape[1]
        gram = np.zeros((len(u) if with_gram else 0, len(l)))
        cross = np.zeros((d_out, d, q))
        energy = np.zeros(d_out)
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, part in _parts(tokens):
                s, z = samples_of(part)  # (K, q), (K, d)
                w = np.ones(len(s)) if weights is None else weights[rows]
                if with_gram:
                    gram += (s[:, u] * s[:, v]).T @ (w[:, None] * z[:, l] * z[:, m])
                if targets is not None:
                    y = targets[rows].astype(np.float64)
                    cross += np.einsum("k,ka,kl,ku->alu", w, y, z, s, optimize=True)
                    energy += w @ y**2
                if progress is not None:
                    progress(rows.stop)
        if not (np.isfinite(gram).all() and np.isfinite(cross).all()):
            raise non_finite_error(tokens)
        return BatchMoments(gram, cross, energy)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y = sum_h V_h S Q_h z."""

        def layer(S: Floats, z: Floats) -> Floats:
            y: Floats = np.einsum("haj,jk,hkl,nl->na", V, S, Q, z, optimize=True)
            return y

        return _evaluate(layer, tokens, positions)

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y_a = sum over pairs (j,k) and l of C[a,(j,k),l] S[j,k] z_l."""
        j, k = np.triu_indices(tokens.d)
        by_pair = C.reshape(len(C), len(j), tokens.d)

        def layer(S: Floats, z: Floats) -> Floats:
            y: Floats = np.einsum("aul,u,nl->na", by_pair, S[j, k], z, optimize=True)
            return y

        return _evaluate(layer, tokens, positions)

    def generate(
        self, V: Floats, Q: Floats, prompts: Floats, steps: int, decimals: int | None
    ) -> Floats:
        """Append the layer's output as the next token, ``steps`` times."""
        Z = prompts
        for _ in range(steps):
            y = self.heads(V, Q, Tokens(Z), "last")
            if decimals is not None:
                y = np.round(y, decimals)
            Z = np.concatenate([Z, y[:, None, :]], axis=1)
        return Z
