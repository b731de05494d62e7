"""Maps that read across what they write, through shared memory: which, what they say, and values.

Threads of the CPU run the CUDA text (tests/support/emulator/threads.py), so values need no GPU;
races and speed do.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.compilation import Compilation, make
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.pointwise.strategy import CpuMap, FlatMap, StagedMap, TransposedMap
from fusewright.kernels.registry import neighbours
from fusewright.targets.target import TARGETS
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.emulator.threads import library_of
from tests.support.numbered import numbered

ARCHS = ["-std=c++17", *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in ("80", "90a"))]
HALF, WHOLE, BYTE = torch.float16, torch.int32, torch.uint8


class Across(nn.Module):
    """A row of Python over x, y, and a buffer `seen` of so many elements."""

    def __init__(self, row: str, seen: Sequence[int] = ()) -> None:
        super().__init__()
        self.row = compile(row, row, "eval")
        self.register_buffer("seen", torch.linspace(-2, 2, math.prod(seen)).reshape(seen))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        result: Tensor = eval(self.row, {"F": F, "torch": torch, "x": x, "y": y, "s": self.seen})
        return result


def tensor(shape: Sequence[int], kind: torch.dtype = torch.float32) -> Tensor:
    count = math.prod(shape)
    if not kind.is_floating_point:
        return (torch.arange(count) % 251).to(kind).reshape(shape)
    x = torch.linspace(-3, 3, count).reshape(shape).to(kind)
    x.view(-1)[3::97], x.view(-1)[5::89], x.view(-1)[7::83] = math.nan, math.inf, -math.inf
    return x


def text_of(made: Compilation, target: str = "sm_90a") -> str:
    assert len(made.kernels) == 1
    return cuda_source(made.texts, TARGETS[target])


def launches(text: str) -> list[str]:
    return re.findall(r"(?:if \((.*)\) )?return (run_map\w*<[\d, ]+>)\(body, (.*), device", text)


TURNED = "x.t().contiguous()"
LAST = "x.permute(0, 2, 3, 1).contiguous()"
FIRST = "F.relu(x.permute(0, 3, 1, 2).contiguous())"
# row, shapes, the condition of the batch, parameters, sizes
STAGED = [
    (TURNED, [(96, 68)], "batch % 4 == 0", "4, 1", "68, batch, 68, 1"),
    (LAST, [(3, 64, 10, 18)], "", "4, 1", "batch * 180, 64, 180, 1"),
    (FIRST, [(3, 10, 18, 68)], "", "4, 1", "batch * 68, 180, 68, 1"),
    ("F.gelu(x.t() + s).contiguous()", [(96, 68)], "", "4, 1", "68, 96, 68, 1"),
    ("x.t() + y", [(68, 96), (96, 68)], "", "4, 1", "68, 96, 68, 1"),
    ("x.mT.exp().contiguous() + y.mT.contiguous()", [(2, 68, 36), (2, 68, 36)], "", "4, 2",
     "batch * 36, 68, 36, 1"),
    ("x.permute(3, 1, 0, 2).contiguous()", [(6, 5, 36, 40)], "", "4, 1",
     "batch * 200, 36, 40, batch * 5"),
    ("x.permute(0, 3, 2, 1).contiguous()", [(3, 36, 5, 40)], "", "4, 1", "batch * 200, 36, 40, 5"),
    ("x[:, 4:].t().contiguous()", [(64, 72)], "batch % 4 == 0", "4, 1", "68, batch, 68, 1"),
    ("x.mT.contiguous()", [(1, 64, 72)], "", "4, 1", "72, 64, 72, 1"),
]  # fmt: skip
NOT = [
    (TURNED, (96, 67)),  # rows of the input do not start at vectors
    (TURNED, (97, 68)),
    ("x[:, 1:65].t().contiguous()", (64, 72)),
    (TURNED, (96, 16)),  # less than half of a tile
    ("x.t().contiguous().double()", (96, 64)),
    ("x.relu()", (96, 64)),
    ("F.pad(x, (4, 4)).t().contiguous()", (96, 64)),
    ("x.t().contiguous().sum(0)", (96, 64)),
    ("x.transpose(1, 2).contiguous()", (2, 32, 32, 64)),  # rows stay rows
]
KINDS = [(HALF, 8), (torch.int16, 8), (WHOLE, 4), (BYTE, 16), (torch.float32, 4)]


def made_of(row: str, inputs: Sequence[Tensor]) -> Compilation:
    return make(Across(row, inputs[0].shape[:1]), list(inputs), TARGETS["sm_90a"])


@pytest.mark.slow
@pytest.mark.parametrize(("row", "shapes", "batch", "parameters", "sizes"), STAGED)
def test_which_maps_are_staged(
    row: str, shapes: list[tuple[int, ...]], batch: str, parameters: str, sizes: str
) -> None:
    (fast, plain) = launches(text_of(made_of(row, [tensor(s) for s in shapes])))
    asked, aligned = fast[0].rsplit("aligned", 1)
    assert asked == (f"{batch} && " if batch else "")
    assert aligned.count("_ptr") - 1 == len(shapes) + ("s)" in row), "and the result"
    assert fast[1:] == (f"run_map_staged<{parameters}>", sizes)
    assert plain[:2] == ("", "run_map_transposed<1, 8>")


@pytest.mark.slow
@pytest.mark.parametrize(("row", "shape"), NOT)
def test_other_maps_are_not(row: str, shape: tuple[int, ...]) -> None:
    assert "staged" not in text_of(made_of(row, [tensor(shape)]))


def test_the_cpu_has_no_stages() -> None:
    made = make(Across(LAST), [tensor((3, 64, 10, 18))], TARGETS["cpu"])
    assert [(s, "staged" in b.text) for b, _, s in made.kernels] == [(CpuMap(), False)]


def test_a_tuner_tries_the_others() -> None:
    made = made_of(LAST, [tensor((3, 64, 10, 18))])
    ((_, nest, default),) = made.kernels
    others = neighbours(default, nest, StrategyContext(TARGETS["sm_90a"], made.captured.graph))
    assert [type(s) for s in (default, *others)] == [StagedMap, TransposedMap, FlatMap]
    assert {s.vector for s in (default, *others)} == {4}


UPDATE = "s.copy_(s * 0.5 + x.t()) + 0"


def test_what_is_turned_is_not_written_in_place() -> None:
    """The kernel overwrites what it reads along its rows, and other blocks read what is turned."""
    for row, places in ((UPDATE, 1), ("s.copy_(s.t() * 0.5 + x) + 0", 0)):
        made = make(Across(row, (64, 64)), [tensor((64, 64))], TARGETS["sm_90a"])
        ((body, _, strategy),) = numbered(made).kernels
        assert isinstance(strategy, StagedMap)
        assert (strategy.multiples, len(body.in_place)) == ((), places)
        assert "staged<0>(in0, row, 64)" in body.text or not places


Run = Callable[..., Tensor]


def runner(made: Compilation, folder: Path) -> Run:
    """Threads of this CPU run the kernel on inputs, for a result laid out like another one."""
    ((body, _, _),) = made.kernels
    run = getattr(library_of(text_of(made), folder), f"run_{body.name}")

    def call(inputs: Sequence[Tensor], like: Tensor, shift: int = 0) -> Tensor:
        """shift: how many elements the result is from where vectors may start."""
        room = torch.empty(like.numel() + 64, dtype=like.dtype)
        first = -room.data_ptr() % 16 // like.itemsize + shift
        out = room[first : first + like.numel()].as_strided(like.shape, like.stride())
        known = {id(n): x for n, x in zip(made.captured.graph.inputs, inputs, strict=True)}
        seen = torch.linspace(-2, 2, len(inputs[0]))
        tensors = [out if p.written else known.get(id(p.node), seen) for p in body.pointers]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        assert run(*pointers, ctypes.c_long(len(inputs[0])), 0, None) == 0
        return out

    return call


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether the bits of copies are the same, and other numbers nearly."""
    return torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.compiler
@pytest.mark.parametrize(("row", "shapes", "batch", "parameters", "sizes"), STAGED)
def test_values(
    row: str, shapes: list[tuple[int, ...]], batch: str, parameters: str, sizes: str, tmp_path: Path
) -> None:
    inputs = [tensor(s) for s in shapes]
    theirs = Across(row, shapes[0][:1])(*inputs)
    ours = runner(made_of(row, inputs), tmp_path)(inputs, theirs)
    assert same(ours, theirs)
    if "contiguous" in row and not re.search("gelu|exp", row):
        assert torch.equal(ours.view(torch.int32), theirs.contiguous().view(torch.int32))


@pytest.mark.compiler
@pytest.mark.parametrize(("kind", "vector"), KINDS)
def test_values_of_every_width(kind: torch.dtype, vector: int, tmp_path: Path) -> None:
    made = made_of(TURNED, [tensor((96, 80), kind)])
    asked, run, _ = launches(text_of(made))[0]
    assert run == f"run_map_staged<{vector}, 1>"
    assert asked.startswith(f"batch % {vector} == 0 && aligned<{vector}>(")
    call, bits = runner(made, tmp_path), {1: BYTE, 2: torch.int16, 4: torch.int32}[kind.itemsize]
    for batch, shift in ((96, 0), (100, 0), (102, 0), (2, 0), (0, 0), (96, 1)):
        x = tensor((batch, 80), kind)
        ours = call([x], torch.empty(80, batch, dtype=kind), shift)
        assert torch.equal(ours.view(bits), x.view(bits).t())


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_it_compiles_without_spills(target: str, tmp_path: Path) -> None:
    # Two tensors of 16 bits that are turned at the same time take more.
    rows = [("F.gelu(x.mT + y).contiguous()", torch.float32, 40), (STAGED[5][0], HALF, 56)]
    for row, kind, most in rows:
        inputs = [tensor((2, 64, 64), kind) for _ in range(2)]
        text = text_of(make(Across(row), inputs, TARGETS[target]), target)
        assert "run_map_staged" in text
        found = compile_text(text, ARCHS, tmp_path)
        assert found
        assert [u for u in found if u.spill_bytes or u.stack_bytes or u.registers > most] == []
        folder = nvrtc_folder()
        assert folder is None or nvrtc_log(folder, text, "compute_80") == (0, "")


# More tiles than one in every direction, parts of tiles, and sizes that vectors do not divide.
@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize(
    ("row", "shapes"),
    [
        (TURNED, [(1000, 4100)]), (TURNED, [(1001, 4100)]), (TURNED, [(1000, 4099)]),
        (LAST, [(5, 64, 50, 50)]), (LAST, [(5, 100, 49, 51)]), (LAST, [(2, 68, 31, 44)]),
        (FIRST, [(5, 50, 50, 132)]), (FIRST, [(5, 50, 50, 131)]),
        ("F.gelu(x.t() + s).contiguous()", [(1000, 4100)]), ("x.t() + y", [(700, 300), (300, 700)]),
        ("x.mT.exp().contiguous() + y.mT.contiguous()", [(7, 260, 132), (7, 260, 132)]),
        ("x.permute(3, 1, 0, 2).contiguous()", [(6, 5, 36, 200)]),
        ("x.permute(0, 3, 2, 1).contiguous()", [(3, 100, 5, 132)]),
        ("x.permute(2, 0, 1).contiguous()", [(40, 36, 260)]),
    ],
)  # fmt: skip
def test_gpu_values(row: str, shapes: list[tuple[int, ...]]) -> None:
    for kind in (torch.float32, HALF):
        model, inputs = Across(row, shapes[0][:1]), [tensor(s, kind) for s in shapes]
        ours = fusewright.optimize(model, *inputs, options={"target": "cuda"}).cuda()
        model, near = Across(row, shapes[0][:1]).cuda(), 2e-3 * bool(re.search("gelu|exp", row))
        alone = not re.search(r"\b[sy]\b", row)  # other sizes of x fit nothing else
        for count in (len(inputs[0]), *((8, 5, 0) if alone else ())):
            some = [x.cuda() for x in inputs] if not alone else [inputs[0][:count].cuda()]
            found, theirs = ours(*some), model(*some)
            torch.testing.assert_close(found, theirs, rtol=near, atol=near, equal_nan=True)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_a_buffer_in_place() -> None:
    x = tensor((300, 300)).nan_to_num(1.0, 2.0, 3.0)
    ours = fusewright.optimize(Across(UPDATE, (300, 300)), x, options={"target": "cuda"}).cuda()
    theirs = Across(UPDATE, (300, 300)).cuda()
    for _ in range(3):
        assert torch.equal(ours(x.cuda()), theirs(x.cuda()))
    assert torch.equal(*(dict(m.named_buffers())["seen"] for m in (ours, theirs)))
