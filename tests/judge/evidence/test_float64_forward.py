"""A forward that names precisions itself has a float64 twin, which a wrong candidate meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.judge_in_one_process import failures, honest, judged

REST = """
def get_init_inputs():
    return []
"""
ASKED = ("fresh", "weight-change", "modes")
# name -> problem, the text that a wrong candidate replaces, and by what
INSIDE = {
    "float32 made inside": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 8)

    def forward(self, steps):
        rates = torch.exp(-torch.arange(8, dtype=torch.float32) / 2)
        angles = steps[:, None].float() * rates
        return self.proj(torch.cat([angles.sin(), angles.cos()], -1))

def get_inputs():
    return [torch.randint(0, 1000, (4,))]
""",
        ("self.proj(torch.cat", "1.001 * self.proj(torch.cat"),
    ),
    "float32 by keyword, method and type": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        a = x.to(torch.float32) @ torch.eye(6, dtype=torch.float32)
        b = torch.zeros(6, 6).type(torch.float32) + torch.linspace(0, 1, 6, dtype=torch.float)
        return (a.type_as(b) @ self.w) @ b.to(dtype=torch.float32)

def get_inputs():
    return [torch.randn(4, 6)]
""",
        ("a.type_as(b) @ self.w", "a.type_as(b) @ self.w.bfloat16().float()"),
    ),
    "bfloat16 made inside": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("levels", torch.randint(0, 16, (16, 24), dtype=torch.uint8))

    def forward(self, x):
        return x @ ((self.levels.to(torch.bfloat16) - 8) * 0.25)

def get_inputs():
    return [torch.randn(4, 16, dtype=torch.bfloat16)]
""",
        ("* 0.25", "* 0.2578125"),
    ),
    "complex weights": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4, dtype=torch.complex64)

    def forward(self, x):
        y = self.proj(torch.complex(x, x * 0))
        return y.real * 2 + y.imag

def get_inputs():
    return [torch.randn(3, 4)]
""",
        ("+ y.imag", "- y.imag"),
    ),
    "complex weights that are kept": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4, dtype=torch.complex64)

    def forward(self, x):
        y = self.proj(torch.complex(x, x * 0))
        return y.real * 2 + y.imag

def get_inputs():
    return [torch.randn(3, 4)]
""",
        (
            "y = self.proj(torch.complex(x, x * 0))",
            "self.kept = getattr(self, 'kept', self.proj.weight.detach().clone())\n"
            "        y = F.linear(torch.complex(x, x * 0), self.kept, self.proj.bias)",
        ),
    ),
    "a complex buffer that is not saved": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(6).float(), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), False)

    def forward(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns).flatten(-2).type_as(x)

def get_inputs():
    return [torch.randn(3, 6, 4)]
""",
        ("pairs * self.turns", "pairs * self.turns.conj()"),
    ),
    "bits of a float": (
        """
class Model(nn.Module):
    def forward(self, x):
        y = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
        return y * (1.5 - 0.5 * x * y * y)

def get_inputs():
    return [torch.rand(8, 32) + 0.1]
""",
        ("0x5F3759DF", "0x5F37F9DF"),
    ),
    "a half product, widened": (
        """
class Model(nn.Module):
    def forward(self, x):
        y = x.half()
        return (y * y).float()

def get_inputs():
    return [torch.randn(8, 32)]
""",
        ("(y * y).float()", "(y * y).bfloat16().float()"),
    ),
    "infinity as the largest number of its type": (
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.nan_to_num((x - x.amin(-1, keepdim=True)).log()) / 1e30

def get_inputs():
    return [torch.randn(8, 32)]
""",
        ("nan_to_num((x - x.amin(-1, keepdim=True)).log())",
         "nan_to_num((x - x.amin(-1, keepdim=True)).log(), neginf=-3.3e38)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_the_reference_is_right(name: str, tmp_path: Path) -> None:
    problem = INSIDE[name][0] + REST
    assert not failures(judged(tmp_path, problem, honest(problem)))


@pytest.mark.parametrize("name", INSIDE)
def test_another_value_is_refuted(name: str, tmp_path: Path) -> None:
    problem, (own, other) = INSIDE[name][0] + REST, INSIDE[name][1]
    assert own in problem
    assert failures(judged(tmp_path, problem, honest(problem).replace(own, other), ASKED))
