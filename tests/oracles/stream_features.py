"""Features of streams, written out one query and one key at a time.

M_t = g_t M_(t-1) + a_t b_t'    D_t = g_t D_(t-1) + 1    h[(j,k), l] = M[j,k] c[l] / scale
"""

from itertools import pairwise

import numpy as np


def sequences(array, offsets=None):
    """A list of (n_i, d) arrays, whatever the form."""
    if offsets is not None:
        return [array[a:b] for a, b in pairwise(offsets)]
    return list(array)


def stream_rows(
    queries,
    keys,
    values=None,
    *,
    positions,
    keep=None,
    gates=None,
    scale=None,
    attend_self=True,
):
    """M (rows, d_v, d_k) and c (rows, d_q) of the queries that exist, and which do, per sequence.

    Everything is a list over sequences: queries (m_i, d_q), keys (n_i, d_k), keep (n_i,) of bool,
    gates (n_i,), scale (m_i,) or "mean". For "last", m_i = 1.
    """
    values = keys if values is None else values
    memories, asked, exist = [], [], []
    for i, (b, a) in enumerate(zip(keys, values, strict=True)):
        kept = np.ones(len(b), bool) if keep is None else keep[i]
        M, D, before = np.zeros((a.shape[1], b.shape[1])), 0.0, []
        after = []
        for t in range(len(b)):
            before.append((M, D))
            if kept[t]:
                g = 1.0 if gates is None else gates[i][t]
                M = g * M + np.outer(a[t].astype(float), b[t].astype(float))
                D = g * D + 1.0
            after.append((M, D))
        here = []
        for t, c in enumerate(queries[i]):
            here.append(positions != "causal" or kept[t])
            if not here[-1]:
                continue
            memory, mass = M, D
            if positions == "causal":
                memory, mass = after[t] if attend_self else before[t]
            factor = 1.0
            if scale is not None:
                factor = 1.0 / mass if isinstance(scale, str) else scale[i][t]
            memories.append(memory * factor)
            asked.append(c.astype(float))
        exist.append(np.array(here, bool))
    return np.array(memories), np.array(asked), exist


def written_out(M, c, *, symmetric):
    """Features (rows, q d_q) of memories and queries."""
    if symmetric:
        j, k = np.triu_indices(M.shape[1])
        s = M[:, j, k]
    else:
        s = M.reshape(len(M), -1)
    return np.einsum("nu,nl->nul", s, c).reshape(len(s), -1)
