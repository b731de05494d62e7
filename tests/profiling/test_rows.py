"""Calls -> rows: own times, gaps, what of the device belongs together, medians, the roofline."""

from __future__ import annotations

import pytest

from fusewright.profiling.recorded import CALL, KERNEL, Call, recorded_calls
from fusewright.profiling.rows import (
    Key,
    ProfileRow,
    rows_of,
    short_symbol,
    summed,
    with_steps,
)
from fusewright.profiling.steps import StepAmounts
from tests.support.profiler import entry, kernel, launch, text


def only_call(*entries: dict[str, object]) -> Call:
    (call,) = recorded_calls(text(*entries), "eager")
    return call


HOST = only_call(
    entry(CALL, 0, 100),
    entry("Torch-Compiled Region: 0/0", 2, 96),
    entry("aten::linear", 10, 40),
    entry("aten::addmm", 12, 30),
    entry(f"{KERNEL}softmax", 60, 20),
    entry("aten::addmm", 85, 5),
)


def test_the_own_time_of_each_operator() -> None:
    sums = summed(HOST, "cpu")
    times = {key.name: row.us for key, row in sums.rows.items()}
    assert times == pytest.approx({"aten::linear": 10, "aten::addmm": 35, "softmax": 20}, abs=0.01)
    assert sums.busy_us == pytest.approx(65, abs=0.01), "a region of Python's is no operator"
    assert sums.rows[Key("operator", "aten::addmm")].count == 2
    assert sums.rows[Key("kernel", "softmax")].count == 1
    assert sums.span_us == pytest.approx(100)


def test_a_gap_is_told_of_what_takes_longest_behind_it() -> None:
    gaps = {key.name: row.gap_us for key, row in summed(HOST, "cpu").rows.items()}
    wanted = {"aten::linear": 0, "aten::addmm": 10 + 5, "softmax": 10}
    assert gaps == pytest.approx(wanted, abs=0.01)


DEVICE = only_call(
    entry(CALL, 0, 50),
    entry(f"{KERNEL}norm", 5, 10),
    launch(6, 1),
    launch(9, 2),
    entry("aten::mm", 20, 10),
    launch(22, 3),
    launch(24, 4),
    kernel("void fusewright::norm_rows<4>(float*)", 20, 10, 1),
    kernel("void fusewright::norm_tail<4>(float*)", 32, 8, 2),
    kernel("void cutlass::gemm<float, (cutlass::Layout)1>(int)", 45, 20, 3),
    kernel("void cutlass::gemm<float, (cutlass::Layout)1>(int)", 55, 20, 4, stream=9),
)


def test_kernels_of_one_step_are_one_row() -> None:
    sums = summed(DEVICE, "cuda")
    norm = sums.rows[Key("kernel", "norm")]
    assert (norm.us, norm.count, len(norm.symbols)) == (pytest.approx(18), 1, 2)
    gemm = sums.rows[Key("kernel", "gemm", "aten::mm")]
    assert (gemm.us, gemm.count) == (pytest.approx(40), 2)


def test_gaps_are_when_no_stream_works() -> None:
    sums = summed(DEVICE, "cuda")
    assert sums.rows[Key("kernel", "norm")].gap_us == pytest.approx(20 + 2, abs=0.01)
    assert sums.rows[Key("kernel", "gemm", "aten::mm")].gap_us == pytest.approx(5, abs=0.01)
    assert sums.busy_us == pytest.approx(10 + 8 + 30, abs=0.01), "two streams at once count once"
    assert sums.span_us == pytest.approx(75, abs=0.01), "the device goes on behind the return"


def made_of(*times: float) -> list[Call]:
    return [
        only_call(entry(CALL, 0, 100), entry("aten::exp", 5, us), entry("aten::add", 50, 7))
        for us in times
    ]


def test_medians_over_calls_in_a_fixed_order() -> None:
    rows = rows_of([summed(call, "cpu") for call in made_of(10, 40, 12)])
    assert [row.name for row in rows] == ["aten::exp", "aten::add"]
    assert rows[0].us == pytest.approx(12, abs=0.01)
    assert rows[0].share == pytest.approx(0.12, abs=0.001), "of the whole call"
    equal = only_call(entry(CALL, 0, 9), entry("x::b", 1, 1), entry("x::a", 3, 1))
    assert [row.name for row in rows_of([summed(equal, "cpu")])] == ["x::a", "x::b"]


def test_what_runs_in_few_calls_has_no_row() -> None:
    calls = [
        *made_of(1, 1),
        only_call(entry(CALL, 0, 9), entry("x::once", 1, 5), entry("aten::add", 7, 1)),
    ]
    names = {row.name for row in rows_of([summed(call, "cpu") for call in calls])}
    assert names == {"aten::exp", "aten::add"}


def row(name: str, us: float, count: int = 1, operator: str = "") -> ProfileRow:
    return ProfileRow("kernel", name, operator, (), count, us, 0.5, 1.0)


STEPS = {"norm": StepAmounts(2000, 500, 10.0, "memory", "self.norm (line 7)", "mul -> [4]")}


def test_a_step_has_what_its_file_says() -> None:
    (found,) = with_steps([row("norm", 40.0, count=2)], STEPS, is_example=True)
    assert found.is_step
    assert (found.bytes, found.flops, found.limiter) == (4000, 1000, "memory")
    assert (found.predicted_us, found.roofline) == (20.0, 0.5)
    assert found.places == "self.norm (line 7)"


def test_beyond_the_roofline_nothing_runs() -> None:
    (found,) = with_steps([row("norm", 9.0)], STEPS, is_example=True)
    assert (found.predicted_us, found.roofline) == (10.0, None)


def test_of_other_sizes_the_file_says_nothing() -> None:
    (found,) = with_steps([row("norm", 40.0)], STEPS, is_example=False)
    assert found.is_step
    assert (found.bytes, found.flops, found.predicted_us, found.roofline) == (None,) * 4


def test_the_same_name_of_pytorch_is_no_step() -> None:
    for one in (row("norm", 40.0, operator="aten::norm"), row("other", 40.0)):
        assert with_steps([one], STEPS, is_example=True) == (one,)


@pytest.mark.parametrize(
    ("symbol", "short"),
    [
        ("void at::native::(anonymous namespace)::sum_kernel<4, float>(float*)", "sum_kernel"),
        ("void at::native::vectorized_elementwise_kernel<4, at::X>(int)",
         "vectorized_elementwise_kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("sm80_xmma_gemm_f32f32", "sm80_xmma_gemm_f32f32"),
        ("<lambda>", "<lambda>"),
    ],
)  # fmt: skip
def test_short_symbols(symbol: str, short: str) -> None:
    assert short_symbol(symbol) == short
