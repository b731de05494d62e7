"""A family that fusewright does not have: distances between points, as one might add it.

All of it lies here and in the two texts beside it: its operator, which calls it takes, what may
follow a tile, how a kernel runs, and the device text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewright.codegen.launch import BodyPolicy, Call, Launch, WholeTensor
from fusewright.fusion.axes import Incompatible, LoopAxes, read_walks
from fusewright.fusion.epilogue import Epilogue, NoReduction, Segment
from fusewright.fusion.planner import Kernel, elements, nbytes
from fusewright.ir.builder import TensorExpr, copy
from fusewright.ir.graph import Graph, Node, node, rebuild, size_text
from fusewright.ir.operators import Operator
from fusewright.kernels.interface import Description, KernelFamily, MatchContext, StrategyContext
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KEEP_ALL
from fusewright.targets.target import Target

DISTANCES = Operator("distances", "contraction", 2, "", "torch.cdist({0}, {1})", cost=0)
FOLDER = Path(__file__).parent
DEVICE_FILES = {"cpp": str(FOLDER / "distances.h"), "cuda": str(FOLDER / "distances.cuh")}
MOST_COLUMNS = 128  # of a tile


@dataclass(frozen=True)
class CpuPoints:
    """Each thread takes points, and all distances of one after the other."""


@dataclass(frozen=True)
class PointBlocks:
    """A thread block takes a point. threads: of the block."""

    threads: int


class DistanceFamily(KernelFamily):
    """Distances between points, a tile of them at a time; rows are reduced if a tile has them."""

    name = "distances"
    stage = "distances"
    anchors = frozenset({DISTANCES.name})
    strategies = (CpuPoints, PointBlocks)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        def change(n: Node) -> Node:
            if n.op != "library" or n.called != "aten.cdist" or len(n.shape) != 2:
                return n
            made = node("distances", n.args[:2], shape=n.shape, dtype=n.dtype)
            return copy(TensorExpr(made)).node

        return rebuild(graph, change)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        (anchor,) = (m for m in members if m.op in self.anchors)
        *lead, columns = axes.dims[id(anchor)]
        rows = tuple(a for d in lead for a in d)
        if any(w.limits for w in read_walks(axes).values()):
            raise Incompatible("a tile of distances reads whole tensors")
        if not axes.inner:
            return Epilogue(rows, columns, NoReduction())
        width = anchor.shape[-1]
        if axes.inner != {*columns} or not isinstance(width, int) or width > MOST_COLUMNS:
            raise Incompatible("a tile of distances does not hold what is reduced")
        return Epilogue(rows, columns, Segment(width))

    def default(self, nest: Nest, context: StrategyContext, /) -> CpuPoints | PointBlocks:
        return CpuPoints() if context.target.language == "cpp" else PointBlocks(64)

    def neighbours(
        self, default: CpuPoints | PointBlocks, nest: Nest, context: StrategyContext, /
    ) -> Sequence[PointBlocks]:
        return [PointBlocks(128)] if isinstance(default, PointBlocks) else []

    def launch(self, nest: Nest, strategy: CpuPoints | PointBlocks, /) -> tuple[BodyPolicy, Launch]:
        anchor = nest.kernel.anchor
        assert anchor is not None, "distances have an anchor"
        points, others = anchor.args
        reductions = str(nest.kernel.reduction != NoReduction()).lower()
        sizes = map(size_text, (*anchor.shape, points.shape[-1]))
        call = Call("run_distances", (reductions,), ("left", "right", *sizes))
        if isinstance(strategy, PointBlocks):
            chosen = (strategy.threads, *call.template_args)
            call = Call(call.function, chosen, (*call.call_args, "device", "stream"))
        both = (WholeTensor(points, "const float* left"), WholeTensor(others, "const float* right"))
        return BodyPolicy(KEEP_ALL), Launch(call, whole_tensors=both)

    def describe(
        self, kernel: Kernel, strategy: CpuPoints | PointBlocks, context: StrategyContext, /
    ) -> Description:
        anchor, graph = kernel.anchor, context.graph
        assert anchor is not None, "distances have an anchor"
        flops = 3 * elements(anchor, graph) * graph.hint(anchor.args[0].shape[-1])
        moved = sum(nbytes(n, graph) for n in anchor.args)
        rate = context.target.machine.matmul_flops
        return Description(("all distances of a point",), "float32", moved, flops, rate)
