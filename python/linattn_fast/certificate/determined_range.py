"""The range of Lambda, which a certificate consults when it is asked about single inputs.

There are three answers to "is the prediction at Z determined, and how far can it be off?":

1. *The range is known exactly, and leverages are bounded.* Lambda is proved to have full rank on
   the features that occur at all; or the exact rank of the data
   (:mod:`linattn_fast.exact.exact_rank`) equals the number of directions that were kept. Then an
   input is in the range or not, exactly, and its leverage has a bound.
2. *The range is known exactly, leverages are not.* The data has directions too weak for float64. An
   input counts as covered where it is in the exact range, and no further out along those directions
   than a sample can be. Leverages are unknown, and infinite.
3. *The range is known up to rounding.* There are only moments, or more data than can be examined.
   An input counts as covered where it is in the numerical range up to rounding. Leverages are
   unknown, and infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..arrays.device import device_of, module_of, on_device, put
from ..arrays.types import Array, Floats, Mask, Positions
from ..backend.choice import get_backend
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
from ..solvers.costs import estimate_memory
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
"""Relative excess of a bound from the Gram up to which no sharper one is sought in the data."""


class BoundedRange(NamedTuple):
    """An exact range with a bound on the leverages of inputs in it."""

    bound: LeverageBound
    contains: Callable[[Tokens, Positions], Mask]
    """Which queries are in the range, (rows,), exactly."""


@dataclass(frozen=True)
class DeterminedRange:
    """The range of Lambda, from whatever is at hand; factorised at the first question."""

    features: Features
    moments: MomentSums | None
    samples: Samples | None = None
    """The data, where it is at hand; not copied."""
    factor: SpectralFactor | None = None
    """Factorisation from the features themselves, if a fit has made one already."""
    blocks: BlockCoverage | None = None
    """The range of each block, where the data was solved in blocks."""

    def get(self) -> DeterminedRange:
        """Copy the range to the host, with all its arrays."""
        if self.blocks is not None:  # always on the host
            return self
        moments = None if self.moments is None else self.moments.get()
        factor = None if self.factor is None else self.factor.get()
        samples = None if self.samples is None else self.samples.put(np.zeros(0))
        return DeterminedRange(self.features, moments, samples, factor)

    @cached_property
    def sums(self) -> MomentSums | None:
        """The moments of the data, summed at the first question where a fit did without them.

        None for fewer samples than features, whose features themselves are decomposed.
        """
        samples = self.samples
        if self.moments is not None or samples is None:
            return self.moments
        if samples.n_samples < self.features.count:
            return None
        needed = estimate_memory(self.features.d, 0, features=self.features)["cholesky"]
        require_memory(needed, "certificate: the moments and the range of the data")
        return MomentSums.over(samples, get_backend("auto", samples.tokens), "float64")

    @property
    def device(self) -> int | None:
        """The CUDA device of the moments or the data; None for the host."""
        return device_of(self.moments, None if self.samples is None else self.samples.tokens)

    # ----------------------------------------------------------------------------------- the ranges

    @cached_property
    def coverage(self) -> Coverage | BlockCoverage:
        """The numerical range, factorised once on the device of the moments or the data."""
        if self.blocks is not None:
            return self.blocks
        with on_device(self.device):
            return self._factorised()

    def _factorised(self) -> Coverage:
        if self.sums is None:
            assert self.samples is not None
            n, p = self.samples.n_samples, self.features.count
            require_memory(24 * n * p, f"certificate: the features of {n} samples and their range")
            return coverage_of_samples(self.samples)
        diagonal = self.sums.gram_diagonal() / self.sums.required_weight()
        if self.factor is not None:
            return Coverage(self.factor, diagonal, self.features)
        made = factorise(
            self.sums.second_moment,
            steps=rounding_steps_of(self.sums),
            sizes=self.sums.feature_sizes(),
        )
        assert isinstance(made.factorisation, CholeskyFactor | SpectralFactor)
        return Coverage(made.factorisation, diagonal, self.features)

    @cached_property
    def exact(self) -> ModularRange | None:
        """The exact range of the data; None where there is no data, or too much of it."""
        return None if self.samples is None else modular_range(self.samples)

    @cached_property
    def bounded(self) -> BoundedRange | None:
        """The exact range with a bound on leverages; None where either is unknown."""
        with on_device(self.device):
            return self._bounded()

    def _bounded(self) -> BoundedRange | None:
        occurring = self._occurring
        from_gram = None
        if self.sums is not None:
            from_gram = bound_from_gram(self.sums, occurring.mask.reshape(-1))
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
                return BoundedRange(from_data, occurring.are_all_of)
            exact = None if from_data is None else self.exact
            if from_data is not None and exact is not None and exact.rank == from_data.rank:
                return BoundedRange(from_data, exact.contains)
        return None if from_gram is None else BoundedRange(from_gram, occurring.are_all_of)

    @property
    def _occurring(self) -> Occurring:
        """Features that are not zero in every sample."""
        if self.samples is not None:
            return Occurring.in_data(self.samples.tokens, self.samples.positions, self.features)
        assert self.sums is not None
        moments = self.sums
        return Occurring.in_sums(
            moments.summand_sizes(), self.features, underflow=moments.accumulation.underflow
        )

    @property
    def _numerical(self) -> Coverage:
        """The factorisation of data that is not in blocks."""
        assert isinstance(self.coverage, Coverage)
        return self.coverage

    # ------------------------------------------------------------------------------------ questions

    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Relative distance of each query's features from the numerical range, (rows,)."""
        return self.coverage.residuals(tokens, positions)

    def covered(self, tokens: Tokens, positions: Positions) -> Array:
        """Which queries are in the range, (rows,) of bool, by the three answers above."""
        if self.blocks is not None:
            return self.blocks.covered(tokens, positions)
        if self.bounded is not None:
            with on_device(self.device):
                for _ in summands_of(self.features, tokens.put(self._place), positions):
                    pass  # features that are not finite are an error
                inside: Array = put(self.bounded.contains(tokens, positions), like=self._place)
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
        """Upper bounds on h' Lambda^+ h of each query, (rows,); infinite where none is known."""
        if self.blocks is not None:
            return self.blocks.leverages(tokens, positions)
        bounded = self.bounded
        with on_device(self.device):
            at_home = tokens.put(self._place)
            bound = None if bounded is None else bounded.bound
            leverages = leverages_of(bound, self.features, at_home, positions)
            if bounded is None:
                return leverages
            inside = put(bounded.contains(tokens, positions), like=leverages)
            chosen: Floats = module_of(leverages).where(inside, leverages, np.inf)
        return chosen

    @property
    def _place(self) -> Array:
        """Some array on the device of the moments or the data."""
        if self.sums is not None:
            return self.sums.gram_diagonal()
        assert self.samples is not None
        return self.samples.tokens.arrays[0]
