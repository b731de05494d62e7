"""What every family of kernels answers: which nodes are its anchors, and what may follow them.

A family is a package of `kernels/` and one row of `registry.FAMILIES`. The stages before it know
none of them: the compiler hands over what they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Graph, Node
from fusewright.targets.target import Target

Tf32Probe = Callable[[Node], bool]


@dataclass(frozen=True)
class Context:
    """What a family is told beside the graph.

    precision: "eager" or "ieee".  rules: of `optimize --rules`.  probe: whether PyTorch's own
    convolution of a kind rounds as TF32 does, which may differ from size to size; None: nobody has
    asked a GPU.
    """

    target: Target
    precision: str = "eager"
    rules: frozenset[str] = frozenset()
    probe: Tf32Probe | None = None


class KernelFamily(Protocol):
    """One family. What it does not say is as for kernels without an anchor.

    name: also the folder in `kernels/`.  anchors: the operators of the table that it computes tile
    by tile, each of which has one family.  stage: what people read where its `match` is left out,
    so that calls stay PyTorch's; "": it matches none.
    """

    name: str
    stage: str = ""
    anchors: frozenset[str] = frozenset()

    def owns(self, members: Sequence[Node]) -> bool:
        """Whether a kernel of these members is one of this family, if of none before it."""
        return any(m.op in self.anchors for m in members)

    def match(self, graph: Graph, context: Context) -> Graph:
        """Write the library calls that its kernels compute as nodes; others say why they stay."""
        return graph

    def check(self, members: Sequence[Node], target: Target) -> None:
        """Raise Incompatible where a kernel of any family cannot have its members beside others."""
        return

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        """What follows the anchor in a kernel of this family; or raise Incompatible."""
        return None
