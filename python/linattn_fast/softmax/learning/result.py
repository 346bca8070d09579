"""The result of a fit: the layer, the evidence for it, and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...arrays.types import Floats
from ...data.scoring import score_of
from ...features import files as storage
from ...fitting.result import Fit as LinearFit
from ...system.arguments import calling
from ...system.machine import same_bits
from ..descent.objective import Point
from ..evidence.held_out import HeldOut
from ..evidence.identifiability import Identifiability
from ..evidence.named_cases import Case
from ..evidence.report import Report
from ..examples.given import host_tokens, tokens_and_targets
from ..examples.split import Split
from ..layer.layer import Layer
from ..search.many_starts import Start
from .comparison import Comparison

_KIND, _FILE_VERSION = "softmax", 1
"""Kind and version that stand in the file of a fit."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A learned layer. Made by :func:`fit` and :func:`load`."""

    layer: Layer
    """The layer, for tokens and targets as they were given."""
    report: Report
    """What was shown about it; ``print(fit.report)``."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage took."""
    scalar_targets: bool = False
    """Whether the targets came without an axis of outputs; predictions then have none either."""

    @property
    def Theta(self) -> Floats:
        """Attention, (m, d, d)."""
        return self.layer.Theta

    @property
    def W(self) -> Floats:
        """Values, (m, d, d_out)."""
        return self.layer.W

    @same_bits
    def predict(self, X: object, *, offsets: object = None) -> Floats | list[Floats]:
        """Apply the learned layer.

        Parameters
        ----------
        X, offsets
            Tokens, as for :func:`fit`.

        Returns
        -------
        array or list
            Outputs in the form of the targets: one row a token, without the last axis where the
            targets had none.
        """
        y = self.layer(X, offsets=offsets)
        if not self.scalar_targets:
            return y
        return [each[:, 0] for each in y] if isinstance(y, list) else y[..., 0]

    @same_bits
    def score(
        self, X: object, Y: object, sample_weight: object = None, *, offsets: object = None
    ) -> float:
        """R^2 of the predictions, the mean over outputs; see :meth:`linattn_fast.Fit.score`.

        Parameters
        ----------
        X, Y, sample_weight, offsets
            As for :func:`fit`.

        Returns
        -------
        float
            Score: 1 is best, and predicting the mean of the targets scores 0.
        """
        tokens = host_tokens(X, offsets, d=self.layer.d)
        y = self.layer(tokens)
        rows = (np.concatenate(y) if isinstance(y, list) else y).reshape(-1, self.layer.d_out)
        with calling(Z="X", y="Y"):
            return score_of(tokens, Y, rows, "all", sample_weight)

    def to_torch(self, dtype: object = None) -> Any:
        """The layer as a ``torch.nn.Module`` with parameters Theta and W.

        Parameters
        ----------
        dtype
            As for :meth:`Layer.to_torch`.

        Returns
        -------
        torch.nn.Module
            The module, to be called on tokens (..., k, d).
        """
        return self.layer.to_torch(dtype)

    @same_bits
    def compare(
        self, linear: LinearFit, X: object, Y: object, *, offsets: object = None
    ) -> Comparison:
        """Relative errors of this layer and of a linear attention fit on the same data.

        Parameters
        ----------
        linear
            ``la.fit(X, Y, positions="all")``, or another linear fit with these d and d_out.
        X, Y, offsets
            As for :func:`fit`; preferably sequences to which neither was fitted.

        Returns
        -------
        Comparison
            Both errors, and the number of unknowns of either layer.
        """
        if not isinstance(linear, LinearFit):
            raise TypeError(f"linear: a fit of la.fit is needed, got {type(linear).__name__}")
        if (linear.d, linear.d_out) != (self.layer.d, self.layer.d_out):
            raise ValueError(
                f"linear: d = {self.layer.d}, d_out = {self.layer.d_out} are needed, got "
                f"d = {linear.d}, d_out = {linear.d_out}"
            )
        tokens, targets = tokens_and_targets(X, Y, offsets, d=self.layer.d, d_out=self.layer.d_out)
        y = targets.rows()
        size = float(np.linalg.norm(y)) or 1.0
        both = (self.predict(tokens), linear.get().predict(tokens, positions="all"))
        rows = [np.concatenate(each) if isinstance(each, list) else each for each in both]
        errors = [float(np.linalg.norm(r.reshape(y.shape) - y)) / size for r in rows]
        unknowns = self.Theta.size + self.W.size
        return Comparison(errors[0], errors[1], unknowns, linear.coefficients.size)

    def save(self, path: storage.PathLike) -> None:
        """Write to an ``.npz`` file, atomically (format in docs/files.md); read by :func:`load`.

        Parameters
        ----------
        path
            Used as given; a file that is there is replaced.
        """
        report = {name: getattr(self.report, name) for name in _PLAIN}
        report["held_out"] = asdict(self.report.held_out)
        report["starts"] = [asdict(start) for start in self.report.starts]
        report["cases"] = [asdict(case) for case in self.report.cases]
        known = self.report.identifiability
        report["identifiability"] = {name: getattr(known, name) for name in _NUMBERS}
        arrays = {
            "Theta": self.Theta,
            "W": self.W,
            "Theta_errors": known.theta_errors,
            "W_errors": known.value_errors,
        }
        meta = {
            "report": report,
            "seconds": self.seconds,
            "scalar_targets": self.scalar_targets,
        }
        storage.write(path, _KIND, _FILE_VERSION, meta, arrays)


_PLAIN = (
    "verdict",
    "reasons",
    "training_error",
    "tolerance",
    "solved",
    "fewer_heads_error",
    "more_heads_error",
)
_NUMBERS = (
    "theta_nullity",
    "theta_condition",
    "value_nullity",
    "value_condition",
    "unknowns",
    "equations",
)


def layer_at(point: Point, split: Split) -> Layer:
    """The layer at a point, for tokens and targets as they were given."""
    return Layer(split.units.theta_out(point.Theta), split.units.values_out(point.W))


def load(path: storage.PathLike) -> Fit:
    """Read a layer that :meth:`Fit.save` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Fit
        Equal to what was saved.
    """
    names, keys = ("Theta", "W", "Theta_errors", "W_errors"), ("report", "seconds")
    meta, arrays = storage.read(path, _KIND, _FILE_VERSION, names, keys)
    try:
        report: dict[str, Any] = meta["report"]
        known = Identifiability(
            **report["identifiability"],
            theta_errors=arrays["Theta_errors"],
            value_errors=arrays["W_errors"],
        )
        rebuilt = Report(
            **{name: report[name] for name in _PLAIN if name != "reasons"},
            reasons=tuple(report["reasons"]),
            held_out=HeldOut(**report["held_out"]),
            starts=tuple(Start(**start) for start in report["starts"]),
            cases=tuple(Case(**case) for case in report["cases"]),
            identifiability=known,
        )
        scalar = bool(meta.get("scalar_targets", False))  # older files lack it
        return Fit(Layer(arrays["Theta"], arrays["W"]), rebuilt, meta["seconds"], scalar)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"path: {path} holds a softmax layer that is not whole ({error})"
        ) from None
