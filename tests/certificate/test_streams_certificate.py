"""Certificates of streams: nothing is proved that exact arithmetic on the streams denies."""

from fractions import Fraction

import numpy as np
import pytest
from flint import fmpq, fmpq_mat

import linattn_fast as la


def exact_rows(queries, keys, values, gates, mean):
    """Features of causal streams in exact arithmetic, one list of fractions a query."""
    rows = []
    for c, b, a, g in zip(queries, keys, values, gates, strict=True):
        M = [[Fraction(0)] * b.shape[1] for _ in range(a.shape[1])]
        D = Fraction(0)
        for t in range(len(b)):
            gate = Fraction(float(g[t]))
            D = gate * D + 1
            M = [
                [
                    gate * M[j][k] + Fraction(float(a[t, j])) * Fraction(float(b[t, k]))
                    for k in range(b.shape[1])
                ]
                for j in range(a.shape[1])
            ]
            scale = D if mean else Fraction(1)
            rows.append([m * Fraction(float(x)) / scale for row in M for m in row for x in c[t]])
    return rows


def exceeds(rows, bound):
    """Whether mean h h' - bound I is positive definite: all leading minors are, by elimination."""
    p = len(rows[0])
    H = fmpq_mat(len(rows), p, [fmpq(x.numerator, x.denominator) for row in rows for x in row])
    shift = Fraction(float(bound)) * len(rows)
    A = H.transpose() * H
    for i in range(p):
        A[i, i] -= fmpq(shift.numerator, shift.denominator)
    size = list(range(p))
    return all(
        fmpq_mat(k + 1, k + 1, [A[i, j] for i in size[: k + 1] for j in size[: k + 1]]).det() > 0
        for k in range(p)
    )


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_bound_holds_in_exact_arithmetic(rng, backend, mean, gated):
    queries, keys, values = (rng.standard_normal((6, 4, 2)) for _ in range(3))
    gates = rng.uniform(0.3, 1.0, (6, 4)) if gated else np.ones((6, 4))
    streams = la.Streams(
        queries, keys, values, decay=gates if gated else None, scale="mean" if mean else None
    )
    certificate = la.certify(streams, positions="causal", backend=backend)
    rows = exact_rows(queries, keys, values, gates, mean)
    if gated and backend == "numpy":  # nothing there tells whether a gated sum has underflowed
        assert certificate.verdict == "undecided"
        assert certificate.lower_bound == 0
        return
    assert certificate.verdict == "identifiable"
    assert exceeds(rows, certificate.lower_bound)
    assert not exceeds(rows, 1.001 * certificate.lambda_min)
    assert certificate.lower_bound > 0.9 * certificate.lambda_min


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("seed", range(6))
def test_sums_that_cancel_prove_nothing(backend, seed):
    """M is zero in exact arithmetic, and what is left of it is rounding: 0.1 + 0.2 - 0.3 and so on.

    States of the rounded memory would be identifiable.
    """
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((60, 3, 2)), rng.standard_normal((60, 3, 2))
    keys = np.concatenate([b, b], axis=1)
    values = np.concatenate([a, -a], axis=1)
    order = rng.permutation(6)
    streams = la.Streams(rng.standard_normal((60, 2)), keys[:, order], values[:, order])
    rounded = streams.states("last").memory
    certificate = la.certify(streams, backend=backend)
    assert certificate.lower_bound == 0
    assert certificate.verdict != "identifiable"
    if (np.abs(rounded) > 0).any():
        assert np.abs(rounded).max() < 1e-14


def test_keys_that_never_occur_are_not_determined(rng):
    queries, keys, values = (rng.standard_normal((80, 4, 3)) for _ in range(3))
    keys[:, :, 1] = 0.0
    streams = la.Streams(queries, keys, values, decay=0.5)
    certificate = la.certify(streams, positions="causal")
    assert certificate.verdict == "not identifiable"
    assert certificate.rank == 18
    assert certificate.covers(streams).all()
    other = keys.copy()
    other[:, 2, 1] = 1e-200
    covered = certificate.covers(la.Streams(queries, other, values, decay=0.5))
    assert covered[:, :2].all()
    assert not covered[:, 2:].any()


def test_roundings_are_counted(rng):
    """One a key, two with gates, one for a factor, and those of a quotient for a mean."""
    queries, keys, values = (rng.standard_normal((3, 7, 2)) for _ in range(3))
    for keywords, roundings in (
        ({}, 7),
        ({"decay": 0.5}, 14),
        ({"scale": np.ones((3, 7))}, 8),
        ({"scale": "mean"}, 9),
        ({"scale": "mean", "decay": 0.5}, 30),
        ({"lengths": np.array([2, 5, 1])}, 5),
        ({"attend_self": False}, 6),
    ):
        states = la.Streams(queries, keys, values, **keywords).states("causal")
        assert states.longest == roundings
