"""explain, optimize, judge, bench and profile as tools of a Model Context Protocol server.

Each tool is the command of its name, with the command's own JSON report as its result. Commands run
one at a time, as times are only true on a quiet machine, and a request that is cancelled ends its
command.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from fusewright import __version__
from fusewright.mcp_server.limited_run import CommandFailed, LimitReached, Limits, run_command
from fusewright.suite.process_runner import setting_words
from fusewright.targets.target import TARGETS

WRITTEN = "optimized.py"  # by `optimize`, in the folder of its command
INSTRUCTIONS = """\
fusewright turns a PyTorch model into one file with fused kernels, and judges candidates that anyone
wrote. A problem is a Python file with Model, get_inputs() and get_init_inputs(); a candidate is one
with ModelNew, which takes the same arguments. Give either as the path of a file on this machine or
as its whole text. judge decides whether a candidate is right (never less accurate than eager,
against float64); bench only times; profile says where the time goes, kernel by kernel; optimize
writes a candidate itself; explain says what it would fuse, and why."""

Problem = Annotated[
    str, Field(description="A problem: the path of a file, or its text. Model, get_inputs, ...")
]
Candidate = Annotated[
    str, Field(description="A candidate: the path of a file, or its text. It defines ModelNew.")
]
OneOrNone = Annotated[
    str | None,
    Field(description="A candidate, as for judge; eager and torch.compile only, if not given."),
]
Candidates = Annotated[
    list[str],
    Field(
        description="1 to 8 candidates, as for judge; timed in one run.", min_length=1, max_length=8
    ),
]
Device = Annotated[
    Literal["cpu", "cuda"] | None,
    Field(description="Where to run; the GPU if there is one, else the CPU, if not given."),
]
Target = Annotated[
    str | None,
    Field(
        description=f"One of {', '.join(TARGETS)}, cuda; this machine's GPU, else its CPU, if not "
        "given."
    ),
]
Constants = Annotated[
    dict[str, str] | None,
    Field(description="Constants of the problem file to replace, as batch_size: 64."),
]
Timing = Annotated[bool, Field(description="Time it against eager and torch.compile, too.")]


def make_server(limits: Limits) -> MCPServer[Any]:
    """A server whose commands have these limits, each."""
    server: MCPServer[Any] = MCPServer(
        "fusewright", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = Tools(limits)
    for tool in (tools.explain, tools.optimize, tools.judge, tools.bench, tools.profile):
        server.tool()(tool)
    return server


class Tools:
    """What agents may ask. A tool's description is its docstring."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._one_at_a_time = anyio.Lock()

    async def explain(
        self, problem: Problem, target: Target = None, constants: Constants = None
    ) -> dict[str, Any]:
        """Say which operators would share a kernel and why, what that saves, and what time to
        expect. Nothing is compiled or run."""
        options = _options(target=target, constants=constants)
        return await self._run("explain", {"problem": problem}, options)

    async def optimize(
        self,
        problem: Problem,
        target: Target = None,
        constants: Constants = None,
        timing: Timing = True,
    ) -> dict[str, Any]:
        """Write a file with fused kernels, verify it against eager and float64, and time it. The
        report's `source` is the text of the file."""
        options = _options(target=target, constants=constants, timing=timing)
        options += ["--output", WRITTEN]
        return await self._run("optimize", {"problem": problem}, options)

    async def judge(
        self,
        problem: Problem,
        candidate: Candidate,
        device: Device = None,
        constants: Constants = None,
        timing: Timing = True,
        gradients: Annotated[bool, Field(description="Check gradients, too.")] = False,
    ) -> dict[str, Any]:
        """Decide whether a candidate is right, in processes that it cannot fool, and time it."""
        options = _options(device=device, constants=constants, timing=timing)
        options += ["--grad"] * gradients
        return await self._run("judge", {"problem": problem, "candidate": candidate}, options)

    async def bench(
        self,
        problem: Problem,
        candidates: Candidates,
        device: Device = None,
        constants: Constants = None,
    ) -> dict[str, Any]:
        """Time candidates against eager and torch.compile: interleaved, fresh inputs, intervals.
        Right is what judge says; a candidate with a wrong answer is not timed."""
        named = {f"candidate_{number}": text for number, text in enumerate(candidates, 1)}
        options = _options(device=device, constants=constants)
        return await self._run("bench", {"problem": problem, **named}, options)

    async def profile(
        self,
        problem: Problem,
        candidate: OneOrNone = None,
        device: Device = None,
        constants: Constants = None,
    ) -> dict[str, Any]:
        """Say where the time of a call goes, for eager, torch.compile and a candidate: each kernel
        and each call of PyTorch's, its time, what it moves, how near it is to the roofline, and
        the gaps. The report's `profile` has it."""
        named = {"candidate": candidate} if candidate else {}
        options = _options(device=device, constants=constants)
        return await self._run("profile", {"problem": problem, **named}, options)

    async def _run(
        self, command: str, given: Mapping[str, str], options: Sequence[str]
    ) -> dict[str, Any]:
        """The report of a command on these files: paths, or texts."""
        stop = threading.Event()
        paths, files = _placed(given)
        words = [command, *paths, *options]
        work = partial(run_command, words, files, self._limits, stop, WRITTEN)
        async with self._one_at_a_time:
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except (CommandFailed, LimitReached) as error:
                raise ToolError(str(error)) from error
            finally:
                stop.set()


def _placed(given: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The paths of these, and the texts of those that are no paths, by file name."""
    files = {f"{name}.py": text for name, text in given.items() if "\n" in text}
    paths = [
        f"{name}.py" if "\n" in text else str(Path(text).absolute()) for name, text in given.items()
    ]
    return paths, files


def _options(
    *,
    target: str | None = None,
    device: str | None = None,
    constants: Mapping[str, str] | None = None,
    timing: bool = True,
) -> list[str]:
    words = ["--target", target] if target else []
    words += ["--device", device] if device else []
    words += setting_words(constants or {})
    return words + ["--no-timing"] * (not timing)
