"""Modules of transformers, timm and diffusers, built from small public configurations with random
weights -> what `fusewright optimize` makes of each: captured, right, the verdict.

    python bench/modules.py [--only NAME ...] [--mode eval|train|both] [--device cpu] [--jobs 1]
                            [--timeout 600] [--output out/modules] [--again] [--list]

Each module is a problem file (bench/module_table.py has the rows), made once in eval and once in
train mode, and is optimised and judged without timing in a process group of its own. Files, logs
and results stay in --output; what is done there is not run again unless its problem has changed or
--again says so. A row of the table that is printed says

    captured   whole, parts, none (no graph of any part), or unused (kernels, but a guard that does
               not let the problem's own inputs to them); how many operators are in kernels of ours
    right      the outputs on three draws, beside eager's in a process of its own: the largest
               relative L2 distance is at most 1e-4, and what is not floating is equal. Where it is
               larger, eager and ours are asked in float64's place, and ours is right if it is at
               most twice as far from float64 as eager is
    verdict    the judge's word, or how the run ended

Exit code 1 unless each mode has at most one module in 25 that is not verified, none that is
refuted and none that ended as a bug. Needs the packages: `pip install transformers timm diffusers`
(and torchvision, which timm imports, of the same release as torch).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from module_table import MODULES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fusewright.common.problem_file import Problem

ROOT = Path(__file__).resolve().parent.parent
MODES = ("eval", "train")
PACKAGES = ("torch", "transformers", "timm", "diffusers")
CLOSE = 1e-4
AS_FAR = 2.0  # where eager is far from float64, ours may be this often as far
DRAWS = 3
COMPARE_S = 600.0
LEAVE_S = 10.0  # after it was asked to stop, a run may take this long to tidy up
BUG = 70
CAPTURED = ("whole", "parts")
VERIFIED, YES, UNUSED = "verified", "yes", " (unused)"


@dataclass(frozen=True)
class Outcome:
    """A row. fused, operators: those in kernels of ours, and all. code: the exit status of
    `optimize`; -9 where its time was up. right: "yes", and what else the comparison said.
    """

    module: str
    mode: str
    captured: str
    fused: int
    operators: int
    right: str
    verdict: str
    code: int
    seconds: float
    reason: str


def main() -> int:
    given = _arguments()
    if given.list:
        print("\n".join(MODULES))
        return 0
    if given.compare:
        problem, emitted = given.compare
        print(*_distances(problem, emitted, given.device))
        return 0
    modes = MODES if given.mode == "both" else (given.mode,)
    wanted = [(name, mode) for mode in modes for name in given.only or MODULES]
    given.output.mkdir(parents=True, exist_ok=True)
    outcomes = list(_outcomes(wanted, given))
    outcomes.sort(key=lambda o: (list(MODULES).index(o.module), o.mode))
    print(_table(outcomes))
    return 0 if all(_enough([o for o in outcomes if o.mode == mode]) for mode in modes) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(MODULES), metavar="NAME")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one module")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "modules")
    parser.add_argument("--again", action="store_true", help="run what is done once more")
    parser.add_argument("--list", action="store_true", help="the names, and end")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("PROBLEM", "CANDIDATE"),
                        help="the distances of two files' outputs, and end")  # fmt: skip
    return parser.parse_args()


def _outcomes(wanted: Sequence[tuple[str, str]], given: argparse.Namespace) -> Iterator[Outcome]:
    """Each one's outcome as it is known, told on stderr."""
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [pool.submit(_outcome, name, mode, given) for name, mode in wanted]
        for count, run in enumerate(as_completed(runs), 1):
            o = run.result()
            print(
                f"[{count}/{len(runs)}] {o.module} {o.mode}: {o.captured}, {o.verdict}, "
                f"right: {o.right}, {o.seconds:.0f} s{o.reason and '; ' + o.reason[:200]}",
                file=sys.stderr,
                flush=True,
            )
            yield o


def _outcome(name: str, mode: str, given: argparse.Namespace) -> Outcome:
    """What an earlier run found for the same problem, or what a new run finds."""
    stem = given.output / f"{name}.{mode}.{given.device}"
    problem, kept = Path(f"{stem}.py"), Path(f"{stem}.outcome.json")
    text = MODULES[name].problem(mode)
    if kept.exists() and problem.exists() and problem.read_text() == text and not given.again:
        return Outcome(**json.loads(kept.read_text(encoding="utf-8")))
    kept.unlink(missing_ok=True)
    problem.write_text(text, encoding="utf-8")
    found = _run(name, mode, stem, given)
    kept.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    return found


def _run(name: str, mode: str, stem: Path, given: argparse.Namespace) -> Outcome:
    problem, emitted, report = (Path(f"{stem}{end}") for end in (".py", ".new.py", ".report.json"))
    report.unlink(missing_ok=True)
    emitted.unlink(missing_ok=True)
    command = [sys.executable, "-m", "fusewright", "optimize", str(problem), "--no-timing"]
    command += ["--target", given.device, "--output", str(emitted), "--report", str(report)]
    begin = time.monotonic()
    with open(f"{stem}.log", "wb") as log:
        code = _within(given.timeout, [*command, "--force"], log.fileno())
    seconds = time.monotonic() - begin
    last = _last_line(Path(f"{stem}.log"))
    try:
        told = json.loads(report.read_bytes())
    except (OSError, ValueError):
        told = {"kernels": [], "verdict": "no verdict", "reason": last, "parts": None}
    captured, fused, operators = _captured(told, emitted)
    right = _right(problem, emitted, given.device) if emitted.exists() else "no file"
    if right.endswith(UNUSED):
        captured, right = "unused", right.removesuffix(UNUSED)
    verdict = told["verdict"] if code != BUG else f"exit {BUG}"
    reason = "" if verdict == VERIFIED and captured == "whole" else _reason(told)
    return Outcome(
        name, mode, captured, fused, operators, right, verdict, code, round(seconds, 1), reason
    )


def _within(seconds: float, command: Sequence[str], output: int) -> int:
    """The exit status; the whole process group is gone when this returns."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(LEAVE_S)
        return -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def _captured(told: dict[str, object], emitted: Path) -> tuple[str, int, int]:
    """whole, parts or none; the operators in kernels of ours, and all."""
    kernels: list[dict[str, object]] = told["kernels"]  # type: ignore[assignment]
    ours = [k["operators"] for k in kernels if k["kind"] != "library"]
    fused = sum(map(len, ours))  # type: ignore[arg-type]
    operators = fused + sum(k["kind"] == "library" for k in kernels)
    parts: dict[str, object] | None = told["parts"]  # type: ignore[assignment]
    if not emitted.exists():
        return "none", fused, operators
    return ("whole" if parts is None else "parts" if parts["taken"] else "none"), fused, operators


def _reason(told: dict[str, object]) -> str:
    """Why it is not verified, else why it is not taken as a whole: the first line of it."""
    parts: dict[str, list[dict[str, str]]] | None = told["parts"]  # type: ignore[assignment]
    if told["verdict"] == VERIFIED:
        return parts["left"][0]["why"].splitlines()[0] if parts else ""
    findings: list[dict[str, str]] = told.get("findings", [])  # type: ignore[assignment]
    first = f"{findings[0].get('check')}: {findings[0].get('evidence')}" if findings else ""
    return " ".join(f"{told['reason']} {first}".split())


def _right(problem: Path, emitted: Path, device: str) -> str:
    """Whether the emitted file's outputs are eager's, asked in a process of its own; with UNUSED
    behind it where the original forward made them.
    """
    files = [str(problem), str(emitted)]
    command = [sys.executable, __file__, "--device", device, "--compare", *files]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMPARE_S,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {COMPARE_S:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["crashed"])[-1]
    *distances, unused = map(float, done.stdout.splitlines()[-1].split())
    return _word(*distances) + UNUSED * bool(unused)


def _word(apart: float, eager: float, ours: float) -> str:
    """What three distances say: ours from eager's; eager's and ours from float64's."""
    if apart <= CLOSE:
        return YES
    if math.isinf(eager):
        return f"no: {apart:.1e}"
    word = YES if ours <= AS_FAR * eager else "no"
    return f"{word}: {apart:.1e}; from float64 {ours:.1e}, eager {eager:.1e}"


def _distances(problem: Path, emitted: Path, device: str) -> tuple[float, float, float, int]:
    """The largest relative L2 distances of outputs: the emitted file's from eager's; where these
    are not close, eager's and the emitted file's from those of the model in float64. Infinite where
    anything else differs, or nothing can be said. All start from the same weights and random state.
    Then: how many calls the original forward has answered.
    """
    import torch

    from fusewright.common.problem_file import load_problem

    reference = load_problem(problem)
    spec = importlib.util.spec_from_file_location("emitted", emitted)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emitted"] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = reference.make_model().to(device)
    start = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    new = module.ModelNew(*reference.make_init_inputs()).to(device)
    new.load_state_dict(start)
    refused = _counted(vars(module).values())
    eager, ours = _outputs(model, reference, device), _outputs(new, reference, device)
    apart, unused = _farthest(ours, eager), len(refused)
    if apart <= CLOSE:
        return apart, math.inf, math.inf, unused
    model.load_state_dict(start)
    try:
        exact = _outputs(model.double(), reference, device, exact=True)
    except RuntimeError:  # what makes tensors of a type that it names has no run in float64
        return apart, math.inf, math.inf, unused
    return apart, _farthest(eager, exact), _farthest(ours, exact), unused


def _counted(classes: Iterable[object]) -> list[None]:
    """An element for each call from now on that the original forward of one of them answers."""
    refused: list[None] = []

    def counted(forward: Callable[..., object]) -> Callable[..., object]:
        def reference_forward(*args: object, **kwargs: object) -> object:
            refused.append(None)
            return forward(*args, **kwargs)

        return reference_forward

    for kind in classes:
        if isinstance(kind, type) and "reference_forward" in vars(kind):
            kind.reference_forward = counted(kind.reference_forward)  # type: ignore[attr-defined]
    return refused


def _outputs(
    model: nn.Module, reference: Problem, device: str, *, exact: bool = False
) -> list[list[Tensor]]:
    """The outputs of each draw; exact: of float64, and an error for a model that draws numbers,
    which may be others there.
    """
    import torch

    from fusewright.common.problem_file import output_tensors

    found = []
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        inputs = [x.to(device) for x in reference.make_inputs()]
        if exact:
            inputs = [x.double() if x.is_floating_point() else x for x in inputs]
        before = _random_states()
        with torch.no_grad():
            found.append(output_tensors(model(*inputs)))
        if exact and not all(map(torch.equal, before, _random_states())):
            raise RuntimeError("the model draws random numbers")
    return found


def _random_states() -> list[Tensor]:
    import torch

    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _farthest(found: list[list[Tensor]], others: list[list[Tensor]]) -> float:
    """The largest distance of an output of any draw."""
    draws = zip(found, others, strict=True)
    return max(_apart(a, b) for pair in draws for a, b in zip(*pair, strict=True))


def _apart(a: Tensor, b: Tensor) -> float:
    """The relative L2 distance of a from b; infinite where anything else differs. b: of the same
    type, or of float64 in its place.
    """
    import torch

    if a.shape != b.shape or b.dtype not in (a.dtype, torch.float64):
        return math.inf
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else math.inf
    size = float(b.double().norm()) or 1.0
    distance = float((a.double() - b.double()).norm()) / size
    return distance if math.isfinite(distance) else math.inf


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _cell(texts: Iterable[str]) -> str:
    """What both modes have, once if it is the same."""
    return " / ".join(dict.fromkeys(texts))


def _enough(outcomes: Sequence[Outcome]) -> bool:
    missed = sum(o.verdict != VERIFIED for o in outcomes)
    bad = any(o.verdict in ("refuted", f"exit {BUG}") for o in outcomes)
    return missed <= len(outcomes) / 25 and not bad


def _table(outcomes: Sequence[Outcome]) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    modes = [mode for mode in MODES if any(o.mode == mode for o in outcomes)]
    lines = [
        f"{versions}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{time.strftime('%F')}; {' / '.join(modes)}",
        "",
        "| module | captured | operators fused | right | verdict | s | first reason |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(o.module for o in outcomes):
        rows = [o for mode in modes for o in outcomes if (o.module, o.mode) == (name, mode)]
        only = f" ({rows[0].mode} only)" if len(rows) < len(modes) else ""
        reason = next((o.reason for o in rows if o.reason), "").replace("|", "\\|")
        lines.append(
            f"| {name} | {_cell(o.captured for o in rows)} "
            f"| {_cell(f'{o.fused} of {o.operators}' for o in rows)} "
            f"| {_cell(o.right for o in rows)} | {_cell(o.verdict for o in rows)} "
            f"| {' / '.join(f'{o.seconds:.0f}' for o in rows)}{only} | {reason[:160]} |"
        )
    for mode in MODES:
        rows = [o for o in outcomes if o.mode == mode]
        if rows:
            lines.append(
                f"\n{mode}: {len(rows)} modules, {sum(o.captured in CAPTURED for o in rows)} "
                f"captured, {sum(o.right.startswith(YES) for o in rows)} right, "
                f"{sum(o.verdict == VERIFIED for o in rows)} verified, "
                f"{sum(o.verdict == 'refuted' for o in rows)} refuted, "
                f"{sum(o.code == BUG for o in rows)} at exit {BUG}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
