"""Sums over samples, and what they say: the Gram, the cross moment, a loss, sizes of features.

:class:`MomentSums` is the reading side of :class:`linattn_fast.Moments`, which accumulates batches.

Features that are nothing but cancellation, such as S_jk of orthonormal keys, need care when they
are scaled. A feature h = S_jk z_l is computed from n tokens with an error of at most

    gamma |z_l| sum_t |z_tj z_tk| <= gamma |z_l| sqrt(S_jj S_kk)    gamma = (n + 4) 2^-53

so a feature whose mean square is up to (10 gamma)^2 m, with

    m[(j,k),l] = mean w S_jj S_kk z_l^2

may be rounding in every sample. Scaled to length one, like the others, it would be taken for
data, and a coefficient of 1e12 for an answer. Scaled by m it is far below what counts as zero, as
it should be, while a later input that really has the feature has it in full size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays.device import device_of, frozen, module_of, on_device, on_own_device, to_host
from ..arrays.floats import NARROW_UNIT, gamma, gradual_underflow, keeps_subnormals
from ..arrays.types import Floats, Positions
from ..backend.interface import Backend, Precision
from ..backend.totals import Totals
from ..data.non_finite import underflow_error
from ..features import compact
from ..features.accumulation import Accumulation
from ..features.compact import compact_bytes
from ..features.features import Features
from ..features.samples import Samples
from ..linalg.cholesky import Equilibrated, add_to_diagonal, equilibrated
from ..linalg.factors import EPS, MARGIN
from ..system.machine import require_memory, usable_memory
from ..system.progress import Progress

_SMALLEST = float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps)
"""A Gram whose largest entry is below this has lost digits to underflow."""


@gradual_underflow()
def sum_over(samples: Samples, engine: Backend, precision: Precision, progress: Progress) -> Totals:
    """Sum over a batch; raises where its products overflow, or underflow as a whole."""
    totals = engine.moments(samples, precision, progress=progress)
    how, features = totals.accumulation, samples.features
    with on_device(device_of(totals.gram)):
        largest = float(compact.sizes(totals.gram, features, samples.positions)[0].max())
    # Of chosen features, and of states, all may be zero where queries are not
    if largest < _SMALLEST:
        some = features.everything and features.sums_cancel and _some_query(samples)
        if some or (largest > 0 and how.underflow):
            raise underflow_error(samples.tokens, samples.weights)
    for array in (totals.gram, totals.cross, totals.energy):
        frozen(array)  # merged moments share them
    if keeps_subnormals():
        return totals
    return replace(totals, accumulation=how._replace(underflow=True))


def _some_query(samples: Samples) -> bool:
    """Whether a query of positive weight is not zero, and with it S_ll z_l for some l."""
    queries = slice(-1, None) if samples.positions == "last" else slice(None)
    return any(
        bool(to_host(z)[queries].any())
        for i, z in enumerate(samples.tokens)
        if samples.weights is None or samples.weights[i] > 0
    )


def rounding_of_feature(longest: int) -> float:
    """Size up to which a feature counts as rounding, relative to its summands: 10 gamma."""
    return MARGIN * (longest + 4) * EPS / 2


def sizes(diagonal: Floats, magnitudes: Floats, longest: int) -> Floats:
    """Mean squares that features are scaled by: their own, or m for those that may be rounding.

    Parameters
    ----------
    diagonal
        Diagonal of Lambda + alpha I, (p,); a ridge well above the rounding leaves nothing to do.
    magnitudes
        m, (p,).
    longest
        Tokens in the longest sequence.
    """
    cancelled = diagonal <= rounding_of_feature(longest) ** 2 * magnitudes
    chosen: Floats = module_of(diagonal).where(cancelled, magnitudes, diagonal)
    return chosen


class MomentSums:
    """Sums over samples, and what follows from them; base of :class:`linattn_fast.Moments`.

    Parameters
    ----------
    features, positions, d_out, precision
        What is summed, and how.
    totals
        The sums; None for those over nothing.
    """

    def __init__(
        self,
        features: Features,
        positions: Positions,
        d_out: int,
        precision: Precision,
        totals: Totals | None,
    ) -> None:
        self.d = features.d
        self.d_out = d_out
        self.features = features
        self.positions: Positions = positions
        self.precision: Precision = precision
        self._totals = totals
        self._sizes: tuple[Totals, Floats, Floats | None] | None = None

    @classmethod
    def over(
        cls, samples: Samples, engine: Backend, precision: Precision, progress: Progress = None
    ) -> MomentSums:
        """Sum over one checked batch."""
        totals = sum_over(samples, engine, precision, progress)
        return MomentSums(
            samples.features, samples.given_positions, samples.d_out, precision, totals
        )

    def fixed(self) -> MomentSums:
        """The sums as they are now, which nothing is added to later."""
        return MomentSums(self.features, self.positions, self.d_out, self.precision, self._totals)

    def get(self) -> MomentSums:
        """Bring the sums to the host."""
        if self.device is None or self._totals is None:
            return self
        home = self._totals.get()
        return MomentSums(self.features, self.positions, self.d_out, self.precision, home)

    @property
    def device(self) -> int | None:
        """The CUDA device that the sums are on; None for the host."""
        return None if self._totals is None else device_of(self._totals.gram)

    @property
    def dimension(self) -> int:
        """Number of features, p."""
        return self.features.count

    @property
    def n_samples(self) -> int:
        """Number of samples: queries with a target."""
        return 0 if self._totals is None else self._totals.n_samples

    @property
    def total_weight(self) -> float:
        """W = sum w over the samples."""
        return 0.0 if self._totals is None else self._totals.total_weight

    @property
    def scalar_targets(self) -> bool:
        """Whether all targets came without an axis of outputs, as predictions then do."""
        return self._totals is not None and self._totals.scalar_targets

    @property
    def accumulation(self) -> Accumulation:
        """How the sums were rounded."""
        return Accumulation() if self._totals is None else self._totals.accumulation

    @property
    def rounding_steps(self) -> int:
        """Number of additions that an entry of the sums has gone through, at most."""
        return self.accumulation.wide

    @property
    def sums(self) -> Totals:
        """The compact sums; zeros before the first update."""
        if self._totals is not None:
            return self._totals
        return Totals(
            np.zeros(compact.shape(self.features, self.positions)),
            np.zeros((self.d_out, self.features.n_queries, self.features.n_pairs)),
            np.zeros(self.d_out),
            n_samples=0,
            total_weight=0.0,
            accumulation=Accumulation(),
        )

    @property
    def nbytes(self) -> int:
        """Number of bytes that the sums take."""
        return 0 if self._totals is None else self._compact_bytes

    def __sizeof__(self) -> int:  # what Dask takes for the memory of this object
        return object.__sizeof__(self) + self.nbytes

    @property
    def _compact_bytes(self) -> int:
        return compact_bytes(self.features, self.d_out, self.positions)

    @property
    def magnitudes(self) -> Floats | None:
        """Sum of w S_jj S_kk z_l^2, (n_pairs, n_queries); None where the Gram has it."""
        return None if self._totals is None else self._totals.magnitudes

    @on_own_device
    def gram(self) -> Floats:
        """Form the dense Gram, the sum of w h h'.

        Returns
        -------
        array
            The Gram, (p, p).
        """
        self._require_dense()
        return compact.expand(self.sums.gram, self.features, self.positions)

    def _require_dense(self) -> None:
        """Raise MemoryError where a matrix (p, p) does not fit on the host."""
        p = self.dimension
        needed = 8 * p * p + self.nbytes
        if self.device is None and needed > usable_memory():
            require_memory(needed, f"gram: the dense {p} x {p} matrix")

    @on_own_device
    def equilibrated(self, alpha: float = 0.0) -> Equilibrated:
        """A = D (Lambda + alpha I) D, D from the sizes of the features: what is factorised."""
        sizes, weight = self.feature_sizes(alpha), self.required_weight()
        return self._equilibrated(sizes, weight, alpha)

    def equilibrated_gram(self) -> Equilibrated:
        """A = D G D, D from the diagonal of G: what proofs are about; on the host."""
        return self._equilibrated(self._own_sizes()[0], 1.0, 0.0)

    def gram_exceeds(self, shift: tuple[float, float, float, float, float]) -> bool | None:
        """Whether Cholesky proves that the Gram is more than a shift; None without compiled code.

        ``shift`` has the numbers of ``csrc/core/shifted_gram.hpp``, which does the same as
        :mod:`linattn_fast.certificate.lower_bound` in one call.
        """
        gram = self.sums.gram
        if not compact.is_compiled(gram):
            return None
        self._require_dense()
        own, larger = self._own_sizes()[0], self.summand_sizes()
        return compact.exceeds(gram, self.features, self.positions, own, larger, shift)

    def _equilibrated(self, sizes: Floats, weight: float, alpha: float) -> Equilibrated:
        gram = self.sums.gram
        if compact.is_compiled(gram):
            self._require_dense()
            return Equilibrated(
                *compact.equilibrated(
                    gram, self.features, self.positions, sizes, weight=weight, ridge=alpha
                )
            )
        matrix = self.gram()
        matrix /= weight
        add_to_diagonal(matrix, alpha)
        return equilibrated(matrix, sizes)

    @on_own_device
    def cross(self) -> Floats:
        """Form the cross moment, the sum of w h y'.

        Returns
        -------
        array
            The cross moment, (p, d_out).
        """
        cross = self.sums.cross
        # (a, l, u) -> (u, l, a)
        rows: Floats = module_of(cross).ascontiguousarray(cross.transpose(2, 1, 0))
        return rows.reshape(self.dimension, self.d_out)

    @on_own_device
    def gram_diagonal(self) -> Floats:
        """Take the diagonal of the Gram, the sum of w s_u^2 z_l^2.

        Returns
        -------
        array
            The diagonal, (p,).
        """
        return self._own_sizes()[0].copy()

    def _own_sizes(self) -> tuple[Floats, Floats | None]:
        """The diagonal of the Gram, and the magnitudes that it has, read once for these sums."""
        kept, totals = self._sizes, self.sums
        if kept is None or kept[0] is not totals:
            with on_device(self.device):
                kept = totals, *compact.sizes(totals.gram, self.features, self.positions)
            self._sizes = kept
        return kept[1:]

    @on_own_device
    def second_moment(self) -> Floats:
        """Form the dense second moment of the features, Lambda = gram / W.

        Returns
        -------
        array
            Lambda, (p, p).
        """
        matrix = self.gram()
        matrix /= self.required_weight()
        return matrix

    def required_weight(self) -> float:
        """Total weight W; raises when nothing has been accumulated."""
        if self.total_weight <= 0:
            raise ValueError(
                f"moments: nothing to average, {self.n_samples} samples of total weight 0; "
                "update with data first"
            )
        return self.total_weight

    @on_own_device
    def gram_times(self, x: Floats) -> Floats:
        """Multiply with the Gram, a band of d rows at a time; no p x p matrix is formed.

        Parameters
        ----------
        x
            (p, k).

        Returns
        -------
        array
            The product, (p, k).
        """
        return compact.times(self.sums.gram, x, self.features, self.positions)

    @on_own_device
    def loss(self, coefficients: Floats) -> float:
        """Mean squared training error (1/W) sum w ||C h - y||^2, from the moments.

        Cancellation leaves an error of about 1e-16 times the mean squared target, and more where C
        is large, as in ill-conditioned problems; the fit's ``info.mean_squared_error_bound`` has
        what it may be at most. A value that would be negative is given as 0.

        Parameters
        ----------
        coefficients
            C, (d_out, p).

        Returns
        -------
        float
            The error, not below 0.
        """
        x = coefficients.T
        fitted = (x * self.gram_times(x)).sum(axis=0)  # (d_out,)
        explained = (x * self.cross()).sum(axis=0)
        errors = self.sums.energy - 2 * explained + fitted
        return max(0.0, float(errors.sum()) / self.required_weight())

    # --------------------------------------------------------------------------------------- sizes

    def summand_sizes(self) -> Floats:
        """Sum of w S_jj S_kk z_l^2 for each feature, (p,).

        It is an entry of the Gram if all features take part. Chosen features may lack that entry;
        then the same sum was accumulated on its own.
        """
        apart = self.sums.magnitudes
        if apart is not None:
            return apart.reshape(-1)
        own = self._own_sizes()[1]
        assert own is not None
        return own

    def feature_sizes(self, alpha: float = 0.0) -> Floats:
        """Mean squares by which the features of Lambda + alpha I are scaled, (p,)."""
        weight = self.required_weight()
        with on_device(self.device):
            diagonal = self._own_sizes()[0] / weight + alpha
            return sizes(diagonal, self.summand_sizes() / weight, self.accumulation.longest)

    def relative_errors(self) -> tuple[float, float]:
        """Bounds on the relative rounding error of an entry of the Gram, and of a summand size.

        They count three S of ``longest`` + 2 roundings each, products and sums. With chosen
        features, summand sizes are summed on their own, and always in float64; with all features
        they are entries of the Gram and err like the others.
        """
        how = self.accumulation
        wide = gamma(3 * (how.longest + 2) + how.wide)
        narrow = gamma(how.narrow, NARROW_UNIT)
        error = wide + narrow + wide * narrow
        return error, error if self.magnitudes is None else wide
