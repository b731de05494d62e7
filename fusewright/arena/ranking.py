"""Verdicts and times of all candidates -> a row for each, and a line for each entrant.

The place of a candidate is that among the right ones for its problem; those that cannot be told
from the fastest share the first place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusewright.arena.entries import Entry, entry_name
from fusewright.judge.findings import Word
from fusewright.judge.timing.contest import FASTEST
from fusewright.report.speed import SpeedRatio, ratio_of
from fusewright.suite.run_end import RunEnd

LEVEL = ("no difference shown", FASTEST)  # claims of those that share the first place


@dataclass(frozen=True)
class ArenaRow:
    """A candidate: what the judge says, and, of a right one, how fast it is.

    end: "" or why there was no verdict, or no time.  time_s: median of its calls.  over_eager,
    over_compile: how many times as fast as these.  over_best: as the fastest for the problem.
    place: among the right ones that were timed, from 1 on; 0 for others.  node, device: as of
    `RunEnd`, of the timing, or else of the judging.
    """

    problem: str
    entrant: str
    verdict: Word
    reason: str
    end: str = ""
    seconds: float = 0.0
    time_s: float | None = None
    over_eager: SpeedRatio | None = None
    over_compile: SpeedRatio | None = None
    over_best: SpeedRatio | None = None
    place: int = 0
    node: str = ""
    device: str = ""

    @property
    def name(self) -> str:
        return entry_name(self.problem, self.entrant)

    @property
    def word(self) -> str:
        """What the table shows as the verdict."""
        return f"{self.verdict} ({self.end})" if self.end else self.verdict


@dataclass(frozen=True)
class Contest:
    """What one timing of several candidates came to, as reports have it. told: timings, lost,
    unclear, over_best, each by candidate.  node, device: where it was."""

    told: Mapping[str, Any]
    node: str = ""
    device: str = ""


@dataclass(frozen=True)
class Entrant:
    """entered, right, refuted: candidates.  faster: right ones that are faster than eager beyond
    the noise.  first: first places.  mean: geometric mean over eager of the timed ones; None where
    several kinds of machines timed them."""

    name: str
    entered: int
    right: int
    refuted: int
    faster: int
    first: int
    mean: float | None


def judged_row(entry: Entry, run: RunEnd) -> ArenaRow:
    """What a judging, or its end, says of a candidate."""
    verdict: Word = "not-verified" if run.report is None else run.report["verdict"]
    row = ArenaRow(entry.problem, entry.entrant, verdict, run.reason, run.end, run.seconds)
    return replace(row, node=run.node, device=run.device)


def timed_rows(rows: Mapping[str, ArenaRow], contests: Sequence[Contest]) -> dict[str, ArenaRow]:
    """The rows of one problem with times and places.

    rows: of the right candidates, by the paths that the contests know.  contests: a later one of
    those that were fastest in earlier ones.
    """
    done = dict(rows)
    for contest in contests:
        told = contest.told
        for path, why in {**told["lost"], **told["unclear"]}.items():
            done[path] = replace(rows[path], end="not timed", reason=why)
        for path, timing in told["timings"].items():
            row = replace(rows[path], node=contest.node, device=contest.device)
            done[path] = _timed(row, timing, told["over_best"][path])
    last = frozenset(contests[-1].told["timings"]) if contests else frozenset[str]()
    timed = [path for path, row in done.items() if row.over_eager]
    timed.sort(key=lambda path: (path not in last, -_over_eager(done[path]), path))
    for number, path in enumerate(timed, 1):
        best = done[path].over_best
        shares = path in last and best is not None and best.claim in LEVEL
        done[path] = replace(done[path], place=1 if shares else number)
    return done


def standings(rows: Iterable[ArenaRow]) -> tuple[Entrant, ...]:
    """A line for each entrant: who is right most often first, then who is fastest."""
    by_name: dict[str, list[ArenaRow]] = {}
    for row in rows:
        by_name.setdefault(row.entrant, []).append(row)
    lines = [_entrant(name, own) for name, own in by_name.items()]
    return tuple(sorted(lines, key=lambda e: (-e.right, -e.first, -(e.mean or 0.0), e.name)))


def timed_on(rows: Iterable[ArenaRow]) -> tuple[str, ...]:
    """The kinds of machines that timed any of these."""
    return tuple(sorted({row.device for row in rows if row.over_eager}))


def kept_arena_row(fields: Mapping[str, Any]) -> ArenaRow:
    """A row as a store has it."""
    ratios = {n: kept_ratio(fields[n]) for n in ("over_eager", "over_compile", "over_best")}
    return ArenaRow(**{**fields, **ratios})


def kept_ratio(ratio: Mapping[str, Any] | None) -> SpeedRatio | None:
    """A ratio as a report or a store has it, where it has one."""
    return None if ratio is None else ratio_of(ratio)


def _timed(row: ArenaRow, timing: Mapping[str, Any], best: Mapping[str, Any]) -> ArenaRow:
    ratios = timing["ratios"]
    return replace(
        row,
        end="",
        time_s=float(timing["sides"]["candidate"]["p50_s"]),
        over_eager=kept_ratio(ratios.get("eager")),
        over_compile=kept_ratio(ratios.get("torch.compile")),
        over_best=kept_ratio(best),
    )


def _over_eager(row: ArenaRow) -> float:
    return row.over_eager.median if row.over_eager else 0.0


def _entrant(name: str, rows: Sequence[ArenaRow]) -> Entrant:
    over = [row.over_eager for row in rows if row.over_eager]
    logs = [math.log(ratio.median) for ratio in over]
    return Entrant(
        name,
        entered=len(rows),
        right=sum(row.verdict == "verified" for row in rows),
        refuted=sum(row.verdict == "refuted" for row in rows),
        faster=sum(ratio.claim == "faster" for ratio in over),
        first=sum(row.place == 1 for row in rows),
        mean=math.exp(sum(logs) / len(logs)) if logs and len(timed_on(rows)) < 2 else None,
    )
