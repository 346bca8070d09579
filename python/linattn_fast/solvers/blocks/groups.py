"""Groups of query coordinates that never meet, read off the queries of the data themselves.

Two coordinates are in one group when some query has both, or a chain of such queries leads from one
to the other; :mod:`linattn_fast.moments.factors` reads groups off accumulated sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...arrays.types import Positions
from ...data.prefixes import Prefixes, together
from ...data.tokens import Tokens
from ...moments.factors import Group, groups_of

_SAMPLES_AT_ONCE = 1 << 13
"""Samples whose queries are looked at together."""


def in_one_group(tokens: Tokens, positions: Positions, queries: npt.NDArray[np.intp]) -> bool:
    """Whether the chosen coordinates are one group, from no more samples than are needed to tell.

    Samples are numbered for some sequences at a time, since the numbers of all may take as much
    memory as the data.
    """
    meeting = np.zeros((len(queries), len(queries)), dtype=bool)
    sequences = max(1, _SAMPLES_AT_ONCE * len(tokens) // tokens.n_samples(positions))
    for first in range(0, len(tokens), sequences):
        some = tokens.part(first, min(first + sequences, len(tokens)))
        for _, part in Prefixes.of(some, positions).parts(_SAMPLES_AT_ONCE):
            meeting |= together(part.query_tokens()[:, queries] != 0)
            if groups_of(meeting)[0] == 1:
                return True
    return False


def groups_of_samples(
    samples: Prefixes, queries: npt.NDArray[np.intp]
) -> tuple[list[Group], npt.NDArray[np.intp]]:
    """Groups of the chosen coordinates, and the number of the one that each sample queries, (M,).

    It is -1 for samples whose query is zero in all chosen coordinates.
    """
    meeting = np.zeros((len(queries), len(queries)), dtype=bool)
    first = np.full(len(samples), -1)
    for where, part in samples.parts(_SAMPLES_AT_ONCE):
        present = part.query_tokens()[:, queries] != 0
        meeting |= together(present)
        first[where] = np.where(present.any(axis=1), present.argmax(axis=1), -1)
    count, labels = groups_of(meeting)
    groups = [np.flatnonzero(labels == group) for group in range(count)]
    return groups, np.where(first < 0, -1, labels[first])
