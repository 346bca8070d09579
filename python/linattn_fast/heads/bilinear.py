"""Least squares over the heads themselves: the number of heads is given, V and Q are sought.

    minimise over V (H, d_out, d), Q (H, d, d)    ||C(V, Q) - T||_M^2 = tr (C - T) M (C - T)'

C (d_out, p) are the coefficients of the heads, T those to come near to, and M is the identity, or
Lambda + alpha I: with T the optimum of the training objective, the distance in that metric is
exactly what the heads lose against it. C is linear in V and in Q, each in blocks:

    V alone   one regression for each output, all with the same Hd x Hd matrix  A_V = r M r'
    Q alone   the same for each query coordinate when M = P (x) K               A_Q (x) K

r are the coefficients that a single entry of V gets from Q. Both blocks together make the damping
and the preconditioner of a Levenberg-Marquardt iteration whose steps come from conjugate gradients:

    (J' M J + mu blockdiag(A_V, A_Q (x) K)) step = -J' M (C - T)

Scaling or mixing the heads changes nothing in it, and the eigenvalues of the preconditioned matrix
lie between mu and 2 + mu (for M a Kronecker product), so few iterations are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, lapack
from scipy.sparse.linalg import LinearOperator, cg

from ..arrays.types import Floats
from ..features.compact import pair_table
from ..features.cubic import head_coefficients
from ..features.features import pair_count
from ..linalg.factors import EPS
from ..system.progress import Progress
from .contractions import unit_matrix

CALL_FLOPS = 2e5
"""Flops that take as long as the fixed cost of one product with J'MJ."""
BLAS_RATIO = 20
"""Flops of a factorisation that take as long as one flop on short vectors."""
_MOST_STEPS, _MOST_INNER = 100, 25
"""Steps of a descent, and conjugate-gradient iterations of a step; a truncated one still goes
down."""
_WINDOW = 10
"""Steps over which the error must fall by more than a given fraction."""
_LEAST_STEPS, _LEAST_PRODUCTS = 4, 20
"""Steps, and products with J'MJ, without which a descent is not worth starting."""
_UNDAMPED, _NEGLIGIBLE = 1e-3, 0.01
"""Damping mu up to which a step promises all that is left to gain nearby; and the part of the fall
of a stalled descent below which that is not worth another step."""
_TINY = float(np.finfo(np.float64).tiny)
_LARGEST_DAMPING = 1e8
"""Damping mu above which no step is found."""


@dataclass(frozen=True)
class Metric:
    """A positive semidefinite matrix M (p, p), and a Kronecker product P (x) K near it."""

    matrix: Floats | None
    """The matrix M; None for the identity."""
    pairs: Floats | None
    """The factor P, (q, q); None for the identity."""
    queries: Floats
    """The factor K, (d, d)."""
    table: npt.NDArray[np.intp]
    """The number of the pair (j,k), which is also that of (k,j), (d, d)."""

    @classmethod
    @lru_cache(maxsize=64)
    def identity(cls, d: int) -> Metric:
        """The metric of the Frobenius norm of the coefficients."""
        return cls(None, None, unit_matrix(d), pair_table(d))

    @classmethod
    def of(cls, matrix: Floats, d: int) -> Metric:
        """The metric of M, with its partial traces as P and K: tr P (x) K = tr M."""
        q = pair_count(d)
        parts = matrix.reshape(q, d, q, d)
        pairs, queries = np.einsum("ulvl->uv", parts), np.einsum("ulum->lm", parts)
        trace = float(np.trace(pairs))
        return cls(matrix, pairs, queries / (trace if trace > 0 else 1.0), pair_table(d))

    @cached_property
    def query_factor(self) -> Floats:
        """Cholesky factor of K."""
        return _factor(self.queries)

    def times(self, C: Floats) -> Floats:
        """The product C M for C (.., p)."""
        return C if self.matrix is None else C @ self.matrix

    def norm(self, C: Floats) -> float:
        """The norm ||C||_M for C (d_out, p)."""
        return float(np.sqrt(max(0.0, float(np.vdot(C, self.times(C))))))


class Budget:
    """Flops that a search may still spend: a count instead of a clock, so that runs repeat.

    Parameters
    ----------
    flops
        Their number.
    report
        Called with the part that is spent, in per cent, whenever some are; may raise to stop.
    """

    def __init__(self, flops: float, report: Progress = None) -> None:
        self.total = self._left = flops
        self._report = report

    @property
    def left(self) -> float:
        """Flops that are left; below zero when the last piece of work took more."""
        return self._left

    @left.setter
    def left(self, flops: float) -> None:
        self._left = flops
        if self._report is not None:
            self._report(min(99, int(100 * (1 - flops / self.total))))

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0


class Descent(NamedTuple):
    """Heads V (H, d_out, d), Q (H, d, d) where a descent ended, and ||C(V, Q) - T||_M there."""

    V: Floats
    Q: Floats
    error: float


# --------------------------------------------------------------------------------------- the blocks


def adjoint_of(V: Floats, Q: Floats, G: Floats, table: npt.NDArray[np.intp]) -> Floats:
    """What G (d_out, p) changes in V and then Q, flat: <G, C(dV, Q) + C(V, dQ)> in dV and dQ."""
    d_out, d = V.shape[1:]
    W = G.reshape(d_out, -1, d)[:, table]  # (a, j, k, l)
    dV = np.tensordot(Q, W, axes=((1, 2), (2, 3)))
    dQ = np.tensordot(V, W, axes=((1, 2), (0, 1)))
    return np.concatenate([dV.ravel(), dQ.ravel()])


def _spread(F: Floats, table: npt.NDArray[np.intp]) -> Floats:
    """Coefficients that entry j of one factor gets from the other, F (H, d, c): (H, d, q, c).

    [h, j, (j,k), :] = F[h, k, :] for every k.
    """
    H, d, c = F.shape
    r = np.zeros((H, d, pair_count(d), c))
    r[:, np.arange(d)[:, None], table] = F[:, None]
    return r


def plain_block(F: Floats) -> Floats:
    """The product r r' for r = _spread(F), (Hd, Hd).

    Its entries are F_h . F_g at j = i, otherwise F[h, i] . F[g, j].
    """
    H, d, c = F.shape
    flat = F.reshape(H * d, c)
    block = (flat @ flat.T).reshape(H, d, H, d).transpose(0, 3, 2, 1).copy()  # (h, j, g, i)
    diagonal = np.arange(d)
    block[:, diagonal, :, diagonal] = F.reshape(H, -1) @ F.reshape(H, -1).T
    return block.reshape(H * d, H * d)


def _value_block(Q: Floats, metric: Metric) -> Floats:
    """The block A_V = r M r' for the coefficients r that an entry of V gets from Q, (Hd, Hd)."""
    if metric.matrix is None:
        return plain_block(Q)
    H, d, _ = Q.shape
    r = _spread(Q, metric.table).reshape(H * d, -1)
    return np.asarray(r @ metric.times(r).T)


def _query_block(V: Floats, metric: Metric) -> Floats:
    """The block A_Q = r (P (x) I) r' for r that an entry of Q gets from V, (Hd, Hd)."""
    F = np.ascontiguousarray(V.transpose(0, 2, 1))  # (h, j, a)
    if metric.pairs is None:
        return plain_block(F)
    r = _spread(F, metric.table).transpose(0, 1, 3, 2)  # (h, k, a, pair)
    Hd = r.shape[0] * r.shape[1]
    return np.asarray(r.reshape(Hd, -1) @ (r @ metric.pairs).reshape(Hd, -1).T)


def _factor(block: Floats) -> Floats:
    """Cholesky factor of a block; eigenvalues that repeated heads leave at zero are lifted."""
    n = len(block)
    lifted = block.copy()
    lifted.flat[:: n + 1] += 100 * EPS * float(block.trace()) + _TINY
    factor, failed = lapack.dpotrf(lifted.T, clean=False, overwrite_a=True)
    if failed:
        raise LinAlgError(f"pivot {failed} of {n} is not positive")
    return np.asarray(factor)


def _solve(factor: Floats, right: Floats) -> Floats:
    """Solve with a block that was factorised, for right (n, k)."""
    return np.asarray(lapack.dpotrs(factor, right)[0])


def product_flops(V: Floats, Q: Floats, metric: Metric) -> float:
    """Flops of one product with J'MJ."""
    flops = 8.0 * Q.size * V.shape[1] * V.shape[2] + CALL_FLOPS
    if metric.matrix is not None:
        flops += 2.0 * metric.matrix.size * V.shape[1]
    return float(flops)


def _factor_flops(H: int, d_out: int, d: int) -> float:
    """What forming and factorising A_V and A_Q takes, in flops on short vectors."""
    return (H * d) ** 2 * (2.0 * (d + d_out) + 2 * H * d / 3) / BLAS_RATIO


def least_flops(H: int, d_out: int, d: int) -> float:
    """Flops without which a descent of H heads to coefficients (d_out, p) is not worth starting."""
    product = 8.0 * H * d_out * d**3 + CALL_FLOPS
    return _LEAST_PRODUCTS * product + _LEAST_STEPS * _factor_flops(H, d_out, d)


class Linearised:
    """A least-squares problem at one point: J, its adjoint, the gradient, and the damping matrix.

    Parameters
    ----------
    V, Q
        The point.
    metric
        Of which K and the table of pairs are used here.
    blocks
        A_V and A_Q, (Hd, Hd) each.
    flops
        Flops of one product with J'MJ.
    """

    gradient: Floats
    """J' M (C - T), of V and then Q, flat."""

    def __init__(
        self, V: Floats, Q: Floats, metric: Metric, blocks: tuple[Floats, Floats], flops: float
    ) -> None:
        self.V, self.Q, self.metric, self.flops = V, Q, metric, flops
        self.value_block, self.query_block = blocks
        self.value_factor, self.query_factor = map(_factor, blocks)

    def split(self, x: Floats) -> tuple[Floats, Floats]:
        """The parts of x that belong to V and to Q."""
        n = self.V.size
        return x[:n].reshape(self.V.shape), x[n:].reshape(self.Q.shape)

    def forward(self, x: Floats) -> Floats:
        """The product J x = C(dV, Q) + C(V, dQ), (d_out, p)."""
        dV, dQ = self.split(x)
        return head_coefficients(np.concatenate([dV, self.V]), np.concatenate([self.Q, dQ]))

    def adjoint(self, G: Floats) -> Floats:
        """The product J' G for G (d_out, p)."""
        return adjoint_of(self.V, self.Q, G, self.metric.table)

    def normal(self, x: Floats) -> Floats:
        """The product J' M J x."""
        raise NotImplementedError

    def damping(self, x: Floats) -> Floats:
        """The product blockdiag(A_V, A_Q (x) K) x."""
        dV, dQ = self.split(x)
        H, d_out, d = dV.shape
        out_V = np.einsum("xy,ya->xa", self.value_block, self._rows(dV))
        out_Q = self.query_block @ dQ.reshape(H * d, d) @ self.metric.queries
        return np.concatenate([self._unrows(out_V, d_out), out_Q.ravel()])

    def precondition(self, x: Floats) -> Floats:
        """Solve with the damping matrix."""
        dV, dQ = self.split(x)
        H, d_out, d = dV.shape
        out_V = _solve(self.value_factor, self._rows(dV))
        out_Q = _solve(self.query_factor, dQ.reshape(H * d, d))
        out_Q = _solve(self.metric.query_factor, out_Q.T).T
        return np.concatenate([self._unrows(out_V, d_out), out_Q.ravel()])

    @staticmethod
    def _rows(dV: Floats) -> Floats:
        """The array (h, a, j) as rows (hj, a)."""
        return dV.transpose(0, 2, 1).reshape(-1, dV.shape[1])

    def _unrows(self, rows: Floats, d_out: int) -> Floats:
        """The rows (hj, a) as an array (h, a, j), flattened."""
        return rows.reshape(len(self.V), -1, d_out).transpose(0, 2, 1).ravel()


class _InMetric(Linearised):
    """The distance to coefficients T in a metric, at one point."""

    def __init__(self, V: Floats, Q: Floats, metric: Metric, residual: Floats) -> None:
        blocks = _value_block(Q, metric), _query_block(V, metric)
        super().__init__(V, Q, metric, blocks, product_flops(V, Q, metric))
        self.gradient = self.adjoint(metric.times(residual))

    def normal(self, x: Floats) -> Floats:
        """The product J' M J x."""
        return self.adjoint(self.metric.times(self.forward(x)))


# ------------------------------------------------------------------------------------ the iteration


def best_queries(V: Floats, target: Floats, metric: Metric) -> Floats:
    """Solve for Q with V given, in the metric P (x) K: A_Q Q = r (P (x) I) T, K drops out."""
    H, d_out, d = V.shape
    factor = _factor(_query_block(V, metric))

    def solve(T: Floats) -> Floats:
        T = T.reshape(d_out, -1, d)
        if metric.pairs is not None:
            T = metric.pairs @ T
        W = T.take(metric.table, axis=1)  # (a, j, k, l)
        right = V.reshape(H, d_out * d) @ W.reshape(d_out * d, d * d)  # (h, kl)
        return _solve(factor, right.reshape(H * d, d)).reshape(H, d, d)

    Q = solve(target)
    # Once more for what is left: the factor is not quite that of A_Q
    return Q + solve(target - head_coefficients(V, Q))


def best_values(Q: Floats, target: Floats, metric: Metric) -> Floats:
    """Solve for V with Q given: A_V V_a = r M T_a for every output a."""
    H, d, _ = Q.shape
    factor = _factor(_value_block(Q, metric))

    def solve(T: Floats) -> Floats:
        W = metric.times(T).reshape(len(T), -1, d).take(metric.table, axis=1)  # (a, j, k, l)
        right = W.reshape(-1, d * d) @ Q.reshape(H, d * d).T  # (aj, h)
        right = right.reshape(-1, d, H).transpose(2, 1, 0).reshape(H * d, -1)  # (hj, a)
        rows = _solve(factor, right)
        return np.ascontiguousarray(rows.reshape(H, d, -1).transpose(0, 2, 1))

    V = solve(target)
    return V + solve(target - head_coefficients(V, Q))  # as for Q


def _step(at: Linearised, gradient: Floats, mu: float, rtol: float, budget: Budget) -> Floats:
    """Solve (J'MJ + mu D) x = -gradient by a few conjugate-gradient iterations."""

    def product(x: Floats) -> Floats:
        budget.left -= at.flops
        return at.normal(x) + mu * at.damping(x)

    n = len(gradient)
    matrix = LinearOperator((n, n), matvec=product, dtype=np.float64)
    inverse = LinearOperator((n, n), matvec=at.precondition, dtype=np.float64)
    x, _ = cg(matrix, -gradient, rtol=rtol, maxiter=_MOST_INNER, M=inverse)
    return np.asarray(x)


class Objective(Protocol):
    """A sum of squares that depends on heads."""

    @property
    def scale(self) -> float:
        """Error of a layer of zeros."""
        ...

    def error(self, V: Floats, Q: Floats) -> tuple[float, Any]:
        """Root of the sum, and what :meth:`linearised` needs of this point."""
        ...

    def linearised(self, V: Floats, Q: Floats, point: Any) -> Linearised:
        """The problem at a point that :meth:`error` was asked about."""
        ...


class _Distance:
    """||C(V, Q) - T||_M."""

    def __init__(self, target: Floats, metric: Metric) -> None:
        self.target, self.metric = target, metric
        self.scale = metric.norm(target)

    def error(self, V: Floats, Q: Floats) -> tuple[float, Floats]:
        """See :meth:`Objective.error`."""
        residual = head_coefficients(V, Q) - self.target
        return self.metric.norm(residual), residual

    def linearised(self, V: Floats, Q: Floats, point: Floats) -> Linearised:
        """See :meth:`Objective.linearised`."""
        return _InMetric(V, Q, self.metric, point)


def descend(
    V: Floats,
    Q: Floats,
    target: Floats,
    metric: Metric,
    budget: Budget,
    *,
    goal: float = 0.0,
    stall: float = 0.1,
) -> Descent:
    """Levenberg-Marquardt iteration from (V, Q) towards T (d_out, p); see :func:`minimise`."""
    return minimise(_Distance(target, metric), V, Q, budget, goal=goal, stall=stall)


def minimise(
    objective: Objective,
    V: Floats,
    Q: Floats,
    budget: Budget,
    *,
    goal: float = 0.0,
    stall: float = 0.1,
    watch: Callable[[Floats, Floats, float], object] | None = None,
) -> Descent:
    """Levenberg-Marquardt iteration from (V, Q); the error never grows.

    Parameters
    ----------
    objective
        What is to become small.
    V, Q
        Where to start.
    budget
        Flops that may be spent.
    goal
        Error that is good enough.
    stall
        Stop when the error has fallen by no more than this fraction in ten steps.
    watch
        Called before every step with the heads and their error; may raise to stop.
    """
    error, point = objective.error(V, Q)
    mu, growth = 0.1, 2.0
    history = [error]
    at = None
    for _ in range(_MOST_STEPS):
        if error <= goal or budget.spent:
            break
        if watch is not None:
            watch(V, Q, error)
        if at is None:
            budget.left -= _factor_flops(*V.shape)
            at = objective.linearised(V, Q, point)
        x = _step(at, at.gradient, mu, min(0.1, max(1e-8, error / objective.scale)), budget)
        promised = -(2 * float(at.gradient @ x) + float(x @ at.normal(x)))
        dV, dQ = at.split(x)
        new_error, new_point = objective.error(V + dV, Q + dQ)
        gain = (error - new_error) * (error + new_error) / max(promised, 1e-300)
        if new_error < error and gain > 1e-3:
            V, Q, error, point, at = V + dV, Q + dQ, new_error, new_point, None
            mu, growth = max(1e-9, mu * max(0.1, 1 - (2 * min(gain, 1.0) - 1) ** 3)), 2.0
            history.append(error)
        else:
            mu, growth = mu * growth, 2 * growth
        at_the_end = mu <= _UNDAMPED and promised <= _NEGLIGIBLE * stall * error**2
        if mu > _LARGEST_DAMPING or at_the_end:
            break
        if len(history) > _WINDOW and error > (1 - stall) * history[-1 - _WINDOW]:
            break
    return Descent(V, Q, error)
