"""Runs of a program, looked at step by step: is the fit determined there, and is it right?

The program itself makes the run; the fit is asked at each of its steps. A run that is right in
every step is also what the fit makes of the context by itself, because at each step it has the same
tokens before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.types import Floats
from .determined import Determined
from .layer import Layer
from .running import kinds, rounded, run_many


@dataclass
class Tally:
    """Counts over runs; see :class:`~linattn_fast.certificate.program.ProgramCertificate`."""

    runs: int = 0
    covered_runs: int = 0
    right_runs: int = 0
    answers: int = 0
    covered_answers: int = 0
    right_answers: int = 0
    covered_but_wrong: int = 0
    residual: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        sums = {name: getattr(self, name) + getattr(other, name) for name in vars(self)}
        return Tally(**{**sums, "residual": max(self.residual, other.residual)})


def examine(
    program: Layer, learned: Layer, determined: Determined, Z: Floats, tokens: int
) -> Tally:
    """Look at runs of at most ``tokens`` from contexts (N, n, d)."""
    N, n, _ = Z.shape
    runs = run_many(program, Z, tokens)
    s = learned.sums(Z)
    strange = _strange(learned, runs)
    covered, right = np.ones(N, bool), np.ones(N, bool)
    tally = Tally(runs=N)
    for t in range(n, n + tokens):
        for z, rows in kinds(runs[:, t - 1]):
            if not z.any():
                continue
            action = learned.action(z)
            if t > n:
                s[np.ix_(rows, action.where)] += action.products
            asking = rows[runs[rows, t].any(axis=1)]  # the others end here
            if len(asking) == 0:
                continue
            residuals = determined.asked(z).residuals(s[asking])
            here = (residuals <= determined.tolerance) & ~strange[asking, t - 1]
            good = (rounded(action.many(s[asking])) == runs[asking, t]).all(axis=1)
            covered[asking] &= here
            right[asking] &= good
            tally += Tally(
                answers=len(asking),
                covered_answers=int(here.sum()),
                right_answers=int(good.sum()),
                covered_but_wrong=int((here & ~good).sum()),
                residual=float(residuals[here].max(initial=0.0)),
            )
    return tally + Tally(covered_runs=int(covered.sum()), right_runs=int(right.sum()))


def _strange(learned: Layer, runs: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether S of a prefix has a pair that the fit never saw, (N, n + tokens)."""
    N, length, d = runs.shape
    seen = np.zeros((d, d), bool)
    seen[learned.pairs[:, 0], learned.pairs[:, 1]] = True
    flat = runs.reshape(-1, d)
    unseen: dict[tuple[int, int], list[np.ndarray[tuple[int, ...], np.dtype[np.intp]]]] = {}
    for z, rows in kinds(flat):
        present = np.flatnonzero(z)
        for j in present:
            for k in present[present >= j]:
                if not seen[j, k]:
                    unseen.setdefault((int(j), int(k)), []).append(rows)
    strange = np.zeros((N, length), bool)
    for (low, high), parts in unseen.items():
        rows = np.concatenate(parts)
        products = np.zeros(len(flat))
        products[rows] = flat[rows, low] * flat[rows, high]
        strange |= np.cumsum(products.reshape(N, length), axis=1) != 0
    return strange
