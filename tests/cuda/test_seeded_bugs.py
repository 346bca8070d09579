"""Bugs that a card would hide, put into the Gram kernel's source: each is caught.

The sources of csrc/cuda are copied, one place is spoilt, and gram_check.cpp is compiled with the
copy: the emulator or a sanitizer must object.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "tests" / "cuda" / "emulator"
COMPILER = os.environ.get("CXX", "c++")

pytestmark = [
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        "LINATTN_SANITIZED" in os.environ, reason="another sanitizer is already in this process"
    ),
]

SANITIZERS = {
    "none": ([], []),
    "address": (["-DEMULATOR_ASAN"], ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
    "thread": (["-DEMULATOR_TSAN"], ["-fsanitize=thread"]),
}


@dataclass(frozen=True)
class Bug:
    file: str
    right: str
    wrong: str
    sanitizer: str
    """With which it is caught."""
    message: str


BUGS = {
    "barrier removed": Bug(
        "tile.hpp",
        "panels.right[1 - now]);\n    LINATTN_BARRIER();",
        "panels.right[1 - now]);",
        "thread",
        "data race",
    ),
    "barrier in a divergent branch": Bug(
        "tile.hpp",
        "panels.right[1 - now]);\n    LINATTN_BARRIER();",
        "panels.right[1 - now]);\n    if (threadIdx.x < 32) LINATTN_BARRIER();",
        "none",
        "barrier",
    ),
    "global memory read out of bounds": Bug(
        "sum_products.cu",
        "(c < sum.columns ? c : sum.columns - 1)",
        "c",
        "address",
        "heap-buffer-overflow",
    ),
    "shared memory read before it is written": Bug(
        "tile.hpp",
        "  incoming.write(panels.left[0], panels.right[0]);\n",
        "",
        "none",
        "wrong",
    ),
    "blocks that add to one place": Bug(
        "sum_products.cu",
        "static_cast<std::int64_t>(blockIdx.z) * slab_stride;",
        "0 * slab_stride;\n  add = true;",
        "thread",
        "data race",
    ),
}


def _compile(sources: list[Path], out: Path, options: list[str]) -> None:
    command = [COMPILER, "-std=c++17", "-O1", "-g", f"-I{EMULATOR}", "-DLINATTN_CUDA_EMULATED"]
    names = [str(source) for source in sources]
    subprocess.run([*command, *options, *names, "-o", str(out)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Objects of the emulator for each sanitizer, filled as needed; it does not watch them."""
    return {"folder": [tmp_path_factory.mktemp("emulators")]}


def run_check(
    sanitizer: str, bug: Bug | None, emulators: dict[str, list[Path]], folder: Path
) -> subprocess.CompletedProcess[str]:
    defines, options = SANITIZERS[sanitizer]
    if sanitizer not in emulators:
        emulators[sanitizer] = []
        for name in ("execution", "fibers", "runtime"):
            out = emulators["folder"][0] / f"{name}-{sanitizer}.o"
            _compile([EMULATOR / f"{name}.cpp"], out, [*defines, "-c"])
            emulators[sanitizer].append(out)
    cuda = folder / "csrc" / "cuda"
    shutil.copytree(ROOT / "csrc" / "common", folder / "csrc" / "common")
    shutil.copytree(ROOT / "csrc" / "cuda", cuda)
    (folder / "tests" / "cuda").mkdir(parents=True)
    check = Path(shutil.copy(ROOT / "tests" / "cuda" / "gram_check.cpp", folder / "tests" / "cuda"))
    if bug is not None:
        text = (cuda / bug.file).read_text()
        assert text.count(bug.right) == 1, "the source has changed: seed the bug anew"
        (cuda / bug.file).write_text(text.replace(bug.right, bug.wrong))
    kernel = cuda / "kernel.cpp"
    kernel.write_text('#include "sum_products.cu"\n')
    program = folder / "check"
    _compile([check, kernel, cuda / "check.cpp", *emulators[sanitizer]], program, options)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment["TSAN_OPTIONS"] = "halt_on_error=1 exitcode=66"
    return subprocess.run(
        [str(program)], capture_output=True, text=True, env=environment, timeout=120, check=False
    )


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_kernel_as_it_is_passes(
    sanitizer: str, emulators: dict[str, list[Path]], tmp_path: Path
) -> None:
    done = run_check(sanitizer, None, emulators, tmp_path)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(
    name: str, emulators: dict[str, list[Path]], tmp_path: Path
) -> None:
    bug = BUGS[name]
    done = run_check(bug.sanitizer, bug, emulators, tmp_path)
    assert done.returncode != 0
    assert bug.message in done.stdout + done.stderr
