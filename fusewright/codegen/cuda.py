"""Bodies -> one CUDA source: skeleton sections, structs, and an `extern "C"` entry per kernel.

Entries take pointers (first the factors of a product, last scratch memory, if a kernel wants them),
the batch size, the device and the stream, and return a cudaError_t. If a pointer is not aligned for
vectors, the scalar instantiation runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.body import TYPES, Body
from fusewright.codegen.skeleton import text_for
from fusewright.ir import Node, size_text
from fusewright.nest import Nest
from fusewright.product import Factor, batches, factors, is_half
from fusewright.schedule import PART_BLOCKS, Schedule
from fusewright.target import Target
from fusewright.tile import SPLIT_ROWS, Tile

SPLIT_BYTES = 270336  # skeletons/cuda/launch.cuh asserts the same number


def cuda_source(kernels: Sequence[tuple[Body, Nest, Schedule]], target: Target) -> str:
    """The whole CUDA text of an emitted file.

    The structs have no name outside of it: what a skeleton remembers per kernel would otherwise be
    one variable for all files in a process whose kernels have the same name.
    """
    parts = [text_for(target.product or "cuda", _words(kernels))]
    for body, nest, schedule in kernels:
        parts += [f"namespace {{\n{body.text}\n}}", _entry(body, nest, schedule)]
    return "\n\n".join([*parts, "}  // namespace fusewright"]) + "\n"


def launcher(body: Body, nest: Nest, schedule: Schedule) -> str:
    """The skeleton's function that starts the kernel."""
    if schedule.tile and nest.kernel.product:
        inline = "_inline" * schedule.tile.inline
        return "run_product_half" if is_half(nest.kernel.product) else f"run_product{inline}"
    if body.is_map:
        return "run_map"
    return "run_rows_split" if schedule.split else "run_rows"


def _words(kernels: Sequence[tuple[Body, Nest, Schedule]]) -> set[str]:
    words = {"aligned"}
    for body, nest, schedule in kernels:
        words |= body.words | {launcher(body, nest, schedule)}
        words |= {p.stored for p in body.pointers} & {"half_t", "bfloat_t"}
    return words


def _entry(body: Body, nest: Nest, schedule: Schedule) -> str:
    """The function that Python calls."""
    product = nest.kernel.product
    stored = TYPES[product.dtype][0] if product else ""
    whole = [f"const {stored}* left", f"const {stored}* right"] if product else []
    extra = ["void* workspace"] if workspace(nest, schedule) else []
    tail = ["long batch", "int device", "void* stream"]
    arguments = ", ".join([*whole, *(p.declaration for p in body.pointers), *extra, *tail])
    names = ", ".join([*(p.name for p in body.pointers), "batch"])
    lines = [
        f'extern "C" int run_{body.name}({arguments}) {{',
        f"  const {body.name} body{{{names}}};",
    ]
    if schedule.vector > 1:
        moving = ", ".join(_vectors(body, nest))
        fast = _launch(body, nest, schedule, schedule.vector)
        lines.append(f"  if (aligned<{schedule.vector}>({moving})) return {fast};")
    lines.append(f"  return {_launch(body, nest, schedule, 1)};")
    return "\n".join([*lines, "}"])


def _vectors(body: Body, nest: Nest) -> list[str]:
    """The pointers that are walked by vectors."""
    accesses = [*nest.reads.values(), *nest.writes.values()]
    moving = {id(a.leaf) for a in accesses if a.varies and a.columns == 1}
    return [p.name for p in body.pointers if id(p.node) in moving]


def workspace(nest: Nest, schedule: Schedule) -> str:
    """Bytes of scratch memory that the kernel takes behind its tensors, as Python text, or ""."""
    if nest.kernel.product and is_half(nest.kernel.product):
        return ""
    if schedule.tile and schedule.tile.inline:
        return ""
    if schedule.tile and nest.kernel.product:
        left, right = factors(nest.kernel.product)
        return (left if schedule.tile.swapped else right).packed_bytes + _sums(schedule.tile)
    return str(SPLIT_BYTES) if schedule.split else ""


def _sums(tile: Tile) -> str:
    """Room for the sums of every thread block, and two counts for each; `parts_of` needs it."""
    return f" + {PART_BLOCKS * (SPLIT_ROWS * tile.width * 4 + 8)}" if tile.parts > 1 else ""


def _launch_product(nest: Nest, product: Node, tile: Tile, vector: int) -> str:
    swapped = "true" if tile.swapped else "false"
    left, right = factors(product)
    half = is_half(product)
    given = [
        _half_factor(f, name) if half else f"{{{name}, {', '.join(map(size_text, f.strides))}}}"
        for name, f in (("left", left), ("right", right))
    ]
    sizes = map(size_text, (batches(product), left.rows, right.rows, left.depth))
    chosen = f"{tile.width}, {swapped}, {nest.segment}, {vector}"
    chosen += f", {tile.parts}" if tile.parts > 1 else ""
    extra = [] if half or tile.inline else ["workspace"]
    numbers = ", ".join([*given, *sizes, *extra, "device", "stream"])
    how = "_half" * half + "_inline" * tile.inline
    return f"run_product{how}<{chosen}>(body, {numbers})"


def _half_factor(f: Factor, name: str) -> str:
    kind = TYPES[f.tensor.dtype][0] + ", true" * f.turned
    return f"half_factor<{kind}>{{{name}, {size_text(f.batch_stride)}, {size_text(f.line_stride)}}}"


def _launch(body: Body, nest: Nest, schedule: Schedule, vector: int) -> str:
    if schedule.tile and nest.kernel.product:
        return _launch_product(nest, nest.kernel.product, schedule.tile, vector)
    rows = size_text(nest.rows)
    if body.is_map:
        return f"run_map<{vector}>(body, {rows}, {size_text(nest.columns)}, device, stream)"
    if schedule.split:
        return f"run_rows_split<512, {vector}>(body, {rows}, workspace, device, stream)"
    return f"run_rows<{schedule.threads}, {vector}>(body, {rows}, device, stream)"
