"""The definitions, written as loops: an oracle that shares no code with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import linattn_fast as la


def features(sequence: np.ndarray, query: np.ndarray | None = None) -> np.ndarray:
    """h(Z)[(j,k), l] = S[j,k] z[l], pairs j <= k; the query z is the last token by default."""
    d = sequence.shape[1]
    z = sequence[-1] if query is None else query
    S = sum(np.outer(token, token) for token in sequence)
    return np.array([S[j, k] * z[l] for j in range(d) for k in range(j, d) for l in range(d)])


def queries(sequence: np.ndarray, positions: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each query attends to, and the query."""
    n = len(sequence)
    if positions == "last":
        return [(sequence, sequence[-1])]
    return [(sequence if positions == "all" else sequence[: t + 1], sequence[t]) for t in range(n)]


def all_features(sequences: list[np.ndarray], positions: str) -> np.ndarray:
    """Features of every sample, (samples, p)."""
    return np.array(
        [features(context, query) for z in sequences for context, query in queries(z, positions)]
    )


def columns(chosen: la.Features) -> list[int]:
    """Where the chosen features stand among all of them, (count,)."""
    d = chosen.d
    every = ((j, k, l) for j in range(d) for k in range(j, d) for l in range(d))
    place = {feature: i for i, feature in enumerate(every)}
    return [place[j, k, l] for j, k in chosen.pairs for l in chosen.queries]


def per_sample(values: np.ndarray, sequences: list[np.ndarray], positions: str) -> np.ndarray:
    """Values of sequences, such as weights, a value for each query: (N,) to (samples,)."""
    return np.repeat(values, [len(queries(z, positions)) for z in sequences])


def layer(V: np.ndarray, Q: np.ndarray, sequence: np.ndarray, query: np.ndarray) -> np.ndarray:
    """sum_h V_h S Q_h z."""
    S = sum(np.outer(z, z) for z in sequence)
    return sum(V[h] @ S @ Q[h] @ query for h in range(len(V)))


def outputs(V: np.ndarray, Q: np.ndarray, sequence: np.ndarray, positions: str) -> np.ndarray:
    return np.array([layer(V, Q, context, z) for context, z in queries(sequence, positions)])
