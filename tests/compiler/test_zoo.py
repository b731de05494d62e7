"""Every file of zoo/: captured, planned and emitted for each target.

Whether what is emitted for the CPU is right, the judge says: `make zoo`, a part of `make test`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import Compilation, design
from fusewright.compiler.pipeline import emitted_text
from fusewright.frontend.capture import capture
from fusewright.targets.target import TARGETS
from tests.support.folders import ZOO

# Those that have all kernels of their kind; the others have some of the second.
PLANNED = ("cpu", "sm_80", "sm_90a")
# Cannot be captured as a whole: tests/frontend/test_submodules.py has these.
IN_PARTS = ("network_experts_routed", "network_detection_suppressed")
PATHS = sorted(p for p in ZOO.glob("*.py") if p.stem not in IN_PARTS)
NAMES = [path.stem for path in PATHS]
# In train mode eager itself refuses a batch of 1; and it lays a result otherwise there.
TWO_OR_MORE = frozenset(
    (
        *("linear_batchnorm_swish", "network_batchnorm_stack", "norm_batch_rows_train"),
        "matmul_einsum",
    )
)
# The first test of a module waits for all models to be captured.
pytestmark = pytest.mark.timeout(900)
FUSED_SHARE = 0.5  # of all operators on the CPU; what is planned today is printed


@dataclass(frozen=True)
class Entry:
    """What was planned and written for one problem of the zoo, for each target."""

    plans: Mapping[str, Compilation]
    texts: Mapping[str, str]


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    torch.manual_seed(0)
    return {path.stem: _entry(path) for path in PATHS}


def _entry(path: Path) -> Entry:
    problem = load_problem(path)
    model, inputs = problem.make_model(), problem.make_inputs()
    captured = capture(model, inputs)
    plans = {name: design(captured, TARGETS[name]) for name in PLANNED}
    texts = {name: emitted_text(made, model, problem) for name, made in plans.items()}
    return Entry(plans, texts)


def test_the_zoo_is_large_enough() -> None:
    assert len(PATHS) >= 80


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_a_file_says_what_it_is(path: Path) -> None:
    """One line of docstring, and sizes that --set can change."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    assert said, "a docstring of one line"
    assert len(said.splitlines()) == 1, said
    constants = [n for n in tree.body if isinstance(n, ast.Assign)]
    assert constants, "sizes as constants of the file"


@pytest.mark.slow
@pytest.mark.parametrize("target", PLANNED)
@pytest.mark.parametrize("name", NAMES)
def test_emitted(name: str, target: str, entries: dict[str, Entry]) -> None:
    """Every kernel of the plan stands in the emitted file, under the name of its function."""
    entry = entries[name]
    made, text = entry.plans[target], entry.texts[target]
    compile(text, f"{name}_{target}", "exec")
    names = [made.shared.function_of[kernel.name] for kernel in made.plan.kernels]
    assert all(f'["{name}"](' in text for name in names)
    assert made.plan.steps, "nothing is computed"


@pytest.mark.slow
def test_the_smallest_batch(entries: dict[str, Entry]) -> None:
    graphs = {name: entry.plans["cpu"].captured.graph for name, entry in entries.items()}
    least = {name: size.least for name, graph in graphs.items() for size in graph.free}
    assert {name for name, size in least.items() if size != 1} == TWO_OR_MORE
    assert len(least) > len(graphs) * 0.9


@pytest.mark.slow
def test_coverage(entries: dict[str, Entry], capsys: pytest.CaptureFixture[str]) -> None:
    """How much of the zoo runs in kernels of ours; printed, and not less than it should be."""
    lines = []
    for target in PLANNED:
        plans = [entry.plans[target].plan for entry in entries.values()]
        fused = sum(len(kernel.members) for plan in plans for kernel in plan.kernels)
        calls = Counter(
            s.node.call.name.removeprefix("aten.")
            for plan in plans
            for s in plan.libraries
            if s.node.op == "library"
        )
        share = fused / (fused + calls.total())
        most = ", ".join(f"{name} {count}" for name, count in calls.most_common(12))
        kernels = sum(len(plan.kernels) for plan in plans)
        lines.append(
            f"{target}: {len(plans)} problems, {fused} operators in {kernels} kernels "
            f"({share:.0%}), {calls.total()} library calls: {most}, ..."
        )
        assert share >= FUSED_SHARE, lines[-1]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
