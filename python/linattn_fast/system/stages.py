"""Seconds of each stage of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stages(dict[str, float]):
    """Seconds per stage."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        yield
        self[name] = self.get(name, 0.0) + time.perf_counter() - start
