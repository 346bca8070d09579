"""A batch of samples: tokens, targets and weights, which tokens query, and which features count.

Everything that is summed over samples takes this one value. It is checked when it is made from what
a caller gave (:meth:`Samples.checked`), so nothing below checks it again.

Data that probably is not what was meant gets a warning. This does not read all tokens: the last
tokens of some sequences decide most cases, and a few sequences are read whole before a warning is
given. Tokens on a CUDA device are not looked at, since the work would have to wait for the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays.compiled import core
from ..arrays.types import Array, Floats, Mask, Numbers, Positions
from ..data.data_warnings import LayoutWarning, PaddingWarning, warn
from ..data.states import States
from ..data.stream_states import StreamStates
from ..data.tokens import TRANSPOSE, Tokens, as_targets, as_weights, total_weight
from .features import Features
from .left_out import require_none_left_out
from .states import batch_and_features


@dataclass(frozen=True)
class Samples:
    """Queries with what they attend to, their targets and their weights."""

    tokens: Tokens
    targets: Tokens | None
    """Targets, one row per query; None where only the features matter."""
    weights: Floats | None
    """Weights of the sequences, (N,), on the host; None means that all are 1."""
    positions: Positions
    """Which tokens query, as sums over samples take it: "last" for states."""
    features: Features
    asked: Positions | None = None
    """The positions that were asked for, where they may differ: those of queries of streams."""

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
            Numbers of coordinates and outputs that the batch must have, where they are known; 0
            outputs mean that there are no targets.
        """
        tokens, chosen = batch_and_features(Z, offsets, features, positions, d)
        targets = None
        if d_out != 0:
            if y is None and d_out is not None:
                raise ValueError(f"y: targets with d_out = {d_out} are needed, got None")
            targets = as_targets(y, tokens, tokens.asked(positions), d_out=d_out)
        elif y is not None:
            raise ValueError("y: these moments have d_out = 0 and take no targets")
        weights = as_weights(tokens.given_weights(sample_weight), len(tokens))
        if chosen.others_are_zero:
            require_none_left_out(tokens, weights, positions, chosen)
        return cls(tokens, targets, weights, tokens.asked(positions), chosen, positions)

    @cached_property
    def compiled(self) -> core.Samples:
        """The samples as compiled code takes them, made once for all sums over them."""
        tokens, targets, features = self.tokens, self.targets, self.features
        rest: dict[str, Any] = {
            "targets": None if targets is None else targets.storage,
            "target_offsets": None if targets is None else targets.offsets,
            "weights": self.weights,
            "positions": self.positions,
        }
        if isinstance(tokens, StreamStates):
            return core.Samples(**tokens.compiled(), **rest)
        if isinstance(tokens, States):
            memory = tokens.memory if tokens.memory.ndim == 3 else tokens.memory[:, None]
            query = tokens.query.reshape(len(tokens), 1, -1)
            return core.Samples(tokens=query, memory=memory, symmetric=tokens.symmetric, **rest)
        return core.Samples(
            tokens=tokens.storage,
            offsets=tokens.offsets,
            pairs=None if features.everything else features.pair_numbers,
            queries=None if features.everything else features.queries,
            **rest,
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "compiled"}

    @property
    def d_out(self) -> int:
        """Number of outputs; 0 without targets."""
        return 0 if self.targets is None else self.targets.d

    @property
    def given_positions(self) -> Positions:
        """The positions that a user asked for."""
        return self.positions if self.asked is None else self.asked

    @property
    def n_sequences(self) -> int:
        """Number of sequences, N."""
        return len(self.tokens)

    @cached_property
    def n_samples(self) -> int:
        """Number of queries: one per sequence for "last", else one per token."""
        return self.tokens.n_samples(self.positions)

    @property
    def n_columns(self) -> int:
        """Number of matrices S that are formed: for "all", the queries of a sequence share one."""
        return self.n_sequences if self.positions == "all" else self.n_samples

    @cached_property
    def total_weight(self) -> float:
        """The sum W of the weights of all samples; an overflow is an error."""
        return total_weight(self.tokens, self.weights, self.positions)

    @cached_property
    def largest_weight(self) -> float:
        """The largest weight of a sample."""
        return 1.0 if self.weights is None else float(self.weights.max())

    @property
    def noise_samples(self) -> float:
        """W over the largest weight: how many samples the noise averages over."""
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
        return self.tokens.nbytes + (0 if self.targets is None else self.targets.nbytes)

    def weight_of_each(self) -> Floats:
        """Weights of the samples, (n_samples,): every query has the weight of its sequence."""
        w = np.ones(self.n_sequences) if self.weights is None else self.weights
        return w if self.positions == "last" else np.repeat(w, self.tokens.lengths)

    def rows(self) -> tuple[Floats, Floats]:
        """The factors s, (n_samples, n_pairs), and z, (n_samples, n_queries), of h = s (x) z."""
        return self.features.samples(self.tokens, self.positions)

    def part(self, first: int, last: int) -> Samples:
        """Sequences first, .., last - 1; nothing is copied."""
        return replace(
            self,
            tokens=self.tokens.part(first, last),
            targets=None if self.targets is None else self.targets.part(first, last),
            weights=None if self.weights is None else self.weights[first:last],
        )

    def every(self, step: int) -> Samples:
        """Every so many-th sequence, without targets; nothing is copied."""
        weights = None if self.weights is None else self.weights[::step]
        return replace(self, tokens=self.tokens.every(step), targets=None, weights=weights)

    def chosen(self, numbers: Numbers) -> Samples:
        """The sequences with these numbers, without their targets."""
        return replace(
            self,
            tokens=self.tokens.chosen(numbers),
            targets=None,
            weights=None if self.weights is None else self.weights[numbers],
        )

    def with_features(self, features: Features) -> Samples:
        """Choose other features of the samples, without their targets."""
        return replace(self, targets=None, features=features)

    def put(self, like: object) -> Samples:
        """Put the samples on the device of ``like``; no copy if they are there already."""
        targets = None if self.targets is None else self.targets.put(like)
        return replace(self, tokens=self.tokens.put(like), targets=targets)


# ---------------------------------------------------------------------- what looks wrong

_SEQUENCES = 1024
"""Number of sequences of a batch, evenly spaced, whose last tokens are looked at."""
_WHOLE = 16
"""Number of these sequences that are read whole."""
_PADDED = 0.1
"""Share of sequences ending in zeros above which they look padded."""
_CHANCE = 1e-4
"""Probability above which zeros at the end may be an accident."""


def warn_of_padding(tokens: Tokens, positions: Positions) -> None:
    """Warn of sequences that end in tokens of zeros, which are queries.

    A single such sequence may be meant. Sparse data has tokens of zeros elsewhere, too: if a share
    f of the last tokens are zeros and m other tokens are looked at, none of these is zero by chance
    with probability (1 - f)^m, which must be small for a warning.
    """
    if tokens.device is not None or isinstance(tokens, States):
        return
    count, chosen = len(tokens), np.arange(min(len(tokens), _SEQUENCES))
    if count > _SEQUENCES:
        chosen, count = chosen * (count - 1) // (_SEQUENCES - 1), _SEQUENCES
    ends = _at_an_end(tokens, chosen, -1)
    if ends[:, 0].all():  # as a rule
        return
    ends_in_zeros = _are_zero(ends)
    found = int(ends_in_zeros.sum())
    if found < max(2, _PADDED * count) or _are_zero(_at_an_end(tokens, chosen, 0)).any():
        return
    m = count
    for i in chosen[ends_in_zeros][:_WHOLE]:
        zero = _are_zero(tokens.sequence(int(i)))
        length = len(zero) - int(np.argmin(zero[::-1]))  # up to the last token that is not zero
        if zero[:length].any():
            return
        m += length - 1  # the first has been counted
    if (1 - found / (count + 1)) ** m > _CHANCE:  # of few sequences, f may be less than was seen
        return
    looked_at = "" if count == len(tokens) else " looked at"
    queries = "the last token is the query" if positions == "last" else "every token is a query"
    warn(
        f"Z: {found} of {count} sequences{looked_at} end in tokens of zeros, as if padded to one "
        f"length, but {queries}, and zeros ask for nothing; give each sequence its own length, as "
        "a list [z[:n] for z, n in zip(Z, lengths)] or as rows with offsets",
        PaddingWarning,
    )


def _at_an_end(tokens: Tokens, chosen: Numbers, end: int) -> Array:
    """First (0) or last (-1) tokens of some sequences, (count, d)."""
    storage, offsets = tokens.storage, tokens.offsets
    found: Array
    if isinstance(storage, tuple):
        found = np.stack([storage[i][end] for i in chosen])
    elif offsets is None:
        found = storage[:, end] if len(chosen) == len(storage) else storage[chosen, end]
    else:
        found = storage[offsets[:-1][chosen] if end == 0 else offsets[1:][chosen] - 1]
    return found


def _are_zero(rows: Array) -> Mask:
    """Which rows are zero."""
    return np.asarray((rows == 0).all(axis=1))


def warn_of_layout(tokens: Tokens, targets: Tokens, positions: Positions) -> None:
    """Warn of tokens that look like columns: as many rows as outputs, and more columns than rows.

    One-hot rows are tokens, however many there are.
    """
    if isinstance(tokens, States) or tokens.device is not None or positions != "last":
        return
    if isinstance(tokens.storage, tuple) or tokens.offsets is not None:
        return
    N, a, b = tokens.storage.shape
    if not 1 < a < b or targets.d != a:
        return
    some = tokens.storage[:_WHOLE]
    if bool(((some != 0).sum(axis=2) <= 1).all()):
        return
    warn(
        f"Z: its shape {(N, a, b)} means sequences of n = {a} tokens in R^{b}, and targets have "
        f"{a} numbers, as if tokens were the columns of each matrix, (N, d, n); rows are needed, "
        f"(N, n, d): {TRANSPOSE}",
        LayoutWarning,
    )
