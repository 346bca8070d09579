"""Reading and computing at the same time: one thread reads the next item while the last is used.

At most two items exist at any time: the one in use, and the next, read or being read.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")

_PATIENCE = 5.0
"""Seconds to wait for a reader whose items are no longer wanted; if it is still stuck in a read, it
is left to end by itself."""


class _End:
    """The end of the items, with the error of the reader if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Reader(Generic[Item]):
    """A thread that stays one item ahead."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._wanted = threading.Semaphore(1)
        self._stopped = False
        self._ready: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        # The caller's context, so that settings such as numpy.errstate hold while reading, too
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="linattn_fast reader", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        end = _End(None)
        try:
            items = iter(self._items)
            while True:
                self._wanted.acquire()
                if self._stopped:
                    break
                try:
                    item = next(items)
                except StopIteration:
                    break
                self._ready.put(item)
                del item  # only the caller keeps it
        except BaseException as error:  # raised again in the caller's thread
            end = _End(error)
        self._ready.put(end)

    def __iter__(self) -> Iterator[Item]:
        while True:
            item = self._ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            self._wanted.release()
            yield item
            del item  # before the next one is waited for, or three would exist

    def stop(self) -> None:
        self._stopped = True
        self._wanted.release()
        self._thread.join(_PATIENCE)


@contextmanager
def read_ahead(items: Iterable[Item]) -> Iterator[Iterator[Item]]:
    """Iterate over ``items`` while another thread reads one item ahead.

    An error of the reader is raised here, unchanged. The thread is stopped when the block is left,
    in whatever way.
    """
    reader = _Reader(items)
    try:
        yield iter(reader)
    finally:
        reader.stop()
