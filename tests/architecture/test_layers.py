"""The flow: packages import only from packages before them, and files form no cycle."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, Source, made_up

# The packages, lowest first, in the order in which data passes through them: a file imports only
# from its own package and from packages before it. `judge` is that low because it knows nothing of
# the compiler. The package itself is first, as Python loads it first: its exports are only looked
# up when a user asks for one.
LAYERS = (
    "__init__", "errors", "common", "judge", "ir", "targets", "frontend", "rewrite", "fusion",
    "loopnest", "codegen", "kernels", "emit", "build", "report", "profiling", "html_report", "tune",
    "compiler",
    "api", "backend", "suite", "arena", "mcp_server", "doctor", "cli",
    "__main__",
)  # fmt: skip
# Packages whose __init__ holds code; that of any other only says what the package is.
WITH_CODE = {"", "frontend/lowering", "judge"}


def layer(module: str) -> int:
    package = module.partition("/")[0]
    assert package in LAYERS, f"{module}.py is in no package of LAYERS"
    return LAYERS.index(package)


def forward_imports(source: Source) -> Iterator[str]:
    for module in source.modules():
        if module == "__init__":
            continue  # the exports, looked up when first used
        for line, name in source.imported(module):
            if layer(name) > layer(module):
                yield f"{module}.py:{line} imports {name}.py"


def sorted_files(source: Source) -> list[str]:
    """The files in an order in which none imports a later one; or raise CycleError."""
    modules = [m for m in source.modules() if m != "__init__"]
    needs = {m: {name for _, name in source.imported(m)} - {"__init__"} for m in modules}
    return [*graphlib.TopologicalSorter(needs).static_order()]


def test_imports_look_back() -> None:
    assert not list(forward_imports(Source()))


def test_files_form_no_cycle() -> None:
    """Inside a package files may stand in any order, if there is one."""
    sorted_files(Source())


def test_a_look_ahead_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "ir/graph": "from fusewright.errors import InternalError\n",
            "errors": "",
            "rewrite/simplify": "def f():\n    import fusewright.fusion.planner\n",
            "fusion/planner": "from fusewright.ir.graph import Node\n",
        },
    )
    assert [*forward_imports(source)] == ["rewrite/simplify.py:2 imports fusion/planner.py"]


def test_a_package_in_no_layer_is_found(tmp_path: Path) -> None:
    source = made_up(tmp_path, {"extras/more": "import fusewright.errors\n", "errors": ""})
    with pytest.raises(AssertionError, match=r"extras/more\.py is in no package of LAYERS"):
        list(forward_imports(source))


def test_a_cycle_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "ir/graph": "def f():\n    from fusewright.ir.specs import GemmSpec\n",
            "ir/specs": "from fusewright.ir.graph import Node\n",
        },
    )
    with pytest.raises(graphlib.CycleError):
        sorted_files(source)


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
    for module in Source().modules():
        package, _, name = f"/{module}".rpartition("/")
        if name == "__init__" and package.strip("/") not in WITH_CODE:
            tree = Source().tree(module)
            assert ast.get_docstring(tree), f"{module}.py does not say what the package is"
            assert len(tree.body) == 1, f"{module}.py holds code"


def test_only_users_import_the_exports() -> None:
    """Inside the package they would hide which file an import needs. `judge` is a package, too."""
    import fusewright

    for module in Source().modules():
        for n in ast.walk(Source().tree(module)):
            if isinstance(n, ast.ImportFrom) and n.module == "fusewright":
                used = {alias.name for alias in n.names} & set(fusewright.__all__) - {"judge"}
                assert not used, f"{module}.py:{n.lineno} imports an export: {sorted(used)}"


def test_unknown_name() -> None:
    import fusewright

    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        fusewright.optimise  # noqa: B018
    assert {"judge", "load_problem", "optimize"} <= set(dir(fusewright))
    assert fusewright.load_problem.__module__ == "fusewright.common.problem_file"
