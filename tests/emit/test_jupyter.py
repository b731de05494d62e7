"""The emitted file pasted into a notebook cell: it builds, runs, and can be run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.emitting import emit_example

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

# A seed: groups of two numbers that are nearly equal make any rounding large, once in fifty draws.
CHECK = """
torch.manual_seed(0)
model = ModelNew(24, 128, 64, (128,))
x = torch.rand(6, 24)
with torch.no_grad():
    found, wanted = model(x), model.reference_forward(x)
assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
assert _FUSEWRIGHT_FUNCTIONS, "the kernels ran"
"done"
"""


@pytest.mark.compiler
def test_pasted_into_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    pasted = emit_example("swish_bias_groupnorm", tmp_path).text
    cells = [nbformat.v4.new_code_cell(text) for text in (pasted, CHECK, pasted, CHECK)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell in (notebook.cells[1], notebook.cells[3]):
        # A CUDA build of PyTorch logs this where there is a toolkit and no GPU.
        remark = "No CUDA runtime is found"
        (output,) = [o for o in cell.outputs if remark not in o.get("text", "")]
        assert output["data"]["text/plain"] == "'done'"
