"""A run: a context, and what a layer appended to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...arrays.types import Floats
from ...system.arguments import as_size


@dataclass(frozen=True, eq=False)
class Run:
    """A context and the tokens that a layer appended to it. Made by :meth:`Program.run`."""

    tokens: Floats = field(repr=False)
    """(n + appended, d), encoded."""
    n_context: int
    """Tokens of the context, n."""

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, np.ndarray) or self.tokens.ndim != 2:
            what = getattr(self.tokens, "shape", type(self.tokens).__name__)
            raise ValueError(f"tokens: an array (n, d) is needed, got {what}")
        if not 1 <= as_size(self.n_context, "n_context") <= len(self.tokens):
            raise ValueError(
                f"n_context: 1 to {len(self.tokens)} is needed, the number of tokens, "
                f"got {self.n_context}"
            )

    def __len__(self) -> int:
        """Return the number of tokens appended."""
        return len(self.tokens) - self.n_context

    @property
    def context(self) -> Floats:
        """What was given, (n, d)."""
        return self.tokens[: self.n_context]

    @property
    def appended(self) -> Floats:
        """What the layer added, (appended, d)."""
        return self.tokens[self.n_context :]

    def pairs(self) -> list[tuple[Floats, Floats]]:
        """Pairs to train on: what was there, and what followed.

        Returns
        -------
        list
            For each appended token the prefix (n, d) before it, a view, and the token (d,).
        """
        return [(self.tokens[:t], self.tokens[t]) for t in range(self.n_context, len(self.tokens))]
