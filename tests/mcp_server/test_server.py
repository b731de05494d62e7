"""The server, asked by the SDK's own client: its tools, their results, and its limits."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from fusewright.mcp_server.limited_run import Limits
from fusewright.mcp_server.server import make_server
from tests.support.folders import ROOT

PROBLEM = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(32, 16)]


def get_init_inputs():
    return []
"""
RIGHT = PROBLEM.replace("class Model", "class ModelNew")
WRONG = RIGHT.replace("2.0", "2.01")
STDIO = StdioServerParameters(
    command=sys.executable, args=["-m", "fusewright", "mcp"], env={"PYTHONPATH": str(ROOT)}
)


def asked(
    tool: str, arguments: Mapping[str, Any], server: Any = None, limits: Limits | None = None
) -> Any:
    """The result of one call."""

    async def ask() -> Any:
        async with Client(server or make_server(limits or Limits())) as client:
            return await client.call_tool(tool, dict(arguments))

    return anyio.run(ask)


def schemas() -> dict[str, dict[str, Any]]:
    async def ask() -> Any:
        async with Client(make_server(Limits())) as client:
            return await client.list_tools()

    return {tool.name: tool.input_schema for tool in anyio.run(ask).tools}


def test_the_page_has_every_tool_and_argument() -> None:
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    found = {
        name: {
            argument: argument in schema.get("required", ()) for argument in schema["properties"]
        }
        for name, schema in schemas().items()
    }
    told: dict[str, dict[str, bool]] = {}
    for line in page.splitlines():
        if match := re.match(r"\| `(\w+)` \| `(\w+)`( \(required\))? \|", line):
            told.setdefault(match[1], {})[match[2]] = bool(match[3])
    assert told == found


@pytest.mark.judged
@pytest.mark.slow
@pytest.mark.parametrize(("candidate", "verdict"), [(RIGHT, "verified"), (WRONG, "refuted")])
def test_judged_over_standard_input_and_output(
    candidate: str, verdict: str, tmp_path: Path
) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(PROBLEM)
    arguments = {"candidate": candidate, "device": "cpu", "timing": False}
    result = asked("judge", {"problem": str(problem), **arguments}, STDIO)
    assert not result.is_error, result.content
    assert result.structured_content["verdict"] == verdict
    assert json.loads(result.content[0].text) == result.structured_content


@pytest.mark.slow
def test_explained() -> None:
    result = asked("explain", {"problem": PROBLEM, "target": "sm_90a"})
    assert not result.is_error, result.content
    (kernel,) = result.structured_content["kernels"]
    assert kernel["operators"] == ["relu", "mul"]
    assert result.structured_content["decisions"].startswith("problem.py on sm_90a: 1 fused kernel")


@pytest.mark.judged
@pytest.mark.slow
@pytest.mark.compiler
def test_optimized() -> None:
    result = asked("optimize", {"problem": PROBLEM, "target": "cpu", "timing": False})
    assert not result.is_error, result.content
    assert result.structured_content["verdict"] == "verified"
    assert "class ModelNew" in result.structured_content["source"]


@pytest.mark.judged
@pytest.mark.slow
def test_several_are_timed_together() -> None:
    result = asked("bench", {"problem": PROBLEM, "candidates": [WRONG, RIGHT], "device": "cpu"})
    assert not result.is_error, result.content
    timing = result.structured_content["timing"]
    assert [Path(name).name for name in timing["timings"]] == ["candidate_2.py"]
    assert [Path(name).name for name in timing["lost"]] == ["candidate_1.py"]


@pytest.mark.judged
@pytest.mark.slow
def test_profiled() -> None:
    result = asked("profile", {"problem": PROBLEM, "candidate": RIGHT, "device": "cpu"})
    assert not result.is_error, result.content
    candidate, *baselines = result.structured_content["profile"]["sides"]
    assert [side["name"] for side in baselines] == ["eager", "torch.compile"]
    assert {"aten::relu", "aten::mul"} <= {row["name"] for row in candidate["rows"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"problem": "/nowhere/problem.py", "candidate": RIGHT}, "there is no such file"),
        ({"problem": "import torch\n", "candidate": RIGHT}, "Model"),
        ({"problem": PROBLEM, "candidate": RIGHT, "constants": {"rows": "3"}}, "rows"),
    ],
)
def test_bad_usage_is_an_error_in_words(arguments: dict[str, Any], said: str) -> None:
    result = asked("judge", arguments)
    assert result.is_error
    assert said in result.content[0].text
    assert "Traceback" not in result.content[0].text


GREEDY = {
    "seconds": ("import time\ntime.sleep(60)\n", Limits(seconds=4.0), "longer than its 4 s"),
    "memory": (
        "held = [bytearray(10**8) for _ in range(12)]\nimport time\ntime.sleep(60)\n",
        Limits(memory_bytes=1e9),
        "GB of memory, its limit is 1 GB",
    ),
    "disk": (
        "import os, time\nopen(os.environ['TMPDIR'] + '/large', 'wb').write(b'x' * 2 * 10**8)\n"
        "time.sleep(60)\n",
        Limits(disk_bytes=1e8),
        "GB of disk, its limit is 0.1 GB",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GREEDY)
def test_what_takes_too_much_is_ended(what: str) -> None:
    greed, limits, said = GREEDY[what]
    begin = time.monotonic()
    result = asked("explain", {"problem": greed + PROBLEM, "target": "cpu"}, limits=limits)
    assert result.is_error
    assert said in result.content[0].text
    assert time.monotonic() - begin < 50, "it did not sleep to its end"


@pytest.mark.slow
def test_a_cancelled_request_ends_its_command(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    slow = (
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(5)\n"
        f"pathlib.Path({str(ended)!r}).touch()\n"
    )

    async def ask() -> None:
        async with Client(make_server(Limits())) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "explain", {"problem": slow + PROBLEM})
            with anyio.fail_after(60):
                while not begun.exists():
                    await anyio.sleep(0.1)
            group.cancel_scope.cancel()

    anyio.run(ask)
    time.sleep(7)
    assert not ended.exists()
