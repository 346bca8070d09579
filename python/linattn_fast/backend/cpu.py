"""The compiled CPU backend: C++ kernels behind the interface of :class:`Backend`."""

from __future__ import annotations

import math

import numpy as np

from ..arrays.compiled import core
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens
from ..features import compact
from ..features.accumulation import summand_sizes
from ..features.features import Features, head_coefficients
from ..system.progress import Progress
from ..system.threads import get_num_threads, unknown_blas
from .cpu_normal import CpuNormalOperator, compiled_samples
from .interface import (
    BatchMoments,
    Precision,
    Roundings,
    divergence_error,
    require_finite_outputs,
    sizes_of,
)

# Reading a number from memory costs about as much as this many multiply-adds. Where the Gram costs
# twenty times more than one reading of the tokens, they are read once before, so that NaN is
# reported at once; elsewhere it is found while the work is done, and nothing is kept.
_WORK_PER_NUMBER = 20


def describe() -> str:
    """Instruction set and threads in words; a wrong ``LINATTN_ISA`` raises ValueError."""
    current = core.instruction_set()
    others = [
        name if supported else f"{name} (not on this processor)"
        for name, supported in core.instruction_sets()
        if name != current
    ]
    rest = f"; also compiled: {', '.join(others)}" if others else ""
    blas = unknown_blas()
    bits = f"; same bits for one setting of the threads of {blas} only" if blas else ""
    return f"C++ kernels for {current}, {get_num_threads()} threads{rest}{bits}"


def _coefficients_are_cheaper(V: Floats, tokens: Tokens, positions: Positions) -> bool:
    """Whether heads are applied with fewer multiply-adds as coefficients, forming those included.

    csrc/core/layer.cpp has what heads cost for one query, many, and every prefix; with coefficients
    the map sum_h V_h S Q_h of one S costs d_out d q, for any number of queries.
    """
    H, d_out, d = V.shape
    with_coefficients = d_out * d * (d * (d + 1) // 2)
    with_heads = H * (2 * d * d + d * d_out)
    if positions == "all":
        queries = tokens.n_rows // len(tokens)
        with_heads = min(queries * with_heads, 2 * H * d_out * d * d)
    elif positions == "causal":
        with_heads = H * (d * d + 2 * d * d_out)
    sums = tokens.n_rows if positions == "causal" else len(tokens)
    return bool(sums * with_coefficients + H * d_out * d**3 < sums * with_heads)


class CpuBackend:
    """Moments and layers in compiled code, on all threads, with the GIL released."""

    name = "cpu"
    underflow = False
    magnitudes: Floats | None = None

    def __init__(self) -> None:
        self._roundings = Roundings(0, 0)

    def moments(
        self,
        tokens: Tokens,
        targets: Tokens | None,
        weights: Floats | None,
        positions: Positions = "last",
        precision: Precision = "float64",
        *,
        features: Features | None = None,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> BatchMoments:
        """See :meth:`Backend.moments`."""
        threads = get_num_threads()
        chosen = Features(tokens.d) if features is None else features
        size = math.prod(compact.shape(chosen, positions)) if with_gram else 0
        samples = tokens.n_rows if positions == "causal" else len(tokens)
        if samples * size > 20 * _WORK_PER_NUMBER * tokens.n_rows * tokens.d:
            bad = core.first_non_finite(tokens.storage, tokens.offsets, threads)
            if bad >= 0:
                raise non_finite_error(tokens, bad)
        try:
            found = core.accumulate(
                compiled_samples(tokens, targets, weights, positions, chosen),
                precision=precision,
                with_gram=with_gram,
                threads=threads,
                progress=progress,
            )
        except core.NonFiniteError:
            raise non_finite_error(tokens) from None
        # S was finite, so what is not finite now has overflowed.
        for total in (found.gram, found.cross, found.energy, found.sizes):
            if total.size and core.first_non_finite(total.reshape(1, 1, -1), None, threads) >= 0:
                raise non_finite_error(tokens, others=sizes_of(targets, weights))
        gram = found.gram.reshape(compact.shape(chosen, positions)) if with_gram else found.gram
        self._roundings, self.underflow = Roundings(*found.roundings), found.underflow
        self.magnitudes = found.sizes if with_gram and not chosen.everything else None
        return BatchMoments(gram, found.cross, found.energy)

    def roundings(self, n_samples: int, precision: Precision) -> Roundings:
        """See :meth:`Backend.roundings`: csrc/core/moments.cpp counts them where they happen."""
        return self._roundings

    summand_sizes = staticmethod(summand_sizes)

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`."""
        return ""

    def normal_operator(
        self,
        tokens: Tokens,
        targets: Tokens,
        weights: Floats | None,
        positions: Positions,
        features: Features,
        *,
        keep: bool,
    ) -> CpuNormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return CpuNormalOperator(tokens, targets, weights, positions, features, keep=keep)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.heads`."""
        if _coefficients_are_cheaper(V, tokens, positions):
            with np.errstate(all="ignore"):  # heads may be finite where their products are not
                C = head_coefficients(V, Q)
            if np.isfinite(C).all():
                y = self._apply_coefficients(C, tokens, positions)
                return require_finite_outputs(y, tokens, {"V": V, "Q": Q})
        try:
            samples = compiled_samples(tokens, positions=positions)
            y = core.evaluate_heads(V, Q, samples, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(tokens) from None
        return require_finite_outputs(y, tokens, {"V": V, "Q": Q})

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.coefficients`."""
        y = self._apply_coefficients(C, tokens, positions)
        return require_finite_outputs(y, tokens, {"coefficients": C})

    def _apply_coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        try:
            samples = compiled_samples(tokens, positions=positions)
            return core.evaluate_coefficients(C, samples, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(tokens) from None

    def generate(
        self, V: Floats, Q: Floats, prompts: Floats, steps: int, decimals: int | None
    ) -> Floats:
        """See :meth:`Backend.generate`."""
        try:
            Z = core.generate(V, Q, prompts, steps, decimals, get_num_threads())
        except core.NonFiniteError:
            raise divergence_error() from None
        if not np.isfinite(Z).all():
            raise divergence_error()
        return Z
