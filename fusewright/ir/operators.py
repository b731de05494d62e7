"""The op table: one row per operator of the IR, and nothing about an operator stands elsewhere.

A row holds the C++ spelling (the same for the CPU and CUDA; functions are in `devicelib/`), the
meaning in PyTorch (as text: it is run by the interpreter and printed where an operator stays a
library call), the result type, the domain of its tests, and its cost in float operations.
`{0}`, `{1}`, … are the arguments; `{dims}`, `{shape}`, … are attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Operator:
    """One operator.

    kind: "pointwise" (one element in, one out), "reduction" (over the dimensions in attribute
    `dims`), "scan" (along the dimension in `dims`), "view" (moves no data), "contraction" (sums of
    products, which a kernel computes tile by tile), "leaf" or "library".
    result: "same" as the first argument, "second" (as the second), "wide" (the same, or float64 of
    float32), "bool", "index" (int64), or "attribute" (that of attribute `to`).  domain: the values
    that tests draw for all arguments: "real" (any), "positive", "unit" (between -1 and 1), "above
    one", "near one", "special" (any, with zeros, infinities, NaN and the least and largest numbers
    among them), "bool" (truth values), "numbers" (integers), "int" (integers and truth values);
    "choice" and "positive choice" (a truth value, then "special" or "positive" ones); "windows" (of
    a convolution).  cost: float operations per element.
    """

    name: str
    kind: str
    arity: int
    cpp: str
    torch: str
    result: str = "same"
    domain: str = "real"
    cost: int = 1
    # What kernel families ask.  simd: what vectors of a CPU compute it for beside floats, as words:
    # "number", "truth", "compare" (to a truth value), "wide" (a reduction of floats to other
    # numbers), "float" (of others, to a float).
    simd: str = ""
    mask_predicate: bool = False  # may stand between positions and a mask that leaves tiles out
    monotonic: bool = False  # rises with its argument, so that a maximum may be taken before it
    uniform: bool = False  # of one number everywhere, the same number everywhere
    strided_only: bool = False  # its elements lie at strides, behind bounds or a wrap
    fills: bool = False  # has elements that its argument has not
    heavy: bool = False  # a reduction that is more than an operation for each element
    state_words: int = 1  # a reduction: words of what it has come to, where it is alone in a pass
    deep_loads: bool = False  # a reduction that wants more loads in flight across memory
    joins_across_tiles: bool = False  # a reduction whose parts tiles may hand to each other
    additive: bool = False  # a reduction that is a sum
    pass_group: str = ""  # reductions that one pass over a row gets together
    stored_for_reductions: bool = False  # a contraction whose tiles hold no reduction
    scalar_update: bool = False  # of a tensor and a number, PyTorch's function takes the number
    half_cpp: str = ""  # a shorter function for results of 16 bits, whose rounding is far coarser
    reversed_as: str = ""  # a scan from the first element on: that from the last one
    state: bool = False  # a leaf that the model keeps, and that has a path
    monotonic_with: str = ""  # rises with its first argument if the second is such a number
    counts_truths: bool = False  # a reduction that makes int64 of truth values
    of_one: str = ""  # a reduction: what it is of a single element, as `ir/builder.py` names it
    triangle: int = 0  # a view of a triangle: 1 of the upper one, -1 of the lower one
    moves_bits: bool = False  # pointwise; the result has the bits of an argument
    exact: bool = False  # pointwise or a reduction; the result has no more bits than the arguments

    def having(self, **columns: str | bool | int) -> Operator:
        """The same row with further columns filled in."""
        return replace(self, **columns)  # type: ignore[arg-type]

    @property
    def computed(self) -> bool:
        """Whether the result is memory that a kernel of ours writes."""
        return self.kind in ("pointwise", "reduction", "scan")

    @property
    def needs(self) -> str:
        """The function of `devicelib/*/math.*` that the C++ spelling calls, or ""."""
        head = self.cpp.split("(")[0]
        return head if self.cpp.endswith(")") and head.isidentifier() else ""


def _pointwise(
    name: str,
    arity: int,
    cpp: str,
    torch_text: str,
    result: str = "same",
    domain: str = "real",
    cost: int = 1,
) -> Operator:
    return Operator(name, "pointwise", arity, cpp, torch_text, result, domain, cost)


def _infix(name: str, sign: str, result: str = "same", domain: str = "real") -> Operator:
    return _pointwise(name, 2, f"{{0}} {sign} {{1}}", f"{{0}} {sign} {{1}}", result, domain)


def _call(
    name: str, arity: int = 1, torch_text: str = "", domain: str = "real", cost: int = 1
) -> Operator:
    arguments = ", ".join(f"{{{i}}}" for i in range(arity))
    meaning = torch_text or f"torch.{name}({arguments})"
    return _pointwise(name, arity, f"{name}({arguments})", meaning, domain=domain, cost=cost)


def _test(name: str) -> Operator:
    return _pointwise(name, 1, f"{name}({{0}})", f"torch.{name}({{0}})", "bool", "special")


def _reduction(name: str, torch_text: str, result: str = "same", domain: str = "real") -> Operator:
    return Operator(name, "reduction", 1, f"team.{name}", torch_text, result, domain)


def _scan(name: str, torch_text: str, domain: str = "real") -> Operator:
    return Operator(name, "scan", 1, f"team.{name}", torch_text, domain=domain)


_M2 = "torch.sum(torch.square({0} - torch.mean({0}, {dims}, keepdim=True)), {dims})"
_BACK = "torch.{name}({{0}}.flip({{first}}), {{first}}).flip({{first}})"
_CONV = (
    "torch.nn.functional.conv{rank}d(torch.nn.functional.pad({0}, {pads}), {1}, None, {stride}, 0, "
    "{dilation}, {groups})"
)
_CONV_TRANSPOSE = (
    "torch.nn.functional.conv_transpose{rank}d({0}, {1}, None, {stride}, {padding}, "
    "{output_padding}, {groups}, {dilation})"
)
_WINDOW_ELEMENT = "{0}[(..., *map(slice, {places}, {ends}, {steps}))]"
_MASKED_FMA = "torch.where({0}, {1} + {2} * {3}, {1})"
_ROWS = (
    # leaves: inputs by position, parameters and buffers by name, numbers by value
    Operator("input", "leaf", 0, "", ""),
    Operator("parameter", "leaf", 0, "", "").having(state=True),
    Operator("buffer", "leaf", 0, "", "").having(state=True),
    Operator("constant", "leaf", 0, "", ""),
    # arithmetic
    _infix("add", "+").having(simd="number", scalar_update=True, monotonic_with="finite"),
    _infix("sub", "-").having(simd="number", scalar_update=True, monotonic_with="finite"),
    _infix("mul", "*").having(simd="number", scalar_update=True, monotonic_with="positive"),
    _pointwise("div", 2, "{0} / {1}", "{0} / {1}", cost=4).having(monotonic_with="positive"),
    _pointwise("neg", 1, "-{0}", "-{0}").having(exact=True),
    _call("abs").having(exact=True),
    _call("sign", domain="special").having(exact=True),
    _call("reciprocal", cost=4),
    _call("square"),
    _call("sqrt", cost=4, domain="positive"),
    _call("rsqrt", cost=6, domain="positive"),
    _call("pow", 2, cost=30, domain="positive"),
    _call("remainder", 2, cost=8),
    _call("fmod", 2, cost=8),
    _call("atan2", 2, cost=30),
    _call("maximum", 2, domain="special", cost=2).having(exact=True),
    _call("minimum", 2, domain="special", cost=2).having(exact=True),
    _call("floor").having(exact=True),
    _call("ceil").having(exact=True),
    _call("round").having(exact=True),
    _call("trunc").having(exact=True),
    # transcendental
    _call("exp", cost=12),
    _call("exp2", cost=12),
    _call("expm1", cost=20),
    _call("log", cost=15, domain="positive"),
    _call("log2", cost=15, domain="positive"),
    _call("log10", cost=15, domain="positive"),
    _call("log1p", cost=20, domain="positive"),
    _call("sin", cost=20),
    _call("cos", cost=20),
    _call("tan", cost=25),
    _call("asin", cost=25, domain="unit"),
    _call("acos", cost=25, domain="unit"),
    _call("atan", cost=25),
    _call("sinh", cost=25),
    _call("cosh", cost=25),
    _call("asinh", cost=30),
    _call("acosh", cost=30, domain="above one"),
    _call("atanh", cost=30, domain="unit"),
    _call("tanh", cost=15).having(monotonic=True),
    _call("erf", cost=18),
    _call("erfc", cost=25),
    _call("sigmoid", cost=16).having(monotonic=True, half_cpp="short_sigmoid"),
    _call("silu", 1, "torch.nn.functional.silu({0})", cost=17),
    _call("tanh_softplus", 1, "torch.tanh(torch.nn.functional.softplus({0}))", cost=18),
    _call("relu", domain="special").having(monotonic=True, exact=True),
    # comparisons and choices
    _infix("eq", "==", "bool", "special").having(simd="compare", mask_predicate=True),
    _infix("ne", "!=", "bool", "special").having(simd="compare", mask_predicate=True),
    _infix("lt", "<", "bool", "special").having(simd="compare", mask_predicate=True),
    _infix("le", "<=", "bool", "special").having(simd="compare", mask_predicate=True),
    _infix("gt", ">", "bool", "special").having(simd="compare", mask_predicate=True),
    _infix("ge", ">=", "bool", "special").having(simd="compare", mask_predicate=True),
    _test("isnan"),
    _test("isinf"),
    _test("isfinite"),
    _pointwise("logical_not", 1, "!{0}", "torch.logical_not({0})", "bool", "bool").having(
        simd="truth", mask_predicate=True
    ),
    _infix("bitwise_and", "&", domain="int").having(simd="truth"),
    _infix("bitwise_or", "|", domain="int").having(simd="truth"),
    _infix("bitwise_xor", "^", domain="int").having(simd="truth"),
    _pointwise("bitwise_not", 1, "~{0}", "torch.bitwise_not({0})", domain="numbers"),
    _call("left_shift", 2, "torch.bitwise_left_shift({0}, {1})", "numbers"),
    _call("right_shift", 2, "torch.bitwise_right_shift({0}, {1})", "numbers"),
    _pointwise(
        "where", 3, "where({0}, {1}, {2})", "torch.where({0}, {1}, {2})", "second", "choice"
    ).having(simd="float", moves_bits=True, exact=True),
    # a multiplication and an addition that round once, and a norm of (x, mean, m2, scale): see
    # rewrite/norm_rounding.py. The statistics of eval mode have no m2, but a number.
    _call("fma", 3, "{0} * {1} + {2}", "positive", cost=2),
    _pointwise("normalised", 4, "({0} - {1}) * {3}", "({0} - {1}) * {3}", cost=2),
    # one step of a convolution, which rounds once, as PyTorch's does
    _pointwise(
        "masked_fma",
        4,
        "masked_fma({0}, {1}, {2}, {3})",
        _MASKED_FMA,
        "second",
        "positive choice",
        cost=2,
    ),
    _pointwise("cast", 1, "({to})({0})", "{0}.to({to})", "attribute").having(
        simd="number compare float", mask_predicate=True
    ),
    # `of` is the type of the argument; the C++ names both as they are stored
    _pointwise(
        "bitcast", 1, "bits_as<{to}, {of}>({0})", "{0}.to({of}).view({to})", "attribute"
    ).having(exact=True),
    _pointwise("copy", 1, "{0}", "{0}.clone()", cost=0).having(
        simd="number truth", mask_predicate=True, uniform=True, moves_bits=True, exact=True
    ),
    # one pixel of each window of a convolution, which computes all of them: see
    # kernels/conv/pool_fusion.py
    _pointwise("window_element", 1, "{0}.of[{number}]", _WINDOW_ELEMENT, domain="windows", cost=0),
    # reductions over `dims`; m2 is the sum of squared deviations from the mean
    _reduction("sum", "torch.sum({0}, {dims})").having(
        joins_across_tiles=True, additive=True, counts_truths=True, of_one="whole"
    ),
    _reduction("mean", "torch.mean({0}, {dims})", "wide").having(
        simd="wide", joins_across_tiles=True, additive=True, pass_group="moments", of_one="whole"
    ),
    _reduction("m2", _M2, "wide").having(
        simd="wide", pass_group="moments", state_words=3, deep_loads=True
    ),
    _reduction("prod", "{0}.flatten({first}, {last}).prod({first})", domain="near one").having(
        counts_truths=True, of_one="copy"
    ),
    _reduction("max", "torch.amax({0}, {dims})", domain="special").having(
        joins_across_tiles=True, deep_loads=True, of_one="copy", exact=True
    ),
    _reduction("min", "torch.amin({0}, {dims})", domain="special").having(
        joins_across_tiles=True, deep_loads=True, of_one="copy", exact=True
    ),
    _reduction("any", "torch.any({0}, {dims})", domain="bool").having(of_one="copy"),
    _reduction("all", "torch.all({0}, {dims})", domain="bool").having(of_one="copy"),
    _reduction("argmax", "{0}.flatten({first}, {last}).argmax({first})", "index").having(
        simd="wide", heavy=True, state_words=4, of_one="first"
    ),
    _reduction("argmin", "{0}.flatten({first}, {last}).argmin({first})", "index").having(
        simd="wide", heavy=True, state_words=4, of_one="first"
    ),
    # scans along the one dimension in `dims`: from its first element on, or back from the last
    _scan("cumsum", "torch.cumsum({0}, {first})").having(reversed_as="cumsum_back"),
    _scan("cumprod", "torch.cumprod({0}, {first})", "near one").having(reversed_as="cumprod_back"),
    _scan("cumsum_back", _BACK.format(name="cumsum")),
    _scan("cumprod_back", _BACK.format(name="cumprod"), "near one"),
    # views: `shape`, `permutation`, … are attributes
    Operator("reshape", "view", 1, "", "{0}.reshape({shape})").having(uniform=True),
    Operator("permute", "view", 1, "", "{0}.permute({permutation})"),
    Operator("expand", "view", 1, "", "{0}.expand({shape})").having(uniform=True),
    Operator(
        "narrow", "view", 1, "", "torch.ops.aten.slice({0}, {dim}, {start}, {end}, {step})"
    ).having(strided_only=True),
    # the same with a fill: only below what is pointwise, which reads them where they lie
    Operator("pad", "view", 1, "", "torch.nn.functional.pad({0}, {pads}, value={value})").having(
        strided_only=True, fills=True
    ),
    Operator("flip", "view", 1, "", "torch.flip({0}, {dims})").having(strided_only=True),
    Operator("roll", "view", 1, "", "torch.roll({0}, {shifts}, {dims})").having(strided_only=True),
    Operator("triu", "view", 1, "", "torch.triu({0}, {diagonal})").having(
        strided_only=True, fills=True, triangle=1
    ),
    Operator("tril", "view", 1, "", "torch.tril({0}, {diagonal})").having(
        strided_only=True, fills=True, triangle=-1
    ),
    # a matrix product over the last dimension of both factors, which is never stored
    Operator("matmul", "contraction", 2, "", "torch.matmul({0}, {1}.transpose(-1, -2))", cost=0),
    # softmax of a function (attribute `scores`) of such a product, times another factor
    Operator("attention", "contraction", -1, "", "", cost=0),
    # the same of an image's patches: a product of weights and patches, never stored either
    Operator("conv", "contraction", 2, "", _CONV, cost=0),
    Operator("conv_transpose", "contraction", 2, "", _CONV_TRANSPOSE, cost=0).having(
        stored_for_reductions=True
    ),
    # anything else: a call of PyTorch, visible in the plan; `item` takes one of several results
    Operator("library", "library", -1, "", ""),
    Operator("getitem", "library", 1, "", "{0}[{index}]"),
)

OPS: dict[str, Operator] = {op.name: op for op in _ROWS}


@cache
def meaning(name: str, attributes: tuple[tuple[str, str], ...] = ()) -> Callable[..., Any]:
    """The PyTorch function of row `name`, with `attributes` (name, Python text) filled in."""
    op = OPS[name]
    names = [f"x{i}" for i in range(op.arity)]
    text = op.torch.format(*names, **dict(attributes))
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", {"torch": torch})
    return function
