"""Plan -> the same, with counters of calls in the kernels that change a module's state.

`num_batches_tracked` grows by one in a launch of its own, or of those of all layers together. A
GPU's kernel that reduces rows, and stores running means, does so beside them: its first row counts.
"""

from __future__ import annotations

from dataclasses import replace

from fusewright.fusion.planner import Kernel, Plan
from fusewright.ir.graph import Node, toposort


def call_counters(plan: Plan) -> dict[int, Node]:
    """The numbers that only count how often they were asked for, and where they stand."""
    graph, alone = plan.graph, {id(step.node) for step in plan.libraries}
    seen = {*(id(a) for n in toposort(graph.roots) for a in n.args), *map(id, graph.outputs)}
    return {
        id(n): target
        for target, n in ((u.target, u.value) for u in graph.updates)
        if id(n) in alone - seen and n.op == "add" and n.dtype is target.dtype and not n.shape
        if n.args[0] is target and n.args[1].op == "constant"
    }


def move_counters_into_kernels(plan: Plan) -> Plan:
    """Let each kernel whose reductions change a module's state count that module's calls."""
    if plan.target.language != "cuda":
        return plan
    graph, owner = plan.graph, {n: _owner(target) for n, target in call_counters(plan).items()}
    read = [id(a) for n in toposort(graph.roots) for a in n.args] + [id(o) for o in graph.outputs]
    waiting = [s.node for s in plan.libraries if id(s.node) in owner]
    waiting = [n for n in waiting if read.count(id(n.args[0])) == 1 and _is_number(n.args[1])]
    state = {id(u.value): _owner(u.target) for u in graph.updates if 0 not in u.target.shape}
    found: dict[str, tuple[Node, ...]] = {}
    for kernel in plan.kernels:
        rows = kernel.reductions and not (kernel.anchor or kernel.scans)
        near = {state.get(id(n)) for n in kernel.outputs if rows} - {None}
        found[kernel.name] = tuple(n for n in waiting if owner[id(n)] in near)
        waiting = [n for n in waiting if owner[id(n)] not in near]
    done = {id(n) for some in found.values() for n in some}
    steps = (
        replace(s, counters=found[s.name]) if isinstance(s, Kernel) else s
        for s in plan.steps
        if isinstance(s, Kernel) or id(s.node) not in done
    )
    return replace(plan, steps=tuple(steps))


def _owner(state: Node) -> str | None:
    """The module that has this buffer; None for an input."""
    return str(state["name"]).rpartition(".")[0] if state.op == "buffer" else None


def _is_number(constant: Node) -> bool:
    """Whether it is no batch size."""
    return type(constant["value"]) is int
