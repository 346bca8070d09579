"""The layer as a PyTorch module; needs the extra ``linattn_fast[torch]``."""

from __future__ import annotations

from typing import Any

from ...arrays.types import Floats

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ImportError(
        f"to_torch: PyTorch is needed ({error}); pip install 'linattn_fast[torch]'"
    ) from error


class SoftmaxAttention(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """y = sum_i softmax(x Theta_i x') x W_i on sequences (..., k, d).

    Parameters
    ----------
    Theta, W
        Attention (m, d, d) and values (m, d, d_out), copied into the parameters of these names.
    dtype
        Type of the parameters; float64 by default.
    """

    def __init__(self, Theta: Floats, W: Floats, dtype: Any = None) -> None:
        super().__init__()
        kind = torch.float64 if dtype is None else dtype
        self.Theta = nn.Parameter(torch.tensor(Theta, dtype=kind))
        self.W = nn.Parameter(torch.tensor(W, dtype=kind))

    def forward(self, x: Any) -> Any:
        """Apply the layer to x (..., k, d)."""
        tokens = x.unsqueeze(-3)  # (..., 1, k, d)
        P = torch.softmax(tokens @ self.Theta @ tokens.transpose(-1, -2), dim=-1)
        return (P @ tokens @ self.W).sum(dim=-3)
