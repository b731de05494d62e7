"""A kernel's name -> the names that its text has in C++, and whether others have them already."""

from __future__ import annotations

import keyword
import re
from functools import cache
from importlib.resources import files

from fusewright.codegen.dead_code import definitions
from fusewright.codegen.device_library import sections
from fusewright.codegen.kernel_text import ABREAST, NO_CODE
from fusewright.fusion.kernel_names import NameRules
from fusewright.ir.graph import BATCH, LENGTH
from fusewright.ir.operators import OPS
from fusewright.targets.device_files import DEVICE_FILES

# Words of C++ that no name has, and macros of some systems.
KEYWORDS = frozenset(
    [
        *("alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor"),
        *("bool", "break", "case", "catch", "char", "char16_t", "char32_t", "char8_t"),
        *("class", "co_await", "co_return", "co_yield", "compl", "concept", "const"),
        *("const_cast", "consteval", "constexpr", "constinit", "continue", "decltype"),
        *("default", "delete", "do", "double", "dynamic_cast", "else", "enum"),
        *("explicit", "export", "extern", "false", "float", "for", "friend", "goto"),
        *("if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept"),
        *("not", "not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected"),
        *("public", "register", "reinterpret_cast", "requires", "return", "short"),
        *("signed", "sizeof", "static", "static_assert", "static_cast", "struct"),
        *("switch", "template", "this", "thread_local", "throw", "true", "try"),
        *("typedef", "typeid", "typename", "union", "unsigned", "using", "virtual"),
        *("void", "volatile", "wchar_t", "while", "xor", "xor_eq", "linux", "main"),
        *("major", "minor", "std", "unix"),
    ]
)
# What generated text calls its own, with a number behind, beside single letters.
NUMBERED = frozenset({"in", "out", "count"})
# What a body calls its own under its model's words, beside coordinates (`r1`): the row and its
# parts, the team, an index of a lambda, types that it is made for, macros of some systems.
OF_BODIES = frozenset(
    [
        *("row", "rows", "range", "team", "columns", "lines", "beside", "accumulator"),
        *(BATCH, LENGTH, "o", "i", "body", "Team", "Range", "Accumulator"),
        *("errno", "stdin", "stdout", "stderr", *ABREAST.values()),
    ]
)
COORDINATE = re.compile(r"r\d+")


def entry(name: str) -> str:
    """The function that Python calls."""
    return f"run_{name}"


def fallback_struct(name: str) -> str:
    """The kernel as its launch's fallback has it."""
    return f"{name}_again"


def score_struct(name: str) -> str:
    """What the kernel of an attention does with its scores."""
    return f"{name}_score_mod"


def symbols(name: str) -> frozenset[str]:
    """All names that C++ may have for a kernel."""
    return frozenset({name, entry(name), fallback_struct(name), score_struct(name)})


def is_reserved(symbol: str) -> bool:
    """Whether a name is a word of C++ or Python, or may be in any text beside a kernel's own."""
    stem = symbol.rstrip("0123456789")
    numbered = len(stem) == 1 or stem in NUMBERED
    return numbered or symbol in KEYWORDS or keyword.iskeyword(symbol) or symbol in _words()


def is_spoken(symbol: str) -> bool:
    """Whether a name in a body would hide, or call for, what something else has it for: a word of
    C++, a definition or section of the device library, what operators or bodies are written with.
    """
    own = symbol in OF_BODIES or COORDINATE.fullmatch(symbol) is not None
    return own or symbol in KEYWORDS or symbol in _definitions()


@cache
def _definitions() -> frozenset[str]:
    """What the device library defines and what its sections are called, for any language; and what
    operators are spelt with."""
    found = [section for library in DEVICE_FILES for section in sections(library)]
    texts = dict.fromkeys(s.text for s in found)  # languages have most of them in common
    names = frozenset[str]().union(*(d.names for text in texts for d in definitions(text)))
    spelt = " ".join(row.cpp for row in OPS.values())
    return names | {s.name for s in found} | set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", spelt))


@cache
def _words() -> frozenset[str]:
    """All that stands in the device library or in the spelling of an operator."""
    names = dict.fromkeys(name for library in DEVICE_FILES.values() for name in library)
    texts = [(files("fusewright") / name).read_text(encoding="utf-8") for name in names]
    code = NO_CODE.sub("", "\n".join([*texts, *(row.cpp for row in OPS.values())]))
    between = {k: " " for k in range(128) if not (chr(k).isalnum() or chr(k) == "_")}
    return frozenset(code.translate(between).split())


CXX_NAMES = NameRules(symbols, is_reserved)
