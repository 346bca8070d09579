"""What corrections of a refinement leave, from how fast they fall."""

import numpy as np
import pytest

from linattn_fast.solvers.accuracy import left_after


@pytest.mark.parametrize(
    ("steps", "rate", "left"),
    [
        ((), 1e-3, np.inf),  # nothing was corrected, so nothing is known
        ((1e-3,), 1e-2, 1e-5),  # one correction, which falls as expected,
        ((1e-1,), 1e-6, 1e-2),  # or as slowly as its own size says,
        ((1e-3,), 7.0, 5e-4),  # but by half at least
        ((1e-2, 1e-5), 0.3, 1e-8),  # two say themselves how fast they fall,
        ((1e-5, 1e-2), 0.3, 1e-2),  # or that they do not
        ((1e-4, 0.0), 0.3, 0.0),
    ],
)
def test_corrections_leave_the_last_one_times_the_rate_at_which_they_fall(steps, rate, left):
    assert left_after(steps, rate) == pytest.approx(left)
