"""Where descents begin: random Theta of several sizes, and one head too many that is pruned.

A Gaussian Theta is drawn in coordinates in which queries have unit second moment and keys unit
covariance within their sequences, so a norm of 2 means logits of standard deviation 2 whatever the
tokens are; for random +-1 tokens these are the coordinates themselves. Directions that no logit
depends on, such as a coordinate that is the same in all tokens of a sequence, get none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import eigh

from ..arrays.types import Floats
from .examples import Examples
from .levenberg import Descent
from .reduced import Objective

NORMS = (2.0, 0.5, 4.0)
"""Of each head's Theta, in turn."""
SOLVED = 1e-8
"""Relative training error of a fit that is exact but for rounding, which grows with the logits."""
_TRIED_REMOVALS = 3


class Descend(Protocol):
    """A descent from Theta (m, d, d): Levenberg-Marquardt or L-BFGS."""

    def __call__(self, objective: Objective, Theta: Floats, *, iterations: int = ...) -> Descent:
        """Go down, in so many iterations at most."""
        ...


@dataclass(frozen=True)
class TokenSpace:
    """What logits x_b' Theta x_a can depend on: the queries' span, and the keys' within sequences.

    Roots are of the pseudo-inverses of sum x x' / M and sum (x - mean)(x - mean)' / (M - N).
    """

    query_root: Floats
    """(d, d)."""
    key_root: Floats
    """(d, d)."""
    queries: Floats
    """Projection (d, d) on the span of the queries."""
    keys: Floats
    """Projection (d, d) on the span of differences of tokens within a sequence."""

    @classmethod
    def of(cls, examples: Examples) -> TokenSpace:
        """Second moments of the tokens, taken apart."""
        x = examples.queries()
        centred = np.concatenate([group.keys.reshape(-1, examples.d) for group in examples.groups])
        freedom = max(1, len(x) - examples.n_sequences)
        query_root, queries = _inverse_root(x.T @ x / len(x))
        key_root, keys = _inverse_root(centred.T @ centred / freedom)
        return cls(query_root, key_root, queries, keys)

    def random(self, rng: np.random.Generator, heads: int, norm: float) -> Floats:
        """Gaussian Theta (heads, d, d) of a norm, in the coordinates of unit moments."""
        d = len(self.query_root)
        Theta = rng.standard_normal((heads, d, d))
        Theta *= norm / np.linalg.norm(Theta, axis=(1, 2), keepdims=True)
        return np.asarray(self.query_root @ Theta @ self.key_root)

    def seen(self, Theta: Floats) -> Floats:
        """The part of Theta that some logit depends on."""
        return np.asarray(self.queries @ Theta @ self.keys)


@dataclass(frozen=True)
class Coordinates:
    """Tokens R x of unit second moment, in which descents do not see how tokens are mixed.

    A layer (T, V) on R x is the layer (R' T R, R' V) on x.
    """

    R: Floats
    """(d, d), invertible: the identity on directions that no token has."""

    @classmethod
    def of(cls, examples: Examples) -> Coordinates:
        """For the tokens of these examples."""
        x = examples.queries()
        root, span = _inverse_root(x.T @ x / len(x))
        return cls(root + np.eye(len(span)) - span)

    def objective(self, examples: Examples, *, compiled: bool) -> Objective:
        """The reduced objective in these coordinates."""
        return Objective(examples.mixed(self.R), compiled=compiled)

    def into(self, Theta: Floats) -> Floats:
        """Theta for x as Theta for R x."""
        back = np.linalg.inv(self.R)
        return np.asarray(back.T @ Theta @ back)

    def out_of(self, Theta: Floats) -> Floats:
        """Theta for R x as Theta for x."""
        return np.asarray(self.R.T @ Theta @ self.R)


def _inverse_root(moment: Floats) -> tuple[Floats, Floats]:
    """The pseudo-inverse's root of a second moment (d, d), and the projection on its range."""
    eigenvalues, vectors = eigh(moment, check_finite=False)
    kept = eigenvalues > 1e-12 * max(eigenvalues[-1], 0.0)
    basis = vectors[:, kept]
    return (basis / np.sqrt(eigenvalues[kept])) @ basis.T, basis @ basis.T


def pruned(
    objective: Objective,
    Theta: Floats,
    heads: int,
    descend: Descend,
    *,
    tried: int = _TRIED_REMOVALS,
    iterations: int | None = None,
) -> Descent:
    """Take away heads, each time the one without which the others fit best, and go down again.

    Where that is not an exact fit, the next best are tried as well, ``tried`` of them in all.
    """
    best: Descent | None = None
    while best is None or len(Theta) > heads:
        without = [np.delete(Theta, i, axis=0) for i in range(len(Theta))]
        losses = [objective.at(each).loss for each in without]
        best = None
        for i in np.argsort(losses, kind="stable")[:tried]:
            limit = {} if iterations is None else {"iterations": iterations}
            found = descend(objective, without[i], **limit)
            if best is None or found.point.loss < best.point.loss:
                best = found
            if best.point.error <= SOLVED:
                break
        assert best is not None
        Theta = best.point.Theta
    return best
