# ruff: noqa: E501  (a table: one row per line)
"""The mistakes that the judge must find: each one a regular expression and what replaces it.

`kernel` is the generated body of a fused kernel, `skeleton` the teams and loops that it stands on,
`glue` the Python class around both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    name: str
    region: str  # kernel, skeleton or glue
    pattern: str
    replacement: str
    mistake: str


OPERATORS: tuple[Operator, ...] = (
    Operator("drop-addend", "kernel", r"\b(v\d+) \+ (v\d+);", r"\1;", "a bias is forgotten"),
    Operator("drop-factor", "kernel", r"\b(v\d+) \* (v\d+);", r"\1;", "a scale is forgotten"),
    Operator("add-to-subtract", "kernel", r"\b(v\d+) \+ (v\d+);", r"\1 - \2;", "wrong sign"),
    Operator("multiply-to-add", "kernel", r"\b(v\d+) \* (v\d+);", r"\1 + \2;", "wrong operation"),
    Operator("drop-subtrahend", "kernel", r"\b(v\d+) - (\w[\w.]*)", r"\1", "a maximum or mean is not subtracted"),
    Operator("swap-difference", "kernel", r"\b(v\d+) - (\w[\w.]*)", r"\2 - \1", "operands the wrong way round"),
    Operator("swap-quotient", "kernel", r"\b(v\d+) / (v\d+)", r"\2 / \1", "operands the wrong way round"),
    Operator("shift-load", "kernel", r"load\((\w+), (row[^,()]*?)\)", r"load(\1, \2 + 1)", "reads one element further"),
    Operator("shift-parameter", "kernel", r"load\((\w+), 0\)", r"load(\1, 1)", "a parameter is read one element further"),
    Operator("first-row", "kernel", r"load\((in\d), row \* \d+\)", r"load(\1, 0)", "every row reads the first one"),
    Operator("row-stride", "kernel", r"load\((\w+), row \* (\d+)", r"load(\1, row * (\2 - 1)", "wrong stride between rows"),
    Operator("store-stride", "kernel", r"store\((\w+), row \* (\d+)", r"store(\1, row * (\2 - 1)", "rows are stored too close together"),
    Operator("write-place", "kernel", r"write\((\w+), row,", r"write(\1, 0,", "every row is written to the first place"),
    Operator("short-span", "kernel", r"fixed<(\d+)>", r"fixed<\1 - 1>", "the last column is left out"),
    Operator("short-block", "kernel", r"fixed<(\d+)>", r"fixed<\1 / 8 * 8 - 8>", "the last vector is left out"),
    Operator("drop-last-row", "kernel", r"return batch \* (\d+);", r"return batch * \1 - 1;", "the last row is left out"),
    Operator("half-the-rows", "kernel", r"return batch \* (\d+);", r"return (batch * \1 + 1) / 2;", "half of the rows are left out"),
    Operator("fixed-rows", "kernel", r"return batch \* (\d+);", r"return (batch < 24 ? batch : 24) * \1;", "no more rows than the first batch had"),
    Operator("divisor", "kernel", r"/ (\d+)\.0f", r"/ (\1.0f - 1.0f)", "n - 1 in the place of n"),
    Operator("no-divisor", "kernel", r" / (\d+)\.0f", "", "a sum in the place of a mean"),
    Operator("no-epsilon", "kernel", r" \+ 1e-\d+f", "", "the epsilon of a norm is forgotten"),
    Operator("large-epsilon", "kernel", r"1e-05f", "1e-03f", "another epsilon"),
    Operator("rsqrt-to-quotient", "kernel", r"rsqrt\(([^;]*)\);", r"1.0f / (\1);", "a square root is forgotten"),
    Operator("no-mean", "kernel", r"\bm0\.mean\b", "0.0f", "the mean is not subtracted"),
    Operator("no-relu", "kernel", r"\brelu\((\w+)\)", r"(\1)", "the activation is forgotten"),
    Operator("absolute-relu", "kernel", r"\brelu\((\w+)\)", r"(\1 < 0.0f ? -\1 : \1)", "another activation"),
    Operator("leaky-relu", "kernel", r"\brelu\((\w+)\)", r"(\1 < 0.0f ? 0.0001f * \1 : \1)", "a slightly leaky activation"),
    Operator("nan-to-zero", "kernel", r"\brelu\((\w+)\)", r"(\1 > 0.0f ? \1 : 0.0f)", "relu makes NaN zero"),
    Operator("hard-sigmoid", "kernel", r"\bsigmoid\((\w+)\)", r"(0.5f + 0.25f * \1)", "a linear sigmoid"),
    Operator("short-exponential", "kernel", r"\bexp\((\w+)\)", r"exp(\1 * 1.001f)", "a slightly wrong exponent"),
    Operator("low-precision", "kernel", r"const float (v\d+) = ([^;\[]+);", r"const float \1 = ((\2) + 512.0f) - 512.0f;", "an intermediate keeps 14 bits after the point"),
    Operator("half-intermediate", "kernel", r"const float (v\d+) = ([^;\[]+);", r"float \1 = \2; { int b; __builtin_memcpy(&b, &\1, 4); b &= ~0x1fff; __builtin_memcpy(&\1, &b, 4); }", "an intermediate keeps 11 significant bits"),
    Operator("stores-to-input", "kernel", r"store\(out0,", "store((float*)in0,", "writes its result over its input"),
    Operator("max-ignores-nan", "skeleton", r"\(a > b\) \| \(a != a\)", "(a > b)", "a maximum loses NaN"),
    Operator("float-accumulator", "skeleton", r"double total = 0;", "float total = 0;", "sums in one float accumulator"),
    Operator("max-from-zero", "skeleton", r"float best = -__builtin_inff\(\);", "float best = 0;", "a maximum starts at zero"),
    Operator("skips-first", "skeleton", r"for \(long i = 0; i < S::size", "for (long i = 1; i < S::size", "a loop starts one element late"),
    Operator("one-pass-variance", "skeleton", r"const double d = f\(o\.at\(i\)\.\.\.\) - mean;\s+m2 \+= d \* d;", "const float d = f(o.at(i)...); m2 = float(m2) + d * d - (i + 1 == S::size ? float(mean) * float(mean) * S::size : 0.0f);", "E[x^2] - E[x]^2"),
    Operator("row-bound", "skeleton", r"row < rows; \+\+row", "row + 1 < rows; ++row", "the last row is left out"),
    Operator("from-second-row", "skeleton", r"long row = 0; row < rows", "long row = 1; row < rows", "the first row is left out"),
    Operator("stale-weight", "glue", r"self\.(\w+)\.(weight|bias)((?:\.\w+\(\))*)", r'self.__dict__.setdefault("_\1_\2", self.\1.\2\3.detach().clone())', "a parameter is copied once"),
    Operator("stale-parameter", "glue", r"self\.(shift)\.contiguous\(\)", r'self.__dict__.setdefault("_\1", self.\1.detach().clone())', "a parameter is copied once"),
    Operator("kept-output", "glue", r"(t\d+) = (torch\.empty[^\n]*)", r'\1 = self.__dict__.setdefault(f"_\1_{x.shape}", \2)', "the output buffer is used again"),
    Operator("output-of-ones", "glue", r"torch\.empty_like\((\w+)\)", r"torch.empty_like(\1[:1].expand(\1.shape))", "the output has other strides than the kernel believes"),
    Operator("no-contiguity-guard", "glue", r"return right and x\.is_contiguous\(\)", "return right", "strided inputs are taken for contiguous ones"),
    Operator("no-width-guard", "glue", r" and x\.shape\[1\] == \d+", "", "other widths go to the kernel"),
    Operator("no-type-guard", "glue", r"x\.dtype == torch\.float32 and ", "", "other dtypes go to the kernel"),
    Operator("constant-batch", "glue", r", x\.shape\[0\]\)", ", min(x.shape[0], 24))", "the batch size is a constant"),
    Operator("swapped-arguments", "glue", r'run\("(\w+)", (\w+), (\w+), (\w+), ', r'run("\1", \2, \4, \3, ', "two pointers are exchanged"),
    Operator("swapped-outputs", "glue", r"return (t\d+), (t\d+)", r"return \2, \1", "two outputs are exchanged"),
)  # fmt: skip
