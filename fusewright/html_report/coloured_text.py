"""Python, C++ or CUDA -> HTML in which words of the language have classes, and all is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from markupsafe import Markup, escape
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Number, String, _TokenType

LEXERS = {"python": PythonLexer, "c++": CppLexer}
CLASSES = {Comment: "word-comment", Keyword: "word-keyword", Number: "word-number",
           String: "word-string"}  # fmt: skip


def coloured(text: str, language: Literal["python", "c++"]) -> Markup:
    """The text, character by character as it is."""
    lexer = LEXERS[language](stripnl=False, stripall=False, ensurenl=False)
    return Markup("").join(_pieces(lexer.get_tokens(text)))


def numbered(lines: Iterable[tuple[int | None, str]]) -> Markup:
    """Lines of Python, each behind its number, where that is known."""
    found = [*lines]
    width = max((len(str(number)) for number, _ in found if number is not None), default=0)
    return Markup("\n").join(_numbered(number, text, width) for number, text in found)


def _numbered(number: int | None, text: str, width: int) -> Markup:
    row = coloured(text, "python")
    if number is None:
        return row
    return Markup('<span class="word-comment">{}</span> {}').format(f"{number:>{width}}", row)


def _pieces(tokens: Iterable[tuple[_TokenType, str]]) -> Iterable[Markup]:
    for kind, text in tokens:
        name = next((name for root, name in CLASSES.items() if kind in root), "")
        whole = escape(text)
        yield Markup('<span class="{}">{}</span>').format(name, whole) if name else whole
