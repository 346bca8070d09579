"""What scikit-learn regressors on sequences share: forms of X and y, predictions, the score.

X is what the rest of the package calls Z: (N, n, d), or a list or an object array of (n_i, d).
Needs the extra ``linattn_fast[sklearn]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from .blas_threads import same_bits
from .foreign import axes_of
from .naming import calling
from .tokens import Array, Floats, Positions, Tokens, as_targets, as_tokens, as_weights

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        f"scikit-learn is needed ({error}); pip install 'linattn_fast[sklearn]'"
    ) from error


def sequences(value: object) -> object:
    """An object array of sequences as a list; everything else as it is."""
    if issparse(value):
        raise TypeError("X: sparse input is not supported; an array (N, n, d) is needed")
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        return list(value)
    return value


def lacks_last_axis(y: Any, X: object, positions: Positions) -> bool:
    """Whether checked targets came without the axis of outputs, which means one."""
    if positions != "last" and isinstance(sequences(X), list | tuple):
        return axes_of(y[0]) == 1
    return axes_of(y) == (1 if positions == "last" else 2)


class SequenceRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Base of the regressors; a subclass learns, and says what a fitted layer puts out."""

    _flat_targets: bool
    n_features_in_: int

    def _rows(self, tokens: Tokens) -> tuple[Positions, Floats]:
        """What the targets stand at, and the layer's outputs, one row a query (samples, d_out)."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, y: object, X: object, positions: Positions) -> object:
        """Targets in the form that goes with X: one a token, a list for a list."""
        if y is None:
            raise ValueError(
                f"y: targets are needed; {type(self).__name__} requires y to be passed, "
                "but the target y is None"
            )
        if positions == "last":
            return y
        ragged = isinstance(sequences(X), list | tuple)
        return list(y) if ragged and isinstance(y, np.ndarray) else sequences(y)

    def _require_width(self, tokens: Tokens) -> None:
        """Check the coordinates of new tokens; scikit-learn's tools know this sentence."""
        if tokens.d != self.n_features_in_:
            raise ValueError(
                f"X has {tokens.d} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )

    def _outputs(self, X: object) -> tuple[Tokens, Positions, Floats]:
        """Checked tokens, what the targets stand at, and the outputs (samples, d_out)."""
        self._require_fitted()
        with calling(Z="X"):
            tokens = as_tokens(sequences(X))
            self._require_width(tokens)
            positions, rows = self._rows(tokens)
        return tokens, positions, rows

    def _require_fitted(self) -> None:
        """Raise NotFittedError before the first fit."""
        check_is_fitted(self)

    @same_bits
    def predict(self, X: object) -> Array | list[Array]:
        """Apply the learned layer.

        Parameters
        ----------
        X
            Tokens: (N, n, d), or a list or an object array of (n_i, d), of any length.

        Returns
        -------
        array or list
            In the form of the targets, see Notes.
        """
        tokens, positions, rows = self._outputs(X)
        y = rows if positions == "last" else tokens.restore(rows)
        if self._flat_targets:
            y = [each[:, 0] for each in y] if isinstance(y, list) else y[..., 0]
        if isinstance(y, list) and isinstance(X, np.ndarray):
            objects = np.empty(len(y), dtype=object)
            for i, each in enumerate(y):  # objects[:] = y fails for sequences of one length
                objects[i] = each
            return objects
        return y

    @same_bits
    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """R^2, the mean over outputs; every token that has a target counts.

        Parameters
        ----------
        X, y, sample_weight
            As for :meth:`fit`; a weight holds for all tokens of its sequence.

        Returns
        -------
        float
            1 is best; predicting the mean has 0.
        """
        tokens, positions, rows = self._outputs(X)
        given = self._targets(y, X, positions)
        targets = as_targets(given, tokens, positions, d_out=rows.shape[1])
        weights = as_weights(sample_weight, len(tokens))
        if weights is not None and positions != "last":
            weights = np.repeat(weights, tokens.lengths)
        return float(r2_score(targets.rows(), rows, sample_weight=weights))
