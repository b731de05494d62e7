"""Models that cannot be captured as a whole: which submodules are fused, what is left and why, and
that the emitted module computes what eager does, at other numbers of rows, too."""

from __future__ import annotations

import copy
import pickle
import sys
import textwrap
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import fusewright
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import NO_RULES
from fusewright.compiler.pipeline import _as_planned, _File, _file, _quiet, explain_file
from fusewright.errors import BadUsage, UnusableProblem
from fusewright.frontend.example_arguments import Example
from fusewright.targets.target import TARGETS
from tests.support.folders import ROOT

HEAD = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

class Box:
    def __init__(self, value):
        self.value = value

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.leave(F.gelu(self.enter(self.norm(x))))

class Named(Block):
    def forward(self, x, bias=None, scale=1.0, *, shift=None, **more):
        x = x if bias is None else x + bias
        x = x if shift is None else x - shift
        for name, value in more.items():
            x = x * value if name == "factor" else x
        return super().forward(x * scale)

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.named = Named(width)
        self.first, self.second = Block(width), Block(width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width))
        self.steps = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
"""
TAIL = """
def get_inputs():
    return [torch.randn(24, 16)]

def get_init_inputs():
    return [16]
"""
BLOCKS = {"FusedBlock": ("first", "second")}
BODY = {"FusedSequential": ("body",)}


@dataclass(frozen=True)
class Kind:
    """forward: its lines.  taken: class -> paths.  why: what the record says of the model."""

    forward: str
    taken: dict[str, tuple[str, ...]]
    why: str


KINDS = {
    "routing": Kind(
        """
        result, liked = torch.zeros_like(x), x[:, :2].argmax(dim=-1)
        for k, expert in enumerate([self.first, self.second]):
            rows = torch.where(liked == k)[0]
            if rows.numel():
                result.index_add_(0, rows, expert(x[rows]))
        return result
        """,
        BLOCKS,
        "only the data knows",
    ),
    "an expert nobody asked": Kind(
        """
        chosen = x.clamp(min=0).sum() < 0
        return self.second(x) if chosen else self.first(x)
        """,
        BLOCKS,
        "only the data knows",
    ),
    "a loop until it is small": Kind(
        """
        for _ in range(4):
            x = self.body(x)
            if float(x.abs().mean()) < 0.5:
                break
        return x + self.first(x)
        """,
        BLOCKS | BODY,
        "problem_",
    ),
    "numpy": Kind(
        """
        order = np.argsort(x.detach().sum(dim=-1).numpy(), kind="stable")
        return self.first(x)[torch.from_numpy(order.copy())]
        """,
        BLOCKS,
        "problem_",
    ),
    "a list of numbers": Kind(
        """
        kept = [k for k, v in enumerate(x[:, 0].tolist()) if v > 0]
        y = torch.zeros_like(x)
        y[: len(kept)] = self.body(x[kept]) if kept else 0.0
        return y
        """,
        BODY,
        "problem_",
    ),
    "arguments by name": Kind(
        """
        y = self.named(shift=x.sin(), x=x, scale=0.5) if x.sum() < 1e9 else x
        return y * 2
        """,
        {"FusedNamed": ("named",)},
        "problem_",
    ),
    "arguments without a name of their own": Kind(
        """
        y = self.named(x, scale=0.5, factor=x.cos(), shift=None) if x.sum() < 1e9 else x
        return y * 2
        """,
        {"FusedNamed": ("named",)},
        "problem_",
    ),
    "packed": Kind(
        """
        lengths = (x[:4, 0] > 0).long() + 2
        steps = self.first(x).view(4, 6, 16)
        packed = nn.utils.rnn.pack_padded_sequence(
            steps, lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=6)
        return y
        """,
        BLOCKS,
        "problem_",
    ),
    "a part that is called with a packed sequence": Kind(
        """
        lengths = (x[:4, 0] > 0).long() + 2
        packed = nn.utils.rnn.pack_padded_sequence(
            self.first(x).view(4, 6, 16), lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = nn.utils.rnn.pad_packed_sequence(
            self.steps(packed)[0], batch_first=True, total_length=6
        )
        return y
        """,
        BLOCKS,
        "problem_",
    ),
    "nothing in it": Kind(
        """
        return x * 2 if x.sum() > 0 else x - 1
        """,
        {},
        "only the data knows",
    ),
}


def file_of(path: Path, target: str = "cpu") -> tuple[_File, nn.Module, Any]:
    """What would be written, a reference and the emitted module of names."""
    problem = load_problem(path)
    torch.manual_seed(0)
    model, inputs = problem.make_model(), problem.make_inputs()
    machine = TARGETS[target]
    given = Example(inputs, drawn=True)
    file = _file(problem, model, given, machine, "eager", NO_RULES, _as_planned, _quiet)
    emitted = ModuleType(f"emitted_{path.stem}")
    sys.modules[emitted.__name__] = emitted
    exec(compile(file.text, emitted.__name__, "exec", dont_inherit=True), emitted.__dict__)
    return file, model, emitted


def written(folder: Path, forward: str) -> Path:
    path = folder / f"problem_{abs(hash(forward))}.py"
    body = textwrap.indent(textwrap.dedent(forward).strip("\n"), " " * 8)
    path.write_text(f"{HEAD.lstrip()}{body}\n{TAIL}", encoding="utf-8")
    return path


def taken(file: _File) -> dict[str, tuple[str, ...]]:
    assert file.parts is not None, "it was captured as a whole"
    return {part["class"]: part["paths"] for part in file.parts["taken"]}  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    file, model, emitted = file_of(written(tmp_path, kind.forward))
    assert taken(file) == kind.taken
    assert kind.why in file.record
    assert "left as written: the model" in file.record
    support = ("\n# ---- kernels", "\n# region support", "\n# endregion\n")
    words = ("\nclass ModelNew(", *(support if kind.taken else ()))
    places = [file.text.index(word) for word in words]
    assert places == sorted(places), "the model, its kernels, support"
    assert str(tmp_path) not in file.record + file.text, "the same text, wherever the problem lies"
    assert ("nothing to gain here" in file.record) is not bool(kind.taken)
    assert file.record.splitlines()[-1].strip() in file.text.replace("\n# ", " "), "in the header"
    fused = emitted.ModelNew(16)
    assert fused.state_dict().keys() == model.state_dict().keys()
    fused.load_state_dict(model.state_dict())
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(24, 16)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    assert [name for name in taken(file) if not vars(emitted).get("_FUSEWRIGHT_FUNCTIONS")] == []
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), fused.double()):
        dtype = next(other.parameters()).dtype
        with torch.no_grad():
            given = torch.ones(24, 16, dtype=dtype)
            torch.testing.assert_close(other(given), model.to(dtype)(given), rtol=1e-5, atol=1e-5)
        model.float()
    model.train()
    made = fused.float()(x)
    if not made.requires_grad:
        return
    made.sum().backward()
    model(x).sum().backward()
    for (where, a), b in zip(fused.named_parameters(), model.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, msg=where)


@pytest.mark.slow
def test_parts_that_share_sizes_remember_apart(tmp_path: Path) -> None:
    """What passed the guard of one part is not known to another."""
    forward = """
        y = self.body(x) if x.sum() < 1e9 else x
        return self.first(y) + self.second(y[:2]).sum()
        """
    file, _, emitted = file_of(written(tmp_path, forward))
    assert set(taken(file)) == {"FusedBlock", "FusedSequential"}
    with torch.no_grad():
        emitted.ModelNew(16)(torch.ones(24, 16))
    assert len(emitted._FUSEWRIGHT_GUARD_CACHE[False]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("network_experts_routed", {"FusedExpert"}),
        ("network_detection_suppressed", {"FusedHead"}),
    ],
)
def test_zoo(name: str, classes: set[str], target: str) -> None:
    file, _, _ = file_of(ROOT / "zoo" / f"{name}.py", target)
    assert set(taken(file)) == classes
    assert all(k.name in file.text for k in file.kernels)


RULED = """
import torch
import torch.nn as nn

class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512))

    def forward(self, x):
        return torch.relu(x @ self.weight)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.packs, self.norm = Packs(), nn.Sequential(nn.LayerNorm(512), nn.GELU())

    def forward(self, x):
        return self.packs(x) + self.norm(x) if x.sum() < 1e9 else x

def get_inputs():
    return [torch.rand(512, 512)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["no-prepack", "no-library", "no-workspace"])
def test_rules_hold_for_the_parts_or_are_refused(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "ruled.py"
    path.write_text(RULED, encoding="utf-8")
    problem = load_problem(path)
    model, inputs, rules = problem.make_model(), problem.make_inputs(), frozenset({rule})
    given = problem, model, Example(inputs, drawn=True), TARGETS["sm_90a"], "eager"
    if rule != "no-prepack":  # what is between the parts is PyTorch's
        with pytest.raises(BadUsage, match=f"--rules {rule} cannot be kept.*drop the rule"):
            _file(*given, rules, _as_planned, _quiet)
        return
    free, ruled = (_file(*given, some, _as_planned, _quiet) for some in (NO_RULES, rules))
    assert taken(free) == {"FusedPacks": ("packs",), "FusedSequential": ("norm",)}
    assert taken(ruled) == {"FusedSequential": ("norm",)}
    assert f"Packs: --rules {rule} cannot be kept: matmul_relu packs" in ruled.record


@pytest.mark.slow
def test_a_model_that_is_no_plain_class(tmp_path: Path) -> None:
    text = HEAD + "        return self.first(x) if x.sum() < 1e9 else x\n" + TAIL
    text = text.replace("class Model(", "class Other(") + "\nModel = Other\n"
    path = tmp_path / "assigned.py"
    path.write_text(text, encoding="utf-8")
    file, _, emitted = file_of(path)
    assert taken(file) == BLOCKS
    assert isinstance(emitted.ModelNew(16).first, emitted.FusedBlock)
    path.write_text(
        text.replace("self.first(x) if x.sum() < 1e9 else x", "x if x.sum() > 0 else -x")
    )
    file, _, emitted = file_of(path)
    assert taken(file) == {}
    assert emitted.ModelNew is emitted.Model


@pytest.mark.slow
def test_a_model_that_raises_stays_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "raise ValueError('no')")
    with pytest.raises(UnusableProblem, match="raised ValueError: no"):
        explain_file(path, target="cpu")


@pytest.mark.slow
def test_the_api_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, KINDS["routing"].forward))
    torch.manual_seed(0)
    model, (x,) = problem.make_model(), problem.make_inputs()
    with pytest.warns(UserWarning, match=r"2 submodules fused.*"):
        fused = fusewright.optimize(model, x, options={"target": "cpu"})
    assert fused.first._get_name() == "FusedBlock"
    assert type(model.first).__name__ == "Block"
    assert fused.first.enter.weight is model.first.enter.weight
    with torch.no_grad(), warnings.catch_warnings():
        for rows in (24, 7, 2):
            torch.testing.assert_close(fused(x[:rows]), model(x[:rows]), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_observing_changes_nothing() -> None:
    """Random state, running statistics and attributes are as before the run."""
    from fusewright.frontend.submodules import observed

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls = nn.BatchNorm1d(4), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.norm(x + torch.rand(4))

    model = Counting()
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    calls = observed(model, lambda: model(torch.randn(6, 4)))
    assert model.calls == 0
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [s.rows for s in calls[id(model.norm)]] == [6]


@pytest.mark.slow
def test_hooks_of_the_module_itself_run_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    model.register_forward_hook(lambda _, __, made: made * 2)
    x = torch.randn(4, 8)
    with torch.no_grad(), nullcontext():
        fused = fusewright.optimize(model, x, options={"target": "cpu"})
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
