"""Random problem files: chains of supported operators on random shapes and types.

`program(seed)` is the text of a problem: the same text for the same seed. A value is a variable of
known shape and of the program's type; each statement takes old values and makes a new one, so that
reuse, several outputs, broadcasts, views between steps and folds at any place come about by
themselves. `large` ones have shapes for which GPUs have forms of their own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fuzz_operators import CHANGES, KINDS

SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 24, 31, 33)
# Many rows and few, short and long, odd ones too; images; rows that lie across memory.
LARGE = (
    *((1, 1 << 20), (2, 700_001), (4, 1 << 19), (7, 200_000), (16, 131_072), (64, 40_000)),
    *((128, 33_000), (300, 10_000), (257, 4097), (512, 5000), (1024, 1000), (4096, 256)),
    *((100_000, 17), (65_536, 32), (40_001, 64), (16, 64, 1024), (3, 512, 1500), (8, 33, 4096)),
    *((16, 32, 48, 48), (4, 64, 96, 96), (64, 128, 14, 14), (2, 8, 256, 257), (128, 16, 33, 33)),
    *((1_500_000,), (8, 100_000, 3), (1000, 2, 1000), (32, 12, 64, 65)),
)
DTYPES = ("torch.float32",) * 6 + ("torch.float64", "torch.float16", "torch.bfloat16")
INTEGERS = ("torch.int64", "torch.int32", "torch.uint8")
# Functions whose slope is modest everywhere, so that errors do not grow without bound.
UNARY = (
    *("torch.tanh({0})", "torch.sigmoid({0})", "torch.sin({0})", "torch.relu({0})", "{0}.abs()"),
    *("torch.erf({0})", "F.gelu({0})", "F.silu({0})", "F.softplus({0})", "F.elu({0})", "-{0}"),
    *("F.leaky_relu({0}, 0.1)", "F.hardswish({0})", "F.mish({0})", "torch.exp(-{0}.abs())"),
    *("torch.log1p({0}.abs())", "torch.sqrt({0}.abs() + 0.1)", "torch.clamp({0}, -0.7, 0.9)"),
    *(
        "{0} * 0.5",
        "{0} + 1.5",
        "2.0 - {0}",
        "{0} / 4",
        "{0} / 3.0",
        "torch.rsqrt({0}.abs() + 0.5)",
    ),
    *("torch.where({0} > 0.2, {0}, 0.3)", "{0}.masked_fill({0} < 0, 0.1)", "{0}.clone()"),
)
BINARY = (
    *("{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})"),
    *("{0} * torch.tanh({1})", "{0} / ({1}.abs() + 1)", "torch.where({0} > {1}, {0}, 0.5)"),
    *("torch.lerp({0}, {1}, 0.25)", "torch.addcmul({0}, torch.tanh({1}), torch.tanh({0}))"),
)
FOLDS = ("sum", "mean", "amax", "amin", "logsumexp", "norm", "var")
HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
"""
TAIL = """


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@dataclass
class _Writer:
    """The program so far. shapes: of each variable."""

    rng: random.Random
    dtype: str
    large: bool = False
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def most(self) -> int:
        """How many elements a result may have."""
        return 4_000_000 if self.large else 20_000

    def new(self, text: str, shape: tuple[int, ...]) -> None:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.shapes[name] = shape

    def pick(self) -> str:
        """Mostly a late value, so that chains come about."""
        names = list(self.shapes)
        return names[-1] if self.rng.random() < 0.6 else self.rng.choice(names)

    def parameter(self, shape: tuple[int, ...]) -> str:
        name = f"p{len(self.parameters)}"
        dims = ", ".join(map(str, shape))
        comma = "," if len(shape) == 1 else ""
        values = f"torch.randn(({dims}{comma})).to({self.dtype})"
        self.parameters.append(f"self.{name} = nn.Parameter({values})")
        return f"self.{name}"


def program(seed: int, *, large: bool = False) -> str:
    """The text of one random problem."""
    rng = random.Random(seed)
    writer = _Writer(rng, rng.choice(DTYPES), large)
    inputs = _inputs(writer)
    for _ in range(rng.randint(2, 12)):
        rng.choice(LARGE_STEPS if large else STEPS)(writer)
    made = [n for n in writer.shapes if n.startswith("v")] or list(writer.shapes)
    wanted = sorted({made[-1], *rng.sample(made, min(len(made), rng.choice((0, 0, 1, 2))))})
    body = [f"        {line}" for line in [*writer.lines, f"return {', '.join(wanted)}"]]
    init = ["    def __init__(self):", "        super().__init__()"]
    init += [f"        {p}" for p in writer.parameters]
    forward = ["", f"    def forward(self, {', '.join(writer.given)}):", *body]
    return HEAD + "\n".join([*init, *forward]) + TAIL.format(inputs=", ".join(inputs))


def _inputs(w: _Writer) -> list[str]:
    """One to three tensors whose shapes broadcast with each other."""
    drawn = tuple(w.rng.choice(SIZES) for _ in range(w.rng.randint(1, 4)))
    shape = w.rng.choice(LARGE) if w.large else drawn
    texts = []
    for k in range(w.rng.choice((1, 1, 2, 3))):
        own = shape if k == 0 else _narrowed(w.rng, shape)
        w.shapes[f"x{k}"] = own
        w.given.append(f"x{k}")
        scale = w.rng.choice(("", " * 3", " + 2"))
        order = w.rng.sample(range(len(own)), len(own)) if w.rng.random() < 0.15 else []
        laid = tuple(own[d] for d in order) or own
        turn = (
            f".permute({', '.join(str(order.index(d)) for d in range(len(own)))})" if order else ""
        )
        texts.append(f"(torch.randn({laid}){scale}).to({w.dtype}){turn}")
    if (kind := w.rng.choice(("", "", "", "", "int", "bool"))) != "":
        texts.append(_other_type(w, kind, _narrowed(w.rng, shape)))
    return texts


def _other_type(w: _Writer, kind: str, shape: tuple[int, ...]) -> str:
    """An input of integers or truth values, and the first statement, which reads it."""
    name, x = f"x{len(w.given)}", "x0"
    w.given.append(name)
    if kind == "int":
        w.new(f"{name}.to(x0.dtype) * 0.5", shape)
        dtype = w.rng.choice(INTEGERS)
        return f"torch.randint({0 if 'uint8' in dtype else -4}, 5, {shape}, dtype={dtype})"
    w.new(f"torch.where({name}, {x}, {x} * 0.5)", w.shapes[x])
    return f"torch.rand({shape}) > 0.5"


def _narrowed(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    sizes = tuple(1 if rng.random() < 0.3 else s for s in shape)
    return sizes[rng.choice((0, 0, 1)) :] if len(sizes) > 1 else sizes


def _unary(w: _Writer) -> None:
    x = w.pick()
    w.new(w.rng.choice(UNARY).format(x), w.shapes[x])


def _binary(w: _Writer) -> None:
    x = w.pick()
    others = [n for n, s in w.shapes.items() if _joined(w.shapes[x], s) is not None]
    y = w.rng.choice(others)
    shape = _joined(w.shapes[x], w.shapes[y])
    assert shape is not None
    if _size(shape) <= w.most:
        w.new(w.rng.choice(BINARY).format(x, y), shape)


def _with_parameter(w: _Writer) -> None:
    x = w.pick()
    if w.shapes[x]:
        y = w.parameter(_narrowed(w.rng, w.shapes[x]))
        w.new(w.rng.choice(BINARY).format(x, y), w.shapes[x])


def _fold(w: _Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if not shape:
        return
    count = w.rng.randint(1, len(shape))
    dims = (
        list(range(len(shape)))[-count:] if w.rng.random() < 0.7 else [w.rng.randrange(len(shape))]
    )
    keep = w.rng.random() < 0.6
    op = w.rng.choice(FOLDS)
    if op == "var" and _size(tuple(shape[d] for d in dims)) < 2:
        op = "mean"
    function = f"torch.linalg.vector_norm({x}, " if op == "norm" else f"{x}.{op}("
    text = f"{function}dim=({', '.join(map(str, dims))},), keepdim={keep})"
    kept = tuple(1 if d in dims else s for d, s in enumerate(shape) if keep or d not in dims)
    w.new(text, kept)


def _normalise(w: _Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if len(shape) < 2 or _size(shape[1:]) < 2:
        return
    texts = [f"torch.softmax({x}, dim={w.rng.randrange(-1, len(shape))})"]
    texts += [f"torch.log_softmax({x}, dim=-1)", f"{x} - {x}.mean(-1, keepdim=True)"]
    texts += [f"{x} / ({x}.abs().amax(dim=-1, keepdim=True) + 0.5)"]
    if shape[-1] > 1:
        texts += [f"F.layer_norm({x}, ({shape[-1]},))"] * 2
    texts += [f"F.layer_norm({x}, {shape[1:]})"]
    groups = [g for g in (1, 2, 3, 4) if shape[1] % g == 0 and _size(shape[1:]) // g > 1]
    texts += [f"F.group_norm({x}, {g}, eps=1e-2)" for g in groups]
    if shape[0] * _size(shape[2:]) > 1 and len(shape) > 2:
        texts += [f"F.batch_norm({x}.contiguous(), None, None, training=True, eps=1e-2)"]
    w.new(w.rng.choice(texts), shape)


def _view(w: _Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if not shape:
        return
    w.rng.choice(VIEWS)(w, x, shape)


def _permute(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    order = w.rng.sample(range(len(shape)), len(shape))
    w.new(f"{x}.permute({', '.join(map(str, order))})", tuple(shape[d] for d in order))


def _flatten(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    start = w.rng.randrange(len(shape))
    w.new(f"{x}.flatten({start})", (*shape[:start], _size(shape[start:])))


def _split(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randrange(len(shape))
    factors = [f for f in range(1, shape[d] + 1) if shape[d] % f == 0]
    f = w.rng.choice(factors)
    new = (*shape[:d], f, shape[d] // f, *shape[d + 1 :])
    if len(new) <= 5:
        w.new(f"{x}.reshape({new})", new)


def _unsqueeze(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randint(0, len(shape))
    if len(shape) < 4:
        w.new(f"{x}.unsqueeze({d})", (*shape[:d], 1, *shape[d:]))


def _expand(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    wide = tuple(w.rng.choice((1, 3, 5)) if s == 1 else s for s in shape)
    if _size(wide) <= w.most:
        w.new(f"{x}.expand({wide})", wide)


def _narrow(w: _Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randrange(len(shape))
    length = w.rng.randint(1, shape[d])
    w.new(f"{x}.narrow({d}, {shape[d] - length}, {length})", (*shape[:d], length, *shape[d + 1 :]))


def _linear(w: _Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if shape:
        wide = w.rng.choice((1, 4, 7, 12, *(64, 96, 130, 256) * w.large))
        if _size(shape[:-1]) * wide > w.most or wide * shape[-1] > w.most:
            return
        weight = w.parameter((wide, shape[-1]))
        w.new(f"F.linear({x}, {weight} * {1 / shape[-1] ** 0.5:.3f})", (*shape[:-1], wide))


def _operator(w: _Writer) -> None:
    """A line of the tables, unless PyTorch refuses it for this shape."""
    x = w.pick()
    s, known = w.shapes[x], len(w.parameters)
    words = {"x": x, "y": w.rng.choice([n for n, other in w.shapes.items() if other == s])}
    words |= {"i": "x0", "k": str(w.rng.randint(1, 3)), "t": "x0.dtype"}
    words["d"] = str(w.rng.randrange(len(s))) if s else "0"
    text = w.rng.choice(w.rng.choice(KINDS)).format(**words)
    try:
        text = re.sub(r"\bP\(([^()]*)\)", lambda p: w.parameter(_sizes(p.group(1), s)), text)
        text = re.sub(r"\*?\bs\b(\[[^]]*\])?", lambda p: _number(p.group(), s), text)
        shape = _shape_of(w, text)
    except (RuntimeError, IndexError, ValueError, NotImplementedError, AssertionError):
        shape = (0,)
    if len(shape) > 5 or not 0 < _size(shape) <= w.most:
        del w.parameters[known:]
        return
    w.new(text, shape)


def _sizes(text: str, s: tuple[int, ...]) -> tuple[int, ...]:
    sizes: tuple[int, ...] = eval(f"({text},)", {"s": s})
    if _size(sizes) > 1 << 22:
        raise ValueError(sizes)
    return sizes


def _number(text: str, s: tuple[int, ...]) -> str:
    if text.startswith("*"):
        return ", ".join(map(str, s))
    return str(eval(text, {"s": s}))


def _shape_of(w: _Writer, text: str) -> tuple[int, ...]:
    """The shape that PyTorch finds; nothing is computed."""
    dtype = getattr(torch, w.dtype.removeprefix("torch."))

    def empty(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    class Self:
        pass

    for line in w.parameters:
        name, sizes = re.findall(r"self\.(\w+) = .*?randn\((\(.*?\))\)", line)[0]
        setattr(Self, name, empty(eval(sizes)))
    scope = {"torch": torch, "F": F, "self": Self, **{n: empty(s) for n, s in w.shapes.items()}}
    result = eval(text, scope)
    if result.dtype is not dtype:
        raise ValueError(result.dtype)
    return tuple(result.shape)


def _turned(w: _Writer) -> None:
    """A map that reads across what it writes."""
    x = w.pick()
    s = w.shapes[x]
    if len(s) > 1:
        d = w.rng.randrange(len(s) - 1)
        new = (*s[:d], s[-1], *s[d + 1 : -1], s[d])
        w.new(f"(torch.tanh({x}).transpose({d}, -1)).contiguous() * 0.5", new)


def _in_place(w: _Writer) -> None:
    x = w.pick()
    if len(w.shapes[x]) < 2:
        return
    w.new(f"{x}.clone().contiguous()", w.shapes[x])
    name = list(w.shapes)[-1]
    w.lines.append(f"{name}{w.rng.choice(CHANGES).format(x=x)}")


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The broadcast shape, if there is one."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    sizes = [(x, y) for x, y in pairs]
    if any(x != y and 1 not in (x, y) for x, y in sizes):
        return None
    return tuple(max(x, y) for x, y in sizes)


def _size(shape: Sequence[int]) -> int:
    total = 1
    for s in shape:
        total *= s
    return total


VIEWS: tuple[Callable[[_Writer, str, tuple[int, ...]], None], ...] = (
    _permute, _permute, _flatten, _split, _split, _unsqueeze, _expand, _narrow,
)  # fmt: skip
STEPS: tuple[Callable[[_Writer], None], ...] = (
    _unary, _unary, _unary, _binary, _binary, _with_parameter, _fold, _fold, _normalise, _normalise,
    _view, _view, _linear, *(_operator,) * 7, _in_place,
)  # fmt: skip
# Rows that are kept and read again, and tensors that are turned, more often.
LARGE_STEPS = (*STEPS, *(_normalise,) * 7, *(_fold,) * 2, *(_unary,) * 2, *(_turned,) * 2)
