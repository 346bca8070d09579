"""What scikit-learn regressors on sequences share: forms of X and y, predictions, the score.

X is what the rest of the package calls Z: (N, n, d), or a list or an object array of (n_i, d).
Needs the extra ``linattn_fast[sklearn]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from ..arrays.types import Array, Positions
from ..data.states import States
from ..data.streams import Streams
from ..data.tokens import Tokens, as_tokens
from ..system.arguments import calling
from ..system.machine import same_bits

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        f"scikit-learn is needed ({error}); pip install 'linattn_fast[sklearn]'"
    ) from error


def sequences(value: object) -> object:
    """An object array of sequences as a list; everything else as it is."""
    if issparse(value):
        raise TypeError("X: sparse input is not supported; an array (N, n, d) is needed")
    if isinstance(value, States | Streams):
        raise TypeError(f"X: estimators take tokens, got {value!r}; la.fit takes such")
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        return list(value)
    return value


class SequenceRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Base of the regressors; a subclass learns a layer, applies it and scores it."""

    n_features_in_: int

    def _predict(self, tokens: Tokens) -> Array | list[Array]:
        """Predictions of the learned layer, in the form of its targets."""
        raise NotImplementedError

    def _score(self, tokens: Tokens, X: object, y: object, sample_weight: object) -> float:
        """R^2 of the learned layer on tokens, which were given as X."""
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

    def _tokens(self, X: object) -> Tokens:
        """Check new tokens for the learned layer."""
        self._require_fitted()
        tokens = as_tokens(sequences(X))
        self._require_width(tokens)
        return tokens

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
            Predictions in the form of the targets, see Notes.
        """
        with calling(Z="X"):
            y = self._predict(self._tokens(X))
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
        with calling(Z="X"):
            return self._score(self._tokens(X), X, y, sample_weight)
