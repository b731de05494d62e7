"""What gcc makes of the functions of numbers: how many instructions a vector of them takes.

Nothing in the text of a function shows whether gcc takes a clamp apart into paths and blends them
again, or a product and a sum into two instructions; the machine code does.
"""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from fusewright.codegen.device_library import select_sections
from fusewright.targets.compile_flags import CPP_FLAGS

# Function -> instructions for 16 floats, loads, stores and the loop's own three included.
MOST = {
    "exp": 30, "exp2": 27, "expm1": 26, "sigmoid": 29, "silu": 29, "tanh_softplus": 30, "tanh": 38,
    "erf": 44,
    "sinh": 38, "cosh": 25, "log": 39, "log2": 40, "log10": 41, "atan": 25,
}  # fmt: skip
ENTRY = """
extern "C" void {name}(const float* __restrict x, float* __restrict out, long n) {{
#pragma omp simd
  for (long i = 0; i < n; ++i) out[i] = fusewright::{name}(x[i]);
}}
"""
LABEL = re.compile(r"(\.L\w+):")
JUMP = re.compile(r"\tj\w+\s+(\.L\w+)")


def version() -> str:
    try:
        said = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.stdout.split(".")[0].strip()


def vector_loop(lines: list[str]) -> int:
    """The instructions of the loop whose vectors are whole registers."""
    labels = {m[1]: k for k, line in enumerate(lines) if (m := LABEL.match(line))}
    for k, line in enumerate(lines):
        jump = JUMP.match(line)
        if jump and labels.get(jump[1], k) < k:
            body = [i for i in lines[labels[jump[1]] : k + 1] if re.match(r"\t[a-z]", i)]
            if any("%zmm" in i and i.startswith("\tvmovups") for i in body):
                return len(body)
    raise AssertionError("no loop stores whole vectors")


@pytest.mark.skipif(
    platform.machine() != "x86_64" or version() != "12", reason="the numbers are those of gcc 12"
)
def test_a_vector_takes_no_more_instructions(tmp_path: Path) -> None:
    text = select_sections("cpp", sorted(MOST)) + "}  // namespace fusewright\n"
    source = tmp_path / "functions.cpp"
    source.write_text(text + "".join(ENTRY.format(name=name) for name in MOST), encoding="utf-8")
    command = ["g++", "-march=skylake-avx512", *CPP_FLAGS, "-S", str(source), "-o", "-"]
    made = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8")
    found = {}
    for name in MOST:
        body = made[made.index(f"\n{name}:") : made.index(f"\t.size\t{name},")]
        found[name] = vector_loop(body.splitlines())
    longer = {name: count for name, count in found.items() if count > MOST[name]}
    assert not longer, f"instructions by function: {longer}"


BOOLS = """
extern "C" void read_bools(const float* x, const bool* mask, float* out, long n) {
  const auto line = fusewright::load(mask, 0).line(0, n);
#pragma omp simd
  for (long i = 0; i < n; ++i) out[i] = fusewright::where(line[i], 0.0f, x[i]);
}
extern "C" void write_bools(const float* x, bool* out, long n) {
  const auto line = fusewright::store(out, 0).line(0, n);
  const auto lambda = [](float x, bool& out) { out = x <= 0.0f; };
#pragma omp simd
  for (long i = 0; i < n; ++i) lambda(x[i], line[i]);
}
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or version() != "12", reason="other compilers were not tried"
)
def test_loops_over_bools_are_vector_code(tmp_path: Path) -> None:
    """Masks lie in memory where a derivative reads what forward compared."""
    text = select_sections("cpp", ["load", "store", "where"]) + "}  // namespace fusewright\n"
    source = tmp_path / "bools.cpp"
    source.write_text(text + BOOLS, encoding="utf-8")
    command = ["g++", "-march=skylake-avx512", *CPP_FLAGS, "-S", str(source), "-o", "-"]
    made = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8")
    for name in ("read_bools", "write_bools"):
        body = made[made.index(f"\n{name}:") : made.index(f"\t.size\t{name},")]
        assert vector_loop(body.splitlines())
