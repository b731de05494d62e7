"""Problem text -> the emitted file, imported: what the tests of emitted files share."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
import torch

from fusewright.common.problem_file import NO_OVERRIDES, load_problem
from fusewright.compiler.compilation import Compilation, make
from fusewright.compiler.pipeline import emitted_text
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.targets.target import TARGETS
from tests.support.folders import ROOT

EXAMPLES = ("gemm_add_relu", "conv_relu_bias", "swish_bias_groupnorm", "linear_relu_divide")
# Sizes at which an example runs in a fraction of a second.
SMALL: Mapping[str, Mapping[str, str]] = {
    "gemm_add_relu": {"batch_size": "4", "in_features": "48", "out_features": "80"},
    "conv_relu_bias": {"batch_size": "3", "height": "10", "width": "12", "in_channels": "4"},
    "swish_bias_groupnorm": {"batch_size": "6", "in_features": "24", "out_features": "128"},
    "linear_relu_divide": {"batch_size": "4", "in_features": "40", "out_features": "56"},
}
# Support for a `forward` that was written by hand.
BY_HAND = """\
READY = True
_FUSEWRIGHT_CALLS = {"ModelNew": 0}
_fusewright_compiling = bool


def _fusewright_refused(*why):
    _FUSEWRIGHT_CALLS["ModelNew"] -= 1


def _fusewright_status(name):
    return _FUSEWRIGHT_CALLS[name]"""
FEW_AND_MANY = ("few modules", "many modules")
_number = itertools.count()


def compiled_text(text: str) -> str:
    """The C++ or CUDA of an emitted file, device library first; "" of one without kernels."""
    kernels, library = (
        re.search(rf'_FUSEWRIGHT_{name} = r"""\n(.*?)"""', text, re.DOTALL)
        for name in ("(?:CPP|CUDA)", "DEVICE_LIBRARY")
    )
    if kernels is None and library is None:
        return ""
    assert kernels is not None, "there are kernels"
    assert library is not None, "there is what they call"
    return f"{library[1]}\n{kernels[1]}"


@dataclass(frozen=True)
class Emitted:
    """An emitted file: its text, its place, and the decisions behind it."""

    text: str
    path: Path
    made: Compilation

    def load(self) -> Any:
        """A fresh module with the file's names."""
        module = ModuleType(f"emitted_{next(_number)}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module
        exec(compile(self.text, str(self.path), "exec", dont_inherit=True), module.__dict__)
        return module


def tiles(made: Compilation) -> dict[str, TileShape]:
    """The tiles of the kernels that compute a product or a convolution, by name."""
    found = {text.name: strategy for text, _, strategy in made.kernels}
    return {name: s for name, s in found.items() if isinstance(s, TileShape)}


def emit_file(
    problem: Path, folder: Path, target: str = "cpu", overrides: Mapping[str, str] = NO_OVERRIDES
) -> Emitted:
    """Capture the problem and write its emitted file."""
    loaded = load_problem(problem, overrides)
    torch.manual_seed(0)
    module, inputs = loaded.make_model(), loaded.make_inputs()
    made = make(module, inputs, TARGETS[target])
    text = emitted_text(made, module, loaded)
    path = folder / f"{problem.stem}_{target}.py"
    path.write_text(text, encoding="utf-8")
    return Emitted(text, path, made)


def emit_text(source: str, folder: Path, target: str = "cpu") -> Emitted:
    """The same for a problem given as text."""
    source = textwrap.dedent(source).lstrip("\n")
    name = hashlib.sha256(source.encode()).hexdigest()[:8]
    problem = folder / f"problem_{name}.py"
    problem.write_text(source, encoding="utf-8")
    return emit_file(problem, folder, target)


def built_once(source: str, factory: pytest.TempPathFactory) -> Iterator[Emitted]:
    """For a fixture of a whole module: the file, whose kernels are built in a folder of its own."""
    folder = factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "kernels"))
        yield emit_text(source, folder)


def built_few_and_many(
    few: str, many: str, request: pytest.FixtureRequest, factory: pytest.TempPathFactory
) -> Iterator[Emitted]:
    """The same of a model that is asked condition by condition, or by a table of its modules.

    request: its parameter is one of `FEW_AND_MANY`.
    """
    has_table = request.param == FEW_AND_MANY[1]
    for emitted in built_once(many if has_table else few, factory):
        assert ("_fusewright_modules()" in emitted.text) is has_table
        yield emitted


def emit_example(name: str, folder: Path, target: str = "cpu") -> Emitted:
    """The same for one of the examples, at a small size."""
    made = _example(name, target)
    path = folder / made.path.name
    path.write_text(made.text, encoding="utf-8")
    return Emitted(made.text, path, made.made)


@cache
def _example(name: str, target: str) -> Emitted:
    with TemporaryDirectory() as folder:
        return emit_file(ROOT / "examples" / f"{name}.py", Path(folder), target, SMALL[name])
