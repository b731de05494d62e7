"""Loops in order, addresses as text: evaluated everywhere, they are the tensor's elements."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.frontend.capture import capture
from fusewright.fusion.axes import LoopAxes, axis_strides
from fusewright.fusion.planner import Plan, plan
from fusewright.ir.graph import Graph, Node, numel, size_at, size_text
from fusewright.ir.strided_view import strides
from fusewright.kernels.registry import ANCHORS
from fusewright.loopnest.nest import AffineAccess, Nest, nest
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.fusion.test_planner import IMAGE, ROWS, planned
from tests.fuzz.programs import program

SHAPES = [
    # forward, input, rows, outer, columns of its first kernel
    ("return torch.relu(x) + 1", ROWS, "1", "1", "batch * 12"),
    ("return torch.softmax(x, -1)", ROWS, "batch", "1", "12"),
    ("return torch.tanh(self.norm(x))", IMAGE, "3", "batch", "42"),
    ("return F.group_norm(x, 1) * 2", IMAGE, "batch", "1", "126"),
    ("return x.sum()", ROWS, "1", "1", "batch * 12"),
    ("return x * torch.arange(3.0).view(3, 1, 1)", IMAGE, "batch * 3", "1", "42"),
    ("return x.permute(0, 2, 3, 1) * torch.arange(3.0)", IMAGE, "batch * 3", "1", "42"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "x", "rows", "outer", "columns"), SHAPES)
def test_the_loops(text: str, x: torch.Tensor, rows: str, outer: str, columns: str) -> None:
    made = planned(text, x)
    layout = nest(made.kernels[-1], made.graph)
    assert [size_text(s) for s in (layout.rows, layout.outer, layout.columns)] == [
        rows,
        outer,
        columns,
    ]


def test_strides() -> None:
    assert strides((2, 3, 4)) == (12, 4, 1)
    assert strides((2, 3, 4), (0, 2, 1)) == (12, 1, 3)
    assert axis_strides(((0, 1), (2,)), (4, 1), {0: 2, 1: 3, 2: 4}) == {0: 12, 1: 4, 2: 1}


# ---- addresses -----------------------------------------------------------------------------------


def random_plan(seed: int, folder: Path) -> Plan:
    path = folder / f"random_{seed}.py"
    path.write_text(program(seed, kind="plain"), encoding="utf-8")
    problem = load_problem(path)
    graph, _ = rewrite(capture(problem.make_model(), problem.make_inputs()).graph)
    return plan(graph, TARGETS["cpu"], ANCHORS)


def offsets(access: AffineAccess, layout: Nest, graph: Graph) -> list[int]:
    """The element that the access touches at every (row, o, i), by evaluating its text."""
    sizes = [graph.hint(s) for s in (layout.rows, layout.outer, layout.columns)]
    inner = access.gather or f"o * {graph.hint(access.outer)} + i * {graph.hint(access.columns)}"
    lines = [line.removeprefix("const long ").rstrip(";") for line in layout.coordinates]
    text = "\n".join(line.replace("/", "//") for line in lines)
    code = compile(text, "coordinates", "exec")
    where = compile(f"({access.base}) + {inner}".replace("/", "//"), "address", "eval")
    found = []
    for row, o, i in itertools.product(*map(range, sizes)):
        scope = {"row": row, "o": o, "i": i, **graph.example}
        exec(code, scope)
        found.append(eval(where, scope))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_element_is_written_once_and_none_beside(seed: int, tmp_path: Path) -> None:
    made = random_plan(seed, tmp_path)
    for kernel in made.kernels:
        layout = nest(kernel, made.graph)
        for n in kernel.outputs:
            touched = offsets(layout.writes[id(n)], layout, made.graph)
            full = kernel.loops.rows | kernel.loops.inner
            times = len(touched) // made.graph.hint(numel(n.shape))
            assert sorted(set(touched)) == list(range(made.graph.hint(numel(n.shape))))
            assert times == 1 or axes_of(kernel.loops, n) != full
        for access in layout.reads.values():
            limit = made.graph.hint(numel(access.leaf.shape))
            assert all(0 <= k < limit for k in offsets(access, layout, made.graph))


def axes_of(loops: LoopAxes, n: Node) -> frozenset[int]:
    return frozenset(a for d in loops.dims[id(n)] for a in d)


def test_addresses_are_plain_text() -> None:
    made = planned("return F.group_norm(x, 1) * torch.arange(3.0).view(3, 1, 1)", IMAGE)
    layout = nest(made.kernels[-1], made.graph)
    for access in [*layout.reads.values(), *layout.writes.values()]:
        assert re.fullmatch(r"[a-z0-9 *+/%()]*", access.base)
        assert size_at(access.columns, made.graph.example) in (0, 1)
