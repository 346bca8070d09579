"""The compiled CUDA module, or why it is not there."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["MISSING", "kernels"]

MISSING: str | None = None
"""Why the extension cannot be used, or None."""

try:
    from ... import _cuda as kernels
except ImportError as error:
    MISSING = f"the CUDA extension cannot be loaded ({error})"
    if find_spec("linattn_fast._cuda") is None:
        MISSING = (
            "built without CUDA: nvcc was not found (or LINATTN_CUDA=OFF was set); see docs/cuda.md"
        )
