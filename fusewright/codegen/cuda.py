"""Bodies -> one CUDA source: skeleton sections, structs, and an `extern "C"` entry per kernel.

Entries take pointers (the last one to scratch memory, if a kernel wants it), the batch size, the
device and the stream, and return a cudaError_t. If a pointer is not aligned for vectors, the scalar
instantiation runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.body import Body
from fusewright.codegen.skeleton import text_for
from fusewright.ir import Size, size_text
from fusewright.nest import Nest
from fusewright.schedule import Schedule


def cuda_source(kernels: Sequence[tuple[Body, Nest, Schedule]]) -> str:
    """The whole CUDA text of an emitted file."""
    parts = [text_for("cuda", _words(kernels))]
    for body, nest, schedule in kernels:
        parts += [body.text, _entry(body, nest, schedule)]
    return "\n\n".join([*parts, "}  // namespace fusewright"]) + "\n"


def launcher(body: Body, schedule: Schedule) -> str:
    """The skeleton's function that starts the kernel."""
    if body.is_map:
        return "run_map"
    return "run_rows_split" if schedule.split else "run_rows"


def _words(kernels: Sequence[tuple[Body, Nest, Schedule]]) -> set[str]:
    words = {"aligned"}
    for body, _, schedule in kernels:
        words |= body.words | {launcher(body, schedule)}
        words |= {p.stored for p in body.pointers} & {"half_t", "bfloat_t"}
    return words


def _entry(body: Body, nest: Nest, schedule: Schedule) -> str:
    """The function that Python calls."""
    extra = ["void* workspace"] if schedule.split else []
    tail = ["long batch", "int device", "void* stream"]
    arguments = ", ".join([*(p.declaration for p in body.pointers), *extra, *tail])
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


def _launch(body: Body, nest: Nest, schedule: Schedule, vector: int) -> str:
    rows = _long(nest.rows)
    if body.is_map:
        return f"run_map<{vector}>(body, {rows}, {_long(nest.columns)}, device, stream)"
    if schedule.split:
        return f"run_rows_split<512, {vector}>(body, {rows}, workspace, device, stream)"
    return f"run_rows<{schedule.threads}, {vector}>(body, {rows}, device, stream)"


def _long(size: Size) -> str:
    return size_text(size)
