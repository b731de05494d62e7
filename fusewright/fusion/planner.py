"""Graph -> Plan: which nodes share a kernel, which stay library calls, in which order.

A node joins the kernels of its arguments when the union has common loops, makes no cycle, and
stores every result exactly once. Whatever has no kernel is a library step with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fusewright.errors import InternalError
from fusewright.fusion.axes import Incompatible, Load, LoopAxes, elementwise_args, loops
from fusewright.fusion.epilogue import Anchors, Epilogue, NoReduction, Reduction
from fusewright.fusion.kernel_names import NameRules, kernel_names
from fusewright.ir.graph import (
    Graph,
    Node,
    is_memory_of_pieces,
    is_number_of_constants,
    numel,
    toposort,
)
from fusewright.targets.target import Target

ANY_NAME = NameRules()
MAX_POINTERS = 48  # operands of one kernel; the parameter space of a launch is far larger


@dataclass(frozen=True)
class Kernel:
    """Nodes that one kernel computes (arguments first), their common loops, and what it stores.

    family: the name of the family that computes it.  anchor: the contraction whose result the
    others take, tile by tile.  epilogue: what follows the anchor.  counters: single numbers beside
    them that it counts up in place (`fusion/batch_counters.py`).
    """

    name: str
    members: tuple[Node, ...]
    outputs: tuple[Node, ...]
    loops: LoopAxes
    family: str
    anchor: Node | None = None
    epilogue: Epilogue | None = None
    counters: tuple[Node, ...] = ()

    @property
    def reduction(self) -> Reduction:
        """What is reduced of a tile's columns."""
        return self.epilogue.reduction if self.epilogue else NoReduction()

    @property
    def reductions(self) -> tuple[Node, ...]:
        """The members that take rows as a whole: reductions and scans."""
        return tuple(m for m in self.members if m.row.kind in ("reduction", "scan"))

    @property
    def scans(self) -> bool:
        """Whether rows are scanned, which a team of threads does in its registers."""
        return any(m.row.kind == "scan" for m in self.members)

    @property
    def operators(self) -> tuple[str, ...]:
        """What it computes, in order; storing an anchor's result as it is counts as the anchor."""
        return tuple(m.op for m in self.members if m.op != "copy" or self.anchor not in m.args)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The tensors it reads element by element, each once, numbers not counted."""
        reads = [e.leaf for e in self.loops.edges.values() if isinstance(e, Load)]
        return tuple(unique(n for n in reads if n.op != "constant"))


@dataclass(frozen=True)
class LibraryStep:
    """One node that PyTorch computes, and why."""

    node: Node
    reason: str


Step = Kernel | LibraryStep


@dataclass(frozen=True)
class Plan:
    """Steps in the order of execution. notes: why neighbours did not share a kernel.

    precision: "eager" (library contractions follow PyTorch's flags) or "ieee" (full float32).
    """

    graph: Graph
    target: Target
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    precision: str = "eager"

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(s for s in self.steps if isinstance(s, Kernel))

    @property
    def libraries(self) -> tuple[LibraryStep, ...]:
        return tuple(s for s in self.steps if isinstance(s, LibraryStep))


def plan(
    graph: Graph,
    target: Target,
    anchors: Anchors,
    precision: str = "eager",
    rules: NameRules = ANY_NAME,
) -> Plan:
    """Decide the kernels of `graph` for one machine. anchors: what kernel families say of them.
    rules: what their names have to keep apart from."""
    found = _FusionPlanner(graph, target, anchors).plan()
    kernels = [(k.members, k.anchor) for k in found.kernels]
    names = iter(kernel_names(kernels, graph, rules))
    steps = (replace(s, name=next(names)) if isinstance(s, Kernel) else s for s in found.steps)
    return replace(found, steps=tuple(steps), precision=precision)


def unique(nodes: Iterable[Node]) -> list[Node]:
    """Each node once, in order."""
    return list({id(n): n for n in nodes}.values())


class _FusionPlanner:
    def __init__(self, graph: Graph, target: Target, anchors: Anchors) -> None:
        self.graph, self.target, self.anchors = graph, target, anchors
        self.order = toposort((*graph.inputs, *graph.roots))
        self.index = {id(n): i for i, n in enumerate(self.order)}
        self.before = self._ancestors()
        self.wanted = self._wanted()
        self.numbers = self._numbers()
        self.groups: list[list[Node]] = []
        self.group_of: dict[int, int] = {}
        self.notes: list[str] = []

    def plan(self) -> Plan:
        for n in self.order:
            if n.row.kind == "contraction":
                self._join([], [n])
            elif n.row.computed and not _counter(n) and id(n) not in self.numbers:
                self._place(n)
        self._merge_siblings()
        steps = [self._kernel(g) for g in self.groups if g]
        return Plan(self.graph, self.target, self._ordered(steps), tuple(dict.fromkeys(self.notes)))

    # -- facts about the graph

    def _ancestors(self) -> list[int]:
        """For each node, a bit set of everything that must run before it."""
        before: list[int] = []
        effect = None
        effects = {id(e) for e in self.graph.effects}
        for n in self.order:
            bits = 0
            for a in n.args:
                bits |= before[self.index[id(a)]] | 1 << self.index[id(a)]
            if id(n) in effects:
                if effect is not None:
                    bits |= before[effect] | 1 << effect
                effect = self.index[id(n)]
            before.append(bits)
        return before

    def _wanted(self) -> dict[int, list[Node]]:
        """Who reads each node, seen through views; an output or update is a reader `None`."""
        readers: dict[int, list[Node]] = {id(n): [] for n in self.order}
        for n in self.order:
            for a in n.args:
                readers[id(a)].append(n)
        return readers

    def _numbers(self) -> set[int]:
        """The numbers that constants make, if nobody but kernels reads them."""
        roots = {id(r) for r in self.graph.roots}
        known = (n for n in self.order if is_number_of_constants(n) and id(n) not in roots)
        read = ((n, self.wanted[id(n)]) for n in known)
        return {
            id(n) for n, by in read if by and all(r.row.computed and not _counter(r) for r in by)
        }

    # -- grouping

    def _place(self, n: Node) -> None:
        near = sorted({self.group_of[id(s)] for s in self._sources(n) if id(s) in self.group_of})
        # What reads a contraction must be where it is, since it is never stored.
        near.sort(key=lambda g: (not _contractions(self.groups[g]), -len(self.groups[g])))
        options = [near, *([g] for g in near)] if len(near) > 1 else [near] if near else []
        for option in options:
            members = self._sorted([n, *(m for g in option for m in self.groups[g])])
            if self._legal(members) and not self._recomputed_by_norm(n, members):
                self._join(option, members)
                return
        self._join([], self._sorted([n]))

    def _recomputed_by_norm(self, n: Node, members: list[Node]) -> bool:
        """Whether only a kernel of reductions behind a contraction reads n, and reads what n is
        made of
        too: x * x of a norm's rows, which would be stored beside x."""
        if not _contractions(members) or n.row.kind != "pointwise" or n in self.graph.roots:
            return False
        reductions = self.wanted[id(n)]
        if not reductions or any(f.row.kind != "reduction" for f in reductions):
            return False
        mask = self._mask(reductions)
        later = [i for i, bits in enumerate(self.before) if bits & mask]
        read = {id(s) for i in later for s in self._sources(self.order[i])}
        mine = {id(s) for s in self._sources(n)}
        return mine <= read and not any(
            self._legal(self._sorted([*members, f])) for f in reductions
        )

    def _sources(self, n: Node) -> list[Node]:
        found: list[Node] = []
        for a in n.args[: len(elementwise_args(n))]:
            while a.row.kind == "view":
                (a,) = a.args
            found.append(a)
        return found

    def _join(self, old: Sequence[int], members: list[Node]) -> None:
        for g in old:
            self.groups[g] = []
        self.groups.append(members)
        self.group_of.update({id(m): len(self.groups) - 1 for m in self._own(members)})

    def _sorted(self, nodes: Iterable[Node]) -> list[Node]:
        """In order, behind the numbers that they read: each kernel works those out itself."""
        nodes = unique(nodes)
        numbers = (a for n in nodes for a in n.args if id(a) in self.numbers)
        every = unique([*nodes, *numbers])
        return sorted(every, key=lambda n: (id(n) not in self.numbers, self.index[id(n)]))

    def _merge_siblings(self) -> None:
        """Groups that read the same tensor share its loads where they can."""
        for i in range(len(self.groups)):
            for j in range(i):
                a, b = self.groups[i], self.groups[j]
                if a and b and self._share_tensor(a, b):
                    members = self._sorted([*a, *b])
                    if self._legal(members):
                        self.groups[i], self.groups[j] = members, []
                        self.group_of.update({id(m): i for m in self._own(members)})

    def _share_tensor(self, a: Sequence[Node], b: Sequence[Node]) -> bool:
        sources = [s for m in a for s in self._sources(m)]
        mine = {id(s) for s in sources if s.op == "input" or s.row.kind == "library"}
        theirs = {id(s) for m in b for s in self._sources(m)}
        return bool(mine & (theirs - {id(m) for m in b}))

    # -- legality

    def _legal(self, members: list[Node]) -> bool:
        try:
            self._check_cycle(members)
            self._check_contraction(members)
            self.anchors.check(members, self.target)
            found = loops(members)
            self._check_stores(members, found)
            self._epilogue(members, found)
        except Incompatible as error:
            self.notes.append(f"{members[-1].op} starts its own kernel: {error}")
            return False
        return True

    def _check_cycle(self, members: Sequence[Node]) -> None:
        """Nothing outside waits for a member while a member waits for it.

        A kernel waits for whatever any of its members needs, so whoever waits for one of them
        waits for all of that.
        """
        mask = self._mask(members)
        left, seen = self._needs(members) & ~mask, 0
        while left:
            low = left & -left
            n = self.order[low.bit_length() - 1]
            seen |= low
            left ^= low
            if n.row.kind == "view":
                continue
            together = self.groups[self.group_of[id(n)]] if id(n) in self.group_of else [n]
            needs = self._needs(together)
            if needs & mask:
                raise Incompatible(f"{n.op} lies between")
            seen |= self._mask(together)
            left = (left | needs) & ~seen

    def _needs(self, nodes: Iterable[Node]) -> int:
        """The bits of all that must run before them."""
        bits = 0
        for n in nodes:
            bits |= self.before[self.index[id(n)]]
        return bits

    def _check_contraction(self, members: Sequence[Node]) -> None:
        """One contraction at most, and nothing inside that it must read as a whole."""
        contractions = _contractions(members)
        if len(contractions) > 1:
            raise Incompatible("a kernel computes one contraction")
        if any(self.before[self.index[id(c)]] & self._mask(members) for c in contractions):
            raise Incompatible("the contraction reads all of its operands first")

    def _epilogue(self, members: Sequence[Node], found: LoopAxes) -> Epilogue | None:
        return self.anchors.epilogue(members, found, self._outputs(members), self.target)

    def _own(self, members: Iterable[Node]) -> Iterator[Node]:
        """Without the numbers, which are in every group that reads them and wait for nothing."""
        return (m for m in members if id(m) not in self.numbers)

    def _mask(self, members: Iterable[Node]) -> int:
        return sum(1 << self.index[id(m)] for m in self._own(members))

    def _check_stores(self, members: Sequence[Node], found: LoopAxes) -> None:
        stored = self._outputs(members)
        full = found.rows | found.inner
        for n in stored:
            axes = frozenset(a for d in found.dims[id(n)] for a in d)
            if axes not in (full, found.rows):
                raise Incompatible("a result would be computed more than once")
            along = zip(n.shape, found.dims[id(n)], strict=True)
            length = found.stored_length
            if length and any(s != length and found.inner & {*own} for s, own in along):
                raise Incompatible("a result is longer than others")
        reads = [e.leaf for e in found.edges.values() if isinstance(e, Load)]
        if len(unique(reads)) + len(stored) > MAX_POINTERS:
            raise Incompatible("too many tensors for one kernel")

    def _outputs(self, members: Sequence[Node]) -> list[Node]:
        """The members that something outside the group reads."""
        inside = {id(m) for m in members}
        roots = {id(r) for r in self.graph.roots}
        kept = self._own(members)
        return [m for m in kept if id(m) in roots or self._read_outside(m, inside, roots)]

    def _read_outside(self, n: Node, inside: set[int], roots: set[int]) -> bool:
        for reader in self.wanted[id(n)]:
            if reader.row.kind == "view":
                if id(reader) in roots or self._read_outside(reader, inside, roots):
                    return True
            elif id(reader) not in inside:
                return True
        return False

    # -- steps

    def _kernel(self, members: list[Node]) -> Kernel:
        try:
            found = loops(members)
        except Incompatible as error:
            raise InternalError(f"A group lost its loops: {error}") from error
        outputs = tuple(self._outputs(members))
        if _contractions(outputs):
            raise InternalError("A contraction has no kernel that takes its result.")
        family, anchor = self.anchors.family(members), next(iter(_contractions(members)), None)
        behind = self._epilogue(members, found)
        return Kernel("", tuple(members), outputs, found, family, anchor, behind)

    def _ordered(self, kernels: list[Kernel]) -> tuple[Step, ...]:
        steps: list[tuple[Step, int, int]] = []  # step, its bits, what it needs
        for kernel in kernels:
            bits = self._mask(kernel.members)
            steps.append((kernel, bits, self._needs(kernel.members) & ~bits))
        for n in self.order:
            if (n.row.kind == "library" and not is_memory_of_pieces(n)) or _counter(n):
                i = self.index[id(n)]
                steps.append((LibraryStep(n, _reason(n)), 1 << i, self.before[i]))
        return tuple(_topological(steps))


def _topological(steps: list[tuple[Step, int, int]]) -> list[Step]:
    everything = 0
    for _, bits, _ in steps:
        everything |= bits
    done, result, left = 0, [], sorted(steps, key=lambda s: s[1] & -s[1])
    while left:
        ready = next((s for s in left if not (s[2] & everything & ~done)), None)
        if ready is None:
            raise InternalError("The plan's steps depend on each other in a circle.")
        left.remove(ready)
        done |= ready[1]
        result.append(ready[0])
    return result


def _counter(n: Node) -> bool:
    """An integer without dimensions, as num_batches_tracked: a kernel costs more than it saves."""
    if not n.row.scalar_update or n.shape or n.dtype is not torch.int64:
        return False  # PyTorch's other functions do not take a number in place of a tensor
    return n.args[0].op != "constant" and all(a.row.kind != "view" for a in n.args)


def _reason(n: Node) -> str:
    if n.op != "library":
        return "one number" if n.op != "getitem" else ""
    why = n.call.why_library
    return f"PyTorch's own routine: {why}" if why else "PyTorch's own routine"


def _contractions(members: Iterable[Node]) -> list[Node]:
    return [m for m in members if m.row.kind == "contraction"]


def elements(n: Node, graph: Graph) -> int:
    """Number of elements at the captured batch size."""
    return graph.hint(numel(n.shape))


def nbytes(n: Node, graph: Graph) -> int:
    """Bytes of the tensor at the captured batch size."""
    return elements(n, graph) * n.dtype.itemsize
