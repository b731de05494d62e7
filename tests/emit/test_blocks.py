"""Loops over equal blocks: the same calls with the same values, and nothing lives longer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewright.emit.blocks import FEWEST, Lines, with_loops
from fusewright.emit.python_text import NameScope
from fusewright.emit.statement import (
    Expression,
    Statement,
    assign,
    deletions,
    evaluate,
    expression,
    variable,
)
from tests.support.emitting import emit_text


def call(name: str, *given: str) -> Expression:
    return expression(f'{name}["x"]({", ".join(given)})', [variable(g) for g in given])


@dataclass
class Trace:
    """What a text calls, with which values, and which values are alive before each call."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)

    def run(self, lines: Sequence[str], tensors: Sequence[str], unpack: Sequence[str]) -> Trace:
        """Run the lines, the last of which is the result."""
        live: dict[int, int] = {}

        class Value:
            def __init__(value, number: int) -> None:
                value.number = number
                live[number] = live.get(number, 0) + 1

            def __del__(value) -> None:
                live.pop(value.number)

        class Functions(dict[str, Any]):
            def __missing__(functions, key: str) -> Any:
                def called(*given: Any) -> Any:
                    self.calls.append((key, *(getattr(g, "number", g) for g in given)))
                    self.alive.append(len(live))
                    return Value(len(self.calls))

                return called

        body = [*unpack, *lines]
        text = "def forward(f, x, state):\n" + "\n".join(f"    {line}" for line in body)
        scope: dict[str, Any] = {}
        exec(text, scope)
        result = scope["forward"](Functions(), "x", tuple(tensors))
        self.calls.append(("result", getattr(result, "number", result)))
        return self


def both_ways(statements: Sequence[Statement], result: str, tensors: Sequence[str]) -> Lines:
    """The lines with loops, after comparing what they do with what the statements do."""
    names = NameScope({"f", "x", "state", *tensors, *(s.defines or "" for s in statements)})
    places = {name: at for at, name in enumerate(tensors)}
    last = evaluate(expression(f"return {result}", [variable(result)]))
    rolled = with_loops(statements, last, places, "state", names)
    needed = [f"{name} = state[{places[name]}]" for name in tensors if name in rolled.outside]
    found = Trace().run(rolled.lines, tensors, needed)
    every = [f"{name} = state[{at}]" for name, at in places.items()]
    flat = _flat(statements, last)
    wanted = Trace().run(flat, tensors, every)
    assert found.calls == wanted.calls
    assert all(mine <= theirs for mine, theirs in zip(found.alive, wanted.alive, strict=True))
    return rolled


def _flat(statements: Sequence[Statement], result: Statement) -> list[str]:
    """Without loops: no run of fewer than all statements is long enough."""
    lines = []
    for i, (statement, dead) in enumerate(
        zip(statements, deletions(statements, result), strict=True)
    ):
        lines.append(statement.text)
        lines += [f"del {', '.join(dead)}"] * bool(dead and i + 1 < len(statements))
    return [*lines, result.text]


def block(k: int, hidden: str, size: int = 5) -> list[Statement]:
    """A residual block that reads three tensors of the model."""
    w, b, g = (f"layers_{k}_{name}" for name in ("weight", "bias", "gain"))
    return [
        assign(f"layers_{k}_norm", call("f", hidden, g)),
        assign(f"layers_{k}_product", call("f", f"layers_{k}_norm", w)),
        assign(f"layers_{k}_act", call("f", f"layers_{k}_product", b)),
        evaluate(call("f", f"layers_{k}_act", "x")),
        assign(f"layers_{k}_out", call("f", f"layers_{k}_act", hidden)),
    ][:size]


def model(count: int) -> tuple[list[Statement], list[str]]:
    statements, hidden = [assign("first", call("f", "x"))], "first"
    for k in range(count):
        statements += block(k, hidden)
        hidden = f"layers_{k}_out"
    statements.append(assign("last", call("f", hidden, "head")))
    names = ("weight", "bias", "gain")
    return statements, [*(f"layers_{k}_{n}" for k in range(count) for n in names), "head"]


@pytest.mark.parametrize("count", range(1, 9))
def test_equal_blocks_are_a_loop(count: int) -> None:
    statements, tensors = model(count)
    found = both_ways(statements, "last", tensors)
    loops = [line for line in found.lines if line.startswith("for ")]
    assert len(loops) == (count >= FEWEST)
    if loops:
        slices = ", ".join(f"state[{3 * k}:{3 * k + 3}]" for k in range(count))
        assert loops == [f"for block in [{slices}]:"]
        assert "    [layers_weight, layers_bias, layers_gain] = block" in found.lines
        assert found.outside == {"head"}


def test_what_a_later_statement_reads_of_a_block_is_no_loop() -> None:
    statements, tensors = model(6)
    for k in range(6):
        more = assign(f"again_{k}", call("f", f"layers_{k}_norm", "last"))
        found = both_ways([*statements, more], f"again_{k}", tensors)
        loops = [line for line in found.lines if line.startswith("for ")]
        assert [line.count("state[") for line in loops] == [max(k, 5 - k)][
            : max(k, 5 - k) >= FEWEST
        ]


@pytest.mark.parametrize("shared", range(5))
def test_a_tensor_of_one_block_that_all_read(shared: int) -> None:
    """As a tied weight is: in the loop it would be that of each block."""
    tensors = [f"layers_{k}_weight" for k in range(5)]
    statements, hidden = [assign("first", call("f", "x"))], "first"
    for k in range(5):
        for step in range(4):
            made = assign(f"layers_{k}_v{step}", call("f", hidden, tensors[k], tensors[shared]))
            statements.append(made)
            hidden = f"layers_{k}_v{step}"
    both_ways(statements, hidden, tensors)


def test_all_blocks_are_read_again() -> None:
    """As a network does whose second half reads what the first half made."""
    statements, tensors = model(5)
    again = [evaluate(call("f", f"layers_{k}_act", "x")) for k in reversed(range(5))]
    found = both_ways([*statements, *again], "last", tensors)
    assert not any(line.startswith("for ") for line in found.lines)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_random_blocks(first: int) -> None:
    found = [random_blocks(seed) for seed in range(first, first + 50)]
    assert sum(any(line.startswith("for ") for line in lines) for lines in found) >= 5


def random_blocks(seed: int) -> Sequence[str]:
    """Blocks of random statements, that read what is in reach, with disturbances."""
    draw = random.Random(seed)
    count, size = draw.randint(2, 8), draw.randint(3, 7)
    disturbed = draw.choice([0, 0, 0.03])
    plan = [
        (draw.random() < 0.8, [draw.random() for _ in range(draw.randint(1, 3))])
        for _ in range(size)
    ]
    statements = [assign("first", call("f", "x"))]
    before, width = ["first"], draw.randint(0, 3)
    tensors = [f"layers_{k}_w{j}" for k in range(count) for j in range(width)]
    tied = draw.choice([0, 1, 2, len(tensors), len(tensors), len(tensors)])
    for k in range(count):
        mine: list[str] = []
        for place, (makes, picks) in enumerate(plan):
            own = (f"layers_{k}_w{j}" for j in range(width))
            reach = ["x", *tensors[tied : tied + 1], *[*before, *before][-2:], *mine, *own]
            given = [reach[int(p * len(reach))] for p in picks]
            if draw.random() < disturbed:
                given = [*given[::-1], "first"]
            if makes:
                mine.append(f"layers_{k}_v{place}")
                statements.append(assign(mine[-1], call("f", *given)))
                if place == 1:
                    statements.append(assign(mine[-1], call("f", mine[-1])))
            else:
                statements.append(evaluate(call("f", *given)))
        before = mine or before
    made = [s.defines for s in statements if s.defines]
    return both_ways(statements, draw.choice([made[-1], *made]), tensors).lines


SOURCE = """
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)

        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*[Block(32) for _ in range(COUNT)])
            self.head = nn.Linear(32, 8)

        def forward(self, x):
            return self.head(self.blocks(x))


    def get_inputs():
        return [torch.randn(16, 32)]


    def get_init_inputs():
        return []
"""


@pytest.mark.compiler
def test_a_model_of_equal_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file hardly grows with their number, and each block has its own weights."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kernels"))
    texts = []
    for count in (5, 20):
        emitted = emit_text(SOURCE.replace("COUNT", str(count)), tmp_path)
        texts.append(emitted.text)
        made = emitted.load()
        torch.manual_seed(count)
        ours = made.ModelNew()
        x = torch.randn(16, 32)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), ours.reference_forward(x), rtol=1e-4, atol=1e-5)
        assert made._FUSEWRIGHT_FUNCTIONS
    assert "for block in [" in texts[1]
    assert len(texts[1]) < 1.1 * len(texts[0])
