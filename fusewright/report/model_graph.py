"""Plan -> the graph of the model as people read it: places of the user's file, and which step
computes each.

A place may be many operators (a norm is a dozen of them), and a step may hold several places. What
one step computes for one place is one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusewright.fusion.planner import Kernel, Plan
from fusewright.fusion.planner import Step as PlanStep
from fusewright.ir.graph import Node, is_number_of_constants, origin_of, shape_text
from fusewright.ir.origin import Origin, calls_of_modules
from fusewright.kernels.interface import Description
from fusewright.report.decision_record import step_reports
from fusewright.report.run_report import GraphNode, ModelGraph
from fusewright.report.step_facts import is_item, results_of_calls
from fusewright.report.step_origins import Calls, place_name

Key = tuple[int, str, Origin | None]  # the step, the operator where no place is known, the place


def model_graph(
    plan: Plan,
    descriptions: Mapping[str, Description],
    rows: Iterable[Sequence[PlanStep]],
    inputs: Sequence[str],
) -> ModelGraph:
    """descriptions: of the kernels, by name.  rows: the steps that each row of the table at the top
    of an emitted file tells of.  inputs: what the model calls its inputs."""
    row_of = {id(step): k for k, steps in enumerate(rows) for step in steps}
    both = zip(plan.steps, step_reports(plan, descriptions), strict=True)
    told = [(step, report) for step, report in both if not is_item(step)]
    found = _Places(plan, inputs)
    for k, (step, _) in enumerate(told):
        found.add(k, step.members if isinstance(step, Kernel) else (step.node,))
    return ModelGraph(
        tuple(found.nodes(calls_of_modules(plan.graph.origins.values()))),
        tuple(report for _, report in told),
        tuple(row_of[id(step)] for step, _ in told),
        tuple(sorted({k for n in plan.graph.outputs for k in found.sources(n)})),
    )


@dataclass
class _Place:
    """A node on its way. members: of the graph of the compiler.  reads: other places."""

    step: int | None
    origin: Origin | None
    members: list[Node] = field(default_factory=list)
    reads: dict[int, None] = field(default_factory=dict)


class _Places:
    """The nodes so far. They are made in the order of the steps, so that each reads earlier ones,
    or some that stand in the same step."""

    def __init__(self, plan: Plan, inputs: Sequence[str]) -> None:
        self._graph = graph = plan.graph
        self._names = inputs
        self._results = results_of_calls(plan)
        self._places = [_Place(None, None, [n]) for n in graph.inputs]
        self._place_of = {id(n): k for k, n in enumerate(graph.inputs)}
        self._latest: dict[Key, int] = {}

    def add(self, step: int, members: Iterable[Node]) -> None:
        """What a step computes, arguments first."""
        for n in members:
            if is_number_of_constants(n):
                continue  # no place asks for it
            origin = origin_of(self._graph, n)
            key = step, "" if origin else n.short_name, origin
            reads = dict.fromkeys(k for a in n.args for k in self.sources(a))
            k = self._latest.get(key)
            if k is None or any(self._leads_to(other, k) for other in reads if other != k):
                k = self._latest[key] = len(self._places)
                self._places.append(_Place(step, origin))
            self._places[k].members.append(n)
            self._places[k].reads |= {other: None for other in reads if other != k}
            self._place_of[id(n)] = k

    def sources(self, n: Node) -> tuple[int, ...]:
        """Where the value of a node comes from: views and items are passed through, and parameters
        are no part of the graph."""
        found, waiting, seen = dict[int, None](), [n], set[int]()
        while waiting:
            n = waiting.pop()
            if id(n) in self._place_of:
                found[self._place_of[id(n)]] = None
            elif id(n) not in seen:
                seen.add(id(n))
                waiting += reversed(n.args)
        return tuple(found)

    def _leads_to(self, later: int, earlier: int) -> bool:
        """Whether one place reads another of the step at hand, at any distance: they cannot become
        one. Places of steps before it read none of its own."""
        step, waiting, seen = self._places[earlier].step, [later], set[int]()
        while waiting:
            k = waiting.pop()
            if k == earlier:
                return True
            if k not in seen and self._places[k].step == step:
                seen.add(k)
                waiting += self._places[k].reads
        return False

    def nodes(self, calls: Calls) -> Iterable[GraphNode]:
        """In an order in which each reads earlier ones."""
        number = {k: place for place, k in enumerate(self._order())}
        for k in number:
            place = self._places[k]
            last = place.members[-1]
            operators = tuple(n.short_name for n in place.members) if place.step is not None else ()
            name = place_name([place.origin], calls) if place.origin else last.short_name
            if place.step is None:
                name = self._names[k]
            line = place.origin.line if place.origin else None
            reads = tuple(sorted(number[other] for other in place.reads))
            shapes = map(shape_text, (n.shape for n in self._results.get(id(last), (last,))))
            yield GraphNode(name, line, operators, ", ".join(shapes), place.step, reads)

    def _order(self) -> list[int]:
        """A place that got more members may read one that was made after it."""
        done, found = set[int](), list[int]()
        for k in range(len(self._places)):
            waiting = [k]
            while waiting:
                k = waiting[-1]
                more = [other for other in self._places[k].reads if other not in done]
                if more and k not in done:
                    waiting += more
                    continue
                waiting.pop()
                if k not in done:
                    done.add(k)
                    found.append(k)
        return found
