"""The families of kernels: who computes which kernel, what it may do, and that as text.

Only the compiler, reports and the tuner import it: the stages between get what they ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, get_args, get_type_hints

from fusewright.codegen.body import body
from fusewright.codegen.kernel_symbols import CXX_NAMES
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.shared_kernels import KernelStep, SharedKernels, share
from fusewright.codegen.value_names import NUMBERED, ValueNames
from fusewright.errors import InternalError
from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.attention.family import AttentionFamily
from fusewright.kernels.attention.tile import AttentionTile
from fusewright.kernels.conv.family import ConvFamily
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.gemm.family import GemmFamily
from fusewright.kernels.gemm.tile import GemmTile
from fusewright.kernels.interface import KernelFamily, StrategyContext
from fusewright.kernels.pointwise import strategy as pointwise
from fusewright.kernels.pointwise.family import PointwiseFamily
from fusewright.kernels.rowwise import strategy as rowwise
from fusewright.kernels.rowwise.family import RowwiseFamily
from fusewright.kernels.scan import strategy as scan
from fusewright.kernels.scan.family import ScanFamily
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

Strategy = (
    pointwise.PointwiseStrategy
    | rowwise.RowwiseStrategy
    | scan.ScanStrategy
    | GemmTile
    | ConvTile
    | AttentionTile
)
Printed = tuple[KernelText, Nest, Strategy]  # a step of the plan that is a kernel
NO_GROUPS: Mapping[str, str] = {}

# By name. Calls are matched in this order: attention holds products. Of kernels without an anchor,
# one that scans is a scan, also if it reduces, too; what neither scans nor reduces is a map.
FAMILIES: Mapping[str, KernelFamily] = {
    family.name: family
    for family in (
        AttentionFamily(),
        GemmFamily(),
        ConvFamily(),
        ScanFamily(),
        RowwiseFamily(),
        PointwiseFamily(),
    )
}


class RegisteredAnchors:
    """What the planner asks, answered by the family that owns a kernel's members: that of its
    anchor, else the first that says so."""

    def family(self, members: Sequence[Node]) -> str:
        return self._owner(members).name

    def check(self, members: Sequence[Node], target: Target) -> None:
        for family in FAMILIES.values():
            family.check(members, target)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return self._owner(members).epilogue(members, axes, outputs, target)

    def _owner(self, members: Sequence[Node]) -> KernelFamily:
        ops = {m.op for m in members}
        owners = (f for f in FAMILIES.values() if f.anchors & ops)
        owner = next(owners, None) or next((f for f in FAMILIES.values() if f.owns(members)), None)
        if owner is None:
            raise InternalError(f"No family has kernels of {', '.join(m.op for m in members)}.")
        return owner


ANCHORS = RegisteredAnchors()


def family_of(kernel: Kernel) -> KernelFamily:
    """The family that the planner was told for a kernel."""
    return FAMILIES[kernel.family]


def default_strategy(nest: Nest, context: StrategyContext) -> Strategy:
    """How a kernel runs on a machine where nothing was tried."""
    found: Strategy = family_of(nest.kernel).default(nest, context)
    return found


def neighbours(default: Strategy, nest: Nest, context: StrategyContext) -> Sequence[Strategy]:
    """What else a kernel may do, the most promising first. Some may come to the same text."""
    return family_of(nest.kernel).neighbours(default, nest, context)


def kernel_text(
    nest: Nest,
    strategy: Strategy,
    in_place: Sequence[tuple[Node, Node]] = (),
    names: ValueNames = NUMBERED,
) -> KernelText:
    """A kernel as text; `in_place` pairs (result, leaf whose memory it takes over).

    names: of its values; numbered, so that kernels that are equal but for these have one text.
    """
    policy, launch = family_of(nest.kernel).launch_with(nest, strategy, names)
    return body(nest, policy, launch, in_place, names)


def shared_kernels(
    kernels: Sequence[Printed],
    language: str,
    names: ValueNames = NUMBERED,
    groups: Mapping[str, str] = NO_GROUPS,
) -> SharedKernels:
    """Which of the kernels run which function.

    names: of the values in functions.  groups: what each kernel shares within, by its name.
    """
    steps = [kernel_step(kernel, names, groups.get(kernel[0].name, "")) for kernel in kernels]
    return share(steps, language, CXX_NAMES)


def kernel_step(kernel: Printed, names: ValueNames = NUMBERED, group: str = "") -> KernelStep:
    """A kernel that may be printed under other names."""
    text, nest, strategy = kernel
    printed = partial(_printed_as, nest, strategy, text.in_place)
    return KernelStep(text.name, partial(printed, NUMBERED), partial(printed, names), group)


def _printed_as(
    nest: Nest,
    strategy: Strategy,
    in_place: Sequence[tuple[Node, Node]],
    names: ValueNames,
    name: str,
) -> KernelText:
    kernel = replace(nest.kernel, name=name)
    return kernel_text(replace(nest, kernel=kernel), strategy, in_place, names)


# ---- strategies on disk --------------------------------------------------------------------------


def as_record(strategy: Strategy) -> dict[str, Any]:
    """A strategy as JSON has it: its family, its type, and its fields."""
    (name,) = (f.name for f in FAMILIES.values() if type(strategy) in f.strategies)
    return {"family": name, **_written(strategy)}


def from_record(record: Mapping[str, Any]) -> Strategy | None:
    """The strategy that JSON has; None for a type that there is not, or not with these fields.

    Raises KeyError for what is no record of a strategy.
    """
    family, name, values = record["family"], record["type"], record["fields"]
    try:
        found: Strategy = _read(FAMILIES[family].strategies, name, values)
    except (KeyError, TypeError):
        return None
    return found


def _written(record: Any) -> dict[str, Any]:
    """A record with its type, and so are those of its fields that are records, too."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {
        "type": type(record).__name__,
        "fields": {k: _written(v) if is_dataclass(v) else v for k, v in values.items()},
    }


def _read(types: Iterable[type], name: str, values: Mapping[str, Any]) -> Any:
    """The record of one of these types that has the name."""
    kind = {t.__name__: t for t in types}[name]
    hints = get_type_hints(kind)
    return kind(
        **{
            field: _read(get_args(hints[field]) or (hints[field],), value["type"], value["fields"])
            if isinstance(value, dict)
            else value
            for field, value in values.items()
        }
    )
