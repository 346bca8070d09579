"""Packages that only some of the work needs, each brought by an extra of the distribution."""

from __future__ import annotations

import importlib
from typing import Any

from .distribution import NAME


def optional_module(name: str, what: str, extra: str) -> Any:
    """Import a module of an optional package, or say in one sentence what to install.

    Parameters
    ----------
    name
        The module, such as ``matplotlib.figure``.
    what
        What needs it: the subject of the sentence.
    extra
        The extra that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"{what} needs the package {name.partition('.')[0]}, which is not installed "
            f"(pip install '{NAME}[{extra}]')"
        ) from None
