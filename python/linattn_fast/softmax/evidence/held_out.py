"""Errors on sequences that were held out, and what they say about all sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, chdtri, stdtrit

from ...arrays.types import Floats
from ..examples.groups import Examples
from ..layer.attention import outputs

_CONFIDENCE = 0.95
"""Probability with which the bounds hold."""


@dataclass(frozen=True)
class HeldOut:
    """How the layer does on sequences that were used for nothing else."""

    error: float
    """Relative error ||F(X) - Y|| / ||Y|| over all of them, with their weights."""
    sequences: int
    """Number of these sequences."""
    violations: int
    """Number of sequences with an error above the tolerance, relative to the root mean square
    sequence."""
    error_bound: float | None = None
    """Upper bound on the error over all sequences, with 95 % confidence, if errors have no longer
    tails than Gaussian ones; infinite for a single sequence, None in files of older releases."""

    @property
    def violation_bound(self) -> float:
        """Upper bound on the share of sequences above the tolerance, with 95 % confidence.

        Without a violation among n sequences it is 3 / n, otherwise the bound of Clopper and
        Pearson.
        """
        n, v = self.sequences, self.violations
        if v == n:
            return 1.0
        return min(1.0, 3 / n) if v == 0 else float(betaincinv(v + 1, n - v, _CONFIDENCE))

    @classmethod
    def of(
        cls, errors: Floats, targets: Floats, tolerance: float, weights: Floats | None = None
    ) -> HeldOut:
        """Errors from squared errors, squared targets and weights of the sequences, (n,) each."""
        weights = np.ones(len(errors)) if weights is None else weights
        total = float(weights @ targets)
        size = total / float(weights.sum()) if total > 0 else 1.0
        violations = int((errors > tolerance**2 * size).sum())
        error = float(np.sqrt(weights @ errors / (total or 1.0)))
        return cls(error, len(errors), violations, _upper_bound(weights * errors, total))


def _upper_bound(errors: Floats, total: float) -> float:
    """Bound on the relative error, from the squared errors of sequences (n,) and sum ||y||^2.

    It is the larger of two bounds on their mean: Student's, mean + t sd / sqrt(n), which sees
    sequences of different size, and n mean / chi2, with chi2 the 5 % quantile of n degrees of
    freedom, which is right for squares of Gaussian numbers; these have too long a tail for
    Student's t alone.
    """
    n = len(errors)
    if n == 1:
        return float("inf")
    mean = errors.mean()
    student = mean + stdtrit(n - 1, _CONFIDENCE) * np.std(errors, ddof=1) / np.sqrt(n)
    gaussian = n * mean / chdtri(n, _CONFIDENCE)
    return float(np.sqrt(max(student, gaussian) * n / (total or 1.0)))


def held_out_error(examples: Examples, Theta: Floats, W: Floats, tolerance: float) -> HeldOut:
    """Errors of the layer (Theta, W) on examples, taken sequence by sequence."""
    errors, energies, weights = [], [], []
    for group in examples.groups:
        assert group.y is not None
        off = outputs(group.x, Theta, W).reshape(group.y.shape) - group.y
        errors.append(np.sum(off**2, axis=(1, 2)))
        energies.append(np.sum(group.y**2, axis=(1, 2)))
        weights.append(np.ones(len(off)) if group.weights is None else group.weights)
    return HeldOut.of(
        np.concatenate(errors), np.concatenate(energies), tolerance, np.concatenate(weights)
    )
