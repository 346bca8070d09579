"""The certificate: does the data determine the layer?

With Lambda = mean h h' the second moment of the cubic features (p x p), every best-fitting layer
computes the same function on every input exactly when lambda_min(Lambda) > 0.

    "identifiable"      lambda_min > 0 is proved for the data in exact arithmetic, all rounding
                        accounted for (:mod:`linattn_fast.certificate.lower_bound`)
    "not identifiable"  lambda_min = 0 is proved, by counting or in exact arithmetic
                        (:mod:`linattn_fast.exact.exact_rank`)
    "undecided"         neither is proved; the numerical rank (:mod:`linattn_fast.linalg.factors`)
                        is evidence, and so is the exact rank where that is known

Where the data is at hand, whatever the Gram leaves open is looked at in the singular values of the
features themselves (:mod:`linattn_fast.linalg.orthogonal`), which see twice as many digits, and in
arithmetic modulo primes, which sees all of them. Where the layer as a whole is not determined,
:mod:`linattn_fast.certificate.coverage` says at which inputs it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np

from ..arrays.device import module_of, on_device, to_host
from ..arrays.libraries import conversion_to
from ..arrays.types import Array, Floats, Positions
from ..data.attending import Attending, attended
from ..data.tokens import Tokens, as_positions
from ..features.features import Features
from ..features.left_out import unless_left_out
from ..system.arguments import as_size
from ..system.machine import same_bits
from .determined_range import DeterminedRange
from .directions import describe
from .error_bound import bounded_by, factor_for_errors, factor_for_noise

if TYPE_CHECKING:
    from typing_extensions import Unpack

Verdict: TypeAlias = Literal["identifiable", "not identifiable", "undecided"]


class _Asked(Attending, total=False):
    """The arguments of :meth:`Certificate.covers` that every form of it takes."""

    offsets: object
    positions: Positions | None
    tol: float | None
    like: object


@dataclass(frozen=True)
class Certificate:
    """What the data determines. Made by :func:`certify` and by every fit.

    Notes
    -----
    ``covers``, ``leverage``, ``error_bound``, ``null_space`` and ``explain`` factorise the second
    moment when they are first called, from the moments and the tokens, which a certificate
    therefore keeps. Tokens are not copied: leave them unchanged while you ask. A certificate that
    was pickled or loaded from a file has left them behind and answers only for the layer as a
    whole; make another one with ``la.certify(moments)``.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.standard_normal((200, 6, 3))
    >>> Z[:, :, 2] = 0.0  # the third coordinate never occurs
    >>> certificate = la.certify(Z)
    >>> certificate.verdict, certificate.rank, certificate.dimension
    ('not identifiable', 6, 18)
    >>> new = rng.standard_normal((2, 9, 3))
    >>> new[0, :, 2] = 0.0
    >>> certificate.covers(new)
    array([ True, False])
    """

    lambda_min: float
    """Estimate of the smallest eigenvalue of Lambda, in the paper's scaling; 0 if rank is short."""
    lower_bound: float
    """Proved lower bound on lambda_min of the data in exact arithmetic; 0 proves nothing."""
    verdict: Verdict
    """Conclusion: "identifiable" and "not identifiable" are proved, "undecided" is not."""
    condition: float
    """Condition number lambda_max / lambda_min of Lambda; infinite when the rank is short."""
    rank: int | None
    """Numerical rank of Lambda: how many eigenvalues of A are above the margin. With fewer samples
    than features it is the number of samples, the most it can be. None where it is unknown, as in
    an estimate without a Gram."""
    dimension: int
    """Number of features, p."""
    n_samples: int
    """Number of queries in the data."""
    evidence: str
    """What the verdict rests on, in words and numbers."""
    features: Features
    """Which features take part."""
    positions: Positions
    """Which tokens were queries."""
    noise_samples: float
    """Total weight over the largest weight: how many samples the noise averages over."""
    spectrum: Floats | None = field(default=None, repr=False, compare=False)
    """All eigenvalues of Lambda, ascending, if they were asked for."""
    determined: DeterminedRange | None = field(default=None, repr=False, compare=False)
    """The range of Lambda, for questions about single inputs."""

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.evidence}\n"
            f"  lambda_min {self.lambda_min:.6g} (proved: at least {self.lower_bound:.6g}), "
            f"condition {self.condition:.3g}, "
            f"rank {'unknown' if self.rank is None else self.rank} of {self.dimension}, "
            f"{self.n_samples} samples"
        )

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "determined": None}

    @property
    def device(self) -> int | None:
        """The CUDA device of the moments or data it was made from; None for the host."""
        return None if self.determined is None else self.determined.device

    def get(self) -> Certificate:
        """Bring all arrays that are on a CUDA device to the host.

        Returns
        -------
        Certificate
            The same certificate, on the host.
        """
        spectrum = None if self.spectrum is None else to_host(self.spectrum)
        determined = None if self.determined is None else self.determined.get()
        return replace(self, spectrum=spectrum, determined=determined)

    def _determined(self) -> DeterminedRange:
        if self.determined is None:
            raise ValueError(
                "certificate: it has neither moments nor data to answer this from, because it was "
                "loaded from a file or pickled, or made by solver='pcg' on a stream or a cluster; "
                "make it with la.certify(moments), from la.Moments.update or "
                "linattn_fast.dask.moments, or with la.certify(Z)"
            )
        return self.determined

    def _queries(
        self, Z: object, offsets: object, positions: object, attending: Attending
    ) -> tuple[Tokens, Positions]:
        where = self.positions if positions is None else as_positions(positions)
        Z, offsets = attended(Z, offsets, where, **attending)
        tokens = self.features.batch(Z, offsets, where)
        return tokens, tokens.asked(where)

    def _leverages(self, tokens: Tokens, where: Positions) -> Floats:
        """h' Lambda^+ h at each query, (rows,); infinite where nothing is determined."""
        return self._of_each(self._determined().leverages, np.inf, tokens, where)

    def _of_each(
        self,
        answer: Callable[[Tokens, Positions], Array],
        otherwise: float,
        tokens: Tokens,
        where: Positions,
    ) -> Array:
        """Ask about each query, (rows,), a part of mapped tokens at a time.

        ``otherwise`` is the answer for queries with features that the data never has.
        """
        found = []
        for part in self.features.parts(tokens):
            with np.errstate(all="ignore"):  # what is not finite is not known
                known = answer(part, where)
            with on_device(self.device):
                found.append(unless_left_out(known, otherwise, part, where, self.features))
        return found[0] if len(found) == 1 else module_of(found[0]).concatenate(found)

    @overload
    def covers(
        self, Z: object, *, return_residual: Literal[False] = ..., **asked: Unpack[_Asked]
    ) -> Array | list[Array]: ...
    @overload
    def covers(
        self, Z: object, *, return_residual: Literal[True], **asked: Unpack[_Asked]
    ) -> tuple[Array | list[Array], Floats | list[Floats]]: ...
    @same_bits
    def covers(
        self,
        Z: object,
        *,
        offsets: object = None,
        positions: Positions | None = None,
        tol: float | None = None,
        return_residual: bool = False,
        like: object = None,
        **attending: Unpack[Attending],
    ) -> Array | list[Array] | tuple[Array | list[Array], Floats | list[Floats]]:
        """Is the prediction at Z determined: does every best fit give the same?

        That is so exactly when the features h(Z) lie in the range of the second moment. With the
        data at hand, true means that they do, in exact arithmetic on the tokens as given. With
        moments alone, or with data that is too large to examine, true means that they do up to
        rounding, unless the rank is proved to be full. False means that they do not, or are not
        known to: along directions that are neither clearly in the data nor clearly missing,
        nothing is claimed.

        With chosen features, a best fit is a layer of these alone, and the other features of Z play
        no part. But where the others were left out because the data never has them
        (:meth:`Features.active`), an input that has one of them is not covered.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; :class:`States`
            or :class:`Streams` where the data was such.
        positions
            Which tokens query; by default as in the data.
        tol
            Relative distance from the numerical range that counts as zero; the answer then depends
            on that distance alone.
        return_residual
            Return that distance as well.
        like
            An array in whose library the result is wanted; see :func:`linattn_fast.convert`.
        **attending
            ``mask``, ``lengths``, ``scale``, ``decay`` and ``attend_self`` of tokens, as for
            :func:`linattn_fast.fit`; masked tokens have no answer, which is False, or 0.

        Returns
        -------
        array or list of bool
            (N,) for "last", otherwise one per token in the form of Z; with ``return_residual`` a
            tuple of these and the distances.

        Raises
        ------
        ValueError
            The certificate was loaded, pickled, or made without moments; see the notes above.
        """
        tokens, where = self._queries(Z, offsets, positions, attending)
        if tol is not None and not (isinstance(tol, int | float) and 0 <= tol < 1):
            raise ValueError(f"tol: a number from 0 up to but not 1 is needed, got {tol!r}")
        converted = conversion_to(like)
        determined = self._determined()
        residual = None
        if return_residual or tol is not None:
            residual = self._of_each(determined.residuals, 1.0, tokens, where)
        if tol is None or residual is None:
            covered = self._of_each(determined.covered, False, tokens, where)
        else:
            covered = residual <= tol
        answer: Array | list[Array] = converted(tokens.worst(covered, where, np.logical_and))
        if residual is None or not return_residual:
            return answer
        return answer, converted(tokens.worst(residual, where, np.maximum))

    @same_bits
    def leverage(
        self,
        Z: object,
        *,
        offsets: object = None,
        positions: Positions | None = None,
        like: object = None,
        **attending: Unpack[Attending],
    ) -> Floats | list[Floats]:
        """Compute h' Lambda^+ h at each query of Z; infinite where the data determines nothing.

        The mean leverage of the training data is the rank. The answer is never below the exact
        leverage of the data as given: rounding is accounted for, which on healthy data adds less
        than 1e-6 of it. Where that is impossible, or the range is known only up to rounding (see
        :meth:`covers`), the leverage is unknown, and the answer infinite.

        Parameters
        ----------
        Z, offsets, positions, like, **attending
            As for :meth:`covers`.

        Returns
        -------
        array or list
            (N,) for "last", otherwise one a token in the form of Z.
        """
        tokens, where = self._queries(Z, offsets, positions, attending)
        converted = conversion_to(like)
        leverages = self._leverages(tokens, where)
        answer: Floats | list[Floats] = converted(tokens.per_query(leverages, where))
        return answer

    @same_bits
    def error_bound(
        self,
        Z: object,
        eps: float | None = None,
        *,
        noise: float | None = None,
        confidence: float = 0.95,
        offsets: object = None,
        positions: Positions | None = None,
        like: object = None,
        **attending: Unpack[Attending],
    ) -> Floats | list[Floats]:
        """Bound how far predictions at Z can be apart, in each output.

        Parameters
        ----------
        Z, offsets, positions, like, **attending
            As for :meth:`covers`.
        eps
            Any two layers with mean squared training errors of at most eps differ by at most
            ``2 sqrt(eps leverage)``.
        noise
            Instead of eps: targets are a layer's outputs plus independent noise of mean zero and at
            most this size. The least-squares prediction then errs, with probability
            ``confidence``, by at most ``noise sqrt(2 log(2 / (1 - confidence)) leverage / n)``, n
            the number of samples (total over largest weight).
        confidence
            Probability that the bound for ``noise`` holds, for each query and output.

        Returns
        -------
        array or list
            (N,) for "last", otherwise one a token in the form of Z; infinite where Z is not
            covered or the leverage is unknown.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> truth = la.Heads(rng.standard_normal((1, 1, 3)), rng.standard_normal((1, 3, 3)))
        >>> Z, new = rng.standard_normal((500, 6, 3)), rng.standard_normal((4, 6, 3))
        >>> fit = la.fit(Z, truth(Z) + rng.uniform(-0.1, 0.1, (500, 1)))
        >>> bound = fit.certificate.error_bound(new, noise=0.1)
        >>> bool((abs(fit.predict(new) - truth(new))[:, 0] < bound).all())
        True
        """
        if (eps is None) == (noise is None):
            raise ValueError("eps, noise: give one of them, eps or noise")
        if not (isinstance(confidence, int | float) and 0 < confidence < 1):
            raise ValueError(f"confidence: a number between 0 and 1 is needed, got {confidence!r}")
        if eps is not None:
            factor = factor_for_errors(eps)
        if noise is not None:
            factor = factor_for_noise(noise, confidence, self.noise_samples)
        tokens, where = self._queries(Z, offsets, positions, attending)
        converted = conversion_to(like)
        leverage = self._leverages(tokens, where)
        with on_device(self.device):
            bound = bounded_by(leverage, factor, self.n_samples)
        answer: Floats | list[Floats] = converted(tokens.per_query(bound, where))
        return answer

    @same_bits
    def null_space(self, k: int) -> Floats:
        """Return the k least determined directions of the coefficients.

        Directions along which every training prediction stays the same come first: features that
        are zero in every sample, each by itself, then combinations of few features. Directions of
        least mean square follow, in units where every feature has mean square one.

        Parameters
        ----------
        k
            Number of directions, at most.

        Returns
        -------
        array
            (k, p), or all p directions where k is larger; each of length one.
        """
        return self._determined().coverage.least_determined(self._directions(k))[0]

    @same_bits
    def explain(self, k: int = 5, *, names: Sequence[str] | None = None) -> list[str]:
        """Say in words what the k least determined directions are.

        Parameters
        ----------
        k
            Number of directions, at most; they are those of :meth:`null_space`.
        names
            Names of the d coordinates of tokens; x0, x1, .. by default, counted from zero as in the
            arrays. States have M[j,k] (or m[u]) and c[l], and take no names.

        Returns
        -------
        list of str
            A sentence for each direction.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> Z = np.random.default_rng(0).standard_normal((100, 5, 2))
        >>> Z[:, -1, 1] = 0.0  # the last token never queries x1
        >>> la.certify(Z).explain(1)
        ['tokens never vary along x0*x0 with query x1']
        """
        pairs, queries = self.features.named(names)
        directions, values = map(
            to_host, self._determined().coverage.least_determined(self._directions(k))
        )
        what = "tokens" if self.features.sums_cancel else "states"
        return [
            describe(direction, float(value), pairs, queries, what)
            for direction, value in zip(directions, values, strict=True)
        ]

    def _directions(self, k: int) -> int:
        return min(as_size(k, "k"), self.dimension)
