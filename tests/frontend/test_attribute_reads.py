"""Of a record that a module holds, what forward reads is guarded, and the rest may be anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusewright.common.problem_file import load_problem
from fusewright.frontend.attribute_reads import AS_A_DICT, LOOK
from fusewright.frontend.capture import capture
from tests.support.emitting import emit_text

HEAD = """
import argparse
import copy
import enum
import logging
import torch
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from torch import nn
from types import SimpleNamespace


class Record(OrderedDict):
    def __init__(self, **entries):
        super().__init__(**entries)
        for name, value in entries.items():
            setattr(self, name, value)


class Slotted(dict):
    __slots__ = ()


class Sealed(type):
    def __setattr__(self, name, value):
        raise AttributeError(name)


class Kept(dict, metaclass=Sealed):
    pass


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


class Inner:
    def __init__(self):
        self.scale = 2.0


class Config:
    kind = "plain"
    renamed = {"factor": "scale"}

    def __init__(self):
        self.scale, self.unread, self.inner, self.mode = 2.0, {"a", "b"}, Inner(), Mode.ADD
        self.act, self.weight, self.names = torch.tanh, torch.ones(8), ["b", "a"]

    @property
    def double(self):
        return 2 * self.scale

    def by(self, count):
        return count * self.scale

    def __getattr__(self, name):
        if name in Config.renamed:
            return getattr(self, Config.renamed[name])
        raise AttributeError(name)


@dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


class SealedConfig(metaclass=Sealed):
    def __init__(self):
        self.scale, self.shift = 2.0, 1


class Part(nn.Module):
    def __init__(self, record):
        super().__init__()
        self.held = record

    def forward(self, x):
        return x + self.held.shift


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._record = Record(scale=2.0, shift=1, names=["b", "a"], deep={"by": 3})
        self.part = Part(self._record)
        self.entries = Slotted(scale=2.0, shift=1)
        self.kept = Kept(scale=2.0)
        self.ordered = OrderedDict(scale=2.0)
        self.open = Record(scale=2.0, kind=nn.Linear)
        self.config, self.frozen, self.sealed = Config(), Frozen(), SealedConfig()
        self.space = SimpleNamespace(scale=2.0, shift=1)
        self.parsed = argparse.Namespace(scale=2.0)
        self.logger, self.halves = logging.getLogger("a"), partial(torch.mul, 0.5)
        self.mode = Mode.ADD

    @property
    def record(self):
        return self._record

    def forward(self, x):
        return EXPRESSION


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""
HOOKS = (*AS_A_DICT, LOOK)
OWN, BOTH = ["_record"], ["_record", "record"]

# What forward returns -> the names of what it read from the model.
READ = [
    ("x * self._record.scale", ["_record.scale"]),
    ("x * self.record.scale", ["_record.scale", "record.scale"]),
    ("x * getattr(self._record, 'scale')", ["_record.scale"]),
    ("x * self._record.deep['by']", ["_record.deep"]),
    ("x * getattr(self._record, 'none', 3)", []),
    ("self.part(x) * self._record.scale", ["_record.scale", "held.scale", "held.shift"]),
    ("x * self.part.held.scale", ["held.scale"]),
    ("x * self._record['scale']", OWN),
    ("x * self.record.get('scale')", BOTH),
    ("x * len(self._record)", OWN),
    ("x * (2 if 'scale' in self._record else 3)", OWN),
    ("x * [*self._record.values()][0]", OWN),
    ("x * {**self._record}['scale']", OWN),
    ("x * dict(self._record)['scale']", OWN),
    ("x * dict(**self._record)['scale']", OWN),
    ("x * copy.copy(self._record).scale", OWN),
    ("x * vars(self._record)['scale']", OWN),
    ("x * (2 if self._record == {} else 3)", OWN),
    ("x * len(repr(self._record))", OWN),
    ("x * (2 if self._record else 3)", OWN),
    ("x * (2 if isinstance(self._record, Record) else 3)", []),
    ("x * self.entries['scale']", ["entries"]),
    ("x * self.kept['scale']", ["kept"]),
    ("x * self.ordered['scale']", ["ordered"]),
    ("x * self.open.scale", ["open.scale"]),
    ("x * self.config.scale", ["config.scale"]),
    ("x * self.config.double", ["config.double", "config.scale"]),
    ("x * self.config.by(3)", ["config.scale"]),
    ("x * self.config.inner.scale", ["config.inner.scale"]),
    ("x * self.config.factor", ["config.scale"]),
    ("x * len(self.config.kind)", ["config.kind"]),
    ("self.config.act(x)", ["config.act"]),
    ("x * len(self.config.names)", ["config.names"]),
    ("x * (1 if self.config.mode is Mode.ADD else 2)", ["config.mode"]),
    ("x * vars(self.config.inner)['scale']", ["config.inner.scale"]),
    ("x * getattr(self.config, 'nothing', 3)", []),
    ("x * self.frozen.scale", ["frozen.scale"]),
    ("x * self.sealed.scale", ["sealed.scale", "sealed.shift"]),
    ("x * self.space.scale", ["space.scale", "space.shift"]),
    ("x * self.parsed.scale", ["parsed.scale"]),
    ("x * (1 if self.mode is Mode.ADD else 2)", ["mode"]),
    ("x * (1 if self.logger else 2)", []),
    ("self.halves(x)", []),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "names"), READ, ids=[e for e, _ in READ])
def test_what_is_read_is_noted(expression: str, names: list[str], tmp_path: Path) -> None:
    module = _module(expression, tmp_path)
    kind = type(module._record)
    before = {name: vars(kind).get(name) for name in HOOKS}
    found = capture(module, [torch.randn(4, 8)]).settings
    assert sorted(s.name for s in found if s.name != "training") == sorted(names)
    assert {name: vars(kind).get(name) for name in HOOKS} == before


@pytest.mark.compiler
def test_the_rest_of_a_record_may_be_anything(tmp_path: Path) -> None:
    """What forward reads is noticed in all of its holders, and nothing else is asked for."""
    source = HEAD.replace("EXPRESSION", "self.part(x) * self.record.scale")
    torch.manual_seed(0)
    new = emit_text(source, tmp_path).load().ModelNew()
    ran: list[int] = []
    usual = type(new).reference_forward

    def reference_forward(self: Any, *args: Any) -> Any:
        ran.append(1)
        return usual(self, *args)

    type(new).reference_forward = reference_forward
    x = torch.randn(4, 8)

    def falls_back(wanted: torch.Tensor) -> bool:
        ran.clear()
        with torch.no_grad():
            torch.testing.assert_close(new(x), wanted)
        return bool(ran)

    assert not falls_back((x + 1) * 2.0)
    new._record.names.reverse()
    new._record["names"] = ["c"]
    new._record.deep = None
    assert not falls_back((x + 1) * 2.0)
    new._record.scale = 5.0
    assert falls_back((x + 1) * 5.0)
    new._record.scale = 2.0
    assert not falls_back((x + 1) * 2.0)
    new._record.shift = 7
    assert falls_back((x + 7) * 2.0)


CHANGES = {
    "x * self.config.scale": "config.scale = 5.0",
    "x * self.config.double": "config.scale = 5.0",
    "x * self.config.factor": "config.scale = 5.0",
    "x * self.config.inner.scale": "config.inner.scale = 5.0",
    "self.config.act(x)": "config.act = torch.sin",
    "x * (1 if self.config.mode is Mode.ADD else 2)": "config.mode = type(self.mode).MULTIPLY",
    "x * (1 if self.mode is Mode.ADD else 2)": "mode = type(self.mode).MULTIPLY",
    "x * self.frozen.scale": "frozen = type(self.frozen)(5.0)",
    "x * self.sealed.scale": "sealed.scale = 5.0",
    "x * self.space.scale": "space.scale = 5.0",
}


@pytest.mark.compiler
@pytest.mark.parametrize("expression", CHANGES)
def test_a_change_of_what_forward_reads_is_noticed(expression: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    new = emit_text(HEAD.replace("EXPRESSION", expression), tmp_path).load().ModelNew()
    x = torch.randn(4, 8)
    with torch.no_grad():
        before = new(x)
        exec(f"self.{CHANGES[expression]}", {"self": new, "torch": torch})
        after = new(x)
        torch.testing.assert_close(after, new.reference_forward(x))
    assert not torch.allclose(before, after)


def _module(expression: str, folder: Path) -> Any:
    path = folder / "problem.py"
    path.write_text(HEAD.replace("EXPRESSION", expression), encoding="utf-8")
    return load_problem(path).make_model()
