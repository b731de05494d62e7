"""Library products -> product nodes -> kernels: what joins them, and how they are called."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.kernel_text import KernelText
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import Compilation, make
from fusewright.compiler.pipeline import emitted_text, optimize_file
from fusewright.errors import BadUsage
from fusewright.frontend.capture import capture
from fusewright.fusion.planner import Kernel, Plan, plan
from fusewright.ir.graph import Graph, Node, base, show, size_at, toposort
from fusewright.ir.interpreter import interpret
from fusewright.kernels.gemm.match import Operand, batches, operands, product
from fusewright.kernels.gemm.tile import NO_SPLIT, DepthSplit, GemmTile, SplitK
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import ANCHORS, Strategy, default_strategy, kernel_text
from fusewright.kernels.tensor_core.launch import segment
from fusewright.loopnest.buffer_reuse import buffer_reuse
from fusewright.loopnest.nest import Nest, nest
from fusewright.rewrite.norm_rounding import once
from fusewright.rewrite.simplify import rewrite
from fusewright.targets.target import TARGETS
from tests.support.emitting import Emitted, emit_file, tiles
from tests.support.folders import GOLDEN_FOLDER, ROOT
from tests.support.graphs import check_meaning, staged

GPU = TARGETS["sm_90a"]
SETUP = """self.linear = nn.Linear(512, 512)
self.plain = nn.Linear(512, 512, bias=False)
self.back = nn.Linear(512, 512)
self.narrow = nn.Linear(1024, 128)
self.wide = nn.Linear(256, 4096)
self.norm = nn.LayerNorm(512)
self.groups = nn.GroupNorm(8, 512)
self.scale = nn.Parameter(torch.randn(8, 1))
self.c = nn.Parameter(torch.randn(512))
self.short = nn.Parameter(torch.randn(512, 512).bfloat16())"""
X = torch.randn(512, 512)
Y = torch.randn(512, 512)
THREE = torch.randn(8, 128, 512)
BATCHED = torch.randn(8, 256, 128), torch.randn(8, 128, 512)
SAME = torch.randn(8, 512, 128)


def model(text: str, arguments: int) -> nn.Module:
    """A module whose forward is `text`."""
    scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional}
    names = ", ".join(["self", "x", "y", "z"][: 1 + arguments])
    setup, lines = ("\n        ".join(t.splitlines()) for t in (SETUP, text))
    exec(
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {setup}\n    def forward({names}):\n        {lines}\n",
        scope,
    )
    torch.manual_seed(0)
    return scope["M"]()  # type: ignore[operator, no-any-return]


def planned(text: str, *inputs: torch.Tensor) -> Plan:
    """The plan of a model for a GPU with product kernels."""
    graph, _ = rewrite(capture(model(text, len(inputs)), inputs).graph)
    return plan(product(once(graph, GPU), GPU), GPU, ANCHORS)


def kernel_of(text: str, *inputs: torch.Tensor) -> tuple[KernelText, Nest, Strategy]:
    """The one kernel of a model."""
    made = planned(text, *inputs)
    (kernel,) = made.kernels
    layout = nest(kernel, made.graph)
    chosen = default_strategy(layout, StrategyContext(GPU, made.graph))
    return kernel_text(layout, chosen), layout, chosen


def names(kernel: Kernel) -> str:
    return " ".join(m.op for m in kernel.members)


# ---- graphs --------------------------------------------------------------------------------------

TALL = torch.randn(2048, 512).bfloat16()
ODD = torch.randn(2048, 1001)
UNEVEN = torch.randn(512, 1504, 3).permute(2, 0, 1)
HALF_FORMS: dict[str, tuple[str, tuple[torch.Tensor, ...], int]] = {
    "linear": ("return F.linear(x, y, z)", (TALL, Y.bfloat16(), Y[0].bfloat16()), 1),
    "matmul": ("return torch.relu(x @ y)", (TALL, Y.bfloat16()), 1),
    "both turned": ("return self.short.t() @ x.t()", (TALL,), 1),
    "bmm": (
        "return torch.bmm(x, y)",
        (torch.randn(8, 512, 256).half(), torch.randn(8, 256, 512).half()), 1),
    "addmm": ("return torch.addmm(z, x, y, alpha=2)", (TALL, Y.bfloat16(), Y[0].bfloat16()), 1),
}  # fmt: skip
TWO_BIASES = "return F.linear(x, y, self.c), F.linear(x, y, self.c * 2)"
FORMS: dict[str, tuple[str, tuple[torch.Tensor, ...], int]] = {
    "linear": ("return self.linear(x)", (X,), 1),
    "linear without bias": ("return self.plain(x)", (X,), 1),
    "linear of three dimensions": ("return self.linear(x)", (THREE,), 1),
    "linear of a permuted input": ("return self.plain(x.transpose(0, 1))", (THREE,), 1),
    "mm": ("return torch.mm(x, y)", (X, Y), 1),
    "bmm": ("return torch.bmm(x, y)", BATCHED, 1),
    "bmm, right transposed": ("return x @ y.transpose(1, 2)", (SAME, SAME), 1),
    "matmul, 3 x 2 dimensions": ("return x @ y", (THREE, Y), 1),
    "matmul of heads": (
        "q = x.reshape(8, 256, 4, 128).permute(0, 2, 1, 3)\n"
        "return q @ q.transpose(-1, -2)",
        (torch.randn(8, 256, 512),),
        1,
    ),
    "matmul, left transposed": ("return self.plain.weight.t() @ x.t()", (X,), 1),
    "matmul, right transposed": ("return x @ y.t()", (X, Y), 1),
    "addmm": ("return torch.addmm(self.c, x, y)", (X, Y), 1),
    "addmm, scaled": ("return torch.addmm(y, x, y, beta=0.5, alpha=-2)", (X, Y), 1),
    "addmm, nothing added": ("return torch.addmm(y * float('nan'), x, y, beta=0)", (X, Y), 1),
    "baddbmm": ("return torch.baddbmm(self.c, x, y, alpha=3)", BATCHED, 1),
    "expanded": ("return x @ self.plain.weight.t().expand(8, 512, 512)", (THREE,), 1),
    "both outputs": ("z = self.linear(x)\nreturn z, z.t()", (X,), 1),
    "one product, two biases": (TWO_BIASES, (X, Y), 2),
    "einsum": ("return torch.einsum('bik,bkj->bij', x, y)", BATCHED, 1),
    "einsum, turned": ("return torch.einsum('bik,bkj->bji', x, y)", BATCHED, 1),
    "einsum of heads": (
        "return torch.einsum('bqhd,bkhd->bhqk', x, y)",
        (torch.randn(4, 256, 4, 64), torch.randn(4, 512, 4, 64)), 1),
    "einsum, more rows": (
        "return torch.einsum('bijl,lk->bijk', x, y)",
        (torch.randn(8, 16, 16, 512), torch.randn(512, 256)), 1),
    "tensordot": ("return torch.tensordot(x, y, dims=([2], [0]))", (THREE, Y), 1),
    "one left factor for all": ("return x @ y", (BATCHED[0][0], BATCHED[1]), 1),
    "broadcast": (
        "return x[:, None] @ y", (torch.randn(3, 256, 512), torch.randn(4, 512, 128)), 1),
    "odd depth": ("return F.linear(x, y, y[:, 0])", (ODD, torch.randn(1024, 1001)), 1),
    "odd depth, right transposed": ("return x @ y", (ODD, torch.randn(1001, 1024)), 1),
    "odd depth, batches": (
        "return x @ y", (torch.randn(2, 1024, 1001), torch.randn(2, 1001, 1024)), 1),
    "left transposed": ("return x.t() @ y", (torch.randn(1024, 2048), torch.randn(1024, 1040)), 1),
    "left transposed, odd depth": ("return x.t() @ y", (ODD[:1003], torch.randn(1003, 1100)), 1),
    "an uneven input": ("return x @ y.t()", (UNEVEN, torch.randn(256, 1504)), 1),
    "an uneven map": ("return x.relu() @ y.t()", (UNEVEN, torch.randn(256, 1504)), 1),
    "batches of an uneven map": ("return x.relu() @ x.relu().mT", (UNEVEN,), 1),
    **{f"16 bits, {name}": form for name, form in HALF_FORMS.items()},
}  # fmt: skip


def graphs(text: str, inputs: tuple[torch.Tensor, ...]) -> tuple[Graph, Graph, nn.Module]:
    module = model(text, len(inputs))
    return *staged(module, inputs, lambda g: product(g, GPU), "gemm"), module


def products(graph: Graph) -> list[Node]:
    return [n for n in toposort(graph.roots) if n.op == "matmul"]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_rewritten_graph_has_the_same_meaning(form: str) -> None:
    text, inputs, count = FORMS[form]
    before, after, module = graphs(text, inputs)
    assert len(products(after)) == count
    assert not [n for n in toposort(after.roots) if n.op == "library"]
    check_meaning(before, after, module, inputs)


def test_views_that_do_not_lie_evenly_are_copied_by_kernels() -> None:
    """Heads of a projection, and halves of one: no factor is left to .contiguous()."""
    heads = "x, y = (z.reshape(16, 512, 4, 64).transpose(1, 2) for z in x.chunk(2, -1))\n"
    text, inputs = heads + "return x.mT @ y", (torch.randn(16, 512, 512),)
    before, after, module = graphs(text, inputs)
    (found,) = products(after)
    assert [base(f).op for f in found.args] == ["copy", "copy"]
    assert [f.tensor.op for f in operands(found)] == ["copy", "copy"]
    check_meaning(before, after, module, inputs)


def walked(factor: Operand, graph: Graph, inputs: tuple[torch.Tensor, ...], module: nn.Module,
           count: int) -> torch.Tensor:  # fmt: skip
    """The factor as its kernel reads it: one address and three strides."""
    only = Graph(graph.inputs, (factor.tensor,), free=graph.free)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    (tensor,) = interpret(only, inputs, state)
    memory = tensor.permute(factor.tensor.order) if factor.tensor.order else tensor
    steps = [size_at(s, graph.example) for s in factor.strides]
    sizes = [count, graph.hint(factor.rows), graph.hint(factor.depth)]
    return memory.contiguous().as_strided(sizes, steps)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_factors_are_found_by_their_strides(form: str) -> None:
    text, inputs, _ = FORMS[form]
    _, graph, module = graphs(text, inputs)
    n = products(graph)[0]
    count = graph.hint(batches(n))
    with torch.no_grad():
        left, right = (walked(f, graph, inputs, module, count) for f in operands(n))
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        (wanted,) = interpret(Graph(graph.inputs, (n,), free=graph.free), inputs, state)
    found = left.double() @ right.double().transpose(1, 2)
    rtol = 1e-4 if wanted.dtype is torch.float32 else torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(
        found.reshape(wanted.shape).float(), wanted.float(), rtol=rtol, atol=1e-3
    )


LIBRARY: dict[str, tuple[str, tuple[torch.Tensor, ...], str]] = {
    "small": ("return x[:100] @ y", (X, Y), "52.4 MFLOP are too few"),
    "double": ("return x.double() @ y.double()", (X, Y), "or bfloat16, not float64"),
    "little half": ("return x.half() @ y.half()", (X, Y), "268 MFLOP are too few"),
    "half, rows of 510": (
        "return x @ y", (torch.randn(4096, 512).half(), torch.randn(512, 510).half()),
        "do not start at multiples of 16 bytes"),
    "half, a vector": ("return x @ y", (X.half(), Y[0].half()), "one operand is a vector"),
    "a vector": ("return x @ y", (X, Y[0]), "one operand is a vector"),
    "one column": ("return x @ y[:, :1].contiguous()", (X, Y), "one operand is a vector"),
    "half, few rows": (
        "return x @ y", (torch.randn(96, 4096).half(), torch.randn(4096, 4096).half()),
        "fewer than 256 rows"),
    "no depth": ("return x[:, :0] @ y[:0]", (X, Y), "no plain matrix product"),
    "times nothing": ("return torch.addmm(y, x, y, alpha=0)", (X, Y), "no plain matrix product"),
    "odd depth": ("return x[:, :510] @ y[:510]", (X, Y), "a multiple of 4, not 510"),
    "little depth": (
        "return x @ y", (torch.randn(4096, 16), torch.randn(16, 4096)), "32 or more k"),
    "along rows": (
        "return self.plain.weight.t() @ self.back.weight + x", (X,), "no operand lies row by row"),
    "small matrices of a batch": (
        "return x @ y", (torch.randn(600, 100, 64), torch.randn(600, 64, 100)),
        "as small as these"),
    "columns by fours": (
        "return x @ y", (torch.randn(300, 4098), torch.randn(4098, 300)), "not 4098"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", LIBRARY)
def test_what_stays_a_library_call_says_why(case: str) -> None:
    text, inputs, why = LIBRARY[case]
    made = planned(text, *inputs)
    assert not products(made.graph)
    calls = [s for s in made.libraries if s.node.op == "library" and s.node.call.why_library]
    assert [why in s.reason for s in calls] == [True]


def test_the_cpu_has_no_product_kernels() -> None:
    graph, _ = rewrite(capture(model("return self.linear(x)", 1), (X,)).graph)
    after = product(graph, TARGETS["cpu"])
    (call,) = (n for n in toposort(after.roots) if n.op == "library")
    assert call.call.why_library == "there is no kernel of ours for it on cpu"


# ---- plans ---------------------------------------------------------------------------------------

GROUPS = (
    "z = F.silu(self.linear(x)) + self.c\n"
    "return self.groups(z)"
)  # fmt: skip
JOINED: dict[str, tuple[str, tuple[torch.Tensor, ...]]] = {
    "relu": ("return torch.relu(self.linear(x)) / 2", (X,)),
    "residual": ("return x + self.plain(x) * 0.5", (X,)),
    "an input of another shape": ("return self.linear(x) * self.c[:1]", (X,)),
    "split columns": ("return (self.linear(x).reshape(-1, 8, 64) * 2).reshape(-1, 512)", (X,)),
    "a transposed residual": ("return self.linear(x) + y.t()", (X, torch.randn(512, 512))),
    "group norm, 64 columns": (GROUPS, (X,)),
    "softmax over 128": ("return torch.softmax(self.narrow(x), -1)", (torch.randn(2048, 1024),)),
    "sum of a row of 128": ("return self.narrow(x).sum(-1)", (torch.randn(2048, 1024),)),
    "attention scores": (
        "return torch.softmax((x @ y.transpose(1, 2)) * 0.1, -1)",
        (torch.randn(16, 256, 256), torch.randn(16, 128, 256)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", JOINED)
def test_what_joins_the_product(case: str) -> None:
    text, inputs = JOINED[case]
    made = planned(text, *inputs)
    (kernel,) = made.kernels
    assert kernel.anchor is not None
    assert not [s for s in made.libraries if "mm" in (s.node.called or "")]
    layout = nest(kernel, made.graph)
    assert (layout.outer, segment(kernel)) == (1, int(layout.columns) if kernel.reductions else 0)  # type: ignore[call-overload]


APART: dict[str, tuple[str, tuple[torch.Tensor, ...], list[str], str]] = {
    "layer norm over 4096": (
        "return F.layer_norm(self.wide(x), (4096,))", (torch.randn(512, 256),),
        ["matmul add", "mean sub m2"], "a row of 4096 does not fit a tile of 256"),
    "a norm of its squares": (
        "x = x @ y\nreturn x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)",
        (torch.randn(1024, 512), torch.randn(512, 384)),
        ["matmul copy", "mul mean add rsqrt mul"], "a row of 384 does not fit a tile of 256"),
    "group norm of 96 columns": (
        "return F.group_norm(x @ y, 4)", (torch.randn(1024, 512), torch.randn(512, 384)),
        ["matmul copy", "mean sub m2"], "a row of 96 does not fit the columns of a tile"),
    "two linears": (
        "return torch.relu(self.linear(x)) @ self.back.weight.t()", (X,),
        ["matmul add relu", "matmul copy"], ""),
    "a sum of two products": (
        "return self.linear(x) + self.back(x)", (X,),
        ["matmul add", "matmul add add"], "a kernel computes one contraction"),
    "a residual that the product needs first": (
        "z = torch.relu(x)\nreturn self.plain(z) + z", (X,),
        ["relu", "matmul copy add"], "the contraction reads all of its operands first"),
    "reductions over rows": (
        "return F.layer_norm(self.linear(x), (128, 512))", (THREE,),
        ["matmul add", "mean sub m2"], "neighbouring columns"),
    "a transposed result": (
        "return torch.exp(self.linear(x)).t().contiguous()", (X,), ["matmul add exp", "copy"],
        "does not lie row by row"),
    "heads": (
        "return (self.linear(x).reshape(8, 128, 4, 128).transpose(1, 2) * 2).contiguous()",
        (THREE,), ["matmul add mul", "copy"], "does not lie"),
    "columns by their group": (
        "return (self.linear(x).reshape(-1, 8, 64) * self.scale).reshape(-1, 512)", (X,),
        ["matmul add", "mul"], "evenly along the contraction's columns"),
    "more elements": (
        "return self.linear(x) * y", (X, torch.randn(3, 1, 1)), ["matmul add", "mul"],
        "more elements than the contraction"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", APART)
def test_what_does_not_join_the_product(case: str) -> None:
    text, inputs, wanted, why = APART[case]
    made = planned(text, *inputs)
    groups = [names(k) for k in made.kernels]
    assert [found[: len(start)] for found, start in zip(groups, wanted, strict=True)] == wanted
    assert not why or any(why in note for note in made.notes), made.notes


@pytest.mark.slow
@pytest.mark.parametrize("case", [*JOINED, *APART])
def test_a_product_is_never_stored_nor_read_from_memory(case: str) -> None:
    text, inputs = (JOINED.get(case) or APART[case])[:2]
    for kernel in planned(text, *inputs).kernels:
        assert not [n for n in (*kernel.outputs, *kernel.leaves) if n.op == "matmul"]
        assert sum(m.op == "matmul" for m in kernel.members) <= 1


def test_a_factor_is_never_overwritten() -> None:
    """The residual is fresh memory that only this kernel reads; as a factor it must survive."""
    for text, pairs in (
        ("z = torch.cumsum(x, 0)\nreturn self.plain(z) + z", 0),
        ("z = torch.cumsum(x, 0)\nreturn self.plain(x) + z", 1),
    ):
        found = buffer_reuse(planned(text, X))
        assert [len(p) for p in found.in_place.values()] == [pairs]


# ---- schedules -----------------------------------------------------------------------------------

RELU, SOFTMAX = "return torch.relu(x @ y.t())", "return torch.softmax(x @ y.t(), -1)"


def packed(width: int, swap_operands: bool, reduce: DepthSplit = NO_SPLIT) -> GemmTile:
    """The tile of a product that packs a factor."""
    return GemmTile(width, swap_operands, packing="packed", reduce=reduce, vector=4)


TILES = [
    # forward, left, right; the tile
    (RELU, (1024, 1024), (8192, 1024), packed(256, True)),  # two waves of 256, three of 192
    (RELU, (8192, 1024), (1024, 1024), packed(256, False)),
    (RELU, (64, 1024), (8192, 1024), packed(64, True, SplitK(129))),  # 43 tiles for 132 processors
    (RELU, (8192, 1024), (64, 1024), packed(64, False, SplitK(129))),
    (RELU, (96, 4096), (8192, 4096), packed(96, True, SplitK(129))),
    (RELU, (160, 1024), (8192, 1024), packed(160, True, SplitK(128))),
    (SOFTMAX, (2048, 1024), (128, 1024), packed(128, False, SplitK(64))),  # of four steps at least
    # a row of 128 lies in packed columns; more parts would take longer to add up
    (SOFTMAX, (100, 12288), (128, 12288), packed(128, False, SplitK(16))),
    ("return self.plain.weight.t() @ x.t() + y", (600, 512), (512, 600), packed(64, True)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "left", "right", "wanted"), TILES)
def test_the_tile(
    text: str, left: tuple[int, int], right: tuple[int, int], wanted: GemmTile
) -> None:
    """The smaller factor is packed if it may be, and the waves of tiles end soonest."""
    assert kernel_of(text, torch.randn(left), torch.randn(right))[2] == wanted


def test_the_scratch_memory_holds_the_packed_factor() -> None:
    printed, _, chosen = kernel_of("return self.linear(x)", torch.randn(700, 512))
    assert isinstance(chosen, GemmTile)
    text = printed.launch.workspace
    each = 512 * 4 + 4 + 512 // 64 * 4
    assert [eval(text.format(batch=n)) for n in (2, 64, 65, 700)] == [
        rows * each for rows in ((64, 64, 128, 704) if chosen.swap_operands else (512,) * 4)
    ]


# ---- text ----------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[str, tuple[torch.Tensor, ...]]] = {
    "product_linear_relu": ("return torch.relu(self.linear(x))", (X,)),
    "product_groupnorm": (GROUPS, (X,)),
    "product_bmm": ("return torch.bmm(x, y)", BATCHED),
    "product_half": ("return torch.relu(F.linear(x, y, z))", HALF_FORMS["linear"][1]),
    "product_half_mm": (
        "return torch.softmax(x @ y, -1)",
        (TALL.repeat(2, 1), Y[:, :256].bfloat16()),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, update_golden: bool) -> None:
    text, inputs = GOLDEN[name]
    made, printed = planned(text, *inputs), kernel_of(text, *inputs)
    entry = cuda_source([printed[0]], GPU)
    texts = {
        "graph.txt": show(made.graph),
        "plan.txt": "".join(f"{line}\n" for line in (*map(names, made.kernels), *made.notes)),
        "body.txt": printed[0].text + "\n",
        "entry.txt": entry[entry.index('extern "C"') :],
    }
    folder = GOLDEN_FOLDER / name
    if update_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for file, wanted in texts.items():
            (folder / file).write_text(wanted, encoding="utf-8")
    for file, found in texts.items():
        assert found == (folder / file).read_text(encoding="utf-8"), "pytest --update-golden"


# ---- emitted files -------------------------------------------------------------------------------

SIZES = {"batch_size": "256", "in_features": "1024", "out_features": "1024"}


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    folder = tmp_path_factory.mktemp("gemm")
    return emit_file(ROOT / "examples" / "gemm_add_relu.py", folder, "sm_90a", SIZES)


def made_with(precision: str, target: str = "sm_90a") -> tuple[Compilation, str]:
    problem = load_problem(ROOT / "examples" / "gemm_add_relu.py", SIZES)
    module = problem.make_model()
    made = make(module, problem.make_inputs(), TARGETS[target], precision)
    return made, emitted_text(made, module, problem)


def test_the_emitted_file(emitted: Emitted) -> None:
    tree = ast.parse(emitted.text)
    assert isinstance(tree, ast.Module)
    assert '_FUSEWRIGHT_KERNELS = {"gemm_add_relu": 5}' in emitted.text
    assert "workspace = torch.empty(" in emitted.text
    assert "(batch + 63) // 64 * 266496 + 4719744" in emitted.text
    assert "gemm_weight_aligned = _fusewright_aligned(gemm_weight)" in emitted.text
    call = emitted.text.partition('run["gemm_add_relu"](')[2].partition(")\n        return")[0]
    words = [w.strip() for w in call.split(",") if w.strip()]
    assert words == [
        "x.data_ptr()", "gemm_weight_aligned.data_ptr()", "bias_aligned.data_ptr()",
        "gemm_add_relu.data_ptr()", "workspace.data_ptr()", "batch", "device", "stream",
    ]  # fmt: skip
    assert "torch.nn.functional.linear" not in emitted.text
    assert "run_gemm<64, true, 0, 4, 96>" in emitted.text


def test_the_record(emitted: Emitted) -> None:
    head = emitted.text.partition('"""')[0]
    (row,) = emitted.made.notes.rows
    assert row.name in head
    assert (row.name, row.operators) == ("gemm_add_relu", ("matmul", "add", "relu"))
    assert row.shapes == ("[batch, 1024]",)
    assert "the input [batch, 1024] is packed first" in head
    assert row.numeric.name == "float32, matmul as ieee"
    assert "ieee: full float32 from float16 terms" in head
    record = emitted.made.record("gemm_add_relu.py")
    assert "fused:  1 steps, 8.39 MB" in record  # x thrice, weight and result once
    assert tiles(emitted.made) == {"gemm_add_relu": packed(64, True, SplitK(96))}  # of 192 rows


def test_the_guard_asks_for_full_float32() -> None:
    condition = "_fusewright_full_float32()\n                or _fusewright_no("
    assert condition in made_with("eager")[1]
    assert "_fusewright_full_float32" not in made_with("ieee")[1]
    assert "_fusewright_full_float32" not in made_with("eager", "cpu")[1]


def test_full_float32_follows_every_switch(emitted: Emitted) -> None:
    full = emitted.load()._fusewright_full_float32
    matmul = torch.backends.cuda.matmul
    try:
        assert full()
        torch.set_float32_matmul_precision("high")
        assert not full()
        torch.set_float32_matmul_precision("highest")
        matmul.allow_tf32 = True
        assert not full()
        matmul.allow_tf32 = False
        assert full()
        matmul.fp32_precision = "tf32"
        assert not full()
    finally:
        matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")
    assert full()


def test_a_factor_is_aligned(emitted: Emitted) -> None:
    aligned = emitted.load()._fusewright_aligned
    whole = torch.randn(9, 8)
    assert aligned(whole) is whole
    shifted = whole.view(-1)[1:65].view(8, 8)
    moved = aligned(shifted)
    assert moved.data_ptr() % 16 == 0
    assert torch.equal(moved, shifted)
    assert moved.stride() == shifted.stride()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_code_for_one_architecture_says_so(emitted: Emitted) -> None:
    with pytest.raises(RuntimeError, match=r"kernels for sm_90a.*compute capability 9\.0"):
        emitted.load()._fusewright_build()
    assert "get_device_capability" not in made_with("eager", "sm_80")[1]


TURNED = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(512, 512))
    def forward(self, x):
        return TEXT
def get_inputs():
    return [torch.rand(512, 512)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["no-prepack", "no-workspace"])
@pytest.mark.parametrize(
    "text", ["torch.relu(x @ self.weight)", "(x @ self.weight.t()).view(512, 2, 256).softmax(-1)"]
)
def test_rules_that_a_packed_factor_breaks(text: str, rule: str, tmp_path: Path) -> None:
    problem = tmp_path / "turned.py"
    problem.write_text(TURNED.replace("TEXT", text), encoding="utf-8")
    refused = rf"--rules {rule} cannot be kept: matmul_\w+ packs"
    with pytest.raises(BadUsage, match=refused) as caught:
        optimize_file(problem, out=tmp_path / "new.py", target="sm_90a", rules=frozenset({rule}))
    assert caught.value.exit_code == 2


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_strict_job_is_one_launch(target: str, tmp_path: Path) -> None:
    """Nothing packed, nothing allocated but the output, no library."""
    outcome = optimize_file(
        ROOT / "examples" / "gemm_add_relu.py", out=tmp_path / "new.py", target=target,
        rules=frozenset({"no-library", "no-prepack", "no-workspace"}), overrides=SIZES,
    )  # fmt: skip
    assert outcome.why_not.startswith(f"compiled for {target}")
    assert "nothing is packed" in outcome.decisions
    text = (tmp_path / "new.py").read_text(encoding="utf-8")
    assert text.count("return run_gemm_unpacked<") == 1, "with vectors alone"
    assert "pack_rows" not in text
    model, _, rest = text.partition("# ---- kernels")
    assert "workspace" not in rest.partition("# region support")[0]
    forward = model[model.index("    def forward(") :]
    assert forward.count('run["') == 1
    assert re.findall(r"(\w+) = (?:torch\.|_fusewright_)empty", forward) == ["gemm_add_relu"]
    for tensor in ("x", "gemm_weight", "bias"):
        assert f"_fusewright_aligned({tensor})" in forward


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_file_without_library_calls(target: str, tmp_path: Path) -> None:
    outcome = optimize_file(
        ROOT / "examples" / "gemm_add_relu.py", out=tmp_path / "new.py", target=target,
        rules=frozenset({"no-library"}), overrides=SIZES,
    )  # fmt: skip
    (kernel,) = outcome.kernels
    assert (kernel.kind, kernel.operators) == ("contraction", ("matmul", "add", "relu"))
    assert kernel.flops == 256 * 1024 * (2 * 1024 + 2)
    assert outcome.why_not.startswith(f"compiled for {target}")


def test_sizes_that_are_known_at_run_time_only_stand_in_the_call() -> None:
    """A weight that is multiplied from the left: the batch is the columns, and depth is fixed."""
    printed = kernel_of("return torch.relu(self.plain.weight @ x.t())", torch.randn(600, 512))
    source = cuda_source([printed[0]], GPU)
    entry = source[source.index('extern "C"') :]
    assert re.search(r"\{left, 0, 512, 1\}, \{right, 0, 512, 1\}, 1, 512, batch, 512", entry)
    assert printed[2].vector == 1, "rows of `batch` elements are not aligned"


def test_the_record_says_why_a_factor_is_copied() -> None:
    text, inputs, _ = FORMS["odd depth"]
    record = make(model(text, len(inputs)), inputs, GPU).record("odd.py")
    said = [line for line in record.splitlines() if "at whole 16 bytes" in line]
    assert len(said) == 1, "the packed factor is read where it lies"
    assert record.index("copy ->") < record.index("matmul")
