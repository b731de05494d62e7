"""Immutable, interned tensor nodes: equal means identical.

    Size  = int | BatchSize(multiple, names)     a run-time size is a multiple of free sizes
    Node  = Node(op, args, attributes, shape, dtype, order)
    Graph = Graph(inputs, outputs, updates, …)   in the order in which the model computes

Nodes are made by `node(...)` only. A map node broadcasts its arguments as PyTorch does. `order`
lists the dimensions from the outermost to the innermost in memory; () means row-major.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from fusewright.common.dtypes import OF_KERNELS
from fusewright.errors import InternalError
from fusewright.ir.library_call import (
    LibraryCall,
    ListArg,
    MethodView,
    Scalar,
    clone_call,
    product_text,
)
from fusewright.ir.operators import OPS, Operator
from fusewright.ir.origin import Origin
from fusewright.ir.placement import OwnCopy, Placement
from fusewright.ir.record import Record

BATCH, LENGTH = "batch", "length"  # what the free size is called: a leading one, another one


@dataclass(frozen=True)
class BatchSize:
    """A size known only at run time: `multiple` times the free sizes of these names, which are
    sorted, each as often as it is a factor: of [batch, length, length], batch * length * length."""

    multiple: int
    names: tuple[str, ...] = (BATCH,)

    @property
    def degree(self) -> int:
        """How many free sizes it is a product of."""
        return len(self.names)


@dataclass(frozen=True)
class FreeSize:
    """A size that a graph leaves open. example: as it was captured.  least: the smallest at which
    the graph is proved to be what eager runs.  name: what emitted text calls it, `batch` where it
    is the leading one.  most: the largest that the model takes, where it has one (a table of
    positions)."""

    example: int
    least: int = 2
    name: str = BATCH
    most: int | None = None

    @property
    def bounds(self) -> str:
        """Between which sizes it lies."""
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"

    @property
    def words(self) -> str:
        """What people call it."""
        return "the batch size" if self.name == BATCH else f"the {self.name}"


Size = int | BatchSize
Shape = tuple[Size, ...]
Sizes = Mapping[str, int]  # of the free sizes, by name
FixedSizes = tuple[tuple[str, int], ...]  # the same, of some or all of them
NOTHING_FREE: Sizes = {}


def size_of(multiple: int, names: Iterable[str]) -> Size:
    """So many times the product of these free sizes."""
    some = tuple(sorted(names))
    return BatchSize(multiple, some) if multiple and some else multiple


def parts_of(size: Size) -> tuple[int, tuple[str, ...]]:
    """A size as its number and the names of the free sizes that it is a multiple of."""
    return (size.multiple, size.names) if isinstance(size, BatchSize) else (size, ())


def times(a: Size, b: Size) -> Size:
    """Product of two sizes."""
    (number, names), (other, more) = parts_of(a), parts_of(b)
    return size_of(number * other, (*names, *more))


def quotient(a: Size, b: Size) -> Size | None:
    """a / b, if that is a size for all values of the free ones."""
    (number, names), (other, some) = parts_of(a), parts_of(b)
    rest = Counter(names)
    rest.subtract(some)
    if other == 0 or number % other or min(rest.values(), default=0) < 0:
        return None
    return size_of(number // other, rest.elements())


def numel(shape: Iterable[Size]) -> Size:
    """Product of all sizes."""
    total: Size = 1
    for size in shape:
        total = times(total, size)
    return total


def size_at(size: Size, sizes: Sizes) -> int:
    """The size as a number, for these values of the free ones."""
    number, names = parts_of(size)
    return number * prod(sizes[name] for name in names)


def partly_at(size: Size, some: Sizes) -> Size:
    """The size for these values of some of the free ones."""
    number, names = parts_of(size)
    known = prod(some[name] for name in names if name in some)
    return size_of(number * known, (name for name in names if name not in some))


def names_in(sizes: Iterable[Size]) -> tuple[str, ...]:
    """The free sizes that these depend on, each once."""
    return tuple(sorted({name for size in sizes for name in parts_of(size)[1]}))


@dataclass(frozen=True, eq=False)
class Node:
    """One tensor: an operator of the table applied to `args`. Compare with `is`."""

    op: str
    args: tuple[Node, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    shape: Shape
    dtype: torch.dtype
    order: tuple[int, ...] = ()
    _key: tuple[object, ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> Attribute:
        """The attribute called `name`; raises InternalError when there is none."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise InternalError(f"{self.op} has no attribute {name!r}.")

    def has(self, name: str) -> bool:
        """Whether there is an attribute called `name`."""
        return any(key == name for key, _ in self.attributes)

    @property
    def words(self) -> dict[str, Attribute]:
        """The attributes, and what records among them come to: all that the operator's text in the
        table may name."""
        found = dict(self.attributes)
        for value in found.copy().values():
            found |= value.words() if isinstance(value, Record) else {}
        return found

    @property
    def placement(self) -> Placement:
        """Where its memory has to be."""
        found = self["placement"] if self.has("placement") else None
        return found if isinstance(found, Placement) else Placement()

    @property
    def call(self) -> LibraryCall:
        """What a library node calls; raises InternalError for every other node."""
        call = self["call"]
        assert isinstance(call, LibraryCall), "the attribute has no other type"
        return call

    @property
    def called(self) -> str | None:
        """The ATen name of what a library node calls; None for every other node."""
        return self.call.name if self.op == "library" else None

    @property
    def short_name(self) -> str:
        """The operator, or what a library node calls, as people read it."""
        return self.call.short_name if self.op == "library" else self.op

    @property
    def row(self) -> Operator:
        """This node's row of the op table."""
        return OPS[self.op]

    def __repr__(self) -> str:
        return f"<{self.op} {shape_text(self.shape)} {str(self.dtype).removeprefix('torch.')}>"


Attribute = (
    int
    | float
    | bool
    | str
    | None
    | torch.dtype
    | BatchSize
    | LibraryCall
    | Node
    | Record
    | tuple["Attribute", ...]
)
_NODES: dict[tuple[object, ...], Node] = {}


def _distinct(value: object) -> object:
    """0.0 and -0.0, 1 and True are equal for Python but not for us."""
    if isinstance(value, tuple):
        return tuple(_distinct(v) for v in value)
    if isinstance(value, Record):
        return type(value), _distinct(tuple(value.values().values()))
    return (type(value), repr(value)) if isinstance(value, int | float) else value


def node(
    op: str,
    args: Sequence[Node] = (),
    *,
    shape: Shape,
    dtype: torch.dtype,
    order: tuple[int, ...] = (),
    **attributes: Attribute,
) -> Node:
    """Return the one node with these parts. `order` is normalised: row-major becomes ()."""
    if order == tuple(range(len(shape))):
        order = ()
    row = OPS[op]
    if row.arity not in (-1, len(args)):
        raise InternalError(f"{op} takes {row.arity} arguments, got {len(args)}.")
    pairs = tuple(sorted(attributes.items()))
    identity = tuple((name, _distinct(value)) for name, value in pairs)
    key = (op, tuple(id(a) for a in args), identity, shape, dtype, order)
    if key not in _NODES:
        _NODES[key] = Node(op, tuple(args), pairs, shape, dtype, order, key)
    return _NODES[key]


@dataclass(frozen=True)
class BufferUpdate:
    """After the computation, `target` (an input or a buffer) takes the value of `value`."""

    target: Node
    value: Node


@dataclass(frozen=True)
class Graph:
    """A captured model.

    inputs: one leaf per tensor argument of `forward`.  outputs: what it returns, flat.
    updates: buffers and inputs that it changes.  effects: library nodes that must run, in this
    order, even if nothing reads them (random numbers).  free: the sizes that are not fixed.
    origins: where nodes come from, in the order in which the model computes; no part of what the
    graph is.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    updates: tuple[BufferUpdate, ...] = ()
    effects: tuple[Node, ...] = ()
    free: tuple[FreeSize, ...] = ()
    origins: Mapping[Node, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def example(self) -> Sizes:
        """The free sizes as they were captured."""
        return {size.name: size.example for size in self.free}

    @property
    def free_names(self) -> tuple[str, ...]:
        """What kernels call the sizes that they are given; `batch`, which none reads, if every size
        is fixed."""
        return tuple(size.name for size in self.free) or (BATCH,)

    @property
    def roots(self) -> tuple[Node, ...]:
        """Every node that must be computed."""
        return (*self.effects, *(u.value for u in self.updates), *self.outputs)

    @property
    def written(self) -> tuple[Node, ...]:
        """The leaves that a call changes, each once."""
        buffers = (a for e in self.effects for a in e.args if a.op == "buffer")
        return tuple(dict.fromkeys([*(u.target for u in self.updates), *buffers]))

    @property
    def made(self) -> tuple[Node, ...]:
        """What the outputs are, or are views of, each once, but for inputs."""
        return tuple(n for n in dict.fromkeys(map(base, self.outputs)) if n.op != "input")

    @property
    def returns_its_own(self) -> bool:
        """Whether it makes something, in memory that nobody else sees."""
        own = (n.row.kind != "leaf" and not shown_by(n) for n in self.made)
        return bool(self.made) and all(own) and not any(n.placement.inside for n in self.made)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """Inputs, parameters, buffers and constants that anything needs."""
        every = (*self.inputs, *self.roots, *(u.target for u in self.updates))
        return tuple(n for n in toposort(every) if n.row.kind == "leaf")

    def hint(self, size: Size) -> int:
        """`size` as it was captured."""
        return size_at(size, self.example)


def base(n: Node) -> Node:
    """The node whose memory a chain of views shows."""
    while n.row.kind == "view":
        (n,) = n.args
    return n


def memory_of(n: Node) -> Node:
    """The node whose memory views show, those among them that are calls of PyTorch."""
    while (shown := shown_by(n)) is not None:
        n = shown
    return n


def shown_by(n: Node) -> Node | None:
    """The node of which this one is a view, called or not; None for one with memory of its own."""
    source = n.args[0] if n.op == "getitem" else n
    called = source.op == "library" and source.call.shows_argument
    return source.args[0] if called else n.args[0] if n.row.kind == "view" else None


def is_memory_of_pieces(n: Node) -> bool:
    """Whether a node is a call that computes nothing: its arguments are written into it."""
    return n.op == "library" and n.call.memory_of_pieces


def on_other_memory(n: Node, old: Node, new: Node) -> Node:
    """The same views of `new` as `n` is of `old`."""
    if n is old:
        return new
    if n.op != "getitem" and shown_by(n) is None:
        return n
    return with_args(n, (on_other_memory(n.args[0], old, new), *n.args[1:]))


def own_memory_copy(n: Node, order: tuple[int, ...], own: OwnCopy) -> Node:
    """`n` in memory of its own, as an output that must be nobody else's tensor.

    A piece keeps its gaps, so all of its memory is copied.
    """
    whole, pieces = n, False
    while whole.row.kind == "view" and not pieces:
        pieces, whole = whole.op == "narrow", whole.args[0]
    if pieces:
        memory = base(n)
        return on_other_memory(n, memory, own_memory_copy(memory, memory.order, own))
    return fresh_copy(n, order, own)


def fresh_copy(n: Node, order: tuple[int, ...], own: OwnCopy) -> Node:
    """`n` in new memory; by a call of PyTorch where no kernel moves such numbers."""
    placement = Placement(own_copy=own)
    if n.dtype in OF_KERNELS:
        return node("copy", [n], shape=n.shape, dtype=n.dtype, order=order, placement=placement)
    there, back = tuple[MethodView, ...](), tuple[MethodView, ...]()
    if order:
        there = (_permuted(order),)
        back = (_permuted(order.index(d) for d in range(len(order))),)
    call = clone_call(there, back)
    return node(
        "library", [n], shape=n.shape, dtype=n.dtype, order=order, call=call, placement=placement
    )


def _permuted(dims: Iterable[int]) -> MethodView:
    return MethodView("permute", (ListArg(tuple(map(Scalar, dims)), is_tuple=True),))


def toposort(roots: Iterable[Node]) -> tuple[Node, ...]:
    """All nodes that `roots` need, arguments first; deterministic."""
    done: dict[int, Node] = {}
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        current, ready = stack.pop()
        if id(current) in done:
            continue
        if ready:
            done[id(current)] = current
            continue
        stack.append((current, True))
        stack.extend((a, False) for a in reversed(current.args) if id(a) not in done)
    return tuple(done.values())


def readers(nodes: Iterable[Node]) -> dict[int, list[Node]]:
    """Who reads each node, once for every argument that it is: its id -> nodes."""
    found: dict[int, list[Node]] = {}
    for n in nodes:
        for a in n.args:
            found.setdefault(id(a), []).append(n)
    return found


def rebuild(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """Apply `change` to every node, arguments first, and return the new graph."""
    return rebuild_from(graph, lambda _, n: change(n))


def rebuild_from(graph: Graph, change: Callable[[Node, Node], Node]) -> Graph:
    """`rebuild`, where `change` sees the node as it was in `graph`, too: what is known of the graph
    is known of that one."""
    new: dict[int, Node] = {}
    for n in toposort((*graph.inputs, *graph.roots)):
        args = tuple(new[id(a)] for a in n.args)
        same = all(a is b for a, b in zip(args, n.args, strict=True))
        moved = n if same else with_args(n, args)
        new[id(n)] = change(n, moved)
    return replaced(graph, new)


def replaced(graph: Graph, new: Mapping[int, Node]) -> Graph:
    """The graph with what `new` has, by identity, in the place of its inputs and roots."""

    def pick(n: Node) -> Node:
        return new[id(n)]

    return Graph(
        tuple(map(pick, graph.inputs)),
        tuple(map(pick, graph.outputs)),
        tuple(BufferUpdate(u.target, pick(u.value)) for u in graph.updates),
        tuple(map(pick, graph.effects)),
        graph.free,
        _carried(graph.origins, new),
    )


def claim(origins: dict[Node, Origin], n: Node, origin: Origin) -> None:
    """Let a node, and what it reads, come from there, down to what comes from elsewhere already:
    equal calls are one node, which is the first one's."""
    waiting = [n]
    while waiting:
        n = waiting.pop()
        if n.row.kind != "leaf" and n not in origins:
            origins[n] = origin
            origin = origin.inside
            waiting += reversed(n.args)


def is_number_of_constants(n: Node) -> bool:
    """Whether only constants make this number, the free sizes among them."""
    known = n.args and all(a.op == "constant" for a in n.args)
    return n.row.kind == "pointwise" and not n.shape and bool(known)


def origin_of(graph: Graph, n: Node) -> Origin | None:
    """Where a node comes from; of one that a pass has put behind others, where these come from;
    nothing of a number that constants make, which many calls may ask for (n - 1)."""
    if is_number_of_constants(n):
        return None
    while graph.origins and n not in graph.origins and n.args:
        n = n.args[0]
    return graph.origins.get(n)


def _carried(origins: Mapping[Node, Origin], new: Mapping[int, Node]) -> Mapping[Node, Origin]:
    """Where the nodes of a changed graph come from: what a node has become is its own first, and
    what is new between others comes from where its reader does."""
    found: dict[Node, Origin] = {}
    for old, origin in origins.items():
        n = new.get(id(old))
        if n is not None and n.row.kind != "leaf":
            found.setdefault(n, origin)
    for n, origin in tuple(found.items()):
        for a in n.args:
            if a not in found:
                claim(found, a, origin.inside)
    return found


def with_args(n: Node, args: tuple[Node, ...]) -> Node:
    """The same operator on other arguments."""
    attributes: Mapping[str, Attribute] = dict(n.attributes)
    return node(n.op, args, shape=n.shape, dtype=n.dtype, order=n.order, **attributes)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape, as PyTorch's rules say; raises InternalError when there is none."""
    rank = max((len(s) for s in shapes), default=0)
    sizes: list[Size] = []
    for i in range(rank):
        here: list[Size] = [s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0]
        wide = [size for size in here if size != 1]
        if any(size != wide[0] for size in wide):
            raise InternalError(f"Shapes {', '.join(map(shape_text, shapes))} do not broadcast.")
        sizes.append(wide[0] if wide else 1)
    return tuple(sizes)


def check(graph: Graph, after: str) -> Graph:
    """Return `graph` if every node keeps the table's shape and type rules; else name the pass."""
    for n in toposort(graph.roots):
        problem = _complaint(n)
        if problem:
            raise InternalError(f"After {after}: {n!r}: {problem}")
    return graph


def _complaint(n: Node) -> str:
    if n.row.computed and any(t.dtype not in OF_KERNELS for t in (n, *n.args)):
        return f"no kernel computes with {[str(t.dtype) for t in (n, *n.args)]}"
    if n.row.kind == "pointwise":
        if n.shape != broadcast([a.shape for a in n.args]):
            return f"shape is not the broadcast of {[a.shape for a in n.args]}"
        return _type_complaint(n)
    if n.row.kind == "reduction":
        dims = n["dims"]
        kept = tuple(s for i, s in enumerate(n.args[0].shape) if i not in dims)  # type: ignore[operator]
        return "" if kept == n.shape else f"shape is not {kept}"
    if n.row.kind == "scan":
        same = (n.args[0].shape, n.args[0].dtype) == (n.shape, n.dtype)
        return "" if same else "a scan has the shape and type of its argument"
    if n.op == "matmul":
        left, right = (a.shape for a in n.args)
        fits = left[-1] == right[-1] and n.shape == (*left[:-1], right[-2])
        return "" if fits else f"operands {shape_text(left)} and {shape_text(right)} do not fit"
    if n.op == "attention":
        queries, keys, values = (a.shape for a in n.args[:3])
        inner = (queries[-1], values[-1], *n.shape[-2:])
        fits = inner == (keys[-1], keys[-2], queries[-2], values[-2])
        return "" if fits else f"queries {shape_text(queries)} do not fit {shape_text(keys)}"
    if n.op == "reshape" and numel(n.shape) != numel(n.args[0].shape):
        return "reshape changes the number of elements"
    return ""


def _type_complaint(n: Node) -> str:
    result = n.row.result
    if result == "bool":
        return "" if n.dtype is torch.bool else "result must be bool"
    if result == "attribute":
        return "" if n.dtype is n["to"] else "result must have the attribute's type"
    if result == "wide" and n.dtype is torch.float64 and n.args[0].dtype is torch.float32:
        return ""
    values = n.args[1:] if result == "second" else n.args
    if any(a.dtype is not n.dtype for a in values):
        return f"argument types {[str(a.dtype) for a in n.args]} differ from the result's"
    return ""


def shape_text(shape: Sequence[Size]) -> str:
    """`[batch*4, 16]`, for people."""
    return f"[{', '.join(map(size_text, shape))}]"


def size_text(size: Size, variables: Mapping[str, str] | None = None) -> str:
    """A size as an expression of Python, C++ and English. variables: of the free sizes; without
    one, it has its own name."""
    return product_text(*parts_of(size), variables or {})


def slots_text(size: Size) -> str:
    """The same with slots (`{batch}`), to which `format` gives the variables of the free sizes."""
    return size_text(size, {name: f"{{{name}}}" for name in names_in([size])})


def show(graph: Graph) -> str:
    """The graph as numbered lines, for golden files and errors."""
    numbers: dict[int, int] = {}
    nodes = toposort((*graph.inputs, *graph.roots, *graph.leaves))
    lines = list(_lines(nodes, numbers))
    for update in graph.updates:
        lines.append(f"update %{numbers[id(update.target)]} = %{numbers[id(update.value)]}")
    lines.append("return " + ", ".join(f"%{numbers[id(o)]}" for o in graph.outputs))
    return "\n".join(lines) + "\n"


def _lines(nodes: Iterable[Node], numbers: dict[int, int]) -> Iterator[str]:
    for n in nodes:
        numbers[id(n)] = len(numbers)
        words = [f"%{numbers[id(a)]}" for a in n.args]
        words += [f"{name}={_plain(value)}" for name, value in n.attributes]
        layout = f" order={n.order}" if n.order else ""
        kind = str(n.dtype).removeprefix("torch.")
        yield f"%{numbers[id(n)]} = {n.op}({', '.join(words)}): {kind}{shape_text(n.shape)}{layout}"


def _plain(value: Attribute) -> str:
    if isinstance(value, BatchSize):
        return size_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, Record):
        words = ", ".join(f"{name}={_plain(v)}" for name, v in value.told().items())
        return f"{type(value).__name__}({words})"
    return str(value)
