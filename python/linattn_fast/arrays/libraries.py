"""Results in the library of the caller.

Results are numpy arrays; CuPy arrays where the work was done on a CUDA device. ``like=`` asks for
the library of another array instead, on the device of that array:

    y = fit.predict(Z, like=Z)                               # a tensor for a tensor
    V, Q = la.convert((heads.V, heads.Q), like=Z)            # anything else

The dtype stays what it was, float64, because the answer is exact to that. JAX rounds it to float32
where it has not been told to use 64 bits (``jax.config.update("jax_enable_x64", True)``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .device import is_on_device, put, to_host
from .foreign import jax_of, torch_of

Conversion: TypeAlias = Callable[[Any], Any]


def conversion_to(like: object) -> Conversion:
    """How arrays, and lists of them, become those of the library of ``like``; None keeps them.

    Raises
    ------
    TypeError
        ``like`` is no array of a library that is known.
    """
    if like is None:
        return _as_it_is
    while isinstance(like, list | tuple) and len(like):  # sequences of several lengths
        like = like[0]
    if isinstance(like, np.ndarray | np.generic):
        one: Conversion = to_host
    elif is_on_device(like):
        one = partial(put, like=like)
    elif torch_of(like) is not None:
        one = partial(_as_tensor, like=like)
    elif jax_of(like) is not None:
        one = partial(_as_jax_array, like=like)
    elif hasattr(type(like), "__array_namespace__"):  # the Python array API standard
        one = partial(_as_standard_array, like=like)
    else:
        raise TypeError(
            "like: an array of numpy, CuPy, PyTorch, JAX or another library of the array API "
            f"standard is needed, or a list of them, got {type(like).__name__}"
        )
    return partial(_each, one)


def _as_it_is(value: Any) -> Any:
    return value


def _each(convert_one: Conversion, value: Any) -> Any:
    """Convert the arrays in a list, a tuple or a mapping; a lone one, too."""
    if isinstance(value, list | tuple):
        items = [_each(convert_one, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {name: _each(convert_one, item) for name, item in value.items()}
    return convert_one(value)


def _as_tensor(array: Any, like: Any) -> Any:
    torch = torch_of(like)
    if is_on_device(array) and like.is_cuda:
        return torch.from_dlpack(array).to(like.device)
    home = to_host(array)
    # A tensor can be written to, whatever its memory says.
    home = np.ascontiguousarray(home) if home.flags.writeable else home.copy()
    return torch.from_numpy(home).to(like.device)


def _as_jax_array(array: Any, like: Any) -> Any:
    jax = jax_of(like)
    copy = jax.numpy.array(to_host(array))  # JAX takes its arrays for constant: none share memory
    devices = like.devices()
    return jax.device_put(copy, next(iter(devices))) if len(devices) == 1 else copy


def _as_standard_array(array: Any, like: Any) -> Any:
    return like.__array_namespace__().asarray(to_host(array))


def convert(value: Any, like: object) -> Any:
    """Bring results into the library of another array, and onto its device.

    Parameters
    ----------
    value
        A numpy or CuPy array, or a list, tuple or mapping of them.
    like
        An array of the wanted library: numpy, CuPy, PyTorch, JAX, or another one that follows the
        Python array API standard; or a list of such arrays.

    Returns
    -------
    array, list, tuple or dict
        The same numbers, of the same dtype, without a copy where the two libraries can share memory
        that may be written to. JAX rounds float64 to float32 unless ``jax_enable_x64`` is set.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> heads = la.Heads(V=[[[1.0, 0.0]]], Q=[np.eye(2)])
    >>> V, Q = la.convert((heads.V, heads.Q), like=np.zeros(1))  # like=Z for those of Z's library
    >>> V.shape, Q.shape
    ((1, 1, 2), (1, 2, 2))
    """
    if like is None:
        raise TypeError("like: an array is needed, got None")
    conversion = conversion_to(like)

    def checked(array: Any) -> Any:
        if not (isinstance(array, np.ndarray | np.generic) or is_on_device(array)):
            raise TypeError(
                "value: a numpy or CuPy array, or a list, tuple or mapping of them is needed, "
                f"got {type(array).__name__}"
            )
        return conversion(np.asarray(array) if isinstance(array, np.generic) else array)

    return _each(checked, value)
