"""What users write today: the same moments in numpy, from tokens to the dense Gram."""

from __future__ import annotations

import numpy as np

CHUNK_BYTES = 64 << 20
"""Features held at once; larger chunks were not faster."""


def _chunks(Z: np.ndarray, p: int) -> list[np.ndarray]:
    size = max(1, CHUNK_BYTES // (8 * p))
    return [Z[start : start + size] for start in range(0, len(Z), size)]


def expert_last(Z: np.ndarray) -> np.ndarray:
    """Symmetric features in chunks and ``Phi.T @ Phi``, which numpy computes with SYRK: (p, p)."""
    d = Z.shape[2]
    j, k = np.triu_indices(d)
    p = len(j) * d
    gram = np.zeros((p, p))
    for z in _chunks(Z, p):
        S = z.transpose(0, 2, 1) @ z
        features = (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), p)
        gram += features.T @ features
    return gram


def literal_last(Z: np.ndarray) -> np.ndarray:
    """The paper's d^3 features, each off-diagonal product twice: (d^3, d^3)."""
    d = Z.shape[2]
    gram = np.zeros((d**3, d**3))
    for z in _chunks(Z, d**3):
        S = z.transpose(0, 2, 1) @ z
        features = (S[:, :, :, None] * z[:, -1, None, None, :]).reshape(len(z), d**3)
        gram += features.T @ features
    return gram


def symmetric_part(gram: np.ndarray, d: int) -> np.ndarray:
    """The entries of a literal Gram that belong to pairs j <= k, for comparison: (p, p)."""
    j, k = np.triu_indices(d)
    q = len(j)
    picked = gram.reshape((d,) * 6)[j, k][:, :, j, k]  # (q, l, q, m)
    return picked.reshape(q * d, q * d)
