"""Types that kernels do not know, and bits read as another type: over every pair of types.

One emitted file for each type of the input, all in one library: the results have eager's bits.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.codegen.cxx_literal import cxx_literal
from fusewright.codegen.kernel_text import TYPES
from fusewright.common.dtypes import OF_KERNELS
from fusewright.frontend.lowering import LOWER, ONLY_DEFAULT, OVERLOADS
from fusewright.ir.graph import Node, base, toposort
from tests.support.compiled import Case, build, prepare, ready

WIDTHS = {
    1: ["uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"],
    2: ["int16", "uint16", "float16", "bfloat16"],
    4: ["int32", "uint32", "float32"],
    8: ["int64", "uint64", "float64", "complex64"],
    16: ["complex128"],
}  # fmt: skip
NAMES = [name for names in WIDTHS.values() for name in names]
OF = {name: getattr(torch, name) for name in NAMES}
ODD = [name for name in NAMES if OF[name] not in OF_KERNELS]
COUNTS = (
    *("uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
SHAPE = (4, 16)

MODEL = """import torch
import torch.nn as nn

INPUT = {inputs}


class Model(nn.Module):
    def forward(self, x, y):
        return (
            {results},
        )


def get_inputs():
    return [INPUT, torch.arange(64.0).reshape(4, 16) - 20]


def get_init_inputs():
    return []
"""
# Numbers of every type as bytes: small ones, so that no float is NaN or infinite, bool is 0 or 1.
DRAWN = "(torch.arange({count}) * 37 % {below}).to(torch.uint8).view(torch.{kind}).reshape(4, 16)"
# Not-a-numbers of 16 bits, signalling ones among them, which arithmetic and conversions change.
NANS = (
    "(torch.arange({count} // 2) * 331 % 1000 + 32001).to(torch.int16)"
    ".view(torch.{kind}).reshape(4, 16)"
)


def views_of(name: str) -> list[str]:
    """Bits as every other type: by themselves, read by kernels, of what a kernel computes."""
    rows: list[str] = []
    for to in NAMES:
        rows.append(f"x.view(torch.{to})")
        if to in COUNTS and to != name:
            rows += [f"x.view(torch.{to}) * 3", f"x.view(torch.{to}).t() - 1"]
        if name in COUNTS:
            rows.append(f"(x + 1).view(torch.{to})")
        if name in COUNTS and to in COUNTS:
            rows.append(f"(x + 3).view(torch.{to})[:, 1:] + 1")
    if name == "complex64":
        rows += [
            "torch.view_as_real(x) * 2",
            "torch.view_as_real(x * 2)",
            "x.real + 1",
            "x.imag.abs()",
        ]
    if name == "float32":
        rows += [
            "torch.view_as_complex(x.view(4, 8, 2))",
            "torch.view_as_complex((x * 2).view(4, 8, 2)) * 2",
        ]
        rows += [
            "torch.signbit(x)",
            "torch.frexp(x)[0]",
            "torch.frexp(x)[1]",
            "torch.ldexp(x, y.int())",
        ]
        rows += ["((x.view(torch.int32) >> 23) & 255) - 127", "torch.copysign(y, x)"]
        rows += ["((x.view(torch.int32) & -2147483648) | 1065353216).view(torch.float32)"]
        rows += ["(0x5F3759DF - ((y * y + 1).view(torch.int32) >> 1)).view(torch.float32) * 2"]
    return rows


def moves_of(name: str) -> list[str]:
    """What people do with a type that no kernel knows, beside kernels."""
    kind = f"torch.{name}"
    rows = [
        f"y.to({kind})", f"y.to({kind}).to(torch.float32) * 2", "x.to(torch.float32) + y",
        "x.clone()", "x.detach()", "x.t()", "x[1:, 2]", "x.reshape(8, 8)", "x.unsqueeze(0)",
        "x.expand(2, 4, 16)", "x.to(torch.float64) * y", "x.to(torch.bfloat16).float()",
        f"torch.zeros(3, 5, dtype={kind})", "torch.empty_like(x).copy_(y.abs())",
        "x.contiguous().view(64)",
        "torch.zeros_like(y).copy_(x)",
    ]  # fmt: skip
    if not name.startswith("float8"):
        rows += [f"torch.full((3, 5), 2, dtype={kind})", f"torch.ones_like(y, dtype={kind})"]
        rows += [
            "torch.where(y > 0, x, x)",
            "torch.cat([x, x], 1)",
            "torch.stack([x, x])",
            "x == x",
        ]
    if "complex" in name:
        rows += [
            "x + y",
            "x * x",
            "x.abs()",
            "torch.view_as_real(x).sum(-1)",
            "x.sum()",
            "x.mean(0)",
        ]
        rows += ["torch.exp(x) * y", "x.conj() * 2", "x.real.relu()", "x @ x.t()", "x / (y + 40)"]
    return rows


def nans_of(name: str) -> list[str]:
    """Not-a-numbers that are moved, or chosen, before their bits are read."""
    rows = [
        "x.t().contiguous()",
        "x.clone()",
        "torch.where(y > 0, x, 0.5)",
        "x[:, 1:].t().contiguous()",
    ]
    rows += ["torch.where(y > 0, x, x.t().reshape(4, 16))", "torch.where(y[:2] > 0, x[2:], x[:2])"]
    return [f"({row}).view(torch.{to})" for row in rows for to in ("int16", "int8")]


ROWS = {
    **{f"nans_{name}": (name, nans_of(name)) for name in ("float16", "bfloat16")},
    **{f"bits_{name}": (name, views_of(name)) for name in NAMES},
    **{f"moves_{name}": (name, moves_of(name)) for name in ODD},
}


def problem(name: str, folder: Path) -> Path:
    path = folder / f"{name}.py"
    text = MODEL.format(inputs=drawn(name), results=",\n            ".join(allowed(name)))
    path.write_text(text, encoding="utf-8")
    return path


def drawn(name: str) -> str:
    """The input of a row."""
    kind = ROWS[name][0]
    text = NANS if name.startswith("nans") else DRAWN
    return text.format(count=64 * OF[kind].itemsize, below=2 if kind == "bool" else 50, kind=kind)


def allowed(name: str) -> list[str]:
    """The results of a row that eager itself has on this machine."""
    rows = ROWS[name][1]
    scope: dict[str, object] = {"torch": torch}
    scope["x"] = eval(drawn(name), scope)
    scope["y"] = torch.arange(64.0).reshape(4, 16) - 20
    return [row for row in rows if _runs(row, scope)]


def _runs(row: str, scope: dict[str, object]) -> bool:
    try:
        eval(row, scope)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("bits")
    return {name: prepare(problem(name, folder)) for name in ROWS}


@pytest.fixture(scope="module")
def emitted(
    cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[torch.Tensor]]:
    modules = build(list(cases.values()), tmp_path_factory.mktemp("emitted"))
    results = {}
    for (name, case), module in zip(cases.items(), modules, strict=True):
        new = module.ModelNew()
        assert ready(new, case.inputs), name
        results[name] = list(new(*case.inputs))
    return results


@pytest.mark.compiler
@pytest.mark.parametrize("name", list(ROWS))
def test_every_bit_is_eagers(
    name: str, cases: dict[str, Case], emitted: dict[str, list[torch.Tensor]]
) -> None:
    eager = cases[name].model(*cases[name].inputs)
    rows = allowed(name)
    assert len(rows) > len(ROWS[name][1]) // 3
    triples = zip(rows, emitted[name], eager, strict=True)
    wrong = [row for row, ours, theirs in triples if not same_bits(ours, theirs)]
    assert not wrong


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if (ours.shape, ours.dtype, ours.stride()) != (theirs.shape, theirs.dtype, theirs.stride()):
        return False
    a, b = (t.resolve_conj().contiguous().view(-1).view(torch.uint8) for t in (ours, theirs))
    if torch.equal(a, b):
        return True
    # Transcendental functions and sums of complex numbers, NaN whatever its bits.
    return ours.is_floating_point() and torch.allclose(
        ours.double(), theirs.double(), 1e-6, 0, True
    )


@pytest.mark.parametrize("name", list(ROWS))
def test_outputs_show_the_memory_that_eagers_show(name: str, cases: dict[str, Case]) -> None:
    """A view of an input is one in the graph, too, and what eager computes is not."""
    outputs = cases[name].made.captured.graph.outputs
    plain = [f"x.view(torch.{to})" for to in NAMES]
    for row, n in zip(allowed(name), outputs, strict=True):
        if row in plain:
            assert memory(n).op == "input", row
        elif row.startswith("(x + 1)"):
            assert memory(n).op in ("add", "copy"), row  # every call of eager makes its own


def memory(n: Node) -> Node:
    n = base(n)
    shows = n.op == "library" and not n.call.new_memory and len(n.args) == 1
    return memory(n.args[0]) if shows else n


@pytest.mark.parametrize("name", [n for n in ROWS if n.startswith("bits_") and n[5:] in COUNTS])
def test_bits_of_one_width_are_read_in_kernels(name: str, cases: dict[str, Case]) -> None:
    """What a kernel computes is not stored for it; other widths are visible calls."""
    kind = ROWS[name][0]
    outputs = cases[name].made.captured.graph.outputs
    for row, n in zip(allowed(name), outputs, strict=True):
        if row.startswith("(x + 3)"):
            to = row.split("view(torch.")[1].split(")")[0]
            fused = OF[to].itemsize == OF[kind].itemsize
            assert ("library" in {m.op for m in toposort([n])}) is not fused, row


def test_kernels_have_a_name_for_each_of_their_types() -> None:
    assert set(TYPES) == OF_KERNELS


# ---- overloads -----------------------------------------------------------------------------------

# Overloads that take a tensor and that no lowering writes: why.
ELSEWHERE = {
    "view.dtype": "reads bits; rewrite/bit_views.py",
    "round.decimals": "scales and rounds",
    "where.default": "finds positions, as many as there are",
    **dict.fromkeys(("eq.Tensor_list", "ne.Tensor_list", "copy.Dict_Tensor"), "TorchScript's"),
    "split.default": "TorchScript's",
}


def overloads(name: str) -> list[str]:
    """The overloads of an ATen name that take a tensor, make a new result, and can be exported."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten."))
    found = []
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        kinds = [str(a.type) for a in schema.arguments]
        plain = not any(
            a.is_out or (a.alias_info and a.alias_info.is_write) for a in schema.arguments
        )
        named = any("Dimname" in k or k in ("str", "List[str]") for k in kinds)
        named = named or "names" in overload
        if plain and not named and any("Tensor" in k for k in kinds):
            found.append(overload)
    return found


@pytest.mark.parametrize("name", list(LOWER))
def test_a_lowering_knows_each_of_its_overloads(name: str) -> None:
    known, there = set(OVERLOADS.get(name, ONLY_DEFAULT)), set(overloads(name))
    assert known <= {*there, "default"}, "an overload that PyTorch does not have"
    assert there - known <= {
        k.split(".")[1] for k in ELSEWHERE if f"aten.{k}".startswith(f"{name}.")
    }


@pytest.mark.parametrize("kind", ["int", "long"])
def test_the_least_integer_is_a_number_of_its_type(kind: str) -> None:
    least = -(1 << (31 if kind == "int" else 63))
    text = cxx_literal(least, kind)
    assert eval(text.replace("L", "")) == least
    assert str(-least) not in text
