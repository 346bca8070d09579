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
from scipy.sparse import csr_matrix

from ..arrays.types import Array, Floats, Mask, Numbers, Positions
from .non_finite import non_finite_error
from .states import States
from .tokens import Tokens

_SUMS_AT_ONCE = 1 << 17
"""Number of running sums of sequences side by side that stay in the cache."""
_NUMBERS_AT_ONCE = 1 << 23
"""Number of entries of tokens that are copied side by side, at most."""
_TOKENS_AT_ONCE = 1 << 13
"""Number of tokens that are looked at together, about."""
_SPARSE = 0.1
"""Share of non-zero entries below which a sparse product is faster."""


def together(present: Mask) -> Mask:
    """Which pairs of columns of (rows, d) are both true in some row, (d, d)."""
    if present.mean() < _SPARSE:
        few = csr_matrix(present, dtype=np.int64)
        return np.asarray(csr_matrix(few.T @ few).toarray() > 0)
    counts = present.astype(np.float32)
    return np.asarray(counts.T @ counts > 0)


def _longest(beginnings: Numbers, lengths: Numbers) -> Numbers:
    """Numbers of the longest sequences, one for each beginning, by growing length."""
    order = np.lexsort((lengths, beginnings))
    ordered = beginnings[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    found = order[last]
    return np.asarray(found[np.argsort(lengths[found], kind="stable")])


def distinct_rows(tokens: Tokens) -> Iterator[Array]:
    """Yield all tokens of a batch, (rows, d) at a time; common prefixes come only once."""
    if isinstance(tokens, States):  # each is a token of its own
        for _, some in tokens.pieces():
            yield some.rows()
        return
    waiting: list[Array] = []
    for i in _longest(tokens.beginnings, tokens.lengths):
        waiting.append(tokens.sequence(int(i)))
        if sum(map(len, waiting)) >= _TOKENS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting.clear()
    if waiting:
        yield np.concatenate(waiting)


def last_tokens(tokens: Tokens) -> Iterator[Floats]:
    """Yield the last token of each sequence, (rows, d) at a time."""
    for _, part in Prefixes.of(tokens, "last").parts(_TOKENS_AT_ONCE):
        yield part.query_tokens()


def occurring_pairs(tokens: Tokens) -> Mask:
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
    """The sequence i of each sample, (M,)."""
    lengths: Numbers
    """The number n of tokens that each sample attends to, (M,)."""
    queries: Numbers
    """The place t of the token that queries, (M,)."""

    @classmethod
    def of(cls, tokens: Tokens, positions: Positions) -> Prefixes:
        """All samples of a batch, in order."""
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
        """The samples with these numbers."""
        return Prefixes(self.tokens, self.sequences[rows], self.lengths[rows], self.queries[rows])

    def parts(self, rows: int) -> Iterator[tuple[slice, Prefixes]]:
        """Yield ``rows`` samples at a time, and where they are among all."""
        for first in range(0, len(self), rows):
            where = slice(first, min(first + rows, len(self)))
            yield where, self.take(where)

    def query_tokens(self) -> Floats:
        """The token z that queries, of each sample, (M, d)."""
        if isinstance(self.tokens, States):
            return self.tokens.chosen(self.sequences).rows()
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
        """S[j,k] of each sample, (M, m), for pairs (m, 2), by running sums over the tokens."""
        if isinstance(self.tokens, States):  # pairs (0, 1 + u), with S[0, 1 + u] = s_u
            return self.tokens.chosen(self.sequences).entries(pairs[:, 1] - 1)
        sums = np.empty((len(self), len(pairs)))
        if sums.size == 0:
            return sums
        used = np.unique(pairs)
        j, k = np.searchsorted(used, pairs.T)
        base = self.tokens.beginnings[self.sequences]
        longest = _longest(base, self.lengths)  # one sample of each beginning
        place = np.empty(int(base.max()) + 1, dtype=np.intp)
        place[base[longest]] = np.arange(len(longest))
        run = place[base]  # number of each sample's beginning among the longest
        order = np.lexsort((self.lengths, run))
        step = max(8, _SUMS_AT_ONCE // len(pairs))
        first = 0
        with np.errstate(over="ignore", invalid="ignore"):
            while first < len(longest):
                most = int(self.lengths[longest[min(first + step, len(longest)) - 1]])
                room = max(1, _NUMBERS_AT_ONCE // max(1, most * len(used)))
                last = min(first + min(step, room), len(longest))
                chosen = order[slice(*np.searchsorted(run[order], (first, last)))]
                tokens = self._side_by_side(longest[first:last], used)
                self._run(tokens, j, k, chosen, run[chosen] - first, sums)
                first = last
        if not np.isfinite(sums).all():
            raise non_finite_error(self.tokens)
        return sums

    def _side_by_side(self, rows: Numbers, used: Numbers) -> Floats:
        """Tokens of some samples, (longest, coordinates, samples), zero past the end of each."""
        side = np.zeros((int(self.lengths[rows].max()), len(used), len(rows)))
        for column, row in enumerate(rows):
            n = self.lengths[row]
            side[:n, :, column] = self.tokens.sequence(int(self.sequences[row]))[:n, used]
        return side

    def _run(
        self, tokens: Floats, j: Numbers, k: Numbers, rows: Numbers, columns: Numbers, sums: Floats
    ) -> None:
        """Write S of each of these samples, whose tokens are in the given columns, to ``sums``."""
        running = np.zeros((len(j), tokens.shape[2]))
        order = np.argsort(self.lengths[rows], kind="stable")
        rows, columns = rows[order], columns[order]
        ends = np.searchsorted(self.lengths[rows], np.arange(len(tokens) + 2))
        for t, token in enumerate(tokens):
            running += token[j] * token[k]
            here = slice(ends[t + 1], ends[t + 2])
            sums[rows[here]] = running[:, columns[here]].T
