"""Where a certificate finds the range of Lambda when it is asked about single inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .block_coverage import BlockCoverage
from .cancellation import feature_sizes
from .coverage import Coverage, coverage_of_samples
from .device import device_of, on_device
from .features import Features
from .memory import require_memory
from .moments import Moments
from .solve import CholeskyFactor, SpectralFactor, factorise
from .tokens import Floats, Positions, Tokens


@dataclass(frozen=True)
class Source:
    """Moments, data or a factorisation, whichever is at hand; factorised when first asked."""

    features: Features
    moments: Moments | None
    data: tuple[Tokens, Floats | None, Positions] | None = None
    """Tokens, weights and positions, of fewer samples than features."""
    factor: SpectralFactor | None = None
    """From the features themselves, where it was made already."""
    blocks: BlockCoverage | None = None
    """Where the data was solved in blocks: the range of each."""

    def get(self) -> Source:
        """The same, on the host."""
        if self.blocks is not None:  # made there
            return self
        moments = None if self.moments is None else self.moments.get()
        factor = None if self.factor is None else self.factor.get()
        if self.data is None:
            return Source(self.features, moments, None, factor)
        tokens, weights, positions = self.data
        return Source(self.features, moments, (tokens.put(np.zeros(0)), weights, positions), factor)

    @property
    def device(self) -> int | None:
        """Of the moments or the data; None for the host."""
        return device_of(self.moments, *(self.data or ())[:1])

    @cached_property
    def coverage(self) -> Coverage | BlockCoverage:
        """Factorise, once, where the moments or the data are."""
        if self.blocks is not None:
            return self.blocks
        with on_device(self.device):
            return self._factorised()

    def _factorised(self) -> Coverage:
        if self.data is not None:
            tokens, weights, positions = self.data
            n, p = tokens.n_samples(positions), self.features.count
            require_memory(24 * n * p, f"certificate: the features of {n} samples and their range")
            return coverage_of_samples(tokens, weights, positions, self.features)
        assert self.moments is not None
        diagonal = self.moments.gram_diagonal() / self.moments.required_weight()
        if self.factor is not None:
            return Coverage(self.factor, diagonal, self.features)
        made = factorise(
            self.moments.second_moment,
            steps=self.moments.rounding_steps,
            sizes=feature_sizes(self.moments),
        )
        assert isinstance(made.factorisation, CholeskyFactor | SpectralFactor)
        return Coverage(made.factorisation, diagonal, self.features)
