"""What users write today: the same moments from tokens to the dense Gram, with other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

CHUNK_BYTES = 64 << 20
"""Bytes of features held at once; larger chunks were not faster."""


def _chunks(Z: np.ndarray, p: int, samples_each: int = 1) -> Iterator[np.ndarray]:
    size = max(1, CHUNK_BYTES // (8 * p * samples_each))
    return (Z[start : start + size] for start in range(0, len(Z), size))


def _gram(features: Iterator[np.ndarray], p: int) -> np.ndarray:
    """Sum of ``Phi.T @ Phi``, which numpy computes with SYRK."""
    gram = np.zeros((p, p))
    for phi in features:
        gram += phi.T @ phi
    return gram


def expert_last(Z: np.ndarray) -> np.ndarray:
    """Symmetric features in chunks: (p, p)."""
    d = Z.shape[2]
    j, k = np.triu_indices(d)
    p = len(j) * d

    def features() -> Iterator[np.ndarray]:
        for z in _chunks(Z, p):
            S = z.transpose(0, 2, 1) @ z
            yield (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), p)

    return _gram(features(), p)


def literal_last(Z: np.ndarray) -> np.ndarray:
    """The paper's d^3 features, each off-diagonal product twice: (d^3, d^3)."""
    d = Z.shape[2]

    def features() -> Iterator[np.ndarray]:
        for z in _chunks(Z, d**3):
            S = z.transpose(0, 2, 1) @ z
            yield (S[:, :, :, None] * z[:, -1, None, None, :]).reshape(len(z), d**3)

    return _gram(features(), d**3)


def symmetric_part(gram: np.ndarray, d: int) -> np.ndarray:
    """The entries of a literal Gram that belong to pairs j <= k, for comparison: (p, p)."""
    j, k = np.triu_indices(d)
    q = len(j)
    picked = gram.reshape((d,) * 6)[j, k][:, :, j, k]  # (q, l, q, m)
    return picked.reshape(q * d, q * d)


def expert_all(Z: np.ndarray) -> np.ndarray:
    """Every token a query of its whole sequence."""

    def sums(z: np.ndarray, j: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (z.transpose(0, 2, 1) @ z)[:, None, j, k]

    return _expert_every_token(Z, sums)


def expert_causal(Z: np.ndarray) -> np.ndarray:
    """Every token a query of its prefix, by cumulative sums of the pair products."""

    def sums(z: np.ndarray, j: np.ndarray, k: np.ndarray) -> np.ndarray:
        return np.cumsum(z[:, :, j] * z[:, :, k], axis=1)

    return _expert_every_token(Z, sums)


def _expert_every_token(
    Z: np.ndarray, sums: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Symmetric features of every token in chunks: (p, p); ``sums`` gives S over pairs j, k."""
    _, n, d = Z.shape
    j, k = np.triu_indices(d)
    p = len(j) * d
    chunks = _chunks(Z, p, n)
    return _gram(((sums(z, j, k)[..., None] * z[:, :, None, :]).reshape(-1, p) for z in chunks), p)


def torch_last(Z: np.ndarray, threads: int) -> np.ndarray:
    """The expert's version in PyTorch."""
    import torch

    torch.set_num_threads(threads)
    tokens = torch.from_numpy(Z)
    d = Z.shape[2]
    j, k = torch.triu_indices(d, d)
    p = len(j) * d
    gram = torch.zeros((p, p), dtype=torch.float64)
    size = max(1, CHUNK_BYTES // (8 * p))
    for z in tokens.split(size):
        S = z.transpose(1, 2) @ z
        phi = (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), p)
        gram.addmm_(phi.T, phi)
    return gram.numpy()


def sklearn_last(Z: np.ndarray) -> np.ndarray:
    """``PolynomialFeatures`` of (s, z), from which the products s_u z_l are picked."""
    from sklearn.preprocessing import PolynomialFeatures

    d = Z.shape[2]
    j, k = np.triu_indices(d)
    q = len(j)
    S = Z.transpose(0, 2, 1) @ Z
    inputs = np.concatenate([S[:, j, k], Z[:, -1]], axis=1)
    expansion = PolynomialFeatures(degree=2, interaction_only=True, include_bias=False)
    products = expansion.fit_transform(inputs)
    powers = expansion.powers_
    picked = [
        int(np.flatnonzero((powers[:, u] == 1) & (powers[:, q + l] == 1))[0])
        for u in range(q)
        for l in range(d)
    ]
    phi = products[:, picked]
    return phi.T @ phi


def expert_predict(V: np.ndarray, Q: np.ndarray, Z: np.ndarray, positions: str) -> np.ndarray:
    """The map M = sum_h V_h S Q_h of every S, by matrix products: (N, d_out) or (N, n, d_out)."""
    N, n, d = Z.shape
    d_out = V.shape[1]
    W = np.einsum("haj,hkl->jkal", V, Q).reshape(d * d, d_out * d)
    size = max(1, CHUNK_BYTES // (8 * d * d * (n if positions == "causal" else 1)))
    answers = []
    for start in range(0, N, size):
        z = Z[start : start + size]
        if positions == "causal":
            S = np.cumsum(z[:, :, :, None] * z[:, :, None, :], axis=1)
            M = (S.reshape(-1, d * d) @ W).reshape(len(z), n, d_out, d)
            answers.append((M @ z[..., None])[..., 0])
            continue
        S = z.transpose(0, 2, 1) @ z
        M = (S.reshape(-1, d * d) @ W).reshape(len(z), d_out, d)
        if positions == "all":
            answers.append(z @ M.transpose(0, 2, 1))
        else:
            answers.append((M @ z[:, -1, :, None])[..., 0])
    return np.concatenate(answers)
