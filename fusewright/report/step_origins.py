"""A step of the plan -> which modules and lines of the model ask for it, as people read it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeVar

from fusewright.frontend.library_calls import is_float32_contraction
from fusewright.fusion.planner import Kernel, Step
from fusewright.ir.graph import Graph, origin_of
from fusewright.ir.origin import Origin

MOST = 3  # places that are named, of those that one step comes from
Calls = Mapping[str, AbstractSet[str]]  # what each module calls
Pattern = tuple[Origin, ...]  # what steps of equal blocks have in common of their origins
Told = TypeVar("Told", bound=Hashable)


def of_equal_blocks(
    told: Iterable[tuple[Step, Told]], graph: Graph
) -> dict[tuple[Told, Pattern], list[Step]]:
    """Steps of which the same is told and that are asked for by the same places but for numbers,
    in the order of the first of each."""
    found: dict[tuple[Told, Pattern], list[Step]] = {}
    for step, what in told:
        pattern = tuple(map(_without_numbers, _origins(step, graph)))
        found.setdefault((what, pattern), []).append(step)
    return found


def origins_line(steps: Sequence[Step], graph: Graph, calls: Calls) -> str:
    """`from self.fc1 (line 14), relu (line 15)`; "" where nothing is known.

    steps: one, or some of equal blocks.
    """
    places = places_of(steps, graph, calls)
    return f"from {', '.join(places)}" if places else ""


def _origins(step: Step, graph: Graph) -> tuple[Origin, ...]:
    """Where its nodes come from, each once; a layer whose bias it only adds is PyTorch's."""
    members = step.members if isinstance(step, Kernel) else (step.node,)
    found = [origin for m in members if (origin := origin_of(graph, m))]
    read = step.leaves if isinstance(step, Kernel) else ()
    products = {origin_of(graph, n) for n in read if is_float32_contraction(n)}
    return tuple(dict.fromkeys([o for o in found if o not in products] or found))


def _without_numbers(origin: Origin) -> Origin:
    """The same for all modules of a list: `layers.*.fc1`."""
    parts = ("*" if part.isdecimal() else part for part in origin.module.split("."))
    return replace(origin, module=".".join(parts))


def any_number(reason: str) -> str:
    """The same for the parameters of all modules of a list: `layers.*.fc1.weight is packed`."""
    return " ".join(map(_any_number, reason.split(" ")))


def _any_number(word: str) -> str:
    first, *parts = word.split(".")
    same = ("*" if part.isdecimal() else part for part in parts)
    return ".".join([first, *same]) if first.isidentifier() else word


def places_of(steps: Sequence[Step], graph: Graph, calls: Calls) -> tuple[str, ...]:
    """The places that ask for steps of equal blocks, a few of them."""
    each = zip(*(_origins(step, graph) for step in steps), strict=True)
    places = [*dict.fromkeys(_place(same, calls) for same in each)]
    return (*places[:MOST], *[f"{len(places) - MOST} more"] * (len(places) > MOST))


def _place(same: Sequence[Origin], calls: Calls) -> str:
    """That of origins that are the same but for numbers."""
    line = same[0].line
    return f"{place_name(same, calls)}{'' if line is None else f' (line {line})'}"


def place_name(same: Sequence[Origin], calls: Calls) -> str:
    """The same without the line: `self.fc1`, or what is called."""
    first = same[0]
    if not first.module:
        return first.call
    columns = zip(*(origin.module.split(".") for origin in same), strict=True)
    module = f"self{''.join(map(_part, columns))}"
    is_call = all(len(calls[origin.module]) == 1 for origin in same)
    return module if is_call else f"{first.call} in {module}"


def _part(names: Sequence[str]) -> str:
    """`.fc1`, `[3]`, or `[0..11]` of several."""
    if not names[0].isdecimal():
        return f".{names[0]}"
    numbers = sorted({int(name) for name in names})
    many = f"{numbers[0]}..{numbers[-1]}" if len(numbers) > 1 else names[0]
    is_range = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"[{many if is_range else ', '.join(map(str, numbers))}]"


def lines_of(kernel: Kernel, graph: Graph) -> tuple[int, ...]:
    """The lines of the model's file that its nodes come from, in their order there."""
    found = (origin_of(graph, m) for m in kernel.members)
    return tuple(sorted({origin.line for origin in found if origin and origin.line}))
