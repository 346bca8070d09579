"""The layer as a scikit-learn regressor; needs the extra ``linattn_fast[sklearn]``.

    model = la.LinearAttentionRegressor(alpha=1e-3).fit(X, y)
    GridSearchCV(model, {"alpha": [0.0, 1e-3, 1.0]}).fit(X, y)

X is what the rest of the package calls Z: (N, n, d), or a list or an object array of (n_i, d).
"""

from __future__ import annotations

from typing import Any

from ..arrays.device import to_host
from ..arrays.types import Array, Floats, Positions
from ..backend.interface import Precision
from ..certificate.certificate import Certificate
from ..data.mapping.token_map import Map, TokenMap, as_map, with_intercept
from ..data.tokens import Tokens, as_positions, as_targets, as_tokens
from ..features.features import Features
from ..fitting.call import fit
from ..fitting.plan import SOLVERS, Settings, Solver
from ..fitting.result import Fit, FitInfo
from ..heads.heads import Heads
from ..moments.moments import Moments
from ..solvers.conjugate_gradients.pcg import Pcg
from ..system.arguments import calling
from ..system.machine import same_bits

try:
    from .sequence_regressor import SequenceRegressor, sequences
except ImportError as error:
    raise ImportError(f"LinearAttentionRegressor: {error}") from error


class LinearAttentionRegressor(SequenceRegressor):
    """Linear attention learned to the global optimum, for scikit-learn's tools.

    Minimises ``(1/W) sum_i w_i ||C h(X_i) - y_i||^2 + alpha ||C||_F^2`` over the coefficients C of
    the cubic features h of a sequence, see :func:`linattn_fast.fit`.

    Parameters
    ----------
    positions
        Which tokens have targets: "last", the last of each sequence, y (N, d_out) or (N,); "all",
        every token, each attending to the whole sequence; "causal", every token, each attending to
        the prefix that ends with it; then y is (N, n, d_out) or (N, n), or as ragged as X.
    alpha
        Ridge.
    heads
        "minimal" recovers as few heads as there are, "svd" those of an SVD, None leaves them out,
        which saves time in a search; a number H fits the best layer with at most H heads.
    solver
        "auto", "cholesky", "eigh", "dual", "qr", "pcg" or ``Pcg(tol=...)``; one of the first three
        for :meth:`partial_fit`.
    backend
        "auto", "cpu", "numpy" or "cuda"; results are on the host, as scikit-learn's tools expect.
    precision
        "float64" or "mixed".
    features
        Which features take part, :class:`linattn_fast.Features`; None is all.
    certify
        Whether to make the certificate.
    memory_limit
        Bytes that may be used beside the data; the machine's memory by default.
    map
        What tokens are mapped by first: one of :mod:`linattn_fast.maps`, or a function of rows
        (m, d), see :func:`linattn_fast.fit`.
    intercept
        Whether to append a constant coordinate to the tokens, whose own feature the ridge leaves
        out, see :func:`linattn_fast.fit`.

    Attributes
    ----------
    coef_ : array (d_out, p)
        Coefficients of the features; like the next three, solved for when first asked for after
        :meth:`partial_fit`.
    heads_ : Heads or None
        The recovered heads.
    certificate_ : Certificate or None
        Does the data determine the layer?
    info_ : FitInfo
        Which solver ran and why, and how exact the answer is.
    moments_ : Moments
        Moments of the batches given to :meth:`partial_fit`; not there after :meth:`fit`.
    n_features_in_ : int
        Coordinates of a token, d.

    Notes
    -----
    Predictions have the form of the targets: without the axis of outputs if y had none, and for
    "all" and "causal" positions a list for a list X and an object array for an object array.
    Scorers by name, such as "neg_mean_squared_error", take y of at most two axes, hence "last"
    positions; :meth:`score`, the default everywhere, takes all.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> from sklearn.model_selection import cross_val_score
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((2, 1, 3)), rng.standard_normal((2, 3, 3)))
    >>> X = rng.standard_normal((200, 8, 3))
    >>> y = truth(X)[:, 0]
    >>> model = la.LinearAttentionRegressor().fit(X, y)
    >>> model.coef_.shape, model.predict(X[:5]).shape, model.certificate_.verdict
    ((1, 18), (5,), 'identifiable')
    >>> cross_val_score(model, X, y, cv=3).round(6)
    array([1., 1., 1.])
    """

    def __init__(
        self,
        *,
        positions: Positions = "last",
        alpha: float = 0.0,
        heads: str | int | None = "minimal",
        solver: Solver | Pcg = "auto",
        backend: str = "auto",
        precision: Precision = "float64",
        features: Features | None = None,
        certify: bool = True,
        memory_limit: int | None = None,
        map: Map | None = None,
        intercept: bool = False,
    ) -> None:
        self.positions = positions
        self.alpha = alpha
        self.heads = heads
        self.solver = solver
        self.backend = backend
        self.precision = precision
        self.features = features
        self.certify = certify
        self.memory_limit = memory_limit
        self.map = map
        self.intercept = intercept

    # ----------------------------------------------------------------------------------- learning

    @same_bits
    def fit(self, X: object, y: object, sample_weight: object = None) -> LinearAttentionRegressor:
        """Learn from all data, and refine the solution on it.

        Parameters
        ----------
        X
            Tokens: (N, n, d), or a list or an object array of (n_i, d). A memory map or another
            stored array is read a batch at a time.
        y
            Targets, see ``positions``.
        sample_weight
            Weights (N,), one a sequence; 1 by default.

        Returns
        -------
        LinearAttentionRegressor
            This object.
        """
        positions = as_positions(self.positions)
        given = self._targets(y, X, positions)
        with calling(Z="X"):
            result = fit(
                sequences(X),
                given,
                sample_weight=sample_weight,
                positions=positions,
                features=self.features,
                backend=self.backend,
                precision=self.precision,
                map=self.map,
                **self._solving(),
            ).get()
        if hasattr(self, "moments_"):
            del self.moments_
        self._fit: Fit | None = result
        self.n_features_in_ = result.features.d_given
        return self

    @same_bits
    def partial_fit(
        self, X: object, y: object, sample_weight: object = None
    ) -> LinearAttentionRegressor:
        """Add a batch to what has been learned; equal to one :meth:`fit` on all batches.

        Only moments are kept, in memory that does not grow. They are solved when a result is first
        asked for, with ``alpha``, ``heads`` and so on as they were at the last batch, and without
        the refinement on the data that :meth:`fit` makes: the two agree to rounding, times the
        condition number ``info_.condition``.

        Parameters
        ----------
        X, y, sample_weight
            As for :meth:`fit`.

        Returns
        -------
        LinearAttentionRegressor
            This object.
        """
        positions = as_positions(self.positions)
        solving = self._solving()
        solver = Settings.of(**solving).solver  # checks all of them
        if solver != "auto" and SOLVERS[solver].needs != "moments":
            raise ValueError(
                f"solver: {self.solver!r} needs all data at once; partial_fit keeps moments, "
                "which 'auto', 'cholesky' and 'eigh' solve"
            )
        begun: Moments | None = getattr(self, "moments_", None)
        if begun is None and hasattr(self, "n_features_in_"):
            raise ValueError(
                "partial_fit: the moments of what fit has learned are not kept; "
                "begin with partial_fit on a new estimator, or clone this one"
            )
        given = self._targets(y, X, positions)
        with calling(Z="X"):
            tokens = as_tokens(sequences(X))
            if begun is not None:
                self._require_width(tokens)
            d_out = as_targets(given, tokens, positions).d
            value = with_intercept(as_map(self.map), self.intercept)
            batch = Moments(
                tokens.d if value is None else TokenMap.tried(value, tokens).width,
                d_out,
                positions=positions,
                features=self.features,
                backend=self.backend,
                precision=self.precision,
            ).update(tokens, given, sample_weight=sample_weight, map=value)
            # Raises where outputs or parameters have changed in between
            moments = batch if begun is None else begun + batch
        self.moments_: Moments = moments
        self.n_features_in_ = moments.features.d_given
        self._solve_with = solving
        self._fit = None
        return self

    def _solving(self) -> dict[str, Any]:
        """Parameters of solving, as they are now."""
        names = ("alpha", "heads", "solver", "certify", "memory_limit", "intercept")
        return {name: getattr(self, name) for name in names}

    # ------------------------------------------------------------------------------------ results

    def _learned(self) -> Fit:
        """The layer, solved for if batches have come since it was last."""
        self._require_fitted()
        if self._fit is None:
            self._fit = self.moments_.fit(**self._solve_with).get()
        return self._fit

    @property
    def coef_(self) -> Floats:
        """Coefficients, (d_out, p)."""
        return self._learned().coefficients

    @property
    def heads_(self) -> Heads | None:
        """Recovered heads; None where none were asked for."""
        return self._learned().heads

    @property
    def certificate_(self) -> Certificate | None:
        """Certificate; None where none was asked for."""
        return self._learned().certificate

    @property
    def info_(self) -> FitInfo:
        """How the fit went."""
        return self._learned().info

    # --------------------------------------------------------------------------------- predicting

    def _predict(self, tokens: Tokens) -> Array | list[Array]:
        y = self._learned().predict(tokens, backend=self.backend)
        return [to_host(each) for each in y] if isinstance(y, list) else to_host(y)

    def _score(self, tokens: Tokens, X: object, y: object, sample_weight: object) -> float:
        learned = self._learned()
        given = self._targets(y, X, learned.positions)
        return learned.score(tokens, given, sample_weight, backend=self.backend)
