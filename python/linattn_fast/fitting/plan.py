"""The plan of a fit: which solver runs, why, in how many bytes, and what follows if it is not safe.

A plan is made once, before any work, and is a list of steps that are tried in order until one
solves the problem. The settings that it rests on are checked here, too. "auto" goes by these rules:

- A small problem: one call of compiled code, which solves and proves, where that is safe.
- Queries that never occur together: blocks, where the whole would take longer.
- Fewer samples than features: the dual, which gives the solution of least norm directly; with a
  ridge, conjugate gradients where they are predicted to be faster.
- Otherwise Cholesky or conjugate gradients, whichever is predicted to be faster, the proof of a
  certificate included where it is worth its time. Samples are kept between passes only where they
  take little memory, so that memory does not grow with their number. Data on a cluster takes
  Cholesky wherever it fits, and so does a stream, which every pass would read again, unless it is
  small enough to be held in float32.
- A number of heads is found from the Gram where that fits and is predicted to be faster, else by
  passes over the data, from a rough solution by conjugate gradients.
- Cholesky that is not safe is followed by orthogonal transformations, or where these do not fit by
  conjugate gradients; from moments alone, by eigenvectors.

A new solver is one file in :mod:`linattn_fast.solvers` and one row of ``SOLVERS``.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from ..arrays.device import device_memory
from ..certificate.blocks import certify_blocks
from ..certificate.certificate import Certificate
from ..certificate.certifying import certify_factorised, certify_few
from ..certificate.estimated import certify_passes
from ..heads.number.given_number import require_every_feature
from ..heads.recovery import METHODS
from ..linalg.factors import NotSafe
from ..problem.in_memory import InMemory
from ..problem.interface import Needs, Problem
from ..solvers import cholesky, dual, exact_part, orthogonal
from ..solvers.blocks import solver as blocks
from ..solvers.blocks.choice import blocks_worth_it
from ..solvers.conjugate_gradients import solver as conjugate_gradients
from ..solvers.conjugate_gradients.pcg import Pcg
from ..solvers.conjugate_gradients.rough import solve_roughly
from ..solvers.costs import (
    PATIENCE,
    HeadCosts,
    Kept,
    bytes_of,
    predict,
    predict_orthogonal,
    predicted_seconds,
    room_for_samples,
    seconds_of_stream,
    seconds_worth_cutting,
    what_needs,
)
from ..solvers.solved import Solved, Task
from ..system.arguments import as_size
from ..system.machine import as_memory_limit, in_words, require_memory, usable_memory
from . import small

Solver: TypeAlias = Literal["auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks"]
_WORTH_A_READING = 1000
"""Features from which a reading of a stream takes little time beside its Gram."""
SOLVER_NAMES: tuple[Solver, ...] = ("auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks")
"""Names that callers give: "auto", and one for each row of the table of solvers below."""

# ---------------------------------------------------------------------- what is asked for


def as_heads(heads: object) -> str | int | None:
    """Check which heads are asked for."""
    if heads is None or (isinstance(heads, str) and heads in METHODS):
        return heads
    if isinstance(heads, bool | np.bool_) or not isinstance(heads, numbers.Integral):
        raise ValueError(
            f"heads: must be {', '.join(map(repr, METHODS))}, a number of heads or None, "
            f"got {heads!r}"
        )
    return as_size(heads, "heads")


@dataclass(frozen=True)
class Settings:
    """Checked settings of a fit."""

    alpha: float
    heads: str | int | None
    solver: Solver
    certify: bool | Literal["sharp"]
    memory_limit: int | None
    tol: float | None = None
    """Accuracy asked of conjugate gradients (:class:`linattn_fast.Pcg`); None for rounding."""
    intercept: bool = False
    """Whether the ridge leaves out the feature that is constant in all coordinates."""

    @classmethod
    def of(
        cls,
        alpha: float,
        heads: str | int | None,
        solver: Solver | Pcg,
        certify: bool | Literal["sharp"],
        memory_limit: int | None,
        intercept: bool = False,
    ) -> Settings:
        """Make settings from what users give."""
        if isinstance(solver, Pcg):
            return cls(alpha, heads, "pcg", certify, memory_limit, solver.tol, intercept)
        return cls(alpha, heads, solver, certify, memory_limit, intercept=intercept)

    def __post_init__(self) -> None:
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
            raise TypeError(f"alpha: a real number is needed, got {type(alpha).__name__}")
        if not 0 <= alpha <= sys.float_info.max:  # also false for NaN
            raise ValueError(f"alpha: must be finite and not negative, got {alpha!r}")
        object.__setattr__(self, "heads", as_heads(self.heads))
        if isinstance(self.certify, str) and self.certify != "sharp":
            raise ValueError(f"certify: must be True, False or 'sharp', got {self.certify!r}")
        if not isinstance(self.solver, str) or self.solver not in SOLVER_NAMES:
            names = ", ".join(SOLVER_NAMES)
            raise ValueError(f"solver: must be one of {names} or Pcg(tol=...), got {self.solver!r}")
        object.__setattr__(self, "memory_limit", as_memory_limit(self.memory_limit))
        if not isinstance(self.intercept, bool | np.bool_):
            raise TypeError(f"intercept: True or False is needed, got {self.intercept!r}")
        if self.intercept and self.alpha > 0 and isinstance(self.heads, int):
            raise ValueError(
                "intercept: the best layer with a number of heads is found with a ridge on every "
                "feature; take alpha = 0, heads='minimal', or map=la.maps.with_constant instead"
            )


# ------------------------------------------------------------------------------ the plan


@dataclass(frozen=True)
class Row:
    """A solver as a plan knows it."""

    solve: Callable[[Task], Solved | NotSafe]
    """Runs the solver, as asked for."""
    needs: Needs
    """What it needs of the data."""
    certify: Callable[[Task, Solved], Certificate]
    """Makes the certificate of what the solver has solved."""


SOLVERS = {
    "cholesky": Row(cholesky.solve, "moments", certify_factorised),
    "eigh": Row(cholesky.solve_by_eigenvectors, "moments", certify_factorised),
    "qr": Row(orthogonal.solve, "parts", certify_factorised),
    "dual": Row(dual.solve, "samples", certify_few),
    "pcg": Row(conjugate_gradients.solve, "passes", certify_passes),
    "blocks": Row(blocks.solve, "samples on the host", certify_blocks),
}
"""The solvers by the names that callers may ask for."""


@dataclass(frozen=True)
class Step:
    """One solver of a plan."""

    solver: str
    reason: str = ""
    """Why it runs; for a later step, what is said after the reason why the one before failed."""
    bytes: int = 0
    """Bytes that it holds at its peak beside the data; 0 where the plan cannot know."""
    attempt: Callable[[Task], Solved | NotSafe] | None = None
    """Runs the solver in another way than its row does; None for that way."""

    def solve(self, task: Task) -> Solved | NotSafe:
        """Run the solver."""
        return (self.attempt or SOLVERS[self.solver].solve)(task)

    def certify(self, task: Task, solved: Solved) -> Certificate:
        """Make the certificate of what the solver has solved, unless it has one already."""
        if solved.certificate is not None:
            return solved.certificate
        with task.stages.timed("certify"):
            return SOLVERS[self.solver].certify(task, solved)


@dataclass(frozen=True)
class Plan:
    """Steps that are tried in order, and the refusal if none of them solves the problem."""

    steps: tuple[Step, ...]
    refusal: str = ""
    """What did not fit in memory and would have followed."""
    otherwise: Callable[[], Plan] | None = None
    """Makes the plan that follows where no step is safe, and that need not be made before."""

    def follow(self, task: Task) -> tuple[Step, Solved, str]:
        """Try the steps; return the one that solved the problem, its solution, and why it ran.

        A step that is not safe and gives no reason is passed over as if it had not been there.
        """
        said, trouble = list[str](), ""
        for step in self.steps:
            found = step.solve(task)
            if isinstance(found, Solved):
                return step, found, "; ".join(filter(None, (*said, _because(trouble, step))))
            if found.reason:
                said.append(_because(trouble, step))
                trouble = found.reason
        if self.otherwise is not None:
            return self.otherwise().follow(task)
        raise MemoryError(f"{trouble}; {self.refusal}")


def _because(trouble: str, step: Step) -> str:
    """Why a step runs, after the reason why the one before it failed."""
    return ", ".join(filter(None, (trouble, step.reason)))


@dataclass(frozen=True)
class Resources:
    """What a fit may use."""

    memory: int
    """Bytes that may be used beside the data."""
    limit: int | None
    """Bytes that the caller or a device allows; None where it is the machine's memory."""

    @classmethod
    def of(cls, problem: Problem, memory_limit: int | None) -> Resources:
        """Resources by the limit that was given, or the memory of the device or the machine."""
        limit = memory_limit
        if limit is None and problem.engine.on_device:
            limit = device_memory()
        return cls(usable_memory() if limit is None else limit, limit)

    def require(self, needed: int, what: str) -> None:
        """Raise MemoryError where more is needed than may be used."""
        require_memory(needed, what, self.limit)


def make_plan(problem: Problem, settings: Settings, resources: Resources) -> Plan:
    """Decide which solvers are tried, and in which order; a small problem is tried in one call."""
    usual = partial(make_usual_plan, problem, settings, resources)
    if not small.is_small(problem, settings):
        return usual()
    step = Step("cholesky", small.WHY, small.bytes_of_small(problem), small.solve)
    return Plan((step,), otherwise=usual)


def make_usual_plan(problem: Problem, settings: Settings, resources: Resources) -> Plan:
    """Decide which solvers are tried, and in which order, for a problem of any size.

    Raises
    ------
    ValueError
        The solver that was asked for cannot work on this data.
    MemoryError
        No solver fits, or not the one that was asked for; the message has what each would need.
    """
    if settings.solver != "auto":
        refusal = problem.refusal(settings.solver, SOLVERS[settings.solver].needs)
        if refusal is not None:
            raise ValueError(refusal)
    fixed = isinstance(settings.heads, int)
    if fixed:
        require_every_feature(problem.features)
    estimate = bytes_of(problem)
    if fixed and settings.solver == "pcg":
        found = Plan((_heads_by_passes(problem, settings, _with("asked for", problem)),))
    elif settings.solver != "auto":
        bytes_ = estimate.get(settings.solver, 0)
        found = Plan((Step(settings.solver, _with("asked for", problem), bytes_),))
    else:
        found = _AutoRules(problem, settings, resources, estimate).plan()
    first = next((step for step in found.steps if step.bytes), found.steps[0])
    what, needed = what_needs(problem.features, first.solver), first.bytes
    if fixed:
        what = f"{what} heads = {settings.heads},"
        if first.solver != "pcg":  # the dense second moment is their metric
            needed = max(needed, estimate["cholesky"])
    resources.require(needed, what)
    return found


def _heads_by_passes(problem: Problem, settings: Settings, why: str) -> Step:
    """The rough solution that a number of heads is found from without a Gram."""
    assert isinstance(settings.heads, int)
    needed = 0
    if problem.n_samples is not None:
        own = HeadCosts.of(problem, settings.heads, problem.n_samples)
        needed = bytes_of(problem)["pcg"] + own.bytes
    return Step("pcg", why, needed, solve_roughly)


def _with(reason: str, problem: Problem) -> str:
    return "; ".join(filter(None, (reason, problem.note)))


@dataclass(frozen=True)
class _AutoRules:
    """The rules of "auto" for one problem; each method is a rule, and asks those below it."""

    problem: Problem
    settings: Settings
    resources: Resources
    estimate: dict[str, int]
    """Bytes that each solver needs."""

    def plan(self) -> Plan:
        """Plan by where the data is; a number of heads comes first."""
        if self.problem.gradient is None:
            return Plan((self._cholesky(self.problem.note), _LEAST_NORM))
        if isinstance(self.settings.heads, int):
            return self._with_given_heads()
        if self.problem.samples is not None:
            return self._in_memory(self.problem.gathered(None, 0))
        return self._elsewhere()

    def _elsewhere(self) -> Plan:
        """Data in a stream or on a cluster: as few readings as memory allows."""
        problem = self.problem
        room = self._fits("dual", problem.bytes_to_gather)
        if self._few_samples() and room and problem.refusal("dual", "samples") is None:
            return Plan((self._dual(),))
        if self._fits("cholesky"):
            if told := self._why_passes_over_a_stream():
                return self._passes(problem, told)
            where = "data on a cluster" if problem.read is None else "a stream"
            why = f"{where}, which Cholesky reads least often"
            unknown = "a stream of unknown length, so its moments come first"
            return self._factorising(unknown if problem.n_samples is None else why)
        return Plan((Step("pcg", self._too_large("cholesky"), self.estimate.get("pcg", 0)),))

    def _why_passes_over_a_stream(self) -> str:
        """Why conjugate gradients are taken for a stream that is held in float32; else empty.

        A first reading tells how much there is. It is only made where a Gram takes far longer.
        """
        problem = self.problem
        if problem.features.count < _WORTH_A_READING:
            return ""
        room = room_for_samples(problem, self.resources.limit, sparing=True)
        found = problem.survey(room)
        if found is None:
            return ""
        dense, passes = seconds_of_stream(problem, found, proof=bool(self.settings.certify))
        if found.rounded and passes < dense:
            return f"predicted {dense:.2g} s by Cholesky and {passes:.2g} s by PCG"
        found.rounded = None  # nobody is going to ask for it
        return ""

    def _with_given_heads(self) -> Plan:
        """Passes where the Gram is too much, the dual for few samples, else Cholesky."""
        if why := self._why_no_gram():
            return Plan((_heads_by_passes(self.problem, self.settings, why),))
        if self._few_samples() and self.problem.refusal("dual", "samples") is None:
            return Plan((self._dual(),))
        return self._factorising("a number of heads is found from the Gram")

    def _why_no_gram(self) -> str:
        """Why a number of heads is to be found by passes over the data; empty where it is not."""
        problem, H = self.problem, self.settings.heads
        assert isinstance(H, int)
        if not self._fits("cholesky"):
            return f"{self._too_large('cholesky')}, so the heads are fitted by passes"
        n, columns = problem.n_samples, problem.n_columns
        if problem.samples is None or n is None or columns is None:
            return ""  # every pass would read the data again
        costs = predict(problem.features, problem.d_out, problem.positions, n, columns, proof=False)
        passes = HeadCosts.of(problem, H, n).seconds
        if costs.cholesky <= passes:
            return ""
        return f"predicted {costs.cholesky:.2g} s with a Gram and {passes:.2g} s by passes"

    def _in_memory(self, problem: InMemory) -> Plan:
        """Data in memory: blocks, the dual, or the better of Cholesky and conjugate gradients."""
        if (in_blocks := self._in_blocks(problem)) is not None:
            return in_blocks
        self._require_that_one_fits()
        if self._few_samples() and self._fits("dual"):
            return self._few(problem)
        solver, why = self._better_of_cholesky_and_passes(problem)
        return self._trying_a_part(problem, solver, why)

    def _in_blocks(self, problem: InMemory) -> Plan | None:
        """Blocks, where queries never occur together and the whole would take longer."""
        memory = self.resources.memory
        seconds = seconds_worth_cutting(problem, memory, proof=bool(self.settings.certify))
        cut = None if seconds is None else blocks_worth_it(problem.samples, memory, seconds)
        if cut is None:
            return None
        solve = partial(blocks.solve_partition, problem=problem, cut=cut)
        return Plan((Step("blocks", attempt=solve),))

    def _better_of_cholesky_and_passes(self, problem: InMemory) -> tuple[str, str]:
        """Cholesky or conjugate gradients, and why: what fits, what proves, what is faster."""
        if not self._fits("cholesky"):
            return "pcg" if self._fits("pcg") else "dual", self._too_large("cholesky")
        if not self._fits("pcg"):
            return "cholesky", self._too_large("pcg")
        certify = bool(self.settings.certify)
        seconds = self._seconds(problem, certify=certify)
        dense, passes = seconds["cholesky"], seconds["pcg"]
        told = f"predicted {dense:.2g} s by Cholesky and {passes:.2g} s by PCG"
        return "cholesky" if dense <= passes else "pcg", told

    def _seconds(self, problem: InMemory, *, certify: bool) -> dict[str, float]:
        """Predicted seconds of each solver."""
        kept = Kept.of(problem, self.resources.limit, sparing=True)
        return predicted_seconds(problem, self.settings.alpha, kept, certify=certify)

    def _few(self, problem: InMemory) -> Plan:
        """Fewer samples than features: the dual, or with a ridge what is predicted to be faster."""
        by_kernel = self._dual()
        if self.settings.alpha == 0 or not self._fits("pcg"):
            return Plan((by_kernel,))
        seconds = self._seconds(problem, certify=False)
        if seconds["dual"] <= seconds["pcg"]:
            return Plan((by_kernel,))
        told = f"predicted {seconds['dual']:.2g} s by the dual and {seconds['pcg']:.2g} s by PCG"
        step = Step("pcg", told, self.estimate["pcg"], conjugate_gradients.solve_if_accurate)
        return Plan((step, replace(by_kernel, reason="so the kernel was taken")))

    def _trying_a_part(self, problem: InMemory, solver: str, why: str) -> Plan:
        """The plan of a solver, which first tries whether a part of the data tells the answer."""
        if solver == "dual":
            return Plan((Step("dual", why, self.estimate["dual"]),))
        usual = self._factorising(why) if solver == "cholesky" else self._passes(problem, why)
        if self.settings.alpha != 0 or self.settings.certify:
            return usual
        memory = self.resources.memory
        sequences = exact_part.worth_trying(problem, memory, instead_of=solver)
        if sequences is None:
            return usual
        part = Step("cholesky", attempt=partial(exact_part.solve, sequences=sequences))
        return Plan((part, *usual.steps), usual.refusal)

    def _passes(self, problem: Problem, why: str) -> Plan:
        """Conjugate gradients; then the Gram, if they leave doubt and it takes little time."""
        needed, n = bytes_of(problem)["pcg"], problem.n_samples
        fits = self._fits("cholesky") and self._fits("qr")
        if not fits or n is None or predict_orthogonal(problem.features, n) > PATIENCE:
            return Plan((Step("pcg", why, needed),))
        careful = Step("pcg", why, needed, conjugate_gradients.solve_if_accurate)
        dense = self._factorising("")
        return Plan((careful, *dense.steps), dense.refusal)

    def _factorising(self, why: str) -> Plan:
        """Cholesky where that is safe, then what the data and the memory allow."""
        steps = [self._cholesky(why)]
        if self.problem.n_samples is None:
            loaded = Step("dual", "so the kernel was taken", attempt=dual.solve_if_few)
            steps.append(loaded)
        if self.problem.read is None:  # on a cluster
            instead = "so the equations are solved on the data"
            return Plan((*steps, Step("pcg", instead, self.estimate.get("pcg", 0))))
        if self._fits("qr"):
            instead = "so the features were reduced by orthogonal transformations"
            return Plan((*steps, Step("qr", instead, self.estimate["qr"])))
        refusal = f"{what_needs(self.problem.features, 'qr')} needs {self._too_large_for('qr')}"
        if not self._fits("pcg"):
            return Plan(tuple(steps), refusal)
        instead = f"and orthogonal transformations do not fit: {refusal}"
        return Plan((*steps, Step("pcg", instead, self.estimate.get("pcg", 0))))

    def _few_samples(self) -> bool:
        n = self.problem.n_samples
        return n is not None and n < self.problem.features.count

    def _cholesky(self, why: str) -> Step:
        return Step("cholesky", why, self.estimate["cholesky"], cholesky.solve_if_safe)

    def _dual(self) -> Step:
        n, p = self.problem.n_samples, self.problem.features.count
        return Step("dual", f"{n} samples are fewer than the {p} features", self.estimate["dual"])

    def _fits(self, solver: str, beside: int = 0) -> bool:
        return self.estimate.get(solver, 0) + beside <= self.resources.memory

    def _too_large(self, solver: str) -> str:
        name = {"cholesky": "Cholesky", "pcg": "PCG"}[solver]
        needed, memory = in_words(self.estimate[solver]), in_words(self.resources.memory)
        return f"{name} needs {needed}, more than the {memory} that may be used"

    def _too_large_for(self, solver: str) -> str:
        source = "this machine has" if self.resources.limit is None else "memory_limit is"
        return f"{in_words(self.estimate[solver])}, {source} {in_words(self.resources.memory)}"

    def _require_that_one_fits(self) -> None:
        """Raise MemoryError where no solver fits, and say what each would need."""
        considered = {name: self.estimate[name] for name in ("cholesky", "dual", "pcg")}
        if any(self._fits(name) for name in considered):
            return
        features = self.problem.features
        source = "this machine has" if self.resources.limit is None else "memory_limit is"
        needs = ", ".join(f"{name!r} needs {in_words(size)}" for name, size in considered.items())
        raise MemoryError(
            f"fit: {features.made_of} ({features.count} features), no solver is possible: {needs}; "
            f"{source} {in_words(self.resources.memory)}"
        )


_LEAST_NORM = Step(
    "eigh", "so the solution of least norm was taken", attempt=cholesky.solve_for_least_norm
)
