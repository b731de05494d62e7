"""A printed kernel: a struct as text, its passes, pointers, kept rows; how C++ calls its types."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import torch

from fusewright.codegen.launch import Launch
from fusewright.errors import InternalError
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import BATCH, Node, shape_text, size_text
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import RowPlan
from fusewright.loopnest.vector_width import whole_place

# torch type -> (how it is stored, how it is computed)
TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.float16: ("half_t", "float"),
    torch.bfloat16: ("bfloat_t", "float"),
    torch.int8: ("signed char", "signed char"),
    torch.uint8: ("unsigned char", "unsigned char"),
    torch.int16: ("short", "short"),
    torch.int32: ("int", "int"),
    torch.int64: ("long", "long"),
    torch.bool: ("bool", "bool"),
}
NO_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')  # strings and comments
WORD = re.compile(r"(\.(?:template )?)?\b([A-Za-z_]\w*)")
# How one number of a row is called where a team may take many rows.
ABREAST = {"float": "real", "double": "wide", "bool": "truth", "int": "count", "long": "whole"}


def compute_type(n: Node) -> str:
    """The C++ type in which the node is computed; of some convolutions, a window at a time."""
    if n.op == "conv" and (window := spec_of(n, ConvSpec).pool_window):
        return f"pool_window<{prod(window)}>"
    if n.dtype not in TYPES:
        raise InternalError(f"No C++ type for {n.dtype}.")
    return TYPES[n.dtype][1]


Does = Literal["operand", "result", "counter"]


@dataclass(frozen=True)
class Pointer:
    """One tensor that the kernel gets: `name` in the text; `node` is the leaf or the result; a
    counter is a single number that the kernel counts up."""

    name: str
    node: Node
    stored: str
    role: Does

    @property
    def written(self) -> bool:
        """Whether the kernel writes to it."""
        return self.role != "operand"

    @property
    def declaration(self) -> str:
        """`const float* x_ptr`; without const, if the kernel writes to it."""
        return f"{'' if self.written else 'const '}{self.stored}* {self.name}"


@dataclass(frozen=True)
class KernelText:
    """A kernel as text. passes: over each row.  lifted: functions that it calls for many rows
    together, and of how many arguments.  fallback: the kernel as its launch's fallback has it.
    notes: the comment above it in an emitted file, in lines.  free: what the free sizes are called.
    """

    name: str
    text: str
    pointers: tuple[Pointer, ...]
    in_place: tuple[tuple[Node, Node], ...]
    is_map: bool
    passes: int
    launch: Launch
    lifted: frozenset[tuple[str, int]] = frozenset()
    fallback: KernelText | None = None
    notes: tuple[str, ...] = ()
    free: tuple[str, ...] = (BATCH,)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The declarations of the free sizes that its entry takes."""
        return tuple(f"long {name}" for name in self.free)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The declarations of what its entry takes first: what is read as a whole, what is walked,
        scratch memory."""
        whole = (t.declaration for t in self.launch.whole_tensors)
        scratch = ["void* workspace"] if self.launch.workspace else []
        return (*whole, *(p.declaration for p in self.pointers), *scratch)


@dataclass
class PassText:
    """The text of one pass: its lines, and its operands in the order of its parameters. divides:
    how elements are divided by a number that is inverted once; "": they are not."""

    number: int
    divides: str = ""
    denominator: str = ""
    lines: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    known: dict[Hashable, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def read(self, name: str, kind: str, operand: str) -> None:
        """A value that comes from `operand`."""
        self.parameters.append(f"{kind} {name}")
        self.operands.append(operand)


def words(text: str) -> set[str]:
    """The names in a text of C++; those behind a dot also as `.sum`."""
    found = WORD.findall(NO_CODE.sub("", text))
    return {name for _, name in found} | {f".{name}" for dot, name in found if dot}


def operators(kernel: Kernel) -> str:
    """What a kernel computes, as text: its operators in order, and what it writes."""
    names, shapes = operators_and_shapes(kernel)
    return f"{', '.join(names)} -> {' and '.join(shapes)}"


def operators_and_shapes(kernel: Kernel) -> tuple[list[str], list[str]]:
    """Its operators in order and the shapes that it writes, each once, with how often."""
    written = [shape_text(n.shape) for n in kernel.outputs]
    names, shapes = (
        [f"{each} x{k}" if k > 1 else each for each, k in Counter(some).items()]
        for some in (kernel.operators, written)
    )
    return names, shapes


def counting(pointers: Sequence[Pointer]) -> list[str]:
    """Lines that count up single numbers, which the first row does."""
    counts = [p for p in pointers if p.role == "counter"]
    return [f"if (row == 0) *{p.name} += {p.node.args[1]['value']};" for p in counts]


def spelling(m: Node, arguments: Sequence[str], kind: str) -> str:
    """An operator of type `kind` as text."""
    if kind == "float" and m.dtype.itemsize == 2 and m.row.half_cpp:
        return f"{m.row.half_cpp}({arguments[0]})"
    if m.op == "bitcast":
        return m.row.cpp.format(*arguments, to=TYPES[m.dtype][0], of=TYPES[m.args[0].dtype][0])
    if m.op != "cast":
        return m.row.cpp.format(*arguments, **dict(m.attributes))
    (value,) = arguments
    stored, computed_as = TYPES[m.dtype]
    if m.dtype is torch.bool:
        return f"{value} != 0"
    if stored != computed_as and m["rounds"]:
        return f"round_to<{stored}>(({kind}){value})"
    return f"({kind}){value}"


def slots(row: RowPlan) -> dict[Hashable, int]:
    """Which row of memory each kept value has; one may follow another in the same row."""
    slots: dict[Hashable, int] = {}
    busy: list[tuple[int, str, int]] = []  # slot, type, last pass
    for keep in sorted(row.keeps.values(), key=lambda k: k.first):
        kind = compute_type(keep.node)
        free = next((b for b in busy if b[1] == kind and b[2] <= keep.first), None)
        slot = free[0] if free else len(busy)
        busy = [b for b in busy if b[0] != slot] + [(slot, kind, keep.last)]
        slots[keep.key] = slot
    return slots


def windows(nest: Nest, number: int, pointer: str, fill: str) -> str:
    """What windows that overlap have in common, as text: their head, and at which of its places
    vectors are whole."""
    assert nest.down is not None
    head = nest.heads[number]
    first, whole = head[0], head.index(whole_place(head, nest))
    sizes = f"{nest.down.lengths[number]}, {nest.down.widths[number]}, {whole}"
    numbers = ", ".join(map(size_text, (first.offset, first.outer, first.columns)))
    where = f"[&](int o) {{ return {first.limits or 'extent_of(0, 0, 1)'}; }}"
    return f"sliding_windows<{sizes}>(team, {pointer} + {first.line}, {numbers}, {fill}, {where})"
