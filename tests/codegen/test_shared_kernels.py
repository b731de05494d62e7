"""Equal kernels of a plan are one function: what makes two the same, and what it is called."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.build.fused_module import scope_of
from fusewright.codegen.kernel_symbols import CXX_NAMES
from fusewright.codegen.kernel_text import KernelText
from fusewright.codegen.launch import Launch
from fusewright.codegen.shared_kernels import KernelStep, share
from fusewright.codegen.value_names import ValueNames
from fusewright.common.problem_file import load_problem
from fusewright.compiler.compilation import Compilation, design, make
from fusewright.compiler.pipeline import _code
from fusewright.emit.emitted_file import emit_bare_class
from fusewright.fusion.kernel_names import common_name, shared_names
from fusewright.kernels.registry import Printed, kernel_step, shared_kernels
from fusewright.report.decision_record import step_reports
from fusewright.targets.target import TARGETS
from fusewright.tune.bench import CandidateText, TuneBench
from fusewright.tune.search_space import TuneChoice, choices
from fusewright.tune.tuner import DEFAULT
from tests.support.compiled import build, prepare_as_optimize
from tests.support.emitting import emit_text

ROWS = torch.randn(64, 48)
NO_RULES: frozenset[str] = frozenset()


class Each(nn.Module):
    """Every argument goes through a function of its own; no two results meet in a kernel."""

    def __init__(self, *functions: str) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *given: Tensor) -> list[Tensor]:
        return [CALLS[name](x) for name, x in zip(self.functions, given, strict=True)]


CALLS = {
    "double": lambda x: torch.softmax(x * 2.0, -1),
    "treble": lambda x: torch.softmax(x * 3.0, -1),
    "first": lambda x: x[:, :40].exp().sum(-1),
    "rows": lambda x: x.exp().sum(-1),
}


def functions(made: Compilation) -> list[str]:
    """The function of each kernel, in the order of the plan."""
    return [made.shared.function_of[kernel.name] for kernel in made.plan.kernels]


def of(target: str, calls: Sequence[str], given: Sequence[Tensor]) -> Compilation:
    return make(Each(*calls), given, TARGETS[target])


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize(
    ("calls", "other", "count"),
    [
        (("double", "double"), ROWS.clone(), 1),
        (("double", "treble"), ROWS.clone(), 2),  # one constant
        (("first", "rows"), torch.randn(64, 40), 2),  # one stride
        (("double", "double"), ROWS.double(), 2),  # one type
        (("double", "double"), ROWS[:32].clone(), 2),  # one size
    ],
)
def test_what_is_shared(target: str, calls: tuple[str, str], other: Tensor, count: int) -> None:
    made = of(target, calls, [ROWS, other])
    assert len(made.plan.kernels) == 2
    assert len(set(functions(made))) == len(made.shared.functions) == count
    assert [f.name for f in made.shared.functions] == [*dict.fromkeys(functions(made))]


def test_what_is_launched_otherwise_is_not_shared() -> None:
    """Scratch memory that Python gives, and sections that no word of the text names."""
    made = of("sm_90a", ["double", "double"], [ROWS, ROWS.clone()])
    one, other = (kernel_step(kernel) for kernel in made.kernels)
    assert len(share([one, other], "cuda", CXX_NAMES).functions) == 1
    launch = other.printed("kernel").launch
    for changed in (
        replace(launch, workspace="1024"),
        replace(launch, needs=launch.needs | {"tile"}),
        replace(launch, statements=("const long tiles = 4;",)),
        replace(launch, call=replace(launch.call, template_args=(7,))),
    ):
        unlike = replace(other, numbered=partial(_launched, other, changed))
        assert len(share([one, unlike], "cuda", CXX_NAMES).functions) == 2


def _launched(step: KernelStep, launch: Launch, name: str) -> KernelText:
    return replace(step.numbered(name), launch=launch)


def test_what_is_overwritten_is_not_shared_with_what_is_not() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(48, 48), nn.Linear(48, 48)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            dead, kept = self.fc1(x), self.fc2(x)
            return F.gelu(dead), F.gelu(kept), kept

    made = make(Twice(), [ROWS], TARGETS["cpu"])
    assert [len(text.in_place) for text in made.texts] == [1, 0]
    assert len(made.shared.functions) == 2


def test_kernels_share_within_groups() -> None:
    """What a tuner was told apart stays apart."""
    made = of("cpu", ["rows", "rows"], [ROWS, ROWS.clone()])
    names = [kernel.name for kernel in made.plan.kernels]
    groups = {name: name for name in names}
    assert len(shared_kernels(made.kernels, "cpp", groups=groups).functions) == 2


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["layers_0_fc1_bias_gelu", "layers_11_fc1_bias_gelu"], "layers_fc1_bias_gelu"),
        (["blocks_0_layers_1_norm", "blocks_1_layers_0_norm"], "blocks_layers_norm"),
        (["conv1_relu", "conv2_relu", "conv_relu"], "conv_relu"),
        (["add", "add_2", "add_3"], "add"),
        (["norm2_add_layer_norm", "final_layer_norm"], "layer_norm"),
        (["left_2", "right_2"], "left_2"),
        (["left", "right"], "left"),
    ],
)
def test_common_names(names: list[str], common: str) -> None:
    assert common_name(names) == common


def test_names_are_unique() -> None:
    groups = [["a_0_fc", "a_1_fc"], ["a_fc"], ["a_2_fc", "a_3_fc"], ["relu", "relu_2"]]
    assert shared_names(groups, CXX_NAMES) == ["a_fc_2", "a_fc", "a_fc_3", "relu_fused"]


# ---- whole models --------------------------------------------------------------------------------


BLOCKS = """
    import torch
    from torch import nn

    count = {count}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.fc1 = nn.Linear(32, 64)
            self.fc2 = nn.Linear(64, 32)

        def forward(self, x):
            return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(count)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def get_inputs():
        return [torch.randn(16, 32)]
"""


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_many_blocks_have_the_kernels_of_a_few(target: str, tmp_path: Path) -> None:
    """The source of the kernels is the same, to the byte, and so is what is built; the tuner has
    the same to choose; the record has a line for what each block does; reports count every step."""
    few, many = (emit_text(BLOCKS.format(count=n), tmp_path, target) for n in (3, 12))
    block = r'_FUSEWRIGHT_CUDA = r"""' if target != "cpu" else '_FUSEWRIGHT_CPP = r"""'
    sources = [e.text.partition(block)[2].partition('"""')[0] for e in (few, many)]
    assert sources[0].count('extern "C"') == len(few.made.shared.functions)
    assert len(sources[1]) <= len(sources[0]) * 1.01
    assert len(many.made.plan.kernels) > 2 * len(few.made.plan.kernels)
    assert len(many.made.shared.functions) == len(few.made.shared.functions)
    spaces = [
        choices(e.made.kernels, e.made.shared, e.made.plan, NO_RULES, lambda _, e=e: e.made.plan)
        for e in (few, many)
    ]
    assert spaces[0].count == spaces[1].count
    records = [e.made.record("blocks.py").splitlines() for e in (few, many)]
    assert len(records[0]) == len(records[1])
    assert any("self.blocks[0..11].fc1" in line for line in records[1])
    assert len(step_reports(many.made.plan, many.made.descriptions)) == len(many.made.plan.steps)


def test_a_choice_is_for_all_kernels_of_a_function(tmp_path: Path) -> None:
    made = emit_text(BLOCKS.format(count=3), tmp_path, "sm_90a").made
    space = choices(made.kernels, made.shared, made.plan, NO_RULES, lambda _: made.plan)
    users = Counter(functions(made))
    name = next(name for name in space.others if users[name] > 1)
    other = space.others[name][0]
    chosen = design(made.given, made.plan.target, choice=TuneChoice({name: other}))
    assert chosen.shared.function_of == made.shared.function_of
    kinds = {chosen.shared.function_of[text.name]: kind for text, _, kind in chosen.kernels}
    assert kinds == {**space.defaults, name: other}


@pytest.mark.compiler
def test_shared_functions_give_the_bits_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel once under a name of its own, once shared: the same numbers."""
    emitted = emit_text(BLOCKS.format(count=3), tmp_path)
    monkeypatch.setattr("fusewright.kernels.registry.kernel_step", _alone)
    apart = emit_text(BLOCKS.format(count=3), tmp_path)
    assert len(apart.made.shared.functions) == len(apart.made.plan.kernels)
    assert len(emitted.made.shared.functions) < len(emitted.made.plan.kernels)
    results = []
    for file in (emitted, apart):
        torch.manual_seed(0)
        new = file.load().ModelNew()
        x = torch.randn(16, 32)
        monkeypatch.setattr(type(new), "reference_forward", None)  # kernels run
        with torch.no_grad():
            results.append(new(x))
    assert torch.equal(*results)


def _alone(kernel: Printed, names: ValueNames, _: str) -> KernelStep:
    return kernel_step(kernel, names, kernel[0].name)


PARTS = """
    import torch
    from torch import nn

    class Small(nn.Module):
        def forward(self, x):
            return torch.softmax(torch.exp(x * 0.5) + x, -1)

    class Large(nn.Module):
        def forward(self, x):
            return torch.softmax(torch.exp(x * 0.5) + x, -1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = Small(), Large()

        def forward(self, x):
            x = self.small(x)
            if float(x.sum()) > 1e9:
                x = x * 2
            return self.large(x)

    def get_inputs():
        return [torch.randn(64, 128)]

    def get_init_inputs():
        return []
"""


@pytest.mark.compiler
def test_a_function_is_timed_over_all_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that ticks when it is asked: a call of a kernel takes one tick."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "blocks.py"
    path.write_text(textwrap.dedent(BLOCKS.format(count=3)).lstrip(), encoding="utf-8")
    problem = load_problem(path)
    module, inputs, machine = problem.make_model(), problem.make_inputs(), TARGETS["cpu"]
    made = make(module, inputs, machine)

    def write(_: TuneChoice) -> CandidateText:
        runtime, forward = _code(made, module, scope_of(module))
        return CandidateText(runtime, emit_bare_class(runtime, forward), True)

    bench = TuneBench(module, inputs, machine, write)
    assert bench.build([DEFAULT], time.monotonic() + 300) == ("",)
    bench.outputs(DEFAULT)
    clock = SimpleNamespace(perf_counter=count().__next__)
    monkeypatch.setattr("fusewright.tune.bench.time", clock)
    assert bench.kernel_times(DEFAULT) == Counter(functions(made))


@pytest.mark.compiler
def test_parts_share_functions(tmp_path: Path) -> None:
    """Two classes with the same kernel: one function, which both call."""
    path = tmp_path / "parts.py"
    path.write_text(textwrap.dedent(PARTS).lstrip(), encoding="utf-8")
    case, why = prepare_as_optimize(path)
    assert why, "it was captured as a whole"
    assert len(case.made.kernels) == 1, "one function"
    assert len(case.made.reports) == 2, "two steps"
    (name,) = (kernel.name for kernel in case.made.kernels)
    assert case.text.count(f'run["{name}"](') == 2
    assert case.text.count(f"struct {name} ") == 1
    (emitted,) = build([case], tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(emitted.ModelNew()(*case.inputs), case.model(*case.inputs))
