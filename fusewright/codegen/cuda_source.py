"""Bodies -> one CUDA source: skeleton sections, structs, and an `extern "C"` entry per kernel.

Entries take pointers (first the factors of a product, last scratch memory, if a kernel wants them),
the batch size, the device and the stream, and return a cudaError_t. If a pointer is not aligned for
vectors, the scalar instantiation runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusewright.codegen.body import body as print_body
from fusewright.codegen.dead_code import drop_unreached
from fusewright.codegen.device_library import sections_for
from fusewright.codegen.kernel_text import KernelText, words
from fusewright.ir.graph import size_text, times
from fusewright.kernels.gemm import launch
from fusewright.kernels.gemm.triangular_tiles import ALL, band
from fusewright.kernels.rowwise.row_cooperation import part_vectors, resident_reads
from fusewright.kernels.scan.chunks import CHUNK_EACH
from fusewright.kernels.schedule import Schedule, fallback
from fusewright.loopnest.nest import Nest, at_batch
from fusewright.loopnest.staged_transpose import staged_transpose
from fusewright.targets.target import Target

# kernels/rowwise/cuda/split_rows.cuh asserts the same numbers
SPLIT_BYTES, STRIPE_BYTES = 278528, 2113536
# What a thread of a map takes, in at most so many vectors: a GPU starts no more than so many blocks
# at a time. Twice of both where rows lie across memory.  facts.md: maps
MAP_BYTES, MAP_VECTORS = 16, 4
FEW = {"exponentials", "moments", "max", "min"}  # folds that want 16 loads in flight: facts.md
# Threads, elements of a thread in flight and in a part of a row; and in that of a row that lies
# across memory: of most folds, and of those that are dear.  facts.md: parts of rows
DEAR = {"exponentials", "moments", "argmax", "argmin"}
ROW_PARTS, STRIPE_PARTS = ((512, 8, 8), (256, 16, 32)), (64, 0)

Printed = tuple[KernelText, Nest, Schedule]
Spare = Sequence[tuple[KernelText, Schedule]]  # a kernel as it runs where its schedule cannot


def cuda_source(kernels: Sequence[Printed], target: Target) -> str:
    """The whole CUDA text of an emitted file.

    The structs have no name outside of it: what a skeleton remembers per kernel would otherwise be
    one variable for all files in a process whose kernels have the same name.
    """
    spares = [_spare(*kernel) for kernel in kernels]
    parts: list[str] = []
    for (body, nest, schedule), spare in zip(kernels, spares, strict=True):
        texts = [*_functions(body, nest), body.text, *(b.text for b, _ in spare)]
        parts += ["\n".join(["namespace {", *texts, "}"]), _entry(body, nest, schedule, spare)]
    generated = "\n\n".join([*parts, "}  // namespace fusewright"]) + "\n"
    library = target.arch.device_library
    assert library is not None, "a target has a device library"
    skeletons = sections_for(library, _words(kernels, generated))
    return f"{drop_unreached(skeletons, generated)}\n\n{generated}"


def launcher(body: KernelText, nest: Nest, schedule: Schedule) -> str:
    """The skeleton's function that starts the kernel."""
    if schedule.tile and nest.kernel.product:
        return launch.launcher(nest.kernel.product, schedule.tile)
    if schedule.down:
        return "run_map_down"
    if body.is_map:
        across = "run_map_staged" if schedule.staged else "run_map_across"
        return across if schedule.across > 1 else "run_map"
    if schedule.each:
        how = "_shared" if schedule.blocks > 1 else "_chained" * schedule.split
        return f"run_{'stripe' if schedule.across > 1 else 'row'}_chunks{how}"
    kind = "run_stripes" if schedule.across > 1 else "run_rows"
    if schedule.blocks > 1:
        meeting = "deferred" if schedule.deferred else "gathered"
        return f"{kind}_{meeting}" if schedule.split else f"{kind}_cluster"
    how = "in_parts" if body.passes == 1 else "split"  # nobody waits behind the only fold
    return f"{kind}_{how}" if schedule.split else kind


def _words(kernels: Sequence[Printed], generated: str) -> set[str]:
    """The sections of the skeletons that a text calls; two go with two others."""
    found = words(generated) - {"team"}  # what bodies call theirs
    if any(schedule.each and "span" in body.words for body, _, schedule in kernels):
        found.add("span_chunks")
    return found | {"band" for _, nest, _ in kernels if band(nest.kernel) != ALL}


def _functions(body: KernelText, nest: Nest) -> list[str]:
    """The structs that a kernel takes beside its body."""
    return launch.structs(nest.kernel.product, body.name) if nest.kernel.product else []


def whole(nest: Nest) -> list[str]:
    """The declarations of what a kernel reads as a whole: the entry's first pointers."""
    return launch.whole(nest.kernel.product) if nest.kernel.product else []


def _spare(body: KernelText, nest: Nest, schedule: Schedule) -> Spare:
    """The kernel as it runs where what keeps its rows cannot, if that may be."""
    if not (other := fallback(schedule, nest)):
        return []
    again, name = print_body(nest, other, body.in_place), f"{body.name}_again"
    text = again.text.replace(f"struct {body.name} ", f"struct {name} ", 1)
    return [(replace(again, name=name, text=text), other)]


def _entry(body: KernelText, nest: Nest, schedule: Schedule, spare: Spare) -> str:
    """The function that Python calls."""
    extra = ["void* workspace"] if workspace(nest, schedule) else []
    tail = ["long batch", "int device", "void* stream"]
    arguments = ", ".join([*whole(nest), *(p.declaration for p in body.pointers), *extra, *tail])
    lines = [f'extern "C" int run_{body.name}({arguments}) {{']
    for again, other in spare:  # for single elements, too
        unlike = [f"batch != {schedule.batch}"] * (schedule.batch > 0)
        unlike += [f"!{_are_aligned(body, nest, schedule)}"] * (schedule.vector > 1)
        if schedule.split:
            each = schedule.threads // schedule.blocks
            fit = "defers<{0}>" if schedule.deferred else "gathers<{0}, {1}>"
            unlike.append(f"!{fit.format(schedule.blocks, each)}(device)")
        lines += [f"  if ({' || '.join(unlike)}) {{"]
        lines += [*(f"  {line}" for line in _runs(again, nest, other)), "  }"]
    return "\n".join([*lines, *_runs(body, nest, schedule, bool(spare)), "}"])


def _runs(body: KernelText, nest: Nest, schedule: Schedule, aligned: bool = False) -> list[str]:
    """The lines that start the kernel, with vectors if pointers are aligned for them."""
    made = nest.kernel.product
    names = ", ".join([*(p.name for p in body.pointers), "batch"])
    lines = [f"  const {body.name} body{{{names}}};"]
    lines += [f"  {line}" for line in (launch.prepared(made, body.name) if made else ())]
    fast = _launch(body, nest, schedule, schedule.vector)
    if aligned or schedule.vector == 1 or not _vectors(body, nest, schedule):
        return [*lines, f"  return {fast};"]
    able = f"batch % {schedule.staged} == 0 && " if schedule.staged > 1 else ""
    lines.append(f"  if ({able}{_are_aligned(body, nest, schedule)}) return {fast};")
    return [*lines, f"  return {_launch(body, nest, replace(schedule, staged=0), 1)};"]


def _are_aligned(body: KernelText, nest: Nest, schedule: Schedule) -> str:
    return f"aligned<{schedule.vector}>({', '.join(_vectors(body, nest, schedule))})"


def _vectors(body: KernelText, nest: Nest, schedule: Schedule) -> list[str]:
    """The pointers that are walked by vectors."""
    accesses = [*nest.reads.values(), *nest.writes.values()]
    staged = schedule.staged > 0
    moving = {id(a.leaf) for a in accesses if a.varies and (a.columns == 1 or staged)}
    return [p.name for p in body.pointers if id(p.node) in moving]


def workspace(nest: Nest, schedule: Schedule) -> str:
    """Bytes of scratch memory that the kernel takes behind its tensors, as Python text with a slot
    for the batch size, or ""."""
    if schedule.tile and nest.kernel.product:
        return launch.workspace(nest.kernel.product, schedule.tile)
    size = STRIPE_BYTES if schedule.across > 1 else SPLIT_BYTES
    return str(size) if schedule.split else ""


def _each(nest: Nest, schedule: Schedule, vector: int) -> int:
    """How many vectors a thread of a map takes."""
    twice = 2 if schedule.across > 1 else 1
    moving = [a for a in (*nest.reads.values(), *nest.writes.values()) if a.varies]
    widest = max((a.leaf.dtype.itemsize for a in moving), default=MAP_BYTES)  # of one number
    return min(twice * MAP_VECTORS, max(1, twice * MAP_BYTES // (widest * vector)))


def _launch(body: KernelText, nest: Nest, schedule: Schedule, vector: int) -> str:
    if schedule.tile and nest.kernel.product:
        return launch.launch(nest, nest.kernel.product, schedule.tile, vector)
    rows = size_text(nest.rows)
    if schedule.staged and (found := staged_transpose(nest)):
        sizes = ", ".join(map(size_text, (nest.rows, nest.columns, found.side, found.step)))
        parameters = f"{vector}, {len(found.reads)}"
        return f"{launcher(body, nest, schedule)}<{parameters}>(body, {sizes}, device, stream)"
    if schedule.down:
        sizes = ", ".join(map(size_text, (nest.rows, nest.outer, nest.columns)))
        shape = f"{schedule.down}, {vector}"
        return f"{launcher(body, nest, schedule)}<{shape}>(body, {sizes}, device, stream)"
    if body.is_map:
        columns, each = size_text(nest.columns), _each(nest, schedule, vector)
        sizes = f"{vector}, {each}" if each > 1 else f"{vector}"
        return f"{launcher(body, nest, schedule)}<{sizes}>(body, {rows}, {columns}, device, stream)"
    if schedule.each:
        return _chunk_launch(body, nest, schedule, vector)
    scratch = "workspace, " if schedule.split else ""
    sizes = f"{schedule.threads}, {vector}"
    if schedule.blocks > 1:
        sizes = f"{schedule.blocks}, {schedule.threads // schedule.blocks}, {vector}"
        sizes += _part(nest, schedule) if schedule.deferred else ""
    elif schedule.split:  # what several passes read fits L2
        sizes = f"512, {vector}" + ", 4" * (body.passes > 1)
    if schedule.across > 1:  # several passes have few threads, so more loads in flight
        few = body.passes > 1 or body.words & FEW
        more = (16 if few else 8) if schedule.split else vector
        sizes = f"{schedule.threads}, {schedule.across}" + (f", {more}" if more > 1 else "")
    if schedule.split and schedule.blocks == 1 and body.passes == 1:
        sizes = _in_parts(body, nest, sizes if schedule.across > 1 else "", vector)
        rows += f", {size_text(times(nest.outer, nest.columns))}"
    return f"{launcher(body, nest, schedule)}<{sizes}>(body, {rows}, {scratch}device, stream)"


def _in_parts(body: KernelText, nest: Nest, stripe: str, vector: int) -> str:
    """Threads of a row, its vector, accesses of a thread in flight (or what is said of a stripe),
    those in a part of the row, what a part of the only folds takes, and whether rows lie inside of
    each other, so that parts of all of them are read at the same time."""
    dear = bool(body.words & DEAR)
    folds, size = {f.op for f in nest.kernel.folds}, 4
    for f in nest.kernel.folds:
        kind = f.args[0].dtype
        wide = kind.itemsize == 8 or (kind == torch.bool and f.op in ("sum", "prod"))
        size = 8 if wide else size
    size *= 4 if folds & {"argmax", "argmin"} else 3 if "m2" in folds else len(folds)
    threads, *some = ROW_PARTS[dear]
    row = [threads, vector, *(max(2, n // vector) for n in some)]
    if stripe:
        return f"{stripe}, {STRIPE_PARTS[dear]}, {size}"
    return ", ".join(map(str, [*row, size])) + ", true" * (nest.outer != 1)


def _part(nest: Nest, schedule: Schedule) -> str:
    """What a block of a deferred row has of it, so many vectors of 16 bytes for each thread, and of
    how many tensors its registers keep as much."""
    vectors = part_vectors(nest, schedule.threads * schedule.vector, schedule.batch)
    size = vectors * 16 * schedule.threads // schedule.blocks
    still = len(resident_reads(at_batch(nest, schedule.batch), vectors))
    return f", {size}" + f", {still}" * (still > 0)


def _chunk_launch(body: KernelText, nest: Nest, schedule: Schedule, vector: int) -> str:
    """How rows are scanned in chunks: from the first one on, or back from the last."""
    shape = (schedule.blocks,) * (schedule.blocks > 1) + (schedule.threads // schedule.blocks,)
    each = schedule.each if vector > 1 or schedule.across > 1 else min(schedule.each, CHUNK_EACH)
    shape += (schedule.across if schedule.across > 1 else vector, each)
    back = ", true" * any(f.op.endswith("_back") for f in nest.kernel.folds)
    rows, columns = size_text(nest.rows), size_text(times(nest.outer, nest.columns))
    sizes = f"{', '.join(map(str, shape))}{back}"
    given = f"body, {rows}, {columns}, " + "workspace, " * schedule.split
    return f"{launcher(body, nest, schedule)}<{sizes}>({given}device, stream)"
