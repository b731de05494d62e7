"""Many emitted files, one compilation: what the tests of whole models share.

An emitted file compiles its own kernels at the first call, about a second each. Here the C++ of
many files goes into one library, every file in a namespace of its own, and each imported file is
handed its part of the library. Everything else of the file runs as a user would run it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fusewright.common.problem_file import Problem, load_problem
from fusewright.compiler import pipeline
from fusewright.compiler.compilation import NO_RULES, make
from fusewright.compiler.pipeline import emitted_text
from fusewright.frontend.asked_size import NOTHING_ASKED, Wanted, asked_sizes
from fusewright.frontend.example_arguments import Example
from fusewright.targets.compile_flags import CPP_FLAGS
from fusewright.targets.target import TARGETS
from tests.support.emitting import compiled_text

HEADERS = "#include <omp.h>\n#include <stdlib.h>\n#include <sys/mman.h>\n"
_numbers = itertools.count()  # a library that is loaded twice must have two names
# As emitted files are built, but for the level, which each test chooses, and the machine.
FLAGS = ["-march=native", *(flag for flag in CPP_FLAGS if not flag.startswith(("-O", "-mtune")))]


@dataclass(frozen=True)
class Case:
    """One problem, its reference model on one set of inputs, and everything made for it."""

    problem: Problem
    model: torch.nn.Module
    inputs: list[object]
    made: Any  # Made, or what came of the parts: both have kernels
    text: str

    @property
    def name(self) -> str:
        return self.problem.path.stem


def prepare(
    path: Path, seed: int = 0, target: str = "cpu", dynamic: Wanted = NOTHING_ASKED
) -> Case:
    """Load a problem, and make its kernels for a target."""
    problem = load_problem(path)
    torch.manual_seed(seed)
    model, inputs = problem.make_model(), problem.make_inputs()
    made = make(model, inputs, TARGETS[target], asked=asked_sizes(model, inputs, dynamic))
    text = emitted_text(made, model, problem)
    return Case(problem, model, inputs, made, text)


def prepare_as_optimize(path: Path, seed: int = 0, target: str = "cpu") -> tuple[Case, str]:
    """The same, but what cannot be captured as a whole is taken in parts; then with the reason,
    else ""."""
    problem = load_problem(path)
    torch.manual_seed(seed)
    model, inputs = problem.make_model(), problem.make_inputs()
    machine, given = TARGETS[target], Example(inputs, drawn=True)
    file = pipeline._file(
        problem, model, given, machine, "eager", NO_RULES, pipeline._as_planned, pipeline._quiet
    )
    left: Any = file.parts["left"] if file.parts else ()
    return Case(problem, model, inputs, file, file.text), left[0]["why"] if left else ""


def build(
    cases: Sequence[Case], folder: Path, optimise: str = "-Og", processors: int = 2
) -> list[ModuleType]:
    """Import the emitted files of `cases`; their kernels come from one library per processor.

    -Og compiles in 0.4 of the time of -O1, which does not look at aliases either.
    """
    parts = [cases[k::processors] for k in range(processors) if cases[k::processors]]
    with ThreadPoolExecutor(len(parts) or 1) as pool:
        numbers = range(len(parts))
        libraries = list(
            pool.map(
                lambda k: _compile(parts[k], folder / f"part{next(_numbers)}", optimise), numbers
            )
        )
    modules = {}
    for part, library in zip(parts, libraries, strict=True):
        for k, case in enumerate(part):
            modules[id(case)] = _imported(case, folder, library, f"m{k}_")
    return [modules[id(case)] for case in cases]


def _compile(cases: Sequence[Case], stem: Path, optimise: str) -> ctypes.CDLL:
    texts = [renamed(case.text, f"m{k}") for k, case in enumerate(cases)]
    source = stem.with_suffix(".cpp")
    source.write_text("\n".join([HEADERS, *texts]), encoding="utf-8")
    library = stem.with_suffix(".so")
    command = ["g++", optimise, *FLAGS, "-shared", "-fPIC", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{source}: {done.stderr[:3000]}"
    return ctypes.CDLL(str(library))


def renamed(text: str, name: str) -> str:
    """The kernels of an emitted file in a namespace of their own, with entries of their own."""
    text = re.sub(r'(extern "C" \w+ )run_', rf"\1{name}_run_", compiled_text(text))
    return text.replace("namespace fusewright {", f"namespace {name} {{")


def _imported(case: Case, folder: Path, library: ctypes.CDLL, prefix: str) -> ModuleType:
    path = folder / f"{case.name}_{prefix}emitted.py"
    path.write_text(case.text, encoding="utf-8")
    module = imported(path)
    for kernel, pointers in getattr(module, "_FUSEWRIGHT_KERNELS", {}).items():
        function = getattr(library, f"{prefix}run_{kernel}")
        taken = re.search(rf'^extern "C" void run_{kernel}\((.*)\) {{$', case.text, re.M)
        assert taken is not None, f"{kernel} has no entry"
        numbers = taken[1].count("long ")  # the free sizes, and the number of threads
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_long] * numbers
        function.restype = None
        module._FUSEWRIGHT_FUNCTIONS[kernel] = function
    return module


def imported(path: Path) -> ModuleType:
    """An emitted file as a module; nothing is built."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ready(new: torch.nn.Module, inputs: Sequence[object]) -> bool:
    """Whether the guard, if there is one, lets these inputs go to the kernels."""
    called: list[object] = []
    kind: Any = type(new)
    if not hasattr(kind, "reference_forward"):
        return True
    reference = kind.reference_forward

    def watched(*arguments: object, **more: object) -> object:
        called.append(arguments)
        return reference(*arguments, **more)

    kind.reference_forward = watched
    new(*inputs)
    kind.reference_forward = reference
    return not called
