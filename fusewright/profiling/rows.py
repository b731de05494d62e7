"""Calls that the profiler has seen -> a row for each kernel and each operator of PyTorch's.

On a processor the time of a row is an operator's own: without those that it calls. On a GPU it is
what the device worked. Times are medians over the calls, each of the sum over one call.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from fusewright.profiling.recorded import KERNEL, Activity, Call, Nested
from fusewright.profiling.steps import Limiter, StepAmounts

NAMESPACES = re.compile(r"(?:\w+::)+")
FIRST_TYPE = re.compile(r"^(?:void|auto|bool|int|float) ")


class Key(NamedTuple):
    """What is summed in one row."""

    kind: Literal["kernel", "operator"]
    name: str
    operator: str = ""


@dataclass(frozen=True)
class ProfileRow:
    """A kernel, or an operator of PyTorch's, in one call of a model.

    name: of a step of the file, of a compiler's kernel, of an operator.  operator: that launched a
    kernel of PyTorch's.  symbols: as the device knows it.  count: how often it runs.  us: its time,
    all of them together.  share: of a profiled call.  gap_us: before it nothing ran.
    is_step: whether it is a step of the emitted file; the rest is None of any other row, and where
    the call is not the one that the file speaks of.  bytes, flops: of all of them together.
    predicted_us: by the roofline.  roofline: that over `us`, None where it would be above 1: the
    machine is another, or all lies in a cache.
    """

    kind: Literal["kernel", "operator"]
    name: str
    operator: str
    symbols: tuple[str, ...]
    count: int
    us: float
    share: float
    gap_us: float
    is_step: bool = False
    places: str | None = None
    bytes: int | None = None
    flops: int | None = None
    predicted_us: float | None = None
    limiter: Limiter | None = None
    roofline: float | None = None


@dataclass
class _Sum:
    """Of one row in one call."""

    us: float = 0.0
    count: int = 0
    gap_us: float = 0.0
    symbols: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Sums:
    """Of one call. busy_us: during which something of a row ran.  span_us: until all was over."""

    rows: Mapping[Key, _Sum]
    busy_us: float
    span_us: float


def summed(call: Call, device: str) -> Sums:
    """The rows of one call; of a GPU's, what ran there."""
    return _on_device(call) if device == "cuda" else _on_host(call)


def rows_of(sums: Sequence[Sums]) -> tuple[ProfileRow, ...]:
    """Medians over calls, the longest row first."""
    call_us = statistics.median(one.span_us for one in sums)
    keys = dict.fromkeys(key for one in sums for key in one.rows)
    rows = []
    for key in keys:
        found = [one.rows.get(key, _Sum()) for one in sums]
        us = statistics.median(one.us for one in found)
        symbols = dict.fromkeys(symbol for one in found for symbol in one.symbols)
        count = round(statistics.median(one.count for one in found))
        gap = statistics.median(one.gap_us for one in found)
        if count:
            rows.append(ProfileRow(*key, tuple(symbols), count, us, us / call_us, gap))
    return tuple(sorted(rows, key=lambda row: (-row.us, row.name, row.operator)))


def with_steps(
    rows: Iterable[ProfileRow], steps: Mapping[str, StepAmounts], *, is_example: bool
) -> tuple[ProfileRow, ...]:
    """What the file says of its steps, beside their times. is_example: whether the call is of the
    sizes that the file speaks of."""
    return tuple(_with_step(row, steps.get(row.name), is_example=is_example) for row in rows)


def _with_step(row: ProfileRow, step: StepAmounts | None, *, is_example: bool) -> ProfileRow:
    if step is None or row.kind != "kernel" or row.operator:
        return row
    row = replace(row, is_step=True, places=step.places)
    if not is_example:
        return row
    # A kernel that is made of several of the device's runs once for them.
    predicted, count = step.predicted_us * row.count, row.count
    share = predicted / row.us if row.us else None
    return replace(
        row,
        bytes=step.bytes * count,
        flops=step.flops * count,
        predicted_us=predicted,
        limiter=step.limiter,
        roofline=share if share is not None and share <= 1.0 else None,
    )


# ---- a processor ---------------------------------------------------------------------------------


def _on_host(call: Call) -> Sums:
    rows: dict[Key, _Sum] = {}
    end, busy = 0.0, 0.0
    for top in _counted(call.host):
        own = [*_own_times(top)]
        for key, us in own:
            row = rows.setdefault(key, _Sum())
            row.us += us
            row.count += 1
            busy += us
        longest, _ = max(own, key=lambda one: one[1])
        rows[longest].gap_us += max(0.0, top.event.begin_us - end)
        end = max(end, top.event.end_us)
    return Sums(rows, busy, call.us)


def _counted(nests: Iterable[Nested]) -> Iterator[Nested]:
    """The outermost that have rows; what else has a name only says where Python is."""
    for nest in nests:
        if nest.event.kind in ("kernel", "operator"):
            yield nest
        else:
            yield from _counted(nest.inside)


def _own_times(nest: Nested) -> Iterator[tuple[Key, float]]:
    """Of it and of all inside it that have rows: the time without what is inside."""
    event = nest.event
    if event.kind in ("kernel", "operator"):
        own = max(0.0, event.us - sum(inner.event.us for inner in nest.inside))
        is_kernel = event.kind == "kernel"
        name = event.name.removeprefix(KERNEL)
        yield Key("kernel" if is_kernel else "operator", name), own
    for inner in nest.inside:
        yield from _own_times(inner)


# ---- a GPU ---------------------------------------------------------------------------------------


def _on_device(call: Call) -> Sums:
    rows: dict[Key, _Sum] = {}
    end, idle, runs = 0.0, 0.0, dict[Key, set[object]]()
    for number, activity in enumerate(call.device):
        event, key = activity.event, _key_of(activity)
        gap = max(0.0, event.begin_us - end)
        row = rows.setdefault(key, _Sum())
        row.us += event.us
        row.gap_us += gap
        row.symbols[event.name] = None
        runs.setdefault(key, set()).add(number if activity.run < 0 else activity.run)
        idle, end = idle + gap, max(end, event.end_us)
    for key, row in rows.items():
        row.count = len(runs[key])
    return Sums(rows, end - idle, max(call.us, end))


def _key_of(activity: Activity) -> Key:
    if activity.kernel:
        return Key("kernel", activity.kernel)
    return Key("kernel", short_symbol(activity.event.name), activity.operator)


def short_symbol(symbol: str) -> str:
    """`void at::native::sum_kernel<4, float>(float*)` -> `sum_kernel`."""
    text = FIRST_TYPE.sub("", symbol.replace("(anonymous namespace)::", ""))
    name = NAMESPACES.sub("", re.split(r"[<(]", text, maxsplit=1)[0]).strip()
    return name or symbol
