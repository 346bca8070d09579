"""The softmax layer as a scikit-learn regressor; needs the extra ``linattn_fast[sklearn]``."""

from __future__ import annotations

from dataclasses import dataclass

from ...arrays.types import Array
from ...data.tokens import Tokens
from ...system.arguments import calling
from ...system.machine import same_bits
from ..search.settings import Solver
from .fit import fit
from .result import Fit

try:
    from ...sklearn.sequence_regressor import SequenceRegressor, sequences
except ImportError as error:
    raise ImportError(f"SoftmaxAttentionRegressor: {error}") from error


@dataclass(eq=False, repr=False, kw_only=True)  # scikit-learn has its own
class SoftmaxAttentionRegressor(SequenceRegressor):
    """Softmax attention, y = sum_i softmax(X Theta_i X') X W_i, for scikit-learn's tools.

    Parameters
    ----------
    heads
        Number of heads.
    start, starts, agreeing, held_out, tolerance, solver, seed, backend
        See :func:`linattn_fast.softmax.fit`.

    Attributes
    ----------
    theta_ : array (m, d, d)
        Attention of each head.
    values_ : array (m, d, d_out)
        Values W of each head.
    report_ : Report
        What was shown about the layer.
    fit_ : Fit
        The whole result.
    n_features_in_ : int
        Coordinates of a token, d.

    Notes
    -----
    X is (N, k, d), or a list or an object array of (k_i, d); y has one row a token, in the form of
    X, with or without an axis of outputs, and predictions have the form of y.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.softmax.Layer(rng.standard_normal((1, 3, 3)), rng.standard_normal((1, 3, 1)))
    >>> X = rng.choice([-1.0, 1.0], size=(200, 4, 3))
    >>> model = la.softmax.SoftmaxAttentionRegressor(heads=1).fit(X, truth(X))
    >>> round(model.score(X, truth(X)), 9)
    1.0
    """

    heads: int = 1
    start: object = None
    starts: int = 12
    agreeing: int = 3
    held_out: float = 0.2
    tolerance: float = 0.1
    solver: Solver = "auto"
    seed: int = 0
    backend: str = "auto"

    @same_bits
    def fit(self, X: object, y: object, sample_weight: object = None) -> SoftmaxAttentionRegressor:
        """Learn a layer.

        Parameters
        ----------
        X
            Tokens: (N, k, d), or a list or an object array of (k_i, d).
        y
            Targets, one row a token, in the form of X.
        sample_weight
            Weights (N,), one a sequence; 1 by default.

        Returns
        -------
        SoftmaxAttentionRegressor
            This object.
        """
        given = self._targets(y, X, "all")
        with calling(Y="y"):
            self.fit_: Fit = fit(
                sequences(X), given, sample_weight=sample_weight, **self.get_params()
            )
        self.n_features_in_ = self.fit_.layer.d
        self.theta_, self.values_, self.report_ = self.fit_.Theta, self.fit_.W, self.fit_.report
        return self

    def _predict(self, tokens: Tokens) -> Array | list[Array]:
        return self.fit_.predict(tokens)

    def _score(self, tokens: Tokens, X: object, y: object, sample_weight: object) -> float:
        with calling(Y="y"):
            return self.fit_.score(tokens, self._targets(y, X, "all"), sample_weight)
