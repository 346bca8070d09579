"""Groups of query coordinates that never meet, which make the Gram block diagonal.

    G[(u,l), (v,m)] = sum w s_u s_v z_l z_m    ("all": S_lm in the place of z_l z_m)

is zero for every u and v where l and m are in different groups: of one-hot queries, every
coordinate is a group of its own. p = n_pairs n_queries features then fall into blocks of
n_pairs |group|, and factorising costs the sum of the cubes of the blocks instead of the cube of p.

Groups of accumulated moments are read off the sums: l and m are in one group when an entry that
joins them is not exactly zero, or a chain of such entries leads from one to the other. Coordinates
that do occur together but whose products cancel, to the last bit and for every u and v, are apart
as well, and rightly: the matrix that is factorised has these zeros. Groups of data at hand are read
off the queries themselves: l and m are in one group when some query has both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from ..arrays.device import module_of
from ..arrays.types import Positions
from ..data.prefixes import Prefixes, together
from ..data.tokens import Tokens
from ..features import compact
from ..features.features import Features
from .moments import Moments

Group = npt.NDArray[np.intp]
"""Ascending numbers among the queries of the features."""

_SAMPLES_AT_ONCE = 1 << 13
"""Queries looked at together."""


def query_groups(moments: Moments) -> list[Group]:
    """Find the groups; one, of all queries, where the Gram is not block diagonal."""
    meeting = compact.meeting(moments.sums.gram, moments.features, moments.positions)
    count, labels = _groups(meeting)
    return [np.flatnonzero(labels == group) for group in range(count)]


def in_one_group(tokens: Tokens, positions: Positions, queries: npt.NDArray[np.intp]) -> bool:
    """Whether the chosen coordinates are one group, from no more samples than it takes to tell.

    The numbers of samples are made for some sequences at a time: of all, they may be as large as
    the data.
    """
    meeting = np.zeros((len(queries), len(queries)), dtype=bool)
    sequences = max(1, _SAMPLES_AT_ONCE * len(tokens) // tokens.n_samples(positions))
    for first in range(0, len(tokens), sequences):
        some = tokens.part(first, min(first + sequences, len(tokens)))
        for _, part in Prefixes.of(some, positions).parts(_SAMPLES_AT_ONCE):
            meeting |= together(part.query_tokens()[:, queries] != 0)
            if _groups(meeting)[0] == 1:
                return True
    return False


def groups_of_samples(
    samples: Prefixes, queries: npt.NDArray[np.intp]
) -> tuple[list[Group], npt.NDArray[np.intp]]:
    """Groups of the chosen coordinates, and which of them each sample queries, (M,).

    -1 for samples whose query is zero in all chosen coordinates.
    """
    meeting = np.zeros((len(queries), len(queries)), dtype=bool)
    first = np.full(len(samples), -1)
    for where, part in samples.parts(_SAMPLES_AT_ONCE):
        present = part.query_tokens()[:, queries] != 0
        meeting |= together(present)
        first[where] = np.where(present.any(axis=1), present.argmax(axis=1), -1)
    count, labels = _groups(meeting)
    groups = [np.flatnonzero(labels == group) for group in range(count)]
    return groups, np.where(first < 0, -1, labels[first])


def _groups(meeting: npt.NDArray[np.bool_]) -> tuple[int, npt.NDArray[np.int32]]:
    """How many groups there are, and which each coordinate is in, from who meets whom."""
    count, labels = connected_components(meeting.astype(np.int8), directed=False)
    return int(count), labels


def features_of_group(features: Features, group: Group) -> npt.NDArray[np.intp]:
    """Where the features (u, l) of a group are among all, (n_pairs |group|,), in their order."""
    starts = np.arange(features.n_pairs) * features.n_queries
    return np.asarray((starts[:, None] + group).reshape(-1))


def moments_of(moments: Moments, group: Group) -> Moments:
    """Moments of the same samples with the queries of one group alone.

    Their Gram is a diagonal block of the whole. The magnitudes of the summands are chosen along
    where there are any; otherwise all pairs take part, and the block has them.
    """
    features = moments.features
    if len(group) == features.n_queries:
        return moments
    sums, sizes = moments.sums, moments.magnitudes
    part = Moments(
        moments.d,
        moments.d_out,
        positions=moments.positions,
        features=Features(moments.d, features.pairs, features.queries[group]),
        backend=moments.backend,
        precision=moments.precision,
    )
    gram = compact.of_queries(sums.gram, features, moments.positions, group)
    where = module_of(gram).asarray(group)
    return part.add(
        replace(
            sums,
            gram=gram,
            cross=sums.cross[:, where],
            magnitudes=None if sizes is None else sizes[:, where],
        )
    )
