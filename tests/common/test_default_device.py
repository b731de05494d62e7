"""Forwards that make tensors without naming a device, on a device that is not the default one.

There is no second device here but `meta`, and a model that is told to make tensors there while
nobody has set a default device stands for one on a GPU, whose inputs are not where `torch.zeros`
makes its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _device

from fusewright.common.default_device import default_device, placing
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import make
from fusewright.errors import CaptureFailed
from fusewright.judge.evidence.oracle import NotJudgeable
from fusewright.targets.target import TARGETS
from fusewright.tune.bench import CandidateText, EagerRaises, TuneBench
from fusewright.tune.search_space import TuneChoice
from tests.support.judge_in_one_process import OneProcess, failures, honest, judged

X = torch.randn(4, 4, device="meta")
HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The line of this file that ends with such a comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = (k for k, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return found


def made_by_a_number() -> Tensor:
    return X + torch.tensor([0.5] * 4)  # number


def made_in_a_mask() -> Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()  # mask
    kept = ~mask
    return X.masked_fill(kept, 0.0)


def made_by_pytorchs_own_python() -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(4)  # square
    return nn.functional.softmax(X + mask, -1)


def made_where_a_model_checks() -> Tensor:
    bias = torch.zeros(4)  # check
    assert bias.device == X.device
    return X


def made_twice() -> Tensor:
    first = torch.arange(4.0)  # first
    return X + first + torch.linspace(0, 1, 4)


def made_behind_what_raises() -> Tensor:
    first = torch.full((4,), 2.0)  # full
    return X + first - torch.eye(4)


def made_behind_an_attempt() -> Tensor:
    try:
        X + torch.full((4,), 2.0)  # attempt
    except RuntimeError:
        return X * torch.ones(4)
    return X


@pytest.mark.parametrize(
    ("forward", "line"),
    [
        (made_by_a_number, "number"),
        (made_in_a_mask, "mask"),
        (made_by_pytorchs_own_python, "square"),
        (made_where_a_model_checks, "check"),
        (made_twice, "first"),
        (made_behind_what_raises, "full"),
        (made_behind_an_attempt, "attempt"),
    ],
)
def test_a_default_device_helps(forward: Callable[[], Tensor], line: str) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        forward()
    found = placing(forward, "meta")
    assert found.device == "meta"
    assert f"{HERE}:{line_of(line)}" in found.says
    several = forward in (made_twice, made_behind_what_raises)
    assert several == ("and 1 more line:" in found.says)
    assert "torch.set_default_device('meta')" in found.says
    with default_device(found.device):
        assert forward().device.type == "meta"
    assert _device.CURRENT_DEVICE is None
    assert not torch._C._len_torch_function_stack()


TABLE = torch.ones(4)


def named() -> Tensor:
    return X + torch.ones(4, device="cpu")  # named


def of_both_kinds() -> Tensor:
    y = X + torch.zeros(4)
    return y + torch.ones(4, device="cpu")  # both


@pytest.mark.parametrize(
    ("forward", "line"),
    [(named, "named"), (of_both_kinds, "both")],
)
def test_the_line_where_no_default_helps(forward: Callable[[], Tensor], line: str) -> None:
    found = placing(forward, "meta")
    assert found.device == ""
    assert f"{HERE}:{line_of(line)} makes a tensor" in found.says
    assert "device=x.device" in found.says


def there_before() -> Tensor:
    return X + TABLE  # before


def of_the_old_constructor() -> Tensor:
    half = torch.Tensor([0.5] * 4)
    return X + half  # old


def of_an_array() -> Tensor:
    half = torch.from_numpy(numpy.ones(4, numpy.float32))
    return X + half * 2  # array


@pytest.mark.parametrize(
    ("forward", "line"),
    [(there_before, "before"), (of_the_old_constructor, "old"), (of_an_array, "array")],
)
def test_the_line_where_a_tensor_of_unknown_origin_is_used(
    forward: Callable[[], Tensor], line: str
) -> None:
    found = placing(forward, "meta")
    assert found.device == ""
    assert f"At {HERE}:{line_of(line)} a tensor" in found.says.replace(
        f"{Path(__file__).parent}/", ""
    )
    assert ".to(x.device)" in found.says


def other_sizes() -> Tensor:
    return X + torch.ones(5, device="meta")


def another_error() -> Tensor:
    places = torch.arange(3)
    assert X[places].shape == (4,)
    return X


def another_error_behind_an_attempt() -> Tensor:
    try:
        return X + torch.ones(4, device="cpu")
    except RuntimeError:
        pass
    return X.view(3)


def no_error() -> Tensor:
    return X * torch.tensor(0.5)


@pytest.mark.parametrize("forward", [other_sizes, another_error, no_error])
def test_what_has_another_cause(forward: Callable[[], Tensor]) -> None:
    found = placing(forward, "meta")
    assert (found.device, found.says) == ("", "")


# What is returned, and whether it lies where `x` does on a GPU.
RETURNED = {
    "x * torch.tensor(0.5)": True,
    "x + torch.arange(4.0, device=x.device)": True,
    "torch.arange(4, device=x.device) * 2": True,
    "torch.ones(4).tril(0) if False else torch.ones(4, 4).to(x.device)": True,
    "torch.ones(4, 4).to(x).tril()": True,
    "torch.zeros_like(x)": True,
    "x.new_zeros(3)": True,
    "x.to(torch.float64)": True,
    "torch.where(torch.ones(4, 4, device=x.device).bool(), x, 0.0)": True,
    "torch.arange(4)": False,
    "torch.arange(4) * 2 + torch.ones(4)": False,
    "torch.zeros_like(torch.ones(4, 4).tril())": False,
    "torch.tensor(0.0)": False,
    "torch.ones(4, device='cpu').view(2, 2)": False,
    "x.cpu() + 1": False,
    "(x + 1).to('cpu')": False,
    "torch.linspace(0, 1, x.shape[0])": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("text", RETURNED)
def test_what_lies_where_no_input_does(text: str, tmp_path: Path) -> None:
    """On a GPU it is returned by the person's own code; on a CPU all lies on one device."""
    (tmp_path / "problem.py").write_text(
        "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        y = torch.relu(x)\n"
        f"        return y, {text}\n\n"
        "def get_inputs():\n    return [torch.randn(4, 4)]\n",
        encoding="utf-8",
    )
    problem = load_problem(tmp_path / "problem.py")
    given = problem.make_model(), problem.make_inputs()
    assert make(*given, TARGETS["cpu"])
    if RETURNED[text]:
        assert make(*given, TARGETS["sm_90a"])
    else:
        with pytest.raises(CaptureFailed, match=r"problem\.py:7: Model.*device=x.device"):
            make(*given, TARGETS["sm_90a"])


# What a GPU does to such a forward: `elsewhere` is entered where no default device is set.
GPU = """
from contextlib import nullcontext
from torch.utils import _device

def elsewhere():
    return nullcontext() if _device.CURRENT_DEVICE is not None else _device.DeviceContext("meta")
"""
MASKED = (
    GPU
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 5)

    def forward(self, x):
        with elsewhere():
            bias = torch.arange(5.0)
        return torch.relu(self.proj(x) + bias)

def get_inputs():
    return [torch.randn(3, 6)]

def get_init_inputs():
    return []
"""
)
CACHED = (
    GPU
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = None

    def forward(self, x):
        if self.bias is None:
            with elsewhere():
                self.bias = torch.linspace(-1, 1, 6)
        return torch.sigmoid(x + self.bias)

def get_inputs():
    return [torch.randn(3, 6)]

def get_init_inputs():
    return []
"""
)
NAMED = MASKED.replace("torch.arange(5.0)", "torch.arange(5.0, device=x.device)")
FEW = ("fresh", "no-default", "stale-cache", "soak", "global-state")


def solution(more: str = "") -> str:
    """A candidate that names its devices; more: lines before it returns y."""
    return (
        GPU
        + f"""
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 5)

    def forward(self, x):
        y = torch.relu(self.proj(x) + torch.arange(5.0, device=x.device))
        {more}
        return y
"""
    )


@pytest.mark.parametrize("problem", [MASKED, CACHED])
def test_eager_runs_under_the_default(problem: str, tmp_path: Path) -> None:
    one = OneProcess(tmp_path, problem, "")
    one.open()
    assert one.lab.placing.device == "cpu"
    assert re.search(r"/problem\.py:\d+: in plain eager it does not run", one.lab.placing.says)
    assert one.lab.modes == ("train", "eval")


def test_nothing_changes_for_who_runs_without(tmp_path: Path) -> None:
    one = OneProcess(tmp_path, NAMED, "")
    one.open()
    assert (one.lab.placing.device, one.lab.placing.says) == ("", "")


@dataclass(frozen=True)
class Judged:
    """fails: which checks refute it.  notes: what a note says."""

    source: str
    fails: tuple[str, ...] = ()
    note: str = ""


CANDIDATES = {
    "as it was": Judged(honest(MASKED), note="the candidate raises, as eager does"),
    "names its devices": Judged(solution(), note="the candidate is right, where eager raises"),
    "wrong without a default": Judged(
        solution("y = y if _device.CURRENT_DEVICE is not None else y + 1"), ("values",)
    ),
    "wrong under a default": Judged(
        solution("y = y if _device.CURRENT_DEVICE is None else y + 1"), ("values",)
    ),
    "ends without a default": Judged(
        solution("if _device.CURRENT_DEVICE is None: raise SystemExit"), ("structure",)
    ),
    "leaves another default": Judged(
        solution("torch.set_default_device('cpu')"), ("global-state",)
    ),
    "leaves a mode": Judged(
        solution("_device.DeviceContext('cpu').__enter__()"), ("global-state",)
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_run_as_eager_does(name: str, tmp_path: Path) -> None:
    wanted = CANDIDATES[name]
    try:
        rows = judged(tmp_path, MASKED, wanted.source, FEW)
    finally:
        torch.set_default_device(None)
        while torch._C._len_torch_function_stack():
            torch.overrides._pop_mode()
        _device.CURRENT_DEVICE = None
    failed = {check for check, outcome, _ in rows if outcome == "fail"}
    assert failed >= set(wanted.fails), failures(rows)
    assert bool(failed) == bool(wanted.fails), failures(rows)
    assert any(wanted.note in evidence for _, _, evidence in rows)


def test_the_reason_where_no_default_helps(tmp_path: Path) -> None:
    plain = MASKED.replace("torch.arange(5.0)", "torch.arange(5.0, device='meta')")
    line = 1 + plain[: plain.index("device='meta'")].count("\n") + 4
    with pytest.raises(NotJudgeable, match=rf"problem\.py:{line} makes a tensor .*device=x.device"):
        OneProcess(tmp_path, plain, "").open()


class OnNoGpu(nn.Module):
    """Runs under a default device, or, where it names another one, nowhere."""

    def __init__(self, named: str | None) -> None:
        super().__init__()
        self.named = named

    def forward(self, x: Tensor) -> Tensor:
        if _device.CURRENT_DEVICE is None:
            with _device.DeviceContext("meta"):  # type: ignore[no-untyped-call]
                return x + torch.ones(3, device=self.named)
        return x + torch.ones(3, device=self.named)


def bench(model: nn.Module) -> TuneBench:
    def write(_: TuneChoice) -> CandidateText:
        raise NotImplementedError

    return TuneBench(model, [torch.zeros(2, 3)], TARGETS["cpu"], write)


def test_the_tuner_times_under_the_default() -> None:
    here = bench(OnNoGpu(None))
    (found,) = here.outputs(None)
    assert isinstance(found, Tensor)
    assert bool((found == 1).all())
    assert here.whole_time(None)


def test_the_tuner_says_that_eager_raises() -> None:
    with pytest.raises(EagerRaises, match="eager raises on cpu"):
        bench(OnNoGpu("meta")).outputs(None)
