"""Random models whose first two sizes are both asked for, at other ones."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path

import torch

from fusewright.common.problem_file import load_problem
from tests.fuzz.programs import program
from tests.fuzz.trials import refuses
from tests.support.agreement import copied, disagreements
from tests.support.compiled import Case, build, prepare, ready

SEEDS = range(24)
LEAST = 12  # of the calls that kernels take


def first_two(path: Path) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]] | None:
    """The first two sizes of the first argument, and where all arguments have these."""
    problem = load_problem(path)
    names = [*inspect.signature(type(problem.make_model()).forward).parameters][1:]
    given = dict(zip(names, problem.make_inputs(), strict=False))
    tensors = {name: v for name, v in given.items() if isinstance(v, torch.Tensor)}
    shape = next((v.shape for v in tensors.values()), ())
    if len(shape) < 2 or shape[0] == shape[1] or min(shape[:2]) < 2:
        return None
    places = {
        name: tuple(d for d, size in enumerate(v.shape) if size in shape[:2])
        for name, v in tensors.items()
    }
    return (shape[0], shape[1]), {name: dims for name, dims in places.items() if dims}


def resized(
    case: Case, places: Mapping[str, tuple[int, ...]], new: Mapping[int, int]
) -> list[object]:
    """The arguments with other sizes, whose elements are some of what they were."""
    names = [*inspect.signature(type(case.model).forward).parameters][1:]
    inputs = []
    for name, value in zip(names, case.inputs, strict=False):
        if isinstance(value, torch.Tensor):
            order = sorted(range(value.dim()), key=value.stride, reverse=True)
            made = value
            for d in places.get(name, ()):
                made = made.index_select(d, torch.arange(new[value.shape[d]]) % value.shape[d])
            laid = torch.empty_permuted(made.shape, order, dtype=made.dtype)
            inputs.append(laid.copy_(made))
        else:
            inputs.append(value)
    return inputs


def test_random_models_at_other_pairs_of_sizes(tmp_path: Path) -> None:
    cases, asked = [], {}
    for seed in SEEDS:
        path = tmp_path / f"random_{seed}.py"
        path.write_text(program(seed, kind="plain"), encoding="utf-8")
        if found := first_two(path):
            cases.append(prepare(path, dynamic=found[1]))
            asked[cases[-1].name] = found
    wrong: dict[object, object] = {}
    from_kernels = 0
    for case, module in zip(cases, build(cases, tmp_path), strict=True):
        ours, theirs = module.ModelNew(), copy.deepcopy(case.model)
        ours.load_state_dict(theirs.state_dict())
        (a, b), places = asked[case.name]
        for pair in ((1, 1), (1, b + 2), (a + 3, 1), (2 * a + 1, b + 1), (3, 2)):
            inputs = resized(case, places, dict(zip((a, b), pair, strict=True)))
            refused = refuses(theirs, inputs)
            if refused is not None:
                found = [] if refuses(ours, inputs) is refused else [f"eager raises {refused}"]
            else:
                with torch.no_grad():
                    from_kernels += ready(copy.deepcopy(ours), copied(inputs))
                found = disagreements(ours, theirs, inputs, roundings=8)
            if found:
                wrong[case.name, pair] = found
    assert wrong == {}
    assert from_kernels >= LEAST
