"""Learn a softmax attention layer, y = sum_i softmax(X Theta_i X') X W_i, from examples.

    import linattn_fast as la

    fit = la.softmax.fit(X, Y, heads=2)     # tokens (N, k, d), targets (N, k, d_out)
    print(fit.report)                       # what was shown: learned, or not, and why
    fit.Theta, fit.W                        # (m, d, d), (m, d, d_out)
    fit.predict(X_new)

The problem is not convex, and nothing here is proved: docs/softmax.md says what the evidence is.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .cases import Case
from .fitting import fit
from .head_path import HeadPath, head_path
from .identifiability import Identifiability
from .layer import Layer
from .linear_start import Comparison
from .report import HeldOut, Report
from .result import Fit, load
from .search import Start

if _TYPE_CHECKING:
    from .estimator import SoftmaxAttentionRegressor as SoftmaxAttentionRegressor

# SoftmaxAttentionRegressor is not among these, so that a star needs no scikit-learn.
__all__ = [
    "Case",
    "Comparison",
    "Fit",
    "HeadPath",
    "HeldOut",
    "Identifiability",
    "Layer",
    "Report",
    "Start",
    "fit",
    "head_path",
    "load",
]


def __getattr__(name: str) -> object:
    if name == "SoftmaxAttentionRegressor":  # imported when asked for: scikit-learn is an extra
        from .estimator import SoftmaxAttentionRegressor  # noqa: PLC0415  # optional

        return SoftmaxAttentionRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "SoftmaxAttentionRegressor"]
