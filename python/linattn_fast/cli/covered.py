"""Which predictions for a second file the data determines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..certificate import Certificate
from ..tokens import Array, Floats
from .files import Data, loaded


@dataclass(frozen=True)
class Covered:
    """Answers for every query of a file."""

    path: str
    covered: npt.NDArray[np.bool_]
    """(queries,)"""
    leverage: Floats
    """h' Lambda^+ h, (queries,); infinite where nothing is determined."""
    rank: int | None
    """Mean leverage over the data itself."""

    @property
    def share(self) -> float:
        """Of the queries that are covered."""
        return float(self.covered.mean())

    @property
    def finite(self) -> Floats:
        """Leverages of what is determined."""
        return self.leverage[np.isfinite(self.leverage)]

    @property
    def uncovered(self) -> list[int]:
        """Queries whose prediction is not determined."""
        return [int(i) for i in np.flatnonzero(~self.covered)]

    def in_words(self) -> str:
        """One sentence or two."""
        n = len(self.covered)
        text = f"{int(self.covered.sum()):,} of {n:,} predictions for {self.path} are determined"
        if self.uncovered:
            shown = ", ".join(map(str, self.uncovered[:5]))
            more = ", .." if len(self.uncovered) > 5 else ""
            text += f"; the data leaves open those of queries {shown}{more} (counted from 0)"
        if len(self.finite) and self.rank:
            relative = np.median(self.finite) / self.rank
            text += (
                f"; the determined ones have {relative:.2g} times the leverage of the data "
                f"(median), {self.finite.max() / self.rank:.2g} times at most"
            )
        return text

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "data": self.path,
            "queries": len(self.covered),
            "covered": int(self.covered.sum()),
            "uncovered": self.uncovered,
            "median_leverage": float(np.median(self.finite)) if len(self.finite) else None,
            "largest_leverage": float(self.finite.max()) if len(self.finite) else None,
            "mean_leverage_of_data": self.rank,
        }


def coverage_of(certificate: Certificate, other: Data) -> Covered:
    """Ask a certificate about every query of a file."""
    Z = np.asarray(loaded(other.Z))
    answers = certificate.covers(Z, offsets=other.offsets)
    leverage = certificate.leverage(Z, offsets=other.offsets)
    return Covered(other.path, _flat(answers), _flat(leverage), certificate.rank)


def _flat(values: Array | list[Array]) -> Array:
    """One axis, query after query."""
    parts = values if isinstance(values, list) else [values]
    return np.concatenate([part.ravel() for part in parts])
