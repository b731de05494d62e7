"""Captured Graph + Target -> Graph: what is rewritten where the target decides, stage by stage.

A stage that writes PyTorch's calls as kernels of ours has a name, and a tuner may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fusewright.ir.graph import Graph, check
from fusewright.kernels.interface import MatchContext
from fusewright.kernels.registry import FAMILIES
from fusewright.rewrite.bit_views import bits
from fusewright.rewrite.concat_in_place import joint
from fusewright.rewrite.half_rounding import halves
from fusewright.rewrite.huge_pages import pages
from fusewright.rewrite.norm_rounding import once
from fusewright.rewrite.simplify import apart
from fusewright.rewrite.sink_views import through
from fusewright.rewrite.target_lowering import lower_for_target
from fusewright.targets.target import Target


def run_passes(
    graph: Graph,
    context: MatchContext,
    left_out: tuple[str, ...] = (),
) -> Graph:
    """The graph that is planned for the context's target. left_out: names of stages.

    Families come in their order, behind what would hide a call from them, and before what writes
    the calls that none of them takes.
    """
    machine = context.target
    stages: Mapping[str, Callable[[Graph], Graph]] = {
        "once": lambda g: once(g, machine),
        **{f.stage: partial(f.match, context=context) for f in FAMILIES.values() if f.stage},
        "target-lowering": lambda g: _lower(g, machine),
        "bits": bits,
        "halves": halves,
        "pages": lambda g: pages(g, machine),
    }
    given, before = graph, "rewrite"
    for name, stage in stages.items():
        if name not in left_out:
            graph, before = stage(check(graph, before)), name
    return check(apart(given, graph), before)


def _lower(graph: Graph, machine: Target) -> Graph:
    """What is a call until the target is known, and what that leaves of pieces of tensors."""
    refined = [family.refine for family in FAMILIES.values()]
    for step in (lower_for_target, once, *refined, joint, through):
        graph = step(graph, machine)
    return graph
