"""A line of generated Python or of a comment -> the lines that `ruff format` would make of it."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator

WIDTH = 100
OPEN, CLOSE = "([{", ")]}"


def wrap(line: str, indent: int) -> list[str]:
    """One statement, broken at its brackets where it is too long, as `ruff format` does."""
    whole = " " * indent + line
    if len(whole) > WIDTH and line.startswith("del "):
        names = _split(line[4:].strip("()"), ",")
        return [
            " " * indent + "del (",
            *(f"{' ' * indent}    {n}," for n in names),
            " " * indent + ")",
        ]
    pair = _last_brackets(line) if len(whole) > WIDTH else None
    if pair is None:
        return [whole]
    head, inside, tail = line[: pair[0] + 1], line[pair[0] + 1 : pair[1]], line[pair[1] :]
    first, last = " " * indent + head, " " * indent + tail
    parts, inner = _split(inside, ","), indent + 4
    call = head[-1] == "(" or re.search(r"[\w\])]\[$", head)
    if len(" " * inner + inside) <= WIDTH and (call or len(parts) == 1):
        return [first, " " * inner + inside, last]
    if len(parts) > 1:
        broken = [part for p in parts for part in wrap(f"{p},", inner)]
        return [first, *broken, last]
    word = "and" if len(_split(inside, " and ")) > 1 else "or"
    terms = _split(inside, f" {word} ")
    joined = [terms[0], *(f"{word} {term}" for term in terms[1:])]
    return [first, *(part for t in joined for part in wrap(t, inner)), last]


def tidy(statement: str) -> str:
    """A statement as one line in the spelling of `ruff format`: double quotes, no stray commas.

    It may be indented, and the head of a loop.
    """
    plain = statement.lstrip()
    within = f"{plain} pass" if plain.endswith(":") else plain
    text = double_quotes(ast.unparse(ast.parse(within))).removesuffix("\n    pass")
    return statement[: len(statement) - len(plain)] + text


def double_quotes(text: str) -> str:
    """Strings in double quotes where that needs no more escapes."""
    pieces, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        plain = token.string.startswith("'") and not token.string.startswith("'''")
        if token.type == tokenize.STRING and plain and '"' not in token.string:
            start = token.start[1]
            inner = token.string[1:-1].replace("\\'", "'")
            pieces += [text[end:start], f'"{inner}"']
            end = token.end[1]
    return "".join([*pieces, text[end:]])


def comment(line: str) -> list[str]:
    """A line as comment lines that are not too long."""
    indent = len(line) - len(line.lstrip())
    hanging = " " * (indent + 4) if indent else ""
    wrapped = textwrap.wrap(line, WIDTH - 2, initial_indent="", subsequent_indent=hanging)
    return [f"# {part}" for part in wrapped] or ["#"]


def indented(line: str, unit: str) -> str:
    """A line at the left margin, in a class whose indentation is `unit`."""
    plain = line.lstrip(" ")
    return unit + unit * ((len(line) - len(plain)) // 4) + plain if plain else ""


def _last_brackets(line: str) -> tuple[int, int] | None:
    """Where the last pair of outer brackets with something inside opens and closes."""
    found, stack = None, []
    for i, c in _code(line):
        if c in OPEN:
            stack.append(i)
        elif c in CLOSE:
            start = stack.pop()
            if not stack and line[start + 1 : i].strip():
                found = (start, i)
    return found


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators outside brackets and strings."""
    parts, depth, start = [], 0, 0
    for i, c in _code(text):
        depth += (c in OPEN) - (c in CLOSE)
        if depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i].strip())
            start = i + len(separator)
    return [p for p in [*parts, text[start:].strip()] if p]


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside strings, with their positions."""
    quote = ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        else:
            yield i, c
