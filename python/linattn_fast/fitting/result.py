"""The result of a fit: a learned layer, how it was found, and its file."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.device import device_of, frozen, module_of, on_device, to_host
from ..arrays.libraries import conversion_to
from ..arrays.types import Array, Floats, Positions
from ..backend.choice import get_backend
from ..backend.chosen_layer import outputs_of
from ..certificate.certificate import Certificate
from ..certificate.program import ProgramCertificate
from ..data.attending import Attending, attended
from ..data.mapping.token_map import Map, as_map
from ..data.scoring import score_of
from ..data.tokens import Tokens, as_positions
from ..features import files as storage
from ..features.features import Features
from ..features.states import PassedFeatures, StateFeatures
from ..heads.heads import Heads, Recovery
from ..heads.number.rank_path import PendingErrors, RankPath, rank_path_of
from ..heads.pending import PendingHeads
from ..maps.stored import told
from ..solvers.accuracy import Solution
from ..solvers.solved import Solved
from ..system.machine import in_words, same_bits

if TYPE_CHECKING:
    from typing_extensions import Unpack

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


def info_of(
    solved: Solved,
    solution: Solution,
    why: str,
    needed: int,
    seconds: dict[str, float],
    heads: str,
) -> FitInfo:
    """How a fit went, for the solution that is returned; ``needed`` are its bytes."""
    problem = solved.problem
    return FitInfo(
        solver=solved.solver,
        reason="; ".join(filter(None, (why, solved.reason))),
        condition=solved.condition,
        mean_squared_error=solution.mean_squared_error,
        mean_squared_error_bound=solution.error_bound,
        mean_squared_target=solved.mean_squared_target,
        refinements=solution.refinements,
        iterations=solved.iterations,
        backend=problem.engine.name,
        path=problem.engine.path(problem.precision) if solved.factor is not None else "",
        n_samples=solved.n_samples,
        dimension=problem.features.count,
        seconds=seconds,
        bytes=needed,
        coefficient_error=solved.coefficient_error,
        heads=heads,
    )


def heads_in_words(heads: Heads) -> str:
    """What ``info.heads`` has about heads: how many, and how they were found."""
    return f"{len(heads)}, {heads.recovery}"


def _with_heads(info: FitInfo, heads: Heads, spent: float) -> FitInfo:
    """Copy a report with what is known once heads have been found."""
    seconds = info.seconds | {"heads": spent}
    return replace(info, heads=heads_in_words(heads), seconds=seconds)


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

    if not TYPE_CHECKING:  # for parts made later alone: no other name is to pass a type checker

        def __getattr__(self, name: str) -> Any:
            """Find the heads, or make another part: called where the fit does not have it yet."""
            state = vars(self)
            if name == "heads" and (pending := self._pending_heads()) is not None:
                heads, spent = pending.find()
                if "info" in state:
                    state["info"] = _with_heads(state["info"], heads, spent)
                return state.setdefault("heads", heads)
            if name in ("info", "certificate") and "_later" in state:
                part = state["_later"].make(name)
                if name == "info" and state.get("heads") is not None:
                    part = _with_heads(part, *self._pending_heads().find())
                return state.setdefault(name, part)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _pending_heads(self) -> PendingHeads | None:
        """The search for heads; None where there is none."""
        state = vars(self)
        if "_pending" not in state and "_later" in state and "heads" not in state:
            state["_pending"] = state["_later"].make("_pending")
        return state.get("_pending")

    def __getstate__(self) -> dict[str, Any]:
        """Everything, with the parts that were to be made later."""
        if "_later" in vars(self):
            _ = self.info, self.certificate, self._pending_heads()
        return {name: value for name, value in vars(self).items() if name != "_later"}

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
        """Number of coordinates of a token, once it is mapped; of a state as one, 1 + q + d_q."""
        return self.features.d

    @property
    def map(self) -> Map | None:
        """What tokens are mapped by, the constant of an intercept included; None for nothing.

        ``predict`` and ``score``, ``heads`` and ``certificate`` take tokens as they are before it.
        """
        if isinstance(self.features, StateFeatures) and self.features.maps is not None:
            return self.features.maps.key
        return None if self.features.map is None else self.features.map.map

    @property
    def d_out(self) -> int:
        """Number of outputs."""
        if isinstance(self.features, PassedFeatures):
            return self.features.d_v
        return len(self.coefficients)

    @same_bits
    def rank_path(self) -> RankPath:
        """Forms of every smaller rank near the learned one, for ``values="passed"``.

        Returns
        -------
        RankPath
            ``ranks``, ``singular_values``, ``mean_squared_errors`` and ``heads``. The form of rank
            r is the one nearest to the learned form in the Frobenius norm, from its SVD; another
            form of that rank may fit the data better. Its training error is computed from the
            moments that were solved with, or else by a pass over the data.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> M, c = rng.standard_normal((200, 5, 4)), rng.standard_normal((200, 3))
        >>> B = np.outer(rng.standard_normal(4), rng.standard_normal(3))  # of rank one
        >>> states = la.States(M, c)
        >>> fit = la.fit(states, (M @ B @ c[:, :, None])[:, :, 0], values="passed")
        >>> path = fit.rank_path()
        >>> path.ranks, bool((path.mean_squared_errors < 1e-20).all()), path.heads[0].Q.shape
        ((1, 2, 3), True, (1, 4, 3))
        """
        if not isinstance(self.features, PassedFeatures):
            raise ValueError(
                'rank_path: it is for a fit with values="passed", which has one form; la.head_path '
                "is for numbers of heads"
            )
        form = self.coefficients.reshape(self.features.n_pairs, self.features.n_queries)
        errors: PendingErrors = vars(self)["_rank_errors"]
        return rank_path_of(form, self.features.d_v, errors.find())

    @same_bits
    def predict(
        self,
        Z: object,
        positions: Positions | None = None,
        *,
        offsets: object = None,
        backend: str = "auto",
        like: object = None,
        **attending: Unpack[Attending],
    ) -> Floats | list[Floats]:
        """Apply the learned coefficients to new tokens, of any length.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; :class:`States`
            or :class:`Streams` where the data was such.
        positions
            "last", "all" or "causal", see :class:`Heads`; by default as in training.
        backend
            "auto", "cpu", "numpy" or "cuda"; "auto" is "cuda" where Z or this layer is on a device.
        like
            An array whose library the result is wanted in, see :func:`linattn_fast.convert`; None
            is numpy, or CuPy for work on a device.
        **attending
            ``mask``, ``lengths``, ``scale``, ``decay`` and ``attend_self``, as for :func:`fit`.

        Returns
        -------
        array or list
            In the form of the targets: (N, d_out) for "last", otherwise one row a token, in the
            form of Z; without the last axis where the targets had none. 0 for masked tokens.
        """
        where, tokens, rows = self._outputs(Z, positions, offsets, backend, attending)
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
        **attending: Unpack[Attending],
    ) -> float:
        """R^2 of the predictions: the share of the targets' variance that they explain.

        Parameters
        ----------
        Z, offsets
            Tokens, as for :meth:`predict`.
        y
            Targets, in the form that :func:`fit` takes; every query that has one counts.
        sample_weight
            Weights (N,), not negative, one a sequence and the same for all its queries, or one a
            query of :class:`Streams`; 1 by default.
        positions, backend, **attending
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
        where, tokens, rows = self._outputs(Z, positions, offsets, backend, attending)
        return score_of(tokens, y, rows, where, sample_weight)

    def _outputs(
        self,
        Z: object,
        positions: Positions | None,
        offsets: object,
        backend: str,
        attending: Attending,
    ) -> tuple[Positions, Tokens, Floats]:
        """Check positions and tokens, and return them with the outputs, (samples, d_out)."""
        where = self.positions if positions is None else as_positions(positions)
        features, C = self.features, self.coefficients
        Z, offsets = attended(Z, offsets, where, **attending)
        tokens = features.batch(Z, offsets, where)
        where = tokens.asked(where)
        engine = get_backend(backend, tokens, self)
        with on_device(self.device):
            parts = [
                outputs_of(C, features, part, where, engine) for part in features.parts(tokens)
            ]
            rows = parts[0] if len(parts) == 1 else module_of(parts[0]).concatenate(parts)
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
        of_states = isinstance(self.features, StateFeatures)
        # Streams may have been causal; their module is given the memory of each query all the same
        usual: Positions = "last" if of_states else self.positions
        where = usual if positions is None else as_positions(positions)
        if device is None and self.device is not None:
            device = f"cuda:{self.device}"
        heads = self.heads
        if heads is not None and heads.V.size + heads.Q.size < self.coefficients.size:
            return heads.to_torch(
                where,
                dtype=dtype,
                device=device,
                requires_grad=requires_grad,
                states=of_states,
            )
        if self.features.map is not None:
            raise ValueError(
                f"to_torch: tokens are mapped by {told(self.features.map.map)}, which the module "
                "would not do"
            )
        from ..heads.torch_module import coefficient_layer_of  # noqa: PLC0415  # torch is optional

        C = to_host(self.coefficients)
        return coefficient_layer_of(C, self.features, where, dtype, device, requires_grad)

    def save(self, path: storage.PathLike) -> None:
        """Write to an ``.npz`` file, atomically; read by :func:`load`.

        Heads that were to be found on demand are found first, so that the file has them. A map of
        :mod:`linattn_fast.maps` is kept; of a function of yours, its name is, and :func:`load`
        takes it again.

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
        if isinstance(self.features, PassedFeatures):
            arrays["rank_errors"] = self.rank_path().mean_squared_errors
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


def load(path: storage.PathLike, *, map: Map | None = None) -> Fit:
    """Read a layer that :meth:`Fit.save` wrote.

    Parameters
    ----------
    path
        File to read.
    map
        The map that the tokens of the fit had, where it was a function of yours: files keep those
        of :mod:`linattn_fast.maps` and only the names of others, without which the layer cannot be
        applied.

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
    meta, arrays = storage.read(path, "fit", _FILE_VERSION, names, keys, ("rank_errors",))
    features = storage.read_features(path, meta, arrays, as_map(map))
    certificate = None
    if meta["certificate"] is not None:
        spectrum = arrays["spectrum"] if arrays["spectrum"].size else None
        certificate = Certificate(**meta["certificate"], features=features, spectrum=spectrum)
    info = meta["info"]
    info["refinements"] = tuple(info["refinements"])
    program = meta.get("program")  # older files lack it, as they do "scalar_targets"
    heads = None
    if len(arrays["V"]):
        of_file = Heads(arrays["V"], arrays["Q"], _recovery(meta.get("recovery")))
        heads = of_file.for_features(features)
    found = Fit(
        coefficients=arrays["coefficients"],
        features=features,
        heads=heads,
        certificate=certificate,
        info=FitInfo(**info),
        positions=meta["positions"],
        program=None if program is None else ProgramCertificate(**program),
        scalar_targets=bool(meta.get("scalar_targets", False)),
    )
    if "rank_errors" in arrays:
        vars(found)["_rank_errors"] = PendingErrors.known(arrays["rank_errors"])
    return found
