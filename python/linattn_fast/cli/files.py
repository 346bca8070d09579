"""Files of data: `.npz`, `.npy`, Zarr and HDF5, by the readers people have.

Arrays in `.npz` files are loaded; the others are left where they are, and read a part at a time.
"""

from __future__ import annotations

import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sources import is_stored
from ..fitting.result import Fit, load
from ..moments.moments import Moments
from ..system.machine import usable_memory
from ..system.packages import optional_module
from .command import UsageError

_HDF5 = (".h5", ".hdf5", ".hdf", ".he5")
_OWN_NAME = {"tokens": "Z", "targets": "y", "offsets": "offsets", "weights": "sample_weight"}
"""What an array is called in a file unless the command line says otherwise."""


@dataclass(frozen=True)
class Container:
    """A file of named arrays, or one array."""

    path: str
    names: tuple[str, ...]
    """Names of the arrays; none where the file is one array."""
    get: Callable[[str], Any]
    """The array of that name."""


@dataclass(frozen=True)
class Input:
    """What a command works on: arrays, or the moments of what once were."""

    path: str
    Z: Any = None
    y: Any = None
    offsets: Any = None
    weights: Any = None
    moments: Moments | None = None


@contextmanager
def opened(arguments: Namespace, *, targets: str, path: str | None = None) -> Iterator[Input]:
    """Open the data that a command line names, for as long as the block lasts.

    Parameters
    ----------
    arguments
        Options of :mod:`linattn_fast.cli.arguments`.
    targets
        "needed", "welcome" or "ignored".
    path
        Instead of the file that the command line calls DATA.
    """
    where: str = arguments.data if path is None else path
    with _opened(where) as container:
        if "format" in container.names and "version" in container.names:
            yield _own_file(container)
            return
        names = {role: getattr(arguments, role, None) for role in _OWN_NAME}
        if path is not None:  # names hold for this file as well, files of their own do not
            names = {
                role: name if name in container.names else None for role, name in names.items()
            }
        other = getattr(arguments, "targets_file", None)
        if other is not None and names["targets"] is not None:
            raise UsageError(f"linattn-fast: targets are given twice, {other} and --targets")
        names["targets"] = other or names["targets"]
        needed = {"tokens": True, "targets": targets == "needed"}
        arrays = {
            role: _array(container, role, names[role], needed=needed.get(role, False))
            for role in _OWN_NAME
            if role != "targets" or targets != "ignored"
        }
        offsets, weights = arrays["offsets"], arrays["weights"]
        with _named(where):
            yield Input(
                where,
                arrays["tokens"],
                arrays.get("targets"),
                None if offsets is None else np.asarray(offsets),
                None if weights is None else np.asarray(weights),
            )


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Put the name of the file before errors about its arrays."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(error).split(":")[0].split("[")[0] not in ("Z", "y", "offsets", "sample_weight"):
            raise
        raise type(error)(f"{path}: {error}") from error


def model_in(path: str) -> Fit:
    """The model in a file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return load(path)
    except ValueError as error:
        why = str(error).removeprefix("path: ")
        raise ValueError(f"{path} is no model that 'linattn-fast fit' saved: {why}") from None


def _own_file(container: Container) -> Input:
    """Moments that were saved; a fit is no data."""
    kind = str(container.get("format"))
    if kind != "linattn_fast.moments":
        raise ValueError(
            f"{container.path} holds {kind}, which is no data; 'linattn-fast heads' shows a model"
        )
    return Input(container.path, moments=Moments.load(container.path))


def _array(container: Container, role: str, name: str | None, *, needed: bool) -> Any:
    """The array that plays a role; None where it is not there and need not be."""
    path = container.path
    if not container.names:  # one array: tokens, with everything else in files of its own
        if role == "tokens":
            if name is not None:
                raise UsageError(f"linattn-fast: --tokens: {path} is one array, without names")
            return container.get("")
        if name is None:
            if needed:
                raise UsageError(
                    f"linattn-fast: {path} is one array, the tokens; "
                    f"give the {role} as a second file, such as y.npy"
                )
            return None
        return _one_array(name, role)
    wanted = name or _OWN_NAME[role]
    if wanted in container.names:
        return container.get(wanted)
    if name is not None and (Path(name).suffix == ".npy" or Path(name).exists()):
        return _one_array(name, role)
    if name is None and not needed:
        return None
    there = ", ".join(container.names[:12]) + (", .." if len(container.names) > 12 else "")
    raise ValueError(
        f"{path} has no array {wanted!r}, but {there or 'none at all'}; "
        f"name the {role} with --{role}"
    )


def _one_array(path: str, role: str) -> Any:
    """An array that has a file of its own."""
    file = Path(path)
    if file.suffix == ".npy" or not file.is_dir():
        return _map_npy(path)
    with _zarr(path) as container:
        if container.names:
            raise ValueError(f"{path}: one array is needed for the {role}, and this is a group")
        return container.get("")


# ------------------------------------------------------------------ the formats


@contextmanager
def _opened(path: str) -> Iterator[Container]:
    file = Path(path)
    suffix = file.suffix.lower()
    if not file.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if suffix == ".npy":
        array = _map_npy(path)
        yield Container(path, (), lambda _: array)
    elif suffix in _HDF5:
        with _hdf5(path) as container:
            yield container
    elif suffix == ".zarr" or file.is_dir() or path.lower().endswith(".zarr.zip"):
        with _zarr(path) as container:
            yield container
    elif suffix == ".npz" or zipfile.is_zipfile(path):
        with _npz(path) as container:
            yield container
    else:
        raise ValueError(f"{path}: the name must end in .npz, .npy, .zarr or .h5 (.hdf5)")


@contextmanager
def _npz(path: str) -> Iterator[Container]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a whole .npz file")
    with np.load(path, allow_pickle=False) as archive:

        def get(name: str) -> Any:
            try:
                return archive[name]
            except Exception as error:  # whatever damage makes the readers say
                raise ValueError(f"{path}: {name!r} cannot be read ({error})") from None

        yield Container(path, tuple(archive.files), get)


def _map_npy(path: str) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        if error.errno is not None:
            raise
        raise ValueError(f"{path} is not a whole .npy file ({error})") from None
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole .npy file ({error})") from None


@contextmanager
def _hdf5(path: str) -> Iterator[Container]:
    h5py = optional_module("h5py", f"{path}: reading it", "files")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} cannot be read as HDF5 ({error})") from None
    names: list[str] = []
    with file:
        file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        yield Container(path, tuple(names), file.__getitem__)


@contextmanager
def _zarr(path: str) -> Iterator[Container]:
    zarr = optional_module("zarr", f"{path}: reading it", "files")
    try:
        root = zarr.open(path, mode="r")
    except Exception as error:  # its classes of errors differ between versions
        raise ValueError(f"{path} cannot be read as Zarr ({error})") from None
    if hasattr(root, "shape"):
        yield Container(path, (), lambda _: root)
    else:
        yield Container(path, tuple(_names(root)), root.__getitem__)


def _names(group: Any, prefix: str = "") -> Iterator[str]:
    """Arrays of a Zarr group, those of the groups in it after its own."""
    yield from sorted(f"{prefix}{name}" for name in group.array_keys())
    for name in sorted(group.group_keys()):
        yield from _names(group[name], f"{prefix}{name}/")


# ------------------------------------------------------------------ larger than memory


def loaded(array: Any) -> Any:
    """Bring stored arrays that are small for this machine into memory; others stay where they are.

    Memory maps need no bringing: the system does it.
    """
    if isinstance(array, np.ndarray) or not is_stored(array):
        return array
    small = int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize < usable_memory() // 4
    return np.asarray(array[...]) if small else array
