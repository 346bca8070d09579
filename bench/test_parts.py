"""The parts, timed one by one with pytest-benchmark:  .venv/bin/python -m pytest bench

Each answer is compared with the numpy backend's before it is timed.
"""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.data.tokens import as_tokens
from linattn_fast.features.samples import Samples


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("d", [4, 8, 16])
def test_moments(benchmark, positions, precision, d):
    Z = np.random.default_rng(0).standard_normal((2048 // (d // 4), 16, d))
    samples = Samples.checked(Z, positions=positions, d_out=0)
    compiled = get_backend("cpu")
    found = compiled.moments(samples, precision).gram
    expected = get_backend("numpy").moments(samples).gram
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    benchmark(compiled.moments, samples, precision)


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("source", ["heads", "coefficients"])
def test_layer(benchmark, positions, source):
    rng = np.random.default_rng(0)
    heads = la.Heads(rng.standard_normal((3, 8, 8)), rng.standard_normal((3, 8, 8)))
    tokens = as_tokens(rng.standard_normal((2000, 32, 8)))
    compiled, C = get_backend("cpu"), heads.coefficients()

    def run():
        if source == "heads":
            return compiled.heads(heads.V, heads.Q, tokens, positions)
        return compiled.coefficients(C, tokens, positions)

    expected = get_backend("numpy").heads(heads.V, heads.Q, tokens, positions)
    assert np.abs(run() - expected).max() < 1e-12 * np.abs(expected).max()
    benchmark(run)


@pytest.mark.parametrize("solver", ["cholesky", "eigh", "qr"])
def test_solve(benchmark, solver):
    rng = np.random.default_rng(0)
    truth = la.Heads(rng.standard_normal((2, 1, 6)), rng.standard_normal((2, 6, 6)))
    Z = rng.standard_normal((600, 16, 6))
    y = truth(Z)
    fit = benchmark(la.fit, Z, y, solver=solver, heads=None)
    assert np.abs(fit.coefficients - truth.coefficients()).max() < 1e-9
