"""The file that docs/emitted-file.md goes through: what it quotes is what is written today.

`pytest --update-golden tests/emit/test_annotated_file.py` puts today's text there; read the diff.
"""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

from fusewright.report.kernel_notes import emitted_kernels
from tests.support.emitting import emit_file
from tests.support.folders import ROOT

PAGE = ROOT / "docs/emitted-file.md"
PROBLEM = ROOT / "zoo/softmax_rows.py"
# <!-- NAME of zoo/softmax_rows.py -->, and the fenced text behind it.
QUOTED = re.compile(r"(<!-- (\w+) of zoo/softmax_rows\.py -->\n```\w*\n)(.*?)(^```$)", re.M | re.S)


def header(text: str) -> str:
    """The comment at the top."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))
    return "\n".join(lines).removesuffix("\n#")


def forward(text: str) -> str:
    """The method that replaces the user's, and those that belong to it."""
    own = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "ModelNew")
    assert isinstance(own, ast.ClassDef)
    names = [str(getattr(n, "name", "")) for n in own.body]
    first, behind = own.body[names.index("forward")], own.body[names.index("fusewright_status")]
    assert isinstance(behind, ast.FunctionDef)
    end = behind.decorator_list[0].lineno - 1
    lines = text.split("\n")
    return "\n".join([lines[own.lineno - 1], *lines[first.lineno - 1 : end]]).rstrip()


def kernel(text: str) -> str:
    """The only kernel, with the comment above it."""
    (only,) = emitted_kernels(text, "the file")
    start = text.index(f"// ---- {only.name}: ")
    return text[start : text.index(only.text, start) + len(only.text)]


def support(text: str) -> str:
    """The functions beside the kernels, and what each says of itself."""
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    ours = [n for n in found if n.name.startswith("_fusewright_")]
    return "\n".join(f'def {n.name}(...):\n    """{ast.get_docstring(n)}"""' for n in ours)


PARTS = {part.__name__: part for part in (header, forward, kernel, support)}


def test_the_page_quotes_the_file(tmp_path: Path, update_golden: bool) -> None:
    text = emit_file(PROBLEM, tmp_path).text
    page = PAGE.read_text(encoding="utf-8")
    today = QUOTED.sub(lambda m: f"{m[1]}{PARTS[m[2]](text)}\n{m[4]}", page)
    if update_golden:
        PAGE.write_text(today, encoding="utf-8")
    assert {name for _, name, _, _ in QUOTED.findall(page)} == PARTS.keys()
    assert update_golden or today == page
