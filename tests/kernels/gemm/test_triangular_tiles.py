"""Products of which a mask leaves a band: what is found of it, and which tiles are multiplied."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

import fusewright
import fusewright.kernels.gemm.match
from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import sections
from fusewright.codegen.kernel_symbols import entry
from fusewright.compiler.compilation import Compilation, make
from fusewright.kernels.gemm.diagonal_band import ALL, FAR, NONE, DiagonalBand
from fusewright.kernels.gemm.tile import GemmTile, SplitK
from fusewright.kernels.gemm.triangular_tiles import band
from fusewright.targets.target import TARGETS
from tests.kernels.gemm.test_epilogue import check, tails
from tests.kernels.gemm.test_gemm import GPU, model
from tests.support.cuda_compilers import nvrtc_folder, nvrtc_log, strict_report, usages
from tests.support.emulator.warps import library_of

A, B = torch.randn(1024, 512), torch.randn(512, 768)
LEAST = 1 - FAR  # of rows as many as the batch
ONES = "torch.ones(1024, 768)"
BANDS = {
    "torch.triu(x @ y)": DiagonalBand(0, 767),
    "torch.tril(x @ y, -3)": DiagonalBand(LEAST, -3),
    "torch.triu(x @ y, 5000)": NONE,
    "torch.triu(x @ y, -5000)": DiagonalBand(-5000, 767),
    "torch.tril(torch.triu(x @ y * 2, -10).relu(), 10).exp()": DiagonalBand(-10, 10),
    "torch.tril(x @ y, 800)": ALL,
    "torch.triu(torch.tril(x @ y, -5), 5)": NONE,
    "torch.triu((x @ y).reshape(1, -1, 768), 1)": DiagonalBand(1, 767),
    f"torch.where({ONES}.tril() > 0, x @ y, -1.0)": DiagonalBand(-1023, 0),
    f"(x @ y).masked_fill({ONES}.triu(2).bool(), float('-inf'))": DiagonalBand(-1023, 1),
    f"(x @ y).masked_fill({ONES}.tril(2) == 0, 7.0) + 1": DiagonalBand(-1023, 2),
    f"torch.where({ONES}.tril() == 2, x @ y, -1.0)": NONE,
    f"(x @ y).masked_fill({ONES}.tril(2) < 2, 7.0)": NONE,
    "torch.triu(x @ y, 1) + torch.tril(torch.sin(x @ y), -7)": ALL,
    # a zero times NaN is NaN
    f"(x @ y) * {ONES}.triu()": ALL,
    "x @ torch.triu(y)": ALL,
    "torch.triu(x @ y) + (x @ y)[:1]": ALL,
}


@cache
def made(text: str, *inputs: torch.Tensor) -> Compilation:
    return make(model(text, len(inputs)), inputs, GPU)


def bands(text: str, *inputs: torch.Tensor) -> list[DiagonalBand]:
    return [band(k) for k in made(text, *inputs).plan.kernels if k.anchor]


@pytest.mark.slow
@pytest.mark.parametrize("text", BANDS)
def test_what_of_a_product_is_wanted(text: str) -> None:
    assert bands(f"return {text}", A, B) == [BANDS[text]]


def test_all_that_is_stored_counts() -> None:
    text = "z = x @ y\nreturn torch.triu(z, 3), torch.tril(z, -3).exp(), torch.triu(z, 300)"
    assert bands(text, A, B) == [ALL]
    assert bands("z = x @ y\nreturn torch.triu(z, 3), torch.triu(z, 9)", A, B) == [
        DiagonalBand(3, 767)
    ]


def test_batches_have_a_band_each_and_a_reduction_none() -> None:
    batched = torch.randn(3, 600, 256), torch.randn(3, 256, 700)
    assert bands("return torch.tril(x @ y)", *batched) == [DiagonalBand(-599, 0)]
    # rows of all matrices are rows of one
    assert bands("return torch.tril(x @ y)", batched[0], batched[1][0]) == [ALL]
    narrow = torch.randn(4096, 512), torch.randn(512, 128)
    assert bands("return torch.tril(x @ y).sum(-1)", *narrow) == [ALL]


def test_half_of_the_tiles_and_a_shared_last_wave() -> None:
    """272 of 512 tiles of 128 x 256: two waves of 132, and 8 tiles in 11 parts each."""
    square = torch.randn(4096, 4096)
    ((body, _, chosen),) = made("return torch.triu(x @ y)", square, square).kernels
    assert chosen == GemmTile(256, False, packing="packed", reduce=SplitK(88), vector=4)
    assert "static constexpr int least = 0, most = 4095;" in body.text


def test_the_record_counts_what_is_multiplied() -> None:
    texts = "return x @ y", "return torch.triu(x @ y)"
    whole, half = (made(text, A, B).record("x") for text in texts)
    assert "805 MFLOP" in whole
    assert "303 MFLOP" in half
    assert "tiles of which a mask leaves nothing are not multiplied" in half


@pytest.mark.compiler
def test_what_is_computed(tmp_path: Path) -> None:
    found = []
    for text in list(BANDS)[::3]:
        one = made(f"return {text}", A, B)
        found += tails(one.plan, (A, B), {})
    batched = torch.randn(3, 600, 256), torch.randn(3, 256, 700)
    found += tails(made("return torch.tril(x @ y) - 1", *batched).plan, batched, {})
    check(found, tmp_path)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_band_fits_registers(arch: str, tmp_path: Path) -> None:
    square = torch.randn(2048, 2048)
    kinds = [torch.float32, torch.float16] if arch == "sm_90a" else [torch.float32]
    for dtype in kinds:
        x = square.to(dtype)
        found = make(model("return torch.tril(x @ y, -3) * 2", 2), (x, x), TARGETS[arch])
        text = cuda_source(found.texts, TARGETS[arch])
        assert "static constexpr int least" in text
        report = strict_report(text, tmp_path / f"{dtype}.cu", arch[3:])
        assert [k for k in usages(report) if k.stack_bytes or k.spill_bytes] == []
        assert "C75" not in report  # wgmma that wait for each other
        folder = nvrtc_folder()
        assert folder is None or nvrtc_log(folder, text, f"compute_{arch[3:]}") == (0, "")


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("text", "rules"),
    [("torch.tril(x @ y.t(), -70) - 1", set()), ("torch.triu(x @ y.t(), 40)", {"no-prepack"})],
)
def test_ampere_computes_it(
    text: str, rules: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CUDA text, run by fibers of the CPU: packed, and splitting both factors, turned."""
    monkeypatch.setattr(fusewright.kernels.gemm.match, "LEAST_FLOPS", {torch.float32: 0})
    x, y = torch.randn(300, 64), torch.randn(270, 64)
    x[3], x[250, 5], y[7] = float("nan"), float("inf"), float("inf")
    target = TARGETS["sm_80"]
    found = make(model(f"return {text}", 2), (x, y), target, rules=frozenset(rules))
    ((printed, layout, _),) = found.kernels
    assert band(layout.kernel) != ALL
    library = library_of(cuda_source(found.texts, target), tmp_path)
    size = printed.launch.workspace
    out = torch.full((300, 270), -77.0)
    room = torch.empty(eval(size.format(batch=300)) if size else 1, dtype=torch.uint8)
    tensors = [x, y, out, *[room] * (size != "")]
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    run = getattr(library, entry(printed.name))
    assert run(*addresses, ctypes.c_long(300), 0, ctypes.c_void_p(None)) == 0
    wanted = eval(text, {"torch": torch, "x": x.double(), "y": y.double()}).float()
    torch.testing.assert_close(out, wanted, equal_nan=True)


# ---- on a GPU ------------------------------------------------------------------------------------

SIZES = {
    "float32": (torch.float32, (), (1000, 640, 704)),
    "batched": (torch.float32, (3,), (520, 1024, 2301)),
    "bfloat16": (torch.bfloat16, (), (2304, 512, 1152)),
}
DIAGONALS = [-5000, -1025, -129, 0, 1, 300, 1151]


def spoiled(*shape: int) -> torch.Tensor:
    """Numbers, and some that are not finite."""
    values = torch.randn(shape)
    values.view(-1, shape[-1])[::37, 5] = float("inf")
    values.view(-1, shape[-1])[3::53, 7] = float("nan")
    return values


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("kind", SIZES)
def test_gpu_every_diagonal(kind: str) -> None:
    """One model with as many products, which powers of two keep apart."""
    dtype, lead, (rows, depth, columns) = SIZES[kind]
    x, y = (spoiled(*lead, *s).to(dtype) for s in ((rows, depth), (depth, columns)))
    calls = [f"torch.{side}(x @ (y * {{}}), {d})" for side in ("triu", "tril") for d in DIAGONALS]
    written = [call.format(2.0**k) for k, call in enumerate(calls)]
    ours = fusewright.optimize(
        model(f"return {', '.join(written)}", 2), x, y, options={"target": "cuda"}
    )
    for left in (x.cuda(), x[..., : rows - 77, :].contiguous().cuda()):
        scope = {"torch": torch, "x": left.double(), "y": y.double().cuda()}
        for call, found in zip(written, ours.cuda()(left, y.cuda()), strict=True):
            wanted = eval(call, scope).to(dtype)
            atol = 1e-5 * wanted[wanted.isfinite()].abs().max().item()
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=atol, equal_nan=True)


# ---- the skeleton's own count --------------------------------------------------------------------

WALK = """
#define FN
#define __host__
#define __device__
{tile_order}
{tiles_of}
{diagonal_band}
struct gemm_shape {{}};
struct blank {{}};
template <int, class Body> void blank_out(const Body&, gemm_shape, blank, int, int) {{}}
template <bool> blank blank_at(tiles::place, int, int) {{ return {{}}; }}
{triangular_tiles}
struct body {{ static constexpr int least = LEAST, most = MOST; }};
extern "C" int walk(int batches, int down, int across, int high, int wide, bool swapped, int* to) {{
  const tiles whole{{down, across, batches * down * across}};
  const auto all = tiles_of<body>::of(whole, high, wide, swapped);
  for (int number = 0; number < all.count; ++number) {{
    const tiles::place at = all.at(number);
    to[number * 3] = at.batch, to[number * 3 + 1] = at.row, to[number * 3 + 2] = at.column;
  }}
  return all.count;
}}
"""


@pytest.mark.compiler
def test_every_wanted_tile_has_a_number(tmp_path: Path) -> None:
    text = {s.name: s.text for s in sections("sm90")}
    source = tmp_path / "walk.cpp"
    source.write_text(WALK.format(**text), encoding="utf-8")
    draw = random.Random(0)
    for number, (least, most) in enumerate(((0, 5000), (-5000, -130), (-300, 700), (9000, 9500))):
        library = tmp_path / f"walk_{number}.so"
        limits = [f"-DLEAST={least}", f"-DMOST={most}"]
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *limits, str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        walk = ctypes.CDLL(str(library)).walk
        for _ in range(60):
            high, wide = draw.choice((64, 128, 256)), draw.choice((64, 128, 192, 256, 512))
            down, across = draw.randint(1, 90), draw.randint(1, 40)
            batches, swapped = draw.randint(1, 3), draw.random() < 0.5
            down *= draw.choice((1, 1, 1, 9))  # more than 64 groups of 8
            to = (ctypes.c_int * (batches * down * across * 3))()
            count = walk(batches, down, across, high, wide, swapped, to)
            some = DiagonalBand(least, most).turned if swapped else DiagonalBand(least, most)
            wanted = {
                (batch, row, column)
                for batch in range(batches)
                for row in range(down)
                for column in some.columns(row, high, wide, across)
            }
            assert count == len(wanted)
            assert {tuple(to[k * 3 : k * 3 + 3]) for k in range(count)} == wanted


def test_a_tile_is_wanted_if_any_of_its_elements_is() -> None:
    draw = random.Random(1)
    for _ in range(200):
        low, length = draw.randint(-60, 60), draw.randint(-1, 40)
        some = DiagonalBand(low, low + length) if length >= 0 else NONE
        high, wide, across = draw.randint(1, 9), draw.randint(1, 9), draw.randint(1, 9)
        for row in range(9):
            rows = range(row * high, (row + 1) * high)
            wanted = [
                column
                for column in range(across)
                if any(
                    some.least <= c - r <= some.most
                    for r in rows
                    for c in range(column * wide, (column + 1) * wide)
                )
            ]
            assert wanted == list(some.columns(row, high, wide, across))
