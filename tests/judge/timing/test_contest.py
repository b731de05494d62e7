"""Several candidates in one run of turns: who came through, in which order, and why others did not.

Real workers, real turns; small ones, and the machine may be busy: only what is certain is asserted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.errors import BadUsage
from fusewright.judge.isolation.processes import End, Worker
from fusewright.judge.request import Request
from fusewright.judge.session import Session
from fusewright.judge.timing import bench
from fusewright.judge.timing.contest import FASTEST, MOST, NO_PART, contest
from fusewright.judge.timing.sides import Round, Side, take_turn

UNSURE = "no difference shown"
pytestmark = [pytest.mark.judged, pytest.mark.slow]

PROBLEM = """import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
{body}


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
BODIES = {
    "honest": "return torch.relu(self.linear(x)) + 1.0",
    "slow": "for _ in range(300): x.exp()\nreturn torch.relu(self.linear(x)) + 1.0",
    "wrong": "return torch.relu(self.linear(x)) + 1.01",
    "raises": "raise ValueError('never')",
    "spoils": (
        "import contextlib, os, pathlib\n"
        "own = pathlib.Path(os.environ['TORCH_EXTENSIONS_DIR'])\n"
        "(own / 'mine').write_text('')\n"
        "for other in own.parent.glob('build*'):\n"
        "    if other != own:\n"
        "        with contextlib.suppress(OSError):\n"
        "            (other / 'spoilt').write_text('')\n"
        "            raise ValueError('wrote into the folder of another')\n"
        "return torch.relu(self.linear(x)) + 1.0"
    ),
}


def text(body: str, name: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return PROBLEM.format(name=name, body=lines)


def request(folder: Path) -> Request:
    problem = folder / "problem.py"
    problem.write_text(text(BODIES["honest"], "Model"))
    return Request(problem, problem, against=("eager",), budget_s=1.0)


def candidates(folder: Path, *names: str) -> dict[str, Path]:
    paths = {name: folder / f"{name}.py" for name in names}
    for name, path in paths.items():
        path.write_text(text(BODIES[name], "ModelNew"))
    return paths


def test_all_are_timed_together_and_the_wrong_ones_lost(tmp_path: Path) -> None:
    every = candidates(tmp_path, "slow", "wrong", "honest", "raises")
    for _ in range(4):  # on a busy machine, a round or two may say anything
        found = contest(request(tmp_path), every)
        claims = [ratio["claim"] for ratio in found.over_best.values()]
        if not found.unclear and UNSURE not in claims:
            break
    assert [*found.timings] == ["honest", "slow"], found.lost
    assert found.over_best["honest"]["claim"] == FASTEST
    ratio = found.over_best["slow"]
    assert ratio["claim"] != FASTEST
    assert float(str(ratio["median"])) < 1.0
    pairs = {timing.ratios["eager"]["pairs"] for timing in found.timings.values()}
    assert len(pairs) == 1, "the same rounds"
    assert {*found.lost} == {"wrong", "raises"}
    assert "round 0" in found.lost["wrong"]
    assert "never" in found.lost["raises"]


def test_nobody_is_left(tmp_path: Path) -> None:
    found = contest(request(tmp_path), candidates(tmp_path, "wrong"))
    assert not found.timings
    assert [*found.lost] == ["wrong"]


def test_none_writes_into_the_folder_of_another(tmp_path: Path) -> None:
    """What a candidate builds is its own: it sees no other folder, or may not write there."""
    found = contest(request(tmp_path), candidates(tmp_path, "spoils", "honest"))
    assert {*found.timings, *found.unclear} == {"spoils", "honest"}, found.lost


def test_who_is_lost_is_gone_while_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is left could keep the others' cores busy."""
    killed, turns, kill = list[str](), list[str](), Worker.kill

    def noted(worker: Worker, reason: str, *more: float) -> End:
        killed.append(f"{worker.name}: {reason}")
        return kill(worker, reason, *more)

    def turn(session: Session, side: Side, what: Round, *, compares: bool = False) -> None:
        if killed:
            turns.append(side.name)
        take_turn(session, side, what, compares=compares)

    monkeypatch.setattr(Worker, "kill", noted)
    monkeypatch.setattr(bench, "take_turn", turn)
    contest(request(tmp_path), candidates(tmp_path, "wrong", "honest"))
    assert killed[0] == f"candidate-1: {NO_PART}"
    assert "candidate 2" in turns
    assert "candidate 1" not in turns


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_too_few_or_too_many(tmp_path: Path, count: int) -> None:
    given = {str(number): tmp_path / "x.py" for number in range(count)}
    with pytest.raises(BadUsage, match=f"1 to {MOST}"):
        contest(request(tmp_path), given)
