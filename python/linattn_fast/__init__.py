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

from . import datasets, maps, softmax
from .arrays.libraries import convert
from .backend.choice import BackendInfo, backends
from .certificate.certificate import Certificate
from .data.data_warnings import DataWarning, InterpolationWarning, LayoutWarning, PaddingWarning
from .data.states import States
from .data.streams import Streams
from .features.cubic import cubic_features, paper_features
from .features.features import Features
from .fitting.call import fit
from .fitting.certify import certify
from .fitting.many import FitMany, fit_many
from .fitting.result import Fit, FitInfo, load
from .heads.heads import Heads, Recovery
from .heads.layouts import Layout
from .heads.matching import HeadMatch, match_heads
from .heads.number.rank_path import RankPath
from .heads.recovery import recover_heads
from .moments.moments import Moments
from .solvers.conjugate_gradients.pcg import Pcg
from .solvers.costs import estimate_memory
from .study.head_path import HeadPath, head_path
from .study.leave_one_out import leave_one_out
from .study.ridge_path import AlphaChoice, RidgePath, choose_alpha, ridge_path
from .system.machine import get_num_threads, set_num_threads
from .system.packages import VERSION as _VERSION

__version__ = _VERSION

if _TYPE_CHECKING:
    from . import programs as programs
    from .sklearn.regressor import LinearAttentionRegressor as LinearAttentionRegressor

# LinearAttentionRegressor is not among these, so that a star needs no scikit-learn.
__all__ = [
    "AlphaChoice",
    "BackendInfo",
    "Certificate",
    "DataWarning",
    "Features",
    "Fit",
    "FitInfo",
    "FitMany",
    "HeadMatch",
    "HeadPath",
    "Heads",
    "InterpolationWarning",
    "Layout",
    "LayoutWarning",
    "Moments",
    "PaddingWarning",
    "Pcg",
    "RankPath",
    "Recovery",
    "RidgePath",
    "States",
    "Streams",
    "backends",
    "certify",
    "choose_alpha",
    "convert",
    "cubic_features",
    "datasets",
    "estimate_memory",
    "fit",
    "fit_many",
    "get_num_threads",
    "head_path",
    "leave_one_out",
    "load",
    "maps",
    "match_heads",
    "paper_features",
    "recover_heads",
    "ridge_path",
    "set_num_threads",
    "softmax",
]


def __getattr__(name: str) -> object:
    if name == "LinearAttentionRegressor":  # imported when asked for: scikit-learn is an extra
        from .sklearn.regressor import LinearAttentionRegressor  # noqa: PLC0415  # optional

        return LinearAttentionRegressor
    if name == "programs":  # when asked for: most users need none of it
        import importlib  # noqa: PLC0415  # kept out of the namespace

        return importlib.import_module(".programs", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "LinearAttentionRegressor", "programs"]


def _warn_if_not_compiled() -> None:
    import warnings  # noqa: PLC0415  # kept out of the namespace

    from .arrays import compiled  # noqa: PLC0415  # kept out of the namespace

    if compiled.MISSING is not None:
        warnings.warn(
            f"linattn_fast: {compiled.MISSING}. Until then the slow numpy backend is used.",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_if_not_compiled()
