"""What forward does beside computing is never left out: such a forward is refused, by its line."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from fusewright.frontend.side_effects import HasEffects, no_effects

HEAD = """
import builtins
import logging
import pprint
import random
import sys
import threading
import warnings
import warnings
from collections import deque
from logging import getLogger
from types import SimpleNamespace
from warnings import warn

import numpy
import torch
from torch import nn

COUNT = 0
LOG = []
TABLE = {"calls": 0, "nested": [[]]}
RING = deque(maxlen=3)
TENSOR = torch.zeros(6)
logger = getLogger("a_problem")

class Meter:
    calls = 0
    values = ()
    def update(self, n):
        self.calls = self.calls + n

METER = Meter()

class Lazy(dict):
    def items(self):
        raise ValueError("it fills itself when it is asked, and cannot")

LAZY = Lazy(a=1)

class Settings:
    def __init__(self):
        self.deep = {1: {2: {3: {4: {5: {6: "end"}}}}}}
        self.itself, self.meter, self.weights = self, METER, [torch.ones(2)]

SETTINGS = Settings()

def count():
    global COUNT
    COUNT += 1

def spoken(x):
    print("spoken")
    return x

class Model(nn.Module):
    made = 0
    shapes = []

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 6)
        self.calls = 0
        self.seen = []
        self.stats = {"n": 0}
        self.meter = Meter()

"""
# What forward does -> what the error says of it.
EFFECTS = {
    "print('here')": "prints",
    "sys.stdout.write('here')": "prints",
    "print('here', file=sys.stderr)": "prints",
    "pprint.pprint({})": "prints",
    "x = spoken(x)": "prints",
    "warnings.warn('here')": "warns",
    "warn('here', stacklevel=2)": "warns",
    "logging.getLogger().warning('here')": "logs",
    "logger.error('here')": "logs",
    "open('/dev/null').close()": "opens a file",
    "x = x * random.random()": "draws from Python's random numbers",
    "x = x * numpy.random.rand()": "draws from numpy's random numbers",
    "torch.manual_seed(7)": "seeds PyTorch's random numbers",
    "self.calls += 1": "changes Model.calls",
    "self.seen.append(x.shape)": "changes Model.seen",
    "self.stats['n'] += 1": "changes Model.stats",
    "self.meter.update(1)": "changes meter of Model",
    "self.meter.calls = 3": "changes meter of Model",
    "Model.made += 1": "changes made of Model",
    "type(self).shapes.append(x.shape)": "changes shapes of Model",
    "count()": "changes COUNT of",
    "LOG.append(x.shape)": "changes LOG of",
    "TABLE['calls'] += 1": "changes TABLE of",
    "TABLE['nested'][0].append(1)": "changes TABLE of",
    "RING.append(1)": "changes RING of",
    "METER.update(1)": "changes METER of",
    "Meter.values = (1,)": "changes values of Meter",
}
# What looks like it and changes nothing.
NONE = (
    "logger.debug('nobody listens')",
    "if x.shape[0] > 100: print('never')",
    "seen = []; seen.append(x.shape)",
    "text = f'{x.shape}'",
    "total = sum(self.stats.values())",
    "x = x.sum(0, keepdim=True) if TABLE['calls'] else x",
    "x.T",  # on one with three dimensions PyTorch warns itself
    "nn.functional.sigmoid(x)",
    "x = x + SETTINGS.deep[1][2][3][4].get(6, 1)",  # what is deep is looked at down to some level
)


def model(line: str, folder: Path) -> tuple[torch.nn.Module, str]:
    body = "\n".join(f"        {part}" for part in line.split("; "))
    text = f"{HEAD}    def forward(self, x):\n{body}\n        return torch.tanh(self.w(x)) * 2\n"
    path = folder / "a_problem.py"
    path.write_text(text, encoding="utf-8")
    module = ModuleType("a_problem_module")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    number = text[: text.index(body)].count("\n") + 1
    made: torch.nn.Module = module.Model()
    return made, f"{path}:{number}"


@pytest.mark.slow
@pytest.mark.parametrize("line", EFFECTS)
def test_an_effect_is_refused_by_its_line(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module, place = model(line, tmp_path)
    with pytest.raises(CaptureFailed) as caught:
        capture(module, [torch.randn(4, 6)])
    said = str(caught.value)
    assert EFFECTS[line] in said
    known = ("random", "manual_seed", "meter", "METER", "count()", "spoken")
    assert said.startswith(f"{place}: ") or any(word in line for word in known)
    assert "\n" not in said
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("line", NONE)
def test_what_has_none_is_captured(line: str, tmp_path: Path) -> None:
    module, _ = model(line, tmp_path)
    assert capture(module, [torch.randn(4, 6)]).graph.outputs


def test_everything_watched_is_as_it_was(tmp_path: Path) -> None:
    before = (open, logging.Logger.isEnabledFor, sys.stdout, sys.stderr)
    module, _ = model("print('here')", tmp_path)
    with pytest.raises(CaptureFailed):
        capture(module, [torch.randn(4, 6)])
    assert (open, logging.Logger.isEnabledFor, sys.stdout, sys.stderr) == before


def test_what_another_thread_does_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was there before: nothing of it is laid at forward's door, and nothing is swallowed."""
    module, _ = model("pass", tmp_path)
    asked, done = threading.Event(), threading.Event()
    logger, heard = logging.getLogger("another"), []
    logger.addFilter(lambda record: not heard.append(record.getMessage()))

    def other() -> None:
        asked.wait(60)
        sys.stdout.write("from another thread\n")
        warnings.warn("warned by another thread", stacklevel=1)
        logger.error("logged by another thread")
        with open(__file__, encoding="utf-8") as file:
            file.read(1)
        done.set()

    def forward() -> bool:
        with no_effects(module):
            asked.set()
            return done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.warns(UserWarning, match="warned by another thread"):
        assert forward()
    thread.join()
    assert capsys.readouterr().out == "from another thread\n"
    assert heard == ["logged by another thread"]


def test_what_a_thread_of_forward_does_is_an_effect(tmp_path: Path) -> None:
    module, _ = model("pass", tmp_path)
    thread = threading.Thread(target=lambda: sys.stdout.write("from a thread of its own"))

    def forward() -> None:
        with no_effects(module):
            thread.start()
            thread.join()

    with pytest.raises(HasEffects, match="forward prints"):
        forward()
