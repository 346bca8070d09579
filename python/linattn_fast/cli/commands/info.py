"""``linattn-fast info``: versions, instruction set, threads, memory, backends."""

from __future__ import annotations

import os
import platform
from argparse import Namespace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ... import __version__
from ...arrays import compiled
from ...backend.choice import backends
from ...system import tables
from ...system.machine import get_num_threads, in_words, usable_cores, usable_memory
from ..command import Command, Outcome

_PACKAGES = {
    "numpy": "arrays",
    "scipy": "factorisations",
    "tqdm": "progress bars",
    "h5py": "HDF5 files",
    "zarr": "Zarr files",
    "matplotlib": "pictures",
    "jinja2": "reports",
    "dask": "clusters",
    "cupy-cuda13x": "NVIDIA GPUs",
}
_VARIABLES = ("LINATTN_NUM_THREADS", "LINATTN_ISA", "LINATTN_BACKEND", "LINATTN_CUDA_PATH")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _instruction_sets() -> tuple[str | None, list[str]]:
    """The one in use, and all that this processor has."""
    if compiled.MISSING is not None:
        return None, []
    available = [name for name, supported in compiled.core.instruction_sets() if supported]
    return compiled.core.instruction_set(), available


def _collect() -> dict[str, Any]:
    used, available = _instruction_sets()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "instruction_set": used,
        "instruction_sets": available,
        "threads": get_num_threads(),
        "cores": usable_cores(),
        "memory": usable_memory(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "backends": [vars(each) for each in backends()],
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _run(arguments: Namespace) -> Outcome:
    found = _collect()
    others = [name for name in found["instruction_sets"] if name != found["instruction_set"]]
    variables = [f"{name}={value}" for name, value in found["environment"].items()]
    top = tables.facts([
        ("linattn_fast", found["version"]),
        ("Python", f"{found['python']} on {found['platform']}"),
        ("instruction set", (found["instruction_set"] or "none: not compiled")
         + (f" (this processor also runs {', '.join(others)})" if others else "")),
        ("threads", f"{found['threads']} of {found['cores']} cores"),
        ("memory", in_words(found["memory"])),
        ("environment", ", ".join(variables) or f"none of {', '.join(_VARIABLES)} is set"),
    ])  # fmt: skip
    rows = [[each["name"], "yes" if each["available"] else "no", each["reason"]]
            for each in found["backends"]]  # fmt: skip
    packages = [[name, found["packages"][name] or "not installed", use]
                for name, use in _PACKAGES.items()]  # fmt: skip
    text = "\n\n".join((
        top,
        tables.table(["backend", "usable", "what it is, or why not"], rows),
        tables.table(["package", "version", "used for"], packages),
    ))  # fmt: skip
    return Outcome(text, found)


COMMAND = Command(
    summary="versions, instruction set, threads, backends",
    description="What is installed, and what the work would run on.",
    example="linattn-fast info\nLINATTN_ISA=avx2 linattn-fast info --json",
    run=_run,
)
