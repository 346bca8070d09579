"""What data looks like that probably is not what was meant, and what to write instead.

Nothing here reads all tokens: the last token of some sequences tells most cases apart, and a few
sequences are looked at as a whole before anything is said. Tokens on a CUDA device are not looked
at: the work would have to wait for the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..arrays.types import Array, Positions
from .data_warnings import LayoutWarning, PaddingWarning, warn
from .tokens import TRANSPOSE, Tokens

if TYPE_CHECKING:
    pass

_SEQUENCES = 1024
"""Sequences of a batch whose last tokens are looked at, evenly spaced."""
_WHOLE = 16
"""Sequences among those that are looked at as a whole."""
_PADDED = 0.1
"""Share of sequences that end in zeros from which on they look padded."""
_CHANCE = 1e-4
"""Probability from which on zeros at the end may be an accident."""
Flags = npt.NDArray[np.bool_]


def warn_of_padding(tokens: Tokens, positions: Positions) -> None:
    """Warn of sequences that end in tokens of zeros, which are queries.

    A single one may be meant. Sparse data has tokens of zeros elsewhere, too: if m tokens that are
    no ends are looked at and a share f of the ends are zeros, all m differ from zero by chance with
    probability (1 - f)^m, which must be small.
    """
    if tokens.device is not None:
        return
    count = min(len(tokens), _SEQUENCES)
    chosen = np.linspace(0, len(tokens) - 1, count).astype(np.intp)
    ends_in_zeros = _are_zero(_at_an_end(tokens, chosen, -1))
    found = int(ends_in_zeros.sum())
    if found < max(2, _PADDED * count) or _are_zero(_at_an_end(tokens, chosen, 0)).any():
        return
    m = count
    for i in chosen[ends_in_zeros][:_WHOLE]:
        zero = _are_zero(tokens.sequence(int(i)))
        length = len(zero) - int(np.argmin(zero[::-1]))  # up to the last that is not
        if zero[:length].any():
            return
        m += length - 1  # the first has been counted
    if (1 - found / (count + 1)) ** m > _CHANCE:  # of few sequences, f could be less than it is
        return
    looked_at = "" if count == len(tokens) else " looked at"
    queries = "the last token is the query" if positions == "last" else "every token is a query"
    warn(
        f"Z: {found} of {count} sequences{looked_at} end in tokens of zeros, as if padded to one "
        f"length, but {queries}, and zeros ask for nothing; give each sequence its own length, as "
        "a list [z[:n] for z, n in zip(Z, lengths)] or as rows with offsets",
        PaddingWarning,
    )


def _at_an_end(tokens: Tokens, chosen: npt.NDArray[np.intp], end: int) -> Array:
    """First (0) or last (-1) tokens of some sequences, (count, d)."""
    storage, offsets = tokens.storage, tokens.offsets
    found: Array
    if isinstance(storage, tuple):
        found = np.stack([storage[i][end] for i in chosen])
    elif offsets is None:
        found = storage[chosen, end]
    else:
        found = storage[offsets[:-1][chosen] if end == 0 else offsets[1:][chosen] - 1]
    return found


def _are_zero(rows: Array) -> Flags:
    """Which rows have zeros alone."""
    return np.asarray((rows == 0).all(axis=1))


def warn_of_layout(tokens: Tokens, targets: Tokens, positions: Positions) -> None:
    """Warn of tokens that look like columns: as many rows as outputs, and more columns.

    One-hot rows are tokens, whatever their number.
    """
    if isinstance(tokens.storage, tuple) or tokens.offsets is not None or positions != "last":
        return
    if tokens.device is not None:
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
