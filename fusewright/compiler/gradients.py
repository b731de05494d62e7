"""A model's Compilation -> those of its forward and backward graphs, for calls with gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from fusewright.codegen.kernel_symbols import CXX_NAMES, symbols
from fusewright.compiler.compilation import Compilation, design
from fusewright.compiler.rules import check_rules
from fusewright.emit.emitted_file import GeneratedForward
from fusewright.emit.recorded import PlannedGraph, PlannedJoint, recorded_forward
from fusewright.emit.scope import EmitScope
from fusewright.errors import BadUsage, CaptureFailed
from fusewright.frontend.joint_graph import JointGraph, capture_joint


@dataclass(frozen=True)
class Recorded:
    """What was made for calls that record gradients. backward: for each of the joint graph's."""

    joint: JointGraph
    forward: Compilation
    backward: tuple[Compilation, ...]

    @property
    def made(self) -> tuple[Compilation, ...]:
        return (self.forward, *self.backward)


def make_recorded(
    module: nn.Module,
    inputs: Sequence[object],
    first: Compilation,
    rules: frozenset[str],
    others: Sequence[Compilation],
) -> Recorded:
    """The graphs of `module` as it is, with gradients; raises CaptureFailed where there are none,
    or no kernel would be faster, and BadUsage for rules that cannot be kept.

    first: of the same without gradients.  others: whose kernels have names already.
    """
    joint = capture_joint(module, inputs, first.given, first.plan.target.device)
    try:
        return _designed(joint, first, rules, others)
    except (CaptureFailed, BadUsage) as error:
        if not joint.forward.graph.free:
            raise
        why = str(error)
    joint = capture_joint(module, inputs, first.given, first.plan.target.device, why)
    return _designed(joint, first, rules, others)


def _designed(
    joint: JointGraph, first: Compilation, rules: frozenset[str], others: Sequence[Compilation]
) -> Recorded:
    machine, precision = first.plan.target, first.plan.precision
    made = list[Compilation]()
    for graph in (joint.forward, *(one.captured for one in joint.backward)):
        texts = [text for one in (*others, *made) for text in one.texts]
        names = replace(CXX_NAMES, taken=frozenset[str]().union(*(symbols(t.name) for t in texts)))
        made.append(design(graph, machine, precision, rules, names=names))
        check_rules(made[-1], rules)
    if not any(one.replaced for one in made):
        raise CaptureFailed("no kernel of ours would be faster with gradients")
    return Recorded(joint, made[0], tuple(made[1:]))


def recorded_code(
    recorded: Recorded,
    first: Compilation,
    function_of: Mapping[str, str],
    module: nn.Module,
    scope: EmitScope,
) -> GeneratedForward:
    """The emitted `forward` for such calls. first: as above.  function_of: of the emitted file."""
    forward, *backward = map(_planned, recorded.made)
    joint = PlannedJoint(recorded.joint, forward, tuple(backward), first.given.results)
    return recorded_forward(joint, function_of, module, replace(scope, records=True))


def _planned(made: Compilation) -> PlannedGraph:
    return PlannedGraph(made.captured, made.plan, made.texts, made.conditions)
