"""The result of a fit: a learned layer, how it was found, and its file."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.device import device_of, frozen, on_device, to_host
from ..arrays.libraries import conversion_to
from ..arrays.types import Array, Floats, Positions
from ..backend.choice import get_backend
from ..backend.chosen_layer import outputs_of
from ..certificate.certificate import Certificate
from ..certificate.program import ProgramCertificate
from ..data.scoring import score_of
from ..data.tokens import Tokens, as_positions
from ..features import files as storage
from ..features.features import Features
from ..features.states import StateFeatures
from ..heads.heads import Heads, Recovery
from ..heads.pending import PendingHeads
from ..system.machine import in_words, same_bits

_FILE_VERSION = 2


@dataclass(frozen=True)
class FitInfo:
    """How a fit went: ``fit.info``. Printed, it is a short report."""

    solver: str
    """"cholesky", "eigh", "dual", "qr", "pcg" or "blocks"."""
    reason: str
    """Why that solver ran; a fallback is named here."""
    condition: float
    """Condition number of the equilibrated matrix that was solved with."""
    mean_squared_error: float
    """(1/W) sum w ||C h - y||^2 on the training data."""
    mean_squared_target: float
    """(1/W) sum w ||y||^2, to compare it with."""
    refinements: tuple[float, ...]
    """Relative size of each correction from residuals recomputed on the data: the first estimates
    the error before refinement, and each one the error that was left before it. Empty for a fit
    from moments alone, which cannot recover what forming the Gram has lost."""
    backend: str
    """"cpu", "numpy" or "cuda"."""
    n_samples: int
    """Number of queries with a target."""
    dimension: int
    """Number of features, p."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage took; "heads" once they have been asked for."""
    bytes: int = 0
    """Estimated peak of memory beside the data, in bytes."""
    iterations: int = 0
    """Iterations of conjugate gradients, restarts included; 0 for the other solvers."""
    path: str = ""
    """With the backend "cuda": whether our kernels or cuBLAS form the Gram, and why."""
    coefficient_error: float | None = None
    """Bound on the relative error of the coefficients by rounding, ||C - C*|| / ||C*||, to first
    order; None where it is not known, and ``reason`` then says why."""
    heads: str = ""
    """How many heads, and how they were found, ``fit.heads.recovery`` in words. Until ``fit.heads``
    is asked for it says so, and ``fit.info`` is then replaced; empty for ``heads=None``."""
    mean_squared_error_bound: float = 0.0
    """Bound on the error of ``mean_squared_error`` where it is from moments alone and terms cancel;
    infinite where products underflow, and 0 where it is from residuals on the data, and in files of
    older releases."""

    @property
    def error_in_words(self) -> str:
        """The mean squared error with its bound, where that shows in the digits printed."""
        error, bound = self.mean_squared_error, self.mean_squared_error_bound
        if not bound > 5e-4 * error:
            return f"{error:.3g}"
        if not np.isfinite(bound):
            return f"{error:.3g}, but products underflow and its error is unknown,"
        if not error > bound:
            return f"at most {error + bound:.2g}"
        digits = 1 + max(1, int(np.ceil(np.log10(error / bound))))
        return f"{error:.{digits}g} +- {bound:.1g}"

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {spent:.3g} s" for name, spent in self.seconds.items())
        steps = ", ".join(f"{step:.1e}" for step in self.refinements) or "none (no data at hand)"
        return (
            f"solver {self.solver}: {self.reason}\n"
            f"  {self.n_samples} samples, {self.dimension} features, "
            f"condition {self.condition:.2g}, backend {self.backend}"
            + (f" ({self.path})\n" if self.path else "\n")
            + f"  mean squared error {self.error_in_words} "
            f"of mean squared target {self.mean_squared_target:.3g}\n"
            f"  refinement on the data: {steps}\n"
            f"  relative error of the coefficients: {self._error()}\n"
            + (f"  {self.iterations} iterations\n" if self.iterations else "")
            + f"  heads: {self.heads or 'none'}\n"
            f"  {stages}; about {in_words(self.bytes)}"
        )

    def _error(self) -> str:
        error = self.coefficient_error
        return "unknown" if error is None else f"at most about {error:.0e}"


def heads_in_words(heads: Heads) -> str:
    """What ``info.heads`` has about heads: how many, and how they were found."""
    return f"{len(heads)}, {heads.recovery}"


@dataclass(frozen=True, eq=False)
class Fit:
    """A learned layer. Made by :func:`fit`, :meth:`Moments.fit` and :func:`load`.

    Notes
    -----
    ``heads`` are found when they are first asked for, which may take seconds: once, whichever
    thread asks first. The ``progress`` of the fit applies. A search that is interrupted leaves the
    fit as it was. :meth:`save` finds them; a pickle or a copy made before does so for itself.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.standard_normal((200, 8, 3))
    >>> fit = la.fit(Z, Z.sum(axis=1))
    >>> fit.coefficients.shape, fit.predict(Z[:5]).shape, fit.info.solver
    ((3, 18), (5, 3), 'cholesky')
    """

    coefficients: Floats = field(repr=False)
    """(d_out, p), p the number of features that take part."""
    features: Features
    """Which features take part."""
    heads: Heads | None = field(repr=False)
    """The heads asked for, found on first access; None without any."""
    certificate: Certificate | None
    """What the data determines; None without one."""
    info: FitInfo
    """Which solver ran and why, how exact the answer is, and where the time went."""
    positions: Positions = "last"
    """Which tokens queried in training."""
    program: ProgramCertificate | None = None
    """What :func:`linattn_fast.programs.certify` says of all runs of a learned program."""
    scalar_targets: bool = False
    """Whether the targets came without an axis of outputs; predictions then have none either."""

    if not TYPE_CHECKING:  # for heads alone: no other name is to pass a type checker

        def __getattr__(self, name: str) -> Any:
            """Find the heads: called where the fit does not have them yet."""
            pending = vars(self).get("_pending") if name == "heads" else None
            if pending is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            heads, spent = pending.find()
            info = vars(self)["info"]
            seconds = info.seconds | {"heads": spent}
            info = replace(info, heads=heads_in_words(heads), seconds=seconds)
            vars(self).update(info=info, heads=heads)
            return heads

    def _changed(self, **changes: Any) -> Fit:
        """Copy the layer with other attributes; heads that are not found yet are found once."""
        other = copy(self)
        vars(other).update(changes)
        return other

    def with_program(self, certificate: ProgramCertificate | None) -> Fit:
        """Copy the layer with what is known about the program that it learned.

        Parameters
        ----------
        certificate
            From :func:`linattn_fast.programs.certify`; None for nothing.

        Returns
        -------
        Fit
            A new one, with ``program`` set; :meth:`save` keeps it.
        """
        if certificate is not None and not isinstance(certificate, ProgramCertificate):
            raise TypeError(
                f"certificate: a ProgramCertificate is needed, got {type(certificate).__name__}"
            )
        return self._changed(program=certificate)

    @property
    def device(self) -> int | None:
        """The CUDA device that the coefficients are on; None for the host."""
        return device_of(self.coefficients)

    def get(self) -> Fit:
        """Bring everything to the host; ``to_host`` is the same.

        Returns
        -------
        Fit
            The same fit on the host; this one if it is there already.
        """
        if self.device is None:
            return self
        state: dict[str, Any] = {"coefficients": frozen(to_host(self.coefficients))}
        if self.certificate is not None:
            state["certificate"] = self.certificate.get()
        pending: PendingHeads | None = vars(self).get("_pending")
        if pending is not None:
            state["_pending"] = pending.put(state["coefficients"])
        heads: Heads | None = vars(self).get("heads")
        if heads is not None:
            state["heads"] = heads.get()
        return self._changed(**state)

    to_host = get

    @property
    def d(self) -> int:
        """Number of coordinates of a token; of a state as one, 1 + q + d_q."""
        return self.features.d

    @property
    def d_out(self) -> int:
        """Number of outputs."""
        return len(self.coefficients)

    @same_bits
    def predict(
        self,
        Z: object,
        positions: Positions | None = None,
        *,
        offsets: object = None,
        backend: str = "auto",
        like: object = None,
    ) -> Floats | list[Floats]:
        """Apply the learned coefficients to new tokens, of any length.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; :class:`States`
            where the data was states.
        positions
            "last", "all" or "causal", see :class:`Heads`; by default as in training.
        backend
            "auto", "cpu", "numpy" or "cuda"; "auto" is "cuda" where Z or this layer is on a device.
        like
            An array whose library the result is wanted in, see :func:`linattn_fast.convert`; None
            is numpy, or CuPy for work on a device.

        Returns
        -------
        array or list
            In the form of the targets: (N, d_out) for "last", otherwise one row a token, in the
            form of Z; without the last axis where the targets had none.
        """
        where, tokens, rows = self._outputs(Z, positions, offsets, backend)
        converted = conversion_to(like)
        y = tokens.as_predictions(rows, where, self.scalar_targets)
        answer: Floats | list[Floats] = converted(y)
        return answer

    @same_bits
    def score(
        self,
        Z: object,
        y: object,
        sample_weight: object = None,
        positions: Positions | None = None,
        *,
        offsets: object = None,
        backend: str = "auto",
    ) -> float:
        """R^2 of the predictions: the share of the targets' variance that they explain.

        Parameters
        ----------
        Z, offsets
            Tokens, as for :meth:`predict`.
        y
            Targets, in the form that :func:`fit` takes; every query that has one counts.
        sample_weight
            Weights (N,), not negative, one a sequence and the same for all its queries; 1 by
            default.
        positions, backend
            As for :meth:`predict`.

        Returns
        -------
        float
            The mean over outputs, as scikit-learn's ``r2_score`` has it: 1 is best, and the mean of
            the targets has 0. An output of constant targets has 1 if it is predicted exactly, else
            0; fewer than two samples have nan.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> Z, y = rng.standard_normal((200, 8, 3)), rng.standard_normal(200)
        >>> fit = la.fit(Z, y)
        >>> bool(abs(fit.score(Z, y) - (1 - ((fit.predict(Z) - y) ** 2).mean() / y.var())) < 1e-9)
        True
        """
        where, tokens, rows = self._outputs(Z, positions, offsets, backend)
        return score_of(tokens, y, rows, where, sample_weight)

    def _outputs(
        self, Z: object, positions: Positions | None, offsets: object, backend: str
    ) -> tuple[Positions, Tokens, Floats]:
        """Check positions and tokens, and return them with the outputs, (samples, d_out)."""
        where = self.positions if positions is None else as_positions(positions)
        tokens = self.features.batch(Z, offsets, where)
        engine = get_backend(backend, tokens, self)
        with on_device(self.device):
            rows = outputs_of(self.coefficients, self.features, tokens, where, engine)
        return where, tokens, rows

    def to_torch(
        self,
        positions: Positions | None = None,
        *,
        dtype: object = None,
        device: object = None,
        requires_grad: bool = True,
    ) -> Any:
        """The layer as a ``torch.nn.Module``, to be trained further.

        With heads that have fewer entries than the coefficients, it is that of the heads,
        :meth:`Heads.to_torch`; otherwise, and without heads, its parameter is ``coefficients``.

        Parameters
        ----------
        positions
            Which tokens query: "last", "all" or "causal"; by default as in training. A call may
            choose others. A state has one query, "last".
        dtype
            The type of the parameters and the tokens or states; ``torch.float64`` by default.
        device
            By default where this layer is.
        requires_grad
            Whether the parameters are to be learned.

        Returns
        -------
        torch.nn.Module
            Called on tokens (..., n, d) or a list of them, or on the memory and the query of
            states, (..., d_v, d_k) or (..., q) and (..., d_q); its outputs are (..., d_out).
        """
        where = self.positions if positions is None else as_positions(positions)
        if device is None and self.device is not None:
            device = f"cuda:{self.device}"
        heads = self.heads
        if heads is not None and heads.V.size + heads.Q.size < self.coefficients.size:
            return heads.to_torch(
                where,
                dtype=dtype,
                device=device,
                requires_grad=requires_grad,
                states=isinstance(self.features, StateFeatures),
            )
        from ..heads.torch_module import coefficient_layer_of  # noqa: PLC0415  # torch is optional

        C = to_host(self.coefficients)
        return coefficient_layer_of(C, self.features, where, dtype, device, requires_grad)

    def save(self, path: storage.PathLike) -> None:
        """Write to an ``.npz`` file, atomically; read by :func:`load`.

        Heads that were to be found on demand are found first, so that the file has them.

        Parameters
        ----------
        path
            File to write, by the name given; its format is in docs/files.md.
        """
        heads = self.heads  # found now, if they were not; info then has how
        arrays: dict[str, Array] = {"coefficients": self.coefficients}
        arrays |= storage.feature_arrays(self.features)
        meta: dict[str, Any] = {
            **storage.feature_meta(self.features),
            "positions": self.positions,
            "scalar_targets": self.scalar_targets,
            "info": asdict(self.info),
        }
        none = np.zeros((0, self.d_out, 0)), np.zeros((0, 0, 0))
        arrays["V"], arrays["Q"] = (heads.V, heads.Q) if heads else none
        recovery = heads.recovery if heads else None
        meta["recovery"] = None if recovery is None else asdict(recovery)
        meta["program"] = None if self.program is None else asdict(self.program)
        meta["certificate"] = None
        arrays["spectrum"] = np.zeros(0)
        if self.certificate is not None:
            names = (each.name for each in fields(self.certificate))
            certificate = {name: getattr(self.certificate, name) for name in names}
            spectrum = certificate.pop("spectrum")
            del certificate["determined"], certificate["features"]
            meta["certificate"] = certificate
            if spectrum is not None:
                arrays["spectrum"] = spectrum
        storage.write(path, "fit", _FILE_VERSION, meta, arrays)


def _recovery(meta: dict[str, Any] | None) -> Recovery | None:
    """Make a Recovery from its JSON, which has lists for tuples; None in older files."""
    if meta is None:
        return None
    tried = tuple((int(H), float(residual)) for H, residual in meta.pop("tried"))
    return Recovery(**meta, tried=tried)


def load(path: storage.PathLike) -> Fit:
    """Read a layer that :meth:`Fit.save` wrote.

    Parameters
    ----------
    path
        File to read.

    Returns
    -------
    Fit
        The same layer. Its certificate answers for the layer as a whole, not for single inputs.

    Raises
    ------
    ValueError
        The file is damaged, of another kind or of another version; the message says which.

    Examples
    --------
    >>> import os, tempfile, numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((100, 8, 3))
    >>> fit = la.fit(Z, Z[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit.save(os.path.join(folder, "layer.npz"))
    ...     again = la.load(os.path.join(folder, "layer.npz"))
    >>> bool((again.predict(Z) == fit.predict(Z)).all())
    True
    """
    names = ("coefficients", "V", "Q", "spectrum", "pairs", "queries")
    keys = ("d", "positions", "info", "certificate")
    meta, arrays = storage.read(path, "fit", _FILE_VERSION, names, keys)
    features = storage.read_features(path, meta, arrays)
    certificate = None
    if meta["certificate"] is not None:
        spectrum = arrays["spectrum"] if arrays["spectrum"].size else None
        certificate = Certificate(**meta["certificate"], features=features, spectrum=spectrum)
    info = meta["info"]
    info["refinements"] = tuple(info["refinements"])
    program = meta.get("program")  # older files lack it, as they do "scalar_targets"
    heads = None
    if len(arrays["V"]):
        heads = Heads(arrays["V"], arrays["Q"], _recovery(meta.get("recovery")))
    return Fit(
        coefficients=arrays["coefficients"],
        features=features,
        heads=heads,
        certificate=certificate,
        info=FitInfo(**info),
        positions=meta["positions"],
        program=None if program is None else ProgramCertificate(**program),
        scalar_targets=bool(meta.get("scalar_targets", False)),
    )
