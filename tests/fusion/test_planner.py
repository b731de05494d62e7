"""Graph -> kernels and library calls: what shares a kernel, what may not, in which order."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from fusewright.frontend.capture import capture
from fusewright.fusion.axes import Load
from fusewright.fusion.planner import Kernel, Plan, plan
from fusewright.ir.graph import base, toposort
from fusewright.kernels.registry import ANCHORS
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS

SETUP = (
    "self.linear = nn.Linear(12, 12)\nself.conv = nn.Conv2d(3, 4, 3)\n"
    "self.norm = nn.BatchNorm2d(3)\nself.behind = nn.BatchNorm2d(4)"
)


def planned(text: str, *inputs: torch.Tensor, target: str = "cpu") -> Plan:
    """The plan of a model whose forward is `text`."""
    scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional}
    names = ", ".join(["self", "x", "y", "z"][: 1 + len(inputs)])
    body = "\n        ".join(text.splitlines())
    setup = "\n        ".join(SETUP.splitlines())
    exec(
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {setup}\n"
        f"    def forward({names}):\n        {body}\n",
        scope,
    )
    model: nn.Module = scope["M"]()  # type: ignore[operator]
    graph, _ = rewrite(capture(model, inputs).graph)
    return plan(graph, TARGETS[target], ANCHORS)


def kernels(text: str, *inputs: torch.Tensor) -> int:
    return len(planned(text, *inputs).kernels)


ROWS = torch.randn(5, 12)
IMAGE = torch.randn(4, 3, 6, 7)

# forward, an input, kernels
CASES = [
    ("return torch.tanh(x * 2 + 1)", ROWS, 1),
    ("return torch.softmax(x, -1)", ROWS, 1),
    ("return F.layer_norm(torch.relu(x), (12,)) * 2", ROWS, 1),
    ("return x.sum(-1), x.amax(-1), x - x.mean(-1, keepdim=True)", ROWS, 1),
    ("return torch.relu(self.linear(torch.tanh(x)))", ROWS, 2),
    ("y = self.linear(x)\nreturn torch.relu(y) + y, torch.sigmoid(y)", ROWS, 1),
    ("return torch.relu(self.conv(x)) * 3", IMAGE, 1),
    ("return F.group_norm(torch.relu(x), 1).mean((2, 3))", IMAGE, 2),
    ("return torch.relu(self.norm(x))", IMAGE, 1),
    ("return self.norm(x) + self.norm(x * 2)", IMAGE, 1),
    # Both divide by the number of pixels less one, which each works out from the batch size.
    ("y = F.conv2d(self.norm(x), self.conv.weight, padding=1)\nreturn self.behind(y)", IMAGE, 2),
    ("x = x.sum(1, keepdim=True).max(1, keepdim=True)[0]\nreturn x.mean(1).logsumexp(0)", ROWS, 2),
    ("x = x.sum(1, keepdim=True).max(1, keepdim=True)[0]\nreturn x.logsumexp(1)", ROWS, 1),
    ("return torch.relu(x), torch.tanh(x).sum()", ROWS, 1),
    ("return torch.softmax(torch.softmax(x, -1), -1)", ROWS, 1),
    ("return (x + 1).reshape(-1) * 2", ROWS, 1),
    ("return x.t() + 1, x + 1", ROWS, 1),
    ("return x * 1.0 @ x.t()", ROWS, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "x", "count"), CASES, ids=[c[0].replace("\n", "; ") for c in CASES]
)
def test_how_many_kernels(text: str, x: torch.Tensor, count: int) -> None:
    assert kernels(text, x) == count


MIXED = [
    "y = self.linear(x.relu())\nz = torch.softmax(y * 2, -1)\nreturn self.linear(z) + y, z.sum(0)",
    "y = torch.tanh(x)\nz = y.sum(0)\nreturn (y - z).sum(-1), y * z.max()",
    "y = torch.relu(x)\nreturn torch.cat([y, x * 2], 1) + torch.cat([x, y], 1).mean(-1, True)",
    "return F.dropout(torch.relu(x), 0.5, True) + torch.rand_like(x)",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", [*MIXED, *(c[0] for c in CASES if c[1] is ROWS)])
def test_every_node_is_computed_once_and_after_what_it_needs(text: str) -> None:
    made = planned(text, ROWS)
    known = {id(n) for n in made.graph.leaves}
    computed: list[int] = []
    for step in made.steps:
        members = step.members if isinstance(step, Kernel) else (step.node,)
        inside = {id(m) for m in members}
        for need in (base(a) for m in members for a in m.args):
            assert id(need) in known | inside, f"{need!r} is not there yet"
        shown = step.outputs if isinstance(step, Kernel) else members
        known |= {id(n) for n in shown}
        computed += [id(m) for m in members]
    assert len(computed) == len(set(computed))
    for root in made.graph.roots:
        for n in toposort([root]):
            assert n.row.kind in ("leaf", "view") or id(n) in computed


@pytest.mark.parametrize("text", MIXED)
def test_a_kernel_stores_what_others_read_and_nothing_else(text: str) -> None:
    made = planned(text, ROWS)
    read = {id(base(root)) for root in made.graph.roots}
    for step in made.steps:
        if isinstance(step, Kernel):
            edges = step.loops.edges.values()
            read |= {id(n) for e in edges if isinstance(e, Load) for n in toposort([e.leaf])}
        else:
            read |= {id(n) for a in step.node.args for n in toposort([a])}
    for kernel in made.kernels:
        assert all(
            id(n) in read or any(n in toposort([r]) for r in made.graph.roots)
            for n in kernel.outputs
        )


def test_a_cycle_through_a_library_call_is_avoided() -> None:
    made = planned("y = torch.relu(x)\nreturn y + self.linear(y)", ROWS)
    assert [type(s).__name__ for s in made.steps] == ["Kernel", "LibraryStep", "Kernel"]


# Steps of random models, most of which cannot share a kernel with some of the others.
STEPS = [
    *("{a} + {b}", "{a} * {b}", "{a}.relu()", "torch.softmax({a}, 0)", "torch.softmax({a}, 1)"),
    *("{a}.sum(0, keepdim=True) + {b}", "{a} - {b}.amax(1, keepdim=True)", "{a}.mean() * {b}"),
    *("{a}.cumsum(1)", "torch.cat([{a}, {b}])[3:9]", "{a}.mT.reshape(6, 6) + {b}"),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [18, 28, 46, 48, *range(100, 106)])  # the first four once were one
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_kernels_that_wait_for_each_other_are_no_circle(seed: int, target: str) -> None:
    """Two nodes of a kernel may be needed by, and need, two of another one which know nothing of
    each other; and so on through several kernels."""
    draw, names, lines = random.Random(seed), ["x"], list[str]()
    for i in range(16):
        step = draw.choice(STEPS).format(a=draw.choice(names[-5:]), b=draw.choice(names[-5:]))
        lines.append(f"v{i} = {step}")
        names.append(f"v{i}")
    text = "\n".join([*lines, "return " + ", ".join(names[-3:])])
    assert planned(text, torch.randn(6, 6), target=target).kernels


def test_it_says_why_neighbours_stay_apart() -> None:
    made = planned("return (x - x.mean(-1, keepdim=True)).sum()", ROWS)
    assert any("reductions over different axes" in note for note in made.notes)
