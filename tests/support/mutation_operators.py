# ruff: noqa: E501  (a table: one row per line)
"""The mistakes that the judge must find: each one a regular expression and what replaces it.

`kernel` is the generated body of a fused kernel, `skeleton` the teams and loops that it stands on,
`glue` the Python class around both: the three parts of a file that fusewright emits for a CPU.
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
    Operator("drop-addend", "kernel", r"(float \w+ = \w+) \+ \w+;", r"\1;", "a bias is forgotten"),
    Operator("drop-factor", "kernel", r"(float \w+ = \w+) \* \w+;", r"\1;", "a scale is forgotten"),
    Operator("add-to-subtract", "kernel", r"(float \w+ = \w+) \+ (\w+);", r"\1 - \2;", "wrong sign"),
    Operator("multiply-to-add", "kernel", r"(float \w+ = \w+) \* (\w+);", r"\1 + \2;", "wrong operation"),
    Operator("drop-subtrahend", "kernel", r"(float \w+ = \w+) - \w[\w.]*;", r"\1;", "a maximum or mean is not subtracted"),
    Operator("swap-difference", "kernel", r"(float \w+ =) (\w+) - (\w[\w.]*);", r"\1 \3 - \2;", "operands the wrong way round"),
    Operator("swap-quotient", "kernel", r"(float \w+ =) (\w+) / (\w+);", r"\1 \3 / \2;", "operands the wrong way round"),
    Operator("shift-load", "kernel", r"load\((\w+), (row[^,()]*?)\)", r"load(\1, \2 + 1)", "reads one element further"),
    Operator("shift-parameter", "kernel", r"load\((\w+), 0\)", r"load(\1, 1)", "a parameter is read one element further"),
    Operator("first-row", "kernel", r"load\((\w+), row \* \d+\)", r"load(\1, 0)", "every row reads the first one"),
    Operator("row-stride", "kernel", r"load\((\w+), row \* (\d+)", r"load(\1, row * (\2 - 1)", "wrong stride between rows"),
    Operator("store-stride", "kernel", r"store\((\w+), row \* (\d+)", r"store(\1, row * (\2 - 1)", "rows are stored too close together"),
    Operator("shift-store", "kernel", r"store\((\w+), (row[^,()]*?)\)", r"store(\1, \2 + 1)", "writes one element further"),
    Operator("write-place", "kernel", r"write\((\w+), row,", r"write(\1, 0,", "every row is written to the first place"),
    Operator("short-span", "kernel", r"fixed<(\d+)>", r"fixed<\1 - 1>", "the last column is left out"),
    Operator("short-block", "kernel", r"fixed<(\d+)>", r"fixed<\1 / 8 * 8 - 8>", "the last vector is left out"),
    Operator("drop-last-row", "kernel", r"return batch;", r"return batch - 1;", "the last row is left out"),
    Operator("short-map", "kernel", r"return batch \* (\d+);", r"return batch * \1 - 1;", "the last element is left out"),
    Operator("half-the-rows", "kernel", r"return batch;", r"return (batch + 1) / 2;", "half of the rows are left out"),
    Operator("fixed-rows", "kernel", r"return batch;", r"return batch < 40 ? batch : 40;", "no more rows than were expected"),
    Operator("divisor", "kernel", r"/ (\d+)\.0f", r"/ (\1.0f - 1.0f)", "n - 1 in the place of n"),
    Operator("no-divisor", "kernel", r" / (\d+)\.0f", "", "a sum in the place of a mean"),
    Operator("variance-divisor", "kernel", r"\* 0\.015625f", "* 0.015873016f", "n - 1 in the place of n"),
    Operator("no-epsilon", "kernel", r" \+ 1e-\d+f", "", "the epsilon of a norm is forgotten"),
    Operator("large-epsilon", "kernel", r"1e-05f", "1e-03f", "another epsilon"),
    Operator("rsqrt-to-quotient", "kernel", r"rsqrt\(([^;]*)\);", r"1.0f / (\1);", "a square root is forgotten"),
    Operator("no-mean", "kernel", r"\b\w+_moments\.mean\b", "0.0f", "the mean is not subtracted"),
    Operator("no-relu", "kernel", r"\brelu\((\w+)\)", r"(\1)", "the activation is forgotten"),
    Operator("absolute-relu", "kernel", r"\brelu\((\w+)\)", r"(\1 < 0.0f ? -\1 : \1)", "another activation"),
    Operator("leaky-relu", "kernel", r"\brelu\((\w+)\)", r"(\1 < 0.0f ? 0.0001f * \1 : \1)", "a slightly leaky activation"),
    Operator("nan-to-zero", "kernel", r"\brelu\((\w+)\)", r"(\1 > 0.0f ? \1 : 0.0f)", "relu makes NaN zero"),
    Operator("hard-sigmoid", "kernel", r"\bsigmoid\((\w+)\)", r"(0.5f + 0.25f * \1)", "a linear sigmoid"),
    Operator("short-exponential", "kernel", r"\bexp\((\w+)\)", r"exp(\1 * 1.001f)", "a slightly wrong exponent"),
    Operator("stale-keep", "kernel", r"(\w+)_kept = exp_1;", r"\1_kept = sub;", "the value before the exponential is kept"),
    Operator("low-precision", "kernel", r"const float (\w+) = ([^;\[]+);", r"const float \1 = ((\2) + 512.0f) - 512.0f;", "an intermediate keeps 14 bits after the point"),
    Operator("half-intermediate", "kernel", r"const float (\w+) = ([^;\[]+);", r"float \1 = \2; { int b; __builtin_memcpy(&b, &\1, 4); b &= ~0x1fff; __builtin_memcpy(&\1, &b, 4); }", "an intermediate keeps 11 significant bits"),
    Operator("stores-to-input", "kernel", r"store\(\w+_ptr,", "store((float*)x_ptr,", "writes its result over its input"),
    Operator("max-ignores-nan", "skeleton", r"sum == sum \? best : sum", "best", "a maximum loses NaN"),
    Operator("max-from-zero", "skeleton", r"T best = lowest<T>\(\);", "T best = 0;", "a maximum starts at zero"),
    Operator("skips-first", "skeleton", r"i = begin; i < end; \+\+i\) step", "i = begin + 1; i < end; ++i) step", "a loop starts one element late"),
    Operator("skips-last", "skeleton", r"i = begin; i < end; \+\+i\) step", "i = begin; i < end - 1; ++i) step", "a loop ends one element early"),
    Operator("short-padding", "skeleton", r"padded = \(n \+ L - 1\) / L \* L", "padded = n / L * L", "the rest of a row that is no full vector is lost"),
    Operator("dropped-partial", "skeleton", r"join\(part\[2\], part\[3\]\)", "part[2]", "one of four partial sums is lost"),
    Operator("overwritten-total", "skeleton", r"total \+= sum_buffer", "total = sum_buffer", "a buffer's sum replaces the one before"),
    Operator("row-bound", "skeleton", r"row < end; \+\+row", "row + 1 < end; ++row", "the last row is left out"),
    Operator("from-second-row", "skeleton", r"long row = begin;", "long row = begin + 1;", "the first row is left out"),
    Operator("uneven-threads", "skeleton", r"(rows|groups) \* \(k \+ 1\) / all", r"\1 / all * (k + 1)", "rows that do not divide by the threads are left out"),
    Operator("lost-lane", "skeleton", r"lane < SIMD_LANES; \+\+lane\) part\[lane\] = one", "lane < SIMD_LANES - 1; ++lane) part[lane] = one", "the last row of a vector is not read"),
    Operator("lost-rest", "skeleton", r"if \(some < stop\) solo_rows", "if (some < row) solo_rows", "rows that fill no vector are left out"),
    Operator("stale-weight", "glue", r"functional\.linear\(x, (\w+), (\w+)\)", r'functional.linear(x, self.__dict__.setdefault("_kept", \1.detach().clone()), \2)', "a parameter is copied once"),
    Operator("stale-bias", "glue", r"functional\.linear\(x, (\w+), (\w+)\)", r'functional.linear(x, \1, self.__dict__.setdefault("_kept", \2.detach().clone()))', "a parameter is copied once"),
    Operator("no-bias", "glue", r"functional\.linear\(x, (\w+), (\w+)\)", r"functional.linear(x, \1)", "a bias is forgotten"),
    Operator("stale-parameter", "glue", r"\b(norm_weight|norm_bias|shift)\.data_ptr", r'self.__dict__.setdefault("_\1", \1.detach().clone()).data_ptr', "a parameter is copied once"),
    Operator("kept-output", "glue", r"(\w+) = (_fusewright_empty[^\n]*)", r'\1 = self.__dict__.setdefault(f"_\1_{x.shape}", \2)', "the output buffer is used again"),
    Operator("output-of-ones", "glue", r"= _fusewright_empty\(\(batch, (\d+)\), \(\1, 1\),", r"= _fusewright_empty((batch, \1), (1, batch),", "the output has other strides than the kernel believes"),
    Operator("writes-its-input", "glue", r"(\w+) = _fusewright_empty\([^\n]*", r"\1 = x", "the result is written over the input"),
    Operator("no-contiguity-guard", "glue", r"_fusewright_tensor_matches\(\"x\", x, \(batch, (\d+)\), torch\.float32\)", r"(x.shape == (batch, \1) and x.dtype is torch.float32 and not x.requires_grad)", "strided inputs are taken for contiguous ones"),
    Operator("no-width-guard", "glue", r"_fusewright_tensor_matches\(\"x\", x, \(batch, \d+\),", "_fusewright_tensor_matches(\"x\", x, (batch, x.size(1)),", "other widths go to the kernel"),
    Operator("no-type-guard", "glue", r"_fusewright_tensor_matches\((\"x\", x, \([^()]*\)), torch\.float32", r"_fusewright_tensor_matches(\1, x.dtype", "another type goes to the kernel"),
    Operator("constant-batch", "glue", r", batch, threads\)", ", min(batch, 40), threads)", "the batch size is a constant"),
    Operator("swapped-arguments", "glue", r"(\w+\.data_ptr\(\)),(\s+)(\w+\.data_ptr\(\)),", r"\3,\2\1,", "two pointers are exchanged"),
    Operator("swapped-outputs", "glue", r"return \((\w+), (\w+)\)", r"return (\2, \1)", "two outputs are exchanged"),
)  # fmt: skip
