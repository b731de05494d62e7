"""What machine code differs from another in names alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import load_script

PTX = """
.visible .entry fused_0(.param .u64 fused_0_param_0) // -- Begin
{
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [fused_0_param_0];
  add.s32 %r2, %r1, 4;
  bra $L__BB0_1;
}
"""
FILE = '_FUSEWRIGHT_CPP = r"""\nextern "C" int run_{name}(int x) {{ return x + {number}; }}\n"""\n'


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/machine_code.py")


def test_names_and_comments_may_be_others(tool: ModuleType) -> None:
    new = PTX.replace("fused_0", "fc1_relu").replace("-- Begin", "-- Begin function")
    assert tool.difference(PTX, new) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", 4;", ", 8;"),
        ("add.s32", "sub.s32"),
        ("%r2, %r1", "%r1, %r1"),
        ("bra $L__BB0_1;", ""),
        ("[fused_0_param_0]", "[other]"),
    ],
)
def test_nothing_else_may(tool: ModuleType, old: str, new: str) -> None:
    assert old in PTX
    assert tool.difference(PTX, PTX.replace(old, new))


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_records_are_compiled_and_compared(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, number in (("old", 1), ("new", 1), ("other", 2)):
        texts = {"paragraphs": [FILE.format(name=name, number=number)], "texts": {"h": [0]}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"zoo/a/cpu/file": "h"}))
        (tmp_path / name / "texts.json").write_text(json.dumps(texts))
        assert tool.main(["compile", str(tmp_path / name)]) == 0
    assert tool.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    assert "1 files: 1 equal but for names, none otherwise" in capsys.readouterr().out
    assert tool.main(["compare", str(tmp_path / "old"), str(tmp_path / "other")]) == 1
