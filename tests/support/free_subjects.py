"""Models with free sizes, built together, and a call of one at other sizes: what tests share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

from fusewright.frontend.asked_size import Wanted
from tests.support.agreement import copied, disagreements
from tests.support.compiled import Case, build, prepare, ready

Built = dict[str, tuple[Case, ModuleType]]


def built_free(texts: Mapping[str, tuple[str, Wanted]], folder: Path) -> Built:
    """texts: name -> the text of a problem file, and the sizes of it that are to be free."""
    cases = {}
    for number, (name, (text, wanted)) in enumerate(texts.items()):
        path = folder / f"model_{number}.py"
        path.write_text(text, encoding="utf-8")
        cases[name] = prepare(path, dynamic=wanted)
    modules = build([*cases.values()], folder)
    return {name: (case, m) for (name, case), m in zip(cases.items(), modules, strict=True)}


def check(built: tuple[Case, ModuleType], inputs: list[object], taken: bool) -> None:
    """Eager's results, from kernels or not. taken: whether the guard lets these inputs through."""
    case, module = built
    ours, theirs = module.ModelNew(), case.model
    ours.load_state_dict(theirs.state_dict(), strict=True)
    sizes = [tuple(t.shape) for t in inputs if isinstance(t, torch.Tensor)]
    with torch.no_grad():
        assert ready(copy.deepcopy(ours), copied(inputs)) == taken, sizes
    assert disagreements(ours, theirs, inputs) == [], sizes
