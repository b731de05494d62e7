"""A value that a model computes once has one value in kernels, however often they compute it again.

A compiler that contracts a * b + c into one rounding would break this: y - y.amin() of a product y
would be the rounding of that product where it should be 0, and its root NaN.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fusewright.codegen.cuda_source import cuda_source
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.ir.operators import OPS
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from tests.support.compiled import build, prepare, ready

# Name -> what a model computes once, of x in (0.05, 0.95) and w in (0.5, 1.5), and uses twice.
VALUES = {
    "scaled": "x * 1.7",
    "squared": "x * x",
    "cubed": "x ** 3",
    "product": "x * w",
    "scaled_product": "x * w * 0.3",
    "difference_of_products": "x * w - x * x",
    "negated": "-(x * w)",
    "shifted_product": "(x - 0.5) * w",
    "chosen": "torch.where(x > w, x * w, x * 0.3)",
    "clamped": "(x * w).clamp(0.1, 0.6)",
    "quotient_of_product": "x * w / 3.0",
    "addcmul": "torch.addcmul(x, x, w, value=0.7)",
    "lerp": "torch.lerp(x, w, 0.3)",
    "row_scale": "x * w.amax(-1, keepdim=True)",
    **{name: f"F.{name}(x)" for name in ("gelu", "silu", "mish", "softplus", "elu", "selu")},
    **{name: f"F.{name}(x - 0.5)" for name in ("hardswish", "leaky_relu", "logsigmoid")},
    "gelu_tanh": "F.gelu(x, approximate='tanh')",
    "normalised": "F.layer_norm(x, (48,), w[0], w[1])",
}
FUNCTIONS = sorted(
    op.name
    for op in OPS.values()
    if op.kind == "pointwise" and op.arity == 1 and op.torch == f"torch.{op.name}({{0}})"
    if op.result == "same" and op.domain in ("real", "special", "positive", "unit")
)
# The same value minus its smallest or largest is 0 there and has one sign elsewhere.
HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, w):
"""
TAIL = """

def get_inputs():
    return [torch.rand(64, 48) * 0.9 + 0.05, torch.rand(64, 48) + 0.5]


def get_init_inputs():
    return []
"""


def problem(value: str) -> str:
    lines = [
        f"y = {value}",
        "low = torch.sqrt(y - y.amin(-1, keepdim=True))",
        "high = torch.sqrt(y.amax(-1, keepdim=True) - y)",
        "return low, high",
    ]
    return HEAD + "".join(f"        {line}\n" for line in lines) + TAIL


@pytest.mark.compiler
def test_recomputed_values_are_the_same_number(tmp_path: Path) -> None:
    texts = VALUES | {f"function_{name}": f"torch.{name}(x * 0.99)" for name in FUNCTIONS}
    cases = []
    for name, value in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(problem(value), encoding="utf-8")
        cases.append(prepare(path))
    assert len(texts) > 40
    for case, module in zip(cases, build(cases, tmp_path, "-O2"), strict=True):
        ours = module.ModelNew()
        assert case.made.kernels, f"{case.name} has no kernel"
        assert ready(ours, case.inputs), f"{case.name} ran as it was"
        for root in ours(*case.inputs):
            assert not bool(root.isnan().any()), f"{case.name}: a difference is below 0"
            assert bool((root.amin(-1) == 0).all()), f"{case.name}: no difference is 0"


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvcc_contracts_nothing(arch: str, tmp_path: Path) -> None:
    """Of products and sums alone, the machine code has no multiply-add."""
    path = tmp_path / "sums_of_products.py"
    path.write_text(problem("x * w - x * 0.3 + w * w"), encoding="utf-8")
    given = load_problem(path)
    made = make(given.make_model(), given.make_inputs(), TARGETS[arch])
    source = tmp_path / "kernels.cu"
    source.write_text(cuda_source(made.texts, TARGETS[arch]), encoding="utf-8")
    flags = [flag for flag in cuda_flags(TARGETS[arch].arch) if not flag.startswith("-gencode")]
    ptx = source.with_suffix(".ptx")
    kind = f"-arch={arch.replace('sm', 'compute')}"
    subprocess.run(["nvcc", *flags, kind, "-ptx", str(source), "-o", str(ptx)], check=True)
    text = ptx.read_text(encoding="utf-8")
    kernel = text[text.index(".entry") :]
    assert "mul.rn.f32" in kernel
    assert "fma.rn.f32" not in kernel
