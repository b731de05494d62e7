"""Arguments -> one command -> exit code: 0 verified or done, 1 refuted, 2 bad usage, 3 cannot tell.

The only file that reads arguments. A command imports what it needs when it runs, so that `--help`
and usage errors do not wait for PyTorch.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TextIO

import typer
from rich.console import Console

from fusewright.cli.diff import diff
from fusewright.cli.doctor import doctor
from fusewright.cli.options import (
    RESTRICTIONS,
    Algebra,
    CandidatePath,
    Device,
    Dynamic,
    Gradients,
    Mode,
    ProblemPath,
    ReportPath,
    Settings,
    TargetName,
    Tune,
    Verify,
    check_file,
    check_outputs,
    check_target,
    check_verify,
    parse_dynamic,
    parse_names,
    parse_settings,
    read_text,
)
from fusewright.common.atomic_write import write_atomically
from fusewright.common.progress import progress
from fusewright.common.timing_lock import Need, hold_timing_lock, settle
from fusewright.compiler.options import RULES
from fusewright.compiler.verdict import STANDARD_OUTPUT
from fusewright.errors import BadUsage, FusewrightError, InternalError, NotVerifiable
from fusewright.report.kernel_notes import (
    emitted_kernels,
    kernel_named,
    kernel_told,
    kernels_table,
)
from fusewright.report.run_report import (
    Report,
    error_report,
    outcome_report,
    show_outcome,
    show_timing,
    show_verdict,
    timing_report,
    to_json,
    verdict_report,
)

if TYPE_CHECKING:
    from fusewright.judge.judging import Judging

# What the system may refuse -> what to do about it.
REFUSALS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        "Make room where the output, TMPDIR and TORCH_EXTENSIONS_DIR lie, or name other places.",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "Choose folders that can be written: --output, TMPDIR, TORCH_EXTENSIONS_DIR.",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Allow more open files: ulimit -n."),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM), "Allow more processes and memory: ulimit -a."),
    errno.EBADF: "Give the command open files as input and output.",
    errno.ENOENT: "Name folders that exist: TMPDIR, TORCH_EXTENSIONS_DIR, HOME.",
}
BASELINES = ("eager", "compile", "max-autotune")
P = ParamSpec("P")

app = typer.Typer(
    help="Turn a PyTorch model into one file with fused kernels, verified against float64.",
    epilog="Exit codes: 0 verified or done, 1 refuted, 2 bad usage or unusable problem file, "
    "3 could not be verified on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Output(Console):
    """Rich would end the process with 1 when the reader of a pipe has left; 1 means refuted."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def ends_well(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's exit code, or any exception, into the end of the process."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except FusewrightError as error:
            code = error.exit_code
            say(_bug(error) if isinstance(error, InternalError) else f"fusewright: {error}")
        except KeyboardInterrupt:
            code = 130
            say("fusewright: interrupted; nothing is half-written.")
        except BrokenPipeError:  # `fusewright explain ... | head`
            code = 128 + signal.SIGPIPE
            _forget(sys.stdout)
        except OSError as error:
            code = NotVerifiable.exit_code if error.errno in REFUSALS else InternalError.exit_code
            _forget(sys.stdout)  # what is left in its buffer would be written at the end
            say(_refusal(error) if error.errno in REFUSALS else _bug(error))
        # The last line of defence: whatever a broken promise of ours raises ends here.
        except Exception as error:  # noqa: BLE001
            code = InternalError.exit_code
            say(_bug(error))
        raise typer.Exit(code)

    return run


def say(paragraph: str) -> None:
    """To stderr, on one line: the terminal wraps it, `grep` finds it."""
    try:
        typer.echo(" ".join(paragraph.split()), err=True)
    except OSError:  # nobody can be told, but for the exit code
        _forget(sys.stderr)


def _forget(stream: TextIO | None) -> None:
    """Let a stream that cannot be written to lead nowhere."""
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refusal(error: OSError) -> str:
    """What the system refused, and what to do."""
    named = f" ({error.filename})" if error.filename else ""
    return (
        f"fusewright: the system refused: {error.strerror}{named}. {REFUSALS[error.errno or 0]} "
        "Nothing is half-written."
    )


def _bug(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))
    where = f"The traceback is in {name}" if (name := _kept(text)) else f"The traceback:\n{text}"
    return (
        f"fusewright: {type(error).__name__}: {error}. This is a bug in fusewright, not in your "
        f"file. {where}; please report it together with the problem file."
    )


def _kept(text: str) -> str:
    """The name of a file with the text, or "" where there is no room for one."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fusewright-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return ""
    return file.name


@app.command()
@ends_well
def optimize(  # noqa: PLR0913 -- the options of the command
    problem: ProblemPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.py", help="The file to write; -: to standard output."
        ),
    ] = None,
    target: TargetName = None,
    precision: Annotated[
        Literal["eager", "ieee"],
        typer.Option(help="eager: as precise as PyTorch's flags ask for; ieee: full float32."),
    ] = "eager",
    rules: Annotated[
        str, typer.Option(metavar="RULE,...", help=f"Restrictions: {', '.join(RULES)}.")
    ] = "",
    mode: Mode = "both",
    algebra: Algebra = True,
    tune: Tune = None,
    settings: Settings = None,
    dynamic: Dynamic = None,
    gradients: Gradients = False,
    report_path: ReportPath = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.py.")] = False,
    timing: Annotated[bool, typer.Option("--timing/--no-timing")] = True,
    verify: Verify = True,
    line: Annotated[int | None, typer.Option("--turn", hidden=True)] = None,
) -> int:
    """Write a file with ModelNew, say which kernels it has and why, verify it and time it."""
    check_verify(output, tune, verify=verify)
    check_outputs(problem, output=output, report=report_path, force=force)
    check_target(target)
    chosen = frozenset(parse_names("--rules", rules, RULES)) | RESTRICTIONS[algebra]
    overrides = parse_settings(settings)
    asked: dict[str, Any] = {"precision": precision, "rules": chosen, "overrides": overrides}
    asked |= {"mode": mode, "dynamic": parse_dynamic(dynamic), "gradients": gradients}

    def work() -> tuple[Report, int]:
        # Importing PyTorch takes its time, here and in the judge's processes: side by side.
        about = {"timing": timing, "grad": gradients}
        open_one = partial(_judging, problem, output, target, overrides, mode, **about)
        with open_one() as judging, progress(Console(stderr=True)) as step:
            # Beside planning, if memory is nobody's to give and nothing is timed meanwhile.
            if judging and line is None and _level(tune, timing=timing) == "off":
                judging.begin()
            from fusewright.compiler.pipeline import optimize_file

            outcome = optimize_file(
                problem,
                out=output,
                target=target,
                **asked,
                force=force,
                timing=timing,
                level=tune,
                turn=nullcontext if line is None else partial(hold_timing_lock, line),
                progress=step,
                judging=judging,
                settle=_at_once if line is None else partial(settle, line),
            )
        show_outcome(Output(highlight=False), outcome)
        return outcome_report(outcome), outcome.exit_code

    only_write = partial(_only_write, problem, output, target, asked, force=force)
    return _reported(report_path, work if verify else only_write)


@app.command()
@ends_well
def explain(
    problem: ProblemPath,
    target: TargetName = None,
    algebra: Algebra = True,
    settings: Settings = None,
    dynamic: Dynamic = None,
    gradients: Gradients = False,
) -> int:
    """Say which operators share a kernel and why, what it saves, and what time to expect."""
    check_target(target)
    overrides, sizes = parse_settings(settings), parse_dynamic(dynamic)
    from fusewright.compiler.pipeline import explain_file

    record = explain_file(
        problem,
        target=target,
        rules=RESTRICTIONS[algebra],
        overrides=overrides,
        dynamic=sizes,
        gradients=gradients,
    )
    typer.echo(record.rstrip())
    return 0


@app.command()
@ends_well
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that optimize has written.")],
    kernel: Annotated[
        str | None, typer.Argument(metavar="KERNEL", help="One of its kernels; else, all in brief.")
    ] = None,
) -> int:
    """Say of each kernel of an emitted file what it moves and how long that should take; of one,
    also which lines of the model ask for it, how it runs, and its text."""
    check_file(file)
    kernels = emitted_kernels(read_text(file), str(file))
    if kernel is not None:
        typer.echo(kernel_told(kernel_named(kernels, kernel, str(file))))
    elif kernels:
        typer.echo(kernels_table(kernels))
    else:
        typer.echo("no kernels: PyTorch computes all of it")
    return 0


@app.command()
@ends_well
def bench(
    problem: ProblemPath,
    candidate: CandidatePath,
    against: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Baselines: {', '.join(BASELINES)}.")
    ] = "eager,compile",
    device: Device = None,
    settings: Settings = None,
    report_path: ReportPath = None,
) -> int:
    """Time a candidate against eager and torch.compile: interleaved, fresh inputs, intervals."""
    check_outputs(problem, candidate, report=report_path)
    check_file(problem, candidate)
    baselines, overrides = parse_names("--against", against, BASELINES), parse_settings(settings)

    def work() -> tuple[Report, int]:
        from fusewright.judge.timing.bench import bench as measure

        with progress(Console(stderr=True)) as step:
            timing = measure(
                problem,
                candidate,
                device=device or _default_device(),
                against=baselines,
                overrides=overrides,
                progress=step,
            )
        show_timing(Output(highlight=False), timing)
        return timing_report(timing), 0

    return _reported(report_path, work)


@app.command()
@ends_well
def judge(  # noqa: PLR0913 -- the options of the command
    problem: Annotated[Path | None, typer.Argument(metavar="PROBLEM")] = None,
    candidate: Annotated[Path | None, typer.Argument(metavar="CANDIDATE")] = None,
    device: Device = None,
    accuracy: Annotated[
        Literal["contract", "loose"],
        typer.Option(help="contract: never less accurate than eager, against float64."),
    ] = "contract",
    truth: Annotated[
        Literal["rows", "whole"],
        typer.Option(help="rows: float64 where it is needed. whole: everywhere, at full size."),
    ] = "rows",
    mode: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(help="In which most is asked, and all is timed; that of the problem, else."),
    ] = None,
    grad: Annotated[bool, typer.Option("--grad", help="Check gradients too.")] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Run compute-sanitizer's tools (CUDA).")
    ] = False,
    timing: Annotated[bool, typer.Option("--timing/--no-timing")] = True,
    settings: Settings = None,
    report_path: ReportPath = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="R.json", help="Repeat a case of an earlier report.")
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="N", help="The case to repeat, as the report names it.")
    ] = None,
) -> int:
    """Decide whether a candidate is right, in processes that it cannot fool, and time it."""
    if (replay is None) != (case is None):
        raise BadUsage("--replay R.json and --case N belong together: give both or none.")
    if replay is not None and case is not None:
        return _replay(replay, case, report_path)
    if problem is None or candidate is None:
        raise BadUsage("judge needs two files: fusewright judge PROBLEM.py CANDIDATE.py.")
    check_outputs(problem, candidate, report=report_path)
    check_file(problem, candidate)
    overrides = parse_settings(settings)

    def work() -> tuple[Report, int]:
        from fusewright.judge import judge as decide

        with progress(Console(stderr=True)) as step:
            verdict = decide(
                problem,
                candidate,
                device=device or _default_device(),
                accuracy=accuracy,
                truth=truth,
                mode=mode or "",
                grad=grad,
                sanitize=sanitize,
                timing=timing,
                overrides=overrides,
                progress=step,
            )
        show_verdict(Output(highlight=False), verdict)
        return verdict_report(verdict), verdict.exit_code

    return _reported(report_path, work)


@app.command()
@ends_well
def suite(  # noqa: PLR0913 -- the options of the command
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of problem files.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Results go here; DIR_suite else."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Problems at once; one at a time is timed.")] = 1,
    target: TargetName = None,
    timing: Annotated[bool, typer.Option("--timing/--no-timing")] = True,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, metavar="S", help="Seconds for one problem.")
    ] = 600.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: keep what an earlier run has finished.")
    ] = False,
    algebra: Algebra = True,
    tune: Tune = None,
    settings: Settings = None,
    report_path: ReportPath = None,
    page_path: Annotated[
        Path | None, typer.Option("--html", metavar="R.html", help="Write the result as a page.")
    ] = None,
) -> int:
    """Optimize every problem of a folder, each in its own process, and sum up."""
    check_outputs(output=page_path, report=report_path, force=True)
    check_target(target)
    from fusewright.suite.command import suite as run
    from fusewright.suite.process_runner import SuiteOptions

    return run(
        folder,
        SuiteOptions(target, timing, algebra, timeout_s, parse_settings(settings), tune),
        output or Path(f"{folder.resolve().name}_suite"),
        one_run,
        jobs=jobs,
        resume=resume,
        report=report_path,
        page=page_path,
        console=Output(highlight=False),
        say=say,
    )


app.command()(ends_well(diff))
app.command()(ends_well(doctor))


def one_run(words: list[str]) -> None:
    """One command of a suite, in a process of its own."""
    app(words, prog_name="fusewright")


def _replay(source: Path, case: str, report_path: Path | None) -> int:
    check_file(source)
    check_outputs(source, report=report_path)

    def work() -> tuple[Report, int]:
        from fusewright.judge import replay

        with progress(Console(stderr=True)) as step:
            verdict = replay(source, case, progress=step)
        show_verdict(Output(highlight=False), verdict)
        return verdict_report(verdict), verdict.exit_code

    return _reported(report_path, work)


def _reported(path: Path | None, work: Callable[[], tuple[Report, int]]) -> int:
    """Do the work, and leave a report of it even if it ends early: never an older one."""
    try:
        report, code = work()
    except FusewrightError as error:
        if path is not None:
            write_atomically(path, to_json(error_report(error)), force=True)
        raise
    if path is not None:
        write_atomically(path, to_json(report), force=True)
    return code


def _at_once(_: Need) -> None:
    """Alone, a run takes what memory there is."""


def _only_write(
    problem: Path,
    output: Path | None,
    target: str | None,
    asked: Mapping[str, Any],
    *,
    force: bool,
) -> tuple[Report, int]:
    """The file, or its text alone, that nobody compiles or judges. asked: options of the command
    that are the pipeline's own."""
    # What the problem file prints is not the text.
    with redirect_stdout(sys.stderr), progress(Console(stderr=True)) as step:
        from fusewright.compiler.pipeline import emit_only

        outcome, text = emit_only(
            problem,
            out=output,
            target=target,
            force=force,
            progress=step,
            **asked,
        )
    if output == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    else:
        show_outcome(Output(highlight=False), outcome)
    say(f"fusewright: not verified: {outcome.why_not}.")
    return outcome_report(outcome), outcome.exit_code


def _level(asked: str | None, *, timing: bool) -> str:
    from fusewright.tune.levels import default_level

    return asked or default_level(here=True, timing=timing)


def _judging(
    problem: Path,
    output: Path | None,
    target: str | None,
    overrides: Mapping[str, str],
    mode: str,
    *,
    timing: bool,
    grad: bool,
) -> AbstractContextManager[Judging | None]:
    """Of the file for this target, if it is for this machine in any case."""
    from fusewright.compiler.verdict import request_for
    from fusewright.judge.judging import open_judging

    device = target or _default_device()
    known = device == "cpu" or (device == "cuda" and _default_device() == "cuda")
    if not known or not problem.is_file():
        return nullcontext()
    about = problem, output, device, overrides, mode
    return open_judging(request_for(*about, timing=timing, grad=grad))


def _default_device() -> Literal["cpu", "cuda"]:
    """Ask the driver, not PyTorch: the parent of a judgement never imports it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return "cuda" if found and count.value else "cpu"


def main() -> None:
    app()
