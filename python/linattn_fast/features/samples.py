"""A batch of samples: tokens, targets and weights, which tokens query, and which features count.

Everything that is summed over samples takes this one value. It is checked when it is made from what
a caller gave (:meth:`Samples.checked`), so nothing below checks it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..arrays.types import Floats, Positions
from ..data.tokens import Tokens, as_targets, as_tokens, as_weights, total_weight
from .features import Features, as_features
from .left_out import require_none_left_out


@dataclass(frozen=True)
class Samples:
    """Queries with what they attend to, their targets and their weights."""

    tokens: Tokens
    targets: Tokens | None
    """One row a query; None where only the features matter."""
    weights: Floats | None
    """(N,), one a sequence, on the host; None for 1."""
    positions: Positions
    features: Features

    @classmethod
    def checked(
        cls,
        Z: object,
        y: object = None,
        *,
        offsets: object = None,
        sample_weight: object = None,
        positions: Positions = "last",
        features: Features | None = None,
        d: int | None = None,
        d_out: int | None = None,
    ) -> Samples:
        """Check a batch in any form that callers may use.

        Parameters
        ----------
        Z, y, offsets, sample_weight, features
            As for :func:`linattn_fast.fit`, in memory.
        positions
            Which tokens query, checked already.
        d, d_out
            Coordinates and outputs that the batch must have, where they are known; 0 outputs mean
            that there are no targets.
        """
        tokens = as_tokens(Z, offsets, d=d)
        chosen = as_features(features, tokens.d)
        targets = None
        if d_out != 0:
            if y is None and d_out is not None:
                raise ValueError(f"y: targets with d_out = {d_out} are needed, got None")
            targets = as_targets(y, tokens, positions, d_out=d_out)
        elif y is not None:
            raise ValueError("y: these moments have d_out = 0 and take no targets")
        weights = as_weights(sample_weight, len(tokens))
        require_none_left_out(tokens, weights, positions, chosen)
        return cls(tokens, targets, weights, positions, chosen)

    @property
    def d_out(self) -> int:
        """Number of outputs; 0 without targets."""
        return 0 if self.targets is None else self.targets.d

    @property
    def n_sequences(self) -> int:
        """Number of sequences, N."""
        return len(self.tokens)

    @cached_property
    def n_samples(self) -> int:
        """Number of queries: one a sequence for "last", else one a token."""
        return self.tokens.n_samples(self.positions)

    @property
    def n_columns(self) -> int:
        """Number of sums that are formed of a batch: for "all", the queries of a sequence share S."""
        return self.n_sequences if self.positions == "all" else self.n_samples

    @cached_property
    def total_weight(self) -> float:
        """W, the sum of the weights of all samples; raises where it overflows."""
        return total_weight(self.tokens, self.weights, self.positions)

    @cached_property
    def largest_weight(self) -> float:
        """The largest weight of a sample."""
        return 1.0 if self.weights is None else float(self.weights.max())

    @property
    def noise_samples(self) -> float:
        """W over the largest weight: of how many samples with equal weights the noise averages."""
        return self.total_weight / self.largest_weight

    @cached_property
    def longest(self) -> int:
        """Number of tokens in the longest sequence."""
        return self.tokens.longest

    @property
    def scalar_targets(self) -> bool:
        """Whether the targets came without an axis of outputs."""
        return self.targets is not None and self.targets.scalar

    @property
    def device(self) -> int | None:
        """The CUDA device that the tokens are on; None for the host."""
        return self.tokens.device

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and targets."""
        given = (batch for batch in (self.tokens, self.targets) if batch is not None)
        return sum(batch.n_rows * batch.d * batch.sequence(0).itemsize for batch in given)

    def weight_of_each(self) -> Floats:
        """Weights of the samples, (n_samples,): every query of a sequence has the sequence's."""
        w = np.ones(self.n_sequences) if self.weights is None else self.weights
        return w if self.positions == "last" else np.repeat(w, self.tokens.lengths)

    def rows(self) -> tuple[Floats, Floats]:
        """s (n_samples, n_pairs) and z (n_samples, n_queries), with h = s (x) z."""
        return self.features.samples(self.tokens, self.positions)

    def part(self, first: int, last: int) -> Samples:
        """Sequences first, .., last - 1; nothing is copied."""
        return replace(
            self,
            tokens=self.tokens.part(first, last),
            targets=None if self.targets is None else self.targets.part(first, last),
            weights=None if self.weights is None else self.weights[first:last],
        )

    def chosen(self, numbers: npt.NDArray[np.intp]) -> Samples:
        """Sequences of these numbers, without their targets."""
        return replace(
            self,
            tokens=self.tokens.chosen(numbers),
            targets=None,
            weights=None if self.weights is None else self.weights[numbers],
        )

    def with_features(self, features: Features) -> Samples:
        """The same samples, of which other features matter, without their targets."""
        return replace(self, targets=None, features=features)

    def put(self, like: object) -> Samples:
        """The same samples where another object is; these if they are there already."""
        targets = None if self.targets is None else self.targets.put(like)
        return replace(self, tokens=self.tokens.put(like), targets=targets)
