"""Files: `.npz` archives with a kind, a format version and plain arrays; no pickles.

Every archive holds ``format`` (``"linattn_fast.<kind>"``), ``version`` (an integer) and ``meta``
(JSON text) beside its arrays. Files are written beside their destination and moved into place, so a
reader sees the old file or the new one and never half of one.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from ..arrays.device import to_host
from ..arrays.types import Array
from ..data.mapping.token_map import Map, StreamMaps, TokenMap
from ..data.tokens import as_values
from ..maps.stored import given_again, map_meta, map_of
from .features import Features
from .states import PassedFeatures, StateFeatures, features_of_states

PathLike: TypeAlias = "str | os.PathLike[str]"


def write(
    path: PathLike, kind: str, version: int, meta: dict[str, Any], arrays: dict[str, Array]
) -> None:
    """Write an archive, whole or not at all; the name is used as given."""
    with replacing(path) as file:
        np.savez(
            file,
            format=np.array(f"linattn_fast.{kind}"),
            version=np.array(version),
            meta=np.array(json.dumps(meta)),
            # numpy types the keyword allow_pickle too
            **{name: to_host(array) for name, array in arrays.items()},  # type: ignore[arg-type]
        )


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its place only when the block ends without an error."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # as open() would have made it
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read(
    path: PathLike,
    kind: str,
    version: int,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read an archive that :func:`write` wrote; return its meta data and the named arrays.

    ``keys`` are the entries that the meta data must have; ``optional`` arrays may be missing.

    Raises
    ------
    ValueError
        The file is truncated or damaged, of another kind or of another format version.
    """
    wanted = f"linattn_fast.{kind}"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            found, found_version = str(archive["format"]), int(archive["version"])
            meta = json.loads(str(archive["meta"]))
            arrays = {}
            if (found, found_version) == (wanted, version):
                there = (name for name in optional if name in archive)
                arrays = {name: archive[name] for name in (*names, *there)}
                missing = [key for key in keys if key not in meta]
                if missing:
                    raise KeyError(", ".join(missing))
    except OSError as error:
        if error.errno is not None:  # the file itself is missing or cannot be read
            raise
        raise ValueError(f"path: {path} is not a whole {wanted} file ({error})") from None
    except Exception as error:  # a damaged or foreign file may raise anything
        kind_of_error = type(error).__name__
        raise ValueError(
            f"path: {path} is not a whole {wanted} file ({kind_of_error}: {error})"
        ) from None
    if found != wanted:
        raise ValueError(f"path: {path} holds {found}, not {wanted}")
    if found_version != version:
        raise ValueError(
            f"path: {path} has format version {found_version} of {wanted}; "
            f"this version of linattn_fast reads {version}"
        )
    return meta, arrays


def feature_meta(features: Features) -> dict[str, Any]:
    """Entries of the meta data that say what features are made of."""
    states = None
    if isinstance(features, StateFeatures):
        states = features.shape._asdict() | {"values": "mixed"}
    if isinstance(features, PassedFeatures):
        states = features.whole._asdict() | {"values": "passed"}
    meta: dict[str, Any] = {
        "d": features.d,
        "others_are_zero": features.others_are_zero,
        "states": states,
    }
    if isinstance(features, StateFeatures) and features.maps is not None:
        meta["stream_maps"] = [None if one is None else map_meta(one) for one in features.maps]
        meta["constants"] = features.constants
    if features.map is not None:
        meta["map"] = {"of": features.map.d, **map_meta(features.map.map)}
    return meta


def feature_arrays(features: Features) -> dict[str, Array]:
    """Entries of an archive that say which features take part; empty arrays mean all."""
    if features.everything:
        return {"pairs": np.zeros((0, 2), np.int64), "queries": np.zeros(0, np.int64)}
    return {"pairs": features.pairs, "queries": features.queries}


def read_features(
    path: PathLike, meta: dict[str, Any], arrays: dict[str, Array], own: Map | None = None
) -> Features:
    """Take those entries out of ``arrays``; older files do not say why features are left out.

    ``own`` is the map of tokens, where it is one that the file could not keep.
    """
    d, pairs, queries = meta["d"], arrays.pop("pairs"), arrays.pop("queries")
    try:
        if (states := meta.get("states")) is not None:  # older files know of tokens alone
            sizes = states["memory"], states["query"], states["symmetric"]
            of_states = features_of_states(*sizes, as_values(states.get("values", "mixed")))
            if (maps := meta.get("stream_maps")) is not None:
                of_states.maps = StreamMaps(
                    *(None if one is None else given_again(map_of(one), own) for one in maps)
                )
                constants = meta["constants"]
                of_states.constants = None if constants is None else tuple(constants)
            return of_states
        features = Features(d, pairs, queries) if len(pairs) else Features(d)
        features = features.because(others_are_zero=bool(meta.get("others_are_zero", False)))
        if (given := meta.get("map")) is not None:  # older files have none
            kept = map_of({name: value for name, value in given.items() if name != "of"})
            features = features.mapped_by(TokenMap(given_again(kept, own), int(given["of"]), d))
        return features
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path: {path} holds features that are not whole ({error})") from None
