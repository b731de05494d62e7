"""Who may read the environment, and who may look for something in a text: files with a reason."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.source import Source, made_up

# Files that may read environment variables, with the reason. Options are passed down to all others.
ENVIRONMENT = {
    "build/compilers": "it looks where load_inline will: PATH, CXX, TORCH_EXTENSIONS_DIR",
    "common/devices": "CUDA_VISIBLE_DEVICES says which GPUs the caller means",
    "suite/process_runner": "it names a run's GPU before the run starts CUDA",
    "suite/node_run": "a run gets it, without what Ray sets for its workers",
    "judge/isolation/fork_server": "it writes a worker's mark over its own, which /proc shows",
    "judge/isolation/worker_pool": "a worker's environment is a named few of ours",
    "judge/isolation/library_paths": "PYTHONPATH and PATH say where packages and compilers are",
    "profiling/worker": "TORCH_EXTENSIONS_DIR is where the extensions of a process lie",
    "mcp_server/limited_run": "a command gets it, with a TMPDIR of its own",
}
# Functions that find something in a text -> files that may call them, with the reason. What we
# wrote ourselves is passed on as a record; what others wrote, and C++, has to be read.
READERS = {"ast": {"parse", "literal_eval"}, "re": None, "tokenize": None}  # None: all of them
TEXT_IS_READ = {
    "common/problem_file": "the user's file and the values of --set",
    "frontend/assigned_variables": "the user's file: what results are called there",
    "frontend/export": "messages of PyTorch",
    "frontend/refusals": "messages of PyTorch",
    "frontend/side_effects": "the user's functions: the line that changes something",
    "frontend/understood_functions": "the user's functions",
    "codegen/body": "words of a kernel choose the names that it declares",
    "codegen/constant_value": "the device library: what its constants come to",
    "codegen/cxx_code": "the device library: its words",
    "codegen/dead_code": "the device library: definitions that no kernel reaches",
    "codegen/kernel_symbols": "the names that operators are spelt with",
    "codegen/kernel_text": "words of a kernel choose sections of the device library",
    "codegen/library_units": "the device library: types whose names end in their kind",
    "emit/blocks": "where the variables of a statement, which are on record, stand in its text",
    "emit/formatter": "a statement is spelt as `ruff format` would",
    "emit/guard_values": "which texts are names",
    "emit/model_source": "the user's file",
    "emit/python_text": "characters that no name has",
    "api/names": "which of the user's classes an emitted text names, as a file imports these",
    "report/kernel_notes": "an emitted file, all that `show` has of what was decided",
    "profiling/recorded": "names of events, as PyTorch's profiler writes them",
    "profiling/rows": "names of kernels, as a compiler spells them",
    "judge/evidence/legal_inputs": "messages of PyTorch",
    "judge/isolation/tensor_transport": "the name of the candidate's class",
    "judge/sanitizer": "what compute-sanitizer prints",
}


def readers(source: Source, reads: Callable[[ast.Module], list[int]]) -> dict[str, str]:
    """The modules that read something, and where they do last."""
    found = {module: reads(source.tree(module)) for module in source.modules()}
    return {module: f"{module}.py:{lines[-1]}" for module, lines in found.items() if lines}


def reads_environment(tree: ast.Module) -> list[int]:
    attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    writes = {id(n.value) for n in attributes if n.attr in ("update", "clear")}
    asked = [n for n in attributes if n.attr in ("environ", "getenv") and id(n) not in writes]
    return [n.lineno for n in asked]


def reads_text(tree: ast.Module) -> list[int]:
    """Where something is asked of a module of READERS by name, or imported from it."""
    lines = []
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            named = READERS.get(n.module or "", set())
            if named is None or any(alias.name in named for alias in n.names):
                lines.append(n.lineno)
        elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):
            named = READERS.get(n.value.id, set())
            if named is None or n.attr in named:
                lines.append(n.lineno)
    return lines


def unlisted(found: Mapping[str, str], listed: Mapping[str, str]) -> list[str]:
    return [place for module, place in found.items() if module not in listed]


def test_who_reads_the_environment() -> None:
    found = readers(Source(), reads_environment)
    assert not unlisted(found, ENVIRONMENT), "these read the environment"
    assert ENVIRONMENT.keys() == found.keys(), "a file is listed in ENVIRONMENT without need"


def test_who_reads_text() -> None:
    found = readers(Source(), reads_text)
    assert not unlisted(found, TEXT_IS_READ), "a record would say what these look for in a text"
    assert TEXT_IS_READ.keys() == found.keys(), "a file is listed in TEXT_IS_READ without need"


def test_a_reader_of_the_environment_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "common/package": "import os\nNAME = 1\n",
            "codegen/body": 'import os\n\nFAST = os.environ.get("FAST")\n',
            "judge/canary": 'import os\nos.environ.update(OMP_NUM_THREADS="1")\n',
        },
    )
    found = readers(source, reads_environment)
    assert unlisted(found, ENVIRONMENT) == ["codegen/body.py:3"]


def test_a_reader_of_text_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "fusion/planner": 'import re\nKIND = re.compile("conv|mm")\n',
            "loopnest/nest": "from ast import literal_eval\n",
            "ir/graph": "import ast\nprint(ast.dump)\n",
            "emit/formatter": "import ast\nast.parse('')\n",
        },
    )
    found = readers(source, reads_text)
    assert unlisted(found, TEXT_IS_READ) == ["fusion/planner.py:2", "loopnest/nest.py:1"]
