"""What eager itself does is right for a candidate, too; a candidate that does otherwise is not.

Every row has a problem, what a wrong candidate writes instead of some of its text, and the check
that refutes that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.judge_in_one_process import failures, honest, judged

REST = """
def get_init_inputs():
    return []
"""
MAX_NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6, max_norm=1.0)

    def forward(self, tokens):
        return torch.relu(self.embed(tokens))

def get_inputs():
    return [torch.randint(0, 20, (5, 4))]
"""
BAG_NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(30, 8, mode="sum", max_norm=0.5)

    def forward(self, tokens):
        return self.bags(tokens)

def get_inputs():
    return [torch.randint(0, 30, (4, 3))]
"""
COUNTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.seen += 1
            self.scale.mul_(1.5)
        return x * self.scale + self.seen

def get_inputs():
    return [torch.randn(3, 4)]
"""
EXPANDED = """
class Model(nn.Module):
    def forward(self, x):
        return x[:, :1].expand(-1, 6), torch.relu(x)

def get_inputs():
    return [torch.randn(4, 12)]
"""
ONE_NAN = """
class Model(nn.Module):
    def forward(self, x, single):
        return torch.relu(x), single.var(1)

def get_inputs():
    return [torch.randn(5, 6), torch.randn(5, 1)]
"""
INFINITE = """
class Model(nn.Module):
    def forward(self, x):
        return x * 2, x.masked_fill(x == x, float("-inf"))

def get_inputs():
    return [torch.randn(5, 6)]
"""

# name -> problem, the text that is replaced, by what, the check that refutes it
AS_EAGER = {
    "renorm: not written": (
        MAX_NORM, "self.embed(tokens)", "F.embedding(tokens, self.embed.weight.clone(), None, 1.0)",
        "buffers",
    ),
    "renorm: another norm": (MAX_NORM, "max_norm=1.0", "max_norm=1.01", "values"),
    "renorm: all rows": (
        MAX_NORM, "torch.relu(self.embed(tokens))",
        "torch.relu(self.embed(torch.arange(20))[tokens])", "buffers",
    ),
    "bags: not written": (
        BAG_NORM, "self.bags(tokens)",
        "F.embedding_bag(tokens, self.bags.weight.clone(), mode='sum', max_norm=0.5)", "buffers",
    ),
    "counters: one forgotten": (COUNTS, "self.seen += 1", "self.seen.add_(1 - self.training * 1)",
                                "mode"),
    "counters: a parameter kept": (
        COUNTS, "self.scale.mul_(1.5)\n        return x * self.scale",
        "pass\n        return x * (self.scale * 1.5)", "buffers",
    ),
    "expanded: the other one": (EXPANDED, "torch.relu(x)", "torch.relu(x[:1]).expand(4, 12)", ""),
    "expanded: another column": (EXPANDED, "x[:, :1]", "x[:, 1:2]", "values"),
    "NaN: zeros for it": (ONE_NAN, "single.var(1)", "torch.zeros(5)", "nonfinite"),
    "NaN: the other one wrong": (ONE_NAN, "torch.relu(x)", "torch.relu(x) * 1.01", "accuracy"),
    "NaN: in the other one, too": (
        ONE_NAN, "torch.relu(x)", "torch.relu(x) + single.var(1, keepdim=True)", "nonfinite",
    ),
    "infinite: of the other sign": (INFINITE, '"-inf"', '"inf"', "nonfinite"),
}  # fmt: skip


@pytest.mark.parametrize("problem", list(dict.fromkeys(row[0] for row in AS_EAGER.values())))
def test_as_eager_is_right(problem: str, tmp_path: Path) -> None:
    assert not failures(judged(tmp_path, problem + REST, honest(problem)))


@pytest.mark.parametrize("name", AS_EAGER)
def test_otherwise_is_refuted(name: str, tmp_path: Path) -> None:
    problem, own, other, check = AS_EAGER[name]
    assert own in problem
    found = failures(judged(tmp_path, problem + REST, honest(problem).replace(own, other)))
    assert found
    assert any(line.startswith(check) for line in found), found
