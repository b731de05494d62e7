"""Random models on a GPU against float64: how many agree, and the text of each that does not.

python bench/fuzz_cuda.py [--models 500] [--first 0] [--large] [--arch sm_90a|sm_80] [--jobs N]

Needs an NVIDIA GPU, nvcc and torch; with --compile-only, which asks whether nvcc takes every text,
no GPU. The texts of several models are one compilation, and while one process measures, N others
write and compile. Each model runs as drawn, on special values, and on other batch sizes. A process
whose GPU has failed, or that hangs, is replaced; the model at fault counts as wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

TOGETHER = 8  # models per compilation
PATIENCE = 120.0  # seconds for one model
# Arguments behind the addresses: the batch size, the device, the stream.
BEHIND = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Group:
    """Models whose kernels are one library.

    seeds: those that have an emitted file.  said: what went wrong before anything ran, by seed.
    outcomes: how many are taken in parts, or are no models.  launchers: how often each function of
    the skeletons starts a kernel.
    """

    folder: Path
    seeds: tuple[int, ...]
    said: dict[int, str]
    outcomes: dict[str, int]
    launchers: dict[str, int]


@dataclass(frozen=True)
class Task:
    """Which models, and what for. code: what follows nvcc's -gencode.

    texts: of each seed, where they are not random.
    """

    seeds: tuple[int, ...]
    large: bool
    arch: str
    code: str
    folder: Path
    measured: bool
    texts: Mapping[int, str] = field(default_factory=dict)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=int, default=500)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--large", action="store_true", help="shapes of millions of elements")
    options.add_argument("--arch", choices=("sm_80", "sm_90a"), default="sm_90a")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--compile-only", action="store_true")
    given = options.parse_args()
    code = _code(given.arch, here=not given.compile_only)
    start, wrong, done = time.perf_counter(), 0, 0
    launchers, outcomes = Counter[str](), Counter[str]()
    every = range(given.first, given.first + given.models)
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(tuple(every[k : k + TOGETHER]), given.large, given.arch, code,
                 Path(folder) / f"group_{k}", not given.compile_only)
            for k in range(0, len(every), TOGETHER)
        ]  # fmt: skip
        gpu = None if given.compile_only else Measuring()
        for group in compiled(tasks, given.jobs):
            said = group.said | (gpu.judged(group) if gpu else {})
            for seed, text in said.items():
                problem = (group.folder / f"random_{seed}.py").read_text(encoding="utf-8")
                print(f"seed {seed}: {text}\n{problem}", flush=True)
            launchers.update(group.launchers)
            outcomes.update(group.outcomes)
            wrong, done = wrong + len(said), done + len({*group.seeds, *group.said})
            done += group.outcomes["of no model"]
            print(f"{done} models, {wrong} wrong, {time.perf_counter() - start:.0f} s", flush=True)
        if gpu:
            gpu.close()
            print(", ".join(f"{count} {what}" for what, count in gpu.counts.items()))
    print(", ".join(f"{count} {what}" for what, count in outcomes.items()))
    print(", ".join(f"{count} {name}" for name, count in sorted(launchers.items())))
    return 1 if wrong else 0


def _code(arch: str, *, here: bool) -> str:
    """What follows -gencode: code for the GPU that is here, so that no driver has to compile."""
    if arch == "sm_90a" or not here:
        return f"arch=compute_{arch[3:]},code={arch}"
    asked = "import torch; print(*torch.cuda.get_device_capability(), sep='')"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    if found.returncode:
        sys.exit("bench/fuzz_cuda.py finds no CUDA GPU to run on: --compile-only needs none.")
    return f"arch=compute_80,code=sm_{found.stdout.strip()}"


# ---- writing and compiling, in processes that see no GPU -----------------------------------------


def compiled(tasks: Sequence[Task], jobs: int) -> Iterator[Group]:
    """The groups, each as soon as it is compiled."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_blind) as pool:
        for running in as_completed([pool.submit(written, task) for task in tasks]):
            yield running.result()


def _blind() -> None:
    """Models are captured on the CPU, a thread for each process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)


def written(task: Task) -> Group:
    """Emitted files, and one library with all their kernels."""
    from tests.fuzz.judged import prepared, refusal
    from tests.fuzz.programs import program
    from tests.support.compiled import prepare, renamed

    task.folder.mkdir()
    said: dict[int, str] = {}
    texts: dict[int, str] = {}
    outcomes = Counter({"in parts": 0, "of no model": 0})
    for seed in task.seeds:
        path = task.folder / f"random_{seed}.py"
        text = task.texts.get(seed) or program(seed, large=task.large)
        path.write_text(text, encoding="utf-8")
        try:
            if seed in task.texts:
                case, why = prepare(path, target=task.arch), ""
            else:
                case, why = prepared(path, task.arch)
        except Exception as error:  # noqa: BLE001 -- whatever it is, this model is wrong
            outcome, text = refusal(error)
            if outcome == "wrong":
                said[seed] = text
            else:
                outcomes[outcome] += 1
            continue
        texts[seed] = case.text
        outcomes["in parts"] += bool(why)
        (task.folder / f"emitted_{seed}.py").write_text(texts[seed], encoding="utf-8")
    kernels = {seed: renamed(text, f"m{seed}") for seed, text in texts.items()}
    refused = _library(task, kernels)
    for seed in kernels if refused else ():  # which of them is it?
        if alone := _library(task, {seed: kernels[seed]}, f"alone_{seed}"):
            said[seed] = f"nvcc refuses: {alone}"
    entries = re.findall(r'^extern "C" int m.*?^}', "\n".join(kernels.values()), re.M | re.S)
    launchers = Counter(n for entry in entries for n in set(re.findall(r"return (\w+)<", entry)))
    seeds = () if refused else tuple(kernels)
    return Group(task.folder, seeds, said, dict(outcomes), dict(launchers))


def _library(task: Task, kernels: dict[int, str], name: str = "kernels") -> str:
    """Compile as emitted files are, but for the architecture; what nvcc says where it refuses."""
    from fusewright.targets.compile_flags import CUDA_FLAGS

    source = task.folder / f"{name}.cu"
    source.write_text("\n".join(kernels.values()), encoding="utf-8")
    kind = ["-shared", "-Xcompiler", "-fPIC"] if task.measured else ["-cubin"]
    done = subprocess.run(
        ["nvcc", *CUDA_FLAGS, f"-gencode={task.code}", *kind,
         "-o", str(source.with_suffix(".so")), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr[:3000] if done.returncode else ""


# ---- running, in a process that may die ----------------------------------------------------------


class Measuring:
    """A process with the GPU, and a new one after each that failed."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def judged(self, group: Group) -> dict[int, str]:
        """What is wrong with each model that is."""
        wrong: dict[int, str] = {}
        for seed in group.seeds:
            found, counts = self._asked(group.folder, seed)
            self.counts.update(counts)
            if found:
                wrong[seed] = found
        return wrong

    def _asked(self, folder: Path, seed: int) -> tuple[str, dict[str, int]]:
        try:
            self.pipe.send((folder, seed))
            if self.pipe.poll(PATIENCE):
                found, counts, alive = self.pipe.recv()
                if not alive:
                    self._again()
                return found, counts
            said = f"no answer in {PATIENCE:.0f} s"
        except (EOFError, OSError):
            said = "the process died"
        self._again()
        return said, {}

    def _again(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any) -> None:
    """Answer: what is wrong, counts, and whether the GPU still works."""
    import torch

    while True:
        folder, seed = pipe.recv()
        counts, alive = Counter[str](), True
        try:
            found = _judged(folder, seed, counts)
        except Exception as error:  # noqa: BLE001
            found = f"{type(error).__name__}: {error}"
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                alive = False
        torch.cuda.empty_cache() if alive else None
        pipe.send((found, dict(counts), alive))


def _judged(folder: Path, seed: int, counts: Counter[str]) -> str:
    """What is wrong with one model: as drawn, on special values, on other batch sizes."""
    import torch

    from fusewright.common.problem_file import load_problem
    from tests.fuzz.judged import judged
    from tests.support.agreement import moved

    problem = load_problem(folder / f"random_{seed}.py")
    torch.manual_seed(0)
    theirs = problem.make_model().cuda()
    drawn = moved(problem.make_inputs(), "cuda")
    return judged(bound(folder, seed), problem, theirs, drawn, seed, counts, "cuda")


def bound(folder: Path, seed: int) -> ModuleType:
    """The emitted file of a seed; its kernels come from the group's library."""
    from tests.support.compiled import imported

    module = imported(folder / f"emitted_{seed}.py")
    table = getattr(module, "_FUSEWRIGHT_KERNELS", {})
    library = ctypes.CDLL(str(folder / "kernels.so")) if table else None
    for kernel, pointers in table.items():
        function = getattr(library, f"m{seed}_run_{kernel}")
        function.argtypes = [*[ctypes.c_void_p] * pointers, *BEHIND]
        module._FUSEWRIGHT_FUNCTIONS[kernel] = _checked(kernel, function)
    return module


def _checked(kernel: str, function: Callable[..., int]) -> Callable[..., None]:
    def call(*arguments: int) -> None:
        if error := function(*arguments):
            raise RuntimeError(f"{kernel} failed with CUDA error {error}.")

    return call


if __name__ == "__main__":
    sys.exit(main())
