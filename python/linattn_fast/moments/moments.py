"""Moments of the cubic features: all that least squares needs, mergeable, without the features.

With h = s (x) z the features of a sample, w its weight and y its target:

    gram = sum w h h'    cross = sum w h y'    energy = sum w y^2    W = sum w

The Gram is kept compact, each distinct entry once (:mod:`linattn_fast.features.compact`). A sample
is a query: the last token of a sequence, or every token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from ..arrays.device import cupy
from ..arrays.types import Positions, Values
from ..backend.choice import as_precision, get_backend
from ..backend.interface import Precision
from ..backend.totals import Totals, merged
from ..data.attending import Attending, attended
from ..data.mapping.mapped_sources import MappedStream, MappedTokens, mapped_batch, mapped_stream
from ..data.mapping.token_map import Map, TokenMap, as_map
from ..data.sources import Batch, Source, as_source
from ..data.streams import Streams
from ..data.tokens import as_positions, as_values
from ..features import files as storage
from ..features.features import Features, as_features, features_of_all
from ..features.samples import Samples, warn_of_padding
from ..features.states import PassedFeatures, features_of_states
from ..maps.stored import given_again, told
from ..system.arguments import as_size
from ..system.machine import require_memory, same_bits
from ..system.progress import Bar, Progress
from .checkpoint import Checkpoint
from .file import read_moments, write_moments
from .streaming import accumulate, checked_batch
from .sums import MomentSums, sum_over

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..fitting.result import Fit


class Moments(MomentSums):
    """Accumulated moments of a stream of sequences.

    Parameters
    ----------
    d
        Coordinates of a token. Moments of states are made by :meth:`of_states`.
    d_out
        Outputs; 0 accumulates the second moment alone, which is all a certificate needs.
    positions
        Which tokens are queries with a target: "last", the last of each sequence; "all", every
        token, each attending to the whole sequence; "causal", every token, each attending to the
        prefix that ends with it.
    features
        Which features take part, :class:`Features`; None is all. Where the others are left out as
        zero in the data (:meth:`Features.active`), a batch that has any of them is an error.
    precision
        "float64", or "mixed": float32 products within 256 samples, float64 totals (see
        docs/design.md for its error).
    backend
        "auto", "cpu", "numpy" or "cuda". "auto" is "cuda" for batches on a CUDA device.

    Notes
    -----
    With "cuda", sums are CuPy arrays and stay on the device of the first batch (docs/cuda.md);
    ``a + b`` has the device of a, and ``get()`` brings moments home.

    Memory does not grow with the number of sequences. An update computes the moments of its batch
    aside and adds them when all went well, so a failed or interrupted update changes nothing; a
    stream is one update.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> Z, y = rng.standard_normal((500, 10, 3)), rng.standard_normal((500, 2))
    >>> first = la.Moments(3, 2).update(Z[:250], y[:250])
    >>> halves = first + la.Moments(3, 2).update(Z[250:], y[250:])
    >>> halves.n_samples, halves.dimension, halves.gram().shape, halves.cross().shape
    (500, 18, (18, 18), (18, 2))
    """

    def __init__(
        self,
        d: int,
        d_out: int,
        *,
        positions: Positions = "last",
        features: Features | None = None,
        backend: str = "auto",
        precision: Precision = "float64",
    ) -> None:
        chosen = as_features(features, as_size(d, "d"))
        super().__init__(
            chosen,
            as_positions(positions),
            as_size(d_out, "d_out", least=0),
            as_precision(precision),
            None,
        )
        self.backend = get_backend(backend).name if backend != "auto" else "auto"
        require_memory(
            2 * self._compact_bytes,  # the totals, and those of a batch
            f"d: the moments of {chosen.made_of}, d_out = {self.d_out}",
        )
        self._lock = threading.Lock()

    @classmethod
    def of_states(
        cls,
        memory: int | tuple[int, int],
        query: int,
        d_out: int,
        *,
        symmetric: bool = False,
        positions: Positions = "last",
        values: Values = "mixed",
        backend: str = "auto",
        precision: Precision = "float64",
    ) -> Moments:
        """Make moments that take :class:`States`, or :class:`Streams`, in the place of tokens.

        Parameters
        ----------
        memory
            (d_v, d_k), or q where the memory is not a matrix.
        query
            Number of coordinates of a query, d_q.
        d_out
            Outputs; 0 accumulates the second moment alone.
        symmetric
            Whether only the pairs j <= k of a memory (d, d) are used.
        positions
            Which keys a query of streams attends to.
        values
            "mixed" or "passed", as for :func:`linattn_fast.fit`. With "passed", d_out is d_v or 0,
            each row of a memory is a sample, and the cross moment is that of one output.
        backend, precision
            As for :class:`Moments`; "cuda" takes no states.

        Returns
        -------
        Moments
            Empty ones.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> states = la.States(rng.standard_normal((50, 3, 2)), rng.standard_normal((50, 4)))
        >>> moments = la.Moments.of_states((3, 2), 4, 1).update(states, rng.standard_normal(50))
        >>> moments.n_samples, moments.dimension
        (50, 24)
        """
        features = features_of_states(memory, query, symmetric, as_values(values))
        if isinstance(features, PassedFeatures) and d_out:
            if d_out != features.d_v:
                raise ValueError(
                    f'd_out: values="passed" has d_v = {features.d_v} outputs, got {d_out!r}'
                )
            d_out = 1
        return cls(
            features.d,
            d_out,
            positions=positions,
            features=features,
            backend=backend,
            precision=precision,
        )

    # ------------------------------------------------------------------------------- accumulating

    @same_bits
    def update(
        self,
        Z: object,
        y: object = None,
        *,
        offsets: object = None,
        sample_weight: object = None,
        progress: bool | Callable[[int, Any], object] = False,
        checkpoint: storage.PathLike | None = None,
        checkpoint_every: float = 60.0,
        map: Map | None = None,
        **attending: Unpack[Attending],
    ) -> Moments:
        """Add a batch, or a whole stream of them.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; or
            :class:`linattn_fast.States` or :class:`linattn_fast.Streams`, for moments of such. Or a
            stream, which is read a batch at a time, the next one while the last is added: a numpy
            memory map, an array that is stored elsewhere (Zarr, HDF5: anything with shape, dtype
            and slices), or an iterable of batches ``(Z, y)`` or ``(Z, y, sample_weight)``, see
            docs/scale.md.
        y
            Targets: (N, d_out) for "last", otherwise one row a token in the form of Z. The last
            axis may be left out for d_out = 1; None for d_out = 0 and for an iterable of batches.
        sample_weight
            Weights (N,), not negative, one a sequence, or one a query of streams; 1 by default.
        progress
            True shows a bar; a function is called with the sequences done and their number (of an
            iterable: the batches, and None where their number is not known).
        checkpoint
            Path of a file, for streams: what has been added is saved there now and then, and if the
            file exists, the same stream goes on from it. It holds the moments of this stream alone
            and can be read by :meth:`load`.
        checkpoint_every
            Seconds from one checkpoint to the next; 0 saves after each batch.
        map
            What tokens are mapped by first, see :func:`linattn_fast.fit`; d is then the number of
            coordinates of mapped tokens. The first update settles it for the others, which need not
            name it again; a batch of a stream is mapped as a whole, and one in memory in parts.
        **attending
            ``mask``, ``lengths``, ``scale``, ``decay`` and ``attend_self`` of a batch of tokens, as
            for :func:`linattn_fast.fit`. With the last three, the moments are those of streams, as
            :meth:`of_states` makes them.

        Returns
        -------
        Moments
            This object.

        Raises
        ------
        ValueError, TypeError
            An argument that does not fit, or data that is not finite; of a stream, the message
            names the batch. The moments are then as they were.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> batches = ((Z, Z[:, 0]) for Z in (rng.standard_normal((100, 5, 3)) for _ in range(4)))
        >>> la.Moments(3, 3).update(batches)
        Moments(d=3, d_out=3, positions='last', n_samples=400, dimension=18)
        """
        Z, offsets = attended(Z, offsets, self.positions, sample_weight, **attending)
        source = as_source(
            Z,
            y,
            offsets=offsets,
            sample_weight=sample_weight,
            positions=self.positions,
            moments_bytes=self._compact_bytes,
        )
        if source is None and checkpoint is not None:
            raise ValueError("checkpoint: Z is one batch in memory; checkpoints are for streams")
        given = Batch(Z, y, offsets, sample_weight, end=0, where="")
        empty = self._empty()
        if (value := self._map_for(map)) is not None:
            if isinstance(Z, Streams):
                raise ValueError(
                    "map: with a scale, gates or weights of queries, give Streams with key_map and "
                    "query_map in the place of tokens"
                )
            source, token_map = self._mapped(source, given, value)
            empty.features = self.features.mapped_by(token_map)
        if source is not None:
            saved = None
            if checkpoint is not None:
                saved = Checkpoint(checkpoint, checkpoint_every, source)
            stream = accumulate(source, empty, progress, saved, doubt=value is None)
            self.features = stream.features
            return self.add(stream._totals)
        features = self._features_for(Z)
        samples = checked_batch(given, self.positions, features, d=features.d, d_out=self.d_out)
        warn_of_padding(samples.tokens, self.positions)
        with Bar(samples.n_samples, "moments", progress) as report:
            batch = self.totals_of(samples, report)
        self.features, self.d = features, features.d
        return self.add(batch)

    def _map_for(self, value: Map | None) -> Map | None:
        """The map of an update: the one given, or the one that was settled before."""
        value = as_map(value)
        settled = None if self.features.map is None else given_again(self.features.map.map, value)
        if value is None or value == settled:
            return settled
        if settled is not None or self.n_samples > 0:
            had = "none" if settled is None else told(settled)
            raise ValueError(
                f"map: all updates need the same one; these moments have {had}, got {told(value)}"
            )
        return value

    def _mapped(self, source: Source | None, batch: Batch, value: Map) -> tuple[Source, TokenMap]:
        """A source, or a batch in memory, as a source of mapped tokens; and the map, tried."""
        made: MappedTokens | MappedStream
        if source is None:
            made = mapped_batch(*batch[:4], self.positions, value, self.d_out)
            warn_of_padding(made.tokens, self.positions)
        else:
            made = mapped_stream(source, value, self.positions)
        if made.map.width != self.d:
            raise ValueError(
                f"map: it makes tokens of {made.map.width} coordinates, and these moments have "
                f"d = {self.d}"
            )
        return made.resized(self._compact_bytes), made.map

    def _features_for(self, Z: object) -> Features:
        """Features of these moments; of tokens as streams, before the first update, those of such.

        Only with the batch is it known that tokens are scaled or forgotten.
        """
        features = self.features
        tokens = features.everything and features.sums_cancel and self._totals is None
        if tokens and isinstance(Z, Streams) and Z.symmetric and Z.d_k == Z.d_q == self.d:
            return features_of_states((self.d, self.d), self.d, symmetric=True)
        return features

    def totals_of(self, samples: Samples, progress: Progress = None) -> Totals:
        """Sum over a checked batch, without adding it."""
        engine = get_backend(self.backend, samples.tokens)
        return sum_over(samples, engine, self.precision, progress)

    @classmethod
    def holding(cls, sums: MomentSums) -> Moments:
        """Make moments that go on from these sums."""
        moments = cls(
            sums.d,
            sums.d_out,
            positions=sums.positions,
            features=sums.features,
            precision=sums.precision,
        )
        return moments.add(sums._totals)

    def add(self, *parts: Totals | None) -> Moments:
        """Add sums over samples of this kind in the order given, None for nothing."""
        with self._lock:
            everything = [part for part in (self._totals, *parts) if part is not None]
            if everything:  # one assignment: an interrupt finds the old state or the new one
                total = merged(everything).shared()
                here = self._totals is None and self.backend == "cuda"
                self._totals = total.placed(cupy().asarray) if here else total
        return self

    def __getstate__(self) -> dict[str, object]:
        left_behind = "_lock", "_sizes"
        with self._lock:
            return {name: value for name, value in vars(self).items() if name not in left_behind}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _sizes=None)

    def __add__(self, other: object) -> Moments:
        """Merge: the moments of both streams together."""
        return self.merged([other]) if isinstance(other, Moments) else NotImplemented

    def merged(self, others: Iterable[Moments]) -> Moments:
        """Merge with others, added in the order given.

        Parameters
        ----------
        others
            Moments of the same d, d_out, positions and features.

        Returns
        -------
        Moments
            The moments of all of them together; ``a + b`` is ``a.merged([b])``. Features that are
            left out count as zero in the data only if they do in each part; the precision is
            "mixed" if any part is.
        """
        everything = [self, *others]
        for other in everything:
            for name in ("d", "d_out", "positions"):
                self._require_same(name, getattr(self, name) == getattr(other, name), other)
            self._require_same("features", self.features.same_choice(other.features), other)
        total = self._empty()
        total.features = features_of_all([part.features for part in everything])
        if any(part.precision == "mixed" for part in everything):
            total.precision = "mixed"
        return total.add(*(part._totals for part in everything))

    def _require_same(self, name: str, same: bool, other: Moments) -> None:
        """Raise when moments to merge differ in something."""
        if not same:
            mine, theirs = getattr(self, name), getattr(other, name)
            raise ValueError(f"{name}: moments to merge must agree, got {mine!r} and {theirs!r}")

    def _empty(self) -> Moments:
        """Make moments of the same kind that hold nothing yet."""
        return Moments(
            self.d,
            self.d_out,
            positions=self.positions,
            features=self.features,
            backend=self.backend,
            precision=self.precision,
        )

    # -------------------------------------------------------------------------------------- place

    def get(self) -> Moments:
        """Bring the moments to the host.

        Returns
        -------
        Moments
            The same moments on the host; these if they are there already.
        """
        if self.device is None or self._totals is None:
            return self
        home = copy(self)
        home.backend, home._totals = "auto", self._totals.get()
        return home

    def __repr__(self) -> str:
        return (
            f"Moments({self.features.made_of.replace(' = ', '=')}, d_out={self.d_out}, "
            f"positions={self.positions!r}, "
            f"n_samples={self.n_samples}, dimension={self.dimension})"
        )

    # -------------------------------------------------------------------------------------- files

    def save(self, path: storage.PathLike) -> None:
        """Write to an ``.npz`` file, atomically; read by :meth:`load`.

        Parameters
        ----------
        path
            File to write, by the name given; its format is in docs/files.md.
        """
        write_moments(self, path)

    @classmethod
    def load(
        cls, path: storage.PathLike, *, backend: str = "auto", map: Map | None = None
    ) -> Moments:
        """Read a file that :meth:`save` wrote, or a checkpoint of :meth:`update`.

        Parameters
        ----------
        path
            File to read.
        backend
            "auto", "cpu", "numpy" or "cuda", for updates to come.
        map
            The map of the tokens, where it was a function of yours, see :func:`linattn_fast.load`.

        Returns
        -------
        Moments
            The same moments.
        """
        return read_moments(path, cls, backend, as_map(map))[0]

    # ------------------------------------------------------------------------------------ solving

    @same_bits
    def fit(
        self,
        *,
        alpha: float = 0.0,
        heads: str | int | None = "minimal",
        solver: str = "auto",
        certify: bool | Literal["sharp"] = True,
        memory_limit: int | None = None,
        intercept: bool = False,
    ) -> Fit:
        """Solve for the best layer from the moments alone.

        Parameters
        ----------
        alpha, heads, certify, memory_limit
            As for :func:`linattn_fast.fit`.
        intercept
            Whether the ridge leaves out the constant feature, for moments that were updated with
            ``map=la.maps.with_constant``, or another map that has a constant coordinate.
        solver
            "cholesky", "eigh" (least norm), or "auto": Cholesky where that is safe, else "eigh".

        Returns
        -------
        Fit
            As :func:`linattn_fast.fit` returns, but not refined on the data: what forming the Gram
            has lost of an ill-conditioned problem stays lost, and ``fit.info`` says so.
        """
        from ..fitting.call import fit_moments  # noqa: PLC0415  # fitting is built on this module

        return fit_moments(
            self,
            alpha=alpha,
            heads=heads,
            solver=solver,
            certify=certify,
            memory_limit=memory_limit,
            intercept=intercept,
        )
