"""What planning is given: inputs without values where all of get_inputs is understood, else drawn.

A row of UNDERSTOOD or DRAWN is the body of a file's `get_inputs`, with what stands before it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fusewright.common.containers import leaves, taken
from fusewright.common.problem_file import Problem, load_problem
from fusewright.compiler import pipeline
from fusewright.compiler.compilation import NO_RULES, make
from fusewright.frontend import example_arguments
from fusewright.frontend.example_arguments import example
from fusewright.frontend.memory_places import Laid, laid
from fusewright.frontend.untouched_memory import LARGE, untouched
from fusewright.targets.target import TARGETS
from fusewright.tune.cache import TuneResult
from fusewright.tune.search_space import TuneChoice

HEAD = """
from dataclasses import dataclass
import math
import random
import torch
import torch.nn.functional as F
from torch import nn, rand

rows, columns = 6, 8
shape = [rows, columns]
sizes = {"a": (2, 3)}
kept = torch.ones(3)
calls = []

@dataclass
class Pair:
    x: torch.Tensor
    n: int

class Model(nn.Module):
    def forward(self, *xs, **named):
        return xs[0] if xs else named["x"]

"""
UNDERSTOOD = {
    "plain": "return [torch.rand(rows, columns)]",
    "list of the file": "return [torch.randn(*shape), torch.zeros(shape)]",
    "dict of the file": "return [torch.randn(sizes['a'])]",
    "imported by name": "return [rand(3, 4)]",
    "arithmetic": "x = torch.rand(rows, columns) * 2 - 1\n    x /= math.sqrt(2.0)\n"
    "    return [x.half()]",
    "moved dimensions": "return [torch.rand(2, 3, 4, 5).permute(0, 2, 3, 1), torch.rand(3, 4).T]",
    "channels last": "x = torch.rand(2, 3, 4, 5)\n"
    "    return [x.to(memory_format=torch.channels_last), x.contiguous()]",
    "whole numbers": "return [torch.randint(0, 5, (rows,)), torch.randperm(rows), torch.arange(3)]",
    "masks": "return [torch.rand(rows) > 0.5, torch.tril(torch.ones(4, 4, dtype=torch.bool))]",
    "numbers and text": "return [torch.rand(3), 3, 'mean', None, (1, 2.5), torch.float16]",
    "one memory": "x = torch.rand(rows, columns)\n    return [x, x[1:], x[:, 2:4], x.view(-1), x]",
    "gaps": "return [torch.rand(8, 8)[::2, 1:5], torch.rand(4, 1).expand(4, 7)]",
    "gradients": "return [torch.rand(3, requires_grad=True), torch.rand(3).requires_grad_()]",
    "nested": "return [[torch.rand(2), {'a': (torch.rand(3), 1)}]]",
    "by name": "return {'x': torch.rand(3)}",
    "loops": "found = []\n    for k in range(3):\n        found.append(torch.rand(k + 1, 2))\n"
    "    return found",
    "comprehension": "return [torch.rand(k, 4) for k in range(1, 4)]",
    "branches": "if rows > 3:\n        return [torch.rand(rows)]\n    return [torch.rand(1)]",
    "another function": "return [draw(4), draw(5, scale=3.0)]\n\n"
    "def draw(n, scale=2.0):\n    return torch.rand(n) * scale",
    "generator": "g = torch.Generator().manual_seed(3)\n    return [torch.rand(4, generator=g)]",
    "seed": "torch.manual_seed(0)\n    return [torch.randn(4)]",
    "functions of PyTorch": "x = torch.rand(3, 4)\n    return [F.softmax(x, -1), F.pad(x, (1, 2))]",
    "joined": "return [torch.cat([torch.rand(2, 3), torch.rand(2, 1)], dim=1)]",
    "complex": "return [torch.randn(3, dtype=torch.complex64)]",
    "filled": "x = torch.empty(3, 4).uniform_(-1, 1)\n    x[0] = 7.0\n    return [x, torch.eye(3)]",
    "factors": "a = torch.rand(4, 3)\n    return [a @ a.T, a.mean(dim=0), a.sum()]",
    "no numbers": "return [torch.rand(0, 3), torch.tensor([1, 2, 3]), torch.tensor(2.0)]",
}  # fmt: skip
DRAWN = {
    "a value": "return [torch.rand(int(torch.randint(2, 5, (1,))))]",
    "a list of values": "return [torch.rand(3), torch.randint(0, 5, (2,)).tolist()]",
    "a branch on values": "x = torch.rand(3)\n    return [x if x.sum() > 1 else x.half()]",
    "sizes of values": "x = torch.rand(9)\n    return [x[x > 0.5]]",
    "a lasting list": "calls.append(1)\n    return [torch.rand(3)]",
    "a lasting list by another name": "c = calls\n    c.append(1)\n    return [torch.rand(3)]",
    "a lasting list given away": "note(calls)\n    return [torch.rand(3)]\n\n"
    "def note(c):\n    c.append(1)",
    "a lasting place": "shape[0] = 4\n    return [torch.rand(shape)]",
    "a lasting default": "return [more()]\n\n"
    "def more(c=[]):\n    c.append(1)\n    return torch.rand(len(c))",
    "a global name": "global rows\n    rows += 1\n    return [torch.rand(rows)]",
    "a tensor of the file": "return [kept]",
    "a tensor of the file, changed": "kept.add_(1.0)\n    return [torch.rand(3)]",
    "Python's random numbers": "return [torch.rand(random.randint(1, 5))]",
    "text that is printed": "print('drawing')\n    return [torch.rand(3)]",
    "a file": "torch.save(torch.rand(3), '/dev/null')\n    return [torch.rand(3)]",
    "something caught": "try:\n        n = int(torch.rand(1))\n"
    "    except Exception:\n        n = 5\n    return [torch.rand(n)]",
    "an import": "import numpy\n    return [torch.rand(3)]",
    "a parameter": "return [nn.Parameter(torch.rand(3))]",
    "a history": "return [torch.rand(3, requires_grad=True) * 2]",
    "a default type": "torch.set_default_dtype(torch.float32)\n    return [torch.rand(3)]",
    "how a value looks": "return [torch.rand(3), f'{torch.rand(1)}']",
    "an unknown layout": "return [torch.rand(3, 4).sort(dim=0).values]",
    "an attribute": "x = torch.rand(3)\n    x.note = 1\n    return [x]",
    "a class of the file": "return [Pair(torch.rand(3), 2)]",
    "an attribute of a function": "return [torch.rand(3), get_inputs.__name__]",
}  # fmt: skip


def problem_of(body: str, tmp_path: Path) -> Problem:
    path = tmp_path / "drawing.py"
    path.write_text(f"{HEAD}\ndef get_inputs():\n    {body}\n", encoding="utf-8")
    return load_problem(path)


def seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    return make()


def described(values: object) -> tuple[object, list[Laid], list[object]]:
    """How values hold tensors, how these lie, and which of them lie together, and where."""
    trees, tensors = taken(values)  # type: ignore[arg-type]
    memories = [t.untyped_storage()._cdata for t in tensors]
    places = [
        (memories.index(m), t.storage_offset()) for m, t in zip(memories, tensors, strict=True)
    ]
    beside = [(t.requires_grad, t.untyped_storage().nbytes(), t.is_leaf, type(t)) for t in tensors]
    objects = [[t is other for other in tensors] for t in tensors]
    return trees, [laid(t) for t in tensors], [places, beside, objects]


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are sketched as well."""
    monkeypatch.setattr(example_arguments, "LARGE", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("body", UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_a_sketch_lies_as_what_is_drawn(body: str, tmp_path: Path) -> None:
    problem = problem_of(body, tmp_path)
    state = torch.get_rng_state()
    found = example(problem)
    if "manual_seed(0)" not in body:
        assert torch.equal(torch.get_rng_state(), state)
    drawn = problem.make_inputs()
    assert not found.drawn
    assert described(found.inputs) == described(drawn)
    assert getattr(found.inputs, "names", None) == drawn.names
    assert described(found.values(problem)) == described(drawn)


@pytest.mark.slow
@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("body", DRAWN.values(), ids=DRAWN)
def test_what_is_not_understood_is_drawn_once(body: str, tmp_path: Path) -> None:
    problem, other = problem_of(body, tmp_path), problem_of(body, tmp_path)
    found, drawn = (seeded(make) for make in (lambda: example(problem), other.make_inputs))
    assert found.drawn
    assert problem.module.calls == other.module.calls
    assert problem.module.rows == other.module.rows
    assert torch.equal(problem.module.kept, other.module.kept)
    ours, theirs = (taken(values) for values in (found.inputs, drawn))
    plain = [[[*leaves(tree)] for tree in trees] for trees, _ in (ours, theirs)]
    assert plain[0] == plain[1]
    assert all(type(t) in (Tensor, torch.nn.Parameter) for t in ours[1])
    assert all(torch.equal(*pair) for pair in zip(ours[1], theirs[1], strict=True))


# Tensors that lie otherwise than row by row, or have sizes of 0 or 1, and what is made of each.
BASES = {
    "rows": "torch.rand(4, 6, 6, 8)",
    "no rows": "torch.rand(0, 6, 6, 8)",
    "single": "torch.rand(4, 1, 6, 1)",
    "moved": "torch.rand(4, 8, 6, 6).permute(0, 2, 3, 1)",
    "moved to the front": "torch.rand(6, 6, 8, 4).permute(3, 0, 1, 2)",
    "channels last": "torch.rand(4, 6, 6, 8).to(memory_format=torch.channels_last)",
    "pieces": "torch.rand(8, 6, 12, 8)[::2, :, ::2]",
    "moved pieces": "torch.rand(4, 8, 6, 12)[..., ::2].permute(0, 2, 3, 1)",
    "first of each": "torch.rand(4, 6, 6, 8)[:1, :1]",
    "repeated": "torch.rand(4, 1, 6, 8).expand(4, 6, 6, 8)",
    "moved and single": "torch.rand(4, 1, 1, 8).permute(0, 3, 1, 2)",
    "moved and none": "torch.rand(0, 6, 6, 8).permute(0, 2, 3, 1)",
}
MADE_OF = (
    *("x.cumsum(1)", "x.softmax(1)", "x.log_softmax(-1)", "x.sum(1)", "x.mean((1, 2), True)"),
    *("x.amax(1)", "x.flip((0, 3))", "x.roll(1, 2)", "x.roll(3)", "F.pad(x, (1, 1, 0, 1))"),
    *("x.masked_fill(x > 0.5, 0.0)", "x.norm(dim=1)", "x.tril()", "torch.cat([x, x], 1)"),
    *("torch.stack([x, x])", "x.repeat(1, 2, 1, 1)", "x.clone()", "x.contiguous()", "x.half()"),
    *("x.to(memory_format=torch.channels_last)", "torch.zeros_like(x)", "torch.rand_like(x)"),
    *("x + 1", "x + torch.rand(x.shape[-1])", "x + x.contiguous()", "x > 0.5", "x @ x.mT"),
    *("x[:, 0] @ x[:, 0].mT", "torch.bernoulli(x)", "torch.normal(x, 1.0)", "x.exp()", "x.mT"),
    *("x.reshape(-1, x.shape[-1])", "x.flatten(1)", "x.unbind(-1)[0]", "x.diagonal()"),
    *("x.squeeze()", "x.new_zeros(3, 4)", "torch.empty(x.shape).copy_(x)", "x.clone().uniform_()"),
    *(
        "F.one_hot((x * 3).long(), 4)",
        "x.to(torch.complex64)",
        "x.clone().mul_(2)",
        "x.unsqueeze(1)",
    ),
)

# These copy what is moved, or look at values, whatever they are given.
ALWAYS_DRAWN = ["x @ x.mT", "x[:, 0] @ x[:, 0].mT", "F.one_hot((x * 3).long(), 4)"]


@pytest.mark.slow
@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("base", BASES)
def test_a_layout_is_certain_or_drawn(base: str, tmp_path: Path) -> None:
    """PyTorch's rules for strides without values are not those of its kernels everywhere."""
    found: list[str] = []
    for made in MADE_OF:
        problem = problem_of(f"x = {BASES[base]}\n    return [{made}]", tmp_path)
        given = example(problem)
        drawn = problem.make_inputs()
        assert described(given.inputs) == described(drawn), made
        found += [made] * given.drawn
    in_order = base in ("rows", "no rows", "single")
    assert found == ALWAYS_DRAWN if in_order else "x.exp()" in found


@pytest.mark.slow
def test_small_inputs_are_drawn(tmp_path: Path) -> None:
    assert example(problem_of("return [torch.rand(1000)]", tmp_path)).drawn
    assert not example(problem_of("return [torch.rand(1 << 25)]", tmp_path)).drawn


@pytest.mark.slow
def test_without_addresses_for_it_an_input_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(size: int) -> torch.UntypedStorage:
        raise OSError(f"no address space for {size} bytes")

    monkeypatch.setattr(example_arguments, "untouched", none_left)
    assert example(problem_of("return [torch.rand(1 << 25)]", tmp_path)).drawn


@pytest.mark.slow
def test_a_patched_function_is_not_understood(tmp_path: Path) -> None:
    problem = problem_of("return [torch.rand(1 << 25)]", tmp_path)
    problem.module.__dict__["torch"] = problem.module  # whose rand is PyTorch's by name only
    assert not example_arguments.is_understood("get_inputs", problem.source, vars(problem.module))


@pytest.mark.slow
def test_untouched_memory_reads_as_zeros_and_can_be_written_to() -> None:
    memory = torch.empty(0, dtype=torch.float32).set_(untouched(LARGE))
    assert memory.numel() == LARGE // 4
    memory[-1] = 3.0
    assert memory[0] == 0.0
    assert memory[-1] == 3.0
    assert [untouched(size).nbytes() for size in (0, 5)] == [0, 5]


LIMITED = """
import json, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
from fusewright.compiler.pipeline import explain_file
begin = time.perf_counter()
record = explain_file(Path(sys.argv[1]), target="cpu").decisions
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"record": record, "seconds": time.perf_counter() - begin, "peak": peak * 1024}))
"""
LARGE_PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return torch.softmax(x * 2.0 + y, dim=1).sum(dim=1)

def get_inputs():
    x = torch.randn({rows}, 8192)
    return [x, x[:, :1]]
"""


@pytest.mark.slow
def test_planning_allocates_no_large_input(tmp_path: Path) -> None:
    """8 GB, twice over: views of one memory are planned for as tensors of their own."""
    found = []
    for rows in (262144, 64):
        path = tmp_path / "large.py"
        path.write_text(LARGE_PROBLEM.format(rows=rows), encoding="utf-8")
        run = [sys.executable, "-c", LIMITED, str(path)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
        found.append(json.loads(done.stdout))
    large, small = found
    assert large["peak"] < small["peak"] + (1 << 28)
    assert large["seconds"] < small["seconds"] + 5.0
    assert "mul_add_softmax_sum  " in large["record"]


@pytest.mark.slow
def test_what_is_remembered_of_tuning_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who tries schedules calls the model, and needs values for that."""
    problem = problem_of("calls.append(1)\n    return [torch.rand(64, 32)]", tmp_path)
    given = example(problem)
    made = make(problem.make_model(), given.inputs, TARGETS["cpu"])
    told = TuneResult(TuneChoice(), (), {})
    monkeypatch.setattr(pipeline, "cached_or", lambda *_: told)
    about: dict[str, Any] = {
        "problem": problem,
        "given": given,
        "turn": nullcontext,
        "seconds": None,
    }
    found = pipeline._tuned(
        replace(made, replaced=True), lambda _: None, level="quick", rules=NO_RULES, **about
    )
    assert found.tuned is told
    assert len(problem.module.calls) == 1
