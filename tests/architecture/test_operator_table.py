"""One table of operators: what is true of some of them is a column, and no list of names elsewhere.

Names of ATen's functions are read where calls of PyTorch are: elsewhere a call answers questions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from fusewright.ir.operators import OPS
from tests.support.source import Source, made_up, without_docstrings

TABLE = "ir/operators"
# Where a literal may hold several names that are operators', too, with the reason.
LISTS = {
    "frontend/capture": "what the user's own tensors are: arguments and parameters",
    "frontend/data_scalars": "functions of PyTorch's symbolic numbers",
    "frontend/eager_strides": "names of ATen's functions",
    "frontend/example_arguments": "names of ATen's functions",
    "frontend/lowering/__init__": "names of ATen's functions",
    "frontend/lowering/pointwise": "names of ATen's functions",
    "frontend/lowering/reductions": "names of ATen's functions",
    "frontend/mask_counts": "names of ATen's functions",
    "frontend/understood_functions": "names of Python's functions",
    "ir/library_call": "names of ATen's functions",
    "judge/*": "it knows no operators: names of PyTorch's functions",
    "kernels/tensor_core/support": "names of kernels, of which two are called like operators",
    "report/decision_record": "words of the names of ATen's functions",
    "rewrite/sink_views": "for each view, the function that sinks it",
    "rewrite/target_lowering": "names of ATen's functions",
    "targets/arch": "names of kernels, of which two are called like operators",
}
# Where names of ATen's functions may stand, with the reason.
ATEN = {
    "frontend/*": "calls are captured and lowered",
    "rewrite/*": "calls are rewritten",
    "kernels/*/match": "calls are matched",
    "ir/library_call": "what is known of calls",
    "ir/decompositions": "activations by the names of the calls that they are",
}


def lists(source: Source) -> dict[str, list[str]]:
    """Where literals hold two or more names of operators."""
    found: dict[str, list[str]] = {}
    for module in source.modules():
        for n in ast.walk(source.tree(module)):
            if isinstance(n, ast.Set | ast.Tuple | ast.List):
                parts = n.elts
            elif isinstance(n, ast.Dict):
                parts = [key for key in n.keys if key]
            else:
                continue
            texts = [p.value for p in parts if isinstance(p, ast.Constant)]
            names = {t for t in texts if isinstance(t, str) and t in OPS}
            if len(names) > 1 and module != TABLE:
                found.setdefault(module, []).append(f"{module}.py:{n.lineno} {sorted(names)}")
    return found


def aten(source: Source) -> dict[str, list[str]]:
    """Where texts of code begin with the name of ATen."""
    return {m: found for m in source.modules() if (found := [*_aten(source.text(m), m)])}


def _aten(text: str, module: str) -> Iterator[str]:
    for n in ast.walk(without_docstrings(text)):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith("aten."):
            yield f"{module}.py:{n.lineno} {n.value}"


def unlisted(found: dict[str, list[str]], listed: dict[str, str]) -> list[str]:
    alone = [m for m in found if not any(fnmatch(m, pattern) for pattern in listed)]
    return [place for module in alone for place in found[module]]


def idle(found: dict[str, list[str]], listed: dict[str, str]) -> list[str]:
    return [p for p in listed if not any(fnmatch(module, p) for module in found)]


def test_facts_of_operators_are_columns() -> None:
    found = lists(Source())
    assert not unlisted(found, LISTS), "a column of ir/operators.py would say it"
    assert not idle(found, LISTS), "listed in LISTS without need"


def test_names_of_aten_stay_where_calls_are_read() -> None:
    found = aten(Source())
    assert not unlisted(found, ATEN), "the record of a call would say it"
    assert not idle(found, ATEN), "listed in ATEN without need"


def test_a_list_of_operators_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "ir/operators": 'ROWS = ("add", "sub")\n',
            "fusion/planner": 'SUMS = {"sum", "mean"}\nONE = ("sum", "rows")\n',
            "loopnest/nest": 'def f(n):\n    return n.op in ("exp", "log")\n',
            "codegen/body": 'TEXT = {"triu": 1, "tril": -1}\nSIZES = ["sum", 1]\n',
            "rewrite/sink_views": 'VIEWS = {"permute": 1, "narrow": 2}\n',
        },
    )
    assert unlisted(lists(source), LISTS) == [
        "codegen/body.py:1 ['tril', 'triu']",
        "fusion/planner.py:1 ['mean', 'sum']",
        "loopnest/nest.py:2 ['exp', 'log']",
    ]
    assert "judge/*" in idle(lists(source), LISTS)


def test_a_name_of_aten_is_found(tmp_path: Path) -> None:
    source = made_up(
        tmp_path,
        {
            "kernels/gemm/match": 'CALL = "aten.mm"\n',
            "kernels/gemm/launch": 'def f(n):\n    return n.called == "aten.mm"\n',
            "emit/forward": 'def f(name):\n    """Of aten."""\n    return f"aten.{name}"\n',
        },
    )
    found = unlisted(aten(source), ATEN)
    assert found == ["emit/forward.py:3 aten.", "kernels/gemm/launch.py:2 aten.mm"]
