"""Which predictions for a second file the data determines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays.types import Array, Floats
from ...certificate.certificate import Certificate
from ..files import Input, loaded


@dataclass(frozen=True)
class Covered:
    """Answers for every query of a file."""

    path: str
    covered: npt.NDArray[np.bool_]
    """Whether the prediction of each query is determined, (queries,)."""
    leverage: Floats
    """h' Lambda^+ h, (queries,); infinite where nothing is determined."""
    rank: int | None
    """Mean leverage over the data itself."""

    @property
    def share(self) -> float:
        """Fraction of the queries that are covered."""
        return float(self.covered.mean())

    @property
    def n_covered(self) -> int:
        """Number of queries that are covered."""
        return int(self.covered.sum())

    @property
    def finite(self) -> Floats:
        """Leverages of what is determined."""
        return self.leverage[np.isfinite(self.leverage)]

    @property
    def relative_leverages(self) -> tuple[float, float] | None:
        """Median and largest leverage of what is determined, over the mean of the data."""
        if not (len(self.finite) and self.rank):
            return None
        return float(np.median(self.finite)) / self.rank, float(self.finite.max()) / self.rank

    @property
    def uncovered(self) -> list[int]:
        """Queries whose prediction is not determined."""
        return [int(i) for i in np.flatnonzero(~self.covered)]

    def in_words(self) -> str:
        """What is determined and what is not, in a sentence."""
        n = len(self.covered)
        text = f"{self.n_covered:,} of {n:,} predictions for {self.path} are determined"
        if self.uncovered:
            shown = ", ".join(map(str, self.uncovered[:5]))
            more = ", .." if len(self.uncovered) > 5 else ""
            text += f"; the data leaves open those of queries {shown}{more} (counted from 0)"
        if self.relative_leverages is not None:
            median, largest = self.relative_leverages
            text += (
                f"; the determined ones have {median:.2g} times the leverage of the data "
                f"(median), {largest:.2g} times at most"
            )
        return text

    def as_fields(self) -> dict[str, Any]:
        """The counts and leverages, for JSON."""
        return {
            "data": self.path,
            "queries": len(self.covered),
            "covered": self.n_covered,
            "uncovered": self.uncovered,
            "median_leverage": float(np.median(self.finite)) if len(self.finite) else None,
            "largest_leverage": float(self.finite.max()) if len(self.finite) else None,
            "mean_leverage_of_data": self.rank,
        }


def coverage_of(certificate: Certificate, other: Input) -> Covered:
    """Ask a certificate about every query of a file."""
    Z = np.asarray(loaded(other.Z))
    answers = certificate.covers(Z, offsets=other.offsets)
    leverage = certificate.leverage(Z, offsets=other.offsets)
    return Covered(other.path, _flat(answers), _flat(leverage), certificate.rank)


def _flat(values: Array | list[Array]) -> Array:
    """Values of all sequences on one axis, query after query."""
    parts = values if isinstance(values, list) else [values]
    return np.concatenate([part.ravel() for part in parts])
