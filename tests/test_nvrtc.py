"""The emitted CUDA text compiles with this machine's nvcc and NVRTC 12.1, and never spills."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cudac import compile_text, nvrtc_folder, nvrtc_log
from emitting import EXAMPLES, emit_example, emit_text

from fusewright.codegen.runtime import cuda_flags

# Every kind of kernel in one file: maps, folds, moments, long rows, 16-bit types, several outputs.
MIXTURE = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(768)
            self.batch_norm = nn.BatchNorm2d(24)

        def forward(self, x, image, half):
            rows = torch.softmax(x, 1), torch.logsumexp(x, 1), self.norm(F.gelu(x))
            flat = torch.relu(self.batch_norm(image)), F.instance_norm(image)
            return *rows, *flat, F.mish(half).sum(1), x.argmax(1), torch.tanh(x) > 0.5


    def get_inputs():
        return [torch.randn(64, 768), torch.randn(8, 24, 160, 160), torch.randn(64, 1000).half()]


    def get_init_inputs():
        return []
"""
NAMES = (*EXAMPLES, "mixture")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


@cache
def cuda_text(name: str, arch: str) -> str:
    """The kernels of an emitted file."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        mixed = name == "mixture"
        emitted = emit_text(MIXTURE, path, arch) if mixed else emit_example(name, path, arch)
    found = re.search(r'_FUSEWRIGHT_CUDA = r"""\n(.*?)"""', emitted.text, re.DOTALL)
    assert found is not None
    return found[1]


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_nvcc(name: str, arch: str, tmp_path: Path) -> None:
    found, seconds = compile_text(cuda_text(name, arch), cuda_flags(arch), tmp_path)
    assert found
    assert [k for k in found if k.stack_bytes or k.spill_bytes] == []
    assert seconds < 15, "the promise for the first build on two cores"


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_12_1(arch: str) -> None:
    folder = nvrtc_folder()
    assert folder is not None
    for name in NAMES:
        assert nvrtc_log(folder, cuda_text(name, arch), arch) == (0, ""), name


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_nvrtc_sees_mistakes() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    text = cuda_text("gemm_add_relu", "sm_80").replace("team.each", "team.every", 1)
    code, log = nvrtc_log(folder, text, "sm_80")
    assert code != 0
    assert "every" in log
