"""Parameters are given other memory, replaced, or changed in one element: eager sees it all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.evidence.weight_changes import ROUNDS, nudged
from tests.support.folders import PROBLEMS
from tests.support.judge_in_one_process import failures, honest, judged

ASKED = ("weight-change",)
REST = """
def get_inputs():
    return [torch.randn(4, 12)]

def get_init_inputs():
    return []
"""
LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 9)
        self.register_buffer("scale", torch.full((9,), 1.5))

    def forward(self, x):
        return torch.relu(self.proj(x)) * self.scale
"""
# What a candidate keeps from its construction, or from its last call.
WRONG = {
    "memory of a parameter": """
        self.kept = self.proj.weight.data

    def forward(self, x):
        return torch.relu(F.linear(x, self.kept, self.proj.bias)) * self.scale
""",
    "a parameter": """
        self.kept = [self.proj.weight]

    def forward(self, x):
        return torch.relu(F.linear(x, self.kept[0], self.proj.bias)) * self.scale
""",
    "memory of a buffer": """
        self.kept = [self.scale.data]

    def forward(self, x):
        return torch.relu(self.proj(x)) * self.kept[0]
""",
    "a sample of a parameter": """
        self.seen = self.packed = None

    def forward(self, x):
        seen = self.proj.weight.detach().flatten()[::17].tolist()
        if seen != self.seen:
            self.seen, self.packed = seen, self.proj.weight.detach().clone()
        return torch.relu(F.linear(x, self.packed, self.proj.bias)) * self.scale
""",
    "a sum of a parameter's first rows": """
        self.seen = self.packed = None

    def forward(self, x):
        seen = self.proj.bias.detach()[:2].tolist()
        if seen != self.seen:
            self.seen, self.packed = seen, self.proj.bias.detach().clone()
        return torch.relu(F.linear(x, self.proj.weight, self.packed)) * self.scale
""",
}
# References of which parameters are exchanged where they allow it; each is its own candidate.
KINDS = {
    "a linear layer": LINEAR,
    "a recurrence, which keeps a list of its weights": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 5, num_layers=2)

    def forward(self, x):
        return self.cells(x.reshape(4, 4, 3))[0]
""",
    "a parametrization": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.utils.parametrizations.weight_norm(nn.Linear(12, 9))

    def forward(self, x):
        return self.proj(x)
""",
    "tied parameters": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))
""",
    "statistics": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.norm = nn.Linear(12, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.proj(x))
""",
    "parameters in containers": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([torch.randn(12, 3), torch.randn(12, 3)])
        self.named = nn.ParameterDict({"b": torch.randn(6)})

    def forward(self, x):
        return torch.cat([x @ part for part in self.parts], 1) + self.named["b"]
""",
    "tensors of its own, which follow nothing but writes": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 9)
        self.views = [self.proj.weight.data[:4]]

    def forward(self, x):
        return self.proj(x)
""",
    "a state of another form": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 9)

    def load_state_dict(self, state, strict=True):
        super().load_state_dict(state, strict)

    def forward(self, x):
        return self.proj(x)
""",
    "what must be positive": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.rand(12) + 0.5)

    def forward(self, x):
        return x / self.rates.sqrt() + torch.log(self.rates)
""",
    "half precision": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 9).bfloat16()

    def forward(self, x):
        return self.proj(x.bfloat16())
""",
}


@pytest.mark.parametrize("name", KINDS)
def test_honest(name: str, tmp_path: Path) -> None:
    problem = KINDS[name] + REST
    rows = judged(tmp_path, problem, honest(problem), ASKED)
    assert failures(rows) == []
    assert any(check == "weight-change" and said == "pass" for check, said, _ in rows)


@pytest.mark.parametrize("name", WRONG)
def test_what_was_bound_or_sampled_is_refuted(name: str, tmp_path: Path) -> None:
    begin, _, _ = LINEAR.partition("\n\n    def forward")
    solution = honest(begin + WRONG[name] + REST)
    found = failures(judged(tmp_path, LINEAR + REST, solution, ASKED))
    assert found
    assert all(line.startswith("weight-change: ") for line in found), found


@pytest.mark.parametrize("seed", ["1f", "a6", "52"])
def test_each_round_differs_from_the_one_before_in_one_element(seed: str) -> None:
    """A cache that samples the weights escapes where it sees every round, not where it sees one:
    an element that is put back would show it that something has changed."""
    order = {"device": "cpu", "accuracy": "contract", "seed": seed * 16, "overrides": {}}
    lab = Oracle({**order, "problem": str(PROBLEMS / "linear_relu.py")})
    lab.examine()
    state, places = lab.state, set[tuple[int, ...]]()
    for number in range(ROUNDS):
        before, state = state, nudged(lab, state, number)
        for name, value in state.items():
            (place,) = (value != before[name]).nonzero().tolist()
            assert abs(value[tuple(place)]) > 8 * lab.state[name].abs().max()
            if value.ndim > 1:
                places.add(tuple(place))
    assert len(places) == ROUNDS
