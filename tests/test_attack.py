"""A slice of the campaign (``make attack``): adversarial data against exact arithmetic."""

import pytest
from attack.campaign import one
from attack.cases import case_of
from attack.claims import CLAIMS, examine
from oracles.adversarial import KINDS


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_no_promise_breaks(first):
    broken = [message for seed in range(first, first + 100) if (message := one(seed)[2])]
    assert not broken, "\n\n".join(broken)


def test_the_slice_has_every_kind_of_data_and_every_promise():
    cases = [case_of(seed) for seed in range(300)]
    assert {case.kind for case in cases} == set(KINDS)
    assert {examine(case, seed)[0] for seed, case in enumerate(cases)} == set(CLAIMS)
