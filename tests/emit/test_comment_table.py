"""Tables of comments: nothing is lost, nothing is too wide, and names stay whole."""

from __future__ import annotations

import pytest

from fusewright.emit.comment_table import Cell, table

HEAD: tuple[Cell, ...] = (["step"], ["from"], ["operators"])
LONG = "layers_0_attention_out_projection_relu"
ROWS: tuple[tuple[Cell, ...], ...] = (
    ([LONG, "x12"], ["self.layers[0..11].attention.out (line 4),", "relu"], ["matmul,", "relu"]),
    (["softmax"], [], ["max,", "sub,", "scaled_dot_product_attention", "-> [2, 3]"]),
)


def test_what_fits_is_not_broken() -> None:
    assert table([HEAD, (["fc1"], ["self.fc1 (line 3)"], ["matmul,", "add"])], 60) == [
        "step  from               operators",
        "----  -----------------  -----------",
        "fc1   self.fc1 (line 3)  matmul, add",
    ]


@pytest.mark.parametrize("width", [70, 98, 200])
def test_no_word_is_lost_and_no_line_too_long(width: int) -> None:
    lines = table([HEAD, *ROWS], width)
    assert max(map(len, lines)) <= width
    ends = [k for k, c in enumerate(lines[1]) if lines[1][k : k + 3] == "  -" or k == 0]
    assert len(ends) == 3, "the rule shows the columns"
    first, second = ends[1], ends[2]
    columns = zip(*((li[:first], li[first:second], li[second:]) for li in lines[2:]), strict=True)
    wanted = ("".join(word for row in ROWS for word in row[k]) for k in range(3))
    for column, words in zip(columns, wanted, strict=True):
        assert "".join(column).replace(" ", "") == words.replace(" ", "")
    assert sum(LONG in line for line in lines) == 1, "names of kernels can be looked for"


def test_pieces_stay_whole_where_a_line_has_room() -> None:
    pieces = ["self.fc1 (line 3),", "add (line 4),", "self.relu (line 5)"]
    lines = table([HEAD, (["fc1"], pieces, ["-> [128, 256, 14, 14]"])], 50)
    for piece in pieces:
        assert any(piece in line for line in lines[2:])
