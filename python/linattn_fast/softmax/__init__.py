"""Learn a softmax attention layer, y = sum_i softmax(X Theta_i X') X W_i, from examples.

    import linattn_fast as la

    fit = la.softmax.fit(X, Y, heads=2)     # tokens (N, k, d), targets (N, k, d_out)
    print(fit.report)                       # what was shown: learned, or not, and why
    fit.Theta, fit.W                        # (m, d, d), (m, d, d_out)
    fit.predict(X_new)

The problem is not convex, and nothing here is proved: docs/softmax.md says what the evidence is.
"""

from .cases import Case
from .fitting import fit
from .identifiability import Identifiability
from .layer import Layer
from .linear_start import Comparison
from .report import HeldOut, Report
from .result import Fit, load
from .search import Start

__all__ = [
    "Case",
    "Comparison",
    "Fit",
    "HeldOut",
    "Identifiability",
    "Layer",
    "Report",
    "Start",
    "fit",
    "load",
]
