"""Layers as modules of PyTorch; needs the extra ``linattn_fast[torch]``.

    y = sum_h V_h S Q_h z        V_h (d_out, d), Q_h (d, d): with heads
    y = C h(Z)                   C (d_out, p), h(Z)[(j,k), l] = S[j,k] z[l]: with coefficients

On states, S is a memory M (d_v, d_k) and z a query c (d_q,), and a module is called on both.
Everything is differentiable in the parameters and the tokens or states, any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arrays.types import Positions
from ..data.states import StateShape
from ..data.tokens import as_positions
from ..features.features import Features
from ..features.states import StateFeatures

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ImportError(
        f"linattn_fast: PyTorch is needed ({error}); pip install 'linattn_fast[torch]'"
    ) from error


_CHUNK = 16
"""Least number of tokens of a causal sequence that are taken together."""


class _Layer(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """A layer of tokens in R^d: its positions, ragged sequences, and checks.

    Called with tokens (n, d), (N, n, d) or with more axes before, it returns (d_out,), (N, d_out)
    ..., or for "all" and "causal" one row a token. Called with a list of tensors (n_i, d), it
    returns (N, d_out), or a list of (n_i, d_out).
    """

    def __init__(self, positions: Positions, d: int) -> None:
        super().__init__()
        self.positions: Positions = as_positions(positions)
        self.d = d

    def forward(self, Z: Any, positions: Positions | None = None) -> Any:
        """Apply the layer.

        Parameters
        ----------
        Z
            Tokens, a tensor (..., n, d) or a list of (n_i, d).
        positions
            "last", "all" or "causal"; by default those of the module.

        Returns
        -------
        tensor or list
            (..., d_out) for "last"; otherwise one row a token, in the form of Z.
        """
        where = self.positions if positions is None else as_positions(positions)
        if isinstance(Z, list | tuple):
            return self._ragged(Z, where)
        self._require_tokens(Z, "Z")
        if where == "causal":
            return self._causal(Z)
        S = Z.mT @ Z  # (..., d, d)
        return self._all(S, Z) if where == "all" else self._last(S, Z[..., -1, :])

    def _ragged(self, Z: Any, positions: Positions) -> Any:
        """Apply the layer to sequences filled up with zeros, which add nothing to S."""
        if len(Z) == 0:
            raise ValueError("Z: the list is empty; at least one sequence is needed")
        for i, z in enumerate(Z):
            self._require_tokens(z, f"Z[{i}]")
            if z.ndim != 2:
                raise ValueError(f"Z[{i}]: a tensor (n_i, d) is needed, got shape {tuple(z.shape)}")
        if positions == "last":
            # The last token of each sequence queries from the front, where all of them have one.
            Z = [torch.cat([z[-1:], z[:-1]]) for z in Z]
        padded = nn.utils.rnn.pad_sequence(list(Z), batch_first=True)
        if positions == "last":
            return self.forward(padded.flip(1), "last")
        y = self.forward(padded, positions)
        return [rows[: len(z)] for rows, z in zip(y, Z, strict=True)]

    def _require_tokens(self, Z: Any, name: str) -> None:
        """Raise where Z is not a tensor of tokens for this layer."""
        d = self.d
        _require_tensor(Z, name, next(self.parameters()).dtype)
        if Z.ndim < 2 or Z.shape[-1] != d or Z.shape[-2] == 0:
            raise ValueError(
                f"{name}: at least one token of d = {d} coordinates is needed, (..., n, {d}), "
                f"got shape {tuple(Z.shape)}"
            )


class LinearAttention(_Layer):
    """A linear attention layer with parameters V and Q. Made by :meth:`Heads.to_torch`.

    Parameters
    ----------
    V
        Values, a tensor (H, d_out, d).
    Q
        Queries, a tensor (H, d, d).
    positions
        Which tokens query: "last", "all" or "causal", see :class:`linattn_fast.Heads`.
    requires_grad
        Whether V and Q are to be learned.

    Notes
    -----
    Called with tokens (n, d), (N, n, d) or with more axes before, it returns (d_out,), (N, d_out)
    ..., or for "all" and "causal" one row a token. Called with a list of tensors (n_i, d), it
    returns (N, d_out), or a list of (n_i, d_out). Tokens must have the dtype and the device of V
    and Q. ``la.Heads.from_torch(module)`` is the way back.
    """

    def __init__(
        self, V: Any, Q: Any, *, positions: Positions = "last", requires_grad: bool = True
    ) -> None:
        super().__init__(positions, V.shape[-1])
        self.V = nn.Parameter(V, requires_grad=requires_grad)
        self.Q = nn.Parameter(Q, requires_grad=requires_grad)

    def extra_repr(self) -> str:
        """Sizes and positions, for ``print``."""
        H, d_out, d = self.V.shape
        return f"heads={H}, d={d}, d_out={d_out}, positions={self.positions!r}"

    def _last(self, S: Any, z: Any) -> Any:
        """Outputs (..., d_out) of S (..., d, d) and the queries z (..., d)."""
        return _by_heads(self.V, self.Q, S, z)

    def _all(self, S: Any, Z: Any) -> Any:
        """Outputs (..., n, d_out): M = sum_h V_h S Q_h, then y_t = M z_t."""
        SQ = S.unsqueeze(-3) @ self.Q  # (..., H, d, d)
        return Z @ torch.einsum("haj,...hjl->...la", self.V, SQ)

    def _causal(self, Z: Any) -> Any:
        """Outputs y_t = sum_h V_h S_t Q_h z_t, with S_t of the prefix that ends with t.

        Tokens are cut into chunks of d or more. Within a chunk, sum_(s <= t) z_s (z_s . q_t) needs
        one number for each pair of tokens; what lies before it is in one S for each chunk. So no
        intermediate is larger than the queries, (..., H, n, d), once d is 16 or more.
        """
        n, (H, d_out, d) = Z.shape[-2], self.V.shape
        size = min(n, max(d, _CHUNK))
        chunks = nn.functional.pad(Z, (0, 0, 0, -n % size)).unflatten(-2, (-1, size))
        own = chunks.mT @ chunks  # (..., m, d, d)
        before = nn.functional.pad(own[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).cumsum(-3)
        # Heads lie side by side, so that all of them are in one product: rows (t, h).
        queries = (chunks @ self.Q.reshape(H * d, d).mT).unflatten(-1, (H, d)).flatten(-3, -2)
        scores = queries @ chunks.mT  # (..., m, c H, c)
        seen = torch.ones(size, size, dtype=torch.bool, device=Z.device).tril()
        scores = scores.masked_fill(~seen.repeat_interleave(H, dim=0), 0.0)
        context = queries @ before + scores @ chunks  # (..., m, c H, d)
        rows = context.unflatten(-2, (size, H)).flatten(-2).flatten(-3, -2)[..., :n, :]
        return rows @ self.V.mT.reshape(H * d, d_out)


class CubicAttention(_Layer):
    """A linear attention layer with its coefficients as parameters. See :meth:`Fit.to_torch`.

    Parameters
    ----------
    coefficients
        A tensor (d_out, p), p the number of features that take part.
    features
        Which features these are.
    positions
        Which tokens query: "last", "all" or "causal", see :class:`linattn_fast.Heads`.
    requires_grad
        Whether the coefficients are to be learned.

    Notes
    -----
    Called as :class:`LinearAttention` is. "causal" keeps the pairs of S for every token.
    """

    def __init__(
        self,
        coefficients: Any,
        features: Features,
        *,
        positions: Positions = "last",
        requires_grad: bool = True,
    ) -> None:
        super().__init__(positions, features.d)
        self.coefficients = nn.Parameter(coefficients, requires_grad=requires_grad)
        j, k = (torch.tensor(each, device=coefficients.device) for each in features.pairs.T)
        self.register_buffer("j", j)
        self.register_buffer("k", k)
        queries = torch.tensor(features.queries, device=coefficients.device)
        self.register_buffer("queries", queries)

    def extra_repr(self) -> str:
        """Sizes and positions, for ``print``."""
        d_out, p = self.coefficients.shape
        return f"features={p}, d={self.d}, d_out={d_out}, positions={self.positions!r}"

    def _map(self, s: Any) -> Any:
        """M (..., d_out, queries) of the pairs s (..., pairs) of S: y = M z."""
        return _linear_map(self.coefficients, s, len(self.queries))

    def _last(self, S: Any, z: Any) -> Any:
        """Outputs (..., d_out) of S (..., d, d) and the queries z (..., d)."""
        M = self._map(S[..., self.j, self.k])
        return (M @ z[..., self.queries].unsqueeze(-1)).squeeze(-1)

    def _all(self, S: Any, Z: Any) -> Any:
        """Outputs (..., n, d_out)."""
        return Z[..., self.queries] @ self._map(S[..., self.j, self.k]).mT

    def _causal(self, Z: Any) -> Any:
        """Outputs (..., n, d_out), each with the S of the prefix that ends with its token."""
        pairs = (Z[..., self.j] * Z[..., self.k]).cumsum(-2)  # (..., n, pairs)
        return (self._map(pairs) @ Z[..., self.queries].unsqueeze(-1)).squeeze(-1)


class _StateLayer(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """A layer on states of one shape: the checks of what it is called on."""

    def __init__(self, memory: tuple[int, int], query: int) -> None:
        super().__init__()
        self.memory_shape, self.d_q = memory, query

    def forward(self, memory: Any, query: Any) -> Any:
        """Apply the layer.

        Parameters
        ----------
        memory
            A tensor (..., d_v, d_k); where d_k = 1, also (..., d_v).
        query
            A tensor (..., d_q), with as many axes before, of the same lengths or 1.

        Returns
        -------
        tensor
            Outputs (..., d_out).
        """
        dtype, (d_v, d_k) = next(self.parameters()).dtype, self.memory_shape
        for name, value in (("memory", memory), ("query", query)):
            _require_tensor(value, name, dtype)
        if query.ndim < 1 or query.shape[-1] != self.d_q:
            raise ValueError(
                f"query: a tensor (..., {self.d_q}) is needed, got shape {tuple(query.shape)}"
            )
        M = memory.unsqueeze(-1) if d_k == 1 and memory.ndim == query.ndim else memory
        before = zip(M.shape[:-2], query.shape[:-1], strict=False)
        alike = M.ndim == query.ndim + 1 and all(a == b or 1 in (a, b) for a, b in before)
        if not alike or M.shape[-2:] != (d_v, d_k):
            raise ValueError(
                f"memory: a tensor (..., {d_v}, {d_k}) with the axes of the query, (..., "
                f"{self.d_q}), is needed, got shapes {tuple(memory.shape)} and {tuple(query.shape)}"
            )
        return self._outputs(M, query)


class StateAttention(_StateLayer):
    """A layer on states with parameters V and Q. Made by :meth:`Heads.to_torch`.

    Parameters
    ----------
    V
        Values, a tensor (H, d_out, d_v).
    Q
        Queries, a tensor (H, d_k, d_q).
    requires_grad
        Whether V and Q are to be learned.

    Notes
    -----
    ``module(memory, query)`` takes tensors (..., d_v, d_k) and (..., d_q) and returns (..., d_out);
    axes before may be 1 in one of them, so that many queries ask one memory.
    ``la.Heads.from_torch(module)`` is the way back.
    """

    def __init__(self, V: Any, Q: Any, *, requires_grad: bool = True) -> None:
        super().__init__((V.shape[2], Q.shape[1]), Q.shape[2])
        self.V = nn.Parameter(V, requires_grad=requires_grad)
        self.Q = nn.Parameter(Q, requires_grad=requires_grad)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        (H, d_out, d_v), (_, d_k, d_q) = self.V.shape, self.Q.shape
        return f"heads={H}, d_v={d_v}, d_k={d_k}, d_q={d_q}, d_out={d_out}"

    def _outputs(self, M: Any, c: Any) -> Any:
        """Outputs (..., d_out) of the memory M (..., d_v, d_k) and the queries c (..., d_q)."""
        return _by_heads(self.V, self.Q, M, c)


class BilinearAttention(_StateLayer):
    """A layer on states with its coefficients as parameters. See :meth:`Fit.to_torch`.

    Parameters
    ----------
    coefficients
        A tensor (d_out, q d_q), q the number of entries of the memory that count.
    shape
        What the states look like; of a symmetric memory only the entries j <= k are read.
    requires_grad
        Whether the coefficients are to be learned.

    Notes
    -----
    Called as :class:`StateAttention` is.
    """

    def __init__(self, coefficients: Any, shape: StateShape, *, requires_grad: bool = True) -> None:
        super().__init__(shape.matrix, shape.query)
        self.symmetric = shape.symmetric
        self.coefficients = nn.Parameter(coefficients, requires_grad=requires_grad)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        (d_out, p), (d_v, d_k) = self.coefficients.shape, self.memory_shape
        return f"features={p}, d_v={d_v}, d_k={d_k}, d_q={self.d_q}, d_out={d_out}"

    def _outputs(self, M: Any, c: Any) -> Any:
        """Outputs (..., d_out) of the memory M (..., d_v, d_k) and the queries c (..., d_q)."""
        if self.symmetric:
            j, k = torch.triu_indices(*self.memory_shape, device=M.device)
            s = M[..., j, k]
        else:
            s = M.flatten(-2)
        return (_linear_map(self.coefficients, s, self.d_q) @ c.unsqueeze(-1)).squeeze(-1)


def _by_heads(V: Any, Q: Any, M: Any, c: Any) -> Any:
    """Outputs sum_h V_h M Q_h c (..., d_out) of M (..., d_v, d_k) and the queries c (..., d_q)."""
    queries = torch.einsum("hkl,...l->...hk", Q, c)
    return torch.einsum("haj,...hj->...a", V, queries @ M.mT)


def _linear_map(C: Any, s: Any, d_q: int) -> Any:
    """The map of queries (..., d_out, d_q) that C (d_out, q d_q) has at the entries s (..., q)."""
    return torch.einsum("aul,...u->...al", C.unflatten(1, (s.shape[-1], d_q)), s)


def _require_tensor(value: Any, name: str, dtype: Any) -> None:
    """Raise where an argument is not a tensor of the module's dtype."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: a tensor is needed, got {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(
            f"{name}: the dtype of the module is needed, {dtype}, got {value.dtype}; convert it "
            f"with .to({dtype}), or the module"
        )


def layer_of(
    V: Any, Q: Any, positions: Positions, dtype: Any, device: Any, requires_grad: bool
) -> LinearAttention:
    """A module with copies of V and Q, arrays on the host; float64 where no dtype is given."""
    copies = (_copied(each, dtype, device) for each in (V, Q))
    return LinearAttention(*copies, positions=positions, requires_grad=requires_grad)


def state_layer_of(
    V: Any, Q: Any, positions: Positions, dtype: Any, device: Any, requires_grad: bool
) -> StateAttention:
    """A module on states with copies of V and Q, as :func:`layer_of` makes one on tokens."""
    _require_last(positions)
    copies = (_copied(each, dtype, device) for each in (V, Q))
    return StateAttention(*copies, requires_grad=requires_grad)


def coefficient_layer_of(
    coefficients: Any,
    features: Features,
    positions: Positions,
    dtype: Any,
    device: Any,
    requires_grad: bool,
) -> CubicAttention | BilinearAttention:
    """Make a module of a copy of coefficients (d_out, p) on the host."""
    copied = _copied(coefficients, dtype, device)
    if isinstance(features, StateFeatures):
        _require_last(positions)
        return BilinearAttention(copied, features.shape, requires_grad=requires_grad)
    return CubicAttention(copied, features, positions=positions, requires_grad=requires_grad)


def _require_last(positions: Positions) -> None:
    """Raise where a module on states is asked for other positions."""
    if as_positions(positions) != "last":
        raise ValueError(
            f"positions: a state has one query, so 'last' is needed, got {positions!r}"
        )


def _copied(array: Any, dtype: Any, device: Any) -> Any:
    """A tensor with the values of an array."""
    dtype = torch.float64 if dtype is None else dtype
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype: a floating-point type of torch is needed, got {dtype!r}")
    return torch.tensor(array, dtype=dtype, device=device)


def parameters_of(module: Any) -> tuple[dict[str, Any], int | None]:
    """Parameters of a module, or tensors of a mapping, as numpy arrays; and the number of heads.

    The number is the module's ``num_heads``, or a similar name; None where it has none.
    """
    if isinstance(module, nn.Module):
        named = dict(module.named_parameters())
        names = ("num_heads", "n_heads", "n_head", "nhead")
        numbers = [getattr(module, name, None) for name in names]
        number = next((each for each in numbers if type(each) is int), None)
    elif isinstance(module, Mapping):
        named, number = dict(module), None
    else:
        raise TypeError(
            "module: a torch.nn.Module, or a mapping of names to tensors such as its state_dict(), "
            f"is needed, got {type(module).__name__}"
        )
    return {name: _home(each) for name, each in named.items()}, number


def _home(value: Any) -> Any:
    """A tensor of any floating-point type and device as a numpy array; float64 holds them all."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().cpu().double().numpy()
    return value
