"""One fit from many jobs: each turns its share of the data into a file of moments, a last one fits.

    python examples/job_array.py part 0 4 results     # job 0 of 4 writes results/moments_0.npz
    python examples/job_array.py merge 4 results      # adds up the four files and fits

As a SLURM job array, 4 jobs of one core and then the merge:

    #SBATCH --array=0-3
    #SBATCH --cpus-per-task=1
    python examples/job_array.py part $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT results

    #SBATCH --dependency=afterok:<id of the array>
    python examples/job_array.py merge 4 results

On one machine:  for i in 0 1 2 3; do python examples/job_array.py part $i 4 results; done

A job that is killed and started again goes on from its last checkpoint. Files of moments are a few
megabytes however many sequences went into them, and merging adds them up exactly as one process
would have added the same batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import linattn_fast as la

D, D_OUT, BATCHES = 6, 2, 20
"""Twenty batches in all, made here from their numbers; a real job would read files instead."""


def teacher() -> la.Heads:
    """The layer that all jobs learn."""
    rng = np.random.default_rng(0)
    return la.Heads(rng.standard_normal((2, D_OUT, D)), rng.standard_normal((2, D, D)))


def batches(part: int, parts: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every ``parts``-th batch, from batch ``part`` on: 500 sequences of 24 tokens each."""
    layer = teacher()
    for number in range(part, BATCHES, parts):
        rng = np.random.default_rng([1, number])
        Z = rng.standard_normal((500, 24, D))
        yield Z, layer(Z) + 0.1 * rng.standard_normal((500, D_OUT))


def accumulate(part: int, parts: int, folder: Path) -> None:
    """One job: its batches into one file."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / f"checkpoint_{part}.npz"
    moments = la.Moments(D, D_OUT).update(batches(part, parts), checkpoint=checkpoint)
    moments.save(folder / f"moments_{part}.npz")
    checkpoint.unlink()
    print(f"part {part} of {parts}: {moments.n_samples} samples")


def merge(parts: int, folder: Path) -> None:
    """The last job: add up, fit, certify."""
    total = la.Moments.load(folder / "moments_0.npz")
    for part in range(1, parts):
        total = total + la.Moments.load(folder / f"moments_{part}.npz")
    fit = total.fit(heads="svd")
    fit.save(folder / "fit.npz")
    truth = teacher().coefficients()
    error = np.linalg.norm(fit.coefficients - truth) / np.linalg.norm(truth)
    print(f"{total.n_samples} samples, {fit.certificate.verdict}, relative error {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("part", help="accumulate one part")
    one.add_argument("part", type=int)
    last = commands.add_parser("merge", help="merge all parts and fit")
    for command in (one, last):
        command.add_argument("parts", type=int)
        command.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "part":
        if not 0 <= given.part < given.parts:
            parser.error(f"part must be between 0 and {given.parts - 1}, got {given.part}")
        accumulate(given.part, given.parts, given.folder)
    else:
        merge(given.parts, given.folder)


if __name__ == "__main__":
    main()
