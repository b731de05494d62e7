"""Every row of the op table: its C++ spelling, printed by the code generator and compiled, computes
what its PyTorch meaning computes, on its domain, in every type that the meaning accepts.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fusewright.codegen.cpu_source import cpp_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.fusion.planner import plan
from fusewright.ir.graph import Graph, Node, node
from fusewright.ir.interpreter import interpret
from fusewright.ir.operators import OPS, Operator
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, default_strategy, kernel_text
from fusewright.loopnest.nest import nest
from fusewright.targets.target import TARGETS
from tests.support.compiled import FLAGS

ROWS, COLUMNS = 6, 37
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTS, torch.bool)
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-41, 3e38, -3e38, 1.0, -1.0]
# Rows that mean the same in every type; lower/ casts to a float type before all others.
ANY_TYPE = frozenset(
    [
        *(
            "add",
            "sub",
            "mul",
            "neg",
            "abs",
            "sign",
            "square",
            "maximum",
            "minimum",
            "eq",
            "ne",
            "lt",
        ),
        *("le", "gt", "ge", "logical_not", "where", "cast", "copy", "sum", "prod", "max", "min"),
        *("argmax", "argmin"),
    ]
)
INTEGERS_TOO = ("remainder", "fmod", "pow")  # lower/ gives them a divisor or an exponent it knows
# Each type and one of the same width whose bits it is read as.
BITS = {
    torch.float32: torch.int32,
    torch.int32: torch.float32,
    torch.float64: torch.int64,
    torch.int64: torch.float64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.float16,
    torch.int16: torch.bfloat16,
    torch.int8: torch.uint8,
    torch.uint8: torch.int8,
}
# Errors in units of the last place that are as good as PyTorch's own.
ULPS = {"float32": 4, "float64": 4, "float16": 1, "bfloat16": 1}


def legal(op: Operator, dtype: torch.dtype) -> bool:
    if op.domain == "bool":
        return dtype is torch.bool or op.name == "logical_not"
    if op.domain == "numbers":
        return dtype in INTS
    if op.name == "bitcast":
        return dtype in BITS
    if op.domain == "int":
        return dtype in INTS or dtype is torch.bool
    if dtype is torch.bool:
        return op.name in (
            "eq",
            "ne",
            "where",
            "cast",
            "copy",
            "maximum",
            "max",
            "min",
            "add",
            "mul",
        )
    return dtype in FLOATS or op.name in (*ANY_TYPE, *INTEGERS_TOO)


def values(domain: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Ordinary values of the domain; for floats the special ones stand among them."""
    torch.manual_seed(seed)
    count = ROWS * COLUMNS
    if dtype is torch.bool:
        return (torch.rand(count) > 0.5).reshape(ROWS, COLUMNS)
    if dtype in INTS:
        low = 0 if dtype is torch.uint8 else -100
        return torch.randint(low, 100, (ROWS, COLUMNS), dtype=dtype)
    wide = torch.randn(count, dtype=torch.float64) * 3
    draw = {
        "positive": wide.abs() + 1e-3,
        "unit": wide.sin() * 0.999,
        "above one": 1 + wide.abs(),
        "near one": 1 + wide * 0.01,
        "special": torch.cat([torch.tensor(SPECIAL, dtype=torch.float64).repeat(5), wide[50:]]),
    }.get(domain, wide)
    mixed = draw[torch.randperm(count)] if domain == "special" else draw
    return mixed.reshape(ROWS, COLUMNS).to(dtype)


def arguments(op: Operator, dtype: torch.dtype) -> list[torch.Tensor]:
    if op.domain.endswith("choice"):
        kind = "special" if op.domain == "choice" else "positive"
        chosen = [values(kind, dtype, seed) for seed in range(2, op.arity + 1)]
        return [values("", torch.bool, 1), *chosen]
    given = [values(op.domain, dtype, seed) for seed in range(1, op.arity + 1)]
    if op.name in ("remainder", "fmod") and dtype in INTS:
        given[1] = torch.where(given[1] == 0, 7, given[1]).to(dtype)
    if op.name.endswith("_shift"):  # by nothing and less, by all bits and more
        bits = torch.iinfo(dtype).bits
        by = torch.arange(-2 * (dtype is not torch.uint8), bits + 3).repeat(ROWS * COLUMNS)
        given[1] = by[: ROWS * COLUMNS].reshape(ROWS, COLUMNS).to(dtype)
    if op.name == "pow" and dtype in INTS:
        given[1] = torch.randint(0, 5, (ROWS, COLUMNS), dtype=dtype)
    return given


def graph_of(op: Operator, dtype: torch.dtype) -> Graph:
    given = arguments(op, dtype)
    leaves = [
        node("input", position=k, shape=(ROWS, COLUMNS), dtype=t.dtype) for k, t in enumerate(given)
    ]
    reduction = op.kind == "reduction"
    kind = {"bool": torch.bool, "index": torch.int64}.get(op.result, dtype)
    extra: dict[str, object] = {"dims": (1,)} if reduction else {}
    shape = (ROWS,) if reduction else (ROWS, COLUMNS)
    if op.name == "bitcast":
        kind = BITS[dtype]
        extra = {"to": kind, "of": dtype}
    if op.name == "cast":
        kind = torch.float64
        extra = {"to": kind, "rounds": True}
    made = node(op.name, leaves, shape=shape, dtype=kind, **extra)  # type: ignore[arg-type]
    return Graph(tuple(leaves), (made,))


CASES = [
    (op, dtype)
    for op in OPS.values()
    if op.kind in ("pointwise", "reduction")
    if op.name != "window_element"  # of a convolution's result only
    for dtype in TYPES
    if legal(op, dtype)
    and not (op.kind == "reduction" and dtype in (torch.float16, torch.bfloat16))
    and not (op.name in ("sum", "prod", "mean", "m2") and dtype in (*INTS[1:], torch.bool))
    and not (op.name in ("mean", "m2") and dtype is torch.int64)
]  # fmt: skip


def name_of(op: Operator, dtype: torch.dtype) -> str:
    return f"{op.name}_{str(dtype).removeprefix('torch.')}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, dict[str, KernelText]]:
    bodies = {}
    for op, dtype in CASES:
        graph = graph_of(op, dtype)
        (kernel,) = plan(graph, TARGETS["cpu"], ANCHORS).kernels
        layout = nest(replace(kernel, name=name_of(op, dtype)), graph)
        chosen = default_strategy(layout, StrategyContext(TARGETS["cpu"], graph))
        bodies[name_of(op, dtype)] = kernel_text(layout, chosen)
    folder = tmp_path_factory.mktemp("ops")
    return compiled(list(bodies.values()), folder), bodies


def compiled(bodies: Sequence[KernelText], folder: Path) -> ctypes.CDLL:
    source, library = folder / "ops.cpp", folder / "ops.so"
    source.write_text(cpp_source(bodies), encoding="utf-8")
    command = ["g++", "-O1", *FLAGS, "-shared", "-fPIC", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def run(
    library: ctypes.CDLL, made: KernelText, given: list[torch.Tensor], result: Node
) -> torch.Tensor:
    out = torch.empty([int(s) for s in result.shape], dtype=result.dtype)  # type: ignore[call-overload]
    by_node = {p.node.attributes: p for p in made.pointers}
    tensors = [out if p.written else given[int(p.node["position"])] for p in made.pointers]  # type: ignore[arg-type]
    assert len(by_node) == len(tensors)
    function = getattr(library, f"run_{made.name}")
    function.argtypes = [ctypes.c_void_p] * len(tensors) + [ctypes.c_long] * 2
    function.restype = None
    function(*[t.data_ptr() for t in tensors], 0, 1)
    return out


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=[name_of(*case) for case in CASES])
def test_the_spelling_computes_the_meaning(
    op: Operator, dtype: torch.dtype, library: tuple[ctypes.CDLL, dict[str, KernelText]]
) -> None:
    shared, bodies = library
    graph, given = graph_of(op, dtype), arguments(op, dtype)
    ours = run(shared, bodies[name_of(op, dtype)], given, graph.outputs[0])
    (theirs,) = interpret(graph, given, {})
    (exact,) = interpret(graph, given, {}, dtype=torch.float64)
    if not theirs.is_floating_point():
        assert torch.equal(ours, theirs)
        return
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs)), "NaN stands elsewhere"
    assert not bool((torch.isinf(ours) & torch.isfinite(theirs)).any()), (
        "infinite where torch is finite"
    )
    info = torch.finfo(theirs.dtype)
    errors = [relative(t, exact, info.tiny) for t in (ours, theirs)]
    assert errors[0] <= max(
        2 * errors[1], ULPS[str(theirs.dtype).removeprefix("torch.")] * info.eps
    )


def relative(t: torch.Tensor, exact: torch.Tensor, tiny: float) -> float:
    """The largest error relative to the exact value, or to the smallest normal number."""
    usable = torch.isfinite(t) & torch.isfinite(exact)
    error = (t.double() - exact).abs() / exact.abs().clamp_min(tiny)
    return float(error[usable].max()) if usable.any() else 0.0


def test_every_row_is_tested_or_has_no_spelling() -> None:
    tested = {op.name for op, _ in CASES}
    elsewhere = ("leaf", "view", "contraction", "library", "scan")  # test_scan has the last
    rest = {op.name for op in OPS.values() if op.kind in elsewhere}
    rest |= {"window_element"}  # of convolutions: tests/kernels/conv/test_pool_fusion.py
    assert tested | rest == set(OPS)
