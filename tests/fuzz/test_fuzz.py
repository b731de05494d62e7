"""A seeded sample of random models; bench/fuzz_cpu.py runs as many as one likes."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.fuzz import kinds as fuzz_kinds
from tests.fuzz.judged import EagerRaises, NoReason, judged, prepared, refusal
from tests.fuzz.kinds import KINDS
from tests.fuzz.programs import program
from tests.fuzz.reductions_behind import behind
from tests.fuzz.trials import owners, wrong
from tests.fuzz.writer import Facts, Writer, facts
from tests.support.agreement import copied, disagreements, other_bits, structure
from tests.support.compiled import build, prepare
from tests.support.folders import ROOT

SEEDS = range(40)
# Lines that shapes or types refuse most of the time are drawn, too.
MANY = range(4000)


def test_the_same_seed_is_the_same_program() -> None:
    assert program(5) == program(5)
    assert len({program(seed) for seed in SEEDS}) == len(SEEDS)


def test_a_program_depends_on_its_seed_alone() -> None:
    """Not on the order of a set, which is another one in each process."""
    tell = (
        "import hashlib; from tests.fuzz.programs import program; "
        "made = ''.join(program(990000 + seed) for seed in range(240)); "
        "print(hashlib.sha256(made.encode()).hexdigest())"
    )
    told = set()
    for number in ("1", "2"):
        own = {"PYTHONHASHSEED": number, "PYTHONPATH": str(ROOT)}
        made = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", tell],
            env=os.environ | own, capture_output=True, text=True, check=True,
        )  # fmt: skip
        told.add(made.stdout)
    assert len(told) == 1


def test_random_models_agree_with_eager(tmp_path: Path) -> None:
    cases = []
    for seed in SEEDS:
        path = tmp_path / f"random_{seed}.py"
        path.write_text(program(seed, kind="plain"), encoding="utf-8")
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


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_a_kind_run_and_say_what_they_are(kind: str) -> None:
    """Each returns as many tensors as it calls exact, and what it is a trial of."""
    for seed in range(12):
        text = program(seed, kind=kind)
        scope: dict[str, object] = {}
        exec(text, scope)
        assert facts(text).kind == kind
        assert program(seed, kind=kind) == text


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("bits", "BITS"), ("bits", "BIT_ANSWERS"), ("casts", "CASTS"), ("casts", "CASTS_NEARLY"),
        ("casts", "CAST_ANSWERS"), ("recomputed", "SAME"), ("recomputed", "SAME_EXACT"),
        ("recomputed", "SAME_ANSWERS"), ("ties", "TIED"), ("ties", "TIED_ANSWERS"),
        ("signs", "SIGNED"),
    ],
)  # fmt: skip
def test_every_line_of_a_kind_is_drawn(
    kind: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch refuses some lines for some shapes; none is refused for all."""
    lines: tuple[str, ...] = getattr(fuzz_kinds, table)
    drawn, filled = Counter[str](), fuzz_kinds.Writer.filled

    def watched(self: fuzz_kinds.Writer, text: str, words: dict[str, str]) -> object:
        found = filled(self, text, words)
        drawn[text] += found is not None
        return found

    monkeypatch.setattr(fuzz_kinds.Writer, "filled", watched)
    for seed in MANY:
        program(seed, kind=kind)
        if all(drawn[line] for line in lines):
            break
    assert [line for line in lines if not drawn[line]] == []


def test_a_value_has_one_value_wherever_it_is_computed_again(tmp_path: Path) -> None:
    """-O2 is the least level at which gcc contracts products, if it may."""
    texts = {f"same_{seed}": program(seed, kind="recomputed") for seed in (1, 12, 82, 90, 93, 95)}
    texts |= {f"signs_{seed}": program(seed, kind="signs") for seed in range(4)}
    cases, found = [], {}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        cases.append(prepare(tmp_path / f"{name}.py"))
    for case, module in zip(cases, build(cases, tmp_path, "-O2"), strict=True):
        ours, known = module.ModelNew(), facts(case.problem.source)
        ours.load_state_dict(case.model.state_dict())
        found[case.name] = [*wrong(ours, case.model, case.inputs, 1, Counter(), known)]
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "result",
    ["x.argmax(0)", "x.argmin(1, keepdim=True)", "x.max(0)", "x.min(1)[1]", "(x > 0).int().max(0)"],
)
def test_positions_along_one_element_are_a_tensor(result: str, tmp_path: Path) -> None:
    """0, known while the graph is made; the text that was written for it was no Python."""
    path = tmp_path / "one.py"
    text = TEXT.replace("torch.tanh(x) + 1.5", f"{result}, torch.relu(x)")
    path.write_text(text.replace("(3, 5)", "(1, 1)"), encoding="utf-8")
    case = prepare(path)
    (module,) = build([case], tmp_path)
    assert disagreements(module.ModelNew(), case.model, case.inputs) == []


def test_what_the_comparison_sees() -> None:
    """Bits, containers, shared memory and shared parameters: each fault is found."""
    one, other = torch.tensor([1.0, float("nan"), 0.0]), torch.tensor([1.0, float("nan"), -0.0])
    assert not [*other_bits(0, one, other)]
    assert [*other_bits(0, one, torch.nextafter(one, one + 1))]
    pair = torch.max(torch.ones(2, 2), 1)
    assert structure(pair) != structure(tuple(pair))
    assert structure({"a": one}) != structure({"b": one})
    assert structure((one, None)) != structure((one,))
    whole = torch.zeros(4)
    a, b = copied([whole, whole[1:]])
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    assert a.data_ptr() + 4 == b.data_ptr() != whole.data_ptr() + 4
    tied, apart = torch.nn.Module(), torch.nn.Module()
    tied.a = tied.b = torch.nn.Parameter(whole)
    apart.a, apart.b = torch.nn.Parameter(whole.clone()), torch.nn.Parameter(whole.clone())
    assert owners(tied) != owners(apart)


MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Part(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2 + torch.sin(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
        self.p0 = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn(5, 6)]


def get_init_inputs():
    return []


FACTS = ("numbers", (), True, {refused!r})
"""
REFUSED = "return self.part(x) if x.sum() > 99 else -self.part(x)"
# name -> the body of forward, what a refusal must match, the outcome or what the reason says
OUTCOMES = {
    "right": ("return self.part(x) * 2", "", ""),
    "no gradients of statistics": ("return F.batch_norm(x, self.p0, self.p0 + 1)", "", ""),
    "in parts": (REFUSED, "`if`", "`if`"),
    "for no reason": (REFUSED, "", "wrong"),
    "of no model": ("return x.view(7, -1)", "", "of no model"),
}


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", OUTCOMES)
def test_what_becomes_of_a_random_model(name: str, target: str, tmp_path: Path) -> None:
    """Both benches take a model so; that of a GPU compiles and runs it there."""
    body, refused, outcome = OUTCOMES[name]
    path = tmp_path / "random_0.py"
    path.write_text(MODEL.format(body=body, refused=refused), encoding="utf-8")
    if outcome in ("wrong", "of no model"):
        with pytest.raises((NoReason, EagerRaises)) as caught:
            prepared(path, target)
        assert refusal(caught.value)[0] == outcome
        return
    case, why = prepared(path, target)
    assert bool(outcome) == bool(why)
    assert outcome in why
    assert case.made.kernels
    if target == "cpu":
        counts = Counter[str]()
        (module,) = build([case], tmp_path)
        assert judged(module, case.problem, case.model, case.inputs, 0, counts) == ""
        assert counts["as drawn"] == 1
        assert not counts["not for the kernels"]


def test_inputs_of_one_memory_can_be_drawn() -> None:
    for seed in range(60):
        w = Writer(random.Random(seed), "torch.float32")
        w.given_as("torch.randn((4, 3, 2)).permute(2, 0, 1)", (2, 4, 3))
        fuzz_kinds._memory_begin(w)
        exec(f"{w.before[0]}\n{', '.join(w.inputs)}", {"torch": torch})


def test_a_process_that_cannot_start_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no PyTorch lives here')\n")
    bench = ROOT / "bench" / "fuzz_cpu.py"
    done = subprocess.run(
        [sys.executable, str(bench), "--models", "60", "--jobs", "2"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "no PyTorch lives here" in done.stderr
    assert "A process could not start" in done.stderr


def test_facts_are_read_back() -> None:
    known = Facts("bits", (0, 2), False, r"view\\(|signbit")
    assert facts(f"x = 1\n\n\n{known}\n") == known
    assert facts("x = 1\n") == Facts()


@pytest.mark.parametrize("seed", range(6))
def test_reductions_behind_products_are_problem_files(seed: int) -> None:
    scope: dict[str, object] = {}
    exec(behind(seed), scope)
    assert behind(seed) == behind(seed) != behind(seed, large=True)


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
