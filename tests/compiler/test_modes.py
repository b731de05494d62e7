"""One file for train mode and eval mode: each runs its own kernels, and neither the other's.

A case is a model whose forward is not the same in the two modes. It is called in turn in both, with
kernels and in eager, and outputs, buffers and the calls by their path are compared.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.common.atomic_write import STANDARD_OUTPUT
from fusewright.compiler.modes import in_other_mode
from fusewright.compiler.pipeline import emit_only
from fusewright.compiler.verdict import is_judged_later, with_other_mode
from fusewright.emit.model_guard import MOST_IN_FORWARD
from fusewright.judge.findings import Verdict
from fusewright.judge.judging import judge
from tests.support.emitting import Emitted

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {made}
        {more}

    def forward(self, x):
        {computed}


def get_inputs():
    return [torch.randn(6, 8, 4, 4)]


def get_init_inputs():
    return []
"""
# What the constructor makes, and what forward computes.
MODELS = {
    "statistics": ("self.norm = nn.BatchNorm2d(8)", "return torch.tanh(self.norm(x)) * 2"),
    "dropout": (
        "self.drop = nn.Dropout(0.5)",
        "return torch.relu(self.drop(torch.tanh(x)) + 1) - 0.5",
    ),
    "a flag": (
        "self.own = nn.GroupNorm(2, 8)",
        "return torch.tanh(self.own(x)) if self.training else torch.sigmoid(x) * 3",
    ),
    "given in eval mode": (
        "self.norm = nn.BatchNorm2d(8).eval(); self.eval()",
        "return torch.tanh(self.norm(x)) * 2",
    ),
}
MANY = f"self.rest = nn.ModuleList([nn.Identity() for _ in range({MOST_IN_FORWARD})])"
FEW = {"few modules": "pass", "many modules": f"{MANY}.train(self.training)"}


def written(name: str, folder: Path, more: str = "pass", mode: str = "both") -> Any:
    """The file for one of the models, as a fresh module."""
    made, computed = MODELS[name]
    problem = folder / "problem.py"
    problem.write_text(PROBLEM.format(made=made, more=more, computed=computed), encoding="utf-8")
    outcome, text = emit_only(problem, out=STANDARD_OUTPUT, target="cpu", mode=mode)
    path = folder / "written.py"
    path.write_text(text, encoding="utf-8")
    emitted = Emitted(text, path, None).load()  # type: ignore[arg-type]
    emitted.text, emitted.record = text, outcome.decisions
    return emitted


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kernels"))


@torch.no_grad()
def answer(model: nn.Module, x: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)  # of what drops out
    found: torch.Tensor = model(x)
    return found


@pytest.mark.compiler
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("more", FEW)
@pytest.mark.parametrize("name", MODELS)
def test_each_mode_runs_its_own_kernels(name: str, more: str, tmp_path: Path) -> None:
    emitted = written(name, tmp_path, FEW[more])
    ours = emitted.ModelNew()
    theirs = copy.deepcopy(ours)
    theirs.forward = theirs.reference_forward
    calls = 0
    for mode in (True, True, False, False, True, False, True):
        for size in (6, 3):
            x, seed, calls = torch.randn(size, 8, 4, 4), calls, calls + 1
            found, wanted = (answer(model.train(mode), x, seed) for model in (ours, theirs))
            torch.testing.assert_close(found, wanted)
            for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
                torch.testing.assert_close(mine, other)
    assert emitted.ModelNew.fusewright_status()["kernels"] == calls


def refusals(emitted: Any, model: nn.Module) -> list[str]:
    """What a call says."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        model(*emitted.get_inputs())
    return [str(one.message).partition(": ")[2] for one in said]


@pytest.mark.compiler
@pytest.mark.parametrize("more", FEW)
def test_flags_that_differ_run_the_original(more: str, tmp_path: Path) -> None:
    """Neither set of kernels is for them, whatever ran before, and whichever flag is another."""
    emitted = written("statistics", tmp_path, FEW[more])
    model = emitted.ModelNew()
    for mode in (True, False, True):
        model.train(mode)
        assert refusals(emitted, model) == []
        model.norm.train(not mode)
        mine = "train" if mode else "eval"
        flag = f"training flag of norm is {not mode}, and these kernels are for {mine} mode"
        told = refusals(emitted, model)
        assert [one.partition(" (")[0] for one in told] in ([flag], []), "once for a reason"
        model.norm.train(mode)
        model.training = not mode
        refusals(emitted, model)
        model.training = mode
        assert refusals(emitted, model) == []
    status = emitted.ModelNew.fusewright_status()
    assert (status["kernels"], status["reference_forward"]) == (6, 6)


@pytest.mark.compiler
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_file_for_one_mode(mode: str, tmp_path: Path) -> None:
    emitted = written("statistics", tmp_path, mode=mode)
    assert "forward_in_" not in emitted.text
    model = emitted.ModelNew()
    assert refusals(emitted, model.train(mode == "train")) == []
    (said,) = refusals(emitted, model.train(mode != "train"))
    assert said.endswith(f"these kernels are for {mode} mode (fusewright optimize --mode).")


@pytest.mark.parametrize(
    ("name", "functions"), [("statistics", 2), ("given in eval mode", 2), ("dropout", 3)]
)
def test_functions_of_both_modes_stand_in_one_file(
    name: str, functions: int, tmp_path: Path
) -> None:
    emitted = written(name, tmp_path)
    assert len(emitted._FUSEWRIGHT_KERNELS) == functions
    first, second = ("eval", "train") if name == "given in eval mode" else ("train", "eval")
    assert f"# in {first} mode:" in emitted.text
    assert f"# in {second} mode:" in emitted.text
    assert f"  in {second} mode:" in emitted.record
    assert f"def forward_in_{second}_mode(self, x):" in emitted.text
    assert f"forward_in_{first}_mode" not in emitted.text


def test_a_function_that_both_modes_run_stands_there_once(tmp_path: Path) -> None:
    MODELS["shared"] = (
        "self.drop = nn.Dropout(0.5)",
        "return self.drop(torch.softmax(torch.tanh(x), 1).cumsum(1).mean((1, 2, 3)))",
    )
    emitted = written("shared", tmp_path)
    del MODELS["shared"]
    called = emitted.text.count('run["')
    assert len(emitted._FUSEWRIGHT_KERNELS) == called // 2 > 0


def test_a_model_that_is_the_same_in_both_has_one_forward(tmp_path: Path) -> None:
    MODELS["same"] = ("self.norm = nn.GroupNorm(2, 8)", "return torch.tanh(self.norm(x)) * 2")
    emitted = written("same", tmp_path)
    del MODELS["same"]
    assert "forward_in_" not in emitted.text
    assert "mode:" not in emitted.record


@pytest.mark.compiler
def test_a_mode_that_cannot_be_captured_stays_as_written(tmp_path: Path) -> None:
    MODELS["half"] = (
        "self.drop = nn.Dropout(0.5)",
        "y = torch.tanh(self.drop(x)) * 2\n"
        "        return y if self.training else y * float(y.detach().numpy().sum())",
    )
    emitted = written("half", tmp_path)
    del MODELS["half"]
    assert "  in eval mode as written: " in emitted.record
    model = emitted.ModelNew()
    assert refusals(emitted, model) == []
    (said,) = refusals(emitted, model.eval())
    assert said.startswith("its training flag is False, and these kernels are for train mode")


@pytest.mark.compiler
@pytest.mark.filterwarnings("error")
def test_the_api_serves_both_modes() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Tanh())
    fused = fusewright.optimize(model, torch.randn(4, 8), options={"target": "cpu"})
    x = torch.randn(5, 8)
    with torch.no_grad():
        for mode in (False, True, False):
            torch.testing.assert_close(fused.train(mode)(x), model.train(mode)(x))
    assert type(fused).fusewright_status()["kernels"] == 3  # type: ignore[attr-defined]


def test_flags_are_put_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval(), nn.Identity())
    with in_other_mode(model):
        assert [child.training for child in model.modules()] == [False] * 4
    assert [child.training for child in model.modules()] == [True, True, False, True]


def verdict(word: str, reason: str, modes: list[str]) -> Verdict:
    return Verdict(word, (), (), reason, environment={"modes": modes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "modes", "mode", "later"),
    [
        ("verified", ["train", "eval"], "eval", True),
        ("verified", ["train", "eval"], "", False),  # the file is for one
        ("verified", ["eval"], "eval", False),  # eager is random in the first
        ("verified", ["train"], "eval", False),  # or in the other one
        ("refuted", ["train", "eval"], "eval", False),
    ],
)
def test_the_other_mode_is_judged_where_it_can_be(
    word: str, modes: list[str], mode: str, later: bool
) -> None:
    assert is_judged_later(verdict(word, "", modes), mode) is later


def test_the_verdict_on_both_modes() -> None:
    first = verdict("verified", "all passed", ["train", "eval"])
    both = with_other_mode(first, "eval", verdict("verified", "all passed", ["eval", "train"]))
    assert (both.verdict, both.reason) == ("verified", "all passed, and so it did in eval mode")
    both = with_other_mode(first, "eval", verdict("refuted", "failed: values", ["eval", "train"]))
    assert (both.verdict, both.reason) == ("refuted", "in eval mode: failed: values")


@pytest.mark.judged
@pytest.mark.parametrize("mode", ["", "train", "eval"])
def test_most_is_asked_in_the_mode_that_was_asked_for(mode: str, tmp_path: Path) -> None:
    made, computed = MODELS["given in eval mode"]
    text = PROBLEM.format(made=made, more="pass", computed=computed)
    (tmp_path / "problem.py").write_text(text)
    (tmp_path / "candidate.py").write_text(text.replace("class Model(", "class ModelNew("))
    files = tmp_path / "problem.py", tmp_path / "candidate.py"
    found = judge(*files, timing=False, mode=mode)
    assert found.verdict == "verified", found.reason
    assert found.environment["modes"][0] == (mode or "eval")  # type: ignore[index]
    assert found.replay["request"]["mode"] == mode  # type: ignore[index]
