"""Figure 2: associative memory, where the certificate says how far a fit is from the truth.

Tables of d = 4 keys and values, a share of them orthonormal and the others Gaussian
(:func:`linattn_fast.datasets.associative_memory`). The more orthonormal tables there are, the less
the data says about the rest of the layer, and lambda_min falls.

(a) The convex solution C from targets with noise sigma, at every mixture. Where lambda_min > 0,

        E ||C - C_true||_F^2 = sigma^2 d_out tr(Lambda^-1) / N

    so that the distance is about sigma sqrt(d_out / (N lambda_min)) times a slowly varying factor:
    it falls as lambda_min grows. Where lambda_min = 0 other layers fit equally well, and how far
    they are from the truth is not bounded at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..certifying import certify
from ..datasets import associative_memory
from ..fitting import fit
from ..machine import processor
from ..threads import get_num_threads
from .figure import Figure, Finding, Settings

_D, _NOISE = 4, 0.01
_SAMPLES, _QUICK_SAMPLES = 2**14, 2**12
_SEEDS, _QUICK_SEEDS = 5, 2
_MIXTURES = (0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.9825, 0.985)
_QUICK_MIXTURES = (0.80, 0.85, 0.90, 0.92)


def _point(N: int, mixture: float, seed: np.random.SeedSequence) -> dict[str, object]:
    """Fit one data set, and compare it with the layer that made it."""
    Z, y, truth = associative_memory(N, _D, orthonormal=mixture, noise=_NOISE, seed=seed)
    layer = fit(Z, y, heads=None)
    certificate = layer.certificate
    assert certificate is not None  # asked for
    expected = np.nan
    if certificate.verdict == "identifiable":
        spectrum = certify(Z, spectrum=True).spectrum
        assert spectrum is not None
        expected = _NOISE * float(np.sqrt(_D * (1 / spectrum).sum() / N))
    return {
        "part": "a",
        "samples": N,
        "mixture": mixture,
        "verdict": certificate.verdict,
        "lambda_min": certificate.lambda_min,
        "lower_bound": certificate.lower_bound,
        "rank": certificate.rank,
        "dimension": certificate.dimension,
        "distance": float(np.linalg.norm(layer.coefficients - truth.coefficients())),
        "expected_distance": expected,
    }


def _run(settings: Settings) -> Finding:
    N = _QUICK_SAMPLES if settings.quick else _SAMPLES
    mixtures = _QUICK_MIXTURES if settings.quick else _MIXTURES
    seeds = np.random.SeedSequence(settings.seed).spawn(_QUICK_SEEDS if settings.quick else _SEEDS)
    work = [(mixture, seed) for mixture in mixtures for seed in seeds]
    rows = []
    for done, (mixture, seed) in enumerate(work):
        settings.report(done, len(work))
        rows.append(_point(N, mixture, seed))
    settings.report(len(work), len(work))
    points = np.array([[row["lambda_min"], row["distance"]] for row in rows], dtype=float)
    seen = np.log(points[points[:, 0] > 0])
    slope = float(np.polyfit(seen[:, 0], seen[:, 1], 1)[0])
    text = (
        f"Associative memory, d = {_D}, {N:,} samples, noise {_NOISE:g}, {len(seeds)} seeds, "
        f"{processor()}, {get_num_threads()} threads.\n"
        f"Distance ~ lambda_min^{slope:.2f}"
    )

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.loglog(*points.T, "o")
        axis.set(xlabel="lambda_min", ylabel="distance")

    return Finding(rows, text, draw, (6, 4.5), {"slope": slope})


FIGURE = Figure(
    name="fig2",
    title="associative memory: the distance to the truth falls as the certificate grows",
    description="associative memory, 2^14 tables of 4 keys and values, 95-100 % of them "
    "orthonormal.\nThe convex solution's distance to the truth against lambda_min.",
    run=_run,
)
