"""The comments above kernels: what is written can be read, and what cannot be read is said."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from fusewright.errors import BadUsage
from fusewright.report.kernel_notes import (
    MOST,
    EmittedKernel,
    emitted_kernels,
    kernel_named,
    kernel_notes,
    kernel_told,
    kernels_table,
)
from tests.support.compiled import prepare_as_optimize
from tests.support.emitting import emit_example, emit_text

FILE = '''# ModelNew: x.py with fused kernels for cpu, written by fusewright 0.1.0.
#
import torch
{before}
_FUSEWRIGHT_CPP = r"""
#include <omp.h>
namespace fusewright {{

{notes}
// add -> [4]
struct one {{
  float* out0;
}};

extern "C" void run_one(float* out0, long batch, long threads) {{
  run_map(one{{out0, batch}}, threads);
}}

}}  // namespace fusewright
"""
_FUSEWRIGHT_KERNELS = {table}
'''
NOTES = kernel_notes("one", "3 kB, 2 FLOP", "1.5 us", ["  y = x + 1\n"], ["one pass"])


def text(notes: tuple[str, ...] = NOTES, table: str = '{"one": 1}', before: str = "") -> str:
    return FILE.format(notes="\n".join(notes), table=table, before=before)


def one(notes: tuple[str, ...]) -> EmittedKernel:
    (kernel,) = emitted_kernels(text(notes), "x.py")
    return kernel


def test_what_is_written_is_read() -> None:
    kernel = one(NOTES)
    assert (kernel.name, kernel.bytes, kernel.flops, kernel.predicted) == (
        "one", "3 kB", "2 FLOP", "1.5 us"
    )  # fmt: skip
    assert (kernel.lines, kernel.strategy) == (("y = x + 1",), ("one pass",))
    assert kernel.computes == "add -> [4]"
    assert kernel.text.startswith("// add -> [4]\nstruct one {")
    assert kernel.text.endswith("  run_map(one{out0, batch}, threads);\n}")


def test_lines_are_each_said_once_and_not_too_many() -> None:
    lines = [f"y = x + {k}" for k in (1, 1, *range(2, MOST + 3))]
    said = one(kernel_notes("one", "3 kB, 2 FLOP", "1 us", lines, ["a " * 80, "b"])).lines
    assert said == (*(f"y = x + {k}" for k in range(1, MOST + 1)), "2 more lines")


def test_nothing_known() -> None:
    kernel = one(kernel_notes("one", "0 B, 0 FLOP", "0 us", [], []))
    assert (kernel.lines, kernel.strategy) == ((), ())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('y = f("""x""")', "y = f('''x''')"),  # it would end the string of Python
        ("y = x + \\", "y = x +"),  # it would go on in the next line of C++
        ("größe = x", "gr??e = x"),  # a compiler's file has the encoding of the machine
        ("y = x  # " + "long " * 40, "y = x # " + "long " * 17 + "..."),
    ],
)
def test_any_line_of_python_is_a_comment_of_one_line(line: str, shown: str) -> None:
    notes = kernel_notes("one", "3 kB, 2 FLOP", "1 us", [line], ["one pass"])
    compile(text(notes), "x.py", "exec")
    assert one(notes).lines == (shown,)
    assert not any(note.endswith("\\") for note in notes)


# What is wrong with a file -> its text, and words of the message.
WRONG = {
    "another file": ("import torch\n", "no file that fusewright has written"),
    "no Python": (text(before="def f(:"), "line 4: this is no Python"),
    "comments are gone": (text(notes=("// nothing",)), "its kernels are one, .* speak of none"),
    "another kernel": (text(table='{"two": 1}'), "its kernels are two, .* speak of one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_said(case: str) -> None:
    given, words = WRONG[case]
    with pytest.raises(BadUsage, match=f"^x.py: .*{words}"):
        emitted_kernels(given, "x.py")


def test_a_file_without_kernels_has_none() -> None:
    kept = "# ModelNew: x.py on cpu: the model as it was, kept by fusewright 0.1.0.\n"
    assert emitted_kernels(f"{kept}\nimport torch\n", "x.py") == ()


def test_an_unknown_kernel() -> None:
    kernels = emitted_kernels(text(), "x.py")
    with pytest.raises(BadUsage, match=r"x\.py has no kernel two: choose among one"):
        kernel_named(kernels, "two", "x.py")
    with pytest.raises(BadUsage, match="it has none at all"):
        kernel_named((), "two", "x.py")


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_kernels_of_an_emitted_file(target: str, tmp_path: Path) -> None:
    emitted = emit_example("swish_bias_groupnorm", tmp_path, target)
    kernels = emitted_kernels(emitted.text, "x.py")
    assert [k.name for k in kernels] == [k.name for k in emitted.made.plan.kernels]
    model = {line.strip() for line in emitted.text.splitlines()}
    for kernel in kernels:
        assert kernel.lines, "where the model asks for it"
        assert {*kernel.lines} <= model
        assert kernel.strategy
        assert kernel.computes.endswith("]")
        assert kernel.text in emitted.text
        assert len(re.findall(r'^extern "C"', kernel.text, re.MULTILINE)) == 1
        told = kernel_told(kernel)
        assert told.endswith(kernel.text)
        assert f"from: {kernel.lines[0]}" in told
    rows = kernels_table(kernels).splitlines()
    assert len(rows) == len(kernels) + 1
    assert all(k.predicted in row for k, row in zip(kernels, rows[1:], strict=True))


@pytest.mark.slow
def test_kernels_of_a_model_in_parts(tmp_path: Path) -> None:
    """Lines of each part are those of the file that has its `forward`."""
    source = """
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(16)

            def forward(self, x):
                y = torch.relu(self.norm(x))
                return y * torch.sigmoid(y)


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = Block(), Block()

            def forward(self, x):
                y = self.first(x)
                return self.second(y) if y.sum() < 1e9 else y


        def get_inputs():
            return [torch.randn(64, 16)]


        def get_init_inputs():
            return []
        """
    problem = tmp_path / "parts.py"
    problem.write_text(textwrap.dedent(source).lstrip())
    case, why = prepare_as_optimize(problem)
    assert why, "it was captured as a whole"
    kernels = emitted_kernels(case.text, "x.py")
    assert kernels
    assert "y = torch.relu(self.norm(x))" in kernels[0].lines


def test_a_module_of_pytorch_has_no_lines(tmp_path: Path) -> None:
    """A model that is not written anywhere: lines of PyTorch's own file say nothing."""
    emitted = emit_text(
        """
        import torch
        from torch import nn


        class Model(nn.Sequential):
            def __init__(self):
                super().__init__(nn.LayerNorm(8), nn.ReLU())


        def get_inputs():
            return [torch.randn(4, 8)]


        def get_init_inputs():
            return []
        """,
        tmp_path,
    )
    (kernel,) = emitted_kernels(emitted.text, "x.py")
    assert not any("input" in line for line in kernel.lines)
