"""Some files of zoo/ at a batch of 1: eager's results, from kernels where that is proved.

The smallest batch of all of them stands in tests/compiler/test_zoo.py; `make zoo` judges all, also
with one row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import ModuleType

import pytest
import torch

from tests.compiler import test_zoo as zoo
from tests.support.agreement import called, copied, disagreements
from tests.support.compiled import Case, build, prepare, ready
from tests.support.graphs import with_batch

EACH, GROUPS = 6, 3  # every sixth file; groups whose kernels are compiled together
PATHS = sorted({*zoo.PATHS[::EACH], *(p for p in zoo.PATHS if p.stem in zoo.TWO_OR_MORE)})
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=range(GROUPS))
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Case, ModuleType]]:
    cases = [prepare(path) for path in PATHS[request.param :: GROUPS]]
    built = build(cases, tmp_path_factory.mktemp("batch_of_one"))
    return [*zip(cases, built, strict=True)]


def test_a_batch_of_one_is_eagers(group: list[tuple[Case, ModuleType]]) -> None:
    found = {case.name: wrong(case, module) for case, module in group}
    assert {name: said for name, said in found.items() if said} == {}


def wrong(case: Case, module: ModuleType) -> list[str]:
    """What differs from eager at a batch of 1, or in the way to it."""
    graph = case.made.captured.graph
    if not graph.free:
        return []
    (free,) = graph.free
    if (free.least == 2) != (case.name in zoo.TWO_OR_MORE):
        return [f"the smallest batch size is {free.least}"]
    torch.manual_seed(0)
    ours = module.ModelNew(*case.problem.make_init_inputs())
    theirs = copy.deepcopy(case.model)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    inputs = with_batch(case.inputs, graph, 1)
    if (raised := refused(theirs, inputs)) is not None:  # of a norm, or an index of another row
        said = refused(ours, inputs)
        return [] if type(said) is type(raised) else [f"{said!r} instead of {raised!r}"]
    with torch.no_grad():
        from_kernels = ready(copy.deepcopy(ours), copied(inputs))
    if case.made.plan.kernels and from_kernels != (free.least == 1):
        return ["the guard lets it through"] if from_kernels else ["the guard refuses it"]
    return disagreements(ours, theirs, inputs)


def refused(module: torch.nn.Module, inputs: Sequence[object]) -> Exception | None:
    try:
        called(copy.deepcopy(module), copied(inputs))
    except (ValueError, IndexError) as error:
        return error
    return None
