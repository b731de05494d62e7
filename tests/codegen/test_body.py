"""The generated text: numbers keep every bit, lambdas leave loops to the team, rows are kept."""

from __future__ import annotations

import math
import re

import pytest
import torch

from fusewright.codegen.cpu_source import cpp_source
from fusewright.codegen.cxx_literal import cxx_literal
from fusewright.codegen.kernel_text import KernelText
from fusewright.ir.graph import BatchSize
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.registry import default_strategy, kernel_text
from fusewright.kernels.rowwise.strategy import RowPerTeam, cpu_rows
from fusewright.loopnest.nest import nest
from fusewright.loopnest.reduction_passes import KEEP_NOTHING, KeepPolicy, plan_row
from fusewright.targets.target import TARGETS
from tests.fusion.test_planner import IMAGE, ROWS, planned


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.1, "float", "0.1f"), (1.0, "float", "1.0f"), (-2.5, "float", "(-2.5f)"),
        (0.1, "double", "0.1"),
        (-0.0, "float", "(-0.0f)"), (3, "long", "3L"), (-3, "int", "-3"), (True, "bool", "true"),
        (math.inf, "float", "infinity<float>()"), (-math.inf, "double", "-infinity<double>()"),
        (math.nan, "float", "not_a_number<float>()"), (BatchSize(6), "float", "(float)(batch * 6)"),
    ],
)  # fmt: skip
def test_numbers(value: float, kind: str, text: str) -> None:
    assert cxx_literal(value, kind) == text


@pytest.mark.parametrize("value", [math.pi, 1 / 3, 1e-38, 3.4028234e38, 1e-45, 16777217.0])
def test_floats_keep_every_bit(value: float) -> None:
    exact = torch.tensor(value, dtype=torch.float32)
    assert (
        torch.tensor(float(cxx_literal(value, "float").rstrip("f")), dtype=torch.float32) == exact
    )


def bodies(text: str, x: torch.Tensor) -> list[KernelText]:
    made = planned(text, x)
    layouts = [nest(k, made.graph) for k in made.kernels]
    context = StrategyContext(TARGETS["cpu"], made.graph)
    return [kernel_text(n, default_strategy(n, context)) for n in layouts]


TEXTS = [
    ("return torch.softmax(x, -1) * 2", ROWS),
    ("return F.layer_norm(torch.relu(x), (12,))", ROWS),
    ("return torch.relu(self.norm(x)), x.argmax(-1)", IMAGE),
    ("return x.permute(0, 2, 3, 1) * torch.arange(3.0)", IMAGE),
    ("return torch.where(x > 0, x, float('-inf')).logsumexp(1)", ROWS),
]


@pytest.mark.parametrize(("text", "x"), TEXTS, ids=[t[0] for t in TEXTS])
def test_the_text_has_no_loop_of_its_own(text: str, x: torch.Tensor) -> None:
    for made in bodies(text, x):
        assert not re.search(r"\b(for|while|goto|__syncthreads|threadIdx|omp)\b", made.text)
        assert re.match(rf"// \S.* -> \[.*\]\nstruct {made.name} {{\n", made.text)


def test_every_section_that_the_text_calls_is_in_the_file() -> None:
    kernels = bodies("return torch.tanh(x).masked_fill(x > 3, float('nan')).half() * 2", ROWS)
    source = cpp_source(kernels)
    for word in ("not_a_number", "round_to", "half_t", "run_map"):
        assert re.search(rf"\b{word}\b", source.partition(f"struct {kernels[0].name}")[0])


# ---- passes and kept rows ------------------------------------------------------------------------

PASSES = [
    # forward, passes over a row, values kept
    ("return torch.softmax(x, -1)", 3, 1),
    ("return F.layer_norm(x, (12,))", 2, 0),
    ("return F.layer_norm(torch.exp(x), (12,))", 2, 1),
    ("return x.sum(-1)", 1, 0),
    ("return x.sum(-1), x.amax(-1)", 2, 0),
]


@pytest.mark.parametrize(("text", "passes", "kept"), PASSES, ids=[p[0] for p in PASSES])
def test_passes(text: str, passes: int, kept: int) -> None:
    made = planned(text, ROWS)
    (kernel,) = made.kernels
    layout = nest(kernel, made.graph)
    chosen = cpu_rows(layout, made.graph)
    row = plan_row(layout, KeepPolicy(chosen.keep, chosen.min_cost, shared_row=False))
    assert (len(row.passes), len(row.keeps)) == (passes, kept)


def test_nothing_is_kept_when_the_policy_says_so() -> None:
    made = planned("return torch.softmax(x, -1)", ROWS)
    layout = nest(made.kernels[0], made.graph)
    assert plan_row(layout, KeepPolicy(keep=False, min_cost=0, shared_row=False)).keeps == {}


TEAM = RowPerTeam(threads=256, vector=4, keep=False)
LOGSUMEXP = "torch.logsumexp(torch.relu(x) * 2, -1)"
SWEEPS = [
    # forward, passes of a team that keeps nothing, sums of exponentials that need none of their own
    ("return torch.softmax(x, -1)", 2, 1),
    ("return torch.log_softmax(x.half(), -1)", 2, 1),
    (f"return {LOGSUMEXP}", 1, 1),
    ("return torch.logsumexp(x, -1), x.amax(-1), x.softmax(-1)", 2, 2),
    ("return torch.logsumexp(x, -1), x.sum(-1)", 2, 1),
    ("return (x - x.amin(-1, True)).exp().sum(-1)", 2, 0),
    ("return (x * 3 - x.amax(-1, True)).exp().sum(-1)", 2, 0),
    ("return (x.amax(-1, True) - x).exp().sum(-1)", 2, 0),
    ("return (x - x.amax(-1, True)).sum(-1)", 2, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "passes", "sums"), SWEEPS, ids=[s[0] for s in SWEEPS])
def test_a_maximum_and_exponentials_come_from_one_sweep(text: str, passes: int, sums: int) -> None:
    made = planned(text, ROWS)
    layout = nest(made.kernels[0], made.graph)
    row = plan_row(layout, KEEP_NOTHING)
    assert (len(row.passes), len(row.exponentials)) == (passes, sums)
    printed = kernel_text(layout, TEAM).text
    assert printed.count("team.online_softmax(") == (sums > 0)
    assert len(re.findall(r"= m\d+\.sum\(v\d+\);", printed)) == sums


@pytest.mark.parametrize("other", [KeepPolicy(True, 0, True), KeepPolicy(False, 0, False)])
def test_two_passes_where_a_row_is_kept_or_has_one_thread(other: KeepPolicy) -> None:
    made = planned(f"return {LOGSUMEXP}", ROWS)
    row = plan_row(nest(made.kernels[0], made.graph), other)
    assert (len(row.passes), row.exponentials) == (2, {})
