"""Variables of the model's text, which name the results of its calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.frontend.capture import capture

X = torch.randn(4, 8)


def variables(module: nn.Module) -> list[tuple[str, str]]:
    """Call and variable of each node that has one, in the model's order."""
    origins = capture(module, [X]).graph.origins.values()
    return [(o.call, o.variable) for o in origins if o.variable]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(
            self.linear(x) + 1,
        )
        return self.norm(hidden) * x


def test_the_last_call_of_a_statement_and_what_a_module_returns() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.both = Layer(), nn.Sequential(Layer(), Layer())

        def forward(self, x: Tensor) -> Tensor:
            first = self.layer(x)
            second: Tensor = self.both(first)
            third = torch.relu(torch.relu(second - 1) - 1).transpose(0, 1)
            return third * 2

    found = variables(Model())
    one, rest = [("gelu", "hidden")], [("mul", "second"), ("relu", "third")]
    assert found == [*one, ("mul", "first"), *one, *one, *rest]


def test_names_of_several_values_are_no_names() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(x)
            y = torch.sigmoid(x)
            y = y + 1
            z = torch.tanh(y); w = z * 2  # fmt: skip  # noqa: E702
            return w + x

    assert variables(Model()) == []


def test_a_loop_gives_its_name_each_time() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = 0
            for k in range(1, 3):
                wave = torch.sin(x * k)
                total = total + wave
            return total

    assert variables(Model()) == [("sin", "wave"), ("sin", "wave")]


def test_results_of_a_call_that_returns_several() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            largest, where = torch.max(torch.exp(x), -1)
            low = torch.min(torch.sin(x), -1)[0]
            return largest + where + low

    found = {name: call for call, name in variables(Model())}
    assert found == {"largest": "max", "where": "max", "low": "min"}


def test_functions_of_the_file_return_their_values() -> None:
    assert variables(Helped()) == [("mul", "gated")]


def gate(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * x


class Helped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gated = gate(x)
        return gated.sum(-1)


def test_without_a_text_there_are_no_names() -> None:
    space = {"torch": torch, "nn": nn}
    text = "class Model(nn.Module):\n def forward(self, x):\n  y = torch.exp(x)\n  return y + 1"
    exec(compile(text, "<nowhere>", "exec"), space)
    model: nn.Module = space["Model"]()  # type: ignore[operator]
    assert variables(model) == []
