"""Values passed through, in compiled code: rows of memories are tokens that share the query as s.

A row m_j with the query c has the features m_j (x) c, index k d_q + l. Compiled code sees a state's
rows as tokens of a sequence that all attend to the same s = c (positions "all", with s given), so
that the sum over rows is its S = M'M:

    gram = sum w (s s') (x) S        features c (x) m_j, index l d_k + k

Here its results change places: pairs of features (k, l) come in the order of (l, k).
"""

from __future__ import annotations

import numpy as np

from ..arrays.types import Floats
from .normal_operator import Gradient, KroneckerFactors, NormalOperator, NormalProduct


def of_rows(gram: Floats, cross: Floats, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """The compact Gram, (pairs of k, pairs of l), and cross moment, (1, d_q, d_k), of rows."""
    pairs, queries = shape
    return np.ascontiguousarray(gram.reshape(queries, pairs).T), cross.transpose(0, 2, 1).copy()


class PassedNormalOperator:
    """The normal equations of rows, by those of compiled code; see :class:`NormalOperator`.

    Parameters
    ----------
    compiled
        The normal equations with features c (x) m_j.
    """

    def __init__(self, compiled: NormalOperator) -> None:
        self.features = compiled.features
        self.d_out = compiled.d_out
        self.n_samples = compiled.n_samples
        self.total_weight = compiled.total_weight
        self._compiled = compiled

    def _turned(self, C: Floats, *, back: bool = False) -> Floats:
        """Coefficients (m, d_k d_q) as (m, d_q d_k), or back."""
        d_k, d_q = self.features.n_pairs, self.features.n_queries
        first, second = (d_q, d_k) if back else (d_k, d_q)
        forms = C.reshape(len(C), first, second).transpose(0, 2, 1)
        return np.ascontiguousarray(forms).reshape(len(C), -1)

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        queries, pairs, diagonal = self._compiled.kronecker_factors()
        return KroneckerFactors(pairs, queries, np.ascontiguousarray(diagonal.T))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        product, energy = self._compiled.normal(self._turned(C))
        return NormalProduct(self._turned(product, back=True), energy)

    def narrow(self, C: Floats) -> NormalProduct | None:
        """See :meth:`NormalOperator.narrow`."""
        found = self._compiled.narrow(self._turned(C))
        if found is None:
            return None
        return NormalProduct(self._turned(found.product, back=True), found.energy)

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        gradient, squared_error = self._compiled.gradient(self._turned(C))
        return Gradient(self._turned(gradient, back=True), squared_error)
