"""Figure 2: associative memory, where the certificate says how far a fit is from the truth.

Tables of d = 4 keys and values, a share of them orthonormal and the others Gaussian
(:func:`linattn_fast.datasets.associative_memory`). The more orthonormal tables there are, the less
the data says about the rest of the layer, and lambda_min falls.

(a) The convex solution C from targets with noise sigma, at every mixture. Where lambda_min > 0,

        E ||C - C_true||_F^2 = sigma^2 d_out tr(Lambda^-1) / N  >=  sigma^2 d_out / (N lambda_min)

    so that the distance falls as lambda_min grows. With orthonormal tables alone lambda_min = 0:
    other layers fit equally well. The one of least norm is the truth, which has no part in what the
    data never has; but that is nothing the data says, and trained layers end elsewhere.

(b) Layers with 1, 2, 4 and 8 heads trained by gradient descent, without noise, at a mixture that
    determines the layer and at one that does not (:mod:`linattn_fast.paper.memory_training`).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.types import Floats
from ..datasets import LayerDataset, associative_memory
from ..fitting.call import fit
from ..fitting.certify import certify
from ..system.tables import table
from .figure import Figure, Finding, Settings, Steps, machine

_D, _SAMPLES, _NOISE = 4, 2**14, 0.01
_TRAINED_MIXTURES = (0.95, 1.0)
_COLOURS = ("#9ecae1", "#4292c6", "#2171b5", "#08306b")
"""More heads are darker."""


@dataclass(frozen=True)
class _Sizes:
    """Sizes of the experiment."""

    mixtures: tuple[float, ...] = (
        0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.9825, 0.985, 0.986, 0.987,
    )  # fmt: skip
    """Beyond these, too few tables are Gaussian for 288 features to be determined."""
    seeds: int = 5
    heads: tuple[int, ...] = (1, 2, 4, 8)
    trained_samples: int = _SAMPLES
    trained_seeds: int = 3
    epochs: int = 20


_QUICK = _Sizes((0.95, 0.97, 0.98, 0.985, 0.987), 2, (1, 4), 2**13, 1, 20)


@dataclass(frozen=True)
class _Trained:
    """What (b) has found."""

    losses: Floats
    """(mixtures, seeds, numbers of heads, epochs), relative to mean ||y||^2."""
    distances: Floats
    """||C - C_true||_F of the same shape."""
    lambda_min: Floats
    """(mixtures,): of the first seed."""
    energy: float
    """mean ||y||^2 at the first mixture."""


def _fitted(data: LayerDataset, mixture: float, noise: float, seed: int) -> dict[str, Any]:
    """Fit one data set, and compare it with the layer that made it."""
    Z, y, truth = data
    layer = fit(Z, y, heads=None)
    certificate = layer.certificate
    assert certificate is not None  # asked for
    expected = None
    if certificate.verdict == "identifiable":
        spectrum = certify(Z, spectrum=True).spectrum
        assert spectrum is not None
        expected = noise * float(np.sqrt(_D * (1 / spectrum).sum() / len(Z)))
    return {
        "part": "a", "samples": len(Z), "orthonormal": mixture, "noise": noise, "seed": seed,
        "verdict": certificate.verdict, "lambda_min": certificate.lambda_min,
        "lower_bound": certificate.lower_bound, "rank": certificate.rank,
        "dimension": certificate.dimension, "expected_distance": expected,
        "distance": float(np.linalg.norm(layer.coefficients - truth.coefficients())),
    }  # fmt: skip


def _seeds(settings: Settings, part: int, number: int) -> list[np.random.SeedSequence]:
    return [np.random.SeedSequence((settings.seed, part, i)) for i in range(number)]


def _fit_mixtures(sizes: _Sizes, settings: Settings, steps: Steps) -> list[dict[str, Any]]:
    """(a): with noise at every mixture and seed, and orthonormal tables alone without."""
    rows = []
    cases = [(mixture, _NOISE) for mixture in sizes.mixtures]
    for mixture, noise in [*cases, (1.0, 0.0)]:
        for i, seed in enumerate(_seeds(settings, 0, sizes.seeds if noise else 1)):
            data = associative_memory(_SAMPLES, _D, orthonormal=mixture, noise=noise, seed=seed)
            rows.append(_fitted(data, mixture, noise, i))
            steps()
    return rows


def _train(sizes: _Sizes, settings: Settings, steps: Steps) -> _Trained:
    """Train the layers of (b) at both mixtures."""
    from .memory_training import train_memories  # noqa: PLC0415  # PyTorch, an optional extra

    data = [
        associative_memory(sizes.trained_samples, _D, orthonormal=mixture, seed=seed)
        for mixture in _TRAINED_MIXTURES
        for seed in _seeds(settings, 1, sizes.trained_seeds)
    ]
    seeds = [settings.seed + i for _ in _TRAINED_MIXTURES for i in range(sizes.trained_seeds)]
    found = train_memories(data, sizes.heads, sizes.epochs, seeds, steps)
    losses, distances = (
        one.reshape(len(_TRAINED_MIXTURES), sizes.trained_seeds, *one.shape[1:]) for one in found
    )
    firsts = data[:: sizes.trained_seeds]
    return _Trained(
        losses,
        distances,
        np.array([certify(one.Z).lambda_min for one in firsts]),
        float((firsts[0].y ** 2).sum(1).mean()),
    )


def _trained_rows(sizes: _Sizes, trained: _Trained) -> list[dict[str, Any]]:
    return [
        {"part": "b", "samples": sizes.trained_samples, "orthonormal": _TRAINED_MIXTURES[m],
         "noise": 0.0, "seed": s, "lambda_min": float(trained.lambda_min[m]),
         "heads": sizes.heads[h], "epoch": e + 1,
         "loss": float(f"{trained.losses[m, s, h, e]:.5g}"),
         "distance": float(f"{trained.distances[m, s, h, e]:.5g}")}
        for m, s, h, e in np.ndindex(trained.losses.shape)
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- picture


def _draw_fits(axis: Any, rows: list[dict[str, Any]]) -> None:
    noisy = [row for row in rows if row["noise"]]
    x, y, expected, share = (
        np.array([row[name] for row in noisy])
        for name in ("lambda_min", "distance", "expected_distance", "orthonormal")
    )
    N = noisy[0]["samples"]
    line = np.geomspace(x.min() / 1.5, x.max() * 1.5, 50)
    axis.loglog(
        line, _NOISE * np.sqrt(_D / (N * line)), color="0.6", ls="--", lw=1.2, zorder=1,
        label=r"at least $\sigma\,\sqrt{d_{out}/(N\lambda_{min})}$ on average",
    )  # fmt: skip
    order = np.argsort(x)
    axis.loglog(
        x[order], expected[order], color="black", lw=1.2, zorder=2,
        label=r"expected: $\sigma\,\sqrt{d_{out}\,\mathrm{tr}\,\Lambda^{-1}/N}$",
    )  # fmt: skip
    dots = axis.scatter(x, y, c=100 * share, cmap="viridis", s=34, zorder=3, edgecolors="white",
                        linewidths=0.4, label="convex solution, one data set each")  # fmt: skip
    axis.figure.colorbar(dots, ax=axis, label="orthonormal tables, %", pad=0.02)
    axis.set(
        title="(a) The distance falls as the certificate grows",
        xlabel=r"certificate $\lambda_{min}$ (proved to be above zero)",
        ylabel=r"distance to the truth $\|p(\theta)-p(\hat\theta)\|_F$",
    )
    axis.legend(fontsize=9, loc="lower left")
    axis.grid(alpha=0.25)


def _draw_training(axis: Any, sizes: _Sizes, trained: _Trained) -> None:
    for h, heads in enumerate(sizes.heads):
        for m, style in enumerate(("-", "--")):
            for s in range(sizes.trained_seeds):
                axis.loglog(
                    trained.losses[m, s, h], trained.distances[m, s, h], style,
                    color=_COLOURS[h % len(_COLOURS)], lw=1.1,
                    label=f"{heads} head" + "s" * (heads > 1) if (m, s) == (0, 0) else None,
                )  # fmt: skip
                axis.plot(
                    trained.losses[m, s, h, -1], trained.distances[m, s, h, -1], "o", ms=4,
                    color=_COLOURS[h % len(_COLOURS)],
                )  # fmt: skip
    line = np.geomspace(trained.losses[0].min(), trained.losses.max(), 50)
    assert trained.lambda_min[0] > 0  # at a mixture that determines the layer
    axis.loglog(
        line, np.sqrt(line * trained.energy / trained.lambda_min[0]), color="tab:red", lw=1.2,
        label=r"bound $\sqrt{\mathrm{loss}/\lambda_{min}}$",
    )  # fmt: skip
    lost = trained.distances[1]
    axis.annotate(
        f"{100 * _TRAINED_MIXTURES[1]:g} % orthonormal, $\\lambda_{{min}}$ = 0:\n"
        "the loss falls, the layer\nstays another one",
        (trained.losses[1].min() / 4, float(lost.min())), fontsize=9, ha="left", va="center",
    )  # fmt: skip
    axis.invert_xaxis()
    axis.set(
        title="(b) Trained layers: a small loss is enough only\nwhere the data is identifiable",
        xlabel=r"training loss / mean $\|y\|^2$ (training goes to the right)",
        ylabel="distance to the truth",
    )
    axis.set_ylim(top=float(trained.distances.max()) * 3)
    axis.legend(
        fontsize=9, loc="lower left",
        title=f"solid: {100 * _TRAINED_MIXTURES[0]:g} %, dashed: 100 %",
    )  # fmt: skip
    axis.grid(alpha=0.25)


# ------------------------------------------------------------------------------------------- text


def _text(
    sizes: _Sizes, settings: Settings, rows: list[dict[str, Any]], trained: _Trained | None
) -> str:
    noisy = [row for row in rows if row["noise"]]
    least = next(row for row in rows if not row["noise"])
    shown = []
    for mixture in sizes.mixtures:
        some = [row for row in noisy if row["orthonormal"] == mixture]
        means = [np.mean([row[name] for row in some])
                 for name in ("lambda_min", "distance", "expected_distance")]  # fmt: skip
        verdicts = " or ".join(sorted({row["verdict"] for row in some}))
        shown.append([f"{100 * mixture:g} %", f"{means[0]:.2e}", verdicts, f"{means[1]:.2e}",
                      f"{means[2]:.2e}"])  # fmt: skip
    part_a = (
        f"Associative memory: tables of {_D} keys and values, tokens in R^{2 * _D}, "
        f"{noisy[0]['dimension']} features, {_SAMPLES:,} samples,\n"
        f"{sizes.seeds} data sets at each mixture (seed {settings.seed}). {machine()}.\n\n"
        f"(a) The convex solution, noise {_NOISE:g} on the targets. The distance "
        "||p(theta) - p(theta_hat)||_F falls as\n    lambda_min grows (means over data sets):\n\n"
        + table(["orthonormal", "lambda_min", "verdict", "distance", "expected"], shown)
        + "\n\n    Orthonormal tables alone: "
        f"{least['verdict']}, rank {least['rank']} of {least['dimension']}: other layers fit as "
        "well. The one of\n    least norm, without any noise, is "
        f"{least['distance']:.1e} from the truth."
    )
    if trained is None:
        return (
            f"{part_a}\n\n(b) trains layers with PyTorch, which is not installed "
            "(pip install 'linattn-fast[paper]'): left out."
        )
    last = [
        [f"{100 * mixture:g} %", f"{trained.lambda_min[m]:.2e}", heads,
         f"{np.exp(np.log(trained.losses[m, :, h, -1]).mean()):.1e}",
         f"{trained.distances[m, :, h, -1].min():.1e}",
         f"{trained.distances[m, :, h, -1].max():.1e}"]
        for m, mixture in enumerate(_TRAINED_MIXTURES)
        for h, heads in enumerate(sizes.heads)
    ]  # fmt: skip
    return (
        f"{part_a}\n\n"
        f"(b) AdamW on {sizes.trained_samples:,} samples without noise, {sizes.epochs} epochs, "
        f"{sizes.trained_seeds} seed{'s' * (sizes.trained_seeds > 1)}; loss relative to mean "
        "||y||^2 (geometric\n    mean over seeds), distance from the truth (least and most):\n\n"
        + table(["orthonormal", "lambda_min", "heads", "loss", "nearest", "farthest"], last)
    )


def _run(settings: Settings) -> Finding:
    sizes = _QUICK if settings.quick else _Sizes()
    with_torch = importlib.util.find_spec("torch") is not None
    fits = sizes.seeds * len(sizes.mixtures) + 1
    steps = Steps(settings, fits + with_torch * sizes.epochs)
    rows = _fit_mixtures(sizes, settings, steps)
    trained = _train(sizes, settings, steps) if with_torch else None

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 1 if trained is None else 2, squeeze=False)[0]
        _draw_fits(axes[0], rows)
        if trained is not None:
            _draw_training(axes[1], sizes, trained)

    return Finding(
        rows if trained is None else rows + _trained_rows(sizes, trained),
        _text(sizes, settings, rows, trained),
        draw,
        (6.6, 4.8) if trained is None else (12.6, 4.8),
        {"lambda_min": [row["lambda_min"] for row in rows],
         "distance": [row["distance"] for row in rows]},
    )  # fmt: skip


FIGURE = Figure(
    name="fig2",
    title="associative memory: the distance to the truth falls as the certificate grows",
    description="associative memory, 2^14 tables of 4 keys and values, 95-100 % of them "
    "orthonormal.\n(a) the convex solution's distance to the truth against lambda_min; (b) layers "
    "with 1, 2, 4\nand 8 heads trained at an identifiable and an unidentifiable mixture, which "
    "needs PyTorch\nand is left out without it. A minute or two.",
    run=_run,
)
