"""Kaufman's Gauss-Newton matrix of the reduced objective.

Let J be the derivative of the outputs by Theta for fixed W. Without the part of it that another W
could take over, the squared error near a point is ||r - (I - B B^+) J dTheta||^2, with

    J_b        = x_b (x) G_b                           (m d d, d_out) for query b
    J'J        = sum_b (x_b x_b') (x) (G_b G_b')
    C          = sum_b (A_b (x) x_b) (x) G_b           B'J, for each output
    H          = J'J - C' (B'B)^-1 C
    gradient   = sum_b x_b (x) (G_b r_b)

J'J is symmetric in both factors, so it is one matrix product of the pairs of G_b G_b' with the
pairs of x_b, with the queries as its inner dimension; the compiled core forms both on the way.
With weights, A_b, G_b and r_b are multiplied by sqrt(w_b).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import compiled
from ...arrays.types import Floats
from ...linalg.host_algebra import multiply_transposed
from ..examples.groups import Indices
from ..layer.attention import sensitivities
from .objective import Point

_QUERIES_AT_ONCE = 2048
"""Number of queries whose G is held at a time."""


@dataclass(frozen=True, eq=False)
class NormalMatrix:
    """The normal matrix and the gradient at a point; unknowns are ordered as in Theta (m, d, d)."""

    H: Floats
    """The normal matrix, (m d d, m d d)."""
    gradient: Floats
    """Minus half the derivative of the squared error, sum_b J_b r_b, (m d d,)."""
    cross: Floats
    """The cross products C as (m d, d_out, m d d)."""
    diagonal: Floats
    """Diagonal of J'J, (m d d,), to which rounding errors of H are relative."""


def normal_matrix(point: Point) -> NormalMatrix:
    """Form H, the gradient and C at a point."""
    m, d, _ = point.Theta.shape
    p, d_out, objective = m * d, point.W.shape[2], point.objective
    residual = point.known.residual
    squares = np.zeros((p * (p + 1) // 2, d * (d + 1) // 2))
    cross = np.zeros((p * d, d_out * p))
    slope = np.zeros((d, p))
    add = compiled.add_query_sums if objective.compiled else reference_query_sums
    first = 0
    for P, group in zip(point.P, objective.examples.groups, strict=True):
        k = group.x.shape[1]
        for part in group.parts(_QUERIES_AT_ONCE):
            x = group.x[part].reshape(-1, d)
            rows = slice(first + part.start * k, first + part.start * k + len(x))
            B = point.B[rows]
            G = objective.weighted(sensitivities(P[:, part], group.x[part], B, point.W), rows)
            add(x, objective.weighted(B, rows), G, squares, cross)
            slope += x.T @ np.matmul(residual[rows, None, :], G)[:, 0]
        first += group.rows.size
    C = cross.reshape(p, d, d_out, m, d).transpose(0, 2, 3, 1, 4).reshape(p, d_out, m * d * d)
    half = point.known.gram.half
    taken = (half.T @ C.reshape(p, -1)).reshape(-1, m * d * d)
    H = expand(squares, m, d)
    diagonal = np.diag(H).copy()
    H -= multiply_transposed(taken.T, taken.T)
    gradient = slope.reshape(d, m, d).transpose(1, 0, 2).reshape(-1)
    return NormalMatrix(H, gradient, C, diagonal)


def reference_query_sums(x: Floats, A: Floats, G: Floats, squares: Floats, cross: Floats) -> None:
    """Add sums over queries with x (M, d), A (M, p) and G (M, d_out, p), which is G_b'.

    squares (p (p + 1) / 2, d (d + 1) / 2) += sum (G'G)_uv x_l x_m, u <= v and l <= m
    cross (p d, d_out p)                   += sum A_r x_l G_au

    The compiled core does the same; numpy holds the pair products in memory.
    """
    M, p = A.shape
    u, v = np.triu_indices(p)
    l, m = np.triu_indices(x.shape[1])
    squares += np.matmul(G.transpose(0, 2, 1), G)[:, u, v].T @ (x[:, l] * x[:, m])
    cross += (A[:, :, None] * x[:, None, :]).reshape(M, -1).T @ G.reshape(M, -1)


def expand(squares: Floats, m: int, d: int) -> Floats:
    """All of J'J (m d d, m d d), with unknowns (i, l, u), from its distinct entries."""
    left, right = _pair_numbers(m * d), _pair_numbers(d)
    full: Floats = squares[left.reshape(m, 1, d, m, 1, d), right.reshape(1, d, 1, 1, d, 1)]
    return full.reshape(m * d * d, m * d * d)


def _pair_numbers(n: int) -> Indices:
    """Numbers (n, n) of the pairs (u, v), in either order, among the pairs u <= v row by row."""
    numbers = np.zeros((n, n), dtype=np.int64)
    numbers[np.triu_indices(n)] = np.arange(n * (n + 1) // 2)
    return np.asarray(np.maximum(numbers, numbers.T))
