"""The flow: packages import only from packages before them; what must be cheap needs no PyTorch."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

from fusewright.codegen.device_library import DeviceSection, cut
from fusewright.targets.device_files import DEVICE_FILES

CALLS = "devicelib/python/calls.h"  # of the emitted file's Python, not of its kernels
PACKAGE = Path(__file__).resolve().parents[2] / "fusewright"

# The packages, lowest first, in the order in which data passes through them: a file imports only
# from its own package and from packages before it. `judge` is that low because it knows nothing of
# the compiler. The package itself is first, as Python loads it first: its exports are only looked
# up when a user asks for one.
LAYERS = (
    "__init__", "errors", "common", "judge", "ir", "targets", "frontend", "rewrite", "fusion",
    "loopnest", "codegen", "kernels", "emit", "build", "report", "tune", "compiler", "suite", "cli",
    "__main__",
)  # fmt: skip
# Packages whose __init__ holds code; that of any other only says what the package is.
WITH_CODE = {"", "frontend/lowering", "judge"}
# Where sections of the device library lie, in the order in which they may need each other.
FAMILIES = (
    "devicelib", "tensor_core", "pointwise", "rowwise", "scan", "gemm", "conv", "attention",
)  # fmt: skip
# Sections that still need one of a later family: they keep their place in emitted files.
SECTIONS_AHEAD = {("scan_abreast", "scan"), ("tensor_map", "factor")}
# Names of GPU generations, which only `targets/` and the rows of kernels' variants may ask for.
GENERATION = re.compile(r"(?<![a-z])(?:sm_?\d\d|hopper|ampere|blackwell)", re.IGNORECASE)
# Files that may read environment variables, with the reason. Options are passed down to all others.
ENVIRONMENT = {
    "build/fused_module": "it looks for compiler and ninja where load_inline will: PATH and CXX",
    "common/devices": "CUDA_VISIBLE_DEVICES says which GPUs the caller means",
    "suite/process_runner": "it names a run's GPU before the run starts CUDA",
    "judge/isolation/fork_server": "it writes a worker's mark over its own, which /proc shows",
    "judge/isolation/worker_pool": "a worker's environment is a named few of ours",
    "judge/isolation/library_paths": "PYTHONPATH and PATH say where packages and compilers are",
}
# Functions that find something in a text -> files that may call them, with the reason. What we
# wrote ourselves is passed on as a record; what others wrote, and C++, has to be read.
READERS = {"ast": {"parse", "literal_eval"}, "re": None, "tokenize": None}  # None: all of them
TEXT_IS_READ = {
    "common/problem_file": "the user's file and the values of --set",
    "frontend/export": "messages of PyTorch",
    "frontend/refusals": "messages of PyTorch",
    "frontend/side_effects": "the user's functions: the line that changes something",
    "frontend/understood_functions": "the user's functions",
    "codegen/body": "words of a kernel choose the names that it declares",
    "codegen/dead_code": "the device library: definitions that no kernel reaches",
    "codegen/kernel_text": "words of a kernel choose sections of the device library",
    "emit/formatter": "a statement is spelt as `ruff format` would",
    "emit/guard_values": "which texts are names; the name of the user's class",
    "emit/model_source": "the user's file",
    "emit/python_text": "characters that no name has",
    "judge/evidence/legal_inputs": "messages of PyTorch",
    "judge/isolation/tensor_transport": "the name of the candidate's class",
    "judge/sanitizer": "what compute-sanitizer prints",
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
            # What is imported from a package may be a file or something in its __init__.
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


def layer(module: str) -> int:
    package = module.partition("/")[0]
    assert package in LAYERS, f"{module}.py is in no package of LAYERS"
    return LAYERS.index(package)


@pytest.mark.parametrize("module", modules())
def test_imports_look_back(module: str) -> None:
    if module == "__init__":
        return  # the exports, looked up when first used
    for line, name in imported(module):
        back = layer(name) <= layer(module)
        assert back, f"{module}.py:{line} imports {name}.py, whose package does not come before it"


def test_files_form_no_cycle() -> None:
    """Inside a package files may stand in any order, if there is one."""
    needs = {m: {name for _, name in imported(m)} for m in modules() if m != "__init__"}
    for module in needs:
        needs[module].discard("__init__")
    graphlib.TopologicalSorter(needs).prepare()


@pytest.mark.parametrize("language", DEVICE_FILES)
def test_sections_need_earlier_families(language: str) -> None:
    family = {
        section.name: FAMILIES.index("devicelib" if place[0] == "devicelib" else place[1])
        for place, section in placed(language)
    }
    ahead = {
        (section.name, need)
        for _, section in placed(language)
        for need in section.needs
        if family[need] > family[section.name]
    }
    assert ahead <= SECTIONS_AHEAD


def placed(language: str) -> Iterator[tuple[list[str], DeviceSection]]:
    """Every section, with the folders of its file."""
    for name in DEVICE_FILES[language]:
        for section in cut((PACKAGE / name).read_text(encoding="utf-8")):
            yield name.split("/"), section


def test_every_device_file_is_in_the_library() -> None:
    there = {p.relative_to(PACKAGE).as_posix() for s in ("*.cuh", "*.h") for p in PACKAGE.rglob(s)}
    assert there == {name for names in DEVICE_FILES.values() for name in names} | {CALLS}


def test_programs_in_texts_import_what_there_is() -> None:
    """Imports in strings, too: programs of tests, examples of docs."""
    root = PACKAGE.parent
    texts = [*root.glob("*.md"), *(p for d in ("bench", "docs", "tests", "tools")
             for s in ("*.py", "*.md") for p in (root / d).rglob(s)
             if "corpus" not in p.parts)]  # fmt: skip
    asked = re.compile(r"from (fusewright[\w.]*) import ((?:\w+(?: as \w+)?(?:, )?)+)")
    missing = []
    for path in texts:
        for module, names in asked.findall(path.read_text(encoding="utf-8")):
            for name in names.split(", "):
                name = name.split(" ")[0]
                if name and name not in defined(module):
                    missing.append(f"{path.name}: from {module} import {name}")
    assert not missing


@cache
def defined(module: str) -> frozenset[str]:
    """Names at the top level of a module, and what lies in a package."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    inside = {p.stem for p in path.glob("*")}
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return frozenset(names | inside | {a.asname or a.name for n in imports for a in n.names})


def test_the_package_knows_where_it_lies() -> None:
    """Frames of ours are told from the user's, workers started and suites keyed by this folder."""
    from fusewright.common.package import PACKAGE as found

    assert found.resolve() == PACKAGE


def test_packages_hold_no_code_of_their_own() -> None:
    for module in modules():
        package, _, name = f"/{module}".rpartition("/")
        if name == "__init__" and package.strip("/") not in WITH_CODE:
            tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
            assert ast.get_docstring(tree), f"{module}.py does not say what the package is"
            assert len(tree.body) == 1, f"{module}.py holds code"


def test_only_users_import_the_exports() -> None:
    """Inside the package they would hide which file an import needs. `judge` is a package, too."""
    import fusewright

    for module in modules():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        for n in ast.walk(tree):
            if isinstance(n, ast.ImportFrom) and n.module == "fusewright":
                used = {alias.name for alias in n.names} & set(fusewright.__all__) - {"judge"}
                assert not used, f"{module}.py:{n.lineno} imports an export: {sorted(used)}"


@pytest.mark.parametrize(
    "statement",
    [
        "import fusewright",
        "import fusewright.common.problem_file",
        "import fusewright.report.run_report",
        "import fusewright.cli.main",
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
    assert fusewright.load_problem.__module__ == "fusewright.common.problem_file"


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


def generations(source: str) -> list[str]:
    """The GPU generations that a program names, in its comments and docstrings apart."""
    tree = ast.parse(source)
    for n in ast.walk(tree):
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant):
            n.value = ast.Constant(None)
    return GENERATION.findall(ast.unparse(tree))


@pytest.mark.parametrize("module", modules())
def test_gpu_generations_stay_in_their_rooms(module: str) -> None:
    """Elsewhere a capability is asked for, so that a new GPU is a row and no search."""
    package, _, name = module.rpartition("/")
    if package != "targets" and not (package.startswith("kernels/") and name == "variants"):
        named = generations((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        assert not named, f"{module}.py names {named}: ask the architecture what it can do"


def test_a_generation_is_found_in_code_only() -> None:
    source = '"""Of Hopper."""\nAMPERE_RATE = 1  # of sm_80\n'
    source += 'if target.product != "sm90":\n    tamper()\n'
    assert generations(source) == ["AMPERE", "sm90"]


def test_who_reads_text() -> None:
    readers = {}
    for module in modules():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        for n in ast.walk(tree):
            if reads_text(n):
                readers[module] = f"{module}.py:{n.lineno}"
    unlisted = [place for module, place in readers.items() if module not in TEXT_IS_READ]
    assert not unlisted, "these look for something in a text; a record would say it"
    assert TEXT_IS_READ.keys() == readers.keys(), "a file is listed in TEXT_IS_READ without need"


def reads_text(n: ast.AST) -> TypeGuard[ast.Attribute | ast.ImportFrom]:
    """Whether something is asked of a module of READERS by name, or imported from it."""
    if isinstance(n, ast.ImportFrom):
        named = READERS.get(n.module or "", set())
        return named is None or any(alias.name in named for alias in n.names)
    if not isinstance(n, ast.Attribute) or not isinstance(n.value, ast.Name):
        return False
    named = READERS.get(n.value.id, set())
    return named is None or n.attr in named


def test_the_judge_is_a_package_that_can_be_called() -> None:
    import fusewright

    assert callable(fusewright.judge)
