"""Layers that no data of this kind determines, recognised and named.

Softmax does not see what all tokens of a sequence have in common: Theta_i + u v' has the same
attention for every u where v'x_a is the same for all tokens a of a sequence. That is so for a
constant coordinate (v = e_j), for one-hot tokens (v = 1), and for every v where k = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...arrays.types import Floats
from ..descent.objective import Point
from ..examples.groups import Examples
from ..search.token_space import TokenSpace
from .identifiability import Identifiability

_SAME = 1e-8
"""Difference of tokens, relative to their size, up to which it is a rounding error."""
_ALIKE = 1e-6
"""Difference of what two heads read, relative to its size, up to which they attend alike."""
_NO_VARIANCE = 1e-10
"""Variance of the tokens that a query reads, relative to that of all, up to which it says nothing
about Theta."""
_FEW_MIXED = 0.01
"""Share of queries that read a mixture of tokens, below which a head is saturated."""


@dataclass(frozen=True)
class Case:
    """A known reason why the data does not determine the layer."""

    name: str
    """Name of the case: "k = 1", "constant coordinate", "one-hot tokens", "dependent coordinates",
    "equal Thetas", "saturated heads" or "too few equations"."""
    explanation: str
    """The reason, in a sentence."""

    def __str__(self) -> str:
        return f"{self.name}: {self.explanation}"


def named_cases(point: Point, known: Identifiability, *, fewer_fits: bool) -> tuple[Case, ...]:
    """All known cases that apply at a solution; ``fewer_fits``: one head fewer does as well."""
    examples = point.objective.examples
    found = _token_cases(examples)
    if examples.longest > 1:
        found += _equal_heads(point, fewer_fits=fewer_fits)
        # H may be zero in some direction of a head for one of the reasons above
        found += _saturated_heads(point, np.isinf(known.theta_errors) & (not found))
    unknowns, equations = known.unknowns, known.equations
    if equations < unknowns:
        text = f"{equations} equations for {unknowns} unknowns"
        found.append(Case("too few equations", text))
    return tuple(found)


def _token_cases(examples: Examples) -> list[Case]:
    """Cases that the tokens alone show."""
    d, queries = examples.d, examples.queries()
    if examples.longest == 1:
        return [Case("k = 1", "softmax of a single logit is 1, so Theta has no effect")]
    found = []
    sizes = np.abs(queries).max(axis=0)
    spread = np.max([np.abs(group.keys).max(axis=(0, 1)) for group in examples.groups], axis=0)
    constant = np.flatnonzero(spread <= _SAME * sizes)
    if constant.size:
        names = ", ".join(str(int(j)) for j in constant)
        s = "s" if constant.size > 1 else ""
        text = (
            f"coordinate{s} {names} {'are' if s else 'is'} the same for all tokens of a sequence, "
            f"so column{s} {names} of every Theta_i {'have' if s else 'has'} no effect"
        )
        found.append(Case("constant coordinate", text))
    if _is_one_hot(queries, sizes):
        text = (
            "coordinates add up to a constant, so a number added to a row of Theta_i has no effect"
        )
        found.append(Case("one-hot tokens", text))
    space = TokenSpace.of(examples)
    rank = round(float(np.trace(space.keys)))
    if not found and rank < d:
        text = f"tokens of a sequence differ in {rank} of {d} directions only"
        found.append(Case("dependent coordinates", text))
    elif round(float(np.trace(space.queries))) < d:
        text = f"tokens span {round(float(np.trace(space.queries)))} of {d} directions"
        found.append(Case("dependent coordinates", text))
    return found


def _is_one_hot(queries: Floats, sizes: Floats) -> bool:
    """Whether tokens have one coordinate other than zero, always of that coordinate's size.

    Tokens have unit size coordinate by coordinate here, so sizes differ between coordinates.
    """
    hot = queries != 0
    return bool((hot.sum(axis=1) == 1).all() and (np.where(hot, queries, sizes) == sizes).all())


def _equal_heads(point: Point, *, fewer_fits: bool) -> list[Case]:
    """The case of heads that attend alike, or could; nothing where there are none."""
    m, d = point.Theta.shape[:2]
    reads = point.B.reshape(-1, m, d)
    size = float(np.linalg.norm(reads)) / np.sqrt(m)
    equal = [
        (i, j)
        for i in range(m)
        for j in range(i + 1, m)
        if np.linalg.norm(reads[:, i] - reads[:, j]) <= _ALIKE * size
    ]
    if equal:
        pairs = ", ".join(f"{i} and {j}" for i, j in equal)
        text = f"heads {pairs} attend alike, so only the sum of their W is determined"
        return [Case("equal Thetas", text)]
    if fewer_fits and m > 1:
        text = (
            f"{m - 1} head{'s fit' if m > 2 else ' fits'} as well, so a head can be split into "
            "several with equal Theta, or be there with W = 0"
        )
        return [Case("equal Thetas", text)]
    return []


def _saturated_heads(point: Point, free: npt.NDArray[np.bool_]) -> list[Case]:
    """The case of heads that attend to single tokens; H leaves entries ``free`` (m, d, d) open."""
    saturated = [
        i for i in range(len(point.Theta)) if _is_saturated(point, i, undetermined=free[i].any())
    ]
    if not saturated:
        return []
    names = ", ".join(map(str, saturated))
    text = (
        f"head {names} attends to one token in so many queries that the others do not determine "
        "Theta, which is known up to its scale at best"
    )
    return [Case("saturated heads", text)]


def _is_saturated(point: Point, head: int, *, undetermined: bool) -> bool:
    """Whether so few queries read a mixture that they do not determine the head's Theta.

    That is so where there are almost none of them, and where they are fewer than half and H is zero
    in some direction of the head (``undetermined``).
    """
    mixed, possible = _mixed_queries(point, head)
    return mixed < _FEW_MIXED * possible or (undetermined and mixed < possible / 2)


def _mixed_queries(point: Point, head: int) -> tuple[int, int]:
    """Number of queries that read a mixture of tokens, and of those that could.

    The tokens that query b reads have variance tr Cov_b; where that is zero, so is the derivative
    by Theta.
    """
    mixed, possible = 0, 0
    for P, group in zip(point.P, point.objective.examples.groups, strict=True):
        keys = group.keys
        squares = np.sum(keys**2, axis=2)  # (n, a)
        read = np.matmul(P[head], keys)
        variance = np.matmul(P[head], squares[:, :, None])[..., 0] - np.sum(read**2, axis=2)
        mixed += int((variance > _NO_VARIANCE * squares.mean()).sum())
        differing = squares.max(axis=1) > 0  # all tokens equal is no sign of saturation
        possible += int(differing.sum()) * group.x.shape[1]
    return mixed, possible
