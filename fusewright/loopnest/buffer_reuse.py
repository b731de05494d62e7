"""Plan -> BufferReuse: which result takes over the memory of a tensor that nobody needs any more.

A fresh result of a library call that only one kernel reads is overwritten in place: no new memory,
no page faults, and the tensor stays in the cache. An update goes straight into the model's buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusewright.fusion.axes import Load
from fusewright.fusion.planner import Kernel, Plan
from fusewright.ir.graph import Graph, Node, base, readers, toposort
from fusewright.loopnest.nest import Nest, nest
from fusewright.loopnest.sliding_window import sliding_window


@dataclass(frozen=True)
class BufferReuse:
    """nests: by kernel name.  in_place: by kernel name, pairs (result, tensor it overwrites)."""

    nests: Mapping[str, Nest]
    in_place: Mapping[str, tuple[tuple[Node, Node], ...]]


def buffer_reuse(plan: Plan) -> BufferReuse:
    """Lay out every kernel and decide what is computed in place."""
    downs = plan.target.language == "cuda"
    nests = {
        k.name: nest(k, plan.graph, sliding_window(k) if downs else None) for k in plan.kernels
    }
    read_by = readers(toposort(plan.graph.roots))
    chosen = {k.name: _in_place(k, nests[k.name], read_by, plan) for k in plan.kernels}
    return BufferReuse(nests, chosen)


def _in_place(
    kernel: Kernel, layout: Nest, readers: Mapping[int, list[Node]], plan: Plan
) -> tuple[tuple[Node, Node], ...]:
    pairs: list[tuple[Node, Node]] = []
    taken: set[int] = set()
    returned = {id(base(o)) for o in plan.graph.outputs}  # as memory of its own
    targets = {id(u.value): u.target for u in plan.graph.updates if id(u.value) not in returned}
    # Other tiles still read the product's factors.
    whole = {id(base(a)) for a in (kernel.anchor.args if kernel.anchor else ())}
    for output in kernel.outputs:
        wanted = targets.get(id(output))
        for leaf in (n for n in kernel.leaves if id(n) not in whole):
            if wanted:
                free = leaf is wanted and not _read_later(leaf, kernel, readers, plan)
            else:
                free = _is_dead(leaf, kernel, readers, plan.graph)
            if id(leaf) not in taken and free and _fits(leaf, output, layout):
                taken.add(id(leaf))
                pairs.append((output, leaf))
                break
    return tuple(pairs)


def _read_later(leaf: Node, kernel: Kernel, readers: Mapping[int, list[Node]], plan: Plan) -> bool:
    """Whether a step behind the kernel still wants the old value."""
    later: set[int] = set()
    for step in plan.steps[plan.steps.index(kernel) + 1 :]:
        nodes = step.members if isinstance(step, Kernel) else (step.node,)
        later.update(id(n) for n in nodes)
    waiting = list(readers.get(id(leaf), []))
    for reader in waiting:
        if reader.row.kind == "view":
            waiting += readers.get(id(reader), [])
        if id(reader) in later:
            return True
    return False


def _is_dead(leaf: Node, kernel: Kernel, readers: Mapping[int, list[Node]], graph: Graph) -> bool:
    """Whether the tensor is fresh memory that only this kernel reads."""
    fresh = leaf.op == "library" and leaf.call.new_memory and not leaf.call.memory_of_pieces
    inside = {id(m) for m in kernel.members}
    roots = {id(r) for r in (*graph.outputs, *(u.value for u in graph.updates))}
    return fresh and id(leaf) not in roots and _only_read_by(leaf, inside, readers, roots)


def _only_read_by(
    n: Node, inside: set[int], readers: Mapping[int, list[Node]], roots: set[int]
) -> bool:
    for reader in readers.get(id(n), []):
        if reader.row.kind == "view":
            if id(reader) in roots or not _only_read_by(reader, inside, readers, roots):
                return False
        elif id(reader) not in inside:
            return False
    return True


def _fits(leaf: Node, output: Node, layout: Nest) -> bool:
    """Same type, and every read of the leaf is at the very element that is written."""
    if (leaf.shape, leaf.dtype, leaf.order) != (output.shape, output.dtype, output.order):
        return False
    if output.placement.inside:
        return False
    write = layout.writes[id(output)]
    edges = layout.kernel.loops.edges.items()
    reads = [layout.reads[key] for key, e in edges if isinstance(e, Load) and e.leaf is leaf]
    views = any(isinstance(e, Load) and e.leaf.row.kind == "view" for _, e in edges)
    return not views and all(layout.same_place(read, write) for read in reads)
