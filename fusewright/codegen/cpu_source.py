"""Kernel texts -> one C++ source: device sections, structs, and an `extern "C"` entry per kernel.

Entries take pointers, the free sizes and PyTorch's thread count, and no PyTorch header is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.device_library import sections_for
from fusewright.codegen.instantiation import only_instantiated
from fusewright.codegen.kernel_symbols import entry
from fusewright.codegen.kernel_text import KernelText, words
from fusewright.codegen.source_text import SourceText, source_text
from fusewright.ir.graph import numel, parts_of, size_text, times


def cpp_source(bodies: Sequence[KernelText]) -> str:
    """The whole C++ text of an emitted file."""
    return cpp_text(bodies).whole


def cpp_text(bodies: Sequence[KernelText]) -> SourceText:
    """The C++ text of an emitted file, in two; functions are lifted where the library ends."""
    lifted, parts = _lifted(bodies), [function(body) for body in bodies]
    generated = "\n\n".join([*lifted, *parts])
    found = words(generated).union(*(body.launch.needs for body in bodies))
    library = only_instantiated(sections_for("cpp", found), generated)
    return source_text("\n\n".join([library, *lifted]), parts)


def function(body: KernelText) -> str:
    """All that stands in the source for one kernel alone: its comment, structs and the entry."""
    texts = [*body.launch.structs, body.text, _entry(body)]
    return "\n\n".join(["\n".join([*body.notes, texts[0]]), *texts[1:]])


def _lifted(bodies: Sequence[KernelText]) -> list[str]:
    """The functions that vectors of rows need, too, a line each."""
    found = sorted({call for body in bodies for call in body.lifted})
    return ["\n".join(f"FUSEWRIGHT_LIFT{arity}({name})" for name, arity in found)] * bool(found)


def _entry(body: KernelText) -> str:
    """The function that Python calls."""
    arguments = ", ".join([*body.addresses, *body.sizes, "long threads"])
    names = ", ".join([*(p.name for p in body.pointers), *body.free])
    lines = [f'extern "C" void {entry(body.name)}({arguments}) {{']
    reused = {id(out) for out, _ in body.in_place}
    for p in body.pointers:
        if p.written and id(p.node) not in reused:
            size = times(numel(p.node.shape), p.node.dtype.itemsize)
            lines.append(f"  fresh_pages({p.name}, {size_text(size)});")
    few = not body.is_map and not body.launch.whole_tensors  # so that its tensors say how long
    team = f"enough(threads, {_bytes(body)})" if few else "threads"
    call, own = body.launch.call, f"{body.name}{{{names}}}"
    lines += [f"  {line}" for line in body.launch.statements]
    lines.append(f"  {call.specialized}({', '.join([own, *call.call_args, team])});")
    return "\n".join([*lines, "}"])


def _bytes(body: KernelText) -> str:
    """What the kernel reads and writes."""
    sizes = [times(numel(p.node.shape), p.node.dtype.itemsize) for p in body.pointers]
    of: dict[tuple[str, ...], int] = {}  # the same free sizes, so many times
    for number, names in map(parts_of, sizes):
        of[names] = of.get(names, 0) + number
    fixed = of.pop((), 0)
    terms = [f"{' * '.join(names)} * {number}" for names, number in of.items()]
    return " + ".join([*terms, *[str(fixed)] * bool(fixed or not terms)])
