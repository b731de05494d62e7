"""The report of one problem, and the texts that it is about -> the page model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewright.html_report.kernel_sections import (
    MICRO,
    KernelsKnown,
    graph_sections,
    kernel_section,
    library_section,
    roofline_section,
)
from fusewright.html_report.page import (
    CLAIM_TONES,
    OUTCOME_TONES,
    WORD_TONES,
    Cell,
    Column,
    Page,
    Section,
    Table,
    Tile,
    Tone,
    facts_table,
)
from fusewright.html_report.ratios_plot import NamedRatio, ratios_plot
from fusewright.judge.findings import CHECKS, Row, Verdict
from fusewright.report.amounts import (
    bytes_text,
    counted,
    seconds_text,
    time_text,
    times_text,
)
from fusewright.report.one_screen import DEGENERATE, headline, plain_words
from fusewright.report.run_report import Report, plain
from fusewright.report.speed import CANDIDATE, SLOWER, Speed, ratio_of, speed_of
from fusewright.targets.target import TARGETS

OVER_BASELINE = "how many times as fast this file is, with the 95 % interval"
NOT_TIMED = "Nothing was timed."
NOT_COMPARED = "No output was compared with float64 here."
NO_CHECKS = "Nobody judged anything here: `fusewright judge` does."
MOST_LOST = 3  # of what is lost, of one kind
SPEED = (
    Column("side"), Column("time", "median of a call", number=True),
    Column("ratio", "how many times as fast this file is", number=True),
    Column("95 % interval", "of the ratio", number=True),
    Column("roofline", "the time at best that the target's roofs predict, over this one",
           number=True),
    Column("this file is", "what may be claimed"),
)  # fmt: skip
PROFILE = (
    Column("kernel or operator"), Column("time", "in one call, under the profiler", number=True),
    Column("share", "of that call", number=True), Column("moves", "bytes", number=True),
    Column("roofline", "the time at best that the target's roofs predict, over this one",
           number=True),
    Column("gap", "before it, in which nothing ran", number=True),
)  # fmt: skip
ACCURACY = (
    Column("output"),
    Column("relative error", "of this file, L2, against float64", number=True),
    Column("eager's", "the same of eager", number=True),
    Column("largest error", "of an element of this file, absolute", number=True),
    Column("eager's largest", "the same of eager", number=True),
    Column("allclose 1e-05", "what torch.allclose with this tolerance says against eager"),
)
CHECK = (
    Column("check"), Column("outcome"), Column("promise", "what should be so"),
    Column("evidence", "what was seen"), Column("cases", "what was compared", number=True),
)  # fmt: skip
CONTEST = (
    Column("candidate"), Column("time", "median of a call", number=True),
    Column("over eager", "how many times as fast as eager", number=True),
    Column("over the fastest", "how many times as fast as that", number=True),
    Column("claim"),
)  # fmt: skip


@dataclass(frozen=True)
class ProblemPage:
    """What a page of one problem is made of.

    report: of a command.  title: the problem, and what it is about.  source: the text of the
    problem file.  emitted: that of the file with kernels.  measured: microseconds of a call of a
    step, by the name of its function in that file, or of what it calls.
    """

    report: Report
    title: str
    source: str = ""
    emitted: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)

    def page(self) -> Page:
        found = plain(self.report)
        assert isinstance(found, dict), "a report is a mapping"
        measured = {**_step_times(found), **self.measured}
        known = KernelsKnown(
            found["forwards"], self.emitted, self.source, measured, bool(found["target"])
        )
        verdict, speed = _verdict(found), speed_of(found["timing"], _fused_s(found))
        machine = TARGETS[found["target"]].machine if found["target"] in TARGETS else None
        sides = speed.sides if speed else ()
        call_s = next((side.seconds for side in sides if side.name == CANDIDATE), None)
        if found["parts"]:  # whose steps are not all that is timed
            call_s = None
        return Page(
            self.title,
            headline(verdict, speed),
            WORD_TONES[verdict.verdict],
            tuple(_tiles(found, verdict, speed, known)),
            (
                *graph_sections(known),
                *_speed_sections(found, speed),
                *_profile_sections(found),
                roofline_section(known, machine, call_s),
                kernel_section(known),
                library_section(known),
                _accuracy(found),
                _checks(verdict),
                *_remarks(found),
            ),
        )


def _verdict(found: Mapping[str, Any]) -> Verdict:
    checks = tuple(Row(**row) for row in found["checks"])
    return Verdict(found["verdict"], checks, (), found["reason"], found["accuracy"])


def _fused_s(found: Mapping[str, Any]) -> float:
    """Predicted seconds of the first new forward; 0: not known."""
    forwards = found["forwards"]
    return float(forwards[0]["savings"]["fused_s"]) if forwards else 0.0


# ---- what is seen first --------------------------------------------------------------------------


def _tiles(
    found: Mapping[str, Any], verdict: Verdict, speed: Speed | None, known: KernelsKnown
) -> Iterator[Tile]:
    yield _verdict_tile(verdict)
    yield _speed_tile(speed)
    yield _fused_tile(found, known)
    yield _accuracy_tile(found)
    lost = [*_lost(found, verdict, speed)]
    count = sum(map(len, lost))
    details = tuple(line for lines in lost for line in _some(lines))
    value = counted(count, "thing") if count else "nothing seen"
    yield Tile("What is lost", value, details, "warn" if count else "good")


def _verdict_tile(verdict: Verdict) -> Tile:
    outcomes = [row.outcome for row in verdict.checks if CHECKS[row.check].when != "note"]
    counts = [f"{counted(outcomes.count('pass'), 'check')} passed"]
    counts += [f"{outcomes.count(word)} {said}" for word, said in _COUNTED if word in outcomes]
    details = (", ".join(counts) if outcomes else "no check was made",)
    return Tile("Verdict", verdict.verdict, details, WORD_TONES[verdict.verdict])


_COUNTED = (("fail", "failed"), ("skip", "skipped"))


def _speed_tile(speed: Speed | None) -> Tile:
    side = speed.main if speed else None
    if speed is None or side is None or side.ratio is None:
        return Tile("Speed", "not timed")
    ratio, own = side.ratio, speed.sides[0]
    details = (
        f"{times_text(ratio.median)} as fast as {side.name}, 95 % interval {ratio.low:.2f} to "
        f"{ratio.high:.2f}: {ratio.claim}",
        f"{seconds_text(own.seconds)} a call, {side.name} {seconds_text(side.seconds)}",
    )
    claimed = ratio.claim in CLAIM_TONES
    value = times_text(ratio.median) if claimed else "no difference"
    return Tile("Speed", value, details, CLAIM_TONES.get(ratio.claim, ""))


def _fused_tile(found: Mapping[str, Any], known: KernelsKnown) -> Tile:
    forwards = found["forwards"]
    if not forwards:
        kernels = len(known.kernels)
        if kernels:
            return Tile("Fused", counted(kernels, "kernel"), ("as the file says",))
        if known.planned:
            return Tile("Fused", "nothing", ("the model stays as it was",))
        return Tile("Fused", "not known", ("this command was given files",))
    rows, saved = forwards[0]["rows"], forwards[0]["savings"]
    kernels, calls = (
        sum(row["times"] for row in rows if bool(row["name"]) is own) for own in (True, False)
    )
    names = {row["name"] for row in rows if row["name"]}
    different = f"{len(names)} different; " * (len(names) < kernels)
    label = forwards[0]["label"]
    details = (
        *[label] * bool(label),
        f"{different}{counted(calls, 'call')} {_stay(calls)} PyTorch's",
        f"{bytes_text(saved['eager_bytes'])} in {counted(saved['eager_steps'], 'step')} → "
        f"{bytes_text(saved['fused_bytes'])} in {saved['fused_steps']}",
    )
    return Tile("Fused", counted(kernels, "kernel"), details)


def _stay(calls: int) -> str:
    return "stays" if calls == 1 else "stay"


def _accuracy_tile(found: Mapping[str, Any]) -> Tile:
    own, eager = (_error(found["accuracy"], side, "rel_l2") for side in ("candidate", "eager"))
    if not own:
        return Tile("Accuracy", "not compared")
    details = ("worst relative error against float64", f"eager's own {eager}")
    return Tile("Accuracy", own, details)


def _lost(
    found: Mapping[str, Any], verdict: Verdict, speed: Speed | None
) -> Iterator[Sequence[str]]:
    """In lines, by their kind: what fails, what is slower, what is not fused, what is as it was."""
    yield [f"fails {row.check}" for row in verdict.checks if row.outcome == "fail"]
    yield [f"slower than {side.name}: {times_text(side.ratio.median)}"
           for side in (speed.sides if speed else ())
           if side.ratio is not None and side.ratio.claim == SLOWER]  # fmt: skip
    for forward in found["forwards"][:1]:
        yield [f"{', '.join(row['places']) or row['operators'][0]} stays PyTorch's"
               for row in forward["rows"] if not row["name"]]  # fmt: skip
    parts = found["parts"] or {}
    yield [f"{one['path'] or 'the model'} as written: {one['why']}"
           for one in parts.get("left", ())]  # fmt: skip
    yield [DEGENERATE] * bool(found["degenerate"])


def _some(lines: Sequence[str]) -> Sequence[str]:
    more = len(lines) - MOST_LOST
    return [*lines[:MOST_LOST], f"and {more} more"] if more > 0 else lines


# ---- speed ---------------------------------------------------------------------------------------


def _speed_sections(found: Mapping[str, Any], speed: Speed | None) -> Iterator[Section]:
    timings = (found["timing"] or {}).get("timings")
    if timings:
        yield _contest(found["timing"], timings)
    elif speed is None:
        yield Section("Speed", (NOT_TIMED,))
    else:
        yield _speed(speed)


def _speed(speed: Speed) -> Section:
    rows = []
    for side in speed.sides:
        ratio = side.ratio
        share = "" if side.roofline is None else f"{side.roofline:.0%}"
        told = ("", "", "") if ratio is None else (
            times_text(ratio.median), f"{ratio.low:.2f} to {ratio.high:.2f}", ratio.claim
        )  # fmt: skip
        tone: Tone = CLAIM_TONES.get(told[2], "")
        name = "this file" if side.name == CANDIDATE else side.name
        cells = (name, seconds_text(side.seconds), told[0], told[1], share)
        rows.append((*map(Cell, cells), Cell(told[2], tone=tone)))
    ratios = [NamedRatio(s.name, s.ratio) for s in speed.sides if s.ratio is not None]
    label = "How many times as fast this file is as each baseline"
    plot = ratios_plot(ratios, OVER_BASELINE, label) if ratios else None
    notes = [f"No ratio over {name}: {why}" for name, why in speed.missing.items()]
    notes += ["No difference shown does not mean equal: the whole interval must lie beyond what "
              "eager shows against itself."] * bool(ratios)  # fmt: skip
    return Section("Speed", tuple(notes), plot=plot, table=Table(SPEED, tuple(rows)))


def _contest(timing: Mapping[str, Any], timings: Mapping[str, Any]) -> Section:
    """Of several candidates in one run, the fastest first."""
    rows, ratios = [], []
    for name, one in timings.items():
        best, eager = ratio_of(timing["over_best"][name]), one["ratios"].get("eager")
        if eager is not None:
            ratios.append(NamedRatio(name, ratio_of(eager)))
        seconds = float(one["sides"][CANDIDATE]["p50_s"])
        over = "" if eager is None else times_text(float(eager["median"]))
        rows.append(
            (Cell(name), Cell(seconds_text(seconds), str(seconds)), Cell(over),
             Cell(times_text(best.median)), Cell(best.claim))
        )  # fmt: skip
    lost = {**timing["lost"], **timing["unclear"]}
    notes = tuple(f"{name} was not timed: {why}" for name, why in lost.items())
    label = "How many times as fast as eager each candidate is"
    plot = ratios_plot(ratios, "times as fast as eager", label) if ratios else None
    return Section("Speed", notes, plot=plot, table=Table(CONTEST, tuple(rows), sortable=True))


def _profile_sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """Of each side that was profiled, where the time of its call goes."""
    for side in _profiled(found):
        rows = [_profile_row(row) for row in side["rows"]]
        between, share = side["between_us"], side["between_us"] / side["profiled_us"]
        cells = ("between: Python, the profiler", time_text(between * MICRO), f"{share:.0%}")
        rows.append((*(Cell(text) for text in cells), *(Cell("") for _ in PROFILE[3:])))
        name = "this file" if side["name"] == CANDIDATE else side["name"]
        clock, under = (time_text(side[key] * MICRO) for key in ("call_us", "profiled_us"))
        notes = (f"A call takes {clock} by the clock, {under} under the profiler.", side["note"])
        table = Table(PROFILE, tuple(rows), sortable=True)
        yield Section(f"Where the time of {name} goes", tuple(filter(None, notes)), table=table)


def _profile_row(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    moved = "" if row["bytes"] is None else bytes_text(row["bytes"])
    roofline = "" if row["roofline"] is None else f"{row['roofline']:.0%}"
    times = f" x{row['count']}" if row["count"] > 1 else ""
    return (
        Cell(f"{row['name']}{times}"), Cell(time_text(row["us"] * MICRO), str(row["us"])),
        Cell(f"{row['share']:.0%}", str(row["share"])), Cell(moved, str(row["bytes"] or 0)),
        Cell(roofline, str(row["roofline"] or 0)),
        Cell(time_text(row["gap_us"] * MICRO), str(row["gap_us"])),
    )  # fmt: skip


def _profiled(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    sides: Sequence[Mapping[str, Any]] = (found.get("profile") or {}).get("sides", ())
    return sides


def _step_times(found: Mapping[str, Any]) -> Mapping[str, float]:
    """Microseconds of one run of each step of the candidate, where it was profiled."""
    rows = (row for side in _profiled(found) if side["name"] == CANDIDATE for row in side["rows"])
    return {row["name"]: row["us"] / row["count"] for row in rows if row["is_step"]}


# ---- right or not --------------------------------------------------------------------------------


def _accuracy(found: Mapping[str, Any]) -> Section:
    accuracy = found["accuracy"]
    if not _error(accuracy, "candidate", "rel_l2"):
        return Section("Accuracy", (NOT_COMPARED,))
    outputs = accuracy.get("outputs") or {"output 0": accuracy}
    rows = [_accuracy_row(name, told) for name, told in outputs.items()]
    note = "The worst of all fresh draws, of each output, against float64 and beside eager's."
    return Section("Accuracy", (note,), table=Table(ACCURACY, tuple(rows), sortable=True))


def _accuracy_row(name: str, told: Mapping[str, Any]) -> tuple[Cell, ...]:
    errors = (_error(told, side, what) for what in ("rel_l2", "max_abs")
              for side in ("candidate", "eager"))  # fmt: skip
    allclose = str(told.get("allclose 1e-05 against eager", ""))
    return (Cell(name), *map(Cell, errors), Cell(allclose))


def _error(accuracy: Mapping[str, Any], side: str, what: str) -> str:
    value = (accuracy.get(side) or {}).get(what) if isinstance(accuracy.get(side), dict) else None
    return f"{value:.1e}" if isinstance(value, float | int) else ""


def _checks(verdict: Verdict) -> Section:
    """What failed stands first."""
    order = ("fail", "note", "skip", "pass")
    rows = sorted(verdict.checks, key=lambda row: order.index(row.outcome))
    if not rows:
        return Section("Checks", (NO_CHECKS,))
    cells = tuple(
        (
            Cell(row.check), Cell(row.outcome, tone=OUTCOME_TONES.get(row.outcome, "")),
            Cell(CHECKS[row.check].promise), Cell(plain_words(row.evidence)),
            Cell(str(row.cases or ""), str(row.cases)),
        )
        for row in rows
    )  # fmt: skip
    return Section("Checks", table=Table(CHECK, cells, sortable=True))


def _remarks(found: Mapping[str, Any]) -> Iterator[Section]:
    if found["decisions"]:
        yield Section("Decision record", text=found["decisions"].rstrip(), folded=True)
    table = facts_table(found["environment"])
    yield Section("Environment", table=table, folded=True)
