"""The header of an emitted file: what is written can be read, however narrow the columns are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusewright.emit.formatter import comment
from fusewright.emit.header import (
    ForwardNotes,
    NumericClass,
    PartNotes,
    StepRow,
    header,
    header_of_parts,
    unchanged_header,
)
from fusewright.report.emitted_header import EmittedHeader, HeaderRow, emitted_header

FLOAT = NumericClass("float32, bfloat16 only in memory")
LONG = "self.encoder.layers[0..11].self_attention.projection (line 114)"
ROWS = (
    StepRow("", (LONG,), ("linear",), ("[batch, 64]",), FLOAT, ("it is PyTorch's",), 12),
    StepRow(
        "encoder_layers_norm1_add_layer_norm",
        ("add (line 7)", "mul (line 8)", "3 more"),
        ("add x3", "_native_batch_norm_legit_functional", "rsqrt"),
        ("[batch, 64] x2", "[]"),
        replace(FLOAT, meaning="bfloat16: a number of 16 bits"),
        ("one pass", "a reason of many words, " * 8 + "and its end"),
    ),
    StepRow("x12", ("cat (line 9)",), ("where",), ("[8]",), NumericClass("float32"), ()),
)
REMARKS = ("PyTorch's own contractions follow its flags", "the batch size is fixed")


def read(lines: list[str], *kernels: str) -> EmittedHeader:
    text = "\n".join(part for line in lines for part in comment(line))
    return emitted_header(f"{text}\nimport torch\n# (3) no part of it\n", {*kernels})


def as_read(row: StepRow, forward: str = "") -> HeaderRow:
    """How a row comes back."""
    joined = (", ".join(row.places), ", ".join(row.operators), ", ".join(row.shapes))
    reasons = tuple(" ".join(reason.split()) for reason in row.reasons)
    return HeaderRow(forward, row.name, row.times, *joined, row.numeric.name, reasons)


def test_what_is_written_is_read() -> None:
    found = read(header("x.py", "cpu", {"": ForwardNotes(ROWS, REMARKS)}), ROWS[1].name, "x12")
    assert (found.problem, found.target, found.version, found.kept) == (
        "x.py",
        "cpu",
        "0.1.0",
        False,
    )
    assert found.rows == tuple(map(as_read, ROWS))
    assert found.remarks == ("bfloat16: a number of 16 bits", *REMARKS)


def test_several_forwards() -> None:
    modes = {"in train mode with gradients, backward of parameters alone": ROWS[:1], "b": ROWS[1:]}
    notes = {label: ForwardNotes(rows, REMARKS) for label, rows in modes.items()}
    found = read(header("x.py", "cpu", notes), ROWS[1].name, "x12")
    assert found.rows == tuple(as_read(r, label) for label, rows in modes.items() for r in rows)


def test_submodules() -> None:
    parts = [PartNotes("FusedPart", ("a", "b"), {"": ForwardNotes(ROWS[1:], REMARKS)})]
    left = ["  left as written: the model: " + "why " * 60 + "end"]
    found = read(header_of_parts("x.py", "cpu", parts, left), ROWS[1].name, "x12")
    assert (found.problem, found.target) == ("x.py", "cpu")
    assert {row.forward for row in found.rows} == {"FusedPart"}
    assert found.remarks[-1] == left[0].strip()


def test_a_model_as_it_was() -> None:
    record = """x.py on cpu: 0 fused kernels, 2 library calls

  library  linalg_inv x 2 -> [8], [8]: PyTorch's own routine: it has none; 2.05 kB, 256 FLOP
           from self.a (line 7), self.b (line 7)

  the batch size is fixed
"""
    found = read(unchanged_header(record))
    assert (found.problem, found.target, found.kept) == ("x.py", "cpu", True)
    why = ("PyTorch's own routine: it has none",)
    places = "self.a (line 7), self.b (line 7)"
    assert found.rows == (HeaderRow("", "", 2, places, "linalg_inv", "[8], [8]", "PyTorch's", why),)
    assert found.remarks == ("the batch size is fixed",)


@pytest.mark.parametrize("text", ["", "import torch\n", "# nothing of ours\n"])
def test_no_header(text: str) -> None:
    assert not emitted_header(text, set()).rows
