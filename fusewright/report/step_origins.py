"""Steps of the plan -> which modules and lines of the model ask for them, as people read it.

Steps of equal blocks are asked for by the same places but for numbers: `self.layers[0..11].fc1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from fusewright.fusion.planner import Kernel, Step
from fusewright.ir.graph import Graph, origin_of
from fusewright.ir.origin import Origin

MOST = 3  # places that are named, of those that one step comes from


Calls = Mapping[str, AbstractSet[str]]  # what each module calls
Pattern = tuple[tuple[tuple[str, ...], str, int | None], ...]


def origins_pattern(step: Step, graph: Graph, calls: Calls) -> Pattern:
    """What steps of equal blocks have in common of the places that ask for them."""
    return tuple(
        (tuple("" if part.isdecimal() else part for part in _path(o)), o.call, o.line)
        for o in _origins(step, graph, calls)
    )


def origins_line(steps: Sequence[Step], graph: Graph, calls: Calls) -> str:
    """`from self.fc1 (line 14), relu (line 15)`; "" where nothing is known.

    steps: one, or some of the same pattern.
    """
    each = zip(*(_origins(step, graph, calls) for step in steps), strict=True)
    places = [_place(origins, calls) for origins in each]
    more = [f"{len(places) - MOST} more"] * (len(places) > MOST)
    return f"from {', '.join([*places[:MOST], *more])}" if places else ""


def _origins(step: Step, graph: Graph, calls: Calls) -> list[Origin]:
    """One for each place."""
    members = step.members if isinstance(step, Kernel) else (step.node,)
    found = (origin for m in members if (origin := origin_of(graph, m)))
    return list({_place([origin], calls): origin for origin in found}.values())


def _path(origin: Origin) -> list[str]:
    return origin.module.split(".")


def _place(origins: Sequence[Origin], calls: Calls) -> str:
    """A place, or places that differ in numbers of their paths."""
    origin = origins[0]
    line = "" if origin.line is None else f" (line {origin.line})"
    if not origin.module:
        return f"{origin.call}{line}"
    parts = (dict.fromkeys(some) for some in zip(*map(_path, origins), strict=True))
    module = f"self{''.join(_step_of_path(some) for some in parts)}"
    is_call = len(calls[origin.module]) == 1
    return f"{module}{line}" if is_call else f"{origin.call} in {module}{line}"


def _step_of_path(parts: Iterable[str]) -> str:
    """`.norm`, `[0]`, or `[0..11]` and `[0,3]` of several."""
    first, *others = parts
    if not first.isdecimal():
        return f".{first}"
    numbers = sorted(map(int, (first, *others)))
    whole = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"[{numbers[0]}..{numbers[-1]}]" if whole else f"[{','.join(map(str, numbers))}]"
