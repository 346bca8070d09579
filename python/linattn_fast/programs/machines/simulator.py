"""What simulators of machines have in common: a size, and two tokens for each step.

The context holds a machine's table, what it reads, and where it starts. From then on one token says
what is read, and the next one what the table makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays.types import Floats
from ..language.lookup import Lookup
from ..language.program import Program
from ..language.record import Record, Token
from ..language.run import Run


class Simulator(Program):
    """A program that simulates every machine of a size.

    Parameters
    ----------
    sizes
        Numbers that say of which size, by the names of the arguments.
    record
        The layout of the tokens.
    read, step
        The two instructions.
    slots
        Every machine and input, see :class:`Family`.
    """

    def __init__(
        self,
        sizes: dict[str, int],
        record: Record,
        *,
        read: Lookup,
        step: Lookup,
        slots: Sequence[Sequence[Token]],
    ) -> None:
        self._sizes = sizes
        super().__init__(record, [read, step], slots=slots, tokens_per_step=2)

    @property
    def description(self) -> str:
        """What certificates call it."""
        sizes = ", ".join(f"{name}={size}" for name, size in self._sizes.items())
        return f"{type(self).__name__}({sizes})"

    def _after_steps(self, run: Run) -> Floats:
        """Tokens before the first step and after each one, (steps + 1, d)."""
        if not isinstance(run, Run) or run.tokens.shape[1] != self.d:
            raise ValueError(f"run: a Run of {self} is needed, got {run!r}")
        return np.concatenate([run.context[-1:], run.appended[1::2]])
