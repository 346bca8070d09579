"""A make-believe machine with two CUDA devices: devices, streams and events that keep a log.

``log`` has what a GPU would have done, and who waited: ("sync", why), ("copy", stream, bytes, to),
("record", stream, event), ("wait", stream, event), ("host waits", stream, event), ("upload",
bytes), ("pinned", bytes), ("device", number), ("launch", name, stream, pointers).

Work on the current stream is done at once. Copies on another stream are late: they are done when
something that waits for them is reached, and read the host memory then.
"""

from __future__ import annotations

import itertools
from typing import Any

log: list[tuple[Any, ...]] = []


class State:
    """What the make-believe machine is set to."""

    devices = 2
    device = 0
    capability = "80"
    free = 1 << 40
    linalg = "ignore"
    streams: dict[int, list[Stream]] = {}  # noqa: RUF012  # one machine


def reset() -> None:
    """A fresh machine."""
    log.clear()
    State.device, State.capability, State.free, State.linalg = 0, "80", 1 << 40, "ignore"
    State.streams = {i: [Stream(null=True)] for i in range(State.devices)}


def synchronised(why: str) -> None:
    """Note that the host has waited for the device."""
    log.append(("sync", why))


# ------------------------------------------------------------------------------------- devices


class Device:
    """``with Device(i):`` makes it current."""

    attributes = {"L2CacheSize": 1 << 20}  # noqa: RUF012  # small, so that there are several panels

    def __init__(self, device: int | None = None) -> None:
        self.id = State.device if device is None else int(device)
        if not 0 <= self.id < State.devices:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(State.device)
        State.device = self.id
        log.append(("device", self.id))
        return self

    def __exit__(self, *error: object) -> None:
        State.device = self._before.pop()
        log.append(("device", State.device))

    def synchronize(self) -> None:
        synchronised("device")

    @property
    def compute_capability(self) -> str:
        return State.capability

    @property
    def mem_info(self) -> tuple[int, int]:
        return State.free, 1 << 40


class Event:
    """A mark in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._stream: Stream | None = None
        self._position = 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = get_current_stream() if stream is None else stream
        self._position = self._stream._queued
        log.append(("record", self._stream, self))

    def synchronize(self) -> None:
        if self._stream is not None:
            log.append(("host waits", self._stream, self))
            self._stream._reach(self._position)


class Stream:
    """A queue of work; copies on another stream than the current one are done late."""

    null: Stream
    _numbers = itertools.count(1)

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = 0 if null else next(self._numbers)
        self._late: list[Any] = []
        self._queued = 0
        self._before: list[Stream] = []

    def __enter__(self) -> Stream:
        State.streams[State.device].append(self)
        return self

    def __exit__(self, *error: object) -> None:
        State.streams[State.device].pop()

    def _queue(self, work: Any) -> None:
        self._late.append(work)
        self._queued += 1
        if self is get_current_stream():
            self._reach(self._queued)

    def _reach(self, position: int) -> None:
        while self._late and self._queued - len(self._late) < position:
            self._late.pop(0)()

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        log.append(("wait", self, event))
        if event._stream is not None:
            event._stream._reach(event._position)

    def synchronize(self) -> None:
        synchronised("stream")
        self._reach(self._queued)


def get_current_stream() -> Stream:
    return State.streams[State.device][-1]


def launches(name: str | None = None) -> list[tuple[Any, ...]]:
    """(name, stream, pointers) of the kernels that were launched."""
    found = [entry[1:] for entry in log if entry[0] == "launch"]
    return [entry for entry in found if name is None or entry[0] == name]


def waits() -> list[str]:
    """What the host has waited for."""
    return [entry[1] for entry in log if entry[0] == "sync"]
