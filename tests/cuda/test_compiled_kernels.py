"""What nvcc makes of the kernels: no warning, no spilled register, two Gram blocks at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
ARCHITECTURES = (80, 90, 100, 120)
BLOCKS_PER_MULTIPROCESSOR = 2
THREADS = 256

NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc was not found")


class Usage(NamedTuple):
    """Of one kernel on one architecture."""

    registers: int
    spilled: int
    shared: int


ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def parse(report: str) -> dict[tuple[str, int], Usage]:
    """Read what "ptxas -v" prints."""
    usage = {}
    kernel, spilled = ("", 0), 0
    for line in report.splitlines():
        if found := ENTRY.search(line):
            kernel = (found[1], int(found[2]))
        elif found := SPILLS.search(line):
            spilled = int(found[1]) + int(found[2])
        elif found := USED.search(line):
            shared = SHARED.search(line)
            usage[kernel] = Usage(int(found[1]), spilled, int(shared[1]) if shared else 0)
    return usage


def compile_kernel(
    source: Path, folder: Path, architectures: tuple[int, ...] = ARCHITECTURES
) -> dict[tuple[str, int], Usage]:
    """Compile for every architecture, with warnings as errors."""
    codes = [f"--generate-code=arch=compute_{a},code=sm_{a}" for a in architectures]
    options = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Werror=all-warnings"]
    done = subprocess.run(
        [NVCC, *options, *codes, "-Xptxas=-v", "-c", str(source), "-o", str(folder / source.stem)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return parse(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Usage]:
    folder = tmp_path_factory.mktemp("kernels")
    everything = {}
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(lambda source: compile_kernel(source, folder), KERNELS):
            everything.update(part)
    return everything


def test_every_kernel_is_reported_for_every_architecture(
    usage: dict[tuple[str, int], Usage],
) -> None:
    declared = sum(source.read_text().count("__global__ void") for source in KERNELS)
    assert declared > 0
    for architecture in ARCHITECTURES:
        assert sum(found == architecture for _, found in usage) == declared


def test_no_kernel_spills_registers(usage: dict[tuple[str, int], Usage]) -> None:
    assert {kernel: used for kernel, used in usage.items() if used.spilled} == {}


def test_kernels_without_tensor_cores_compile(tmp_path: Path) -> None:
    source = ROOT / "csrc" / "cuda" / "sum_products.cu"
    used = compile_kernel(source, tmp_path, architectures=(75,))
    assert {architecture for _, architecture in used} == {75}


@pytest.fixture(scope="module")
def occupancy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the toolkit's occupancy header."""
    settings = subprocess.run(
        [NVCC, "--dryrun", "x.cu"], capture_output=True, text=True, check=False
    )
    top = re.search(r"TOP=(\S+)", settings.stderr)
    include = [f"-I{top[1]}/include"] if top else []  # else the compiler knows where it is
    program = tmp_path_factory.mktemp("occupancy") / "occupancy"
    source = ROOT / "tests" / "cuda" / "occupancy.cpp"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++17", *include, str(source), "-o", str(program)], check=True)
    return program


def blocks(program: Path, architecture: int, used: Usage) -> int:
    numbers = [architecture // 10, used.registers, used.shared, THREADS]
    done = subprocess.run(
        [str(program), *map(str, numbers)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", ["12sum_productsE", "multiply_matricesE"])
def test_two_blocks_of_a_matrix_product_fit_on_a_multiprocessor(
    name: str, architecture: int, usage: dict[tuple[str, int], Usage], occupancy: Path
) -> None:
    found = [used for (kernel, a), used in usage.items() if a == architecture and name in kernel]
    assert len(found) == 1
    assert blocks(occupancy, architecture, found[0]) >= BLOCKS_PER_MULTIPROCESSOR
    # The rule can say no: with two registers a thread more, there is room for one block.
    more = found[0]._replace(registers=130)
    assert blocks(occupancy, architecture, more) < BLOCKS_PER_MULTIPROCESSOR
