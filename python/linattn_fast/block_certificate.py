"""The certificate of data in blocks, from a factorisation of each.

Lambda is block diagonal (:mod:`linattn_fast.query_blocks`), with zeros for features that no sample
has. Its rank is the sum over blocks, its eigenvalues are those of the blocks, and the layer is
determined when every block is and no feature is missing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .block_coverage import BlockCoverage, BlockRange
from .certificate import Certificate, Verdict
from .certificate_source import Source
from .certifying import extreme_eigenvalues, judge, unseen_features
from .features import Features
from .lower_bound import UNIT, Proof, gamma, prove
from .memory import compact_bytes, in_words
from .moments import Moments
from .query_blocks import Partition, QueryBlock
from .tokens import Floats, Positions, Tokens, total_weight

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
    seen = sum(len(block.columns) for block in ranges)
    rank = sum(block.coverage.factor.rank for block in ranges)
    largest_weight = 1.0 if weights is None else float(weights.max())
    certificate = Certificate(
        lambda_min=0.0,
        condition=float("inf"),
        lower_bound=0.0,
        verdict="not identifiable",
        rank=rank,
        dimension=p,
        n_samples=len(partition.samples),
        evidence=unseen_features(p - seen, p),
        features=features,
        positions=positions,
        noise_samples=partition.total_weight / largest_weight,
        source=Source(features, None, blocks=BlockCoverage(ranges, partition)),
    )
    if seen < p:
        return certificate
    smallest, largest, bound = 0.0, float("inf"), 0.0
    proofs = [_NOT_TRIED] * len(ranges)
    if rank == p:
        extremes = [extreme_eigenvalues(block.coverage.factor) for block in ranges]
        smallest, largest = min(low for low, _ in extremes), max(high for _, high in extremes)
        for i, each in enumerate(ranges):
            proofs[i] = _prove(
                partition, each.block, extremes[i][0], tokens, weights, positions, backend, limit
            )
        bound = min(proof.bound for proof in proofs)
    verdict, evidence = _worst(partition, ranges, proofs)
    return replace(
        certificate,
        lambda_min=smallest,
        condition=largest / smallest if rank == p else float("inf"),
        lower_bound=bound,
        verdict=verdict,
        evidence=evidence,
    )


def _worst(
    partition: Partition, ranges: list[BlockRange], proofs: list[Proof]
) -> tuple[Verdict, str]:
    """The verdict on the whole is the worst on a block, and so is the evidence."""
    order: tuple[Verdict, ...] = ("not identifiable", "undecided", "identifiable")
    judged = []
    for found, proof in zip(ranges, proofs, strict=True):
        block = found.block
        n, p = len(block.rows), len(found.columns)
        if n < p:
            counted = f"proved by counting: {n} samples are fewer than the {p} features"
            judged.append((0, 0.0, block, counted))
            continue
        verdict, evidence = judge(found.coverage.factor, p, 0, proof)
        judged.append((order.index(verdict), proof.bound, block, evidence))
    rank, _, block, evidence = min(judged, key=lambda each: each[:2])
    names = ", ".join(str(l) for l in partition.features.queries[block.queries[:4]])
    more = ", .." if len(block.queries) > 4 else ""
    return order[rank], (
        f"in {len(ranges)} blocks, of queries that never occur together; "
        f"that of queries {names}{more}: {evidence}"
    )


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
    rows = np.unique(partition.samples.sequences[block.rows])
    some = Tokens(tuple(tokens.sequence(int(i)) for i in rows))
    own = None if weights is None else weights[rows]
    moments = Moments(whole.d, 0, positions=positions, features=features, backend=backend)
    moments.add_checked(some, None, own, None)
    weight, all_weight = total_weight(some, own, positions), partition.total_weight
    proof = prove(moments, estimate * all_weight / weight)
    # Both weights are sums that were rounded
    error = gamma(len(partition.samples) + 2)
    share = weight / all_weight * (1 - 4 * error) * (1 - 8 * UNIT) if error < 0.1 else 0.0
    return Proof(proof.bound * max(share, 0.0), proof.reason)
