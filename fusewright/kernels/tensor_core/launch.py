"""Nest with a contraction + its tile and variant -> how it is printed and started."""

from __future__ import annotations

from fusewright.codegen.launch import BodyPolicy, Call, Launch, WholeTensor
from fusewright.errors import InternalError
from fusewright.fusion.epilogue import Segment
from fusewright.fusion.planner import Kernel
from fusewright.kernels.tensor_core.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.tensor_core.strategy import TensorCoreTile
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KeepPolicy
from fusewright.loopnest.vector_width import vector_tensors

# What is read again is still in shared memory or in L1, but values that cost something are kept.
KEEP_COMPUTED = KeepPolicy(keep=True, min_cost=1, shared_row=False)


def launch(
    variant: Variant, nest: Nest, strategy: TensorCoreTile, some: DiagonalBand
) -> tuple[BodyPolicy, Launch]:
    """How what follows a contraction is printed, and how both are started.

    some: the elements of the contraction that are not thrown away.
    """
    product, name, tile = nest.kernel.anchor, nest.kernel.name, strategy.tile
    if product is None:
        raise InternalError("A tile is a contraction's.")
    kind, launcher = variant.for_tile(tile), variant.launcher_for(tile)
    workspace = launcher.workspace(product, tile)
    arguments = launcher.arguments(product, "workspace" if workspace else "nullptr")

    def call(vector: int) -> Call:
        chosen = launcher.template_args(product, tile, segment(nest.kernel), vector)
        return Call(launcher.function, tuple(chosen), (*arguments, "device", "stream"))

    masked, boxed = some != ALL, kind.boxed[tile.swapped]
    constants = {"least": some.least, "most": some.most} if masked else {}
    tensors = zip(kind.whole(product), launcher.pointers(product), strict=True)
    whole = (WholeTensor(n, pointer, k in boxed) for k, (n, pointer) in enumerate(tensors))
    return BodyPolicy(KEEP_COMPUTED, struct_constants=constants), Launch(
        call(strategy.vector),
        strategy.vector,
        call(1),
        vector_tensors=vector_tensors(nest),
        workspace=workspace,
        whole_tensors=tuple(whole),
        structs=tuple(launcher.structs(product, name)),
        statements=tuple(launcher.statements(product, name)),
        needs=frozenset({"band"} if masked else ()),
    )


def segment(kernel: Kernel) -> int:
    """How many neighbouring columns the kernel's folds take of a tile, 0 without."""
    return kernel.reduction.columns if isinstance(kernel.reduction, Segment) else 0


def flag(value: bool) -> str:
    """A truth value of C++."""
    return str(value).lower()
