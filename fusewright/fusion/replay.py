"""Captured, plan -> whether calls that come back are launched at once, as one CUDA graph.

A forward of many short steps waits for Python, which launches them one by one. The emitted file can
record its steps once and launch them together (`emit/replay_support`). That is sound where a step
does the same work whatever the values of its tensors, and waits for nothing; so calls of PyTorch
are those of which that is known.
"""

from __future__ import annotations

from fusewright.frontend.capture import Captured
from fusewright.fusion.planner import LibraryStep, Plan, Step
from fusewright.ir.library_call import CALLED_VIEWS, RECORDED_CALLS

# A launch from Python takes 5 to 15 us of the host's time; all of a replay but the guard 26
# [m: host-0012].
FEWEST_LAUNCHES = 5


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
        and all(_is_recorded(step) for step in plan.libraries)
        and not any(n.op == "input" for n in captured.graph.written)
        and not any(n.dtype.is_complex for n in captured.graph.inputs)  # may be conjugated lazily
        and all(tensor.numel() <= 1 for tensor in captured.constants.values())
    )


def _launches(step: Step) -> bool:
    return not (isinstance(step, LibraryStep) and step.node.called in CALLED_VIEWS)


def _is_recorded(step: LibraryStep) -> bool:
    """An operator that PyTorch computes alone, or an item of a call, is like any kernel."""
    n = step.node
    return n.op != "library" or (n.called in RECORDED_CALLS and not n.call.drops_out)
