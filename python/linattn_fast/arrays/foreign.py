"""Arrays of other libraries in the memory of the host, as numpy arrays of the same memory.

PyTorch's tensors, JAX's arrays, and whatever else exports its memory through DLPack may stand where
numpy's arrays may. None of these libraries is imported here: nobody has one of their arrays who has
not imported them. Arrays on a CUDA device are the business of :mod:`linattn_fast.arrays.device`.

What a tensor knows beyond its numbers stays behind: of one that requires gradients the values are
taken, because a fit is no differentiable operation.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


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


def detached(value: Any) -> Any:
    """A tensor without its history of gradients, of the same memory; others as given."""
    return value if torch_of(value) is None else value.detach()


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
