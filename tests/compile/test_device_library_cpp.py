"""The hand-written CPU skeletons: functions against float64, the words of a team against torch."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusewright.codegen.device_library import sections, select_sections
from fusewright.targets.device_files import DEVICE_FILES
from tests.support.compiled import FLAGS
from tests.support.folders import PACKAGE

# Without threaded jumps gcc does not see that what it warns of is never read.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized"]
CFLAGS = ["-O3", *FLAGS]


def compiler(*arguments: str) -> None:
    """Run g++ and show what it says when it fails."""
    done = subprocess.run(["g++", *CFLAGS, *WARNINGS, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def library(folder: Path, source: str) -> ctypes.CDLL:
    """Sections, structs and entries -> a loaded library."""
    (folder / "kernel.cpp").write_text(source)
    path = folder / "kernel.so"
    compiler("-shared", "-fPIC", str(folder / "kernel.cpp"), "-o", str(path))
    return ctypes.CDLL(str(path))


def call(function: Any, *arguments: Tensor | int) -> None:
    """Call an entry: tensors become pointers, numbers become long."""
    function.restype = None
    function(
        *(
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_long(a)
            for a in arguments
        )
    )


# -- the text


@pytest.mark.parametrize("name", DEVICE_FILES["cpp"])
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_a_header_compiles_alone(name: str, standard: str, tmp_path: Path) -> None:
    """Both standards: load_inline asks for C++17 in old versions of PyTorch, C++20 in new ones."""
    (tmp_path / "alone.cpp").write_text(f'#include "{name}"\n')
    compiler(f"-std={standard}", "-fsyntax-only", "-I", str(PACKAGE), str(tmp_path / "alone.cpp"))


def test_each_section_names_what_it_needs(tmp_path: Path) -> None:
    sources = []
    for section in sections("cpp"):
        source = tmp_path / f"{section.name}.cpp"
        source.write_text(select_sections("cpp", [section.name]) + "\n}  // namespace fusewright\n")
        sources.append(str(source))
    assert len(sources) > 50
    compiler("-fsyntax-only", *sources)


# -- functions

# name -> units in the last place that the float version may be off; of silu, below -87
ULPS = {
    "neg": 0.5, "abs": 0.5, "sign": 0.5, "square": 0.5, "reciprocal": 0.5, "relu": 0.5,
    "floor": 0.5, "ceil": 0.5, "round": 0.5, "trunc": 0.5, "sqrt": 0.5, "rsqrt": 1.5,
    "exp": 1.1, "exp2": 1.0, "expm1": 1.6, "log": 1.0, "log2": 1.1, "log10": 1.1, "log1p": 1.5,
    "sin": 1.3, "cos": 1.3, "tan": 1.5, "asin": 1.0, "acos": 1.0, "atan": 1.4,
    "sinh": 1.7, "cosh": 1.5, "asinh": 2.0, "acosh": 2.1, "atanh": 2.1, "tanh": 1.4,
    "erf": 1.2, "erfc": 3.5, "sigmoid": 2.4, "silu": 53.0,
}  # fmt: skip
TESTS = ("isnan", "isinf", "isfinite")
PAIRS = {
    "pow": 1.0, "atan2": 1.5, "hypot": 1.0, "fmod": 0.5, "remainder": 1.0, "copysign": 0.5,
    "maximum": 0.5, "minimum": 0.5, "fmax": 0.5, "fmin": 0.5,
}  # fmt: skip
INTEGER_PAIRS = ("pow", "maximum", "minimum", "fmod", "remainder")

MAP = """
template <class A, class R> struct {name}_map {{
  const A* a;  const A* b;  R* out;  long count;
  FN long rows() const {{ return 1; }}
  FN long columns() const {{ return count; }}
  template <class Team, class Range> FN void operator()(long, Range range, Team team) const {{
    team.each(range, [&](A x, A y, R& o) {{
      o = {value};
      (void)x, (void)y;
    }}, load(a, 0), load(b, 0), store(out, 0));
  }}
}};
"""
ENTRY = """
extern "C" void {name}_{tag}(const {a}* x, const {a}* y, {r}* out, long n) {{
  fusewright::run_map(fusewright::{name}_map<{a}, {r}>{{x, y, out, n}}, 1);
}}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    bodies, entries = [], []
    for name in (*ULPS, *TESTS, *PAIRS, "where"):
        arguments = "x > y, x, y" if name == "where" else "x, y" if name in PAIRS else "x"
        bodies.append(MAP.format(name=name, value=f"fusewright::{name}({arguments})"))
        for a in ("float", "double"):
            r = "bool" if name in TESTS else a
            entries.append(ENTRY.format(name=name, tag=a, a=a, r=r))
    entries += [ENTRY.format(name=name, tag="long", a="long", r="long") for name in INTEGER_PAIRS]
    names = {*ULPS, *TESTS, *PAIRS, "where", "load", "store", "run_map"}
    text = select_sections("cpp", sorted(names)) + "".join(bodies) + "}  // namespace fusewright\n"
    return library(tmp_path_factory.mktemp("functions"), text + "".join(entries))


def grid(dtype: torch.dtype) -> Tensor:
    """Floats of every size, many ordinary numbers, and the values at which something changes."""
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ordinary = np.random.default_rng(0).uniform(-20, 20, 400_000)
    near_one = 1 + np.random.default_rng(1).uniform(-1, 1, 400_000) ** 3
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, 2**-149, -(2**-149)]
    edges = [88.72284, 88.72283, -87.33655, -103.97208, -103.98, 127.99999, 128, -149, -150, 3.4e38]
    both = np.array([*special, *edges, *(-np.array(edges))])
    with np.errstate(invalid="ignore"):  # some of the bit patterns are signalling NaNs
        every = np.concatenate([bits, ordinary, near_one, both])
    return torch.from_numpy(every).to(dtype)


def worst_ulps(got: Tensor, want: Tensor) -> float:
    """The largest error in float32 ulps; a wrong NaN, infinity or sign of zero counts 1e9."""
    rounded = want.float()
    exponent = torch.frexp(want.abs()).exponent.clamp(min=-125).double()
    ulps = (got.double() - want).abs() / torch.exp2(exponent - 24)
    same = (got == rounded) | (got.isnan() & want.isnan())
    same &= (got != 0) | (got.signbit() == rounded.signbit()) | want.isnan()
    # A finite result beyond the largest float may be rounded either way.
    close = torch.where(same, ulps.nan_to_num(0, 0).clamp(max=0.5), ulps.nan_to_num(1e9, 1e9))
    return float(close.max())


def reference(name: str) -> Callable[..., Tensor]:
    # torch's own sinh and cosh reach infinity a little too early
    exact = {"sinh": np.sinh, "cosh": np.cosh}.get(name)
    if exact is None:
        return getattr(torch, name, None) or getattr(torch.nn.functional, name)

    def by_numpy(x: Tensor) -> Tensor:
        with np.errstate(over="ignore"):
            return torch.from_numpy(exact(x.numpy()))

    return by_numpy


@pytest.mark.parametrize("name", ULPS)
def test_a_function_of_floats(functions: ctypes.CDLL, name: str) -> None:
    x = grid(torch.float32)
    got = torch.empty_like(x)
    call(functions[f"{name}_float"], x, x, got, x.numel())
    assert worst_ulps(got, reference(name)(x.double())) <= ULPS[name]


@pytest.mark.parametrize("name", ULPS)
def test_a_function_of_doubles(functions: ctypes.CDLL, name: str) -> None:
    x = grid(torch.float64)
    got = torch.empty_like(x)
    call(functions[f"{name}_double"], x, x, got, x.numel())
    want = reference(name)(x)
    torch.testing.assert_close(got, want, rtol=2e-15, atol=1e-305, equal_nan=True)


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_question(functions: ctypes.CDLL, name: str, kind: str) -> None:
    x = grid(getattr(torch, f"{kind}{32 if kind == 'float' else ''}".replace("double", "float64")))
    got = torch.empty(x.shape, dtype=torch.bool)
    call(functions[f"{name}_{kind}"], x, x, got, x.numel())
    assert torch.equal(got, reference(name)(x))


def pairs() -> tuple[Tensor, Tensor]:
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1e-40, 1e38, -1e38, np.inf, -np.inf, np.nan]
    a, b = np.meshgrid(special, special)
    rng = np.random.default_rng(2)
    left = [a.ravel(), rng.uniform(-9, 9, 100_000), rng.uniform(0, 30, 100_000)]
    right = [b.ravel(), rng.uniform(-9, 9, 100_000), rng.uniform(-20, 20, 100_000)]
    x, y = (torch.from_numpy(np.concatenate(v)).float() for v in (left, right))
    return x, y


@pytest.mark.parametrize("name", PAIRS)
def test_a_function_of_two(functions: ctypes.CDLL, name: str) -> None:
    x, y = pairs()
    got = torch.empty_like(x)
    call(functions[f"{name}_float"], x, y, got, x.numel())
    assert worst_ulps(got + 0.0, reference(name)(x.double(), y.double()) + 0.0) <= PAIRS[name]
    wide = torch.empty_like(x.double())
    call(functions[f"{name}_double"], x.double(), y.double(), wide, x.numel())
    want = reference(name)(x.double(), y.double())
    torch.testing.assert_close(wide, want, rtol=1e-14, atol=1e-300, equal_nan=True)


def test_where_takes_one_side_whole(functions: ctypes.CDLL) -> None:
    x, y = pairs()
    got = torch.empty_like(x)
    call(functions.where_float, x, y, got, x.numel())
    assert torch.equal(got.view(torch.int32), torch.where(x > y, x, y).view(torch.int32))


@pytest.mark.parametrize("name", INTEGER_PAIRS)
def test_integers_wrap(functions: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 5000))
    x[:2000] %= 50
    y = torch.from_numpy(rng.integers(1, 40, 5000))
    y = y if name == "pow" else torch.where(torch.from_numpy(rng.random(5000) < 0.5), y, -y)
    got = torch.empty_like(x)
    call(functions[f"{name}_long"], x, y, got, x.numel())
    assert torch.equal(got, reference(name)(x, y))


# -- teams

KINDS = {
    "float": torch.float32, "double": torch.float64, "half_t": torch.float16,
    "bfloat_t": torch.bfloat16, "signed char": torch.int8, "unsigned char": torch.uint8,
    "short": torch.int16, "int": torch.int32, "long": torch.int64, "bool": torch.bool,
}  # fmt: skip
COMPUTED = {"half_t": "float", "bfloat_t": "float"}
FOLDED = ("float", "double", "bfloat_t", "long", "bool")
FOLDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")

BODIES = """
template <class T, class R> struct copy {
  const T* in0;  R* out0;  long batch, width;
  FN long rows() const { return batch; }
  FN long columns() const { return width; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](computed<T> v, computed<R>& o) { o = computed<R>(v); },
              load(in0, row * width), store(out0, row * width));
  }
};
struct in_place {
  float* out0;  long batch, width;
  FN long rows() const { return batch; }
  FN long columns() const { return width; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    team.each(range, [&](float v, float& o) { o = v * 2.0f + 1.0f; },
              load(out0, row * width), store(out0, row * width));
  }
};
template <int Kind> struct transposed {
  const half_t* in0;  half_t* out0;  long batch, width;
  FN long rows() const { return batch; }
  FN long columns() const { return width; }
  template <class Team, class Range> FN void operator()(long row, Range range, Team team) const {
    const auto f = [&](float v, float& o) { o = v + 1.0f; };
    const auto other = [&](long, long i) { return i * batch + row; };
    (void)other;
    if constexpr (Kind == 0)
      team.each(range, f, strided(in0, row, batch), store(out0, row * width));
    if constexpr (Kind == 1)
      team.each(range, f, gather(in0, other), store(out0, row * width));
    if constexpr (Kind == 2)
      team.each(range, f, load(in0, row * width), gather_store(out0, other));
    if constexpr (Kind == 3)
      team.each(range, f, load(in0, row * width), strided_store(out0, row, batch));
  }
};
template <class T, class Word> struct folding {
  const T* in0;  typename Word::template result<computed<T>>* out0;  long batch, outer, inner;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    const auto v = Word()(team, span(outer, inner), [&](computed<T> x) { return x; },
                          load(in0, row * outer * inner, inner));
    team.once([&] { write(out0, row, v); });
  }
};
#define WORD(name, R)                                               \\
  struct word_##name {                                              \\
    template <class T> using result = R;                            \\
    template <class Team, class S, class F, class... O>             \\
    FN auto operator()(Team team, S s, F f, O... operands) const {  \\
      return team.name(s, f, operands...);                          \\
    }                                                               \\
  };
template <class T> struct count { using type = T; };
template <> struct count<bool> { using type = long; };
WORD(sum, typename count<T>::type)
WORD(prod, typename count<T>::type)
WORD(max, T)
WORD(min, T)
WORD(any, bool)
WORD(all, bool)
WORD(argmax, long)
WORD(argmin, long)

// Moments of x * 2 + index, which is also kept, and then written back without its mean.
template <class Span, long N> struct moments_row {
  const float* in0;  float* out0;  float* out1;  long batch;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    auto k0 = team.template keep<float, N>();
    const auto m0 = team.moments(Span(), [&](float v, long at, float& k) {
      k = v * 2.0f + float(at);
      return k;
    }, load(in0, row * N, Span::inner), index(), store(k0));
    team.once([&] {
      write(out1, row * 2, m0.mean);
      write(out1, row * 2 + 1, m0.m2);
    });
    team.each(Span(), [&](float k, float& o) { o = k - m0.mean; },
              load(k0), store(out0, row * N, Span::inner));
  }
};
template <class T> struct plain_moments {
  const T* in0;  T* out0;  long batch, outer, inner;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    const auto m0 = team.moments(span(outer, inner), [&](T v) { return v; },
                                 load(in0, row * inner, batch * inner));
    team.once([&] {
      write(out0, row * 2, m0.mean);
      write(out0, row * 2 + 1, m0.m2);
    });
  }
};
// Factors that change with the outer index only, with the inner index only, and with a stride.
struct factors {
  const float* in0;  const float* in1;  const float* in2;  float* out0;  long batch;
  FN long rows() const { return batch; }
  template <class Team> FN void operator()(long row, Team team) const {
    team.each(fixed<6, 35>, [&](float v, float a, float b, float c, float& o) {
      o = v * a + b - c;
    }, load(in0, row * 210, 35), strided(in1, 0, 1, 0), load(in2, 0),
       strided(in0, row * 210, 1, 6), store(out0, row * 210, 35));
  }
};
"""


def entry(name: str, launch: str, body: str, arguments: str) -> str:
    names = ", ".join(a.split()[-1] for a in arguments.split(", "))
    return (
        f'extern "C" void {name}({arguments}, long threads) {{ using namespace fusewright; '
        f"{launch}({body}{{{names}}}, threads); }}\n"
    )


def team_entries() -> str:
    text = entry("in_place_map", "run_map", "in_place", "float* o, long n, long w")
    for kind in range(4):
        for launch in ("run_map", "run_tiles"):
            arguments = "const fusewright::half_t* x, fusewright::half_t* o, long n, long w"
            text += entry(f"transposed_{kind}_{launch}", launch, f"transposed<{kind}>", arguments)
    for stored in KINDS:
        tag, t = stored.replace(" ", "_"), f"fusewright::{stored}" if stored in COMPUTED else stored
        for a, r in {(t, "float"), ("float", t)}:
            body = f"copy<{a}, {r}>"
            text += entry(
                f"copy_{a}_{r}".replace("fusewright::", "").replace(" ", "_"),
                "run_map",
                body,
                f"const {a}* x, {r}* o, long n, long w",
            )
        for word in FOLDS if stored in FOLDED else ():
            arguments = f"const {t}* x, void* v, long n, long p, long i"
            out = f"static_cast<typename word_{word}::result<computed<{stored}>>*>(v)"
            text += entry(
                f"{word}_{tag}", "run_rows", f"folding<{stored}, word_{word}>", arguments
            ).replace("{x, v,", "{x, " + out + ",")
    for name, span, n in MOMENTS:
        body = f"moments_row<fixed_span<{span}>, {n}>"
        text += entry(
            f"moments_{name}", "run_rows", body, "const float* x, float* o, float* p, long n"
        )
    for t in ("float", "double"):
        arguments = f"const {t}* x, {t}* o, long n, long p, long i"
        text += entry(f"plain_moments_{t}", "run_rows", f"plain_moments<{t}>", arguments)
    arguments = "const float* x, const float* a, const float* b, float* o, long n"
    return text + entry("factors_row", "run_rows", "factors", arguments)


# Row lengths around the sizes of a vector, of a buffer, and of what stays on the stack.
MOMENTS = [("1", "1", 1), ("7", "7", 7), ("64", "64", 64), ("1025", "1025", 1025)]
MOMENTS += [
    ("20000", "20000", 20000),
    ("8x49", "8, 49", 392),
    ("3x2000", "3, 2000", 6000),
    ("400x3", "400, 3", 1200),
]
THREADS = (1, 2, 5)


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    words = [s.name for s in sections("cpp")]
    text = select_sections("cpp", words) + BODIES + "}  // namespace fusewright\n" + team_entries()
    return library(tmp_path_factory.mktemp("teams"), text)


def values(kind: str, *shape: int, seed: int = 0) -> Tensor:
    dtype = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype == torch.bool:
        return x > 1
    return (x * 3).to(dtype) if dtype.is_floating_point else (x.abs() * 60).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_loads_and_stores_every_type(teams: ctypes.CDLL, kind: str) -> None:
    tag = kind.replace(" ", "_")
    for rows, width in [(0, 3), (1, 1), (3, 37), (2, 9001)]:
        for name, source, target in [
            (f"{tag}_float", kind, "float"),
            (f"float_{tag}", "float", kind),
        ]:
            x = values(source, rows, width)
            x = x if source == "bool" else x.abs()
            got = torch.full((rows, width), 7, dtype=KINDS[target])
            call(teams[f"copy_{name}"], x, got, rows, width, 2)
            assert torch.equal(got, x.to(KINDS[target]))


@pytest.mark.parametrize("kind", ["half_t", "bfloat_t"])
def test_sixteen_bits_round_as_torch_does(teams: ctypes.CDLL, kind: str) -> None:
    x = grid(torch.float32)[None]
    got = torch.empty(x.shape, dtype=KINDS[kind])
    call(teams[f"copy_float_{kind}"], x, got, 1, x.numel(), 1)
    want = x.to(KINDS[kind])
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.view(torch.int16)[~want.isnan()], want.view(torch.int16)[~want.isnan()])
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(KINDS[kind])[None]
    back = torch.empty(every.shape)
    call(teams[f"copy_{kind}_float"], every, back, 1, every.numel(), 1)
    torch.testing.assert_close(back, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("threads", THREADS)
def test_a_map_in_place(teams: ctypes.CDLL, threads: int) -> None:
    x = values("float", 31, 1003)
    want = x * 2 + 1
    call(teams.in_place_map, x, 31, 1003, threads)
    assert torch.equal(x, want)


@pytest.mark.parametrize("launch", ["run_map", "run_tiles"])
@pytest.mark.parametrize("kind", range(4))
def test_addresses_that_jump(teams: ctypes.CDLL, kind: int, launch: str) -> None:
    for rows, width in [(1, 1), (33, 517), (64, 1024)]:
        x = (
            values("half_t", rows * width).view(width, rows)
            if kind < 2
            else values("half_t", rows, width)
        )
        got = torch.empty(x.T.shape, dtype=torch.float16)
        call(teams[f"transposed_{kind}_{launch}"], x, got, rows, width, 2)
        assert torch.equal(got, x.T.contiguous() + 1)


FOLD_SHAPES = [
    (0, 1, 5),
    (3, 0, 4),
    (1, 1, 1),
    (5, 1, 7),
    (2, 1, 1025),
    (1, 1, 70_001),
    (2, 30, 49),
    (1, 600, 50),
]


def torch_fold(word: str, x: Tensor) -> Tensor:
    wide = x if x.dtype.is_floating_point else x.long()
    if word in ("sum", "prod"):
        exact = wide.double() if x.dtype.is_floating_point else wide
        return getattr(exact, word)(1).to(
            torch.float64 if x.dtype.is_floating_point else torch.int64
        )
    if word in ("any", "all"):
        return getattr(x.bool(), word)(1)
    return getattr(wide, {"max": "amax", "min": "amin"}.get(word, word))(1).to(
        torch.int64 if "arg" in word else x.dtype
    )


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("word", FOLDS)
@pytest.mark.parametrize("kind", FOLDED)
def test_a_fold(teams: ctypes.CDLL, kind: str, word: str, threads: int) -> None:
    for rows, outer, inner in FOLD_SHAPES:
        x = values(kind, rows, outer * inner)
        if word == "prod" and x.dtype.is_floating_point:
            x = 1 + x / 1000
        result = KINDS[COMPUTED.get(kind, kind)]
        result = torch.bool if word in ("any", "all") else torch.int64 if "arg" in word else result
        result = torch.int64 if kind == "bool" and word in ("sum", "prod") else result
        got = torch.zeros(rows, dtype=result)
        call(teams[f"{word}_{kind.replace(' ', '_')}"], x, got, rows, outer, inner, threads)
        if x.numel() == 0:
            continue
        want = torch_fold(word, x)
        if word in ("sum", "prod") and result.is_floating_point:
            scale = x.double().abs().sum(1) if word == "sum" else want.abs()
            limit = {torch.float32: 3e-7, torch.float64: 1e-13}[result]
            assert ((got.double() - want).abs() <= limit * scale).all()
        else:
            assert torch.equal(got, want.to(result))


@pytest.mark.parametrize(
    ("word", "identity"),
    [
        ("sum", 0.0),
        ("prod", 1.0),
        ("max", -torch.inf),
        ("min", torch.inf),
        ("any", False),
        ("all", True),
    ],
)
def test_a_fold_over_nothing(teams: ctypes.CDLL, word: str, identity: float) -> None:
    got = torch.full((3,), 5, dtype=torch.bool if word in ("any", "all") else torch.float32)
    call(teams[f"{word}_float"], torch.empty(0), got, 3, 4, 0, 1)
    assert got.tolist() == [identity] * 3
    if word in ("max", "min"):
        limit = torch.full((3,), 5)
        call(teams[f"{word}_long"], limit, limit, 3, 0, 4, 1)
        assert limit.tolist() == [(-(2**63), 2**63 - 1)[word == "min"]] * 3


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("word", ["max", "min", "argmax", "argmin"])
def test_a_nan_wins_and_the_first_of_equals(teams: ctypes.CDLL, word: str, threads: int) -> None:
    for n in (5, 64, 1500, 70_000):
        sign = -1 if "min" in word else 1
        x = torch.full((4, n), -sign * torch.inf)
        x[1:, n // 2 :] = 1.0 * sign
        x[2, n - 1] = torch.nan
        x[3, n // 3 :: 2] = torch.nan
        for row in x.split(1) if threads > 1 else (x,):
            got = torch.empty(len(row), dtype=torch.int64 if "arg" in word else torch.float32)
            call(teams[f"{word}_float"], row.contiguous(), got, len(row), 1, n, threads)
            want = torch_fold(word, row)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("name", "n"), [(name, n) for name, _, n in MOMENTS])
def test_moments_of_a_kept_row(teams: ctypes.CDLL, name: str, n: int, threads: int) -> None:
    for rows in (0, 1, 3):
        x = values("float", rows, n)
        got, found = torch.empty_like(x), torch.empty(rows, 2)
        call(teams[f"moments_{name}"], x, got, found, rows, threads)
        exact = x.double() * 2 + torch.arange(n)
        mean = exact.mean(1, keepdim=True)
        torch.testing.assert_close(found[:, :1].double(), mean, rtol=3e-7, atol=1e-6)
        torch.testing.assert_close(
            found[:, 1:].double(), ((exact - mean) ** 2).sum(1, keepdim=True), rtol=1e-6, atol=1e-9
        )
        torch.testing.assert_close(got.double(), exact - mean, rtol=1e-6, atol=2e-7 * n + 1e-6)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_moments_do_not_cancel(teams: ctypes.CDLL, kind: str, offset: float) -> None:
    for rows, outer, inner, threads in [
        (3, 1, 100, 1), (2, 7, 300, 1), (1, 5, 20_001, 2), (4, 300, 9, 2), (1, 1, 1, 1)
    ]:  # fmt: skip
        x = (values("double", outer, rows, inner) / 3 + offset).to(KINDS[kind])
        got = torch.empty(rows, 2, dtype=x.dtype)
        call(teams[f"plain_moments_{kind}"], x, got, rows, outer, inner, threads)
        exact = x.double().transpose(0, 1).reshape(rows, -1)
        mean = exact.mean(1, keepdim=True)
        limit = 2e-7 if kind == "float" else 1e-15
        torch.testing.assert_close(got[:, :1].double(), mean, rtol=limit, atol=limit)
        m2 = ((exact - mean) ** 2).sum(1, keepdim=True)
        torch.testing.assert_close(
            got[:, 1:].double(), m2, rtol=1e-6 if kind == "float" else 1e-9, atol=1e-30
        )


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_equal_elements_are_their_mean(teams: ctypes.CDLL, kind: str, threads: int) -> None:
    rows = 50
    numbers = values("double", rows).mul(1e3).to(KINDS[kind])
    for outer, inner in [(1, 7), (3, 11), (1, 255), (1, 1000), (7, 300), (3, 70_001)]:
        x = numbers[None, :, None].repeat(outer, 1, inner)
        got = torch.empty(rows, 2, dtype=x.dtype)
        for some in (rows, 1):  # a thread for some rows, or all for one
            call(
                teams[f"plain_moments_{kind}"],
                x[:, :some].contiguous(),
                got,
                some,
                outer,
                inner,
                threads,
            )
            assert torch.equal(got[:some, 0], numbers[:some])
            assert not got[:some, 1].any()


def test_moments_of_what_is_not_finite(teams: ctypes.CDLL) -> None:
    x = values("float", 1, 3, 500)
    x[0, 0, 7], x[0, 1, 3] = torch.inf, torch.nan
    got = torch.empty(3, 2)
    call(teams.plain_moments_float, x, got, 3, 1, 500, 1)
    assert got[0].tolist()[0] == torch.inf
    assert got[:2, 1].isnan().all()
    assert got[1, 0].isnan()
    assert got[2].isfinite().all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_sum_is_at_least_as_accurate_as_eager(teams: ctypes.CDLL, threads: int) -> None:
    x = torch.rand(10_000_000, generator=torch.Generator().manual_seed(4))
    got = torch.empty(1)
    call(teams.sum_float, x, got, 1, 1, x.numel(), threads)
    exact = x.double().sum()
    assert (got.double() - exact).abs() <= max((x.sum().double() - exact).abs(), exact * 2**-24)


@pytest.mark.parametrize("threads", THREADS)
def test_operands_of_two_levels(teams: ctypes.CDLL, threads: int) -> None:
    x, a, b = values("float", 3, 6, 35), values("float", 6, seed=1), values("float", 35, seed=2)
    got = torch.empty_like(x)
    call(teams.factors_row, x, a, b, got, 3, threads)
    offset = torch.arange(6)[:, None] + torch.arange(35) * 6
    want = x * a[:, None] + b - x.view(3, 210)[:, offset.flatten()].view(3, 6, 35)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
