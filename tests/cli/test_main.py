"""The command line: arguments, exit codes, messages; with the stages behind it replaced or real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

import fusewright.judge
import fusewright.profiling.profile
from fusewright.cli import main, optimizing, reporting
from fusewright.errors import (
    BadUsage,
    BuildFailed,
    FusewrightError,
    InternalError,
    NotVerifiable,
    ToolMissing,
)
from fusewright.judge.findings import Row, Verdict
from fusewright.profiling.profile import Profiled
from fusewright.profiling.rows import ProfileRow
from fusewright.profiling.side_profile import Profile, SideProfile
from fusewright.report.run_report import OptimizeResult, StepReport
from tests.support.folders import BAD_PROBLEMS as BAD

VERIFIED = Verdict("verified", (Row("values", "pass", "5 draws"),), (), "all passed")
TIMING = {"sides": {"eager": {"p50_s": 0.002}, "candidate": {"p50_s": 0.001}}, "ratios": {}}
ROW = ProfileRow("kernel", "relu_add", "", (), 1, 80.0, 0.8, 5.0)
PROFILE = Profile("cpu", (SideProfile("candidate", 100.0, 120.0, 80.0, 40.0, 20.0, 9, (ROW,)),), {})
PROBLEM = """
import torch
import torch.nn as nn

batch_size = 4

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1.0

def get_inputs():
    return [torch.randn(batch_size, 8)]

def get_init_inputs():
    return []
"""


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as end:
        main.app([str(argument) for argument in arguments], prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code


@dataclass
class Stages:
    """Stands in for the stages behind the command line: keeps what it was called with."""

    result: object = None
    calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = field(default_factory=list)

    def stage(self, name: str, result: object) -> object:
        def call(*arguments: object, **options: object) -> object:
            progress = options.get("progress")
            if callable(progress):
                progress("one step")
            self.calls.append((name, arguments, options))
            outcome = self.result if self.result is not None else result
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return call


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    stages = Stages()
    kernels = (StepReport("relu_add", "fused", ("relu", "add"), 256, 64),)
    outcome = OptimizeResult(Path("out.py"), "relu and add share relu_add", kernels, VERIFIED, "")
    pipeline, timing = (
        ModuleType("fusewright.compiler.pipeline"),
        ModuleType("fusewright.judge.timing.bench"),
    )
    pipeline.__dict__["optimize_file"] = stages.stage("optimize", outcome)
    pipeline.__dict__["explain_file"] = stages.stage("explain", outcome)
    timing.__dict__["bench"] = stages.stage("bench", TIMING)
    profiling = stages.stage("profile", Profiled(PROFILE, {"candidate": ()}))
    monkeypatch.setattr(fusewright.profiling.profile, "profile", profiling)
    monkeypatch.setitem(sys.modules, pipeline.__name__, pipeline)
    monkeypatch.setitem(sys.modules, timing.__name__, timing)
    for name in ("judge", "replay"):
        stage = stages.stage(name, VERIFIED)
        monkeypatch.setattr(fusewright.judge, name, stage, raising=False)
    return stages


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a problem and a candidate, which is also the current folder."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text("class ModelNew: ...\n")
    (tmp_path / "old.py").write_text("precious = True\n")
    (tmp_path / "library.so").write_bytes(bytes(range(256)))
    (tmp_path / "old.json").write_text('{"verdict": "refuted"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_optimize_passes_everything_on(stages: Stages, files: Path) -> None:
    code = run(
        "optimize", "problem.py", "-o", "new.py", "--target", "sm_80", "--precision", "ieee",
        "--rules", "no-library, no-prepack", "--set", "batch_size=2", "--set", "names=('a', 'b')",
        "--no-timing", "--no-algebra", "--tune", "full", "--mode", "eval",
        "--dynamic", "x:0,1", "--dynamic", "y : -2", "--gradients", "--seed", "17",
        "--budget", "5m",
    )  # fmt: skip
    ((name, arguments, options),) = stages.calls
    assert code == 0
    assert options.pop("budget").seconds == 300.0
    assert callable(options.pop("progress"))
    assert options.pop("turn") is nullcontext, "alone, it times when it likes"
    assert options.pop("settle") is optimizing.at_once, "and takes what memory there is"
    assert options.pop("judging") is None, "nothing for another machine is judged here"
    assert (name, arguments) == ("optimize", (Path("problem.py"),))
    assert options == {
        "out": Path("new.py"),
        "target": "sm_80",
        "precision": "ieee",
        "rules": frozenset({"no-library", "no-prepack", "no-algebra"}),
        "overrides": {"batch_size": "2", "names": "('a', 'b')"},
        "mode": "eval",
        "dynamic": {"x": (0, 1), "y": (-2,)},
        "gradients": True,
        "force": False,
        "timing": False,
        "level": "full",
        "seed": "00000000000000000000000000000011",
    }


@pytest.mark.judged
def test_what_is_for_this_machine_finds_the_judge_started(stages: Stages, files: Path) -> None:
    run("optimize", "problem.py", "--target", "cpu")
    ((_, _, options),) = stages.calls
    assert options["judging"].request.device == "cpu"
    assert (options["mode"], options["judging"].request.mode) == ("both", "")


@pytest.mark.judged
def test_the_judge_is_started_for_the_mode(stages: Stages, files: Path) -> None:
    run("optimize", "problem.py", "--target", "cpu", "--mode", "eval")
    ((_, _, options),) = stages.calls
    assert (options["mode"], options["judging"].request.mode) == ("eval", "eval")


@pytest.mark.judged
def test_optimize_says_everything(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("optimize", "problem.py", "--report", "r.json", "-v") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "relu and add share relu_add",
        "",
        "pass values           5 draws",
        "",
        "verified: all passed",
        "",
        "written: out.py",
    ]
    assert err == "  one step ...\n", "with -v progress is said in lines"
    report = json.loads((files / "r.json").read_text())
    assert report["verdict"] == "verified"
    assert report["kernels"][0]["operators"] == ["relu", "add"]


@pytest.mark.judged
@pytest.mark.parametrize(
    ("command", "word", "code"),
    [
        ("optimize", "refuted", 1),
        ("optimize", "not-verified", 3),
        ("judge", "verified", 0),
        ("judge", "refuted", 1),
        ("judge", "not-verified", 3),
    ],
)
def test_exit_code_and_report_follow_the_verdict(
    stages: Stages, files: Path, command: str, word: str, code: int
) -> None:
    verdict = replace(VERIFIED, verdict=word)
    stages.result = verdict
    if command == "optimize":
        stages.result = OptimizeResult(Path("out.py"), "", (), verdict, "")
    candidate = ["candidate.py"] if command == "judge" else []
    assert run(command, "problem.py", *candidate, "--report", "r.json") == code
    assert json.loads((files / "r.json").read_text())["verdict"] == word


def test_judge_passes_everything_on(stages: Stages, files: Path) -> None:
    code = run(
        "judge", "problem.py", "candidate.py", "--device", "cuda", "--accuracy", "loose",
        "--grad", "--sanitize", "--no-timing", "--set", "batch_size=2", "--truth", "whole",
        "--mode", "train",
    )  # fmt: skip
    ((name, arguments, options),) = stages.calls
    assert code == 0
    assert callable(options.pop("progress"))
    assert options.pop("turn") is nullcontext, "no suite has started it"
    assert (name, arguments) == ("judge", (Path("problem.py"), Path("candidate.py")))
    assert options == {
        "device": "cuda",
        "accuracy": "loose",
        "truth": "whole",
        "mode": "train",
        "grad": True,
        "sanitize": True,
        "timing": False,
        "overrides": {"batch_size": "2"},
        "seed": "",
    }


@pytest.mark.parametrize("command", ["judge", "bench", "profile"])
def test_seed_and_budget_reach_the_judge(stages: Stages, files: Path, command: str) -> None:
    begin = time.monotonic()
    words = ("problem.py", "candidate.py", "--device", "cpu", "--seed", "255", "--budget", "100s")
    assert run(command, *words) == 0
    ((_, _, options),) = stages.calls
    assert (options["seed"], options["budget_s"]) == (f"{'ff':0>32}", 15.0)
    assert 85.0 <= options["deadline"] - begin < 90.0, "what is left is for the timing"


def test_judge_replays_a_case(stages: Stages, files: Path) -> None:
    assert run("judge", "--replay", "old.json", "--case", "17") == 0
    ((name, arguments, _),) = stages.calls
    assert (name, arguments) == ("replay", (Path("old.json"), "17"))


def test_bench_passes_everything_on(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        "bench", "problem.py", "candidate.py", "--against", "max-autotune,eager",
        "--device", "cpu", "--report", "r.json", "-v",
    )  # fmt: skip
    ((name, arguments, options),) = stages.calls
    assert code == 0
    assert callable(options.pop("progress"))
    assert options.pop("turn") is nullcontext
    assert (name, arguments) == ("bench", (Path("problem.py"), Path("candidate.py")))
    baselines = ("max-autotune", "eager")
    assert options == {"device": "cpu", "against": baselines, "overrides": {}, "seed": ""}
    assert "eager      2 ms" in capsys.readouterr().out
    assert json.loads((files / "r.json").read_text())["timing"] == TIMING


def test_profile_passes_everything_on(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        "profile", "problem.py", "candidate.py", "--against", "compile,eager", "--device", "cpu",
        "--set", "batch_size=2", "--trace", "t.json", "--report", "r.json",
    )  # fmt: skip
    ((name, arguments, options),) = stages.calls
    assert code == 0
    assert callable(options.pop("progress"))
    assert (name, arguments) == ("profile", (Path("problem.py"), Path("candidate.py")))
    about = {"device": "cpu", "against": ("compile", "eager"), "overrides": {"batch_size": "2"}}
    assert options == {**about, "seed": ""}
    assert "relu_add" in capsys.readouterr().out
    assert json.loads((files / "t.json").read_text())["traceEvents"]
    report = json.loads((files / "r.json").read_text())
    (side,) = report["profile"]["sides"]
    assert [row["name"] for row in side["rows"]] == ["relu_add"]
    assert (report["verdict"], report["timing"]) == ("not-verified", None)


def test_profile_without_a_candidate(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("profile", "problem.py", "--device", "cpu", "--json") == 0
    ((_, arguments, options),) = stages.calls
    assert arguments == (Path("problem.py"), None)
    assert options["against"] == ("eager", "compile")
    assert json.loads(capsys.readouterr().out)["profile"]["device"] == "cpu"


def test_no_trace_of_a_profile_that_failed(stages: Stages, files: Path) -> None:
    stages.result = NotVerifiable("the profiler is not there")
    words = ("--trace", "t.json", "--report", "r.json", "--device", "cpu")
    assert run("profile", "problem.py", *words) == 3
    assert not (files / "t.json").exists()
    assert json.loads((files / "r.json").read_text())["reason"] == "the profiler is not there"


def test_explain(stages: Stages, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--set", "batch_size=2", "--dynamic", "x:1")
    assert run("explain", "problem.py", "--target", "cuda", *asked) == 0
    ((_, arguments, options),) = stages.calls
    assert arguments == (Path("problem.py"),)
    overrides, sizes = {"batch_size": "2"}, {"x": (1,)}
    wanted = {"target": "cuda", "rules": frozenset[str](), "overrides": overrides, "dynamic": sizes}
    assert options == {**wanted, "gradients": False}
    assert capsys.readouterr().out == "relu and add share relu_add\n"
    assert run("explain", "problem.py", "--json", "--report", "r.json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((files / "r.json").read_text())
    assert report["decisions"] == "relu and add share relu_add"
    assert [kernel["name"] for kernel in report["kernels"]] == ["relu_add"]
    text = "p.py on cpu: 1 fused kernel, 0 library calls\n\n  relu_add\n"
    stages.result = OptimizeResult(Path("-"), text, (), None, "")
    assert run("explain", "problem.py", "-q") == 0
    assert capsys.readouterr().out == "p.py on cpu: 1 fused kernel, 0 library calls\n"


# Arguments -> words of the message. None of these reaches a stage.
USAGE = {
    "optimize": "PROBLEM",
    "optimize problem.py --target sm_10": "cpu, sm_80, sm_86, sm_89, sm_90a or cuda",
    "optimize problem.py --precision half": "eager",
    "optimize problem.py --mode trained": "both",
    "judge problem.py candidate.py --mode both": "train",
    "optimize problem.py --rules no-library,no-fun": "no no-fun; choose among no-library",
    "optimize problem.py --set batch_size": "NAME=VALUE",
    "optimize problem.py --set =3": "NAME=VALUE",
    "optimize problem.py --set batch_size=": "NAME=VALUE",
    "optimize problem.py --set a=1 --set a=2": "set twice",
    "optimize problem.py --dynamic x": "ARGUMENT:DIM",
    "optimize problem.py --dynamic x:first": "ARGUMENT:DIM",
    "optimize problem.py --dynamic x:0 --dynamic x:1": "named twice",
    "optimize problem.py -o old.py": "--force",
    "optimize problem.py -o problem.py --force": "used twice",
    "optimize problem.py -o ./sub/../problem.py --force": "used twice",
    "optimize problem.py -o new.py --report new.py": "used twice",
    "optimize problem.py -o absent/new.py": "does not exist",
    "optimize problem.py -o .": "folder",
    "optimize problem.py --report absent/r.json": "does not exist",
    "optimize problem.py -o -": "--no-verify",
    "optimize problem.py --no-verify --tune quick": "drop one of the two",
    "optimize problem.py --no-verify -o old.py": "--force",
    "optimize problem.py --no-verify -o - --json": "both want standard output",
    "optimize problem.py -v -q": "give one of the two",
    "optimize problem.py --budget 30": "as in 30s or 5m",
    "optimize problem.py --budget -3s": "as in 30s or 5m",
    "optimize problem.py --budget infm": "as in 30s or 5m",
    "optimize problem.py --seed -1": "--seed",
    "bench problem.py candidate.py -q --verbose": "give one of the two",
    "show": "FILE",
    "show absent.py": "no such file",
    "show old.py": "no file that fusewright has written",
    "show library.so": "not UTF-8",
    "diff": "A",
    "diff old.py": "B",
    "diff old.py absent.py": "no such file",
    "diff old.py library.so": "no file that fusewright has written",
    "diff library.so old.py": "not UTF-8",
    "diff old.json old.py": "neither a file that fusewright has written nor the report",
    "doctor patient": "patient",
    "judge problem.py": "needs two files",
    "judge problem.py absent.py": "no such file",
    "judge absent.py candidate.py": "no such file",
    "judge problem.py candidate.py --report candidate.py": "used twice",
    "judge problem.py candidate.py --accuracy none": "contract",
    "judge problem.py candidate.py --device tpu": "cuda",
    "judge --replay old.json": "--case",
    "judge --case 3": "--replay",
    "judge --replay absent.json --case 3": "no such file",
    "bench problem.py candidate.py --against tensorrt": "eager, compile, max-autotune",
    "bench problem.py": "CANDIDATE",
    "profile": "PROBLEM",
    "profile problem.py absent.py": "no such file",
    "profile absent.py": "no such file",
    "profile problem.py --against max-autotune": "choose among eager, compile",
    "profile problem.py --against ,": "name a candidate, or a baseline",
    "profile problem.py --trace problem.py": "used twice",
    "profile problem.py --trace r.json --report r.json": "used twice",
    "profile problem.py --trace absent/t.json": "does not exist",
    "profile problem.py --trace -": "Name one",
    "profile problem.py -v -q": "give one of the two",
    "suite": "DIR",
    "suite . --jobs 0": "--jobs",
    "suite . --target sm_10": "cpu, sm_80, sm_86, sm_89, sm_90a or cuda",
    "suite sub": "no problem file",
    "suite absent": "no such folder",
    "suite . --html absent/r.html": "does not exist",
    "optimize problem.py --html absent/r.html": "does not exist",
    "explain problem.py --html -": "a page is a file",
    "optimize problem.py --report r.x --html r.x": "used twice",
    "explain problem.py --html problem.py": "used twice",
    "judge problem.py candidate.py --html candidate.py": "used twice",
    "bench problem.py candidate.py --html .": "this is a folder",
    "judge --replay old.json --case 3 --html old.json": "used twice",
    "suite . --ray": "--ray",
    "arena . . --ray head:6379": "say --device cuda or --device cpu",
    "improve problem.py": "improve",
}


@pytest.mark.parametrize("arguments", USAGE)
def test_bad_usage(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    (files / "sub").mkdir()
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    assert run(*arguments.split()) == 2
    out, err = capsys.readouterr()
    assert USAGE[arguments] in err
    assert out == ""
    assert stages.calls == []
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FusewrightError("wrong"), 70),
        (ToolMissing("there is no compiler;\ninstall g++"), 3),
        (BuildFailed("nvcc said no"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_paragraph(
    stages: Stages,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    stages.result = error
    assert run("explain", "problem.py") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fusewright: ")
    assert err.count("\n") == 1
    assert " ".join(str(error).split()) in err


@pytest.mark.parametrize("error", [RuntimeError("oh [no]"), InternalError("a promise is broken")])
def test_a_bug_of_ours_says_so(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    stages.result = error
    assert run("explain", "problem.py") == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(error) in err
    assert "This is a bug in fusewright" in err
    path = Path(err.partition("The traceback is in ")[2].partition(";")[0])
    try:
        assert "Traceback (most recent call last)" in path.read_text()
    finally:
        path.unlink()


def test_a_bug_on_a_full_disk_says_so(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fusewright.cli.endings.tempfile.NamedTemporaryFile", full)
    stages.result = InternalError("a promise is broken")
    assert run("explain", "problem.py") == 70
    err = capsys.readouterr().err
    assert "a promise is broken" in err
    assert "Traceback (most recent call last)" in err


def test_a_failure_replaces_the_old_report(stages: Stages, files: Path) -> None:
    """Otherwise a script would read the verdict of an earlier run."""
    stages.result = ToolMissing("there is no compiler")
    assert run("judge", "problem.py", "candidate.py", "--report", "old.json") == 3
    report = json.loads((files / "old.json").read_text())
    assert report["verdict"] == "not-verified"
    assert report["reason"] == "there is no compiler"


def test_the_report_cannot_be_written_in_the_end(
    stages: Stages, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(path: Path, text: str, *, force: bool) -> None:
        raise BadUsage(f"{path}: cannot write the file: No space left on device.")

    monkeypatch.setattr(reporting, "write_atomically", explode)
    assert run("judge", "problem.py", "candidate.py", "--report", "r.json") == 2
    assert "No space left" in capsys.readouterr().err


PAGES = {
    "optimize problem.py": "problem.py on cpu",
    "explain problem.py": "problem.py on cpu",
    "judge problem.py candidate.py": "candidate.py for problem.py",
    "bench problem.py candidate.py": "candidate.py for problem.py",
    "profile problem.py candidate.py": "candidate.py for problem.py",
    "profile problem.py": "problem.py",
}


@pytest.mark.parametrize("arguments", PAGES)
def test_a_page_of_each_command(stages: Stages, files: Path, arguments: str) -> None:
    kernels = (StepReport("relu_add", "fused", ("relu", "add"), 256, 64),)
    if arguments.startswith(("optimize", "explain")):
        stages.result = OptimizeResult(
            Path("out.py"), "relu and add share relu_add", kernels, VERIFIED, "",
            problem="problem.py", target="cpu",
        )  # fmt: skip
    assert run(*arguments.split(), "--html", "r.html", "-q") == 0
    page = (files / "r.html").read_text(encoding="utf-8")
    assert f"<h1>{PAGES[arguments]}</h1>" in page
    judged = not arguments.startswith(("bench", "profile"))
    assert ('<p class="value">verified</p>' in page) is judged
    timed = arguments.startswith("bench")
    assert ("1 ms" in page) is timed, "the candidate's time, where it was taken"
    profiled = arguments.startswith("profile")
    assert ("A call takes 100 us by the clock, 120 us under the profiler." in page) is profiled


def test_a_failure_replaces_the_old_page(stages: Stages, files: Path) -> None:
    (files / "r.html").write_text("verified")
    stages.result = BuildFailed("g++ <says> no")
    assert run("optimize", "problem.py", "--html", "r.html") == 3
    page = (files / "r.html").read_text(encoding="utf-8")
    assert "not-verified: g++ &lt;says&gt; no" in page
    assert ">verified<" not in page


def test_a_page_needs_the_library_that_plots(
    stages: Stages,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("optimize", "problem.py", "--html", "r.html") == 2
    assert "pip install 'fusewright[report]'" in capsys.readouterr().err
    assert stages.calls == []
    assert not (files / "r.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["explain", "optimize"])
def test_the_reader_of_the_output_leaves(tmp_path: Path, command: str) -> None:
    """`fusewright explain ... | head` is neither a refutation nor a bug."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, types\n"
        "from pathlib import Path\n"
        "from fusewright.cli.main import main\n"
        "from fusewright.report.run_report import OptimizeResult\n"
        "pipeline = types.ModuleType('fusewright.compiler.pipeline')\n"
        "text = 'long line\\n' * 100_000\n"
        "made = lambda *_, **__: OptimizeResult(Path('o'), text, (), None, '')\n"
        "pipeline.explain_file = pipeline.optimize_file = made\n"
        "sys.modules[pipeline.__name__] = pipeline\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, program, command, "problem.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


def test_help_waits_for_nothing() -> None:
    """What only some commands need is imported when they run."""
    program = (
        "import sys\nfrom fusewright.cli import main\n"
        "print(*(name for name in sys.modules if name.startswith(tuple(sys.argv[1:]))))"
    )
    late = ("torch", "jinja2", "mcp", "psutil", "fusewright.suite", "fusewright.arena")
    late += ("fusewright.html_report", "matplotlib", "pygments.lexers")
    late += ("fusewright.doctor", "fusewright.mcp_server", "fusewright.report.decision_diff")
    late += ("fusewright.profiling", "ray")
    command = [sys.executable, "-c", program, *late]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "0 verified or done, 1 refuted, 2 bad usage or unusable problem file, 3" in text
    for command in ("optimize", "explain", "show", "diff", "doctor", "bench", "judge", "profile"):
        assert command in text


# From here on the real stages run.


# It runs, so it is not refused: what cannot be captured stays as it was written.
BRANCHES = BAD / "branches_on_data.py"


@pytest.mark.slow
def test_a_model_that_runs_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", BRANCHES, "--target", "cpu") == 0
    out, _ = capsys.readouterr()
    lines = BRANCHES.read_text().splitlines()
    (line,) = (i for i, text in enumerate(lines, 1) if "# here" in text)
    assert f"left as written: the model: {BRANCHES.name}:{line}: " in out
    assert "nothing to gain here" in out


@pytest.mark.judged
@pytest.mark.parametrize(
    "path", sorted({*BAD.glob("*.py")} - {BRANCHES}), ids=lambda path: path.stem
)
@pytest.mark.parametrize("command", ["optimize", "explain"])
def test_unusable_problem(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    target = ["--target", "cpu"]
    output = ["-o", "out.py"] if command == "optimize" else []
    assert run(command, path, *target, *output) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fusewright: {path}")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    marked = [i for i, line in enumerate(path.read_text().splitlines(), 1) if "# here" in line]
    for line in marked:
        assert f"{path}:{line}" in err
    assert list(tmp_path.iterdir()) == []


def only_written(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[str, list[str]]:
    """What `optimize --no-verify` prints, and the lines of what it says beside that."""
    assert run("optimize", "problem.py", "--no-verify", *arguments) == 3
    out, err = capsys.readouterr()
    return out, err.splitlines()


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_the_text_alone(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """Without the machine that it is for, without a compiler, and without what the problem says."""
    problem = files / "problem.py"
    problem.write_text(problem.read_text() + "\nprint('the problem speaks')\n")
    monkeypatch.setenv("PATH", str(files))
    before = {*files.iterdir()}
    text, said = only_written(capsys, "-o", "-", "--target", target, "--report", "r.json")
    assert text.startswith(f"# ModelNew: problem.py with fused kernels for {target}")
    assert "class ModelNew(nn.Module):" in text
    compile(text, "new.py", "exec")
    assert said[-1] == (
        "fusewright: not verified: the file was neither compiled nor run, as --no-verify asks."
    )
    assert "the problem speaks" in said
    assert {*files.iterdir()} - before == {files / "r.json"}
    report = json.loads((files / "r.json").read_text())
    assert report["verdict"] == "not-verified"
    assert [kernel["name"] for kernel in report["kernels"]] == ["relu_add"]


def test_a_file_that_nobody_verifies(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the text that goes to standard output, and the record is told."""
    told, said = only_written(capsys, "-o", "new.py", "--target", "cpu", "-v")
    assert "not-verified: the file was neither compiled nor run" in told
    assert "relu_add  relu, add -> [batch, 8]" in told
    assert said[-1].startswith("fusewright: not verified: ")
    text, _ = only_written(capsys, "-o", "-", "--target", "cpu")
    assert (files / "new.py").read_text() == text


def test_show(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only_written(capsys, "-o", "new.py", "--target", "sm_80")
    assert run("show", "new.py") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["kernel", "bytes", "operations", "predicted", "computes"]
    assert row.startswith("relu_add  256 B  ")
    assert row.endswith("relu, add -> [batch, 8]")
    assert run("show", "new.py", "relu_add") == 0
    told = capsys.readouterr().out
    assert "  from: return torch.relu(x) + 1.0\n" in told
    assert "struct relu_add {" in told
    assert 'extern "C" int run_relu_add(' in told
    assert run("show", "new.py", "relu_mul") == 2
    assert "new.py has no kernel relu_mul: choose among relu_add." in capsys.readouterr().err


@pytest.mark.judged
@pytest.mark.parametrize("command", ["optimize", "explain"])
def test_unknown_constant(files: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(command, "problem.py", "--target", "cpu", "--set", "batch=2") == 2
    assert "It has: batch_size." in capsys.readouterr().err


def test_cuda_without_a_gpu(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert run("optimize", "problem.py", "--target", "cuda", "-o", "new.py") == 3
    assert "GPU" in capsys.readouterr().err
    assert not (files / "new.py").exists()


@pytest.mark.judged
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler to hide")
def test_no_compiler(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(files))
    assert run("optimize", "problem.py", "--target", "cpu", "-o", "new.py") == 3
    out, err = capsys.readouterr()
    assert "compiler" in out + err
