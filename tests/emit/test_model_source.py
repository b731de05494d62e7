"""The emitted text: the user's file verbatim, `Model` renamed, and additions laid out by the rules.

No model is captured here: `forward` is given by hand, with one condition that decides its way.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fusewright.common.problem_file import load_problem
from fusewright.emit.emitted_file import GeneratedForward, emit_bare_class, emit_file
from fusewright.emit.formatter import tidy, wrap
from fusewright.emit.python_text import literal
from fusewright.emit.runtime import Runtime
from fusewright.errors import CaptureFailed, UnusableProblem
from tests.support.emitting import BY_HAND, EXAMPLES, SMALL, emit_example
from tests.support.emitting import emit_file as emit_problem
from tests.support.folders import ROOT

KERNELS = "# ---- kernels of ModelNew, in the order of its steps "
SUPPORT = "# region support: not about this model"
RUNTIME = Runtime('KERNELS = r"""\n"""', BY_HAND)


def emitted(
    source: str, *, signature: str = "x", call: str = "x", statement: str = "return x * 10"
) -> str:
    source = textwrap.dedent(source).lstrip("\n")
    new = GeneratedForward(signature, call, "By kernels.", (), ("READY",), (statement,))
    return emit_file(source, "p.py", ["header"], RUNTIME, new)


def run(text: str) -> Any:
    """The names of a file whose Model needs no torch."""
    names: dict[str, Any] = {"__name__": "user"}
    exec(compile(text.replace("import torch\n", ""), "p.py", "exec", dont_inherit=True), names)
    return names


BASE = """
class Model:
    def forward(self, x):
        return x + 1
"""

# What users write -> the statements that must hold in the emitted file; `m` is a ModelNew.
FORMS: dict[str, tuple[str, str]] = {
    "plain": (BASE, "m.forward(2) == 20 and m.reference_forward(2) == 3"),
    "documentation first": (
        '"""Doc."""\n\nfrom __future__ import annotations\n' + BASE,
        "__doc__ == 'Doc.'",
    ),
    "future import first": (
        "from __future__ import annotations\nimport math\n" + BASE,
        "math.pi > 3",
    ),
    "one-line forward": (
        "class Model:\n    def forward(self, x): return x + 1\n",
        "m.reference_forward(2) == 3",
    ),
    "spaces in def": (
        "class Model:\n    def   forward (self, x):\n        return x + 1\n",
        "m.reference_forward(2) == 3",
    ),
    "tabs": ("class Model:\n\tdef forward(self, x):\n\t\treturn x + 1\n", "m.forward(2) == 20"),
    "two spaces": (
        "class Model:\n  def forward(self, x):\n    return x + 1\n",
        "m.forward(2) == 20",
    ),
    "class on one line": (
        ("class Base:\n    def forward(self, x): return x + 1\n\nclass Model(Base): factor = 2\n"),
        "m.forward(2) == 20 and m.reference_forward(2) == 3 and m.factor == 2",
    ),
    "inherited forward": (
        (
            "class Base:\n    def forward(self, x):\n        return x + 1\n\n\n"
            "class Model(Base):\n    factor = 2\n"
        ),
        "m.forward(2) == 20 and m.reference_forward(2) == 3",
    ),
    "super by name": (
        (
            "class Base:\n    def __init__(self):\n        self.a = 1\n\nclass Model(Base):\n"
            "    def __init__(self):\n        super(Model, self).__init__()\n\n"
            "    def forward(self, x):\n        return x + self.a\n"
        ),
        "m.reference_forward(2) == 3",
    ),
    "decorated class": (
        "def mark(kind):\n    kind.marked = True\n    return kind\n\n# about it\n@mark" + BASE,
        "m.marked",
    ),
    "decorated forward": (
        (
            "def twice(f):\n    return lambda *a: f(*a) * 2\n\nclass Model:\n    @twice\n"
            "    def forward(self, x):\n        return x + 1\n"
        ),
        "m.forward(2) == 20 and m.reference_forward(2) == 6",
    ),
    "nested class": (
        (
            "class Model:\n    class Part:\n        def forward(self, x):\n"
            "            return x\n\n    def forward(self, x):\n"
            "        return self.Part().forward(x) + 1\n"
        ),
        "m.reference_forward(2) == 3",
    ),
    "several classes": (
        "class First:\n    def forward(self, x):\n        return x\n"
        + BASE
        + "\n\nclass Last(Model):\n    pass\n",
        "First().forward(2) == 2 and Last().forward(2) == 20",
    ),
    "two forwards": (
        (
            "class Model:\n    def forward(self, x):\n        return x\n\n"
            "    def forward(self, x):\n        return x + 1\n"
        ),
        "m.forward(2) == 20 and m.reference_forward(2) == 3",
    ),
    "main": (
        BASE + "\n\nif __name__ == 'user':\n    result = Model().forward(2)\n",
        "result == 20",
    ),
    "annotated": (
        "\nclass Model:\n    def forward(self, x: int) -> 'Model':\n        return x + 1\n",
        "m.forward(2) == 20",
    ),
    "other words": (
        BASE + "\n\nModelling = 1  # Model\ntext = 'Model'\nBASE_Model = 2\n",
        "Modelling == 1 and text == 'Model' and BASE_Model == 2",
    ),
    "as attribute and keyword": (
        (
            "from types import SimpleNamespace\n\nbox = SimpleNamespace(Model=5)\n\n\n"
            "def call(Model=1):\n    return Model\n"
        )
        + BASE
        + "\n\ngot = call(Model=box.Model)\n",
        "got == 5",
    ),
    "in a format string": (
        BASE + "\n\nname = f'{Model.__name__} is Model'\n",
        "name == 'ModelNew is Model'",
    ),
    "as a value": (
        BASE + "\n\nkinds = [Model]\n\n\ndef build():\n    return Model()\n",
        "kinds[0] is ModelNew and build().forward(2) == 20",
    ),
    "line separators in text": (
        "text = 'a\\x0cb\u2028c'\n# \x0c\n" + BASE,
        "m.reference_forward(2) == 3",
    ),
    "carriage returns": (
        "\r\nclass Model:\r\n    def forward(self, x):\r\n        return x + 1\r\n",
        "m.reference_forward(2) == 3",
    ),
    "not ASCII": (
        "été = 'é'; kinds = ['é', None]\n" + BASE + "\n\nü = ['é', Model]\n",
        "ü[1] is ModelNew",
    ),
    "no newline at the end": (
        "\nclass Model:\n    def forward(self, x):\n        return x + 1",
        "m.forward(2) == 20",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_source(form: str) -> None:
    source, claim = FORMS[form]
    names = run(emitted(source))
    assert eval(claim, names, {"m": names["ModelNew"]()})
    assert "Model" not in names or form == "as attribute and keyword"


PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "definitions and constants": (
        BASE + "\n\nsize = 3\n\n\ndef get_inputs():\n    return [size]\n",
        ("class ModelNew", "size = 3", "def get_inputs", KERNELS, SUPPORT),
    ),
    "it is called": (
        BASE + "\n\nsize = 3\n# A first call.\nfound = Model().forward(size)\nlast = 4\n",
        ("class ModelNew", "size = 3", KERNELS, SUPPORT, "# A first call.", "found =", "last = 4"),
    ),
    "it is called in a line of others": (
        BASE + "\n\nsize = 3; text = '''\n# no comment'''; found = Model().forward(size)\n",
        ("class ModelNew", KERNELS, SUPPORT, "size = 3"),
    ),
    "text above a call": (
        BASE + "\n\ntext = '''\n# no comment'''\nfound = Model().forward(2)\n",
        ("class ModelNew", "text =", "# no comment'''", KERNELS, SUPPORT, "found ="),
    ),
    "it runs where it is the main program": (
        BASE + "\n\nif __name__ == 'user':\n    found = Model().forward(2)\n",
        ("class ModelNew", KERNELS, SUPPORT, "if __name__"),
    ),
    "a decorator runs it": (
        (
            "def first(kind):\n    kind.found = kind().forward(2)\n    return kind\n\n"
            "# Now.\n@first" + BASE
        ),
        ("def first", KERNELS, SUPPORT, "# Now.", "@first", "class ModelNew"),
    ),
    "whoever derives from it is run": (
        (
            "class Base:\n    def __init_subclass__(cls):\n"
            "        Base.found = cls().forward(2)\n\n"
            "class Model(Base):\n    def forward(self, x):\n        return x + 1\n"
        ),
        ("class Base", KERNELS, SUPPORT, "class ModelNew"),
    ),
    "a function with a decorator runs it": (
        (
            BASE + "\n\ndef run(f):\n    return f(2)\n\n\n"
            "@run\ndef found(x):\n    return Model().forward(x)\n"
        ),
        ("class ModelNew", "def run", KERNELS, SUPPORT, "@run", "def found"),
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_kernels_and_support_stand_before_the_first_call(case: str) -> None:
    source, order = PLACES[case]
    text = emitted(source)
    places = [text.index(f"\n{word}") for word in order]
    assert places == sorted(places), text
    names = run(text)
    if "found" in source:
        found = names["found"] if "found" in names else names["ModelNew"].found
        assert found == (30 if "size" in source else 20), "by the new forward"


def test_without_kernels_there_is_support_alone() -> None:
    new = GeneratedForward("x", "x", "By none.", (), ("READY",), ("return x * 10",))
    text = emit_file(BASE, "p.py", [], Runtime("", RUNTIME.support), new)
    assert KERNELS not in text
    assert text.endswith(f"\n\n\n{SUPPORT}\n\n{BY_HAND}\n\n\n# endregion\n")
    assert run(text)["ModelNew"]().forward(2) == 20


SIGNATURES = {
    "x": ("(2)", "x"),
    "x, y=3": ("(2)", "x, y"),
    "x, *, y=3": ("(2, y=3)", "x, y=y"),
    "x, /, y=3, **more": ("(2)", "x, y, **more"),
    "self_, x": ("(1, 2)", "self_, x"),
    "x: int = 2, y: 'int | None' = None": ("()", "x, y"),
}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_signatures_stay(signature: str) -> None:
    arguments, call = SIGNATURES[signature]
    source = f"class Model:\n    def forward(self, {signature}):\n        return x + 1\n"
    for ready, wanted in (("True", 20), ("False", 3)):
        names = run(emitted(source, call=call).replace("READY = True", f"READY = {ready}"))
        assert eval(f"ModelNew().forward{arguments}", names) == wanted


def test_long_signature_over_several_lines() -> None:
    source = """
        class Model:
            def forward(
                self,
                x,  # the input
                another_argument_with_a_long_name=1,
                a_third_argument_with_a_long_name=2,
                and_a_fourth_one_besides=3,
            ):
                return x + 1
        """
    text = emitted(source)
    assert "        x,  # the input\n" in text
    assert max(map(len, text.splitlines())) <= 100
    assert run(text)["ModelNew"]().forward(2) == 20


def test_only_three_things_change() -> None:
    source = (ROOT / "examples" / "swish_bias_groupnorm.py").read_text()
    text = emitted(source)
    kept = source.replace("class Model(", "class ModelNew(").replace(
        "def forward", "def reference_forward"
    )
    lines, rest = text.split("\n"), iter(text.split("\n"))
    assert all(line in rest for line in kept.split("\n")), "the user's lines, all and in order"
    assert lines[0] == "# header"


WRONG: dict[str, tuple[str, str]] = {
    "async": (
        "class Model:\n    async def forward(self, x):\n        return x\n",
        "p.py:2: forward is async",
    ),
    "assigned": (
        "class Model:\n    forward = abs\n",
        "p.py:2: forward is not defined by a plain `def`",
    ),
    "conditional": (
        "class Model:\n    if True:\n        def forward(self, x):\n            return x\n",
        "p.py:2: forward is not",
    ),
    "not at the top": (
        "if True:\n    class Model:\n        x = 1\n",
        "Model is not a class at the top level",
    ),
    "a function": ("def Model():\n    return 1\n", "Model is not a class at the top level"),
    "replaced later": (BASE + "\nModel = print(Model) or Model\n", "Model is assigned here"),
    "already ModelNew": (BASE + "\n\nclass ModelNew:\n    x = 1\n", "the name ModelNew is used"),
    "emitted before": (BASE + "\n\n_fusewright_eager = 1\n", "the name _fusewright_eager is used"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_rewritten(case: str) -> None:
    source, message = WRONG[case]
    with pytest.raises(CaptureFailed, match=message.replace("(", r"\(").replace("`", ".")):
        emitted(source)


def test_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"name = '\xe9'\n")
    with pytest.raises(UnusableProblem, match="encoding"):
        load_problem(path)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x = f(1)", ["x = f(1)"]),
        ("result = function(" + "a" * 50 + ", " + "b" * 40 + ")",
         ["result = function(", "    " + "a" * 50 + ", " + "b" * 40, ")"]),
        ("f(" + "a" * 60 + ", " + "b" * 60 + ")",
         ["f(", "    " + "a" * 60 + ",", "    " + "b" * 60 + ",", ")"]),
        ("if not (" + "a" * 60 + " and " + "b" * 60 + "):",
         ["if not (", "    " + "a" * 60, "    and " + "b" * 60, "):"]),
        ("return {" + '"k, (": ' + "a" * 60 + ', "l": ' + "b" * 60 + "}",
         ["return {", '    "k, (": ' + "a" * 60 + ",", '    "l": ' + "b" * 60 + ",", "}"]),
    ],
)  # fmt: skip
def test_wrap(line: str, wanted: list[str]) -> None:
    assert wrap(line, 0) == wanted


def test_tidy() -> None:
    assert tidy("x = f((1, 2,), 'a', '\"')") == 'x = f((1, 2), "a", \'"\')'
    assert literal("it's") == '"it\'s"'
    assert literal(float("inf")) == 'float("inf")'


def test_emit_class() -> None:
    new = GeneratedForward("x, y=None", "x, y", "By kernels.", (), ("READY",), ("return x * 10",))
    assert run(emit_bare_class(RUNTIME, new))["ModelNew"]().forward(2) == 20


# ---- the examples --------------------------------------------------------------------------------

TARGETS = ("cpu", "sm_80", "sm_90a")
RUFF = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")


@pytest.mark.slow
@pytest.mark.skipif(RUFF is None, reason="no ruff here")
def test_examples_are_as_ruff_wants_them(tmp_path: Path) -> None:
    assert RUFF is not None
    for name in EXAMPLES:
        for target in TARGETS:
            emit_example(name, tmp_path, target)
    emit_problem(ROOT / "zoo/network_residual_stack.py", tmp_path, "sm_90a")  # launched at once
    rules = ["--select", "E4,E7,E9,F,I,B,UP,SIM,PIE,RET,C4"]
    for command in (["format", "--check"], ["check", *rules]):
        done = subprocess.run(
            [RUFF, *command, "--isolated", "--line-length", "100", "."],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


_AGAIN = """
import sys
from pathlib import Path
from tests.support.emitting import emit_example
for target in ("cpu", "sm_90a"):
    emit_example("swish_bias_groupnorm", Path(sys.argv[1]), target)
"""


@pytest.mark.slow
def test_same_input_same_bytes(tmp_path: Path) -> None:
    """In another process, with another order of sets."""
    name = "swish_bias_groupnorm"
    wanted = {target: emit_example(name, tmp_path, target).text for target in ("cpu", "sm_90a")}
    other = tmp_path / "other"
    other.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, str(other)],
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for target, text in wanted.items():
        assert (other / f"{name}_{target}.py").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", EXAMPLES)
def test_header_tells_what_and_why(name: str, tmp_path: Path) -> None:
    emitted = emit_example(name, tmp_path)
    text, first = emitted.text, emitted.made.texts[0].name
    header = [line for line in text.split('"""')[0].splitlines() if line]
    assert all(line.startswith("#") and len(line) <= 100 for line in header)
    said = "\n".join(header)
    for words in (
        first,
        "relu" if name != "swish_bias_groupnorm" else "rsqrt",
        "float32",
        "batch",
    ):
        assert words in said
    assert set(SMALL) == set(EXAMPLES)
