"""A candidate with generated kernels -> its mutants: the same file with one small mistake in it.

An operator is a regular expression over one region of the file: the body of a kernel, the skeleton
that it stands on, or the Python around it. It knows nothing of particular files, so that it can be
turned on every file of the same style. A judge is as good as the share of mutants that it refutes.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.compiler.pipeline import emitted_text
from fusewright.targets.target import TARGETS
from tests.support.corpus import GROUP, WORKERS, Outcome, judged_in_turn
from tests.support.folders import PROBLEMS
from tests.support.mutation_operators import OPERATORS, Operator

# Problems of tests/corpus/problems whose emitted files are mutated: a map after a product, two
# reductions with two outputs, moments with parameters, a row that is kept between three passes, a
# row that is no multiple of a vector, one that is longer than a buffer, and rows that lie side by
# side.
SUBJECTS = (
    "linear_relu", "mean_and_max", "normalised_gate", "softmax_rows", "log_sum_exp", "wide_mean",
    "row_mean", "channel_gate",
)  # fmt: skip
PER_OPERATOR = 2  # places in one file where one operator is tried

# Mutants that are no mistakes: (subject, operator, or one of its places) -> why nobody could tell.
HARMLESS: Mapping[tuple[str, str], str] = {
    ("linear_relu", "no-contiguity-guard"): "the kernel reads the product's result: contiguous",
    ("linear_relu", "no-width-guard"): "the product refuses every other width itself",
    ("linear_relu", "no-type-guard"): "the weight's guard is there; the product refuses a mixture",
    ("normalised_gate", "dropped-partial"): "a wrong center is made good by the sum of the rest",
    ("softmax_rows", "low-precision-0"): "any number near the maximum gives the same softmax",
    ("log_sum_exp", "low-precision-0"): "the same number is taken off and put back",
    ("softmax_rows", "max-ignores-nan"): "a NaN reaches every element through the sum",
    ("normalised_gate", "no-width-guard"): "eager refuses every other width itself",
    ("mean_and_max", "overwritten-total"): "a row of 80 is one buffer: there is none before it",
    ("softmax_rows", "overwritten-total"): "a row of 96 is one buffer: there is none before it",
    ("mean_and_max", "short-padding"): "80 is a multiple of every vector: there is no rest",
    ("row_mean", "overwritten-total"): "a row of 300 is one buffer: there is none before it",
    ("log_sum_exp", "overwritten-total"): "a row of 96 is one buffer: there is none before it",
    ("log_sum_exp", "max-ignores-nan"): "a NaN reaches the result through the sum",
    ("log_sum_exp", "short-padding"): "96 is a multiple of every vector: there is no rest",
    ("wide_mean", "short-padding"): "4096 is a multiple of every vector: there is no rest",
    ("softmax_rows", "short-padding"): "96 is a multiple of every vector: there is no rest",
    (
        "channel_gate",
        "skips-first",
    ): "the loop is of operands that lie along memory: there are none",
    ("channel_gate", "skips-last"): "the loop is of operands that lie along memory: there are none",
    ("channel_gate", "dropped-partial-0"): "24 elements fill two vectors: one part has them all",
    ("channel_gate", "max-ignores-nan"): "a NaN reaches every element through the sum",
    ("channel_gate", "overwritten-total"): "a row of 24 is one buffer: there is none before it",
    ("channel_gate", "uneven-threads-0"): "run_rows is there and not called",
    ("normalised_gate", "short-padding"): "64 is a multiple of every vector: there is no rest",
    ("normalised_gate", "overwritten-total"): "a row of 64 is one buffer: there is none before it",
    ("log_sum_exp", "output-of-ones"): "a column of one has its elements in the same places",
}


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


KERNELS = re.compile(r'^_FUSEWRIGHT_(?:CPP|CUDA) = r"""\n(.*?)"""$', re.MULTILINE | re.DOTALL)
LIBRARY = re.compile(r'^_FUSEWRIGHT_DEVICE_LIBRARY = r"""\n(.*?)"""$', re.MULTILINE | re.DOTALL)
GLUE = re.compile(r"^class ModelNew\b.*?(?=^# ---- kernels|\Z)", re.MULTILINE | re.DOTALL)


def regions(source: str) -> dict[str, tuple[int, int]]:
    """Where kernels, skeleton and Python glue stand; a region that is missing is left out.

    Of the kernels, from the first struct to the last entry.
    """
    found = {}
    if kernels := KERNELS.search(source):
        first = source.index("\nstruct ", *kernels.span(1))
        found["kernel"] = (first, source.rindex('extern "C"', *kernels.span(1)))
    if library := LIBRARY.search(source):
        found["skeleton"] = library.span(1)
    if glue := GLUE.search(source):
        found["glue"] = glue.span()
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
    fate: str  # killed, survived, undecided, unbuilt (no mutant: the compiler refused it)
    outcome: Outcome


# Stages of a mutant's trial: the ordinary calls kill most; what survives them meets everything.
STAGES: tuple[list[str], ...] = (["fresh"], [])
ON_CPU: Mapping[str, object] = {"device": "cpu"}


def try_mutants(
    chosen: Sequence[Mutant], folder: Path, options: Mapping[str, object] = ON_CPU,
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:  # fmt: skip
    """Fates of mutants, judged in turn by one process."""
    results: list[Result] = []
    left = list(chosen)
    for only in STAGES:
        orders = [_order(mutant, folder, options, only) for mutant in left]
        survivors = []
        for mutant, outcome in zip(left, judged_in_turn(orders) if orders else (), strict=True):
            if outcome.verdict != "refuted" and only:
                survivors.append(mutant)
                continue
            results.append(Result(mutant, _fate(outcome), outcome))
            report(results[-1])
        left = survivors
    return results


def _order(
    mutant: Mutant, folder: Path, options: Mapping[str, object], only: list[str]
) -> dict[str, object]:
    path = folder / f"{mutant.name}.py"
    path.write_text(mutant.text, encoding="utf-8")
    return {
        "problem": str(mutant.problem), "candidate": str(path), "timing": False,
        "only": only, **options,
    }  # fmt: skip


def _fate(outcome: Outcome) -> str:
    if outcome.verdict != "refuted":
        return "survived" if outcome.verdict == "verified" else "undecided"
    built = not any("Error building extension" in line for line in outcome.evidence)
    return "killed" if built else "unbuilt"


def study(
    chosen: Sequence[Mutant], folder: Path, options: Mapping[str, object] = ON_CPU,
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:  # fmt: skip
    most = min(GROUP, -(-len(chosen) // WORKERS))
    groups = [chosen[k : k + most] for k in range(0, len(chosen), most)]
    with ThreadPoolExecutor(WORKERS) as pool:
        done = pool.map(lambda group: try_mutants(group, folder, options, report), groups)
        return [result for results in done for result in results]


@cache
def subjects() -> tuple[tuple[Path, Path], ...]:
    """The files that fusewright emits for SUBJECTS, made now, each with its problem."""
    folder = Path(tempfile.mkdtemp(prefix="fusewright-subjects-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = []
    for name in SUBJECTS:
        path, problem = folder / f"{name}.py", PROBLEMS / f"{name}.py"
        loaded = load_problem(problem)
        module = loaded.make_model()
        made = make(module, loaded.make_inputs(), TARGETS["cpu"])
        path.write_text(emitted_text(made, module, loaded), encoding="utf-8")
        found.append((path, problem))
    return tuple(found)


def all_mutants() -> list[Mutant]:
    made = (mutant for subject, problem in subjects() for mutant in mutants(subject, problem))
    return [m for m in made if not _harmless(m)]


def _harmless(mutant: Mutant) -> bool:
    names = (mutant.operator.name, f"{mutant.operator.name}-{mutant.number}")
    return any((mutant.subject.stem, name) in HARMLESS for name in names)
