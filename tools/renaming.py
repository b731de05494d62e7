"""Two generated texts -> the one-to-one renaming of identifiers that makes one of the other.

Comments, docstrings, white space and the breaking of lines are left aside. Everything else must
be equal, token by token: keywords, punctuation, numbers, and strings but for names of code in them.
No name may become two, and no two may become one, so that nothing is captured or merged: in the
whole text, or else in each definition of its C++, where what stands at the left margin is one name
everywhere, and other names are those of parameters, fields and variables. What a lambda calls its
parameters is the lambda's own, as what is local to it is a function of Python's. Of the second kind
are texts in which one word meant two things; that each field is read by its own name, and that
nothing is called by a name that is no more, a compiler says.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

Kind = Literal["name", "string", "other"]
Language = Literal["python", "c++", "prose"]

NAME = re.compile(r"[A-Za-z_]\w*")
CXX = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\\\n)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    |(?P<directive>\#(?:\\\n|[^\n])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
PROSE = re.compile(r"(?P<skip>\s+)|(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_]\w*)|(?P<other>.)")
CXX_KEYWORDS = frozenset(
    NAME.findall(
        """alignas alignof asm auto bool break case catch char class const constexpr continue
        decltype default defined delete do double elif else endif enum explicit extern false float
        for friend goto if ifdef ifndef inline int long mutable namespace new noexcept nullptr
        operator pragma private protected public reinterpret_cast return short signed sizeof static
        static_assert static_cast struct switch template this throw true try typedef typeid
        typename undef union unroll unsigned using virtual void volatile while"""
    )
)
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
PROGRAM = 'r"""'  # how the C++ in an emitted file begins


class Token(NamedTuple):
    """A name that may become another, a string, or what has to stay as it is."""

    kind: Kind
    text: str


class NotRenamed(Exception):
    """Two texts differ in more than in names; the message says where, or of which names."""


@dataclass(frozen=True)
class _Pairing:
    """Which names became which: the old ones' new names, and the new ones' old names."""

    new: dict[str, str]
    old: dict[str, str]

    def add(self, before: str, after: str) -> None:
        was, came = self.new.setdefault(before, after), self.old.setdefault(after, before)
        if was != after:
            raise NotRenamed(f"{before} became {was} and {after}")
        if came != before:
            raise NotRenamed(f"{came} and {before} became {after}")

    def in_string(self, text: str) -> str:
        return NAME.sub(lambda found: self.new.get(found[0], found[0]), text)


class Renaming(NamedTuple):
    """Old names and what they became; whether that is one-to-one in the whole text."""

    pairs: frozenset[tuple[str, str]]
    whole: bool


def renaming(old: str, new: str, language: Language) -> Renaming:
    """The names that are others now; raises NotRenamed."""
    before, after = list(tokens(old, language)), list(tokens(new, language))
    _same_but_for_names(before, after)
    sides = list(zip(before, after, strict=True))
    try:
        pairing, whole = _pairing(sides), True
    except NotRenamed:
        if language == "prose":
            raise
        pairing, whole = _by_definition(sides), False
    for k, (one, other) in enumerate(sides):
        if one.kind == "string" and other.text not in (one.text, pairing.in_string(one.text)):
            raise NotRenamed(_place(before, after, k))
    pairs = {(a.text, b.text) for a, b in sides if a.kind == "name" and a.text != b.text}
    return Renaming(frozenset(pairs), whole)


def _same_but_for_names(before: Sequence[Token], after: Sequence[Token]) -> None:
    for k, (one, other) in enumerate(zip(before, after, strict=False)):
        same_kind = one.kind == other.kind != "other"
        if one != other and not same_kind:
            raise NotRenamed(_place(before, after, k))
    if len(before) != len(after):
        raise NotRenamed(_place(before, after, min(len(before), len(after))))


def _pairing(sides: Iterable[tuple[Token, Token]]) -> _Pairing:
    pairing = _Pairing({}, {})
    for one, other in sides:
        if one.kind == "name":
            pairing.add(one.text, other.text)
    return pairing


def _by_definition(sides: Sequence[tuple[Token, Token]]) -> _Pairing:
    """The names that definitions have; what is no C++ is one definition of its own."""
    heads = _Pairing({}, {})
    for some in _definitions(sides):
        _in_scopes(some)
        k = _head([one for one, _ in some])
        if k is not None:
            heads.add(some[k][0].text, some[k][1].text)
    return heads


def _in_scopes(sides: Sequence[tuple[Token, Token]]) -> None:
    """Pair the names of a definition: the parameters of a lambda anew in each, the others in all of
    it. Raises NotRenamed; so it does where a name inside becomes what another one there is."""
    whole = _Pairing({}, {})
    scopes: list[tuple[int, _Pairing]] = []  # where a lambda ends, and what its parameters became
    for k, (one, other) in enumerate(sides):
        scopes = [scope for scope in scopes if k < scope[0]]
        if found := _lambda(sides, k):
            inside = _Pairing({}, {})
            for place in found[1]:
                inside.add(sides[place][0].text, sides[place][1].text)
            scopes.append((found[0], inside))
        is_field = k > 0 and sides[k - 1][0].text == "." and one == other
        if one.kind == "name" and not is_field:
            owners = [s for _, s in scopes if one.text in s.new or other.text in s.old]
            (owners[-1] if owners else whole).add(one.text, other.text)


def _lambda(sides: Sequence[tuple[Token, Token]], k: int) -> tuple[int, list[int]] | None:
    """Where the lambda that begins at a token ends, and where the names of its parameters are."""
    texts = [one.text for one, _ in sides[k : k + 4]]
    if texts[:4] != ["[", "&", "]", "("]:
        return None
    places, depth, end = [], 0, k + 3
    while end < len(sides) and not (depth == 0 and sides[end][0].text == "{"):
        text = sides[end][0].text
        arrow = text == ">" and sides[end - 1][0].text == "-"
        depth += (text in {"(", "<"}) - (text in {")", ">"} and not arrow)
        if sides[end + 1 : end + 2] and sides[end + 1][0].text in {",", ")"} and depth == 1:
            places += [end] * (sides[end][0].kind == "name")
        end += 1
    depth = 0
    while end < len(sides):
        depth += (sides[end][0].text == "{") - (sides[end][0].text == "}")
        end += 1
        if depth == 0:
            break
    return end, places


def _definitions(sides: Sequence[tuple[Token, Token]]) -> Iterator[list[tuple[Token, Token]]]:
    """What ends at the left margin: with a semicolon, a closing brace, or a preprocessor's line."""
    some, depth = list[tuple[Token, Token]](), 0
    for pair in sides:
        text = pair[0].text if pair[0].kind == "other" else ""
        if pair[0] == Token("other", "def") and depth == 0 and some:
            yield some
            some = []
        some.append(pair)
        opens_a_room = text == "{" and depth == 0 and some[0][0].text in ("namespace", "extern")
        if not opens_a_room:
            depth = max(depth + (text in {"(", "[", "{"}) - (text in {")", "]", "}"}), 0)
        if depth == 0 and (opens_a_room or text in {";", "}", "\n"}):
            yield some
            some = []
    if some:
        yield some


def _head(found: Sequence[Token]) -> int | None:
    """Which token of a definition is its name."""
    if [t.text for t in found[:2]] == ["#", "define"]:
        return 2
    if not found or found[0].text in ("#", "namespace", "extern", "static_assert"):
        return None
    depth, name = 0, None
    for k, token in enumerate(found):
        follows = found[k + 1].text if k + 1 < len(found) else ""
        depth += (token.text in {"<", "("}) - (token.text in {">", ")"})
        if depth == 0 and token.kind == "name" and not token.text.startswith("__"):
            name = k
        if depth == 0 and name is not None and follows in {"{", "=", ";", ":"}:
            return name
        if depth == 0 and name == k and follows == "(":
            return name
    return None


def shape(text: str, language: Language) -> str:
    """The text with names numbered as they come: equal for texts that differ in names alone."""
    numbers = dict[str, int]()
    words = []
    for token in tokens(text, language):
        if token.kind == "name":
            words.append(f"n{numbers.setdefault(token.text, len(numbers))}")
        else:
            words.append("s" if token.kind == "string" else token.text)
    return " ".join(words)


def tokens(text: str, language: Language) -> Iterator[Token]:
    """What a compiler reads of a text; of prose, its words, all of which are names."""
    if language == "python":
        yield from _python(text)
    elif language == "c++":
        yield from _cxx(text)
    else:
        yield from _matched(PROSE, text)


def _python(text: str) -> Iterator[Token]:
    """Indentation is a token; a comma that only breaking a line adds is none; the C++ in an
    emitted file is read as such."""
    found = [
        t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in LAYOUT
    ]
    for k, token in enumerate(found):
        following = found[k + 1] if k + 1 < len(found) else token
        if token.type == tokenize.STRING:
            if token.string.startswith(PROGRAM):
                yield from _cxx(token.string[len(PROGRAM) : -3])
            elif not _is_docstring(found, k):
                yield Token("string", token.string)
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield Token("name", token.string)
        elif token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
            yield Token("other", tokenize.tok_name[token.type])
        elif not _breaks_a_line(token, following):
            yield Token("other", token.string)


def _is_docstring(found: list[tokenize.TokenInfo], k: int) -> bool:
    """Whether a string is a whole statement."""
    ends = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return (k == 0 or found[k - 1].type in ends) and found[k + 1].type == tokenize.NEWLINE


def _breaks_a_line(token: tokenize.TokenInfo, following: tokenize.TokenInfo) -> bool:
    """Whether this is a comma behind which the line ends and a bracket closes."""
    closes = following.string in {")", "]", "}"}
    return token.string == "," and closes and following.start[0] > token.end[0]


def _cxx(text: str) -> Iterator[Token]:
    """Paragraph by paragraph, as most texts have most of theirs in common."""
    if "/*" in text:
        yield from _matched(CXX, text)
    else:
        for paragraph in text.split("\n\n"):
            yield from _paragraph(paragraph)


@cache
def _paragraph(text: str) -> tuple[Token, ...]:
    return tuple(_matched(CXX, text))


def _matched(pattern: re.Pattern[str], text: str) -> Iterator[Token]:
    for found in pattern.finditer(text):
        if found.lastgroup == "directive":
            yield from _directive(found[0])
        elif found.lastgroup == "name" and not (pattern is CXX and found[0] in CXX_KEYWORDS):
            yield Token("name", found[0])
        elif found.lastgroup == "string":
            yield Token("string", found[0])
        elif found.lastgroup != "skip":
            yield Token("other", " ".join(found[0].split()))


def _directive(text: str) -> Iterator[Token]:
    """A line for the preprocessor, which ends where the line does."""
    if re.match(r"#\s*include", text):
        yield Token("other", text)
    else:
        yield Token("other", "#")
        yield from _matched(CXX, text[1:])
    yield Token("other", "\n")


def _place(before: Iterable[Token], after: Iterable[Token], k: int) -> str:
    """Where two texts part, with some tokens before it."""
    near = slice(max(k - 8, 0), k + 4)
    old, new = (" ".join(t.text for t in list(side)[near]) for side in (before, after))
    return f"`{old}` became `{new}`"
