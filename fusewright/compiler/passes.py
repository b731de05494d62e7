"""Captured Graph + Target -> Graph: what is rewritten where the target decides, stage by stage.

A stage that writes PyTorch's calls as kernels of ours has a name, and a tuner may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.ir.graph import Graph, check
from fusewright.kernels.attention.match import attention
from fusewright.kernels.conv.match import Rounds, convolution
from fusewright.kernels.conv.pool_fusion import pooled
from fusewright.kernels.gemm.match import product
from fusewright.kernels.gemm.triangle_masks import masked
from fusewright.kernels.scan.match import scan
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
    for step in (lower_for_target, once, pooled, masked, joint, through):
        graph = step(graph, machine)
    return graph
