"""Moments and fits from data on a Dask cluster; needs the extra ``linattn_fast[dask]``.

    import linattn_fast.dask as lad

    fit = lad.fit(Z, y)          # Dask arrays; or a bag, or delayed batches, of (Z, y)
    moments = lad.moments(Z, y)

Data stays where it is. Every worker turns its parts into moments, which are added up in a tree; or,
for ``solver="pcg"`` and for refinement, it holds its parts and answers each pass with its share of
the normal equations, of the size of the coefficients. Sums are added in the order of the parts, so
the answer does not depend on which worker did what and when, or on work that was done again because
a worker was lost. This room makes a problem of such data and hands it to the same fit as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..arrays.types import Positions
from ..backend.choice import as_precision, get_backend
from ..backend.interface import Precision
from ..data.tokens import as_positions
from ..features.features import Features, as_features
from ..fitting.call import fit_problem
from ..fitting.plan import SOLVERS, Settings
from ..fitting.result import Fit
from ..moments.moments import Moments
from ..solvers.conjugate_gradients.pcg import Pcg
from ..system.machine import num_threads, same_bits
from ..system.progress import Bar
from .cluster import Cluster
from .parts import PartSettings


def _part_settings(
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
    threads: int,
) -> PartSettings:
    """Check what is asked of every part."""
    if features is not None:
        as_features(features, getattr(features, "d", 0))
    with num_threads(threads):  # checks it
        pass
    name = get_backend(backend).name if backend != "auto" else "auto"
    return PartSettings(as_positions(positions), features, name, as_precision(precision), threads)


@same_bits
def moments(
    Z: Any,
    y: Any = None,
    *,
    positions: Positions = "last",
    sample_weight: Any = None,
    features: Features | None = None,
    backend: str = "auto",
    precision: Precision = "float64",
    threads: int = 1,
) -> Moments:
    """Accumulate the moments of data on a cluster; the scheduler is Dask's current one.

    Parameters
    ----------
    Z
        Tokens: a Dask array (N, n, d), cut along its first axis; or batches with all that belongs
        to them, ``(Z, y)``, ``(Z, y, sample_weight)`` or mappings with these names and "offsets":
        a Dask bag of them, or a list of delayed ones or futures. In a batch,
        :class:`linattn_fast.States` may take the place of tokens.
    y, sample_weight
        Targets and weights beside an array, as Dask or numpy arrays; see
        :meth:`linattn_fast.Moments.update`.
    positions, features, backend, precision
        As for :class:`linattn_fast.Moments`.
    threads
        Threads of each task; Dask runs a task on each thread of a worker, so one is right unless
        workers have more cores than threads.

    Returns
    -------
    Moments
        The moments, in this process. Without targets, d_out is 0.

    Examples
    --------
    >>> import dask.array, linattn_fast.dask as lad
    >>> Z = dask.array.random.default_rng(0).standard_normal((400, 8, 3), chunks=(100, 8, 3))
    >>> lad.moments(Z, Z[:, 0])
    Moments(d=3, d_out=3, positions='last', n_samples=400, dimension=18)
    """
    asked = _part_settings(positions, features, backend, precision, threads)
    return Cluster(Z, y, sample_weight, asked).moments()


@same_bits
def fit(
    Z: Any,
    y: Any = None,
    *,
    positions: Positions = "last",
    alpha: float = 0.0,
    sample_weight: Any = None,
    features: Features | None = None,
    heads: Literal["minimal", "svd"] | int | None = "minimal",
    solver: Literal["auto", "cholesky", "eigh", "pcg"] | Pcg = "auto",
    backend: str = "auto",
    precision: Precision = "float64",
    certify: bool | Literal["sharp"] = True,
    memory_limit: int | None = None,
    threads: int = 1,
    persist: bool = True,
    progress: bool | Callable[[int, Any], object] = False,
) -> Fit:
    """Learn the layer that fits best from data on a cluster; see :func:`linattn_fast.fit`.

    Parameters
    ----------
    Z, y, sample_weight, threads
        As for :func:`moments`.
    positions, alpha, features, heads, backend, precision, certify
        As for :func:`linattn_fast.fit`.
    solver
        "cholesky" or "eigh": moments from the workers, solved here, refined on the data. "pcg", or
        ``la.Pcg(tol=...)``: conjugate gradients, every pass on the workers. "auto": Cholesky where
        its memory is at hand and it is safe, else "pcg".
    memory_limit
        Bytes that may be used in this process.
    persist
        Keep the data in the memory of the workers from one pass to the next. False makes every pass
        compute it again.
    progress
        For conjugate gradients: True shows a bar; a function is called with the iterations done and
        an estimate of their number. Dask has its own means for the rest.

    Returns
    -------
    Fit
        The layer, in this process.

    Examples
    --------
    >>> import dask.array, linattn_fast.dask as lad
    >>> Z = dask.array.random.default_rng(0).standard_normal((400, 8, 3), chunks=(100, 8, 3))
    >>> lad.fit(Z, Z[:, 0]).certificate.verdict
    'identifiable'
    """
    asked = _part_settings(positions, features, backend, precision, threads)
    settings = Settings.of(alpha, heads, solver, certify, memory_limit)
    Bar(0, "", progress)  # checked before any work, as everything else
    cluster = Cluster(Z, y, sample_weight, asked)
    if settings.solver != "auto":  # before any work on the cluster
        refusal = cluster.refusal(settings.solver, SOLVERS[settings.solver].needs)
        if refusal is not None:
            raise ValueError(refusal)
    if persist:
        cluster.persist()
    return fit_problem(cluster, settings, progress)
