"""What lies how in memory: a table of models whose results have strides that are easy to lose."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fusewright.frontend.capture import _order, capture
from fusewright.frontend.export import export
from fusewright.ir.graph import BatchSize
from tests.support.agreement import disagreements, moved
from tests.support.compiled import Case, build, prepare
from tests.support.graphs import staged

# Name -> the statements of forward. x is 6 x 4 x 5 x 3 and p a permuted one of its shape; m is
# 7 x 5, t is 7 x 5 column by column, e is expanded, c is an image whose channels lie innermost.
MODELS = {
    "one value, seen twice": "v = m.abs(); w = torch.minimum(v, v); return w, v.mT",
    "nothing changed": "return (t * 1.0).mT, -(-m.mT), (e / 1.0).sum(0)",
    "a piece, changed by nothing": "return m[:, 1:4] * 1.0, torch.minimum(t[1:], t[1:])",
    "a piece of a copy": "v = m.clone(); return v[:, 1:4], (v * 1.0)[1:].mT",
    "maps": "return torch.sin(t), t + 1, m + t, t + m, t.exp() + m[0]",
    "maps of two permuted": "v = p.permute(2, 0, 3, 1); return v + v.sin(), p * x, x * p, p - p[0]",
    "maps that cast": "return t.double() + 1, (t > 0), torch.where(t > 0, t, m), t.half()",
    "numbers of one": "return m[:, :1] + 1, t[:1] * 2, x.permute(3, 1, 0, 2)[:, :1].sin()",
    "broadcasts": "return t + m[:1], t[:, None] + m[None, :1], e + 1, e * m[0, 0], e.sin() + e",
    "reductions": "return t.sum(0), p.sum(1), p.mean((0, 2), keepdim=True), p.amax(3).mT, "
    "p.sum(0) + 1",
    "reductions, kept": "return p.amax(1, keepdim=True) * p, x.permute(3, 1, 0, 2).sum(-1)",
    "softmax": "return t.softmax(0), p.softmax(1), torch.log_softmax(t, -1), t.mT.softmax(-1)",
    "norms": "return F.layer_norm(p, (3,)), F.group_norm(p, 2), F.instance_norm(p)",
    "batch norm": "return F.batch_norm(c, None, None, training=True), "
    "F.batch_norm(x, c[0, :, 0, 0], c[0, :, 1, 1].abs())",
    "channels last": "return c.relu(), c + c[0], F.group_norm(c, 2), c.mean((2, 3), keepdim=True)",
    "channels last, called": "return F.max_pool2d(c, 2) + 1, F.avg_pool2d(c.sin(), 2), "
    "F.pad(c, (1, 1)), F.interpolate(c, scale_factor=2), c.flatten(2).relu(), "
    "F.pixel_shuffle(c, 2)",
    "convolution": "w = x[:, :, :3, :3]; return F.conv2d(c, w).relu(), F.conv2d(x, w) + 1, "
    "F.conv_transpose2d(c, w.transpose(0, 1)).tanh()",
    "convolutions, channels last": "w = x[:, :, :3, :3]; v = c[:, :, None].expand(6, 4, 3, 8, 8); "
    "v = v.contiguous(memory_format=torch.channels_last_3d); return F.conv2d(c, w).relu(), "
    "F.conv2d(c, w) + 1, F.conv3d(v, w[:, :, None]).relu(), "
    "F.max_pool3d(F.conv3d(v, w[:, :, None]), 2)",
    "products": "return (m @ t.mT).mT, (m @ t.mT).mT.relu(), F.linear(t, m), "
    "(t @ m.mT).T + m[:, :1], "
    "torch.einsum('ij,kj->ki', m, t) * 2",
    "products of many": "return x @ p.mT, (x @ p.mT).mT.sin(), torch.bmm(x[0], p[0].mT) + 1, "
    "torch.matmul(p.permute(0, 2, 1, 3), m[:3, 0]), F.linear(p, m[:, :3]).relu()",
    "joined": "return torch.cat([t, t]), torch.cat([t, m], 1), torch.stack([t, t]), "
    "torch.cat([p, p], 2) + 1, torch.cat([c, c.relu()], 1), torch.stack([t, m], -1).sin()",
    "moved": "return t.flip(0), t.roll(1, 0) * 2, p.flip(1).sin(), torch.tril(t), "
    "F.pad(t, (1, 2)), t.repeat(2, 1), torch.roll(p, 2, 3)",
    "scans": "return t.cumsum(0), t.cumsum(1) + 1, p.cumsum(2), torch.cumprod(t, 0).mT",
    "views": "v = p.sin(); return v.flatten(1), v.reshape(-1, 3), v.mT.contiguous(), "
    "v.permute(3, 1, 2, 0)",
    "kept as they lie": "return t.clone(), p.contiguous() + 1, torch.empty_like(t).fill_(2), "
    "torch.zeros_like(p) + p, torch.full_like(t, 3) * t, e.clone(), m[:, ::2].clone()",
    "chosen": "return t.argmax(0), t.max(1)[0], t.max(0)[1], t.topk(2, 0)[0], t.sort(0)[0] + 1, "
    "t.masked_fill(t > 0, 1), t.mT.masked_fill(m.mT > 0, 1)",
    "pieces": "a, b = t.chunk(2, 1); return a + 1, b * a[:, :2], m[::2].sin(), m[:, ::2] * 2, "
    "m.unfold(1, 2, 1) + 1, m.diagonal() * 2, x[:, 1:3, ::2] + 1",
    "losses": "return F.mse_loss(t, m, reduction='none'), "
    "F.smooth_l1_loss(t, m, reduction='none'), "
    "F.huber_loss(t, t.sin(), reduction='none')",
    "in place": "v = t.clone(); v.add_(1); w = v.relu_(); u = m.clone(); u[1:, 2:].mul_(3); "
    "return w.mT, u",
}  # fmt: skip
TEXT = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, p, m, t, e, c):
        {lines}


def get_inputs():
    x, p = torch.randn(6, 4, 5, 3), torch.randn(3, 6, 4, 5).permute(1, 2, 3, 0)
    m, t = torch.randn(7, 5), torch.randn(5, 7).mT
    e, c = torch.randn(7, 1).expand(7, 5), torch.randn(6, 4, 8, 8)
    return [x, p, m, t, e, c.to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
"""


def prepared(name: str, folder: Path) -> Case:
    path = folder / f"layout_{list(MODELS).index(name)}.py"
    path.write_text(TEXT.format(lines="\n        ".join(MODELS[name].split("; "))))
    return prepare(path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is wrong with each model."""
    folder = tmp_path_factory.mktemp("layouts")
    cases = {name: prepared(name, folder) for name in MODELS}
    modules = build(list(cases.values()), folder)
    return {
        name: disagreements(m.ModelNew(), copy.deepcopy(case.model), case.inputs, roundings=8)
        for (name, case), m in zip(cases.items(), modules, strict=True)
    }


@pytest.mark.compiler
@pytest.mark.parametrize("name", MODELS)
def test_results_lie_as_eager_lays_them(name: str, found: dict[str, list[str]]) -> None:
    assert found[name] == []


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((1, 13, 1, 33), (13, 1, 429, 13), (2, 3, 0, 1)),
        ((1, 13, 1, 33), (429, 1, 429, 13), (0, 2, 3, 1)),
        ((2, 3, 1, 4), (12, 1, 12, 3), (0, 2, 3, 1)),
        ((1, 3, 4), (12, 4, 1), ()),
    ],
)
def test_dimensions_of_one_element_keep_their_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """A call of PyTorch asks for them, too, where it takes an image for one that is channels
    last."""
    assert _order(torch.empty_strided(shape, strides)) == order


class Viewed(nn.Module):
    """A convolution of a view that lies channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(4, 6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.movedim(-1, 1)).sigmoid()


@torch.no_grad()
def test_a_convolution_of_a_view_lies_as_eager_lays_it() -> None:
    model, x = Viewed(), torch.randn(3, 5, 6, 7, 4)
    (result,) = staged(model, (x,), lambda g: g, "nothing")[0].outputs
    assert result.order == (0, 2, 3, 4, 1)
    assert model(x).is_contiguous(memory_format=torch.channels_last_3d)


# Calls whose results kernels lay otherwise than PyTorch says of fake tensors, others like
# them, and what reads their results: of x and y, e that is spread over channels, integers k,
# labels h for dimension 1, numbers a and b for each channel, and one number s.
CALLS = (
    *("F.batch_norm(x, a, b)", "F.batch_norm(x, a, b, b, a)", "F.logsigmoid(x)", "2**x"),
    *("F.batch_norm(x, None, None, training=True)", "F.rrelu(x)", "x.roll(1, 1)", "x.sigmoid()"),
    *("torch.isin(x, a)", "F.instance_norm(x)", "torch.pow(x, 2)"),
    "F.binary_cross_entropy(x.sigmoid(), x.sigmoid().contiguous(), reduction='none')",
    "F.batch_norm(x, a.clone(), b.clone(), training=True)",
    *("F.one_hot(k, 9)", "F.one_hot(k, 9)[:, 1] + 1", "F.one_hot(k[:, 0], 9).sum(1)"),
    *("F.channel_shuffle(x, 2)", "F.channel_shuffle(x, 2) + 1", "F.pixel_shuffle(x, 2)"),
    *("F.pixel_unshuffle(x[..., :4, :4], 2)", "F.pixel_shuffle(x[0], 2) + 1"),
    *("F.interpolate(x[:, 0].permute(2, 0, 1), scale_factor=2)", "F.interpolate(x[0], 9) + 1"),
    *("F.interpolate(x.mT, scale_factor=2, mode='bilinear')", "F.interpolate(x, scale_factor=2)"),
    *("F.pad(x, (1, 1, 1, 1), 'reflect')", "F.pad(x, (2, 1, 1, 1), 'replicate') * 2"),
    *("F.pad(x, (1, 1, 1, 1), 'circular')", "F.pad(x, (1, 1))", "F.pad(x[0], (1, 1), 'reflect')"),
    *("F.pad(x[:, None], (1, 1, 1, 1, 0, 0), 'reflect')", "F.pad(x[:, 0], (1, 1), 'replicate')"),
    *("F.max_pool1d(x[0], 2)", "F.max_pool1d(x[:, 0], 2)", "F.max_pool1d(x[0], 2).exp()"),
    *("F.max_pool2d(x, 2)", "F.avg_pool1d(x[:, 0], 2)", "F.adaptive_max_pool1d(x[:, 0], 2)"),
    "F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[2:])",
    *("F.nll_loss(x, h, reduction='none')", "F.cross_entropy(x, h, reduction='none')"),
    "F.nll_loss(x[..., 0], h[..., 0], reduction='none')",
    *("torch.copysign(x, y)", "torch.copysign(x, e)", "torch.copysign(x, s)", "torch.hypot(x, e)"),
    *("torch.floor_divide(x, e)", "x // s", "torch.div(e, x, rounding_mode='floor')", "x // 2"),
    *("torch.div(x, e, rounding_mode='trunc')", "torch.logical_and(x, e)", "torch.logical_not(x)"),
    *("torch.logical_or(e, x)", "torch.logical_xor(x, y)", "torch.heaviside(x, e)", "x.xlogy(e)"),
    *("torch.logaddexp(x, e)", "torch.logaddexp2(e, x)", "torch.ldexp(x, e)", "torch.ldexp(x, y)"),
    *("torch.logical_and(x, e).float() + 1", "torch.remainder(x, e)", "torch.fmod(e, x)"),
    *("torch.maximum(x, e)", "torch.atan2(x, e)", "torch.nextafter(x.float(), e.float())"),
    *(
        "torch.where(x > 0, x, e)",
        "torch.lerp(x, y, e)",
        "torch.addcmul(x, y, e)",
        "k.gcd(k.mT.contiguous().mT)",
    ),
    *("F.cross_entropy(x, h, reduction='none', label_smoothing=0.1) + 1", "torch.sign(x)"),
    *("F.cross_entropy(x, y.softmax(1), reduction='none')", "torch.logical_and(x[0], y) | (e > 0)"),
    *("torch.normal(x, y.abs())", "torch.normal(x, 1.0)", "torch.bernoulli(x.sigmoid())"),
)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "swapped": lambda x: x.mT.contiguous().mT,
    "swapped outside": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand(x.shape),
    "a piece": lambda x: LAYOUTS["channels last"](torch.cat([x, x], 1))[:, :4],
}


class Called(nn.Module):
    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_evaluated(line, given) for line in CALLS)


def _evaluated(line: str, given: Sequence[object]) -> torch.Tensor:
    scope: dict[str, object] = {"F": torch.nn.functional, "torch": torch}
    scope |= zip("xyekhabs", given, strict=True)
    result: torch.Tensor = eval(line, scope)
    return result


def _taken(line: str, given: Sequence[object]) -> torch.Tensor | None:
    """What eager makes; None where its kernel does not take what lies so, as some of a GPU."""
    try:
        return _evaluated(line, given)
    except RuntimeError as error:
        if "view size is not compatible" not in str(error):
            raise
        return None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "layout",
    [pytest.param(n, marks=() if n == "channels last" else pytest.mark.slow) for n in LAYOUTS],
)
def test_the_program_says_how_results_lie(layout: str, device: str) -> None:
    lay, dtype = LAYOUTS[layout], torch.bfloat16 if layout == "swapped" else torch.float32
    x, y = (lay(torch.randn(5, 4, 6, 7, dtype=dtype)) for _ in range(2))
    e = torch.randn(5, 1, 7, 6, dtype=dtype).mT
    k, h = (lay(torch.randint(0, most, (5, 4, 6, 7))) for most in (9, 4))
    numbers = [torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype), torch.tensor(1.5).to(dtype)]
    given = [x, y, e, k, h[:, 0], *numbers]
    program = export(Called(), given, device=device).program
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    there = moved(given, device)
    eager = [_taken(line, there) for line in CALLS]
    assert eager.count(None) <= (2 if device == "cuda" else 0)
    results = zip(CALLS, output.args[0], eager, strict=True)
    known = [(line, said.meta["val"], made) for line, said, made in results if made is not None]
    assert not [line for line, said, made in known if _order(said) != _order(made)]


# Calls behind calls, of which the last looks at strides of dimensions of size 1, too.
SINGLE = (
    *(f"({made}).roll(3, 3)" for made in ("torch.zeros_like(x)", "x + 1", "x.sort(1)[0]", "-x")),
    *(f"torch.cat([{made}, {made}], 2)" for made in ("x", "x.relu()", "x > 0", "x.flip(0)")),
    *(f"F.pad({made}, (1, 1), 'reflect') * 2" for made in ("x[0].abs()", "x[0].nan_to_num()")),
    "x.index_put((x > 0,), x.new_zeros(())).roll(3, 3)",
    "F.avg_pool2d(x.clamp(0, 1), (1, 2))",
    *(f"F.pixel_{kind}(x.sort(2)[0] + 1, 1)" for kind in ("shuffle", "unshuffle")),
    "F.batch_norm(x.sub(1), None, None, training=True) + 1",
)
SINGLE_SHAPES = (
    ((1, 8, 1, 4), (1, 1, 1, 8)),
    ((7, 8, 1, 8), (64, 1, 448, 8)),
    ((4, 8, 1, 4), (32, 1, 8, 8)),
    ((4, 1, 6, 4), (24, 1, 1, 6)),
)


class Single(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scope = {"F": torch.nn.functional, "torch": torch, "x": x}
        return tuple(eval(line, scope) for line in SINGLE)


@pytest.mark.parametrize(("shape", "strides"), SINGLE_SHAPES)
def test_dimensions_of_size_1_order_what_is_made_of_them(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    x = torch.empty_strided(shape, strides).normal_()
    (output,) = (n for n in export(Single(), [x]).program.graph.nodes if n.op == "output")
    results = zip(SINGLE, output.args[0], Single()(x), strict=True)
    wrong = [line for line, said, eager in results if _order(said.meta["val"]) != _order(eager)]
    assert not wrong


NORMS = (
    *("F.group_norm(x, 2)", "F.group_norm(x, 2) + 1", "F.instance_norm(x)"),
    *("F.batch_norm(x, None, None, training=True)", "F.group_norm(x[:, :, :1], 2)"),
    "F.layer_norm(x, (7,))",
)


class Normed(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scope = {"F": torch.nn.functional, "x": x.reshape(5, 4, 6, 7)}
        return tuple(eval(line, scope) for line in NORMS)


@pytest.mark.parametrize("rows", [(0, 1, 2), (0, 2, 1)])
def test_norms_of_what_is_seen_in_another_shape_lie_as_eagers(rows: tuple[int, ...]) -> None:
    """A norm over groups computes in a shape of its own, row-major."""
    order = [rows.index(d) for d in range(3)]
    x = torch.randn(5, 4, 42).permute(rows).contiguous().permute(order)
    graph, eager = capture(Normed(), [x]).graph, Normed()(x)
    assert [o.order for o in graph.outputs] == [_order(t) for t in eager]


@pytest.mark.parametrize("pads", [(-1, 2, 3, -2), (1, 1, 2, 2)])
def test_a_call_that_asks_for_numbers_leaves_sizes_free(pads: tuple[int, ...]) -> None:
    """Pads of negative widths do, where they are asked again for strides; a permuted one is."""

    class Pads(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.pad(x, pads) + 1, F.pad(x.permute(0, 2, 3, 1), (1, 1, 2, 2)) * 2

    roots = capture(Pads(), [torch.randn(6, 4, 20, 24)]).graph.roots
    assert all(isinstance(root.shape[0], BatchSize) for root in roots)
