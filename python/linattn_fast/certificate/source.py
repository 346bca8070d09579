"""Where a certificate finds the range of Lambda when it is asked about single inputs.

There are three answers to "is the prediction at Z determined, and how far can it be off?":

1. *Known exactly.* Lambda has full rank, proved, on the features that occur at all; or its rank is
   the exact one of the data (:mod:`linattn_fast.exact.exact_rank`), as many directions as were kept.
   Then an input is in the range or not, exactly, and its leverage has a bound.
2. *The range alone.* The data has directions too weak for float64: an input counts as covered where
   it is in the exact range, and no further out along those directions than a sample can be.
   Leverages are unknown: infinite.
3. *To rounding.* Of moments alone, or more data than can be examined, an input counts as covered
   where it is in the numerical range to rounding. Leverages are unknown: infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays.device import device_of, module_of, on_device, put
from ..arrays.types import Array, Floats, Positions
from ..data.non_finite import may_underflow
from ..data.tokens import Tokens
from ..exact.exact_rank import ModularRange, modular_range
from ..features.features import Features
from ..features.left_out import Occurring
from ..features.samples import Samples
from ..linalg.cholesky import CholeskyFactor
from ..linalg.choosing import factorise
from ..linalg.spectral import SpectralFactor
from ..moments.factors import rounding_steps_of
from ..moments.sums import MomentSums
from ..system.machine import require_memory
from .block_coverage import BlockCoverage
from .coverage import Coverage, coverage_of_samples
from .leverage import (
    LeverageBound,
    bound_from_data,
    bound_from_gram,
    leverages_of,
    rows_of_data,
    summands_of,
    whitener_of,
)

_SHARP = 1e-7
"""Excess of a bound from the Gram up to which the data need not be read for a sharper one."""
Membership: TypeAlias = Callable[[Tokens, Positions], npt.NDArray[np.bool_]]
"""Which queries are in a range, (rows,), exactly."""


@dataclass(frozen=True)
class KnownRange:
    """A range that is known exactly, with a bound on leverages in it."""

    bound: LeverageBound
    contains: Membership


@dataclass(frozen=True)
class Source:
    """Moments, data or a factorisation, whichever is at hand; factorised when first asked."""

    features: Features
    moments: MomentSums | None
    samples: Samples | None = None
    """The data, where it is at hand; not copied."""
    factor: SpectralFactor | None = None
    """From the features themselves, where it was made already."""
    blocks: BlockCoverage | None = None
    """Where the data was solved in blocks: the range of each."""

    def get(self) -> Source:
        """Bring it to the host."""
        if self.blocks is not None:  # made there
            return self
        moments = None if self.moments is None else self.moments.get()
        factor = None if self.factor is None else self.factor.get()
        samples = None if self.samples is None else self.samples.put(np.zeros(0))
        return Source(self.features, moments, samples, factor)

    @property
    def device(self) -> int | None:
        """The CUDA device of the moments or the data; None for the host."""
        return device_of(self.moments, None if self.samples is None else self.samples.tokens)

    # ------------------------------------------------------------------------------ what is at hand

    @cached_property
    def coverage(self) -> Coverage | BlockCoverage:
        """Factorise, once, where the moments or the data are."""
        if self.blocks is not None:
            return self.blocks
        with on_device(self.device):
            return self._factorised()

    def _factorised(self) -> Coverage:
        if self.moments is None:
            assert self.samples is not None
            n, p = self.samples.n_samples, self.features.count
            require_memory(24 * n * p, f"certificate: the features of {n} samples and their range")
            return coverage_of_samples(self.samples)
        diagonal = self.moments.gram_diagonal() / self.moments.required_weight()
        if self.factor is not None:
            return Coverage(self.factor, diagonal, self.features)
        made = factorise(
            self.moments.second_moment,
            steps=rounding_steps_of(self.moments),
            sizes=self.moments.feature_sizes(),
        )
        assert isinstance(made.factorisation, CholeskyFactor | SpectralFactor)
        return Coverage(made.factorisation, diagonal, self.features)

    @cached_property
    def exact(self) -> ModularRange | None:
        """The exact range of the data, where that is at hand and not too much."""
        return None if self.samples is None else modular_range(self.samples)

    @cached_property
    def known(self) -> KnownRange | None:
        """The exact range with a bound on leverages; None where either is unknown."""
        with on_device(self.device):
            return self._known()

    def _known(self) -> KnownRange | None:
        occurring = self._occurring
        from_gram = None
        if self.moments is not None:
            from_gram = bound_from_gram(self.moments, occurring.mask.reshape(-1))
        sharp = from_gram is not None and from_gram.excess <= _SHARP
        samples = self.samples
        if samples is not None and not sharp and not may_underflow(samples.tokens).any():
            from_data = bound_from_data(
                whitener_of(self._numerical.factor),
                lambda: rows_of_data(samples),
                samples.n_samples,
                samples.longest,
            )
            if from_data is not None and from_data.rank == occurring.count:
                return KnownRange(from_data, occurring.are_all_of)
            exact = None if from_data is None else self.exact
            if from_data is not None and exact is not None and exact.rank == from_data.rank:
                return KnownRange(from_data, exact.contains)
        return None if from_gram is None else KnownRange(from_gram, occurring.are_all_of)

    @property
    def _occurring(self) -> Occurring:
        """Which features are not zero in every sample."""
        if self.samples is not None:
            return Occurring.in_data(self.samples.tokens, self.samples.positions, self.features)
        assert self.moments is not None
        moments = self.moments
        return Occurring.in_sums(
            moments.summand_sizes(), self.features, underflow=moments.accumulation.underflow
        )

    @property
    def _numerical(self) -> Coverage:
        """The factorisation of data that is not in blocks."""
        assert isinstance(self.coverage, Coverage)
        return self.coverage

    # ---------------------------------------------------------------------------- what is asked for

    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Distance of each query's features from the numerical range, relative: (rows,)."""
        return self.coverage.residuals(tokens, positions)

    def covered(self, tokens: Tokens, positions: Positions) -> Array:
        """Which queries are in the range, (rows,) of bool, by the three answers above."""
        if self.blocks is not None:
            return self.blocks.covered(tokens, positions)
        if self.known is not None:
            with on_device(self.device):
                for _ in summands_of(self.features, tokens.put(self._place), positions):
                    pass  # features that are not finite are an error
                inside: Array = put(self.known.contains(tokens, positions), like=self._place)
            return inside
        exact = self.exact
        if exact is None:
            return self._numerical.covered(tokens, positions)
        near = self._numerical.covered(tokens, positions, most=self._most)
        with on_device(self.device):
            near &= put(exact.contains(tokens, positions), like=near)
        return near

    @property
    def _most(self) -> float:
        """W over the smallest weight: the most that the leverage of a sample can be."""
        assert self.samples is not None
        weights = self.samples.weights
        if weights is None:
            return float(self.samples.n_samples)
        return self.samples.total_weight / float(weights[weights > 0].min())

    def leverages(self, tokens: Tokens, positions: Positions) -> Floats:
        """At least h' Lambda^+ h of each query, (rows,); infinite outside the range, or unknown."""
        if self.blocks is not None:
            return self.blocks.leverages(tokens, positions)
        known = self.known
        with on_device(self.device):
            at_home = tokens.put(self._place)
            bound = None if known is None else known.bound
            leverages = leverages_of(bound, self.features, at_home, positions)
            if known is None:
                return leverages
            inside = put(known.contains(tokens, positions), like=leverages)
            chosen: Floats = module_of(leverages).where(inside, leverages, np.inf)
        return chosen

    @property
    def _place(self) -> Array:
        """Some array that is where the moments or the data are."""
        if self.moments is not None:
            return self.moments.gram_diagonal()
        assert self.samples is not None
        return self.samples.tokens.arrays[0]
