"""`fusewright diff`: files that were really written, and their reports, each beside another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fusewright.cli import main
from fusewright.errors import BadUsage
from fusewright.judge.findings import Verdict
from fusewright.report.decision_diff import KINDS, decision_diff, steps_diff
from fusewright.report.decision_diff_text import diff_lines
from fusewright.report.decisions import Decisions, Step, decisions
from fusewright.report.run_report import StepReport, to_json, verdict_report

HEAD = """\
import torch
import torch.nn as nn

batch_size = 64


"""
# The first keeps its linear layer on every CPU, and has one fused kernel behind it.
LINEAR = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2.0


def get_inputs():
    return [torch.randn(batch_size, 256)]
"""
SOFTMAX = """\
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(batch_size, 4096)]
"""
ATTENTION = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(96, 4, 384, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, x):
        return self.encoder(x)


def get_inputs():
    return [torch.randn(4, 64, 96)]
"""
CONV = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x)) + 1.0


def get_inputs():
    return [torch.randn(16, 64, 56, 56)]
"""
NOTHING = SOFTMAX.replace("torch.softmax(x, -1)", "torch.linalg.inv(x.view(-1, 64, 64))")
PROBLEMS = {
    "linear": LINEAR, "softmax": SOFTMAX, "encoder": ATTENTION, "conv": CONV, "nothing": NOTHING
}  # fmt: skip
# Name -> the problem, and what is asked for.
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("linear", ()),
    "linear_32": ("linear", ("--set", "batch_size=32")),
    "linear_gradients": ("linear", ("--gradients",)),
    "softmax": ("softmax", ()),
    "softmax_gpu": ("softmax", ("--target", "sm_90a")),
    "softmax_free": ("softmax", ("--dynamic", "x:0,1")),
    "encoder": ("encoder", ("--mode", "train")),
    "conv": ("conv", ("--target", "sm_90a")),
    "conv_ieee": ("conv", ("--target", "sm_90a", "--precision", "ieee")),
    "nothing": ("nothing", ()),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of FILES and its report, without running any of them."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "problems").mkdir()
    for name, text in PROBLEMS.items():
        (folder / "problems" / f"{name}.py").write_text(HEAD + text)
    for name, (problem, options) in FILES.items():
        target = () if "--target" in options else ("--target", "cpu")
        code = run(
            "optimize", folder / "problems" / f"{problem}.py", "--no-verify", *target, *options,
            "--output", folder / f"{name}.py", "--report", folder / f"{name}.json",
        )  # fmt: skip
        assert code == 3, "it is not verified, and written"
    return folder


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as end:
        main.app([str(argument) for argument in arguments], prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code


class Told:
    """What the command says of two files: its code, its text, its JSON."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], a: str, b: str, *options: str
    ) -> None:
        capsys.readouterr()
        self.code = run("diff", folder / a, folder / b, *options)
        self.text = capsys.readouterr().out.replace(f"{folder}/", "")
        assert run("diff", folder / a, folder / b, "--json") == self.code
        self.json = json.loads(capsys.readouterr().out)
        assert self.json["same"] == (self.code == 0)

    def counts(self, what: str) -> tuple[int, ...]:
        """same, changed, only in A, only in B."""
        return tuple(len(self.json[what][k]) for k in ("same", "changed", "only_a", "only_b"))

    def differ(self, what: str = "kernels") -> list[str]:
        """In what the first changed step differs."""
        return [found["what"] for found in self.json[what]["changed"][0]["differences"]]

    @property
    def facts(self) -> dict[str, tuple[str, str]]:
        return {f["what"]: (f["a"][0], f["b"][0]) for f in self.json["facts"]}


@pytest.mark.parametrize("name", FILES)
def test_a_file_and_itself(name: str, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, f"{name}.py", f"{name}.py")
    assert told.code == 0
    assert told.text.endswith("\n\nthe same\n")
    assert told.counts("kernels")[1:] == told.counts("library_calls")[1:] == (0, 0, 0)
    assert (told.counts("kernels")[0] > 0) == (name != "nothing")


@pytest.mark.parametrize("name", FILES)
def test_a_report_and_its_file(
    name: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Call by call: a file counts what several calls share."""
    told = Told(written, capsys, f"{name}.json", f"{name}.py")
    steps = json.loads((written / f"{name}.json").read_text())["kernels"]
    kernels = sum(step["kind"] != "library" for step in steps)
    assert told.code == 0, told.text
    assert told.counts("kernels") == (kernels, 0, 0, 0)
    assert told.counts("library_calls")[1:] == (0, 0, 0)
    back = Told(written, capsys, f"{name}.py", f"{name}.json")
    assert back.counts("kernels") == told.counts("kernels")


def test_one_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", "-q", written / "linear.py", written / "linear.py") == 0
    assert run("diff", "-q", written / "linear.py", written / "softmax.py") == 1
    assert capsys.readouterr().out.endswith("the same\nthey differ\n")


def test_equal_blocks_are_told_once(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "encoder.py", "encoder.json")
    assert told.code == 0
    assert "(3 times)" in told.text
    lines = [line for line in told.text.splitlines() if line.startswith("= ")]
    assert (
        len(lines) == len(set(lines)) < told.counts("kernels")[0] + told.counts("library_calls")[0]
    )


def test_another_batch(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels take any: only what is predicted differs, and what is said of it."""
    told = Told(written, capsys, "linear.py", "linear_32.py")
    assert told.code == 1
    assert told.counts("kernels") == (0, 1, 0, 0)
    assert told.differ() == ["bytes, operations", "predicted"]
    assert told.json["kernels"]["changed"][0]["source"] == []
    assert told.counts("library_calls") == (1, 0, 0, 0)
    assert {*told.facts} == {"the model, forward, support"}
    reports = Told(written, capsys, "linear.json", "linear_32.json")
    assert reports.differ() == reports.differ("library_calls") == ["bytes, operations", "predicted"]
    mixed = Told(written, capsys, "linear.py", "linear_32.json")
    assert mixed.differ() == ["bytes, operations", "predicted"]


def test_another_target(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "softmax.py", "softmax_gpu.py", "--source")
    assert told.code == 1
    assert told.facts["target"] == ("cpu", "sm_90a")
    assert told.counts("kernels") == (0, 1, 0, 0)
    assert told.differ() == ["strategy", "launch", "predicted", "source"]
    assert "target: cpu -> sm_90a\n" in told.text
    assert "      + max, sum of each row by a thread team of" in told.text
    assert "run_rows<" in told.text
    source = told.json["kernels"]["changed"][0]["source"]
    assert source[0] == "@@"
    assert all(f"    {line}".rstrip() in told.text.splitlines() for line in source)
    assert told.json["rest"] == [], "nobody reads one device library beside another"


def test_free_sizes(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "softmax.py", "softmax_free.py")
    assert told.facts["sizes"] == (
        "the batch size is free (1 or more)",
        "x:0 is free, as `batch` (1 or more); x:1 is free, as `length` (1 or more); other sizes "
        "are fixed",
    )
    assert told.differ()[:2] == ["results", "strategy"]


def report(problem: str, text: str, settings: dict[str, str]) -> str:
    """Of a judged file, as `--report` writes it."""
    kernels = (StepReport("relu", "fused", ("relu",), 256, 64, 1e-6),)
    about = {"device": "cpu", "sha256": {"problem": text * 64}}
    request = {"problem": f"some/{problem}", "mode": "", "overrides": settings}
    replay = {"request": request}
    verdict = Verdict("verified", (), (), "all passed", environment=about, replay=replay)
    return to_json(verdict_report(verdict, kernels))


def test_judged_reports() -> None:
    one, other = (
        decisions(report("one.py", "a", {}), "a.json"),
        decisions(report("two.py", "b", {"rows": "3"}), "b.json"),
    )
    found = decision_diff(one, other)
    assert found.problems == "different problems: one.py and two.py"
    assert {fact.what: (*fact.a, *fact.b) for fact in found.facts} == {
        "problem": (f"sha256 {'a' * 12}", f"sha256 {'b' * 12}"),
        "settings": ("none", "rows=3"),
    }
    assert found.kernels.is_same
    assert decision_diff(one, one).is_same


def test_full_precision(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU a convolution of PyTorch's rounds by default; in full float32 it is another kernel,
    or another call."""
    told = Told(written, capsys, "conv.py", "conv_ieee.py")
    assert told.code == 1
    assert told.facts.keys() <= {"precision", "remarks", "the model, forward, support"}
    changed = told.counts("kernels")[1]
    assert changed == 1
    assert "numeric class" in told.differ()


def test_gradients(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "linear.py", "linear_gradients.py")
    assert told.code == 1
    assert told.counts("kernels")[3] > 0, "backward has kernels of its own"
    assert "backward" in told.facts["forward"][1]
    only = [step["name"] for step in told.json["kernels"]["only_b"]]
    assert all(f"+ {name}: " in told.text for name in only)


def test_different_problems(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "linear.py", "softmax.py")
    assert told.code == 1
    assert told.json["problems"] == "different problems: linear.py and softmax.py"
    top, said, _ = told.text.partition("\n\ndifferent problems: linear.py and softmax.py\n\n")
    assert said
    assert "\n\n" not in top, "nothing but the names of the files is above"
    assert told.counts("kernels") == (0, 0, 1, 1)


def test_a_model_as_it_was(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(written, capsys, "nothing.py", "softmax.py")
    assert told.facts["model"] == ("as it was", "with kernels, or other calls")
    assert told.counts("library_calls") == (0, 0, 1, 0)


@pytest.mark.parametrize("a", FILES)
@pytest.mark.parametrize("b", FILES)
def test_lines_fit(a: str, b: str, written: Path) -> None:
    found = decision_diff(
        *(decisions((written / f"{n}.py").read_text(), f"{n}.py") for n in (a, b))
    )
    assert all(len(line) <= 80 for line in diff_lines(found))
    assert found.is_same == (a == b)


def test_any_change_is_seen(written: Path) -> None:
    """Of kernels, of what is said of them, of the rest; and of nothing else, of the order."""
    text = (written / "softmax.py").read_text()
    before = decisions(text, "a.py")
    for old, new, what in (
        ("const float sub = x - max_1;", "const float sub = x + max_1;", "source"),
        ("// how:  max, sum of each row by one", "// how:  max, sum of each row by no", "strategy"),
        ("predicted ", "predicted 1", "predicted"),
        ("def forward(self, x):", "def forward(self, x):  # here", "the model, forward, support"),
        ("# Below: the model;", "# Below:  the model;", "text"),
    ):
        assert text.count(old) >= 1, old
        found = decision_diff(before, decisions(text.replace(old, new), "b.py"))
        assert not found.is_same
        told = [*found.facts, *(d for pair in found.kernels.changed for d in pair.differences)]
        assert what in {difference.what for difference in told}


# ---- how steps are paired ------------------------------------------------------------------------


def side(*steps: Step) -> Decisions:
    return Decisions("x.py", "emitted file", "x.py", {}, steps)


RELU = Step(
    "kernel", "relu", "relu", "[8]", ("self.a",), "float32", forwards=("in train mode",), text="one"
)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, []),
        ({"text": "two"}, ["source"]),
        ({"name": "relu_2"}, ["name"]),
        ({"operators": "gelu", "text": "two"}, ["operators", "source"]),
        ({"origin": ("self.b",), "results": "[4]"}, ["results", "from"]),
        ({"numeric": None}, []),
        ({"calls": 3, "forwards": ("in eval mode",)}, ["calls", "runs"]),
    ],
)
def test_one_step(changes: dict[str, object], what: list[str]) -> None:
    other = replace(RELU, **changes)  # type: ignore[arg-type]
    found = steps_diff(side(RELU), side(other), "kernel")
    (pair,) = (*found.same, *found.changed)
    assert [difference.what for difference in pair.differences] == what
    assert not found.only_a + found.only_b


def test_what_is_nearest_is_paired_first() -> None:
    moved = replace(RELU, name="relu_2", origin=("self.b",))
    other = replace(RELU, operators="gelu", origin=("self.c",))
    found = steps_diff(side(moved, RELU), side(RELU, moved, other), "kernel")
    assert [pair.a for pair in found.same] == [moved, RELU], "in the order of A"
    assert found.only_b == (other,)
    call = replace(RELU, kind="library call")
    assert steps_diff(side(RELU), side(call), "kernel").only_a == (RELU,)
    assert KINDS == ("kernel", "library call")


# ---- what cannot be compared ---------------------------------------------------------------------

WRONG = {
    "another.py": ("import torch\n", "no file that fusewright has written"),
    "other.json": ('{"rows": []}', "neither a file that fusewright has written nor the report"),
    "broken.json": ('{"kernels": [', "neither a file"),
    "steps.json": ('{"kernels": [{"name": 3}], "replay": {}}', "neither a file"),
    "numbers.json": (
        '{"kernels": [{"name": "a", "kind": "fused", "operators": ["a"], "bytes": "x", "flops": 1,'
        ' "predicted_s": 1}], "replay": {}, "verdict": "", "environment": {}}',
        "neither a file",
    ),
    "deep.json": ('{"kernels": ' + "[" * 100_000, "neither a file"),
    "operators.json": (
        '{"kernels": [{"name": "a", "kind": "fused", "operators": "relu", "bytes": 1, "flops": 1,'
        ' "predicted_s": 1}], "replay": {}, "verdict": "", "environment": {}}',
        "neither a file",
    ),
    "endless.json": (
        '{"kernels": [{"name": "a", "kind": "fused", "operators": ["a"], "bytes": "inf",'
        ' "flops": 1, "predicted_s": 1}], "replay": {}, "verdict": "", "environment": {}}',
        "neither a file",
    ),
    "ended.json": (
        '{"kernels": [], "replay": {}, "verdict": "", "environment": {}, "reason": "it ended"}',
        "knows of no kernel and no call: it ended",
    ),
    "latin.py": (b"# \xe9", "not UTF-8"),
    "list.json": ("[1, 2]", "no file that fusewright has written"),
    "empty.py": ("", "no file that fusewright has written"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_neither(
    name: str, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = WRONG[name]
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run("diff", written / "linear.py", path) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert name in said.err
    assert said.out == ""
    with pytest.raises(BadUsage):
        main.diff(path, written / "linear.py")


def test_no_such_file(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("diff", written / "linear.py", written / "gone.py") == 2
    assert "there is no such file" in capsys.readouterr().err
    assert run("diff", written, written / "linear.py") == 2

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert run("diff", written / "linear.py", written / "linear.py") == 2
    assert "this cannot be read: Permission denied" in capsys.readouterr().err
