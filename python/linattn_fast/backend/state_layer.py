"""Layers applied to states: y = C h, or y = sum_h V_h M Q_h c, as products of matrices.

Nothing is summed over tokens here, so numpy and its BLAS are as fast as compiled code would be.
"""

from __future__ import annotations

import numpy as np

from ..arrays.types import Floats
from ..data.passed import PassedStates
from ..data.states import States
from . import passed_streams
from .interface import require_finite_outputs

_NUMBERS_AT_ONCE = 1 << 21
"""Numbers of the memory that are read together."""


def apply_coefficients(C: Floats, states: States) -> Floats:
    """Outputs y_a = sum_ul C[a,(u,l)] s_u c_l of each state, (N, d_out), for C (d_out, q d_q)."""
    if isinstance(states, PassedStates):
        y = passed_streams.apply_forms(C, states) if states.summed else apply_forms(C, states)
        return require_finite_outputs(y, states, {"coefficients": C})
    q, d_q = states.kind.entries, states.kind.query
    y = np.empty((len(states), len(C)))
    with np.errstate(over="ignore", invalid="ignore"):
        for where, some in states.pieces(_NUMBERS_AT_ONCE):
            s, c = some.entries(), some.coordinates()
            for a, one in enumerate(C.reshape(len(C), q, d_q)):
                y[where, a] = ((s @ one) * c).sum(axis=1)
    return require_finite_outputs(y, states, {"coefficients": C})


def apply_forms(C: Floats, rows: PassedStates) -> Floats:
    """Outputs m_j' B_a c of each row of the memories, (N d_v, m), for forms C (m, d_k d_q)."""
    d_k, d_q = rows.kind.entries, rows.kind.query
    forms = C.reshape(len(C) * d_k, d_q).T  # (d_q, m d_k)
    y = np.empty((rows.n_rows, len(C)))
    with np.errstate(over="ignore", invalid="ignore"):
        for where, some in rows.pieces(_NUMBERS_AT_ONCE):
            M, c = some.memory.astype(np.float64, copy=False), some.of.coordinates()
            asked = (c @ forms).reshape(len(c), len(C), d_k).transpose(0, 2, 1)  # B_a c
            y[where] = (M @ asked).reshape(-1, len(C))
    return y


def apply_heads(V: Floats, Q: Floats, states: States) -> Floats:
    """Outputs y = sum_h V_h M Q_h c of each state, (N, d_out), for V (H, d_out, d_v)."""
    H, d_out, d_v = V.shape
    d_k, d_q = Q.shape[1:]
    queries = Q.reshape(H * d_k, d_q).T  # (d_q, H d_k)
    values = V.transpose(2, 0, 1).reshape(d_v * H, d_out)
    y = np.empty((len(states), d_out))
    with np.errstate(over="ignore", invalid="ignore"):
        for where, some in states.pieces(_NUMBERS_AT_ONCE):
            asked = some.coordinates() @ queries
            read = matrices(some) @ asked.reshape(len(some), H, d_k).transpose(0, 2, 1)
            y[where] = read.reshape(len(some), d_v * H) @ values  # M Q_h c, (N, d_v, H)
    return require_finite_outputs(y, states, {"V": V, "Q": Q})


def matrices(states: States) -> Floats:
    """The memories as matrices, (N, d_v, d_k), in float64; symmetric ones from their pairs."""
    M = states.memory.astype(np.float64, copy=False)
    if not states.symmetric:
        return M.reshape(len(M), *states.kind.matrix)
    upper = np.triu(M)
    return upper + np.triu(M, 1).transpose(0, 2, 1)
