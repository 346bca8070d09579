"""Which backend does the work, which ones there are, and whether they can be used here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..arrays import compiled
from ..arrays.device import device_of
from ..data.states import States
from . import cpu, reference
from .cuda import backend as cuda
from .cuda import extension as cuda_extension
from .interface import PRECISIONS, Backend, Precision


@dataclass(frozen=True)
class BackendInfo:
    """One row of :func:`backends`."""

    name: str
    """"cpu", "numpy" or "cuda"."""
    available: bool
    """Whether it can be used here and now."""
    reason: str
    """What it is, or why it cannot be used here."""
    compiled: bool = True
    """Whether its compiled code is there; "numpy" needs none."""

    def __str__(self) -> str:
        return f"{self.name:6} {'available' if self.available else 'unavailable':11}  {self.reason}"


NAMES = ("cpu", "numpy", "cuda")
"""The backends, as "auto" prefers them; CUDA is chosen for arrays that are on a device."""


def _obstacle(name: str) -> str | None:
    """What keeps a backend from being used here; None where nothing does."""
    if name == "cpu":
        return compiled.MISSING
    return cuda.obstacle() if name == "cuda" else None


def _info(name: str) -> BackendInfo:
    if name == "numpy":
        return BackendInfo(name, True, "pure numpy: slow, readable, the reference for the others")
    there = (compiled if name == "cpu" else cuda_extension).MISSING is None
    if (obstacle := _obstacle(name)) is not None:
        return BackendInfo(name, False, obstacle, there)
    try:
        return BackendInfo(name, True, (cpu if name == "cpu" else cuda).describe(), there)
    except ValueError as error:  # LINATTN_ISA, LINATTN_NUM_THREADS or LINATTN_CUDA_PATH
        return BackendInfo(name, False, str(error), there)


def as_precision(precision: object) -> Precision:
    """Check the name of a precision."""
    for known in PRECISIONS:
        if isinstance(precision, str) and precision == known:
            return known
    raise ValueError(f"precision: must be one of {', '.join(PRECISIONS)}, got {precision!r}")


def backends() -> list[BackendInfo]:
    """List every backend, available or not, and why; the preferred one first.

    Returns
    -------
    list of BackendInfo
        Printed, each is a line of text.

    Examples
    --------
    >>> import linattn_fast as la
    >>> [info.name for info in la.backends()]
    ['cpu', 'numpy', 'cuda']
    """
    return [_info(name) for name in NAMES]


def get_backend(name: str = "auto", *arguments: object) -> Backend:
    """Return the named backend.

    "auto" is "cuda" where one of the arguments (arrays, tokens, heads, moments) is on a CUDA
    device; otherwise ``LINATTN_BACKEND``, or the first that can be used.

    Raises
    ------
    ValueError
        The name is unknown, the backend cannot be used here, or it is another one than "cuda" and
        an argument is on a device; the message says why.
    """
    argument = "backend"
    on_device = device_of(*arguments) is not None
    if name == "auto" and on_device:
        name = "cuda"
    if name == "auto":
        argument = "LINATTN_BACKEND"
        name = os.environ.get("LINATTN_BACKEND") or ("numpy" if _obstacle("cpu") else "cpu")
    if name not in NAMES:
        raise ValueError(f"{argument}: must be one of auto, {', '.join(NAMES)}, got {name!r}")
    if (obstacle := _obstacle(name)) is not None:
        raise ValueError(f"{argument}: {name!r} is not available: {obstacle}")
    if name == "cuda" and any(isinstance(each, States) for each in arguments):
        raise ValueError(
            f"{argument}: 'cuda' takes tokens alone; States are for arrays on the host and the "
            "backends 'cpu' and 'numpy'"
        )
    if name == "cuda":
        return cuda.CudaBackend()
    if on_device:
        raise ValueError(
            f"{argument}: {name!r} cannot read arrays on a CUDA device; take 'cuda' or 'auto', or "
            "bring them home with .get()"
        )
    return cpu.CpuBackend() if name == "cpu" else reference.NumpyBackend()
