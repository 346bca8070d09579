"""The public call ``la.certify``: do tokens, or accumulated moments, determine a layer?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..arrays.device import device_of, module_of, on_device
from ..arrays.types import Positions, as_positions
from ..backend.choice import get_backend
from ..certificate.certificate import Certificate
from ..certificate.certifying import (
    certificate_from,
    certifying_factor,
    counted_on_data,
    require_certificate_memory,
)
from ..data.doubtful import warn_of_padding
from ..data.non_finite import non_finite_error
from ..data.tokens import as_tokens, as_weights, require_positive
from ..exact.modular_features import Reading
from ..features.features import Features, as_features
from ..features.left_out import require_none_left_out
from ..moments.moments import Moments
from ..system.machine import as_memory_limit, same_bits
from ..system.progress import Bar
from .block_choice import blocks_worth_it
from .blocks import certify_blocks


@same_bits
def certify(
    Z: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    sample_weight: object = None,
    features: Features | None = None,
    backend: str = "auto",
    spectrum: bool = False,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
) -> Certificate:
    """Certify that tokens, or accumulated moments, determine a linear attention layer.

    Parameters
    ----------
    Z
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; or :class:`Moments`,
        and then nothing else about the data is given. Targets play no part.
    offsets, positions, sample_weight, features, backend
        As for :func:`linattn_fast.fit`.
    spectrum
        Compute all eigenvalues of the second moment: a dense eigendecomposition.
    memory_limit
        Bytes that may be used; the machine's memory by default.
    progress
        True shows a bar while moments are accumulated; a function is called with the sequences done
        and their number.

    Returns
    -------
    Certificate
        The verdict and what it rests on, ready for questions about single inputs.

    Raises
    ------
    ValueError, TypeError
        An argument that does not fit; the message begins with its name.
    MemoryError
        The factorisation does not fit in ``memory_limit``; raised before any work.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((500, 10, 3))
    >>> la.certify(Z).verdict
    'identifiable'
    >>> la.certify(Z[:17]).verdict  # 17 samples, 18 features
    'not identifiable'
    """
    memory_limit = as_memory_limit(memory_limit)
    Bar(0, "", progress)  # checked before any work
    with on_device(device_of(Z)), np.errstate(all="ignore"):  # what overflows is refused
        if isinstance(Z, Moments):
            if offsets is not None or sample_weight is not None or features is not None:
                raise ValueError(
                    "offsets, sample_weight, features: moments carry their own data; give Z alone"
                )
            moments = Z
        else:
            positions = as_positions(positions)
            tokens = as_tokens(Z, offsets)
            chosen = as_features(features, tokens.d)
            weights = as_weights(sample_weight, len(tokens))
            if weights is not None:
                require_positive(float(weights.max()))
            require_none_left_out(tokens, weights, positions, chosen)
            warn_of_padding(tokens, positions)
            engine = get_backend(backend, tokens)  # a wrong name is an error before any work
            if engine.name != "cuda" and not spectrum:
                blocks = blocks_worth_it(
                    tokens, weights, positions, chosen, 0, memory_limit, proof=True
                )
                if blocks is not None:
                    return certify_blocks(
                        blocks, tokens, weights, positions, engine.name, memory_limit, progress
                    )
            if tokens.n_samples(positions) < chosen.count and not spectrum:
                if not all(module_of(array).isfinite(array).all() for array in tokens.arrays):
                    raise non_finite_error(tokens)
                return counted_on_data(tokens, weights, positions, chosen)
            moments = Moments(
                tokens.d, 0, positions=positions, features=chosen, backend=engine.name
            )
            require_certificate_memory(chosen, tokens.n_samples(positions), memory_limit)
            with Bar(len(tokens), "moments", progress) as watch:
                moments.add_checked(tokens, None, weights, watch)

            def read() -> Reading:
                return nullcontext(iter([(tokens, weights)]))

            factor = certifying_factor(moments, read, memory_limit)
            data = (tokens, weights, positions)
            return certificate_from(moments, factor, read=read, spectrum=spectrum, data=data)
        require_certificate_memory(moments.features, moments.n_samples, memory_limit)
        return certificate_from(moments, spectrum=spectrum)
