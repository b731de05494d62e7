"""Captured, plan -> whether calls that come back are launched at once, as one CUDA graph.

A forward of many short steps waits for Python, which launches them one by one. The emitted file can
record its steps once and launch them together (`emit/replay_support`). That is sound where a step
does the same work whatever the values of its tensors, and waits for nothing; so calls of PyTorch
are those of which that is known.
"""

from __future__ import annotations

from fusewright.frontend.capture import Captured
from fusewright.fusion.planner import LibraryStep, Plan, Step, nbytes
from fusewright.ir.library_call import CALLED_VIEWS, RECORDED_CALLS

# All steps at once take the host less than two do from Python [m: host-0014, host-0015]; the text
# that does it is as long as that of some kernels, so it is for more.
FEWEST_LAUNCHES = 3
# What a GPU may spend on copies for each step that Python need not launch, and what it spends on
# the smallest copy. A prediction: Python takes three times as long, but a GPU that works for longer
# than the host hides that.
LAUNCH_S, COPY_S = 3e-6, 2e-6


def is_replayed(captured: Captured, plan: Plan) -> bool:
    """Whether a CUDA graph of the steps is faster than launching them, and does the same."""
    launches = [step for step in plan.steps if _launches(step)]
    return (
        plan.target.language == "cuda"
        and bool(plan.kernels)
        and bool(captured.graph.inputs)
        and captured.graph.returns_its_own
        and not captured.replaced
        and len(launches) >= FEWEST_LAUNCHES
        and _copying_s(captured, plan) <= LAUNCH_S * len(launches)
        and all(_is_recorded(step) for step in plan.libraries)
        and not any(n.op == "input" for n in captured.graph.written)
        and not any(n.dtype.is_complex for n in captured.graph.inputs)  # may be conjugated lazily
        and all(tensor.numel() <= 1 for tensor in captured.constants.values())
    )


def _copying_s(captured: Captured, plan: Plan) -> float:
    """What it takes a GPU to copy arguments and results."""
    graph, machine = captured.graph, plan.target.machine
    copied = [nbytes(n, graph) for n in (*graph.inputs, *graph.made)]
    return COPY_S * len(copied) + 2 * sum(copied) / machine.copy_bytes_per_s


def _launches(step: Step) -> bool:
    return not (isinstance(step, LibraryStep) and step.node.called in CALLED_VIEWS)


def _is_recorded(step: LibraryStep) -> bool:
    """An operator that PyTorch computes alone, or an item of a call, is like any kernel."""
    n = step.node
    return n.op != "library" or (n.called in RECORDED_CALLS and not n.call.drops_out)
