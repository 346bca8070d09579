"""Arrays of other libraries: read in place, and results in the library of the caller.

PyTorch's tensors, JAX's arrays, and whatever else exports its memory through DLPack may stand where
numpy's arrays may. None of these libraries is imported here: nobody has one of their arrays who has
not imported them. What a tensor knows beyond its numbers stays behind: of one that requires
gradients the values are taken, because a fit is no differentiable operation.

Results are numpy arrays; CuPy arrays where the work was done on a CUDA device. ``like=`` asks for
the library of another array instead, on the device of that array:

    y = fit.predict(Z, like=Z)                               # a tensor for a tensor
    V, Q = la.convert((heads.V, heads.Q), like=Z)            # anything else

The dtype stays what it was, float64, because the answer is exact to that. JAX rounds it to float32
where it has not been told to use 64 bits (``jax.config.update("jax_enable_x64", True)``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .device import as_cupy_array, in_cuda_memory, is_on_device, put, to_host

Conversion: TypeAlias = Callable[[Any], Any]

# -------------------------------------------------------------- arrays of other libraries, as input


def library_of(value: object, name: str, kind: str) -> Any:
    """The library, if it has been imported and this is an instance of its ``kind``; else None."""
    module: Any = sys.modules.get(name)
    known = getattr(module, kind, None)  # not there while another thread is importing it
    return module if isinstance(known, type) and isinstance(value, known) else None


def torch_of(value: object) -> Any:
    """PyTorch, if this is a tensor; else None."""
    return library_of(value, "torch", "Tensor")


def jax_of(value: object) -> Any:
    """JAX, if this is one of its arrays; else None."""
    return library_of(value, "jax", "Array")


def exports_memory(value: object) -> bool:
    """Whether this is an array in memory that DLPack can hand over, whatever its library."""
    return hasattr(type(value), "__dlpack__")


def brought_over(value: Any, name: str) -> Any:
    """Arrays of other libraries, as CuPy or numpy arrays of the same memory; others as given."""
    if isinstance(value, np.ndarray):
        return value
    if is_on_device(value) or in_cuda_memory(value):
        return as_cupy_array(value, name)
    return on_host(value, name)


def on_host(value: Any, name: str) -> Any:
    """An array of another library, in host memory, as a numpy array; anything else as given.

    Of a list or tuple of such arrays, a list of numpy arrays.
    """
    if isinstance(value, list | tuple):
        alike = len(value) > 0 and exports_memory(value[0]) and not isinstance(value[0], np.ndarray)
        return [on_host(item, f"{name}[{i}]") for i, item in enumerate(value)] if alike else value
    if isinstance(value, np.ndarray | np.generic) or not exports_memory(value):
        return value
    if torch_of(value) is not None:
        return _tensor_on_host(value, name)
    try:
        if hasattr(type(value), "__array__"):
            return np.asarray(value)
        return np.from_dlpack(value)
    except Exception as error:  # the object's own conversion may raise anything
        raise unreadable(name, error) from None


def _tensor_on_host(tensor: Any, name: str) -> Any:
    torch = torch_of(tensor)
    if tensor.is_nested:
        raise TypeError(
            f"{name}: nested tensors are not supported; give a list, {name}.unbind(), instead"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{name}: a dense tensor is needed, got {tensor.layout}; convert it with .to_dense()"
        )
    if tensor.dtype is torch.bfloat16:
        raise TypeError(
            f"{name}: numpy has no bfloat16; convert it with {conversion(tensor)}, which is exact"
        )
    try:
        # Views that are conjugate or negative only by a flag are written out.
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except Exception as error:  # on a device that is not CUDA's, or within a transformation
        raise unreadable(name, error) from None


def unreadable(name: str, error: Exception) -> TypeError:
    """What to say of a value whose own conversion to numpy has failed."""
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    return TypeError(f"{name}: cannot be read as an array of numbers ({reason})")


def conversion(value: object) -> str:
    """How the library of this array writes a conversion to a type that can be used."""
    if torch_of(value) is not None:
        return ".float()"
    return ".astype('float32')" if jax_of(value) is not None else ".astype(numpy.float64)"


def axes_of(value: Any) -> int:
    """Number of axes of an array of any library, or of nested lists.

    Raises
    ------
    ValueError
        The lists are of different lengths.
    """
    if hasattr(value, "ndim"):
        return int(value.ndim)
    if hasattr(value, "shape"):
        return len(value.shape)
    return np.asarray(on_host(value, "array")).ndim


def is_one_sequence(value: object) -> bool:
    """Whether it is (n, d), in the place of a batch of sequences."""
    try:
        return axes_of(value) == 2
    except ValueError:  # sequences of different lengths
        return False


# ------------------------------------------------------------- results in the library of the caller


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
