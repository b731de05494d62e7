"""Running sums and products along rows: their meaning, their plan, and kernels for both targets.

The kernels of all forms are compiled once for the CPU; the tests marked `gpu` run them on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_symbols import entry
from fusewright.compiler.compilation import Compilation, make
from fusewright.frontend.capture import capture
from fusewright.frontend.lowering.call import LEAST_BESIDE
from fusewright.ir.graph import Graph, toposort
from fusewright.ir.interpreter import interpret
from fusewright.ir.operators import OPS
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import default_strategy, kernel_text, neighbours
from fusewright.kernels.rowwise.simd_rows import LONGEST_ABREAST
from fusewright.kernels.scan.match import LONGEST, has_chunks, scan
from fusewright.kernels.scan.strategy import ChunkedScan, InChunks
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements, error
from tests.support.compiled import Case, build, prepare, ready
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.emulator.warps import library_of

CPU, GPU = TARGETS["cpu"], TARGETS["sm_90a"]
# x: [6, 5, 37] with a batch of 6; y the same, positive and near one; every row becomes one output
WRITTEN = [
    *("x.cumsum(-1)", "x.cumsum(2) - x", "y.cumprod(2)", "(x > 0).cumsum(-1)", "x.exp().cumsum(2)"),
    *("x.cumsum(-1, dtype=torch.float64)", "x.half().cumsum(-1)", "x.bfloat16().cumsum(2) * 2"),
    *("(x * y).flip(-1).cumsum(-1).flip(-1)", "y.flip(2).cumprod(2).flip(-1) + 1"),
    *("x.half().flip(2).cumsum(2).flip(2)", "(x > 0).flip(2).cumsum(2).flip(2)"),
    *("torch.where(x > 0, x, 0.0).cumsum(2)", "x.softmax(-1).cumsum(-1)", "x.cumsum(2).softmax(2)"),
    *("(x.cumsum(2) * y).cumsum(2)", "x.cumsum(-1) / x.cumsum(-1).square().sum(-1, keepdim=True)"),
    *(
        "x.cumsum(2).amax(-1)",
        "x.cumsum(2).argmax(-1)",
        "x.cumsum(2)[..., -1]",
        "x.cumsum(2)[:, 1]",
    ),
    *("y.cumprod(2)[..., ::2]", "(1.0 - y).cumprod(-1) * y", "x.reshape(-1, 185).cumsum(1) + 1"),
    *("x.reshape(-1, 5, 37, 1).cumsum(2) * 2", "x.transpose(1, 2).contiguous().cumsum(2)"),
    *("x.transpose(1, 2).cumsum(2)", "x.transpose(0, 1).cumsum(-1) + 1", "x.double().cumsum(2)"),
    *(
        "x[..., 3:].cumsum(-1)",
        "x[:, ::2].cumsum(2)",
        "x.mean(-1, keepdim=True).expand_as(x).cumsum(2)",
    ),
    *(
        "x.cumsum(2) + x.flip(2).cumsum(2).flip(2) - x",
        "(y * 3).int().cumprod(2)",
        "x.relu().cumsum(2).cumsum(2)",
    ),
    *("x.cumsum(2)[:, :, None] - x.cumsum(2)[:, :, :, None]", "torch.ones_like(x).cumsum(2)"),
    *("x.clone().flatten(1).cumsum(1).reshape(-1, 5, 37) * y", "(x.isnan()).cumsum(2) > 0"),
]
# What stays PyTorch's, and the word that says why.
KEPT = [
    ("x[..., :15].cumsum(1)", "across"), ("x.cumsum(0) - x", "batch"),
    ("y.double().cumprod(1)", "across"),
    ("x.transpose(1, 2).cumsum(1)", "across"), ("x.mean((1, 2)).cumsum(0)", "batch"),
    ("x.reshape(-1).cumsum(0)", "batch"),
]  # fmt: skip
MODEL = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return (
            {results},
        )


def get_inputs():
    return [torch.randn(6, 5, 37), 1 + 0.1 * torch.randn(6, 5, 37)]


def get_init_inputs():
    return []
"""
LENGTHS = (2, 3, 8, 31, 64, 129, 500, 1000, 1024, 1025, 4096, 8192, 10007, 16384)


class Called(nn.Module):
    """A row of the table as a model of its own."""

    def __init__(self, row: str) -> None:
        super().__init__()
        self.function: Callable[..., Tensor] = eval(f"lambda x, y: {row}", {"torch": torch})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


# Rows as long as the batch, whose elements lie apart, in chunks of a GPU.
APART_AND_LONG = (
    "(x.half().cumsum(0) - x.half()) * y[:, :1]",
    "torch.where(y[:, :1] > 0, x, x * 0.5) + x.cumsum(0)",
)


class Every(nn.Module):
    """All rows of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.forms = [Called(row).function for row in WRITTEN]

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [form(x, y) for form in self.forms]


class Long(nn.Module):
    """There and back along each argument."""

    # Names for as many rows as there are LENGTHS; a model may not take *given.
    def forward(self, a, b, c, d, e, f, g, h, i, j, k, m, n, o):  # type: ignore[no-untyped-def]
        given = (a, b, c, d, e, f, g, h, i, j, k, m, n, o)
        there = [x.cumsum(1) for x in given]
        return [*there, *(x.flip(1).cumsum(1).flip(1) - x for x in given)]


def tensors(batch: int = 6, special: bool = False) -> list[Tensor]:
    torch.manual_seed(batch)
    x, y = torch.randn(batch, 5, 37), 1 + 0.1 * torch.randn(batch, 5, 37)
    if special:
        x[1, 1, 2:6] = torch.tensor([float("nan"), float("inf"), 1.0, -0.0])
        x[1, 2, 3], x[1, 3, 20], x[1, 3, 30] = float("inf"), float("-inf"), float("inf")
        y[0, 0, 5], y[0, 1, 7] = 0.0, float("inf")
    return [x, y]


@cache
def graph_of(row: str) -> Graph:
    graph, _ = rewrite(capture(Called(row), tensors()).graph)
    return graph


def calls(graph: Graph) -> list[object]:
    return [n.called for n in toposort(graph.roots) if n.op == "library"]


@pytest.mark.slow
@pytest.mark.parametrize("row", WRITTEN)
def test_the_rewritten_graph_has_the_same_meaning(row: str) -> None:
    after = scan(graph_of(row), CPU)
    assert not calls(after)
    x, y = tensors()
    (found,) = interpret(after, [x, y], {}, dtype=torch.float64)
    exact = Called(row)(x.double(), y.double())
    if ".half" in row or ".bfloat" in row:
        return  # the model itself rounds: the kernels are compared instead
    torch.testing.assert_close(found.to(exact), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "why"), KEPT)
def test_what_stays_a_call_says_why(row: str, why: str) -> None:
    made = make(Called(row), tensors(), CPU)
    (step,) = made.plan.libraries
    assert why in step.reason


@pytest.mark.parametrize(("size", "machine", "kept"), [
    (LONGEST_ABREAST, CPU, 0), (LONGEST_ABREAST + 1, CPU, 1), (64, GPU, 0), (1 << 20, GPU, 0),
])  # fmt: skip
def test_rows_side_by_side_are_scanned(
    size: int, machine: fusewright.targets.target.Target, kept: int
) -> None:
    x = torch.empty(2, size, 16, device="meta")
    graph = capture(Called("x.cumsum(1) + y"), [x, x]).graph
    assert len(calls(scan(graph, machine))) == kept


def test_a_row_that_outgrows_a_core_stays() -> None:
    for size, kept in ((LONGEST["cpp"], 0), (LONGEST["cpp"] + 1, 1)):
        x = torch.empty(2, size, device="meta")
        graph = capture(Called("x.cumsum(1) + y"), [x, x]).graph
        assert len(calls(scan(graph, CPU))) == kept


@pytest.mark.parametrize(("row", "shape", "why"), [
    ("x.cumsum(1)", (64, 500, LEAST_BESIDE - 1), "across"),
    ("x.reshape(-1).cumsum(0)", (64, 500), "one row"),
    ("x.cumsum(0)", (20_000,), "one row"),
])  # fmt: skip
def test_what_stays_a_call_on_a_gpu(row: str, shape: tuple[int, ...], why: str) -> None:
    x = torch.empty(shape, device="meta")
    (step,) = make(Called(row), [x, x], GPU).plan.libraries
    assert why in step.reason


def test_every_scan_of_the_table_is_used() -> None:
    graph, _ = rewrite(capture(Every(), tensors()).graph)
    used = {n.op for n in toposort(scan(graph, CPU).roots)}
    assert {op.name for op in OPS.values() if op.kind == "scan"} <= used


def test_everything_around_a_scan_is_in_its_kernel() -> None:
    made = make(
        Called("torch.exp(-(x.sigmoid() * y).flip(2).cumsum(2).flip(2)) + x"), tensors(), GPU
    )
    (kernel,) = made.plan.kernels
    assert not made.plan.libraries
    assert [f.op for f in kernel.reductions] == ["cumsum_back"]


def test_a_scan_takes_no_tiles_of_a_product() -> None:
    made = make(Called("(x @ y.transpose(1, 2)).cumsum(2)"), tensors(), GPU)
    assert all(not (k.scans and k.anchor) for k in made.plan.kernels)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "kernels"), [
    ("(x.cumsum(1) * y).cumsum(1) + y", 1),
    ("x.relu().cumsum(1) + y.cumprod(1)", 1),
    ("x.cumsum(1) / x.sum(1, keepdim=True)", 2),
    ("x.softmax(1).cumsum(1)", 2),
    ("x.cumsum(1) + x.flip(1).cumsum(1).flip(1)", 2),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(4, LONGEST["cuda"] + 1), (4, 300, 32)])
def test_rows_in_chunks_are_scanned_one_way(row: str, kernels: int, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device="meta")
    made = make(Called(row), [x, x], GPU)
    assert not made.plan.libraries
    assert len(made.kernels) == kernels
    in_chunks = {has_chunks(n.kernel.members): isinstance(s, InChunks) for _, n, s in made.kernels}
    assert in_chunks in ({True: True}, {True: True, False: False})


@pytest.mark.slow
@pytest.mark.parametrize(("row", "shape", "launch"), [
    ("x.cumsum(1)", (1024, 65536), "_chained<256, 4, 16>(body, batch, 65536, workspace,"),
    ("x.cumsum(1)", (64, 1 << 20), "_chained<512, 4, 32>(body, batch, 1048576, workspace,"),
    ("x.exp().cumsum(1) * x", (64, 1 << 20), "_chained<512, 4, 8>(body, batch, 1048576,"),
    ("x.cumsum(1)", (63, 1 << 20), "_lookback<6, 256, 4, 16>(body, batch, 1048576, workspace,"),
    ("x.flip(1).cumsum(1).flip(1)", (3, 1 << 20), "_lookback<32, 256, 1, 16, true>(body, batch,"),
    ("x.cumsum(0)", (16384, 4096), "_chained<16, 32, 16>(body, 4096, batch, workspace,"),
    ("x.cumsum(0)", (16384, 2000), "run_panel_scan_chunked<32, 16, 16>(body, 2000, batch,"),
    ("x.cumsum(1)", (32, 512, 4096), "run_panel_scan_chunked<8, 32, 16>(body, batch * 4096, 512,"),
    ("x.cumsum(1)", (999, 7, 100), "run_panel_scan_chunked<1, 128, 16>(body, batch * 100, 7,"),
    ("x.flip(0).cumsum(0).flip(0)", (999, 64), "run_panel_scan_chunked<32, 16, 16, true>"),
])  # fmt: skip
def test_the_chunks_of_a_thread(row: str, shape: tuple[int, ...], launch: str) -> None:
    x = torch.empty(shape, device="meta")
    made = make(Called(row), [x, x], GPU)
    assert launch in cuda_source(made.texts, GPU)


@pytest.mark.slow
@pytest.mark.parametrize("row", APART_AND_LONG)
@pytest.mark.parametrize("length", [4, 1001, 4096])
def test_chunks_of_rows_of_any_length_have_no_vectors(row: str, length: int) -> None:
    """Elements that lie apart would allow any, but the last vector of a row has to be whole."""
    x = torch.empty(length, 17, 6, device="meta")
    made = make(Called(row), [x, x], GPU)
    ((_, nest, chosen),) = made.kernels
    assert isinstance(chosen, InChunks)
    every = [chosen, *neighbours(chosen, nest, StrategyContext(GPU, made.plan.graph))]
    assert {s.vector for s in every} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "threads"),
    [(32, 4), (64, 8), (128, 16), (256, 32), (300, 32), (512, 64), (1024, 64)],
)
def test_threads_of_short_rows(columns: int, threads: int) -> None:
    class Scanned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1)

    made = make(Scanned(), [torch.empty(1000, columns)], TARGETS["sm_90a"])
    assert made.kernels[0][2].threads == threads


def test_few_long_rows_may_have_a_block_each() -> None:
    x = torch.empty(63, 1 << 20, device="meta")
    made = make(Called("x.cumsum(1)"), [x, x], GPU)
    ((_, nest, chosen),) = made.kernels
    others = neighbours(chosen, nest, StrategyContext(GPU, made.captured.graph))
    texts = [cuda_source([kernel_text(nest, s)], GPU) for s in others]
    for launch in ("run_row_scan_chunked<1024, 4, 16>", "run_row_scan_lookback<6, 128, 4, 16>"):
        assert any(launch in text for text in texts)
    forbidden = StrategyContext(GPU, made.captured.graph, frozenset({"no-workspace"}))
    assert isinstance(default_strategy(nest, forbidden), ChunkedScan)


def test_two_scans_may_be_one_but_outputs_are_two_tensors() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.cumsum(1), x.cumsum(-1)

    first, second = make(Twice(), [torch.randn(3, 8)], CPU).captured.graph.outputs
    assert first is not second


# ---- the CPU -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, nn.Module]:
    folder = tmp_path_factory.mktemp("scan")
    path = folder / "rows.py"
    path.write_text(MODEL.format(results=",\n            ".join(WRITTEN)), encoding="utf-8")
    case = prepare(path)
    (module,) = build([case], folder)
    return case, module.ModelNew()


@pytest.mark.compiler
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("batch", [2, 6, 7])
def test_kernels_compute_it(compiled: tuple[Case, nn.Module], batch: int, special: bool) -> None:
    case, ours = compiled
    assert not case.made.plan.libraries
    given = tensors(batch, special)
    with torch.no_grad():
        assert ready(ours, given)
    found = disagreements(ours, case.model, given)
    assert [f"{WRITTEN[int(t.split(':')[0])]}: {t}" if t[0].isdigit() else t for t in found] == []


@pytest.mark.compiler
def test_no_batch_is_eager_business(compiled: tuple[Case, nn.Module]) -> None:
    _, ours = compiled
    given = [t[:0] for t in tensors()]
    with torch.no_grad():
        assert not ready(ours, given)


LONG = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, {names}):
        return (
            {results},
        )


def get_inputs():
    return [torch.randn(3, n) for n in {lengths}]


def get_init_inputs():
    return []
"""


def long_rows(folder: Path, lengths: tuple[int, ...]) -> Path:
    names = [f"x{n}" for n in lengths]
    forms = ["{0}.cumsum(1)", "{0}.flip(1).cumsum(1).flip(1)", "(1 + {0} / {1}).cumprod(1)"]
    results = [f.format(x, n) for x, n in zip(names, lengths, strict=True) for f in forms]
    text = LONG.format(names=", ".join(names), results=", ".join(results), lengths=list(lengths))
    path = folder / "long.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.compiler
def test_rows_of_any_length_are_more_accurate_than_float32(tmp_path: Path) -> None:
    case = prepare(long_rows(tmp_path, (*LENGTHS, 100_003)))
    assert not case.made.plan.libraries
    (module,) = build([case], tmp_path)
    given = [torch.randn(3, n) + 1000.0 for n in (*LENGTHS, 100_003)]
    assert disagreements(module.ModelNew(), case.model, given) == []


# ---- CUDA ----------------------------------------------------------------------------------------


def text_of(made: Compilation) -> str:
    """The kernels of a plan, each with its default strategy and with every other one."""
    machine, graph, kernels = made.plan.target, made.captured.graph, []
    for printed, nest, default in made.kernels:
        every = (default, *neighbours(default, nest, StrategyContext(machine, graph)))
        for k, chosen in enumerate(every):
            other = kernel_text(nest, chosen, made.layout.in_place[printed.name])
            name = f"{printed.name}_{k}"
            text = re.sub(rf"\b{printed.name}\b", name, other.text)
            kernels.append(replace(other, name=name, text=text))
    return cuda_source(kernels, machine)


class Rows(nn.Module):
    """One kernel for each argument."""

    def forward(self, *given: Tensor) -> list[Tensor]:
        return [x.exp().cumsum(1) * x for x in given]


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_kernels_stay_in_registers(arch: str, tmp_path: Path) -> None:
    given = [torch.empty(64, n, device="meta") for n in (32, 1024, 8192, 5000)]
    made = make(Rows(), given, TARGETS[f"sm_{arch}"])
    assert not made.plan.libraries
    assert len(made.kernels) == len(given)
    options = ["-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    found = compile_text(cuda_source(made.texts, made.plan.target), options, tmp_path)
    assert len(found) == 2 * len(given)
    # By single elements, as pointers that are not aligned are walked, a row has more slots.
    single = [k for k in found if re.search(r"row_kernelILi\d+ELi1E", k.name)]
    assert [k for k in found if k not in single and (k.stack_bytes or k.spill_bytes)] == []
    assert [k for k in single if k.spill_bytes > 16] == []


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_an_element_is_widened_twice_and_rounded_once(tmp_path: Path) -> None:
    """A GPU converts 16 numbers a cycle from or to 64 bits: more would cost more than memory."""
    made = make(Called("x.cumsum(1) * y"), [torch.empty(64, 8192, device="meta")] * 2, GPU)
    source, ptx = tmp_path / "rows.cu", tmp_path / "rows.ptx"
    source.write_text(cuda_source(made.texts, GPU), encoding="utf-8")
    subprocess.run(["nvcc", "-arch=compute_90a", "-ptx", source, "-o", ptx], check=True)
    (kernel,) = [k for k in ptx.read_text().split(".entry ")[1:] if "row_kernelILi512ELi4E" in k]
    assert (kernel.count("cvt.f64.f32"), kernel.count("cvt.rn.f32.f64")) == (2 * 16, 16)


class Chunks(nn.Module):
    """Kernels whose rows are taken in chunks."""

    def forward(self, long: Tensor, across: Tensor, first: Tensor, whole: Tensor) -> list[Tensor]:
        return [
            (1.0 - long.abs() * 1e-4).cumprod(1) * long,
            long.cumsum(1).cumsum(1),
            across.exp().cumsum(1) + across,
            first.flip(0).cumsum(0).flip(0),
            whole.cumsum(0) - whole,
        ]


def chunk_inputs(device: str) -> list[Tensor]:
    sizes = ((64, 20_004), (64, 300, 100), (64, 48))
    whole = torch.zeros(64, 40, dtype=torch.int64, device=device)
    return [*(torch.zeros(size, device=device) for size in sizes), whole]


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_chunks_stay_in_registers(arch: str, tmp_path: Path) -> None:
    made = make(Chunks(), chunk_inputs("meta"), TARGETS[f"sm_{arch}"])
    assert not made.plan.libraries
    assert all(isinstance(s, InChunks) for _, _, s in made.kernels)
    options = ["-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    found = compile_text(cuda_source(made.texts, made.plan.target), options, tmp_path)
    assert [k for k in found if k.spill_bytes > 16] == []


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.parametrize(
    ("row", "size", "launch"),
    [
        ("x.cumsum(1)", (64, 16_388), "row_scan_chained<512, 4, 32>"),
        ("x.flip(1).cumsum(1).flip(1) - x", (64, 16_385), "row_scan_chained<512, 1, 8, true>"),
        ("(x.cumsum(1) * 0.5).cumsum(1)", (64, 16_388), "row_scan_chained<512, 4, 8>"),
        ("x.cumsum(0)", (1030, 2048), "panel_scan_chained<16, 32, 16>"),
        ("x.flip(0).cumsum(0).flip(0) - x", (514, 2048), "<16, 32, 8, true>"),
    ],
)
def test_chunks_hand_on_what_their_row_has_come_to(
    row: str, size: tuple[int, int], launch: str, tmp_path: Path
) -> None:
    """By threads of the CPU, block after block; what is read too early is NaN."""
    x, out = torch.randn(size), torch.empty(size)
    made = make(Called(row), [x, x], GPU)
    text = cuda_source(made.texts, GPU)
    assert launch in text
    room = torch.full((1 << 22,), 7, dtype=torch.uint8)
    pointers = [t.data_ptr() for t in (x, out, room)]
    run = getattr(library_of(text, tmp_path), entry(made.texts[0].name))
    assert run(*map(ctypes.c_void_p, pointers), ctypes.c_long(size[0]), 0, None) == 0
    exact = Called(row)(x.double(), x)
    assert float((out - exact).abs().max()) <= 2e-7 * float(exact.abs().max())


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_chunks() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    made = make(Chunks(), chunk_inputs("cpu"), GPU)
    assert nvrtc_log(folder, text_of(made), "compute_80") == (0, "")


@pytest.mark.compiler
@pytest.mark.skipif(nvrtc_folder() is None, reason="no NVRTC 12.1.105 here")
def test_the_oldest_supported_compiler_takes_every_schedule() -> None:
    folder = nvrtc_folder()
    assert folder is not None
    made = make(
        Called("y.flip(2).cumprod(2).flip(2) - x.cumsum(2).amax(-1)[..., None]"), tensors(), GPU
    )
    assert nvrtc_log(folder, text_of(made), "compute_80") == (0, "")


class Product(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumprod(1), x.flip(1).cumprod(1).flip(1)


@torch.no_grad()
def test_products_that_leave_the_range_stay_out_of_it() -> None:
    """What underflows or overflows even a double before something brings it back, as in eager."""
    x = torch.ones(6, 256)
    x[0], x[0, 200] = 10.0, 0.0
    x[1], x[1, 100:] = 1e-5, 1e30
    x[2], x[2, 130] = 1e5, 0.0
    x[3], x[3, 255] = 1e9, 0.0
    x[4, 10:21], x[4, 60] = 1e30, 0.0
    x[5, 3], x[5, 99] = float("inf"), 0.0
    ours = fusewright.optimize(Product(), x, options={"target": "cpu"})
    assert ready(ours, [x])
    for found, wanted in zip(ours(x), Product()(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_kernels_compute_every_form(tmp_path: Path) -> None:
    model = Every()
    ours = fusewright.optimize(model, *tensors(), options={"target": "cuda"}).cuda()
    for batch, special in ((2, False), (6, True), (37, False)):
        given = [t.cuda() for t in tensors(batch, special)]
        assert ready(ours, given)
        found = disagreements(ours, model, given, roundings=2)
        assert [f"{WRITTEN[int(t.split(':')[0])]}: {t}" for t in found] == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("row", APART_AND_LONG)
def test_gpu_chunks_of_rows_of_any_length(row: str) -> None:
    model = Called(row)
    ours = fusewright.optimize(
        model, *([torch.randn(9, 17, 6)] * 2), options={"target": "cuda"}
    ).cuda()
    for length in (2, 5, 9, 1001, 9001):
        given = [torch.randn(length, 17, 6, device="cuda") for _ in range(2)]
        assert ready(ours, given)
        assert disagreements(ours, model, given, roundings=2) == []


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_gpu_rows_of_any_length(dtype: torch.dtype) -> None:
    """Also where rows begin between two vectors, and more of them than a GPU has processors."""

    model = Long()
    given = [(torch.randn(201, n) * 4).to(dtype) for n in LENGTHS]
    ours = fusewright.optimize(model, *given, options={"target": "cuda"}).cuda()
    for start in (0, 1):
        moved = [
            torch.empty(x.numel() + 1, dtype=dtype, device="cuda")[start:][: x.numel()]
            for x in given
        ]
        here = [m.view(x.shape).copy_(x) for m, x in zip(moved, given, strict=True)]
        assert ready(ours, here)
        mine, theirs = ours(*here), model(*here)
        exact = [
            t.double() if dtype.is_floating_point else t for t in model(*[x.double() for x in here])
        ]
        for a, b, x in zip(mine, theirs, exact, strict=True):
            assert a.dtype is b.dtype
            if dtype.is_floating_point:
                assert error(a, x) <= error(b, x) + torch.finfo(dtype).eps
            else:
                assert torch.equal(a, b)


class Across(nn.Module):
    """There and back along the first and the middle dimension, and along rows in chunks."""

    def forward(self, first: Tensor, middle: Tensor, long: Tensor) -> list[Tensor]:
        return [
            *(first.cumsum(0), first.flip(0).cumsum(0).flip(0) - first),
            *(middle.cumsum(1), middle.flip(1).cumsum(1).flip(1) - middle),
            *(long.cumsum(1), long.flip(1).cumsum(1).flip(1) - long),
            *(long.cumsum(1).cumsum(1), middle.cumsum(1).cumsum(1)),
        ]


CHUNKED = [  # columns beside `first`, rows and columns of `middle`, length of `long`
    (8, 2, 9, 16_385), (40, 33, 100, 20_000), (129, 512, 16, 65_536), (4096, 100, 64, 100_003),
]  # fmt: skip


OTHERS = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [*((torch.float32, sizes) for sizes in CHUNKED), *((dtype, CHUNKED[1]) for dtype in OTHERS)],
)
def test_gpu_rows_in_chunks(dtype: torch.dtype, sizes: tuple[int, int, int, int]) -> None:
    """Also other batches than the example's, and tensors that begin between two vectors."""
    beside, down, across, length = sizes
    floats, model = dtype.is_floating_point, Across()

    def given(batch: int) -> list[Tensor]:
        shapes = ((batch, beside), (batch, down, across), (batch, length))
        return [(torch.randn(shape) * 4).to(dtype) for shape in shapes]

    ours = fusewright.optimize(model, *given(300), options={"target": "cuda"}).cuda()
    for batch, start in ((300, 0), (5, 1), (2, 0), (1037, 1)):
        here = []
        for x in given(batch):
            room = torch.empty(x.numel() + 1, dtype=dtype, device="cuda")
            here.append(room[start:][: x.numel()].view(x.shape).copy_(x))
        assert ready(ours, here)
        exact = [t.double() if floats else t for t in model(*[x.double() for x in here])]
        # Nothing here is more exact than float64.
        free = 1e-12 if dtype is torch.float64 else torch.finfo(dtype).eps if floats else 0.0
        for a, b, x in zip(ours(*here), model(*here), exact, strict=True):
            assert a.dtype is b.dtype
            if floats:
                assert error(a, x) <= error(b, x) + free
            else:
                assert torch.equal(a, b)


class Few(nn.Module):
    """Few long rows, whose chunks several blocks take in turn."""

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [
            *(x.cumsum(1), x.flip(1).cumsum(1).flip(1) - x, x.cumsum(1).cumsum(1), y.cumprod(1)),
            (x.to(torch.float64) * 3).cumsum(1),
        ]


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 7, 64])
@pytest.mark.parametrize("length", [16_384, 20_001, 300_004])
def test_gpu_few_long_rows(rows: int, length: int) -> None:
    """Also more rows than the example's, the same bits every time, and what is not finite."""
    model = Few()

    def given(batch: int) -> list[Tensor]:
        x, y = torch.randn(batch, length).cuda(), 1 - torch.rand(batch, length).cuda() * 1e-4
        x[0, length // 2], x[1, length // 3], x[1, -5] = torch.nan, torch.inf, -torch.inf
        return [x, y]

    ours = fusewright.optimize(model, *given(rows), options={"target": "cuda"}).cuda()
    for batch in (rows, 3, 150):
        here = given(batch)
        assert ready(ours, here)
        exact = model(*[x.double() for x in here])
        first, again = ours(*here), ours(*here)
        for a, c, b, x in zip(first, again, model(*here), exact, strict=True):
            assert torch.equal(a.nan_to_num(1.5), c.nan_to_num(1.5)), "the same bits every time"
            assert torch.equal(a.isnan(), x.isnan())
            assert torch.equal(a.isinf(), x.isinf())
            sound = x.isfinite()
            free = torch.finfo(a.dtype).eps if a.dtype is torch.float32 else 1e-12
            assert error(a[sound], x[sound]) <= error(b[sound], x[sound]) + free


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_chunks_carry_what_is_not_finite() -> None:
    """From the chunk where it appears to the end of its row, and nowhere else."""
    model = Across()
    given = [torch.randn(shape).cuda() for shape in ((5000, 48), (6, 1200, 40), (6, 70_000))]
    given[0][1000, 3], given[0][2000, 5], given[0][4000, 5] = float("nan"), torch.inf, -torch.inf
    given[1][1, 700, 3], given[1][2, 30, 5], given[1][2, 900, 5] = torch.nan, torch.inf, -torch.inf
    given[2][1, 50_000], given[2][2, 30], given[2][2, 60_000] = torch.nan, torch.inf, -torch.inf
    ours = fusewright.optimize(model, *given, options={"target": "cuda"}).cuda()
    assert ready(ours, given)
    exact = model(*[x.double() for x in given])
    first, again = ours(*given), ours(*given)
    for a, b, x in zip(first, again, exact, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32)), "the same bits every time"
        assert torch.equal(a.isnan(), x.isnan())
        assert torch.equal(a.isinf(), x.isinf())
        torch.testing.assert_close(a.double(), x, rtol=1e-5, atol=1e-2, equal_nan=True)
