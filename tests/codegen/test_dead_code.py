"""Emitted kernels hold the definitions of the skeletons that they reach, and all of these."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fusewright.codegen.dead_code import definitions, drop_unreached, for_nvcc
from fusewright.codegen.device_library import sections, select_sections
from fusewright.codegen.kernel_text import words
from tests.support.emitting import compiled_text, emit_example

# What others do not call by a name of its own: it stays.
NAMELESS = re.compile(
    r"#include|#pragma|namespace|static_assert|.*\boperator\b|HALF_MULTIPLIES\(half_t"
)
SKELETON = """
// Of all types.
template <class T> struct box {
  FUSEWRIGHT_MAKE(first, T)
  FUSEWRIGHT_MAKE(second, T)
};
template <> struct box<odd> {};
#define FUSEWRIGHT_MAKE(name, T) void name() { name##_of<T>(); }
#define WIDE_4 8
#define WIDE_8 \\
  16
#define WIDE(N) WIDE_##N
FN void first_of() {}
FN void second_of() {}
struct odd {};
constexpr int SIZE = 4, MORE = 5;

FN int size(int x) { return SIZE; }
FN int size(float x) {
  return "other"[0];  // not other
}
FN int other() { return size(1); }
#ifndef __CUDACC_RTC__
// On the host.
FN int host() { return 1; }
FN int guest() { return 2; }
#endif
#ifdef __CUDACC_RTC__
FN int run() { return 3; }
#else
inline int run() { return MORE; }
#endif
static_assert(sizeof(odd) == 1);"""


def names(text: str) -> list[str]:
    """What a text defines, in order; the text of what has no name."""
    return [" ".join(sorted(d.names)) or d.text for d in definitions(text)]


@pytest.mark.parametrize("language", ["cpp", "sm80", "sm90"])
def test_the_skeletons_are_understood(language: str) -> None:
    for section in sections(language):
        found = definitions(section.text)
        everything = section.text + "".join(f" .{word}" for word in words(section.text))
        assert drop_unreached(section.text, everything) == section.text
        for d in found:
            code = [x for x in d.text.split("\n") if not x.startswith("//")]
            assert d.names or not code or NAMELESS.match(code[0]), f"{section.name}: {d.text}"


GCC = ("g++", "-fsyntax-only")
NVCC = ("nvcc", "-ptx", "-o", "all.ptx")


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("language", "command"),
    [
        ("cpp", GCC),
        ("sm80", (*NVCC, "-arch=compute_80")),
        ("sm90", (*NVCC, "-arch=compute_90a")),
    ],
)
def test_all_sections_go_together(language: str, command: tuple[str, ...], tmp_path: Path) -> None:
    """A model may need any of them beside any other, so no name may mean two things."""
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    text = (
        select_sections(language, [s.name for s in sections(language)])
        + "\n}  // namespace fusewright\n"
    )
    name = "all.cpp" if language == "cpp" else "all.cu"
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [*command, "-std=c++17", name], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_reached_stays() -> None:
    assert names(drop_unreached(SKELETON, "size(2)")) == ["MORE SIZE", "size", "size"]
    assert "// Of all types." in drop_unreached(SKELETON, "box<int>()")
    assert names(drop_unreached(SKELETON, "other()")) == ["MORE SIZE", "size", "size", "other"]
    assert drop_unreached(SKELETON, '"other"  // size') == ""


def test_a_specialisation_goes_with_its_type() -> None:
    assert names(drop_unreached(SKELETON, "box<int>")) == ["box"]
    both = ["box", "box", "odd", "static_assert(sizeof(odd) == 1);"]
    assert names(drop_unreached(SKELETON, "box<odd>")) == both


def test_macros_reach_what_they_paste() -> None:
    text = drop_unreached(SKELETON, "box<int>().first()")
    assert names(text) == ["box", "FUSEWRIGHT_MAKE", "first_of"]
    assert "second" not in text
    assert names(drop_unreached(SKELETON, "WIDE(4)")) == ["WIDE_4", "WIDE_8", "WIDE"]


def test_conditions_stay_around_what_they_are_for() -> None:
    text = drop_unreached(SKELETON, "host()")
    assert text == "\n".join(
        ["#ifndef __CUDACC_RTC__", "// On the host.", "FN int host() { return 1; }", "#endif"]
    )
    assert for_nvcc(text) == "// On the host.\nFN int host() { return 1; }"
    assert (
        for_nvcc(drop_unreached(SKELETON, "run()")).split("\n")[-1]
        == "inline int run() { return MORE; }"
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_an_emitted_file_has_nothing_else(target: str, tmp_path: Path) -> None:
    emitted = emit_example("swish_bias_groupnorm", tmp_path, target)
    text, first = emitted.text, emitted.made.texts[0].name
    found = compiled_text(text)
    assert "__CUDACC_RTC__" not in found
    kept = definitions(found.partition(f"struct {first}")[0])
    for d in kept:
        others = words(found.replace(d.text, ""))
        assert not d.names or d.names & others, f"nothing calls {d.text}"
    there = {name for d in kept for name in d.names}
    for section in sections("cpp" if target == "cpu" else "sm90"):
        if {d.text for d in definitions(for_nvcc(section.text))} & {d.text for d in kept}:
            missing = [d for d in definitions(section.text) if not d.names & there and d.names]
            assert not any(d.names & words(found) for d in missing), section.name
