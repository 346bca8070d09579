"""The layer: y = sum_i softmax(X Theta_i X') X W_i, applied to sequences of any lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arrays.device import frozen
from ...arrays.floats import as_matrix
from ...arrays.types import Floats
from ...system.machine import same_bits
from ..examples.given import host_tokens
from ..examples.groups import Examples
from .attention import outputs

_WEIGHTS_AT_ONCE = 1 << 20
"""Number of attention weights that are held at a time when a layer is applied: 8 MB."""


class Layer:
    """The heads of a softmax attention layer.

    Parameters
    ----------
    Theta
        Attention, (m, d, d): query b reads token a with weight softmax_a(x_b' Theta_i x_a).
    W
        Values, (m, d, d_out).

    Notes
    -----
    The arrays are copied and read-only. ``len(layer)`` is the number of heads, and iteration yields
    the pairs (Theta_i, W_i).

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> layer = la.softmax.Layer(Theta=np.zeros((1, 2, 2)), W=[np.eye(2)])  # the mean token
    >>> layer(np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    array([[[2., 3.],
            [2., 3.]]])
    """

    def __init__(self, Theta: object, W: object) -> None:
        self.Theta, self.W = as_matrix(Theta, "Theta", 3), as_matrix(W, "W", 3)
        m, d, _ = self.Theta.shape
        if m == 0 or d == 0 or self.Theta.shape[2] != d:
            raise ValueError(f"Theta: shape (m, d, d) is needed, got {self.Theta.shape}")
        if self.W.shape[:2] != (m, d) or self.W.shape[2] == 0:
            raise ValueError(
                f"W: shape ({m}, {d}, d_out) is needed for Theta of shape {self.Theta.shape}, "
                f"got {self.W.shape}"
            )
        frozen(self.Theta)
        frozen(self.W)

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return int(self.Theta.shape[1])

    @property
    def d_out(self) -> int:
        """Number of outputs."""
        return int(self.W.shape[2])

    def __len__(self) -> int:
        """Return the number of heads."""
        return len(self.Theta)

    def __iter__(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the pair (Theta_i, W_i) of each head."""
        return zip(self.Theta, self.W, strict=True)

    def __reduce__(self) -> tuple[type[Layer], tuple[Floats, Floats]]:
        """Pickle by value, so that copies are checked and read-only as well."""
        return Layer, (self.Theta, self.W)

    def __repr__(self) -> str:
        return f"softmax.Layer({len(self)} heads, d={self.d}, d_out={self.d_out})"

    @same_bits
    def __call__(self, X: object, *, offsets: object = None) -> Floats | list[Floats]:
        """Apply the layer.

        Parameters
        ----------
        X, offsets
            Tokens: (N, k, d), a list of (k_i, d), or (sum k_i, d) with offsets.

        Returns
        -------
        array or list
            One row of outputs a token, in the form of X.
        """
        tokens = host_tokens(X, offsets, d=self.d)
        y = np.empty((tokens.n_rows, self.d_out))
        for group in Examples.of(tokens, None).groups:
            for part in group.parts(_WEIGHTS_AT_ONCE // (len(self) * group.x.shape[1])):
                with np.errstate(over="ignore", invalid="ignore"):  # seen in the outputs
                    y[group.rows[part].reshape(-1)] = outputs(group.x[part], self.Theta, self.W)
        if not np.isfinite(y).all():
            raise ValueError("X: the logits or outputs overflow float64; rescale tokens or layer")
        return tokens.restore(y)

    def to_torch(self, dtype: object = None) -> Any:
        """Make a ``torch.nn.Module`` of the layer, with parameters Theta and W.

        Parameters
        ----------
        dtype
            A ``torch.dtype``; float64 by default. Needs PyTorch.

        Returns
        -------
        torch.nn.Module
            Called on tokens (..., k, d).
        """
        from .torch_module import SoftmaxAttention  # noqa: PLC0415  # PyTorch is optional

        return SoftmaxAttention(self.Theta, self.W, dtype)
