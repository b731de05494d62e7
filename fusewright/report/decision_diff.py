"""Two sets of decisions -> what is the same in both, what differs and in what, what one has alone.

Steps are paired by what they have in common, the most first: a pair that is the same in all, then
one of the same operators at the same place of the model, then of either.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from fusewright.report.decisions import Decisions, Kind, Step

# What a step is compared in: the words for it, and the attribute.
Fields = Sequence[tuple[str, str]]
FIELDS: Fields = (
    ("name", "name"),
    ("operators", "operators"),
    ("results", "results"),
    ("from", "origin"),
    ("numeric class", "numeric"),
    ("strategy", "strategy"),
    ("launch", "launch"),
    ("bytes, operations", "moves"),
    ("predicted", "predicted"),
    ("calls", "calls"),
    ("runs", "forwards"),
)
KINDS: tuple[Kind, ...] = ("kernel", "library call")
# What pairs two steps, the surest first; a key with a part that nobody knows pairs none.
KEYS = (
    ("name", "operators", "results", "origin", "forwards", "text"),
    ("name", "operators", "results", "origin", "forwards"),
    ("operators", "results", "text"),
    ("operators", "origin", "forwards"),
    ("operators", "origin"),
    ("name", "operators", "moves"),
    ("name", "operators"),
    ("operators", "results"),
    ("operators", "moves"),
    ("operators",),
    ("origin", "forwards"),
    ("origin",),
)


@dataclass(frozen=True)
class Difference:
    """what: differs.  a, b: in lines, how it is in each."""

    what: str
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A step of A and the one of B that it became. source: a unified diff of their texts."""

    a: Step
    b: Step
    differences: tuple[Difference, ...] = ()
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepsDiff:
    """Of all kernels, or of all calls of PyTorch."""

    same: tuple[Pair, ...]
    changed: tuple[Pair, ...]
    only_a: tuple[Step, ...]
    only_b: tuple[Step, ...]

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.only_a or self.only_b)


@dataclass(frozen=True)
class DecisionDiff:
    """problems: what is said where A and B are of different problems, else "".  facts: of whole
    files, those that both have.  rest: a unified diff of what is neither header nor kernel, of
    files for the same target."""

    a: Decisions
    b: Decisions
    problems: str
    facts: tuple[Difference, ...]
    kernels: StepsDiff
    library_calls: StepsDiff
    rest: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.facts and self.kernels.is_same and self.library_calls.is_same


def decision_diff(a: Decisions, b: Decisions) -> DecisionDiff:
    """Reports have a step for each call; a file that is compared with one is taken so, too."""
    mixed = a.source != b.source
    left, right = (side.by_call if mixed else side for side in (a, b))
    # The function that a kernel has in a file is shared, and so has another name.
    fields = FIELDS[1:] if mixed else FIELDS
    kernels, calls = (steps_diff(left, right, kind, fields) for kind in KINDS)
    rest = unified(a.rest, b.rest) if a.rest and b.rest else ()
    facts = tuple(_facts(a, b, rest))
    if not facts and kernels.is_same and calls.is_same and a.whole != b.whole and not mixed:
        facts = (Difference("text", ("other spacing or order",), ("than here",)),)
    told = rest if a.facts.get("target") == b.facts.get("target") else ()
    return DecisionDiff(a, b, _problems(a, b), facts, kernels, calls, told)


def _problems(a: Decisions, b: Decisions) -> str:
    names = a.problem, b.problem
    told = names[0] != names[1] and None not in names
    return f"different problems: {names[0]} and {names[1]}" if told else ""


def _facts(a: Decisions, b: Decisions, rest: Sequence[str]) -> Iterator[Difference]:
    for name in a.facts:
        if name in b.facts and a.facts[name] != b.facts[name]:
            yield Difference(name, (a.facts[name],), (b.facts[name],))
    if rest:
        yield _exchanged("the model, forward, support", rest)


def unified(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
    """A unified diff without the names of files, and without numbers of lines, which would be those
    of a piece."""
    lines = [*difflib.unified_diff(a, b, lineterm="", n=3)][2:]
    return tuple("@@" if line.startswith("@@ ") else line for line in lines)


def _exchanged(what: str, lines: Sequence[str]) -> Difference:
    """How many lines of a unified diff are gone, and how many are new."""
    gone, new = (sum(line[:1] == sign for line in lines) for sign in "-+")
    return Difference(what, (f"{gone} lines",), (f"{new} lines in their place",))


# ---- steps ---------------------------------------------------------------------------------------


def steps_diff(a: Decisions, b: Decisions, kind: Kind, fields: Fields = FIELDS) -> StepsDiff:
    """Of the steps of this kind. fields: in which they are compared."""
    left, right = ([s for s in side.steps if s.kind == kind] for side in (a, b))
    pairs = [*_paired(left, right)]
    found = [Pair(x, y, *_compared(x, y, fields)) for x, y in pairs]
    place = {id(step): k for k, step in enumerate(left)}
    found.sort(key=lambda pair: place[id(pair.a)])
    mine, theirs = {id(x) for x, _ in pairs}, {id(y) for _, y in pairs}
    return StepsDiff(
        tuple(pair for pair in found if not pair.differences),
        tuple(pair for pair in found if pair.differences),
        tuple(step for step in left if id(step) not in mine),
        tuple(step for step in right if id(step) not in theirs),
    )


def _paired(left: Sequence[Step], right: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """Each step at most once, in the order of the keys, then of the files."""
    free = {id(step): step for step in right}
    waiting = [*left]
    for names in KEYS:
        of = _key(names)
        by_key: dict[Hashable, deque[Step]] = defaultdict(deque)
        for step in free.values():
            by_key[of(step)].append(step)
        rest = list[Step]()
        for step in waiting:
            key = of(step)
            if key is None or not by_key[key]:
                rest.append(step)
                continue
            other = by_key[key].popleft()
            del free[id(other)]
            yield step, other
        waiting = rest


def _key(names: Sequence[str]) -> Callable[[Step], Hashable]:
    def key(step: Step) -> Hashable:
        found = tuple(getattr(step, name) for name in names)
        return None if None in found or () in found else found

    return key


def _compared(a: Step, b: Step, fields: Fields) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """What differs of what both sides know, and the diff of their texts."""
    found = [
        Difference(what, _lines(mine), _lines(theirs))
        for what, name in fields
        if (mine := getattr(a, name)) is not None
        and (theirs := getattr(b, name)) is not None
        and mine != theirs
    ]
    source: tuple[str, ...] = ()
    if a.text is not None and b.text is not None and a.text != b.text:
        source = unified(a.text.split("\n"), b.text.split("\n"))
        found.append(_exchanged("source", source))
    return tuple(found), source


def _lines(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
