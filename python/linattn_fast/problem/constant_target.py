"""One feature as one more target, so that an ordinary ridge can leave its coefficient free.

The ridge of all features but number 0 is solved for by two ordinary ones. With M = Lambda + alpha I
and e the unit vector of that feature, the coefficients sought are, for each output,

    x = (M - alpha e e')^-1 b = c + (e - t) c_0 / t_0      c = M^-1 b,  t = M^-1 Lambda e

by the formula of Sherman and Morrison, because alpha M^-1 e = e - t. And t is the ordinary ridge
for the target h_0, the feature itself, whose cross moment is Lambda e. So every solver can do it:
the feature becomes one more column of the targets (:mod:`linattn_fast.solvers.free_feature` puts
the columns together). The column is scaled by a power of two to about the size of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats, Positions
from ..data.sources import Batch, Source
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from ..moments.moments import Moments
from ..moments.streaming import checked_batch
from .accumulated import Accumulated
from .in_memory import InMemory
from .interface import Problem
from .streamed import Streamed


@dataclass(frozen=True)
class ConstantTarget:
    """A problem whose last target is a feature, times a scale."""

    problem: Problem
    """The problem with one more output."""
    original: Problem
    """The problem as it was."""
    feature: int
    """Number of the feature among those that take part."""
    scale: float
    """What the feature is multiplied with."""


def with_constant_target(problem: Problem, feature: int) -> ConstantTarget:
    """Make a feature one more target of a problem."""
    if isinstance(problem, InMemory):
        scale = _scale(problem.samples, feature)
        samples = _with_feature(problem.samples, feature, scale)
        made: Problem = InMemory(samples, problem.engine, problem.precision)
    elif isinstance(problem, Streamed):
        scale = 1.0
        if problem.read is not None:
            with problem.read() as parts:
                scale = _scale(next(parts), feature)
        source = _MoreTargets(problem.source, problem, feature, scale)
        made = replace(problem, source=source, d_out=problem.d_out + 1, forms=set())
    else:
        assert isinstance(problem, Accumulated)
        sums, scale = _moments_with_feature(problem.sums, feature)
        made = Accumulated(sums)
    return ConstantTarget(made, problem, feature, scale)


def _near_one(targets: float, feature: float) -> float:
    """The power of two that brings a feature to the size of targets, from their mean squares."""
    ratio = targets / feature if feature > 0 else 0.0
    return 2.0 ** round(np.log2(ratio) / 2) if 0 < ratio < np.inf else 1.0


def _values(samples: Samples, feature: int) -> Floats:
    """The values of one feature, (n_samples,)."""
    pair, query = divmod(feature, samples.features.n_queries)
    one = samples.features.subset(np.array([pair]), np.array([query]))
    s, z = samples.with_features(one).rows()
    values: Floats = s[:, 0] * z[:, 0]
    return values


def _scale(samples: Samples, feature: int) -> float:
    assert samples.targets is not None
    y, h = samples.targets.rows(), _values(samples, feature)
    return _near_one(float((y.astype(np.float64) ** 2).mean()), float((h**2).mean()))


def _with_feature(samples: Samples, feature: int, scale: float) -> Samples:
    """The samples with a feature as the last of their targets."""
    targets = samples.targets
    assert targets is not None
    xp, y = module_of(*targets.arrays[:1]), targets.rows()
    rows: Floats = xp.empty((len(y), y.shape[1] + 1))
    rows[:, :-1], rows[:, -1] = y, scale * _values(samples, feature)
    storage = targets.restore(rows)
    made = Tokens(
        tuple(storage) if isinstance(storage, list) else storage, targets.offsets, targets.scalar
    )
    return replace(samples, targets=made)


def _moments_with_feature(moments: Moments, feature: int) -> tuple[Moments, float]:
    """Moments with a column of the Gram as one more cross moment."""
    totals, features = moments.sums, moments.features
    xp = module_of(totals.cross)
    unit = xp.zeros((features.count, 1))
    unit[feature] = 1.0
    column = moments.gram_times(unit)[:, 0]
    square = float(column[feature])
    scale = _near_one(float(totals.energy.mean()), square)
    more = column.reshape(features.n_pairs, features.n_queries).T[None]
    made = Moments(
        moments.d,
        moments.d_out + 1,
        positions=moments.positions,
        features=features,
        backend=moments.backend,
        precision=moments.precision,
    )
    made.add(
        replace(
            totals,
            cross=xp.concatenate([totals.cross, scale * more]),
            energy=xp.append(totals.energy, scale * scale * square),
        )
    )
    return made, scale


@dataclass(frozen=True)
class _MoreTargets:
    """A source whose batches have a feature as one more target; see :class:`Source`."""

    source: Source
    problem: Streamed
    feature: int
    scale: float

    @property
    def unit(self) -> str:
        """See :attr:`Source.unit`."""
        return self.source.unit

    @property
    def total(self) -> int | None:
        """See :attr:`Source.total`."""
        return self.source.total

    @property
    def rereadable(self) -> bool:
        """See :attr:`Source.rereadable`."""
        return self.source.rereadable

    @property
    def nbytes(self) -> int:
        """See :attr:`Source.nbytes`."""
        return self.source.nbytes

    def n_samples(self, positions: Positions) -> int | None:
        """See :meth:`Source.n_samples`."""
        return self.source.n_samples(positions)

    def resized(self, moments_bytes: int, growth: int = 1) -> Source:
        """See :meth:`Source.resized`."""
        return replace(self, source=self.source.resized(moments_bytes, growth))

    def read(self) -> Iterator[Batch]:
        """Yield all batches, in order, each with its feature."""
        features: Features = self.problem.features
        for batch in self.source.read():
            samples = checked_batch(
                batch, self.problem.positions, features, d=features.d, d_out=self.problem.d_out
            )
            more = _with_feature(samples, self.feature, self.scale)
            tokens = more.tokens
            if isinstance(tokens, StreamStates):
                tokens = tokens.without_form()
            yield batch._replace(Z=tokens, y=more.targets, offsets=None, sample_weight=more.weights)
