"""Architectures and machines: what a GPU gets, what fits it, and that a new one is a row."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import sections, select_sections
from fusewright.compiler.compilation import Compilation, make
from fusewright.errors import BadUsage, InternalError, ToolMissing
from fusewright.kernels.tensor_core.support import MMA_SYNC_BYTES, supports, tile_fits
from fusewright.targets.arch import ARCHES, MMA_SYNC_KERNELS, Arch
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.detect import own_gpu, resolve_target
from fusewright.targets.device_files import DEVICE_FILES
from fusewright.targets.machines import MACHINES, Machine
from fusewright.targets.target import TARGETS, Target, target, targets_of
from tests.support.cuda_compilers import compile_text
from tests.support.emitting import emit_text, tiles

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
# GPU -> its compute capability, KB of shared memory for a block, and whose files it gets.
GPUS = {
    "A100": ((8, 0), 163, "sm_80"),
    "GeForce RTX 3090": ((8, 6), 99, "sm_86"),
    "Orin": ((8, 7), 163, "sm_80"),
    "GeForce RTX 4090": ((8, 9), 99, "sm_89"),
    "H200": ((9, 0), 227, "sm_90a"),
    "B200": ((10, 0), 227, "sm_80"),
    "B300": ((10, 3), 227, "sm_80"),
    "Thor": ((11, 0), 227, "sm_80"),
    "GeForce RTX 5090": ((12, 0), 99, "sm_89"),
    "GB10": ((12, 1), 99, "sm_89"),
}
TOO_OLD = {"P100": ((6, 0), 48), "V100": ((7, 0), 96), "Tesla T4": ((7, 5), 64)}


def pretend(patch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], kb: int) -> None:
    """PyTorch says that this machine has such a GPU."""
    major, minor = capability
    said = SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=kb << 10,
    )
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "get_device_properties", lambda _: said)


# ---- what a GPU gets -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_gets_its_own_files_or_those_of_an_older_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability, kb, expected = GPUS[name]
    pretend(monkeypatch, name, capability, kb)
    assert own_gpu() is TARGETS[expected]
    assert resolve_target("cuda") == resolve_target(None) == (TARGETS[expected], True)
    assert resolve_target(expected) == (TARGETS[expected], True)
    assert resolve_target("cpu") == (TARGETS["cpu"], True)
    other = "sm_80" if expected != "sm_80" else "sm_90a"
    assert resolve_target(other) == (TARGETS[other], False)
    assert TARGETS[expected].arch.shared_bytes_per_block <= kb << 10


@pytest.mark.parametrize("asked", [None, "cuda"])
@pytest.mark.parametrize("name", TOO_OLD)
def test_a_gpu_that_runs_no_kernels_is_refused_with_advice(
    name: str, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability, kb = TOO_OLD[name]
    pretend(monkeypatch, name, capability, kb)
    with pytest.raises(ToolMissing) as refusal:
        resolve_target(asked)
    said = str(refusal.value)
    major, minor = capability
    assert f"{name} of compute capability {major}.{minor} with {kb} KB" in said
    assert "Use --target cpu" in said
    assert "one of sm_80, sm_86, sm_89, sm_90a" in said
    assert own_gpu() is None
    assert resolve_target("cpu") == (TARGETS["cpu"], True)
    assert resolve_target("sm_90a") == (TARGETS["sm_90a"], False)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_target(None) == (TARGETS["cpu"], True)
    with pytest.raises(ToolMissing, match=r"no CUDA GPU here.*one of sm_80, sm_86, sm_89, sm_90a"):
        resolve_target("cuda")


def test_what_is_written_for_nobody_is_no_target() -> None:
    choices = "choose one of cpu, sm_80, sm_86, sm_89, sm_90a or cuda"
    with pytest.raises(BadUsage, match=f"sm_75: no kernels are written for it; {choices}"):
        target("sm_75")
    there = {"sm_100a": "sm_80", "sm_120a": "sm_89"}
    for name, older in there.items():
        with pytest.raises(BadUsage, match=f"it; files for {older} run there; {choices}"):
            target(name)
    with pytest.raises(BadUsage, match=f"Unknown target 'sm_10': {choices}"):
        target("sm_10")


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_fit_together() -> None:
    assert all(name == arch.name for name, arch in ARCHES.items())
    written = [arch.name for arch in ARCHES.values() if arch.device_library is not None]
    assert [machine.arch for machine in MACHINES.values()] == written
    for name, found in TARGETS.items():
        assert (found.name, found.machine.arch) == (name, name)
        assert found.arch.device_library in DEVICE_FILES
        assert (found.machine.processors > 0) == (found.language == "cuda")
        assert (found.machine.busy_threads > 0) == (found.language == "cuda")
    with_capability = [a.capability for a in ARCHES.values() if a.capability]
    assert with_capability == sorted(set(with_capability))


# What an architecture says -> what of its device text says the same.
INSTRUCTIONS = {
    "wgmma": "wgmma.mma_async",
    "mma.sync": "mma.sync.aligned",
    "tensor map": "cp.async.bulk.tensor",
    "cp.async": "cp.async.cg",
}


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if t.language == "cuda"])
def test_the_device_text_has_what_the_row_says(name: str) -> None:
    arch = ARCHES[name]
    text = "\n".join(s.text for s in sections(str(arch.device_library)))
    assert arch.tensor_core
    assert arch.async_copy
    for instruction in (arch.tensor_core, arch.async_copy):
        assert INSTRUCTIONS[instruction] in text
    assert (INSTRUCTIONS["wgmma"] in text) == (arch.tensor_core == "wgmma")
    assert (INSTRUCTIONS["tensor map"] in text) == (arch.async_copy == "tensor map")
    assert ("barrier.cluster" in text) == (arch.cluster > 1)


@pytest.mark.compiler
@needs_nvcc
def test_tiles_take_as_much_shared_memory_as_is_said(tmp_path: Path) -> None:
    structs = {
        "gemm.packed": "tile<{}>::shared_bytes",
        "gemm.unpacked": "splitter<{}>::shared_bytes",
        "attention": "attention_tile<{0}>::shared_bytes + int(sizeof(attention_place)) + "
        "attention_tile<{0}>::rows / 8 * 4",  # and what is no part of the stages
    }
    checks = [
        f"static_assert({struct.format(width)} == {size});"
        for kernel, struct in structs.items()
        for width, size in MMA_SYNC_BYTES[kernel].items()
    ]
    for width, size in MMA_SYNC_BYTES["conv"].items():
        blocks = 2 if width == 64 else 1  # `_blocks` of kernels/conv/launch.py
        checks.append(f"static_assert(conv_tile<{width}, {blocks}>::shared_bytes == {size});")
    needed = ["tile_order", "split_in_place", "attention_tile", "conv_tile"]
    text = f"{select_sections('sm80', needed)}\n" + "\n".join([*checks, "}"]) + "\n"
    compile_text(text, ["-std=c++17", "-arch=sm_80", "-ptx"], tmp_path)


def test_what_fits() -> None:
    ampere, small, hopper = (ARCHES[name] for name in ("sm_80", "sm_86", "sm_90a"))
    assert all(supports(ampere, kernel) for kernel in MMA_SYNC_KERNELS)
    assert all(supports(hopper, kernel) for kernel in hopper.kernels)
    missing = {kernel for kernel in MMA_SYNC_KERNELS if not supports(small, kernel)}
    assert missing == {"gemm.packed", "gemm.unpacked"}
    for kernel in ("conv", "attention"):
        assert [w for w in MMA_SYNC_BYTES[kernel] if tile_fits(small, kernel, w)] == [64]


# ---- 99 KB ---------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1)
        self.linear = nn.Linear(512, 512)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(x).relu(), self.linear(y).relu().softmax(-1)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.1, -1) @ v


def mixed(name: str) -> Compilation:
    return make(Mixed(), [torch.randn(8, 64, 56, 56), torch.randn(2048, 512)], TARGETS[name])


def attention(name: str, width: int) -> Compilation:
    return make(Attention(), [torch.randn(4, 4, 256, width) for _ in "qkv"], TARGETS[name])


@pytest.mark.parametrize("name", ["sm_86", "sm_89"])
def test_with_less_shared_memory_some_calls_stay(name: str) -> None:
    made = mixed(name)
    (call,) = made.plan.libraries
    assert call.node.called == "aten.linear"
    why = f"the tiles of our kernels do not fit the 99 KB of shared memory that {name} has"
    assert why in made.record("mixed.py")
    assert {tile.width for tile in tiles(made).values()} == {64}
    assert [len(attention(name, width).plan.libraries) for width in (64, 128)] == [0, 2]


@pytest.mark.compiler
@needs_nvcc
def test_what_fits_compiles(tmp_path: Path) -> None:
    """Also by ptxas, which knows how much shared memory a block can have unasked."""
    small = TARGETS["sm_86"]
    for made, name in ((mixed("sm_86"), "conv"), (attention("sm_86", 64), "attention")):
        found = compile_text(cuda_source(made.texts, small), cuda_flags(small.arch), tmp_path)
        assert {usage.arch for usage in found} == {"sm_86"}
        assert any(f"{name}_kernel" in usage.name for usage in found)


# ---- a new GPU is a row --------------------------------------------------------------------------

TOY_ARCH = Arch(
    "sm_99a",
    capability=(9, 9),
    device_library="sm80",
    tensor_core="mma.sync",
    async_copy="cp.async",
    shared_bytes_per_block=150 << 10,
    kernels=frozenset({"conv", "conv.depthwise"}),
)
TOY_MACHINE = replace(
    MACHINES["A100"], name="Toy", arch="sm_99a", processors=6, busy_threads=6 * 1024
)
TOY_PROBLEM = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(64, 64, 3, padding=1)
            self.linear = nn.Linear(512, 512)

        def forward(self, x, y):
            return self.conv(x).relu(), self.linear(y).relu().softmax(-1)

    def get_inputs():
        return [torch.randn(8, 64, 56, 56), torch.randn(2048, 512)]

    def get_init_inputs():
        return []
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A GPU that nobody knew, as a row of each table."""
    arches: dict[str, Arch] = {**ARCHES, TOY_ARCH.name: TOY_ARCH}
    machines: dict[str, Machine] = {**MACHINES, TOY_MACHINE.name: TOY_MACHINE}
    found = targets_of(arches, machines)[TOY_ARCH.name]
    monkeypatch.setitem(TARGETS, found.name, found)
    return found


def test_a_new_gpu_is_two_rows(
    toy: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, named, planned for by its own sizes, and printed with its own flags."""
    with monkeypatch.context() as patch:
        pretend(patch, "Toy", (9, 9), 150)
        assert resolve_target("cuda") == (toy, True)
    assert target("sm_99a") is toy
    emitted = emit_text(TOY_PROBLEM, tmp_path, toy.name)
    assert "-gencode=arch=compute_99a,code=sm_99a" in emitted.text
    assert "need a GPU of compute capability 9.9" in " ".join(emitted.text.split()).replace(
        '" "', ""
    )
    assert "run_conv<" in emitted.text
    record = emitted.made.record("toy.py")
    assert "there is no kernel of ours for it on sm_99a" in record
    assert {tile.width for tile in tiles(emitted.made).values()} <= {64, 128, 256}


def test_an_architecture_without_a_machine_says_what_is_missing() -> None:
    with pytest.raises(InternalError, match=r"No machine stands for sm_90a: it needs a row"):
        targets_of({"sm_90a": ARCHES["sm_90a"]}, {})
