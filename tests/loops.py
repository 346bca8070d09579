"""The definitions, written as loops: an oracle that shares no code with the package."""

from __future__ import annotations

import numpy as np


def features(sequence: np.ndarray) -> np.ndarray:
    """h(Z)[(j,k), l] = S[j,k] z_n[l], pairs j <= k."""
    d = sequence.shape[1]
    S = sum(np.outer(z, z) for z in sequence)
    return np.array(
        [S[j, k] * sequence[-1, l] for j in range(d) for k in range(j, d) for l in range(d)]
    )


def layer(V: np.ndarray, Q: np.ndarray, sequence: np.ndarray, query: np.ndarray) -> np.ndarray:
    """sum_h V_h S Q_h z."""
    S = sum(np.outer(z, z) for z in sequence)
    return sum(V[h] @ S @ Q[h] @ query for h in range(len(V)))


def outputs(V: np.ndarray, Q: np.ndarray, sequence: np.ndarray, positions: str) -> np.ndarray:
    n = len(sequence)
    if positions == "last":
        return layer(V, Q, sequence, sequence[-1])[None]
    if positions == "all":
        return np.array([layer(V, Q, sequence, sequence[t]) for t in range(n)])
    return np.array([layer(V, Q, sequence[: t + 1], sequence[t]) for t in range(n)])
