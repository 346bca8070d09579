"""Models that gradient descent trains, several of a kind at once.

Small models are bound by the overhead of PyTorch's calls, so models that differ only in their seed,
their learning rate or their number of heads share every call. A *family* says how:

    parameters   of one learning rate, a row for each seed     name -> (S, ..)
    inputs       what it needs of the tokens (S, N, T, d)      tensors (S, N, ..)
    outputs      of parameters (S, L, ..) and inputs (S, B, ..)         (S, L, M, B, R)

S seeds, L learning rates, M models of the family, B sequences of T tokens with R numbers to predict
in each. Every entry along S, L and M is a model of its own: none sees the others, and a family with
S = L = M = 1 is one model alone. Attention is divided by T; where it is causal, as in all but
:class:`ManyHeads` for the last token,

    y_t = (1/T) sum_h V_h S_t Q_h z_t        S_t = sum_(s <= t) z_s z_s'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Parameters: TypeAlias = dict[str, Tensor]


class ModelFamily(Protocol):
    """Models that are trained together."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What its M models are called."""

    def parameters(self, d: int, T: int, generators: Sequence[torch.Generator]) -> Parameters:
        """Random parameters for one learning rate, (S, ..), a generator each seed."""

    def inputs(self, Z: Tensor) -> tuple[Tensor, ...]:
        """What ``outputs`` takes of the tokens (S, N, T, d), computed once; (S, N, ..) each."""

    def outputs(self, parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        """What the models predict, (S, L, M, B, R)."""


def _gaussian(generators: Sequence[torch.Generator], shape: Sequence[int], scale: float) -> Tensor:
    """(S, *shape), one generator a row: a seed gives the same model whoever is beside it."""
    return torch.stack([scale * torch.randn(*shape, generator=one) for one in generators])


def linear_attention(V: Tensor, Q: Tensor, x: Tensor) -> Tensor:
    """One layer, causal: by running sums where d^2 < T, else by scores, whichever is less work.

    Parameters
    ----------
    V, Q
        (.., H, d_out, d), (.., H, d, d).
    x
        Tokens (.., B, T, d).

    Returns
    -------
    Tensor
        (.., B, T, d_out).
    """
    T, d = x.shape[-2:]
    tokens = x.unsqueeze(-4)  # (.., 1, B, T, d): the same for every head
    queries = tokens @ Q.transpose(-1, -2).unsqueeze(-3)  # (.., H, B, T, d)
    to_values = V.transpose(-1, -2).unsqueeze(-3)  # (.., H, 1, d, d_out)
    if d * d < T:
        sums = torch.cumsum(tokens.unsqueeze(-1) * (tokens / T).unsqueeze(-2), -3)  # S_t / T
        return ((sums * queries.unsqueeze(-2)).sum(-1) @ to_values).sum(-4)
    mask = torch.tril(x.new_full((T, T), 1 / T))
    scores = (queries @ tokens.transpose(-1, -2)) * mask  # [t, s] = <z_s, Q z_t> / T
    return (scores @ (tokens @ to_values)).sum(-4)


@dataclass(frozen=True)
class LinearAttention:
    """Layers of linear attention; all but the last add their output to their input."""

    layers: int = 1
    heads: int = 1
    d_out: int = 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of its one model."""
        heads = f"{self.heads} head" + ("s" if self.heads > 1 else "")
        return (heads if self.layers == 1 else f"{self.layers} layers",)

    def parameters(self, d: int, T: int, generators: Sequence[torch.Generator]) -> Parameters:
        """Random V and Q, scaled so that the output of a layer is about as large as its input."""
        found = {}
        for i in range(self.layers):
            d_out = self.d_out if i == self.layers - 1 else d
            scale = 1 / math.sqrt(d * self.heads)
            found[f"V{i}"] = _gaussian(generators, (self.heads, d_out, d), scale)
            found[f"Q{i}"] = _gaussian(generators, (self.heads, d, d), 1 / math.sqrt(d))
        return found

    def inputs(self, Z: Tensor) -> tuple[Tensor, ...]:
        """The tokens as they are."""
        return (Z,)

    def outputs(self, parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        """Outputs of the last layer (S, L, 1, B, R), each layer applied to what is before it."""
        x = inputs[0].unsqueeze(1)  # (S, 1, B, T, d)
        for i in range(self.layers):
            attended = linear_attention(parameters[f"V{i}"], parameters[f"Q{i}"], x)
            x = attended if i == self.layers - 1 else x + attended
        return x.flatten(-2).unsqueeze(2)


@dataclass(frozen=True)
class ManyHeads:
    """Single layers with different numbers of heads, through the sums S_t.

    The sum over heads is taken before the data is touched, which costs the same for any number of
    them and gives what :class:`LinearAttention` gives, gradients included:

        y_t = sum_l z_t[l] <M_l, S_t> / T        M[j, k, l] = sum_h V_h[j] Q_h[k, l]
    """

    heads: tuple[int, ...]
    d_out: int = 1
    causal: bool = True
    """Every token, which sees its prefix; else the last one alone, which sees all of them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each number of heads."""
        return tuple(LinearAttention(1, heads).labels[0] for heads in self.heads)

    def parameters(self, d: int, T: int, generators: Sequence[torch.Generator]) -> Parameters:
        """V (S, all heads, d_out, d) and Q (S, all heads, d, d), each as the model has it alone."""
        alone = [LinearAttention(1, heads, self.d_out) for heads in self.heads]
        each = [one.parameters(d, T, generators) for one in alone]
        return {
            "V": torch.cat([one["V0"] for one in each], 1),
            "Q": torch.cat([one["Q0"] for one in each], 1),
        }

    def inputs(self, Z: Tensor) -> tuple[Tensor, ...]:
        """Queries z (S, N, t, d) and the pairs j <= k of S_t / T, (S, N, t, q); t is T or 1."""
        j, k = torch.triu_indices(Z.shape[-1], Z.shape[-1])
        sums = torch.cumsum(Z[..., j] * Z[..., k], 2) / Z.shape[2]
        return (Z, sums) if self.causal else (Z[:, :, -1:], sums[:, :, -1:])

    def coefficients(self, parameters: Parameters) -> Tensor:
        """C[a, (j,k), l] of every model, M with j and k swapped added: (S, L, M, d_out, q, d)."""
        V, Q = parameters["V"], parameters["Q"]  # (S, L, all heads, d_out, d), (.., d, d)
        products = V[..., None, None] * Q[..., None, None, :, :]  # (.., all heads, a, j, k, l)
        M = torch.stack([part.sum(2) for part in products.split(list(self.heads), 2)], 2)
        j, k = torch.triu_indices(V.shape[-1], V.shape[-1])
        C: Tensor = M[..., j, k, :] + (j != k)[:, None] * M[..., k, j, :]
        return C

    def outputs(self, parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        """One product with the pairs for all models."""
        z, s = inputs
        C = self.coefficients(parameters)
        S, L, M, a, q, d = C.shape
        columns = C.permute(0, 4, 1, 2, 3, 5).reshape(S, q, L * M * a * d)
        mapped = (s.flatten(1, 2) @ columns).reshape(*z.shape[:3], L * M * a, d)
        y = (mapped * z.unsqueeze(3)).sum(-1).reshape(*z.shape[:3], L, M, a)
        return y.permute(0, 3, 4, 1, 2, 5).flatten(-2)  # (S, L, M, B, t a)


@dataclass(frozen=True)
class SoftmaxTransformer:
    """One block: causal softmax attention and a perceptron, each after a layer norm."""

    width: int = 16
    heads: int = 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of its one model."""
        return ("softmax Transformer",)

    def parameters(self, d: int, T: int, generators: Sequence[torch.Generator]) -> Parameters:
        """Embeddings of tokens and positions, attention, perceptron, output."""
        w = self.width
        scale = 1 / math.sqrt(w)
        return {
            "embed": _gaussian(generators, (d, w), 1 / math.sqrt(d)),
            "position": _gaussian(generators, (T, w), 0.1),
            "attend": _gaussian(generators, (w, 3 * w), scale),
            "project": _gaussian(generators, (w, w), scale),
            "expand": _gaussian(generators, (w, 4 * w), scale),
            "contract": _gaussian(generators, (4 * w, w), scale / 2),
            "bias": torch.zeros(len(generators), 1, 4 * w),
            "read": _gaussian(generators, (w, 1), scale),
        }

    def inputs(self, Z: Tensor) -> tuple[Tensor, ...]:
        """The tokens as they are."""
        return (Z,)

    def outputs(self, parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        """One block as usual, with the matrices of every model side by side."""
        z = inputs[0].unsqueeze(1)  # (S, 1, B, T, d)
        p = {name: value.unsqueeze(2) for name, value in parameters.items()}
        x = z @ p["embed"] + p["position"]  # (S, L, B, T, w)
        norm = (self.width,)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3).flatten(0, 2)
            for part in (functional.layer_norm(x, norm) @ p["attend"]).chunk(3, -1)
        )  # (S L B, heads, T, w / heads)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(x.shape) @ p["project"]
        hidden = functional.gelu(functional.layer_norm(x, norm) @ p["expand"] + p["bias"])
        x = x + hidden @ p["contract"]
        return (functional.layer_norm(x, norm) @ p["read"]).squeeze(-1).unsqueeze(2)
