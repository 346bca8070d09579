"""Files of moments: what :meth:`Moments.save` writes, and checkpoints, which are such files too.

The format is in docs/files.md. A checkpoint also has an entry ``"stream"`` in its meta data, which
says how far the stream had been read, and an array ``batches`` with the digests of the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.types import Array
from ..backend.totals import ARRAYS, Totals
from ..data.mapping.token_map import Map
from ..features import files as storage
from ..features.accumulation import Accumulation

if TYPE_CHECKING:
    from .moments import Moments

_FILE_VERSION = 2
_META = ("d", "d_out", "positions", "precision", "n_samples", "total_weight", "accumulation")


class Reached(NamedTuple):
    """How far a stream had been read."""

    unit: str
    """What is counted: "sequences" or "batches"."""
    total: int | None
    """How many there are, if that was known."""
    done: int
    """How many had been read."""
    complete: bool
    """Whether the stream had ended there."""
    batches: Array | None
    """End and digests of each batch, (batches, 4); None in files of older versions."""


def write_moments(moments: Moments, path: storage.PathLike, stream: Reached | None = None) -> None:
    """Write moments, whole or not at all; ``stream`` says how far a stream had been read."""
    meta: dict[str, Any] = {
        **storage.feature_meta(moments.features),
        "d_out": moments.d_out,
        "positions": moments.positions,
        "precision": moments.precision,
        "n_samples": moments.n_samples,
        "total_weight": moments.total_weight,
        "accumulation": moments.accumulation._asdict(),
        "magnitudes_watched": True,
        "scalar_targets": moments.scalar_targets,
    }
    arrays: dict[str, Array] = {
        **{name: getattr(moments.sums, name) for name in ARRAYS},
        **storage.feature_arrays(moments.features),
    }
    sizes = moments.magnitudes
    arrays["magnitudes"] = np.zeros((0, 0)) if sizes is None else sizes
    if stream is not None:
        meta["stream"] = stream._asdict()
        arrays["batches"] = meta["stream"].pop("batches")
    storage.write(path, "moments", _FILE_VERSION, meta, arrays)


def read_moments(
    path: storage.PathLike, kind: type[Moments], backend: str, own: Map | None = None
) -> tuple[Moments, Reached | None]:
    """Read such a file: the moments, and how far a stream had been read if it says so.

    ``own`` is the map of their tokens, where it is one that the file could not keep.
    """
    names = (*ARRAYS, "pairs", "queries", "magnitudes")
    meta, arrays = storage.read(path, "moments", _FILE_VERSION, names, _META, ("batches",))
    sizes, batches = arrays.pop("magnitudes"), arrays.pop("batches", None)
    features = storage.read_features(path, meta, arrays, own)
    moments = kind(
        meta["d"],
        meta["d_out"],
        positions=meta["positions"],
        features=features,
        backend=backend,
        precision=meta["precision"],
    )
    expected = {name: getattr(moments.sums, name).shape for name in ARRAYS}
    found = {name: array.shape for name, array in arrays.items()}
    if found != expected:
        raise ValueError(f"path: {path} holds arrays of shape {found}, expected {expected}")
    how = Accumulation(**meta["accumulation"])
    if not features.everything and not meta.get("magnitudes_watched", False):
        # Older files do not tell whether their magnitudes underflowed
        how = how._replace(underflow=True)
    if meta["n_samples"] > 0:
        moments.add(
            Totals(
                **arrays,
                n_samples=meta["n_samples"],
                total_weight=meta["total_weight"],
                accumulation=how,
                magnitudes=sizes if sizes.size else None,
                scalar_targets=bool(meta.get("scalar_targets", False)),  # older files lack it
            )
        )
    stream = meta.get("stream")
    if stream is None:
        return moments, None
    if batches is not None and (batches.dtype.kind, batches.shape[1:]) != ("u", (4,)):
        raise ValueError(
            f"path: {path} holds batches of shape {batches.shape} and dtype {batches.dtype}, "
            "expected (batches, 4) of uint64"
        )
    done, complete = int(stream["done"]), bool(stream.get("complete", False))
    return moments, Reached(stream["unit"], stream["total"], done, complete, batches)
