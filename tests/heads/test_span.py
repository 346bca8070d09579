"""The null space that holds the heads, by iteration: the same as from the matrix written out."""

import numpy as np
import pytest
from conftest import plant, relative

import linattn_fast as la
from linattn_fast.heads import ranks, span


def at_points(C, d, H, side):
    """M at points, its columns those of the values or of the queries; and the points."""
    n = d if side == "queries" else len(C)
    x = ranks._units(span.points_needed(H, n, d), d)
    M = ranks.contract_pairs(C, x)
    return (M.transpose(0, 2, 1) if side == "queries" else M), x


def bases(M, H):
    return np.linalg.svd(M, full_matrices=False)[0][:, :, :H]


def angle(A, B):
    """Sine of the largest angle between the spans of orthonormal A and B (H, n, d)."""
    a, b = (each.reshape(len(each), -1) for each in (A, B))
    return np.linalg.norm(a - (a @ b.T) @ b, 2)


@pytest.mark.parametrize(
    ("d", "d_out", "H", "side"),
    [
        (5, 1, 1, "queries"), (20, 1, 1, "queries"), (40, 1, 1, "queries"), (12, 3, 2, "values"),
        (12, 3, 3, "queries"), (16, 16, 5, "values"), (16, 16, 15, "queries"), (9, 20, 8, "values"),
    ],
)  # fmt: skip
def test_the_iteration_finds_the_span_of_the_dense_way(rng, monkeypatch, d, d_out, H, side):
    monkeypatch.setattr(span, "DENSE_UP_TO", 0)  # as many points as the iteration asks for
    M, x = at_points(plant(rng, d, H, d_out).coefficients(), d, H, side)
    found, left = span.iterated_span(bases(M, H), x)
    assert len(found) == H
    assert left <= 1e-11
    np.testing.assert_allclose(found.reshape(H, -1) @ found.reshape(H, -1).T, np.eye(H), atol=1e-12)
    # Both are in the null space to rounding, and what is beside it has eigenvalues near 0.1
    assert angle(found, span.dense_span(M, x, H)) <= 1e-9


def test_one_output_of_64_coordinates_against_the_dense_way(rng):
    d = 64
    truth = plant(rng, d, 1, 1)
    M, x = at_points(truth.coefficients(), d, 1, "queries")
    found = span.span(M, x, 1)
    dense = span.dense_span(M, x, 1)
    assert angle(found, dense) <= 1e-9
    Q = truth.Q[0].T / np.linalg.norm(truth.Q[0])
    assert min(np.linalg.norm(found[0] - Q), np.linalg.norm(found[0] + Q)) <= 1e-9


@pytest.mark.parametrize(("d", "d_out", "H"), [(64, 1, 1), (64, 3, 3), (36, 36, 4), (40, 30, 12)])
def test_heads_of_large_layers_are_found_without_the_matrix(rng, monkeypatch, d, d_out, H):
    monkeypatch.setattr(span, "dense_span", None)
    C = plant(rng, d, H, d_out).coefficients()
    heads = la.recover_heads(C, d)
    assert len(heads) == heads.recovery.at_least == H
    assert relative(heads.coefficients(), C) <= 1e-13


def test_where_there_is_no_null_space_none_is_claimed(rng, monkeypatch):
    """Points with subspaces that no linear map fits."""
    m, n, d, H = 120, 10, 8, 2
    U = np.linalg.qr(rng.standard_normal((m, n, H)))[0]
    x = ranks._units(m, d)
    assert len(span.iterated_span(U, x)[0]) == 0
    monkeypatch.setattr(span, "DENSE_UP_TO", 0)
    assert span.span(U, x, H) is None


def test_of_a_larger_null_space_some_matrices_are_taken(rng):
    """Too few points: more maps than one fit, and the one taken does."""
    truth = plant(rng, 10, 1, 1)
    x = ranks._units(6, 10)
    M = ranks.contract_pairs(truth.coefficients(), x).transpose(0, 2, 1)
    F, left = span.iterated_span(bases(M, 1), x)
    assert len(F) == 1
    assert left <= 1e-11
    for each, point in zip(M, x, strict=True):
        away = F[0] @ point - each @ np.linalg.lstsq(each, F[0] @ point)[0]
        assert np.linalg.norm(away) <= 1e-9


def test_doubt_falls_back_to_the_matrix_written_out(rng, monkeypatch):
    monkeypatch.setattr(span, "DENSE_UP_TO", 0)
    M, x = at_points(plant(rng, 8, 1, 1).coefficients(), 8, 1, "queries")
    dense = span.dense_span(M, x, 1)
    monkeypatch.setattr(span, "_STEPS", 2)  # an iteration that does not converge
    assert span.span(M, x, 1).tobytes() == dense.tobytes()


@pytest.mark.parametrize("d_out", [1, 2])
def test_heads_of_low_rank_are_found_in_many_coordinates(rng, d_out):
    """The null space is larger then than there are heads."""
    d = 40
    V = rng.standard_normal((1, d_out, d))
    for Q in (
        rng.standard_normal((1, d, 1)) * rng.standard_normal((1, 1, d)),
        np.pad(rng.standard_normal((1, d - 1, d - 1)), ((0, 0), (0, 1), (0, 1))),
    ):
        for values in (V, np.eye(d)[None, -1:] * np.ones((1, d_out, 1))):
            C = la.Heads(values, Q).coefficients()
            heads = la.recover_heads(C, d)
            assert len(heads) == 1
            assert relative(heads.coefficients(), C) <= 1e-12


def test_ill_conditioned_heads_are_found_all_the_same(rng):
    """Heads of very different sizes, and tokens' coordinates in very different units."""
    d, units = 40, 10.0 ** rng.uniform(-3, 3, 40)
    V, Q = rng.standard_normal((2, 3, d)), rng.standard_normal((2, d, d))
    V[1] *= 1e-4
    for truth in (la.Heads(V, Q), la.Heads(V[:1] * units, Q[:1] * units)):
        C = truth.coefficients()
        heads = la.recover_heads(C, d)
        assert relative(heads.coefficients(), C) <= 1e-9
        assert len(heads) == len(truth)
