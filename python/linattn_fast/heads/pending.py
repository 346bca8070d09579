"""Heads that are found when they are first asked for.

They depend on the coefficients of a fit alone, and on a few numbers that say what counts as
reproduced and what may be spent (:class:`linattn_fast.heads.recovery.Wanted`). So a fit need not
wait for them, and keeps nothing of its data for them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ..arrays.device import device_of, on_device, to_host
from ..arrays.types import Floats
from ..features.features import Features, feature_count
from ..features.states import PassedFeatures, StateFeatures
from ..problem.interface import ShowProgress
from ..system.machine import require_memory
from ..system.progress import Bar
from .heads import Heads
from .number.rank_path import head_of_form
from .recovery import Wanted, heads_of, heads_of_states

NOT_YET = "not asked for yet: fit.heads finds them"
"""What a report has in the place of heads that nobody has asked for."""
_COPIES = 6
"""Copies of the coefficients of all features that finding heads takes, at the least."""


class PendingHeads:
    """Heads of coefficients, found once, whichever thread asks first; the others wait.

    An exception, such as KeyboardInterrupt or one that ``progress`` raises, leaves everything as it
    was, and the next to ask begins anew. Copies and pickles begin for themselves, without
    ``progress``, unless the heads are found by then.

    Parameters
    ----------
    coefficients
        (d_out, p), on the host or on a device, which is where the heads are put.
    features
        Which features take part; heads have zeros elsewhere.
    wanted
        Which heads.
    memory_limit
        Bytes that finding them may use; None for the machine's memory.
    progress
        False for nothing, True for a bar, or a function of (per cent, 100): the part of the flops
        of a search that is spent. A search may end long before.
    """

    def __init__(
        self,
        coefficients: Floats,
        features: Features,
        wanted: Wanted,
        memory_limit: int | None = None,
        progress: ShowProgress = False,
    ) -> None:
        self._coefficients, self._features, self._wanted = coefficients, features, wanted
        self._memory_limit, self._progress = memory_limit, progress
        self._found: tuple[Heads, float] | None = None
        self._elsewhere: PendingHeads | None = None
        self._start()

    def _start(self) -> None:
        self._lock, self._searching = threading.RLock(), False

    def find(self) -> tuple[Heads, float]:
        """The heads, and the seconds that finding them has taken."""
        with self._lock:
            if self._searching:  # in this very thread, as the lock is its own
                raise RuntimeError("heads: asked for by the progress of their own search")
            if self._found is None:
                try:  # one assignment: an interrupt finds the old state or the new one
                    self._searching = True
                    self._found = self._timed_search()
                finally:
                    self._searching = False
                self._progress, self._elsewhere = False, None  # not to be kept alive any longer
            return self._found

    def _timed_search(self) -> tuple[Heads, float]:
        if self._elsewhere is not None:
            heads, spent = self._elsewhere.find()
            return heads.put(self._coefficients), spent
        began = time.perf_counter()
        heads = self._search()
        return heads, time.perf_counter() - began

    def _search(self) -> Heads:
        """Look for the heads, on the host, and put them where the coefficients are."""
        features, d_out = self._features, len(self._coefficients)
        what = f"heads: finding those of {features.made_of}, d_out = {d_out}"
        of_tokens = not isinstance(features, StateFeatures)
        count = feature_count(features.d) if of_tokens else features.count
        require_memory(_COPIES * 8 * d_out * count, what, self._memory_limit)
        bar = Bar(100, "heads", self._progress, unit="percents")
        with on_device(device_of(self._coefficients)), bar as report:
            C = features.expand(to_host(self._coefficients))
            if isinstance(features, PassedFeatures):
                found = head_of_form(C.reshape(features.n_pairs, features.n_queries), features.d_v)
            elif isinstance(features, StateFeatures):
                found = heads_of_states(C, features.shape, self._wanted, report)
            else:
                found = heads_of(C, features.d, self._wanted, report)
            return found.put(self._coefficients).for_features(features)

    def put(self, coefficients: Floats) -> PendingHeads:
        """The same heads, found once for both, where the same coefficients have been put."""
        there = PendingHeads(coefficients, self._features, self._wanted, self._memory_limit)
        there._elsewhere = self
        return there

    def __getstate__(self) -> dict[str, Any]:
        """Everything but locks and the caller's own function, which belong to this process."""
        names = ("_coefficients", "_features", "_wanted", "_memory_limit", "_found")
        alone: dict[str, Any] = {"_progress": False, "_elsewhere": None}
        return alone | {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()
