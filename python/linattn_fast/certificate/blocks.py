"""The certificate of data in blocks, from a factorisation of each block.

Lambda is block diagonal (:mod:`linattn_fast.solvers.blocks.partition`), with zeros for features
that no sample has. Its rank is the sum of the ranks of its blocks, its eigenvalues are their
eigenvalues, and the layer is determined when every block is and no feature is missing.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from ..arrays.floats import gamma
from ..data.tokens import Tokens
from ..exact.exact_rank import BUDGET, ExactRank, counting, exact_rank, unseen_features
from ..exact.modular_features import ModularData
from ..exact.sample_counts import absent_features
from ..features.compact import compact_bytes
from ..features.features import Features
from ..features.samples import Samples
from ..linalg.cholesky import extreme_eigenvalues
from ..linalg.spectral import SpectralFactor
from ..moments.sums import MomentSums
from ..problem.in_memory import InMemory
from ..solvers.blocks.partition import Partition, QueryBlock
from ..solvers.blocks.solver import FactorisedBlock, SolvedBlocks
from ..solvers.solved import Solved, Task
from ..system.machine import in_words, usable_memory
from .block_coverage import BlockCoverage, BlockRange
from .certificate import Certificate, Verdict
from .certifying import judge
from .coverage import Coverage
from .determined_range import DeterminedRange
from .lower_bound import Proof, prove, rounded_down

_NOT_TRIED = Proof(0.0, "a block is short of rank")


def certify_blocks(task: Task, solved: Solved) -> Certificate:
    """Certificate of a fit in blocks."""
    assert solved.blocks is not None
    assert isinstance(solved.problem, InMemory)
    limit = usable_memory() if task.memory_limit is None else task.memory_limit
    return certificate_of_blocks(solved.blocks, solved.problem, limit)


def certificate_of_blocks(blocks: SolvedBlocks, problem: InMemory, limit: int) -> Certificate:
    """Certificate from the factorisation of each block; a proof may use ``limit`` bytes."""
    partition, samples = blocks.partition, problem.samples
    ranges = [_range_of(each, partition.features) for each in blocks.factorised]
    features = partition.features
    p = features.count
    rank = sum(block.coverage.factor.rank for block in ranges)
    smallest, condition, bound = 0.0, float("inf"), 0.0
    if rank == p:
        extremes = [extreme_eigenvalues(block.coverage.factor) for block in ranges]
        smallest = min(low for low, _ in extremes)
        if smallest > 0:
            condition = max(high for _, high in extremes) / smallest
        proofs = [
            _prove(partition, each.block, low, problem, limit)
            for each, (low, _) in zip(ranges, extremes, strict=True)
        ]
        worst = min(range(len(ranges)), key=lambda i: proofs[i].bound)
        bound = proofs[worst].bound
        data = ModularData.of(_samples_of(partition, ranges[worst].block, samples))
        judged = _judged(partition, ranges[worst], proofs[worst], data, BUDGET)
    else:
        judged = _short(partition, ranges, problem)
    return Certificate(
        lambda_min=smallest,
        condition=condition,
        lower_bound=bound,
        verdict=judged[0],
        rank=rank,
        dimension=p,
        n_samples=len(partition.prefixes),
        evidence=judged[1],
        features=features,
        positions=samples.positions,
        noise_samples=partition.total_weight / samples.largest_weight,
        determined=DeterminedRange(features, None, blocks=BlockCoverage(ranges, partition)),
    )


def _range_of(found: FactorisedBlock, features: Features) -> BlockRange:
    """The range of one block of Lambda, without the basis that only a solution needs."""
    factor = found.factor
    if isinstance(factor, SpectralFactor):
        factor = replace(
            factor, vectors=np.ascontiguousarray(factor.vectors), lift=None, ridge=None
        )
    return BlockRange(found.block, found.columns, Coverage(factor, found.diagonal, features))


def _short(
    partition: Partition, ranges: list[BlockRange], problem: InMemory
) -> tuple[Verdict, str]:
    """Judge data that is numerically short of rank: is that proved, for all or for a block?"""
    data, samples = problem.modular, problem.samples
    assert data is not None  # blocks are of tokens
    p = data.features.count
    absent, exactly = absent_features(data, BUDGET)
    if absent:
        return "not identifiable", unseen_features(absent, p, exactly=exactly)
    # No feature is absent, so every query has a block
    doubtful = []
    for each in ranges:
        own_data = ModularData.of(_samples_of(partition, each.block, samples))
        if each.coverage.factor.rank < own_data.features.count:
            doubtful.append((each, own_data))
    said: tuple[Verdict, str] = ("undecided", "squares of features underflow; nothing is proved")
    for each, own_data in doubtful:
        said = _judged(partition, each, _NOT_TRIED, own_data, BUDGET / len(doubtful))
        if said[0] == "not identifiable":
            break
    return said


def _judged(
    partition: Partition, found: BlockRange, proof: Proof, data: ModularData, budget: float
) -> tuple[Verdict, str]:
    """Judge the whole by its worst block."""
    block, p = found.block, data.features.count

    def exact() -> ExactRank:
        n = len(block.rows)
        if n < p:
            return ExactRank(0, n, counting(n, p, f"{n} samples"))
        return exact_rank(data, budget=budget)

    verdict, evidence = judge(found.coverage.factor, p, proof, exact)
    names = ", ".join(str(l) for l in partition.features.queries[block.queries[:4]])
    more = ", .." if len(block.queries) > 4 else ""
    return verdict, (
        f"in {len(partition.blocks)} blocks, of queries that never occur together; "
        f"that of queries {names}{more}: {evidence}"
    )


def _samples_of(partition: Partition, block: QueryBlock, samples: Samples) -> Samples:
    """Samples of the sequences that query a block, with the features of the block.

    Other queries of these sequences have none of its coordinates, so they add zeros.
    """
    whole = partition.features
    features = Features(whole.d, whole.pairs, whole.queries[block.queries])
    rows = np.unique(partition.prefixes.sequences[block.rows])
    tokens = Tokens(tuple(samples.tokens.sequence(int(i)) for i in rows))
    weights = None if samples.weights is None else samples.weights[rows]
    return Samples(tokens, None, weights, samples.positions, features)


def _prove(
    partition: Partition, block: QueryBlock, estimate: float, problem: InMemory, limit: int
) -> Proof:
    """Prove a bound on lambda_min of one block, in which no feature is missing.

    The proof is from moments of the sequences that query the block, with its features alone: other
    queries of these sequences add zeros. Zeros between blocks are zeros of the tokens themselves,
    with no rounding.
    """
    some = _samples_of(partition, block, problem.samples)
    features = some.features
    needed = 2 * compact_bytes(features, 0, some.positions) + 16 * features.count**2
    if needed > limit:
        return Proof(0.0, f"the proof needs {in_words(needed)} of memory")
    moments = MomentSums.over(some, problem.engine, "float64")
    weight, all_weight = some.total_weight, partition.total_weight
    proof = prove(moments, estimate * all_weight / weight)
    # Both weights are sums that were rounded
    error = gamma(len(partition.prefixes) + 2)
    share = weight / all_weight * (1 - 4 * error) if error < 0.1 else 0.0
    if share < sys.float_info.min:  # its error is not relative
        share = 0.0
    return Proof(rounded_down(proof.bound * share), proof.reason)
