"""Arrays of other libraries, without any of them: DLPack, and the library of results."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from conftest import plant, run_python
from stand_ins.array_paths import PATHS, assert_path_agrees

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens


class Exported:
    """An array that can be read through DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldExported(Exported):
    """Before DLPack had versions: no options, and nothing to mark memory as read-only."""

    def __dlpack__(self):
        return self.array.__dlpack__()


def read_only(array: np.ndarray) -> Exported:
    view = array.view()
    view.flags.writeable = False
    return Exported(view)


@pytest.mark.parametrize("give", [Exported, OldExported, read_only])
@pytest.mark.parametrize("name", PATHS)
def test_dlpack_alone_is_enough(name, give):
    if name == "estimator":
        pytest.importorskip("sklearn", reason="the estimator needs scikit-learn")
    assert_path_agrees(name, np.float64, give)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dlpack_is_read_in_place(rng, dtype):
    Z = rng.standard_normal((4, 5, 3)).astype(dtype)
    assert np.shares_memory(as_tokens(Exported(Z)).storage, Z)
    assert np.shares_memory(as_tokens(Exported(Z[:, ::2])).storage, Z)
    tokens = as_tokens([Exported(z) for z in Z])
    assert all(np.shares_memory(one, Z) for one in tokens.storage)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3, 2), np.float16), "Z: dtype must be float32.*float16; convert it with"),
        (np.zeros((2, 3, 2), np.complex128), "Z: dtype must be float32.*got complex128$"),
    ],
)
def test_other_dtypes_are_refused(rng, array, message):
    with pytest.raises(TypeError, match=message):
        plant(rng, 2, 1, 1)(Exported(array))


def test_an_export_that_fails_is_explained(rng):
    class Broken(Exported):
        def __dlpack__(self, **options):
            raise BufferError("not today\nand not tomorrow")

    with pytest.raises(TypeError, match=r"^Z: cannot be read .* \(not today\)$"):
        plant(rng, 2, 1, 1)(Broken(np.zeros((2, 3, 2))))
    frozen = np.zeros((2, 3, 2))
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="^Z: cannot be read"):  # numpy cannot say so to old readers
        plant(rng, 2, 1, 1)(OldExported(frozen))


def test_stored_targets_may_stand_beside_those_of_a_library(rng, tmp_path):
    Z, y = rng.standard_normal((30, 4, 2)), rng.standard_normal((30, 1))
    np.save(tmp_path / "Z.npy", Z)
    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    found = la.Moments(2, 1).update(stored, Exported(y)).cross()
    np.testing.assert_array_equal(found, la.Moments(2, 1).update(Z, y).cross())


# ------------------------------------------------------------------------- results of a library


class Standard:
    """An array of a library that follows the array API standard, as far as it is needed here."""

    def __init__(self, array):
        self.array = array

    def __array_namespace__(self):
        return sys.modules[__name__]


def asarray(array):
    return Standard(np.array(array))


def test_like_gives_the_library_of_the_standard(rng):
    heads = plant(rng, 3, 2, 3)
    Z = rng.standard_normal((20, 4, 3))
    fit = la.fit(Z, heads(Z))
    like = Standard(Z)
    for found, expected in [
        (heads(Z, like=like), heads(Z)),
        (heads.generate(Z, 1, like=like), heads.generate(Z, 1)),
        (fit.predict(Z, like=[like]), fit.predict(Z)),
        (fit.certificate.covers(Z, like=like), fit.certificate.covers(Z)),
        (fit.certificate.leverage(Z, like=like), fit.certificate.leverage(Z)),
        (fit.certificate.error_bound(Z, 1.0, like=like), fit.certificate.error_bound(Z, 1.0)),
    ]:
        assert type(found) is Standard
        np.testing.assert_array_equal(found.array, expected)
    covered, residual = fit.certificate.covers(Z, return_residual=True, like=like)
    assert type(covered) is type(residual) is Standard
    ragged = heads(list(Z), "all", like=like)
    assert isinstance(ragged, list)
    assert all(type(each) is Standard for each in ragged)


def test_convert_keeps_the_form(rng):
    heads = plant(rng, 3, 2, 1)
    like = np.zeros(1)
    assert la.convert(heads.V, like) is heads.V
    V, Q = la.convert((heads.V, heads.Q), like=Standard(like))
    np.testing.assert_array_equal(V.array, heads.V)
    np.testing.assert_array_equal(Q.array, heads.Q)
    named = la.convert({"V": [heads.V]}, like=Standard(like))
    np.testing.assert_array_equal(named["V"][0].array, heads.V)
    assert la.convert(np.float64(3), like=Standard(like)).array == 3


def test_cupy_arrays_come_home_for_numpy_and_go_there_for_cupy(rng, gpu):
    heads = plant(rng, 3, 2, 1)
    Z = rng.standard_normal((5, 4, 3))
    there = gpu.asarray(Z)
    assert type(heads(there)) is gpu.ndarray
    home = heads(there, like=Z)
    assert type(home) is np.ndarray
    np.testing.assert_allclose(home, heads(Z), rtol=1e-12)
    moved = heads(Z, like=there)
    assert type(moved) is gpu.ndarray
    np.testing.assert_array_equal(moved.get(), heads(Z))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda heads, Z: heads(Z, like="torch"), "^like: an array .* got str"),
        (lambda heads, Z: heads(Z, like=[]), "^like: an array .* got list"),
        (lambda heads, Z: la.convert(heads.V, like=None), "^like: an array is needed, got None"),
        (lambda heads, Z: la.convert(heads, like=Z), "^value: .* got Heads"),
    ],
)
def test_what_cannot_be_converted_is_refused(rng, call, message):
    with pytest.raises(TypeError, match=message):
        call(plant(rng, 2, 1, 1), np.zeros((2, 3, 2)))


def test_no_library_is_imported_before_its_time():
    outcome = run_python(
        "import sys, linattn_fast\n"
        "names = {'torch', 'jax', 'cupy', 'sklearn', 'dask', 'array_api_compat'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)"
    )
    assert outcome.returncode == 0, outcome.stderr
