"""What every solver is given (a task) and returns: a solved problem, or why it is not safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..backend.normal_operator import KroneckerFactors
from ..linalg.factors import Factorisation
from ..moments.sums import MomentSums
from ..problem.interface import Passes, Problem, ShowProgress
from ..system.progress import Stages
from .accuracy import Solution

if TYPE_CHECKING:
    from ..certificate.certificate import Certificate
    from .blocks.solver import SolvedBlocks
    from .conjugate_gradients.whitening import Whitening


@dataclass
class Task:
    """A problem with what is asked about it, and the moments once some solver has needed them."""

    problem: Problem
    alpha: float
    """Ridge, added to the mean loss."""
    tol: float | None = None
    """Accuracy at which conjugate gradients may stop; None goes on to rounding."""
    certify: bool = True
    """Whether a certificate follows, so that what it needs is kept."""
    sharp: bool = False
    """Whether its bound is to be near lambda_min, which takes a factorisation more."""
    memory_limit: int | None = None
    """Bytes that may be used beside the data; None for the machine's memory."""
    sparing: bool = False
    """Whether memory is not to grow with the number of samples, as nobody asked for a solver."""
    progress: ShowProgress = False
    stages: Stages = field(default_factory=Stages)
    moments: MomentSums | None = None
    """The moments, once :func:`linattn_fast.solvers.cholesky.accumulated` has made them."""


@dataclass(frozen=True)
class Solved:
    """A solved problem: all that the certificate, the heads and the result are made from."""

    solver: str
    problem: Problem
    """What was solved: the problem of the task, or all of its samples gathered in memory."""
    solution: Solution
    reason: str
    """How it went, in words."""
    condition: float
    """Condition number of the equilibrated second moment with its ridge."""
    mean_squared_target: float
    n_samples: int
    coefficient_error: float | None
    """Bound on the relative error of the coefficients; None where it is unknown."""
    iterations: int = 0
    """Iterations of conjugate gradients, restarts included."""
    bytes: int | None = None
    """Bytes held at the peak beside the data, where the plan could not know them."""

    factor: Factorisation | None = None
    """The factorisation of Lambda + alpha I, where one was made."""
    passes: Passes | None = None
    """Passes over the data, where the normal equations were solved by them."""
    kronecker: KroneckerFactors | None = None
    """The Kronecker factors of these passes."""
    whitening: Whitening | None = None
    """What conjugate gradients made of them, where that is of use again."""
    blocks: SolvedBlocks | None = None
    """The factorisation of each block, where there are blocks."""
    certificate: Certificate | None = None
    """The certificate, where solving has proved it as well."""
