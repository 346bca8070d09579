"""The compiled CPU backend: C++ kernels behind the interface of :class:`Backend`.

Below it, the normal equations in compiled code: :class:`NormalOperator` over packed samples.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays.compiled import core
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens
from ..features import compact
from ..features.accumulation import Accumulation, summand_sizes
from ..features.cubic import head_coefficients
from ..features.samples import Samples
from ..system.machine import get_num_threads, unknown_blas
from ..system.progress import Progress
from .interface import Precision, divergence_error, require_finite_outputs, sizes_of
from .normal_operator import Gradient, KroneckerFactors, NormalProduct
from .totals import Totals

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


def _compiled(samples: Samples) -> core.Samples:
    """Samples as the extension takes them."""
    targets, features = samples.targets, samples.features
    return core.Samples(
        tokens=samples.tokens.storage,
        offsets=samples.tokens.offsets,
        targets=None if targets is None else targets.storage,
        target_offsets=None if targets is None else targets.offsets,
        weights=samples.weights,
        positions=samples.positions,
        pairs=None if features.everything else features.pair_numbers,
        queries=None if features.everything else features.queries,
    )


def _queries(tokens: Tokens, positions: Positions) -> core.Samples:
    """Tokens that a layer is applied to, as the extension takes them."""
    return core.Samples(
        tokens=tokens.storage,
        offsets=tokens.offsets,
        targets=None,
        target_offsets=None,
        weights=None,
        positions=positions,
        pairs=None,
        queries=None,
    )


class CpuBackend:
    """Moments and layers in compiled code, on all threads, with the GIL released."""

    name = "cpu"
    on_device = False

    def moments(
        self,
        samples: Samples,
        precision: Precision = "float64",
        *,
        with_gram: bool = True,
        progress: Progress = None,
    ) -> Totals:
        """See :meth:`Backend.moments`: csrc/core/moments.cpp counts roundings where they happen."""
        threads = get_num_threads()
        tokens, chosen = samples.tokens, samples.features
        shape = compact.shape(chosen, samples.positions) if with_gram else (0,)
        work = samples.n_columns * math.prod(shape)
        if work > 20 * _WORK_PER_NUMBER * tokens.n_rows * tokens.d:
            bad = core.first_non_finite(tokens.storage, tokens.offsets, threads)
            if bad >= 0:
                raise non_finite_error(tokens, bad)
        try:
            found = core.accumulate(
                _compiled(samples),
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
                raise non_finite_error(tokens, others=sizes_of(samples))
        return Totals(
            found.gram.reshape(shape),
            found.cross,
            found.energy,
            n_samples=samples.n_samples,
            total_weight=samples.total_weight,
            accumulation=Accumulation(
                *found.roundings, samples.longest, found.underflow, samples.largest_weight
            ),
            magnitudes=found.sizes if with_gram and not chosen.everything else None,
            scalar_targets=samples.scalar_targets,
        )

    summand_sizes = staticmethod(summand_sizes)

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`: there is one way."""
        return ""

    def memory(self) -> int | None:
        """See :meth:`Backend.memory`: that of the host."""
        return None

    def normal_operator(self, samples: Samples, *, keep: bool) -> CpuNormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return CpuNormalOperator(samples, keep=keep)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.heads`."""
        if _coefficients_are_cheaper(V, tokens, positions):
            with np.errstate(all="ignore"):  # heads may be finite where their products are not
                C = head_coefficients(V, Q)
            if np.isfinite(C).all():
                y = self._apply_coefficients(C, tokens, positions)
                return require_finite_outputs(y, tokens, {"V": V, "Q": Q})
        try:
            y = core.evaluate_heads(V, Q, _queries(tokens, positions), get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(tokens) from None
        return require_finite_outputs(y, tokens, {"V": V, "Q": Q})

    def coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.coefficients`."""
        y = self._apply_coefficients(C, tokens, positions)
        return require_finite_outputs(y, tokens, {"coefficients": C})

    def _apply_coefficients(self, C: Floats, tokens: Tokens, positions: Positions) -> Floats:
        try:
            return core.evaluate_coefficients(C, _queries(tokens, positions), get_num_threads())
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


class CpuNormalOperator:
    """Passes over blocks of samples, on all threads, with the GIL released.

    Parameters
    ----------
    samples
        A checked batch with targets, which must not change while this object is in use.
    keep
        Hold on to the packed samples after the first pass; else every pass makes them from the
        tokens.
    """

    def __init__(self, samples: Samples, *, keep: bool) -> None:
        self.features = samples.features
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.total_weight = samples.total_weight
        self._tokens = samples.tokens
        self._equations = core.NormalEquations(_compiled(samples), keep=keep)

    def _finite(self, *arrays: Floats) -> tuple[Floats, ...]:
        if not all(np.isfinite(array).all() for array in arrays):
            raise non_finite_error(self._tokens)
        return arrays

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        try:
            sums = self._equations.kronecker_factors(get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return KroneckerFactors(*self._finite(*sums))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        try:
            sums = self._equations.normal(C, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return NormalProduct(*self._finite(*sums))

    def narrow(self, C: Floats) -> NormalProduct | None:
        """See :meth:`NormalOperator.narrow`: for samples that a first pass has kept."""
        sums = self._equations.narrow(C, get_num_threads())
        if sums is None or not all(np.isfinite(array).all() for array in sums):
            return None
        return NormalProduct(*sums)

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        try:
            sums = self._equations.gradient(C, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return Gradient(*self._finite(*sums))
