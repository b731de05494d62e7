"""`fusewright doctor`: each tool missing, broken or hanging in turn; and this machine as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fusewright.cli import main
from fusewright.common import devices
from fusewright.common.devices import DriverState
from fusewright.doctor import examination, questions, torch_facts, trial_kernels
from fusewright.doctor.asking import Unanswered, run, within
from fusewright.doctor.command import works_line
from fusewright.doctor.examination import examine
from fusewright.doctor.observation import (
    CPU,
    EVERYTHING,
    GPU,
    JUDGE,
    SANITIZE,
    Diagnosis,
    Observation,
    diagnosis,
)
from fusewright.doctor.questions import QUESTIONS, Known, Question
from fusewright.doctor.torch_facts import SeenGpu, TorchFacts
from fusewright.errors import NotVerifiable
from tests.support.folders import ROOT

H200 = SeenGpu("NVIDIA H200", (9, 0), 227 << 10, 140 << 30)
V100 = SeenGpu("Tesla V100", (7, 0), 96 << 10, 16 << 30)
STATE = DriverState("NVIDIA H200", "580.65.06", "345", "1980")
FACTS = TorchFacts(
    "2.13.0+cpu", "", "", "  - CPU capability usage: AVX2\n", 2, "/nowhere/torch_extensions"
)


def facts(**changes: object) -> Known:
    return Known(replace(FACTS, **changes))  # type: ignore[arg-type]


def asked(what: str, machine: Known) -> dict[str, Observation]:
    (question,) = (question for question in QUESTIONS if question.what == what)
    return {observation.what: observation for observation in examination.answers(question, machine)}


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ---- the compiler --------------------------------------------------------------------------------


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = asked("C++ compiler", facts())["C++ compiler"]
    assert (found.state, found.found) == ("no", "c++ is not on the PATH")
    assert "install" in found.advice
    assert CPU in diagnosis([found]).lacks
    monkeypatch.setenv("CXX", "")
    assert "CXX is empty" in asked("C++ compiler", facts())["C++ compiler"].found


@pytest.mark.parametrize(
    ("system", "advice"),
    [
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "sudo apt install g++"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install gcc-c++"),
        ({"ID": "alpine"}, "sudo apk add g++"),
        ({"ID": "unheard of"}, "install g++, or set CXX to the compiler to use"),
        (None, "install g++, or set CXX to the compiler to use"),
    ],
)
def test_how_a_compiler_is_installed(
    system: dict[str, str] | None, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release() -> dict[str, str]:
        if system is None:
            raise OSError("no os-release")
        return system

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("platform.freedesktop_os_release", release)
    assert asked("C++ compiler", facts())["C++ compiler"].advice == advice


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = script(tmp_path / "cc", "echo 'cc1plus: out of luck' >&2; exit 4")
    monkeypatch.setenv("CXX", str(broken))
    found = asked("C++ compiler", facts())
    assert found["C++ compiler"].state == "no"
    assert "cc failed with status 4: cc1plus: out of luck" in found["C++ compiler"].found
    assert "OpenMP" not in found


def test_a_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "still here"
    slow = script(tmp_path / "cc", f"(sleep 3; touch '{mark}') & sleep 60")
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(trial_kernels, "COMPILE_S", 0.5)
    monkeypatch.setattr(questions, "ASK_S", 0.5)
    found = asked("C++ compiler", facts())["C++ compiler"]
    assert found.state == "no"
    assert "cc gave no answer in" in found.found
    time.sleep(3)
    assert not mark.exists(), "what it had started goes with it"


@pytest.mark.compiler
def test_a_compiler_without_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = 'case "$*" in *-fopenmp*) echo no omp.h >&2; exit 1;; esac'
    text = f'{refuses}\nexec {shutil.which("c++")} "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "cc", text)))
    found = asked("C++ compiler", facts())
    assert found["C++ compiler"].state == "ok"
    assert found["OpenMP"].state == "no"
    assert "no omp.h" in found["OpenMP"].found
    assert CPU in diagnosis(found.values()).lacks


@pytest.mark.compiler
def test_a_compiler_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{shutil.which('c++')} -pipe")
    found = asked("C++ compiler", Known(None, "no PyTorch"))
    assert [f.state for f in found.values()] == ["ok", "ok"]
    assert "compiles a kernel in" in found["C++ compiler"].found
    assert "thread" in found["OpenMP"].found


@pytest.mark.compiler
def test_a_kernel_that_answers_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = trial_kernels.CPP.replace("return 42", "return 41")
    monkeypatch.setattr(trial_kernels, "CPP", wrong)
    with pytest.raises(Unanswered, match="answered 41 in place of 42"):
        trial_kernels.try_cpp(("c++",), "native")
    crashes = trial_kernels.CPP.replace("return 41", "__builtin_trap()")
    monkeypatch.setattr(trial_kernels, "CPP", crashes)
    with pytest.raises(Unanswered, match="ended with SIG"):
        trial_kernels.try_cpp(("c++",), "native")


def test_no_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    found = asked("ninja", facts())["ninja"]
    assert (found.state, found.advice) == ("no", "pip install ninja")
    script(tmp_path / "ninja", "echo 1.12")
    assert asked("ninja", facts())["ninja"].found == f"{tmp_path / 'ninja'} (1.12)"


# ---- folders -------------------------------------------------------------------------------------


def test_a_build_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = asked("build folder", facts(build_folder=str(tmp_path / "file" / "kernels")))
    assert found["build folder"].state == "no"
    assert "cannot be written to: Not a directory" in found["build folder"].found
    assert "TORCH_EXTENSIONS_DIR" in found["build folder"].advice
    found = asked("build folder", facts(build_folder=str(tmp_path / "new")))
    assert found["build folder"].state == "ok"
    assert not (tmp_path / "new").exists(), "nothing is left behind"


def test_a_build_folder_in_which_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flags:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda _: Flags)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: None)
    assert (
        "noexec" in asked("build folder", facts(build_folder=str(tmp_path)))["build folder"].found
    )


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    for what, disk in (
        ("build folder", "disk for builds"),
        ("disk for judging", "disk for judging"),
    ):
        found = asked(what, facts(build_folder=str(tmp_path)))[disk]
        assert (found.state, "make room" in found.advice) == ("no", True)


# ---- PyTorch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        ("2.11.0", "ok", "needs 2.11 or newer"),
        ("2.15.0a0+git1234567", "ok", "for CPUs only"),
        ("2.10.1+cu128", "no", "emitted files run with it"),
        ("1.13.1", "no", "emitted files 2.0"),
    ],
)
def test_versions_of_pytorch(version: str, state: str, words: str) -> None:
    found = asked("PyTorch", facts(version=version))["PyTorch"]
    assert found.state == state
    assert words in found.found
    assert found.advice == ("" if state == "ok" else 'pip install "torch>=2.11"')


def test_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={questions.dotted(questions.PYTHON)}"
    assert f"torch>={questions.dotted(questions.TORCH)}" in project["dependencies"]


FAKES = {
    "raises": ("raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13: cannot open"),
    "crashes": ("import os\nos.kill(os.getpid(), 11)", "ended with SIGSEGV"),
    "exits": ("import sys\nsys.exit(0)", "its answer cannot be read"),
}


@pytest.mark.compiler
@pytest.mark.parametrize("fake", FAKES)
def test_a_pytorch_that_cannot_be_imported(fake: str, tmp_path: Path) -> None:
    text, words = FAKES[fake]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "fusewright", "doctor", "--json"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    rows = {row["what"]: row for row in told["observations"]}
    assert words in rows["PyTorch"]["found"]
    assert rows["PyTorch"]["advice"] == 'pip install "torch>=2.11"'
    assert rows["C++ compiler"]["state"] == "ok", "it needs no PyTorch"
    assert rows["build folder"]["state"] == "?"
    assert not told["works"]


def test_no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    machine = examination.known()
    assert machine.why == torch_facts.NOT_INSTALLED
    assert asked("PyTorch", machine)["PyTorch"].found == torch_facts.NOT_INSTALLED


# ---- GPUs ----------------------------------------------------------------------------------------


def test_gpus() -> None:
    machine = replace(facts(cuda="13.0", gpus=(H200, H200, V100)), drivers=(STATE,))
    (question,) = (question for question in QUESTIONS if question.what == "GPU")
    one, other, old = examination.answers(question, machine)
    assert one == other
    assert one.found == (
        "NVIDIA H200, compute capability 9.0, 140 GiB, driver 580.65.06: runs files for sm_90a"
    )
    assert (old.state, "no kernels are written" in old.found) == ("no", True)
    (found,) = diagnosis([one], machine.gpu_ability).observations
    assert found.allows == ("kernels for sm_90a",)


def test_a_gpu_that_pytorch_cannot_use() -> None:
    alone = replace(facts(), drivers=(STATE,))
    found = asked("GPU", alone)["GPU"]
    assert (found.state, "built for CPUs only" in found.found) == ("no", True)
    assert found.advice == 'pip install --force-reinstall "torch>=2.11"'
    old_driver = replace(facts(cuda="13.0", trouble="RuntimeError: too old"), drivers=(STATE,))
    assert "PyTorch does not find: RuntimeError: too old" in asked("GPU", old_driver)["GPU"].found


def test_what_a_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert questions.driver_answer() == ()
    script(tmp_path / "nvidia-smi", "echo 'NVIDIA H200, 580.65.06, 345, 1980'")
    assert questions.driver_answer() == (STATE,)
    found = asked("clocks of the GPU", Known(None, "", devices.driver_states()))
    assert "345 MHz now, 1980 at most" in found["clocks of the GPU"].found
    assert "--lock-gpu-clocks=1980" in found["clocks of the GPU"].advice
    hidden = Known(None, "", (replace(STATE, clock="[N/A]"),))
    assert "does not tell" in asked("clocks of the GPU", hidden)["clocks of the GPU"].found
    script(tmp_path / "nvidia-smi", "exit 9")
    assert questions.driver_answer() == ()


@pytest.mark.parametrize(
    ("release", "cuda", "state", "words"),
    [
        ("11.8", "", "no", "12.1 or newer is needed"),
        ("12.9", "13.0", "no", "built with CUDA 13.0, and takes no extensions of another"),
        ("13.0", "13.0", "no", "no kernel today"),
    ],
)
def test_nvcc(
    release: str, cuda: str, state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(
        tmp_path / "nvcc",
        f'case "$*" in --version) echo "Cuda tools, release {release}, V1";; '
        "*) echo no kernel today >&2; exit 2;; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    found = asked("nvcc", facts(cuda=cuda))["nvcc"]
    assert words in found.found
    assert not found.in_order
    assert GPU in diagnosis([found]).lacks


def test_no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = asked("nvcc", facts(cuda="12.8"))["nvcc"]
    assert (found.state, found.found) == ("no", "not on the PATH")
    assert "install the CUDA toolkit 12.8" in found.advice


@pytest.mark.compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_nvcc_of_the_toolkit_that_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "nvcc", f'exec {shutil.which("nvcc")} "$@"')
    monkeypatch.setattr(questions.compilers, "nvcc", lambda: None)
    found = asked("nvcc", facts(cuda_home=str(tmp_path)))["nvcc"]
    assert found.state == "no"
    assert "compiles a kernel for sm_90a" in found.found
    assert found.advice == f'export PATH="$PATH:{tmp_path / "bin"}"'


# ---- clocks, and the sandbox ---------------------------------------------------------------------


def test_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert asked("clocks of the CPU", facts())["other work"].state == "note"
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert asked("clocks of the CPU", facts())["other work"].state == "ok"


@pytest.mark.judged
def test_tools_that_the_judge_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked("sandbox", facts())
    assert found["judge's tools"].state == "ok"
    lacks = lambda _site: ["g++", "ninja"]  # noqa: E731
    monkeypatch.setattr(questions.worker_pool.Site, "missing_tools", lacks)
    found = asked("sandbox", facts())
    assert found["judge's tools"].found == "not where it looks: g++, ninja"
    assert diagnosis(found.values()).lacks[JUDGE] == ("judge's tools",)


@pytest.mark.judged
def test_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: the plans of the upper tier are taken away."""
    made = questions.worker_pool.sandbox.candidates_for

    def lower(**about: object) -> tuple[object, ...]:
        plans = made(**about)  # type: ignore[arg-type]
        return tuple(p for p in plans if not p.namespaces and not p.landlock)

    monkeypatch.setattr(questions.worker_pool.sandbox, "candidates_for", lower)
    found = asked("sandbox", facts())
    assert found["sandbox"].state in ("note", "no")
    assert found["sandbox"].advice
    assert found["- namespaces"].found.startswith("not here: a candidate sees")
    assert found["- Landlock"].state == "note"


# ---- what cannot be asked ------------------------------------------------------------------------


def raises(_: Known) -> Iterator[Observation]:
    yield Observation("first", "ok", "before it raised")
    raise ZeroDivisionError("no\nluck")


def hangs(_: Known) -> Iterator[Observation]:
    time.sleep(30)
    yield Observation("late", "ok", "too late")


def leaves(_: Known) -> Iterator[Observation]:
    raise SystemExit(5)
    yield


def test_probes_that_raise_and_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "ask_torch", lambda: FACTS)
    asked_for = [
        Question("a", (CPU,), raises),
        Question("b", (), hangs, 0.2),
        Question("c", (), leaves),
    ]
    started = time.monotonic()
    found = examine(questions=asked_for)
    assert time.monotonic() - started < 20
    assert [(f.what, f.state, f.found) for f in found.observations] == [
        ("first", "ok", "before it raised"),
        ("a", "?", "could not be asked: ZeroDivisionError: no luck"),
        ("b", "?", "could not be asked: no answer in 0.2 s"),
        ("c", "?", "could not be asked: SystemExit: 5"),
    ]
    assert found.lacks == {CPU: ("a",)}


@pytest.mark.compiler
@pytest.mark.judged
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.what)
def test_no_answer_is_in_the_way_of_all_that_an_answer_allows(question: Question) -> None:
    """Else what nobody could ask about would be said to work."""
    known = replace(facts(build_folder=str(ROOT)), drivers=(STATE,))
    allowed = {a for found in examination.answers(question, known) for a in found.allows}
    assert allowed == {*question.allows}


def test_a_judge_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotVerifiable("no shared memory")

    monkeypatch.setattr(questions.worker_pool, "open_site", refuse)
    lacks = diagnosis([*asked("Python", facts()).values(), *asked("sandbox", facts()).values()])
    assert lacks.lacks == {JUDGE: ("sandbox",), SANITIZE: ("sandbox",)}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("one\nx.cpp:3: fatal error: omp.h: none\ncompilation terminated.", ": fatal error: omp"),
        (
            "Traceback:\n  raise ImportError(x)\nImportError: no libcudart\n\n",
            "ImportError: no lib",
        ),
        ("one\n\ntwo  words\n", "two words"),
        ("", ""),
    ],
)
def test_of_many_words_the_one_about_the_error(said: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(said)
    with pytest.raises(Unanswered, match="sh failed with status 3") as caught:
        run(["sh", "-c", "cat said >&2; exit 3"], 20, tmp_path)
    assert told in str(caught.value)


def test_within() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(Unanswered, match="KeyError"):
        within(5, lambda: {}["x"])
    with pytest.raises(Unanswered, match="cannot be started"):
        run(["/no/such/program"], 5)


# ---- the command ---------------------------------------------------------------------------------

MADE_UP = diagnosis(
    [
        Observation("C++ compiler", "no", "not on the PATH", (CPU, GPU), "sudo apt install g++"),
        Observation("a" * 17, "note", "words " * 40, EVERYTHING),
        Observation("b", "?", "could not be asked: " + "x" * 200),
    ],
    "kernels for sm_90a",
)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main.app(["doctor", *arguments], prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    monkeypatch.setattr(examination, "examine", lambda _: MADE_UP)
    return MADE_UP


def test_lines(made_up: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == 3
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "-> not: kernels for cpu, sm_90a" in said
    assert "-> everything" in said
    assert "works here: compiling for other GPUs; judging in a sandbox; timing" in said
    assert "does not:   kernels for cpu (C++ compiler); kernels for sm_90a" in said
    assert "to do:      C++ compiler: sudo apt install g++\n" in said


def test_one_line(made_up: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("-q") == 3
    said, progress = capsys.readouterr()
    assert said == "works here: compiling for other GPUs; judging in a sandbox; timing; "\
        "judge --sanitize\n"  # fmt: skip
    assert progress == ""
    nothing = diagnosis([Observation("PyTorch", "no", "it is not installed", EVERYTHING)])
    assert works_line(nothing) == "works here: nothing"


def test_json(made_up: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["observations"][0] == {
        "what": "C++ compiler",
        "state": "no",
        "found": "not on the PATH",
        "allows": ["kernels for cpu", "kernels for sm_90a"],
        "advice": "sudo apt install g++",
    }
    assert told["lacks"]["kernels for cpu"] == ["C++ compiler"]
    assert told["install"] == ["C++ compiler: sudo apt install g++"]


@pytest.mark.compiler
@pytest.mark.judged
def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """The tests run here, so kernels for the CPU do."""
    code = command("--json")
    told = json.loads(capsys.readouterr().out)
    rows = {row["what"]: row for row in told["observations"]}
    assert {a for row in told["observations"] for a in row["allows"]} >= {*told["works"]}
    assert code == 0, told["lacks"]
    assert CPU in told["works"]
    assert {"Python", "PyTorch", "C++ compiler", "OpenMP", "ninja", "processor"} <= {*rows}
    assert {"build folder", "nvcc", "GPU", "memory", "sandbox", "clocks of the CPU"} <= {*rows}
    assert not [row for row in told["observations"] if row["state"] == "?"]
