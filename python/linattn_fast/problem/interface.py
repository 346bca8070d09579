"""The protocol of a problem: what a plan asks about the data, and what a solver does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ..arrays.types import Floats, Positions
from ..backend.interface import Backend, Precision
from ..backend.normal_operator import Gradient, NormalOperator
from ..exact.modular_features import ModularData
from ..features.features import Features
from ..features.samples import Samples
from ..moments.sums import MomentSums
from .survey import Survey

if TYPE_CHECKING:
    from .in_memory import InMemory

ShowProgress: TypeAlias = bool | Callable[[int, Any], object]
"""How a caller wants progress shown: not at all, by a bar, or by a function of (done, total)."""

Needs: TypeAlias = Literal["moments", "passes", "parts", "samples", "samples on the host"]
"""What a solver needs of the data: its moments; passes over it, wherever it is; readings of it
here, part by part; all samples in one place; or these in the memory of the host."""


@dataclass(frozen=True)
class Passes:
    """Passes over all samples, one for each product with the normal equations."""

    operator: NormalOperator
    """The normal equations, each product with which is one pass."""
    noise_samples: float
    """W over the largest weight of a sample."""
    how: str
    """Where the samples come from in every pass, in words."""
    kept: bool = False
    """Whether samples are kept from pass to pass, so that passes in float32 are possible."""
    held: int = 0
    """Bytes of a stream's samples, rounded to float32, that are held for such passes."""
    release: Callable[[], object] = bool
    """Frees what is held; then passes in float32 are over."""


class Problem(Protocol):
    """The data of one fit."""

    @property
    def features(self) -> Features:
        """Features that take part; p is their count."""
        ...

    @property
    def positions(self) -> Positions:
        """Which tokens query."""
        ...

    @property
    def d_out(self) -> int:
        """Number of outputs."""
        ...

    @property
    def engine(self) -> Backend:
        """The backend that sums over samples."""
        ...

    @property
    def precision(self) -> Precision:
        """Precision of the Gram."""
        ...

    @property
    def n_samples(self) -> int | None:
        """Number of samples; None before a stream of unknown length has been read."""
        ...

    @property
    def n_columns(self) -> int | None:
        """Number of S that are formed: fewer than samples for "all"; None where it is unknown."""
        ...

    @property
    def samples(self) -> Samples | None:
        """All samples, where they are in memory; None elsewhere."""
        ...

    @property
    def note(self) -> str:
        """What the data does not allow, in words; empty where it allows everything."""
        ...

    @property
    def scalar_targets(self) -> bool:
        """Whether all targets, which have been read by now, came without an axis of outputs."""
        ...

    @property
    def bytes_to_gather(self) -> int:
        """Bytes that gathering all samples takes beyond what is in memory, as far as is known."""
        ...

    def refusal(self, solver: str, needs: Needs) -> str | None:
        """Say why a solver cannot work on this data, and which ones can; None where it can."""
        ...

    def moments(self, progress: ShowProgress) -> MomentSums:
        """Accumulate the moments of the data."""
        ...

    @property
    def read(self) -> Callable[[], AbstractContextManager[Iterator[Samples]]] | None:
        """Open the data for one reading, part by part; None where it cannot be read here."""
        ...

    @property
    def modular(self) -> ModularData | None:
        """The samples modulo primes, for exact ranks; None where they cannot be read here."""
        ...

    @property
    def gradient(self) -> Callable[[Floats], Gradient] | None:
        """Recompute residuals of coefficients (d_out, p) on the data; None where it is gone."""
        ...

    def beginning(self, count: int) -> Samples | None:
        """The first samples of a stream, about so many, without targets; None where it is gone.

        None for data in memory too, which has them at hand, and on a cluster.
        """
        ...

    def survey(self, room: int) -> Survey | None:
        """Read a stream once, to count its samples and hold them, rounded, in so many bytes.

        None for data in memory, on a cluster, and for what can be read only once.
        """
        ...

    def passes(self, *, keep: bool, room: int = 0) -> Passes:
        """Prepare passes over the data.

        Data in memory keeps packed samples from pass to pass if ``keep`` says so; a stream holds
        its samples, rounded to float32, where they fit in ``room`` bytes.
        """
        ...

    def gathered(self, memory_limit: int | None, beside: int) -> InMemory:
        """Hold all samples in memory, where ``beside`` bytes are needed for other things."""
        ...
