"""Types of the compiled CUDA extension; see csrc/cuda. Private: use linattn_fast.

Arrays are anything with ``__cuda_array_interface__`` whose memory is on one device: C order, taken
without a copy. The device is found from the pointers; it is made current for the call and the
previous one restored. Everything is queued on ``stream`` (the pointer of a ``cudaStream_t`` as an
int, 0 for the default stream); nothing is synchronised, so arrays must live until the stream has
passed. The GIL is released while launching. A wrong dtype, order, shape or device raises TypeError
or ValueError, the message beginning with the argument's name; a failed launch raises RuntimeError
with file and line.

Let P be the number of (chosen) pairs and L that of (chosen) queries; p = P L features, numbered
pair * L + query. All sums are float64. The same input gives the same bits, on every run and on
every card with the same instruction (tensor cores or fused multiply-adds).

``workspace`` is, everywhere, at least ``Sizes.workspace_bytes`` bytes of any dtype, contents
irrelevant before and after.
"""

from typing import Any, Final, Literal, Protocol

class CudaArray(Protocol):
    """What CuPy arrays are, and what the tests make of host memory."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Positions = Literal["last", "all", "causal"]
_Operation = Literal[
    "accumulate",
    "keep_samples",
    "kronecker_factors",
    "normal",
    "gradient",
    "evaluate_heads",
    "evaluate_coefficients",
]

def driver_version() -> int:
    """Newest CUDA version the driver supports (13000 for 13.0); 0 where there is no driver."""

def runtime_version() -> int:
    """CUDA runtime that is linked in, 13000 for 13.0."""

def device_count() -> int:
    """Devices that can be used; 0 where there is no driver or no card. Never raises."""

def architectures() -> list[str]:
    """What the kernels are compiled for: "80-real", "90-real", "100-real", "120"."""

class Sizes:
    """What the sizes of results and of memory follow from: numbers, and no arrays.

    ``n_pairs`` and ``n_queries`` are None where all features take part.
    """

    kept_bytes: Final[int]
    """Bytes of all samples, as ``keep_samples`` writes them."""
    gram_size: Final[int]
    """Entries of the compact Gram: those of ``compact.shape``, multiplied."""
    summation_steps: Final[int]
    """Additions that one summand of the Gram goes through in one ``accumulate``, at most."""

    def __init__(
        self,
        *,
        positions: _Positions,
        n_sequences: int,
        n_rows: int,
        d: int,
        d_out: int = 0,
        n_pairs: int | None = None,
        n_queries: int | None = None,
    ) -> None: ...
    def workspace_bytes(
        self, operation: _Operation, *, m: int = 0, d_out: int | None = None, kept: bool = False
    ) -> int:
        """Bytes of workspace that an operation needs, bounded whatever the number of sequences.

        ``m`` is the number of rows of C ("normal") or of heads ("evaluate_heads"). ``d_out`` is
        that of a layer; None: that of the targets. ``kept`` says that samples are given.
        """

class Samples:
    """Tokens with their targets and weights, which of them query, and chosen features.

    Checked when it is made; holds on to the arrays, copies none, and never changes, so that threads
    may share it.

    tokens
        float32 or float64: (N, n, d), or (rows, d) with ``offsets``.
    offsets
        int64 (N + 1,) on the device, from 0 to rows, ascending; None for dense tokens. The values
        are the caller's to check: nothing here reads them on the host.
    targets
        float32 or float64, one row a query, the leading dimensions in any form: (N, d_out) for
        "last", else (rows, d_out) or (N, n, d_out). The dtype need not be that of the tokens. None:
        d_out = 0.
    weights
        float64 (N,), one a sequence, or None.
    pairs, queries
        Chosen pairs (numbers in the upper triangle) and query coordinates, int64 on the device,
        ascending and checked by the caller; both or none. None means all, as
        ``Features.everything``: then the Gram of "all" has the form of triples (compact.py).
    """

    sizes: Final[Sizes]
    """What the sizes of results and of memory follow from."""

    def __init__(
        self,
        *,
        tokens: CudaArray,
        offsets: CudaArray | None = None,
        targets: CudaArray | None = None,
        weights: CudaArray | None = None,
        positions: _Positions,
        pairs: CudaArray | None = None,
        queries: CudaArray | None = None,
    ) -> None: ...

def accumulate(
    samples: Samples,
    *,
    gram: CudaArray | None,
    cross: CudaArray | None,
    energy: CudaArray | None,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Add the moments of samples: gram += .., cross += .., energy += ..

    gram
        float64, any shape with ``Sizes.gram_size`` entries (compact.py); None: not wanted.
    cross
        float64 (d_out, L, P): sum w y_a z_l s_u. Given with targets, else None.
    energy
        float64 (d_out,): sum w y_a^2. Given with targets, else None.

    NaN or infinity in the tokens makes entries of the sums NaN; see ``first_non_finite``.
    """

def first_non_finite(
    tokens: CudaArray, offsets: CudaArray | None, index: CudaArray, stream: int
) -> None:
    """Put the number of the first sequence with NaN or infinity, or -1, into index, int64 (1,).

    Serves any array of numbers as well: (1, 1, size) has one "sequence".
    """

def keep_samples(samples: Samples, *, kept: CudaArray, workspace: CudaArray, stream: int) -> None:
    """Form every sample once, for the passes below: s, queries and weights.

    kept
        ``Sizes.kept_bytes`` bytes of any dtype, at an address that is a multiple of 8.
    """

def kronecker_factors(
    samples: Samples,
    *,
    kept: CudaArray | None,
    of_pairs: CudaArray,
    of_queries: CudaArray,
    diagonal: CudaArray,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Overwrite (P, P) sum w s s', (L, L) sum w z z' and (P, L) sum w s_u^2 z_l^2.

    With ``kept``, here and below, samples are read from there (as ``keep_samples`` left them of the
    same samples); without, they are formed from the tokens again. The results are the same to the
    bit.
    """

def normal(
    samples: Samples,
    *,
    kept: CudaArray | None,
    coefficients: CudaArray,
    product: CudaArray,
    energy: CudaArray,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Overwrite product (m, p) = sum w (C h) h' and energy (m,) = sum w (C h)^2 for C (m, p)."""

def gradient(
    samples: Samples,
    *,
    kept: CudaArray | None,
    coefficients: CudaArray,
    gradient: CudaArray,
    squared_error: CudaArray,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Overwrite gradient (d_out, p) = sum w (y - C h) h' and squared_error (d_out,).

    The samples must have targets.
    """

def evaluate_heads(
    V: CudaArray,
    Q: CudaArray,
    samples: Samples,
    *,
    out: CudaArray,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Overwrite out with sum_h V_h S Q_h z: float64 (N, d_out) for "last", else (rows, d_out).

    V (H, d_out, d) and Q (H, d, d) are float64; the samples have all features, and their targets
    and weights are not read. ``workspace_bytes`` takes m = H and d_out.
    """

def evaluate_coefficients(
    coefficients: CudaArray,
    samples: Samples,
    *,
    out: CudaArray,
    workspace: CudaArray,
    stream: int,
) -> None:
    """Overwrite out with C h, for float64 C (d_out, d (d + 1) / 2 * d); as ``evaluate_heads``."""
