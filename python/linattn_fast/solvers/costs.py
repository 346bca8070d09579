"""Which solver "auto" takes: a model of flops and bytes, and what memory allows.

    cholesky   Gram N q^2 k^2 / 2 (all: N q^3 / 3), factorisation p^3 / 3, twice with a certificate
    dual       kernel 2 N^2 q, factorisation N^3 / 3
    pcg        Kronecker factors N q^2, their eigenvectors 10 q^3, passes 4 N q k d_out each

with N samples, q pairs, k queries and p = q k features. The number of passes follows from the
spectrum that random features would have: with r = sqrt(p / N), the whitened second moment has the
condition number ((1 + r) / (1 - r))^2, and conjugate gradients need half its root times
log(2 / tolerance) iterations.

- Fewer samples than features: the dual, which gives the solution of least norm directly.
- A certificate is asked for: Cholesky and its proof wherever that fits and takes no longer than
  ``PATIENCE`` seconds or four times as long as PCG, whose certificate is an estimate.
- Otherwise whichever is predicted to be faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arrays.types import Positions
from ..features.features import Features
from ..system.machine import in_words, usable_cores, usable_memory
from .conjugate_gradients.restarts import TOLERANCE
from .memory import estimate_memory

# Printed by bench/rates.py, per thread: two threads of an AMD EPYC, AVX-512, peak 116 GFlop/s
GRAM_RATE = 48e9
"""Flops a second of the compact Gram."""
PASS_RATE = 47e9
"""Flops a second of a pass of conjugate gradients."""
LAPACK_RATE = 38e9
"""Flops a second of Cholesky, and of the eigendecomposition counted as 10 q^3."""
BYTES_RATE = 3e9
"""Bytes a second when a dense matrix is written out from the compact Gram."""

_SVD = 22
"""Multiples of p^3 flops that an SVD with vectors takes."""
PATIENCE = 20.0
"""Seconds that a proof is worth."""
_WORTH = 4.0
"""How much longer than PCG a proof may take beyond that."""
_HEAVY_TAILS = 1.4
"""Cubic features need so many times the iterations of Gaussian ones."""
_LARGEST_ROOT = 50.0
"""Of the condition number: few samples a feature."""


@dataclass(frozen=True)
class Costs:
    """Predicted seconds of each solver."""

    cholesky: float
    dual: float
    pcg: float


def predicted_iterations(features: Features, n_samples: int) -> int:
    """Iterations of one solve."""
    r = math.sqrt(features.count / n_samples)
    root = min((1 + r) / (1 - r), _LARGEST_ROOT) if r < 1 else _LARGEST_ROOT
    return math.ceil(_HEAVY_TAILS * 0.5 * root * math.log(2 / TOLERANCE))


def predict(
    features: Features,
    d_out: int,
    positions: Positions,
    n_samples: int,
    columns: int,
    *,
    proof: bool,
) -> Costs:
    """Seconds of each solver on all cores; ``columns`` are samples, or sequences for "all".

    Not on the threads that are set: solvers differ in the last bits, and results are to have the
    same ones for every number of threads.
    """
    q, k, p, threads = features.n_pairs, features.n_queries, features.count, usable_cores()
    triples = positions == "all" and features.everything
    gram = columns * (q**3 / 3 if triples else q * q * k * k / 2)
    factor = (2 if proof else 1) * p**3 / 3
    dense = 8 * p * p * (4 if proof else 2) / BYTES_RATE
    n = n_samples
    passes = 2 * predicted_iterations(features, n) + 4
    one_pass = 4 * columns * p / PASS_RATE + 4 * p * (q + k) / LAPACK_RATE
    setup = columns * q * q / GRAM_RATE + 10 * q**3 / LAPACK_RATE
    return Costs(
        cholesky=(gram / GRAM_RATE + factor / LAPACK_RATE) / threads + dense,
        dual=(2 * n * n * q + n**3 / 3) / LAPACK_RATE / threads + 8 * n * n / BYTES_RATE,
        pcg=(setup + passes * d_out * one_pass) / threads,
    )


def predict_orthogonal(features: Features, n_samples: int) -> float:
    """Seconds of solver "qr": a triangle of the features, and its singular values and vectors."""
    p = features.count
    return (2 * n_samples * p**2 + _SVD * p**3) / LAPACK_RATE


def _refusal(features: Features, estimate: dict[str, int], limit: int | None) -> MemoryError:
    available = usable_memory() if limit is None else limit
    source = "this machine has" if limit is None else "memory_limit is"
    needs = ", ".join(f"{name!r} needs {in_words(size)}" for name, size in estimate.items())
    return MemoryError(
        f"fit: d = {features.d} ({features.count} features), no solver is possible: {needs}; "
        f"{source} {in_words(available)}"
    )


def choose_solver(
    features: Features,
    d_out: int,
    positions: Positions,
    n_samples: int,
    columns: int,
    *,
    certify: bool,
    memory_limit: int | None,
) -> tuple[str, str]:
    """Choose "cholesky", "dual" or "pcg", and say why.

    Raises
    ------
    MemoryError
        None of them fits; the message has what each would need.
    """
    estimate = estimate_memory(
        features.d, d_out, positions=positions, n_samples=n_samples, features=features
    )
    limit = usable_memory() if memory_limit is None else memory_limit
    considered = {name: estimate[name] for name in ("cholesky", "dual", "pcg")}
    possible = [name for name, size in considered.items() if size <= limit]
    if not possible:
        raise _refusal(features, considered, memory_limit)
    p = features.count
    if n_samples < p and "dual" in possible:
        return "dual", f"{n_samples} samples are fewer than the {p} features"
    if "cholesky" not in possible:
        first = "pcg" if "pcg" in possible else "dual"
        size = in_words(estimate["cholesky"])
        return first, f"Cholesky needs {size}, more than the {in_words(limit)} that may be used"
    if "pcg" not in possible:
        size = in_words(estimate["pcg"])
        return "cholesky", f"PCG needs {size}, more than the {in_words(limit)} that may be used"
    costs = predict(features, d_out, positions, n_samples, columns, proof=certify)
    told = f"predicted {costs.cholesky:.2g} s by Cholesky and {costs.pcg:.2g} s by PCG"
    if certify and costs.cholesky <= max(PATIENCE, _WORTH * costs.pcg):
        return "cholesky", f"{told}, which proves nothing"
    return ("pcg" if costs.pcg < costs.cholesky else "cholesky"), told
