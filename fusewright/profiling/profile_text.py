"""Profile -> what a terminal shows of it: a line, one screen of 80 columns, or all rows.

A share is of the call under the profiler, so that rows and what is between them make up the whole;
how long it takes without, stands in front.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from fusewright.judge.timing.sides import CANDIDATE
from fusewright.profiling.rows import ProfileRow
from fusewright.profiling.side_profile import Profile, SideProfile
from fusewright.report.amounts import bytes_text, seconds_text

WIDTH = 80
NAME = 34  # columns of it on one screen
ROWS = 4  # of a side on one screen
THIS_FILE = "this file"
ATEN = "aten::"
BETWEEN = "between: Python, the profiler"
UNKNOWN = "-"


def profile_line(profile: Profile, candidate: str) -> str:
    """`this file 4.1 ms, eager 5 ms: FILE`. candidate: its file, as named; "" for none."""
    times = ", ".join(f"{_shown(s)} {seconds_text(s.call_us * 1e-6)}" for s in profile.sides)
    return ": ".join(part for part in (times, candidate) if part)


def profile_screen(profile: Profile) -> list[str]:
    """The rows of each side that take most of its time, and the others as one."""
    return [*_lines(profile, ROWS)]


def profile_full(profile: Profile) -> list[str]:
    """Every row, with its whole name."""
    return [*_lines(profile, None)]


def _lines(profile: Profile, most: int | None) -> Iterator[str]:
    said = (f"{_shown(side)} {seconds_text(side.call_us * 1e-6)}" for side in profile.sides)
    yield from _wrapped(f"profiled, not judged, on {profile.device}: a call of {', '.join(said)}")
    for side in profile.sides:
        yield ""
        yield from _side(side, most)
    if profile.missing:
        yield ""
    for name, why in profile.missing.items():
        yield from _wrapped(f"{name} was not profiled: {why}")


def _side(side: SideProfile, most: int | None) -> Iterator[str]:
    profiled = f"{seconds_text(side.profiled_us * 1e-6)} under the profiler"
    yield f"{_shown(side)}: {seconds_text(side.call_us * 1e-6)} by the clock, {profiled}"
    names = ("", "time", "share", "moves", "roofline", "gap")
    yield _columns(names)
    shown = side.rows if most is None else side.rows[:most]
    for row in shown:
        yield from _row(row, whole=most is None)
    if rest := side.rows[len(shown) :]:
        yield _rest(rest)
    between = _percent(side.between_us / side.profiled_us)
    yield _columns((BETWEEN, _time(side.between_us), between, "", "", ""))
    if side.note:
        yield from _wrapped(f"note: {side.note}", "  ")


def _row(row: ProfileRow, *, whole: bool) -> Iterator[str]:
    times = f" x{row.count}" if row.count > 1 else ""
    name, room = _name(row), NAME - len(times)
    if len(name) > room:
        if whole:
            yield f"  {name}{times}"
            name, times = "", ""
        else:
            name = f"{name[: room - 3]}..."
    moved = UNKNOWN if row.bytes is None else bytes_text(row.bytes)
    roofline = UNKNOWN if row.roofline is None else _percent(row.roofline)
    numbers = (_time(row.us), _percent(row.share), moved, roofline, _time(row.gap_us))
    yield _columns((f"{name}{times}", *numbers))
    if row.places:
        told = _wrapped(row.places, "    ")
        yield from told if whole or len(told) == 1 else [f"{told[0][: WIDTH - 4]} ..."]
    if whole:
        for symbol in row.symbols:
            yield f"    {symbol}"


def _rest(rows: Sequence[ProfileRow]) -> str:
    times = sum(row.us for row in rows), sum(row.gap_us for row in rows)
    share = sum(row.share for row in rows)
    name = f"{len(rows)} more: -v shows {'it' if len(rows) == 1 else 'them'}"
    return _columns((name, _time(times[0]), _percent(share), "", "", _time(times[1])))


def _name(row: ProfileRow) -> str:
    own = row.name.removeprefix(ATEN)
    return f"{row.operator.removeprefix(ATEN)}: {own}" if row.operator else own


def _columns(cells: Sequence[str]) -> str:
    name, time, share, moved, roofline, gap = cells
    line = f"  {name:<{NAME}} {time:>8} {share:>6} {moved:>8} {roofline:>8} {gap:>9}"
    return line.rstrip()


def _shown(side: SideProfile) -> str:
    return THIS_FILE if side.name == CANDIDATE else side.name


def _time(us: float) -> str:
    """To three digits: that fits, and says as much as a profile knows."""
    unit, size = ("ms", 1e3) if us >= 999.5 else ("us", 1.0)
    return f"{us / size:.3g} {unit}" if us / size < 999.5 else f"{us / size:.0f} {unit}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
