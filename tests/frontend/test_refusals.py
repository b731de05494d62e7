"""What cannot become a graph: the paragraph names the operator, the user's line and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fusewright.common.problem_file import load_problem
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x, n):
        {body}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, n):
        y = x + 1
        return self.inner(y, n)


def get_inputs():
    return [torch.randn(4, 6), torch.tensor([4, 3, 2, 1])]


def get_init_inputs():
    return []
"""
WHERE = "torch.where"
# name -> the statement of the inner forward, what the paragraph says, what it does not say
KINDS: dict[str, tuple[str, str, str]] = {
    "nonzero": ("return torch.nonzero(x)", "boolean mask, or nonzero", "Control flow"),
    "mask": ("return x[x > 0]", "boolean mask, or nonzero", "Control flow"),
    "masked select": ("return x.masked_select(x > 0)", "masked_select", "Control flow"),
    "unique": ("return torch.unique(n) + x.sum()", "unique", WHERE),
    "repeats": ("return x.repeat_interleave(n, 0)", "output_size=n", WHERE),
    "bincount": ("return torch.bincount(n) + x.sum()", "index_add", WHERE),
    "if": ("return x if x.sum() > 0 else -x", "`if`", ".item()"),
    "bool": ("return x if bool((x > 0).any()) else -x", "`if`", ".item()"),
    "assert": ("assert (x < 9).all(); return x + 1", "`assert`", ".item()"),
    "equal": ("return x if torch.equal(x, x + 1) else -x", "torch.equal", ".item()"),
    "allclose": ("return x if torch.allclose(x, x + 1) else -x", "torch.isclose", ".item()"),
    "range": ("return sum(x for _ in range(int(n[0])))", "range()", WHERE),
    "one_hot": ("return F.one_hot(n) + x.sum()", "one_hot", WHERE),
    **{
        f"a number for {name}": (
            f"return {text}",
            rf"{name} asks for the value of a tensor",
            "`if`",
        )
        for name, text in (
            ("hardtanh", "F.hardtanh(x, -1.0, x.sum().item())"),
            ("softshrink", "F.softshrink(x, x.sum().abs().item())"),
            ("dropout", "F.dropout(x, n[0].item() / 9, False)"),
            ("linalg_vector_norm", "torch.linalg.vector_norm(x, n[0].item())"),
            ("huber_loss", "F.huber_loss(x, x + 1, delta=n[0].item())"),
            ("float_power", "torch.float_power(x, n[0].item())"),
            ("layer_norm", "F.layer_norm(x, (6,), eps=x.sum().item())"),
        )
    },
    "int": ("return x * int(x.sum().item())", "(int(), float()", "`if`"),
    "index of a list": ("return [x, -x][n[3].item()]", "an index of a list", "`if`"),
    "a view's place": (
        "y = x.clone(); y.add_(1); return y[n[3].item()]",
        "index_select",
        "size of",
    ),
    "truth of a number": ("return x if n[0].item() else -x", "`if`", "int()"),
    "correction": ("return x.std(correction=n[0].item())", ".item() gives", "`if`"),
    "format of a number": ("print(f'{n[0].item():.3f}'); return x", "formatted as text", WHERE),
    "numpy": ("return x + torch.from_numpy(x.numpy())", ".numpy()", WHERE),
    "format": ("print(f'{x.sum():.3f}'); return x + 1", "formatted as text", WHERE),
    "packed": (
        "return self.rnn(pack_padded_sequence(x[None].expand(4, 4, 6), n, True))[0].data",
        "packed sequence",
        WHERE,
    ),
    "counter": ("return self.norm(x)", "Give it a momentum", WHERE),
    "combinations": ("return torch.combinations(x[0])", "size of a result depends", "None"),
    "nested": ("return torch.nested.nested_tensor([x, x]).sum()", "_nested_tensor", WHERE),
    "set": ("return {x}", "returns a value of type set", WHERE),
    "generator": ("return (v for v in [x])", "returns a value of type generator", WHERE),
    "unknown": ("raise ValueError('as it likes')", "ValueError: as it likes", "Keep"),
}
TAKEN_SINCE = {"combinations": "2.14"}  # version of PyTorch from which it is no reason any more


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_paragraph_names_cause_line_and_remedy(kind: str, tmp_path: Path) -> None:
    body, says, not_this = KINDS[kind]
    if torch.__version__ >= TAKEN_SINCE.get(kind, "9"):
        pytest.skip("this PyTorch turns it into a graph")
    path = tmp_path / "problem.py"
    path.write_text(HEAD.format(body=body))
    problem = load_problem(path)
    with pytest.raises(CaptureFailed) as caught:
        capture(problem.make_model(), problem.make_inputs())
    text = str(caught.value)
    returned = kind in ("set", "generator")  # seen behind forward, where no line of it runs
    number = next(k for k, line in enumerate(path.read_text().splitlines(), 1) if body in line)
    assert returned or text.startswith(f"{path}:{number}: the model cannot be turned into a graph")
    assert says in text
    assert not_this not in text
    assert "\n" not in text


def test_the_line_may_be_in_a_file_that_the_problem_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refused_parts.py").write_text(
        "from torch import nn\n\n\nclass Part(nn.Module):\n"
        "    def forward(self, x):\n        return x[x > 0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import refused_parts  # type: ignore[import-not-found]

    with pytest.raises(CaptureFailed, match=r"refused_parts.py:6: .*boolean mask"):
        capture(nn.Sequential(nn.ReLU(), refused_parts.Part()), [torch.randn(4, 6)])
    del sys.modules["refused_parts"]
