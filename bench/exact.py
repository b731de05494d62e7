"""Never less exact than eager: errors of ours and of eager against float64, and the exceptions.

    python bench/exact.py [--device cpu|cuda] [--random 500] [--behind 300] [--first 0] [--jobs N]
                          [--arch sm_90a|sm_80] [--full] [--list] [--no-files] [NAMES]

Problems are the files of zoo/ and examples/, random ones (tests/fuzz/programs.py) and random
reductions behind products and convolutions (tests/fuzz/reductions_behind.py); kernels of many are
one library, and nothing is judged or timed. NAMES picks files, and random problems as random_216 or
behind_284. --full forbids TF32 to cuDNN, too. Of each floating result: the relative Frobenius error
of ours and of eager against the model in float64. It is an exception if ours is surely more than
1.05 times eager's and more than half a rounding of its type.

The float64 model means what the model writes: `x.float()` of an integer is float64 there, and a
cast to a half type a rounding, as the judge has it.

Half a rounding is u = eps / 2: 6.0e-8 for float32, 4.9e-4 for float16, 3.9e-3 for bfloat16. A value
that is rounded once errs by ulp / sqrt(12) on average, which over [1, 2) is 0.19 eps or 0.38 u in
this norm; so u leaves room for some seven roundings of independent values, or for one sum that is
off by a single unit. A result of float64 cannot be measured so and is left out.

One draw may be luck, a sum of a few numbers most of all: a result of one element is rounded up or
down once. So a first draw of every problem only shows what looks like an exception; that is drawn
again, parameters too, and the squares of errors and of values are added up over these draws. The
ratio of such sums has a 95 % interval (Student's, of a ratio of two sums over the same draws). It
is looked at after 4, 16, 64, 256 and 1024 draws, or when time is up, until it lies on one side of
1.05. An exception is a result whose whole interval lies above, and does so once more on new draws,
four times as many: of a thousand results, some lie above by luck. What is still open in the end is
no exception, and is counted and printed as such.

On a GPU the float64 model runs on the CPU where a result looks less exact: PyTorch's kernels of a
GPU keep some constants in float32 (the sixth of hardswish and hardsigmoid is off by 3e-8).
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

MOST = 1.05  # times eager's error
HALF = {"torch.float32": 6e-8, "torch.float16": 2.0**-11, "torch.bfloat16": 2.0**-8}
LOOKS = (4, 16, 64, 256, 1024)  # after how many draws of what looks like an exception
SECONDS = 60.0  # for these draws, but the first four are always made
TOGETHER = {"cpu": 16, "cuda": 8}


Three = tuple[float, float, float]  # squared errors of ours and of eager, squared norm
HEAD = (
    f"{'ratio':>8} {'interval':>11} {'ours':>9} {'eager':>9} type      elements draws "
    "problem [result] kernels"
)


@dataclass(frozen=True)
class Result:
    """One floating result of one draw."""

    place: int
    dtype: str
    elements: int
    three: Three


@dataclass(frozen=True)
class Row:
    """One floating result. error, eager: relative Frobenius norms. low, high: the interval of their
    ratio. kernels: what computed it."""

    problem: str
    place: int
    dtype: str
    elements: int
    error: float
    eager: float
    draws: int
    low: float
    high: float
    kernels: str

    @property
    def ratio(self) -> float:
        return self.error / self.eager if self.eager else math.inf if self.error else 1.0

    @property
    def looks_less_exact(self) -> bool:
        return self.ratio > MOST and not self.error <= HALF[self.dtype]

    @property
    def open(self) -> bool:
        """Whether more draws are needed to tell."""
        above = not self.error <= HALF[self.dtype]
        return above and self.low <= MOST < self.high

    @property
    def less_exact(self) -> bool:
        return self.looks_less_exact and self.low > MOST

    def __str__(self) -> str:
        return (
            f"{self.ratio:8.2f} {self.low:5.2f}-{self.high:<5.2f} {self.error:9.2e} "
            f"{self.eager:9.2e} {self.dtype[6:]:8} {self.elements:9} {self.draws:5} "
            f"{self.problem} [{self.place}] {self.kernels}"
        )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--random", type=int, default=500, help="models of tests/fuzz/programs.py")
    options.add_argument("--behind", type=int, default=300, help="reductions behind products")
    options.add_argument("--first", type=int, default=0, help="the first seed of both")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--arch", choices=("sm_80", "sm_90a"), default="sm_90a")
    options.add_argument("--full", action="store_true", help="no TF32 in cuDNN")
    options.add_argument(
        "--list", action="store_true", help="every result, not the exceptions only"
    )
    options.add_argument("--no-files", action="store_true", help="random problems only")
    options.add_argument("names", nargs="*")
    given = options.parse_args()
    start, rows, left_out = time.perf_counter(), list[Row](), list[str]()
    problems = list(drawn(given))
    count = TOGETHER[given.device]
    groups = [problems[k : k + count] for k in range(0, len(problems), count)]
    with tempfile.TemporaryDirectory() as folder:
        measured = on_cpu if given.device == "cpu" else on_cuda
        for found, missing in measured(groups, Path(folder), given):
            rows += found
            left_out += missing
            for row in found:
                if row.looks_less_exact or given.list:
                    print(row, flush=True)
    undecided = [r for r in rows if r.looks_less_exact and not r.less_exact]
    exceptions = [r for r in rows if r.less_exact]
    for what, these in (("still open", undecided), ("exceptions", exceptions)):
        if these:
            print(f"\n{what}:\n{HEAD}")
        for row in sorted(these, key=lambda r: -r.ratio):
            print(row)
    for text in left_out:
        print(f"left out: {text}")
    better = sum(r.ratio < 1 for r in rows)
    print(
        f"{len(problems)} problems, {len(rows)} results, {better} more exact than eager's, "
        f"{len(exceptions)} exceptions, {len(undecided)} still open, {len(left_out)} left out, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return 1 if exceptions else 0


def drawn(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Name and text of each problem."""
    from tests.fuzz.programs import program
    from tests.fuzz.reductions_behind import behind

    for folder in () if given.no_files else ("zoo", "examples"):
        for path in sorted((ROOT / folder).glob("*.py")):
            if not given.names or path.stem in given.names:
                yield path.stem, path.read_text(encoding="utf-8")
    large = given.device == "cuda"
    for kind, count in (("random", given.random), ("behind", given.behind)):
        seeds: Sequence[int] = range(given.first, given.first + count)
        if given.names:
            named = (name.partition("_") for name in given.names)
            seeds = [int(seed) for start, _, seed in named if start == kind and seed.isdigit()]
        for seed in seeds:
            text = program(seed, kind="plain") if kind == "random" else behind(seed, large=large)
            yield f"{kind}_{seed}", text


# ---- measuring -----------------------------------------------------------------------------------


class Left(Exception):
    """Why a problem cannot be measured."""


def rows_of(
    name: str, problem: Any, model: nn.Module, ours: nn.Module, text: str, device: str
) -> list[Row]:
    """The errors of every floating result, over as many draws as it takes."""
    import torch

    model = copy.deepcopy(model)
    torch.manual_seed(0)
    first = squares(ours, model, placed(problem.make_inputs(), device))
    rows = [_row(name, text, result, [result.three]) for result in first]
    if not any(r.looks_less_exact for r in rows):
        return rows

    def drawn_again(seed: int, looks: Sequence[int]) -> list[Row]:
        """The results of the draws from `seed` on, looked at after so many of them."""
        end, drawn, rows = time.monotonic() + SECONDS, [list[Three]() for _ in first], list[Row]()
        for draw in range(1, looks[-1] + 1):
            torch.manual_seed(seed + draw)
            state = problem.make_model().state_dict()
            model.load_state_dict(state)
            ours.load_state_dict(state)
            inputs = placed(problem.make_inputs(), device)
            for threes, result in zip(drawn, squares(ours, model, inputs, "cpu"), strict=True):
                threes.append(result.three)
            over = draw >= LOOKS[0] and time.monotonic() > end
            if draw in looks or over:
                rows = [_row(name, text, r, threes) for r, threes in zip(first, drawn, strict=True)]
                if over or not any(r.open for r in rows):
                    break
        return rows

    rows = drawn_again(0, LOOKS)
    if any(r.less_exact for r in rows):
        rows = drawn_again(LOOKS[-1], [4 * max(r.draws for r in rows)])
    return rows


def _row(name: str, text: str, result: Result, threes: Sequence[Three]) -> Row:
    a, b, c = (sum(three[k] for three in threes) for k in range(3))
    low, high = interval(threes)
    error, eager = _root(a, c), _root(b, c)
    of = (name, result.place, result.dtype, result.elements, error, eager, len(threes))
    return Row(*of, low, high, _kernels(text))


def interval(threes: Sequence[Three]) -> tuple[float, float]:
    """Where, with 95 % probability, the ratio of the errors lies of which these are draws."""
    n, a, b = len(threes), sum(t[0] for t in threes), sum(t[1] for t in threes)
    if n < 2 or not a or not b:
        return 0.0, math.inf
    squared = a / b
    spread = math.sqrt(n / (n - 1) * sum((t[0] - squared * t[1]) ** 2 for t in threes)) / b
    student = 1.96 + 2.37 / (n - 1) + 3.9 / (n - 1) ** 2
    wide = student * spread / (2 * squared)  # of the logarithm of the root
    return math.sqrt(squared) * math.exp(-wide), math.sqrt(squared) * math.exp(wide)


def _root(error: float, whole: float) -> float:
    return math.sqrt(error / whole) if whole else math.sqrt(error)


def placed(inputs: Sequence[object], device: str) -> list[object]:
    from torch.utils import _pytree as pytree

    moved: list[object] = pytree.tree_map_only(_tensor(), lambda t: t.to(device), list(inputs))
    return moved


def _tensor() -> type:
    import torch

    return torch.Tensor


def squares(
    ours: nn.Module, model: nn.Module, inputs: Sequence[object], truth_on: str = ""
) -> list[Result]:
    """Of each floating result: the squares of one draw. truth_on: where the float64 model runs, if
    not where the inputs are."""
    from tests.support.agreement import called, copied, moved

    found = called(ours, copied(inputs))
    eager = called(copy.deepcopy(model), copied(inputs))
    if truth_on:
        exact = in_double(copy.deepcopy(model).to(truth_on), moved(inputs, truth_on))
        exact = [x.to(b.device) for x, b in zip(exact, eager, strict=True)]
    else:
        exact = in_double(model, inputs)
    results = []
    for place, (a, b, x) in enumerate(zip(found, eager, exact, strict=True)):
        if str(b.dtype) in HALF and b.numel():
            finite = b.double().isfinite() & x.double().isfinite()
            a, b, x = (t.double()[finite] for t in (a, b, x))
            three = [float(v.square().sum()) for v in (a - x, b - x, x)]
            dtype = str(eager[place].dtype)
            of = (place, dtype, eager[place].numel())
            results.append(Result(*of, (three[0], three[1], three[2])))
    return results


def in_double(model: nn.Module, inputs: Sequence[object]) -> list[torch.Tensor]:
    """What the model says in float64: the judge's meaning of the types that it names."""
    import torch

    from fusewright.judge.evidence.float64_forward import InDouble
    from tests.support.agreement import called, copied, widened

    before, why = torch.get_default_dtype(), ""
    twin, given = copy.deepcopy(model).double(), widened(inputs)
    for halves_too in (False, True):
        torch.set_default_dtype(torch.float64)
        try:
            with InDouble(torch.float32, widened=halves_too):
                return called(copy.deepcopy(twin), copied(given))
        except RuntimeError as error:
            why = str(error).splitlines()[0]
        finally:
            torch.set_default_dtype(before)
    raise Left(f"no float64 twin: {why}")


def _kernels(text: str) -> str:
    """What an emitted file launches, and what it reduces."""
    launched = sorted(set(re.findall(r"return (?:fusewright::)?(run_\w+|\w+_sm\d+a?)\b", text)))
    reductions = sorted(set(re.findall(r"\bteam\.(\w+)[(<]", text)) - {"each"})
    return " ".join([*launched, "+", *reductions])


# ---- where it runs -------------------------------------------------------------------------------

Found = tuple[list[Row], list[str]]


def on_cpu(
    groups: list[list[tuple[str, str]]], folder: Path, given: argparse.Namespace
) -> Iterator[Found]:
    spawn = multiprocessing.get_context("spawn")
    # A process keeps what it has compiled, so it makes room for another one after some groups.
    with spawn.Pool(given.jobs, maxtasksperchild=6) as pool:
        tasks = [(k, group, folder) for k, group in enumerate(groups)]
        yield from pool.imap_unordered(_cpu_group, tasks)


def _cpu_group(task: tuple[int, list[tuple[str, str]], Path]) -> Found:
    import torch

    from fusewright.common.call_arguments import call
    from fusewright.errors import FusewrightError
    from tests.support.compiled import build, prepare

    torch.set_num_threads(1)
    number, group, parent = task
    folder = parent / str(number)
    folder.mkdir()
    cases, left_out, rows = [], list[str](), list[Row]()
    for name, text in group:
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        try:
            cases.append(prepare(path))
        except FusewrightError as error:
            left_out.append(f"{name}: {error}")
    for case, module in zip(cases, build(cases, folder, "-O2", 1), strict=True):
        torch.manual_seed(0)
        ours = call(module.ModelNew, case.problem.make_init_inputs())
        ours.load_state_dict(case.model.state_dict())
        try:
            rows += rows_of(case.name, case.problem, case.model, ours, case.text, "cpu")
        except Left as why:
            left_out.append(f"{case.name}: {why}")
    return rows, left_out


def on_cuda(
    groups: list[list[tuple[str, str]]], folder: Path, given: argparse.Namespace
) -> Iterator[Found]:
    import torch
    from fuzz_cuda import Task, _code, bound, compiled

    from fusewright.common.call_arguments import call
    from fusewright.common.problem_file import load_problem

    if given.full:
        torch.backends.cudnn.allow_tf32 = False
    code, names, tasks = _code(given.arch, here=True), dict[int, str](), []
    for k, group in enumerate(groups):
        numbers = range(k * TOGETHER["cuda"], k * TOGETHER["cuda"] + len(group))
        texts = {n: text for n, (_, text) in zip(numbers, group, strict=True)}
        names |= {n: name for n, (name, _) in zip(numbers, group, strict=True)}
        tasks.append(
            Task(tuple(numbers), True, given.arch, code, folder / f"group_{k}", True, texts)
        )
    for done in compiled(tasks, given.jobs):
        rows, left_out = list[Row](), [f"{names[n]}: {text}" for n, text in done.said.items()]
        for n in done.seeds:
            problem = load_problem(done.folder / f"random_{n}.py")
            emitted = (done.folder / f"emitted_{n}.py").read_text(encoding="utf-8")
            try:
                torch.manual_seed(0)
                model = problem.make_model().cuda()
                ours = call(bound(done.folder, n).ModelNew, problem.make_init_inputs()).cuda()
                ours.load_state_dict(model.state_dict())
                rows += rows_of(names[n], problem, model, ours, emitted, "cuda")
            except (Left, torch.OutOfMemoryError) as why:
                left_out.append(f"{names[n]}: {why}")
            torch.cuda.empty_cache()
        yield rows, left_out


if __name__ == "__main__":
    sys.exit(main())
