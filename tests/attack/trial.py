"""One seed, one case, one promise: in a module of its own, which other processes can import."""

from __future__ import annotations

import signal
import traceback
from collections import Counter

from .calls import Broken
from .claims import examine
from .data import case_of

SECONDS = 120
"""A case that takes longer counts as one that does not end."""


def _too_long(*_: object) -> None:
    raise Broken(f"no answer within {SECONDS} s")


def one(seed: int) -> tuple[int, Counter[str], str | None]:
    """Counts of one seed, and what broke."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    case = None
    try:
        case = case_of(seed)
        name, counts = examine(case, seed)
        return seed, counts + Counter({f"cases: {name}": 1}), None
    except Broken as broken:
        return seed, Counter(), f"{case.describe() if case else ''}\n{broken}"
    except Exception:
        return seed, Counter(), f"{case.describe() if case else ''}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)
