"""Softmax attention on sequences of one length, and its derivatives.

    P_i = softmax(x Theta_i x')      row b: the weights with which query b reads the tokens
    A_i = P_i x
    y   = sum_i A_i W_i

A change of Theta_i changes row b of the output by

    dy_b = x_b' dTheta_i G_b^i,   G_b^i = Cov_b^i W_i,   Cov_b^i = sum_a P_ba x_a x_a' - A_b A_b'

Sequences are dense here, (n, k, d); ``examples.groups`` makes such groups of ragged ones.
"""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats


def softmax_rows(logits: Floats) -> Floats:
    """Softmax along the last axis, which overwrites the logits."""
    logits -= logits.max(axis=-1, keepdims=True)  # the largest exponent is 0: nothing overflows
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


def attention(x: Floats, Theta: Floats) -> Floats:
    """Attention weights P (m, n, k, k) of tokens x (n, k, d) under Theta (m, d, d)."""
    n, k, d = x.shape
    queries = np.matmul(x.reshape(n * k, d), Theta).reshape(len(Theta), n, k, d)
    # Keys less the first of their sequence: softmax does not see it, and logits become smaller
    keys = x - x[:, :1]
    return softmax_rows(np.matmul(queries, keys.transpose(0, 2, 1)))


def read(P: Floats, x: Floats) -> Floats:
    """What the heads read, A_i = P_i x, side by side: rows of the regressors B, (n k, m d)."""
    m, n, k, _ = P.shape
    d = x.shape[2]
    B = np.empty((n, k, m, d))
    for i in range(m):
        np.matmul(P[i], x, out=B[:, :, i])
    return B.reshape(n * k, m * d)


def outputs(x: Floats, Theta: Floats, W: Floats) -> Floats:
    """Outputs y (n k, d_out) of the layer (Theta, W) on tokens x (n, k, d)."""
    return np.asarray(read(attention(x, Theta), x) @ W.reshape(-1, W.shape[2]))


def sensitivities(P: Floats, x: Floats, B: Floats, W: Floats) -> Floats:
    """Derivatives G' of every query, (n k, d_out, m d).

    P is (m, n, k, k), B (n k, m d) and W (m, d, d_out).

        G_b^i = sum_a P_ba (x_a - mean) (x_a W_i - A_b W_i)'

    The mean of the sequence only lessens rounding errors: the second factor sums to zero.
    """
    m, n, k, _ = P.shape
    d, d_out = x.shape[2], W.shape[2]
    keys = x - x.mean(axis=1, keepdims=True)
    values = (x.reshape(n * k, d) @ W.transpose(1, 2, 0).reshape(d, d_out * m)).reshape(
        n, k, d_out, m
    )
    means = np.matmul(B.reshape(n * k, m, d).transpose(1, 0, 2), W)  # (m, n b, d_out)
    # (n, b, d_out, m, a): one product with the keys for a sequence, not one for a query and head
    weighted = (
        values.transpose(0, 2, 3, 1)[:, None]
        - means.reshape(m, n, k, d_out).transpose(1, 2, 3, 0)[..., None]
    )
    weighted *= P.transpose(1, 2, 0, 3)[:, :, None]
    G = np.matmul(weighted.reshape(n, k * d_out * m, k), keys)
    return np.asarray(G.reshape(n * k, d_out, m * d))


def pulled_back(P: Floats, x: Floats, W: Floats, R: Floats) -> Floats:
    """The sum over queries of x_b (G_b^i R_b)', (m, d, d), for residuals R (n k, d_out).

    No G is formed: with v_b = W_i R_b and s_ba = x_a' v_b it is x' (P * (s - sum_a P_ba s_ba)) x.
    """
    m, n, k, _ = P.shape
    d = x.shape[2]
    keys = x - x.mean(axis=1, keepdims=True)
    v = np.matmul(R, W.transpose(0, 2, 1)).reshape(m, n, k, d)
    s = np.matmul(v, keys.transpose(0, 2, 1))  # (m, n, b, a)
    s -= np.sum(P * s, axis=-1, keepdims=True)
    s *= P
    read_keys = np.matmul(s, keys).reshape(m, n * k, d)
    return np.asarray(np.matmul(x.reshape(n * k, d).T, read_keys))
