"""Build the wheel linattn-fast-cu13: the same package with the CUDA module in it.

    python packaging/cuda_wheel.py [folder]        (default: dist)

Needs nvcc 13 on PATH; the CUDA runtime is linked statically, so that users need a driver only.
Beside the module, the name is what differs from linattn-fast: both install the package
linattn_fast, so only one of them may be installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME, CUDA_NAME = "linattn-fast", "linattn-fast-cu13"
SOURCES = ("CMakeLists.txt", "LICENSE", "README.md", "csrc", "python")


def renamed(project: str) -> str:
    """Give the project and its references to its own extras the other name."""
    title = f'name = "{NAME}"'
    if project.count(title) != 1:
        raise SystemExit(f"pyproject.toml: {title} is expected once")
    return project.replace(title, f'name = "{CUDA_NAME}"').replace(f"{NAME}[", f"{CUDA_NAME}[")


def main(folder: Path) -> None:
    """Build from a copy of the sources, so that nothing here changes."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for name in SOURCES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
                )
            else:
                shutil.copy(source, copy / name)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (copy / "pyproject.toml").write_text(renamed(project), encoding="utf-8")
        wheel = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder),
        ]
        subprocess.run(
            [*wheel, "--config-settings=cmake.define.LINATTN_CUDA=ON", str(copy)], check=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute())
