"""Fewer samples than features: the same solution from the N x N kernel of the samples.

With h_i = s_i (x) z_i, weights w_i and W = sum w, the best coefficients are
C = sum_i sqrt(w_i) x_i h_i', where x (N, d_out) solves

    (K + alpha W I) x = sqrt(w) y,    K_ij = sqrt(w_i w_j) <s_i, s_j> <z_i, z_j>

which for alpha = 0 and the pseudo-inverse of K is the least-squares solution of least norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .device import module_of, put
from .features import Features
from .non_finite import non_finite_error
from .refine import Solution, refine
from .solve import EPS, MARGIN, add_to_diagonal, algebra_of, try_cholesky
from .tokens import Floats, Positions, Tokens


@dataclass(frozen=True)
class Kernel:
    """Samples with their weights: s (N, q), z (N, d), root = sqrt(w) (N,)."""

    s: Floats
    z: Floats
    root: Floats

    @classmethod
    def of(
        cls, tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
    ) -> Kernel:
        """Samples of a batch; weights are one a sequence."""
        s, z = features.samples(tokens, positions)
        w = np.ones(len(tokens)) if weights is None else weights
        root = np.sqrt(w if positions == "last" else np.repeat(w, tokens.lengths))
        return cls(s, z, put(root, like=s))

    def require_finite(self, tokens: Tokens) -> None:
        """Raise where tokens are not finite, or too large for the kernel."""
        diagonal = (self.s**2).sum(axis=1) * (self.z**2).sum(axis=1) * self.root**2
        xp = module_of(diagonal)
        if not (xp.isfinite(diagonal).all() and xp.isfinite(self.s).all()):
            raise non_finite_error(tokens)

    def matrix(self, ridge: float) -> Floats:
        """K + ridge I, (N, N)."""
        multiply_transposed = algebra_of(self.s).multiply_transposed
        K: Floats = multiply_transposed(self.s, self.s)
        K *= multiply_transposed(self.z, self.z)
        K *= self.root
        K *= self.root[:, None]
        add_to_diagonal(K, ridge)
        return K

    def coefficients(self, x: Floats) -> Floats:
        """C (d_out, p) = sum_i root_i x_i h_i'."""
        weighted = self.root[:, None] * x  # (N, d_out)
        maps = [(self.s * column[:, None]).T @ self.z for column in weighted.T]  # (q, d) each
        stacked: Floats = module_of(self.s).stack(maps)
        return stacked.reshape(x.shape[1], -1)

    def outputs(self, coefficients: Floats) -> Floats:
        """C h_i for every sample, (N, d_out)."""
        q, d = self.s.shape[1], self.z.shape[1]
        maps = coefficients.reshape(-1, q, d)
        rows = [((self.s @ one) * self.z).sum(axis=1) for one in maps]
        outputs: Floats = module_of(self.s).stack(rows, axis=1)
        return outputs

    def features(self) -> Floats:
        """sqrt(w_i) h_i, (N, p)."""
        weighted = self.root[:, None] * self.s
        return (weighted[:, :, None] * self.z[:, None, :]).reshape(len(self.s), -1)


@dataclass(frozen=True)
class DualSolution:
    """A solution, and how it was found."""

    solution: Solution
    condition: float
    reason: str


def solve_dual(kernel: Kernel, y: Floats, alpha: float) -> DualSolution:
    """Solve for targets y (N, d_out), and refine with residuals recomputed from the samples.

    A kernel too ill-conditioned for Cholesky has lost small singular values of the features, so
    then the features themselves, at most as large as the Gram would be, are decomposed.
    """
    total = float((kernel.root**2).sum())
    ridge = alpha * total
    factor = try_cholesky(kernel.matrix(ridge), kernel.s.shape[1])
    if isinstance(factor, str):
        C, condition = _by_svd(kernel.features(), kernel.root[:, None] * y, ridge)
        solution = Solution(C, (), _mean_squared_error(kernel, C, y))
        why = factor.replace("Gram", "kernel")
        return DualSolution(solution, condition, f"{why}, so the features were decomposed")
    root = kernel.root[:, None]

    def correction(x: Floats) -> Floats:
        residual = root * (y - kernel.outputs(kernel.coefficients(x))) - ridge * x
        return factor.solve(residual)

    x, steps = refine(factor.solve(root * y), correction)
    C = kernel.coefficients(x)
    solution = Solution(C, steps, _mean_squared_error(kernel, C, y))
    return DualSolution(solution, factor.condition, "Cholesky factorisation of the kernel")


def _mean_squared_error(kernel: Kernel, coefficients: Floats, y: Floats) -> float:
    weights = kernel.root**2
    errors = ((y - kernel.outputs(coefficients)) ** 2).sum(axis=1)
    return float(weights @ errors / weights.sum())


def _by_svd(features: Floats, y: Floats, ridge: float) -> tuple[Floats, float]:
    """Ridge or least-norm solution from H = U diag(sigma) V', and the condition number squared.

    Singular values up to 10 max(N, p) eps sigma_max count as zero.
    """
    U, sigma, Vt = algebra_of(features).svd(features)
    kept = sigma > MARGIN * max(features.shape) * EPS * sigma[0]
    if not kept.any():
        return module_of(features).zeros((y.shape[1], features.shape[1])), float("inf")
    U, sigma, Vt = U[:, kept], sigma[kept], Vt[kept]
    filtered = (sigma / (sigma**2 + ridge))[:, None] * (U.T @ y)
    condition = (sigma[0] ** 2 + ridge) / (sigma[-1] ** 2 + ridge)
    return (Vt.T @ filtered).T, float(condition)
