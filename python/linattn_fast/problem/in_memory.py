"""The data of a fit in memory: one part, read in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from ..arrays.device import cupy
from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..backend.interface import Backend, Precision
from ..backend.normal_operator import Gradient, NormalOperator
from ..data.states import States
from ..data.tokens import Tokens, require_positive
from ..exact.modular_features import ModularData, is_rounded
from ..features.features import pair_count
from ..features.samples import Samples, warn_of_layout, warn_of_padding
from ..moments.sums import MomentSums
from ..system.progress import Bar
from .interface import Needs, Passes, ShowProgress

_NEXT_TO_NOTHING = 1 << 22
"""Bytes of packed samples that are kept between passes without being asked for."""


class InMemory:
    """Checked samples, and the backend that sums over them; see :class:`Problem`.

    Parameters
    ----------
    samples
        All samples.
    engine, precision
        How they are summed.
    """

    note = ""
    bytes_to_gather = 0

    def __init__(self, samples: Samples, engine: Backend, precision: Precision = "float64") -> None:
        self.samples = samples
        self.engine = engine
        self.precision: Precision = precision
        self.features = samples.features
        self.positions: Positions = samples.given_positions
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.n_columns = samples.n_columns
        self.scalar_targets = samples.scalar_targets

    @classmethod
    def of(
        cls,
        samples: Samples,
        backend: str = "auto",
        precision: Precision = "float64",
        given: Tokens | None = None,
    ) -> InMemory:
        """Make a problem of all of its samples, and warn of data that looks wrong.

        ``given`` are the tokens as they were given, where those of the samples are mapped.
        """
        require_positive(samples.largest_weight)
        tokens = samples.tokens if given is None else given
        warn_of_padding(tokens, samples.positions)
        if samples.targets is not None:
            warn_of_layout(tokens, samples.targets, samples.positions)
        engine = get_backend(backend, samples.tokens)
        _ = samples.total_weight  # raises where it overflows
        return cls(samples, engine, precision)

    def refusal(self, solver: str, needs: Needs) -> str | None:
        """See :meth:`Problem.refusal`: data in memory allows every solver that works there."""
        if needs == "samples on the host" and self.engine.on_device:
            return f"solver: {solver!r} works on the host; bring the arrays home, or take 'auto'"
        if needs == "samples on the host" and isinstance(self.samples.tokens, States):
            return f"solver: {solver!r} is for tokens, and these are states; take 'auto'"
        return None

    def moments(self, progress: ShowProgress = False) -> MomentSums:
        """See :meth:`Problem.moments`: samples that passes keep are formed here, once."""
        into = self._operator if self._keeps else None
        with Bar(self.n_samples, "moments", progress) as report:
            return MomentSums.over(self.samples, self.engine, self.precision, report, into)

    @contextmanager
    def read(self) -> Iterator[Iterator[Samples]]:
        """See :attr:`Problem.read`: one part."""
        yield iter([self.samples])

    def gradient(self, C: Floats) -> Gradient:
        """See :attr:`Problem.gradient`."""
        return self._operator.gradient(C)

    @cached_property
    def _operator(self) -> NormalOperator:
        """The normal equations, which keep packed samples where these are next to nothing."""
        return self.engine.normal_operator(self.samples, keep=self._keeps)

    @property
    def _keeps(self) -> bool:
        """Whether packed samples are kept without being asked for; none are without targets."""
        queries = self.features.n_queries
        own = pair_count(queries) if self.positions == "all" else queries
        rows = self.features.n_pairs + own + self.d_out + 1  # of a sample: s, z or S_lm, y, w
        return self.d_out > 0 and 8 * rows * self.n_columns <= _NEXT_TO_NOTHING

    def beginning(self, count: int) -> None:
        """See :meth:`Problem.beginning`: all samples are at hand."""

    def survey(self, room: int) -> None:
        """See :meth:`Problem.survey`: all is known."""

    def passes(self, *, keep: bool, room: int = 0) -> Passes:
        """See :meth:`Problem.passes`."""
        operator = self.engine.normal_operator(self.samples, keep=keep)
        how = f"samples {'kept' if keep else 'made anew in every pass'}"
        return Passes(operator, self.samples.noise_samples, how, kept=keep)

    def gathered(self, memory_limit: int | None, beside: int) -> InMemory:
        """See :meth:`Problem.gathered`: all samples are here."""
        return self

    @cached_property
    def modular(self) -> ModularData | None:
        """See :attr:`Problem.modular`: one object, which keeps the ranks that it has found."""
        return None if is_rounded(self.samples.tokens) else ModularData.of(self.samples)

    def on_current_device(self) -> InMemory:
        """Put the data on the current CUDA device, where it is not on one already."""
        if self.samples.device is not None:
            return self
        return InMemory(self.samples.put(cupy().empty(0)), self.engine, self.precision)

    def on_host(self) -> Samples:
        """The samples on the host."""
        return self.samples.put(np.zeros(0))
