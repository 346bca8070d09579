"""Parameters of other attention layers as heads, and back.

Attention without the softmax, with query W_Q z, keys W_K z_t and values W_V z_t of a head, is

    y = sum_h W_O W_V (sum_t z_t z_t') W_K' W_Q z        V_h = W_O W_V,   Q_h = W_K' W_Q

so any of these parameters determine heads. A layer without W_O has W_O = 1: its output is what the
heads give, one below the other, so that V_h has the rows of W_V of head h in its own place, and
zeros elsewhere. :class:`Layout` says how parameters are kept: which heads lie side by side in one
matrix, whether tokens are columns (W x, as in ``torch.nn.Linear``) or rows (x W), and what the sum
is multiplied with.

Queries, keys and values may be of different things, as in cross-attention: with M = sum_t a_t b_t'

    y = sum_h W_O W_V M W_K' W_Q c        W_V (., d_v), W_K (., d_k), W_Q (., d_q)

are heads of a layer on states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ..arrays.floats import as_array
from ..arrays.types import Array, Floats
from ..system.arguments import as_size
from ..system.machine import same_bits

Form: TypeAlias = Literal["fused", "separate", "in_proj"]

NAMES: dict[str, tuple[str, ...]] = {
    "V": ("V", "P", "W_PV"),
    "Q": ("Q", "W_KQ"),
    "W_Q": ("W_Q", "w_q", "Wq", "W_q", "q_proj", "query", "to_q", "q_proj_weight"),
    "W_K": ("W_K", "w_k", "Wk", "W_k", "k_proj", "key", "to_k", "k_proj_weight"),
    "W_V": ("W_V", "w_v", "Wv", "W_v", "v_proj", "value", "to_v", "v_proj_weight"),
    "W_O": ("W_O", "w_o", "Wo", "W_o", "o_proj", "out_proj", "to_out"),
    "in_proj": ("in_proj", "in_proj_weight", "qkv", "qkv_proj", "W_QKV"),
}
"""Names that each parameter has in other libraries; ``.weight`` may follow."""

_COMPLETE = (
    ["Q", "V"],
    ["Q", "W_O", "W_V"],
    ["Q", "W_V"],
    ["V", "W_K", "W_Q"],
    ["W_K", "W_O", "W_Q", "W_V"],
    ["W_K", "W_Q", "W_V"],
    ["W_O", "in_proj"],
    ["in_proj"],
)
_NEEDED = (
    "'V' (or 'W_V' and, unless it is 1, 'W_O') and 'Q' (or 'W_Q' and 'W_K'), or 'in_proj' and, "
    "unless it is 1, 'W_O',"
)


@dataclass(frozen=True)
class Layout:
    """How the parameters of an attention layer are kept.

    Parameters
    ----------
    vectors
        "columns": a matrix stands before its vector, W x, and is (outputs, inputs), as the weight
        of ``torch.nn.Linear`` is. "rows": the vector stands before it, x W.
    num_heads
        Heads that lie side by side in matrices of two axes: along the outputs of W_Q, W_K and W_V,
        along the inputs of W_O. None where the heads have an axis of their own, the first.
    layer
        Which layer to take, where all arrays have a first axis for layers. None where they have
        none. Heads are one layer; a stack of several is a list of heads, one for each.
    over_heads
        "sum", or "mean": the sum over heads is divided by their number. Several heads without W_O
        are not summed, so a mean of them is an error.
    scale
        What the sum over tokens is multiplied with: a number; "1/sqrt(d)", of the coordinates of a
        token; "1/sqrt(d_k)", of those of a head's query; or "1/n".
    n
        For the scale "1/n": the number to divide by. Heads have no scale that depends on the length
        of a sequence, so they agree with the layer on sequences of one length, and with "causal"
        positions nowhere but at one.
    names
        What the parameters are called, where they have other names than those that are known:
        "V", "Q", "W_Q", "W_K", "W_V", "W_O" or "in_proj" to the name. Parameters that are not
        named here are then left aside.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> W = {name: np.eye(4) for name in ("W_Q", "W_K", "W_V", "W_O")}
    >>> la.Heads.from_weights(W, la.Layout(num_heads=2, scale="1/sqrt(d_k)"))
    Heads(2 heads, d=4, d_out=4)
    """

    vectors: Literal["columns", "rows"] = "columns"
    num_heads: int | None = None
    layer: int | None = None
    over_heads: Literal["sum", "mean"] = "sum"
    scale: float | str = 1.0
    n: int | None = None
    names: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Check everything that can be checked without parameters."""
        _one_of(self.vectors, ("columns", "rows"), "vectors")
        _one_of(self.over_heads, ("sum", "mean"), "over_heads")
        if self.num_heads is not None:
            as_size(self.num_heads, "num_heads")
        if self.layer is not None:
            as_size(self.layer, "layer", least=0)
        if isinstance(self.scale, str):
            _one_of(self.scale, ("1/sqrt(d)", "1/sqrt(d_k)", "1/n"), "scale")
        elif not (isinstance(self.scale, int | float | np.number) and 0 < abs(self.scale) < np.inf):
            raise ValueError(
                f"scale: a finite number that is not zero is needed, or '1/sqrt(d)', "
                f"'1/sqrt(d_k)' or '1/n', got {self.scale!r}"
            )
        if (self.scale == "1/n") != (self.n is not None):
            raise ValueError(
                "n: the scale '1/n' needs the number to divide by, and no other scale takes it; "
                f"got scale={self.scale!r}, n={self.n!r}"
            )
        if self.n is not None:
            as_size(self.n, "n")
        for name in self.names or ():
            _one_of(name, tuple(NAMES), "names")

    @same_bits
    def factor(self, H: int, d: int | None, d_k: int | None) -> float:
        """The number that V has to be multiplied by, for H heads; d is None for no tokens."""
        if isinstance(self.scale, str):
            if self.scale == "1/sqrt(d)" and d is None:
                raise ValueError(
                    "scale: '1/sqrt(d)' is of the coordinates of a token, and here queries, keys "
                    "and values have different numbers of them; give the number"
                )
            if self.scale == "1/sqrt(d_k)" and d_k is None:
                raise ValueError(
                    "scale: '1/sqrt(d_k)' needs W_Q and W_K; of their product alone d_k is not "
                    "known, so give the number"
                )
            of = {"1/n": self.n, "1/sqrt(d)": (d or 1) ** 0.5, "1/sqrt(d_k)": (d_k or 1) ** 0.5}
            scale = 1 / float(of[self.scale] or 1)
        else:
            scale = float(self.scale)
        return scale / H if self.over_heads == "mean" else scale


def _one_of(value: object, known: tuple[str, ...], name: str) -> None:
    """Raise where a value is not one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


PLAIN = Layout()
"""Tokens as columns, an axis for heads, their sum, and no scale."""


def recognised(parameters: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Parameters by our names, from a mapping with the names of other libraries."""
    if not isinstance(layout, Layout):
        raise TypeError(f"layout: a Layout is needed, got {type(layout).__name__}")
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"weights: a mapping of names to arrays is needed, got {type(parameters).__name__}"
        )
    if layout.names is not None:
        for ours, theirs in layout.names.items():
            if theirs not in parameters:
                raise ValueError(
                    f"names: {ours!r} is called {theirs!r}, and there is no such parameter, "
                    f"only {_listed(parameters)}"
                )
        return {ours: parameters[theirs] for ours, theirs in layout.names.items()}
    found: dict[str, Any] = {}
    for theirs, value in parameters.items():
        if value is None:
            continue
        bare = theirs.removesuffix(".weight")
        meant = next((ours for ours, known in NAMES.items() if bare in known), None)
        if meant is None and "bias" in theirs:
            raise ValueError(
                f"weights: the parameter {theirs!r} is a bias, and linear attention has none; "
                "make the layer with bias=False"
            )
        if meant is None:
            raise ValueError(
                f"weights: the parameter {theirs!r} is not known; give the attention layer alone, "
                f"or say by Layout(names=...) which of {_listed(parameters)} is what"
            )
        if meant in found:
            raise ValueError(
                f"weights: {meant!r} was found more than once among {_listed(parameters)}; say "
                "which is meant by Layout(names=...)"
            )
        found[meant] = value
    return found


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in parameters) or "none at all"


def _matrices(value: object, name: str, layout: Layout) -> Floats:
    """One layer's parameter with tokens as columns, (outputs, inputs) or (H, outputs, inputs)."""
    array: Array = as_array(value, name)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: real numbers are needed, got dtype {array.dtype}")
    if layout.layer is not None:
        if array.ndim < 3 or layout.layer >= len(array):
            raise ValueError(
                f"layer: number {layout.layer} was asked for, and {name} has shape {array.shape}; "
                "its first axis must count the layers, from 0"
            )
        array = array[layout.layer]
    if array.ndim not in (2, 3) or array.size == 0:
        hint = "; Layout(layer=...) takes one layer" if array.ndim == 4 else ""
        raise ValueError(f"{name}: 2 or 3 axes are needed, got shape {array.shape}{hint}")
    array = array.astype(np.float64)
    return array.swapaxes(-1, -2) if layout.vectors == "rows" else array


def _per_head(array: Floats, name: str, num_heads: int | None) -> Floats:
    """One matrix a head, (H, outputs, inputs)."""
    if array.ndim == 3:
        if num_heads not in (None, len(array)):
            raise ValueError(
                f"num_heads: {name} has {len(array)} heads along its first axis, not {num_heads}"
            )
        return array
    if name in ("V", "Q"):
        if num_heads not in (None, 1):
            raise ValueError(
                f"{name}: {num_heads} heads need an axis of their own, ({num_heads}, ., .), "
                f"got shape {array.shape}"
            )
        return array[None]
    if num_heads is None:
        raise ValueError(
            f"num_heads: {name} has two axes, shape {array.shape}, so the number of heads that lie "
            "side by side in it is needed: Layout(num_heads=...)"
        )
    side = array.shape[1 if name == "W_O" else 0]
    if side % num_heads:
        raise ValueError(
            f"num_heads: {num_heads} heads cannot lie side by side in {name}, whose matrix has "
            f"{side} {'columns' if name == 'W_O' else 'rows'} where tokens are columns"
        )
    if name == "W_O":  # (d_out, H d_v)
        return array.reshape(len(array), num_heads, -1).swapaxes(0, 1)
    return array.reshape(num_heads, -1, array.shape[1])


def _thirds(array: Floats) -> dict[str, Floats]:
    """W_Q, W_K and W_V of a matrix in which they lie on top of each other."""
    if array.ndim != 2 or len(array) % 3:
        raise ValueError(
            "in_proj: W_Q, W_K and W_V on top of each other are needed, each for all heads, "
            f"a matrix with three times as many outputs; got shape {array.shape}"
        )
    return dict(zip(("W_Q", "W_K", "W_V"), np.split(array, 3), strict=True))


def _times(left: Floats, right: Floats, names: tuple[str, str]) -> Floats:
    """The product of two matrices for every head."""
    if len(left) != len(right) or left.shape[2] != right.shape[1]:
        raise ValueError(
            f"{names[0]}, {names[1]}: as many heads are needed in both, with as many coordinates; "
            f"got {len(left)} heads with {left.shape[2]} and {len(right)} with {right.shape[1]}"
        )
    return left @ right


def _places(H: int, d_v: int, layout: Layout) -> Floats:
    """W_O = 1 of every head, (H, H d_v, d_v): head h has the outputs from h d_v on for itself."""
    if H > 1 and layout.over_heads == "mean":
        raise ValueError(
            f"over_heads: 'mean' needs W_O; without it the outputs of {H} heads lie side by side, "
            "and nothing is summed over them"
        )
    return np.eye(H * d_v).reshape(H * d_v, H, d_v).swapaxes(0, 1)


def matrices_of(weights: Mapping[str, Any], layout: Layout) -> tuple[Floats, Floats]:
    """The matrices V (H, d_out, d_v) and Q (H, d_k, d_q) of heads, from parameters by our names.

    Those of layers on tokens have d_v = d_k = d_q.
    """
    if sorted(weights) not in _COMPLETE:
        raise ValueError(f"weights: {_NEEDED} are needed; got {_listed(weights)}")
    arrays = {name: _matrices(value, name, layout) for name, value in weights.items()}
    if "in_proj" in arrays:
        arrays |= _thirds(arrays.pop("in_proj"))
    W = {name: _per_head(array, name, layout.num_heads) for name, array in arrays.items()}
    d_k = W["W_Q"].shape[1] if "W_Q" in W else None
    Q = W["Q"] if "Q" in W else _times(W["W_K"].swapaxes(1, 2), W["W_Q"], ("W_K", "W_Q"))
    if "W_V" in W and "W_O" not in W:
        W["W_O"] = _places(len(W["W_V"]), W["W_V"].shape[1], layout)
    V = W["V"] if "V" in W else _times(W["W_O"], W["W_V"], ("W_O", "W_V"))
    if len(Q) != len(V):
        raise ValueError(
            f"weights: the values are of {len(V)} heads, and the queries of {len(Q)}; as many are "
            "needed"
        )
    return V * layout.factor(len(V), _token_size(V, Q), d_k), Q


def _token_size(V: Floats, Q: Floats) -> int | None:
    """Number of coordinates of a token, d; None where d_v, d_k and d_q are not the same."""
    sizes = {V.shape[2], *Q.shape[1:]}
    return int(sizes.pop()) if len(sizes) == 1 else None


def weights_of(V: Floats, Q: Floats, layout: Layout, form: Form) -> dict[str, Floats]:
    """Parameters of heads V (H, d_out, d_v), Q (H, d_k, d_q): the inverse of :func:`matrices_of`.

    Every Q_h is a product with W_K = 1; V_h is one with W_O = 1, or W_V = 1 where all of W_Q, W_K
    and W_V must have d outputs.
    """
    _one_of(form, ("fused", "separate", "in_proj"), "form")
    (H, d_out, d_v), (_, d_k, d_q), d = V.shape, Q.shape, _token_size(V, Q)
    if layout.layer is not None:
        raise ValueError("layer: heads are one layer; put several together with numpy.stack")
    if layout.num_heads not in (None, H):
        raise ValueError(f"num_heads: these are {H} heads, not {layout.num_heads}")
    if form == "in_proj" and layout.num_heads is None:
        raise ValueError(f"num_heads: {H} is needed, because in_proj has heads side by side")
    if form == "in_proj" and d is None:
        raise ValueError(
            "form: 'in_proj' is one matrix for queries, keys and values of one size, and here "
            f"d_q = {d_q}, d_k = {d_k} and d_v = {d_v}; take 'separate'"
        )
    scaled = V / layout.factor(H, d, None if form == "fused" else d_k)
    if form == "fused":
        return _renamed({"V": scaled, "Q": Q}, layout)
    W = {"W_Q": Q, "W_K": _ones(H, d_k), "W_V": scaled, "W_O": _ones(H, d_out)}
    if form == "in_proj":
        W |= {"W_V": _ones(H, d_v), "W_O": scaled}
    if layout.num_heads is not None:  # side by side
        W_O = W.pop("W_O").swapaxes(0, 1).reshape(d_out, -1)
        W = {name: each.reshape(-1, each.shape[2]) for name, each in W.items()}
        if form == "in_proj":
            W = {"in_proj": np.concatenate([W["W_Q"], W["W_K"], W["W_V"]])}
        W["W_O"] = W_O
    return _renamed(W, layout)


def _ones(H: int, size: int) -> Floats:
    """A matrix 1 for every head."""
    return np.tile(np.eye(size), (H, 1, 1))


def _renamed(weights: dict[str, Floats], layout: Layout) -> dict[str, Floats]:
    """Copies of the weights, with the orientation and the names of the layout."""
    rows, names = layout.vectors == "rows", layout.names or {}
    return {
        names.get(name, name): np.array(each.swapaxes(-1, -2) if rows else each, order="C")
        for name, each in weights.items()
    }
