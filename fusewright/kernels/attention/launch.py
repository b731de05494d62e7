"""Attention -> C++ text: what becomes of a score, as a struct, and the arguments of its launch."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.cxx_literal import cxx_literal
from fusewright.codegen.kernel_symbols import score_struct
from fusewright.codegen.kernel_text import TYPES, compute_type, spelling
from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.codegen.value_names import NUMBERED, KernelNames, Role, ValueNames
from fusewright.fusion.axes import Load, Strides, TensorWalk
from fusewright.ir.graph import BATCH, BatchSize, Node, Size, numel, size_text
from fusewright.kernels.attention.match import scores, sides
from fusewright.kernels.attention.prologue import prologue
from fusewright.kernels.attention.tile import AttentionTile
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.launch import KEEP_COMPUTED, TileCall, scratch
from fusewright.kernels.tensor_core.launch import launch as launch_tile
from fusewright.loopnest.nest import Nest, mixed_radix, summed, term

FACTORS = ("queries", "keys", "values")
# A place among the scores. Offsets have 32 bits where they fit, since the kernel has no registers
# to spare.
COORDINATES = ("matrix", "row", "key")
KINDS = {"matrix": "long", "row": "int", "key": "int"}
MOST_INT = (1 << 31) - 1


def launch(
    nest: Nest, tile: AttentionTile, names: ValueNames = NUMBERED
) -> tuple[BodyPolicy, Launch]:
    """How what follows attention is printed, and how both are started."""
    n, name = anchor_of(nest.kernel), nest.kernel.name
    fed = prologue(n)
    workspace = fed.packed_bytes or ""
    call = TileCall(
        "run_attention",
        (tile.width,),
        (),
        tuple(_arguments(n, scratch(workspace))),
        (*(f"const float* {factor}" for factor in FACTORS), *_declared(n, names)),
        workspace,
        structs=(function(n, name, names, nest.free),),
        statements=(_prepared(n, name, names, nest.free),),
    )
    return KEEP_COMPUTED, launch_tile(nest, tile.vector, fed, call)


def function(
    n: Node, name: str, names: ValueNames = NUMBERED, free: Sequence[str] = (BATCH,)
) -> str:
    """What the kernel called `name` makes of a score, as a struct. free: names of free sizes."""
    return _Printer(n, names).function(name, free)


def _operands(n: Node, names: ValueNames) -> list[str]:
    """The pointers to what scores are computed with."""
    read = scores(n).tensors
    given = KernelNames(names, read, frozenset(FACTORS))
    return [given.give(Role.SCORE_OPERAND, k, t) for k, t in enumerate(read)]


def _declared(n: Node, names: ValueNames) -> list[str]:
    both = zip(scores(n).tensors, _operands(n, names), strict=True)
    return [f"const {TYPES[t.dtype][0]}* {text}" for t, text in both]


def _prepared(n: Node, name: str, names: ValueNames, free: Sequence[str]) -> str:
    """The statement of the entry before its launch."""
    given = ", ".join([*_operands(n, names), *free])
    return f"const {score_struct(name)} score_mod{{{given}}};"


def _arguments(n: Node, workspace: str) -> list[str]:
    """What the launcher takes behind the body."""
    queries, keys, values = found = sides(n)
    both = zip(FACTORS, found, strict=True)
    factors = [f"{{{name}, {', '.join(map(size_text, f.strides))}}}" for name, f in both]
    sizes = (numel(n.shape[:-2]), queries.rows, values.rows, keys.rows, keys.depth)
    return ["score_mod", *factors, *map(size_text, sizes), workspace]


class _Printer:
    def __init__(self, n: Node, names: ValueNames) -> None:
        self.scores, self.declared = scores(n), _declared(n, names)
        both = zip(self.scores.tensors, _operands(n, names), strict=True)
        self.pointers = {id(t): text for t, text in both}
        self.given = KernelNames(names, self.scores.tensors, frozenset({*COORDINATES, "score"}))
        self.names = {id(self.scores.score): "score"}
        self.reads: dict[str, str] = {}  # text of a value -> its name
        self.lines: list[str] = []
        # The axes of the scores, and the coordinate of each as text and its type.
        self.axes = [axis for some in self.scores.axes for axis in some]
        self.coordinates = [
            (text, KINDS[name])
            for name, some in zip(COORDINATES, self.scores.axes, strict=True)
            for text in mixed_radix(name, [axis.size for axis in some])
        ]

    def function(self, name: str, free: Sequence[str]) -> str:
        for m in self.scores.members:
            arguments = [self._argument(m, k) for k in range(len(m.args))]
            text = spelling(m, arguments, compute_type(m))
            self.names[id(m)] = self.given.give(Role.MEMBER, len(self.names) - 1, m)
            self.lines.append(f"const {compute_type(m)} {self.names[id(m)]} = {text};")
        result = list(self.names.values())[-1]
        fields = "  ".join(f"{text};" for text in [*self.declared, f"long {', '.join(free)}"])
        lines = [
            f"struct {score_struct(name)} {{",
            f"  {fields}",
            "  FN float operator()(long matrix, int row, int key, float score) const {",
            *(f"    {line}" for line in self.lines),
            f"    return {result};",
            "  }",
            "};",
        ]
        return "\n".join(lines)

    def _argument(self, m: Node, k: int) -> str:
        edge = self.scores.loops.edges[id(m), k]
        return (
            self._value(self.scores.walks[id(m), k])
            if isinstance(edge, Load)
            else (self.names[id(edge)])
        )

    def _value(self, walk: TensorWalk) -> str:
        """The name of what is read, or a number."""
        leaf = walk.tensor
        if leaf.op == "constant":
            text = self._number(leaf["value"], leaf)
        else:
            count = numel(leaf.shape)
            kind = "int" if isinstance(count, int) and count <= MOST_INT else "long"
            place = self._place(walk.strides, walk.offset, kind)
            text = f"read({self.pointers[id(leaf)]}, {place})"
        if walk.limits:
            inside = (f"{self._inside(*limit[:3])}" for limit in walk.limits)
            text = f"{' && '.join(inside)} ? {text} : {self._number(walk.fill, leaf)}"
        elif leaf.op == "constant":
            return text
        if text not in self.reads:
            self.reads[text] = self.given.give(Role.READ, len(self.reads), leaf, text)
            self.lines.append(f"const {compute_type(leaf)} {self.reads[text]} = {text};")
        return self.reads[text]

    def _number(self, value: object, leaf: Node) -> str:
        assert isinstance(value, int | float | bool | BatchSize), "a constant is a number"
        return cxx_literal(value, compute_type(leaf))

    def _inside(self, strides: Strides, offset: Size, size: Size) -> str:
        """Whether an element exists: 0 <= its place < size."""
        return f"(unsigned long)({self._place(strides, offset, 'long')}) < {size_text(size)}"

    def _place(self, strides: Strides, offset: Size, kind: str) -> str:
        steps: Sequence[Size] = [strides.get(axis.parts[-1], 0) for axis in self.axes]
        both = zip(self.coordinates, steps, strict=True)
        terms = [term(_as(kind, *coordinate), step) for coordinate, step in both if step != 0]
        return summed([*([size_text(offset)] if offset != 0 else []), *terms])


def _as(kind: str, text: str, its_kind: str) -> str:
    if kind == its_kind:
        return text
    return f"({kind})({text})" if " " in text else f"({kind}){text}"
