"""Functions of extensions that the profiler shall see; the sizes that a file was written for."""

from __future__ import annotations

import inspect
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fusewright.emit.replay_support import REPLAYED
from fusewright.profiling import worker
from fusewright.profiling.recorded import KERNEL

EXTENSION = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
"""


def seen_in(call: Any) -> list[str]:
    """The names of the ranges of extensions during a call."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    names = [event.name for event in found.events()]  # type: ignore[union-attr]
    return [name.removeprefix(KERNEL) for name in names if name.startswith(KERNEL)]


def test_kernels_of_an_emitted_file() -> None:
    candidate = ModuleType("candidate")
    table = {"softmax": lambda x: x + 1, "norm": lambda x: x + 2}
    candidate.__dict__[worker.FUNCTIONS] = table
    worker.put_in_ranges(candidate)
    assert candidate.__dict__[worker.FUNCTIONS] is table, "the file holds this very table"
    assert (table["softmax"](1), table["norm"](1)) == (2, 3)
    assert seen_in(lambda: [table["norm"](1), table["softmax"](1)]) == ["norm", "softmax"]


def test_steps_that_are_launched_at_once_are_told_apart() -> None:
    """They are launched one by one, by what is called as the function of the file is."""
    scope: dict[str, Any] = {"torch": torch}
    exec(REPLAYED, scope)
    given = [*inspect.signature(scope[worker.AT_ONCE]).parameters]
    assert [*inspect.signature(worker.one_by_one).parameters] == given
    candidate = ModuleType("candidate")
    candidate.__dict__.update(scope)
    worker.put_in_ranges(candidate)

    def steps(*tensors: Any) -> Any:
        return tensors

    replayed = candidate.__dict__[worker.AT_ONCE]
    assert replayed(None, steps, (4, 0), ("x",), ("weight", "mean"), (1,)) == (
        *(4, 0, "x", "weight", "mean"),
    )


@pytest.mark.compiler
@pytest.mark.slow
def test_functions_of_an_extension(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Under every name that the candidate has for them."""
    from torch.utils.cpp_extension import load_inline

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    made = load_inline("seen_by_profiler", EXTENSION, functions=["twice"])
    candidate = ModuleType("candidate")
    candidate.__dict__.update(extension=made, twice=made.twice, other=len)
    worker.put_in_ranges(candidate)
    assert candidate.other is len
    x = torch.ones(3)
    assert seen_in(lambda: candidate.twice(x)) == ["twice"]
    assert seen_in(lambda: candidate.extension.twice(x)) == ["twice"]
    assert candidate.twice(x).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.compiler
@pytest.mark.slow
def test_kernels_of_inductor() -> None:
    compiled = torch.compile(lambda x: (torch.sigmoid(x) * x).sum(-1))
    x = torch.randn(64, 64)
    before = compiled(x)
    worker.put_in_ranges(None)
    names = seen_in(lambda: compiled(x))
    assert names
    assert all(name.startswith("cpp_fused") for name in names)
    assert torch.equal(compiled(x), before)


class Emitted:
    @staticmethod
    def fusewright_tensors(batch: int = 4) -> tuple[dict[str, Any], list[Any]]:
        return {"x": ((batch, 8), torch.float32), "y": ((8, 8), torch.float32)}, []


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        (Emitted, [(8, 8), (4, 8)], True),
        (Emitted, [(8, 8), (4, 8), (3,)], True),
        (Emitted, [(8, 8), (5, 8)], False),
        (Emitted, [(4, 8)], False),
        (object, [(4, 8)], None),
    ],
)
def test_the_sizes_of_the_example(
    kind: type, sizes: list[tuple[int, ...]], said: bool | None
) -> None:
    assert worker.is_example(kind, Counter(sizes)) is said
