"""Faults put into the package on purpose: for each of them a test fails that passes without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack.calls import Broken
from attack.cases import case_of
from attack.claims import coverage, fits
from backend import test_underflow
from certificate import test_lower_bound
from conftest import needs_cpu
from features import test_left_out
from moments import test_checkpoint

from linattn_fast.backend import cpu
from linattn_fast.certificate import leverage, lower_bound
from linattn_fast.exact.exact_rank import ModularRange
from linattn_fast.moments import checkpoint, moments
from linattn_fast.moments.digests import BatchDigest
from linattn_fast.moments.sums import MomentSums
from linattn_fast.solvers import cholesky
from linattn_fast.solvers import dual as few_samples
from linattn_fast.solvers.blocks import solver as block_fit

pytestmark = needs_cpu


def caught(test, *arguments) -> bool:
    """Whether a test fails."""
    try:
        test(*arguments)
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


def breaks(claim, seed) -> bool:
    """Whether the campaign finds a broken promise in the case of a seed."""
    try:
        claim(case_of(seed), np.random.default_rng([41010, seed]))
    except Broken:
        return True
    return False


def caught_by_attack(claim, seeds, monkeypatch) -> bool:
    """Whether the campaign finds a broken promise, in a case where it finds none without the fault.

    Takes the fault out again.
    """
    found = next((seed for seed in seeds if breaks(claim, seed)), None)
    monkeypatch.undo()
    return found is not None and not breaks(claim, found)


def test_a_rounding_count_too_small_by_one_slab(monkeypatch):
    test = test_underflow.test_the_roundings_that_are_counted_are_those_that_happen
    assert not caught(test, "last", False, 4, 8)
    right = cpu.CpuBackend.moments

    def fewer(self, *arguments, **options):
        totals = right(self, *arguments, **options)
        how = totals.accumulation
        return replace(totals, accumulation=how._replace(wide=how.wide - 1))

    monkeypatch.setattr(cpu.CpuBackend, "moments", fewer)
    assert caught(test, "last", False, 4, 8)


def test_a_dropped_underflow_flag(monkeypatch):
    test = (
        test_underflow.test_a_feature_that_is_only_rounding_is_not_proved_where_its_size_underflows
    )
    assert not caught(test, "cpu")
    right = cpu.CpuBackend.moments

    def silent(self, *arguments, **options):
        totals = right(self, *arguments, **options)
        return replace(totals, accumulation=totals.accumulation._replace(underflow=False))

    monkeypatch.setattr(cpu.CpuBackend, "moments", silent)
    assert caught(test, "cpu")


def test_a_margin_of_the_factorisation_on_the_wrong_side(monkeypatch):
    test = test_lower_bound.test_a_cholesky_that_runs_to_the_end_is_not_enough
    rng = np.random.default_rng(20241010)
    assert not caught(test, rng)
    monkeypatch.setattr(lower_bound, "gamma", lambda k, unit=2.0**-53: -k * unit)
    assert caught(test, np.random.default_rng(20241010))


def test_rounding_of_the_gram_that_a_proof_does_not_count(monkeypatch):
    name = "test_an_estimate_that_is_nothing_but_rounding_of_the_gram_is_not_proved"
    test = getattr(test_lower_bound, name)
    assert not caught(test, np.random.default_rng(20241010))
    monkeypatch.setattr(MomentSums, "relative_errors", lambda _: (0.0, 0.0))
    assert caught(test, np.random.default_rng(20241010))


def test_rounding_of_features_on_the_wrong_side_of_a_leverage(monkeypatch):
    right = leverage.rounding
    monkeypatch.setattr(leverage, "rounding", lambda longest, products=0: -right(longest, products))
    assert caught_by_attack(coverage, range(200), monkeypatch)


def test_membership_that_is_taken_for_granted(monkeypatch):
    monkeypatch.setattr(
        ModularRange,
        "contains",
        lambda self, tokens, positions: np.ones(tokens.n_samples(positions), dtype=bool),
    )
    assert caught_by_attack(coverage, range(200), monkeypatch)


def test_a_short_rank_that_is_believed_without_proof(monkeypatch):
    for module in (block_fit, few_samples, cholesky):
        monkeypatch.setattr(module, "confirmed", lambda error, *_: error)
    assert caught_by_attack(fits, range(700), monkeypatch)


def test_a_checkpoint_of_other_data(monkeypatch, tmp_path):
    test = test_checkpoint.test_the_readme_stream_with_another_seed_is_refused
    (tmp_path / "right").mkdir()
    assert not caught(test, tmp_path / "right")
    monkeypatch.setattr(checkpoint, "digest_of", lambda *_: BatchDigest(0, 0, 0))
    assert caught(test, tmp_path)


def test_merged_moments_that_keep_the_claim_of_the_first(monkeypatch):
    test = test_left_out.test_merged_in_any_order_moments_certify_the_same
    assert not caught(test)
    monkeypatch.setattr(moments, "features_of_all", lambda parts: parts[0])
    assert caught(test)
