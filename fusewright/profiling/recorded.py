"""What PyTorch's profiler wrote in the process of a side -> its calls, each with its events.

The process has run a candidate's code, so the text is a claim: what is not of the form that the
profiler (Kineto) writes is refused.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Literal, NamedTuple

from fusewright.errors import NotVerifiable

CALL = "fusewright::call"  # the range around a call of the model
KERNEL = "fusewright::kernel "  # the beginning of the range around a function of an extension
MOST_BYTES = 256 << 20
Kind = Literal["call", "kernel", "operator", "other", "launch", "device"]
# Kineto's categories -> what they are here; `_host_kind` looks at those of the host again.
CATEGORIES: Mapping[str, Kind] = {
    "cpu_op": "operator",
    "user_annotation": "operator",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "kernel": "device",
    "gpu_memcpy": "device",
    "gpu_memset": "device",
}
OPERATOR = re.compile(r"\w+::\w")  # `aten::mm`; what else has a name says where Python is
DEEPEST = 200  # events inside each other
TOLERANCE_US = 0.002  # the profiler's clock counts nanoseconds, as decimals of a large number
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Event:
    """Something with a beginning and a length, both in microseconds.

    lane: the thread of the host, or the stream of the device.  correlation: what a launch and the
    work that it asks for have in common, -1 where there is none.
    """

    kind: Kind
    name: str
    lane: int
    begin_us: float
    us: float
    correlation: int = -1

    @property
    def end_us(self) -> float:
        """When it was over."""
        return self.begin_us + self.us


@dataclass(frozen=True)
class Activity:
    """Work of the device. kernel: of which function of an extension it is part, "" of none.
    operator: the innermost that has launched it, "" where nobody knows.  run: the number of the run
    of that function within the call, -1 of none."""

    event: Event
    kernel: str = ""
    operator: str = ""
    run: int = -1


@dataclass(frozen=True)
class Nested:
    """An event of the host, and those directly inside it."""

    event: Event
    inside: tuple[Nested, ...]


@dataclass(frozen=True)
class Call:
    """One call of the model; times are counted from its beginning.

    us: until it returned to Python.  host: the events of its own thread.  device: in the order in
    which they ran.
    """

    us: float
    host: tuple[Nested, ...]
    device: tuple[Activity, ...]


def recorded_calls(text: bytes, side: str) -> tuple[Call, ...]:
    """The calls in a text that the profiler has exported, in their order.

    side: whose it is, for the message. Raises NotVerifiable for a text of another form.
    """
    try:
        events = [*_events(json.loads(text)["traceEvents"])]
        return tuple(_calls(events))
    except UNREADABLE as error:
        raise NotVerifiable(
            f"The profile of {side} is not of the form that PyTorch's profiler writes "
            f"({error!r:.200}). Code in that process may use the profiler, too: leave it out."
        ) from error


def _events(entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    for entry in entries:
        kind = CATEGORIES.get(entry.get("cat", "")) if entry["ph"] == "X" else None
        if kind is None:
            continue
        name, numbers = str(entry["name"]), (float(entry["ts"]), float(entry["dur"]))
        if not all(map(math.isfinite, numbers)) or numbers[1] < 0:
            raise ValueError(f"an event from {numbers[0]} on takes {numbers[1]} us")
        shown = "".join(c if c.isprintable() else "?" for c in name)
        known = kind if kind in ("launch", "device") else _host_kind(shown)
        correlation = int(entry.get("args", {}).get("correlation", -1))
        yield Event(known, shown, int(entry["tid"]), *numbers, correlation)


def _host_kind(name: str) -> Kind:
    if name == CALL:
        return "call"
    if name.startswith(KERNEL):
        return "kernel"
    return "operator" if OPERATOR.match(name) else "other"


def _calls(events: Sequence[Event]) -> Iterator[Call]:
    marks = sorted((e for e in events if e.kind == "call"), key=lambda e: e.begin_us)
    if any(a.end_us > b.begin_us + TOLERANCE_US for a, b in pairwise(marks)):
        raise ValueError("calls of the model overlap")
    begins = [mark.begin_us for mark in marks]

    def call_of(event: Event) -> int:
        """The number of the call in which it began, -1 for none."""
        number = bisect_right(begins, event.begin_us + TOLERANCE_US) - 1
        return number if number >= 0 and event.begin_us <= marks[number].end_us else -1

    hosts: list[dict[int, list[Event]]] = [{} for _ in marks]
    works: list[list[Event]] = [[] for _ in marks]
    launched = {e.correlation: e for e in events if e.kind == "launch" and e.correlation >= 0}
    for event in events:
        asked = launched.get(event.correlation) if event.kind == "device" else event
        number = call_of(asked) if asked and event.kind != "call" else -1
        if number < 0:
            continue
        moved = _since(event, begins[number])
        if event.kind == "device":
            works[number].append(moved)
        else:
            hosts[number].setdefault(event.lane, []).append(moved)
    for mark, lanes, work in zip(marks, hosts, works, strict=True):
        nests = {lane: nested(found) for lane, found in lanes.items()}
        tops = (top for nest in nests.values() for top in nest)
        asking = dict(_asking(tops, Asking(), count()))
        work.sort(key=lambda e: (e.begin_us, e.lane))
        device = tuple(Activity(e, *asking.get(e.correlation, Asking())) for e in work)
        yield Call(mark.us, nests.get(mark.lane, ()), device)


def _since(event: Event, begin_us: float) -> Event:
    begin, lane = event.begin_us - begin_us, event.lane
    return Event(event.kind, event.name, lane, begin, event.us, event.correlation)


def nested(events: Iterable[Event]) -> tuple[Nested, ...]:
    """Events of one thread, each inside the one during which it began."""
    open_: list[tuple[Event, list[Nested]]] = []
    tops: list[Nested] = []

    def close() -> None:
        event, inside = open_.pop()
        (open_[-1][1] if open_ else tops).append(Nested(event, tuple(inside)))

    for event in sorted(events, key=lambda e: (e.begin_us, -e.us)):
        while open_ and open_[-1][0].end_us <= event.begin_us + TOLERANCE_US:
            close()
        open_.append((event, []))
        if len(open_) > DEEPEST:
            raise ValueError(f"more than {DEEPEST} events lie inside each other")
    while open_:
        close()
    return tuple(tops)


class Asking(NamedTuple):
    """Who launches work of the device, as `Activity` has it."""

    kernel: str = ""
    operator: str = ""
    run: int = -1


def _asking(
    nests: Iterable[Nested], who: Asking, numbers: Iterator[int]
) -> Iterator[tuple[int, Asking]]:
    """Of each launch: who asks for it. numbers: of the runs of functions of extensions."""
    for nest in nests:
        event, asks = nest.event, who
        if event.kind == "launch":
            yield event.correlation, who
        elif event.kind == "kernel":
            asks = Asking(event.name.removeprefix(KERNEL), "", next(numbers))
        elif event.kind == "operator":
            asks = who._replace(operator=event.name)
        yield from _asking(nest.inside, asks, numbers)
