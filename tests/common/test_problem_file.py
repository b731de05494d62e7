"""Problem files, good and bad: what loads, what is refused, and whether the message helps."""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path

import pytest
import torch

from fusewright.common.problem_file import check_overrides, load_problem, output_tensors
from fusewright.errors import BadUsage, UnusableProblem
from tests.support.folders import BAD_PROBLEMS as BAD

# File -> words that the message must hold. A line marked `# here` must be named in the message.
MESSAGES = {
    "no_model": ("does not define Model",),
    "no_get_inputs": ("does not define get_inputs",),
    "no_get_init_inputs": ("Model() raised TypeError", "width", "Define get_init_inputs"),
    "model_is_a_function": ("Model is a value of type function", "torch.nn.Module"),
    "model_is_no_module": ("Model is the class Model", "torch.nn.Module"),
    "inputs_not_a_function": ("get_inputs is a value of type list", "make it a function"),
    "syntax_error": ("not valid Python",),
    "raises_on_import": ("running the file raised KeyError: 'depth'",),
    "exits_on_import": ("running the file raised SystemExit: not today",),
    "imports_what_is_not_here": ("ModuleNotFoundError", "a_package_that_nobody_has"),
    "raises_in_constructor": ("Model(*get_init_inputs()) raised ValueError: width must be odd",),
    "constructor_takes_more": ("Model(*get_init_inputs()) raised TypeError", "depth"),
    "raises_in_forward": ("Model.forward(*get_inputs()) raised RuntimeError", "compare the sizes"),
    "no_forward": ("Model.forward(*get_inputs()) raised NotImplementedError", "call it by hand"),
    "raises_in_get_inputs": ("get_inputs() raised NameError", "height"),
    "inputs_need_too_much_memory": ("get_inputs() raised RuntimeError", "smaller", "--set"),
    "inputs_not_a_list": ("get_inputs() returns a value of type Tensor", "return a list"),
    "init_inputs_not_a_list": ("get_init_inputs() returns None", "return a list"),
    "input_of_unknown_type": ("value of type object at position 1",),
    "returns_a_number": ("Model.forward returns a value of type float",),
    "returns_an_object": ("Model.forward returns a value of type Statistics at [1]",),
}
# Files whose fault shows only when the model is captured (tests/cli/test_main.py).
LATER = {"branches_on_data"}


def use(path: Path) -> None:
    problem = load_problem(path)
    problem.run(problem.make_model(), problem.make_inputs())


def write(folder: Path, text: str, name: str = "problem.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


GOOD = """
from __future__ import annotations
import dataclasses
import torch
import torch.nn as nn

@dataclasses.dataclass
class Sizes:
    rows: int
    columns: int = 3

rows, width = 512, 640
double = 2 * width
half: int = rows // 2
steps = 4
steps += 1
if rows > 100:
    branch = 1
sizes = Sizes(rows)

class Model(nn.Module):
    def __init__(self, width, slope=0.5):
        super().__init__()
        self.proj = nn.Linear(width, 2)
        self.slope = slope

    def forward(self, x):
        return torch.tanh(self.proj(x)) - self.slope

def get_inputs():
    return [torch.rand(rows, width)]

def get_init_inputs():
    return (width,)
"""


def test_every_bad_problem_has_its_message() -> None:
    assert {path.stem for path in BAD.glob("*.py")} == MESSAGES.keys() | LATER


@pytest.mark.parametrize("name", MESSAGES)
def test_bad_problem(name: str) -> None:
    path = BAD / f"{name}.py"
    with pytest.raises(UnusableProblem) as caught:
        use(path)
    message = str(caught.value)
    assert "\n" not in message
    for words in MESSAGES[name]:
        assert words in message
    marked = [i for i, line in enumerate(path.read_text().splitlines(), 1) if "# here" in line]
    where = f"{path}:{marked[0]}: " if marked else f"{path}"
    assert message.startswith(where)


@pytest.mark.parametrize(
    ("line", "of_sizes"),
    [
        ("return self.proj(x) @ x", True),
        ("return x.sum(2)", True),
        ("return nn.functional.cross_entropy(x, torch.tensor([1]))", True),
        ("self.half = 2; return self.half + self.proj.half(3)", False),
        ("return x.size.shape", False),
        ("return self.proj(x.double())", False),
        ("return x.item()", False),
    ],
)
def test_sizes_are_compared_where_an_error_is_about_sizes(
    tmp_path: Path, line: str, of_sizes: bool
) -> None:
    text = GOOD.replace("return torch.tanh(self.proj(x)) - self.slope", line)
    with pytest.raises(UnusableProblem) as caught:
        use(write(tmp_path, text))
    asked = "compare the sizes in the file with each other"
    advice = asked if of_sizes else "call it by hand and repair it"
    assert str(caught.value).endswith(f"model(*get_inputs()) must work: {advice}.")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = '\xff\xfe'", "encoding"),
        (b"x = 1\0", "null bytes"),
        (b"x = " + b"(" * 5000, "too many nested"),
        (b"", "does not define Model"),
    ],
)
def test_not_a_text_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "problem.py"
    path.write_bytes(content)
    with pytest.raises(UnusableProblem, match=words):
        load_problem(path)


@pytest.mark.parametrize("name", ["", "absent.py"])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadUsage, match="cannot read the problem file"):
        load_problem(tmp_path / name)


def test_an_interrupt_is_not_the_files_fault(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_problem(write(tmp_path, "raise KeyboardInterrupt"))


def test_failed_load_leaves_no_module(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(UnusableProblem):
        load_problem(write(tmp_path, "raise ValueError"))
    assert {name for name in set(sys.modules) - before if "problem" in name} == set()


def test_good_problem(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, GOOD))
    model, inputs = problem.make_model(), problem.make_inputs()
    (output,) = output_tensors(problem.run(model, inputs))
    x = inputs[0]
    assert isinstance(x, torch.Tensor)
    assert x.shape == (512, 640)
    torch.testing.assert_close(output, torch.tanh(model.proj(x)) - 0.5)
    assert problem.source == GOOD
    # What a module of one's own buys: the source can be found, objects can be pickled.
    assert "self.slope" in inspect.getsource(problem.model_class)
    assert pickle.loads(pickle.dumps(problem.module.sizes)) == problem.module.sizes


def test_two_loads_share_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    first, second = load_problem(path, {"rows": "7"}), load_problem(path)
    assert first.module is not second.module
    assert first.module.rows == 7
    assert second.module.rows == 512
    assert "rows" not in globals()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"rows": "6"}, {"rows": 6, "width": 640, "half": 3}),
        ({"width": "5"}, {"rows": 512, "width": 5, "double": 10}),
        ({"half": "'one'"}, {"rows": 512, "half": "one"}),
        ({"steps": "9"}, {"steps": 9}),
        ({"rows": "-1", "width": "(2, 3)"}, {"rows": -1, "width": (2, 3), "double": (2, 3) * 2}),
    ],
)
def test_override_and_what_derives_from_it(
    tmp_path: Path, overrides: dict[str, str], expected: dict[str, object]
) -> None:
    path = write(tmp_path, GOOD)
    module = load_problem(path, overrides).module
    assert {name: getattr(module, name) for name in expected} == expected
    assert path.read_text() == GOOD


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"batch": "6"}, "It has: double, half, rows, sizes, steps, width"),
        ({"Model": "6"}, "no constant of that name"),
        ({"branch": "6"}, "inside another statement"),
        ({"rows": "width"}, "not a Python literal"),
        ({"rows": "__import__('os')"}, "not a Python literal"),
        ({"rows": ""}, "not a Python literal"),
    ],
)
def test_override_refused(tmp_path: Path, overrides: dict[str, str], words: str) -> None:
    path = write(tmp_path, GOOD)
    for load in (load_problem, check_overrides):
        with pytest.raises(BadUsage, match=words):
            load(path, overrides)


def test_override_of_a_name_that_a_function_rebinds(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "\ndef grow():\n    global rows\n    rows = 1\n")
    with pytest.raises(BadUsage, match="inside another statement"):
        load_problem(path, {"rows": "3"})


def test_line_numbers_stay_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "rows = 1\nwidth = 2\nfloat(rows) / 0\n")
    with pytest.raises(UnusableProblem, match=r"problem\.py:3: .*ZeroDivisionError"):
        load_problem(path, {"rows": "3", "width": "4"})


def test_nested_outputs() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    assert output_tensors((a, {"x": [b], "y": c})) == [a, b, c]


def test_examples_are_as_their_names_say(examples: Path) -> None:
    """The four reference models, small: shapes of inputs, parameters and output."""
    sizes = {
        "gemm_add_relu": ((2, 8192), {"gemm.weight": (8192, 8192), "bias": (8192,)}, (2, 8192)),
        "conv_relu_bias": (
            (2, 64, 128, 128),
            {"conv.weight": (128, 64, 3, 3), "conv.bias": (128,), "bias": (128, 1, 1)},
            (2, 128, 126, 126),
        ),
        "swish_bias_groupnorm": (
            (2, 1024),
            {
                "linear.weight": (4096, 1024),
                "linear.bias": (4096,),
                "bias": (4096,),
                "group_norm.weight": (4096,),
                "group_norm.bias": (4096,),
            },
            (2, 4096),
        ),
        "linear_relu_divide": (
            (2, 8192),
            {"linear.weight": (8192, 8192), "linear.bias": (8192,)},
            (2, 8192),
        ),
    }
    assert {path.stem for path in examples.glob("*.py")} >= sizes.keys()
    for name, (inputs, parameters, output) in sizes.items():
        problem = load_problem(examples / f"{name}.py", {"batch_size": "2"})
        with torch.device("meta"):
            model, arguments = problem.make_model(), problem.make_inputs()
        (result,) = output_tensors(problem.run(model, arguments))
        assert tuple(arguments[0].shape) == inputs
        assert {
            n: tuple(p.shape) for n, p in model.named_parameters()
        }.items() >= parameters.items()
        assert set(dict(model.named_parameters())) == set(parameters)
        assert tuple(result.shape) == output


def test_examples_keep_to_the_public_harness(examples: Path) -> None:
    """Words that its static checker refuses anywhere in a file, docstrings included."""
    for path in examples.glob("*.py"):
        words = path.read_text().replace(":", " ").split()
        assert not {"try", "except", "pass"} & set(words), path
