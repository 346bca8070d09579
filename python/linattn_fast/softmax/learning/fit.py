"""``la.softmax.fit``: from tokens and targets to a layer, with the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...data.tokens import as_weights
from ...system.arguments import as_size
from ...system.machine import require_memory, same_bits
from ...system.progress import Bar, Stages
from ..descent.objective import Objective
from ..evidence.gathering import gather
from ..evidence.identifiability import evidence_bytes
from ..examples.given import tokens_and_targets
from ..examples.split import split_examples
from ..search.given_start import given_theta
from ..search.many_starts import search
from ..search.settings import SearchSettings, Solver, positive_number
from ..search.whitening import Whitening
from .result import Fit, layer_at


@same_bits
def fit(
    X: object,
    Y: object,
    heads: int,
    *,
    offsets: object = None,
    sample_weight: object = None,
    start: object = None,
    starts: int = 12,
    agreeing: int = 3,
    held_out: float = 0.2,
    tolerance: float = 0.1,
    solver: Solver = "auto",
    seed: int = 0,
    backend: str = "auto",
    progress: bool | Callable[[int, Any], object] = False,
) -> Fit:
    """Learn F(X) = sum_i softmax(X Theta_i X') X W_i from examples.

    Minimises ``||F(X) - Y||^2`` over Theta with the best W for it, from many starts. The problem is
    not convex: ``fit.report`` says what was shown about the answer.

    Parameters
    ----------
    X, offsets
        Tokens: (N, k, d), a list of (k_i, d), or (sum k_i, d) with offsets.
    Y
        Targets, one row a token: (N, k, d_out), or as ragged as X; without the last axis d_out = 1.
    heads
        Number of heads, m. :func:`head_path` helps to choose it.
    sample_weight
        Weights (N,) of the sequences' squared errors; 1 by default. Sequences of weight zero take
        no part.
    start
        Where to start first: a :class:`Layer`, :class:`Fit` or Theta (m, d, d), or a linear
        attention fit (``la.fit(X, Y, positions="all", heads=m)``) or its heads. Random starts
        follow.
    starts
        Number of starts at most.
    agreeing
        Stop earlier when so many starts agree on the best layer. A fit that is exact, with a
        relative training error of at most 1e-8, ends the search as well.
    held_out
        Share of the sequences that is kept apart to measure the error, and used for nothing else.
    tolerance
        Relative held-out error up to which the layer counts as fitting; raise it where the targets
        are known to have noise.
    solver
        "lm", Levenberg-Marquardt; "lbfgs"; "auto" takes the latter above 2,000 entries of Theta.
    seed
        Seed of the starts and of the split: the same seed gives the same bits.
    backend
        "auto", "cpu" or "numpy": what forms the normal matrices. There is no "cuda".
    progress
        True shows a bar; a function is called with the starts done and their largest number.

    Returns
    -------
    Fit
        The layer, and the report.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.softmax.Layer(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, 4)))
    >>> X = rng.choice([-1.0, 1.0], size=(300, 3, 4))
    >>> fit = la.softmax.fit(X, truth(X), heads=2)
    >>> fit.report.verdict, bool(fit.report.held_out.error < 1e-9)
    ('learned', True)
    """
    heads, limit = as_size(heads, "heads"), positive_number(tolerance, "tolerance")
    settings = SearchSettings.of(starts, agreeing, held_out, solver, seed, backend)
    bar = Bar(settings.starts, "starts", progress, unit="starts")  # checked before any work
    tokens, targets = tokens_and_targets(X, Y, offsets)
    weights = as_weights(sample_weight, len(tokens))
    require_memory(evidence_bytes(heads, tokens.d, targets.d), f"heads: {heads} for d = {tokens.d}")
    stages = Stages()
    split = split_examples(tokens, targets, weights, settings.held_out, settings.seed)
    given = given_theta(start.layer if isinstance(start, Fit) else start, heads, split)
    whitening = Whitening.of(split.training)
    descend = settings.descent(heads * tokens.d**2)
    with stages.timed("search"), bar as watch:
        found = search(
            whitening.objective(split.training, compiled=settings.compiled),
            heads,
            descend,
            settings,
            given=None if given is None else whitening.into(given),
            watch=watch,
        )
    with stages.timed("evidence"):
        there = Objective(split.training, compiled=settings.compiled)
        point = there.at(whitening.out_of(found.point.Theta))
        report = gather(found, point, split, descend, limit)
    return Fit(layer_at(point, split), report, dict(stages), targets.scalar)
