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

from .backend import BackendInfo, backends
from .certificate import Certificate
from .certifying import certify
from .distribution import VERSION as _VERSION
from .features import Features, cubic_features, paper_features
from .fitting import fit
from .head_path import HeadPath, head_path
from .heads import Heads, Recovery
from .matching import HeadMatch, match_heads
from .memory import estimate_memory
from .moments import Moments
from .pcg import Pcg
from .recovery import recover_heads
from .result import Fit, FitInfo, load
from .threads import get_num_threads, set_num_threads

__version__ = _VERSION

__all__ = [
    "BackendInfo",
    "Certificate",
    "Features",
    "Fit",
    "FitInfo",
    "HeadMatch",
    "HeadPath",
    "Heads",
    "Moments",
    "Pcg",
    "Recovery",
    "backends",
    "certify",
    "cubic_features",
    "estimate_memory",
    "fit",
    "get_num_threads",
    "head_path",
    "load",
    "match_heads",
    "paper_features",
    "recover_heads",
    "set_num_threads",
]


def _warn_if_not_compiled() -> None:
    import warnings  # noqa: PLC0415  # kept out of the namespace

    from .backend import cpu  # noqa: PLC0415

    if cpu.MISSING is not None:
        warnings.warn(
            f"linattn_fast: {cpu.MISSING}. Until then the slow numpy backend is used.",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_if_not_compiled()
