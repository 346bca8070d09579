"""Data that probably is not what was meant is warned of, and other data is not."""

import warnings

import numpy as np
import pytest
from conftest import plant

import linattn_fast as la


@pytest.fixture
def silent():
    """Every warning of the package is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", la.DataWarning)
        yield


def padded(rng, n_sequences=200, n=9, d=3):
    Z = rng.standard_normal((n_sequences, n, d))
    lengths = rng.integers(2, n + 1, n_sequences)
    for z, length in zip(Z, lengths, strict=True):
        z[length:] = 0
    return Z, lengths


def forms(Z):
    """The same sequences as one array, as a list and flat."""
    n_sequences, n, d = Z.shape
    yield Z, None
    yield list(Z), None
    yield Z.reshape(-1, d), np.arange(n_sequences + 1) * n


# ----------------------------------------------------------------------------------------- padding


def test_padded_sequences_are_warned_of_in_every_form(rng, positions):
    Z, _ = padded(rng)
    rows = rng.standard_normal((200, 9))
    for tokens, offsets in forms(Z):
        y = rows[:, 0] if positions == "last" else rows
        if positions != "last" and not isinstance(tokens, np.ndarray):
            y = list(rows)
        elif positions != "last" and offsets is not None:
            y = rows.reshape(-1)
        with pytest.warns(la.PaddingWarning, match=r"^Z: \d+ of 200 .* \[z\[:n\] for z, n in"):
            la.fit(tokens, y, offsets=offsets, positions=positions)
        with pytest.warns(la.PaddingWarning, match="^Z: "):
            la.Moments(3, 1, positions=positions).update(tokens, y, offsets=offsets)


def test_a_padded_stream_is_warned_of_once(rng, tmp_path):
    Z, _ = padded(rng)
    y = rng.standard_normal(200)
    np.save(tmp_path / "Z.npy", Z)
    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    for work in (
        lambda: la.fit([(Z, y)] * 3),
        lambda: la.fit(iter([(Z, y)] * 3)),
        lambda: la.fit(stored, y),
        lambda: la.Moments(3, 1).update([(Z, y)] * 3),
        lambda: la.Moments(3, 1).update(stored, y),
    ):
        with pytest.warns(la.PaddingWarning) as found:
            work()
        assert len(found) == 1


def test_what_the_warning_says_to_write_is_not_warned_of(rng, silent):
    Z, lengths = padded(rng)
    la.fit([z[:n] for z, n in zip(Z, lengths, strict=True)], rng.standard_normal(200))


def test_zeros_that_are_no_padding_are_not_warned_of(rng, silent, positions):
    def fits(Z):
        N, n = Z.shape[:2]
        y = rng.standard_normal(N if positions == "last" else (N, n))
        la.Moments(Z.shape[2], 1, positions=positions).update(Z, y)

    Z = rng.standard_normal((200, 9, 3))
    Z[17, -1] = 0  # a single query of zeros
    fits(Z)
    fits(padded(rng)[0][:, ::-1])  # padded on the left, where it does no harm
    for share in (0.5, 0.9):  # sparse: tokens of zeros anywhere
        for n in (1, 2, 9):
            fits(rng.standard_normal((300, n, 3)) * (rng.random((300, n, 3)) > share))
    fits(np.eye(5)[rng.integers(0, 5, (200, 6))])  # one-hot
    fits(np.zeros((30, 4, 3)))
    for size in (2, 3, 5, 20):  # so few that they say little
        for _ in range(20):
            fits(rng.standard_normal((size, 3, 4)) * (rng.random((size, 3, 4)) > 0.6))


def test_datasets_and_programs_are_not_warned_of(silent):
    context = la.datasets.in_context_regression(300, 8, 2, seed=0)
    la.fit(context.Z, context.y, features=context.features, heads=None)
    simulator = la.programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    la.programs.learn(simulator, simulator.traces(200, steps=3, seed=0))


# ------------------------------------------------------------------------------------------ layout


def test_tokens_as_columns_are_warned_of(rng):
    truth = plant(rng, 3, 1, 3)
    Z = rng.standard_normal((400, 10, 3))
    columns = Z.transpose(0, 2, 1)
    with pytest.warns(la.LayoutWarning, match=r"^Z: .*\(400, 3, 10\).*Z\.transpose\(0, 2, 1\)"):
        la.fit(columns, truth(Z), heads=None)
    with pytest.warns(la.LayoutWarning, match=r"^X: .*X\.transpose\(0, 2, 1\)"):
        la.LinearAttentionRegressor(heads=None).fit(columns, truth(Z))
    with pytest.warns(la.LayoutWarning):
        la.fit([(columns, truth(Z))] * 2, heads=None)


def test_tokens_as_rows_are_not_warned_of(rng, silent):
    for n, d, d_out in [(10, 3, 3), (3, 5, 5), (3, 5, 1), (3, 5, 2), (4, 4, 4), (1, 3, 1)]:
        Z = rng.standard_normal((600, n, d))
        la.fit(Z, rng.standard_normal((600, d_out)), heads=None)
    one_hot = np.eye(6)[rng.integers(0, 6, (900, 3))]  # as many tokens as outputs
    la.fit(one_hot, rng.standard_normal((900, 3)), heads=None)


def test_a_lack_of_memory_names_the_layout_where_that_would_help(rng):
    Z, y = rng.standard_normal((2000, 4, 40)), rng.standard_normal(2000)
    with pytest.raises(MemoryError, match=r"shape \(2000, 4, 40\).*Z\.transpose\(0, 2, 1\): d = 4"):
        la.fit(Z, y, memory_limit=1_000_000)
    with pytest.raises(MemoryError, match="^fit: d = 4 .*no solver is possible") as found:
        la.fit(Z.transpose(0, 2, 1), y, memory_limit=10_000)
    assert "transpose" not in str(found.value)


def test_errors_about_columns_say_what_to_pass(rng):
    Z = rng.standard_normal((30, 3, 8))
    with pytest.raises(ValueError, match=r"^Z: .* d = 3 .*got 8; .*Z\.transpose\(0, 2, 1\)"):
        la.Moments(3, 1).update(Z, np.zeros(30))
    with pytest.raises(ValueError, match=r"^y: .*got \(30, 8\); .*Z\.transpose\(0, 2, 1\)"):
        la.fit(Z, np.zeros((30, 8)), positions="all")
    with pytest.raises(ValueError, match=r"^Z: tokens must have d = 4 coordinates, got 8$"):
        la.Moments(4, 1).update(Z, np.zeros(30))


# ----------------------------------------------------------------------------------- interpolation


@pytest.mark.parametrize("solver", ["auto", "dual", "eigh", "qr", "pcg"])
def test_fewer_samples_than_features_without_a_ridge_are_warned_of(rng, solver):
    Z, y = rng.standard_normal((12, 5, 3)), rng.standard_normal(12)
    with pytest.warns(la.InterpolationWarning, match="^alpha: .*12 samples .* 18 features"):
        la.fit(Z, y, solver=solver)
    with pytest.warns(la.InterpolationWarning):
        la.fit(Z, y, solver=solver, certify=False, heads=None)


def test_moments_streams_and_regressors_warn_of_interpolation(rng):
    Z, y = rng.standard_normal((12, 5, 3)), rng.standard_normal(12)
    for work in (
        lambda: la.Moments(3, 1).update(Z, y).fit(),
        lambda: la.fit([(Z[:6], y[:6]), (Z[6:], y[6:])]),
        lambda: la.fit(iter([(Z[:6], y[:6]), (Z[6:], y[6:])])),
        lambda: la.LinearAttentionRegressor().fit(Z, y),
        lambda: la.LinearAttentionRegressor().partial_fit(Z, y).predict(Z),
    ):
        with pytest.warns(la.InterpolationWarning):
            work()


def test_fits_that_do_not_interpolate_are_not_warned_of(rng, silent):
    Z, y = rng.standard_normal((12, 5, 3)), rng.standard_normal(12)
    la.fit(Z, y, alpha=1e-3)
    la.certify(Z)
    Z, y = rng.standard_normal((18, 5, 3)), rng.standard_normal(18)
    la.fit(Z, y)  # as many samples as features: determined
    again = np.repeat(rng.standard_normal((4, 5, 3)), 4, axis=0)
    la.fit(again, rng.standard_normal(16))  # sixteen samples of four inputs cannot be fitted


# ------------------------------------------------------------------------------------------- where


def test_a_warning_points_at_the_line_of_the_caller_and_is_silenced_by_its_class(rng):
    Z, y = rng.standard_normal((12, 5, 3)), rng.standard_normal(12)
    for work in (
        lambda: la.fit(Z, y),
        lambda: la.Moments(3, 1).update(Z, y).fit(),
        lambda: la.LinearAttentionRegressor().fit(Z, y),
    ):
        with pytest.warns(la.InterpolationWarning) as found:
            work()
        assert [each.filename for each in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", la.InterpolationWarning)
        la.fit(Z, y)
    for kind in (la.InterpolationWarning, la.LayoutWarning, la.PaddingWarning):
        assert issubclass(kind, la.DataWarning)
    assert issubclass(la.DataWarning, UserWarning)
