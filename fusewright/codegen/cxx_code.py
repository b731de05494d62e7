"""A text of C++ -> its words, and the brackets, statements and template arguments among them.

Nothing is looked up: what a word means, others know. Comments and white space are left out, and a
line of the preprocessor is one word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*[\s\S]*?\*/)"
    r"|(?P<directive>^[ \t]*\#(?:[^\n\\]|\\[\s\S])*)"
    r'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\''
    r"|\.?\d(?:[eEpP][+-]|[\w.'])*|[A-Za-z_]\w*"
    r"|<<<|<<=|\.\.\.|->|::|<<|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[^\s]",
    re.MULTILINE,
)
_OPENS = {"(": ")", "[": "]", "{": "}"}
Range = tuple[int, int]  # words from the first to before the second


@dataclass(frozen=True)
class Code:
    """words: all of them.  starts, ends: where each stands in `text`.  partner: of each bracket
    that word which opens or closes it."""

    text: str
    words: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    partner: dict[int, int] = field(default_factory=dict)

    def at(self, k: int) -> str:
        """A word, or "" outside of the text."""
        return self.words[k] if 0 <= k < len(self.words) else ""

    def is_directive(self, k: int) -> bool:
        """Whether a word is a line of the preprocessor."""
        return self.at(k).startswith("#")

    def behind_group(self, k: int) -> int:
        """The word behind this one, or behind all that this bracket encloses."""
        return self.partner.get(k, k) + 1 if self.words[k] in _OPENS else k + 1

    def statement_end(self, k: int) -> int:
        """The word behind the statement that begins here."""
        while self.is_directive(k):
            k += 1
        first = self.at(k)
        if first == "{":
            return self.behind_group(k)
        if first == "if":
            return self._end_of_if(k)
        if first in ("for", "while", "switch"):
            return self.statement_end(self.behind_group(k + 1))
        if first == "do":
            k = self.statement_end(k + 1)
        while k < len(self.words) and self.words[k] not in (";", "}"):
            k = self.behind_group(k)
        return k + (self.at(k) == ";")

    def _end_of_if(self, k: int) -> int:
        _, _, _, otherwise = self.parts_of_if(k)
        return otherwise[1]

    def parts_of_if(self, k: int) -> tuple[bool, Range, Range, Range]:
        """Of an `if`: whether it is `if constexpr`, its condition, what it does, and what else;
        the last is empty, at the end, where there is no `else`."""
        is_constexpr = self.at(k + 1) == "constexpr"
        opens = k + 1 + is_constexpr
        closes = self.partner[opens]
        end = self.statement_end(closes + 1)
        otherwise = (end, end)
        if self.at(end) == "else":
            otherwise = (end + 1, self.statement_end(end + 1))
        return is_constexpr, (opens + 1, closes), (closes + 1, end), otherwise

    def template_list(self, k: int) -> tuple[list[Range], int] | None:
        """What a `<` here encloses, if it opens a list: each argument, and the word behind it."""
        found, first, depth_of = list[Range](), k + 1, k + 1
        while depth_of < len(self.words):
            word = self.words[depth_of]
            if word == ">":
                rest = [(first, depth_of)] if first < depth_of or found else []
                return [*found, *rest], depth_of + 1
            if word in (";", "}", ")", "]", "{", "&&", "||") or self.is_directive(depth_of):
                return None
            if word == ",":
                found.append((first, depth_of))
                first = depth_of = depth_of + 1
                continue
            inner = None
            if self.at(depth_of + 1) == "<" and word.isidentifier():
                inner = self.template_list(depth_of + 1)
            depth_of = inner[1] if inner else self.behind_group(depth_of)
        return None

    def split(self, start: int, end: int, mark: str = ",") -> list[Range]:
        """The parts of a range between marks outside of brackets and of lists of arguments."""
        found, first, k = list[Range](), start, start
        while k < end:
            inner = None
            if self.words[k] == mark:
                found.append((first, k))
                first = k + 1
            elif self.at(k + 1) == "<" and self.words[k].isidentifier():
                inner = self.template_list(k + 1)
            k = inner[1] if inner else self.behind_group(k)
        return [*found, (first, end)] if first < end else found


def read(text: str) -> Code:
    """The words of a text; a bracket without a partner is a word like others."""
    code = Code(text)
    stack = list[int]()
    for match in _TOKEN.finditer(text):
        if match["skip"]:
            continue
        word = match[0].strip() if match["directive"] else match[0]
        k = len(code.words)
        code.words.append(word)
        code.starts.append(match.end() - len(word) if match["directive"] else match.start())
        code.ends.append(match.end())
        if word in _OPENS:
            stack.append(k)
        elif stack and _OPENS[code.words[stack[-1]]] == word:
            code.partner[k] = stack[-1]
            code.partner[stack.pop()] = k
    return code
