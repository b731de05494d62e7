"""A seeded sample of random models; bench/fuzz_cpu.py runs as many as one likes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from agreement import disagreements
from compiled import build, prepare
from fuzz import program

SEEDS = range(40)


def test_the_same_seed_is_the_same_program() -> None:
    assert program(5) == program(5)
    assert len({program(seed) for seed in SEEDS}) == len(SEEDS)


def test_random_models_agree_with_eager(tmp_path: Path) -> None:
    cases = []
    for seed in SEEDS:
        path = tmp_path / f"random_{seed}.py"
        path.write_text(program(seed), encoding="utf-8")
        cases.append(prepare(path))
    wrong = {}
    for case, module in zip(cases, build(cases, tmp_path), strict=True):
        ours, theirs = module.ModelNew(), copy.deepcopy(case.model)
        ours.load_state_dict(theirs.state_dict())
        wrong[case.name] = disagreements(ours, theirs, case.inputs, roundings=8)
    assert {name: found for name, found in wrong.items() if found} == {}


def test_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    """The sample would notice: here one addition of the generated text becomes a subtraction."""
    path = tmp_path / "random_0.py"
    path.write_text(TEXT, encoding="utf-8")
    case = prepare(path)
    assert " + 1.5f" in case.text
    wrong = case.text.replace(" + 1.5f", " - 1.5f")
    (module,) = build(
        [type(case)(case.problem, case.model, case.inputs, case.made, wrong)], tmp_path
    )
    assert disagreements(module.ModelNew(), case.model, case.inputs, roundings=8)


TEXT = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1.5


def get_inputs():
    return [torch.randn(3, 5)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_programs_are_problem_files(seed: int, tmp_path: Path) -> None:
    scope: dict[str, object] = {}
    exec(program(seed), scope)
    assert {"Model", "get_inputs", "get_init_inputs"} <= set(scope)
