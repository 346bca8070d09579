"""Running a layer: append its rounded output as the next token, again and again.

The running s is kept, so a step costs the same whatever was before (:mod:`.layer`). A run ends when
nothing is found, that is with an output of zeros, which is not appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ...arrays.types import Floats
from .layer import Layer

_LARGEST = 2.0**40
"""An output larger than this is nonsense; it is cut, so that numbers stay finite."""


def rounded(y: Floats) -> Floats:
    """Whole numbers; a negative zero, which would look like another token, becomes zero."""
    return np.asarray(np.clip(np.rint(y), -_LARGEST, _LARGEST) + 0.0)


def run_one(
    layer: Layer, Z: Floats, tokens: int, until: Callable[[Floats], bool] | None = None
) -> Floats:
    """Append at most ``tokens`` to a sequence (n, d); stop after one for which ``until`` holds."""
    n = len(Z)
    run = np.empty((n + tokens, layer.d))
    run[:n] = Z
    s = layer.sums(Z[None])[0]
    action = layer.action(run[n - 1])
    for t in range(n, n + tokens):
        y = rounded(action.one(s))
        if not y.any():
            return run[:t].copy()
        run[t] = y
        if until is not None and until(y):
            return run[: t + 1].copy()
        action = layer.action(y)
        s[action.where] += action.products
    return run


def kinds(z: Floats) -> Iterator[tuple[Floats, npt.NDArray[np.intp]]]:
    """Each distinct token of (N, d), and the rows that have it; all zeros last, if any."""
    signs = np.random.default_rng(0).integers(1, 2**62, z.shape[1])
    codes = z.astype(np.int64) @ signs  # wraps around, as hashes do
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    if not np.array_equal(z[first][kind], z):  # two tokens with one code
        _, first, kind = np.unique(z, axis=0, return_index=True, return_inverse=True)
        kind = kind.ravel()
    order = np.argsort(kind, kind="stable")
    ends = np.cumsum(np.bincount(kind, minlength=len(first)))
    for number, start in enumerate(np.concatenate([[0], ends[:-1]])):
        yield z[first[number]], order[start : ends[number]]


def run_many(layer: Layer, Z: Floats, tokens: int) -> Floats:
    """Append ``tokens`` to every sequence (N, n, d): (N, n + tokens, d), zeros after an end."""
    N, n, d = Z.shape
    run = np.zeros((N, n + tokens, d))
    run[:, :n] = Z
    s = layer.sums(Z)
    for t in range(n, n + tokens):
        for z, rows in kinds(run[:, t - 1]):
            if not z.any():  # these have ended
                continue
            action = layer.action(z)
            if t > n:
                s[np.ix_(rows, action.where)] += action.products
            run[rows, t] = rounded(action.many(s[rows]))
    return run
