"""Arguments -> one command -> exit code: 0 verified or done, 1 refuted, 2 bad usage, 3 cannot tell.

The only file that reads arguments. A command imports what it needs when it runs, so that `--help`
and usage errors do not wait for PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fusewright import __version__
from fusewright.cli.diff import diff
from fusewright.cli.doctor import doctor
from fusewright.cli.endings import ends_well, say
from fusewright.cli.optimizing import OptimizeRun, default_device
from fusewright.cli.options import (
    RESTRICTIONS,
    Algebra,
    AsJson,
    BudgetTime,
    CandidatePaths,
    Device,
    Dynamic,
    Gradients,
    Jobs,
    Mode,
    PagePath,
    ProblemPath,
    Quiet,
    RayAddress,
    ReportPath,
    Sanitize,
    Seed,
    Settings,
    TargetName,
    Timeout,
    Timing,
    Tune,
    Turn,
    Verbose,
    Verify,
    check_file,
    check_outputs,
    check_target,
    check_verify,
    drawn,
    parse_budget,
    parse_dynamic,
    parse_names,
    parse_seed,
    parse_settings,
    read_text,
)
from fusewright.cli.profile import profile
from fusewright.cli.reporting import Asked, Done, asked
from fusewright.cli.views import (
    arena_done,
    contest_done,
    explained_done,
    suite_done,
    timing_done,
    verdict_done,
)
from fusewright.common.timing_lock import Turn as TimingTurn
from fusewright.common.timing_lock import hold_timing_lock
from fusewright.compiler.options import RULES
from fusewright.compiler.verdict import Terms
from fusewright.errors import BadUsage
from fusewright.report.kernel_notes import (
    emitted_kernels,
    kernel_named,
    kernel_told,
    kernels_table,
)

BASELINES = ("eager", "compile", "max-autotune")

app = typer.Typer(
    help="Turn a PyTorch model into one file with fused kernels, verified against float64.",
    epilog="Exit codes: 0 verified or done, 1 refuted, 2 bad usage or unusable problem file, "
    "3 could not be verified on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fusewright {__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Say it and leave."),
    ] = False,
) -> None:
    """Turn a PyTorch model into one file with fused kernels, verified against float64."""


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
    budget: BudgetTime = None,
    seed: Seed = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.py.")] = False,
    timing: Timing = True,
    verify: Verify = True,
    line: Turn = None,
) -> int:
    """Write a file with ModelNew, say which kernels it has and why, verify it and time it."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    check_verify(output, tune, verify=verify, as_json=wanted.as_json)
    check_outputs(problem, output=output, report=wanted.report, page=wanted.page, force=force)
    check_target(target)
    chosen = frozenset(parse_names("--rules", rules, RULES)) | RESTRICTIONS[algebra]
    overrides = parse_settings(settings)
    about: dict[str, Any] = {"precision": precision, "rules": chosen, "overrides": overrides}
    about |= {"mode": mode, "dynamic": parse_dynamic(dynamic), "gradients": gradients}
    terms = Terms(timing, gradients, parse_seed(seed), parse_budget(budget))
    run = OptimizeRun(problem, output, target, about, terms, tune, line, force)
    work = run.verified if verify else run.only_written
    return wanted.reported(partial(work, wanted))


@app.command()
@ends_well
def explain(  # noqa: PLR0913 -- the options of the command
    problem: ProblemPath,
    target: TargetName = None,
    algebra: Algebra = True,
    settings: Settings = None,
    dynamic: Dynamic = None,
    gradients: Gradients = False,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only how many kernels and calls there are.")
    ] = False,
) -> int:
    """Say which operators share a kernel and why, what it saves, and what time to expect."""
    wanted = asked(verbose=False, quiet=quiet, report=report_path, as_json=as_json, page=page_path)
    check_outputs(problem, report=wanted.report, page=wanted.page)
    check_target(target)
    about: dict[str, Any] = {"target": target, "rules": RESTRICTIONS[algebra]}
    about |= {"overrides": parse_settings(settings), "dynamic": parse_dynamic(dynamic)}

    def work() -> Done:
        from fusewright.compiler.pipeline import explain_file

        return explained_done(explain_file(problem, **about, gradients=gradients), wanted.view)

    return wanted.reported(work)


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
def bench(  # noqa: PLR0913 -- the options of the command
    problem: ProblemPath,
    candidates: CandidatePaths,
    against: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Baselines: {', '.join(BASELINES)}.")
    ] = "eager,compile",
    device: Device = None,
    budget: BudgetTime = None,
    seed: Seed = None,
    settings: Settings = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    line: Turn = None,
) -> int:
    """Time candidates against eager and torch.compile: interleaved, fresh inputs, intervals."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    check_outputs(problem, *candidates, report=wanted.report, page=wanted.page)
    check_file(problem, *candidates)
    about = {
        "device": device or default_device(),
        "against": parse_names("--against", against, BASELINES),
        "overrides": parse_settings(settings),
        **drawn(seed, parse_budget(budget)),
    }
    work = _timed if len(candidates) == 1 else _met
    return wanted.reported(partial(work, wanted, problem, candidates, about, line))


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
    sanitize: Sanitize = False,
    timing: Timing = True,
    budget: BudgetTime = None,
    seed: Seed = None,
    settings: Settings = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="R.json", help="Repeat a case of an earlier report.")
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="N", help="The case to repeat, as the report names it.")
    ] = None,
    line: Turn = None,
) -> int:
    """Decide whether a candidate is right, in processes that it cannot fool, and time it."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    if (replay is None) != (case is None):
        raise BadUsage("--replay R.json and --case N belong together: give both or none.")
    if replay is not None and case is not None:
        return _replay(replay, case, wanted)
    if problem is None or candidate is None:
        raise BadUsage("judge needs two files: fusewright judge PROBLEM.py CANDIDATE.py.")
    check_outputs(problem, candidate, report=wanted.report, page=wanted.page)
    check_file(problem, candidate)
    options = {
        "device": device or default_device(),
        "accuracy": accuracy,
        "truth": truth,
        "mode": mode or "",
        "grad": grad,
        "sanitize": sanitize,
        "timing": timing,
        "overrides": parse_settings(settings),
        "turn": _turn(line),
        **drawn(seed, parse_budget(budget), timing=timing),
    }
    return wanted.reported(partial(_judged, wanted, problem, candidate, options))


@app.command()
@ends_well
def suite(  # noqa: PLR0913 -- the options of the command
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of problem files.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Results go here; DIR_suite else."),
    ] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    target: TargetName = None,
    timing: Timing = True,
    timeout_s: Timeout = 600.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: keep what an earlier run has finished.")
    ] = False,
    algebra: Algebra = True,
    tune: Tune = None,
    seed: Seed = None,
    settings: Settings = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> int:
    """Optimize every problem of a folder, each in its own process, and sum up."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    check_outputs(report=wanted.report, page=wanted.page)
    check_target(target)
    overrides = parse_settings(settings)

    def work() -> Done:
        from fusewright.suite.command import suite as run
        from fusewright.suite.places import place_at
        from fusewright.suite.run_all import SuiteOptions

        result = run(
            folder,
            SuiteOptions(target, timing, algebra, timeout_s, overrides, tune, seed),
            output or Path(f"{folder.resolve().name}_suite"),
            one_run,
            place=place_at(ray, jobs),
            resume=resume,
            page=wanted.page,
            quiet=quiet,
        )
        for why in result.lost:
            say(f"fusewright: {why}: --resume will run this problem again.")
        return suite_done(result, wanted.view)

    return wanted.reported(work)


@app.command()
@ends_well
def arena(  # noqa: PLR0913 -- the options of the command
    problems: Annotated[
        Path, typer.Argument(metavar="PROBLEM_DIR", help="Folder of problem files.")
    ],
    candidates: Annotated[
        Path,
        typer.Argument(
            metavar="CANDIDATE_DIR", help="Folder of ENTRANT/PROBLEM.py or PROBLEM/ENTRANT.py."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Results are kept here; CANDIDATE_DIR_arena else."
        ),
    ] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    device: Device = None,
    timing: Timing = True,
    timeout_s: Timeout = 600.0,
    settings: Settings = None,
    report_path: ReportPath = None,
    page_path: PagePath = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> int:
    """Judge anyone's candidates for a folder of problems, time the right ones together, and rank
    them. What has a verdict, or a time, is not asked again."""
    wanted = asked(
        verbose=verbose, quiet=quiet, report=report_path, as_json=as_json, page=page_path
    )
    check_outputs(report=wanted.report, page=wanted.page)
    if ray is not None and device is None:
        raise BadUsage(
            "--ray: say --device cuda or --device cpu; nodes need not have what is here."
        )
    folder = output or Path(f"{candidates.resolve().name}_arena")
    overrides = parse_settings(settings)

    def work() -> Done:
        from fusewright.arena.command import arena as run
        from fusewright.arena.run_arena import ArenaOptions
        from fusewright.suite.places import place_at

        options = ArenaOptions(device or default_device(), timing, timeout_s, overrides)
        place, folders = place_at(ray, jobs), (problems, candidates)
        board = run(folders, options, folder, one_run, place=place, page=wanted.page, quiet=quiet)
        for path in board.strangers:
            say(f"fusewright: {path} is left out: its path names no problem.")
        for why in board.lost:
            say(f"fusewright: {why}: the next run will ask this again.")
        return arena_done(board, wanted.view)

    return wanted.reported(work)


@app.command()
@ends_well
def mcp(
    seconds: Annotated[
        float, typer.Option("--time", min=1.0, metavar="S", help="Seconds for one command.")
    ] = 600.0,
    memory: Annotated[
        float, typer.Option(min=0.1, metavar="GB", help="Memory of one command, together.")
    ] = 32.0,
    disk: Annotated[float, typer.Option(min=0.1, metavar="GB", help="Files of one command.")] = 8.0,
) -> int:
    """Offer explain, optimize, judge, bench and profile to agents: a Model Context Protocol server
    on standard input and output."""
    try:
        from fusewright.mcp_server.limited_run import GB, Limits
        from fusewright.mcp_server.server import make_server
    except ModuleNotFoundError as error:
        raise BadUsage(
            f"mcp needs the package {error.name}: pip install 'fusewright[mcp]'."
        ) from error
    make_server(Limits(seconds, memory * GB, disk * GB)).run("stdio")
    return 0


app.command()(ends_well(diff))
app.command()(ends_well(doctor))
app.command()(ends_well(profile))


def one_run(words: list[str]) -> None:
    """One command of a suite or an arena, in a process of its own."""
    app(words, prog_name="fusewright")


def _turn(line: int | None) -> TimingTurn:
    """Of a suite or an arena, on the line with this descriptor; without one, at once."""
    return nullcontext if line is None else partial(hold_timing_lock, line)


def _timed(
    wanted: Asked,
    problem: Path,
    candidates: Sequence[Path],
    about: Mapping[str, Any],
    line: int | None,
) -> Done:
    """One candidate."""
    from fusewright.judge.timing.bench import bench as measure

    (candidate,) = candidates
    with wanted.progress() as step:
        timing = measure(problem, candidate, **about, turn=_turn(line), progress=step)
    return timing_done(timing, wanted.view, str(problem), str(candidate))


def _met(
    wanted: Asked,
    problem: Path,
    candidates: Sequence[Path],
    about: Mapping[str, Any],
    line: int | None,
) -> Done:
    """Several candidates in one run, by their paths as given."""
    from fusewright.judge.request import Request
    from fusewright.judge.timing.contest import contest

    request = Request(problem.absolute(), candidates[0].absolute(), **about)
    with wanted.progress() as step:
        met = contest(request, {str(path): path for path in candidates}, _turn(line), step)
    return contest_done(met, wanted.view, str(problem))


def _judged(wanted: Asked, problem: Path, candidate: Path, options: Mapping[str, Any]) -> Done:
    from fusewright.judge import judge as decide

    with wanted.progress() as step:
        verdict = decide(problem, candidate, **options, progress=step)
    return verdict_done(verdict, wanted.view, str(problem), str(candidate))


def _replay(source: Path, case: str, wanted: Asked) -> int:
    check_file(source)
    check_outputs(source, report=wanted.report, page=wanted.page)

    def work() -> Done:
        from fusewright.judge import replay

        with wanted.progress() as step:
            verdict = replay(source, case, progress=step)
        return verdict_done(verdict, wanted.view)

    return wanted.reported(work)


def main() -> None:
    app()
