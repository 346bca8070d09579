"""The compiled CPU backend, and the normal equations of a batch in compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.compiled import core
from ..arrays.floats import all_finite
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.states import States
from ..data.tokens import Tokens
from ..features import compact
from ..features.accumulation import (
    Accumulation,
    sizes_are_apart,
    summand_sizes,
)
from ..features.cubic import head_coefficients
from ..features.samples import Samples
from ..system.machine import get_num_threads, unknown_blas
from ..system.progress import Progress
from .interface import Precision, divergence_error, require_finite_outputs, sizes_of
from .normal_operator import Gradient, KroneckerFactors, NormalProduct
from .state_layer import apply_coefficients, apply_heads
from .totals import Totals

_WORK_PER_NUMBER = 20
"""Multiply-adds that take about as long as reading one number from memory."""
_READINGS = 20
"""How many readings of the tokens a Gram must cost before they are read once in advance, so that
NaN is reported at once; elsewhere it is found while the work is done."""
_WORTH_A_THREAD = 1 << 21
"""Products of a coefficient and a feature below which a pass ends before a second thread starts."""


def describe() -> str:
    """Describe instruction set and threads; a wrong ``LINATTN_ISA`` raises ValueError."""
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
    """Whether forming and applying coefficients takes fewer multiply-adds than applying heads.

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


def _first_non_finite(tokens: Tokens, threads: int) -> int:
    """The first sequence with NaN or infinity; -1 if there is none."""
    if not isinstance(tokens, States):
        return core.first_non_finite(tokens.storage, tokens.offsets, threads)
    arrays = (array if array.ndim == 3 else array[:, None] for array in tokens.arrays)
    found = [core.first_non_finite(array, None, threads) for array in arrays]
    return min((i for i in found if i >= 0), default=-1)


def _stream_sizes(samples: Samples) -> tuple[Floats, int, bool]:
    """Bounds on sum w A_u^2 c_l^2, (n_pairs, n_queries), from sums of squares of keys and values.

    With alpha and beta the gated sums of a_j^2 and b_k^2, A[j,k]^2 <= alpha_j beta_k, and the sum
    of w alpha_j beta_k c_l^2 is at most the root of sum w alpha_j^2 c_l^2 times sum w beta_k^2
    c_l^2. Also the number of roundings, besides those of alpha and beta, and whether one underflowed.
    """
    values, keys, additions, lost = core.stream_sizes(samples.compiled, get_num_threads())
    roots, of_keys = np.sqrt(values), np.sqrt(keys)
    if samples.tokens.kind.symmetric:  # type: ignore[attr-defined]  # states
        j, k = np.triu_indices(len(keys))
        sizes = roots[j] * of_keys[k]
    else:
        sizes = (roots[:, None] * of_keys).reshape(-1, keys.shape[1])
    return sizes, additions + 8, lost


def _queries(tokens: Tokens, positions: Positions) -> core.Samples:
    """Tokens that a layer is applied to, as the extension takes them."""
    return core.Samples(tokens=tokens.storage, offsets=tokens.offsets, positions=positions)


class CpuBackend:
    """Moments and layers in compiled code, on all threads, with the GIL released."""

    name = "cpu"
    on_device = False
    summand_sizes = staticmethod(summand_sizes)

    def path(self, precision: Precision) -> str:
        """See :meth:`Backend.path`: there is one way."""
        return ""

    def moments(
        self, samples: Samples, precision: Precision = "float64", progress: Progress = None
    ) -> Totals:
        """See :meth:`Backend.moments`: csrc/core/moments.cpp counts roundings where they happen."""
        threads = get_num_threads()
        tokens, chosen = samples.tokens, samples.features
        shape = compact.shape(chosen, samples.positions)
        work = samples.n_columns * math.prod(shape)
        if work > _READINGS * _WORK_PER_NUMBER * tokens.n_rows * tokens.d:
            bad = _first_non_finite(tokens, threads)
            if bad >= 0:
                raise non_finite_error(tokens, bad)
        try:
            found = core.accumulate(
                samples.compiled,
                precision=precision,
                with_gram=True,
                threads=threads,
                progress=progress,
            )
        except core.NonFiniteError:
            raise non_finite_error(tokens) from None
        if not found.finite:  # S was, so this has overflowed
            raise non_finite_error(tokens, others=sizes_of(samples))
        wide, narrow = found.roundings
        underflow = found.underflow
        sizes = None if chosen.everything else found.sizes
        if sizes_are_apart(samples):
            sizes, additions, lost = _stream_sizes(samples)
            wide, underflow = max(wide, additions), underflow or lost
        return Totals(
            found.gram.reshape(shape),
            found.cross,
            found.energy,
            n_samples=samples.n_samples,
            total_weight=samples.total_weight,
            accumulation=Accumulation(
                wide, narrow, samples.longest, underflow, samples.largest_weight
            ),
            magnitudes=sizes,
            scalar_targets=samples.scalar_targets,
        )

    def normal_operator(self, samples: Samples, *, keep: bool) -> CpuNormalOperator:
        """See :meth:`Backend.normal_operator`."""
        return CpuNormalOperator(samples, keep=keep)

    def heads(self, V: Floats, Q: Floats, tokens: Tokens, positions: Positions) -> Floats:
        """See :meth:`Backend.heads`."""
        if isinstance(tokens, States):
            return apply_heads(V, Q, tokens)
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
        if isinstance(tokens, States):
            return apply_coefficients(C, tokens)
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
    """The normal equations of a batch, on all threads, with the GIL released.

    Parameters
    ----------
    samples
        A checked batch with targets, which must not change while this object is in use.
    keep
        Whether to keep the packed samples after the first pass; else every pass packs them
        again from the tokens.
    """

    def __init__(self, samples: Samples, *, keep: bool) -> None:
        self.features = samples.features
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.total_weight = samples.total_weight
        self._tokens = samples.tokens
        self._work = samples.n_columns * samples.features.count  # for each row of coefficients
        self._equations = core.NormalEquations(samples.compiled, keep=keep)

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        return KroneckerFactors(*self._pass(self._equations.kronecker_factors))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        return NormalProduct(*self._pass(self._equations.normal, C))

    def narrow(self, C: Floats) -> NormalProduct | None:
        """See :meth:`NormalOperator.narrow`: for samples that a first pass has kept."""
        sums = self._equations.narrow(C, get_num_threads())
        if sums is None or not all(np.isfinite(array).all() for array in sums):
            return None
        return NormalProduct(*sums)

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        return Gradient(*self._pass(self._equations.gradient, C))

    def _pass(self, operation: Callable[..., Any], *arrays: Floats) -> tuple[Floats, ...]:
        """Make one pass over the samples; raise where its sums are not finite."""
        small = sum(map(len, arrays)) * self._work < _WORTH_A_THREAD and arrays
        threads = 1 if small else get_num_threads()
        try:
            sums: tuple[Floats, ...] = operation(*arrays, threads)
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        if not all(map(all_finite, sums)):
            raise non_finite_error(self._tokens)
        return sums
