"""The best layer with a given number of heads, from passes over the data: no Gram is formed.

    minimise over V (H, d_out, d), Q (H, d, d)    f(C(V, Q))
    f(C) = (1/W) sum w ||C h - y||^2 + alpha ||C||^2

The unknowns are H (d_out d + d^2), where coefficients are d_out d^3 / 2. Least squares over them
(:mod:`linattn_fast.heads.bilinear`) take sums over samples (:mod:`linattn_fast.heads.passes`); the
second moment is a Kronecker product near enough for the damping. They start from heads of a rough
solution of the convex problem, in coordinates in which tokens are white, and from random points.

The problem in V and Q is not convex, but f in C is, so its gradient at the heads that were found
tells how far they are from the best coefficients of all. With r = mean w (y - C h) h' - alpha C and
M = Lambda + alpha I,

    gap = f(C) - min f = tr r M^-1 r'    at least  f(C) - f(C + D)  for every D
                                         at most   f(C),  and  ||r||^2 / alpha  with a ridge

Conjugate gradients look for D. No gap is a proof that H heads suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh, qr, svd

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors
from ...features.compact import pair_table
from ...features.cubic import head_coefficients
from ...linalg.factors import EPS
from ...problem.interface import Problem, ShowProgress
from ...solvers.accuracy import Solution
from ...solvers.conjugate_gradients.iteration import Iterate, conjugate_gradients
from ...solvers.conjugate_gradients.whitening import whiten
from ...solvers.costs import HeadCosts
from ...solvers.solved import Solved
from ...system.progress import IterationBar, Watch
from ..bilinear import (
    Budget,
    Descent,
    Linearised,
    Metric,
    descend,
    minimise,
    plain_block,
)
from ..contractions import split_evenly
from ..heads import Heads, Recovery, known_heads, normal_form
from ..ranks import TOLERANCE
from ..svd import perturbed, svd_factors
from .passes import ByCoefficients, BySamples, HeadPasses, Point

_FLOPS = 2e12
"""Flops that all descents may take together: half a minute or so of two cores."""
_GAP_FLOPS = 1e12
"""Flops that the search for better coefficients may take."""
_EXACT = 1e-13
"""Root of the mean squared error, relative to the targets', that counts as none."""
_EXPLORE, _SETTLE = 1e-3, 1e-8
"""Relative fall of the error in ten steps below which a start, and then the best, is left."""
_AGREE = 1e-3
"""Relative difference of the errors below which two starts have found one minimum."""
_SEEDS = (0, 1, 2, 3)
"""Random starts."""
_PLAIN_FLOPS = 3e9
"""Flops spent on heads near the rough solution in the plain norm; none where one product takes more
than a hundredth of them."""
_DENSE = 512
"""Singular values up to which all are found, and not the first alone."""
_GAP_GAIN, _GAP_WINDOW = 1e-3, 5
"""Conjugate gradients end when so many iterations have added no more than this share to the gap."""


@dataclass(frozen=True)
class OnData:
    """The training objective of heads; see :class:`linattn_fast.heads.bilinear.Objective`."""

    passes: HeadPasses
    total_weight: float
    alpha: float
    metric: Metric
    """The Kronecker product near Lambda; its matrix is not known."""
    scale: float
    """Root of the mean squared target."""
    flops: float
    """Flops of one product with J'MJ."""

    def error(self, V: Floats, Q: Floats) -> tuple[float, Point]:
        """See :meth:`Objective.error`."""
        point = self.passes.at(V, Q)
        loss = float(point.sums.squared.sum()) / self.total_weight
        if self.alpha > 0:
            C = head_coefficients(V, Q)
            loss += self.alpha * float(np.vdot(C, C))
        return float(np.sqrt(loss)), point

    def linearised(self, V: Floats, Q: Floats, point: Point) -> Linearised:
        """See :meth:`Objective.linearised`."""
        return _OnDataAt(self, V, Q, point)


class _OnDataAt(Linearised):
    """The training objective at one point."""

    def __init__(self, objective: OnData, V: Floats, Q: Floats, point: Point) -> None:
        metric, alpha = objective.metric, objective.alpha
        K, values = metric.queries, np.einsum("haj,gai->hgji", V, V, optimize=True)
        queries = np.einsum("hkl,lm,gnm->hgkn", Q, K, Q, optimize=True)
        blocks = [_block(queries, metric), _block(values, metric)]
        if alpha > 0:
            blocks[0] += alpha * plain_block(Q)
            share = alpha * len(K) / float(np.trace(K))  # of the identity, near K
            blocks[1] += share * plain_block(np.ascontiguousarray(V.transpose(0, 2, 1)))
        super().__init__(V, Q, metric, (blocks[0], blocks[1]), objective.flops)
        self.point, self.weight, self.alpha = point, objective.total_weight, alpha
        self.gradient = -point.sums.flat() / self.weight
        if alpha > 0:
            self.gradient += alpha * self.adjoint(head_coefficients(V, Q))

    def normal(self, x: Floats) -> Floats:
        """J' (Lambda + alpha I) J x."""
        product = self.point.normal(*self.split(x)).flat() / self.weight
        if self.alpha > 0:
            product += self.alpha * self.adjoint(self.forward(x))
        return product


def _block(F: Floats, metric: Metric) -> Floats:
    """Sum over k, m of P[(j,k),(i,m)] F[h,g,k,m], F (H, H, d, d): rows (h, j), columns (g, i)."""
    P, table = metric.pairs, metric.table
    assert P is not None
    H, _, d, _ = F.shape
    flat = F.reshape(H * H, d * d)
    block = np.empty((H, d, H, d))
    for j in range(d):
        near = P[table[j]][:, table]  # (k, i, m)
        found = flat @ near.transpose(0, 2, 1).reshape(d * d, d)
        block[:, j] = found.reshape(H, H, d)
    return block.reshape(H * d, H * d)


# ------------------------------------------------------------------------------------------ starts


class _White:
    """Coordinates x with z = R x in which the mean of x x' is the identity, or nearly."""

    def __init__(self, second_moment: Floats) -> None:
        values, vectors = eigh(second_moment, check_finite=False)
        sizes = np.sqrt(np.maximum(values, EPS * max(float(values[-1]), np.finfo(float).tiny)))
        self.R, self.inverse = vectors * sizes, (vectors / sizes).T

    def coefficients(self, C: Floats) -> Floats:
        """The coefficients (d_out, p) of the same function of x."""
        d, R = len(self.R), self.R
        T = split_evenly(C, d) @ R  # (a, j, k, l)
        T = np.tensordot(np.tensordot(T, R, (1, 0)), R, (1, 0))  # (a, l, j, k)
        j, k = np.triu_indices(d)
        pairs = T[:, :, j, k] * np.where(j == k, 1.0, 2.0)
        return np.ascontiguousarray(pairs.transpose(0, 2, 1)).reshape(len(C), -1)

    def back(self, V: Floats, Q: Floats) -> tuple[Floats, Floats]:
        """Heads of tokens from heads of x."""
        return V @ self.inverse, self.inverse.T @ Q @ self.inverse


def _leading(C: Floats, d: int, H: int) -> tuple[Floats, Floats, Floats]:
    """The first H singular values and vectors of T, as :func:`svd_factors` has them."""
    if min(len(C), d) * d <= _DENSE:
        left, sigma, right = svd_factors(C, d)
        return left[:H], sigma[:H], right[:H]
    W = split_evenly(C, d).reshape(len(C) * d, d * d)
    block: Floats = np.random.default_rng(0).standard_normal((d * d, H + 8))
    for _ in range(4):  # subspace iteration
        block = np.asarray(qr(W.T @ (W @ block), mode="economic", check_finite=False)[0], float)
    U, sigma, small = svd(W @ block, full_matrices=False, check_finite=False)
    right = (small @ block.T)[:H]
    return U.T[:H].reshape(-1, len(C), d), sigma[:H], right.reshape(-1, d, d)


@dataclass(frozen=True)
class Starts:
    """Where least squares start from."""

    C: Floats
    """Rough coefficients, (d_out, p), not all zero."""
    second_moment: Floats
    """The mean of z z', (d, d)."""
    H: int

    def __iter__(self) -> Iterator[tuple[Floats, Floats]]:
        d = len(self.second_moment)
        white = _White(self.second_moment)
        C = white.coefficients(self.C)
        unit = float(np.abs(C).max())
        C /= unit
        root = np.sqrt(unit)
        factors = _leading(C, d, self.H)
        for seed in _SEEDS:
            V, Q = perturbed(factors, self.H, seed)
            if seed == _SEEDS[0]:
                V, Q = _nearer(V, Q, C)
            yield white.back(V * root, Q * root)


def _nearer(V: Floats, Q: Floats, C: Floats) -> tuple[Floats, Floats]:
    """Heads nearer to coefficients in the plain norm, where that costs little."""
    if 8 * Q.size * V.shape[1] * V.shape[2] > _PLAIN_FLOPS / 100:
        return V, Q
    end = descend(V, Q, C, Metric.identity(V.shape[2]), Budget(_PLAIN_FLOPS))
    return end.V, end.Q


# --------------------------------------------------------------------------------------- the layer


class _Watched:
    """Tells how a descent goes, and what was best if it is stopped."""

    def __init__(self, watch: Watch | None, goal: float) -> None:
        self.watch, self.goal, self.steps = watch, goal, 0
        self.best: Descent | None = None

    def __call__(self, V: Floats, Q: Floats, error: float) -> None:
        self.steps += 1
        if self.best is None or error < self.best.error:
            self.best = Descent(V, Q, error)
        if self.watch is not None:
            self.watch(self.steps, error, self.goal)


@dataclass(frozen=True)
class WithoutGram:
    """Finds the best heads of one solved problem by passes over its data."""

    solved: Solved
    """A rough solution of the convex problem."""
    alpha: float
    H: int
    memory: int
    """Bytes that may be used beside the data."""

    @property
    def d(self) -> int:
        """Coordinates of a token."""
        return self.solved.problem.features.d

    @property
    def total_weight(self) -> float:
        """The total weight W of the samples."""
        assert self.solved.passes is not None
        return self.solved.passes.operator.total_weight

    @cached_property
    def kronecker(self) -> KroneckerFactors:
        """The Kronecker factors, on the host."""
        assert self.solved.kronecker is not None
        return KroneckerFactors(*map(to_host, self.solved.kronecker))

    @property
    def _costs(self) -> HeadCosts:
        return HeadCosts.of(self.solved.problem, self.H, self.solved.n_samples)

    @cached_property
    def kept(self) -> tuple[bool, bool]:
        """Whether s, and what derivatives are made of, are kept of all samples."""
        problem = self.solved.problem
        room = self.memory - (self.solved.bytes or 0) - self._costs.bytes
        return self._costs.kept(room, again=problem.samples is not None and not _elsewhere(problem))

    @property
    def bytes(self) -> int:
        """Bytes held at the peak beside the data."""
        return (self.solved.bytes or 0) + self._costs.bytes_with(*self.kept)

    @cached_property
    def objective(self) -> OnData:
        """The training objective, sample by sample where samples can be read here."""
        solved, passes = self.solved, self.solved.passes
        assert passes is not None
        costs = self._costs
        A, B = (part / self.total_weight for part in self.kronecker[:2])
        metric = Metric(None, A, B, pair_table(self.d))
        by: HeadPasses
        read = solved.problem.read
        if read is None or _elsewhere(solved.problem):
            by, flops = ByCoefficients(passes.operator), costs.by_coefficients
        else:
            keep, derivatives = self.kept
            by = BySamples(read, keep=keep, keep_derivatives=derivatives)
            flops = costs.by_derivatives if derivatives else costs.by_samples
        scale = float(np.sqrt(solved.mean_squared_target))
        return OnData(by, self.total_weight, self.alpha, metric, scale, flops)

    def best(self, progress: ShowProgress = False) -> tuple[Solution, Heads]:
        """The layer with the smallest objective that was found, and its distance to the optimum."""
        C = to_host(self.solved.solution.coefficients)
        if not C.any():
            return self._zero_layer()
        with IterationBar("heads", progress) as watch:
            end = self._descended(C, watch)
        V, Q = normal_form(end.V, end.Q)
        C = head_coefficients(V, Q)
        gap = Gap(self.solved, self.alpha, C).found()
        recovery = Recovery(
            "fit",
            residual=float(np.linalg.norm(gap.better - C) / (np.linalg.norm(gap.better) or 1.0)),
            at_least=0,
            tried=(),
            fewer_leave=0.0,
            reason="a number of heads was asked for, and fitted by passes over the data",
            loss=gap.loss,
            convex_loss=gap.loss - gap.at_least,
            tolerance=TOLERANCE,
            gap=gap.at_least,
            gap_at_most=gap.at_most,
        )
        return Solution(C, (), gap.mean_squared_error), known_heads(V, Q, recovery)

    def _descended(self, C: Floats, watch: Watch | None) -> Descent:
        """The best end of least squares from several starts."""
        d, d_out = self.d, len(C)
        H = min(self.H, d_out * d, d * d)
        goal = _EXACT * self.objective.scale
        budget, told = Budget(_FLOPS), _Watched(watch, goal)
        ends: list[Descent] = []
        try:
            for V, Q in Starts(C, self.objective.metric.queries, H):
                end = minimise(self.objective, V, Q, budget, goal=goal, stall=_EXPLORE, watch=told)
                ends.append(end)
                ends.sort(key=lambda end: end.error)
                if ends[0].error <= goal or budget.spent:
                    break
                if len(ends) > 1 and ends[1].error <= (1 + _AGREE) * ends[0].error:
                    break
            V, Q, _ = ends[0]
            return minimise(self.objective, V, Q, budget, goal=goal, stall=_SETTLE, watch=told)
        except BaseException as stop:
            best = told.best
            # an attribute of ours on whatever exception stopped it, which no class declares
            stop.iterate = C if best is None else head_coefficients(best.V, best.Q)  # type: ignore[attr-defined]
            raise

    def _zero_layer(self) -> tuple[Solution, Heads]:
        """The one head of an optimum that is zero."""
        solution, d = self.solved.solution, self.d
        C = to_host(solution.coefficients)
        loss = self.solved.mean_squared_target
        reason = "the best coefficients are zero"
        recovery = Recovery("fit", 0.0, 0, (), 0.0, reason, loss, loss, TOLERANCE, 0.0, loss)
        heads = known_heads(np.zeros((1, len(C), d)), np.zeros((1, d, d)), recovery)
        return Solution(C, (), loss), heads


def _elsewhere(problem: Problem) -> bool:
    """Whether samples cannot be read here one by one: on a cluster, or on a device."""
    return problem.read is None or problem.engine.on_device


# ----------------------------------------------------------------------------------------- the gap


@dataclass(frozen=True)
class FoundGap:
    """How far coefficients are from the convex optimum."""

    loss: float
    """The convex objective f(C) of the layer."""
    mean_squared_error: float
    at_least: float
    at_most: float
    better: Floats
    """Coefficients that are better by ``at_least``."""


@dataclass(frozen=True)
class Gap:
    """Looks for the distance of coefficients C (d_out, p) to the convex optimum."""

    solved: Solved
    alpha: float
    C: Floats

    def found(self) -> FoundGap:
        """The gap, bounded on both sides."""
        solved, passes = self.solved, self.solved.passes
        assert passes is not None
        error, r = self._at(self.C)
        loss = error + self.alpha * float(np.vdot(self.C, self.C))
        most = loss
        if self.alpha > 0:
            most = min(most, float((r**2).sum()) / self.alpha)
        if most <= _EXACT**2 * solved.mean_squared_target:
            return FoundGap(loss, error, 0.0, most, self.C)
        better = self.C + self._direction(r)
        other = self._at(better)[0] + self.alpha * float(np.vdot(better, better))
        least = loss - other
        if not least > 0:
            least, better = 0.0, self.C
        return FoundGap(loss, error, least, max(most, least), better)

    def _at(self, C: Floats) -> tuple[float, Floats]:
        """Mean squared error and r."""
        assert self.solved.passes is not None
        operator = self.solved.passes.operator
        gradient, squared = operator.gradient(np.ascontiguousarray(C))
        weight = operator.total_weight
        return float(to_host(squared).sum()) / weight, to_host(gradient) / weight - self.alpha * C

    def _direction(self, r: Floats) -> Floats:
        """M^-1 r, as far as conjugate gradients come."""
        solved, passes = self.solved, self.solved.passes
        assert passes is not None
        assert solved.kronecker is not None
        operator = passes.operator
        white = solved.whitening or whiten(
            solved.kronecker, operator.total_weight, self.alpha, operator.features
        )
        xp = module_of(white.left)
        right = white.transpose(xp.asarray(r))
        unit = float(abs(right).max()) or 1.0
        right = right / unit
        gains: list[float] = []

        def enough(state: Iterate) -> bool:
            gains.append(float((state.v * right).sum()))  # tr r M^-1 r' so far
            if len(gains) <= _GAP_WINDOW:
                return False
            return gains[-1] - gains[-1 - _GAP_WINDOW] <= _GAP_GAIN * gains[-1]

        costs = HeadCosts.of(solved.problem, 1, solved.n_samples)
        limit = int(np.clip(_GAP_FLOPS / costs.by_coefficients, 1, 1000))
        state = conjugate_gradients(
            operator, white, self.alpha, right, tolerance=1e-9, limit=limit, enough=enough
        )
        return to_host(white.coefficients(state.v)) * unit
