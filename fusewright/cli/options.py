"""What several commands take, and text of an option -> its value; BadUsage says what to write.

Files that cannot be read or written are found here, before the work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fusewright.common.atomic_write import STANDARD_OUTPUT, check_writable
from fusewright.common.budget import Budget
from fusewright.compiler.options import NO_ALGEBRA
from fusewright.errors import BadUsage
from fusewright.targets.target import TARGETS, target

ProblemPath = Annotated[
    Path, typer.Argument(metavar="PROBLEM", help="File with Model, get_inputs, get_init_inputs.")
]
CandidatePaths = Annotated[
    list[Path],
    typer.Argument(metavar="CANDIDATE...", help="Files that define ModelNew, timed together."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Runs at once: 1 if not given, with --ray as many as there is room for. On one "
        "machine one at a time is timed.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="HOST:PORT", help="Run on the Ray cluster whose head listens there."
    ),
]
Timing = Annotated[bool, typer.Option("--timing/--no-timing")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1.0, metavar="S", help="Seconds for one run.")
]
PagePath = Annotated[
    Path | None, typer.Option("--html", metavar="R.html", help="Write the result as one HTML page.")
]
Sanitize = Annotated[bool, typer.Option("--sanitize", help="Run compute-sanitizer's tools (CUDA).")]
Turn = Annotated[int | None, typer.Option("--turn", hidden=True)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a constant of the problem file."),
]
ReportPath = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="R.json", help="Write the result as JSON here; -: as --json does."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all: decisions in full, checks, numbers.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show one line: verdict, ratio, file. No progress.")
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, max=2**64 - 1, metavar="N",
        help="Draw the judge's inputs from this seed, which a candidate can know; secret, else.",
    ),
]  # fmt: skip
BudgetTime = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="30s|5m",
        help="About how long all of it may take. What is not checked by then is not verified.",
    ),
]  # fmt: skip
Device = Annotated[
    Literal["cpu", "cuda"] | None,
    typer.Option("--device", help="Where to run; the GPU if there is one, else the CPU."),
]
Algebra = Annotated[
    bool,
    typer.Option("--algebra/--no-algebra", help="Leave out what algebra shows to be needless."),
]
Tune = Annotated[
    Literal["off", "quick", "full"] | None,
    typer.Option(
        help="Try strategies on this machine: quick, 20 s a problem; full, 5 minutes. Quick where "
        "the file is for this machine and is timed, else off, if not given."
    ),
]
Mode = Annotated[
    Literal["both", "train", "eval"],
    typer.Option(
        help="For which mode of the model: both, where forward is not the same in them, if not "
        "given."
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="no-verify: only write it; compile, tune, judge nothing."
    ),
]
Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARGUMENT:DIM,...",
        help="Sizes that kernels take as they come, in place of the leading one: x:1 for the "
        "second size of the argument x, x:0,1 for its first two. Again for each other argument "
        "that has such sizes.",
    ),
]
Gradients = Annotated[
    bool,
    typer.Option("--gradients", help="Kernels for calls that record gradients, and for these."),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        help=f"One of {', '.join(TARGETS)}, cuda; this machine's GPU, else its CPU, if not given.",
    ),
]
UNITS_S = {"s": 1.0, "m": 60.0}
# --algebra or not -> what it restricts.
RESTRICTIONS = {True: frozenset[str](), False: frozenset({NO_ALGEBRA})}


def parse_settings(settings: Iterable[str] | None) -> dict[str, str]:
    """["batch_size=16"] -> {"batch_size": "16"}."""
    overrides: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not (name.isidentifier() and equals and value):
            raise BadUsage(f"--set {setting}: write --set NAME=VALUE, as in --set batch_size=16.")
        if name in overrides:
            raise BadUsage(f"--set {setting}: {name} is set twice; keep one of the two.")
        overrides[name] = value
    return overrides


def parse_seed(number: int | None) -> str:
    """A number -> the judge's seed in hexadecimal digits; "" for none: drawn where it is used."""
    return "" if number is None else f"{number:032x}"


def parse_budget(text: str | None) -> Budget | None:
    """ "30s" or "5m" -> that much time, from now on."""
    if text is None:
        return None
    number, unit = text[:-1], UNITS_S.get(text[-1:])
    try:
        seconds = float(number) * (unit or 0.0)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < math.inf:
        raise BadUsage(f"--budget {text}: write seconds or minutes, as in 30s or 5m.")
    return Budget(seconds, time.monotonic())


def drawn(seed: int | None, budget: Budget | None, *, timing: bool = True) -> dict[str, Any]:
    """What commands that time are told of both."""
    if budget is None:
        return {"seed": parse_seed(seed)}
    deadline = budget.checks_end if timing else budget.end
    return {"seed": parse_seed(seed), "budget_s": budget.timing_s, "deadline": deadline}


def parse_dynamic(sizes: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """["x:1"] -> {"x": (1,)}."""
    found: dict[str, tuple[int, ...]] = {}
    for size in sizes or ():
        name, _, dims = (part.strip() for part in size.partition(":"))
        try:
            numbers = tuple(map(int, dims.split(",")))
        except ValueError:
            numbers = ()
        if not (name.isidentifier() and numbers):
            raise BadUsage(
                f"--dynamic {size}: write --dynamic ARGUMENT:DIM, as in --dynamic x:1 or x:0,1."
            )
        if name in found:
            raise BadUsage(f"--dynamic {size}: {name} is named twice; keep one of the two.")
        found[name] = numbers
    return found


def parse_names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """ "eager,compile" -> ("eager", "compile"), in the order given, each one known."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadUsage(
            f"{option} {text}: there is no {' or '.join(unknown)}; choose among {', '.join(known)}."
        )
    return names


def check_file(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise BadUsage(f"{path}: there is no such file. Check the name and the folder.")


def check_outputs(
    *inputs: Path,
    output: Path | None = None,
    report: Path | None = None,
    page: Path | None = None,
    force: bool = False,
) -> None:
    """What cannot be written is an error before the work, not after it."""
    if page == STANDARD_OUTPUT:
        raise BadUsage("--html -: a page is a file; name one, as in --html R.html.")
    output, report = (None if p == STANDARD_OUTPUT else p for p in (output, report))
    taken = {path.resolve() for path in inputs}
    for path in (output, report, page):
        if path is not None and path.resolve() in taken:
            raise BadUsage(f"{path}: this file is used twice in one command; choose another name.")
        if path is not None:
            taken.add(path.resolve())
            check_writable(path, force=force or path is not output)


def check_verify(
    output: Path | None, tune: str | None, *, verify: bool, as_json: bool = False
) -> None:
    """What does not go together with verifying, or with leaving that out. as_json: whether the
    report goes to standard output."""
    if as_json and output == STANDARD_OUTPUT:
        raise BadUsage(
            "--output - and --json both want standard output: name a file for one of the two."
        )
    if verify and output == STANDARD_OUTPUT:
        raise BadUsage(
            "--output -: the judge runs a file. Name one, or add --no-verify for the text alone."
        )
    if not verify and tune not in (None, "off"):
        raise BadUsage(
            f"--tune {tune} runs what it tries, and --no-verify runs nothing: drop one of the two."
        )


def read_text(path: Path) -> str:
    """A file of Python; BadUsage for one that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}: this is no file of Python: it is not UTF-8.") from error


def check_target(name: str | None) -> None:
    if name not in (None, "cuda"):
        target(str(name))
