"""Features that are nothing but cancellation, such as S_jk of orthonormal keys.

A feature h = S_jk z_l is computed from n tokens with an error of at most

    gamma |z_l| sum_t |z_tj z_tk| <= gamma |z_l| sqrt(S_jj S_kk)    gamma = (n + 4) 2^-53

so a feature whose mean square is up to (10 gamma)^2 m, with

    m[(j,k),l] = mean w S_jj S_kk z_l^2

may be rounding in every sample. Scaled to length one, like the others, it would be taken for
data, and a coefficient of 1e12 for an answer. Scaled by m it is where it belongs: far below
what counts as zero, while a later input that does have it has it in full size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..arrays.device import module_of, on_device
from ..arrays.types import Floats
from ..features import compact
from ..linalg.factors import EPS, MARGIN

if TYPE_CHECKING:
    from .moments import Moments


def rounding_of_feature(longest: int) -> float:
    """10 gamma: what counts as rounding in a feature, relative to its summands."""
    return MARGIN * (longest + 4) * EPS / 2


def sizes(diagonal: Floats, magnitudes: Floats, longest: int) -> Floats:
    """Mean squares to scale features by: their own, or m for those that may be rounding.

    Parameters
    ----------
    diagonal
        Diagonal of Lambda + alpha I, (p,); a ridge well above the rounding leaves nothing to do.
    magnitudes
        m, (p,).
    longest
        Tokens in the longest sequence.
    """
    cancelled = diagonal <= rounding_of_feature(longest) ** 2 * magnitudes
    chosen: Floats = module_of(diagonal).where(cancelled, magnitudes, diagonal)
    return chosen


def summand_sizes(moments: Moments) -> Floats:
    """Sum of w S_jj S_kk z_l^2 for each feature, (p,): an entry of the Gram, if all take part.

    With chosen features, which may lack that entry, the same sum accumulated on its own.
    """
    if moments.magnitudes is not None:
        return moments.magnitudes.reshape(-1)
    with on_device(moments.device):
        return compact.magnitudes(moments.sums.gram, moments.features, moments.positions)


def feature_sizes(moments: Moments, alpha: float = 0.0) -> Floats:
    """Mean squares by which the features of Lambda + alpha I are scaled, (p,)."""
    weight = moments.required_weight()
    with on_device(moments.device):
        diagonal = moments.gram_diagonal() / weight + alpha
        return sizes(diagonal, summand_sizes(moments) / weight, moments.accumulation.longest)
