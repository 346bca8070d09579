"""Under which name and version the package is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_NAMES = ("linattn-fast", "linattn-fast-cu13")
"""The second has the CUDA module in it (docs/cuda.md)."""


def installed() -> tuple[str, str]:
    """Return name and version; of a source tree, the first name and no number."""
    for name in _NAMES:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return _NAMES[0], "0+unknown"


NAME, VERSION = installed()
