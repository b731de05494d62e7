"""A reference that raises on what the judge invents: no case, nobody's fault, never a crash."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fusewright.judge.evidence.legal_inputs import Illegal, ShortOfMemory, asked
from fusewright.judge.evidence.oracle import OTHER_BYTE, NotJudgeable, Oracle
from fusewright.judge.evidence.same_answers import alike
from fusewright.judge.isolation import memory_limit
from tests.support.judge_in_one_process import OneProcess, failures, honest, judged

NOTHING = """
def get_init_inputs():
    return []
"""

# Name -> a problem that raises on some of what the judge invents, each in its own way.
PICKY = {
    "asserts its sizes": """
class Model(nn.Module):
    def forward(self, x):
        assert x.shape[1] % 8 == 0
        return x.view(x.shape[0], -1, 8).cumsum(1).exp()

def get_inputs():
    return [torch.randn(2, 32)]
""",
    "raises its own error": """
class Unwell(Exception):
    pass

class Model(nn.Module):
    def forward(self, x):
        if x.shape != (3, 5):
            raise Unwell
        return torch.relu(x)

def get_inputs():
    return [torch.randn(3, 5)]
""",
    "asserts its values": """
class Model(nn.Module):
    def forward(self, x):
        assert bool((x >= 0).all()) and bool((x <= 1).all()) and x.any()
        return torch.sqrt(x)

def get_inputs():
    return [torch.rand(6, 7)]
""",
    "takes no number but its own": """
class Model(nn.Module):
    def forward(self, x):
        assert bool((x == x.round()).all())
        return x * 2

def get_inputs():
    return [torch.randint(-9, 9, (6, 7)).float()]
""",
    "offsets of bags": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(30, 8, mode="sum")

    def forward(self, indices, offsets):
        return torch.relu(self.bags(indices, offsets))

def get_inputs():
    return [torch.randint(0, 30, (18,)), torch.arange(6) * 3]
""",
    "cannot solve what is singular": """
class Model(nn.Module):
    def forward(self, a, b):
        return torch.linalg.solve(a, b)

def get_inputs():
    return [torch.randn(2, 4, 4) + 4 * torch.eye(4), torch.randn(2, 4, 3)]
""",
    "a parameter that is positive definite": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.spread = nn.Parameter(torch.eye(5) + 0.1)

    def forward(self, x):
        return x @ torch.linalg.cholesky(self.spread)

def get_inputs():
    return [torch.randn(4, 5)]
""",
    "indices of a table": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 3))

    def forward(self, at, count):
        return self.table[at] * self.table[count.long()].sum(0)

def get_inputs():
    return [torch.randint(0, 7, (5,)), torch.tensor([3.0, 6.0])]
""",
    "classes of targets": """
class Model(nn.Module):
    def forward(self, x, targets):
        return F.ctc_loss(x.log_softmax(-1), targets, (9, 9, 9, 9), (3, 3, 3, 3))

def get_inputs():
    return [torch.randn(9, 4, 6), torch.randint(1, 6, (4, 3))]
""",
    "raises in train mode": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(1, 6)]
""",
}


@pytest.mark.parametrize("name", PICKY)
def test_the_reference_itself_is_never_refuted_and_never_a_crash(name: str, tmp_path: Path) -> None:
    problem = PICKY[name] + NOTHING
    rows = judged(tmp_path, problem, honest(problem))
    assert not failures(rows)
    tried = [
        evidence
        for check, outcome, evidence in rows
        if (check, outcome) == ("hazard-values", "pass")
    ]
    assert tried
    assert int(tried[0].split()[0]) >= 2  # a candidate gains nothing by cases that vanish
    assert not any(outcome in ("gap", "short") for _, outcome, _ in rows)


def test_wrong_on_what_is_left_is_refuted(tmp_path: Path) -> None:
    """Few cases are legal here; a candidate that is wrong on them is found all the same."""
    problem = PICKY["asserts its values"] + NOTHING
    wrong = honest(problem).replace(
        "torch.sqrt(x)", "torch.where(x > 0.999, x, torch.sqrt(x) * 1.01)"
    )
    assert failures(judged(tmp_path, problem, wrong, ("hazards",)))


def test_a_reference_that_takes_nothing_random_is_not_judged(tmp_path: Path) -> None:
    problem = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        assert bool((self.scale == 1).all()), "only ones"
        return x * self.scale

def get_inputs():
    return [torch.randn(2, 3)]
"""
    one = OneProcess(tmp_path, problem + NOTHING, "")
    with pytest.raises(NotJudgeable, match="random parameters: AssertionError: only ones"):
        one.open()


UNWRITTEN = """
class Model(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        y[:, :6] = x[:, :6].exp()
        return y.sum(1)

def get_inputs():
    return [torch.randn(400, 6)]
"""


def test_answers_from_memory_that_nobody_has_written_are_none(tmp_path: Path) -> None:
    one = OneProcess(tmp_path, UNWRITTEN + NOTHING, "")
    one.open()
    assert one.lab.accepts("more rows", [torch.randn(401, 6)], "train") is not None
    assert one.lab.accepts("wider", [torch.randn(400, 7)], "train") is None
    assert not torch.empty(1 << 16, dtype=torch.uint8).eq(OTHER_BYTE ^ 0xFF).all()  # it is over


@pytest.mark.parametrize(
    ("values", "other", "same"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("nan")], [1.0, 0.0], False),
        ([1e20, 1.0], [1e20, 2.0], True),  # a sum in another order
        ([1e4, 1.0], [1e4, 2.0], False),
        ([], [], True),
    ],
)
def test_two_answers_to_one_question(
    values: Sequence[float], other: Sequence[float], same: bool
) -> None:
    assert alike(torch.tensor(values), torch.tensor(other)) is same
    assert alike(torch.tensor([True]), torch.tensor([False])) is False


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AssertionError("sizes"), Illegal),
        (torch.linalg.LinAlgError("singular"), Illegal),
        (ZeroDivisionError(), Illegal),
        (MemoryError(), ShortOfMemory),
        (torch.OutOfMemoryError("CUDA out of memory"), ShortOfMemory),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), ShortOfMemory),
        (torch.AcceleratorError("CUDA error: out of memory"), ShortOfMemory),
        (OSError(12, "Cannot allocate memory"), ShortOfMemory),
        (OSError(2, "No such file or directory"), Illegal),
    ],
)
def test_what_a_reference_raises(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind), asked():
        raise error


def test_to_be_interrupted_is_no_answer() -> None:
    with pytest.raises(KeyboardInterrupt), asked():
        raise KeyboardInterrupt


PAIRS = """
class Model(nn.Module):
    def forward(self, a, b):
        return torch.einsum("bij,cij->bc", a, b)

def get_inputs():
    return [torch.randn(3, 5, 5), torch.randn(3, 5, 5)]
"""


def test_what_grows_faster_than_its_inputs_is_left_out_where_it_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "GROWN_BYTES", 8 << 20)  # 4097 rows make 64 MB
    problem = PAIRS + NOTHING
    rows = judged(tmp_path, problem, honest(problem), ("hazards",))
    assert not failures(rows)
    (shapes,) = [e for check, outcome, e in rows if check == "hazard-shapes"]
    assert re.search("[12] too large to be tried", shapes)  # freed memory may hold the smaller one
    assert int(shapes.split()[0]) >= 4
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_without_memory_for_a_case_nobody_is_refuted_and_nothing_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starve(*_: object) -> None:
        raise ShortOfMemory("you tried to allocate 17179869184 bytes")

    monkeypatch.setattr(Oracle, "accepts", starve)
    problem = PAIRS + NOTHING
    rows = judged(tmp_path, problem, honest(problem), ("hazards",))
    assert not failures(rows)
    gaps = {check: evidence for check, outcome, evidence in rows if outcome == "short"}
    assert {"hazard-values", "hazard-strides", "hazard-shapes"} <= set(gaps)
    assert all("17179869184 bytes" in evidence for evidence in gaps.values())


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError()",
        "torch.OutOfMemoryError('CUDA out of memory')",
        "RuntimeError('DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes')",
        "torch.AcceleratorError('CUDA error: out of memory')",
        "OSError(12, 'Cannot allocate memory')",
        "ImportError('kernels.so: failed to map segment from shared object')",
    ],
)
@pytest.mark.parametrize(("rows", "experiment"), [(2, "fresh"), (3, "hazards")])
def test_a_candidate_without_memory_is_neither_refuted_nor_verified(
    error: str, rows: int, experiment: str, tmp_path: Path
) -> None:
    problem = PICKY["asserts its sizes"] + NOTHING
    raising = f"if x.shape[0] == {rows}:\n            raise {error}\n        assert"
    candidate = honest(problem).replace("assert", raising)
    found = judged(tmp_path, problem, candidate, (experiment,))
    assert not failures(found)
    assert any(outcome == "short" for _, outcome, _ in found)


def test_the_limit_is_an_error_and_ends_with_the_case() -> None:
    with pytest.raises(ShortOfMemory), asked(), memory_limit.within(64 << 20, "cpu"):
        torch.zeros(1 << 28)
    assert torch.zeros(1 << 25).numel() == 1 << 25


def test_the_peak_of_a_run() -> None:
    with memory_limit.Peak("cpu") as peak:
        torch.ones(1 << 25).add_(1.0)
    assert 100 << 20 < peak.size < 400 << 20
