"""Outcome, Verdict or Timing -> the one screen that a command prints by default.

First the verdict and the speed; then what was fused and why, whether it is right, whether it is
faster, where it is, and what to do next. Words are those of a reader who knows PyTorch and nothing
of this project; of speed it says what was measured at the end, and nothing else. No line has more
than `WIDTH` columns.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from fusewright.emit.header import StepRow
from fusewright.judge.findings import CHECKS, Row, Verdict
from fusewright.report.amounts import bytes_text, counted, seconds_text, times_text
from fusewright.report.run_report import FusedForward, OptimizeResult
from fusewright.report.speed import CANDIDATE, FASTER, SLOWER, SideSpeed, Speed, speed_of
from fusewright.report.styles import STYLES

WIDTH = 80
LABEL = 8  # columns of the words at the left
FUSED_LINES = 15  # at most, of what was fused and why
MOST_CALLS, MOST_LAST = 5, 5  # of these, of calls that stay, and of what is said at the end
MOST_PLACES, MOST_NOTES, MOST_FAILED, FAILED_LINES = 3, 3, 4, 3
REASON = 150  # characters of why a model is not new as a whole
OWN_ROUTINE = "PyTorch's own routine: "
# An error in the judge's unit, as a reader finds it: so many times what one rounding does.
UNITS = {" kappa": " roundings", "rms error": "typical error"}
ALL = "-v shows all"
DEGENERATE = "the outputs do not depend on the inputs, so a ratio shows nothing here"


def outcome_screen(outcome: OptimizeResult) -> list[Text]:
    """What `optimize` made."""
    verdict = outcome.verdict
    speed = speed_of(verdict.timing, _fused_s(outcome)) if verdict else None
    lines = _wrapped(headline(verdict, speed, outcome.why_not))
    lines += ["", *fused_lines(outcome)]
    if verdict is not None:
        lines += ["", *_right_or_not(verdict)]
        lines += ["", *_speed(speed)] * (verdict.verdict == "verified")
    lines += ["", *_labelled("Note", [DEGENERATE])] * outcome.degenerate
    lines += ["", *_copied("File", [(str(outcome.path), _standing(outcome))])]
    lines += _copied("Next", _next_of(outcome, speed))
    return [_styled(line) for line in lines]


def verdict_screen(verdict: Verdict, problem: str, candidate: str) -> list[Text]:
    """What `judge` found. problem, candidate: their files, as named."""
    speed = speed_of(verdict.timing)
    lines = [*_wrapped(headline(verdict, speed)), "", *_right_or_not(verdict)]
    lines += ["", *_speed(speed)] * (verdict.verdict == "verified")
    if verdict.verdict == "refuted" and verdict.replay.get("cases"):
        asked = f"fusewright judge {problem} {candidate} --report R.json"
        again = "fusewright judge --replay R.json --case 0   # repeats the first fault"
        lines += ["", *_copied("Next", [(asked, "keeps what it found"), (again, "")])]
    return [_styled(line) for line in lines]


def timing_screen(timing: object) -> list[Text]:
    """What `bench` measured."""
    speed = speed_of(timing)
    if speed is None:
        return [Text("nothing was timed")]
    side = speed.main
    first = _compared(side, "timed, not judged: ") if side else "timed, not judged"
    return [_styled(line) for line in [first, "", *_table(speed), *_missing(speed)]]


def _styled(line: str) -> Text:
    """The word of a verdict at the beginning has its colour."""
    word = line.partition(":")[0]
    return Text.assemble((word, STYLES[word]), line[len(word) :]) if word in STYLES else Text(line)


def _wrapped(text: str, first: str = "", others: str = "") -> list[str]:
    """Lines of WIDTH columns. first, others: what they begin with."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def _labelled(label: str, texts: Iterable[str]) -> list[str]:
    """Each text begins a line, the first one behind the label."""
    lines = list[str]()
    for text in texts:
        lines += _wrapped(text, " " * LABEL if lines else f"{label:<{LABEL}}", " " * LABEL)
    return lines


def _copied(label: str, texts: Iterable[tuple[str, str]]) -> list[str]:
    """Paths and commands, each with what is said of it; they stay whole, as they are copied."""
    lines = list[str]()
    for text, remark in texts:
        line = f"{'' if lines else label:<{LABEL}}{text}"
        whole = f"{line}   # {remark}"
        lines.append(whole if remark and len(whole) <= WIDTH else line)
    return lines


# ---- the verdict and the speed -------------------------------------------------------------------


def headline(verdict: Verdict | None, speed: Speed | None, why_not: str = "") -> str:
    """The verdict and the speed in one sentence. why_not: where there is no verdict."""
    if verdict is None:
        return f"not-verified: {why_not}"
    if verdict.verdict == "refuted":
        failed = [row for row in verdict.checks if row.outcome == "fail"]
        asked = [row for row in verdict.checks if CHECKS[row.check].when != "note"]
        how = f"it fails {len(failed)} of {len(asked)} checks" if failed else verdict.reason
        return f"refuted: {how}; do not use it"
    if verdict.verdict == "not-verified":
        return f"not-verified: {plain_words(verdict.reason)}"
    if speed is None or speed.main is None:
        return "verified: right; not timed"
    return _compared(speed.main, "verified: right")


def _compared(side: SideSpeed, begin: str) -> str:
    """begin: "verified: right", or what ends with a space and has no verdict in it."""
    ratio = side.ratio
    if ratio is None:
        return begin.rstrip(": ")
    between = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
    joined = begin.endswith(" ")
    if ratio.claim not in (FASTER, SLOWER):
        begin += "" if joined else "; "
        within = f"{ratio.low:.2f}x to {ratio.high:.2f}x"
        return f"{begin}no difference in speed from {side.name} shown ({within})"
    word = {FASTER: ", and ", SLOWER: ", but "}[ratio.claim]
    begin += "" if joined else word
    return f"{begin}{ratio.claim} than {side.name}: {times_text(ratio.median)} ({between})"


# ---- what was fused, and why ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """A row of the list. kernels, calls: how many steps of a call it stands for."""

    head: str
    text: str
    kernels: int = 0
    calls: int = 0


def fused_lines(outcome: OptimizeResult) -> list[str]:
    """What became a kernel, what stayed a call, and what that saves; FUSED_LINES at most."""
    of = f"{Path(outcome.problem).name} on {outcome.target}" if outcome.problem else ""
    about = f" ({of})" if of else ""
    if not outcome.forwards:
        return _labelled("Fused", [f"nothing: {_why_nothing(outcome)}{about}"])
    first, *others = outcome.forwards
    rows = _rows(first)
    kernels, calls = ([told for told in rows if bool(told.calls) is kind] for kind in (False, True))
    last = [_saved(first), *(_other(forward) for forward in others), *_left(outcome)]
    width = max(len(told.head) for told in (*rows, *last)) + 2
    label = f", {first.label}" if first.label else ""
    lines = _labelled("Fused", [f"{_counted(first.rows)}{label}{about}"])
    room = FUSED_LINES - len(lines)
    tail = _fitting(last, width, MOST_LAST)
    stay = _fitting(calls, width, min(MOST_CALLS, room - len(tail)))
    return [*lines, *_fitting(kernels, width, room - len(stay) - len(tail)), *stay, *tail]


def _fitting(rows: Sequence[_Told], width: int, room: int) -> list[str]:
    """As many as have room, the first ones; of the others, how many there are."""
    printed = [_lines(told, width) for told in rows]
    if sum(map(len, printed)) <= room:
        return [line for lines in printed for line in lines]
    lines, taken = list[str](), 0
    while len(lines) + len(printed[taken]) < room:
        lines += printed[taken]
        taken += 1
    rest = rows[taken:]
    kernels, calls = sum(t.kernels for t in rest), sum(t.calls for t in rest)
    counts = [counted(kernels, "more kernel")] * bool(kernels)
    counts += [counted(calls, "more call")] * bool(calls)
    return [*lines, f"  ... {' and '.join(counts) or 'more'}: {ALL}"]


def _lines(told: _Told, width: int) -> list[str]:
    return _wrapped(told.text, f"  {told.head:<{width}}", " " * (width + 2))


def _counted(rows: Sequence[StepRow]) -> str:
    kernels = sum(row.times for row in rows if row.name)
    calls = sum(row.times for row in rows if not row.name)
    stay = f", {counted(calls, 'call')} stay{'s' * (calls == 1)} PyTorch's" * bool(calls)
    return f"into {counted(kernels, 'kernel')}{stay}"


def _rows(forward: FusedForward) -> list[_Told]:
    """Kernels, and calls that stay PyTorch's, those of the same reason together; in their order."""
    told = dict[object, _Told]()
    places = dict[object, list[str]]()
    for number, row in enumerate(forward.rows):
        why = "; ".join(row.reasons).removeprefix(OWN_ROUTINE)
        key = number if row.name else why
        before = told.get(key, _Told("", ""))
        kernels, calls = before.kernels + row.times * bool(row.name), before.calls
        calls += row.times * (not row.name)
        places.setdefault(key, []).extend(row.places or (", ".join(row.operators),))
        count = kernels or calls
        times = f" x{count}" if count > 1 else ""
        text = _places(places[key]) + (f": {why}" if why and not row.name else "")
        told[key] = _Told(("kernel" if row.name else "PyTorch's") + times, text, kernels, calls)
    return list(told.values())


def _places(places: Sequence[str]) -> str:
    some = [*dict.fromkeys(places)]
    if len(some) <= MOST_PLACES + 1:
        return ", ".join(some)
    return f"{', '.join(some[:MOST_PLACES])}, {len(some) - MOST_PLACES} more"


def _saved(forward: FusedForward) -> _Told:
    saved = forward.savings
    before = f"{bytes_text(saved.eager_bytes)} a call in {counted(saved.eager_steps, 'step')}"
    after = f"{bytes_text(saved.fused_bytes)} in {saved.fused_steps}"
    return _Told("why", f"eager moves {before}; this file {after}")


def _other(forward: FusedForward) -> _Told:
    return _Told("also", f"{forward.label}: {_counted(forward.rows)}")


def _left(outcome: OptimizeResult) -> list[_Told]:
    """Of a model that is new in parts: why not as a whole."""
    parts = outcome.parts or {}
    left = parts.get("left")
    root = left[0] if isinstance(left, (list, tuple)) and left else {}
    why = textwrap.shorten(str(root.get("why", "")), REASON, placeholder=" ...")
    return [_Told("as it was", f"the rest: {why}")] if why else []


def _why_nothing(outcome: OptimizeResult) -> str:
    changes = (outcome.tuning or {}).get("changes")
    if isinstance(changes, Mapping) and changes:
        return "PyTorch's own calls were faster here"
    left = _left(outcome)
    return left[0].text if left else "the model's own calls are all there is"


# ---- right or not, faster or not -----------------------------------------------------------------


def _right_or_not(verdict: Verdict) -> list[str]:
    failed = [row for row in verdict.checks if row.outcome == "fail"]
    if failed:
        return _broken(failed, verdict)
    texts = [text for text in (_errors(verdict), _checks(verdict)) if text]
    label = "Right" if verdict.verdict == "verified" else "So far"
    return _labelled(label, texts) + _notes(verdict)


def _errors(verdict: Verdict) -> str:
    """The worst error beside eager's."""
    both = [verdict.accuracy.get(side) for side in ("candidate", "eager")]
    found = [side.get("rel_l2") for side in both if isinstance(side, Mapping)]
    if len(found) < 2 or not all(isinstance(error, float) for error in found):
        return ""
    return f"worst relative error {found[0]:.1e}, eager's own {found[1]:.1e}, against float64"


def _checks(verdict: Verdict) -> str:
    """How many have passed, and how many were skipped."""
    outcomes = [row.outcome for row in verdict.checks if CHECKS[row.check].when != "note"]
    skipped = outcomes.count("skip")
    more = f", {skipped} skipped" * bool(skipped)
    return f"{counted(outcomes.count('pass'), 'check')} passed{more} (-v shows them)"


def _notes(verdict: Verdict) -> list[str]:
    noted = [row for row in verdict.checks if row.outcome == "note"]
    texts = [CHECKS[row.check].promise for row in noted[:MOST_NOTES]]
    more = len(noted) - MOST_NOTES
    texts += [f"{more} more: {ALL}"] * (more > 0)
    return _labelled("Note", texts) if texts else []


def _broken(failed: Sequence[Row], verdict: Verdict) -> list[str]:
    """Of each check that failed: what should be so, and what was found."""
    lines = ["Wrong"]
    for row in failed[:MOST_FAILED]:
        found = _wrapped(f"found: {plain_words(row.evidence)}", "    ", "    ")
        more = [f"    ... {ALL}"] * (len(found) > FAILED_LINES)
        promised = _wrapped(f"promised: {CHECKS[row.check].promise}", "    ", "    ")
        lines += [f"  {row.check}", *promised, *found[:FAILED_LINES], *more]
    rest = len(failed) - MOST_FAILED
    lines += [f"  ... {counted(rest, 'more check')} failed: {ALL}"] * (rest > 0)
    return [*lines, f"  {_checks(verdict)}"]


def plain_words(text: str) -> str:
    for own, plain in UNITS.items():
        text = text.replace(own, plain)
    return text


def _speed(speed: Speed | None) -> list[str]:
    if speed is None:
        return _labelled("Speed", ["not timed"])
    return [*_table(speed), *_missing(speed)]


def _table(speed: Speed) -> list[str]:
    """One row a side: its time, the ratio, its interval, how near to the roofline, the claim."""
    known = any(side.roofline is not None for side in speed.sides)
    rows = [("Speed", "time", "ratio", "95 % interval", "roofline", "this file is")]
    for side in speed.sides:
        name = "  this file" if side.name == CANDIDATE else f"  {side.name}"
        ratio, between, claim = "", "", ""
        if side.ratio is not None:
            ratio, claim = times_text(side.ratio.median), side.ratio.claim
            between = f"{side.ratio.low:.2f} to {side.ratio.high:.2f}"
        share = "" if side.roofline is None else f"{side.roofline:.0%}".replace("%", " %")
        rows.append((name, seconds_text(side.seconds), ratio, between, share, claim))
    return [_row(row, known=known) for row in rows]


def _row(cells: tuple[str, str, str, str, str, str], *, known: bool) -> str:
    name, time, ratio, between, share, claim = cells
    line = f"{name:<15} {time:>9}  {ratio:>6}  {between:>13}"
    return f"{line}{f'  {share:>8}' if known else ''}  {claim}".rstrip()


def _missing(speed: Speed) -> list[str]:
    told = (f"no ratio over {name}: {why}" for name, why in speed.missing.items())
    return [line for text in told for line in _wrapped(text, "  ", "    ")]


# ---- what to do next -----------------------------------------------------------------------------


def _fused_s(outcome: OptimizeResult) -> float:
    return outcome.forwards[0].savings.fused_s if outcome.forwards else 0.0


def _standing(outcome: OptimizeResult) -> str:
    """What a reader of its path must know of the file."""
    word = outcome.verdict.verdict if outcome.verdict else "not-verified"
    return {"refuted": "wrong: do not use it", "not-verified": "nobody has verified it"}.get(
        word, ""
    )


def _next_of(outcome: OptimizeResult, speed: Speed | None) -> list[tuple[str, str]]:
    """Commands, and what each is for."""
    word = outcome.verdict.verdict if outcome.verdict else "not-verified"
    shown = (f"fusewright show {outcome.path}", "its kernels, one by one")
    if word == "refuted":
        return [("this is a bug in fusewright: please report it, with the problem file", "")]
    if word == "not-verified":
        settings = (f" --set {shlex.quote(f'{n}={v}')}" for n, v in outcome.overrides.items())
        judged = f"fusewright judge {outcome.problem} {outcome.path}{''.join(settings)}"
        return [(judged, "asks for a verdict"), shown]
    ratio = speed.main.ratio if speed and speed.main else None
    tried = (outcome.tuning or {}).get("level")
    if ratio and ratio.claim != FASTER and tried != "full" and outcome.forwards:
        return [("the same command with --tune full", "tries more ways to run it"), shown]
    return [(f"from {outcome.path.stem} import ModelNew", "in place of Model"), shown]
