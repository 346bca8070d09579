"""Generating with a layer: its output at the last token is the next token, again and again."""

from __future__ import annotations

import numpy as np

from ..arrays.device import module_of, on_device
from ..arrays.libraries import conversion_to, is_one_sequence
from ..arrays.types import Floats
from ..backend.choice import get_backend
from ..data.non_finite import non_finite_error
from ..data.tokens import as_tokens
from ..system.arguments import as_size
from ..system.machine import require_memory


def generated(
    V: Floats,
    Q: Floats,
    Z0: object,
    steps: int,
    decimals: int | None,
    backend: str,
    like: object,
) -> Floats:
    """Prompts with the tokens that heads V, Q append to them; see :meth:`Heads.generate`."""
    d_out, d = V.shape[1:]
    if d_out != d:
        raise ValueError(
            f"generate: outputs must be tokens, so d_out = d is needed; "
            f"these heads have d_out = {d_out}, d = {d}"
        )
    steps = as_size(steps, "steps", least=0)
    converted = conversion_to(like)
    if decimals is not None and as_size(decimals, "round", least=0) > 15:
        raise ValueError(f"round: at most 15 decimals are possible, got {decimals}")
    single = is_one_sequence(Z0)
    tokens = as_tokens([Z0] if single else Z0, name="Z0", d=d)
    if len(set(tokens.lengths.tolist())) > 1:
        raise ValueError("Z0: prompts of one length are needed, got several lengths")
    with on_device(tokens.device):
        xp = module_of(*tokens.arrays[:1])
        prompts = xp.stack([z.astype(np.float64) for z in tokens])
        if not xp.isfinite(prompts).all():
            raise non_finite_error(tokens, name="Z0")
    needed = 8 * len(prompts) * (prompts.shape[1] + steps) * d
    require_memory(needed, f"steps: {steps} tokens after {len(prompts)} prompts")
    engine = get_backend(backend, tokens, V)
    Z = engine.generate(V, Q, prompts, steps, decimals)
    answer: Floats = converted(Z[0] if single else Z)
    return answer
