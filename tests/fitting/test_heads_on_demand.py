"""Heads of a fit are found when they are asked for: once, in any thread, and saved with the fit."""

import copy
import pickle
import signal
import threading

import numpy as np
import pytest
from conftest import plant, relative

import linattn_fast as la
from linattn_fast.heads import pending
from linattn_fast.heads.bilinear import Budget

NOT_YET = "not asked for yet"


@pytest.fixture
def data(rng):
    truth = plant(rng, 4, 2, 3)
    Z = rng.standard_normal((300, 10, 4))
    return Z, truth(Z), truth


@pytest.fixture
def searches(monkeypatch):
    """The arguments of every search from here on."""
    seen, original = [], pending.heads_of

    def watched(*arguments):
        seen.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(pending, "heads_of", watched)
    return seen


@pytest.mark.parametrize("heads", ["minimal", "svd"])
def test_nothing_is_searched_for_until_heads_are_asked_for(data, searches, heads):
    Z, y, _ = data
    fit = la.fit(Z, y, heads=heads)
    fit.predict(Z[:3])
    assert fit.score(Z, y) > 0.99
    assert (fit.d, fit.d_out, fit.device) == (4, 3, None)
    assert NOT_YET in repr(fit)
    assert NOT_YET in str(fit.info)
    assert fit.get() is fit
    assert not searches
    found = fit.heads
    assert fit.heads is found
    assert len(searches) == 1


@pytest.mark.parametrize("method", ["minimal", "svd"])
@pytest.mark.parametrize(("d", "d_out", "H"), [(3, 1, 1), (5, 1, 2), (4, 3, 2), (4, 4, 4)])
def test_they_are_the_heads_of_the_coefficients(rng, d, d_out, H, method):
    truth = plant(rng, d, H, d_out)
    Z = rng.standard_normal((600, 12, d))
    fit = la.fit(Z, truth(Z), heads=method)
    at_once = la.recover_heads(fit.coefficients, d, method)
    np.testing.assert_array_equal(fit.heads.V, at_once.V)
    np.testing.assert_array_equal(fit.heads.Q, at_once.Q)
    assert fit.heads.recovery == at_once.recovery


def test_the_report_has_them_once_they_are_found(data):
    Z, y, _ = data
    fit = la.fit(Z, y)
    before = fit.info
    assert "heads" not in before.seconds
    assert fit.heads.recovery.reason in fit.info.heads
    assert fit.info.heads.startswith("2, minimal")
    assert fit.info.seconds["heads"] > 0
    assert set(fit.info.seconds) - set(before.seconds) == {"heads"}
    assert NOT_YET not in str(fit.info)
    assert before.heads.startswith(NOT_YET)  # what was read before stays as it was


def test_without_heads_there_are_none(data, searches, tmp_path):
    Z, y, _ = data
    fit = la.fit(Z, y, heads=None)
    assert fit.heads is None
    assert fit.info.heads == ""
    fit.save(tmp_path / "fit.npz")
    assert la.load(tmp_path / "fit.npz").heads is None
    assert not searches


def test_a_number_of_heads_is_fitted_at_once(data, searches):
    Z, y, _ = data
    fit = la.fit(Z, y, heads=1)
    assert "heads" in fit.info.seconds
    assert fit.info.heads.startswith("1, fit")
    assert len(vars(fit)["heads"]) == 1
    assert not searches


def test_moments_leave_heads_for_later_too(data, searches):
    Z, y, truth = data
    fit = la.Moments(4, 3).update(Z, y).fit()
    assert not searches
    assert fit.heads.distance(truth) <= 1e-9 * np.linalg.norm(truth.coefficients())


def test_threads_that_ask_at_once_share_one_search(data, monkeypatch):
    Z, y, _ = data
    fit = la.fit(Z, y)
    started, go, calls = threading.Event(), threading.Event(), []
    original = pending.heads_of

    def slow(*arguments):
        calls.append(threading.get_ident())
        started.set()
        assert go.wait(30)
        return original(*arguments)

    monkeypatch.setattr(pending, "heads_of", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(fit.heads)) for _ in range(4)]
    threads[0].start()
    assert started.wait(30)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert len(calls) == 1


def test_other_names_stay_unknown(data):
    fit = la.fit(*data[:2])
    with pytest.raises(AttributeError, match="'Fit' object has no attribute 'head'"):
        _ = fit.head
    assert not hasattr(fit, "__array__")


# ------------------------------------------------------------------------ copies, pickles and files


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy, copy.deepcopy, lambda fit: pickle.loads(pickle.dumps(fit)),
        lambda fit: fit.with_program(None),
    ],
)  # fmt: skip
def test_copies_have_the_same_heads(data, searches, asked, copied):
    Z, y, _ = data
    fit = la.fit(Z, y, progress=lambda *_: None)  # which no pickle can have
    if asked:
        assert fit.heads is not None
    twin = copied(fit)
    assert len(searches) == asked
    assert twin.heads.V.tobytes() == fit.heads.V.tobytes()
    assert twin.heads.recovery == fit.heads.recovery
    assert twin.info.heads == fit.info.heads
    assert twin.program is None


def test_a_shallow_copy_shares_the_search(data, searches):
    fit = la.fit(*data[:2])
    other = fit.with_program(None)
    assert other is not fit
    assert other.heads is fit.heads
    assert len(searches) == 1


def test_saving_finds_them_first(data, searches, tmp_path):
    Z, y, truth = data
    fit = la.fit(Z, y)
    fit.save(tmp_path / "fit.npz")
    assert len(searches) == 1
    again = la.load(tmp_path / "fit.npz")
    assert again.heads.V.tobytes() == fit.heads.V.tobytes()
    assert again.heads.recovery == fit.heads.recovery
    assert again.info == fit.info
    assert again.heads.distance(truth) < 1e-9
    assert len(searches) == 1


# ----------------------------------------------------------------------------- progress and Ctrl-C


def test_the_search_reports_its_progress(rng):
    seen = []
    C = plant(rng, 4, 6, 4).coefficients()  # more heads than ranks can show
    Z = rng.standard_normal((400, 12, 4))
    y = la.cubic_features(Z) @ C.T
    fit = la.fit(Z, y, certify=False, progress=lambda done, total: seen.append((done, total)))
    seen.clear()
    assert len(fit.heads) == 6
    assert len(seen) > 10
    assert {total for _, total in seen} == {100}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (100, 100)


def test_a_bar_is_shown_where_one_was_asked_for(data, capsys):
    fit = la.fit(*data[:2], progress=True)
    capsys.readouterr()
    assert fit.heads is not None
    assert "heads: 100%" in capsys.readouterr().err


class Stopped(Exception):
    pass


def test_a_search_that_is_stopped_leaves_the_fit_as_it_was(data, searches, tmp_path):
    Z, y, truth = data
    impatient = [False]

    def progress(*_):
        if impatient[0]:
            raise Stopped

    fit = la.fit(Z, y, progress=progress)
    before = vars(fit).copy()
    impatient[0] = True
    for _ in range(2):
        with pytest.raises(Stopped):  # has no message
            _ = fit.heads
    with pytest.raises(Stopped):  # nor here
        fit.save(tmp_path / "fit.npz")
    assert not (tmp_path / "fit.npz").exists()
    assert vars(fit) == before
    assert fit.info.heads.startswith(NOT_YET)
    assert len(searches) == 3
    impatient[0] = False
    assert fit.heads.distance(truth) < 1e-9
    assert len(searches) == 4


def test_ctrl_c_stops_a_search_and_the_next_access_begins_anew(rng, data, monkeypatch):
    Z, truth = data[0], plant(rng, 4, 6, 4)  # more heads than linear algebra gives
    fit = la.fit(Z, truth(Z))
    setter = Budget.left.fset

    def interrupted(budget, flops):
        signal.raise_signal(signal.SIGINT)
        setter(budget, flops)

    monkeypatch.setattr(Budget, "left", Budget.left.setter(interrupted))
    with pytest.raises(KeyboardInterrupt):
        _ = fit.heads
    monkeypatch.undo()
    assert fit.heads.distance(truth) < 1e-9


def test_progress_may_not_ask_for_the_heads_it_reports_on(data):
    box = []

    def progress(*_):
        if box:
            _ = box[0].heads

    box.append(la.fit(*data[:2], progress=progress))
    with pytest.raises(RuntimeError, match="^heads: asked for by the progress"):
        _ = box[0].heads
    box.clear()


# ------------------------------------------------------------------------------------------- noise


def test_noise_is_answered_by_the_svd_without_a_search(rng, searches, monkeypatch):
    monkeypatch.setattr("linattn_fast.heads.search.Search.attempt", None)
    d = 12
    for d_out, count in ((1, d), (2, 2 * d)):
        Z = rng.standard_normal((1200, 8, d))
        fit = la.fit(Z, rng.standard_normal((1200, d_out)), certify=False)
        heads = fit.heads
        assert len(heads) == count
        assert heads.recovery.method == "svd"
        assert relative(heads.coefficients(), fit.coefficients) <= 1e-13
        words = heads.recovery.reason
        assert f"ranks exclude fewer than {heads.recovery.at_least} heads" in words
        assert f"{heads.recovery.at_least} to {count - 1} were not looked for" in words
        assert "because the fit left" in words
        assert f"no fewer than {d}" in words  # by counting, for one output and for two


def test_too_few_samples_for_many_coordinates_do_not_start_a_search(rng, monkeypatch):
    """They are interpolated, so that no error tells; one attempt is more than may be spent."""
    monkeypatch.setattr("linattn_fast.heads.search.Search.attempt", None)
    Z = rng.standard_normal((100, 8, 32))
    with pytest.warns(la.InterpolationWarning):
        fit = la.fit(Z, rng.standard_normal(100), certify=False)
    assert fit.heads.recovery.method == "svd"
    assert "one attempt takes" in fit.heads.recovery.reason


def test_a_few_heads_in_noise_are_hinted_at(rng):
    truth = plant(rng, 8, 3, 8)
    Z = rng.standard_normal((2000, 12, 8))
    y = truth(Z)
    fit = la.fit(Z, y + 1e-3 * y.std() * rng.standard_normal(y.shape), certify=False)
    assert fit.heads.recovery.method == "svd"
    assert fit.heads.recovery.reason.endswith("3 heads and noise: ask for that many")


def test_few_heads_are_found_with_a_ridge_too_small_to_matter(rng):
    truth = plant(rng, 6, 2, 1)
    Z = rng.standard_normal((2000, 12, 6))
    fit = la.fit(Z, truth(Z), alpha=1e-11)
    assert len(fit.heads) == 2
    assert fit.heads.recovery.method == "minimal"
