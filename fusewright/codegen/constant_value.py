"""An expression of C++ -> its value, where words have known values: numbers and types, or unknown.

Numbers are whole ones that an int can hold, and unknown if they leave it. What is not understood
is unknown, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from fusewright.codegen.cxx_code import Code, Range


class Type(NamedTuple):
    """A type of this name with these template arguments; of an enumeration, one of its values."""

    name: str
    arguments: tuple[Value, ...] = ()


class Unknown(NamedTuple):
    """What nobody knows: equal to no value, but of a tuple of values one like another."""

    reason: str = ""


Value = int | Type | Unknown
UNKNOWN = Unknown()
BUILTIN = frozenset({"float", "double", "int", "bool", "char", "long", "short", "unsigned", "void"})
_MOST = 2**31 - 1
_NUMBER = re.compile(r"(0[xX][\da-fA-F]+|[1-9]\d*|0)[lL]*")
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 7,
    ">": 7,
    "<=": 7,
    ">=": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}
_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << b if a >= 0 and 0 <= b < 31 else _MOST + 1,
    ">>": lambda a, b: a >> b if a >= 0 and 0 <= b < 31 else _MOST + 1,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else _MOST + 1,
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1) if b else _MOST + 1,
}


class Step(NamedTuple):
    """One part of a name with `::` between its parts: its word and its template arguments."""

    word: str
    arguments: tuple[Range, ...] | None


Lookup = Callable[[Code, list[Step]], Value]


class _Unclear(Exception):
    """The text is no expression that is understood."""


def value_of(code: Code, part: Range, lookup: Lookup) -> Value:
    """The value of a range of words; `lookup` says what a name is."""
    reader = _Reader(code, part, lookup)
    try:
        value = reader.ternary()
    except _Unclear:
        return UNKNOWN
    return value if reader.k == part[1] else UNKNOWN


def is_true(value: Value) -> bool | None:
    """As a condition; None: unknown."""
    return bool(value) if isinstance(value, int) else None


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, code: Code, part: Range, lookup: Lookup) -> None:
        self.code, self.k, self.end, self.lookup = code, part[0], part[1], lookup

    def word(self, further: int = 0) -> str:
        return self.code.words[self.k + further] if self.k + further < self.end else ""

    def ternary(self) -> Value:
        condition = self.binary(1)
        if self.word() != "?":
            return condition
        self.k += 1
        first = self.ternary()
        if self.word() != ":":
            raise _Unclear
        self.k += 1
        second = self.ternary()
        chosen = is_true(condition)
        if chosen is None:
            return first if first == second else UNKNOWN
        return first if chosen else second

    def binary(self, least: int) -> Value:
        left = self.unary()
        while True:
            operator = self.word()
            if operator == ">" and self.word(1) == ">":
                operator = ">>"
            precedence = _PRECEDENCE.get(operator, 0)
            if precedence < least:
                return left
            self.k += 2 if operator == ">>" else 1
            left = _combined(operator, left, self.binary(precedence + 1))

    def unary(self) -> Value:
        sign = self.word()
        if sign not in ("!", "-", "+", "~"):
            return self.primary()
        self.k += 1
        value = self.unary()
        if not isinstance(value, int):
            return UNKNOWN
        return {"!": int(not value), "-": -value, "+": value, "~": ~value}[sign]

    def primary(self) -> Value:
        word = self.word()
        if word == "(":
            value = self._bracket()
        elif word[:1].isdigit() or (word[:1] == "." and word[1:2].isdigit()):
            self.k += 1
            found = _NUMBER.fullmatch(word)
            value = _whole(int(found[1], 0)) if found else UNKNOWN
        elif word in ("true", "false"):
            self.k += 1
            value = int(word == "true")
        elif word in ("int", "long", "bool") and self.word(1) == "(":
            self.k += 1
            inner = self._bracket()
            value = int(bool(inner)) if word == "bool" and isinstance(inner, int) else inner
        elif word.isidentifier() or word == "::":
            value = self._name()
        else:
            raise _Unclear
        return self._behind(value)

    def _bracket(self) -> Value:
        opens, closes = self.k, self.code.partner[self.k]
        self.k = closes + 1
        if any(w == "..." for w in self.code.words[opens + 1 : closes]):
            return UNKNOWN
        inside = self.code.words[opens + 1 : closes]
        if len(inside) == 1 and inside[0] in BUILTIN:  # a cast
            operand = self.unary()
            return operand if inside[0] in ("int", "long") else UNKNOWN
        return value_of(self.code, (opens + 1, closes), self.lookup)

    def _behind(self, value: Value) -> Value:
        """With all that stands behind it: calls, members, elements."""
        while True:
            word = self.word()
            if word in ("(", "[", "{"):
                self.k = self.code.partner[self.k] + 1
            elif word in (".", "->"):
                self.k += 2
            elif word in ("++", "--", "..."):
                self.k += 1
            else:
                return value
            value = UNKNOWN

    def _name(self) -> Value:
        """A name, with what stands between its `::`."""
        while self.word() in ("typename", "const", "struct", "::"):
            self.k += 1
        steps = list[Step]()
        while True:
            if self.word() == "template":
                self.k += 1
            word = self.word()
            if not word.isidentifier():
                raise _Unclear
            self.k += 1
            if word in ("sizeof", "alignof", "decltype"):
                self.k += self.word() == "..."
                self.k = self.code.behind_group(self.k)
                return UNKNOWN
            listed = self.code.template_list(self.k) if self.word() == "<" else None
            if listed and listed[1] <= self.end and self._is_template(steps, word):
                self.k = listed[1]
                steps.append(Step(word, tuple(listed[0])))
            else:
                steps.append(Step(word, None))
            if self.word() != "::":
                return self.lookup(self.code, steps)
            self.k += 1

    def _is_template(self, steps: list[Step], word: str) -> bool:
        """Whether a `<` behind a name opens its arguments: it does not, behind a number."""
        asked = self.lookup(self.code, [*steps, Step(word, None)])
        return not isinstance(asked, int)


def _combined(operator: str, left: Value, right: Value) -> Value:
    """Of two values; both sides of `&&` and `||` are constant expressions."""
    if operator in ("&&", "||"):
        decides = operator == "||"
        sides = (is_true(left), is_true(right))
        if decides in sides:
            return int(decides)
        return UNKNOWN if None in sides else int(not decides)
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if operator in ("==", "!="):
        if (
            isinstance(left, Type)
            and isinstance(right, Type)
            and (left.arguments or right.arguments)
        ):
            return UNKNOWN
        return int((left == right) == (operator == "=="))
    if isinstance(left, Type) or isinstance(right, Type):
        return UNKNOWN
    return _whole(_NUMBERS[operator](left, right))


def _whole(number: int) -> Value:
    return number if -_MOST <= number <= _MOST else UNKNOWN
