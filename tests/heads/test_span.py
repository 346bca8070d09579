"""Heads by linear algebra: spans of several outputs from M(x), those of one output from B(c)."""

import numpy as np
import pytest
from conftest import plant, relative

import linattn_fast as la
from linattn_fast.heads import contractions, ranks, recovery, span


def angle(A, B):
    """Sine of the largest angle between the spans of A and B (H, n, d)."""
    a, b = (np.linalg.qr(each.reshape(len(each), -1).T)[0] for each in (A, B))
    return np.linalg.norm(a - b @ (b.T @ a), 2)


def tensor(heads):
    """T, (d_out, d, d, d), entry by entry."""
    W = np.einsum("haj,hkl->ajkl", heads.V, heads.Q)
    return (W + W.transpose(0, 2, 1, 3)) / 2


@pytest.mark.parametrize(("d", "d_out", "H"), [(1, 1, 1), (3, 1, 2), (4, 3, 2), (2, 5, 3)])
def test_contractions_are_those_of_the_tensor(rng, d, d_out, H):
    heads = plant(rng, d, H, d_out)
    C, T = heads.coefficients(), tensor(heads)
    x, u, c = (rng.standard_normal((5, n)) for n in (d, d_out, d))
    assert relative(contractions.split_evenly(C, d), T) <= 1e-14
    M = np.einsum("ajkl,mj,mk->mal", T, x, x)
    assert relative(contractions.at_squares(C, x), M) <= 1e-13
    near = 2 * np.einsum("ajkl,k->jal", T, x[0])
    assert relative(contractions.beside(C, x[0]), near) <= 1e-13
    B = np.einsum("ajkl,ma,ml->mjk", T, u, c)
    assert relative(contractions.at_outputs(C, u, c), B) <= 1e-13


def test_the_first_of_many_points_are_those_of_few():
    np.testing.assert_array_equal(
        contractions.unit_points(40, 3)[:7], contractions.unit_points(7, 3)
    )


@pytest.mark.parametrize(
    ("d", "d_out", "H"),
    [
        (5, 2, 1), (20, 2, 2), (12, 3, 2), (12, 3, 3), (16, 16, 5), (16, 16, 15), (9, 20, 8),
        (4, 4, 3), (2, 2, 1),
    ],
)  # fmt: skip
def test_the_span_of_planted_heads_is_found_from_columns_and_from_rows(rng, d, d_out, H):
    truth = plant(rng, d, H, d_out)
    C = truth.coefficients()
    # Equations are a few hundred times better conditioned than what 1e-9 would show
    if d_out > H:
        M = span.Columns.of(C, max(16, span.points_needed(H, d_out, d)), d)
        assert angle(span.values_in(C, M, H), truth.V) <= 1e-10
    if d > H:
        M = span.Columns.of(C, max(16, span.points_needed(H, d, d)), d)
        assert angle(span.queries_in(C, M, H), truth.Q) <= 1e-10


def test_where_points_are_too_few_nothing_is_claimed(rng):
    """Each of two points has two equations for a column of X, which has twelve entries."""
    C = plant(rng, 6, 2, 6).coefficients()
    assert span.values_in(C, span.Columns.of(C, 2, 6), 2) is None


@pytest.mark.parametrize(
    ("d", "H"), [(2, 1), (3, 1), (4, 2), (5, 2), (8, 3), (8, 4), (10, 5), (17, 8), (33, 1), (33, 9)]
)
def test_values_of_one_output_are_found_up_to_half_as_many_as_coordinates(rng, d, H):
    truth = plant(rng, d, H, 1)
    C = truth.coefficients()
    known = ranks.Ranks(C / np.abs(C).max(), d, 1e-9)
    assert known.given == known.least == H
    (found,) = known.spans()
    # With d/2 heads, roots of a polynomial of that degree are behind it
    assert angle(found[0], truth.V) <= (1e-7 if d == 2 * H else 1e-11)
    assert la.recover_heads(C, d).recovery.reason == "no fewer are possible"


def test_more_than_half_as_many_heads_of_one_output_are_left_to_the_search(rng):
    C = plant(rng, 5, 3, 1).coefficients()
    assert list(ranks.Ranks(C / np.abs(C).max(), 5, 1e-9).spans()) == []
    assert len(la.recover_heads(C, 5)) == 3


def test_the_polynomial_of_a_pencil_is_the_root_of_the_characteristic_one(rng):
    """Blocks with the same eigenvalues: (t - 1)(t - 2)(t + 4), each root twice."""
    roots = np.array([1.0, 2.0, -4.0])
    A, S = rng.standard_normal((3, 3)), rng.standard_normal((6, 6))
    D = np.linalg.solve(A, np.diag(roots) @ A)
    N = np.block([[np.diag(roots), rng.standard_normal((3, 3))], [np.zeros((3, 3)), D.T]])
    N = np.linalg.solve(S, N @ S)
    p = span._root_of_characteristic(N[None], 3)[0]
    expected = (N - np.eye(6)) @ (N - 2 * np.eye(6)) @ (N + 4 * np.eye(6))
    assert relative(p, expected) <= 1e-10
    assert np.linalg.matrix_rank(p, tol=1e-8 * np.linalg.norm(p)) == 3


def test_pencils_of_many_heads_neither_overflow_nor_claim_what_is_singular(rng):
    """A power of 80 of matrices whose entries may be large; warnings are errors."""
    B = rng.standard_normal((4, 160, 160))
    B += B.transpose(0, 2, 1)
    V = span.values_by_pencils(B, np.linalg.eigvalsh(B))
    assert np.isfinite(V).all()
    B[:, 0] = B[:, :, 0] = 0.0
    assert span.values_by_pencils(B, np.linalg.eigvalsh(B)) is None


@pytest.mark.parametrize(
    ("d", "d_out", "H"), [(64, 1, 1), (64, 3, 3), (36, 36, 4), (40, 30, 12), (48, 1, 20)]
)
def test_heads_of_large_layers_are_found_without_a_search(rng, monkeypatch, d, d_out, H):
    monkeypatch.setattr(recovery, "Search", None)
    C = plant(rng, d, H, d_out).coefficients()
    heads = la.recover_heads(C, d)
    assert len(heads) == heads.recovery.at_least == H
    assert relative(heads.coefficients(), C) <= 1e-13


@pytest.mark.parametrize(("d", "d_out", "H"), [(8, 1, 3), (4, 1, 2), (33, 1, 1), (8, 8, 3)])
def test_linear_algebra_alone_reaches_rounding(rng, d, d_out, H):
    """So that no descent need follow, which would take several times as long."""
    C = plant(rng, d, H, d_out).coefficients()
    known = ranks.Ranks(C / np.abs(C).max(), d, 1e-9)
    for V, Q in known.spans():
        assert np.linalg.norm(la.Heads(V, Q).coefficients() - known.C) <= known.rounding


def test_heads_that_linear_algebra_misses_by_little_are_brought_to_rounding(rng, monkeypatch):
    C = plant(rng, 6, 2, 3).coefficients()
    original = ranks.Ranks.spans

    def inexact(self):
        for V, Q in original(self):
            yield V + 1e-6 * rng.standard_normal(V.shape), Q

    monkeypatch.setattr(ranks.Ranks, "spans", inexact)
    monkeypatch.setattr(recovery, "Search", None)
    assert relative(la.recover_heads(C, 6).coefficients(), C) <= 1e-13


@pytest.mark.parametrize("d_out", [1, 2, 5])
@pytest.mark.parametrize("noise", [1e-12, 1e-8])
def test_heads_near_coefficients_with_errors_are_found_within_the_tolerance(rng, d_out, noise):
    """As those of a fit: there is no exact answer, and least squares must end all the same."""
    truth = plant(rng, 7, 2, d_out)
    C, E = truth.coefficients(), rng.standard_normal((d_out, 196))
    C = C + noise * np.linalg.norm(C) / np.linalg.norm(E) * E
    heads = la.recover_heads(C, 7, tol=100 * noise)
    assert len(heads) == heads.recovery.at_least == 2
    assert heads.recovery.residual <= 2 * noise


@pytest.mark.parametrize("d_out", [1, 2])
def test_heads_of_low_rank_are_found_in_many_coordinates(rng, d_out):
    """Ranks leave more maps then than there are heads."""
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
