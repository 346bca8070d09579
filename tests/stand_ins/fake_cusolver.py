"""Linear algebra of the make-believe CuPy: what cuSOLVER has, with its habits."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from stand_ins.fake_cupy import device, host, ndarray
from stand_ins.fake_machine import State, synchronised


def _checked(failed: bool) -> None:
    """cuSOLVER's status is looked at only if that was asked for."""
    if State.linalg == "raise":
        synchronised("linalg")
        if failed:
            raise np.linalg.LinAlgError("Error reported by potrf in cuSOLVER. devInfo = [3].")


def cholesky(a: ndarray) -> ndarray:
    try:
        factor = np.linalg.cholesky(host(a))
    except np.linalg.LinAlgError:
        _checked(True)
        return device(np.full(a.shape, np.nan))
    _checked(False)
    return device(factor)


def eigh(a: ndarray, UPLO: str = "L") -> Any:
    _checked(False)
    return device(tuple(np.linalg.eigh(host(a), UPLO)))


def eigvalsh(a: ndarray, UPLO: str = "L") -> ndarray:
    _checked(False)
    return device(np.linalg.eigvalsh(host(a), UPLO))


def qr(a: ndarray, mode: str = "reduced") -> Any:
    return device(np.linalg.qr(host(a), mode))


def svd(a: ndarray, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    _checked(False)
    return device(tuple(np.linalg.svd(host(a), full_matrices, compute_uv)))


def norm(x: ndarray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> ndarray:
    return device(np.linalg.norm(host(x), ord, axis, keepdims))


def potrs(L: ndarray, b: ndarray, lower: bool) -> ndarray:
    from scipy.linalg import cho_solve

    solved = cho_solve((host(L), lower), host(b))
    b._array[...] = np.nan  # "may be modified in place"
    return device(solved)


def solve_triangular(a: ndarray, b: ndarray, trans: Any = 0, lower: bool = False) -> ndarray:
    from scipy.linalg import solve_triangular as solved

    return device(solved(host(a), host(b), trans=trans, lower=lower))


@contextlib.contextmanager
def errstate(*, linalg: str) -> Any:
    before, State.linalg = State.linalg, linalg
    try:
        yield
    finally:
        State.linalg = before
