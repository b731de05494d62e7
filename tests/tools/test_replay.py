"""The record of generated texts: what it keeps, what it compares, and the tables of sections."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fusewright.errors import BadUsage
from tests.support.folders import ROOT
from tests.support.scripts import load_script

TOOL = ROOT / "tools" / "replay.py"
SOME = (
    "tests/corpus/problems/gate",
    "tests/corpus/problems/row_mean",
    "tests/corpus/problems/named_moments",
)


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    module = load_script("tools/replay.py")
    if visible is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    return module


def _run(
    command: str, folder: Path, seed: str, *, jobs: int = 1
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(TOOL), command, str(folder), "--jobs", str(jobs)]
    words += [word for name in SOME for word in ("--only", name)]
    own = {**os.environ, "PYTHONPATH": str(TOOL.parent.parent), "PYTHONHASHSEED": seed}
    return subprocess.run(words, env=own, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "record"
    done = _run("record", folder, "1")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_a_record_has_every_kind_of_text(recorded: Path, replay: ModuleType) -> None:
    keys = replay.read(recorded).keys
    for name in SOME:
        for target in ("cpu", "sm_80", "sm_90a"):
            assert f"{name}/{target}/file" in keys
            assert f"{name}/{target}/record" in keys
    assert "tests/corpus/problems/row_mean/sm_90a/mean_fused/0" in keys
    assert not [key for key in keys if key.endswith("error")]


@pytest.mark.slow
def test_nothing_differs_in_another_process(recorded: Path) -> None:
    done = _run("compare", recorded, "2", jobs=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(": no differences")


@pytest.mark.slow
def test_what_differs_is_reported(recorded: Path, tmp_path: Path) -> None:
    """A text that was another one, a key that is new, and one that is missing."""
    texts = json.loads((recorded / "texts.json").read_text(encoding="utf-8"))
    keys = json.loads((recorded / "manifest.json").read_text(encoding="utf-8"))
    changed, new = f"{SOME[0]}/cpu/record", f"{SOME[1]}/cpu/record"
    texts["texts"]["0" * 64] = [len(texts["paragraphs"])]
    texts["paragraphs"].append("another record")
    keys[changed] = "0" * 64
    keys[f"{SOME[1]}/cpu/earlier"] = keys.pop(new)
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (tmp_path / "manifest.json").write_text(json.dumps(keys), encoding="utf-8")
    done = _run("compare", tmp_path, "3")
    assert done.returncode == 1, done.stderr
    assert f"{changed}: differs" in done.stdout
    assert "-another record" in done.stdout
    assert f"{new}: is new" in done.stdout
    assert f"{SOME[1]}/cpu/earlier: is missing" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": 3 differences")


def test_a_folder_without_a_record(replay: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="there is no record here"):
        replay.read(tmp_path)


@pytest.mark.slow
def test_a_record_whose_texts_are_lost(replay: ModuleType, recorded: Path, tmp_path: Path) -> None:
    shutil.copy(recorded / "manifest.json", tmp_path)
    empty = {"paragraphs": [], "texts": {}}
    (tmp_path / "texts.json").write_text(json.dumps(empty), encoding="utf-8")
    with pytest.raises(BadUsage, match="record again"):
        replay.read(tmp_path)


@pytest.mark.slow
def test_what_a_problem_raises_is_kept(replay: ModuleType, tmp_path: Path) -> None:
    """A problem that does not load has an error in place of its texts, for every target."""
    (tmp_path / "broken.py").write_text("raise ValueError('no model')\n", encoding="utf-8")
    texts = replay.texts_of(str(tmp_path / "broken"))
    assert len(texts) == 3
    assert all(key.endswith("/error") for key in texts)
    assert all("no model" in "".join(parts) for parts in texts.values())


def test_long_differences_are_cut(replay: ModuleType) -> None:
    old, new = replay.Record(), replay.Record()
    old.add({"a": ["\n".join(map(str, range(100)))], "b": ["one"]})
    new.add({"a": ["\n".join(map(str, range(100, 200)))], "b": ["one"]})
    (said,) = replay.differences(old, new)
    assert said.splitlines()[-1].endswith("more lines")
    assert len(said.splitlines()) == replay.DIFF_LINES + 2


def test_equal_differences_are_shown_once(replay: ModuleType) -> None:
    old, new = replay.Record(), replay.Record()
    old.add({"a": ["one"], "b": ["one"]})
    new.add({"a": ["two"], "b": ["two"]})
    first, second = replay.differences(old, new)
    assert "-one" in first
    assert second == "b: differs as a does"


def test_the_text_of_a_record_is_what_was_given(replay: ModuleType, tmp_path: Path) -> None:
    record = replay.Record()
    text = "one\n\n\ntwo\n\nthree\n"
    record.add({"a": text.split(replay.PARAGRAPH)})
    replay.write(record, tmp_path)
    again = replay.read(tmp_path)
    assert again.text(again.keys["a"]) == text


# ---- tables --------------------------------------------------------------------------------------


def test_every_entry_names_a_section(replay: ModuleType) -> None:
    assert replay.table_complaints() == []


def test_an_unknown_entry_is_reported(replay: ModuleType) -> None:
    found = replay.table_complaints({"sm90": {"no_such_section": "why"}}, {"fortran": ["begin"]})
    assert found == [
        "fortran: no target speaks this language",
        "sm90 no_such_section: there is no such section",
    ]


def test_an_entry_stands_in_one_table(replay: ModuleType) -> None:
    found = replay.table_complaints({"cpp": {"exp": "why"}}, {"cpp": ["exp"]})
    assert found == ["cpp exp: stands in both tables"]


def test_each_reason_is_a_sentence(replay: ModuleType) -> None:
    reasons = [why for table in replay.REASONS.values() for why in table.values()]
    reasons += replay.LEFT_OUT.values()
    assert all(len(why.split()) >= 4 for why in reasons)


def test_every_section_can_be_told_from_others(replay: ModuleType) -> None:
    """By a line that no other section of its language has."""
    for language in replay.languages():
        names = {section.name for section in replay.sections(language)}
        assert set(replay.marks(language).values()) == names


@pytest.mark.slow
def test_what_no_text_reaches_is_reported(replay: ModuleType, recorded: Path) -> None:
    record = replay.read(recorded)
    found = replay.unexplained(record, {}, {})
    assert "sm90 run_attention: no text reaches it" in found
    assert not any(line.startswith("cpp sum:") for line in found)
    named = replay.unexplained(record, {"sm90": {"run_attention": "why"}}, {"cpp": ["sum"]})
    assert "sm90 run_attention: no text reaches it" not in named
    assert "cpp sum: is reached; take it from its table" in named


def test_patterns_of_variants_fit_problems(replay: ModuleType) -> None:
    names = replay.corpus()
    assert all(any(replay._fits(name, [pattern]) for name in names) for pattern in replay.VARIED)
    assert all((TOOL.parent.parent / f"{name}.py").is_file() for name in replay.LEFT_OUT)
    assert set(names) >= replay.SETTINGS.keys()
