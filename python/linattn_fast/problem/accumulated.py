"""The data of a fit that is gone but for its moments: accumulated before, or read only once."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.types import Positions
from ..backend.choice import get_backend
from ..backend.interface import Backend, Precision
from ..features.features import Features
from ..moments.moments import Moments
from .in_memory import InMemory
from .interface import Passes, Report


@dataclass(frozen=True)
class Accumulated:
    """Moments in the place of the data; see :class:`Problem`."""

    sums: Moments

    note = ""
    samples = None
    read = None
    modular = None
    gradient = None
    bytes_to_gather = 0

    @property
    def features(self) -> Features:
        """See :attr:`Problem.features`."""
        return self.sums.features

    @property
    def positions(self) -> Positions:
        """See :attr:`Problem.positions`."""
        return self.sums.positions

    @property
    def d_out(self) -> int:
        """See :attr:`Problem.d_out`."""
        return self.sums.d_out

    @property
    def engine(self) -> Backend:
        """See :attr:`Problem.engine`."""
        return get_backend(self.sums.backend, self.sums)

    @property
    def precision(self) -> Precision:
        """See :attr:`Problem.precision`."""
        return self.sums.precision

    @property
    def n_samples(self) -> int:
        """See :attr:`Problem.n_samples`."""
        return self.sums.n_samples

    @property
    def n_columns(self) -> int:
        """See :attr:`Problem.n_columns`: never asked, since the sums are formed."""
        return self.sums.n_samples

    @property
    def scalar_targets(self) -> bool:
        """See :attr:`Problem.scalar_targets`."""
        return self.sums.scalar_targets

    def refusal(self, solver: str) -> str | None:
        """See :meth:`Problem.refusal`: moments allow what starts from the Gram."""
        if solver not in ("dual", "qr", "pcg", "blocks"):
            return None
        return f"solver: {solver!r} needs the data; from moments, 'cholesky' or 'eigh'"

    def moments(self, progress: Report = False) -> Moments:
        """See :meth:`Problem.moments`: these."""
        return self.sums

    def passes(self, *, keep: bool) -> Passes:
        """See :meth:`Problem.passes`: there are none, and no plan asks for any."""
        raise AssertionError("moments allow no passes over the data")

    def gathered(self, memory_limit: int | None, beside: int) -> InMemory:
        """See :meth:`Problem.gathered`: the samples are gone, and no plan asks for them."""
        raise AssertionError("moments have no samples")
