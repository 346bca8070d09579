"""The normal equations as an operator on coefficients: no p x p matrix is formed.

With h = s (x) z the features of a sample, w its weight, y its target, C (m, p) coefficients:

    normal      sum w (C h) h'          gradient    sum w (y - C h) h'

Each is a sum over samples, and so are the Kronecker factors, so an operator on data in several
places is the sum of the operators of its parts: results of the same name are added, field by field.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from ..arrays.types import Floats
from ..data.non_finite import non_finite_error
from ..features.features import Features
from ..features.samples import Samples


class KroneckerFactors(NamedTuple):
    """Sums over samples that a preconditioner is made of."""

    pairs: Floats
    """(n_pairs, n_pairs): sum w s s'."""
    queries: Floats
    """(n_queries, n_queries): sum w z z'."""
    diagonal: Floats
    """(n_pairs, n_queries): sum w s_u^2 z_l^2, the diagonal of the Gram."""


class NormalProduct(NamedTuple):
    """The Gram times coefficients C (m, p)."""

    product: Floats
    """(m, p): sum w (C h) h'."""
    energy: Floats
    """(m,): sum w (C h)^2, which is the diagonal of C gram C', without cancellation."""


class Gradient(NamedTuple):
    """What residuals recomputed from the data say about coefficients C (d_out, p)."""

    gradient: Floats
    """(d_out, p): sum w (y - C h) h'; minus half the gradient of the squared error."""
    squared_error: Floats
    """(d_out,): sum w (y - C h)^2."""


PassResult = TypeVar("PassResult", KroneckerFactors, NormalProduct, Gradient)
"""The sums that one pass over the samples returns."""


def added(a: PassResult, b: PassResult) -> PassResult:
    """The sums over the data of both, added field by field."""
    return type(a)(*(x + y for x, y in zip(a, b, strict=True)))


class NormalOperator(Protocol):
    """Data as conjugate gradients see it: sums over samples, not divided by their weight.

    Each backend has an implementation, and :class:`linattn_fast.problem.passes.SummedOperator` adds
    up several. Coefficients and results are float64, C-contiguous.
    """

    @property
    def features(self) -> Features:
        """Features that take part; p is their count."""

    @property
    def d_out(self) -> int:
        """Number of outputs."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""

    @property
    def total_weight(self) -> float:
        """W = sum w over the samples."""

    def kronecker_factors(self) -> KroneckerFactors:
        """Sum w s s', w z z', and the diagonal of the Gram."""

    def normal(self, C: Floats) -> NormalProduct:
        """Multiply the Gram with C (m, p), for any number m of rows."""

    def narrow(self, C: Floats) -> NormalProduct | None:
        """Multiply likewise with float32 inside blocks of samples; None where there is no such way.

        Results that float32 cannot hold are None as well.
        """

    def gradient(self, C: Floats) -> Gradient:
        """Recompute the gradient and the squared error of C (d_out, p) from the data."""


class NumpyNormalOperator:
    """The specification: the samples written out, s (N, n_pairs) and z (N, n_queries).

    Parameters
    ----------
    samples
        A checked batch with targets.
    """

    def __init__(self, samples: Samples) -> None:
        assert samples.targets is not None
        self.features = samples.features
        self.d_out = samples.d_out
        self.n_samples = samples.n_samples
        self.total_weight = samples.total_weight
        self._tokens = samples.tokens
        with np.errstate(over="ignore", invalid="ignore"):
            self._s, self._z = samples.rows()
        self._w = samples.weight_of_each()
        self._y = samples.targets.rows().astype(np.float64)

    def _finite(self, array: Floats) -> Floats:
        if not np.isfinite(array).all():
            raise non_finite_error(self._tokens)
        return array

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        s, z, w = self._s, self._z, self._w[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            return KroneckerFactors(
                self._finite((w * s).T @ s),
                self._finite((w * z).T @ z),
                self._finite((s**2).T @ (w * z**2)),
            )

    def _outputs(self, C: Floats) -> Floats:
        """Outputs C h of all samples, (N, m): the sum over u and l of C[a,(u,l)] s_u z_l."""
        maps = C.reshape(len(C), self.features.n_pairs, self.features.n_queries)
        return np.stack([((self._s @ one) * self._z).sum(axis=1) for one in maps], axis=1)

    def _adjoint(self, r: Floats) -> Floats:
        """Sum over samples of w r h', (m, p), for r (N, m)."""
        weighted = self._w[:, None] * r
        rows = [(self._s.T @ (column[:, None] * self._z)).ravel() for column in weighted.T]
        return self._finite(np.stack(rows))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        with np.errstate(over="ignore", invalid="ignore"):
            f = self._outputs(C)
            return NormalProduct(self._adjoint(f), self._finite(self._w @ f**2))

    def narrow(self, C: Floats) -> None:
        """See :meth:`NormalOperator.narrow`: there is none."""

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        with np.errstate(over="ignore", invalid="ignore"):
            r = self._y - self._outputs(C)
            return Gradient(self._adjoint(r), self._finite(self._w @ r**2))
