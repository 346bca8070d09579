"""The public call ``la.certify``: do tokens, or accumulated moments, determine a layer?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.device import device_of, module_of, on_device
from ..arrays.types import Positions, Values
from ..certificate.blocks import certificate_of_blocks
from ..certificate.certificate import Certificate
from ..certificate.certifying import (
    certificate_from,
    certifying_factor,
    counted_on_data,
    require_certificate_memory,
)
from ..data.attending import attended
from ..data.mapping.token_map import Map, as_map
from ..data.non_finite import non_finite_error
from ..data.tokens import as_positions, as_values
from ..features.features import Features
from ..moments.moments import Moments
from ..problem.in_memory import InMemory
from ..problem.interface import ShowProgress
from ..problem.streamed import Streamed
from ..solvers.blocks.choice import blocks_bytes, blocks_worth_it
from ..solvers.blocks.solver import factorise_partition
from ..solvers.costs import seconds_worth_cutting
from ..system.machine import as_memory_limit, require_memory, same_bits, usable_memory
from ..system.progress import Bar
from .call import as_problem


@same_bits
def certify(
    Z: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    sample_weight: object = None,
    features: Features | None = None,
    values: Values = "mixed",
    backend: str = "auto",
    spectrum: bool = False,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
    map: Map | None = None,
    intercept: bool = False,
    mask: object = None,
    lengths: object = None,
    scale: object = None,
    decay: object = None,
    attend_self: bool = True,
) -> Certificate:
    """Certify that tokens, or accumulated moments, determine a linear attention layer.

    Parameters
    ----------
    Z
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; :class:`States`;
        :class:`Streams`; or :class:`Moments`, and then nothing else about the data is given.
        Targets play no part.
    offsets, positions, sample_weight, features, values, backend
        As for :func:`linattn_fast.fit`.
    spectrum
        Compute all eigenvalues of the second moment: a dense eigendecomposition.
    memory_limit
        Bytes that may be used; the machine's memory by default.
    progress
        True shows a bar while moments are accumulated; a function is called with the sequences done
        and their number.
    map, intercept
        As for :func:`linattn_fast.fit`.
    mask, lengths, scale, decay, attend_self
        Which tokens exist and what they attend to, as for :func:`linattn_fast.fit`.

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
    memory_limit, values = as_memory_limit(memory_limit), as_values(values)
    Bar(0, "", progress)  # checked before any work
    with on_device(device_of(Z)), np.errstate(all="ignore"):  # what overflows is refused
        if isinstance(Z, Moments):
            others = (offsets, sample_weight, features, map)
            if any(each is not None for each in others) or intercept:
                raise ValueError(
                    "offsets, sample_weight, features, map, intercept: moments carry their own "
                    "data; give Z alone"
                )
            require_certificate_memory(Z.features, Z.n_samples, memory_limit)
            return certificate_from(Z, spectrum=spectrum)
        where = as_positions(positions)
        Z, offsets = attended(
            Z,
            offsets,
            where,
            sample_weight,
            mask=mask,
            lengths=lengths,
            scale=scale,
            decay=decay,
            attend_self=attend_self,
        )
        problem = as_problem(
            Z,
            None,
            offsets,
            sample_weight,
            where,
            features,
            backend,
            values=values,
            map=as_map(map),
            intercept=intercept,
            d_out=0,
        )
        if spectrum or isinstance(problem, Streamed):
            return _by_moments(problem, memory_limit, progress, spectrum=spectrum)
        return _certified(problem, memory_limit, progress)


def _certified(problem: InMemory, memory_limit: int | None, progress: ShowProgress) -> Certificate:
    """Certify in blocks where that is worth it, by counting few samples, or from moments."""
    samples, tokens = problem.samples, problem.samples.tokens
    features = problem.features
    memory = usable_memory() if memory_limit is None else memory_limit
    if (seconds := seconds_worth_cutting(problem, memory, proof=True)) is not None:
        cut = blocks_worth_it(samples, memory, seconds)
        if cut is not None:
            what = f"certify: {features.made_of} ({features.count} features) in blocks"
            require_memory(blocks_bytes(cut, 0), what, memory_limit)
            return certificate_of_blocks(factorise_partition(cut, progress), problem, memory)
    if problem.n_samples < features.count:
        if not all(module_of(array).isfinite(array).all() for array in tokens.arrays):
            raise non_finite_error(tokens)
        return counted_on_data(samples)
    return _by_moments(problem, memory_limit, progress, spectrum=False)


def _by_moments(
    problem: InMemory | Streamed,
    memory_limit: int | None,
    progress: ShowProgress,
    *,
    spectrum: bool,
) -> Certificate:
    """Certify from a factorisation of the second moment."""
    assert problem.n_samples is not None
    assert problem.read is not None
    require_certificate_memory(problem.features, problem.n_samples, memory_limit)
    moments = problem.moments(progress)
    factor = certifying_factor(moments, problem.read, memory_limit)
    return certificate_from(moments, factor, problem=problem, spectrum=spectrum)
