"""Training by AdamW, several models at once, and the time that one of them takes alone.

Losses are means over the batches of an epoch, relative to the variance of the targets. Nothing
decays the weights, so that nothing but the optimiser keeps a model from the loss zero. Arithmetic
is in float32, as is usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..arrays.types import Floats
from ..system.machine import get_num_threads
from .models import ModelFamily, Parameters


def use_threads() -> None:
    """Let PyTorch run on as many threads as the compiled code does."""
    torch.set_num_threads(get_num_threads())


def as_tensors(arrays: Sequence[Floats]) -> Tensor:
    """One array a seed, (S, ..), in float32."""
    return torch.stack([torch.from_numpy(array.astype(np.float32)) for array in arrays])


class Training:
    """Models of one family at every learning rate and seed, with batches of one size.

    Parameters
    ----------
    family
        What is trained.
    Z, y
        Tokens (S, N, T, d) and targets (S, N, R), a data set for each seed.
    rates
        Learning rates.
    batch
        Sequences a step; N is a multiple of it.
    seeds
        Seeds of the parameters and of the order of the batches, one for each data set.
    """

    def __init__(
        self,
        family: ModelFamily,
        Z: Tensor,
        y: Tensor,
        rates: Sequence[float],
        batch: int,
        seeds: Sequence[int],
    ) -> None:
        self.family = family
        self.batch = batch
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        first = family.parameters(Z.shape[3], Z.shape[2], self.generators)
        # All learning rates start from the same parameters; each has tensors of its own
        self.models: list[Parameters] = [
            {name: value.clone().requires_grad_() for name, value in first.items()} for _ in rates
        ]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(model.values()), "lr": rate}
                for model, rate in zip(self.models, rates, strict=True)
            ],
            weight_decay=0.0,
        )
        self.inputs = family.inputs(Z)
        self.y = y
        self.variance = y.flatten(1).var(1, correction=0)  # (S,)

    def parameters(self) -> Parameters:
        """Parameters of every learning rate, (S, L, ..)."""
        return {
            name: torch.stack([model[name] for model in self.models], 1) for name in self.models[0]
        }

    def _batches(self) -> Iterator[Tensor]:
        """Indices (S, B), each seed in an order of its own."""
        N = self.y.shape[1]
        orders = torch.stack([torch.randperm(N, generator=one) for one in self.generators])
        yield from orders.split(self.batch, 1)

    def epoch(self) -> Floats:
        """Take every sequence once; mean loss of each model relative to the variance, (S, L, M)."""
        seeds = torch.arange(len(self.y))[:, None]
        total, steps = torch.zeros(()), 0
        for indices in self._batches():
            inputs = tuple(one[seeds, indices] for one in self.inputs)
            wanted = self.y[seeds, indices][:, None, None]  # (S, 1, 1, B, R)
            found = self.family.outputs(self.parameters(), inputs)
            losses = ((found - wanted) ** 2).mean((-1, -2))  # (S, L, M)
            self.optimizer.zero_grad()
            losses.sum().backward()
            self.optimizer.step()
            total, steps = total + losses.detach(), steps + 1
        relative = total / steps / self.variance[:, None, None]
        return np.asarray(relative.numpy(), dtype=np.float64)


def train(training: Training, epochs: int, watch: Callable[[], None]) -> Floats:
    """Loss of every epoch, (S, L, M, epochs); ``watch`` is called after each."""
    losses = []
    for _ in range(epochs):
        losses.append(training.epoch())
        watch()
    return np.stack(losses, -1)


def seconds_per_epoch(
    family: ModelFamily, Z: Tensor, y: Tensor, batch: int, repeats: int, patience: float
) -> float:
    """Shortest of a few epochs of one model alone: one seed, one learning rate.

    After the first, which is not counted, there are at most ``repeats``, and none is started when
    ``patience`` seconds have gone.
    """
    training = Training(family, Z[:1], y[:1], [1e-3], batch, [0])
    training.epoch()
    times: list[float] = []
    while len(times) < repeats and (not times or sum(times) < patience):
        start = time.perf_counter()
        training.epoch()
        times.append(time.perf_counter() - start)
    return min(times)
