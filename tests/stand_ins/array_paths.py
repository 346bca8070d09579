"""Every way to hand an array to the package, to be tried with the arrays of each library.

A path takes ``give``, which turns a numpy array into the library's, and returns numpy results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import linattn_fast as la

Give = Callable[[np.ndarray], Any]
N, n, d, d_out = 60, 6, 3, 2


class Data:
    """Arrays of one dtype for all paths, and copies of them to compare with afterwards."""

    def __init__(self, dtype: type) -> None:
        rng = np.random.default_rng(7)
        self.arrays = {
            "Z": rng.standard_normal((N, n, d)).astype(dtype),
            "y": rng.standard_normal((N, d_out)).astype(dtype),
            "y_tokens": rng.standard_normal((N, n, d_out)).astype(dtype),
            "w": rng.uniform(0.5, 2.0, N).astype(dtype),
            "V": rng.standard_normal((2, d_out, d)).astype(dtype),
            "square": rng.standard_normal((2, d, d)).astype(dtype) / 4,
            "Q": rng.standard_normal((2, d, d)).astype(dtype),
            "C": rng.standard_normal((d_out, 18)).astype(dtype),
            "alphas": np.array([0.0, 0.1, 3.0], dtype=dtype),
            "offsets": np.arange(0, N * n + 1, n),
            "pairs": np.array([[0, 1], [1, 2], [2, 2]]),
            "queries": np.array([0, 2]),
        }
        self.copies = {name: array.copy() for name, array in self.arrays.items()}

    def __getattr__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def assert_unchanged(self) -> None:
        for name, array in self.arrays.items():
            np.testing.assert_array_equal(array, self.copies[name])


def _fit(data: Data, give: Give) -> Any:
    fit = la.fit(give(data.Z), give(data.y), sample_weight=give(data.w), certify=False)
    return fit.coefficients, fit.heads.V, fit.predict(give(data.Z))


def _fit_of_tokens(positions: str) -> Callable[[Data, Give], Any]:
    def path(data: Data, give: Give) -> Any:
        fit = la.fit(
            give(data.Z), give(data.y_tokens), positions=positions, heads=None, certify=False
        )
        return fit.coefficients, fit.predict(give(data.Z))

    return path


def _ragged(data: Data, give: Give) -> Any:
    Z = [give(z[: 1 + i % n]) for i, z in enumerate(data.Z)]
    y = [give(t[: 1 + i % n]) for i, t in enumerate(data.y_tokens)]
    fit = la.fit(Z, y, positions="causal", heads=None, certify=False)
    return fit.coefficients, *fit.predict(Z), fit.predict(Z, "last")


def _targets_one_by_one(data: Data, give: Give) -> Any:
    return la.fit(
        give(data.Z), [give(row) for row in data.y], heads=None, certify=False
    ).coefficients


def _flat(data: Data, give: Give) -> Any:
    Z, y = give(data.Z.reshape(-1, d)), give(data.y_tokens.reshape(-1, d_out))
    fit = la.fit(Z, y, offsets=give(data.offsets), positions="all", heads=None, certify=False)
    return fit.coefficients, fit.predict(Z, offsets=give(data.offsets))


def _update(data: Data, give: Give) -> Any:
    moments = la.Moments(d, d_out)
    moments.update(give(data.Z[:40]), give(data.y[:40]), sample_weight=give(data.w[:40]))
    moments.update(give(data.Z[40:]), give(data.y[40:]), sample_weight=give(data.w[40:]))
    return moments.gram(), moments.cross()


def _stream(data: Data, give: Give) -> Any:
    def batches() -> Any:
        for k in range(0, N, 20):
            part = slice(k, k + 20)
            yield give(data.Z[part]), give(data.y[part]), give(data.w[part])

    def mappings() -> Any:
        for k in range(0, N, 20):
            part = slice(k, k + 20)
            yield {"Z": give(data.Z[part]), "y": give(data.y[part])}

    alone = (give(data.Z[k : k + 20]) for k in range(0, N, 20))
    return (
        la.Moments(d, d_out).update(batches()).gram(),
        la.Moments(d, d_out).update(list(batches())).cross(),
        la.Moments(d, d_out).update(mappings()).cross(),
        la.Moments(d, 0).update(alone).gram(),
        la.fit(list(batches()), heads=None, certify=False).coefficients,
    )


def _certify(data: Data, give: Give) -> Any:
    certificate = la.certify(give(data.Z), sample_weight=give(data.w))
    Z = give(data.Z)
    return (
        np.array([certificate.lambda_min, certificate.lower_bound]),
        certificate.covers(Z),
        certificate.leverage(Z),
        certificate.error_bound(Z, 0.1),
        *certificate.leverage([give(z) for z in data.Z[:3]], positions="all"),
    )


def _heads(data: Data, give: Give) -> Any:
    heads = la.Heads(give(data.V), give(data.Q))
    Z = give(data.Z)
    return heads.V, heads(Z), heads(Z, "all"), heads(Z, "causal"), heads.coefficients()


def _generate(data: Data, give: Give) -> Any:
    heads = la.Heads(give(data.square), give(data.square))
    return heads.generate(give(data.Z[:3]), 2), heads.generate(give(data.Z[0]), 2)


def _features(data: Data, give: Give) -> Any:
    chosen = la.Features(d, pairs=give(data.pairs), queries=give(data.queries))
    active = la.Features.active(give(data.Z))
    return (
        chosen.pairs,
        chosen.queries,
        active.pairs,
        la.cubic_features(give(data.Z)),
        la.paper_features(give(data.Z)),
    )


def _ridges(data: Data, give: Give) -> Any:
    folds = [la.Moments(d, d_out).update(give(data.Z[k::3]), give(data.y[k::3])) for k in range(3)]
    return (
        la.ridge_path(folds[0] + folds[1], give(data.alphas)).coefficients,
        la.choose_alpha(folds, give(data.alphas)).errors,
        la.leave_one_out(give(data.Z), give(data.y), give(data.alphas[1:])).errors,
    )


def _recover(data: Data, give: Give) -> Any:
    return la.recover_heads(give(data.C), d, method="svd").V


def _estimator(data: Data, give: Give) -> Any:
    whole = la.LinearAttentionRegressor(heads=None, certify=False).fit(
        give(data.Z), give(data.y), sample_weight=give(data.w)
    )
    pieces = la.LinearAttentionRegressor(heads=None, positions="causal", certify=False)
    for k in range(0, N, 20):
        pieces.partial_fit(give(data.Z[k : k + 20]), give(data.y_tokens[k : k + 20, :, 0]))
    score = whole.score(give(data.Z), give(data.y), sample_weight=give(data.w))
    return whole.coef_, whole.predict(give(data.Z)), score, pieces.predict(give(data.Z))


PATHS: dict[str, Callable[[Data, Give], Any]] = {
    "fit, last": _fit,
    "fit, all": _fit_of_tokens("all"),
    "fit, causal": _fit_of_tokens("causal"),
    "fit, list": _ragged,
    "fit, targets one by one": _targets_one_by_one,
    "fit, offsets": _flat,
    "update": _update,
    "streams": _stream,
    "certificate": _certify,
    "heads": _heads,
    "generate": _generate,
    "features": _features,
    "ridges": _ridges,
    "recover": _recover,
    "estimator": _estimator,
}


def flattened(result: Any) -> list[np.ndarray]:
    """All arrays of a result."""
    if isinstance(result, list | tuple):
        return [array for item in result for array in flattened(item)]
    return [np.asarray(result)]


def as_given(array: np.ndarray) -> np.ndarray:
    return array


@cache
def _with_numpy(name: str, dtype: type, numpy_give: Give) -> list[np.ndarray]:
    return flattened(PATHS[name](Data(dtype), numpy_give))


def assert_path_agrees(name: str, dtype: type, give: Give, numpy_give: Give = as_given) -> None:
    """The same bits as with numpy arrays of the same strides, and the inputs as they were."""
    expected = _with_numpy(name, dtype, numpy_give)
    data = Data(dtype)
    found = PATHS[name](data, give)
    for one, other in zip(flattened(found), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    data.assert_unchanged()
