"""``la.softmax.fit``: tokens and targets to a layer, with the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.floats import as_matrix
from ..arrays.types import Floats
from ..data.tokens import Tokens, as_targets, as_weights
from ..fitting.result import Fit as LinearFit
from ..heads.heads import Heads
from ..system.arguments import as_size, calling
from ..system.machine import require_memory, same_bits
from ..system.progress import Bar, Stages
from .cases import named_cases
from .identifiability import evidence_bytes, identifiability
from .layer import Layer, host_tokens
from .levenberg import levenberg_marquardt
from .linear_start import theta_of_linear
from .reduced import Objective, Point
from .report import Report, judge
from .result import Fit
from .search import Found, search
from .settings import SearchSettings, Solver, as_positive
from .split import Split, held_out_error, split_examples
from .starts import SOLVED, Coordinates, Descend, TokenSpace, pruned

_BRIEF_STEPS, _BRIEF_EVALUATIONS = 40, 200
"""Of the fit with one head fewer, which is there for comparison."""
_LARGEST_START = 1e100
"""Of the entries of a Theta to start from, for tokens of unit size; squares must be numbers."""


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
        Weights (N,), one a sequence: what its squared error counts; 1 by default. Sequences of
        weight zero take no part.
    start
        Where to start first: a :class:`Layer`, :class:`Fit` or Theta (m, d, d), or a linear
        attention fit (``la.fit(X, Y, positions="all", heads=m)``) or its heads. Random starts
        follow.
    starts
        Starts at most.
    agreeing
        Stop before that when so many starts agree on the best layer; also when a fit is exact, its
        relative training error being at most 1e-8.
    held_out
        Share of the sequences that is kept apart, to measure the error on, and used for nothing
        else.
    tolerance
        Relative held-out error up to which the layer counts as fitting; raise it where the targets
        are known to have noise.
    solver
        "lm", Levenberg-Marquardt; "lbfgs"; "auto" takes the latter above 2,000 entries of Theta.
    seed
        Of the starts and of the split: the same seed gives the same bits.
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
    heads, limit = as_size(heads, "heads"), as_positive(tolerance, "tolerance")
    settings = SearchSettings.of(starts, agreeing, held_out, solver, seed, backend)
    bar = Bar(settings.starts, "starts", progress, unit="starts")  # checked before any work
    tokens, targets = checked(X, Y, offsets)
    weights = as_weights(sample_weight, len(tokens))
    require_memory(evidence_bytes(heads, tokens.d, targets.d), f"heads: {heads} for d = {tokens.d}")
    stages = Stages()
    split = split_examples(tokens, targets, weights, settings.held_out, settings.seed)
    given = _given_theta(start, heads, split)
    coordinates = Coordinates.of(split.training)
    descend = settings.descent(heads * tokens.d**2)
    with stages.timed("search"), bar as watch:
        found = search(
            coordinates.objective(split.training, compiled=settings.compiled),
            heads,
            descend,
            settings,
            given=None if given is None else coordinates.into(given),
            watch=watch,
        )
    with stages.timed("evidence"):
        there = Objective(split.training, compiled=settings.compiled)
        point = there.at(coordinates.out_of(found.point.Theta))
        report = gather(found, point, split, descend, limit)
    return Fit(layer_of(point, split), report, dict(stages), targets.scalar)


def checked(
    X: object, Y: object, offsets: object, *, d: int | None = None, d_out: int | None = None
) -> tuple[Tokens, Tokens]:
    """Tokens, and targets of every one of them; of given widths, if any."""
    tokens = host_tokens(X, offsets, d=d)
    with calling(Z="X", y="Y"):
        targets = as_targets(Y, tokens, "all", d_out=d_out)
    return tokens, targets


def layer_of(point: Point, split: Split) -> Layer:
    """The layer at a point, for tokens and targets as they were given."""
    return Layer(split.units.theta_out(point.Theta), split.units.values_out(point.W))


def gather(found: Found, point: Point, split: Split, descend: Descend, tolerance: float) -> Report:
    """Collect the evidence for what was found, which is ``point`` for the tokens as they are."""
    m = len(point.Theta)
    known = identifiability(point)
    fewer = 1.0 if m == 1 else _without_one(found.point, descend)
    # Unknowns that fit noise alone lower the squared error by their share of the equations each
    spared = known.unknowns / m / max(1, known.equations - known.unknowns)
    fewer_fits = fewer**2 <= max((1 + 3 * spared) * point.loss, SOLVED**2)
    return judge(
        training_error=point.error,
        held_out=held_out_error(split.held_out, point.Theta, point.W, tolerance),
        tolerance=tolerance,
        solved=found.solved,
        starts=found.starts,
        fewer_heads_error=fewer,
        fewer_fits=fewer_fits,
        more_heads_error=found.more_heads_error,
        uncertain_heads=known.uncertain_heads(point.Theta, point.W),
        identifiability=known.in_units(split.units),
        cases=named_cases(point, known, fewer_fits=fewer_fits),
    )


def _without_one(point: Point, descend: Descend) -> float:
    """Relative training error after the least head is taken away and the others go down a while."""
    steps = _BRIEF_STEPS if descend is levenberg_marquardt else _BRIEF_EVALUATIONS
    fewer = len(point.Theta) - 1
    found = pruned(point.objective, point.Theta, fewer, descend, tried=1, iterations=steps)
    return found.point.error


def _given_theta(start: object, heads: int, split: Split) -> Floats | None:
    """Theta to start from, in units of one; None for random starts alone."""
    if start is None:
        return None
    if isinstance(start, LinearFit | Heads):
        return theta_of_linear(start, heads, TokenSpace.of(split.training), split.units)
    Theta = start.Theta if isinstance(start, Layer | Fit) else as_matrix(start, "start", 3)
    shape = (heads, split.training.d, split.training.d)
    if Theta.shape != shape:
        raise ValueError(
            f"start: a Layer, a linear fit, or a Theta of shape {shape} is needed, got shape "
            f"{Theta.shape}"
        )
    if not np.abs(Theta).max() < _LARGEST_START / split.units.tokens.max() ** 2:
        raise ValueError(
            f"start: the logits overflow with entries of {np.abs(Theta).max():.3g} and tokens of "
            f"size {split.units.tokens.max():.3g}"
        )
    return split.units.theta_in(Theta)
