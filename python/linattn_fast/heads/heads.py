"""Heads: a layer to apply, to compare, and to bring into normal form.

    y = sum_h V_h S Q_h z        V_h (d_out, d), Q_h (d, d)

Expanded in the features S[j,k] z[l], j <= k, the heads have the coefficients

    C[a,(j,k),l] = sum_h V_h[a,j] Q_h[k,l] + V_h[a,k] Q_h[j,l]    for j < k
    C[a,(j,j),l] = sum_h V_h[a,j] Q_h[j,l]                        the diagonal counts once

Layers on states, y = sum_h V_h M Q_h c, may have a memory M (d_v, d_k) and queries c (d_q,) of
other sizes, V_h (d_out, d_v) and Q_h (d_k, d_q).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..arrays.device import device_of, frozen, module_of, on_own_device, put, to_host
from ..arrays.floats import as_matrix
from ..arrays.libraries import conversion_to
from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..data.attending import Attending, attended
from ..data.mapping.token_map import Map, StreamMaps, TokenMap, as_map
from ..data.states import States, StateShape, require_last
from ..data.streams import Streams
from ..data.tokens import Tokens, as_positions, as_tokens
from ..features.cubic import head_coefficients
from ..features.features import Features
from ..features.states import StateFeatures, state_coefficients
from ..linalg.factors import EPS
from ..maps.feature_map import FeatureMap
from ..maps.stored import told
from ..system.machine import same_bits
from .generation import generated
from .layouts import PLAIN, Form, Layout, matrices_of, recognised, weights_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Recovery:
    """How heads were found: ``heads.recovery`` of recovered or fitted heads."""

    method: str
    """"minimal": the fewest that were found. "svd": those of the SVD, asked for, or fallen back on
    where no fewer were found or looked for; ``reason`` says which. "fit": the best fit with a given
    number of heads."""
    residual: float
    """||C(heads) - C|| / ||C||, C the coefficients they stand for (for "fit", the convex optimum).
    """
    at_least: int
    """Ranks show that no fewer heads come within the ``tolerance`` of C."""
    tried: tuple[tuple[int, float], ...]
    """Other numbers of heads that were tried, and the relative residual each of them left."""
    fewer_leave: float
    """One head fewer leaves at least this relative residual, as ranks show; 0 if they do not."""
    reason: str
    """Why this number; a fallback is explained here."""
    loss: float | None = None
    """For "fit": the training objective, (1/W) sum w ||C h - y||^2 + alpha ||C||^2."""
    convex_loss: float | None = None
    """For "fit": the objective of the convex optimum, which no number of heads goes below. Without
    a Gram: ``loss - gap``, the smallest objective that was seen."""
    tolerance: float | None = None
    """Relative residual up to which C counts as reproduced: what was asked for, but not below
    rounding. None in files of older releases."""
    gap: float | None = None
    """For "fit": what is lost against the convex optimum, ``loss - convex_loss``, up to rounding; 0
    proves that no number of heads does better. Without a Gram it is what conjugate gradients found
    to gain: the true gap is no smaller, and estimated to be this one. None in files of older
    releases."""
    gap_at_most: float | None = None
    """For "fit": a bound on the gap, proved up to rounding: with a Gram the gap itself; without one
    the objective, or the squared gradient over 4 alpha, whichever is smaller. None in files of
    older releases."""

    def __str__(self) -> str:
        text = f"{self.method}, residual {self.residual:.1e}: {self.reason}"
        if self.loss is not None and self.convex_loss is not None:
            text += f"; training objective {self.loss:.4g}, convex optimum {self.convex_loss:.4g}"
        if self.gap is not None and self.gap_at_most is not None:
            text += f", gap {self.gap:.2g}"
            if self.gap_at_most > 1.01 * self.gap:
                text += f" found, {self.gap_at_most:.2g} at most"
        return text


class Heads:
    """The heads of a linear attention layer.

    Parameters
    ----------
    V
        Values, (H, d_out, d); (H, d_out, d_v) for layers on states.
    Q
        Queries, (H, d, d); (H, d_k, d_q) for layers on states.
    recovery
        How they were found; None for heads made by hand.
    map
        What tokens are mapped by before the layer sees them, see :mod:`linattn_fast.maps`; None for
        nothing. V and Q are for mapped tokens, and d is the number of their coordinates.

    Notes
    -----
    ``heads[h]`` is the pair (V_h, Q_h), ``heads[a:b]`` another :class:`Heads`, and iteration yields
    the pairs. The arrays are copied and read-only. Copies of CuPy arrays are on the device of V,
    and so are results; ``get()`` brings the heads to the host.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> heads = la.Heads(V=[[[1.0, 0.0]]], Q=[np.eye(2)])  # y = (S z)[0]
    >>> heads([[[1.0, 2.0], [3.0, 1.0]]])
    array([[35.]])
    """

    def __init__(
        self,
        V: object,
        Q: object,
        recovery: Recovery | None = None,
        *,
        map: Map | None = None,
    ) -> None:
        self.V = as_matrix(V, "V", 3)
        self.Q = put(as_matrix(Q, "Q", 3), like=self.V)
        H, d_out, d = self.V.shape
        if len(self.Q) != H:
            raise ValueError(
                f"Q: shape ({H}, {d}, {d}) is needed for V of shape {self.V.shape}, or ({H}, d_k, "
                f"d_q) for states, got {self.Q.shape}"
            )
        if d == 0 or d_out == 0:
            raise ValueError(f"V: d_out and d must be at least 1, got shape {self.V.shape}")
        if 0 in self.Q.shape[1:]:
            raise ValueError(f"Q: d_k and d_q must be at least 1, got shape {self.Q.shape}")
        if recovery is not None and not isinstance(recovery, Recovery):
            raise TypeError(f"recovery: a Recovery is needed, got {type(recovery).__name__}")
        frozen(self.V)
        frozen(self.Q)
        self._recovery, self._map = recovery, as_map(map)
        self._maps: StreamMaps | None = None
        self._constants: tuple[int, int, int] | None = None

    @property
    def map(self) -> Map | None:
        """What tokens are mapped by before the layer sees them; None for nothing."""
        return self._map

    @property
    def constant_coordinate(self) -> int | tuple[int, int, int] | None:
        """The coordinate of mapped tokens that is always 1, which makes biases; None without one.

        V_h[:, j] and Q_h[j, :] of that coordinate j are what the layer has beside its linear part.
        For layers on streams there are three: of values, keys and queries.
        """
        if self._constants is not None:
            return self._constants
        return self._map.constant(self.d) if isinstance(self._map, FeatureMap) else None

    def for_features(self, features: Features) -> Heads:
        """Heads with these V and Q that map tokens as features do; they share their arrays."""
        if isinstance(features, StateFeatures):
            return self._with(None, features.maps, features.constants)
        return self._with(None if features.map is None else features.map.map)

    def _with(
        self,
        map: Map | None,
        maps: StreamMaps | None = None,
        constants: tuple[int, int, int] | None = None,
    ) -> Heads:
        heads = Heads.__new__(Heads)
        vars(heads).update(vars(self), _map=map, _maps=maps, _constants=constants)
        return heads

    def _like(self, other: Heads) -> Heads:
        """These heads, with the maps of others."""
        return self._with(other._map, other._maps, other._constants)

    @property
    def device(self) -> int | None:
        """The CUDA device that V and Q are on; None for the host."""
        return device_of(self.V)

    def get(self) -> Heads:
        """Bring the heads to the host.

        Returns
        -------
        Heads
            The same heads on the host; these if they are there already.
        """
        return self if self.device is None else self.put(np.zeros(0))

    def put(self, like: object) -> Heads:
        """Put the heads where another object is; no copy if they are there already."""
        if device_of(like) == self.device:
            return self
        return Heads(put(self.V, like), put(self.Q, like), self.recovery)._like(self)

    @property
    def recovery(self) -> Recovery | None:
        """How they were found; None for heads made by hand, and for a slice of heads."""
        return self._recovery

    @property
    def d(self) -> int:
        """Number of coordinates of a token; for layers on states, d_v."""
        return int(self.V.shape[2])

    @property
    def d_v(self) -> int:
        """Number of rows of the memory that V_h takes; d for tokens."""
        return int(self.V.shape[2])

    @property
    def d_k(self) -> int:
        """Number of columns of the memory, which Q_h asks for; d for tokens."""
        return int(self.Q.shape[1])

    @property
    def d_q(self) -> int:
        """Number of coordinates of a query; d for tokens."""
        return int(self.Q.shape[2])

    @property
    def takes_tokens(self) -> bool:
        """Whether these may be the heads of a layer on tokens: d_v = d_k = d_q."""
        return self.d_v == self.d_k == self.d_q

    def require_tokens(self, name: str) -> None:
        """Raise where something is asked for that only layers on tokens have."""
        if not self.takes_tokens:
            raise ValueError(
                f"{name}: it is for layers on tokens, whose heads are square, and these are for "
                f"{self._on_states}"
            )

    @property
    def _on_states(self) -> str:
        return f"States of memory {self.d_v} x {self.d_k} and query {self.d_q}"

    @property
    def d_out(self) -> int:
        """Number of outputs."""
        return int(self.V.shape[1])

    def __len__(self) -> int:
        """Return the number of heads."""
        return len(self.V)

    @overload
    def __getitem__(self, index: int) -> tuple[Floats, Floats]: ...
    @overload
    def __getitem__(self, index: slice) -> Heads: ...
    def __getitem__(self, index: int | slice) -> tuple[Floats, Floats] | Heads:
        if isinstance(index, slice):
            return Heads(self.V[index], self.Q[index])._like(self)
        return self.V[index], self.Q[index]

    def __iter__(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield (V_h, Q_h)."""
        return zip(self.V, self.Q, strict=True)

    def __reduce__(self) -> tuple[Callable[..., Heads], tuple[object, ...]]:
        """Pickle by value, so that copies are checked and read-only too."""
        maps = self._map, self._maps, self._constants
        return _heads_with, (self.V, self.Q, self.recovery, maps)

    def __repr__(self) -> str:
        return f"Heads({len(self)} heads, {self._sizes})"

    @property
    def _sizes(self) -> str:
        """What heads must share to be compared, in words."""
        if self.takes_tokens:
            mapped = "" if self.map is None else f", map={told(self.map)}"
            if self.constant_coordinate is not None:
                mapped += f", coordinate {self.constant_coordinate} constant"
            return f"d={self.d}, d_out={self.d_out}{mapped}"
        sizes = f"d_v={self.d_v}, d_k={self.d_k}, d_q={self.d_q}"
        if self._constants is not None:
            sizes += f", coordinates {self._constants} constant"
        return f"{sizes}, d_out={self.d_out}"

    @same_bits
    def __call__(
        self,
        Z: object,
        positions: Positions = "last",
        *,
        offsets: object = None,
        backend: str = "auto",
        like: object = None,
        **attending: Unpack[Attending],
    ) -> Floats | list[Floats]:
        """Apply the layer.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; or
            :class:`linattn_fast.States`, where a memory (N, q) counts as columns, d_v = q and
            d_k = 1; or :class:`linattn_fast.Streams`.
        positions
            "last": the last token queries the whole sequence. "all": every token does.
            "causal": every token queries the prefix that ends with it.
        backend
            "auto", "cpu", "numpy" or "cuda"; "auto" is "cuda" where Z or the heads are on a device.
        like
            An array whose library the result is wanted in, see :func:`linattn_fast.convert`; None
            is numpy, or CuPy for work on a device.
        **attending
            ``mask``, ``lengths``, ``scale``, ``decay`` and ``attend_self`` of tokens, as for
            :func:`linattn_fast.fit`.

        Returns
        -------
        array or list
            (N, d_out) for "last"; otherwise one row a token, in the form of Z. 0 for masked tokens.
        """
        positions = as_positions(positions)
        Z, offsets = attended(Z, offsets, positions, **attending)
        tokens = self._batch(Z, offsets, positions)
        converted = conversion_to(like)
        where, engine = tokens.asked(positions), get_backend(backend, tokens, self)
        parts = [engine.heads(self.V, self.Q, part, where) for part in self._mapped(tokens)]
        y = parts[0] if len(parts) == 1 else module_of(parts[0]).concatenate(parts)
        answer: Floats | list[Floats] = converted(tokens.per_query(y, where))
        return answer

    def _batch(self, Z: object, offsets: object, positions: Positions) -> Tokens:
        """Check a batch that the layer is to be applied to."""
        if isinstance(Z, Streams):
            return self._of_streams(Z, positions)
        if not isinstance(Z, States):
            self.require_tokens("Z")
            return as_tokens(Z, offsets, d=self.d if self.map is None else None)
        if Z.kind.matrix != (self.d_v, self.d_k) or Z.kind.query != self.d_q:
            raise ValueError(f"Z: {self._on_states} are needed, got ({Z.kind})")
        if offsets is not None:
            raise ValueError("offsets: states have none; they are for rows of tokens")
        require_last(Z, positions)
        return Z

    def _of_streams(self, streams: Streams, positions: Positions) -> Tokens:
        """Check streams that the layer is to be applied to; what is large is mapped later."""
        shape = StateShape((self.d_v, self.d_k), self.d_q)
        features = StateFeatures(shape._replace(symmetric=streams.symmetric))
        features.maps = self._maps
        try:
            return features.batch(streams, None, positions)
        except ValueError as error:
            if str(error).startswith("Z: States or Streams"):
                raise ValueError(f"Z: {self._on_states} are needed, got {streams!r}") from None
            raise

    def _mapped(self, tokens: Tokens) -> Iterator[Tokens]:
        """The tokens that the layer sees: mapped, a part of them at a time."""
        if isinstance(tokens, States):
            return StateFeatures(tokens.kind).parts(tokens)
        if self.map is None:
            return iter([tokens])
        token_map = TokenMap.tried(self.map, tokens)
        if token_map.width != self.d:
            raise ValueError(
                f"Z: mapped tokens must have d = {self.d} coordinates; {told(self.map)} makes "
                f"{token_map.width} of the {tokens.d} that these have"
            )
        return token_map.parts(tokens)

    @on_own_device
    @same_bits
    def coefficients(self, symmetric: bool | None = None) -> Floats:
        """Expand the heads in the cubic features, or in those of states.

        Parameters
        ----------
        symmetric
            Whether the memory that they are applied to is symmetric, as S of tokens is; by default,
            where d_v = d_k = d_q.

        Returns
        -------
        array
            Coefficients (d_out, p).
        """
        if symmetric is None and self.takes_tokens:
            return head_coefficients(self.V, self.Q)
        if symmetric and self.d_v != self.d_k:
            raise ValueError(f"symmetric: a memory {self.d_v} x {self.d_k} cannot be symmetric")
        return state_coefficients(self.V, self.Q, symmetric=bool(symmetric))

    @classmethod
    @same_bits
    def from_weights(cls, weights: Mapping[str, Any], layout: Layout = PLAIN) -> Heads:
        """Make the heads of an attention layer with other parameters.

        Parameters
        ----------
        weights
            Arrays of any library by name: "V" (or "W_V" and "W_O", with V_h = W_O W_V) and "Q" (or
            "W_Q" and "W_K", with Q_h = W_K' W_Q); or "in_proj", W_Q, W_K and W_V on top of each
            other as in ``torch.nn.MultiheadAttention``, and "W_O". Usual other names are known.
            Without "W_O" it is 1: the outputs of the heads lie side by side, d_out = H d_v.
            Queries, keys and values of different sizes, as in cross-attention, make a layer on
            states.
        layout
            How they are kept, and what the sum is multiplied with; see :class:`Layout`.

        Returns
        -------
        Heads
            With the scale in V. They compute the attention itself: what a layer adds to it, such as
            its own input, is not part of them, and every token attends to itself as well.
        """
        return cls(*matrices_of(recognised(weights, layout), layout))

    @same_bits
    def to_weights(self, layout: Layout = PLAIN, form: Form = "separate") -> dict[str, Floats]:
        """Parameters, as numpy arrays, of an attention layer that computes the same function.

        Parameters
        ----------
        layout
            As for :meth:`from_weights`, which makes the same heads of what is returned.
        form
            "separate": W_Q, W_K, W_V and W_O, d_k coordinates to a key; "fused": V and Q;
            "in_proj": as in ``torch.nn.MultiheadAttention``, where d_v = d_k = d_q.

        Returns
        -------
        dict
            Arrays by the names that the layout has for them.
        """
        return weights_of(to_host(self.V), to_host(self.Q), layout, form)

    @classmethod
    def from_torch(cls, module: object, layout: Layout = PLAIN) -> Heads:
        """Make the heads of a PyTorch module, from :meth:`to_torch` or another attention layer.

        Parameters
        ----------
        module
            A module whose parameters have names that :meth:`from_weights` knows, or a mapping such
            as its ``state_dict()``. Biases are an error.
        layout
            How the parameters are kept, see :class:`Layout`. The number of heads is taken from the
            module's ``num_heads`` where it has one.
        """
        from .torch_module import parameters_of  # noqa: PLC0415  # torch is optional

        weights, number = parameters_of(module)
        if isinstance(layout, Layout) and layout.num_heads is None and number is not None:
            layout = replace(layout, num_heads=number)
        return cls.from_weights(weights, layout)

    def to_torch(
        self,
        positions: Positions = "last",
        *,
        dtype: object = None,
        device: object = None,
        requires_grad: bool = True,
        states: bool | None = None,
    ) -> Any:
        """The layer as a ``torch.nn.Module`` with parameters V and Q, to be trained further.

        Parameters
        ----------
        positions
            Which tokens query: "last", "all" or "causal"; a call may choose others. A state has one
            query, "last".
        dtype
            The type of V, Q and the tokens or states; ``torch.float64`` by default.
        device
            By default where these heads are.
        requires_grad
            Whether V and Q are to be learned.
        states
            Whether the module is called on states; by default, where d_v, d_k and d_q are not one
            size.

        Returns
        -------
        torch.nn.Module
            Called on tokens (..., n, d), or on the memory (..., d_v, d_k) and the query (..., d_q)
            of states; its parameters are ``V`` and ``Q``.
        """
        if states is None:
            states = not self.takes_tokens
        if not states:
            self.require_tokens("to_torch")
        if self.map is not None:
            raise ValueError(
                f"to_torch: tokens are mapped by {told(self.map)}, which the module would not do; "
                "Heads(heads.V, heads.Q).to_torch() is the layer for mapped tokens"
            )
        from .torch_module import layer_of, state_layer_of  # noqa: PLC0415  # torch is optional

        if device is None and self.device is not None:
            device = f"cuda:{self.device}"
        make = state_layer_of if states else layer_of
        return make(to_host(self.V), to_host(self.Q), positions, dtype, device, requires_grad)

    @same_bits
    def normalized(self) -> Heads:
        """Bring the heads into normal form; they compute the same function.

        Mixing heads by an invertible matrix, V' = A V and Q' = A^-T Q over h, changes nothing in
        the sum of V_h (x) Q_h. Of all such heads, the normal form is the SVD of that sum, a
        (d_out d) x (d d) matrix of rank H:

        - the V_h are orthogonal to each other, and so are the Q_h;
        - balanced: ||V_h||_F = ||Q_h||_F;
        - the largest ||V_h||_F ||Q_h||_F first;
        - the first entry of V_h of largest magnitude is positive.

        It is unique where the singular values differ. Heads that repeat others are merged, so there
        may be fewer. It is found on the host.

        Returns
        -------
        Heads
            The normal form.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> rng = np.random.default_rng(0)
        >>> a = la.Heads(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 4)))
        >>> A = np.array([[1.0, 2.0], [0.5, -1.0]])  # mixed: another look at the same layer
        >>> b = la.Heads(np.tensordot(A, a.V, 1), np.tensordot(np.linalg.inv(A).T, a.Q, 1))
        >>> np.allclose(a.V, b.V), np.allclose(a.normalized().V, b.normalized().V)
        (False, True)
        """
        if self.device is not None:
            return self.get().normalized().put(self)
        return Heads(*normal_form(self.V, self.Q), self.recovery)._like(self)

    @same_bits
    def distance(self, other: Heads, *, symmetric: bool | None = None) -> float:
        """Frobenius norm of the difference of coefficients: 0 when the functions are the same.

        Parameters
        ----------
        other
            Heads of the same sizes, in any number.
        symmetric
            As for :meth:`coefficients`.

        Returns
        -------
        float
            ||C - C'||_F.
        """
        if not isinstance(other, Heads):
            raise TypeError(f"other: Heads are needed, got {type(other).__name__}")
        if other._sizes != self._sizes:
            raise ValueError(f"other: heads of {self._sizes} are needed, got {other._sizes}")
        mine, theirs = (to_host(heads.coefficients(symmetric)) for heads in (self, other))
        return float(np.linalg.norm(mine - theirs))

    @same_bits
    def generate(
        self,
        Z0: object,
        steps: int,
        round: int | None = None,  # the name users know from numpy
        *,
        backend: str = "auto",
        like: object = None,
    ) -> Floats:
        """Run the layer autoregressively: append its output as the next token, again and again.

        Parameters
        ----------
        Z0
            Prompt, an array (n, d), or prompts (N, n, d).
        steps
            Tokens to append.
        round
            Decimals to round each output to, as ``numpy.round`` does; None keeps it as it is.
        backend
            "auto", "cpu", "numpy" or "cuda".
        like
            An array whose library the result is wanted in, see :func:`linattn_fast.convert`; None
            is numpy, or CuPy for work on a device.

        Returns
        -------
        array
            (n + steps, d) or (N, n + steps, d): the prompts and what follows them.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> doubling = la.Heads(2 * np.eye(2)[None], np.eye(2)[None])  # y = 2 S z
        >>> doubling.generate([[0.5, 0.0]], steps=2)
        array([[0.5    , 0.     ],
               [0.25   , 0.     ],
               [0.15625, 0.     ]])
        """
        self.require_tokens("generate")
        if self.map is not None:
            raise ValueError(
                f"generate: tokens are mapped by {told(self.map)}, and outputs are not; append "
                "heads(Z) to Z to go on from them"
            )
        return generated(self.V, self.Q, Z0, steps, round, backend, like)


def _heads_with(
    V: Floats, Q: Floats, recovery: Recovery | None, maps: tuple[Any, Any, Any]
) -> Heads:
    """Heads out of a pickle, with what they map tokens or streams by."""
    return Heads(V, Q, recovery)._with(*maps)


def known_heads(V: Floats, Q: Floats, recovery: Recovery | None = None) -> Heads:
    """Make heads of arrays on the host that nothing else holds, without checking them again."""
    heads = Heads.__new__(Heads)
    heads.V, heads.Q = np.ascontiguousarray(V), np.ascontiguousarray(Q)
    vars(heads).update(_recovery=recovery, _map=None, _maps=None, _constants=None)
    heads.V.setflags(write=False)
    heads.Q.setflags(write=False)
    return heads


def normal_form(V: Floats, Q: Floats) -> tuple[Floats, Floats]:
    """Bring V (H, d_out, d_v) and Q (H, d_k, d_q) into normal form; heads that repeat are merged.

        sum_h vec(V_h) vec(Q_h)' = left (A right')

    with left A the QR decomposition of all vec(V_h) side by side and right that of the vec(Q_h), so
    that the SVD is of A right', which has no more than H rows.
    """
    H, _, d_v = V.shape
    if H == 0:
        return V, Q
    left, A = np.linalg.qr(V.reshape(H, -1).T)
    U, sigma, W = np.linalg.svd(A @ Q.reshape(H, -1), full_matrices=False)
    if sigma[0] == 0:
        return V[:1] * 0, Q[:1] * 0
    count = _above_rounding(sigma)
    root = np.sqrt(sigma[:count])
    values, queries = (left @ U[:, :count]) * root, W[:count].T * root  # (d_out d_v, H), ..
    return with_signs(values, queries, d_v, Q.shape[2])


def svd_normal_form(V: Floats, Q: Floats) -> tuple[Floats, Floats]:
    """Heads of an SVD in normal form, which they have but for their signs and for rounding."""
    H, _, d = V.shape
    values, queries = V.reshape(H, -1).T, Q.reshape(H, -1).T  # (d_out d, H), (d d, H)
    count = _above_rounding((values**2).sum(axis=0))  # ||V_h||^2 = ||V_h|| ||Q_h||
    return with_signs(values[:, :count], queries[:, :count], d, d)


def _above_rounding(sigma: Floats) -> int:
    """Number of heads of sizes sigma (H,), the largest first, that are more than rounding."""
    return max(1, int((sigma > 10 * len(sigma) * EPS * sigma[0]).sum()))


def with_signs(values: Floats, queries: Floats, d_v: int, d_q: int) -> tuple[Floats, Floats]:
    """V and Q of heads side by side, (d_out d_v, H), (d_k d_q, H), with signs of normal form."""
    sizes = np.abs(values)
    # Entries equal up to rounding tie, and the first of them decides
    first = (sizes >= (1 - 1e-8) * sizes.max(axis=0)).argmax(axis=0)
    H = values.shape[1]
    sign = np.where(values[first, np.arange(H)] < 0, -1.0, 1.0)
    V, Q = (values * sign).T.reshape(H, -1, d_v), (queries * sign).T.reshape(H, -1, d_q)
    return np.ascontiguousarray(V), np.ascontiguousarray(Q)
