"""Fewer samples than features: the same solution from the N x N kernel of the samples.

With h_i = s_i (x) z_i, weights w_i and W = sum w, the best coefficients are
C = sum_i sqrt(w_i) x_i h_i', where x (N, d_out) solves

    (K + alpha W I) x = sqrt(w) y,    K_ij = sqrt(w_i w_j) <s_i, s_j> <z_i, z_j>

which for alpha = 0 and the pseudo-inverse of K is the least-squares solution of least norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .features import samples_of
from .refine import Solution, refine
from .solve import Choice, factorise
from .tokens import Floats, Positions, Tokens, non_finite_error


@dataclass(frozen=True)
class Kernel:
    """Samples with their weights: s (N, q), z (N, d), root = sqrt(w) (N,)."""

    s: Floats
    z: Floats
    root: Floats

    @classmethod
    def of(cls, tokens: Tokens, weights: Floats | None, positions: Positions) -> Kernel:
        """Samples of a batch; weights are one a sequence."""
        s, z = samples_of(tokens, positions)
        w = np.ones(len(tokens)) if weights is None else weights
        root = np.sqrt(w if positions == "last" else np.repeat(w, tokens.lengths))
        return cls(s, z, root)

    def require_finite(self, tokens: Tokens) -> None:
        """Raise where tokens are not finite, or too large for the kernel."""
        diagonal = (self.s**2).sum(axis=1) * (self.z**2).sum(axis=1) * self.root**2
        if not (np.isfinite(diagonal).all() and np.isfinite(self.s).all()):
            raise non_finite_error(tokens)

    def matrix(self, ridge: float) -> Floats:
        """K + ridge I, (N, N)."""
        K = self.s @ self.s.T
        K *= self.z @ self.z.T
        K *= self.root
        K *= self.root[:, None]
        K[np.diag_indices(len(K))] += ridge
        return K

    def coefficients(self, x: Floats) -> Floats:
        """C (d_out, p) = sum_i root_i x_i h_i'."""
        weighted = self.root[:, None] * x  # (N, d_out)
        maps = [(self.s * column[:, None]).T @ self.z for column in weighted.T]  # (q, d) each
        return np.stack(maps).reshape(x.shape[1], -1)

    def outputs(self, coefficients: Floats) -> Floats:
        """C h_i for every sample, (N, d_out)."""
        q, d = self.s.shape[1], self.z.shape[1]
        maps = coefficients.reshape(-1, q, d)
        return np.stack([((self.s @ one) * self.z).sum(axis=1) for one in maps], axis=1)


def solve_dual(kernel: Kernel, y: Floats, alpha: float) -> tuple[Solution, Choice]:
    """Solve for targets y (N, d_out), and refine with residuals recomputed from the samples."""
    total = float((kernel.root**2).sum())
    ridge = alpha * total
    choice = factorise(lambda: kernel.matrix(ridge), scaled=False)
    root = kernel.root[:, None]

    def correction(x: Floats) -> Floats:
        residual = root * (y - kernel.outputs(kernel.coefficients(x))) - ridge * x
        return choice.factorisation.solve(residual)

    x, steps = refine(choice.factorisation.solve(root * y), correction)
    coefficients = kernel.coefficients(x)
    errors = kernel.root**2 * ((y - kernel.outputs(coefficients)) ** 2).sum(axis=1)
    return Solution(coefficients, steps, float(errors.sum()) / total), choice
