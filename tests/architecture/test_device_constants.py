"""Numbers that Python and hand-written CUDA both have are the same numbers.

Both texts are read: no compiler is needed, and a constant may move from file to file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fusewright.kernels.gemm.split_cost import SPLIT_K
from tests.support.source import PACKAGE, Source, made_up

ROOMS = ("kernels", "loopnest", "codegen")
DECLARED = re.compile(r"\bconstexpr (?:int|long|unsigned) ((?:[A-Z][A-Z_0-9]* = [^,;]+(?:, )?)+);")
# Constants of Python -> what device text has in their place: its file, and a pattern around it.
ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    ("SPLIT_BYTES", "kernels/rowwise/cuda/split_rows.cuh", r"SPLIT_BYTES<team<1, 1>> == (\d+)"),
    (
        "PANEL_BYTES",
        "kernels/rowwise/cuda/split_rows.cuh",
        r"SPLIT_BYTES<column_panel<1, 32>> == (\d+)",
    ),
    ("SPLIT_BYTES", "kernels/rowwise/cuda/partial_reduction.cuh", r"REDUCTION_BYTES = .*: (\d+);"),
    (
        "PANEL_BYTES",
        "kernels/rowwise/cuda/partial_reduction.cuh",
        r"REDUCTION_BYTES = .*\? (\d+) :",
    ),
    ("SPLIT_BYTES", "kernels/rowwise/cuda/grid_resident_rows.cuh", r"GRID_RESIDENT_BYTES <= (\d+)"),
    (
        "SPLIT_BYTES",
        "kernels/rowwise/cuda/pipelined_rows_sm90.cuh",
        r"EXCHANGE_ROOMS \* 8 <= (\d+)",
    ),
    ("SPLIT_BYTES", "kernels/scan/cuda/chunked_scan.cuh", r"TURNS \* 2 \* 8 <= (\d+)"),
    ("PART_STEPS", "kernels/tensor_core/cuda/split_k_sm90.cuh", r"\bLEAST_K_TILES = (\d+)"),
    ("PART_STEPS", "kernels/tensor_core/cuda/split_k_sm90.cuh", r"\bLEAST_RANGE = (\d+)"),
    ("BOX_COLUMNS", "kernels/conv/cuda/pixel_reduction_sm90.cuh", r"COLUMNS == (\d+)"),
    ("BOX_COLUMNS", "kernels/conv/cuda/pixel_reduction_sm90.cuh", r"range\.first / (\d+)"),
    ("SPLIT_ROWS", "kernels/tensor_core/cuda/tile_sm90.cuh", r"\bTILE_ROWS = (\d+)"),
    ("WGMMA_BYTES", "kernels/gemm/cuda/tma_pipeline_sm90.cuh", r"\bSHARED_BYTES = (\d+)"),
    ("MOST_STRIDE", "kernels/conv/cuda/transposed.cuh", r"\bMOST_PHASES = (\d+)"),
    ("MAX_SCANS", "kernels/scan/cuda/chunked_scan.cuh", r"\bMOST_SCANS = (\d+)"),
)
# Constants that two languages call the same, and that are not the same; with the reason.
APART = {
    "MANY_ROWS": "rows whose scans come in small chunks; rows whose sizes a warp packs",
    "TILE_ROWS": "of a product on a GPU, and of maps of a CPU that turn a matrix",
}


def of_python(source: Source) -> dict[str, set[int]]:
    """Whole numbers at the top level of modules of ROOMS, by name."""
    found: dict[str, set[int]] = {}
    for module in source.modules():
        if module.partition("/")[0] in ROOMS:
            for name, value in _assigned(source.tree(module)):
                found.setdefault(name, set()).add(value)
    return found


def _assigned(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for n in tree.body:
        if not isinstance(n, ast.Assign):
            continue
        (target,), value = n.targets, n.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        for name, each in zip(names, values, strict=False):
            number = _number(each)
            if isinstance(name, ast.Name) and number is not None:
                yield name.id, number


def _number(n: ast.expr) -> int | None:
    """What a sum, product or shift of whole numbers comes to."""
    if any(not isinstance(part, NUMERIC) for part in ast.walk(n)):
        return None
    value = eval(ast.unparse(n))
    return value if type(value) is int else None


NUMERIC = (ast.BinOp, ast.Constant, ast.operator)


def of_device(root: Path) -> dict[str, set[int]]:
    """Whole numbers that device text declares, by name."""
    found: dict[str, set[int]] = {}
    for path in sorted(p for suffix in ("cuh", "h") for p in root.rglob(f"*.{suffix}")):
        for declared in DECLARED.findall(path.read_text(encoding="utf-8")):
            for one in declared.split(", "):
                name, _, text = one.partition(" = ")
                if re.fullmatch(r"\d+|0x[0-9a-f]+|\d+ << \d+", text):
                    found.setdefault(name, set()).add(eval(text))
    return found


def unequal(python: Mapping[str, set[int]], device: Mapping[str, set[int]]) -> list[str]:
    return [name for name in python.keys() & device.keys() if python[name] != device[name]]


def mismatches(source: Source, rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Rows whose number is another one in device text, or is not there."""
    python, found = of_python(source), list[str]()
    for name, file, pattern in rows:
        text = (source.root / file).read_text(encoding="utf-8")
        if {int(number) for number in re.findall(pattern, text)} != python.get(name):
            found.append(f"{name}: {file}")
    return found


def test_constants_of_one_name_are_equal() -> None:
    python, device = of_python(Source()), of_device(PACKAGE)
    assert {
        "K_BLOCK",
        "K_SCALE_BLOCK",
        "PACK_ROWS",
        "MOST_STACKED",
    } <= python.keys() & device.keys()
    assert sorted(unequal(python, device)) == sorted(APART)


def test_constants_with_other_names_are_equal() -> None:
    assert not mismatches(Source(), ELSEWHERE)


def test_what_adding_up_costs_is_equal() -> None:
    """Of split-K; launchers of stream-K are given the numbers."""
    text = (PACKAGE / "kernels/tensor_core/cuda/split_k_sm90.cuh").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"\b(ADDING\w*) = (\d+)", text))
    assert numbers == {"ADDING": str(SPLIT_K.once), "ADDING_PARTIAL": str(SPLIT_K.part)}


@pytest.mark.parametrize(("number", "found"), [(32, []), (64, ["K_BLOCK"])])
def test_an_unequal_constant_is_found(tmp_path: Path, number: int, found: list[str]) -> None:
    source = made_up(
        tmp_path, {"kernels/gemm/match": "K_BLOCK, OTHER = 32, 1 << 6\nNAME = 'K_BLOCK'\n"}
    )
    device = tmp_path / "kernels/gemm/cuda/pack.cuh"
    device.parent.mkdir()
    device.write_text(f"constexpr int K_BLOCK = {number}, K_BLOCK_BYTES = 128;\nint other = 3;\n")
    assert unequal(of_python(source), of_device(tmp_path)) == found
    rows = [("OTHER", "kernels/gemm/cuda/pack.cuh", r"other = (\d+)")]
    assert mismatches(source, rows) == ["OTHER: kernels/gemm/cuda/pack.cuh"]
