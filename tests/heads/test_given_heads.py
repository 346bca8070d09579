"""Heads that ranks give in one compiled call, held to the same steps in numpy."""

import numpy as np
import pytest
from conftest import plant, relative

import linattn_fast as la
from linattn_fast.arrays import compiled
from linattn_fast.heads import ranks, recovery

pytestmark = pytest.mark.skipif(compiled.MISSING is not None, reason="no compiled extension")

WANTED = recovery.Wanted("minimal", ranks.TOLERANCE)
SHAPES = [
    # d, d_out, H: one output with H < d/2, from few ranges and from many, and with H = d/2
    (3, 1, 1), (4, 1, 1), (8, 1, 3), (17, 1, 1), (15, 1, 7), (33, 1, 1), (2, 1, 1), (4, 1, 2),
    (8, 1, 4),
    # several: columns, rows alone, both, and more points than M(x) has at first
    (8, 8, 3), (4, 4, 3), (6, 6, 5), (5, 2, 2), (3, 7, 2), (12, 3, 2), (2, 2, 1),
]  # fmt: skip


def at_once(C, d, max_heads=None):
    return ranks.given_heads(C, d, WANTED.tol, max_heads)


def by_steps(C, d):
    return recovery._step_by_step(C, d, WANTED, None)


@pytest.mark.parametrize(("d", "d_out", "H"), SHAPES)
@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_one_call_gives_the_heads_of_the_steps(rng, d, d_out, H, unit):
    C = plant(rng, d, H, d_out).coefficients() * unit
    found, expected = at_once(C, d), by_steps(C, d)
    assert found.at_least == expected.recovery.at_least == len(found.V) == H
    assert found.tolerance == expected.recovery.tolerance
    assert found.residual <= ranks.Ranks(C / unit, d, WANTED.tol).rounding / np.linalg.norm(
        C / unit
    )
    # Heads of normal form turn by an error over the gap between neighbouring sizes
    sizes = np.linalg.norm(found.V.reshape(H, -1) / np.sqrt(unit), axis=1) ** 2
    gap = np.diff(-sizes, append=0.0).min() / sizes[0]
    assert relative(found.V, expected.V) <= 1e-11 / gap
    assert relative(found.Q, expected.Q) <= 1e-11 / gap
    assert abs(found.fewer_leave - expected.recovery.fewer_leave) <= 1e-12


@pytest.mark.parametrize(
    ("d", "d_out", "H"), [(4, 1, 1), (4, 1, 2), (8, 8, 3), (6, 6, 5), (17, 1, 1)]
)
def test_few_planted_heads_take_one_call(rng, d, d_out, H, monkeypatch):
    monkeypatch.setattr(recovery, "_step_by_step", None)
    heads = la.recover_heads(plant(rng, d, H, d_out).coefficients(), d)
    assert len(heads) == H
    assert str(heads.recovery).endswith("no fewer are possible")


@pytest.mark.parametrize(("d", "d_out", "H"), [(4, 1, 2), (8, 8, 3), (5, 2, 2)])
def test_every_call_gives_the_same_bits(rng, d, d_out, H):
    C = plant(rng, d, H, d_out).coefficients()
    first = at_once(C, d)
    for _ in range(20):
        again = at_once(C.copy(), d)
        assert (again.V == first.V).all()
        assert (again.Q == first.Q).all()
        assert again[2:] == first[2:]


@pytest.mark.parametrize("d_out", [1, 5])
def test_what_ranks_do_not_settle_is_left_to_the_steps(rng, d_out):
    d = 5
    assert at_once(np.zeros((d_out, 75)), d) is None
    assert at_once(rng.standard_normal((d_out, 75)), d) is None  # as many heads as possible
    C = plant(rng, d, 2, d_out).coefficients()
    assert at_once(C, d) is not None
    assert at_once(C, d, max_heads=2) is not None
    assert at_once(C, d, max_heads=1) is None
    noisy = C + 1e-6 * rng.standard_normal(C.shape)
    assert at_once(noisy, d) is None
    # A few roundings, which least squares may still take away
    noisy = C + 1e-12 * rng.standard_normal(C.shape)
    assert at_once(noisy, d) is None


def degenerate(rng, d, d_out):
    """Heads that repeat, of equal or very different sizes, of rank one, or on few coordinates."""
    V, Q = rng.standard_normal((2, d_out, d)), rng.standard_normal((2, d, d))
    equal = np.linalg.qr(V.reshape(2, -1).T)[0].T.reshape(V.shape)
    same = np.linalg.qr(Q.reshape(2, -1).T)[0].T.reshape(Q.shape)
    thin = np.zeros_like(Q)
    thin[:, 0, 0] = 1.0
    yield V[[0, 0]], Q
    yield equal, same
    yield V * [[[1.0]], [[1e-6]]], Q
    yield V, Q[:, :, :1] * Q[:, :1, :]
    yield V, V[:, :1].transpose(0, 2, 1) * Q[:, :1, :]
    yield V[:1], thin[:1]
    yield np.eye(d)[:1, None] * np.ones((1, d_out, 1)), thin[:1]
    yield V, np.zeros_like(Q) + np.eye(d)


@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
@pytest.mark.parametrize(("d", "d_out"), [(4, 1), (6, 1), (4, 4), (6, 3), (3, 8)])
def test_degenerate_heads_are_those_of_the_steps_or_left_to_them(rng, d, d_out, unit):
    answered = 0
    for V, Q in degenerate(rng, d, d_out):
        C = la.Heads(V, Q).coefficients() * unit
        found, expected = at_once(C, d), by_steps(C, d)
        if found is None:
            continue
        answered += 1
        assert found.at_least == expected.recovery.at_least == len(expected)
        assert len(found.V) == len(expected)
        assert relative(la.Heads(found.V, found.Q).coefficients() / unit, C / unit) <= 1e-12
        assert abs(found.fewer_leave - expected.recovery.fewer_leave) <= 1e-12
    assert answered >= 3


def test_coefficients_of_the_largest_numbers_have_heads():
    C = np.zeros((1, 6))
    C[0, 0] = 1.7e308
    heads = la.recover_heads(C, 2)
    assert len(heads) == 1
    assert heads.recovery.residual <= 1e-15
    assert len(by_steps(C, 2)) == 1


def test_of_one_output_the_smallest_queries_are_taken(rng):
    """v_g' Q_h - v_h' Q_g adds nothing to the output, so it is zero."""
    d, H = 7, 3
    truth = plant(rng, d, H, 1)
    A = rng.standard_normal((H, H, d))
    moved = truth.Q + np.einsum("hgl,gk->hkl", A - A.transpose(1, 0, 2), truth.V[:, 0])
    C = truth.coefficients()
    assert relative(la.Heads(truth.V, moved).coefficients(), C) <= 1e-13
    for V, Q in [at_once(C, d)[:2], (by_steps(C, d).V, by_steps(C, d).Q)]:
        v = V[:, 0] / np.linalg.norm(V[:, 0], axis=1, keepdims=True)
        weighed = Q * np.linalg.norm(V[:, 0], axis=1)[:, None, None]
        products = np.einsum("gk,hkl->hgl", v, weighed)
        assert relative(products, products.transpose(1, 0, 2)) <= 1e-12


def test_errors_within_rounding_change_no_range(rng):
    """They give B(c) small eigenvalues more, which are not those of heads."""
    d, H = 8, 2
    for _ in range(10):
        C = plant(rng, d, H, 1).coefficients()
        error = rng.standard_normal(C.shape)
        rounding = ranks.Ranks(C / np.abs(C).max(), d, WANTED.tol).rounding * np.abs(C).max()
        found = at_once(C + 0.9 * rounding * error / np.linalg.norm(error), d)
        assert found is not None
        assert len(found.V) == found.at_least == H
