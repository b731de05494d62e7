"""Emitted kernels hold what they instantiate of the skeletons: the machine code is the same."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fusewright.codegen import cpu_source, cuda_source
from fusewright.codegen.constant_value import UNKNOWN, Type, Value
from fusewright.codegen.dead_code import definitions, drop_unreached
from fusewright.codegen.instantiation import only_instantiated
from fusewright.codegen.library_units import fixed_units, unit_of
from fusewright.codegen.template_program import Program
from fusewright.targets.compile_flags import CPP_FLAGS, cuda_flags
from fusewright.targets.target import TARGETS
from tests.support.emitting import EXAMPLES, SMALL, emit_file
from tests.support.folders import ROOT
from tools.machine_code import difference

CONSTANTS = """constexpr int FOUR = 4, SIX = FOUR + 2;
constexpr int OF_A_CALL = sizeof(int);
template <int N> constexpr int half = N / 2;
template <> constexpr int half<3> = 30;
template <class T> constexpr bool is_wide = false;
template <int N> struct box {
  static constexpr int size = N * FOUR, rest = size % 5;
  using inner = box<N / 2>;
};
template <> struct box<0> { static constexpr int size = 1; };
template <int N, bool SMALL = (N < 8)> struct shelf : box<N> {};
template <int N> struct shelf<N, true> { static constexpr int size = -1; };
struct crate { static constexpr int size = 9; };
enum class colour { RED, GREEN };"""


def value(expression: str) -> Value:
    """Of an expression beside CONSTANTS."""
    library = [unit_of(d.text) for d in definitions(CONSTANTS)]
    asked = unit_of(f"constexpr int asked = {expression};")
    program = Program([*library, asked])
    return program.value(asked, asked.values["asked"], {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("1 << 2 + 1", 8),
        ("7 / 2 * 2 == 6 && 7 % 4 == 3", 1),
        ("-7 / 2", -3),
        ("-7 % 4", -3),
        ("1 | 2 ^ 2 & 3", 1),
        ("FOUR < SIX ? FOUR > SIX ? 1 : 2 : 3", 2),
        ("!(FOUR == 4) || SIX >= 6", 1),
        ("0x10 + 010L + 1l", UNKNOWN),  # an octal number
        ("0x10 + 1l", 17),
        ("half<10>", 5),
        ("half<3>", 30),
        ("half<half<(12 > 4) ? 12 : 4>>", 3),
        ("box<SIX>::size", 24),
        ("box<(half<10> >> 1)>::size", 8),
        ("box<5>::inner::rest", 3),
        ("box<1>::inner::size", 1),
        ("box<0>::size", 1),
        ("shelf<16>::size", 64),
        ("shelf<4>::size", -1),
        ("shelf<(FOUR, 4), 0>::size", UNKNOWN),
        ("crate::size", 9),
        ("int(bool(7)) + long(2)", 3),
        ("0 && nobody_knows", 0),
        ("nobody_knows || true", 1),
        ("nobody_knows && true", UNKNOWN),
        ("nobody_knows ? 3 : 3", 3),
        ("sizeof(float) == 4", UNKNOWN),
        ("OF_A_CALL", UNKNOWN),
        ("FOUR * f(1)", UNKNOWN),
        ("1 / 0", UNKNOWN),
        ("2147483647 + 1", UNKNOWN),
        ("4u - 5", UNKNOWN),
        ("0.5f < 1", UNKNOWN),
        ("(... && true)", UNKNOWN),
        ("is_wide<float>", 0),
        ("box<nobody_knows>::size", UNKNOWN),
        ("FOUR +", UNKNOWN),
    ],
)
def test_constant_expressions_have_the_values_of_the_language(
    expression: str, expected: Value
) -> None:
    assert value(expression) == expected


def test_types_are_values_too() -> None:
    assert value("box<2 + 2>") == Type("box", (4,))
    assert value("shelf<2>") == Type("shelf", (2, 1))
    assert value("crate") == Type("crate")
    assert value("uint4") == UNKNOWN


def kept(library: str, generated: str) -> str:
    """What stays for a text that says this, line by line, without the margins."""
    text = only_instantiated(library, f"void user() {{ {generated}; }}\n}}  // namespace\n")
    return "\n".join(line.strip() for line in text.split("\n"))


CHOICE = """
template <bool WIDE, int N = 4> FN int run(int x) {
  if constexpr (WIDE && N > 2)
    return wide(x);
  else
    return narrow(x);
}
FN int wide(int x) { return x * 2; }
FN int narrow(int x) { return x * 3; }
"""


def test_the_branch_that_every_use_takes_stays() -> None:
    wide = "template <bool WIDE, int N = 4> FN int run(int x) {\nreturn wide(x);\n}\n"
    assert kept(CHOICE, "run<true>(1)") == wide + "FN int wide(int x) { return x * 2; }"
    assert "wide(" not in kept(CHOICE, "run<false>(1)")
    assert "wide(" not in kept(CHOICE, "run<true, 2>(1)")


@pytest.mark.parametrize(
    "used", ["run<true>(1) + run<false>(1)", "run<X>(1)", "auto f = run;", "run<(A, B)>(1)"]
)
def test_what_is_unknown_or_differs_stays(used: str) -> None:
    assert kept(CHOICE, used).split() == CHOICE.split()


def test_a_local_name_is_none_of_the_library() -> None:
    library = """
constexpr int ROWS = 1;
template <int N> FN int run(int ROWS) {
  if (ROWS == 1) return first();
  if (N == 1) return second();
  return 3;
}
FN int first() { return 1; }
FN int second() { return 2; }"""
    text = kept(library, "run<2>(5)")
    assert "if (ROWS == 1) return first();" in text
    assert "second" not in text


def test_a_constant_of_the_function_is_known_after_it() -> None:
    library = """
template <int N> FN int run() {
  constexpr int HALF = N / 2;
  if constexpr (HALF > 4) return first();
  return HALF;
}
FN int first() { return 1; }"""
    assert "first" not in kept(library, "run<8>()")
    assert "first" in kept(library, "run<10>()")


def test_nothing_runs_behind_a_return() -> None:
    library = """
template <bool SHORT> FN int run(int x) {
  if constexpr (SHORT) return x;
  const int y = long_way(x);
  return y + 1;
}
FN int long_way(int x) { return x; }"""
    assert kept(library, "run<true>(1)").split("\n")[1:] == ["return x;", "}"]


def test_templates_that_call_themselves_end() -> None:
    library = """
template <int WIDTH, int MOST, int FIRST = 0> FN int finish(int x) {
  constexpr int COUNT = WIDTH - FIRST < MOST ? WIDTH - FIRST : MOST;
  if constexpr (COUNT == 7) return odd(x);
  if constexpr (FIRST + COUNT < WIDTH) return finish<WIDTH, MOST, FIRST + COUNT>(x);
  return x;
}
FN int odd(int x) { return x; }
template <int N> FN int endless(int x) { return endless<N + 1>(x); }"""
    assert "odd" not in kept(library, "finish<64, 32>(1)")
    assert "odd" in kept(library, "finish<39, 32>(1)")
    assert "endless<N + 1>" in kept(library, "endless<0>(1)")


def test_specialisations_stay_where_an_argument_can_mean_them() -> None:
    library = """
template <int N, bool SMALL = (N < 8)> struct room { int many[N]; };
template <int N> struct room<N, true> { int few[N]; };
template <class T> FN int put(room<sizeof(T)>& at) { return 1; }"""
    assert "few" not in kept(library, "room<16> r;")
    assert "many" not in kept(library, "room<4> r;")
    assert "few" in kept(library, "room<N> r;")
    assert "many" in kept(library, "put<int>(r)")


def test_a_specialisation_has_the_template_that_it_is_one_of() -> None:
    library = """
constexpr int LEAST = 8;
struct base { int none; };
// Some numbers.
template <int N, bool SMALL = (N < LEAST)> struct room : base {
  int many[N];
};
template <int N> struct room<N, true> { int few[N]; };
constexpr int USUAL = 128;
template <class T> constexpr int rows = USUAL;
template <int N> constexpr int rows<room<N>> = N;"""
    declared = "// Some numbers.\ntemplate <int N, bool SMALL = (N < LEAST)> struct room;\n"
    text = kept(library, "room<4> r;")
    assert text.startswith(
        f"constexpr int LEAST = 8;\n{declared}template <int N> struct room<N, true>"
    )
    assert "base" not in text
    assert "rows" not in text
    assert "constexpr int USUAL = 128;\ntemplate <class T> constexpr int rows = USUAL;" in kept(
        library, "int x = rows<room<4>>"
    )


def test_overloads_of_types_that_nobody_makes_go() -> None:
    library = """
struct line { long length; };
struct row { long length; };
FN long size(line l) { return l.length; }
FN long size(row r) { return r.length; }
FN float twice(float x) { return x * 2; }
FN double twice(double x) { return x * 2; }"""
    assert "line" not in kept(library, "size(row{3}) + twice(1.0f)")
    assert "double" not in kept(library, "twice(1.0f)")
    assert "double" in kept(library, "twice(1.0)")
    assert "line" in kept(library, "size({3})")


def test_specialisations_of_functions_stay() -> None:
    library = """
template <class To, class From> FN To narrowed(From x) { return To(x); }
template <> FN float narrowed<float, double>(double x) { return careful(x); }
template <class T> struct wider { using type = T; };
template <> struct wider<float> { using type = double; };
template <class T> FN T half(T x) { return narrowed<T>(typename wider<T>::type(x) / 2); }
FN float careful(float x) { return x; }"""
    assert kept(library, "half(1.0f)") == library.strip()


def test_members_that_nobody_calls_go_with_what_they_call() -> None:
    library = """
template <bool BIG> struct pile {
  static constexpr int HEIGHT = BIG ? 9 : 1;
  int top;
  explicit pile(int top) : top(top) {}
  FN int first() const { return helper(top); }
  // Of two.
  FN int second() const { return HEIGHT > 4 ? other(top) : top; }
  template <int N> FN int third() const {
    if constexpr (N + HEIGHT > 10) return other(top);
    return top;
  }
};
FN int helper(int x) { return x; }
FN int other(int x) { return x; }"""
    text = kept(library, "pile<true>(1).first()")
    assert "second" not in text
    assert "Of two" not in text
    assert "other" not in text
    assert "explicit pile" in text
    assert "other" in kept(library, "pile<true>(1).template third<2>()")
    assert "other" not in kept(library, "pile<true>(1).template third<1>()")


def test_blocks_keep_their_braces_where_names_would_meet() -> None:
    library = """
template <bool ON> FN int run(int x) {
  if constexpr (ON) {
    const int y = x;
    use(y);
  }
  const int y = 2;
  if constexpr (ON) {
    use(y);
    use(x);
  }
  return y;
}
FN int use(int x) { return x; }"""
    lines = kept(library, "run<true>(1)").split("\n")
    assert lines[1:9] == [
        *("{", "const int y = x;", "use(y);", "}"),
        *("const int y = 2;", "use(y);", "use(x);", "return y;"),
    ]  # fmt: skip


def test_units_of_the_users_text_are_read_and_never_changed() -> None:
    units = fixed_units(
        "namespace {\nstruct a { int f() { return 1; } };\n}\nint b() { return 2; }\n}"
    )
    assert [(u.name, u.kind, u.fixed, u.members) for u in units] == [
        ("a", "type", True, []),
        ("b", "function", True, []),
    ]


# ---- the same machine code -----------------------------------------------------------------------


def _texts(name: str, target: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """A program with all that it names, and with what it instantiates."""
    seen = list[str]()

    def resolved(library: str, generated: str) -> str:
        text = only_instantiated(library, generated)
        seen[:] = [f"{t}\n\n{generated}\n}}\n" for t in (drop_unreached(library, generated), text)]
        return text

    source = cpu_source if target == "cpu" else cuda_source
    monkeypatch.setattr(source, "only_instantiated", resolved)
    emit_file(ROOT / "examples" / f"{name}.py", folder, target, SMALL[name])
    return seen


def _machine_code(text: str, command: Sequence[str], source: Path) -> str:
    source.write_text(text, encoding="utf-8")
    made = source.with_suffix(".s")
    done = subprocess.run(
        [*command, str(source), "-o", str(made)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "warnings"
    return made.read_text(encoding="utf-8")


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")
@pytest.mark.parametrize("name", EXAMPLES)
def test_machine_code_is_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["g++", *CPP_FLAGS, "-march=native", "-fPIC", "-S"]
    old, new = _texts(name, "cpu", monkeypatch, tmp_path)
    assert len(new) < len(old)
    codes = [_machine_code(t, command, tmp_path / f"{k}.cpp") for k, t in enumerate((old, new))]
    assert difference(*codes) == ""


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_code_of_the_gpu_is_the_same(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["nvcc", *cuda_flags(TARGETS[target].arch), "--ptx"]
    old, new = _texts(name, target, monkeypatch, tmp_path)
    assert len(new) < len(old)
    codes = list[str]()
    for k, text in enumerate((old, new)):
        (tmp_path / f"{k}").mkdir()  # since names of kernels say what their file is called
        codes.append(_machine_code(text, command, tmp_path / f"{k}" / "kernels.cu"))
    assert difference(*codes) == ""
