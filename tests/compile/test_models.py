"""Every file of models/: emitted for the CPU, built, and the same as the original to its caller."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from fusewright.fusion.planner import Kernel, Plan
from fusewright.ir.graph import show
from tests.support.agreement import called, copied, disagreements, tensors
from tests.support.compiled import Case, build, prepare, ready
from tests.support.folders import GOLDEN_FOLDER, MODELS

NAMES = sorted(path.stem for path in MODELS.glob("*.py"))
RANDOM = {"dropout_live"}  # draws other numbers in float64
GOLDEN = [
    *(
        "attention",
        "batchnorm2d_train",
        "conv2d_groupnorm",
        "folds",
        "linear_tail",
        "softmax_family",
    ),
    *("views", "halves"),
]
Pair = tuple[torch.nn.Module, torch.nn.Module]


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {name: prepare(MODELS / f"{name}.py") for name in NAMES}


@pytest.fixture(scope="module")
def modules(
    cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, ModuleType]:
    built = build(list(cases.values()), tmp_path_factory.mktemp("models"))
    return dict(zip(cases, built, strict=True))


@pytest.fixture
def pair(cases: dict[str, Case], modules: dict[str, ModuleType]) -> Callable[[str], Pair]:
    """The emitted model and the original, with the same random parameters."""

    def both(name: str) -> Pair:
        arguments = cases[name].problem.make_init_inputs()
        torch.manual_seed(0)
        ours = modules[name].ModelNew(*arguments)
        theirs = copy.deepcopy(cases[name].model)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        return ours, theirs

    return both


@pytest.mark.parametrize("name", NAMES)
def test_two_calls_are_eager_calls(
    name: str, cases: dict[str, Case], pair: Callable[[str], Pair]
) -> None:
    ours, theirs = pair(name)
    inputs, exact = cases[name].inputs, name not in RANDOM
    with torch.no_grad():
        assert ready(copy.deepcopy(ours), copied(inputs)), "the guard refuses the example inputs"
    assert disagreements(ours, theirs, inputs, exact=exact) == []
    assert disagreements(ours, theirs, inputs, exact=exact) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_draws_the_same_numbers(
    name: str, cases: dict[str, Case], modules: dict[str, ModuleType]
) -> None:
    case = cases[name]
    arguments = case.problem.make_init_inputs()
    torch.manual_seed(3)
    ours = modules[name].ModelNew(*arguments).state_dict()
    torch.manual_seed(3)
    theirs = case.problem.make_model(arguments).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", NAMES)
def test_another_batch_size(name: str, cases: dict[str, Case], pair: Callable[[str], Pair]) -> None:
    scope = vars(cases[name].problem.module)
    if "batch_size" not in scope:
        pytest.skip("the model fixes its batch size")
    old = scope["batch_size"]
    ours, theirs = pair(name)
    for size in (old + 2, 2):
        scope["batch_size"] = size
        inputs = cases[name].problem.make_inputs()
        scope["batch_size"] = old
        roundings = 2 if name == "losses" else 1  # single numbers, where eager may be lucky
        found = disagreements(ours, theirs, inputs, exact=name not in RANDOM, roundings=roundings)
        assert found == []


@pytest.mark.parametrize("name", NAMES)
def test_weights_may_change(name: str, cases: dict[str, Case], pair: Callable[[str], Pair]) -> None:
    ours, theirs = pair(name)
    called(ours, copied(cases[name].inputs))
    for t in theirs.state_dict().values():
        if t.is_floating_point():
            t.copy_(torch.rand_like(t) + 0.1)
    ours.load_state_dict(theirs.state_dict())
    assert disagreements(ours, theirs, cases[name].inputs, exact=name not in RANDOM) == []


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_not_contiguous(
    name: str, cases: dict[str, Case], pair: Callable[[str], Pair]
) -> None:
    ours, theirs = pair(name)
    if name == "outputs_shared":
        pytest.skip("its view of the input cannot be taken of another layout")
    first, *rest = cases[name].inputs
    assert isinstance(first, torch.Tensor)
    turned = first.transpose(0, -1).contiguous().transpose(0, -1)
    torch.manual_seed(1)
    a, b = (called(m, [turned.clone(), *copied(rest)]) for m in (ours, theirs))
    assert all(torch.equal(x.isnan(), y.isnan()) for x, y in zip(a, b, strict=True))
    assert all(torch.allclose(x, y, 1e-3, 1e-3, True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_come_from_the_original(
    name: str, cases: dict[str, Case], pair: Callable[[str], Pair]
) -> None:
    ours, theirs = pair(name)
    wanted = [
        v.clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for v in cases[name].inputs
    ]
    if name in ("changes_its_input", "reads_before_changing"):
        pytest.skip("a leaf that needs a gradient cannot be changed in place")
    torch.manual_seed(1)
    assert ready(ours, wanted) is not cases[name].made.replaced
    torch.manual_seed(1)
    a = [t.requires_grad for t in tensors(ours(*wanted))]
    torch.manual_seed(1)
    assert a == [t.requires_grad for t in tensors(theirs(*wanted))]


# ---- golden files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, cases: dict[str, Case], update_golden: bool) -> None:
    made = cases[name].made
    texts = {
        "graph.txt": show(made.captured.graph),
        "plan.txt": summary(made.plan),
        "body.txt": "\n\n".join(made_body.text for made_body, _, _ in made.kernels) + "\n",
    }
    folder = GOLDEN_FOLDER / name
    if update_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    for file, text in texts.items():
        assert text == (folder / file).read_text(encoding="utf-8"), (
            "pytest --update-golden, read the diff"
        )


def summary(plan: Plan) -> str:
    """One line per step, then why neighbours stayed apart."""
    lines = []
    for step in plan.steps:
        if isinstance(step, Kernel):
            members = " ".join(m.op for m in step.members)
            lines.append(f"{step.name}: {members} -> {', '.join(map(repr, step.outputs))}")
        else:
            lines.append(f"library: {step.node!r}: {step.reason}")
    return "\n".join([*lines, *(f"note: {n}" for n in plan.notes)]) + "\n"
