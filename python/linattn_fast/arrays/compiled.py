"""The compiled core, or why it is missing; and products on our own threads.

The bits of its kernels depend on sizes alone. ``core`` is the extension itself; where it is
missing, ``MISSING`` says why and numpy does the work.
"""

from __future__ import annotations

from ..system.machine import get_num_threads
from .types import Floats

__all__ = [
    "BLOCK_STRIDE",
    "MISSING",
    "SAMPLE_QUANTUM",
    "add_query_sums",
    "core",
    "multiply_transposed",
]

MISSING: str | None = None
"""Why the extension cannot be used, or None."""

try:
    from .. import _cpu as core
except ImportError as error:
    core = None  # type: ignore[assignment]  # nobody asks for it then
    MISSING = (
        f"the compiled extension is missing ({error}); build it with 'pip install .' "
        "in the project's folder (a C++17 compiler is all it needs)"
    )

# Sizes of blocks of samples (csrc/common/block_sizes.hpp). Without the extension there are none,
# and estimates of memory stay what they are with it.
BLOCK_STRIDE: int = 264 if core is None else core.BLOCK_STRIDE
"""Numbers from one row of a block to the next."""
SAMPLE_QUANTUM: int = 16 if core is None else core.SAMPLE_QUANTUM
"""The number of columns of a block is a multiple of this, in samples."""


def multiply_transposed(a: Floats, b: Floats) -> Floats:
    """a b', (n, m), of a (n, k) and b (m, k), on our own threads."""
    return core.multiply_transposed(a, b, get_num_threads())


def add_query_sums(x: Floats, A: Floats, G: Floats, squares: Floats, cross: Floats) -> None:
    """Add to the sums of a softmax layer's normal matrix (csrc/softmax/query_sums.hpp)."""
    core.add_query_sums(x, A, G, squares, cross, get_num_threads())
