"""Attention that a model spells out: what becomes one kernel, and what that computes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from fusewright.codegen.cuda_source import cuda_source
from fusewright.codegen.device_library import sections_for
from fusewright.codegen.kernel_text import words
from fusewright.compiler.compilation import Compilation, design, make
from fusewright.frontend.capture import capture, state_of
from fusewright.ir.graph import Graph, Node, toposort
from fusewright.ir.interpreter import interpret
from fusewright.ir.specs import AttentionSpec, spec_of
from fusewright.kernels.attention.launch import function
from fusewright.kernels.attention.match import attention, scores
from fusewright.targets.compile_flags import cuda_flags
from fusewright.targets.target import TARGETS
from fusewright.tune.search_space import choices
from tests.support.cuda_compilers import compile_text, nvrtc_folder, nvrtc_log
from tests.support.emitting import emit_text
from tests.support.graphs import check_meaning, staged

GPU = TARGETS["sm_90a"]
SETUP = """self.register_buffer("past", torch.tril(torch.ones(600, 600)).bool())
self.register_buffer("triangle", torch.tril(torch.ones(600, 600)).view(1, 1, 600, 600))
self.register_buffer("future", torch.full((256, 256), float("-inf")).triu(1))
self.bias = nn.Parameter(torch.randn(4, 256, 300))
self.slopes = nn.Parameter(torch.randn(4, 1, 1))
self.turned = nn.Parameter(torch.randn(256, 256, 4))
self.mix = nn.Linear(128, 384)"""
Q, K, V = (torch.randn(4, 4, n, 64) for n in (256, 256, 256))
LONG = torch.randn(4, 4, 300, 64), torch.randn(4, 4, 300, 96)
ODD = tuple(torch.randn(9, 7, n, 40) for n in (513, 137, 137))
THREE = torch.randn(16, 256, 64)
INF = "float('-inf')"
PAST = "self.past[:256, :256]"
# name -> (the scores' part of forward, inputs)
FITS: dict[str, tuple[str, tuple[torch.Tensor, ...]]] = {
    "plain": ("s = q @ k.mT", (Q, K, V)),
    "scaled": ("s = q @ k.mT / math.sqrt(40)", ODD),
    "scaled queries": ("s = (q * 0.3) @ k.mT", (Q, K, V)),
    "causal": (f"s = (q @ k.mT * 0.1).masked_fill(~{PAST}, {INF})", (Q, K, V)),
    "causal by where": (f"s = torch.where({PAST}, q @ k.mT, torch.tensor({INF}))", (Q, K, V)),
    "causal by numbers": (
        f"s = (q @ k.mT / 8).masked_fill(self.triangle[:, :, :256, :256] == 0, {INF})", (Q, K, V)),
    "causal by adding": ("s = q @ k.mT / 8 + self.future", (Q, K, V)),
    "causal on the fly": (
        "hidden = torch.ones(256, 256, device=q.device).triu(1) > 0\n"
        f"s = (q @ k.mT).masked_fill(hidden, {INF})", (Q, K, V)),
    "bias": ("s = q @ k.mT / 8 + self.bias", (Q, *LONG)),
    "slopes": (
        "n = torch.arange(300, device=q.device)\nd = n - n[:256, None]\n"
        "s = q @ k.mT / 8 + self.slopes * d", (Q, *LONG)),
    "bias, heads last": (
        "s = q @ k.mT + self.turned.permute(2, 0, 1)", (Q, K, V)),
    "capped": ("s = 30 * torch.tanh(q @ k.mT / 30)", (Q, K, V)),
    "mask of keys": (
        f"s = (q @ k.mT).masked_fill(mask[:, None, None, :], {INF})",
        (Q, *LONG, torch.rand(4, 300) > 0.7)),
    "a large mask": ("s = q @ k.mT + mask", (Q, K, V, torch.randn(4, 4, 256, 256))),
    "in another shape": (
        "s = (q @ k.mT).view(2, 2, 4, 256, 256) + mask[:, None, None]\n"
        "s = s.view(4, 4, 256, 256)", (Q, K, V, torch.randn(2, 256, 256))),
    "bmm": ("s = torch.bmm(q, k.transpose(1, 2)) * 0.125", (THREE, THREE, THREE)),
    "baddbmm": (
        "s = torch.baddbmm(mask, q, k.transpose(1, 2), beta=0.5, alpha=0.1)",
        (THREE, THREE, THREE, torch.randn(16, 256, 256))),
    "one head": ("s = q @ k.mT * 0.1", (torch.randn(1100, 64),) * 3),
    "shared keys": ("s = q @ k.mT * 0.1", (Q, *(torch.randn(4, 1, 256, 64),) * 2)),
    "one matrix of keys": ("s = q @ k.mT * 0.1", (Q, *(torch.randn(256, 64),) * 2)),
    "einsum": ("s = torch.einsum('bhqd,bhkd->bhqk', q, k)", (Q, K, V)),
    "by hand": ("s = q @ k.mT", (Q, K, V)),
}  # fmt: skip
BY_HAND = "e = torch.exp(s - s.amax(-1, keepdim=True))\nreturn (e / e.sum(-1, keepdim=True)) @ v"
SOFTMAX = "return torch.softmax(s, -1) @ v"
HEADS = """b, t, c = q.shape
q, k, v = (x.view(b, t, 2, 64).transpose(1, 2) for x in self.mix(q).split(128, 2))
s = (q @ k.transpose(-2, -1)) * 0.125
p = F.softmax(s.masked_fill(~self.past[:t, :t], float("-inf")), dim=-1)
return (F.dropout(p, 0.1, False) @ v).transpose(1, 2).reshape(b, t, c)"""
# The others are whole forwards.
REFUSED: dict[str, tuple[str, tuple[torch.Tensor, ...]]] = {
    "scores returned": (f"s = q @ k.mT\n{SOFTMAX}, s", (Q, K, V)),
    "probabilities returned": ("p = torch.softmax(q @ k.mT, -1)\nreturn p @ v, p", (Q, K, V)),
    "probabilities summed": ("p = torch.softmax(q @ k.mT, -1)\nreturn p @ v, p.sum()", (Q, K, V)),
    "dropout": ("return F.dropout(torch.softmax(q @ k.mT, -1), 0.1) @ v", (Q, K, V)),
    "another dimension": ("return torch.softmax(q @ k.mT, -2) @ v", (Q, K, V)),
    "log softmax": ("return torch.log_softmax(q @ k.mT, -1) @ v", (Q, K, V)),
    "half": (f"s = q @ k.mT\n{SOFTMAX}", (Q.half(), K.half(), V.half())),
    "double": ("s = (q @ k.mT).double()\nreturn torch.softmax(s, -1).float() @ v", (Q, K, V)),
    "too wide": (f"s = q @ k.mT\n{SOFTMAX}", (torch.randn(4, 4, 256, 160),) * 3),
    "values too wide": (f"s = q @ k.mT\n{SOFTMAX}", (Q, K, torch.randn(4, 4, 256, 136))),
    "small": (f"s = q @ k.mT\n{SOFTMAX}", (torch.randn(2, 2, 64, 64),) * 3),
    "few keys": (f"s = q @ k.mT\n{SOFTMAX}", (torch.randn(512, 3, 49, 32),) * 3),
    "transposed scores": (f"s = (q @ k.mT).mT\n{SOFTMAX}", (Q, K, V)),
    "heads in another order": (
        "s = (q @ k.mT).transpose(0, 1)\nreturn torch.softmax(s, -1) @ v", (Q, K, V)),
    "a reduction between": (
        "s = q @ k.mT\ns = s - s.mean(-1, keepdim=True)\n" + SOFTMAX, (Q, K, V)),
    "more scores than products": (
        "s = q @ k.mT + mask\nreturn torch.softmax(s, -1) @ v",
        (THREE, THREE, THREE, torch.randn(2, 1, 1, 256))),
}  # fmt: skip


def whole(name: str) -> str:
    return f"{FITS[name][0]}\n{BY_HAND if name == 'by hand' else SOFTMAX}"


def model(text: str, arguments: int) -> nn.Module:
    """A module whose forward is `text`."""
    import math

    scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional, "math": math}
    names = ", ".join(["self", "q", "k", "v", "mask"][: 1 + arguments])
    setup, lines = ("\n        ".join(t.splitlines()) for t in (SETUP, text))
    exec(
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {setup}\n    def forward({names}):\n        {lines}\n",
        scope,
    )
    torch.manual_seed(0)
    return scope["M"]()  # type: ignore[operator, no-any-return]


@cache
def graphs(text: str, inputs: tuple[torch.Tensor, ...]) -> tuple[Graph, Graph, nn.Module]:
    module = model(text, len(inputs))
    return *staged(module, inputs, lambda g: attention(g, GPU), "attention"), module


def found(graph: Graph) -> list[Node]:
    return [n for n in toposort(graph.roots) if n.op == "attention"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_the_rewritten_graph_has_the_same_meaning(name: str) -> None:
    inputs = FITS[name][1]
    before, after, module = graphs(whole(name), inputs)
    assert len(found(after)) == 1
    check_meaning(before, after, module, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_as_it_is(name: str) -> None:
    before, after, _ = graphs(*REFUSED[name])
    assert after is before


def test_targets_and_rules_without_such_kernels() -> None:
    before, _, _ = graphs(whole("plain"), (Q, K, V))
    assert attention(before, TARGETS["cpu"]) is before
    assert attention(before, GPU, frozenset({"no-prepack"})) is before
    assert attention(before, GPU, frozenset({"no-workspace"})) is before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cpu", "there is no kernel of ours for it on cpu"),
        ("sm_90a", "our kernels take attention that a model spells out"),
    ],
)
def test_pytorchs_own_call_stays_and_says_why(name: str, why: str) -> None:
    text = "return torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    before, _, _ = graphs(text, (Q, K, V))
    (call,) = (n for n in toposort(attention(before, TARGETS[name]).roots) if n.op == "library")
    assert call.call.why_library == why


def test_dropout_that_drops_nothing_and_heads_of_one_projection() -> None:
    made = plan_of(HEADS, torch.randn(8, 512, 128))
    members = [" ".join(m.op for m in k.members) for k in made.plan.kernels]
    assert members == ["matmul add", "copy", "copy", "copy", "attention copy copy"]
    assert not made.plan.libraries
    (entry,) = re.findall(r"run_attention<64, 4>\((.*)\);", cuda_source(made.texts, GPU))
    assert "{queries, 32768, 64, 1}, {keys, 32768, 64, 1}, {values, 32768, 1, 64}" in entry


def test_layers_follow_each_other() -> None:
    layer = "q = torch.softmax(q @ k.mT, -1) @ v\n"
    _, after, _ = graphs(f"{layer * 3}return q", (Q, K, V))
    assert len(found(after)) == 3


def test_a_result_that_is_read_twice_is_computed_once() -> None:
    made = plan_of("z = torch.softmax(q @ k.mT, -1) @ v\nreturn z, z * 2", Q, K, V)
    (kernel,) = made.plan.kernels
    assert " ".join(m.op for m in kernel.members) == "attention copy mul"


def test_a_residual_joins_the_kernel() -> None:
    made = plan_of("return q + torch.softmax(q @ k.mT, -1) @ v", Q, K, V)
    (kernel,) = made.plan.kernels
    assert " ".join(m.op for m in kernel.members) == "attention copy add"


def plan_of(text: str, *inputs: torch.Tensor) -> Compilation:
    return make(model(text, len(inputs)), inputs, GPU)


def test_the_record_says_what_it_does() -> None:
    record = plan_of(whole("causal"), Q, K, V).record("model.py")
    assert "one pass over keys and values, float32 as two float16 terms" in record
    assert (
        "the input [batch, 4, 256, 64] and the input [batch, 4, 64, 256] are packed first" in record
    )
    # eight times a megabyte: k and v are read and packed; and a mask of 600 x 600
    assert "attention_fused  attention -> [batch, 4, 256, 64]; 8.75 MB, 268 MFLOP" in record


def test_the_tuner_may_leave_it_out() -> None:
    made = plan_of(whole("causal"), Q, K, V)
    other = choices(
        made.kernels, made.shared, made.plan, frozenset(),
        lambda choice: design(made.given, GPU, choice=choice).plan,
    )  # fmt: skip
    assert "attention" in other.library


# ---- text ----------------------------------------------------------------------------------------


def test_the_struct_reads_each_operand_where_it_lies() -> None:
    inputs = FITS["causal by numbers"][1]
    _, after, _ = graphs(whole("causal by numbers"), inputs)
    assert function(found(after)[0], "softmax").splitlines() == [
        "struct softmax_score_mod {",
        "  const bool* s0;  long batch;",
        "  FN float operator()(long matrix, int row, int key, float score) const {",
        "    const float v0 = score;",
        "    const float v1 = v0 * 0.125f;",
        "    const bool x0 = read(s0, row * 256 + key);",
        "    const float v2 = where(x0, -infinity<float>(), v1);",
        "    return v2;",
        "  }",
        "};",
    ]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("causal", "!x0"),
        ("bias", "((int)(matrix % 4)) * 76800 + row * 300 + key"),
        ("mask of keys", "(matrix / 4) * 300 + (long)key"),
        ("bias, heads last", "((int)(matrix % 4)) * 65536 + row * 256 + key"),
        ("in another shape", "((int)(matrix / 8)) * 65536 + row * 256 + key"),
    ],
)  # fmt: skip
def test_addresses(name: str, place: str) -> None:
    _, after, _ = graphs(whole(name), FITS[name][1])
    assert place in function(found(after)[0], "f")


@pytest.mark.compiler
def test_functions_of_scores_compute_what_they_mean(tmp_path: Path) -> None:
    """Compiled as C++, every one in one library."""
    texts, cases = [], []
    for number, name in enumerate(FITS):
        inputs = FITS[name][1]
        _, after, module = graphs(whole(name), inputs)
        (n,) = found(after)
        cases.append((name, n, after, inputs, state_of(capture(module, inputs), module)))
        texts.append(cpp_text(n, number))
    (tmp_path / "scores.cpp").write_text("\n".join(texts))
    command = ["g++", "-O0", "-std=c++17", "-fopenmp", "-fwrapv", "-Wno-psabi", "-shared", "-fPIC"]
    library = tmp_path / "scores.so"
    done = subprocess.run(
        [*command, str(tmp_path / "scores.cpp"), "-o", str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    loaded = ctypes.CDLL(str(library))
    for number, (name, n, graph, inputs, state) in enumerate(cases):
        read = scores(n).tensors
        with torch.no_grad():
            made = interpret(
                Graph(graph.inputs, (*read, *n.args[3:]), free=graph.free), inputs, state
            )
            given, operands = made[: len(read)], made[len(read) :]
            score = scores(n).score
            product = torch.randn([graph.hint(s) for s in score.shape])
            meaning = Graph((), (spec_of(n, AttentionSpec).score_mod,), free=graph.free)
            (wanted,) = interpret(meaning, [product, *operands], {}, sizes=graph.example)
        tensors = [t.detach().contiguous() for t in given]
        out = torch.zeros_like(product)
        run = getattr(loaded, f"scores_{number}")
        rows, columns = product.shape[-2:]
        run(
            *(ctypes.c_void_p(t.data_ptr()) for t in (product, out, *tensors)),
            *map(ctypes.c_long, graph.example.values() or [0]),
            ctypes.c_long(product.numel() // (rows * columns)),
            ctypes.c_int(rows), ctypes.c_int(columns),
        )  # fmt: skip
        torch.testing.assert_close(out, wanted.view_as(out), rtol=2e-6, atol=1e-6, msg=name)


def cpp_text(n: Node, number: int) -> str:
    """The skeleton and the struct in a namespace of their own, and a loop over all scores."""
    made = function(n, "f")
    pointers = re.findall(r"const \w+\* (s\d+);", made)
    declared = "".join(f", {text}" for text in re.findall(r"const \w+\* s\d+", made))
    text = f"""{sections_for("cpp", words(made))}
{made}
extern "C" void scores_{number}(const float* given, float* out{declared}, long batch,
    long matrices, int rows, int columns) {{
  const f_score_mod f{{{", ".join([*pointers, "batch"])}}};
  for (long m = 0; m < matrices; ++m)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c, ++given, ++out) *out = f(m, r, c, *given);
}}
}}  // namespace fusewright
"""
    return re.sub(r"\bnamespace fusewright\b", f"namespace n{number}", text)


# ---- emitted files -------------------------------------------------------------------------------

PROBLEM = """
    import math

    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            {setup}

        def forward({names}):
            {lines}


    def get_inputs():
        return [{inputs}]


    def get_init_inputs():
        return []
"""


def problem(text: str, inputs: tuple[torch.Tensor, ...]) -> str:
    made = ", ".join(
        f"torch.randn{tuple(t.shape)}" + " > 1.0" * (t.dtype is torch.bool) for t in inputs
    )
    names = ", ".join(["self", "q", "k", "v", "mask"][: 1 + len(inputs)])
    setup, lines = ("\n            ".join(t.splitlines()) for t in (SETUP, text))
    return PROBLEM.format(setup=setup, lines=lines, names=names, inputs=made)


def test_the_emitted_forward(tmp_path: Path) -> None:
    text = emit_text(problem(whole("causal"), (Q, K, V)), tmp_path, "sm_90a").text
    assert "_fusewright_full_float32()" in text
    assert '_FUSEWRIGHT_KERNELS = {"attention_fused": 6}' in text
    # keys: 4 x 256 rows of two units for each of the batch; values: 4 x 64 rows of eight units
    keys, values = 4 * 256 * (2 * 128 + 4 + 4), 4 * 64 * (8 * 128 + 4 + 16)
    size = f"-(-(batch * {keys}) // 256) * 256 + batch * {values}"
    lines = " ".join(text.split())
    assert f"torch.empty( {size}, dtype=torch.uint8, device=q.device )" in lines
    assert "( q.data_ptr(), k.data_ptr(), v.data_ptr(), past.data_ptr(), " in lines


COMPILED = {"sm_80": ("causal", "bias", "scaled"), "sm_90a": ("causal", "capped", "mask of keys")}


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", COMPILED)
def test_emitted_text_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    for name in COMPILED[arch]:
        inputs = FITS[name][1]
        made = make(model(whole(name), len(inputs)), inputs, TARGETS[arch])
        text = cuda_source(made.texts, TARGETS[arch])
        options = ["-std=c++17", f"-arch={arch}", "-Werror", "all-warnings"]
        kernels = compile_text(text, options, tmp_path)
        ours = [k for k in kernels if "attention" in k.name]
        assert ours
        assert not [k for k in ours if k.stack_bytes or k.spill_bytes]
        folder = nvrtc_folder()
        if folder and name == "causal":
            assert nvrtc_log(folder, text, f"compute_{arch[3:]}") == (0, "")


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_file_has_products_and_attention(arch: str, tmp_path: Path) -> None:
    made = emit_text(problem(HEADS, (torch.randn(8, 512, 128),)), tmp_path, arch).made
    text = cuda_source(made.texts, TARGETS[arch])
    assert "return run_attention<" in text
    assert "return run_gemm<" in text
    kernels = compile_text(
        text, [*cuda_flags(TARGETS[arch].arch), "-Werror", "all-warnings"], tmp_path
    )
    assert not [k for k in kernels if k.spill_bytes]


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FITS)
def test_emitted_models_are_as_accurate_as_eager(name: str, tmp_path: Path) -> None:
    inputs = FITS[name][1]
    check_on_gpu(problem(whole(name), inputs), inputs, tmp_path)


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_heads_of_one_projection(tmp_path: Path) -> None:
    given = (torch.randn(8, 512, 128),)
    check_on_gpu(problem(HEADS, given), given, tmp_path)


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_what_is_not_finite(tmp_path: Path) -> None:
    """A row without scores, an infinite value and a NaN among the keys come out as in eager."""
    q, k, v, mask = (
        torch.randn_like(Q),
        torch.randn_like(K),
        torch.randn_like(V),
        torch.rand(4, 256),
    )
    k[1, 2, 7, 3], v[2, 0, 9, 5], v[3, 1, 11, 6] = torch.nan, torch.inf, torch.nan
    q[0, 1, 5] = torch.inf
    hidden = mask > 0.5
    hidden[3] = True
    text = f"s = (q @ k.mT / 8).masked_fill(mask[:, None, None, :], {INF})\n{SOFTMAX}"
    check_on_gpu(problem(text, (q, k, v, hidden)), (q, k, v, hidden), tmp_path)


def check_on_gpu(text: str, inputs: tuple[torch.Tensor, ...], folder: Path) -> None:
    """The emitted model and the original one, against float64; two calls, bit for bit."""
    major, _ = torch.cuda.get_device_capability()
    emitted = emit_text(text, folder, "sm_90a" if major == 9 else "sm_80")
    assert "run_attention" in emitted.text
    module = emitted.load()
    torch.manual_seed(0)
    new = module.ModelNew().cuda()
    given = [t.cuda() for t in inputs]
    with torch.no_grad():
        ours, again = new(*given), new(*given)
        eager = new.reference_forward(*given)
        exact = new.double().reference_forward(
            *(t.double() if t.is_floating_point() else t for t in given)
        )
    assert module._FUSEWRIGHT_FUNCTIONS, "the kernels have run"
    assert torch.equal(ours.view(torch.int32), again.view(torch.int32))
    finite = eager.isfinite() & exact.isfinite()
    odd = ~finite
    torch.testing.assert_close(ours[odd], eager[odd], rtol=0, atol=0, equal_nan=True)
    mine, theirs = ((x.double() - exact)[finite].norm() for x in (ours, eager))
    assert mine <= 1.1 * theirs + 2.0**-23 * exact[finite].norm()
