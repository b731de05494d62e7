"""What every family of kernels answers: its anchors, what may follow them, how kernels run.

A family is a package of `kernels/` and one row of `registry.FAMILIES`. The stages before it know
none of them: the compiler hands over what they ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.codegen.value_names import ValueNames
from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

Tf32Probe = Callable[[Node], bool]


@dataclass(frozen=True)
class MatchContext:
    """What a family is told where it matches calls, beside the graph.

    precision: "eager" or "ieee".  rules: of `optimize --rules`.  is_here: whether the target is
    this machine's own GPU, which can be asked what PyTorch does on it.
    """

    target: Target
    precision: str = "eager"
    rules: frozenset[str] = frozenset()
    is_here: bool = False


@dataclass(frozen=True)
class StrategyContext:
    """What a strategy is chosen for. rules: of `optimize --rules`; scratch memory that they forbid
    is used where nothing else works."""

    target: Target
    graph: Graph
    rules: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Description:
    """What reports say of a kernel and how it runs, beside what its members and tensors show.

    why: how it computes, in lines.  The rest is said of its anchor, if it has one. numeric: the
    class in which it is computed.  nbytes: what is moved for it.  flops: its operations, and how
    many of them the target's machine does in a second (a prediction).
    """

    why: tuple[str, ...]
    numeric: str = ""
    nbytes: int = 0
    flops: int = 0
    flops_per_s: float = math.inf


@dataclass(frozen=True)
class FullFloat32:
    """The emitted guard asks whether PyTorch's own products of float32 are in full precision."""


@dataclass(frozen=True)
class RoundsAsTf32:
    """The emitted guard asks whether PyTorch's own convolution rounds as TF32 does.

    arguments: of `_fusewright_conv_uses_tf32`, as texts with a slot for the batch size.
    """

    arguments: tuple[str, ...]


Condition = FullFloat32 | RoundsAsTf32


class KernelFamily(Protocol):
    """One family. What it does not say is as for kernels without an anchor.

    name: also the folder in `kernels/`.  anchors: the operators of the table that it computes tile
    by tile, each of which has one family.  stage: what people read where its `match` is left out,
    so that calls stay PyTorch's; "": it matches none.  strategies: the types of its strategies.
    workspace_advice: what is said where a user forbids the
    scratch memory that a kernel with an anchor takes.
    """

    name: str
    stage: str = ""
    anchors: frozenset[str] = frozenset()
    strategies: tuple[type, ...] = ()
    workspace_advice: str = ""

    def owns(self, members: Sequence[Node]) -> bool:
        """Whether a kernel without an anchor is one of this family, if of none before it."""
        return False

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        """Write the library calls that its kernels compute as nodes; others say why they stay."""
        return graph

    def refine(self, graph: Graph, target: Target) -> Graph:
        """Rewrite what stands around its anchors, once other calls are written as nodes."""
        return graph

    def check(self, members: Sequence[Node], target: Target) -> None:
        """Raise Incompatible where a kernel of any family cannot have its members beside others."""
        return

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        """What follows the anchor in a kernel of this family; or raise Incompatible."""
        return None

    def default(self, nest: Nest, context: StrategyContext, /) -> Any:
        """How a kernel runs where nothing was tried: a frozen record of the family, its strategy,
        which holds all that a tuner may change. Sizes alone decide: the same model gives the same
        file on every machine of a kind."""
        ...

    def neighbours(self, default: Any, nest: Nest, context: StrategyContext, /) -> Sequence[Any]:
        """What else a kernel may do, the most promising first; some may come to the same text."""
        ...

    def launch(self, nest: Nest, strategy: Any, /) -> tuple[BodyPolicy, Launch]:
        """How a kernel is printed and started."""
        ...

    def launch_with(
        self, nest: Nest, strategy: Any, names: ValueNames, /
    ) -> tuple[BodyPolicy, Launch]:
        """`launch`, with these names in what a launch writes of values beside the body."""
        return self.launch(nest, strategy)

    def describe(self, kernel: Kernel, strategy: Any, context: StrategyContext, /) -> Description:
        """What reports say of a kernel."""
        return Description(("one pass: each element depends on the same element of its operands",))

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """What the emitted guard asks, so that a kernel is as precise as eager."""
        return ()
