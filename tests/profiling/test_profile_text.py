"""What a terminal shows of a profile: one screen of 80 columns, all of it, or a line."""

from __future__ import annotations

from dataclasses import replace

from fusewright.profiling.profile_text import (
    ROWS,
    THIS_FILE,
    WIDTH,
    profile_full,
    profile_line,
    profile_screen,
)
from fusewright.profiling.rows import ProfileRow
from fusewright.profiling.side_profile import Profile, SideProfile

SYMBOL = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)"
STEP = ProfileRow(
    "kernel", "add_group_norm", "", (), 2, 500.0, 0.5, 12.0, is_step=True,
    places="mul (line 16), add (line 17), self.group_norm (line 18)", bytes=2_150_000,
    flops=6_350_000, predicted_us=240.0, limiter="memory", roofline=0.48,
)  # fmt: skip
LONG = ProfileRow(
    "kernel", "vectorized_elementwise_kernel", "aten::leaky_relu_backward", (SYMBOL,), 12, 90.0,
    0.09, 0.5,
)  # fmt: skip
SMALL = [
    ProfileRow("operator", f"aten::small_{k}", "", (), 1, 9.0 - k, 0.009, 0.0) for k in range(6)
]
CANDIDATE = SideProfile("candidate", 1000.0, 1100.0, 640.0, 440.0, 360.0, 9, (STEP, LONG, *SMALL))
EAGER = SideProfile(
    "eager", 123456.0, 150000.0, 130000.0, 20000.0, -6544.0, 5, (LONG,), note="a " * 60
)
PROFILE = Profile("cuda", (CANDIDATE, EAGER), {"torch.compile": "it was not ready " * 8})


def test_one_screen() -> None:
    lines = profile_screen(PROFILE)
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 32
    assert f"{THIS_FILE}: 1 ms by the clock, 1.1 ms under the profiler" in lines
    (step,) = [line for line in lines if "add_group_norm" in line]
    assert step.split() == [
        *("add_group_norm", "x2", "500", "us", "50", "%", "2.15", "MB", "48", "%", "12", "us"),
    ]  # fmt: skip
    assert any("self.group_norm (line 18)" in line for line in lines)
    (more,) = [line for line in lines if "more: -v" in line]
    assert more.split()[:2] == [str(len(CANDIDATE.rows) - ROWS), "more:"]
    (between,) = [line for line in lines if "between" in line and "us" in line]
    assert between.split()[-4:] == ["440", "us", "40", "%"]
    assert any("torch.compile was not profiled: it was not ready" in line for line in lines)


def test_all() -> None:
    lines = profile_full(PROFILE)
    assert "  leaky_relu_backward: vectorized_elementwise_kernel x12" in lines
    assert f"    {SYMBOL}" in lines
    for small in SMALL:
        assert any(line.split()[:1] == [small.name.removeprefix("aten::")] for line in lines)
    assert not any("more: -v" in line for line in lines)


def test_a_line() -> None:
    assert profile_line(PROFILE, "new.py") == "this file 1 ms, eager 123.5 ms: new.py"
    alone = replace(PROFILE, sides=(EAGER,))
    assert profile_line(alone, "") == "eager 123.5 ms"


def test_times_of_steps_by_name() -> None:
    assert PROFILE.step_times == {"add_group_norm": 250.0}  # 500 us in two runs
    assert replace(PROFILE, sides=(EAGER,)).step_times == {}
