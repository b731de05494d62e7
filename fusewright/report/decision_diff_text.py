"""A DecisionDiff -> lines for a person that fit 80 columns, or the same as JSON.

= the same in both     - only in A, or how it is there
~ changed              + only in B, or how it is there
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from fusewright.report.decision_diff import DecisionDiff, Difference, Pair, StepsDiff
from fusewright.report.decisions import Decisions, Step

WIDTH = 80


def diff_report(found: DecisionDiff) -> dict[str, object]:
    """same: whether nothing differs.  a, b: {name, source, problem, facts}.  problems, facts:
    of the whole.  kernels, library_calls: {same, changed, only_a, only_b} of steps; a changed pair
    has `differences` [{what, a, b}] and `source`, a unified diff in lines.  rest: another one."""
    return {
        "same": found.is_same,
        "a": _about(found.a),
        "b": _about(found.b),
        "problems": found.problems,
        "facts": [asdict(fact) for fact in found.facts],
        "kernels": asdict(found.kernels),
        "library_calls": asdict(found.library_calls),
        "rest": list(found.rest),
    }


def _about(side: Decisions) -> dict[str, object]:
    return {
        "name": side.name,
        "source": side.source,
        "problem": side.problem,
        "facts": dict(side.facts),
    }


def diff_lines(found: DecisionDiff, *, source: bool = False) -> Iterator[str]:
    """source: with a diff of the text of each kernel that has changed, and of the rest; lines of it
    are as long as they are."""
    yield from _wrapped(f"- {found.a}")
    yield from _wrapped(f"+ {found.b}")
    if found.problems:
        yield from ("", *_wrapped(found.problems))
    if found.facts:
        yield ""
        for fact in found.facts:
            yield from _told(fact, "")
        yield from (f"    {line}".rstrip() for line in found.rest if source)
    for noun, steps in (("kernel", found.kernels), ("library call", found.library_calls)):
        yield from ("", _counts(noun, steps), *_steps(steps, source=source))
    yield ""
    yield "the same" if found.is_same else "they differ"


def _counts(noun: str, steps: StepsDiff) -> str:
    if steps == StepsDiff((), (), (), ()):
        return f"{noun}s: none"
    parts = [
        f"{len(steps.same)} the same",
        f"{len(steps.changed)} changed",
        f"{len(steps.only_a)} only in A",
        f"{len(steps.only_b)} only in B",
    ]
    return f"{noun}s: {', '.join(parts)}"


def _steps(steps: StepsDiff, *, source: bool) -> Iterator[str]:
    """Those that are told in the same words, as calls of equal blocks are, are told once."""
    for line, times in Counter(f"= {_step(pair.a)}" for pair in steps.same).items():
        yield from _wrapped(_times(line, times))
    told = Counter(_without_text(pair, source=source) for pair in steps.changed)
    for pair, times in told.items():
        yield from _wrapped(_times(f"~ {pair.a.name}", times))
        for difference in pair.differences:
            yield from _told(difference, "    ")
        if source:
            yield from (f"    {line}".rstrip() for line in pair.source)
    for sign, alone in (("-", steps.only_a), ("+", steps.only_b)):
        for line, times in Counter(f"{sign} {_step(step)}" for step in alone).items():
            yield from _wrapped(_times(line, times))


def _without_text(pair: Pair, *, source: bool) -> Pair:
    """What is told of a pair, and its name: equal for pairs of which the same is told."""
    name = Step(pair.a.kind, pair.a.name, "")
    return replace(pair, a=name, b=name, source=pair.source if source else ())


def _step(step: Step) -> str:
    results = f" -> {step.results}" if step.results else ""
    own = "" if step.kind == "library call" else f"{step.name}: "
    return f"{own}{step.operators}{results}"


def _times(line: str, times: int) -> str:
    return f"{line} ({times} times)" if times > 1 else line


def _told(difference: Difference, indent: str) -> Iterator[str]:
    """On one line, where that is wide enough; else A's lines that B has not, then B's."""
    a, b = difference.a, difference.b
    if len(a) == len(b) == 1:
        short = f"{indent}{difference.what}: {a[0]} -> {b[0]}"
        if len(short) <= WIDTH:
            yield short
            return
    yield f"{indent}{difference.what}:"
    for sign, mine, theirs in (("-", a, b), ("+", b, a)):
        for line in _unshared(mine, theirs) or mine:
            yield from _wrapped(f"{sign} {line or '(all)'}", f"{indent}  ")


def _unshared(mine: Sequence[str], theirs: Sequence[str]) -> list[str]:
    return [line for line in mine if line not in theirs]


def _wrapped(line: str, indent: str = "") -> list[str]:
    """Behind a sign of one character, lines go on under its text."""
    hanging = f"{indent}{'  ' * (line[1:2] == ' ')}"
    return textwrap.wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
    )
