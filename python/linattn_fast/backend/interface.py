"""What a backend computes: one interface, which numpy, C++ and CUDA implement.

A backend turns checked tokens into moments and applies layers to them. ``numpy`` is the
specification; every other one is tested against it.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from ..arrays.device import module_of
from ..arrays.types import Floats, Positions
from ..data.non_finite import largest_size, non_finite_error
from ..data.tokens import Tokens
from ..features.samples import Samples
from ..system.progress import Progress
from .normal_operator import NormalOperator
from .totals import Totals

Precision: TypeAlias = Literal["float64", "mixed"]
PRECISIONS: tuple[Precision, ...] = ("float64", "mixed")
"""Precisions of the Gram; "mixed" has float32 products and float64 totals."""


class Backend(Protocol):
    """What a backend computes. Arguments are checked; results that are not finite raise."""

    name: str
    """"cpu", "numpy" or "cuda"."""
    on_device: bool
    """Whether results are arrays on a CUDA device."""

    def moments(
        self,
        samples: Samples,
        precision: Precision = "float64",
        progress: Progress = None,
        into: NormalOperator | None = None,
    ) -> Totals:
        """Sum the moments of a batch, and count how they were rounded.

        Where the samples are formed on the way, the normal equations ``into``, of the same batch,
        keep them, if they are to keep any.
        """
        ...

    def summand_sizes(self, samples: Samples) -> Floats:
        """Sum w S_jj S_kk z_l^2 over the samples, (n_pairs, n_queries), without the Gram.

        Underflow is not looked for: these sizes scale features, and prove nothing.
        """
        ...

    def path(self, precision: Precision) -> str:
        """Say how the Gram is formed, where there is more than one way; else nothing."""
        ...

    def normal_operator(self, samples: Samples, *, keep: bool) -> NormalOperator:
        """Make the normal equations of a batch, which ``keep`` its packed samples if told to."""
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
        """Append ``steps`` tokens to prompts (N, n, d), each the output at the one before it."""
        ...


def sizes_of(samples: Samples) -> dict[str, float]:
    """Largest sizes of targets and weights, which a message about overflow names."""
    given = {"y": samples.targets, "sample_weight": samples.weights}
    return {name: largest_size(what) for name, what in given.items() if what is not None}


def require_finite_outputs(y: Floats, tokens: Tokens, factors: dict[str, Floats]) -> Floats:
    """Return outputs that are finite; raise otherwise, and name what made them overflow."""
    if not module_of(y).isfinite(y).all():
        sizes = {name: largest_size(factor) for name, factor in factors.items()}
        raise non_finite_error(tokens, others=sizes)
    return y


def divergence_error() -> ValueError:
    """The error that says that generated tokens grow without bound."""
    return ValueError(
        "Z0: the generated tokens overflow float64: the layer is cubic, and from this prompt its "
        "outputs grow without bound; take fewer steps, or scale the prompt or the heads"
    )
