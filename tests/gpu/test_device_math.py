"""Short formulas of the CUDA skeletons (math.cuh) against float64, beside PyTorch's own kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusewright.codegen.device_library import select_sections

# name -> C++ text of x, what it means
FUNCTIONS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "sigmoid": ("sigmoid(x)", torch.sigmoid),
    "silu": ("x * sigmoid(x)", torch.nn.functional.silu),
    "tanh": ("tanh(x)", torch.tanh),
    "mish": ("x * tanh_softplus(x)", torch.nn.functional.mish),
}
# The reciprocal may be off by one ulp, where eager divides exactly; a product may double that.
MORE_ULPS, MORE_TYPICALLY = 2.0, 1.4
KERNEL = """
__global__ void {name}_kernel(const float* from, float* to, long n) {{
  const long i = long(blockIdx.x) * 256 + threadIdx.x;
  if (i >= n) return;
  const float x = from[i];
  to[i] = {text};
}}
extern "C" int run_{name}(const float* from, float* to, long n) {{
  {name}_kernel<<<unsigned((n + 255) / 256), 256>>>(from, to, n);
  return cudaDeviceSynchronize();
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("functions")
    text = select_sections("cuda", ["short_sigmoid", "sigmoid", "tanh", "tanh_softplus"])
    spelled = {n: t for n, (t, _) in FUNCTIONS.items()} | {"short_sigmoid": "short_sigmoid(x)"}
    text += "".join(KERNEL.format(name=n, text=t) for n, t in spelled.items())
    (folder / "functions.cu").write_text(text + "}\n", encoding="utf-8")
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    subprocess.run(
        ["nvcc", "-O3", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC",
         folder / "functions.cu", "-o", folder / "functions.so"],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "functions.so"))


def computed(library: ctypes.CDLL, name: str, x: Tensor) -> Tensor:
    to = torch.empty_like(x)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, to)]
    assert getattr(library, f"run_{name}")(*addresses, ctypes.c_long(x.numel())) == 0
    return to


def ulps(got: Tensor, exact: Tensor) -> Tensor:
    """Errors in units of the last place of the exact result; those of 2^-126 below it."""
    exponent = torch.frexp(exact).exponent.clamp(min=-125)
    return (got.double() - exact).abs() * torch.exp2(24.0 - exponent.double())


PROGRAM = """
#include <cmath>
#define FN inline
namespace own {{
{text}
}}
extern "C" void run(const float* from, float* to, long n) {{
  for (long i = 0; i < n; ++i) to[i] = own::tanh(from[i]);
}}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_small_tangents_are_within_a_unit_and_right_on_average(tmp_path: Path) -> None:
    """The same text as C++: CUDA's own are 2.1 units off at most, and 1.4e-8 on average there."""
    text = select_sections("cuda", ["tanh"])
    begin = text.index("FN float tanh(float x)")
    source = PROGRAM.format(text=text[begin : text.index("FN double tanh", begin)])
    (tmp_path / "tanh.cpp").write_text(source, encoding="utf-8")
    options = ["g++", "-O1", "-ffp-contract=off", "-mfma", "-shared", "-fPIC"]
    subprocess.run([*options, tmp_path / "tanh.cpp", "-o", tmp_path / "tanh.so"], check=True)
    x = torch.linspace(1e-6, 0.5499, 1_000_001)
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, 1e-40, -1e-40])])
    to = torch.empty_like(x)
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, to)]
    ctypes.CDLL(str(tmp_path / "tanh.so")).run(*addresses, ctypes.c_long(x.numel()))
    exact = x.double().tanh()
    assert float(ulps(to, exact).max()) < 1.0
    large = x > 0.2
    assert float((to[large] / exact[large] - 1).mean().abs()) < 4e-9
    assert torch.equal(torch.signbit(to), torch.signbit(x))


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-8, 8), (-87, 0), (0, 87), (-1e-30, 1e-30)])
def test_about_as_close_as_eager(library: ctypes.CDLL, name: str, low: float, high: float) -> None:
    x = torch.linspace(low, high, 4_000_001, device="cuda")
    _, meaning = FUNCTIONS[name]
    exact = meaning(x.double())
    ours, eager = ulps(computed(library, name, x), exact), ulps(meaning(x), exact)
    assert ours.max() <= eager.max() + MORE_ULPS
    assert ours.square().mean().sqrt() <= MORE_TYPICALLY * eager.square().mean().sqrt() + 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_size_and_what_is_not_finite(library: ctypes.CDLL, name: str) -> None:
    """A float of every 4096: nothing is far from the truth, and NaN is where eager has it."""
    bits = torch.arange(-(2**31), 2**31, 4096, device="cuda").to(torch.int32)
    edges = torch.tensor([88.72284, 88.72283, 87.33655, 104.0, 103.97, 126.0, 20.0, 3e38, 0.0])
    ends = torch.tensor([float("inf"), float("nan")])
    special = torch.cat([edges, -edges, ends, -ends]).cuda()
    x = torch.cat([bits.view(torch.float32), special])
    _, meaning = FUNCTIONS[name]
    got, eager, exact = computed(library, name, x), meaning(x), meaning(x.double())
    assert torch.equal(got.isnan(), eager.isnan())
    assert torch.equal(got.isinf(), eager.isinf())
    plain = eager.isfinite()
    # Below -87 eager's own results are 0 for some numbers and subnormal for others; ours are 0
    # where the exponential would be subnormal.
    error = (got.double() - exact).abs()[plain]
    allowed = 6 * 2.0**-24 * exact.abs()[plain] + (meaning(x).double() - exact).abs()[plain]
    assert bool((error <= 2 * allowed + 87.5 * 2.0**-126).all())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_ones_are_no_further_than_eager_in_16_bits(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    """Of every number of 16 bits, rounded."""
    bits = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16)
    x = bits.view(dtype)
    exact, eager = torch.sigmoid(x.double()), torch.sigmoid(x)
    got = computed(library, "short_sigmoid", x.float()).to(dtype)
    assert torch.equal(got.isnan(), eager.isnan())
    plain = ~x.isnan()
    ours, theirs = ((t.double() - exact).abs()[plain] for t in (got, eager))
    assert bool((ours <= theirs + 2.0**-16 * exact[plain] + 2.0**-126).all())
    assert ours.square().sum() <= theirs.square().sum() * 1.001
