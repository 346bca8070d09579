"""The normal equations as an operator: compiled code against the numpy specification."""

import numpy as np
import pytest
from conftest import EPS, home, needs_cpu, random_targets
from oracles import loops
from oracles.batches import samples_of

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.normal_operator import NumpyNormalOperator
from linattn_fast.data.tokens import Tokens, as_tokens

FEATURES = {
    "every": la.Features,
    "most": lambda d: la.Features(d, queries=range(d // 2, d)),
    "few": lambda d: la.Features(d, pairs=[*{(0, d - 1), (d // 2, d - 1)}], queries=[d - 1]),
}


def absolute(tokens):
    return Tokens(tuple(np.abs(z.astype(np.float64)) for z in tokens))


def batch(rng, form, d, N=300):
    if form == "ragged":
        return as_tokens([rng.standard_normal((n, d)) for n in rng.integers(1, 40, N)])
    dtype = np.float32 if form == "float32" else np.float64
    return as_tokens(rng.standard_normal((N, 6, d)).astype(dtype))


def results(operator, C):
    passes = [*operator.normal(C), *operator.gradient(C)]  # before one that forms all samples anew
    return [*operator.kronecker_factors(), *passes]


def operator_of(samples, kept):
    """The compiled operator; its samples are kept from a pass, from their moments, or not."""
    operator = get_backend("cpu").normal_operator(samples, keep=kept != "never")
    if kept == "from moments":
        get_backend("cpu").moments(samples, into=operator)
        assert operator.narrow(np.ones((1, samples.features.count))) is not None  # if they are kept
    return operator


@needs_cpu
@pytest.mark.parametrize("form", ["dense", "ragged", "float32"])
@pytest.mark.parametrize("chosen", FEATURES)
@pytest.mark.parametrize("d", [1, 3, 10])  # moments by slabs and by rows
@pytest.mark.parametrize("kept", ["from a pass", "from moments", "never"])
def test_compiled_passes_agree_with_numpy(rng, positions, form, chosen, d, kept):
    tokens, features = batch(rng, form, d), FEATURES[chosen](d)
    y, w = random_targets(rng, tokens, 3, positions), rng.random(len(tokens))
    C = rng.standard_normal((3, features.count))
    given = (tokens, y, w, positions, features)
    expected = results(NumpyNormalOperator(samples_of(*given)), C)
    found = results(operator_of(samples_of(*given), kept), C)
    # Sums of absolute values: what rounding is relative to. y - C h becomes |y| + |C| |h|.
    sizes = NumpyNormalOperator(samples_of(absolute(tokens), absolute(y), w, positions, features))
    size = results(sizes, np.abs(C))[:5] + list(sizes.gradient(-np.abs(C)))
    # S has 2 n roundings and occurs at most four times, C h one a feature and twice, the sum over
    # samples one each; both sides may err.
    steps = 2 * (8 * tokens.lengths.max() + 2 * features.count + tokens.n_samples(positions) + 8)
    for a, b, c in zip(found, expected, size, strict=True):
        assert a.shape == b.shape
        assert (np.abs(a - b) <= steps * EPS * c).all()


@pytest.mark.parametrize("keep", [True, False])
def test_passes_are_what_the_features_give(rng, backend, positions, keep):
    sequences = [rng.standard_normal((n, 3)) for n in rng.integers(1, 7, 90)]
    tokens = as_tokens(sequences)
    y, w = random_targets(rng, tokens, 2, positions), rng.random(90)
    operator = get_backend(backend).normal_operator(
        samples_of(tokens, y, w, positions, la.Features(3)), keep=keep
    )
    H = loops.all_features(sequences, positions)
    weights = loops.per_sample(w, sequences, positions)
    C = rng.standard_normal((2, 18))
    residual = y.rows() - H @ C.T
    close = {"rtol": 1e-11, "atol": 1e-9}
    for _ in range(2):  # the second time, kept samples are used
        np.testing.assert_allclose(
            home(operator.normal(C).product), (H @ C.T * weights[:, None]).T @ H, **close
        )
        np.testing.assert_allclose(
            home(operator.gradient(C).gradient), (residual * weights[:, None]).T @ H, **close
        )
        np.testing.assert_allclose(operator.gradient(C).squared_error, weights @ residual**2)
        np.testing.assert_allclose(operator.normal(C).energy, weights @ (H @ C.T) ** 2)
        diagonal = home(operator.kronecker_factors().diagonal.ravel())
        np.testing.assert_allclose(diagonal, weights @ H**2)
    assert operator.total_weight == pytest.approx(weights.sum())
    assert operator.n_samples == len(H)


@needs_cpu
@pytest.mark.parametrize("chosen", FEATURES)
@pytest.mark.parametrize("kept", ["from a pass", "from moments", "never"])
@pytest.mark.parametrize("d", [5, 10])  # moments by slabs and by rows
def test_passes_have_the_same_bits_for_every_number_of_threads(rng, positions, chosen, kept, d):
    tokens, features = batch(rng, "ragged", d, 3000), FEATURES[chosen](d)
    y, w = random_targets(rng, tokens, 2, positions), rng.random(3000)
    C = rng.standard_normal((2, features.count))
    found = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        operator = operator_of(samples_of(tokens, y, w, positions, features), kept)
        found.append(results(operator, C))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


@needs_cpu
def test_passes_are_right_on_every_instruction_set(rng, isa, positions):
    tokens, features = batch(rng, "ragged", 7), FEATURES["most"](7)
    y = random_targets(rng, tokens, 2, positions)
    C = rng.standard_normal((2, features.count))
    given = (tokens, y, None, positions, features)
    expected = results(NumpyNormalOperator(samples_of(*given)), C)
    found = results(get_backend("cpu").normal_operator(samples_of(*given), keep=True), C)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() <= 1e-11 * np.abs(b).max()


FLOAT32 = 2.0**-24


def narrow_of(operator, C):
    operator.kronecker_factors()  # a first pass, which keeps the samples
    return operator.narrow(C)


@needs_cpu
@pytest.mark.parametrize("form", ["dense", "ragged", "float32"])
@pytest.mark.parametrize("chosen", FEATURES)
@pytest.mark.parametrize("d", [1, 3, 9])
@pytest.mark.parametrize("outputs", [1, 9])
def test_narrow_passes_agree_with_numpy_to_float32(rng, positions, form, chosen, d, outputs):
    tokens, features = batch(rng, form, d), FEATURES[chosen](d)
    y, w = random_targets(rng, tokens, 1, positions), rng.random(len(tokens))
    C = rng.standard_normal((outputs, features.count)) * np.logspace(-30, 30, outputs)[:, None]
    given = (tokens, y, w, positions, features)
    expected = NumpyNormalOperator(samples_of(*given)).normal(C)
    found = narrow_of(get_backend("cpu").normal_operator(samples_of(*given), keep=True), C)
    sizes = NumpyNormalOperator(
        samples_of(absolute(tokens), absolute(y), w, positions, features)
    ).normal(np.abs(C))
    # In float32: s, C and w f z are rounded, sums have up to 180 pairs and then 256 samples.
    steps = 2 * (3 + 180) + 2 + 256
    for a, b, c in zip(found, expected, sizes, strict=True):
        assert (np.abs(a - b) <= steps * FLOAT32 * c).all()


@needs_cpu
@pytest.mark.parametrize("d", [16, 33])
def test_narrow_passes_are_right_on_every_instruction_set(rng, isa, positions, d):
    """With 16 and 33 queries, tiles of every number of vectors take part."""
    tokens, features = batch(rng, "ragged", d, 70), la.Features(d)
    y = random_targets(rng, tokens, 3, positions)
    C = rng.standard_normal((3, features.count))
    operator = get_backend("cpu").normal_operator(
        samples_of(tokens, y, None, positions, features), keep=True
    )
    found = narrow_of(operator, C)
    for a, b in zip(found, operator.normal(C), strict=True):
        assert np.abs(a - b).max() <= 100 * FLOAT32 * np.abs(b).max()
        assert (a != b).any()


@needs_cpu
def test_narrow_passes_have_the_same_bits_for_every_number_of_threads(rng, positions):
    tokens, features = batch(rng, "ragged", 5, 3000), la.Features(5)
    y, w = random_targets(rng, tokens, 2, positions), rng.random(3000)
    C = rng.standard_normal((2, features.count))
    found = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        operator = get_backend("cpu").normal_operator(
            samples_of(tokens, y, w, positions, features), keep=True
        )
        found.append(narrow_of(operator, C))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


@needs_cpu
def test_there_are_no_narrow_passes_of_samples_that_are_not_kept_or_too_large(rng):
    Z = rng.standard_normal((300, 4, 3))
    y = random_targets(rng, as_tokens(Z), 1, "last")
    C = rng.standard_normal((1, 18))

    def operator(tokens, keep):
        given = samples_of(as_tokens(tokens), y, None, "last", la.Features(3))
        return get_backend("cpu").normal_operator(given, keep=keep)

    assert operator(Z, True).narrow(C) is None  # before a first pass
    assert narrow_of(operator(Z, False), C) is None
    assert narrow_of(operator(Z, True), C) is not None
    assert narrow_of(operator(1e20 * Z, True), C) is None  # S is beyond float32
    assert np.isfinite(operator(1e20 * Z, True).normal(C).product).all()


@needs_cpu
@pytest.mark.parametrize("coordinate", [0, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_what_is_not_finite_is_found_where_few_pairs_are_formed(rng, positions, coordinate, value):
    """Coordinate 0 has no part in a chosen feature, coordinate 5 has."""
    features = la.Features(8, pairs=[(5, 5), (5, 6)], queries=[5])
    Z = rng.standard_normal((300, 4, 8))
    Z[270, 2, coordinate] = value
    tokens = as_tokens(Z)
    y = random_targets(rng, tokens, 1, positions)
    operator = get_backend("cpu").normal_operator(
        samples_of(tokens, y, None, positions, features), keep=True
    )
    if coordinate == 0 and value == 1e200:  # finite, and no feature has it
        operator.kronecker_factors()
        return
    with pytest.raises(
        ValueError, match=r"^Z: (must be finite, got .* in sequence 270|.*overflow)"
    ):
        operator.kronecker_factors()
    with pytest.raises(ValueError, match="^Z: "):
        la.Moments(8, 1, positions=positions, features=features).update(
            Z, y.restore(y.rows()) if positions != "last" else y.rows()
        )


@needs_cpu
def test_an_interrupted_first_pass_leaves_nothing_half_made(rng):
    """A pass that fails is made again from the tokens."""
    Z = rng.standard_normal((2000, 4, 4))
    tokens = as_tokens(Z)
    y = random_targets(rng, tokens, 1, "last")
    operator = get_backend("cpu").normal_operator(
        samples_of(tokens, y, None, "last", la.Features(4)), keep=True
    )
    Z[1900, 0, 0] = np.nan  # in place: the operator reads these tokens
    with pytest.raises(ValueError, match="sequence 1900"):
        operator.kronecker_factors()
    Z[1900, 0, 0] = 0.5
    expected = NumpyNormalOperator(
        samples_of(tokens, y, None, "last", la.Features(4))
    ).kronecker_factors()
    np.testing.assert_allclose(operator.kronecker_factors().pairs, expected.pairs, rtol=1e-10)


@needs_cpu
def test_moments_refuse_normal_equations_of_other_samples(rng):
    one, other = (
        samples_of(tokens, random_targets(rng, tokens, 1, "last"), None, "last", la.Features(2))
        for tokens in (batch(rng, "dense", 2), batch(rng, "dense", 2))
    )
    with pytest.raises(ValueError, match="^into: "):
        get_backend("cpu").moments(one, into=get_backend("cpu").normal_operator(other, keep=True))
