"""Learn multi-head linear attention to the global optimum, fast.

y = sum_h V_h S Q_h z_n with S = sum_t z_t z_t' is linear in the cubic features S[j,k] z_n[l], so
least squares learns it, the smallest eigenvalue of the features' second moment certifies it, and
the fewest heads that have its coefficients are found
("Learning Linear Attention in Polynomial Time", arXiv 2410.10101).

    import linattn_fast as la

    fit = la.fit(Z, y)              # tokens (N, n, d), targets (N, d_out)
    fit.certificate                 # is this the only layer that fits?
    fit.heads                       # V (H, d_out, d), Q (H, d, d)
    fit.predict(Z_new)
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import datasets, softmax
from .backend import BackendInfo, backends
from .certificate import Certificate
from .certifying import certify
from .data_warnings import DataWarning, InterpolationWarning, LayoutWarning, PaddingWarning
from .distribution import VERSION as _VERSION
from .features import Features, cubic_features, paper_features
from .fitting import fit
from .head_path import HeadPath, head_path
from .heads import Heads
from .layouts import Layout
from .leave_one_out import leave_one_out
from .libraries import convert
from .matching import HeadMatch, match_heads
from .memory import estimate_memory
from .moments import Moments
from .pcg import Pcg
from .recovery import recover_heads
from .recovery_report import Recovery
from .result import Fit, FitInfo, load
from .ridge_path import AlphaChoice, RidgePath, choose_alpha, ridge_path
from .threads import get_num_threads, set_num_threads

__version__ = _VERSION

if _TYPE_CHECKING:
    from . import programs as programs
    from .estimator import LinearAttentionRegressor as LinearAttentionRegressor

# LinearAttentionRegressor is not among these, so that a star needs no scikit-learn.
__all__ = [
    "AlphaChoice",
    "BackendInfo",
    "Certificate",
    "DataWarning",
    "Features",
    "Fit",
    "FitInfo",
    "HeadMatch",
    "HeadPath",
    "Heads",
    "InterpolationWarning",
    "Layout",
    "LayoutWarning",
    "Moments",
    "PaddingWarning",
    "Pcg",
    "Recovery",
    "RidgePath",
    "backends",
    "certify",
    "choose_alpha",
    "convert",
    "cubic_features",
    "datasets",
    "estimate_memory",
    "fit",
    "get_num_threads",
    "head_path",
    "leave_one_out",
    "load",
    "match_heads",
    "paper_features",
    "recover_heads",
    "ridge_path",
    "set_num_threads",
    "softmax",
]


def __getattr__(name: str) -> object:
    if name == "LinearAttentionRegressor":  # imported when asked for: scikit-learn is an extra
        from .estimator import LinearAttentionRegressor  # noqa: PLC0415  # optional

        return LinearAttentionRegressor
    if name == "programs":  # when asked for: most users need none of it
        import importlib  # noqa: PLC0415  # kept out of the namespace

        return importlib.import_module(".programs", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "LinearAttentionRegressor", "programs"]


def _warn_if_not_compiled() -> None:
    import warnings  # noqa: PLC0415  # kept out of the namespace

    from .backend import cpu  # noqa: PLC0415  # kept out of the namespace

    if cpu.MISSING is not None:
        warnings.warn(
            f"linattn_fast: {cpu.MISSING}. Until then the slow numpy backend is used.",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_if_not_compiled()
