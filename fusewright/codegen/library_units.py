"""Text of a definition -> its units: a function, type, constant or alias, and a type's members.

A unit is what can be there or not: a definition at the left margin, or a member of a type that
others call by its name. What its text says about constants, types and conditions is found here,
once; `template_program.py` goes through it for each list of template arguments.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fusewright.codegen.constant_value import BUILTIN, UNKNOWN, Value
from fusewright.codegen.cxx_code import Code, Range, read
from fusewright.codegen.dead_code import PASTED
from fusewright.codegen.kernel_text import NO_CODE

Kind = Literal["type", "function", "constant", "alias", "opaque"]
_BESIDE = ("__launch_bounds__", "__attribute__", "alignas", "decltype", "noexcept")
_BEFORE = {"return", "else", "case", "throw", "typename", "new", "delete", "operator", "template"}
_DOUBLE = re.compile(
    r"(?:(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|0[xX][\da-fA-F.]+[pP][+-]?\d+)[lL]?"
)
_TYPES = {"struct", "class", "union"}
_OPAQUE = {"static_assert", "namespace", "}", "friend"}
_MACRO = "FUSEWRIGHT_"
Scope = dict[str, Value]


class Parameter(NamedTuple):
    """Of a template. number: whether it is one, and no type.  default: its words, if it has one."""

    name: str
    number: bool
    pack: bool
    default: Range | None


class Condition(NamedTuple):
    """An `if`, and what it does. movable: whether one of its branches can stand in its place.
    in_block: whether it is a statement of a block; if not, a branch that is empty cannot."""

    start: int
    is_constexpr: bool
    asked: Range
    then: Range
    otherwise: Range
    movable: bool
    in_block: bool

    @property
    def end(self) -> int:
        return self.otherwise[1]


class Mention(NamedTuple):
    """A name, and the template arguments behind it; None: it has none. is_member: of something.
    is_scoped: of a type or a namespace.  is_call: whether something is done with it."""

    name: str
    arguments: tuple[Range, ...] | None
    is_member: bool = False
    is_scoped: bool = False
    is_call: bool = True


class Declared(NamedTuple):
    """Names that have these words as their values from here on."""

    values: tuple[tuple[str, Range], ...]


class Directive(NamedTuple):
    """A line of the preprocessor, the names in it, and how those begin that it pastes together."""

    text: str
    names: tuple[str, ...]
    pasted: tuple[str, ...]


class Macro(NamedTuple):
    """A macro that is called here, and the names that it may make of its arguments."""

    names: tuple[str, ...]


Event = Condition | Mention | Declared | Directive | Macro


@dataclass(eq=False)
class Unit:
    """One thing that is called by its name.

    span: its words, without what stands before it.  special: of a specialisation, its arguments.
    bases: what a type is derived from.  signature: where a function's parameters are.  body: what
    is in braces.  members: those that can go.  values: the constants and types that a type has.
    """

    code: Code
    kind: Kind
    name: str
    span: Range
    parent: Unit | None = None
    parameters: tuple[Parameter, ...] = ()
    special: tuple[Range, ...] | None = None
    bases: tuple[Range, ...] = ()
    signature: Range = (0, 0)
    body: Range = (0, 0)
    members: list[Unit] = field(default_factory=list)
    values: dict[str, Range] = field(default_factory=dict)
    fixed: bool = False  # it stays as it is
    at: int = -1  # where its name stands

    @property
    def is_template(self) -> bool:
        return bool(self.parameters) or self.special is not None

    @cached_property
    def declared(self) -> Counter[str]:
        """How often each name is declared here, as far as that can be seen."""
        return Counter(self.code.words[k] for k in range(*self.span) if is_declared(self.code, k))

    @cached_property
    def events(self) -> dict[int, Event]:
        """All that matters in its own text, by where it stands; in order."""
        found, inside = dict[int, Event](), {m.span[0]: m.span[1] for m in self.members}
        k = self.span[0]
        while k < self.span[1]:
            if k in inside:
                k = inside[k]
                continue
            event = self._event(k) if k != self.at else None
            if event:
                found[k] = event
            k += 1
        return found

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The constants and types that it has for itself: from the start of a function on, or all
        over a type. These names mean nothing else in it."""
        found, code, k = set(self.values) if self.kind == "type" else set[str](), self.code, 0
        k = self.body[0] + 1
        while self.kind == "function" and k < self.body[1] - 1:
            while code.is_directive(k):
                k += 1
            first = k + (code.at(k) == "static")
            event = self._event(first) if code.at(first) in ("constexpr", "using") else None
            if isinstance(event, Declared):
                found |= {name for name, _ in event.values}
            k = code.statement_end(k)
        return frozenset(found)

    def places(self, part: Range) -> Iterator[int]:
        """Where its events in a range stand."""
        ordered = self._ordered
        for k in range(bisect_left(ordered, part[0]), bisect_left(ordered, part[1])):
            yield ordered[k]

    @cached_property
    def _ordered(self) -> list[int]:
        return list(self.events)

    def _event(self, k: int) -> Event | None:
        code, word = self.code, self.code.words[k]
        if code.is_directive(k):
            names = re.findall(r"[A-Za-z_]\w*", NO_CODE.sub("", word))
            return Directive(word, tuple(names), tuple(PASTED.findall(word)))
        if word == "if":
            return _condition(code, k)
        if word == "constexpr" and code.at(k - 1) != "if" and k >= self.body[0] > 0:
            values = _values(code, k)
            return Declared(values) if values else None
        if word == "using" and code.at(k + 2) == "=":
            return Declared(((code.words[k + 1], (k + 3, code.statement_end(k) - 1)),))
        if _DOUBLE.fullmatch(word):
            return Mention("double", None)
        return self._of_name(k) if word.isidentifier() else None

    def _of_name(self, k: int) -> Event:
        code, word = self.code, self.code.words[k]
        if word.startswith(_MACRO) and code.at(k + 1) == "(":
            return Macro(tuple(f"{w}_of" for w in code.words[k + 2 : code.partner[k + 1]]))
        listed = code.template_list(k + 1) if code.at(k + 1) == "<" else None
        before = code.at(k - 1)
        return Mention(
            "double" if "double" in word else word,  # __hiloint2double brings one, too
            tuple(listed[0]) if listed else None,
            is_member=before in (".", "->", "::", "template"),
            is_scoped=before == "::",
            is_call=bool(listed) or code.at(k + 1) == "(",
        )


@lru_cache(maxsize=4096)
def unit_of(text: str) -> Unit:
    """The unit of one definition; known for a text that was here before, as most were."""
    code = read(text)
    return _unit(code, (0, len(code.words)), None)


def fixed_units(text: str) -> list[Unit]:
    """Those of a whole text, which stay as they are with all their members."""
    code, k, found = read(text), 0, list[Unit]()
    while k < len(code.words):
        if code.words[k] == "namespace":
            k = code.words.index("{", k) + 1
        elif code.words[k] == "}":  # of a namespace
            k += 1
        else:
            end = _member_end(code, k, len(code.words))
            found.append(_unit(code, (k, end), None))
            found[-1].fixed = True
            found[-1].members.clear()
            k = end
    return found


def _unit(code: Code, span: Range, parent: Unit | None) -> Unit:
    """What stands in a range of words."""
    opaque = Unit(code, "opaque", "", span, parent, fixed=True)
    k, parameters, is_template = span[0], tuple[Parameter, ...](), False
    if code.is_directive(k) or code.at(k) in _OPAQUE or code.at(k).startswith(_MACRO):
        return opaque
    while code.at(k) == "template":
        listed = code.template_list(k + 1) if code.at(k + 1) == "<" else None
        if listed is None or is_template:
            return opaque
        parameters, is_template = tuple(_parameter(code, part) for part in listed[0]), True
        k = listed[1]
    special = () if is_template and not parameters else None
    if code.at(k) in _TYPES:
        return _type(code, k, span, parent, parameters, special) or opaque
    if code.at(k) == "using" and code.at(k + 2) == "=":
        body = (k + 3, span[1] - 1)
        alias = Unit(code, "alias", code.words[k + 1], span, parent, parameters, body=body)
        alias.at = k + 1
        return alias
    return _named(code, k, span, parent, parameters, special) or opaque


def _parameter(code: Code, part: Range) -> Parameter:
    words = code.words[part[0] : part[1]]
    default: Range | None = None
    if "=" in words:
        default = (part[0] + words.index("=") + 1, part[1])
        words = words[: words.index("=")]
    number = words[0] not in ("class", "typename", "template")
    name = words[-1] if len(words) > 1 and words[-1].isidentifier() else ""
    return Parameter(name, number, "..." in words, default)


def _type(
    code: Code, k: int, span: Range, parent: Unit | None,
    parameters: tuple[Parameter, ...], special: tuple[Range, ...] | None,
) -> Unit | None:  # fmt: skip
    k += 1
    if code.at(k) == "alignas":
        k = code.behind_group(k + 1)
    name, at = code.at(k), k
    if not name.isidentifier():
        return None
    k += 1
    if code.at(k) == "<":
        listed = code.template_list(k)
        if listed is None:
            return None
        special, k = tuple(listed[0]), listed[1]
    bases = tuple[Range, ...]()
    if code.at(k) == ":":
        opens = next(j for j in range(k, span[1]) if code.words[j] == "{")
        bases, k = tuple(code.split(k + 1, opens)), opens
    unit = Unit(code, "type", name, span, parent, parameters, special, bases, at=at)
    if code.at(k) == "{":
        unit.body = (k + 1, code.partner[k])
        _find_members(unit)
    elif code.at(k) != ";":
        return None
    return unit


def _named(
    code: Code, k: int, span: Range, parent: Unit | None,
    parameters: tuple[Parameter, ...], special: tuple[Range, ...] | None,
) -> Unit | None:  # fmt: skip
    """A function or a constant."""
    name, kind, own, at = "", "", special, k
    while k < span[1] and not kind:
        word = code.words[k]
        if word == "operator":
            return None
        if word == "(" and name and name not in _BESIDE:
            kind = "function"
        elif word in ("=", ";", "{"):
            kind = "constant"
        elif word == "<" and (listed := code.template_list(k)):
            special, k = tuple(listed[0]), listed[1]
            continue
        elif word.isidentifier():
            name, special, at = word, own, k
        if not kind:
            k = code.behind_group(k)
    if not kind or not name:
        return None
    if kind == "constant":
        return _constant(code, span, parent, at, parameters, special)
    closes = code.partner[k]
    opens = next((j for j in range(closes, span[1]) if code.words[j] == "{"), span[1])
    unit = Unit(code, "function", name, span, parent, parameters, own, (), (k + 1, closes))
    unit.body, unit.at = (opens, span[1]), at
    return unit


def _constant(
    code: Code, span: Range, parent: Unit | None, at: int,
    parameters: tuple[Parameter, ...], special: tuple[Range, ...] | None,
) -> Unit:  # fmt: skip
    unit = Unit(code, "constant", code.words[at], span, parent, parameters, special, at=at)
    k = next((k for k in range(*span) if code.words[k] == "constexpr"), None)
    if k is not None:
        unit.values = dict(_values(code, k))
    return unit


# ---- what stands in a text -----------------------------------------------------------------------


def _values(code: Code, k: int) -> tuple[tuple[str, Range], ...]:
    """The constants that `constexpr` here declares, and the words of their values."""
    end = code.statement_end(k) - 1
    found = list[tuple[str, Range]]()
    for start, stop in code.split(k + 1, end):
        equals = next((j for j in range(start, stop) if code.words[j] == "="), None)
        if equals is None:
            continue
        name, j = equals - 1, start
        while j < equals:  # of a specialisation, its arguments stand behind the name
            listed = code.template_list(j + 1) if code.at(j + 1) == "<" else None
            name = j if listed and listed[1] == equals else name
            j = listed[1] if listed else j + 1
        if code.at(name).isidentifier():
            found.append((code.words[name], (equals + 1, stop)))
    return tuple(found)


def _condition(code: Code, k: int) -> Condition:
    is_constexpr, asked, then, otherwise = code.parts_of_if(k)
    before = k - 1
    while code.is_directive(before):
        before -= 1
    in_block = code.at(before) in ("{", "}", ";") or before < 0
    # An else behind an if that has none of its own would become another's.
    bare = code.at(then[0]) != "{" or (
        then != otherwise and code.at(otherwise[0]) not in ("{", "if")
    )
    followed = code.at(otherwise[1]) == "else"
    movable = in_block or code.at(before) == "else" or not (bare and followed)
    return Condition(k, is_constexpr, asked, then, otherwise, movable, in_block)


def is_declared(code: Code, k: int) -> bool:
    """Whether a word looks like one that is declared: behind a type, before what ends a name."""
    if not code.words[k].isidentifier():
        return False
    if code.at(k + 1) not in ("=", ";", ",", ")", "{", "(", "[", ":", "..."):
        return False
    before, earlier = code.at(k - 1), code.at(k - 2)
    if before.isidentifier():
        return before not in _BEFORE and not before.isdigit()
    if before in ("*", "&"):
        return (
            earlier in BUILTIN
            or earlier in ("const", "auto", ">", "(", "&")
            or earlier[-2:] == "_t"
        )
    return before == ">" and earlier != "-"


def _find_members(unit: Unit) -> None:
    """The members of a type that can go, and the constants that it has."""
    code, k = unit.code, unit.body[0]
    while k < unit.body[1]:
        if code.words[k] in ("public", "private", "protected") and code.at(k + 1) == ":":
            k += 2
            continue
        end = _member_end(code, k, unit.body[1])
        first = code.words[k]
        if not (code.is_directive(k) or first.startswith(_MACRO)):
            member = _unit(code, (k, end), unit)
            if first == "static" and code.at(k + 1) == "constexpr" and member.kind == "constant":
                unit.values.update(member.values)
            elif member.kind == "alias" and not member.is_template:
                unit.values[member.name] = member.body
            elif _can_go(code, member, unit):
                unit.members.append(member)
        k = end


def _can_go(code: Code, member: Unit, unit: Unit) -> bool:
    """Whether a member is a function or a template that is only there for who calls its name."""
    if member.kind == "type":
        return member.is_template
    words = code.words[member.span[0] : member.at]
    special = member.name == unit.name or "~" in words or "friend" in words
    return member.kind == "function" and not special


def _member_end(code: Code, k: int, most: int) -> int:
    if code.is_directive(k):
        return k + 1
    is_macro = code.words[k].startswith(_MACRO)
    while k < most:
        word = code.words[k]
        k = code.behind_group(k)
        if word == ";" or (word == "(" and is_macro):
            return k
        if word == "{" and code.at(k) not in (",", "{", "(", "=", ";"):
            return k
    return most


# What is not known of a template's arguments.
def unknown_arguments(unit: Unit) -> tuple[Value, ...]:
    """One for each of its parameters."""
    return (UNKNOWN,) * len(unit.parameters)
