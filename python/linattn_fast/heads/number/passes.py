"""The squared error of heads as a sum over samples, with its derivatives: no Gram is formed.

With S and z of a sample, w its weight, y its target and r = y - sum_h V_h S Q_h z what is left:

    error      sum w ||r||^2
    gradient   V_h: sum w r (S Q_h z)'             Q_h: sum w (S V_h' r) z'
    normal     the same with J (dV, dQ) = sum_h dV_h S Q_h z + V_h S dQ_h z in the place of r

Sample by sample this takes about 8 H d^2 flops, where coefficients take 2 d_out d^3 of them. Where
samples can be read here (:class:`BySamples`), that is the way; elsewhere, as on a cluster, the sums
come from those of the coefficients C(V, Q), which every operator has (:class:`ByCoefficients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from ...arrays.device import to_host
from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator
from ...data.non_finite import non_finite_error
from ...features.compact import pair_table
from ...features.cubic import head_coefficients
from ...features.samples import Samples
from ...solvers.costs import HEAD_BLOCK_BYTES
from ..bilinear import adjoint_of

_TOGETHER = 4096
"""Samples whose derivatives are kept in one piece, for products that need no S."""


class Sums(NamedTuple):
    """Sums over samples, at heads or for a change of them."""

    values: Floats
    """(H, d_out, d): for V."""
    queries: Floats
    """(H, d, d): for Q."""
    squared: Floats
    """(d_out,): sum w r^2, or sum w (J (dV, dQ))^2."""

    def flat(self) -> Floats:
        """V and then Q in one vector."""
        return np.concatenate([self.values.ravel(), self.queries.ravel()])


class Point(Protocol):
    """Heads with what passes over the data say about them."""

    @property
    def sums(self) -> Sums:
        """Error, and gradient: sum w r J, which is minus half the derivative of the error."""
        ...

    def normal(self, dV: Floats, dQ: Floats) -> Sums:
        """J' J (dV, dQ)."""
        ...


class HeadPasses(Protocol):
    """Data as least squares over heads see it."""

    def at(self, V: Floats, Q: Floats) -> Point:
        """Pass over the data for heads V (H, d_out, d), Q (H, d, d)."""
        ...


# --------------------------------------------------------------------- through coefficients


class ByCoefficients:
    """Sums of heads from those of their coefficients, wherever the data is.

    Parameters
    ----------
    operator
        The data.
    """

    def __init__(self, operator: NormalOperator) -> None:
        self.operator = operator

    def at(self, V: Floats, Q: Floats) -> _CoefficientPoint:
        """See :meth:`HeadPasses.at`."""
        return _CoefficientPoint(self.operator, V, Q)


class _CoefficientPoint:
    def __init__(self, operator: NormalOperator, V: Floats, Q: Floats) -> None:
        self.operator, self.V, self.Q = operator, V, Q
        self.table = pair_table(V.shape[2])
        gradient, squared = operator.gradient(head_coefficients(V, Q))
        self.sums = self._sums(gradient, squared)

    def _sums(self, G: Floats, squared: Floats) -> Sums:
        flat = adjoint_of(self.V, self.Q, to_host(G), self.table)
        n = self.V.size
        values, queries = flat[:n].reshape(self.V.shape), flat[n:].reshape(self.Q.shape)
        return Sums(values, queries, to_host(squared))

    def normal(self, dV: Floats, dQ: Floats) -> Sums:
        """See :meth:`Point.normal`."""
        C = head_coefficients(np.concatenate([dV, self.V]), np.concatenate([self.Q, dQ]))
        return self._sums(*self.operator.normal(C))


# ------------------------------------------------------------------------- sample by sample


class Block(NamedTuple):
    """Some samples, written out."""

    s: Floats
    """(m, q): the pairs of S."""
    z: Floats
    """The queries, (m, d)."""
    y: Floats
    """The targets, (m, d_out)."""
    w: Floats
    """The weights, (m, 1)."""


def blocks_of(samples: Samples) -> Iterator[Block]:
    """The samples of a batch, a few sequences at a time."""
    assert samples.targets is not None
    d = samples.tokens.d
    a_sequence = 8 * d * d * max(1, samples.n_samples // samples.n_sequences)
    step = max(1, HEAD_BLOCK_BYTES // a_sequence)
    for first in range(0, samples.n_sequences, step):
        part = samples.part(first, min(first + step, samples.n_sequences))
        with np.errstate(over="ignore", invalid="ignore"):
            s, z = part.rows()
        if not np.isfinite(s).all():
            raise non_finite_error(part.tokens)
        assert part.targets is not None
        y = part.targets.rows().astype(np.float64, copy=False)
        yield Block(s, z, y, part.weight_of_each()[:, None])


class BySamples:
    """Sums of heads from each sample.

    Parameters
    ----------
    read
        Opens the data for one reading.
    keep
        Hold on to the pairs of S of all samples; else every pass makes them from the tokens.
    keep_derivatives
        Hold on to S Q_h z and S V_h' of all samples at each point, so that products with J'J need
        no S: smaller than S, and faster, where there are few outputs.
    """

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[Iterator[Samples]]],
        *,
        keep: bool,
        keep_derivatives: bool,
    ) -> None:
        self._read, self._keep, self.keep_derivatives = read, keep, keep_derivatives
        self._kept: list[Block] | None = None
        self._table = np.zeros((0, 0), dtype=np.intp)
        self._matrices = np.zeros((0, 0, 0))

    def matrices(self, block: Block) -> Floats:
        """S, (m, d, d), of a block, until it is asked for again: fresh memory would cost more."""
        m, d = block.z.shape
        if self._matrices.shape[0] < m:
            self._table = pair_table(d)
            self._matrices = np.empty((m, d, d))
        # a check of the indices would cost a copy
        return np.take(block.s, self._table, axis=1, out=self._matrices[:m], mode="clip")

    def blocks(self) -> Iterator[Block]:
        """All samples, block by block."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Block] = []
        with self._read() as parts:
            for part in parts:
                for block in blocks_of(part):
                    if self._keep:
                        kept.append(block)
                    yield block
        if self._keep:
            self._kept = kept

    def at(self, V: Floats, Q: Floats) -> _SamplePoint:
        """See :meth:`HeadPasses.at`."""
        return _SamplePoint(self, V, Q)


class _Derivatives(NamedTuple):
    """What J is made of, for some samples."""

    z: Floats
    """The queries, (m, d)."""
    w: Floats
    """The weights, (m, 1)."""
    attended: Floats
    """S Q_h z, (m, Hd)."""
    values: Floats
    """S V_h' by output, (m, d_out, Hd)."""


class _SamplePoint:
    def __init__(self, passes: BySamples, V: Floats, Q: Floats) -> None:
        self.passes, self.V, self.Q = passes, V, Q
        H, d_out, d = V.shape
        self.heads_first = np.ascontiguousarray(V.transpose(0, 2, 1)).reshape(H * d, d_out)
        self.outputs_first = np.ascontiguousarray(V.transpose(1, 0, 2)).reshape(d_out, H * d)
        self.kept: list[_Derivatives] = []
        fresh: list[_Derivatives] = []
        total = _Total(V)
        for block in passes.blocks():
            S = passes.matrices(block)
            attended = self._attended(block.z, S, Q)
            r = block.y - attended @ self.heads_first
            wr = block.w * r
            if passes.keep_derivatives:
                fresh.append(_Derivatives(block.z, block.w, attended, self._values(S)))
                back = _weighted(fresh[-1].values, wr)
                if sum(len(part.z) for part in fresh) >= _TOGETHER:
                    self._keep(fresh)
            else:
                back = self._back(S, wr)
            total.add(attended, wr, back, block.z, r)
        self._keep(fresh)
        self.sums = total.sums()

    def _keep(self, fresh: list[_Derivatives]) -> None:
        """Put the derivatives of some blocks together."""
        if fresh:
            self.kept.append(_Derivatives(*map(np.concatenate, zip(*fresh, strict=True))))
            fresh.clear()

    @staticmethod
    def _attended(z: Floats, S: Floats, Q: Floats) -> Floats:
        """S Q_h z, (m, Hd)."""
        H, d, _ = Q.shape
        U = z @ Q.reshape(H * d, d).T
        product = np.matmul(U.reshape(-1, H, d), S)  # S is symmetric
        return np.asarray(product.reshape(-1, H * d))

    def _values(self, S: Floats) -> Floats:
        """S V_h' of each output, (m, d_out, Hd)."""
        H, d_out, d = self.V.shape
        flat = S.reshape(-1, d) @ self.V.reshape(H * d_out, d).T  # (m d, H d_out)
        each = flat.reshape(-1, d, H, d_out).transpose(0, 3, 2, 1)
        return np.ascontiguousarray(each).reshape(-1, d_out, H * d)

    def _back(self, S: Floats, wr: Floats) -> Floats:
        """S V_h' w r, (m, Hd)."""
        H, _, d = self.V.shape
        back = (wr @ self.outputs_first).reshape(-1, H, d)
        return np.asarray(np.matmul(back, S).reshape(-1, H * d))

    def normal(self, dV: Floats, dQ: Floats) -> Sums:
        """See :meth:`Point.normal`."""
        H, d_out, d = dV.shape
        total = _Total(dV)
        change = dV.transpose(0, 2, 1).reshape(H * d, d_out)
        if self.passes.keep_derivatives:
            for z, w, attended, values in self.kept:
                moved = z @ dQ.reshape(H * d, d).T
                f = attended @ change + np.einsum("iax,ix->ia", values, moved)
                total.add(attended, w * f, _weighted(values, w * f), z, f)
            return total.sums()
        for block in self.passes.blocks():
            S = self.passes.matrices(block)
            attended = self._attended(block.z, S, self.Q)
            f = attended @ change + self._attended(block.z, S, dQ) @ self.heads_first
            wf = block.w * f
            total.add(attended, wf, self._back(S, wf), block.z, f)
        return total.sums()


def _weighted(values: Floats, wr: Floats) -> Floats:
    """Sum over outputs of w r times S V_h', (m, Hd)."""
    if values.shape[1] == 1:
        return np.asarray(wr * values[:, 0])
    return np.asarray(np.einsum("ia,iax->ix", wr, values))


class _Total:
    """Sums so far, of heads in the shape of V (H, d_out, d)."""

    def __init__(self, V: Floats) -> None:
        H, d_out, d = V.shape
        self.shape = H, d_out, d
        self.values = np.zeros((H * d, d_out))
        self.queries = np.zeros((H * d, d))
        self.squared = np.zeros(d_out)

    def add(self, attended: Floats, wr: Floats, back: Floats, z: Floats, r: Floats) -> None:
        """Add some samples."""
        self.values += attended.T @ wr
        self.queries += back.T @ z
        self.squared += np.einsum("ia,ia->a", wr, r)

    def sums(self) -> Sums:
        """The sums in the shapes of V and Q."""
        H, d_out, d = self.shape
        values = self.values.reshape(H, d, d_out).transpose(0, 2, 1)
        return Sums(np.ascontiguousarray(values), self.queries.reshape(H, d, d), self.squared)
