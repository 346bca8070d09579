"""Samples as prefixes of sequences, and sums over the tokens of a prefix.

A sample is (i, n, t): S of the first n tokens of sequence i, queried by its token t.

    "last"  (i, n_i, n_i - 1)        "causal"  (i, t + 1, t)        "all"  (i, n_i, t)

Sequences that begin at one place in memory are prefixes of the longest of them, as when a trace is
cut at each of its steps; then S is one running sum for all of them, as it is for "causal".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from ..arrays.types import Array, Floats, Positions
from .non_finite import non_finite_error
from .tokens import Tokens

Numbers = npt.NDArray[np.intp]

_SUMS_AT_ONCE = 1 << 17
"""Running sums of a few sequences that stay in the cache."""
_TOKENS_AT_ONCE = 1 << 23
"""Numbers copied for them."""
_ROWS_AT_ONCE = 1 << 13
"""Tokens looked at together."""
_SPARSE = 0.1
"""Share of non-zero numbers below which a sparse product is faster."""


def together(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which columns of (rows, d) are true in one row, (d, d)."""
    if present.mean() < _SPARSE:
        few = csr_matrix(present, dtype=np.int64)
        return np.asarray(csr_matrix(few.T @ few).toarray() > 0)
    counts = present.astype(np.float32)
    return np.asarray(counts.T @ counts > 0)


def _longest(beginnings: Numbers, lengths: Numbers) -> Numbers:
    """Where the longest of each beginning is, by growing length."""
    order = np.lexsort((lengths, beginnings))
    ordered = beginnings[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    found = order[last]
    return np.asarray(found[np.argsort(lengths[found], kind="stable")])


def distinct_rows(tokens: Tokens) -> Iterator[Array]:
    """Yield all tokens of a batch, (rows, d) at a time, those of common prefixes once."""
    waiting: list[Array] = []
    for i in _longest(tokens.beginnings, tokens.lengths):
        waiting.append(tokens.sequence(int(i)))
        if sum(map(len, waiting)) >= _ROWS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting.clear()
    if waiting:
        yield np.concatenate(waiting)


def occurring_pairs(tokens: Tokens) -> npt.NDArray[np.bool_]:
    """Which coordinates j and k are both non-zero in some token, (d, d); tokens on the host."""
    found = np.zeros((tokens.d, tokens.d), dtype=bool)
    for rows in distinct_rows(tokens):
        found |= together(rows != 0)
        if found.all():
            break
    return found


@dataclass(frozen=True)
class Prefixes:
    """Samples of a batch on the host."""

    tokens: Tokens
    sequences: Numbers
    """i of each sample, (M,)."""
    lengths: Numbers
    """n, (M,)."""
    queries: Numbers
    """t, (M,)."""

    @classmethod
    def of(cls, tokens: Tokens, positions: Positions) -> Prefixes:
        """All samples of a batch, in their order."""
        lengths = tokens.lengths
        if positions == "last":
            return cls(tokens, np.arange(len(tokens)), lengths, lengths - 1)
        sequences = np.repeat(np.arange(len(tokens)), lengths)
        starts = np.cumsum(lengths) - lengths
        steps = np.arange(len(sequences)) - starts[sequences]
        ends = steps + 1 if positions == "causal" else lengths[sequences]
        return cls(tokens, sequences, ends, steps)

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, rows: Numbers | slice) -> Prefixes:
        """Some of them."""
        return Prefixes(self.tokens, self.sequences[rows], self.lengths[rows], self.queries[rows])

    def parts(self, rows: int) -> Iterator[tuple[slice, Prefixes]]:
        """So many at a time."""
        for first in range(0, len(self), rows):
            where = slice(first, min(first + rows, len(self)))
            yield where, self.take(where)

    def query_tokens(self) -> Floats:
        """z of each sample, (M, d)."""
        storage, offsets = self.tokens.storage, self.tokens.offsets
        if isinstance(storage, tuple):
            found = zip(self.sequences, self.queries, strict=True)
            rows = np.array([storage[i][t] for i, t in found]).reshape(len(self), -1)
        elif offsets is not None:
            rows = storage[offsets[self.sequences] + self.queries]
        else:
            rows = storage[self.sequences, self.queries]
        return np.asarray(rows, dtype=np.float64)

    def pair_sums(self, pairs: Numbers) -> Floats:
        """s = S[j,k] of each sample, (M, m), for pairs (m, 2): running sums over the tokens."""
        sums = np.empty((len(self), len(pairs)))
        if sums.size == 0:
            return sums
        used = np.unique(pairs)
        j, k = np.searchsorted(used, pairs.T)
        base = self.tokens.beginnings[self.sequences]
        longest = _longest(base, self.lengths)  # one sample of each beginning
        place = np.empty(int(base.max()) + 1, dtype=np.intp)
        place[base[longest]] = np.arange(len(longest))
        run = place[base]  # of each sample, among the longest
        order = np.lexsort((self.lengths, run))
        step = max(8, _SUMS_AT_ONCE // len(pairs))
        first = 0
        with np.errstate(over="ignore", invalid="ignore"):
            while first < len(longest):
                most = int(self.lengths[longest[min(first + step, len(longest)) - 1]])
                room = max(1, _TOKENS_AT_ONCE // max(1, most * len(used)))
                last = min(first + min(step, room), len(longest))
                chosen = order[slice(*np.searchsorted(run[order], (first, last)))]
                tokens = self._side_by_side(longest[first:last], used)
                self._run(tokens, j, k, chosen, run[chosen] - first, sums)
                first = last
        if not np.isfinite(sums).all():
            raise non_finite_error(self.tokens)
        return sums

    def _side_by_side(self, rows: Numbers, used: Numbers) -> Floats:
        """Tokens of some samples, (longest, coordinates, sample), zero past the end of each."""
        side = np.zeros((int(self.lengths[rows].max()), len(used), len(rows)))
        for column, row in enumerate(rows):
            n = self.lengths[row]
            side[:n, :, column] = self.tokens.sequence(int(self.sequences[row]))[:n, used]
        return side

    def _run(
        self, tokens: Floats, j: Numbers, k: Numbers, rows: Numbers, columns: Numbers, sums: Floats
    ) -> None:
        """Write S at the end of each of these samples, whose tokens are in the given columns."""
        running = np.zeros((len(j), tokens.shape[2]))
        order = np.argsort(self.lengths[rows], kind="stable")
        rows, columns = rows[order], columns[order]
        ends = np.searchsorted(self.lengths[rows], np.arange(len(tokens) + 2))
        for t, token in enumerate(tokens):
            running += token[j] * token[k]
            here = slice(ends[t + 1], ends[t + 2])
            sums[rows[here]] = running[:, columns[here]].T
