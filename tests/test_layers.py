"""The flow: a file imports only from files before it, and what must be cheap needs no PyTorch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fusewright"

# The picture of docs/design.md, as a list. A new file is placed here, once. The package itself is
# first, as Python loads it first: its exports are only looked up when a user asks for one.
FLOW = [
    "__init__",
    "errors", "write", "progress", "turn", "devices", "containers", "calling", "problem", "target",
    "dtypes", "ops", "ir", "interpret", "formula", "scalars", "composite",
    "lower/call", "lower/pointwise", "lower/folds", "lower/norms", "lower/views", "lower/__init__",
    "library", "refusals", "masks", "fakes", "exponents", "unwatched", "default_device", "fastpath",
    "carried", "positions", "flat", "untouched", "places",
    "strides", "export", "effects", "reads", "settings", "spelling", "submodules", "capture",
    "understood", "sketch",
    "rules", "rewrite",
    "part", "loops", "einsum", "form", "product", "diagonal", "attention", "scan", "phases", "last",
    "geometry", "waste", "cells", "pixels", "depthwise", "convolution", "window", "pieces",
    "loss", "late", "pooled", "masked", "through", "joint", "once",
    "bits", "halves", "pages", "stages",
    "rounding", "family",
    "tile", "plan", "counters", "band", "down", "nest", "abreast", "storage", "keep", "light",
    "shared", "chunks", "staging", "waves", "schedule",
    "codegen/__init__", "codegen/number", "codegen/struct", "codegen/body",
    "codegen/skeleton", "codegen/prune", "codegen/cpp",
    "codegen/attention", "codegen/product", "codegen/cuda",
    "codegen/quick", "codegen/runtime",
    "scope", "guard", "forward", "emit", "build", "need",
    "judge/findings", "judge/tree", "judge/twins",
    "judge/ties", "judge/legal", "judge/doubles", "judge/measure",
    "judge/contract", "judge/positions", "judge/zeros", "judge/elsewhere",
    "judge/changes", "judge/cases", "judge/patterns",
    "judge/probes", "judge/statistics", "judge/clock_rules",
    "judge/canary",
    "judge/beside",
    "judge/protocol", "judge/slot", "judge/pinned", "judge/layout", "judge/attributes",
    "judge/sandbox", "judge/warden",
    "judge/nursery", "judge/holding", "judge/reuse", "judge/own_code",
    "judge/state_of_process", "judge/state_of_torch", "judge/breath", "judge/candidate",
    "judge/costs", "judge/outlook", "judge/observer", "judge/states", "judge/room", "judge/counts",
    "judge/floor", "judge/fragile", "judge/draws",
    "judge/alike", "judge/expected",
    "judge/lab", "judge/trial", "judge/weights", "judge/experiments",
    "judge/probing", "judge/gradients", "judge/hazards", "judge/timed",
    "judge/catalogue", "judge/reference",
    "judge/libraries",
    "judge/processes", "judge/site", "judge/shortage", "judge/session", "judge/timing",
    "judge/environment",
    "judge/sanitizer",
    "judge/judging", "judge/__init__", "warm",
    "workbench", "choices", "memory", "pairs", "tune",
    "report", "explain", "header", "pipeline",
    "arguments", "result", "store", "launch", "batch", "summary", "suite",
    "cli", "__main__",
]  # fmt: skip
# Files that may read environment variables, with the reason. Options are passed down to all others.
ENVIRONMENT = {
    "build": "it looks for the compiler and for ninja where load_inline will: PATH and CXX",
    "devices": "CUDA_VISIBLE_DEVICES says which GPUs the caller means",
    "launch": "it names a run's GPU before the run starts CUDA",
    "judge/nursery": "it writes a worker's mark over its own, where the kernel shows it to others",
    "judge/site": "a worker's environment is made from nothing but a named few of ours",
    "judge/libraries": "PYTHONPATH and PATH say where the caller's packages and compilers are",
}


def modules() -> list[str]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [p.relative_to(PACKAGE).with_suffix("").as_posix() for p in paths]


def imported(module: str) -> Iterator[tuple[int, str]]:
    """Line and target of every import from the package, also inside functions and for types."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            names = [alias.name for alias in n.names]
        elif isinstance(n, ast.ImportFrom):
            # `from fusewright.judge import sandbox` may name a file or something in __init__.
            names = [f"{n.module}.{alias.name}" for alias in n.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "fusewright":
                yield n.lineno, resolve(name.split(".")[1:])


def resolve(parts: list[str]) -> str:
    while parts and not (PACKAGE / f"{'/'.join(parts)}.py").is_file():
        if (PACKAGE.joinpath(*parts) / "__init__.py").is_file():
            return "/".join([*parts, "__init__"])
        parts = parts[:-1]
    return "/".join(parts) or "__init__"


@pytest.mark.parametrize("module", modules())
def test_imports_look_back(module: str) -> None:
    assert module in FLOW, f"{module}.py has no place in FLOW (tests/test_layers.py)"
    if module == "__init__":
        return  # the exports, looked up when first used
    for line, name in imported(module):
        later = name not in FLOW[: FLOW.index(module)]
        assert not later, f"{module}.py:{line} imports {name}.py, which does not come before it"


def test_only_users_import_the_exports() -> None:
    """Inside the package they would hide which file an import needs. `judge` is a package, too."""
    import fusewright

    for module in modules():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        for n in ast.walk(tree):
            if isinstance(n, ast.ImportFrom) and n.module == "fusewright":
                used = {alias.name for alias in n.names} & set(fusewright.__all__) - {"judge"}
                assert not used, f"{module}.py:{n.lineno} imports an export: {sorted(used)}"


def test_the_flow_names_every_file_once() -> None:
    assert sorted(FLOW) == sorted(modules())


@pytest.mark.parametrize(
    "statement",
    [
        "import fusewright",
        "import fusewright.problem",
        "import fusewright.report",
        "import fusewright.cli",
        "import fusewright.judge.findings",
        "from fusewright import Verdict",
    ],
)
def test_import_is_cheap(statement: str) -> None:
    """PyTorch takes seconds to import, and the parent of a judgement must never hold it."""
    check = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_unknown_name() -> None:
    import fusewright

    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        fusewright.optimise  # noqa: B018
    assert {"judge", "load_problem", "optimize"} <= set(dir(fusewright))
    assert fusewright.load_problem.__module__ == "fusewright.problem"


def test_who_reads_the_environment() -> None:
    readers = {}
    for module in modules():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
        writes = {id(n.value) for n in attributes if n.attr in ("update", "clear")}
        for n in attributes:
            if n.attr in ("environ", "getenv") and id(n) not in writes:
                readers[module] = f"{module}.py:{n.lineno}"
    unlisted = [place for module, place in readers.items() if module not in ENVIRONMENT]
    assert not unlisted, "these read the environment"
    assert ENVIRONMENT.keys() == readers.keys(), "a file is listed in ENVIRONMENT without need"


def test_the_judge_is_a_package_that_can_be_called() -> None:
    import fusewright

    assert callable(fusewright.judge)
