"""Fewer samples than features: the same solution from the N x N kernel of the samples.

With h_i = s_i (x) z_i, weights w_i and W = sum w, the best coefficients are
C = sum_i sqrt(w_i) x_i h_i', where x (N, d_out) solves

    (K + alpha W I) x = sqrt(w) y,    K_ij = sqrt(w_i w_j) <s_i, s_j> <z_i, z_j>

which for alpha = 0 and the pseudo-inverse of K is the least-squares solution of least norm.

The kernel sees all features in the units that they have. What it cannot resolve, such as small
features beside large ones, or a ridge far below what rounding leaves of a singular K, shows in the
residual of the coefficients themselves; the features are then reduced as they are
(:mod:`linattn_fast.linalg.orthogonal`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays.device import module_of, put
from ..arrays.types import Floats
from ..backend.interface import Backend
from ..data.non_finite import may_underflow, non_finite_error
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from ..linalg.algebra import algebra_of
from ..linalg.cholesky import CholeskyFactor, add_to_diagonal, power_of_two_scale, try_cholesky
from ..linalg.factors import EPS, MARGIN, NotSafe
from ..linalg.orthogonal import solve_rows, solve_triangle
from ..linalg.spectral import SpectralFactor
from ..moments.sums import sizes
from ..system.machine import require_memory
from .accuracy import Solution, bound, confirmed, norm, refine, rounding_of_data, squares_underflow
from .cholesky import accumulated
from .costs import dual_bytes, what_needs
from .solved import Solved, Task


@dataclass(frozen=True)
class Kernel:
    """Samples with their weights: s (N, q), z (N, d), root = sqrt(w) (N,)."""

    s: Floats
    z: Floats
    root: Floats

    @classmethod
    def of(cls, samples: Samples) -> Kernel:
        """The kernel of a batch; raises where tokens are not finite, or too large for it."""
        with np.errstate(over="ignore", invalid="ignore"):
            s, z = samples.rows()
            kernel = cls(s, z, put(np.sqrt(samples.weight_of_each()), like=s))
            kernel.require_finite(samples.tokens)
        return kernel

    def require_finite(self, tokens: Tokens) -> None:
        """Raise where tokens are not finite, or too large for the kernel."""
        diagonal = (self.s**2).sum(axis=1) * (self.z**2).sum(axis=1) * self.root**2
        xp = module_of(diagonal)
        if not (xp.isfinite(diagonal).all() and xp.isfinite(self.s).all()):
            raise non_finite_error(tokens)

    def in_units(self) -> tuple[Kernel, int, int]:
        """Scale the parts by powers of two to sizes near one: no product over- or underflows.

        They are returned with the exponents k of sqrt(w) h and j of sqrt(w).
        """
        exponents, parts = [], []
        for array in (self.s, self.z, self.root):
            largest = float(module_of(array).abs(array).max())
            exponents.append(-int(np.frexp(largest)[1]))
            parts.append(module_of(array).ldexp(array, exponents[-1]))
        return Kernel(*parts), sum(exponents), exponents[-1]

    def matrix(self, ridge: float) -> Floats:
        """The matrix K + ridge I, (N, N)."""
        multiply_transposed = algebra_of(self.s).multiply_transposed
        K: Floats = multiply_transposed(self.s, self.s)
        K *= multiply_transposed(self.z, self.z)
        K *= self.root
        K *= self.root[:, None]
        add_to_diagonal(K, ridge)
        return K

    def coefficients(self, x: Floats) -> Floats:
        """The coefficients C = sum_i root_i x_i h_i', (d_out, p)."""
        weighted = self.root[:, None] * x  # (N, d_out)
        stacked: Floats = module_of(self.s).stack([self.times(column) for column in weighted.T])
        return stacked

    def times(self, column: Floats) -> Floats:
        """The sum of x_i h_i over the samples, (p,), for numbers x (N,)."""
        sums: Floats = (self.s * column[:, None]).T @ self.z  # (q, d)
        return sums.reshape(-1)

    def outputs(self, coefficients: Floats) -> Floats:
        """Outputs C h_i of every sample, (N, d_out)."""
        q, d = self.s.shape[1], self.z.shape[1]
        maps = coefficients.reshape(-1, q, d)
        rows = [((self.s @ one) * self.z).sum(axis=1) for one in maps]
        outputs: Floats = module_of(self.s).stack(rows, axis=1)
        return outputs

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples, and of features."""
        return len(self.s), self.s.shape[1] * self.z.shape[1]

    def squares(self) -> Floats:
        """The sum of w_i h_i^2 over the samples, (p,)."""
        weighted = (self.root[:, None] * self.s) ** 2  # (N, q)
        return (weighted.T @ self.z**2).reshape(-1)

    def features(self) -> Floats:
        """The features sqrt(w_i) h_i of every sample, (N, p)."""
        weighted = self.root[:, None] * self.s
        return (weighted[:, :, None] * self.z[:, None, :]).reshape(len(self.s), -1)


@dataclass(frozen=True)
class Summands:
    """Sizes of what features are summed from, S_jj S_kk z_l^2 for S_jk z_l: rounding goes by them.

    A feature errs by a few eps times the root of this, however small the feature itself is.
    """

    of_features: Floats
    """Sum of w S_jj S_kk z_l^2 over the samples, (p,)."""
    of_samples: Floats
    """Sum of w S_jj S_kk z_l^2 over the features, (N,)."""
    longest: int
    """Number of tokens in the longest sequence, each of which adds a rounding."""

    @classmethod
    def of(cls, samples: Samples, engine: Backend) -> Summands:
        """The sizes of a batch; infinite where they overflow."""
        features = samples.features
        if not features.sums_cancel:
            return cls._of_features(samples)
        squares = Features(features.d, np.repeat(np.arange(features.d), 2).reshape(-1, 2))
        with np.errstate(over="ignore", invalid="ignore"):
            diagonal, z = samples.with_features(squares).rows()  # S_jj (N, d), z (N, d)
            place = module_of(z).asarray
            j, k, l = (place(index) for index in (*features.pairs.T, features.queries))
            of_samples = (diagonal[:, j] * diagonal[:, k]).sum(axis=1)
            of_samples *= (z[:, l] ** 2).sum(axis=1)
            of_samples *= put(samples.weight_of_each(), like=z)
            of_features = engine.summand_sizes(samples).reshape(-1)
        return cls(of_features, of_samples, samples.longest)

    @classmethod
    def _of_features(cls, samples: Samples) -> Summands:
        """The squares of the features, where these are summands themselves."""
        with np.errstate(over="ignore", invalid="ignore"):
            tokens = samples.tokens
            sums = tokens.sizes() if isinstance(tokens, StreamStates) else tokens
            s, z = replace(samples, tokens=sums).rows()
            w = put(samples.weight_of_each(), like=z)
            of_features = ((s**2).T @ (z**2 * w[:, None])).reshape(-1)
            of_samples = (s**2).sum(axis=1) * (z**2).sum(axis=1) * w
        return cls(of_features, of_samples, samples.longest)

    def in_units(self, k: int, like: Floats) -> Summands:
        """The sizes for features 2^k h, where another array is."""
        with np.errstate(over="ignore"):
            ldexp = module_of(like).ldexp
            scaled = [
                ldexp(put(each, like=like), 2 * k) for each in (self.of_features, self.of_samples)
            ]
        return Summands(scaled[0], scaled[1], self.longest)


@dataclass(frozen=True)
class DualSolution:
    """A solution, and how it was found."""

    solution: Solution
    condition: float
    reason: str
    rank: int
    """Numerical rank of the features."""
    error: float | None
    """Bound on the relative error of the coefficients if that is the exact rank; None where it is
    not known."""


def solve_if_few(task: Task) -> Solved | NotSafe:
    """Solve a stream whose moments show that it has fewer samples than features."""
    moments = accumulated(task)
    return solve(task) if moments.n_samples < moments.dimension else NotSafe("")


def solve(task: Task) -> Solved:
    """Solve from the kernel of all samples, which are gathered in memory."""
    problem = task.problem
    gathered = problem.gathered(task.memory_limit, dual_bytes(problem))
    task.problem = gathered  # what follows must not read a stream again
    n, needed = gathered.n_samples, dual_bytes(gathered)
    require_memory(needed, what_needs(problem.features, "dual"), task.memory_limit)
    if problem.engine.on_device:
        gathered = gathered.on_current_device()
    samples = gathered.samples
    assert samples.targets is not None
    with task.stages.timed("kernel"):
        kernel = Kernel.of(samples)
    y = samples.targets.rows().astype(np.float64)
    with task.stages.timed("solve"):
        found = solve_dual(kernel, y, task.alpha, Summands.of(samples, gathered.engine))
    root = kernel.root[:, None] / kernel.root.max()
    error = None
    if not (may_underflow(samples.tokens).any() or squares_underflow(samples.targets)):
        error, known = found.error, gathered.modular
        full = min(int((samples.weight_of_each() > 0).sum()), samples.features.count)
        if found.rank < full:
            error = None if known is None else confirmed(error, found.rank, known)
    loaded = "" if problem.samples is not None else "all samples of the stream loaded into memory; "
    unknown = "; the error of the coefficients is unknown" if error is None else ""
    return Solved(
        "dual",
        gathered,
        found.solution,
        f"{loaded}{found.reason}{unknown}",
        condition=found.condition,
        mean_squared_target=float(((root * y) ** 2).sum() / (root**2).sum()),
        n_samples=n,
        coefficient_error=error,
        bytes=needed,
    )


def solve_dual(kernel: Kernel, y: Floats, alpha: float, given: Summands) -> DualSolution:
    """Solve for targets y (N, d_out), and refine with residuals recomputed from the samples."""
    # Features 2^k h sqrt(w), largest near one; y takes its weights 2^j w on its own
    unit, k, j = kernel.in_units()
    with np.errstate(over="ignore"):
        ridge = float(np.ldexp(alpha * float((unit.root**2).sum()), 2 * (k - j)))
    if not np.isfinite(ridge):
        raise ValueError(
            f"alpha: {alpha:.3g} is beyond float64 in the units of these features; rescale Z"
        )
    targets = unit.root[:, None] * y
    summands = given.in_units(k, like=y)
    factor = try_cholesky(unit.matrix(ridge), kernel.s.shape[1])
    if not isinstance(factor, NotSafe):
        found = _by_kernel(unit, targets, ridge, factor)
        if found is not None:
            x, C, steps = found
            error = _error_by_kernel(unit, targets, ridge, x, C, factor, summands)
            C = _back(C, k - j)
            solution = Solution(C, steps, _mean_squared_error(kernel, C, y))
            how = "Cholesky factorisation of the kernel"
            return DualSolution(solution, factor.condition, how, len(y), error)
        why = "the kernel leaves more than rounding of the residuals"
    else:
        why = factor.reason.replace("Gram", "kernel")
    own = sizes(unit.squares(), summands.of_features, summands.longest)
    C, spectral = _by_features(unit, targets, ridge, own)

    def correction(C: Floats) -> Floats:
        left = unit.root[:, None] * (targets - unit.root[:, None] * unit.outputs(C))
        gradient = module_of(C).stack([unit.times(column) for column in left.T])
        return spectral.solve((gradient - ridge * C).T).T

    C, steps = refine(C, correction)
    left = targets - unit.root[:, None] * unit.outputs(C)
    error = None
    if not spectral.uncertain:
        error = bound(
            C,
            spectral.scale,
            condition=spectral.condition,
            rounding=rounding_of_data(*unit.shape, summands.longest),
            target=norm(targets),
            residual=float(np.hypot(norm(left), np.sqrt(ridge) * norm(C))),
            full_rank=spectral.rank == unit.shape[1],
            ridge=ridge,
            squares=unit.squares(),
            summands=summands.of_features,
        )
    C = _back(C, k - j)
    solution = Solution(C, steps, _mean_squared_error(kernel, C, y))
    why = f"{why}, so the features were decomposed"
    if spectral.uncertain:
        why += "; rank uncertain: a singular value is close to what counts as zero"
    return DualSolution(solution, spectral.condition, why, spectral.rank, error)


def _error_by_kernel(
    kernel: Kernel,
    targets: Floats,
    ridge: float,
    x: Floats,
    C: Floats,
    factor: CholeskyFactor,
    summands: Summands,
) -> float | None:
    """Bound on the relative error of C = H'x, x = (K + ridge I)^-1 y, to first order.

    Let row i of the features H err by E_i, of length at most u g_i with g_i the root of its
    summands, and let sigma be the root of the smallest eigenvalue of K + ridge I. Then

        delta C = (I - H'(K + ridge I)^-1 H) E'x - H'(K + ridge I)^-1 E C

    whose first term is at most u sum_i g_i |x_i|, and whose second is at most u |g| |C| / sigma.
    Without a ridge, |x| <= |C| / sigma, and one term tells both. With one, a sample that is nothing
    but rounding has x_i = y_i / ridge although it adds next to nothing to C: the first term sees
    it. Residuals within rounding, u (|y| + sum_j |C_j| g_j), add that over sigma.
    """
    xp = module_of(C)
    u = MARGIN * rounding_of_data(*kernel.shape, summands.longest)
    size = norm(C)
    if size == 0:
        return 0.0 if norm(targets) == 0 else None
    lengths = xp.sqrt(xp.maximum(summands.of_features, kernel.squares()))
    own = norm(xp.abs(C) @ lengths)
    with np.errstate(all="ignore"):  # what is not a number is not below one
        # At most sigma
        least = np.sqrt(factor.norm * factor.smallest) / float(factor.scale.max())
        largest = max(np.sqrt(factor.norm) / float(factor.scale.min()), norm(lengths))
        error = u * ((norm(targets) + own) / (least * size) + largest / least)
        if ridge > 0:
            error += u * norm(xp.sqrt(summands.of_samples) @ xp.abs(x)) / size
    return float(error) if error < 1 else None


def _back(C: Floats, k: int) -> Floats:
    """Coefficients of h from those of 2^k h; infinite where float64 has no such number."""
    with np.errstate(over="ignore"):
        x: Floats = module_of(C).ldexp(C, k)
    return x


def _by_kernel(
    kernel: Kernel, targets: Floats, ridge: float, factor: CholeskyFactor
) -> tuple[Floats, Floats, tuple[float, ...]] | None:
    """x, C = H'x and the corrections taken; None where more than rounding is left of residuals.

    With rho = sqrt(w) (y - C h) - ridge x, the objective of C is above the least one by at most
    |rho|^2, and rounding of features each in its own units is eps (|y| + sum |C_j| |h_j|).
    """
    root = kernel.root[:, None]

    def residual(x: Floats) -> Floats:
        return targets - root * kernel.outputs(kernel.coefficients(x)) - ridge * x

    x, steps = refine(factor.solve(targets), lambda x: factor.solve(residual(x)))
    C = kernel.coefficients(x)
    xp = module_of(C)
    own = xp.abs(C) @ xp.sqrt(kernel.squares())  # (d_out,)
    level = MARGIN * max(kernel.s.shape[0], C.shape[1]) * EPS
    allowed = level * (xp.linalg.norm(targets, axis=0) + own)
    left = xp.linalg.norm(residual(x), axis=0)
    return (x, C, steps) if bool((left <= allowed).all()) else None


def _by_features(
    kernel: Kernel, targets: Floats, ridge: float, sizes: Floats
) -> tuple[Floats, SpectralFactor]:
    """C (d_out, p) of least norm from the features themselves, and their decomposition."""
    H = kernel.features()
    n, p = H.shape
    if n >= p:
        rows = module_of(H).concatenate([H, targets], axis=1)
        return solve_rows([rows], n, ridge, sizes, targets.shape[1])
    scale = power_of_two_scale(sizes)
    return solve_triangle(H * scale, targets, n, ridge, scale)


def _mean_squared_error(kernel: Kernel, coefficients: Floats, y: Floats) -> float:
    """The mean squared error (1/W) sum w |y - C h|^2, in units in which no weight is lost."""
    root = kernel.root / kernel.root.max()
    with np.errstate(over="ignore", invalid="ignore"):
        errors = ((root[:, None] * (y - kernel.outputs(coefficients))) ** 2).sum()
    return float(errors / (root**2).sum())
