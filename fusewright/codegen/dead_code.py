"""Device library + generated text -> the definitions of the library that the text reaches.

A definition is a function, type, constant or macro at the left margin, with the comment above it.
It stays where its name stands anywhere in what stays, whatever is meant there. So the overloads of
a name stay together, and C++ chooses among them as before. What is not understood stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.codegen.kernel_text import NO_CODE, words

# A line that is a macro's, and what it defines, here or in a struct; reductions say sum_of for sum.
MACRO = re.compile(r" *FUSEWRIGHT_\w+\((.*)\)$")
DEFINED = re.compile(r"(\w+)(?:, \w+)*")
CALL = re.compile(r"[A-Z]\w*\(.*\)$")  # of a macro, which no semicolon ends
PASTED = re.compile(r"\b(\w+_)##")  # MULTIPLY_##WIDTH says MULTIPLY_64
BESIDE = {"__launch_bounds__", "__attribute__", "alignas", "decltype"}  # no names of functions
TYPE = re.compile(r"^(?:template <.*> )?(?:struct|class|union) ", re.MULTILINE)
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Definition:
    """names: how others call it; none: it stays.  special: the words for which it is special: it
    goes where one of these is a type that does.  group: that of all between two blank lines.
    condition: its #if, or ""."""

    text: str
    names: frozenset[str]
    special: frozenset[str]
    group: int
    condition: str = ""

    @property
    def types(self) -> frozenset[str]:
        """Its names, if these are types and no other name can be one for the same."""
        return self.names if TYPE.search(self.text) else NOTHING


def drop_unreached(library: str, generated: str) -> str:
    """The definitions in `library` that `generated` reaches, in order."""
    given = definitions(library)
    known = NOTHING.union(*(d.names for d in given))
    types = NOTHING.union(*(d.types for d in given))
    reached, kept, before = words(generated), dict[int, str](), -1
    while before != (before := len(reached) + len(kept)):
        for k, d in enumerate(given):
            if (d.names & reached or not d.names) and d.special & types <= reached:
                kept[k] = _lines(d.text, reached)
                pasted = tuple(PASTED.findall(kept[k]))
                reached |= words(kept[k]) | {n for n in known if pasted and n.startswith(pasted)}
                reached |= {
                    f"{n.strip('.')}_of" for line in kept[k].split("\n") for n in _made(line)
                }
    return joined([(given[k], text) for k, text in sorted(kept.items())])


def for_nvcc(text: str) -> str:
    """The text without what is for NVRTC only, which tests compile it with."""
    lines, parts = list[str](), list[bool | None]()  # of each open #if: whether its part stays
    for line in text.split("\n"):
        if line.startswith("#if"):
            parts.append(line.startswith("#ifndef") if line.endswith(" __CUDACC_RTC__") else None)
        choice = line.startswith(("#if", "#else", "#endif")) and parts[-1] is not None
        if line.startswith("#else") and choice:
            parts[-1] = not parts[-1]
        if not choice and False not in parts:
            lines.append(line)
        if line.startswith("#endif"):
            parts.pop()
    return "\n".join(lines)


def _lines(text: str, reached: set[str]) -> str:
    """A definition without lines of macros that define what nothing reaches."""
    return "\n".join(line for line in text.split("\n") if _made(line) <= reached)


def _made(line: str) -> set[str]:
    macro = MACRO.match(line)
    found = DEFINED.fullmatch(macro[1]) if macro else None
    return {f"{'.' * line.startswith(' ')}{found[1]}"} if found else set()


def joined(kept: Sequence[tuple[Definition, str]]) -> str:
    """One text: a blank line between groups, one #if for neighbours that have the same."""
    text, last, condition = list[str](), 0, ""
    for d, own in kept:
        if (d.group, d.condition) != (last, condition):
            text += ["#endif"] * (condition != "") + [""] * (d.group != last)
            text += [d.condition] * (d.condition != "")
        text.append(own)
        last, condition = d.group, d.condition
    return "\n".join([*text, *["#endif"] * (condition != "")]).strip("\n")


# ---- text -> definitions -------------------------------------------------------------------------


def definitions(text: str) -> list[Definition]:
    """All of a text, in order."""
    found = list[Definition]()
    for lines, group, whole in _cut(text):
        first = next((k for k, line in enumerate(lines) if not line.startswith("//")), 0)
        if lines[first].startswith("#if") and whole:
            found += _conditional(lines[:first], lines[first:], group)
        else:
            names, special = _head(lines[first:]) if whole else (NOTHING, NOTHING)
            found.append(Definition("\n".join(lines), names, special, group))
    return found


def _conditional(comment: list[str], lines: list[str], group: int) -> Iterator[Definition]:
    """What stands under one #if, each by itself where there is no #else."""
    inside = [line for line in lines if not line.startswith(("#if", "#el", "#endif"))]
    within = definitions("\n".join([*comment, *inside]))
    if len(inside) == len(lines) - 2:
        yield from (Definition(d.text, d.names, d.special, group, lines[0]) for d in within)
        return
    names = NOTHING.union(*(d.names for d in within)) if all(d.names for d in within) else NOTHING
    yield Definition("\n".join([*comment, *lines]), names, NOTHING, group)


def _cut(text: str) -> Iterator[tuple[list[str], int, bool]]:
    """The lines of each definition, its group, and whether it ends."""
    lines, group, depth, conditions, macro = list[str](), 0, 0, 0, False
    for line in text.split("\n"):
        if not line and depth == conditions == 0:
            if lines:
                yield lines, group, False
            lines, group = [], group + 1
            continue
        code = NO_CODE.sub("", line).rstrip()
        directive = code.startswith(("#", "namespace"))
        macro = macro or code.startswith("#define")
        lines.append(line)
        if not macro and not directive:
            depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
        if conditions or depth == 0:
            conditions += code.startswith("#if") - code.startswith("#endif")
        ends = macro or directive or CALL.match(code) or code.endswith((";", "}"))
        macro = macro and code.endswith("\\")
        if depth == conditions == 0 and ends and not macro:
            yield lines, group, True
            lines = []
    if lines:
        yield lines, group, False


def _head(lines: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a definition has, and the words for which it is a specialisation."""
    code = NO_CODE.sub("", "\n".join(lines))
    if code.startswith("#define"):
        return frozenset(code.split("(")[0].split()[1:2]), NOTHING
    if code.startswith("static_assert"):
        return NOTHING, frozenset(words(code))
    if code.startswith(("#", "namespace", "}")):
        return NOTHING, NOTHING
    if CALL.match(code):
        return frozenset(_made(code)), NOTHING
    name, special, stack, before = "", set[str](), list[str](), set[str]()
    for token in re.findall(r"->|::|[<>=!]=|\w+|\S", code):
        if not stack and (token in "{;=:" or (token == "(" and name not in BESIDE)):
            break
        if token in ("(", "[", "{") or (token == "<" and (not stack or stack[-1] == "<")):
            stack.append(token)
        elif stack and (token in (")", "]", "}") or (token == ">" and stack[-1] == "<")):
            stack.pop()
        elif stack:
            special |= words(token)
        elif token.isidentifier():
            name, special = token, set()
            before.add(token)
    if "operator" in before:
        return NOTHING, NOTHING
    head = code.split(">", 1)[0] if code.startswith("template") else ""
    more = re.findall(r"(\w+) = ", code) if "constexpr" in before else []
    return frozenset({name, *more}), frozenset(special - words(head))
