"""A candidate with generated kernels -> its mutants: the same file with one small mistake in it.

An operator is a regular expression over one region of the file: the body of a kernel, the skeleton
that it stands on, or the Python around it. It knows nothing of particular files, so that it can be
turned on every file of the same style. A judge is as good as the share of mutants that it refutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from corpus import TESTS, WORKERS, Outcome, judged
from operators import OPERATORS, Operator

SUBJECTS = TESTS / "subjects"
PER_OPERATOR = 2  # places in one file where one operator is tried


@dataclass(frozen=True)
class Mutant:
    subject: Path
    problem: Path
    operator: Operator
    number: int
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.subject.stem}-{self.operator.name}-{self.number}"


def regions(source: str) -> dict[str, tuple[int, int]]:
    """Where kernels, skeleton and Python glue stand; a region that is missing is left out."""
    first = re.search(r"^struct fused_", source, re.MULTILINE)
    skeleton = re.search(r"^namespace fusewright \{", source, re.MULTILINE)
    model = re.search(r"^class ModelNew\b", source, re.MULTILINE)
    found = {}
    if first:
        end = source.find('extern "C"', first.start())
        found["kernel"] = (first.start(), end if end >= 0 else len(source))
        if skeleton:
            found["skeleton"] = (skeleton.start(), first.start())
    if model:
        found["glue"] = (model.start(), len(source))
    return found


def mutants(
    subject: Path,
    problem: Path,
    operators: Iterable[Operator] = OPERATORS,
    limit: int = PER_OPERATOR,
) -> Iterator[Mutant]:
    source = subject.read_text(encoding="utf-8")
    places = regions(source)
    seen = {source}
    for operator in operators:
        if operator.region not in places:
            continue
        begin, end = places[operator.region]
        matches = list(re.finditer(operator.pattern, source[begin:end]))
        for number, match in enumerate(_spread(matches, limit)):
            start, stop = begin + match.start(), begin + match.end()
            text = source[:start] + match.expand(operator.replacement) + source[stop:]
            if text not in seen:
                seen.add(text)
                line = source.count("\n", 0, start) + 1
                yield Mutant(subject, problem, operator, number, line, text)


def _spread(matches: Sequence[re.Match[str]], limit: int) -> list[re.Match[str]]:
    """At most `limit` of them, evenly over the file."""
    if len(matches) <= limit:
        return list(matches)
    return [matches[k * len(matches) // limit] for k in range(limit)]


# ---- judging ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    fate: str  # killed, survived, unbuilt (no mutant at all: the compiler refused it)
    outcome: Outcome


def try_mutant(mutant: Mutant, folder: Path, device: str = "cpu") -> Result:
    """The ordinary calls first, since they kill most; a survivor meets everything."""
    path = folder / f"{mutant.name}.py"
    path.write_text(mutant.text, encoding="utf-8")
    options = {"timing": False, "device": device, "ignored": []}
    for only in (["fresh"], []):
        outcome = judged(mutant.problem, path, {**options, "only": only})
        if outcome.verdict == "refuted":
            return Result(mutant, "unbuilt" if _unbuilt(outcome) else "killed", outcome)
    return Result(mutant, "survived", outcome)


def _unbuilt(outcome: Outcome) -> bool:
    return any("Error building extension" in line for line in outcome.evidence)


def study(
    chosen: Sequence[Mutant], folder: Path, device: str = "cpu",
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:  # fmt: skip
    with ThreadPoolExecutor(WORKERS) as pool:
        results = []
        for result in pool.map(lambda mutant: try_mutant(mutant, folder, device), chosen):
            report(result)
            results.append(result)
    return results


def subjects() -> list[tuple[Path, Path]]:
    """The subjects of the repository, each with its problem."""
    found = []
    for path in sorted(SUBJECTS.glob("*.py")):
        named = re.search(r'^PROBLEM = "(\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
        if named is None:
            raise ValueError(f'{path}: no line PROBLEM = "..." says what it answers')
        found.append((path, TESTS / "problems" / f"{named[1]}.py"))
    return found


def all_mutants() -> list[Mutant]:
    return [mutant for subject, problem in subjects() for mutant in mutants(subject, problem)]
