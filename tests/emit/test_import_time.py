"""Which statements at the top level of a user's file only define, and which may run the model."""

from __future__ import annotations

import ast

import pytest

from fusewright.emit.import_time import first_that_runs

MODEL = "class Model(Base):\n    def forward(self, x): return x\n"
HEAD = (
    "import torch\nimport registry\nclass Base: pass\ndef helper(x): return x\nclass Box: x = 1\n"
)

DEFINES = (
    "import math",
    "from math import *",
    "'documentation'",
    "pass",
    "batch_size = 16",
    "height, (width, depth) = 8, (4, 2)",
    "a = b = batch",
    "shape = (batch, 2 * width, -1)",
    "sizes: list[int] = [1, *shape]",
    "size: int",
    "kind = torch.float32",
    "first = shape[0] if shape else shape[1:]",
    "name = f'{size} of {torch}'",
    "table = {'model': Model, **others}",
    "late = lambda x, y=1: Model()(x)",
    "total += 2",
    "__all__ = ['Model']",
    "def get_inputs(x: int = 2, *, y: torch.Tensor = None) -> list[int]: return [Model()]",
    "async def wait(): return Model()",
    "class Config:\n    'Sizes.'\n    a: int = 3\n    @property\n    def x(self): return Model()",
    "class Other(Model):\n    @staticmethod\n    def build(): return Model()",
    "def made(): return registry.call(Model)",
)
RUNS = (
    "model = Model()",
    "Model()(1)",
    "torch.manual_seed(0)",
    "sizes = [helper(1)]",
    "x: int = helper(1)",
    "x: helper(1) = 1",
    "if __name__ == '__main__':\n    pass",
    "for k in range(3): pass",
    "with torch.no_grad(): pass",
    "try:\n    import math\nexcept ImportError: pass",
    "assert Model",
    "del helper",
    "registry.model = Model",
    "registry['model'] = Model",
    "registry += Model",
    "many = [Model for _ in shape]",
    "@torch.no_grad()\ndef get_inputs(): return []",
    "@registry\ndef get_inputs(): return []",
    "def get_inputs(x=helper(1)): return []",
    "def get_inputs(*, x: helper(1)): return []",
    "late = lambda x=Model(): x",
    "@registry.add\nclass Config: width = 3",
    "class Config(metaclass=helper): width = 3",
    "class Config(helper(1)): width = 3",
    "class Config:\n    width = helper(1)",
    "class Config:\n    @registry.add\n    def width(self): return 1",
    "class Config:\n    print(Model()(1))",
    "class Config(Model):\n    def __init_subclass__(cls): cls()",
    "x = Model.made",
    "x = Model[1]",
    "x = registry | Model",
    "alias = Model\nx = alias | 1",
    "name = f'{Model}'",
    "global x",
)


def runs(source: str) -> str:
    """The statement that may run the model, as text."""
    tree = ast.parse(source)
    (model,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
    found = first_that_runs(tree.body, model)
    return "" if found is None else ast.unparse(found)


@pytest.mark.parametrize("statement", DEFINES)
def test_what_only_defines(statement: str) -> None:
    assert runs(f"{HEAD}{MODEL}{statement}\n") == ""


@pytest.mark.parametrize("statement", RUNS)
def test_what_may_run_the_model(statement: str) -> None:
    end = "\ndef get_init_inputs(): return []\n"
    last = ast.unparse(ast.parse(statement).body[-1])
    hooked = "__init_subclass__" in statement or "metaclass" in statement
    wanted = ast.unparse(ast.parse(MODEL)) if hooked else last
    assert runs(f"{HEAD}{MODEL}{statement}{end}") == wanted


def test_what_is_in_front_of_the_model_does_not_matter() -> None:
    assert runs(f"torch.manual_seed(0)\n@helper\nclass First: x = helper(1)\n{MODEL}") == ""


@pytest.mark.parametrize(
    "model",
    [
        f"@registry.add\n{MODEL}",
        MODEL.replace("(Base)", "(Base, metaclass=Meta)"),
        f"class Early:\n    def __init_subclass__(cls): cls()\n{MODEL}",
        f"class Early(metaclass=Meta): pass\n{MODEL}",
    ],
)
def test_a_class_that_somebody_is_given_may_run_at_once(model: str) -> None:
    assert "class Model" in runs(f"{HEAD}{model}")


def test_what_the_body_of_the_model_calls_cannot_have_it() -> None:
    assert runs(f"{HEAD}class Model(Base):\n    width = helper(1)\n") == ""


def test_names_that_calls_have_made_have_operators_of_their_own() -> None:
    assert runs(f"{HEAD}box = helper(1)\n{MODEL}half = box / 2\n") == "half = box / 2"
    assert runs(f"{HEAD}box = 3\n{MODEL}half = box / 2\n") == ""
