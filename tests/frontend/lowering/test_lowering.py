"""Each entry of LOWER: the graph means what eager computes, and the generated kernels compute it.

The table holds calls as Python text over the arguments of `forward`. All calls of one type stand in
one model, so one export and one compilation serve them all; a message names the calls that are
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from fusewright.frontend.capture import state_of
from fusewright.frontend.lowering import LOWER
from fusewright.ir.graph import Node, toposort
from fusewright.ir.interpreter import interpret
from tests.support.compiled import Case, build, prepare, ready

MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, {arguments}):
        return (
            {results},
        )


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""

SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-41,
    1e30,
    -1e30,
    1.0,
    -1.0,
    0.5,
    2.5,
]

# ---- the table -----------------------------------------------------------------------------------

# x, y: two dimensions, y without special values;  z: one dimension;  s: none
POINTWISE = [
    *("torch.abs(x)", "torch.sign(x)", "-x", "torch.reciprocal(x)", "x * x", "torch.square(x)"),
    *("torch.sqrt(x)", "torch.rsqrt(x)", "torch.exp(x)", "torch.exp2(x)", "torch.expm1(x)"),
    *("torch.log(x)", "torch.log2(x)", "torch.log10(x)", "torch.log1p(x)", "torch.sigmoid(x)"),
    *("torch.sin(y)", "torch.cos(y)", "torch.tan(y)", "torch.asin(x)", "torch.acos(x)"),
    *("torch.atan(x)", "torch.sinh(y)", "torch.cosh(y)", "torch.asinh(y)", "torch.acosh(x)"),
    *("torch.atanh(x)", "torch.tanh(x)", "torch.erf(x)", "torch.erfc(y)", "torch.logical_not(x)"),
    *("torch.floor(x)", "torch.ceil(x)", "torch.round(x)", "torch.trunc(x)"),
    *("torch.isnan(x)", "torch.isinf(x)", "torch.isfinite(x)"),
    *("x + y", "x + z", "x + s", "x + 2", "2 + x", "torch.add(x, y, alpha=3)", "x - y", "3 - x"),
    *("torch.sub(x, z, alpha=0.5)", "torch.rsub(x, y, alpha=2)", "torch.rsub(x, 1)", "x * y"),
    *("x * 0.1", "x * s", "z * x", "x / y", "x / 3", "1 / x", "x / s"),
    *("torch.div(y, 0.7, rounding_mode='trunc')", "x.pow(2)", "x.pow(3)", "x ** 0.5", "x ** -1"),
    *("torch.pow(y.abs(), y)", "torch.pow(2.0, y)", "x ** 1.0", "torch.remainder(y, 0.7)"),
    *("torch.remainder(y, z)", "torch.fmod(y, 0.7)", "torch.fmod(y, z)", "torch.atan2(x, y)"),
    *("torch.maximum(x, y)", "torch.minimum(x, s)", "torch.max(x, y)", "torch.min(x, z)"),
    *("x == y", "x != x", "x < 0.1", "x <= y", "x > z", "x >= 0.1", "(x > 0) & (y > 0)"),
    *("(x > 0) | (y > 0)", "(x > 0) ^ (y > 0)", "~(x > 0)", "torch.logical_and(x, y)"),
    *("torch.logical_or(x, y > 0)", "torch.logical_xor(x, z)", "torch.clamp(x, -0.5, 0.5)"),
    *("torch.clamp(x, min=0.1)", "torch.clamp(x, max=s)", "torch.clamp(x, y - 1, y)"),
    *("torch.clamp(x, 1.0, -1.0)", "x.clamp_min(0.2)", "x.clamp_max(0.2)", "x.clamp_min(y)"),
    *("torch.where(x > 0, x, y)", "torch.where(x > 0, x, 0.0)", "torch.where(y > 0, 1.5, x)"),
    *(
        "x.masked_fill(y > 0, -1.0)",
        "x.masked_fill(z > 0, float('-inf'))",
        "x.masked_fill(y > 0, s)",
    ),
    *("torch.addcmul(x, y, z)", "torch.addcmul(x, y, z, value=0.5)"),
    *(
        "torch.addcdiv(x, y, z.abs() + 1, value=2)",
        "torch.lerp(x, y, 0.25)",
        "torch.lerp(x, y, 0.75)",
    ),
    *("torch.lerp(x, y, y.abs())", "x ** -0.5", "(x + 1) * 0.5 - y / 4"),
]
ACTIVATIONS = [
    *("F.relu(x)", "F.relu6(x)", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)"),
    *("F.mish(x)", "F.softplus(x)", "F.softplus(x, 2.0, 10.0)", "F.logsigmoid(x)", "F.elu(x)"),
    *("F.elu(x, 0.5)", "F.celu(x, 0.7)", "F.selu(x)", "F.hardtanh(x)", "F.hardtanh(x, -2.0, 0.3)"),
    *("F.hardswish(x)", "F.hardsigmoid(x)", "F.leaky_relu(x)", "F.leaky_relu(x, 0.3)"),
    *(
        "F.leaky_relu(x, -0.3)",
        "F.threshold(x, 0.1, 20.0)",
        "F.hardshrink(x)",
        "F.hardshrink(x, 0.2)",
    ),
    *(
        "F.softshrink(x)",
        "F.softshrink(x, 0.2)",
        "F.softsign(x)",
        "F.tanhshrink(x)",
        "torch.logit(x)",
    ),
    *("torch.logit(x, eps=0.1)", "F.prelu(x, z[:1])", "F.prelu(x, z)"),
]
INTEGERS = [
    *("torch.bitwise_not(i)", "~k", "i >> 1", "i << 3", "k << j", "i >> j", "3 << j", "k >> 9"),
    *("torch.bitwise_left_shift(i, 61)", "torch.bitwise_right_shift(i, j)", "i >> -1"),
    *("torch.bitwise_right_shift(-9, j)", "i.int() & -2147483648", "i | -9223372036854775808"),
    *("torch.bitwise_and(i, 5)", "torch.bitwise_or(i, j)", "torch.bitwise_xor(b, i > 0)"),
    *("torch.abs(i)", "torch.sign(i)", "-i", "i + j", "i - 3", "5 - i", "i * j", "i / 3", "i / j"),
    *("torch.add(i, j, alpha=2)", "i + 0.5", "i * x", "i + s", "torch.square(i)", "torch.sqrt(i)"),
    *("torch.exp(j)", "torch.sigmoid(i)", "i ** 3", "i % 5", "i % -5", "torch.fmod(i, 5)", "i & j"),
    *(
        "i | 6",
        "i ^ j",
        "i == j",
        "i > 0.5",
        "i <= j",
        "torch.maximum(i, j)",
        "torch.clamp(i, -2, 3)",
    ),
    *("torch.clamp(i, min=0.5)", "torch.where(i > 0, i, j)", "torch.where(i > 0, i, x)"),
    *("i.masked_fill(j > 1, 7)", "torch.floor(i)", "torch.round(i)", "i.float()", "i.double()"),
    *(
        "i.to(torch.uint8)",
        "i.to(torch.int8)",
        "i.to(torch.int32)",
        "i.bool()",
        "x.nan_to_num().long()",
    ),
    *("(j * 10).to(torch.uint8) + (j * 9).to(torch.uint8)", "k + k", "k * 2", "k.float() / 3"),
    *("k % 5", "torch.fmod(k, 4)", "k.clamp(3, 100)", "k ** 3", "k + 300", "k.to(torch.int8) % -3"),
    *("i.to(torch.int16).clamp_min(-2)", "i.to(torch.int32) - 2**31"),
    *("torch.logical_not(i)", "b & (i > 0)", "b + b", "b * i", "b + 1.5", "torch.where(b, i, 0)"),
    *("b.to(torch.int64)", "torch.logical_and(b, i)", "b == (i > 0)", "~b"),
    *("i.sum(1)", "i.sum()", "b.sum(-1)", "k.sum(1)", "i.amax(1)", "i.amin((0, 1), keepdim=True)"),
    *("i.prod(1)", "i.max(1)[0]", "i.max(1)[1]", "i.min(dim=1, keepdim=True)[1]", "i.argmax(1)"),
    *("i.any(1)", "b.all(1)", "b.any()", "i.max()", "k.argmin(1)", "i.float().mean(1)"),
]
VIEWS = [
    *("x.clone().fill_(2.0) + x", "x.clone().zero_() - x", "x.new_zeros(5, 1) + 1 + z.sum()"),
    *("x.new_ones(5, 1) * z.sum()", "F.pairwise_distance(x, x * 2)", "F.channel_shuffle(w, 3)"),
    *("F.pixel_shuffle(w.flatten(0, 1), 2)", "F.pixel_unshuffle(w[..., :4], 2) + 1"),
    *("F.unfold(w, 2, stride=2) * 2", "F.unfold(w[0], (1, 3), stride=(1, 3)) + 1"),
    *("F.fold(F.unfold(w, (2, 1), stride=(2, 1)) * 2, w.shape[2:], (2, 1), stride=(2, 1))",),
    *("x.view(-1) * 2", "x.reshape(7, -1) + 1", "x.t() + 1", "x.transpose(0, 1).contiguous() * 2"),
    *("x.flatten() * 2", "x.unsqueeze(1) * y.unsqueeze(0)", "x.unsqueeze(-1).squeeze(-1) + 1"),
    *("w.permute(0, 2, 3, 1) * 2", "w.permute(3, 1, 0, 2) + w.permute(3, 1, 0, 2)", "w.mT + 1"),
    *("z.expand(5, 7) + 1", "x.clone() + 1", "x + x.t().contiguous().t()", "w.flatten(1) + 1"),
    *(
        "w.unflatten(1, (2, 3)) * 2",
        "w[:, :4].clone() + w[:, :4].clone().transpose(1, 2)",
        "torch.zeros(5, 7) + x",
    ),
    *("torch.full((5, 7), 2.5) * x", "torch.ones_like(x) + x", "torch.full_like(x, 3) - x"),
    *(
        "x.double() + 1",
        "x.float() * 3",
        "(x * 3).half().float()",
        "x.to(torch.bfloat16) * 3",
        "x.bool()",
    ),
    *("w.movedim(1, -1).reshape(2, 20, 6) + 1", "s * 2", "s + 1", "torch.sin(s) + s"),
    *(
        "x.detach() * 2",
        "torch.zeros_like(x) - x",
        "torch.ones(5, 7) * x",
        "torch.empty_like(x).copy_(z)",
    ),
    *(
        "torch.broadcast_tensors(x, z)[1] * x",
        "x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])",
    ),
    "torch.scalar_tensor(2.5) * z.sum()",
    *("x.t() @ x + 1", "w.reshape(2, 6, 20).sum(2)", "w.transpose(1, 3).reshape(2, -1) * 2"),
]
REDUCTIONS = [
    *(
        "x.sum(1)",
        "x.sum(-1, keepdim=True)",
        "x.sum()",
        "x.sum((0, 1), keepdim=True)",
        "w.sum((2, 3))",
    ),
    *("w.sum((0, 2, 3))", "w.sum((1, 3))", "w.mean((2, 3), keepdim=True)", "x.mean(1)", "x.mean()"),
    *("x.sum(1, dtype=torch.float64)", "x.amax(1)", "x.amin(-1, keepdim=True)", "w.amax((0, 3))"),
    *("x.max()", "x.min(1)[0]", "x.max(1)[1]", "x.max(1, keepdim=True)[0] - x", "x.argmax(1)"),
    *(
        "x.argmin(-1, keepdim=True)",
        "y.argmax()",
        "x.prod(1)",
        "x.prod()",
        "x.any(1)",
        "(x > 0).all(1)",
    ),
    *(
        "x.all()",
        "y.var(1)",
        "y.var(1, unbiased=False)",
        "y.var(1, correction=2)",
        "y.std()",
        "y.var()",
    ),
    "y.std((0, 1), keepdim=True)",
    *(
        "torch.var(w, (2, 3), keepdim=True)",
        "x.softmax(1)",
        "x.softmax(-1).sum(1)",
        "F.log_softmax(x, 1)",
    ),
    *(
        "F.softmax(x, 1, dtype=torch.float64)",
        "torch.logsumexp(x, 1)",
        "torch.logsumexp(x, (0, 1))",
    ),
    *(
        "x.logsumexp(-1, keepdim=True)",
        "x[:, :1].sum(1)",
        "x[:, :1].mean(1, keepdim=True)",
        "x[:, :1].max(1)[0]",
        "x[:, :1].amin(1)",
        "x[:, :1].prod(1)",
        "(x[:, :1] > 0).any(1)",
        "x[:, :1].softmax(1)",
        "x[:, :1].log_softmax(1)",
        "torch.logsumexp(x[:, :1], 1)",
        "torch.logsumexp(x.sum(1, keepdim=True), 1) * 2",
        "y.norm()",
        "y.norm(dim=1)",
        "y.norm(p=1, dim=-1, keepdim=True)",
    ),
    *(
        "torch.linalg.vector_norm(y, dim=1, dtype=torch.float64)",
        "F.normalize(y, dim=1)",
        "x.any()",
    ),
    *("torch.ops.aten._softmax(x, 1, False)", "torch.ops.aten._log_softmax(x, 1, False)"),
    *("torch.any(w > 0, (1, 3))", "w.mean((1, 2, 3)) + 1", "w.permute(0, 2, 3, 1).sum(-1)"),
]
NORMS = [
    *("F.layer_norm(y, (7,))", "F.layer_norm(y, (7,), z, z + 1, 1e-3)", "F.layer_norm(w, (4, 5))"),
    *("F.layer_norm(w, (6, 4, 5))", "F.rms_norm(y, (7,))", "F.rms_norm(y, (7,), z, 1e-3)"),
    *("F.group_norm(w, 2)", "F.group_norm(w, 3, z[:6], z[:6] + 1)", "F.group_norm(y, 1)"),
    *("F.group_norm(w, 6)", "F.instance_norm(w)", "F.instance_norm(w, weight=z[:6], bias=z[:6])"),
    *("F.batch_norm(w, None, None, training=True)", "F.batch_norm(w, z[:6], z[:6].abs())"),
    *(
        "F.batch_norm(w, z[:6], z[:6].abs(), z[:6] + 1, z[:6], eps=0.1)",
        "F.batch_norm(y, z, z.abs())",
    ),
]
# As a forward pass leaves it to the backward pass: result, mean and scale.
LAYERS = "torch.ops.aten.native_layer_norm(y, (7,), z, z + 1, 1e-3)"
GROUPS = "torch.ops.aten.native_group_norm(w, z[:6], z[:6] + 1, 2, 6, 20, 3, 1e-3)"
NORMS += [f"{call}[{k}]" for call in (LAYERS, GROUPS) for k in range(3)]
# What stays a library call, because our operators would not do the same for every value.
LIBRARY = [
    *("torch.var_mean(y, 1)[0]", "torch.std_mean(y, 1)[1]", "F.embedding((i > 0).long(), y)"),
    *("torch.div(x, y, rounding_mode='floor')", "y // 0.7", "torch.round(x, decimals=1)", "i // 3"),
    *("torch.div(i, 3, rounding_mode='trunc')", "i % j.clamp_min(1)", "i ** j.clamp_min(0)"),
    *("torch.isnan(i)", "x.cumsum(0)", "x.sum(0)", "w.amax(1)", "x.softmax(0)", "y.norm(p=3)"),
    *(
        "y.norm(p=float('inf'), dim=1)",
        "F.relu(i)",
        "torch.cat([x, y], 1)",
        "x.sort(1)[0]",
    ),
    *("F.unfold(w, 2)", "F.unfold(w, 2, stride=2, padding=1)", "F.unfold(w, 2, 2, stride=2)"),
    "x.nan_to_num()",
    *("s.softmax(0)", "s.logsumexp(0)", "s.max(0)[0]"),  # a number has no dimension
]

# Pieces of a tensor, which are read where they lie.
PIECES = [
    "x.flip(1)",
    *("(x * 3)[:, 2:5]", "x[1] * 1", "w[:, 1:6:2] + w[:, ::2]", "x.narrow(1, 2, 3).relu()"),
    *("torch.split(w, 2, 1)[1] * 2", "w.split((1, 5), 1)[1].exp()", "x.chunk(2, 1)[1] + 1"),
    *(
        "w.unbind(1)[2] * w.select(1, -1)",
        "w[:, 1:, 2].permute(1, 0, 2) - 1",
        "y[1:, 1:][1:, ::3] + 1",
    ),
    *("w[:, :, 1:3].sum(-1)", "(y * 2)[:, 1:] + y[:, :6]", "w[:, 2:4].reshape(2, -1) * 2"),
    *("F.adaptive_avg_pool2d(w, 1)", "F.adaptive_avg_pool1d(w[0], 1)", "w[1, 2, 3] + z[:5]"),
    "F.adaptive_avg_pool3d(w[None], 1)",
]
FLOAT_ROWS = [*POINTWISE, *ACTIVATIONS, *VIEWS, *REDUCTIONS, *NORMS, *PIECES]
ROWS = {
    "float32": FLOAT_ROWS,
    "float64": FLOAT_ROWS,
    "float16": FLOAT_ROWS,
    "bfloat16": [*POINTWISE, *ACTIVATIONS, *REDUCTIONS],
    "integers": INTEGERS,
    "library": LIBRARY,
}
INPUTS = {
    "x": "torch.cat([torch.tensor({special}), torch.randn(23)]).reshape(5, 7).to({dtype})",
    "y": "torch.randn(5, 7, dtype={dtype}) + 0.3",
    "z": "torch.randn(7, dtype={dtype}) + 0.3",
    "s": "torch.tensor(0.4, dtype={dtype})",
    "w": "torch.randn(2, 6, 4, 5, dtype={dtype})",
    "i": "torch.randint(-9, 9, (5, 7))",
    "j": "torch.randint(1, 6, (5, 7))",
    "k": "torch.randint(0, 255, (5, 7), dtype=torch.uint8)",
    "b": "torch.rand(5, 7) > 0.5",
}
HALVES = (torch.float16, torch.bfloat16)
TYPES = {"float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


def write_problem(path: Path, rows: Sequence[str], dtype: torch.dtype) -> Path:
    special = [0.25 if dtype in HALVES and abs(v) in (1e30, 1e-41) else v for v in SPECIAL]
    values = ", ".join(f"float('{v!r}')" for v in special)
    texts = [text.format(special=f"[{values}]", dtype=dtype) for text in INPUTS.values()]
    text = MODEL.format(
        arguments=", ".join(INPUTS), results=",\n            ".join(rows), inputs=", ".join(texts)
    )
    path.write_text(text, encoding="utf-8")
    return path


# ---- comparisons ---------------------------------------------------------------------------------


def same_special(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """NaN and infinities stand at the same places."""
    a, b = ours.double(), theirs.double()
    inf = torch.equal(
        torch.isinf(a) * a.sign().nan_to_num(), torch.isinf(b) * b.sign().nan_to_num()
    )
    return torch.equal(torch.isnan(a), torch.isnan(b)) and inf


def worst(values: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error where both are finite; absolute far below the median."""
    a, b = values.double().flatten(), exact.double().flatten()
    usable = torch.isfinite(a) & torch.isfinite(b)
    if not usable.any():
        return 0.0
    a, b = a[usable], b[usable]
    return float(((a - b).abs() / (b.abs() + 0.05 * b.abs().median() + 1e-30)).max())


def doubled(inputs: Sequence[object]) -> list[torch.Tensor]:
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    return [t.double() if t.is_floating_point() else t for t in tensors]


def means_the_same(row: str, ours: torch.Tensor, exact: torch.Tensor) -> bool:
    if not exact.is_floating_point():
        return torch.equal(ours, exact)
    if "half" in row or "bfloat16" in row:  # float64 does not lose their bits
        return True
    narrow = exact.dtype is torch.float32 or "rms_norm(y, (7,))" in row  # or eps is of float32
    return same_special(ours, exact) and worst(ours, exact) < (1e-6 if narrow else 1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lower")


@pytest.fixture(scope="module")
def case_of(folder: Path) -> Callable[[str], Case]:
    """The model of a table of rows, prepared where it is asked for first."""

    @cache
    def prepared(name: str) -> Case:
        dtype = TYPES.get(name, torch.float32)
        return prepare(write_problem(folder / f"{name}.py", ROWS[name], dtype))

    return prepared


@pytest.fixture(scope="module")
def cases(case_of: Callable[[str], Case]) -> dict[str, Case]:
    return {name: case_of(name) for name in ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ROWS))
def test_the_graph_means_what_eager_computes(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    captured = case.made.captured
    inputs = doubled(case.inputs)
    if name in ("float16", "bfloat16"):
        pytest.skip("float64 eager takes other branches than a model in a half type")
    state = {
        k: v.double() if v.is_floating_point() else v
        for k, v in state_of(captured, case.model).items()
    }
    ours = interpret(captured.graph, inputs, state, dtype=torch.float64)
    exact = case.model(*inputs)
    wrong = [
        r for r, a, b in zip(ROWS[name], ours, exact, strict=True) if not means_the_same(r, a, b)
    ]
    assert not wrong


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in TYPES else ()) for n in ROWS]
)
def test_what_is_ours_and_what_stays_a_library_call(
    name: str, case_of: Callable[[str], Case]
) -> None:
    outputs = case_of(name).made.captured.graph.outputs
    library = {r for r, o in zip(ROWS[name], outputs, strict=True) if has_call(o)}
    if name == "library":
        assert library == set(LIBRARY)
        return
    words = ("@", "nan_to_num")
    assert library == {r for r in ROWS[name] if any(word in r for word in words)}


def has_call(root: Node) -> bool:
    return any(n.op == "library" for n in toposort([root]))


def test_each_entry_of_the_table_is_used(case_of: Callable[[str], Case]) -> None:
    """Rows of other floating types are among those of float32."""
    assert all(set(ROWS[name]) <= set(ROWS["float32"]) for name in TYPES)
    some = [case_of(name) for name in ROWS if name not in TYPES]
    seen = {c.name for case in some for c in case.made.captured.calls}
    # A module's norm is in models/; frontend/mask_counts.py writes the two others.
    elsewhere = {"aten._native_batch_norm_legit_functional", "aten.reshape", "aten.view_as"}
    assert set(LOWER) - seen == elsewhere


# ---- the kernels ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(cases: dict[str, Case], folder: Path) -> dict[str, list[torch.Tensor]]:
    modules = build(list(cases.values()), folder)
    results = {}
    for (name, case), module in zip(cases.items(), modules, strict=True):
        new = module.ModelNew()
        with torch.no_grad():
            assert ready(new, case.inputs), name
            results[name] = list(new(*case.inputs))
    return results


@pytest.mark.compiler
@pytest.mark.parametrize("name", list(ROWS))
def test_kernels_are_as_accurate_as_eager(
    name: str, cases: dict[str, Case], built: dict[str, list[torch.Tensor]]
) -> None:
    case = cases[name]
    with torch.no_grad():
        eager, exact = case.model(*case.inputs), case.model(*doubled(case.inputs))
    rows = zip(ROWS[name], built[name], eager, exact, strict=True)
    wrong = [(row, note) for row, *three in rows if (note := complaint(*three, name))]
    assert not wrong


def complaint(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, name: str) -> str:
    if (ours.shape, ours.dtype, strides(ours)) != (eager.shape, eager.dtype, strides(eager)):
        mine, theirs = ((t.shape, t.dtype, t.stride()) for t in (ours, eager))
        return f"{mine} is not {theirs}"
    half = name in ("float16", "bfloat16")
    if not ours.is_floating_point():
        return "" if half or torch.equal(ours, eager) else f"{ours} is not {eager}"
    if not half and not (same_special(ours, eager) or same_special(ours, exact)):
        return f"{ours} has other special values than {eager}"
    narrow = max(torch.finfo(t).eps for t in (ours.dtype, TYPES.get(name, ours.dtype)))
    allowed = 2 * worst(eager, exact) + (64 if name == "float64" else 8) * narrow
    # One element next to 0, where a sum cancels, may be luck: then the whole must be as exact.
    near, whole = worst(ours, exact) <= 4 * allowed, [_whole(t, exact) for t in (ours, eager)]
    if near and whole[0] <= 1.05 * whole[1]:
        return ""
    return "" if worst(ours, exact) <= allowed else f"{worst(ours, exact):.2g} > {allowed:.2g}"


def _whole(t: torch.Tensor, exact: torch.Tensor) -> float:
    return float((t.double() - exact.double()).norm())


def strides(t: torch.Tensor) -> list[int]:
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size != 1]
