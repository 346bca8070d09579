"""How well predictions agree with targets: R^2, as ``r2_score`` of scikit-learn defines it.

    R^2 = 1 - sum_i w_i (y_i - f_i)^2 / sum_i w_i (y_i - m)^2,    m = sum_i w_i y_i / sum_i w_i

for each output, and then the mean over outputs. An output whose targets are constant scores 1 if it
is predicted exactly and 0 otherwise.
"""

from __future__ import annotations

import numpy as np

from ..arrays.device import to_host
from ..arrays.types import Floats, Positions
from .data_warnings import DataWarning, warn
from .tokens import Tokens, as_targets, as_weights, require_positive


def r_squared(y: Floats, predicted: Floats, weights: Floats | None = None) -> float:
    """R^2 of predictions (samples, d_out) with weights (samples,), 1 by default."""
    if len(y) < 2:
        warn(f"y: R^2 needs two samples or more, got {len(y)}; the score is nan", DataWarning)
        return float("nan")
    y = y.astype(np.float64, copy=False)
    w = np.ones((len(y), 1)) if weights is None else weights[:, None]
    errors = (w * (y - predicted) ** 2).sum(axis=0)  # (d_out,)
    spread = (w * (y - np.average(y, axis=0, weights=w[:, 0])) ** 2).sum(axis=0)
    scores = np.where(errors == 0, 1.0, 0.0)  # of constant targets
    varies = spread != 0
    scores[varies] = 1 - errors[varies] / spread[varies]
    return float(scores.mean())


def score_of(
    tokens: Tokens, y: object, predicted: Floats, positions: Positions, sample_weight: object
) -> float:
    """R^2 of predictions (samples, d_out) for targets and weights in any form that users give."""
    targets = as_targets(y, tokens, positions, d_out=predicted.shape[1])
    weights = as_weights(tokens.given_weights(sample_weight), len(tokens))
    if weights is not None:
        require_positive(float(weights.max()))
        if positions != "last":
            weights = np.repeat(weights, tokens.lengths)
    return r_squared(to_host(targets.rows()), to_host(predicted), weights)
