"""The package against what an expert writes in numpy: the same answer, and the time to it."""

from __future__ import annotations

import timeit
from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from ..datasets import LayerDataset, random_linear_attention
from ..fitting.call import fit

_CHUNK = 1024
"""Sequences whose features numpy forms at a time."""
TOLERANCE = 1e-8
"""Largest relative error of an answer that is worth timing. A Gram of Gaussian tokens has a
condition number of about 1e4 here, so that plain numpy errs by about 1e-12."""


def planted(d: int, heads: int, sequences: int, length: int, seed: int = 0) -> LayerDataset:
    """Tokens (sequences, length, d) with targets (sequences, d) of a random layer."""
    return random_linear_attention(
        sequences, length, d, heads=heads, d_out=d, positions="last", seed=seed
    )


def numpy_coefficients(Z: Floats, y: Floats) -> Floats:
    """What an expert writes in numpy: symmetric features in chunks, their Gram, one solve."""
    d = Z.shape[2]
    j, k = np.triu_indices(d)
    p = len(j) * d
    gram, cross = np.zeros((p, p)), np.zeros((p, y.shape[1]))
    for start in range(0, len(Z), _CHUNK):
        z = Z[start : start + _CHUNK]
        S = z.transpose(0, 2, 1) @ z
        features = (S[:, j, k, None] * z[:, -1, None, :]).reshape(len(z), p)
        gram += features.T @ features
        cross += features.T @ y[start : start + _CHUNK]
    return np.asarray(np.linalg.solve(gram, cross).T)


def relative_error(found: Floats, truth: Floats) -> float:
    """Norm of the difference over the norm."""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


class Comparison(NamedTuple):
    """Seconds from tokens to coefficients, and how far each answer is from the planted one."""

    ours: float
    numpy: float
    our_error: float
    numpy_error: float

    @property
    def ratio(self) -> float:
        """How many times as long numpy takes."""
        return self.numpy / self.ours


def compare(data: LayerDataset, repeats: int, backend: str = "auto") -> Comparison:
    """Check both answers, then time both in turns and keep the shortest of each.

    A turn is two runs in a row: numpy's threads go on spinning for a while after their work, and
    would slow down the first run of the other.
    """

    def ours() -> Floats:
        # "auto" would notice that the targets are exact, and look at fewer of them than numpy does
        return fit(
            data.Z, data.y, heads=None, certify=False, solver="cholesky", backend=backend
        ).coefficients

    def theirs() -> Floats:
        return numpy_coefficients(data.Z, data.y)

    C = data.truth.coefficients()
    errors = [relative_error(answer(), C) for answer in (ours, theirs)]
    if max(errors) > TOLERANCE:
        raise ArithmeticError(
            f"the answers are not those of the planted layer: relative error {errors[0]:.1e}, "
            f"numpy's {errors[1]:.1e}"
        )
    turns = [
        [min(timeit.repeat(run, number=1, repeat=2)) for run in (ours, theirs)]
        for _ in range(repeats)
    ]
    best = [min(column) for column in zip(*turns, strict=True)]
    return Comparison(best[0], best[1], errors[0], errors[1])
