"""Figure 2b: layers trained by gradient descent on associative memory, without noise.

With C_true in reach of the model, the training loss of coefficients C is exactly

    eps = mean ||C h - y||^2 = tr((C - C_true) Lambda (C - C_true)')

so that a trained layer is at most sqrt(eps / lambda_min) from the truth: where lambda_min > 0 a
small loss is a small distance, and where lambda_min = 0 it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays.types import Floats
from ..datasets import LayerDataset
from ..moments.moments import Moments
from .models import ManyHeads
from .training import Training, as_tensors, use_threads

_RATE, _BATCH = 0.01, 256


def train_memories(
    data: Sequence[LayerDataset],
    heads: tuple[int, ...],
    epochs: int,
    seeds: Sequence[int],
    watch: Callable[[], None],
) -> tuple[Floats, Floats]:
    """Train layers with each number of heads on each data set.

    Returns
    -------
    losses, distances
        (data sets, numbers of heads, epochs) after each epoch: eps over mean ||y||^2, and
        ||C - C_true||_F.
    """
    use_threads()
    T, d_out = data[0].Z.shape[1], data[0].y.shape[1]
    family = ManyHeads(heads, d_out, causal=False)
    Z, y = as_tensors([one.Z for one in data]), as_tensors([one.y for one in data])
    training = Training(family, Z, y, [_RATE], _BATCH, seeds)
    truths = np.stack([one.truth.coefficients() for one in data])  # (S, a, p)
    Lambdas = np.stack([Moments(Z.shape[3], 0).update(one.Z).second_moment() for one in data])
    energy = np.array([(one.y**2).sum(1).mean() for one in data])
    losses, distances = [], []
    for _ in range(epochs):
        training.epoch()
        C = family.coefficients(training.parameters())[:, 0].detach().numpy() / T
        off = C.reshape(*C.shape[:3], -1) - truths[:, None]  # (S, M, a, p)
        eps = np.einsum("smap,spq,smaq->sm", off, Lambdas, off, optimize=True)
        losses.append(eps / energy[:, None])
        distances.append(np.linalg.norm(off, axis=(2, 3)))
        watch()
    return np.stack(losses, -1), np.stack(distances, -1)
