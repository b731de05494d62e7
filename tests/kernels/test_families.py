"""Families of kernels: each operator and each kernel has one; another is added where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fusewright.compiler.passes import run_passes
from fusewright.errors import InternalError
from fusewright.frontend.capture import capture
from fusewright.fusion.axes import Incompatible, LoopAxes, read_walks
from fusewright.fusion.epilogue import AllColumns, Epilogue, NoReduction, Segment
from fusewright.fusion.planner import Plan, plan
from fusewright.ir.builder import TensorExpr, copy
from fusewright.ir.graph import Graph, Node, node, rebuild
from fusewright.ir.interpreter import interpret
from fusewright.ir.operators import OPS, Operator
from fusewright.kernels.interface import KernelFamily, MatchContext
from fusewright.kernels.registry import FAMILIES, RegisteredAnchors, family_of
from fusewright.loopnest.nest import nest
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS, Target

GPU = TARGETS["sm_90a"]
DISTANCES = Operator("distances", "product", 2, "", "torch.cdist({0}, {1})", cost=0)
MOST_COLUMNS = 128


class DistanceFamily(KernelFamily):
    """Distances between points, a tile of them at a time; rows are folded if a tile has them."""

    name = "distances"
    stage = "distances"
    anchors = frozenset({"distances"})

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        def change(n: Node) -> Node:
            if n.op != "library" or n.called != "aten.cdist":
                return n
            made = node("distances", n.args[:2], shape=n.shape, dtype=n.dtype)
            return copy(TensorExpr(made)).node

        return rebuild(graph, change) if context.target.language == "cuda" else graph

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue:
        (anchor,) = (m for m in members if m.op in self.anchors)
        *lead, columns = axes.dims[id(anchor)]
        rows = tuple(a for d in lead for a in d)
        if any(w.limits for w in read_walks(axes).values()):
            raise Incompatible("a tile of distances reads whole tensors")
        if not axes.inner:
            return Epilogue(rows, columns, NoReduction())
        width = anchor.shape[-1]
        if axes.inner != {*columns} or not isinstance(width, int) or width > MOST_COLUMNS:
            raise Incompatible("a tile of distances does not hold what is folded")
        return Epilogue(rows, columns, Segment(width))


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> tuple[KernelFamily, ...]:
    monkeypatch.setitem(OPS, DISTANCES.name, DISTANCES)
    return (DistanceFamily(), *FAMILIES)


class Scaled(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(1 - torch.cdist(x, y)) * 2


class Nearest(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y).amin(-1)


def planned(
    module: nn.Module, inputs: Sequence[Tensor], families: Sequence[KernelFamily], name: str
) -> Plan:
    graph, _ = rewrite(capture(module, inputs).graph)
    given = run_passes(graph, MatchContext(TARGETS[name]), families=families)
    return plan(given, TARGETS[name], RegisteredAnchors(tuple(families)))


@pytest.mark.parametrize("module", [Scaled(), Nearest()], ids=["scaled", "nearest"])
def test_a_family_is_added_where_it_lies(
    module: nn.Module, families: tuple[KernelFamily, ...]
) -> None:
    """An operator, a match and an epilogue: what follows joins the kernel, as for any anchor."""
    inputs = (torch.randn(32, 8), torch.randn(64, 8))
    made = planned(module, inputs, families, "sm_90a")
    (kernel,) = made.kernels
    assert not made.libraries
    assert kernel.family == "distances"
    assert kernel.anchor is not None
    assert kernel.anchor.op == "distances"
    assert kernel.reduction == (NoReduction() if isinstance(module, Scaled) else Segment(64))
    layout = nest(kernel, made.graph)
    assert (layout.rows, layout.columns) == (32, 64)
    (found,) = interpret(made.graph, inputs, {})
    assert torch.allclose(found, module(*inputs))


def test_what_a_family_refuses_is_a_kernel_of_another(families: tuple[KernelFamily, ...]) -> None:
    inputs = (torch.randn(32, 8), torch.randn(2 * MOST_COLUMNS, 8))
    made = planned(Nearest(), inputs, families, "sm_90a")
    assert [k.family for k in made.kernels] == ["distances", "rowwise"]
    assert any("does not hold what is folded" in note for note in made.notes)


def test_without_a_match_the_call_stays(families: tuple[KernelFamily, ...]) -> None:
    inputs = (torch.randn(32, 8), torch.randn(64, 8))
    for some, name in ((families, "cpu"), (FAMILIES, "sm_90a")):
        made = planned(Scaled(), inputs, some, name)
        assert [step.node.called for step in made.libraries] == ["aten.cdist"]
        assert [k.family for k in made.kernels] == ["pointwise"]


def test_every_anchor_has_one_family() -> None:
    owned = [op for family in FAMILIES for op in family.anchors]
    assert sorted(owned) == sorted(op.name for op in OPS.values() if op.kind == "product")


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 1024)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        wide = torch.relu(self.linear(x))
        return wide, torch.softmax(y, -1), torch.cumsum(x, -1), torch.exp(z)


def test_each_kernel_has_its_family() -> None:
    inputs = (torch.randn(1024, 512), torch.randn(64, 100), torch.randn(7))
    made = planned(Several(), inputs, FAMILIES, "sm_90a")
    found = {k.family: k for k in made.kernels}
    assert found.keys() == {"gemm", "rowwise", "scan", "pointwise"}
    for name, kernel in found.items():
        assert family_of(kernel).name == name
        assert (kernel.anchor is None) == (kernel.epilogue is None) == (name != "gemm")


def test_nobody_owns_nothing() -> None:
    x = TensorExpr(node("input", shape=(3,), dtype=torch.float32, position=0))
    with pytest.raises(InternalError, match="No family has kernels of mul"):
        RegisteredAnchors(FAMILIES[:-1]).family([(x * 2.0).node])


def test_reductions_are_apart() -> None:
    assert len({NoReduction(), Segment(1), Segment(64), AllColumns()}) == 4
