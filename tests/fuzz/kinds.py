"""Kinds of random problems in which one value, one sign or one type out of place is a fault.

Each kind is a row of `KINDS`: what it begins with, and a step that adds statements. A line of a
table is as in `fuzz_operators`; {x} and {y} are exact here (`fuzz_writer`), but where a table says
otherwise. What eager itself answers in one way in vectors and in another behind them (the sign of
the maximum of two zeros) is not drawn; nor is the sign of a NaN, or an integer made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from tests.fuzz.writer import Writer, narrowed, size

FULL = ("torch.float32",) * 5 + ("torch.float64",)
ANY = (*FULL, "torch.float16", "torch.bfloat16")

# ---- exact chains --------------------------------------------------------------------------------

# One rounding each, and no choice of order or sign. Not sqrt, which MKL computes for eager, and
# which it does not always round to the nearest number.
EXACT = (
    *("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} * 0.3", "{x} * {x}", "-{x}", "{x}.abs()"),
    *("{x} / ({y}.abs() + 1)", "{x} * P(s[-1])", "{x} + P(s[-1])"),
    *("torch.where({x} > {y}, {x}, 0.5)", "{x}.flip({d})", "{x}.roll({k}, {d})", "{x} * {y} - {x}"),
    *("{x}.transpose({d}, -1)", "{x}.square() + {y}", "{x} * 1.7 - 0.3", "1.5 - {x} * {y}"),
    *("{x}.reshape(-1)", "{x}.unsqueeze({d})", "{x}[:{k}]", "torch.cat([{x}, {y} * 3.0], {d})"),
)


def _line(w: Writer, table: tuple[str, ...], *, exact: bool, more: dict[str, str]) -> bool:
    """A value by a line of a table, if PyTorch takes it and it has the program's type."""
    words = w.words(w.pick(exact=True), exact=True) | more
    found = w.filled(w.rng.choice(table), words)
    if found and (shape := w.takes(found[1])) is not None:
        w.new(found[0], shape, exact=exact)
        return True
    return False


def _answer(w: Writer, table: tuple[str, ...], *, exact: bool, more: dict[str, str]) -> bool:
    """A result by a line of a table, of whatever types."""
    words = w.words(w.pick(exact=True), exact=True) | more
    found = w.filled(w.rng.choice(table), words)
    if found:
        w.answer(found[0], [exact] * len(pytree.tree_leaves(found[1])))
    return found is not None


def _tried(attempt: Callable[[], bool]) -> None:
    """Shapes refuse most lines of some tables."""
    for _ in range(6):
        if attempt():
            return


def _chain(w: Writer) -> None:
    for _ in range(w.rng.choice((0, 1, 1, 2)) if w.ieee else 0):
        _line(w, EXACT, exact=True, more={})


# ---- bits ----------------------------------------------------------------------------------------

# Of each type: the integer as wide, a wider and a narrower type, and masks in that integer.
WORDS = {
    "torch.float32": {
        "b": "torch.int32", "wide": "torch.int64", "thin": "torch.int16", "sign": "-2147483648",
        "low": "-65536", "shift": "23", "bias": "127", "field": "255",
    },
    "torch.float64": {
        "b": "torch.int64", "wide": "torch.complex128", "thin": "torch.int32",
        "sign": "-9223372036854775808", "low": "-4294967296", "shift": "52", "bias": "1023",
        "field": "2047",
    },
    "torch.float16": {
        "b": "torch.int16", "wide": "torch.int32", "thin": "torch.int8", "sign": "-32768",
        "low": "-64", "shift": "10", "bias": "15", "field": "31",
    },
    "torch.bfloat16": {
        "b": "torch.int16", "wide": "torch.float32", "thin": "torch.uint8", "sign": "-32768",
        "low": "-4", "shift": "7", "bias": "127", "field": "255",
    },
}  # fmt: skip
BITS = (
    *("({z}.view({b}) & ~({sign})).view({t})", "({z}.view({b}) & {low}).view({t})"),
    *("(({z}.view({b}) >> {k}) << {k}).view({t})", "({z}.view({b}) + {k}).view({t})"),
    *("({z}.view({b}) ^ ({i}.view({b}) & {sign})).view({t})", "{z}.view({b}).view({t}) * 2.0"),
    *("torch.where({z}.view({b}) < 0, {z}, {z} * 0.5)", "torch.signbit({z}).to({t})"),
    *("((({z}.view({b}) >> {shift}) & {field}) - {bias}).to({t})", "torch.copysign({z}, {i})"),
    *("torch.view_as_real(torch.view_as_complex({z}.unsqueeze(-1).repeat_interleave(2, -1)))",),
    *("torch.where(torch.signbit({z}), {z} * 2.0, {z} + 1.0)", "({z}.view({b}) | 1).view({t})"),
    *("torch.view_as_real(torch.complex({z}, {z} * 0.5)) * 2.0", "{z}.view({t}) + 1.0"),
    *("({z}.contiguous().view({b}).flip({d})).view({t})", "torch.view_as_real(1j * {z})[..., 1]"),
)
BIT_ANSWERS = (
    *("{z}.view({b})", "{z}.contiguous().view({thin})", "{z}.contiguous().view({wide})"),
    *("torch.signbit({z})", "{z}.contiguous().view(torch.uint8)", "{z}.view({b}) * 2"),
    *("{z}.view({b}) >> {shift}", "{z}.view({b}).sum({d})", "torch.frexp({z})"),
    *("{z}.contiguous().view({thin}).to(torch.int32) + 1", "torch.isinf({z})", "{z}.view({b}) < 0"),
    *("torch.view_as_complex({z}.unsqueeze(-1).repeat_interleave(2, -1))",),
    *("({z}.view({b}) & 7).to(torch.uint8)", "{z}.view({b}).amax({d})"),
)
BITS_REFUSED = r"view\(|view of|dtype view|reinterpret|view_as|signbit|frexp|complex"


def _bits_begin(w: Writer) -> None:
    w.float64, w.refused = False, BITS_REFUSED
    if w.rng.random() < 0.4:
        shape = tuple(w.shapes["x0"])
        form = w.rng.choice(("float", "pairs"))
        if form == "float" and w.dtype in ("torch.float32", "torch.float64"):
            b = WORDS[w.dtype]["b"]
            text = f"torch.randint(1 << 20, 1 << 30, {shape}, dtype={b})"
            name = w.given_as(text)
            w.new(f"{name}.view({w.dtype}) + 1.0", shape, exact=True)
        else:
            name = w.given_as(f"torch.randint(-9, 9, {shape})")
            w.answer(f"{name}.view(torch.int32) * 2", [True])


def _bits(w: Writer) -> None:
    _chain(w)

    def attempt() -> bool:
        given = [n for n in w.shapes if n in w.exact and n.startswith("x")]
        x = w.pick(exact=True) if w.ieee else w.rng.choice(given)
        z = x if x.startswith("x") else f"torch.nan_to_num({x})"
        more = {**WORDS[w.dtype], "z": z, "x": x}
        if w.rng.random() < 0.6:
            return _line(w, BITS, exact=w.ieee, more=more)
        return _answer(w, BIT_ANSWERS, exact=True, more=more)

    _tried(attempt)


# ---- casts ---------------------------------------------------------------------------------------

HALVES = ("torch.float16", "torch.bfloat16")
EIGHTS = (
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
    "torch.float8_e4m3fnuz",
    "torch.float8_e5m2fnuz",
)
# {h} is a half type, {e} one of 8 bits. One operator between casts has one right answer.
CASTS = (
    *("({x}.to({h}) * {x}.to({h})).to({t})", "({x}.to({h}) * {y}.to({h})).to({t})"),
    *("({x}.to({h}) + {y}.to({h})).to({t}) * {x}", "({x} * 300.0).to({h}).to({t})"),
    *("({x}.half() * 100.0).to({t}) - {x}", "{x}.to({h}).to({t}) - {x}", "{x}.double().to({t})"),
    *(
        "{x}.half().bfloat16().to({t})",
        "{x}.bfloat16().half().to({t})",
        "{x}.float().half().to({t})",
    ),
    *("({x}.double() * {y}.double() - 1.0).to({t})", "({x}.double() + 1e-9 - 1e-9).to({t})"),
    *("torch.where({x}.to({h}) > {y}.to({h}), {x}, {y} * 0.5)", "({x}.to({h}) == {x}).to({t})"),
    *(
        "torch.nan_to_num({x}).clamp(-100, 100).to(torch.int8).to({t})",
        "{x}.clamp(-40, 40).to({e}).to({t})",
    ),
    *("torch.nan_to_num({x}).clamp(0, 200).to(torch.uint8).to({t}) * 0.5", "{x}.to({e}).to({t})"),
    *(
        "torch.nan_to_num({x}).clamp(-9, 9).to(torch.int32).to({h}).to({t})",
        "{x}.to({e}).to({h}).to({t})",
    ),
    *(
        "({x}.clamp(-40, 40).to({e}).to({h}) * {x}.to({h})).to({t})",
        "({x}.to({h}) / 3.0).to({h}).to({t})",
    ),
    *("({x}.to({h}).to({t}) + {y}.to({h}).to({t}))", "{x}.half().abs().to({t})"),
    *("{x}.to({h}).amax({d}, keepdim=True).to({t}) - {x}", "{x}.to({h}).relu().to({t})"),
    *("({x}.to({h}) * 0.5).to({t}).to({e}).to({t})", "({x}.bfloat16() * {y}).to({t})"),
)
# Errors remain where something is summed or is more than one operator.
CASTS_NEARLY = (
    *(
        "F.layer_norm(({x}.half() + {y}.half()).float(), (s[-1],)).to({t})",
        "{x}.to({h}).sum({d}).to({t})",
    ),
    *(
        "F.layer_norm(({x}.to({h}) + {y}.to({h})).to({t}), (s[-1],))",
        "{x}.to({h}).float().sum({d}).to({t})",
    ),
    *(
        "F.rms_norm(({x}.to({h}) + {y}.to({h})).float(), (s[-1],), eps=1e-5).to({t})",
        "{x}.to({h}).mean({d}).to({t})",
    ),
    *("torch.softmax({x}.to({h}), {d}).to({t})", "torch.softmax({x}, {d}).to({h}).to({t})"),
    *(
        "torch.tanh({x}.to({h})).to({t})",
        "F.gelu(({x} * {x}).to({h})).to({t})",
        "({x}.double().sum({d})).to({t})",
    ),
    *(
        "({x}.to({h}) * {y}.to({h}) + {x}.to({h})).to({t})",
        "F.silu({x}.to({h}) * {y}.to({h})).to({t})",
    ),
    *(
        "(({x} * 20.0).half() * ({x} * 20.0).half()).float().mean({d}).to({t})",
        "{x}.to({h}).var({d}).to({t})",
    ),
    *(
        "({x}.half() @ P(s[-1], 6).half()).to({t})",
        "({x}.to({h}) * {x}.to({h})).sum({d}, dtype={t})",
    ),
    *("F.linear({x}.bfloat16(), P(5, s[-1]).bfloat16()).float().relu().to({t})",),
    *(
        "{x}.to({h}).cumsum({d}).to({t})",
        "{x}.to({h}).sqrt().to({t})",
        "torch.exp(-({x}.to({h}).abs())).to({t})",
    ),
)
CAST_ANSWERS = (
    *("{x}.to({h}).argmax({d})", "({x} * {x}).to({h}).argmax({d})", "{x}.to({h}) > {y}.to({h})"),
    *("({x}.to({h}) * {y}.to({h})).argmin({d})", "{x}.to({h})", "{x}.to({h}).max({d})"),
    *(
        "{x}.clamp(-40, 40).to({e}).float()",
        "{x}.to({h}).sort(stable=True, dim={d})",
        "{x}.to({h}) == {x}",
    ),
    *(
        "torch.nan_to_num({x}).clamp(-100, 100).to(torch.int16)",
        "({x}.to({h}) * {x}.to({h})).double()",
    ),
    *("({x}.to({h}) + {y}.to({h})).float().half().bfloat16()", "{x}.to({h}).topk(1, {d})[0]"),
    *(
        "torch.nan_to_num({x} * 0.3).to({h}).view(torch.int16)",
        "({x}.to({h}) * {y}.to({h})) >= 0.5",
    ),
)
AUTOCAST = (
    "F.gelu({x} @ {p})",
    "({x} @ {p}).relu()",
    "torch.tanh(F.linear({x}, {q})) * 2.0",
    "({x} @ {p}) * ({x} @ {p})",
)


def _casts_begin(w: Writer) -> None:
    w.refused = "float8"


def _casts(w: Writer) -> None:
    _chain(w)

    def attempt() -> bool:
        more = {"h": w.rng.choice(HALVES), "e": w.rng.choice(EIGHTS)}
        part = w.rng.random()
        if not w.ieee:  # what 16 bits are rounded to behind the first operator is nobody's promise
            more["x"] = w.rng.choice(sorted(n for n in w.exact if n.startswith("x")))
        if part < 0.5:
            return _line(w, CASTS, exact=w.ieee, more=more)
        if part < 0.7:
            return _line(w, CASTS_NEARLY, exact=False, more=more)
        if part < 0.9:
            return _answer(w, CAST_ANSWERS, exact=True, more=more)
        return _autocast(w)

    _tried(attempt)


def _autocast(w: Writer) -> bool:
    """A region in which products are of bfloat16, and what follows it."""
    x = w.pick(exact=True)
    s = w.shapes[x]
    if not s or w.dtype != "torch.float32" or size(s[:-1]) * 6 > w.most or s[-1] * 6 > w.most:
        return False
    p, q = w.parameter((s[-1], 6)), w.parameter((6, s[-1]))
    w.lines.append("with torch.autocast(x0.device.type, dtype=torch.bfloat16):")
    name = f"h{len(w.lines)}"
    w.lines.append(f"    {name} = {w.rng.choice(AUTOCAST).format(x=x, p=p, q=q)}")
    if w.rng.random() < 0.5:
        w.new(f"{name}.to(x0.dtype)", (*s[:-1], 6))
    else:
        w.new(f"{name}.float().sum(-1).to(x0.dtype)", s[:-1])
    return True


# ---- products that are computed again ------------------------------------------------------------

FACTORS = (
    *("{x} * 0.3", "{x} * 1.7", "{x} * {y}", "{x} * P(s[-1])", "{x} * {x}", "{x} * {y} + {x}"),
    *("{x} * 0.176776695 - {y}", "{x} * P(s[-1]) + P(s[-1])", "({x} - 0.1) * ({x} - 0.2)"),
    *("{x} * 300.7", "{x} * 0.7 * {y}", "{x} * {x} * {x}", "{x} * 0.3 + {y} * 0.7"),
)
# Nearly the same everywhere is not enough: here a value is what it is.
SCALED = (
    *("F.layer_norm({x}, (s[-1],)) * P(s[-1]) + P(s[-1])", "{x} / {x}.sum({d}, keepdim=True)"),
    *("torch.softmax({x} * 0.3, {d})", "({x} * 700.3).log_softmax({d})", "torch.tanh({x}) * 0.3"),
    *("({x} @ P(s[-1], 7)) * 0.17", "{x} / {x}.norm(dim={d}, keepdim=True)", "F.gelu({x}) * {y}"),
    *("{x} * torch.rsqrt({x}.square().mean({d}, keepdim=True) + 1e-5) * P(s[-1])",),
    *(
        "({x} - {x}.mean({d}, keepdim=True)) * 1.3",
        "torch.exp({x} * 0.3) * 0.7",
        "{x}.sigmoid() * {x}",
    ),
    *(
        "F.group_norm({x}, 1, P(s[1]), P(s[1]))",
        "torch.log1p({x}.abs()) * 0.3",
        "{x}.sin() * {x}.cos()",
    ),
    *(
        "{x} * {x}.sum({d}, keepdim=True)",
        "({x} @ {y}.mT) * 300.7",
        "torch.softmax({x} * 30.3, {d}) * {y}",
    ),
)
# Zeros, ones and choices, whatever {p} is: it only has to be one value.
SAME = (
    *("({p} - {p}.amax({d}, keepdim=True)).amax({d})", "{p} - {p}.flip({d}).flip({d})"),
    *("({p} - {p}.amax({d}, keepdim=True)).exp().amax({d})", "{p}.amax() - ({p}).amax()"),
    *(
        "torch.relu({p}.amin({d}, keepdim=True) - {p})",
        "({p} - {p}.amin({d}, keepdim=True)).amin()",
    ),
    *("torch.gather({p}, {d}, {p}.argmax({d}, keepdim=True)) - {p}.amax({d}, keepdim=True)",),
    *("{p}.sort({d})[0].select({d}, 0) - {p}.amin({d})", "torch.relu({p} - {p}.amax())"),
    *("({p} - {p}.amin({d}, keepdim=True)).sqrt().isnan().to({t})",),
)
# Only where {p} is exact.
SAME_EXACT = (
    *SAME,
    *(
        "({p} == {p}.amax({d}, keepdim=True)).to({t})",
        "({p} + {p}.roll(1, {d})) - {p}.roll(1, {d})",
    ),
    *(
        "torch.where({p} >= {p}.amax({d}, keepdim=True), 1.0, {p})",
        "{p} - {p}.amax({d}, keepdim=True)",
    ),
    *("({p} - {p}.amin()).abs().amin({d})", "torch.where({p} - {p}.amin() < 0, -1.0, {p})"),
)
SAME_ANSWERS = (
    *("({p} == {p}.amax({d}, keepdim=True)).any({d})", "({p} < {p}.amin({d}, keepdim=True)).any()"),
    *(
        "({p} - {p}.amin({d}, keepdim=True)).sqrt().isnan().any()",
        "({p} > {p}.amax({d}, keepdim=True))",
    ),
)
# Judged by their error.
SAME_NEARLY = (
    *("torch.sqrt({p}.amax() - {p})", "torch.sqrt({p} - {p}.amin({d}, keepdim=True))"),
    *("{p}.log_softmax({d}).amax({d})", "torch.log({p} - {p}.amin({d}, keepdim=True) + 1.0)"),
    *(
        "torch.softmax({p}, {d})",
        "{p}.logsumexp({d}) - {p}.amax({d})",
        "({p} - {p}.mean({d}, keepdim=True))",
    ),
    *("(1000.0 * {p}).log_softmax({d}).amax({d})", "torch.softmax(50.0 * {p}, {d}).amax({d})"),
)


def _recomputed(w: Writer) -> None:
    _chain(w)

    def attempt() -> bool:
        exact = w.rng.random() < 0.6 and w.ieee
        if not _line(w, FACTORS if exact else SCALED, exact=exact, more={}):
            return False
        p = list(w.shapes)[-1]
        if w.rng.random() < 0.25 and len(w.shapes[p]) > 1:
            s = w.shapes[p]
            mask = f"torch.ones({s[-2:]}, dtype=torch.bool, device={p}.device).tril()"
            p = w.new(f"{p}.masked_fill(~{mask}, float('-inf'))", s, exact=exact)
        d = str(w.rng.randrange(len(w.shapes[p]))) if w.shapes[p] else "0"
        more = {"p": p, "x": p, "y": p, "d": d}
        part = w.rng.random()
        if part < 0.2:
            return _answer(w, SAME_ANSWERS, exact=True, more=more)
        if part < 0.35:
            return _line(w, SAME_NEARLY, exact=False, more=more)
        return _line(w, SAME_EXACT if exact else SAME, exact=True, more=more)

    _tried(attempt)


# ---- ties, NaN and signs -------------------------------------------------------------------------

TIES = (
    "torch.randint(-2, 3, {s}).to({t})",
    "torch.randint(0, 2, {s}).to({t})",
    "torch.randn({s}).masked_fill(torch.rand({s}) < 0.1, float('nan')).to({t})",
    "torch.randint(-1, 2, {s}).float().masked_fill(torch.rand({s}) < 0.05, float('nan')).to({t})",
    "torch.randint(-3, 4, {s}).float().masked_fill(torch.rand({s}) < 0.1, float('-inf')).to({t})",
    "torch.full({s}, 0.75).to({t})",
)
TIED = (
    *("{x}.amax({d}, keepdim=True)", "{x}.amin({d})", "{x}.max({d})[0]", "torch.maximum({x}, {y})"),
    *("torch.relu({x})", "{x}.clamp(-1, 1)", "torch.fmax({x}, {y})", "torch.fmin({x}, 0 * {y})"),
    *("{x}.sort({d})[0]", "{x}.topk(1, {d})[0]", "{x}.median({d})[0]", "torch.minimum({x}, -{y})"),
    *("{x}.cummax({d})[0]", "torch.where({x} == {x}.amax({d}, keepdim=True), 1.0, 0.0).to({t})"),
    *(
        "F.max_pool2d({x}, 2)",
        "F.max_pool1d({x}, 3, 1, 1)",
        "F.one_hot({x}.argmax({d}), 2 * s[{d}] + 3).to({t})",
    ),
    *(
        "F.hardtanh({x})",
        "{x}.clamp_min(0.5)",
        "F.relu6({x} * 4)",
        "torch.sign({x})",
        "{x}.kthvalue(1, {d})[0]",
    ),
    *(
        "F.adaptive_max_pool2d({x}, 1)",
        "{x}.aminmax(dim={d})[0]",
        "torch.linalg.vector_norm({x}, float('inf'), {d})",
    ),
)
TIED_ANSWERS = (
    *("{x}.argmax({d})", "{x}.argmin({d})", "{x}.argmax()", "{x}.argmin({d}, keepdim=True)"),
    *(
        "{x}.max({d})",
        "{x}.min({d})",
        "{x}.max({d}, keepdim=True)[1]",
        "{x}.sort(stable=True, dim={d})",
    ),
    *("torch.argsort({x}, stable=True, dim={d})", "torch.sort({x}, stable=True, descending=True)"),
    *("torch.relu({x}).argmax({d})", "torch.relu({x}).max({d})", "({x} * 0).argmax({d})"),
    *(
        "{x}.abs().argmin({d})",
        "({x} == {x}.amax({d}, keepdim=True)).sum({d})",
        "{x}.isnan().any({d})",
    ),
    *(
        "({x} > 0).to(torch.int32).argmax({d})",
        "({x} > 0).int().max({d})",
        "{x}.amax({d}) == {x}.amin({d})",
    ),
    *(
        "(-{x}).argmax({d})",
        "{x}.clamp(-0.5, 0.5).argmin({d})",
        "{x}.mT.argmax({d})",
        "{x}.clamp_max(0).max({d})",
    ),
    *(
        "torch.where({x}.isnan(), 0.0, {x}).argmax({d})",
        "F.max_pool2d({x}, 2, return_indices=True)",
    ),
    *(
        "({x} + {y}).argmax({d})",
        "{x}.reshape(-1).argmax()",
        "({x} * {y}).min({d})",
        "{x}.cummax({d})",
    ),
)
# Zeros of both signs.
ZEROS = (
    "torch.where(torch.rand({s}) < 0.5, 0.0, -0.0).to({t})",
    "(torch.randint(-1, 2, {s}) * torch.where(torch.rand({s}) < 0.5, 1.0, -1.0)).to({t})",
    "(-torch.zeros({s})).to({t})",
    "(torch.randn({s}) * (torch.rand({s}) < 0.5)).to({t})",
)
SIGNED = (
    *(
        "torch.relu({x})",
        "{x}.clamp(min=0)",
        "{x}.clamp(max=0)",
        "{x}.clamp(0.0, 1.0)",
        "-{x}",
        "{x} + 0",
    ),
    *(
        "{x} - 0",
        "0 - {x}",
        "{x} * 1",
        "{x} * -1",
        "{x} * 0",
        "{x} + {y}",
        "{x} - {y}",
        "{x} * {y}",
    ),
    *(
        "{x}.abs()",
        "torch.sqrt({x} * 0)",
        "-{x}.abs()",
        "torch.floor({x} * 0.3)",
        "({x} * 0.4).round()",
    ),
    *(
        "torch.trunc({x} * 0.3)",
        "torch.ceil(-{x}.abs() * 0.3)",
        "{x}.square()",
        "{x} ** 3",
        "F.hardtanh({x})",
    ),
    *(
        "F.leaky_relu({x}, 0.1)",
        "F.elu({x} * 0)",
        "F.relu6({x})",
        "torch.sin({x} * 0)",
        "torch.tanh({x} * 0)",
    ),
    *(
        "torch.erf({x} * 0)",
        "torch.expm1({x} * 0)",
        "F.gelu({x} * 0)",
        "F.silu({x} * 0)",
        "{x} / 4",
    ),
    *(
        "torch.copysign({x}, {y})",
        "torch.fmod({x}, 1.5)",
        "torch.nan_to_num({x})",
        "{x}.sign()",
        "{x}.mT",
    ),
    *(
        "torch.where({x} > {y}, {x}, {y})",
        "{x}.masked_fill({x} > 0, -0.0)",
        "{x}.flip({d})",
        "{x}.clone()",
    ),
    *(
        "(-{x}.abs() * 0).amax({d})",
        "(-{x}.abs() * 0).amin({d}, keepdim=True)",
        "(-{x}.abs() * 0).sum({d})",
    ),
    *("(-{x}.abs() * 0).mean({d})", "(-{x}.abs() * 0).cumsum({d})", "(-{x}.abs() * 0).max({d})[0]"),
    *(
        "torch.log1p({x} * 0)",
        "F.pad({x}, (1, 1)) * -1.0",
        "F.softsign({x} * 0)",
        "{x} - {x}",
        "{x} + -0.0",
    ),
    *(
        "torch.minimum({x}.abs() * 0, {y}.abs() * 0)",
        "torch.addcmul({x}, {x} * 0, {y} * 0)",
        "{x}.tril()",
    ),
    *("F.max_pool1d(-{x}.abs() * 0, 2)", "F.avg_pool1d(-{x}.abs() * 0, 2)", "{x}.double().to({t})"),
    *(
        "torch.prod({x} * 0 - 0.0, {d}) * 0",
        "torch.reciprocal({x} * float('inf'))",
        "{x}.half().to({t})",
    ),
)
SEEN = (
    *("torch.signbit({v})", "torch.copysign(torch.ones_like({v}), {v})", "torch.reciprocal({v})"),
    *(
        "torch.atan2({v}, -torch.ones_like({v}))",
        "1.0 / {v}",
        "{v}",
        "torch.where(1 / {v} < 0, 1, 2)",
    ),
)


def _ties_begin(w: Writer) -> None:
    w.inputs[0] = w.rng.choice(TIES).format(s=w.shapes["x0"], t=w.dtype)


def _ties(w: Writer) -> None:
    _chain(w)

    def attempt() -> bool:
        if w.rng.random() < 0.35:
            return _line(w, TIED, exact=w.ieee, more={} if w.ieee else {"x": "x0"})
        return _answer(w, TIED_ANSWERS, exact=True, more={} if w.ieee else {"x": "x0", "y": "x0"})

    _tried(attempt)


def _signs_begin(w: Writer) -> None:
    w.inputs[0] = w.rng.choice(ZEROS).format(s=w.shapes["x0"], t=w.dtype)


def _signs(w: Writer) -> None:
    def attempt() -> bool:
        if not _line(w, SIGNED, exact=True, more={}):
            return False
        name = list(w.shapes)[-1]
        # A NaN has a sign, too, and nobody says which.
        seen = w.rng.choice(SEEN).format(v=f"torch.nan_to_num({name})")
        w.answer(seen, ["atan2" not in seen])
        return True

    _tried(attempt)


# ---- containers ----------------------------------------------------------------------------------

PAIRS = (
    *(
        "torch.max({x}, {d})",
        "{x}.min({d})",
        "{x}.sort(stable=True, dim={d})",
        "torch.aminmax({x}, dim={d})",
    ),
    *(
        "torch.var_mean({x}, {d})",
        "{x}.topk(1, {d})",
        "torch.split({x}, 2, {d})",
        "{x}.chunk(2, {d})",
    ),
    *(
        # Of thousands of results, each takes torch.export a hundredth of a second.
        "torch.unbind({x}.narrow({d}, 0, min({x}.shape[{d}], 64)), {d})",
        "torch.std_mean({x}, {d})",
        "[{x}, {y}]",
        "{{'a': {x}, 'b': ({y}, {x} * 2)}}",
    ),
)


def _containers_begin(w: Writer) -> None:
    """How the inputs come."""
    form = w.rng.choice(
        ("", "", "dict", "tuple", "nested", "optional", "none", "number", "default")
    )
    if form in ("dict", "tuple", "nested"):
        names, texts = list(w.given), list(w.inputs)
        if form == "dict":
            w.signature, inner = (
                "batch",
                ", ".join(f'"{n}": {t}' for n, t in zip(names, texts, strict=True)),
            )
            w.inputs[:] = [f"{{{inner}}}"]
            taken = [f'batch["{n}"]' for n in names]
        elif form == "tuple":
            w.signature = "values"
            w.inputs[:] = [f"({', '.join(texts)},)"]
            taken = [f"values[{k}]" for k in range(len(names))]
        else:
            w.signature = "x0, rest"
            rest = ", ".join(texts[1:] or ["None"])
            w.inputs[:] = [texts[0], f'{{"more": [{rest}], "n": 2}}']
            taken = ["x0", *(f'rest["more"][{k}]' for k in range(len(names) - 1))]
        w.lines[:0] = [f"{n} = {t}" for n, t in zip(names, taken, strict=True) if n != t]
    elif form in ("optional", "none"):
        w.signature = ", ".join([*w.given, "mask=None"])
        w.inputs += ["None"] * (form == "none")
        w.new("x0 * 2.0 if mask is None else x0 * mask", w.shapes["x0"], exact=w.ieee)
    elif form == "number":
        w.signature = ", ".join([*w.given, "scale", "flag"])
        w.inputs += ["0.3", "True"]
        w.new("x0 * scale if flag else x0", w.shapes["x0"], exact=w.ieee)
    elif form == "default":
        w.signature = ", ".join([*w.given, "scale=0.3"])
        w.new("x0 * scale", w.shapes["x0"], exact=w.ieee)
    w.construct = w.rng.choice((
        ("self", "[]"), ("self", ""), ("self, wide=2, *, deep=3", "[[2], {'deep': 4}]"),
        ("self, wide, deep=3", "[2]"),
    ))  # fmt: skip


def _containers(w: Writer) -> None:
    _chain(w)
    if w.rng.random() < 0.5:
        exact = w.ieee and w.rng.random() < 0.5
        table = [p for p in PAIRS if exact or not ("std" in p or "var" in p)]
        _tried(lambda: _answer(w, tuple(table), exact=False, more={}))


def returned(w: Writer, kind: str, names: list[str]) -> tuple[str, list[bool]]:
    """What forward returns, as text, and which of its tensors are exact."""
    leaves = [e for n in names for e in w.answers.get(n, (n in w.exact,))]
    plain = ", ".join(names)
    if kind != "containers":
        return plain, leaves
    form = w.rng.choice(
        (
            "tuple",
            "list",
            "dict",
            "nested",
            "named",
            "data",
            "ordered",
            "number",
            "cache",
            "size",
            "none",
        )
    )
    first, last, more = names[0], names[-1], ", ".join(names[1:])
    if form == "named":
        fields = "".join(f"\n    f{k}: object" for k in range(len(names)))
        w.top.append(f"from typing import NamedTuple\n\n\nclass Pair(NamedTuple):{fields}")
        return f"Pair({plain})", leaves
    if form == "data":
        fields = "".join(f"\n    f{k}: object" for k in range(len(names)))
        w.top.append(f"from dataclasses import dataclass\n\n\n@dataclass\nclass Out:{fields}")
        return f"Out({plain})", leaves
    if form == "ordered":
        w.top.append("from collections import OrderedDict")
        inner = ", ".join(f"f{k}={n}" for k, n in enumerate(names))
        return f"OrderedDict({inner})", leaves
    if form == "cache":
        ends = list(w.answers.get(last, (last in w.exact,)))
        starts = list(w.answers.get(first, (first in w.exact,)))
        return f"{first}, (({plain}), ({last}, {first}))", [*starts, *leaves, *ends, *starts]
    texts = {
        "tuple": f"({plain},)", "list": f"[{plain}]", "number": f"({plain}, 3)",
        "dict": "{" + ", ".join(f'"f{k}": {n}' for k, n in enumerate(names)) + "}",
        "nested": f'{first}, [{{"rest": ({more})}}]' if more else f"[({first},)]",
        "size": f"({plain}, x0.shape)", "none": f"(None, {plain})",
    }  # fmt: skip
    return texts[form], leaves


# ---- parameters that are shared ------------------------------------------------------------------


def _shared(w: Writer) -> None:
    x = w.pick()
    s = w.shapes[x]
    if not s or size(s) * 4 > w.most or s[-1] > 512:
        return
    n = len(w.setup)
    w.rng.choice(SHARED)(w, x, s, f"{n}")


def _tied(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    """An embedding and the linear layer behind it own one weight."""
    shape = narrowed(w.rng, s)[:2]
    tokens = w.given_as(f"torch.randint(0, 20, {shape})")
    w.setup += [
        f"self.embed{n} = nn.Embedding(20, 6, dtype={w.dtype})",
        f"self.head{n} = nn.Linear(6, 20, bias={w.rng.random() < 0.5}, dtype={w.dtype})",
        f"self.head{n}.weight = self.embed{n}.weight",
    ]
    w.new(f"self.head{n}(torch.tanh(self.embed{n}({tokens})))", (*shape, 20))


def _twice(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    w.setup += [f"self.block{n} = nn.Linear({s[-1]}, {s[-1]}, dtype={w.dtype})"]
    name = f"self.block{n}"
    if w.rng.random() < 0.5:
        w.setup += [f"self.again{n} = self.block{n}"]
        name = f"self.again{n}"
    w.new(f"self.block{n}(torch.tanh({name}({x})))", s)


def _chained(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    block = f"self.block{n}"
    w.setup += [
        f"{block} = nn.Linear({s[-1]}, {s[-1]}, dtype={w.dtype})",
        f"self.chain{n} = nn.Sequential({block}, nn.Tanh(), {block})",
    ]
    w.new(f"self.chain{n}({x})", s)


def _one_parameter(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    w.setup += [
        f"self.one{n} = nn.Parameter(torch.randn({s[-1]}).to({w.dtype}))",
        f"self.two{n} = self.one{n}",
    ]
    w.new(f"{x} * self.one{n} + torch.tanh(self.two{n})", s)


def _buffers(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    other = w.rng.choice((f"self.one{n}", f"self.one{n}[:1]", f"self.one{n}.view(-1)"))
    w.setup += [
        f'self.register_buffer("one{n}", torch.randn({s[-1]}).to({w.dtype}))',
        f'self.register_buffer("two{n}", {other})',
    ]
    if w.rng.random() < 0.3:
        w.float64, w.refused = False, r"share|alias|overlap|memory"
        w.lines.append(f"self.one{n}.add_(1)")
    w.new(f"{x} * self.one{n} + torch.tanh(self.two{n})", s)


def _frozen(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    w.setup += [
        f"self.one{n} = nn.Parameter(torch.randn({s[-1]}).to({w.dtype}))",
        f'self.register_buffer("two{n}", self.one{n}.detach())',
    ]
    w.new(f"{x} * self.two{n} - torch.tanh(self.one{n})", s)


def _norm_twice(w: Writer, x: str, s: tuple[int, ...], n: str) -> None:
    if len(s) not in (2, 3) or size(s) // s[1] < 2:
        return
    w.setup += [f"self.norm{n} = nn.BatchNorm1d({s[1]}, eps=0.1, dtype={w.dtype})"]
    w.setup += [f"self.norm{n}.eval()"] * (w.rng.random() < 0.5)
    w.new(f"self.norm{n}(torch.tanh(self.norm{n}({x})))", s)


SHARED: tuple[Callable[[Writer, str, tuple[int, ...], str], None], ...] = (
    _tied, _twice, _chained, _one_parameter, _buffers, _frozen, _norm_twice,
)  # fmt: skip


# ---- numbers, masks and inputs that are shared ---------------------------------------------------

NUMBERS = (
    *("{x} * {n}.item()", "{n}.item() + {x}", "{x} / ({n}.item() + 2.0)", "{x} * float({n})"),
    *("{x} - 2 * {n}.item()", "torch.relu({x}) * {n}.item()", "{x}.clamp(max={n}.item())"),
    *("{x} ** {n}.item()", "torch.full_like({x}, {n}.item()) * {x}", "{x} * (1 - {n}.item())"),
)
PLACES = (
    "{x}[{n}.item()]",
    "{x}[{n}]",
    "{x}[:, {n}]",
    "{x}.select(-1, {n}.item())",
    "{x}[..., {n}.item()]",
)


def _numbers(w: Writer) -> None:
    w.refused = r"\.py:\d+: .*(\.item\(\)|int\(\), float\(\))"  # the line, and what it asks for
    x = w.pick()
    s = w.shapes[x]
    if w.rng.random() < 0.7:
        kind = w.rng.choice(
            ("torch.tensor(0.5)", "torch.rand(1)", "torch.tensor(0.3).double()", "torch.tensor(2)")
        )
        name = w.given_as(kind)
        w.new(w.rng.choice(NUMBERS).format(x=x, n=name), s, exact=False)
        return
    name, text = w.given_as("torch.tensor(0)"), w.rng.choice(PLACES)
    if s and (len(s) > 1 or ("-1" not in text and ":" not in text)):
        shape = (
            s[:-1] if "-1" in text or "..." in text else (s[0], *s[2:]) if ":" in text else s[1:]
        )
        w.new(text.format(x=x, n=name), shape)


MASKED = (
    *(
        "{z}[{m}] = 1 - {x}[{m}] * {x}[{m}]",
        "{z}[{m}] = 0.25",
        "{z}[{m}] *= 2.0",
        "{z}[{m}] = -{z}[{m}]",
    ),
    *("{z}[~{m}] = {x}[~{m}] + 1.0", "{z}[{m}] = {x}[{m}]", "{z}.masked_fill_({m}, 0.5)"),
    *(
        "{z}[{m}] = {z}[{m}] * {x}[{m}]",
        "{z}.index_put_(({m},), torch.tensor(0.5, device={x}.device).to({x}.dtype))",
    ),
    *("{z}[{m} & ({x} < 1.0)] = 0.75", "{z}[{x} > 0.7] = {x}[{x} > 0.7] - 0.5", "{z}[{m}] += 1.5"),
)


def _masks(w: Writer) -> None:
    w.refused = "mask"
    _chain(w)
    x = w.pick(exact=True)
    s = w.shapes[x]
    if not s:
        return
    z = w.new(
        w.rng.choice(("torch.zeros_like({x})", "{x}.clone()", "{x} * 0.5")).format(x=x),
        s,
        exact=w.ieee,
    )
    mask, text = f"m{len(w.lines)}", w.rng.choice(MASKED)
    if w.rng.random() < 0.25 and len(s) > 1 and "~" not in text:
        w.lines.append(f"{mask} = {x}[..., 0] > 0")  # rows
        text = w.rng.choice(("{z}[{m}] = 0.25", "{z}[{m}] = {x}[{m}] * 2.0", "{z}[{m}] *= 3.0"))
    else:
        w.lines.append(f"{mask} = {x} {w.rng.choice(('<= 0.5', '> 0', '== 0', '< -9'))}")
    w.lines.append(text.format(x=x, z=z, m=mask))


def _memory_begin(w: Writer) -> None:
    """Inputs of one memory, of which one may be changed."""
    w.refused = "share|alias|overlap"
    s = w.shapes["x0"]
    with torch.device("meta"):
        flat = eval(w.inputs[0], {"torch": torch}).is_contiguous()
    forms = ["whole", "whole.flip(0)[:]", *["whole.view(-1)"] * flat, "whole[...]"]
    forms += ["whole[1:]", "whole[:1]", "whole[..., :1]"] * 2 if s[0] > 1 else []
    forms += ["whole.mT", "whole.transpose(0, -1)"] if len(s) > 1 else []
    w.before.append(f"whole = {w.inputs[0]}")
    text = w.rng.choice(forms)
    shape = tuple(eval(text, {"whole": torch.empty(s, device="meta")}).shape)
    w.inputs[0] = w.rng.choice(("whole", "whole", "whole[...]"))
    name = w.given_as(text, shape)
    change = w.rng.choice(
        ("", "x0.add_(1)", "x0.mul_(2.0)", "{n}.add_(1)", "x0[..., :1].mul_(3.0)", "x0.relu_()")
    )
    w.lines += [change.format(n=name)] if change else []
    w.new(f"{name} * 2.0", shape, exact=w.ieee)


# ---- all of them ---------------------------------------------------------------------------------


def _nothing(_: Writer) -> None:
    """Inputs as they are."""


@dataclass(frozen=True)
class Kind:
    """begin: says how inputs come.  step: adds statements.  between: ordinary steps among them."""

    step: Callable[[Writer], None]
    begin: Callable[[Writer], None] = _nothing
    dtypes: tuple[str, ...] = ANY
    between: bool = True


KINDS = {
    "bits": Kind(_bits, _bits_begin, between=False),
    "casts": Kind(_casts, _casts_begin),
    "recomputed": Kind(_recomputed, dtypes=FULL),
    "ties": Kind(_ties, _ties_begin),
    "signs": Kind(_signs, _signs_begin, FULL, between=False),
    "containers": Kind(_containers, _containers_begin),
    "shared": Kind(_shared),
    "numbers": Kind(_numbers),
    "masks": Kind(_masks),
    "memory": Kind(_chain, _memory_begin),
}
