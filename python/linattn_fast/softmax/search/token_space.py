"""Random Theta of several sizes, drawn in the space of what the logits depend on.

A Gaussian Theta is drawn in coordinates in which queries have unit second moment and keys unit
covariance within their sequences, so a norm of 2 means logits of standard deviation 2 whatever the
tokens are; for random +-1 tokens these are the coordinates themselves. Directions that no logit
depends on, such as a coordinate that is the same in all tokens of a sequence, get none of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from ...arrays.types import Floats
from ..examples.groups import Examples

NORMS = (2.0, 0.5, 4.0)
"""Norms of each head's Theta that starts have in turn: standard deviations of its logits."""
_NO_SPREAD = 1e-12
"""Eigenvalue of a second moment, relative to the largest, of a direction that no token has."""


@dataclass(frozen=True, eq=False)
class TokenSpace:
    """What logits x_b' Theta x_a can depend on: the queries' span, and the keys' within sequences.

    The roots are square roots of the pseudo-inverses of sum x x' / M, for the queries, and
    sum (x - mean)(x - mean)' / (M - N), for the keys.
    """

    query_root: Floats
    """Root for the queries, (d, d)."""
    key_root: Floats
    """Root for the keys, (d, d)."""
    queries: Floats
    """Projection (d, d) on the span of the queries."""
    keys: Floats
    """Projection (d, d) on the span of differences of tokens within a sequence."""

    @classmethod
    def of(cls, examples: Examples) -> TokenSpace:
        """Take the second moments of the tokens apart."""
        x = examples.queries()
        centred = np.concatenate([group.keys.reshape(-1, examples.d) for group in examples.groups])
        freedom = max(1, len(x) - examples.n_sequences)
        query_root, queries = inverse_root(x.T @ x / len(x))
        key_root, keys = inverse_root(centred.T @ centred / freedom)
        return cls(query_root, key_root, queries, keys)

    def random(self, rng: np.random.Generator, heads: int, norm: float) -> Floats:
        """Gaussian Theta (heads, d, d), each of the norm given in coordinates of unit moments."""
        d = len(self.query_root)
        Theta = rng.standard_normal((heads, d, d))
        Theta *= norm / np.linalg.norm(Theta, axis=(1, 2), keepdims=True)
        return np.asarray(self.query_root @ Theta @ self.key_root)

    def seen(self, Theta: Floats) -> Floats:
        """The part of Theta that some logit depends on."""
        return np.asarray(self.queries @ Theta @ self.keys)


def inverse_root(moment: Floats) -> tuple[Floats, Floats]:
    """Root of the pseudo-inverse of a second moment (d, d), and the projection on its range."""
    eigenvalues, vectors = eigh(moment, check_finite=False)
    kept = eigenvalues > _NO_SPREAD * max(eigenvalues[-1], 0.0)
    basis = vectors[:, kept]
    return (basis / np.sqrt(eigenvalues[kept])) @ basis.T, basis @ basis.T
