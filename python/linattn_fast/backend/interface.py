"""The backends: one interface, several implementations, the best available one first.

A backend turns checked tokens into moments and applies layers to them. ``numpy`` is the
specification; every other one is tested against it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

from ..arrays.device import module_of
from ..arrays.types import Floats, Positions
from ..data.non_finite import largest_size, non_finite_error
from ..data.tokens import Tokens
from ..features.features import Features
from ..system.progress import Progress
from .normal_operator import NormalOperator

Precision: TypeAlias = Literal["float64", "mixed"]
PRECISIONS: tuple[Precision, ...] = ("float64", "mixed")
"""Of the products inside a block of samples; "mixed" has float32 products and float64 totals."""


def as_precision(precision: object) -> Precision:
    """Check the name of a precision."""
    for known in PRECISIONS:
        if isinstance(precision, str) and precision == known:
            return known
    raise ValueError(f"precision: must be one of {', '.join(PRECISIONS)}, got {precision!r}")


class Roundings(NamedTuple):
    """Roundings that a summand of the Gram goes through after S and z are at hand, at most.

    Its products are counted, and the additions that it passes.
    """

    wide: int
    """In float64."""
    narrow: int
    """In float32: 0 but in mixed precision."""


class BatchMoments(NamedTuple):
    """Sums over a batch of samples with weights w, see :mod:`linattn_fast.moments.moments`."""

    gram: Floats
    """The compact Gram (:mod:`linattn_fast.features.compact`); empty when it was not wanted."""
    cross: Floats
    """(d_out, n_queries, n_pairs): sum w y_a z_l s_u."""
    energy: Floats
    """(d_out,): sum w y_a^2."""


class Backend(Protocol):
    """What a backend computes. Arguments are checked; results that are not finite raise."""

    name: str
    underflow: bool
    """Whether, in the last call of ``moments``, something was rounded below the smallest normal
    number, where errors are no longer relative; true where that cannot be excluded. It is about
    the Gram and ``magnitudes``."""
    magnitudes: Floats | None
    """Sum w S_jj S_kk z_l^2, (n_pairs, n_queries), of the last call of ``moments`` with a Gram of
    chosen features, formed with as many roundings; None with all features, whose Gram has it."""

    def moments(
        self,
        tokens: Tokens,
        targets: Tokens | None,
        weights: Floats | None,
        positions: Positions = "last",
        precision: Precision = "float64",
        *,
        features: Features | None = None,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> BatchMoments:
        """Sum the moments of a batch; targets have one row a query, None means d_out = 0."""
        ...

    def roundings(self, n_samples: int, precision: Precision) -> Roundings:
        """Bound the roundings of the sum over so many samples, of the last call of ``moments``."""
        ...

    def summand_sizes(
        self, tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
    ) -> Floats:
        """Sum w S_jj S_kk z_l^2, (n_pairs, n_queries), without the Gram.

        No watch is kept over underflow: these sizes scale features, and prove nothing.
        """
        ...

    def path(self, precision: Precision) -> str:
        """How the Gram is formed, where there is more than one way; else empty."""
        ...

    def normal_operator(
        self,
        tokens: Tokens,
        targets: Tokens,
        weights: Floats | None,
        positions: Positions,
        features: Features,
        *,
        keep: bool,
    ) -> NormalOperator:
        """Make the normal equations of a batch; ``keep`` its samples, if memory is no concern."""
        ...

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y = sum_h V_h S Q_h z: (N, d_out) for "last", else (n_rows, d_out)."""
        ...

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """Apply y = C h: (N, d_out) for "last", else (n_rows, d_out)."""
        ...

    def generate(
        self, V: Floats, Q: Floats, prompts: Floats, steps: int, decimals: int | None
    ) -> Floats:
        """Continue prompts (N, n, d) by ``steps`` tokens, each the output for all before it."""
        ...


def sizes_of(targets: Tokens | None, weights: Floats | None) -> dict[str, float]:
    """Sizes of what is multiplied with the features, for messages."""
    given = {"y": targets, "sample_weight": weights}
    return {name: largest_size(what) for name, what in given.items() if what is not None}


def require_finite_outputs(y: Floats, tokens: Tokens, factors: dict[str, Floats]) -> Floats:
    """Return outputs, or raise and name what made them overflow."""
    if not module_of(y).isfinite(y).all():
        sizes = {name: largest_size(factor) for name, factor in factors.items()}
        raise non_finite_error(tokens, others=sizes)
    return y


def divergence_error() -> ValueError:
    """Say that generated tokens grow without bound."""
    return ValueError(
        "Z0: the generated tokens overflow float64: the layer is cubic, and from this prompt its "
        "outputs grow without bound; take fewer steps, or scale the prompt or the heads"
    )
