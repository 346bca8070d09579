"""JAX: its arrays as input, results as its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library, plant
from stand_ins.array_paths import PATHS, assert_path_agrees

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens

jax = library("jax")
jnp = library("jax.numpy")


@pytest.fixture
def sixty_four_bits():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("name", PATHS)
def test_every_path_takes_float32(name):
    assert_path_agrees(name, np.float32, jnp.asarray)


@pytest.mark.parametrize("name", PATHS)
def test_every_path_takes_float64(name, sixty_four_bits):
    assert_path_agrees(name, np.float64, jnp.asarray)


def test_arrays_are_read_in_place(rng, sixty_four_bits):
    for dtype in (np.float32, np.float64):
        Z = jnp.asarray(rng.standard_normal((4, 5, 3)).astype(dtype))
        storage = as_tokens(Z).storage
        assert storage.dtype == dtype
        assert storage.ctypes.data == Z.unsafe_buffer_pointer()


def test_arrays_that_cannot_be_read_are_explained(rng):
    heads = plant(rng, 2, 1, 1)
    Z = jnp.zeros((3, 4, 2))
    for dtype in (jnp.bfloat16, jnp.float16):
        with pytest.raises(TypeError, match=r"^Z: .*float16; convert it with .astype\('float32'\)"):
            heads(Z.astype(dtype))
    with pytest.raises(TypeError, match="^Z: .*complex64"):
        la.fit(Z + 1j, np.zeros(3))
    with pytest.raises(TypeError, match="^Z: cannot be read as an array of numbers"):
        jax.jit(lambda Z: heads(Z, like=Z))(Z)  # no values there


def test_results_are_float32_unless_jax_has_64_bits(rng):
    heads = plant(rng, 3, 2, 3)
    Z = jnp.asarray(rng.standard_normal((40, 4, 3)), dtype=jnp.float32)
    fit = la.fit(Z, heads(Z), heads=None)
    for found, expected in [
        (heads(Z, like=Z), heads(Z)),
        (heads.generate(Z[:2], 1, like=Z), heads.generate(Z[:2], 1)),
        (fit.predict(Z, like=Z), fit.predict(Z)),
        (fit.certificate.leverage(Z, like=Z), fit.certificate.leverage(Z)),
        (la.convert(fit.coefficients, like=[Z]), fit.coefficients),
    ]:
        assert isinstance(found, jax.Array)
        assert found.dtype == jnp.float32
        assert found.devices() == Z.devices()
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert fit.certificate.covers(Z, like=Z).dtype == bool
    assert all(isinstance(each, jax.Array) for each in heads([Z[0], Z[1, :2]], "all", like=Z))


def test_results_are_float64_where_jax_has_64_bits(rng, sixty_four_bits):
    heads = plant(rng, 3, 2, 3)
    Z = jnp.asarray(rng.standard_normal((5, 4, 3)))
    found = heads(Z, like=Z)
    assert found.dtype == jnp.float64
    np.testing.assert_array_equal(found, heads(Z))


def test_results_share_no_memory(rng, sixty_four_bits):
    memory = np.empty(8 * 100 + 64, np.uint8)
    start = -memory.ctypes.data % 64  # only memory that begins so could be shared
    array = memory[start : start + 800].view(np.float64)
    array[:] = rng.standard_normal(100)
    before = array.copy()
    found = la.convert(array, like=jnp.zeros(1))
    array[:] = 0
    np.testing.assert_array_equal(found, before)


def test_parameters_make_heads(rng):
    weights = {
        "params": None,
        **{name: jnp.asarray(rng.standard_normal((2, 3, 3))) for name in ("V", "Q")},
    }
    heads = la.Heads.from_weights(weights)
    np.testing.assert_array_equal(heads.V, np.asarray(weights["V"], np.float64))
