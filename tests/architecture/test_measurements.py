"""docs/measurements/*.jsonl: well formed, of use, and the page is what they make."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.folders import ROOT
from tests.support.scripts import load_script

measurements = load_script("tools/measurements.py")
RECORDS = measurements.load()
SOURCES = sorted(
    p for suffix in ("py", "cuh", "h") for p in (ROOT / "fusewright").rglob(f"*.{suffix}")
)
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if p != measurements.PAGE)
# What shows how ids are written, and cites none.
EXAMPLES = {"NAME-0001", "id"}


def places() -> dict[str, list[str]]:
    """Every id that code or docs cite -> where."""
    found: dict[str, list[str]] = {}
    tests = sorted((ROOT / "tests").rglob("*.py"))
    for path in (*SOURCES, *PAGES, ROOT / "README.md", *tests):
        if path == Path(__file__):
            continue
        for one in measurements.cited(path.read_text(encoding="utf-8")):
            found.setdefault(one, []).append(str(path.relative_to(ROOT)))
    return {one: where for one, where in found.items() if one not in EXAMPLES}


def test_every_cited_id_exists() -> None:
    known = {m.id for m in RECORDS}
    assert not {one: where for one, where in places().items() if one not in known}


def test_every_record_is_of_use() -> None:
    cited = places()
    assert not [m.id for m in RECORDS if m.id not in cited and not m.supports]


def test_what_records_support_is_there() -> None:
    assert not measurements.missing(RECORDS)


def test_a_name_in_two_places_needs_its_folder(tmp_path: Path) -> None:
    for folder in ("conv", "gemm"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "match.py").write_text("LEAST_FLOPS = 1 << 28\n")
    (tmp_path / "gemm" / "tile.cuh").write_text("//@ pack: needs lane\n")
    for support, wrong in {
        "LEAST_FLOPS": True, "gemm.LEAST_FLOPS": False, "pack": False, "gone": True,
    }.items():  # fmt: skip
        record = measurements.read(json.dumps(GIVEN | {"supports": [support]}), "gemm.jsonl:1")
        assert bool(measurements.missing([record], tmp_path)) is wrong


def test_the_page_is_up_to_date() -> None:
    text = measurements.PAGE.read_text(encoding="utf-8")
    assert text == measurements.page(RECORDS), "run python tools/measurements.py"


# Comments that say of something else that it was measured.
NO_NUMBER = {
    "judge/evidence/error_metrics.py": "counted, by the tensors that live at once",
    "rewrite/concat_in_place.py": "nothing was found",
}


def test_code_cites_ids_and_no_diary() -> None:
    named = {p.relative_to(ROOT / "fusewright").as_posix(): p for p in SOURCES}
    diary = {n for n, p in named.items() if "facts.md" in p.read_text(encoding="utf-8")}
    assert not diary


def test_what_comments_call_measured_has_an_id() -> None:
    for path in SOURCES:
        name = path.relative_to(ROOT / "fusewright").as_posix()
        if path.suffix != ".py" or name in NO_NUMBER:
            continue
        for block in comments(path.read_text(encoding="utf-8")):
            assert "measured" not in block.lower() or "[m: " in block, f"{name}: {block}"


def comments(text: str) -> list[str]:
    """The comments of a file: lines below each other are one."""
    lines = [line.partition("#")[2] if "#" in line else "" for line in text.split("\n")]
    return "\n".join(lines).split("\n\n")


GIVEN = {
    "id": "gemm-0001", "quantity": "a product", "unit": "ms", "median": 1.5, "low": 1, "high": 2,
    "runs": 9, "baseline": [{"what": "eager", "median": 3}], "command": None, "machine": None,
    "software": None, "commit": None, "date": "2026-11-28", "supports": [], "note": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": "gemm-1"}, "a word and four digits"),
        ({"quantity": ""}, "quantity is no text"),
        ({"median": "1.5"}, "median is no number"),
        ({"median": None}, "a note says what was found"),
        ({"low": 1.7}, "do not rise"),
        ({"runs": 0}, "runs is no count"),
        ({"date": "28.11.2026"}, "is no date"),
        ({"supports": ["match.py:LEAST_KEYS"]}, "is no NAME"),
        ({"machine": 9}, "neither text nor null"),
        ({"baseline": [{"eager": 3}]}, "a list of what and median"),
        ({"spread": 0.1}, "the keys are id, quantity"),
    ],
)
def test_malformed_lines_are_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(measurements.Malformed, match=re.escape(why)):
        measurements.read(json.dumps(GIVEN | changed), "gemm.jsonl:1")


def test_a_line_is_read_and_shown() -> None:
    record = measurements.read(json.dumps(GIVEN), "gemm.jsonl:1")
    assert record.baseline == (measurements.Baseline("eager", 3),)
    text = measurements.page([record])
    assert "* **gemm-0001** a product: **1.5 ms** (1–2); beside eager 3." in text
    assert "(2026-11-28, median of 9.)" in text


@pytest.mark.parametrize("ids", [("gemm-0002", "gemm-0001"), ("conv-0001",)])
def test_ids_rise_and_are_named_after_their_file(tmp_path: Path, ids: tuple[str, ...]) -> None:
    lines = [json.dumps(GIVEN | {"id": one}) for one in ids]
    (tmp_path / "gemm.jsonl").write_text("\n".join(lines))
    with pytest.raises(measurements.Malformed, match="in rising order"):
        measurements.load(tmp_path)


def test_several_ids_in_one_pair_of_brackets() -> None:
    text = "as fast [m: conv-0001,\nconv-0002] and [m: gemm-0003]"
    assert measurements.cited(text) == ["conv-0001", "conv-0002", "gemm-0003"]
    assert measurements.cited("A = 1\n# fast [m: conv-0001,\n# conv-0002].") == [
        "conv-0001",
        "conv-0002",
    ]
