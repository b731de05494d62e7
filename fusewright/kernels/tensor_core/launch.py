"""Nest with a contraction + how its tile's kernel is called -> how it is printed and started."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.codegen.kernel_text import TYPES
from fusewright.codegen.launch import BodyPolicy, Call, Launch, WholeTensor
from fusewright.fusion.epilogue import Segment
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.tensor_core.prologue import Prologue
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KeepPolicy
from fusewright.loopnest.vector_width import starts_aligned, vector_tensors

# What is read again is still in shared memory or in L1, but values that cost something are kept.
KEEP_COMPUTED = BodyPolicy(KeepPolicy(keep=True, min_cost=1, shared_row=False))


@dataclass(frozen=True)
class TileCall:
    """How the device library's function that starts a tile's kernel is called, as C++ text.

    template_args: before the elements of an access; more_template_args: behind these.  arguments:
    behind the body.  pointers: how the entry declares the tensors that are read as a whole.
    workspace: bytes of scratch memory, as `Launch` has them.  structs, statements: as there, too.
    """

    function: str
    template_args: tuple[str | int, ...]
    more_template_args: tuple[str | int, ...]
    arguments: tuple[str, ...]
    pointers: tuple[str, ...]
    workspace: str = ""
    structs: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()

    def text(self, vector: int) -> Call:
        chosen = (*self.template_args, vector, *self.more_template_args)
        return Call(self.function, chosen, (*self.arguments, "device", "stream"))


def launch(nest: Nest, vector: int, prologue: Prologue, call: TileCall) -> Launch:
    """How a contraction and what follows it are started. vector: elements of an access.

    Tensors that are not aligned are copied before, so that nobody waits for a compiler that makes
    a second kernel for them; only where a result may lie askew in a joined tensor is there one.
    """
    both = zip(prologue.operands, call.pointers, strict=True)
    askew = not all(starts_aligned(n) for n in nest.kernel.outputs)
    return Launch(
        call.text(vector),
        vector,
        call.text(1) if askew else None,
        vector_tensors=vector_tensors(nest),
        workspace=call.workspace,
        whole_tensors=tuple(WholeTensor(p.tensor, text, p.aligned) for p, text in both),
        structs=call.structs,
        statements=call.statements,
    )


def left_and_right(n: Node) -> tuple[str, ...]:
    """The pointers of two factors."""
    stored = TYPES[n.dtype][0]
    return f"const {stored}* left", f"const {stored}* right"


def scratch(workspace: str) -> str:
    """How a launcher is given so many bytes of scratch memory."""
    return "workspace" if workspace else "nullptr"


def segment(kernel: Kernel) -> int:
    """How many neighbouring columns the kernel's reductions take of a tile, 0 without."""
    return kernel.reduction.columns if isinstance(kernel.reduction, Segment) else 0


def flag(value: bool) -> str:
    """A truth value of C++."""
    return str(value).lower()
