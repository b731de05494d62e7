"""What the result tells: the record, a file that runs alone, a table for notebooks."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.errors import BadUsage
from tests.api import sample
from tests.support.folders import ROOT

X = torch.randn(4, 8)
KINDS = ("Block", "Routed", "Tied", "Abstract", "Model")
# A process that cannot import fusewright runs the file.
ALONE = """
import sys
sys.modules["fusewright"] = None
sys.path[:0] = {paths}
import torch
import saved
torch.set_grad_enabled(False)
model = saved.ModelNew().eval()
x, state, wanted = torch.load({data!r})
model.load_state_dict(state, strict=True)
torch.testing.assert_close(model(x), wanted)
status = model.fusewright_status()
counts = [status] if "kernels" in status else list(status.values())
assert all(count["kernels"] > 0 for count in counts), status
assert not any(count["reference_forward"] for count in counts), status
"""


def optimized(name: str) -> tuple[nn.Module, Any]:
    model = getattr(sample, name)().eval()
    return model, fusewright.optimize(model, X)


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore:fusewright.optimize")
@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_the_saved_file_runs_without_fusewright(name: str, tmp_path: Path) -> None:
    model, fused = optimized(name)
    fused.fusewright.save(tmp_path / "saved.py")
    text = (tmp_path / "saved.py").read_text(encoding="utf-8")
    assert text == fused.fusewright.source
    assert "from tests.api.sample import " in text
    torch.save((X, model.state_dict(), model(X)), tmp_path / "data.pt")
    paths = [str(tmp_path), str(ROOT)]
    code = ALONE.format(paths=paths, data=str(tmp_path / "data.pt"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fusewright.optimize")
@pytest.mark.parametrize("name", KINDS)
def test_the_file_is_laid_out(name: str) -> None:
    text = optimized(name)[1].fusewright.source
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=100", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == text


OTHER = "import warnings\nwarnings.simplefilter('error')\nimport saved\n"
LATER = """
import warnings, torch
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import saved
(one,) = said
assert "saved has no kernels: mine is not what they were made from" in str(one.message)
assert torch.equal(saved.ModelNew()(torch.ones(2, 8)), torch.ones(2, 8) * 5)
assert saved.ModelNew.fusewright_status()["kernels"] == 0
"""


@pytest.mark.compiler
def test_a_file_of_the_users_that_is_edited_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels would compute what it said before."""
    text = (
        "import torch\n\n\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x) * 2\n"
    )
    mine = tmp_path / "mine.py"
    mine.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    fused: Any = fusewright.optimize(importlib.import_module("mine").Mine(), X)
    fused.fusewright.save(tmp_path / "saved.py")
    elsewhere = text.replace("\n", "\r\n")  # as a checkout on another system has it
    steps = ((text, OTHER), (elsewhere, OTHER), (text.replace("torch.tanh(x) * 2", "x * 5"), LATER))
    for now, code in steps:
        mine.write_bytes(now.encode())
        command = [sys.executable, "-B", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    _, fused = optimized("Block")
    path = tmp_path / "fused.py"
    path.write_text("mine")
    with pytest.raises(BadUsage, match="exists already"):
        fused.fusewright.save(path)
    assert path.read_text() == "mine"
    fused.fusewright.save(str(path), force=True)
    assert path.read_text(encoding="utf-8") == fused.fusewright.source
    assert [p.name for p in tmp_path.iterdir()] == ["fused.py"]


def local() -> type[nn.Module]:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * 2

    return Local


def typed() -> type[nn.Module]:
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": "__main__"}
    exec(
        "class Typed(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x) * K\n"
        "K = 3.0\n",
        scope,
    )
    kind: type[nn.Module] = scope["Typed"]
    return kind


@pytest.mark.parametrize(
    ("made", "where"),
    [(local, "Local is defined inside a function"), (typed, "Typed is defined in __main__")],
)
def test_a_class_that_no_file_can_import(made: Any, where: str, tmp_path: Path) -> None:
    fused: Any = fusewright.optimize(made()(), X)
    assert "1 fused kernel" in fused.fusewright.explain()
    with pytest.raises(BadUsage, match=f"no file to write: {where}"):
        fused.fusewright.save(tmp_path / "fused.py")
    assert not [*tmp_path.iterdir()]


def test_a_module_with_nothing_to_gain_says_so() -> None:
    linear = nn.Linear(8, 8)
    fused: Any = fusewright.optimize(linear, X)
    assert isinstance(fused, nn.Linear)
    assert "nothing is replaced" in fused.fusewright.explain()
    assert fused.fusewright.source.endswith("import torch\n\nModelNew = torch.nn.Linear\n")
    assert fused.fusewright.status() == {}
    torch.testing.assert_close(fused(X), linear(X))


def test_a_module_in_parts_tells_what_is_left() -> None:
    with pytest.warns(
        UserWarning, match=r"Routed on cpu: 3 submodules fused.*: .*`if`, .*explain\(\)"
    ):
        _, fused = optimized("Routed")
    about = fused.fusewright
    assert about.explain().startswith("Routed on cpu: 3 submodules fused")
    assert {*about.status()} == {"FusedBlock", "FusedSequential"}
    html = about._repr_html_()
    assert "FusedBlock is first, second" in html
    assert "left as written: the model" in html


def test_the_blocks_for_notebooks() -> None:
    _, fused = optimized("Block")
    html = fused._repr_html_()
    for words in (
        "<code>linear_batch_norm_mul_add_relu</code>",
        "PyTorch's",
        "in train mode",
        "<pre>",
    ):
        assert words in html.replace("&#39;", "'")
    assert "self.norm (line" in html
    assert html.count('<svg class="graph"') == 2, "of each mode"
    assert "struct" in html
    assert (
        "linear_batch_norm_mul_add_relu</span> {" in html
        or "linear_batch_norm_mul_add_relu {" in html
    )
    assert re.search(r'<a href="#(fusewright-\w{8}-kernel-1)">', html)
    _, other = optimized("Tied")
    anchors = [set(re.findall(r'id="([^"]+)"', text)) for text in (html, other._repr_html_())]
    assert all(anchors)
    assert not anchors[0] & anchors[1], "two outputs of one notebook"


def test_a_notebooks_own_styles_are_left_alone() -> None:
    _, fused = optimized("Block")
    for style in re.findall(r"<style>(.*?)</style>", fused._repr_html_(), re.DOTALL):
        plain = re.sub(r"@media[^{]*\{", "", re.sub(r"/\*.*?\*/", "", style))
        selectors = re.findall(r"([^{}]+)\{", plain)
        assert len(selectors) > 30
        own = [one for text in selectors for one in text.split(",")]
        assert all(one.strip().startswith(".fusewright") for one in own)


def test_what_a_model_says_is_text_in_html() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * 2

        def extra_repr(self) -> str:
            return "<script>&"

    Odd.__name__ = "<b>Odd"
    html = fusewright.optimize(Odd(), X)._repr_html_()  # type: ignore[operator]
    assert "<b>Odd" not in html
    assert "<script" not in html
    assert "&lt;script&gt;&amp;" in html


def test_a_display_of_the_users_own_stays() -> None:
    class Shown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * 2

        def _repr_html_(self) -> str:
            return "mine"

    assert fusewright.optimize(Shown(), X)._repr_html_() == "mine"


CELL = """
import os, torch, fusewright
from torch import nn
class Typed(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.tanh(x), -1)
faster = fusewright.optimize(Typed(), torch.randn(4, 8))
assert torch.allclose(faster(torch.ones(3, 8)), Typed()(torch.ones(3, 8)))
faster
"""


@pytest.mark.compiler
def test_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = (pytest.importorskip(name) for name in ("nbclient", "nbformat"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    *_, shown = notebook.cells[0].outputs
    assert "<b>Typed on cpu: 1 fused kernel" in shown["data"]["text/html"]
