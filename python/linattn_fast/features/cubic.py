"""The features written out, for tests and small work, and the coefficients of heads on them.

    h(Z)[(j,k), l] = S[j,k] z_n[l]
    C[a, (j,k), l] = sum_h V_h[a,j] Q_h[k,l] + V_h[a,k] Q_h[j,l]

C has the second term only for j < k, because a diagonal entry S[j,j] occurs once.
"""

from __future__ import annotations

import numpy as np

from ..arrays.device import module_of, on_device
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens, as_tokens
from ..system.machine import same_bits
from .compact import pair_entries, pair_table
from .features import samples_of
from .states import batch_and_features


def self_products(tokens: Tokens, positions: Positions = "last") -> Floats:
    """The diagonal S[j,j] of each sample, (samples, d)."""
    sums = []
    for given in tokens:
        squares = given.astype(np.float64, copy=False) ** 2
        if positions == "causal":
            sums.append(np.cumsum(squares, axis=0))
            continue
        total = squares.sum(axis=0, keepdims=True)
        sums.append(total if positions == "last" else np.repeat(total, len(squares), axis=0))
    return np.concatenate(sums)


def _finite(values: Floats, tokens: Tokens) -> Floats:
    if not module_of(values).isfinite(values).all():
        raise non_finite_error(tokens)
    return values


@same_bits
def cubic_features(Z: object, *, offsets: object = None) -> Floats:
    """Compute the features h(Z) themselves, for tests and small work.

    Parameters
    ----------
    Z, offsets
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; or
        :class:`linattn_fast.States`.

    Returns
    -------
    array
        (N, p), p = d (d + 1) / 2 * d; pair number u and query l have the feature u d + l. For
        states p = q d_q, and entry u of the memory and query l have the feature u d_q + l.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.cubic_features([[[1.0, 2.0], [3.0, 1.0]]])
    array([[30., 10., 15.,  5., 15.,  5.]])
    """
    tokens, features = batch_and_features(Z, offsets, None, "last", None)
    with np.errstate(over="ignore", invalid="ignore"), on_device(tokens.device):
        return _finite(features.of(tokens), tokens)


@same_bits
def paper_features(Z: object, *, offsets: object = None) -> Floats:
    """Compute the paper's literal features, for comparison.

    Each off-diagonal product appears twice; :func:`cubic_features` has it once.

    Parameters
    ----------
    Z, offsets
        As for :func:`cubic_features`.

    Returns
    -------
    array
        (N, d, d * d): [i, j, k * d + l] = S[j,k] z_n[l] of sequence i.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.paper_features([[[1.0, 2.0], [3.0, 1.0]]])
    array([[[30., 10., 15.,  5.],
            [15.,  5., 15.,  5.]]])
    """
    tokens = as_tokens(Z, offsets)
    with np.errstate(over="ignore", invalid="ignore"), on_device(tokens.device):
        table = module_of(*tokens.arrays[:1]).asarray(pair_table(tokens.d))
        s, z = samples_of(tokens)
        features = s[:, table, None] * z[:, None, None, :]
        return _finite(features.reshape(len(tokens), tokens.d, -1), tokens)


def head_coefficients(V: Floats, Q: Floats) -> Floats:
    """Coefficients (d_out, p) of heads: the sum of those of S[j, k] z[l] and S[k, j] z[l]."""
    H, d_out, d = V.shape
    xp = module_of(V)
    W = V.reshape(H, -1).T @ Q.reshape(H, -1)  # [aj, kl] = sum_h V_h[a, j] Q_h[k, l]
    W = W.reshape(d_out, d * d, d)  # (a, jk, l)
    upper, off, lower = (xp.asarray(index) for index in pair_entries(d))
    C = W.take(upper, axis=1)
    C[:, off] += W.take(lower, axis=1)
    coefficients: Floats = C.reshape(d_out, -1)
    return coefficients
