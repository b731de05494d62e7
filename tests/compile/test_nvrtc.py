"""The emitted CUDA text compiles with this machine's nvcc and NVRTC 12.1, and never spills."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fusewright.codegen.cuda_source import cuda_source, function
from fusewright.codegen.cuda_source import cuda_text as cuda_file
from fusewright.codegen.dead_code import for_nvcc
from fusewright.codegen.instantiation import only_instantiated
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.support.cuda_compilers import nvrtc_folder, nvrtc_log, timed_compilation
from tests.support.emitting import EXAMPLES, Emitted, compiled_text, emit_example, emit_text

# Every kind of kernel in one file: maps, reductions, moments, long rows, 16-bit types, several
# outputs.
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
# Products that are large enough for kernels of ours, with every kind of tail, and each way to pack.
PRODUCTS = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(1024, 512)
            self.second = nn.Linear(512, 1024, bias=False)
            self.narrow = nn.Linear(1024, 128)
            self.groups = nn.GroupNorm(16, 1024)

        def forward(self, x, y, z):
            h = self.second(torch.tanh(self.first(x))) + x
            s = self.narrow(h)
            rows = torch.softmax(s, 1), self.narrow(h).argmax(1)
            batched = torch.relu(y @ z), (y @ z).half()
            return self.groups(F.silu(self.second(h[:, :512].contiguous()))), *rows, *batched


    def get_inputs():
        return [torch.randn(2048, 1024), torch.randn(6, 512, 260), torch.randn(6, 260, 304)]


    def get_init_inputs():
        return []
"""
# Rows that outgrow the registers of a block, and on sm_90a are kept by a cluster.
LONG_ROWS = """
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(65536)
            self.groups = nn.GroupNorm(2, 8).bfloat16()

        def forward(self, x, odd, image):
            scores = torch.logsumexp(odd.double(), 1), torch.softmax(odd, 1)
            return *scores, self.norm(x), self.groups(image) + image


    def get_inputs():
        images = torch.randn(6, 8, 128, 256, dtype=torch.bfloat16)
        return [torch.randn(6, 65536), torch.randn(6, 50257), images]


    def get_init_inputs():
        return []
"""
PROBLEMS = {"mixture": MIXTURE, "products": PRODUCTS, "long rows": LONG_ROWS}
NAMES = (*EXAMPLES, *PROBLEMS)
# For the first build on two cores, where nvcc 13.0 takes EMPTY_SECONDS for an empty kernel.
MOST_SECONDS, EMPTY_SECONDS = 18.0, 1.75
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")


@cache
def emitted_file(name: str, arch: str) -> Emitted:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        text = PROBLEMS.get(name)
        return emit_text(text, path, arch) if text else emit_example(name, path, arch)


def cuda_text(name: str, arch: str) -> str:
    """The kernels of an emitted file."""
    return compiled_text(emitted_file(name, arch).text)


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_nvcc(name: str, arch: str, tmp_path: Path) -> None:
    text, flags = cuda_text(name, arch), cuda_flags(TARGETS[arch].arch)
    found, seconds = timed_compilation(text, flags, tmp_path)
    assert found
    assert [k for k in found if k.stack_bytes or k.spill_bytes] == []
    assert seconds < MOST_SECONDS * slowness(arch, tmp_path), "the promise for the first build"
    if name == "products":
        assert kinds_of("known", tmp_path / "kernels.o") == {"b"}, "local: u is for all files"


def slowness(arch: str, folder: Path) -> float:
    """How much longer than EMPTY_SECONDS this machine takes now, for a kernel that does nothing."""
    (folder / "empty").mkdir()
    text, flags = "__global__ void empty(float* p) { *p = 1; }\n", cuda_flags(TARGETS[arch].arch)
    return max(1.0, timed_compilation(text, flags, folder / "empty")[1] / EMPTY_SECONDS)


def kinds_of(word: str, built: Path) -> set[str]:
    """How nm calls the symbols with this word: what a kernel remembers has to be its file's own."""
    listed = subprocess.run(["nm", built], check=True, capture_output=True, text=True).stdout
    return {line.split()[-2] for line in listed.splitlines() if word in line}


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_12_1(arch: str) -> None:
    folder = nvrtc_folder()
    assert folder is not None
    for name in NAMES:
        kernels = emitted_file(name, arch).made.shared.functions
        text = cuda_source(kernels, TARGETS[arch])
        generated = "\n\n".join(map(function, kernels))
        library, _, rest = for_nvcc(text).partition(generated)
        resolved = only_instantiated(library.strip("\n"), generated)
        emitted, _, end = cuda_file(kernels, TARGETS[arch]).whole.partition(generated)
        assert emitted.strip("\n") == resolved, "the same but for what NVRTC needs, once resolved"
        assert rest == end
        assert nvrtc_log(folder, text, arch) == (0, ""), name


@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_nvrtc_sees_mistakes() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    text = cuda_text("gemm_add_relu", "sm_80").replace("team.each", "team.every", 1)
    code, log = nvrtc_log(folder, text, "sm_80")
    assert code != 0
    assert "every" in log
