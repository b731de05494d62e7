"""Captured Graph + Target -> Graph: what is rewritten where the target decides, stage by stage.

A stage that writes PyTorch's calls as kernels of ours has a name, and a tuner may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.attention import attention
from fusewright.bits import bits
from fusewright.convolution import Rounds, convolution
from fusewright.halves import halves
from fusewright.ir import Graph, check
from fusewright.joint import joint
from fusewright.late import late
from fusewright.masked import masked
from fusewright.once import once
from fusewright.pages import pages
from fusewright.pooled import pooled
from fusewright.product import product
from fusewright.rewrite import apart
from fusewright.scan import scan
from fusewright.target import Target
from fusewright.through import through


def staged(
    graph: Graph,
    machine: Target,
    precision: str,
    rules: frozenset[str],
    rounds: Rounds | None,
    left_out: tuple[str, ...] = (),
) -> Graph:
    """The graph that is planned for a machine.

    rounds: whether PyTorch's own convolution of a kind rounds.  left_out: names of stages.
    """
    stages: Mapping[str, Callable[[Graph], Graph]] = {
        "once": lambda g: once(g, machine),
        "attention": lambda g: attention(g, machine, rules),
        "product": lambda g: product(g, machine, rules),
        "convolution": lambda g: convolution(g, machine, precision, rules, rounds),
        "scan": lambda g: scan(g, machine),
        "late": lambda g: _late(g, machine),
        "bits": bits,
        "halves": halves,
        "pages": lambda g: pages(g, machine),
    }
    given, before = graph, "rewrite"
    for name, stage in stages.items():
        if name not in left_out:
            graph, before = stage(check(graph, before)), name
    return check(apart(given, graph), before)


def _late(graph: Graph, machine: Target) -> Graph:
    """What is a call until the target is known, and what that leaves of pieces of tensors."""
    for step in (late, once, pooled, masked, joint, through):
        graph = step(graph, machine)
    return graph
