"""The page of a suite, and the pages of its problems."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from fusewright.html_report.render import page_text
from fusewright.report.run_report import outcome_report, to_json
from fusewright.suite.pages import links_from, suite_page, write_problem_pages
from fusewright.suite.row import SuiteRow, totals
from fusewright.suite.run_all import SuiteProblem
from tests.support.html_reports import SOURCE, planned
from tests.support.suite_rows import ROWS


def test_losses_stand_first() -> None:
    page = suite_page(ROWS, totals(ROWS), {"folder": "zoo"}, {})
    assert page.summary == "6 problems: 4 verified, 1 refuted, 1 not verified"
    (table,) = (one.table for one in page.sections if one.title == "Problems")
    assert table is not None
    assert [row[0].text for row in table.rows] == [
        "wrong", "<b>", "slow", "same", "fast", "nets/fastest",
    ]  # fmt: skip
    (plot,) = (one.plot for one in page.sections if one.title == "Over eager")
    told = re.findall(r"<title>([\w/]+): ", plot or "")
    assert [*dict.fromkeys(told)] == ["slow", "same", "fast", "nets/fastest"]
    tiles = {tile.label: tile for tile in page.tiles}
    assert tiles["Verdicts"].value == "4 of 6 verified"
    assert tiles["Over eager"].tone == "warn", "one is slower"
    assert tiles["Over torch.compile"].value == "not timed"


def test_the_page_is_one_file_and_escapes() -> None:
    text = page_text(suite_page(ROWS, totals(ROWS), {"folder": "zoo"}, {"fast": "out/a%20b.html"}))
    assert "<b>" not in text
    assert text.count("&lt;b&gt;") == 2, "in the table and among those that are not verified"
    assert "a &lt; b" in text
    assert '<a href="out/a%20b.html">fast</a>' in text
    links = re.findall(r"(?:src|href)\s*=\s*[\"'](?!#|data:,)([^\"']*)", text)
    assert links == ["out/a%20b.html"]
    assert not re.search(r"@import|https?:", text)


def test_a_suite_that_timed_nothing_says_so() -> None:
    rows = [SuiteRow("fine", "verified", "all passed")]
    text = page_text(suite_page(rows, totals(rows), {}, {}))
    assert "No problem was timed." in text
    assert "Every problem is verified." in text


def test_each_problem_has_a_page(tmp_path: Path) -> None:
    """Also one that left no report, and one that is the same file as another."""
    out, folder = tmp_path / "out", tmp_path / "zoo"
    (out / "nets").mkdir(parents=True)
    folder.mkdir()
    for name in ("a", "b", "gone"):
        (folder / f"{name}.py").write_text(SOURCE)
    report = outcome_report(planned())
    (out / "nets/a.json").write_text(to_json({**report, "path": "out/nets/a.py"}))
    (out / "nets/a.py").write_text(planned().text)
    problems = [
        SuiteProblem("nets/a", folder / "a.py", "k"),
        SuiteProblem("b", folder / "b.py", "k"),
        SuiteProblem("gone", folder / "gone.py", "other"),
        SuiteProblem("unread", folder / "unread.py", "", "cannot read the file"),
    ]
    same = SuiteRow("nets/a", "not-verified", str(report["reason"]))
    rows = [
        same,
        SuiteRow("b", "not-verified", same.reason),
        SuiteRow("gone", "not-verified", "no result within 600 s", end="time limit"),
        SuiteRow("unread", "not-verified", "cannot read the file", end="unreadable"),
    ]
    pages = write_problem_pages(problems, rows, out)
    texts = {name: unescape(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    for name in ("nets/a", "b"):
        assert '<svg class="graph"' in texts[name]
        assert "struct" in texts[name], "the emitted file was at hand"
    assert "no result within 600 s" in texts["gone"]
    assert "Steps and graph are not known here" in texts["gone"]
    assert "cannot read the file" in texts["unread"]
    links = links_from(tmp_path / "pages" / "suite.html", pages)
    assert links["nets/a"] == "../out/nets/a.html"


def test_a_report_of_an_earlier_run_is_not_shown_as_this_ones(tmp_path: Path) -> None:
    """A run that was killed leaves none; what lies there may be older."""
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "a.json").write_text(json.dumps({"reason": "every check passed"}))
    row = SuiteRow("a", "not-verified", "no result within 600 s", end="time limit")
    (page,) = write_problem_pages(
        [SuiteProblem("a", tmp_path / "a.py", "k")], [row], tmp_path
    ).values()
    assert "no result within 600 s" in page.read_text(encoding="utf-8")
