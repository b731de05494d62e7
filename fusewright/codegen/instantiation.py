"""Device library + generated text -> the definitions and the branches that the text instantiates.

A template's argument often decides what of its body is ever run: which operand is split, whether a
sum is shared between blocks. Where all of its uses say the same, the reader gets the branch that is
taken, and not the others, nor what only they call. Machine code is the same with and without.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.codegen.cxx_code import Code, Range
from fusewright.codegen.dead_code import Definition, definitions, drop_unreached, joined
from fusewright.codegen.library_units import Condition, Unit, fixed_units, is_declared, unit_of
from fusewright.codegen.template_program import Program, block_end, leaves

ROUNDS = 8  # after which nothing more is found; most texts need two or three


def only_instantiated(library: str, generated: str) -> str:
    """The text of `library` that `generated` instantiates, in order."""
    for _ in range(ROUNDS):
        before, library = library, _resolved(drop_unreached(library, generated), generated)
        if before == library:
            break
    return library


def _resolved(library: str, generated: str) -> str:
    """Without what one look at all templates finds to be unused."""
    given = definitions(library)
    units = [unit_of(d.text) for d in given]
    program = Program([*units, *fixed_units(generated)])
    program.run()
    special = {unit.name for unit in program.reached if unit.special is not None}
    kept = list[tuple[Definition, str]]()
    for d, unit in zip(given, units, strict=True):
        if not unit.name:
            kept.append((d, d.text))
        elif unit in program.reached:
            kept.append((d, _Rewriting(program, unit).text()))
        elif unit.name in special and unit.kind == "type" and unit.special is None:
            kept.append((d, _declaration(unit)))
    return joined(kept)


def _declaration(unit: Unit) -> str:
    """What a template of a type is, where only specialisations of it are meant."""
    return f"{unit.code.text[: unit.code.ends[unit.at]]};"


class _Rewriting:
    """One definition, with the branches that are taken in place of the conditions."""

    def __init__(self, program: Program, unit: Unit) -> None:
        self.code: Code = unit.code
        self.program = program
        self.decided = dict[int, tuple[Condition, bool]]()
        self.gone = list[tuple[int, int]]()  # letters of members that nothing calls
        self._collect(unit)

    def _collect(self, unit: Unit) -> None:
        for k, values in self.program.decided[unit].items():
            event = unit.events[k]
            (value,) = values if len(values) == 1 else (None,)
            if value is not None and isinstance(event, Condition):
                self.decided[k] = event, value
        for member in unit.members:
            if member in self.program.reached:
                self._collect(member)
            else:
                self.gone.append(_lines_of(self.code, member.span))

    def text(self) -> str:
        """The whole definition."""
        return self._rendered(0, len(self.code.text))

    def _rendered(self, start: int, end: int) -> str:
        """The letters from `start` to before `end`, without what is gone there."""
        parts, at = list[str](), start
        for first, last, instead in self._edits(start, end):
            parts += [self.code.text[at:first], instead]
            at = last
        return "".join([*parts, self.code.text[at:end]])

    def _edits(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """What is replaced, outermost first, from left to right."""
        code, behind = self.code, start
        marks = [(first, last, -1) for first, last in self.gone]
        marks += [(code.starts[k], 0, k) for k in self.decided]
        for first, last, k in sorted(marks):
            if first < behind or first >= end:
                continue
            if k >= 0:
                first, last, instead = self._replaced(k)
            else:
                instead = ""
            yield first, last, instead
            behind = last

    def _replaced(self, k: int) -> tuple[int, int, str]:
        """The letters of a condition that is decided, and what stands in their place."""
        code, (event, value) = self.code, self.decided[k]
        taken = event.then if value else event.otherwise
        if taken[0] >= taken[1]:
            return *self._without(event), ""
        start, end = code.starts[k], code.ends[event.end - 1]
        column = start - (code.text.rfind("\n", 0, start) + 1)
        instead = self._rendered(code.starts[taken[0]], code.ends[taken[1] - 1])
        own = code.text.rfind("\n", 0, code.starts[taken[0]]) + 1
        in_line = own > code.starts[k]  # the branch has a line of its own
        if code.is_directive(taken[0]):
            start, instead = start - column, _moved(instead, 2)
        elif code.at(taken[0]) == "{" and event.in_block and self._is_open(event, taken):
            instead = _moved(instead[1:-1].strip("\n"), 2).strip()
            start -= column * instead.startswith("#")
        elif in_line and code.at(k - 1) != "else" and code.at(taken[0]) != "{":
            instead = _moved(instead, code.starts[taken[0]] - own - column)
        if event.in_block and leaves(code, taken):
            closes = block_end(code, event, len(code.words))
            if closes > event.end:
                end = code.ends[closes - 1]
        return start, end, instead

    def _without(self, event: Condition) -> tuple[int, int]:
        """The letters of a condition that does nothing, with the comment right above it."""
        code = self.code
        if code.at(event.start - 1) == "else":
            return code.ends[event.start - 2], code.ends[event.end - 1]
        return _lines_of(code, (event.start, event.end))

    def _is_open(self, event: Condition, block: Range) -> bool:
        """Whether what a block declares can stand in the block around it."""
        code = self.code
        inside = {code.words[k] for k in range(*block) if code.words[k].isidentifier()}
        opens = event.start
        while opens >= 0 and not (code.at(opens) == "{" and code.partner.get(opens, 0) > opens):
            opens = code.partner[opens] - 1 if code.at(opens) in (")", "]", "}") else opens - 1
        closes = code.partner.get(opens, len(code.words))
        outside = {code.words[k] for k in (*range(opens, event.start), *range(event.end, closes))}
        return not (self._declared(block) & outside & inside)

    def _declared(self, block: Range) -> set[str]:
        """The names that the statements of a block declare for those behind them."""
        code, k, found = self.code, block[0] + 1, set[str]()
        while k < block[1] - 1:
            end = code.statement_end(k)
            while code.is_directive(k):
                k += 1
            if code.at(k) not in ("if", "for", "while", "do", "switch", "{", "return"):
                found |= {code.words[j] for j in range(k, end) if is_declared(code, j)}
            k = end
        return found


def _lines_of(code: Code, part: Range) -> tuple[int, int]:
    """The letters of whole lines, with the comment right above; or of the words alone, if others
    stand in their lines."""
    text = code.text
    start, end = code.starts[part[0]], code.ends[part[1] - 1]
    line = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    rest = text[end:stop].strip()
    if text[line:start].strip() or (rest and not rest.startswith("//")):
        return start, end
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        if not text[above:line].lstrip().startswith("//"):
            break
        line = above
    return line, min(stop + 1, len(text))


def _moved(text: str, columns: int) -> str:
    """A text whose lines but the first are moved to the left."""
    first, *rest = text.split("\n")
    return "\n".join(
        [first, *(line[columns:] if not line[:columns].strip() else line for line in rest)]
    )
