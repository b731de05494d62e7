"""Families of kernels: each operator and each kernel has one; another is added where it lies."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.compiler.passes import run_passes
from fusewright.errors import InternalError
from fusewright.frontend.capture import capture
from fusewright.fusion.epilogue import AllColumns, NoReduction, Segment
from fusewright.fusion.planner import Plan, plan
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import node
from fusewright.ir.interpreter import interpret
from fusewright.ir.operators import OPS
from fusewright.kernels.interface import MatchContext, StrategyContext
from fusewright.kernels.registry import (
    ANCHORS,
    FAMILIES,
    as_record,
    family_of,
    from_record,
    kernel_text,
    neighbours,
)
from fusewright.loopnest.nest import nest
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.device_files import DEVICE_FILES
from fusewright.targets.target import TARGETS, Target
from tests.kernels.distances import family as distances
from tests.kernels.distances.family import DISTANCES, MOST_COLUMNS, DistanceFamily
from tests.support.compiled import build, prepare, ready
from tests.support.cuda_compilers import compile_text
from tests.support.emitting import emit_text

TOY = Target(
    replace(TARGETS["sm_80"].arch, name="sm_99", capability=(9, 9), device_library="toy"),
    replace(TARGETS["sm_80"].machine, name="Toy", arch="sm_99", processors=6),
)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that nobody knew: its operator, its row, and its device text."""
    monkeypatch.setitem(OPS, DISTANCES.name, DISTANCES)
    monkeypatch.setitem(FAMILIES, DistanceFamily.name, DistanceFamily())
    for library, written in (("cpp", "cpp"), ("sm90", "cuda")):
        files = (*DEVICE_FILES[library], distances.DEVICE_FILES[written])
        monkeypatch.setitem(DEVICE_FILES, library, files)


@pytest.fixture
def toy(families: None, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A GPU that nobody knew, which has the general device text and that of the family."""
    files = (*DEVICE_FILES["cuda"], distances.DEVICE_FILES["cuda"])
    monkeypatch.setitem(DEVICE_FILES, "toy", files)
    monkeypatch.setitem(TARGETS, TOY.name, TOY)
    return TOY


class Scaled(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(1 - torch.cdist(x, y)) * 2


class Nearest(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y).amin(-1)


def planned(module: nn.Module, inputs: Sequence[Tensor], name: str) -> Plan:
    graph, _ = rewrite(capture(module, inputs).graph)
    return plan(run_passes(graph, MatchContext(TARGETS[name])), TARGETS[name], ANCHORS)


MODULES = pytest.mark.parametrize("module", [Scaled(), Nearest()], ids=["scaled", "nearest"])


@MODULES
@pytest.mark.usefixtures("families")
def test_a_family_is_added_where_it_lies(module: nn.Module) -> None:
    """An operator, a match and an epilogue: what follows joins the kernel, as for any anchor."""
    inputs = (torch.randn(32, 8), torch.randn(64, 8))
    made = planned(module, inputs, "sm_90a")
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


@pytest.mark.usefixtures("families")
def test_what_a_family_refuses_is_a_kernel_of_another() -> None:
    inputs = (torch.randn(32, 8), torch.randn(2 * MOST_COLUMNS, 8))
    made = planned(Nearest(), inputs, "sm_90a")
    assert [k.family for k in made.kernels] == ["distances", "rowwise"]
    assert any("does not hold what is reduced" in note for note in made.notes)


@pytest.mark.parametrize("name", ["cpu", "sm_90a"])
def test_without_a_match_the_call_stays(name: str) -> None:
    made = planned(Scaled(), (torch.randn(32, 8), torch.randn(64, 8)), name)
    assert [step.node.called for step in made.libraries] == ["aten.cdist"]
    assert [k.family for k in made.kernels] == ["pointwise"]


# ---- a problem with the new family, on the CPU and for GPUs --------------------------------------


PROBLEM = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("centers", torch.randn({others}, 8))

        def forward(self, x):
            return {result}

    def get_inputs():
        return [torch.randn(40, 8)]

    def get_init_inputs():
        return []
"""
POINTS = {
    "all": PROBLEM.format(others=200, result="torch.relu(1 - torch.cdist(x, self.centers)) * 2"),
    "nearest": PROBLEM.format(others=100, result="torch.cdist(x, self.centers).amin(-1) + 1"),
}
PROBLEMS = pytest.mark.parametrize("problem", POINTS.values(), ids=POINTS.keys())


@PROBLEMS
def test_a_problem_with_a_new_family_on_a_new_gpu(
    problem: str, toy: Target, tmp_path: Path
) -> None:
    """Planned, printed, described and emitted; and what a tuner tries is remembered."""
    emitted = emit_text(problem, tmp_path, toy.name)
    made = emitted.made
    (kernel,) = made.plan.kernels
    assert (kernel.family, made.plan.libraries) == ("distances", ())
    assert "arch=compute_99,code=[sm_99,compute_99]" in emitted.text
    assert "return run_distances<64, " in emitted.text
    assert "all distances of a point" in made.record("points.py")
    assert [r.numeric.name for r in made.notes.rows] == ["float32, distances as float32"]
    ((_, nest, chosen),) = made.kernels
    (other,) = neighbours(chosen, nest, StrategyContext(toy, made.captured.graph))
    assert from_record(json.loads(json.dumps(as_record(other)))) == other
    assert "return run_distances<128, " in cuda_source([kernel_text(nest, other)], toy)


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["80", "90a"])
@PROBLEMS
def test_its_text_compiles(problem: str, arch: str, toy: Target, tmp_path: Path) -> None:
    made = emit_text(problem, tmp_path, toy.name).made
    options = ["-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    found = compile_text(cuda_source(made.texts, toy), options, tmp_path)
    assert any("distances_kernel" in usage.name for usage in found)


@pytest.mark.compiler
@PROBLEMS
@pytest.mark.usefixtures("families")
def test_it_runs_on_the_cpu(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "points.py"
    path.write_text(textwrap.dedent(problem).lstrip(), encoding="utf-8")
    case = prepare(path)
    assert [k.family for k in case.made.plan.kernels] == ["distances"]
    (module,) = build([case], tmp_path, processors=1)
    new = module.ModelNew(*module.get_init_inputs())
    new.load_state_dict(case.model.state_dict())
    assert ready(new, case.inputs)
    assert torch.allclose(new(*case.inputs), case.model(*case.inputs), atol=1e-5)


# ---- the families that there are -----------------------------------------------------------------


def test_every_anchor_has_one_family() -> None:
    owned = [op for family in FAMILIES.values() for op in family.anchors]
    assert sorted(owned) == sorted(op.name for op in OPS.values() if op.kind == "contraction")


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 1024)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        wide = torch.relu(self.linear(x))
        return wide, torch.softmax(y, -1), torch.cumsum(x, -1), torch.exp(z)


def test_each_kernel_has_its_family() -> None:
    inputs = (torch.randn(1024, 512), torch.randn(64, 100), torch.randn(7))
    made = planned(Several(), inputs, "sm_90a")
    found = {k.family: k for k in made.kernels}
    assert found.keys() == {"gemm", "rowwise", "scan", "pointwise"}
    for name, kernel in found.items():
        assert family_of(kernel).name == name
        assert (kernel.anchor is None) == (kernel.epilogue is None) == (name != "gemm")


def test_nobody_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FAMILIES, "pointwise")
    x = TensorExpr(node("input", shape=(3,), dtype=torch.float32, position=0))
    with pytest.raises(InternalError, match="No family has kernels of mul"):
        ANCHORS.family([(x * 2.0).node])


def test_reductions_are_apart() -> None:
    assert len({NoReduction(), Segment(1), Segment(64), AllColumns()}) == 4
