"""What a page of a problem says, and that it says so where something is not known."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from fusewright.errors import ToolMissing
from fusewright.html_report.page import Page, Section
from fusewright.html_report.problem_page import ProblemPage
from fusewright.html_report.render import page_text
from fusewright.profiling.rows import ProfileRow
from fusewright.profiling.side_profile import Profile, SideProfile
from fusewright.report.run_report import (
    error_report,
    outcome_report,
    plain,
    profile_report,
    timing_report,
    verdict_report,
)
from tests.support.html_reports import (
    ERRORS,
    RATIOS,
    SOURCE,
    TIMING,
    VERDICT,
    planned,
    problem_page,
)


def section(page: Page, title: str) -> Section:
    (found,) = (one for one in page.sections if one.title == title)
    return found


def texts(found: Section) -> list[list[str]]:
    assert found.table is not None
    return [[cell.text for cell in row] for row in found.table.rows]


def test_what_is_seen_first() -> None:
    page = problem_page().page()
    assert page.summary == "refuted: it fails 1 of 3 checks; do not use it"
    assert page.tone == "bad"
    tiles = {tile.label: tile for tile in page.tiles}
    assert [*tiles] == ["Verdict", "Speed", "Fused", "Accuracy", "What is lost"]
    assert tiles["Verdict"].details == ("1 check passed, 1 failed, 1 skipped",)
    assert tiles["Speed"].value == "1.50x"
    assert "95 % interval 1.40 to 1.60: faster" in tiles["Speed"].details[0]
    assert tiles["Fused"].value == "2 kernels"
    assert tiles["Accuracy"].value == "2.2e-07"
    lost = tiles["What is lost"].details
    assert lost[:2] == ("fails accuracy", "slower than torch.compile: 0.80x")
    assert lost[2] == "self.up (line 18) stays PyTorch's"


def test_a_ratio_that_shows_nothing_is_not_written_large() -> None:
    ratio = {"median": 3.26, "low": 0.45, "high": 5.92, "claim": "no difference shown"}
    unclear = replace(VERDICT, timing={**TIMING, "ratios": {"eager": ratio}})
    tiles = {tile.label: tile for tile in ProblemPage(verdict_report(unclear), "it").page().tiles}
    assert (tiles["Speed"].value, tiles["Speed"].tone) == ("no difference", "")
    assert tiles["Speed"].details[0].startswith("3.26x as fast as eager, 95 % interval 0.45")


def test_the_graph_is_coloured_by_kernel() -> None:
    graph = section(problem_page().page(), "The model, by kernel").graph
    assert graph is not None
    by_name = {box.name: box for box in graph.boxes}
    assert by_name["x"].mark == "in"
    assert by_name["relu"].mark == by_name["add"].mark == "1"
    ups = {box.mark for box in graph.boxes if box.name == "self.up"}
    assert ups == {"Py", "2"}, "the product, and its bias in the kernel behind it"
    assert by_name["softmax"].mark == by_name["tanh"].mark == "2"
    assert len({box.hue for box in graph.boxes}) == 4
    assert by_name["relu"].href == "#kernel-1"
    assert by_name["relu"].detail.startswith("line 17 · ")
    assert "line 18" in by_name["tanh"].title or "line 19" in by_name["tanh"].title


def test_each_kernel_stands_beside_its_source() -> None:
    first, second = section(problem_page().page(), "Kernels").kernels
    facts = dict(first.facts)
    made = plain(planned().forwards)
    assert isinstance(made, list)
    step = made[0]["graph"]["steps"][0]
    assert facts["bytes"] == "66.6 kB"
    assert step["bytes"] == 64 * 128 * 4 * 2 + 128 * 4 * 2
    assert facts["time"].endswith(", predicted")
    source = unescape(re.sub("<[^>]+>", "", first.source))
    assert source.startswith("17 y = self.parts[")
    code = unescape(re.sub("<[^>]+>", "", first.code))
    assert f"struct {first.name} {{" in code
    assert (first.anchor, second.anchor) == ("kernel-1", "kernel-2")


def test_measured_times_take_the_place_of_predicted_ones() -> None:
    name = section(problem_page().page(), "Kernels").kernels[0].name
    page = problem_page(measured={name: 12.5}).page()
    first, second = section(page, "Kernels").kernels
    assert dict(first.facts)["time"] == "12.5 us, measured"
    assert dict(second.facts)["time"].endswith(", predicted")
    plot = section(page, "Roofline").plot or ""
    assert re.search(rf"<title>{name}: .* 12\.5 us measured</title>", plot)
    assert len(re.findall(r"<title>[^<]* predicted</title>", plot)) == 2


def test_a_profile_has_rows_and_gives_kernels_their_times() -> None:
    """Of the steps of the file, and of no operator that happens to have the name of one."""
    text = planned().text
    first, second = section(problem_page().page(), "Kernels").kernels
    made = ProfileRow("kernel", first.name, "", (), 2, 12.5, 0.25, 3.0, is_step=True, bytes=4096)
    other = ProfileRow("operator", second.name, "", (), 1, 20.0, 0.4, 0.0)
    side = SideProfile("candidate", 60.0, 50.0, 32.5, 17.5, 27.5, 9, (made, other), "a note")
    eager = replace(side, name="eager", rows=(other,), note="")
    report = profile_report(Profile("cpu", (side, eager), {}))
    page = ProblemPage(report, "it", SOURCE, text).page()
    shown = section(page, "Where the time of this file goes")
    assert shown.notes == ("A call takes 60 us by the clock, 50 us under the profiler.", "a note")
    assert texts(shown) == [
        [f"{first.name} x2", "12.5 us", "25%", "4.1 kB", "", "3 us"],
        [second.name, "20 us", "40%", "", "", "0 us"],
        ["between: Python, the profiler", "17.5 us", "35%", "", "", ""],
    ]
    assert len(texts(section(page, "Where the time of eager goes"))) == 2
    times = [dict(block.facts)["time"] for block in section(page, "Kernels").kernels]
    assert times[0].startswith("6.25 us, measured; "), "of one of its two runs, as is predicted"
    assert "measured" not in times[1]


def test_accuracy_is_told_of_each_output() -> None:
    rows = texts(section(problem_page().page(), "Accuracy"))
    assert [row[:3] for row in rows] == [
        ["output 0", "6.5e-08", "2.1e-07"],
        ["output 1", "2.2e-07", "1.9e-07"],
    ]
    one = replace(VERDICT, accuracy={"candidate": ERRORS[0], "eager": ERRORS[1]})
    page = ProblemPage(verdict_report(one), "one").page()
    assert [row[:3] for row in texts(section(page, "Accuracy"))] == [
        ["output 0", "2.2e-07", "2.1e-07"]
    ]


def test_what_fails_stands_first_among_the_checks() -> None:
    rows = texts(section(problem_page().page(), "Checks"))
    assert [row[:2] for row in rows] == [
        ["accuracy", "fail"],
        ["more-accurate", "note"],
        ["gradients", "skip"],
        ["values", "pass"],
    ]
    assert rows[0][2].startswith("the error against float64 is not larger than eager's")


CONTEST = {
    "timings": {"a.py": TIMING, "b<.py": {"sides": TIMING["sides"], "ratios": {}}},
    "over_best": {"a.py": RATIOS["eager"], "b<.py": RATIOS["torch.compile"]},
    "lost": {"c.py": "it broke"},
    "unclear": {},
}
UNKNOWN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "explain": (
        outcome_report(planned()),
        ("Nothing was timed.", "No output was compared", "Nobody judged anything here"),
    ),
    "judge": (
        verdict_report(VERDICT),
        ("Steps and graph are not known here", "Not drawn. Steps and"),
    ),
    "bench": (
        timing_report(TIMING),
        ("Steps and graph are not known here", "Nobody judged anything"),
    ),
    "contest": (timing_report(CONTEST), ("c.py was not timed: it broke",)),
    "error": (error_report(ToolMissing("no g++")), ("not-verified: no g++", "Nothing was timed.")),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_said_in_words(name: str) -> None:
    report, said = UNKNOWN[name]
    text = unescape(page_text(ProblemPage(report, "it").page()))
    for words in said:
        assert words in text
    page = ProblemPage(report, "it").page()
    for one in page.sections:
        drawn = one.graph or one.plot or one.table or one.kernels or one.text
        assert drawn or any(one.notes), f"{one.title} is empty"
        assert one.table is None or one.table.rows


def test_a_candidate_of_ours_tells_of_its_kernels() -> None:
    """To `judge`, which plans nothing."""
    page = ProblemPage(verdict_report(VERDICT), "it", SOURCE, planned().text).page()
    names = [block.name for block in section(page, "Kernels").kernels]
    assert names == [block.name for block in section(problem_page().page(), "Kernels").kernels]
    theirs = ProblemPage(verdict_report(VERDICT), "it", SOURCE, "class ModelNew: 1 +").page()
    assert section(theirs, "Kernels").kernels == ()


BRANCHES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""


def test_a_model_that_stays_as_it_was_is_known() -> None:
    """To be so, unlike one of which nobody has asked."""
    report = outcome_report(planned(BRANCHES))
    page = ProblemPage(report, "it", BRANCHES, planned(BRANCHES).text).page()
    tiles = {tile.label: tile for tile in page.tiles}
    assert tiles["Fused"].value == "nothing"
    assert tiles["What is lost"].details[0].startswith("the model as written: ")
    for title in ("The model, by kernel", "Roofline", "What stays PyTorch's"):
        assert "the model stays as it was" in section(page, title).notes[0]


def test_a_part_is_not_taken_for_the_whole_call() -> None:
    """Its steps are a share of what was timed, so that a mark of both would lie."""
    found = plain(problem_page().report)
    assert isinstance(found, dict)
    plot = section(problem_page().page(), "Roofline").plot or ""
    assert "a whole call: " in plot
    left = [{"path": "", "kind": "Model", "why": "it branches"}]
    parts = {"taken": [{"class": "FusedBlock", "paths": ["first"]}], "left": left}
    found["forwards"][0]["label"] = "FusedBlock is first"
    page = problem_page(report={**found, "parts": parts}).page()
    told = section(page, "Roofline")
    assert "a whole call: " not in (told.plot or "")
    assert told.notes[0].startswith("Of the forward FusedBlock is first.")
    tiles = {tile.label: tile for tile in page.tiles}
    assert tiles["Fused"].details[0] == "FusedBlock is first"
    assert "the model as written: it branches" in tiles["What is lost"].details


def test_the_page_is_one_file_and_escapes() -> None:
    text = page_text(problem_page().page())
    assert text.count("<script") == 1, "that which sorts"
    assert not re.search(r"<img|<b[ >]|onclick=\"|</title>.*</title>.*</head>", text)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:,)|@import|url\((?!#)|https?:", text)
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "&lt;script&gt;alert(4)&lt;/script&gt;" in text
    assert text.count("alert(4)") == 1


def test_the_same_report_is_the_same_page() -> None:
    assert page_text(problem_page().page()) == page_text(problem_page().page())
