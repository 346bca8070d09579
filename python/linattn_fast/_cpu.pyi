"""Types of the compiled extension; see csrc/bindings."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .arrays.types import Array

_Floats = npt.NDArray[np.float64]
_Offsets = npt.NDArray[np.int64] | None
_Storage = Array | tuple[Array, ...]
_Progress = Callable[[int], object] | None

class NonFiniteError(ValueError): ...

def instruction_sets() -> list[tuple[str, bool]]: ...
def instruction_set() -> str: ...
def select_instruction_set(name: str) -> None: ...
def multiply_add_rate(threads: int) -> float: ...
def keeps_subnormals() -> bool: ...
def set_default_environment() -> bytes: ...
def restore_environment(kept: bytes) -> None: ...
def accumulate(
    tokens: _Storage,
    offsets: _Offsets,
    targets: _Storage | None,
    target_offsets: _Offsets,
    weights: _Floats | None,
    positions: str,
    precision: str,
    pairs: _Offsets,
    queries: _Offsets,
    with_gram: bool,
    threads: int,
    progress: _Progress,
) -> tuple[_Floats, _Floats, _Floats, _Floats, tuple[int, int], bool]: ...

class NormalEquations:
    def __init__(
        self,
        tokens: _Storage,
        offsets: _Offsets,
        targets: _Storage,
        target_offsets: _Offsets,
        weights: _Floats | None,
        positions: str,
        pairs: _Offsets,
        queries: _Offsets,
        keep: bool,
    ) -> None: ...
    def kronecker_factors(self, threads: int) -> tuple[_Floats, _Floats, _Floats]: ...
    def normal(self, coefficients: _Floats, threads: int) -> tuple[_Floats, _Floats]: ...
    def gradient(self, coefficients: _Floats, threads: int) -> tuple[_Floats, _Floats]: ...

def pass_slabs(samples: int, entries: int) -> int: ...
def multiply_transposed(a: _Floats, b: _Floats, threads: int) -> _Floats: ...
def cholesky_columns(n: int) -> int: ...
def factor_cholesky(matrix: _Floats, threads: int) -> int: ...
def solve_triangular(factor: _Floats, rows: _Floats, transposed: bool, threads: int) -> None: ...
def first_non_finite(tokens: _Storage, offsets: _Offsets, threads: int) -> int: ...
def evaluate_heads(
    V: _Floats,
    Q: _Floats,
    tokens: _Storage,
    offsets: _Offsets,
    positions: str,
    threads: int,
) -> _Floats: ...
def evaluate_coefficients(
    coefficients: _Floats,
    tokens: _Storage,
    offsets: _Offsets,
    positions: str,
    threads: int,
) -> _Floats: ...
def generate(
    V: _Floats,
    Q: _Floats,
    prompts: _Floats,
    steps: int,
    decimals: int | None,
    threads: int,
) -> _Floats: ...
def add_query_sums(
    x: _Floats, A: _Floats, G: _Floats, squares: _Floats, cross: _Floats, threads: int
) -> None: ...
