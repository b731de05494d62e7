"""Every file of zoo/: captured, planned and emitted for each target; on the CPU as eager does it.

The judge's full verdict on each is `fusewright suite zoo` (docs/suite.md); this is what fits into
every test run.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from agreement import copied, disagreements
from compiled import Case, build, ready

from fusewright.capture import capture
from fusewright.pipeline import Made, design, emitted_text
from fusewright.problem import load_problem
from fusewright.target import TARGETS

FOLDER = Path(__file__).resolve().parent.parent / "zoo"
PATHS = sorted(FOLDER.glob("*.py"))
NAMES = [path.stem for path in PATHS]
# The first test of a module waits for all models to be captured.
pytestmark = pytest.mark.timeout(900)
FUSED_SHARE = 0.5  # of all operators on the CPU; what is planned today is printed


@dataclass(frozen=True)
class Entry:
    """One problem of the zoo: for the CPU, and what was planned and written for each target."""

    case: Case
    plans: Mapping[str, Made]
    texts: Mapping[str, str]


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    torch.manual_seed(0)
    return {path.stem: _entry(path) for path in PATHS}


@pytest.fixture(scope="module")
def modules(
    entries: dict[str, Entry], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, ModuleType]:
    built = build([e.case for e in entries.values()], tmp_path_factory.mktemp("zoo"))
    return dict(zip(entries, built, strict=True))


def _entry(path: Path) -> Entry:
    problem = load_problem(path)
    model, inputs = problem.make_model(), problem.make_inputs()
    captured = capture(model, inputs)
    plans = {name: design(captured, machine) for name, machine in TARGETS.items()}
    texts = {name: emitted_text(made, model, problem) for name, made in plans.items()}
    return Entry(Case(problem, model, inputs, plans["cpu"], texts["cpu"]), plans, texts)


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


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", NAMES)
def test_emitted(name: str, target: str, entries: dict[str, Entry]) -> None:
    """Every kernel of the plan stands in the emitted file, under its name."""
    entry = entries[name]
    made, text = entry.plans[target], entry.texts[target]
    compile(text, f"{name}_{target}", "exec")
    assert all(kernel.name in text for kernel in made.plan.kernels)
    assert made.plan.steps, "nothing is computed"


@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name: str, entries: dict[str, Entry], modules: dict[str, ModuleType]) -> None:
    """Two calls on the file's own inputs, against float64, with eager's error as the measure."""
    case = entries[name].case
    torch.manual_seed(0)
    ours = modules[name].ModelNew(*case.problem.make_init_inputs())
    theirs = copy.deepcopy(case.model)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    with torch.no_grad():
        assert ready(copy.deepcopy(ours), copied(case.inputs)), "the guard refuses the inputs"
    assert disagreements(ours, theirs, case.inputs) == []
    assert disagreements(ours, theirs, case.inputs) == []


def test_coverage(entries: dict[str, Entry], capsys: pytest.CaptureFixture[str]) -> None:
    """How much of the zoo runs in kernels of ours; printed, and not less than it should be."""
    lines = []
    for target in TARGETS:
        plans = [entry.plans[target].plan for entry in entries.values()]
        fused = sum(len(kernel.members) for plan in plans for kernel in plan.kernels)
        calls = Counter(
            str(s.node["name"]).removeprefix("aten.")
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
