"""What a candidate replaces in the program of its worker is found: functions, code, modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support.folders import ROOT

REPLACED: Mapping[str, str] = {
    "a function": "tensor_transport.put_results = print",
    "what was bound before": "candidate_worker._now = print",
    "a method": "candidate_worker.Host.done = print",
    "the code of a function": "tensor_transport.describe.__code__ = (lambda *_, **__: 0).__code__",
    "an entry of a table": "torch_globals._READ['timers'] = print",
    "a module": "import sys; sys.modules['fusewright.judge.evidence.pytree'] = sys",
    "a class": "candidate_worker.DeviceClock = print",
    "a function that is gone": "del candidate_worker._held",
}
PROGRAM = """
from fusewright.judge.isolation import candidate_worker, tensor_transport, torch_globals
from fusewright.judge.isolation.worker_code import own_code
for change in {changes!r}:
    own = own_code()
    exec(change)
    print(sum(h.get(n) is not v or bool(c and v.__code__ is not c) for h, n, v, c in own))
"""


@pytest.fixture(scope="module")
def found() -> Mapping[str, int]:
    program = PROGRAM.format(changes=list(REPLACED.values()))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(REPLACED, map(int, done.stdout.split()), strict=True))


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_is_found(name: str, found: Mapping[str, int]) -> None:
    assert found[name] == 1
