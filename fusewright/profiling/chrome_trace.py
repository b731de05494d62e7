"""Calls of each side -> one trace for chrome://tracing and Perfetto, with a process for each side.

Sides were profiled one after the other, so their clocks have nothing in common. Here the first
calls of all sides begin together, then the second ones: times between calls are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusewright.profiling.recorded import KERNEL, Call, Event, Nested

HOST = 0  # the thread of a trace that has the host's events; streams come behind it
PAUSE_US = 50.0  # between a call of the slowest side and the next
CATEGORIES = {"kernel": "kernel", "device": "kernel", "launch": "runtime", "operator": "operator"}
Entry = Mapping[str, Any]


def chrome_trace(calls: Mapping[str, Sequence[Call]]) -> str:
    """The text of a trace. calls: of each side, by its name."""
    begins = [*_begins(calls.values())]
    entries: list[Entry] = []
    for pid, (side, own) in enumerate(calls.items(), 1):
        entries += _names(pid, side, own)
        for number, (call, begin_us) in enumerate(zip(own, begins, strict=False), 1):
            entries += _call_entries(pid, number, call, begin_us)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": entries}, allow_nan=False) + "\n"


def _begins(sides: Iterable[Sequence[Call]]) -> Iterator[float]:
    """When the first calls begin, the second ones, and so on."""
    begin, every = 0.0, [*sides]
    for number in range(max(map(len, every), default=0)):
        yield begin
        begin += PAUSE_US + max(_span(own[number]) for own in every if number < len(own))


def _span(call: Call) -> float:
    return max([call.us, *(activity.event.end_us for activity in call.device)])


def _names(pid: int, side: str, calls: Sequence[Call]) -> Iterator[Entry]:
    streams = sorted({a.event.lane for call in calls for a in call.device})
    yield _meta(pid, HOST, "process_name", name=side)
    yield _meta(pid, HOST, "process_sort_index", sort_index=pid)
    yield _meta(pid, HOST, "thread_name", name="host")
    for stream in streams:
        yield _meta(pid, _lane(stream), "thread_name", name=f"stream {stream}")


def _meta(pid: int, tid: int, what: str, **args: object) -> Entry:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _lane(stream: int) -> int:
    return HOST + 1 + stream


def _call_entries(pid: int, number: int, call: Call, begin_us: float) -> Iterator[Entry]:
    def entry(event: Event, tid: int, **args: object) -> Entry:
        name = event.name.removeprefix(KERNEL)
        kind = CATEGORIES.get(event.kind, "python")
        return _lasting(pid, tid, name, kind, begin_us + event.begin_us, event.us, args)

    call_name = f"call {number}"
    yield _lasting(pid, HOST, call_name, "call", begin_us, call.us, {})
    for nest in _all(call.host):
        yield entry(nest.event, HOST)
    for one in call.device:
        args = {"step": one.kernel, "operator": one.operator, "call": number}
        own = {name: value for name, value in args.items() if value}
        yield entry(one.event, _lane(one.event.lane), **own)


def _lasting(
    pid: int, tid: int, name: str, kind: str, begin_us: float, us: float, args: Entry
) -> Entry:
    times = {"ts": round(begin_us, 3), "dur": round(us, 3)}
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, **times, "args": args}


def _all(nests: Iterable[Nested]) -> Iterator[Nested]:
    for nest in nests:
        yield nest
        yield from _all(nest.inside)
