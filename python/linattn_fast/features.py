"""The cubic features h(Z), and where each of them lives.

    h(Z)[(j,k), l] = S[j,k] * z_n[l]    for pairs j <= k, S = sum_t z_t z_t', z_n the last token

Pairs are ordered as the upper triangle, row by row; feature index = pair * d + l; there are
p = d (d + 1) / 2 * d.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .tokens import Floats, Positions, Tokens, as_tokens, non_finite_error


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


def samples_of(tokens: Tokens, positions: Positions = "last") -> tuple[Floats, Floats]:
    """s (samples, q), the pairs of S, and z (samples, d), the query, of each sample.

    One sample a sequence for "last", one a token otherwise; S is of the whole sequence, or for
    "causal" of the prefix that ends with the query.
    """
    j, k = np.triu_indices(tokens.d)
    if positions == "last" and isinstance(tokens.storage, np.ndarray) and tokens.offsets is None:
        Z = tokens.storage.astype(np.float64, copy=False)
        return (Z.transpose(0, 2, 1) @ Z)[:, j, k], Z[:, -1]
    s, z = [], []
    for given in tokens:
        sequence = given.astype(np.float64, copy=False)
        products = sequence[:, j] * sequence[:, k]  # (n, q)
        if positions == "last":
            s.append(products.sum(axis=0, keepdims=True))
            z.append(sequence[-1:])
        elif positions == "all":
            s.append(np.repeat(products.sum(axis=0, keepdims=True), len(sequence), axis=0))
            z.append(sequence)
        else:
            s.append(np.cumsum(products, axis=0))
            z.append(sequence)
    return np.concatenate(s), np.concatenate(z)


def features_of(tokens: Tokens, positions: Positions = "last") -> Floats:
    """h = s (x) z of each sample, (samples, p)."""
    s, z = samples_of(tokens, positions)
    return (s[:, :, None] * z[:, None, :]).reshape(len(s), -1)


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
        return _finite(features_of(tokens), tokens)


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


def head_coefficients(V: Floats, Q: Floats) -> Floats:
    """Coefficients (d_out, p) of heads: what S[j, k] z[l] and S[k, j] z[l] get together."""
    d_out, d = V.shape[1:]
    W = np.tensordot(V, Q, axes=(0, 0))  # (d_out, j, k, l) = sum_h V_h[a, j] Q_h[k, l]
    j, k = np.triu_indices(d)
    C = W[:, j, k] + np.where((j == k)[:, None], 0.0, W[:, k, j])
    return np.ascontiguousarray(C.reshape(d_out, feature_count(d)))
