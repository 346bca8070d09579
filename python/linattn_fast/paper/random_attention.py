"""The experiment of figures 1 and 3: one random head, learned by AdamW and by least squares.

Sequences of T = 100 Gaussian tokens in R^d with causal targets of one random head
(:func:`linattn_fast.datasets.random_linear_attention`), another data set for each seed. The number
of sequences is the paper's at d = 4 for every d: 204,800 positions are 94 for each of the 2,176
features at d = 16. Models are trained several at once (:mod:`linattn_fast.paper.models`); how long
one takes is measured apart, alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..arrays.types import Floats
from ..datasets import LayerDataset, random_linear_attention
from ..features.features import Features
from ..fitting.call import fit
from ..fitting.certify import certify
from ..fitting.result import Fit
from ..system.machine import get_num_threads, processor
from .figure import Settings, Steps
from .kept import kept

if TYPE_CHECKING:
    from .models import ModelFamily


Result = TypeVar("Result")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the experiment."""

    dimensions: tuple[int, ...] = (2, 4, 8, 16)
    sequences: int = 2048
    length: int = 100
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    layers: tuple[int, ...] = (2, 4)
    """One head each; a single layer is among ``heads``."""
    rates: tuple[float, ...] = (0.01, 0.001)
    batches: tuple[int, ...] = (32, 64)
    seeds: int = 3
    epochs: int = 50
    """Epochs of single layers."""
    long_epochs: int = 12
    """Epochs of deeper models and of the Transformer, which take several times as long."""
    repeats: int = 7
    """Runs of which the shortest counts, where time is measured."""


QUICK = Sizes((2, 4), 256, 32, (1, 4), (2,), (0.01, 0.001), (32, 64), 2, 8, 4, 3)


@dataclass(frozen=True)
class Curve:
    """Losses of one model at one setting, and the time it takes alone."""

    d: int
    model: str
    batch: int
    rate: float
    losses: Floats
    """(seeds, epochs), each relative to the variance of the targets."""
    seconds: float
    """Seconds of an epoch."""

    @property
    def epochs(self) -> Floats:
        """Numbers of the epochs, from 1."""
        return np.arange(1, self.losses.shape[1] + 1, dtype=np.float64)

    def log10_mean(self) -> tuple[Floats, Floats]:
        """Mean over seeds of log10 of the losses, and its standard error."""
        logs = np.log10(np.maximum(self.losses, np.finfo(np.float32).tiny))
        error = logs.std(0, ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.zeros(len(logs.T))
        return logs.mean(0), error


@dataclass(frozen=True)
class Convex:
    """The least-squares solution of one dimension, over the seeds.

    Times are medians over seeds of the shortest of a few runs.
    """

    d: int
    loss: float
    """Largest over seeds, relative to the variance of the targets."""
    distance: float
    """||p(theta) - p(theta_hat)||_F relative to ||p(theta)||_F, largest over seeds."""
    seconds: float
    """Time from tokens to coefficients: ``fit(.., heads=None, certify=False)``."""
    heads_seconds: float
    """Time from tokens to coefficients and heads: ``fit(.., certify=False)``."""
    n_heads: int
    """Number of heads that were found, the most over seeds."""
    proof_sequences: int
    """Sequences that the proof is made of."""
    proof_seconds: float
    """Time to their certificate, which more data can only strengthen."""
    proof: str
    """The verdict of that certificate."""
    whole_seconds: float
    """Time of ``fit(..)``, with the heads and the certificate of all of the data."""
    lambda_min: float
    """lambda_min of all of the data, least over seeds."""


@dataclass(frozen=True)
class Experiment:
    """What the figures are drawn from."""

    sizes: Sizes
    curves: tuple[Curve, ...]
    convex: tuple[Convex, ...]

    def best(self, d: int, model: str, batch: int) -> Curve:
        """The learning rate that reaches the least loss."""
        some = [c for c in self.curves if (c.d, c.model, c.batch) == (d, model, batch)]
        return min(some, key=lambda curve: float(curve.log10_mean()[0].min()))

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in order."""
        return tuple(dict.fromkeys(curve.model for curve in self.curves))

    def fastest(self, d: int) -> Curve:
        """The model whose epoch takes the least time."""
        return min((c for c in self.curves if c.d == d), key=lambda curve: curve.seconds)


def data_sets(sizes: Sizes, d: int, seed: int) -> list[LayerDataset]:
    """The data sets of one dimension, one for each seed."""
    return [
        random_linear_attention(sizes.sequences, sizes.length, d, seed=np.random.SeedSequence(key))
        for key in ((seed, i, d) for i in range(sizes.seeds))
    ]


def _families(sizes: Sizes) -> dict[str, ModelFamily]:
    """Families of models that are trained together, by the names of their kept parts."""
    from .models import LinearAttention, ManyHeads, SoftmaxTransformer  # noqa: PLC0415  # PyTorch

    deep = {f"layers{n}": LinearAttention(n) for n in sizes.layers}
    return {"heads": ManyHeads(sizes.heads), **deep, "softmax": SoftmaxTransformer()}


def run(sizes: Sizes, settings: Settings) -> Experiment:
    """Train, time and solve, with every part kept in the folder of the settings."""
    families = _families(sizes)
    epochs = {
        name: sizes.epochs if name == "heads" else sizes.long_epochs for name in families
    }  # name of family -> epochs
    steps = Steps(settings, len(sizes.dimensions) * len(sizes.batches) * sum(epochs.values()))
    trained: dict[tuple[int, str, int], list[Any]] = {}
    for name, family in families.items():
        for d in sizes.dimensions:
            for batch in sizes.batches:
                before = steps.done
                trained[d, name, batch] = _trained(
                    sizes, settings, d, name, family, batch, epochs[name], steps
                )
                steps(epochs[name] - (steps.done - before))  # those that were kept
    curves = []
    convex = []
    for d in sizes.dimensions:
        times = _times(sizes, settings, d)
        convex.append(Convex(**times["convex"]))
        for name, family in families.items():
            for batch in sizes.batches:
                losses = np.array(trained[d, name, batch])  # (S, L, M, epochs)
                curves += [
                    Curve(
                        d, model, batch, rate, losses[:, r, m], times["epochs"][model][str(batch)]
                    )
                    for m, model in enumerate(family.labels)
                    for r, rate in enumerate(sizes.rates)
                ]
    return Experiment(sizes, tuple(curves), tuple(convex))


def _trained(
    sizes: Sizes,
    settings: Settings,
    d: int,
    name: str,
    family: ModelFamily,
    batch: int,
    epochs: int,
    steps: Steps,
) -> list[Any]:
    """Losses (S, L, M, epochs) as lists."""

    def make() -> dict[str, Any]:
        from .training import Training, as_tensors, train, use_threads  # noqa: PLC0415  # PyTorch

        use_threads()
        data = data_sets(sizes, d, settings.seed)
        Z, y = as_tensors([one.Z for one in data]), as_tensors([one.y[..., 0] for one in data])
        seeds = [settings.seed + i for i in range(sizes.seeds)]
        training = Training(family, Z, y, sizes.rates, batch, seeds)
        return {"losses": train(training, epochs, steps).tolist()}

    setting = {
        "seed": settings.seed, "d": d, "models": list(family.labels), "batch": batch,
        "epochs": epochs, "sequences": sizes.sequences, "length": sizes.length,
        "rates": list(sizes.rates), "seeds": sizes.seeds,
    }  # fmt: skip
    size = "quick" if settings.quick else "full"
    losses = kept(settings, f"train-{size}-{name}-d{d}-batch{batch}", setting, make)["losses"]
    return list(losses)


def _times(sizes: Sizes, settings: Settings, d: int) -> dict[str, Any]:
    """Seconds of the convex solution and of an epoch of every model, in the same minute."""

    def make() -> dict[str, Any]:
        from .models import LinearAttention, SoftmaxTransformer  # noqa: PLC0415  # PyTorch
        from .training import as_tensors, seconds_per_epoch, use_threads  # noqa: PLC0415  # PyTorch

        use_threads()
        data = data_sets(sizes, d, settings.seed)
        convex = asdict(_solve_all(d, sizes, data))
        Z, y = as_tensors([data[0].Z]), as_tensors([data[0].y[..., 0]])
        models: list[ModelFamily] = [LinearAttention(1, heads) for heads in sizes.heads]
        models += [LinearAttention(layers) for layers in sizes.layers]
        epochs = {
            model.labels[0]: {
                str(batch): seconds_per_epoch(model, Z, y, batch, sizes.repeats, patience=0.7)
                for batch in sizes.batches
            }
            for model in [*models, SoftmaxTransformer()]
        }
        return {"convex": convex, "epochs": epochs}

    setting = {
        "seed": settings.seed, "d": d, "sequences": sizes.sequences, "length": sizes.length,
        "heads": list(sizes.heads), "layers": list(sizes.layers), "batches": list(sizes.batches),
        "seeds": sizes.seeds, "processor": processor(), "threads": get_num_threads(),
    }  # fmt: skip
    size = "quick" if settings.quick else "full"
    return kept(settings, f"times-{size}-d{d}", setting, make)


def _shortest(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Seconds of the shortest of a few runs, and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


def _solve(data: LayerDataset, proof_sequences: int, repeats: int) -> dict[str, Any]:
    """Least squares on the data of one seed."""
    Z, y, truth = data
    solve = partial(fit, Z, y, positions="causal")
    seconds, layer = _shortest(partial(solve, heads=None, certify=False), repeats)

    def solve_with_heads(**settings: Any) -> Fit:
        found = solve(**settings)
        assert found.heads is not None  # found when asked for, which is part of the time
        return found

    heads_seconds, recovered = _shortest(partial(solve_with_heads, certify=False), repeats)
    proof_seconds, proof = _shortest(
        partial(certify, Z[:proof_sequences], positions="causal"), repeats
    )
    whole_seconds, whole = _shortest(solve_with_heads, max(1, repeats // 2))
    assert recovered.heads is not None  # both were asked for
    assert whole.certificate is not None
    rest = np.asarray(layer.predict(Z, positions="causal")) - y
    C = truth.coefficients()
    return {
        "loss": float((rest**2).mean() / y.var()),
        "distance": float(np.linalg.norm(layer.coefficients - C) / np.linalg.norm(C)),
        "seconds": seconds, "heads_seconds": heads_seconds, "n_heads": len(recovered.heads),
        "proof_seconds": proof_seconds, "proof": proof.verdict,
        "whole_seconds": whole_seconds, "lambda_min": whole.certificate.lambda_min,
    }  # fmt: skip


def _solve_all(d: int, sizes: Sizes, data: list[LayerDataset]) -> Convex:
    """Least squares on the data of every seed, summarised."""
    samples = 4 * Features(d).count
    proof_sequences = min(sizes.sequences, max(8, -(-samples // sizes.length)))
    each = [_solve(one, proof_sequences, sizes.repeats if d <= 8 else 1) for one in data]

    def of(combine: Callable[[list[Any]], Any], name: str) -> Any:
        return combine([one[name] for one in each])

    return Convex(
        d=d,
        loss=of(max, "loss"),
        distance=of(max, "distance"),
        seconds=of(statistics.median, "seconds"),
        heads_seconds=of(statistics.median, "heads_seconds"),
        n_heads=of(max, "n_heads"),
        proof_sequences=proof_sequences,
        proof_seconds=of(statistics.median, "proof_seconds"),
        proof=" or ".join(sorted(of(set, "proof"))),
        whole_seconds=of(statistics.median, "whole_seconds"),
        lambda_min=of(min, "lambda_min"),
    )
