"""How fast this machine is expected to be: one table, which ``bench/rates.py`` prints anew.

Nothing is measured when a fit is planned, so that the same call takes the same solver every time.
Flops a second are those of one thread with AVX-512; other instruction sets have a share of them.
What Python and small calls cost beside their flops is here as well: it decides between solvers of
small problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ..arrays import compiled


@dataclass(frozen=True)
class Rates:
    """Flops and bytes a second, and seconds beside them."""

    gram: float
    """Flops a second and thread of the compact Gram."""
    float64_pass: float
    """Flops a second and thread of a pass of conjugate gradients, 4 N p for one output."""
    float32_pass: float
    """Flops a second and thread of such a pass with products in float32."""
    cholesky: float
    """Flops a second and thread of a Cholesky factorisation, p^3 / 3, with the systems after it."""
    lapack: float
    """Flops a second of LAPACK, which has one thread; an eigendecomposition counts as 10 q^3."""
    bytes: float
    """Bytes a second of a dense matrix written out, or of tokens read."""
    iteration: float = 1.0e-4
    """Seconds of an iteration of conjugate gradients beside its flops."""
    cholesky_call: float = 1.5e-3
    """Seconds of a fit by Cholesky beside all that is counted."""
    dual_call: float = 1.0e-3
    """Seconds of a fit from the kernel beside all that is counted."""
    pcg_call: float = 4.0e-3
    """Seconds of a fit by conjugate gradients beside all that is counted."""


AVX512 = Rates(
    gram=108e9,
    float64_pass=110e9,
    float32_pass=165e9,
    cholesky=56e9,
    lapack=60e9,
    bytes=5e9,
)
"""Two threads of an AMD EPYC, peak 139 GFlop/s each: from stages of fits on a machine with other
work, to be replaced by what ``make bench-rates`` prints on a quiet one."""

_SHARE = {"avx512": 1.0, "avx2": 0.5}
"""Flops of other instruction sets, relative to AVX-512: by the width of vectors, not measured."""
_BASELINE = 0.1
"""The share of those that are not listed, and of numpy without the extension."""


@cache
def _with_share(share: float) -> Rates:
    flops = ("gram", "float64_pass", "float32_pass", "cholesky")
    return replace(AVX512, **{name: share * getattr(AVX512, name) for name in flops})


def rates() -> Rates:
    """Rates of the instruction set that the compiled code uses."""
    if compiled.MISSING is not None:
        return _with_share(_BASELINE)
    return _with_share(_SHARE.get(compiled.core.instruction_set(), _BASELINE))
