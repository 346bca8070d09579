"""Learn a softmax attention layer, y = sum_i softmax(X Theta_i X') X W_i, from examples.

    import linattn_fast as la

    fit = la.softmax.fit(X, Y, heads=2)     # tokens (N, k, d), targets (N, k, d_out)
    print(fit.report)                       # what was shown: learned, or not, and why
    fit.Theta, fit.W                        # (m, d, d), (m, d, d_out)
    fit.predict(X_new)

The problem is not convex, and nothing here is proved: docs/softmax.md says what the evidence is.

The way of a fit leads through the rooms in this order; each may import those before it:

    examples    tokens and targets, checked, grouped by length, split and rescaled
    layer       the layer as a function of tokens, and its derivatives
    descent     the error as a function of Theta, and two ways down on it
    search      many starts, of which the best is kept
    evidence    held-out error, what the data determines, the verdict
    learning    what users call: fit, head_path, the regressor, and their results

Of the rest of the package they may import everything up to ``study`` and ``sklearn``.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .evidence.held_out import HeldOut
from .evidence.identifiability import Identifiability
from .evidence.named_cases import Case
from .evidence.report import Report
from .layer.layer import Layer
from .learning.comparison import Comparison
from .learning.fit import fit
from .learning.head_path import HeadPath, head_path
from .learning.result import Fit, load
from .search.many_starts import Start

if _TYPE_CHECKING:
    from .learning.estimator import SoftmaxAttentionRegressor as SoftmaxAttentionRegressor

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
    if name != "SoftmaxAttentionRegressor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported when asked for: scikit-learn is an extra
    from .learning.estimator import SoftmaxAttentionRegressor  # noqa: PLC0415  # optional

    return SoftmaxAttentionRegressor


def __dir__() -> list[str]:
    return [*globals(), "SoftmaxAttentionRegressor"]
