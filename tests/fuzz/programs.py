"""Random problem files: chains of supported operators on random shapes and types.

`program(seed)` is the text of a problem: the same text for the same seed. A value is a variable of
known shape and of the program's type; each statement takes old values and makes a new one, so that
reuse, several outputs, broadcasts, views between steps and reductions at any place come about by
themselves. `large` ones have shapes for which GPUs have forms of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fuzz import kinds as fuzz_kinds
from tests.fuzz.operators import CHANGES, KINDS
from tests.fuzz.writer import LARGE, SIZES, Facts, Writer, joined, narrowed, size

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
REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "norm", "var")
HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F

"""
TAIL = """

def get_inputs():
{before}    return [{inputs}]
"""


def program(seed: int, *, large: bool = False, kind: str | None = None) -> str:
    """The text of one random problem. kind: of `fuzz_kinds.KINDS` or "plain"; else one is drawn."""
    kind = kind or random.Random(f"kind of {seed}").choice(DRAWN)
    rng = random.Random(seed)
    chosen = fuzz_kinds.KINDS.get(kind)
    writer = Writer(rng, rng.choice(chosen.dtypes if chosen else DTYPES), large)
    _inputs(writer)
    if chosen is None:
        for _ in range(rng.randint(2, 12)):
            rng.choice(LARGE_STEPS if large else STEPS)(writer)
    else:
        chosen.begin(writer)
        for _ in range(rng.randint(1, 4)):
            for _ in range(rng.choice((0, 0, 1, 2)) if chosen.between else 0):
                rng.choice(STEPS)(writer)
            chosen.step(writer)
        for _ in range(rng.choice((0, 0, 1, 3)) if chosen.between else 0):
            rng.choice(STEPS)(writer)
    return _text(writer, kind)


def _text(w: Writer, kind: str) -> str:
    """The file."""
    made = [n for n in w.shapes if n.startswith("v")] or list(w.shapes)
    wanted = sorted({made[-1], *w.rng.sample(made, min(len(made), w.rng.choice((0, 0, 1, 2))))})
    wanted = [*([] if w.answers and w.rng.random() < 0.3 else wanted), *w.answers]
    result, leaves = fuzz_kinds.returned(w, kind, wanted)
    exact = tuple(k for k, e in enumerate(leaves) if e)
    facts = Facts(kind, exact, w.float64, w.refused)
    body = [f"        {line}" for line in [*w.lines, f"return {result}"]]
    init = [f"    def __init__({w.construct[0]}):", "        super().__init__()"]
    init += [f"        {line}" for line in [*w.parameters, *w.setup]]
    signature = w.signature or ", ".join(w.given)
    forward = ["", f"    def forward(self, {signature}):", *body]
    top = [HEAD, *(f"{text}\n\n" for text in w.top), "class Model(nn.Module):"]
    before = "".join(f"    {line}\n" for line in w.before)
    tail = TAIL.format(before=before, inputs=", ".join(w.inputs))
    if w.construct[1]:
        tail += f"\n\ndef get_init_inputs():\n    return {w.construct[1]}\n"
    mark = "" if facts == Facts() else f"\n\n{facts}\n"
    return "\n".join([*top, *init, *forward]) + "\n" + tail + mark


def _inputs(w: Writer) -> None:
    """One to three tensors whose shapes broadcast with each other."""
    drawn = tuple(w.rng.choice(SIZES) for _ in range(w.rng.randint(1, 4)))
    shape = w.rng.choice(LARGE) if w.large else drawn
    for k in range(w.rng.choice((1, 1, 2, 3))):
        own = shape if k == 0 else narrowed(w.rng, shape)
        scale = w.rng.choice(("", " * 3", " + 2"))
        order = w.rng.sample(range(len(own)), len(own)) if w.rng.random() < 0.15 else []
        laid = tuple(own[d] for d in order) or own
        turn = (
            f".permute({', '.join(str(order.index(d)) for d in range(len(own)))})" if order else ""
        )
        w.given_as(f"(torch.randn({laid}){scale}).to({w.dtype}){turn}", own)
    if (kind := w.rng.choice(("", "", "", "", "int", "bool"))) != "":
        _other_type(w, kind, narrowed(w.rng, shape))


def _other_type(w: Writer, kind: str, shape: tuple[int, ...]) -> None:
    """An input of integers or truth values, and the first statement, which reads it."""
    if kind == "int":
        dtype = w.rng.choice(INTEGERS)
        low = 0 if "uint8" in dtype else -4
        name = w.given_as(f"torch.randint({low}, 5, {shape}, dtype={dtype})")
        w.new(f"{name}.to(x0.dtype) * 0.5", shape)
    else:
        name = w.given_as(f"torch.rand({shape}) > 0.5")
        w.new(f"torch.where({name}, x0, x0 * 0.5)", w.shapes["x0"])


def _unary(w: Writer) -> None:
    x = w.pick()
    w.new(w.rng.choice(UNARY).format(x), w.shapes[x])


def _binary(w: Writer) -> None:
    x = w.pick()
    others = [n for n, s in w.shapes.items() if joined(w.shapes[x], s) is not None]
    y = w.rng.choice(others)
    shape = joined(w.shapes[x], w.shapes[y])
    assert shape is not None
    if size(shape) <= w.most:
        w.new(w.rng.choice(BINARY).format(x, y), shape)


def _with_parameter(w: Writer) -> None:
    x = w.pick()
    if w.shapes[x]:
        y = w.parameter(narrowed(w.rng, w.shapes[x]))
        w.new(w.rng.choice(BINARY).format(x, y), w.shapes[x])


def _reduction(w: Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if not shape:
        return
    count = w.rng.randint(1, len(shape))
    dims = (
        list(range(len(shape)))[-count:] if w.rng.random() < 0.7 else [w.rng.randrange(len(shape))]
    )
    keep = w.rng.random() < 0.6
    op = w.rng.choice(REDUCTIONS)
    if op == "var" and size(tuple(shape[d] for d in dims)) < 2:
        op = "mean"
    function = f"torch.linalg.vector_norm({x}, " if op == "norm" else f"{x}.{op}("
    text = f"{function}dim=({', '.join(map(str, dims))},), keepdim={keep})"
    kept = tuple(1 if d in dims else s for d, s in enumerate(shape) if keep or d not in dims)
    w.new(text, kept)


def _normalise(w: Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if len(shape) < 2 or size(shape[1:]) < 2:
        return
    texts = [f"torch.softmax({x}, dim={w.rng.randrange(-1, len(shape))})"]
    texts += [f"torch.log_softmax({x}, dim=-1)", f"{x} - {x}.mean(-1, keepdim=True)"]
    texts += [f"{x} / ({x}.abs().amax(dim=-1, keepdim=True) + 0.5)"]
    if shape[-1] > 1:
        texts += [f"F.layer_norm({x}, ({shape[-1]},))"] * 2
    texts += [f"F.layer_norm({x}, {shape[1:]})"]
    groups = [g for g in (1, 2, 3, 4) if shape[1] % g == 0 and size(shape[1:]) // g > 1]
    texts += [f"F.group_norm({x}, {g}, eps=1e-2)" for g in groups]
    if shape[0] * size(shape[2:]) > 1 and len(shape) > 2:
        texts += [f"F.batch_norm({x}.contiguous(), None, None, training=True, eps=1e-2)"]
    w.new(w.rng.choice(texts), shape)


def _view(w: Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if not shape:
        return
    w.rng.choice(VIEWS)(w, x, shape)


def _permute(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    order = w.rng.sample(range(len(shape)), len(shape))
    w.new(f"{x}.permute({', '.join(map(str, order))})", tuple(shape[d] for d in order))


def _flatten(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    start = w.rng.randrange(len(shape))
    w.new(f"{x}.flatten({start})", (*shape[:start], size(shape[start:])))


def _split(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randrange(len(shape))
    factors = [f for f in range(1, shape[d] + 1) if shape[d] % f == 0]
    f = w.rng.choice(factors)
    new = (*shape[:d], f, shape[d] // f, *shape[d + 1 :])
    if len(new) <= 5:
        w.new(f"{x}.reshape({new})", new)


def _unsqueeze(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randint(0, len(shape))
    if len(shape) < 4:
        w.new(f"{x}.unsqueeze({d})", (*shape[:d], 1, *shape[d:]))


def _expand(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    wide = tuple(w.rng.choice((1, 3, 5)) if s == 1 else s for s in shape)
    if size(wide) <= w.most:
        w.new(f"{x}.expand({wide})", wide)


def _narrow(w: Writer, x: str, shape: tuple[int, ...]) -> None:
    d = w.rng.randrange(len(shape))
    length = w.rng.randint(1, shape[d])
    w.new(f"{x}.narrow({d}, {shape[d] - length}, {length})", (*shape[:d], length, *shape[d + 1 :]))


def _linear(w: Writer) -> None:
    x = w.pick()
    shape = w.shapes[x]
    if shape:
        wide = w.rng.choice((1, 4, 7, 12, *(64, 96, 130, 256) * w.large))
        if size(shape[:-1]) * wide > w.most or wide * shape[-1] > w.most:
            return
        weight = w.parameter((wide, shape[-1]))
        w.new(f"F.linear({x}, {weight} * {1 / shape[-1] ** 0.5:.3f})", (*shape[:-1], wide))


def _operator(w: Writer) -> None:
    """A line of the tables, unless PyTorch refuses it for this shape."""
    x = w.pick()
    words = w.words(x)
    found = w.filled(w.rng.choice(w.rng.choice(KINDS)), words)
    if found and (shape := w.takes(found[1])) is not None:
        w.new(found[0], shape)


def _turned(w: Writer) -> None:
    """A map that reads across what it writes."""
    x = w.pick()
    s = w.shapes[x]
    if len(s) > 1:
        d = w.rng.randrange(len(s) - 1)
        new = (*s[:d], s[-1], *s[d + 1 : -1], s[d])
        w.new(f"(torch.tanh({x}).transpose({d}, -1)).contiguous() * 0.5", new)


def _in_place(w: Writer) -> None:
    x = w.pick()
    if len(w.shapes[x]) < 2:
        return
    w.new(f"{x}.clone().contiguous()", w.shapes[x])
    name = list(w.shapes)[-1]
    w.lines.append(f"{name}{w.rng.choice(CHANGES).format(x=x)}")


VIEWS: tuple[Callable[[Writer, str, tuple[int, ...]], None], ...] = (
    _permute, _permute, _flatten, _split, _split, _unsqueeze, _expand, _narrow,
)  # fmt: skip
STEPS: tuple[Callable[[Writer], None], ...] = (
    _unary, _unary, _unary, _binary, _binary, _with_parameter, _reduction, _reduction, _normalise,
    _normalise, _view, _view, _linear, *(_operator,) * 7, _in_place,
)  # fmt: skip
# Rows that are kept and read again, and tensors that are turned, more often.
LARGE_STEPS = (*STEPS, *(_normalise,) * 7, *(_reduction,) * 2, *(_unary,) * 2, *(_turned,) * 2)
# A third is plain, the others are of kinds.
DRAWN = ("plain",) * (len(fuzz_kinds.KINDS) // 2) + tuple(fuzz_kinds.KINDS)
