"""A step of the plan -> which modules and lines of the model ask for it, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from fusewright.fusion.planner import Kernel, Step
from fusewright.ir.graph import Graph, origin_of
from fusewright.ir.origin import Origin

MOST = 3  # places that are named, of those that one step comes from


def origins_line(step: Step, graph: Graph, calls: Mapping[str, AbstractSet[str]]) -> str:
    """`from self.fc1 (line 14), relu (line 15)`; "" where nothing is known.

    calls: what each module calls.
    """
    members = step.members if isinstance(step, Kernel) else (step.node,)
    found = [origin for m in members if (origin := origin_of(graph, m))]
    places = list(dict.fromkeys(_place(origin, calls) for origin in found))
    more = [f"{len(places) - MOST} more"] * (len(places) > MOST)
    return f"from {', '.join([*places[:MOST], *more])}" if places else ""


def lines_of(kernel: Kernel, graph: Graph) -> tuple[int, ...]:
    """The lines of the model's file that its nodes come from, in their order there."""
    found = (origin_of(graph, m) for m in kernel.members)
    return tuple(sorted({origin.line for origin in found if origin and origin.line}))


def _place(origin: Origin, calls: Mapping[str, AbstractSet[str]]) -> str:
    line = "" if origin.line is None else f" (line {origin.line})"
    if not origin.module:
        return f"{origin.call}{line}"
    parts = (f"[{part}]" if part.isdecimal() else f".{part}" for part in origin.module.split("."))
    module = f"self{''.join(parts)}"
    is_call = len(calls[origin.module]) == 1
    return f"{module}{line}" if is_call else f"{origin.call} in {module}{line}"
