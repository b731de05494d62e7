"""Results that a cat joins are written into it: by reductions, maps, products and convolutions."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusewright
from fusewright.compiler.compilation import Compilation, make
from fusewright.ir.graph import Node, toposort
from fusewright.rewrite import concat_in_place
from fusewright.targets.target import TARGETS
from tests.support.agreement import disagreements
from tests.support.compiled import Case, build, prepare, ready

GPU, CPU = TARGETS["sm_90a"], TARGETS["cpu"]
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({weight}) * 0.1)

    def forward(self, x, y):
        return {result}


def get_inputs():
    return [torch.randn(6, 8, {columns}), torch.randn(6, 8, {columns})]


def get_init_inputs():
    return []
"""
# What is joined; the weight of the linear layer that reads it; columns; how many pieces are inside.
ROWS = {
    "last": ("torch.cat([{n}(x), {n}(y * 2)], -1)", (5, 48), 24, 2),
    "rows": ("torch.cat([{n}(x), {n}(y).relu()], 1)", (5, 24), 24, 2),
    "copied": ("torch.cat([{n}(x), y], 1)", (5, 24), 24, 2),
    "three": ("torch.cat([{n}(x), y.tanh().exp().sin(), {n}(y)], 1)", (5, 24), 24, 3),
    "read": ("(lambda a: torch.cat([a, {n}(y)], 1) + a.flip(-1).repeat(1, 2, 1) * 0)({n}(x))",
             (5, 24), 24, 0),
    "odd": ("torch.cat([{n}(x), {n}(y)], -1)", (5, 46), 23, 0),
    "twice": ("(lambda a: torch.cat([a, a], -1))({n}(x))", (5, 48), 24, 0),
    "nested": ("torch.cat([torch.cat([{n}(x), {n}(y)], 1), {n}(x - y)], 1)", (5, 24), 24, 3),
    "growing": ("(lambda a, b, c: (torch.cat([a, b], 1) * 2).amax(1) + torch.cat([a, b, c], 1)"
                ".tanh().amax(1))({n}(x), {n}(y).exp(), {n}(x - y))", (5, 24), 24, 4),
    "further": ("(lambda a, b: (lambda i: torch.cat([i * 1, b], 1) + i.amax(1, True))("
                "torch.cat([a, y.exp()], 1)))({n}(x), {n}(x - y))", (5, 24), 24, 4),
    "overwritten": ("(lambda a, b: torch.cat([a, b], 1).flip(-1).relu() + torch.cat([a, b, a], 1)"
                    "[:, :16])({n}(x), {n}(y))", (5, 24), 24, 2),
}  # fmt: skip
NORM = "(lambda t: F.layer_norm(t, (t.shape[-1],)))"


def text_of(name: str) -> str:
    joined, weight, columns, _ = ROWS[name]
    result = f"F.linear({joined.format(n=NORM)}, self.weight)"
    return MODEL.format(weight=weight, columns=columns, result=result)


def inputs_of(name: str, batch: int = 6) -> list[Tensor]:
    x, y = torch.randn(2, batch, 8, ROWS[name][2])
    x[1, 1, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return [x, y]


def inside(made: Compilation) -> list[Node]:
    return [n for n in toposort(made.captured.graph.roots) if n.placement.inside]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, nn.Module]]:
    folder = tmp_path_factory.mktemp("joint")
    cases = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concat_in_place, "LANGUAGES", ("cpp",))
        for name in ROWS:
            path = folder / f"{name}.py"
            path.write_text(text_of(name), encoding="utf-8")
            cases.append(prepare(path))
    modules = build(cases, folder)
    made = {}
    for name, case, module in zip(ROWS, cases, modules, strict=True):
        new = module.ModelNew()
        new.load_state_dict(case.model.state_dict())
        made[name] = case, new
    return made


@pytest.mark.compiler
@pytest.mark.parametrize("name", ROWS)
@torch.no_grad()
def test_kernels_write_into_the_joined_tensor(
    compiled: dict[str, tuple[Case, nn.Module]], name: str
) -> None:
    case, ours = compiled[name]
    assert len(inside(case.made)) == ROWS[name][3]
    for batch in (2, 6, 7):
        given = inputs_of(name, batch)
        assert ready(ours, given)
        assert disagreements(ours, case.model, given) == []


EACH = (
    "F.layer_norm({0}, (24,))", "{0}.relu()", "{0} * 2", "torch.tanh({0}).exp()", "{0}.softmax(-1)",
)  # fmt: skip
LAST = (
    "{0}",
    "{0}.tanh()",
    "{0}.flip(1)",
    "{0}.amax(1)",
    "{0}.sum(1)",
    "F.linear({0}, self.weight)",
)


def drawn(seed: int) -> str:
    """A model whose cats begin with cats, or end with them, and which reads some on the way."""
    rng, lines, joined = random.Random(seed), list[str](), ["x"]
    for k in range(rng.randint(2, 4)):
        before = joined[-1]
        lines.append(f"p{k} = {rng.choice(EACH).format(rng.choice('xy'))}")
        if rng.random() < 0.4:
            lines.append(f"p{k} = p{k} + {before}.amax(1, True)")
        if rng.random() < 0.3:
            lines.append(f"p{k} = p{k} * {before}[:, :8]")
        pieces = (before, f"p{k}") if rng.random() < 0.8 else (f"p{k}", before)
        lines.append(f"c{k} = torch.cat([{', '.join(pieces)}], 1)")
        joined.append(f"c{k}")
    wanted = [joined[-1], *(name for name in joined[1:-1] if rng.random() < 0.3)]
    returned = ", ".join(rng.choice(LAST).format(name) for name in wanted)
    body = "\n        ".join([*lines, f"return {returned}"])
    return MODEL.format(weight=(5, 24), columns=24, result="0").replace("return 0", body)


@pytest.mark.compiler
@pytest.mark.slow
@torch.no_grad()
def test_drawn_cats_that_begin_with_cats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concat_in_place, "LANGUAGES", ("cpp",))
    cases = []
    for seed in range(12):
        path = tmp_path / f"drawn_{seed}.py"
        path.write_text(drawn(seed), encoding="utf-8")
        cases.append(prepare(path))
    assert sum(bool(inside(case.made)) for case in cases) > 6
    for case, module in zip(cases, build(cases, tmp_path), strict=True):
        ours = module.ModelNew()
        ours.load_state_dict(case.model.state_dict())
        for batch in (2, 6, 7):
            x, y = torch.randn(2, batch, 8, 24)
            x[1, 1, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
            assert ready(ours, [x, y])
            assert disagreements(ours, case.model, [x, y]) == []


class Branches(nn.Module):
    """Convolutions of one image, joined, and one that reads all."""

    def __init__(self, *sides: int) -> None:
        super().__init__()
        each = (nn.Conv2d(64, 32 * (1 + k), s, padding=s // 2) for k, s in enumerate(sides))
        self.each = nn.ModuleList(nn.Sequential(c, nn.BatchNorm2d(c.out_channels)) for c in each)
        count = sum(c[0].out_channels for c in self.each)
        self.last = nn.Conv2d(count, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found = [layer(x).relu() for layer in self.each]
        return self.last(torch.cat(found, 1)).relu()  # type: ignore[no-any-return]


class Skips(nn.Module):
    """A tensor that a pool reads, too, joined with what comes of the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(64, 64, 2, 2), nn.Conv2d(128, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.norm(self.first(x)).relu()
        below = self.inner(nn.functional.max_pool2d(wide, 2)).relu()
        return self.last(torch.cat([self.up(below), wide], 1)).relu()  # type: ignore[no-any-return]


class Layers(nn.Module):
    """Every layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(64 + 32 * k, 32, 3, padding=1) for k in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64 + 32 * k) for k in range(5))

    def forward(self, x: Tensor) -> Tensor:
        found = [nn.functional.max_pool2d(x, 2)]
        for norm, layer in zip(self.norms, self.layers, strict=False):
            found.append(layer(norm(torch.cat(found, 1)).relu()))
        return self.norms[4](torch.cat(found, 1)).relu()  # type: ignore[no-any-return]


class GrowingLayers(nn.Module):
    """The same, each joined to what all before it were joined to; the last of them is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(64 + 32 * k, 32, 3, padding=1) for k in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64 + 32 * k) for k in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(norm(x).relu()).relu()], 1)
        return x


class GrowingImages(nn.Module):
    """Convolutions that read what is joined as it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(64 + 32 * k, 32, 3, padding=1) for k in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return x


class Rows(nn.Module):
    """Two linear layers side by side, read by a third, and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(512, 256), nn.Linear(512, 768)
        self.last = nn.Linear(1024, 512)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.a(x).relu(), nn.functional.gelu(self.b(x))], -1)
        return both, self.last(both)


LARGE = {
    "branches": (lambda: Branches(3, 1), (32, 64, 56, 56), 2),
    "odd branches": (lambda: Branches(3, 5, 3), (80, 64, 28, 30), 3),
    "trained branches": (lambda: Branches(3, 1).train(), (32, 64, 56, 56), 2),
    "skips": (Skips, (32, 64, 56, 56), 2),
    "trained skips": (lambda: Skips().train(), (32, 64, 56, 56), 2),
    "layers": (Layers, (32, 64, 112, 112), 8),
    "trained layers": (lambda: Layers().train(), (32, 64, 112, 112), 8),
    "growing layers": (GrowingLayers, (32, 64, 112, 112), 8),
    "trained growing layers": (lambda: GrowingLayers().train(), (32, 64, 112, 112), 8),
    "growing images": (GrowingImages, (32, 64, 112, 112), 6),
    "rows": (Rows, (4096, 512), 2),
}


def large(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    made, shape, _ = LARGE[name]
    module = made()
    return (module if "trained" in name else module.eval()), torch.randn(shape)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", LARGE)
def test_products_and_convolutions_write_into_the_joined_tensor(name: str, target: str) -> None:
    module, x = large(name)
    made = make(module, [x], TARGETS[target])
    assert len(inside(made)) == LARGE[name][2]
    assert not [s for s in made.plan.libraries if s.node.op == "library"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
@torch.no_grad()
def test_gpu_kernels_write_into_the_joined_tensor(name: str) -> None:
    module, x = large(name)
    ours = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    state = copy.deepcopy(module.cuda().state_dict())  # each time from the same running means
    for batch in (2, 7, len(x)):
        module.load_state_dict(state), ours.load_state_dict(state)
        assert disagreements(ours, module, [x[:batch].cuda()]) == []
