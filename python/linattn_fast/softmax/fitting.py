"""``la.softmax.fit``: tokens and targets to a layer, with the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..backend import get_backend
from ..floats import as_matrix
from ..heads import Heads
from ..naming import calling
from ..problem import Stages
from ..progress import Bar
from ..result import Fit as LinearFit
from ..tokens import Floats, Tokens, as_size, as_targets
from .attention import outputs
from .cases import named_cases
from .examples import Examples, size_of
from .identifiability import identifiability
from .layer import Layer, host_tokens
from .levenberg import levenberg_marquardt
from .linear_start import theta_of_linear
from .quasi_newton import UNKNOWNS, quasi_newton
from .reduced import Objective, Point
from .report import HeldOut, Report, judge
from .result import Fit, in_units
from .search import Found, search
from .starts import SOLVED, Coordinates, Descend, TokenSpace, pruned

Solver: TypeAlias = Literal["auto", "lm", "lbfgs"]


_BRIEF_STEPS, _BRIEF_EVALUATIONS = 40, 200
"""Of the fit with one head fewer, which is there for comparison."""


class Split(NamedTuple):
    """Training and held-out examples in units of one, and these units."""

    training: Examples
    held_out: Examples
    token_size: float
    target_size: float


def fit(
    X: object,
    Y: object,
    heads: int,
    *,
    offsets: object = None,
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
    start
        Where to start first: a :class:`Layer`, Theta (m, d, d), or a linear attention fit
        (``la.fit(X, Y, positions="all", heads=m)``) or its heads. Random starts follow.
    starts
        Starts at most.
    agreeing
        Stop before that when so many starts agree on the best layer; also when a fit is exact.
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
        "auto", "cpu" or "numpy": what forms the normal matrices.
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
    heads = as_size(heads, "heads")
    starts, agreeing = as_size(starts, "starts"), as_size(agreeing, "agreeing")
    seed = as_size(seed, "seed", least=0)
    share, limit = as_share(held_out, "held_out"), _positive(tolerance, "tolerance")
    if solver not in ("auto", "lm", "lbfgs"):
        raise ValueError(f"solver: must be one of auto, lm, lbfgs, got {solver!r}")
    compiled = host_backend(backend) == "cpu"
    bar = Bar(starts, "starts", progress, unit="starts")  # checked before any work
    tokens, targets = checked(X, Y, offsets)
    stages = Stages()
    split = split_examples(tokens, targets, share, seed)
    coordinates = Coordinates.of(split.training)
    objective = coordinates.objective(split.training, compiled=compiled)
    given = _given_theta(start, heads, split)
    descend = descent(solver, heads * tokens.d**2)
    with stages.timed("search"), bar as watch:
        found = search(
            objective,
            heads,
            descend,
            starts=starts,
            agreeing=agreeing,
            seed=seed,
            given=None if given is None else coordinates.into(given),
            watch=watch,
        )
    with stages.timed("evidence"):
        there = Objective(split.training, compiled=compiled)
        point = there.at(coordinates.out_of(found.point.Theta))
        report = gather(found, point, split, descend, limit)
    layer = Layer(*in_units(point.Theta, point.W, split.token_size, split.target_size))
    return Fit(layer, report, dict(stages))


def checked(X: object, Y: object, offsets: object) -> tuple[Tokens, Tokens]:
    """Tokens, and targets of every one of them."""
    tokens = host_tokens(X, offsets)
    with calling(Z="X", y="Y"):
        targets = as_targets(Y, tokens, "all")
    return tokens, targets


def host_backend(backend: str) -> str:
    """The name of a backend that runs on the host."""
    name = get_backend(backend).name
    if name == "cuda":
        raise ValueError("backend: softmax layers are learned on the host; take 'cpu' or 'numpy'")
    return name


def split_examples(tokens: Tokens, targets: Tokens, share: float, seed: int) -> Split:
    """Keep a share of the sequences apart, drawn at random; the rest is for training."""
    N = len(tokens)
    apart = max(1, round(share * N))
    if apart >= N:
        raise ValueError(
            f"X: at least 2 sequences are needed, one of them to be held out, and held_out = "
            f"{share:g} of {N} leaves none for training"
        )
    order = np.random.default_rng([seed, 1]).permutation(N)
    training = Examples.of(tokens, targets, np.sort(order[apart:]))
    held_out = Examples.of(tokens, targets, np.sort(order[:apart]))
    token_size, target_size = size_of(training.queries()), size_of(training.targets())
    return Split(
        training.scaled(token_size, target_size),
        held_out.scaled(token_size, target_size),
        token_size,
        target_size,
    )


def descent(solver: Solver, unknowns: int) -> Descend:
    """How to go down, for so many entries of Theta."""
    by_gradients = solver == "lbfgs" or (solver == "auto" and unknowns > UNKNOWNS)
    return quasi_newton if by_gradients else levenberg_marquardt


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
        identifiability=known.in_units(split.token_size, split.target_size),
        cases=named_cases(point, fewer_fits=fewer_fits),
    )


def _without_one(point: Point, descend: Descend) -> float:
    """Relative training error after the least head is taken away and the others go down a while."""
    steps = _BRIEF_STEPS if descend is levenberg_marquardt else _BRIEF_EVALUATIONS
    fewer = len(point.Theta) - 1
    found = pruned(point.objective, point.Theta, fewer, descend, tried=1, iterations=steps)
    return found.point.error


def held_out_error(examples: Examples, Theta: Floats, W: Floats, tolerance: float) -> HeldOut:
    """Errors of a layer on examples, sequence by sequence."""
    errors, energies = [], []
    for group in examples.groups:
        assert group.y is not None
        off = outputs(group.x, Theta, W).reshape(group.y.shape) - group.y
        errors.append(np.sum(off**2, axis=(1, 2)))
        energies.append(np.sum(group.y**2, axis=(1, 2)))
    return HeldOut.of(np.concatenate(errors), np.concatenate(energies), tolerance)


def _given_theta(start: object, heads: int, split: Split) -> Floats | None:
    """Theta to start from, in units of one; None for random starts alone."""
    if start is None:
        return None
    if isinstance(start, LinearFit | Heads):
        return theta_of_linear(start, heads, TokenSpace.of(split.training))
    Theta = start.Theta if isinstance(start, Layer) else as_matrix(start, "start", 3)
    shape = (heads, split.training.d, split.training.d)
    if Theta.shape != shape:
        raise ValueError(
            f"start: a Layer, a linear fit, or a Theta of shape {shape} is needed, got shape "
            f"{Theta.shape}"
        )
    return np.asarray(Theta * split.token_size**2)


def as_share(value: float, name: str) -> float:
    """Check a number between 0 and 1."""
    number = _positive(value, name)
    if number >= 1:
        raise ValueError(f"{name}: must be below 1, got {value}")
    return number


def _positive(value: float, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: a number is needed, got {type(value).__name__}") from None
    if not (number > 0 and np.isfinite(number)):
        raise ValueError(f"{name}: must be positive, got {value}")
    return number
