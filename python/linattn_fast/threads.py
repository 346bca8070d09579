"""How many threads the compiled code uses. Results have the same bits for every number.

:mod:`linattn_fast.blas_threads` has what BLAS does meanwhile.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .machine import usable_cores

_MOST = 65536
_chosen: int | None = None
_in_this_context: ContextVar[int | None] = ContextVar("linattn_fast_threads", default=None)


def _checked(value: object, name: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any object may turn up here
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: a whole number of threads is needed, got {kind}") from None
    if not 1 <= number <= _MOST:
        raise ValueError(f"{name}: must be between 1 and {_MOST}, got {number}")
    return number


def set_num_threads(n: int | None) -> None:
    """Set the number of threads for all later calls of this process.

    Parameters
    ----------
    n
        Number of threads, the calling one included; ``None`` returns to the default: the
        environment variable ``LINATTN_NUM_THREADS`` if it is set, else the cores this process may
        use.

    Notes
    -----
    Results have the same bits for every number. Products, Cholesky factorisations and triangular
    systems run on these threads. What is left to numpy and SciPy (eigenvalues, singular values, QR)
    runs on one thread of BLAS, because its sums would otherwise depend on how many there are; your
    own setting of BLAS threads is as before after each call.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.set_num_threads(1)
    >>> la.get_num_threads()
    1
    >>> la.set_num_threads(None)  # the default again
    """
    global _chosen  # noqa: PLW0603  # the one process-wide setting
    _chosen = None if n is None else _checked(n, "n")


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Use n threads within a block, in this context alone: other threads keep the setting."""
    token = _in_this_context.set(_checked(n, "threads"))
    try:
        yield
    finally:
        _in_this_context.reset(token)


def get_num_threads() -> int:
    """Return the number of threads the compiled code uses.

    Returns
    -------
    int
        What was set by :func:`set_num_threads`, or else its default.
    """
    if (here := _in_this_context.get()) is not None:
        return here
    if _chosen is not None:
        return _chosen
    text = os.environ.get("LINATTN_NUM_THREADS", "").strip()
    if not text:
        return usable_cores()
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"LINATTN_NUM_THREADS: a whole number is needed, got {text!r}") from None
    return _checked(number, "LINATTN_NUM_THREADS")
