"""The certificate of data in blocks, from a factorisation of each.

Lambda is block diagonal (:mod:`linattn_fast.solvers.blocks.partition`), with zeros for features that no sample
has. Its rank is the sum over blocks, its eigenvalues are those of the blocks, and the layer is
determined when every block is and no feature is missing.
"""

from __future__ import annotations

import sys

import numpy as np

from ..arrays.floats import gamma
from ..arrays.types import Floats, Positions
from ..data.tokens import Tokens, total_weight
from ..exact.exact_rank import BUDGET, ExactRank, counting, exact_rank, unseen_features
from ..exact.modular_features import ModularData
from ..exact.sample_counts import absent_features
from ..features.compact import compact_bytes
from ..features.features import Features
from ..linalg.cholesky import extreme_eigenvalues
from ..moments.moments import Moments
from ..solvers.blocks.partition import Partition, QueryBlock
from ..system.machine import in_words
from .block_coverage import BlockCoverage, BlockRange
from .certificate import Certificate, Verdict
from .certifying import judge
from .lower_bound import Proof, prove, rounded_down
from .source import Source

_NOT_TRIED = Proof(0.0, "a block is short of rank")


def certificate_of_blocks(
    partition: Partition,
    ranges: list[BlockRange],
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
    backend: str,
    limit: int,
) -> Certificate:
    """Certificate from the range of each block; a proof may use ``limit`` bytes."""
    features = partition.features
    p = features.count
    rank = sum(block.coverage.factor.rank for block in ranges)
    largest_weight = 1.0 if weights is None else float(weights.max())
    smallest, condition, bound = 0.0, float("inf"), 0.0
    if rank == p:
        extremes = [extreme_eigenvalues(block.coverage.factor) for block in ranges]
        smallest = min(low for low, _ in extremes)
        if smallest > 0:
            condition = max(high for _, high in extremes) / smallest
        proofs = [
            _prove(partition, each.block, low, tokens, weights, positions, backend, limit)
            for each, (low, _) in zip(ranges, extremes, strict=True)
        ]
        worst = min(range(len(ranges)), key=lambda i: proofs[i].bound)
        bound = proofs[worst].bound
        data = _data_of(partition, ranges[worst].block, tokens, weights, positions)
        judged = _judged(partition, ranges[worst], proofs[worst], data, BUDGET)
    else:
        data = ModularData.of(tokens, weights, positions, features)
        judged = _short(partition, ranges, data, tokens, weights)
    return Certificate(
        lambda_min=smallest,
        condition=condition,
        lower_bound=bound,
        verdict=judged[0],
        rank=rank,
        dimension=p,
        n_samples=len(partition.samples),
        evidence=judged[1],
        features=features,
        positions=positions,
        noise_samples=partition.total_weight / largest_weight,
        source=Source(features, None, blocks=BlockCoverage(ranges, partition)),
    )


def _short(
    partition: Partition,
    ranges: list[BlockRange],
    data: ModularData,
    tokens: Tokens,
    weights: Floats | None,
) -> tuple[Verdict, str]:
    """Judge data that is numerically short of rank: is it proved of the whole, or of a block?"""
    p = data.features.count
    absent, exactly = absent_features(data, BUDGET)
    if absent:
        return "not identifiable", unseen_features(absent, p, exactly=exactly)
    # No feature is absent, so that every query has a block
    doubtful = []
    for each in ranges:
        own_data = _data_of(partition, each.block, tokens, weights, data.positions)
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


def _data_of(
    partition: Partition,
    block: QueryBlock,
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
) -> ModularData:
    """The sequences that query a block, and its features.

    Other queries of these sequences add zeros, since they have none of its coordinates.
    """
    some, own = _sequences_of(partition, block, tokens, weights)
    whole = partition.features
    features = Features(whole.d, whole.pairs, whole.queries[block.queries])
    return ModularData.of(some, own, positions, features)


def _sequences_of(
    partition: Partition, block: QueryBlock, tokens: Tokens, weights: Floats | None
) -> tuple[Tokens, Floats | None]:
    """Sequences that query a block, and their weights."""
    rows = np.unique(partition.samples.sequences[block.rows])
    some = Tokens(tuple(tokens.sequence(int(i)) for i in rows))
    return some, None if weights is None else weights[rows]


def _prove(
    partition: Partition,
    block: QueryBlock,
    estimate: float,
    tokens: Tokens,
    weights: Floats | None,
    positions: Positions,
    backend: str,
    limit: int,
) -> Proof:
    """Prove a bound on lambda_min of one block, in which no feature is missing.

    From moments of the sequences that query it: with the features of the block alone, other queries
    of theirs add zeros. Zeros between blocks are zeros of the tokens themselves, with no rounding.
    """
    whole = partition.features
    features = Features(whole.d, whole.pairs, whole.queries[block.queries])
    needed = 2 * compact_bytes(features, 0, positions) + 16 * features.count**2
    if needed > limit:
        return Proof(0.0, f"the proof needs {in_words(needed)} of memory")
    some, own = _sequences_of(partition, block, tokens, weights)
    moments = Moments(whole.d, 0, positions=positions, features=features, backend=backend)
    moments.add_checked(some, None, own, None)
    weight, all_weight = total_weight(some, own, positions), partition.total_weight
    proof = prove(moments, estimate * all_weight / weight)
    # Both weights are sums that were rounded
    error = gamma(len(partition.samples) + 2)
    share = weight / all_weight * (1 - 4 * error) if error < 0.1 else 0.0
    if share < sys.float_info.min:  # its error is not relative
        share = 0.0
    return Proof(rounded_down(proof.bound * share), proof.reason)
