"""Tokens and targets as they were given: checked, finite and on the host."""

from __future__ import annotations

import numpy as np

from ...data.non_finite import non_finite_error
from ...data.tokens import Tokens, as_targets, as_tokens
from ...system.arguments import calling


def host_tokens(X: object, offsets: object = None, *, d: int | None = None) -> Tokens:
    """Tokens that are finite and on the host, with d coordinates where d is given."""
    with calling(Z="X"):
        tokens = as_tokens(X, offsets, name="X", d=d)
        if tokens.device is not None:
            raise ValueError(
                "X: softmax layers are computed on the host; bring the tokens home with .get()"
            )
        if not all(np.isfinite(part).all() for part in tokens.arrays):
            raise non_finite_error(tokens, name="X")
    return tokens


def tokens_and_targets(
    X: object, Y: object, offsets: object, *, d: int | None = None, d_out: int | None = None
) -> tuple[Tokens, Tokens]:
    """Tokens and one row of targets for each, of widths d and d_out where these are given."""
    tokens = host_tokens(X, offsets, d=d)
    with calling(Z="X", y="Y"):
        targets = as_targets(Y, tokens, "all", d_out=d_out)
    return tokens, targets
