"""Types of the compiled extension; see csrc/bindings."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from .arrays.types import Array

_Floats = npt.NDArray[np.float64]
_Offsets = npt.NDArray[np.int64] | None
_Storage = Array | tuple[Array, ...]
_Progress = Callable[[int], object] | None

class NonFiniteError(ValueError): ...

BLOCK_STRIDE: Final[int]
"""Numbers from one row of a block of samples to the next."""
SAMPLE_QUANTUM: Final[int]
"""The number of columns of a block is a multiple of this, in samples."""

def solve_many(
    samples: Samples, problems: int, alphas: _Floats, threads: int, progress: _Progress
) -> tuple[_Floats, _Floats, _Floats, _Floats]: ...
def heads_by_ranks(
    coefficients: _Floats,
    points: _Floats,
    outputs: _Floats,
    squares: int,
    forms: int,
    tolerance: float,
    rounding: float,
    negligible: float,
    fewer_than: int,
) -> tuple[_Floats, _Floats, float, int, float] | None: ...

class SmallLimits:
    """What roundings may have done to a small problem of some sizes."""

    def __init__(
        self,
        *,
        level: float,
        cancelled: float,
        ridge: float,
        lost: float,
        rounding: float,
        backward: float,
        margin: float,
    ) -> None: ...

def roundings_of_rows(samples: int) -> int: ...

_SmallFit = tuple[
    _Floats,  # coefficients, (d_out, p)
    float,  # condition
    float,  # mean squares of the targets, and of what is left of them
    float,
    tuple[float, ...],  # corrections
    float,  # the largest root mean square of summands
    float,  # |C|, |C / D|, max(D)
    float,
    float,
    float,  # smallest and largest eigenvalue
    float,
    float,  # tau, and what fraction of an estimate it is
    float,
    tuple[float, float, float, float],  # seconds
]

def fit_small(
    samples: Samples, weight: float, alpha: float, limits: SmallLimits, certify: bool
) -> _SmallFit | None: ...
def fit_small_arrays(
    tokens: Array, targets: Array, alpha: float, limits: SmallLimits, certify: bool
) -> _SmallFit | None: ...
def pass_slabs(samples: int, entries: int) -> int: ...
def instruction_sets() -> list[tuple[str, bool]]: ...
def instruction_set() -> str: ...
def select_instruction_set(name: str) -> None: ...
def multiply_add_rate(threads: int) -> float: ...
def keeps_subnormals() -> bool: ...
def set_default_environment() -> bytes: ...
def restore_environment(kept: bytes) -> None: ...

class Samples:
    """Tokens with their targets and weights, which of them query, and chosen features.

    Checked when it is made; holds on to the arrays, copies none, and never changes, so that threads
    may share it. ``offsets`` go with rows laid end to end; ``pairs`` and ``queries`` are numbers of
    chosen ones, ascending, both or none. With ``memory``, (N, d_v, d_k), samples are states, and
    ``tokens``, (N, 1, d_q), are their queries. With ``keys`` it is the same with a memory that is
    summed: ``sequences`` and ``seen`` say which keys a query sees, ``values`` may be None for the
    keys, and there is one of ``gates`` a key.
    """

    def __init__(
        self,
        *,
        tokens: _Storage,
        offsets: _Offsets = None,
        targets: _Storage | None = None,
        target_offsets: _Offsets = None,
        weights: _Floats | None = None,
        positions: str,
        pairs: _Offsets = None,
        queries: _Offsets = None,
        memory: Array | None = None,
        symmetric: bool = False,
        keys: _Storage | None = None,
        key_offsets: _Offsets = None,
        values: _Storage | None = None,
        gates: _Floats | None = None,
        sequences: _Offsets = None,
        seen: _Offsets = None,
    ) -> None: ...

class Moments:
    """Sums over samples, and what a bound on their rounding rests on."""

    gram: Final[_Floats]
    """The compact Gram, flat; empty where it was not wanted."""
    cross: Final[_Floats]
    """The cross moment (d_out, queries, pairs)."""
    energy: Final[_Floats]
    """The energy of the targets (d_out,)."""
    sizes: Final[_Floats]
    """The sizes of summands (pairs, queries) with a Gram of chosen features; else empty."""
    roundings: Final[tuple[int, int]]
    """Roundings of a summand of the Gram, at most: in float64, and in float32."""
    finite: Final[bool]
    """Whether all sums are."""
    underflow: Final[bool]
    """Whether a result was rounded below the smallest normal number."""

def accumulate(
    samples: Samples,
    *,
    precision: str,
    with_gram: bool,
    threads: int,
    progress: _Progress,
    into: NormalEquations | None = None,
) -> Moments: ...
def stream_memories(samples: Samples, threads: int) -> _Floats: ...
def stream_sizes(samples: Samples, threads: int) -> tuple[_Floats, _Floats, int, bool]: ...

class NormalEquations:
    def __init__(self, samples: Samples, *, keep: bool) -> None: ...
    def kronecker_factors(self, threads: int) -> tuple[_Floats, _Floats, _Floats]: ...
    def normal(self, coefficients: _Floats, threads: int) -> tuple[_Floats, _Floats]: ...
    def narrow(self, coefficients: _Floats, threads: int) -> tuple[_Floats, _Floats] | None: ...
    def gradient(self, coefficients: _Floats, threads: int) -> tuple[_Floats, _Floats]: ...

def gram_sizes(
    gram: _Floats, pairs: int, queries: int, triples: bool, d: int
) -> tuple[_Floats, _Floats]: ...
def dense_gram(
    gram: _Floats,
    pairs: int,
    queries: int,
    triples: bool,
    weight: float,
    ridge: float,
    sizes: _Floats | None,
    threads: int,
) -> tuple[_Floats, _Floats, float]: ...
def ritz_values(
    factor: _Floats, scale: _Floats, inverse_steps: int, forward_steps: int, threads: int
) -> tuple[float, float]: ...
def gram_exceeds(
    gram: _Floats,
    pairs: int,
    queries: int,
    triples: bool,
    sizes: _Floats,
    magnitudes: _Floats,
    shift: tuple[float, float, float, float, float],
    threads: int,
) -> bool: ...
def extreme_eigenvalues(diagonal: _Floats, beside: _Floats) -> tuple[float, float]: ...
def multiply_transposed(a: _Floats, b: _Floats, threads: int) -> _Floats: ...
def cholesky_columns(n: int) -> int: ...
def factor_cholesky(matrix: _Floats, threads: int) -> int: ...
def solve_triangular(factor: _Floats, rows: _Floats, transposed: bool, threads: int) -> None: ...
def first_non_finite(tokens: _Storage, offsets: _Offsets, threads: int) -> int: ...
def evaluate_heads(V: _Floats, Q: _Floats, samples: Samples, threads: int) -> _Floats: ...
def evaluate_coefficients(coefficients: _Floats, samples: Samples, threads: int) -> _Floats: ...
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
