"""Sums over samples, with all that belongs to them: what a backend returns, and moments add up.

Over the samples of a batch, or of several batches added in order:

    gram = sum w h h'    cross = sum w h y'    energy = sum w y^2    W = sum w
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ..arrays.device import device_of, frozen, on_device, put_all, to_host
from ..arrays.floats import gradual_underflow, keeps_subnormals
from ..arrays.types import Array, Floats
from ..data.tokens import finite_weight
from ..features.accumulation import Accumulation

ARRAYS = ("gram", "cross", "energy")
"""Names of the sums, in files too."""


@dataclass(frozen=True)
class Totals:
    """Sums over samples, their number and weight, and how the sums were rounded."""

    gram: Floats
    """The compact Gram (:mod:`linattn_fast.features.compact`)."""
    cross: Floats
    """(d_out, n_queries, n_pairs): sum w y_a z_l s_u."""
    energy: Floats
    """(d_out,): sum w y_a^2."""
    n_samples: int
    """Number of samples."""
    total_weight: float
    """W, the sum of their weights."""
    accumulation: Accumulation
    """How the Gram and the magnitudes were rounded."""
    magnitudes: Floats | None = None
    """(n_pairs, n_queries): sum w S_jj S_kk z_l^2, or for streams sum w A_jk^2 c_l^2 with A the sum
    of absolute values, with as many roundings as the Gram of chosen features; None where all
    features of tokens take part, whose Gram has it, and for states, which are not summed."""
    scalar_targets: bool = False
    """Whether all targets came without an axis of outputs."""

    def shared(self) -> Totals:
        """These sums, made read-only, since several moments may hold them."""
        for array in (self.gram, self.cross, self.energy):
            frozen(array)
        return self

    def placed(self, place: Callable[[Array], Array]) -> Totals:
        """Put each array of the sums where ``place`` puts it."""
        return replace(
            self,
            gram=place(self.gram),
            cross=place(self.cross),
            energy=place(self.energy),
            magnitudes=None if self.magnitudes is None else place(self.magnitudes),
        )

    def get(self) -> Totals:
        """Copy the sums to the host."""
        return self.placed(to_host)


def merged(parts: Sequence[Totals]) -> Totals:
    """Sums over the samples of all parts together, added in the order given."""
    if len(parts) == 1:
        return parts[0]
    try:
        with gradual_underflow(), np.errstate(over="raise"):
            return _merged(parts)
    except FloatingPointError:
        raise ValueError(
            "moments: what is added up overflows float64; rescale the data or the weights"
        ) from None


def _merged(parts: Sequence[Totals]) -> Totals:
    weight = finite_weight(reduce(float.__add__, (part.total_weight for part in parts)))
    how = reduce(Accumulation.merged, (part.accumulation for part in parts))
    if not keeps_subnormals():
        how = how._replace(underflow=True)
    sizes: list[Floats] = []
    if any(part.magnitudes is not None for part in parts):
        sizes = [_magnitudes(part) for part in parts]
    return Totals(
        gram=_added([part.gram for part in parts]),
        cross=_added([part.cross for part in parts]),
        energy=_added([part.energy for part in parts]),
        n_samples=sum(part.n_samples for part in parts),
        total_weight=weight,
        accumulation=how,
        magnitudes=_added(sizes) if sizes else None,
        scalar_targets=all(part.scalar_targets for part in parts),
    )


def _magnitudes(part: Totals) -> Floats:
    """Sizes of summands, (n_pairs, n_queries): of states, the Gram's diagonal where none are apart.

    Parts with and without magnitudes come together only for states, whose features are summands.
    """
    if part.magnitudes is not None:
        return part.magnitudes
    _, queries, pairs = part.cross.shape
    square = [np.cumsum([0, *range(n, 1, -1)]) for n in (pairs, queries)]  # of (u, u), of (l, l)
    found: Floats = part.gram[np.ix_(*square)]
    return found


def _added(arrays: Sequence[Array]) -> Array:
    """The sum ((a + b) + c) + ..., in one new array where a is."""
    first, second, *rest = put_all(list(arrays), like=arrays[0])
    with on_device(device_of(first)):
        total: Array = first + second
        for array in rest:
            total += array
    return total
