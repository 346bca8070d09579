"""The data of a fit that is gone but for its moments: accumulated before, or read only once."""

from __future__ import annotations

from ..arrays.types import Positions
from ..backend.choice import get_backend
from ..backend.interface import Precision
from ..moments.moments import Moments
from .in_memory import InMemory
from .interface import Needs, Passes, ShowProgress


class Accumulated:
    """Moments in the place of the data; see :class:`Problem`.

    Parameters
    ----------
    sums
        The moments.
    """

    note = ""
    samples = None
    read = None
    modular = None
    gradient = None
    bytes_to_gather = 0

    def __init__(self, sums: Moments) -> None:
        self.sums = sums
        self.features = sums.features
        self.positions: Positions = sums.positions
        self.precision: Precision = sums.precision
        self.d_out = sums.d_out
        self.engine = get_backend(sums.backend, sums)
        self.n_samples = sums.n_samples
        self.n_columns = sums.n_samples  # never asked, since the sums are formed
        self.scalar_targets = sums.scalar_targets

    def refusal(self, solver: str, needs: Needs) -> str | None:
        """See :meth:`Problem.refusal`: moments allow what starts from the Gram."""
        if needs == "moments":
            return None
        return f"solver: {solver!r} needs the data; from moments, 'cholesky' or 'eigh'"

    def moments(self, progress: ShowProgress = False) -> Moments:
        """See :meth:`Problem.moments`: they are at hand."""
        return self.sums

    def beginning(self, count: int) -> None:
        """See :meth:`Problem.beginning`: the samples are gone."""

    def survey(self, room: int) -> None:
        """See :meth:`Problem.survey`: nothing is left to read."""

    def passes(self, *, keep: bool, room: int = 0) -> Passes:
        """See :meth:`Problem.passes`: there are none, and no plan asks for any."""
        raise AssertionError("moments allow no passes over the data")

    def gathered(self, memory_limit: int | None, beside: int) -> InMemory:
        """See :meth:`Problem.gathered`: the samples are gone, and no plan asks for them."""
        raise AssertionError("moments have no samples")
