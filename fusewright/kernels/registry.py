"""The families of kernels: who computes which kernel, what it may do, and that as text.

Only the compiler, reports and the tuner import it: the stages between get what they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, get_args

from fusewright.codegen.body import body
from fusewright.codegen.kernel_text import KernelText
from fusewright.errors import InternalError
from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.attention.family import AttentionFamily
from fusewright.kernels.conv.family import ConvFamily
from fusewright.kernels.gemm.family import GemmFamily
from fusewright.kernels.interface import KernelFamily, StrategyContext
from fusewright.kernels.pointwise import strategy as pointwise
from fusewright.kernels.pointwise.family import PointwiseFamily
from fusewright.kernels.rowwise import strategy as rowwise
from fusewright.kernels.rowwise.family import RowwiseFamily
from fusewright.kernels.scan import strategy as scan
from fusewright.kernels.scan.family import ScanFamily
from fusewright.kernels.tensor_core.strategy import TensorCoreTile
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

Strategy = (
    pointwise.PointwiseStrategy | rowwise.RowwiseStrategy | scan.ScanStrategy | TensorCoreTile
)

# Those with anchors first, since a kernel is its anchor's; then a kernel that scans is a scan,
# also if it folds, too. Calls are matched in this order: attention holds products.
FAMILIES: tuple[KernelFamily, ...] = (
    AttentionFamily(),
    GemmFamily(),
    ConvFamily(),
    ScanFamily(),
    RowwiseFamily(),
    PointwiseFamily(),
)


@dataclass(frozen=True)
class RegisteredAnchors:
    """What the planner asks, answered by the first family that owns a kernel's members."""

    families: tuple[KernelFamily, ...] = FAMILIES

    def family(self, members: Sequence[Node]) -> str:
        return self._owner(members).name

    def check(self, members: Sequence[Node], target: Target) -> None:
        for family in self.families:
            family.check(members, target)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return self._owner(members).epilogue(members, axes, outputs, target)

    def _owner(self, members: Sequence[Node]) -> KernelFamily:
        found = next((f for f in self.families if f.owns(members)), None)
        if found is None:
            raise InternalError(f"No family has kernels of {', '.join(m.op for m in members)}.")
        return found


ANCHORS = RegisteredAnchors()


def family_of(kernel: Kernel) -> KernelFamily:
    """The family that the planner was told for a kernel."""
    return next(f for f in FAMILIES if f.name == kernel.family)


def default_strategy(nest: Nest, context: StrategyContext) -> Strategy:
    """How a kernel runs on a machine where nothing was tried."""
    found: Strategy = family_of(nest.kernel).default(nest, context)
    return found


def neighbours(default: Strategy, nest: Nest, context: StrategyContext) -> Sequence[Strategy]:
    """What else a kernel may do, the most promising first. Some may come to the same text."""
    return family_of(nest.kernel).neighbours(default, nest, context)


def kernel_text(
    nest: Nest, strategy: Strategy, in_place: Sequence[tuple[Node, Node]] = ()
) -> KernelText:
    """A kernel as text; `in_place` pairs (result, leaf whose memory it takes over)."""
    policy, launch = family_of(nest.kernel).launch(nest, strategy)
    return body(nest, policy, launch, in_place)


# ---- strategies on disk --------------------------------------------------------------------------

# Package -> its records.
RECORDS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "pointwise": get_args(pointwise.PointwiseStrategy),
        "rowwise": get_args(rowwise.RowwiseStrategy),
        "scan": (scan.ScanInRegisters, *get_args(scan.InChunks)),
        "tensor_core": (TensorCoreTile,),
    }
)


def as_record(strategy: Strategy) -> dict[str, Any]:
    """A strategy as JSON has it."""
    family = next(name for name, types in RECORDS.items() if type(strategy) in types)
    return {
        "family": family,
        "type": type(strategy).__name__,
        "fields": asdict(strategy),
    }


def from_record(record: Mapping[str, Any]) -> Strategy | None:
    """The strategy that JSON has; None for a type that there is not, or not with these fields."""
    types = {t.__name__: t for t in RECORDS.get(record["family"], ())}
    given = dict(record["fields"])
    try:
        if "tile" in given:
            given["tile"] = Tile(**given["tile"])
        found: Strategy = types[record["type"]](**given)
    except (KeyError, TypeError):
        return None
    return found
