"""Two ways to form the Gram on a GPU, and which of them is taken.

``kernels``  our own: pair products are formed in shared memory, next to the multiply-adds
``cublas``   pair products are written out, a panel at a time that fits the card's L2 cache, and
             multiplied with ``cupy.matmul`` (:mod:`linattn_fast.backend.cuda.blas`)

Both do the same flops, in float64. The model: where float64 runs at half the rate of float32, the
multiply-adds are as fast in our kernels as in cuBLAS, which has to read the products from the cache
as well, so the kernels win. Other cards have a thirty-second or less of that rate; there cuBLAS can
emulate float64 on its faster units, where the user allows it, and reading from the cache costs
little beside the arithmetic. No timing on a GPU has been taken.

``LINATTN_CUDA_PATH`` forces one. For ``precision="mixed"``, products in float32, cuBLAS is taken.
"""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

from ...arrays.device import cupy
from ..interface import Precision

Path: TypeAlias = Literal["kernels", "cublas"]
PATHS: tuple[Path, ...] = ("kernels", "cublas")

FAST_FLOAT64 = frozenset({"60", "70", "80", "90", "100"})
"""Compute capabilities with half as many float64 as float32 multiply-adds a clock, by the table of
arithmetic throughput in NVIDIA's programming guide; all others have a thirty-second or less."""


def choose_path(precision: Precision = "float64") -> tuple[Path, str]:
    """Choose the way to form the Gram on the current device, and say why."""
    forced = os.environ.get("LINATTN_CUDA_PATH")
    if forced and forced not in PATHS:
        raise ValueError(f"LINATTN_CUDA_PATH: must be {' or '.join(PATHS)}, got {forced!r}")
    if precision == "mixed":
        return "cublas", "mixed precision is cuBLAS's alone"
    for path in PATHS:
        if forced == path:
            return path, "asked for by LINATTN_CUDA_PATH"
    capability = str(cupy().cuda.Device().compute_capability)
    if capability in FAST_FLOAT64:
        return "kernels", f"float64 at half the rate of float32 on sm_{capability}"
    return "cublas", f"float64 far slower than float32 on sm_{capability}"


def emulates_float64() -> bool:
    """Whether cuBLAS may emulate float64, by the environment variable that allows it.

    Emulated products err relative to the largest entry of a row, not entry by entry, so that no
    bound on their rounding holds that the certificate's proof could use.
    """
    return os.environ.get("CUBLAS_EMULATE_DOUBLE_PRECISION", "0") not in ("", "0")
