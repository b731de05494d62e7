"""A printed kernel: a struct as text, its passes, pointers, kept rows; how C++ calls its types."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from fusewright.errors import InternalError
from fusewright.geometry import known
from fusewright.ir import Node
from fusewright.keep import Row

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
# How one number of a row is called where a team may take many rows.
ABREAST = {"float": "real", "double": "wide", "bool": "truth", "int": "count", "long": "whole"}


def computed(n: Node) -> str:
    """The C++ type in which the node is computed; of some convolutions, a window at a time."""
    if n.has("windows"):
        return f"window_of<{prod(known(n['windows']))}>"
    if n.dtype not in TYPES:
        raise InternalError(f"No C++ type for {n.dtype}.")
    return TYPES[n.dtype][1]


@dataclass(frozen=True)
class Pointer:
    """One tensor that the kernel gets: `name` in the text; `node` is the leaf or the result."""

    name: str
    node: Node
    stored: str
    written: bool

    @property
    def declaration(self) -> str:
        """`const float* in0` or `float* out0`."""
        return f"{'' if self.written else 'const '}{self.stored}* {self.name}"


@dataclass(frozen=True)
class Body:
    """A kernel as text. words: the skeleton sections it calls by name.  passes: over each row.
    abreast: whether it also takes many rows together.  turned: and these lie along memory.  lifted:
    functions it calls then, and of how many arguments."""

    name: str
    text: str
    pointers: tuple[Pointer, ...]
    in_place: tuple[tuple[Node, Node], ...]
    words: frozenset[str]
    is_map: bool
    passes: int
    abreast: bool = False
    lifted: frozenset[tuple[str, int]] = frozenset()
    turned: bool = False


@dataclass
class Lambda:
    """The text of one pass: its lines, and its operands in the order of its parameters. divides:
    how elements are divided by a number that is inverted once; "": they are not."""

    number: int
    divides: str = ""
    denominator: str = ""
    lines: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    known: dict[Hashable, str] = field(default_factory=dict)

    def fresh(self) -> str:
        """A name for one more value that is read."""
        return f"x{sum(p.split()[-1].startswith('x') for p in self.parameters)}"

    def read(self, key: Hashable, kind: str, operand: str) -> str:
        """The name of a value that comes from `operand`."""
        name = self.known[key] = self.fresh()
        self.parameters.append(f"{kind} {name}")
        self.operands.append(operand)
        return name


def counting(pointers: Sequence[Pointer]) -> list[str]:
    """Lines that count up single numbers, which the first row does."""
    counts = [p for p in pointers if p.name.startswith("count")]
    return [f"if (row == 0) *{p.name} += {p.node.args[1]['value']};" for p in counts]


def spelling(m: Node, arguments: Sequence[str], kind: str) -> tuple[str, set[str]]:
    """An operator of type `kind` as text, and the sections of the skeletons that it needs."""
    if m.op != "cast":
        return m.row.cpp.format(*arguments, **dict(m.attributes)), {m.row.needs} - {""}
    (value,) = arguments
    stored, computed_as = TYPES[m.dtype]
    if m.dtype is torch.bool:
        return f"{value} != 0", set()
    if stored != computed_as and m["rounds"]:
        return f"round_to<{stored}>(({kind}){value})", {"round_to", stored}
    return f"({kind}){value}", set()


def slots(row: Row) -> dict[Hashable, str]:
    """A kept row of memory for each kept value; one may follow another in the same row."""
    slots: dict[Hashable, str] = {}
    busy: list[tuple[str, str, int]] = []  # slot, type, last pass
    for keep in sorted(row.keeps.values(), key=lambda k: k.first):
        kind = computed(keep.node)
        free = next((b for b in busy if b[1] == kind and b[2] <= keep.first), None)
        name = free[0] if free else f"k{len(busy)}"
        busy = [b for b in busy if b[0] != name] + [(name, kind, keep.last)]
        slots[keep.key] = name
    return slots
