"""Whatever is passed in: an answer, or an error that names its argument; never a crash."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import linattn_fast as la

ARGUMENTS = ("Z", "y", "offsets", "sample_weight", "d", "alpha", "positions", "fit", "Z0", "steps")

dtypes = st.one_of(
    st.sampled_from([np.float32, np.float64]),
    hnp.floating_dtypes(),
    hnp.integer_dtypes(),
    hnp.boolean_dtypes(),
    hnp.complex_number_dtypes(),
    st.just(np.dtype(object)),
    st.just(np.dtype("U3")),
    st.just(np.dtype("datetime64[s]")),
    st.just(np.dtype([("a", float)])),
)


def arrays(draw, dimensions=st.integers(0, 4)):
    dtype = draw(dtypes)
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=(n := draw(dimensions)), max_size=n)))
    if np.dtype(dtype).kind in "fiubc":
        array = draw(hnp.arrays(dtype, shape))
    else:
        array = np.zeros(shape, dtype)
    if array.ndim and draw(st.booleans()):
        array = array[:: draw(st.sampled_from([1, -1, 2]))]
    if draw(st.booleans()):
        array = array.T
    array.flags.writeable = False
    return array


@st.composite
def anything(draw):
    kind = draw(st.sampled_from(["array", "list", "odd"]))
    if kind == "array":
        return arrays(draw)
    if kind == "list":
        return [arrays(draw, st.integers(1, 3)) for _ in range(draw(st.integers(0, 4)))]
    return draw(
        st.sampled_from([None, 1, 2.5, "x", b"x", {}, [], [[]], [[[]]], [1, [2]], object()])
    )


def attempt(call):
    """What the call returns; None where it raises an error that starts with an argument."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except (ValueError, TypeError, MemoryError) as error:
        assert str(error).startswith(ARGUMENTS), f"{type(error).__name__}: {error}"
    return None


@st.composite
def batches(draw, d=None):
    """Arguments of a fit: in order, or with one of them replaced by anything at all."""
    d = draw(st.integers(1, 4)) if d is None else d
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    form = draw(st.sampled_from(["list", "flat", "dense"]))
    if form == "dense":
        lengths = lengths[:1] * len(lengths)
    kind = draw(st.sampled_from([np.float32, np.float64, np.int16, np.uint8]))
    rows = draw(hnp.arrays(kind, (sum(lengths), d), elements=st.integers(0, 9)))
    ends, offsets, Z = np.cumsum(lengths), None, rows
    if form == "dense":
        Z = rows.reshape(len(lengths), lengths[0], d)
    elif form == "list":
        Z = np.split(rows, ends[:-1])
    else:
        offsets = np.concatenate([[0], ends])
    given = {
        "Z": Z,
        "y": draw(hnp.arrays(np.float64, len(lengths), elements=st.floats(-9, 9))),
        "offsets": offsets,
        "sample_weight": draw(st.none() | st.just(np.ones(len(lengths)))),
    }
    spoiled = draw(st.none() | st.sampled_from(sorted(given)))
    if spoiled is not None:
        few = st.lists(st.integers(-2, 12), max_size=5)
        given[spoiled] = draw(st.one_of(few, anything()) if spoiled == "offsets" else anything())
    return spoiled, given


@pytest.mark.filterwarnings("ignore::linattn_fast.DataWarning")  # zeros may look like padding
@settings(max_examples=400)
@given(batches())
def test_fit_survives_anything(batch):
    spoiled, given = batch
    fit = attempt(lambda: la.fit(**given))
    assert fit is not None or spoiled is not None
    if fit is not None:
        assert np.isfinite(fit.coefficients).all()


@pytest.mark.filterwarnings("ignore::linattn_fast.DataWarning")  # zeros may look like padding
@settings(max_examples=400)
@given(batches(d=3))
def test_layers_survive_anything(batch):
    spoiled, given = batch
    Z, offsets = given["Z"], given["offsets"]
    heads = la.Heads(np.ones((1, 3, 3)), np.ones((1, 3, 3)))
    for positions in ("last", "all", "causal"):
        y = attempt(lambda where=positions: heads(Z, where, offsets=offsets))
        assert y is not None or spoiled in ("Z", "offsets")
        if y is not None:
            assert all(np.isfinite(rows).all() for rows in y)
    attempt(lambda: heads.generate(Z, 2))
    attempt(lambda: la.certify(Z, offsets=offsets))


@settings(max_examples=300)
@given(
    Z=hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=3, max_dims=3, max_side=6),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    ),
    data=st.data(),
)
def test_well_formed_batches_of_any_values_are_learned_or_refused(Z, data):
    y = data.draw(hnp.arrays(np.float64, len(Z), elements=st.floats(-1e30, 1e30)))
    fit = attempt(lambda: la.fit(Z, y))
    # The sixth power of a float32 is within the range of float64, so only NaN and infinity fail.
    assert (fit is not None) == np.isfinite(Z).all()
    if fit is not None:
        assert np.isfinite(fit.coefficients).all()


@pytest.mark.parametrize("size", 10.0 ** -np.arange(46, 60))
def test_tokens_near_underflow_are_learned_or_refused(rng, backend, size):
    truth = la.Heads(rng.standard_normal((1, 1, 2)), rng.standard_normal((1, 2, 2)))
    Z = rng.standard_normal((50, 4, 2))
    y = truth(Z)
    try:
        fit = la.fit(size * Z, y, backend=backend, certify=False, heads=None).get()
    except ValueError as error:
        assert str(error).startswith("Z: ")
        assert "underflow" in str(error)
    else:
        found = fit.coefficients * size**3
        assert np.abs(found - truth.coefficients()).max() < 1e-6
