"""The cubic features h(Z), and where each of them lives.

    h(Z)[(j,k), l] = S[j,k] * z_n[l]    for pairs j <= k, S = sum_t z_t z_t', z_n the last token

Pairs are ordered as the upper triangle, row by row; feature index = pair * d + l; there are
p = d (d + 1) / 2 * d. The compact Gram holds each distinct entry of sum h h' once:

    gram[(u,v), (l,m)] = sum s_u s_v z_l z_m    for pairs u <= v of pairs and l <= m of coordinates
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .tokens import Array, Floats, Tokens, as_tokens, non_finite_error


def pair_count(d: int) -> int:
    """Count the pairs j <= k of d coordinates."""
    return d * (d + 1) // 2


def feature_count(d: int) -> int:
    """Count the features p of tokens in R^d."""
    return pair_count(d) * d


def pair_table(d: int) -> npt.NDArray[np.intp]:
    """Index of the pair {j, k} in the upper triangle, (d, d), symmetric."""
    table = np.zeros((d, d), dtype=np.intp)
    j, k = np.triu_indices(d)
    table[j, k] = table[k, j] = np.arange(pair_count(d))
    return table


def samples_of(tokens: Tokens) -> tuple[Floats, Floats]:
    """s (N, q), the pairs of S, and z (N, d), the last token, of each sequence."""
    j, k = np.triu_indices(tokens.d)
    moments = (
        sequence.T @ sequence for sequence in (z.astype(np.float64, copy=False) for z in tokens)
    )
    s = np.stack([S[j, k] for S in moments])
    z = np.stack([sequence[-1].astype(np.float64) for sequence in tokens])
    return s, z


def _finite(values: Floats, tokens: Tokens) -> Floats:
    if not np.isfinite(values).all():
        raise non_finite_error(tokens)
    return values


def cubic_features(Z: object, *, offsets: object = None) -> Floats:
    """Compute the features h(Z) themselves, (N, p): for tests and small work.

    Parameters
    ----------
    Z, offsets
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.cubic_features([[[1.0, 2.0], [3.0, 1.0]]])
    array([[30., 10., 15.,  5., 15.,  5.]])
    """
    tokens = as_tokens(Z, offsets)
    with np.errstate(over="ignore", invalid="ignore"):
        s, z = samples_of(tokens)
        return _finite((s[:, :, None] * z[:, None, :]).reshape(len(tokens), -1), tokens)


def paper_features(Z: object, *, offsets: object = None) -> Floats:
    """Compute the paper's literal features, (N, d, d * d): [i, j, k * d + l] = S[j,k] z_n[l].

    Each off-diagonal product appears twice; :func:`cubic_features` has it once.
    """
    tokens = as_tokens(Z, offsets)
    table = pair_table(tokens.d)
    with np.errstate(over="ignore", invalid="ignore"):
        s, z = samples_of(tokens)
        features = s[:, table, None] * z[:, None, None, :]
        return _finite(features.reshape(len(tokens), tokens.d, -1), tokens)


def expand_gram(compact: Array, d: int) -> Floats:
    """Write out the dense p x p Gram from its distinct entries."""
    q = pair_count(d)
    rows, columns = pair_table(q), pair_table(d)
    gram = np.empty((q, d, q, d))
    for u in range(q):
        # (v, l, m) -> (l, v, m)
        gram[u] = compact[rows[u]][:, columns].transpose(1, 0, 2)
    return gram.reshape(q * d, q * d)
