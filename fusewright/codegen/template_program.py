"""Units -> which of them a text reaches, with which template arguments, and what is decided there.

The text is gone through as a compiler would instantiate it, but without types of expressions: a
template gets every list of arguments that stands behind its name in what is reached, and unknown
ones where none stands there, or one has no known value. A branch that is not taken for a list of
arguments is not looked into for that list. A member is reached where its name stands behind a dot
or in a type, whatever is meant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from fusewright.codegen.constant_value import (
    BUILTIN,
    UNKNOWN,
    Step,
    Type,
    Unknown,
    Value,
    is_true,
    value_of,
)  # fmt: skip
from fusewright.codegen.cxx_code import Code, Range
from fusewright.codegen.library_units import (
    Condition,
    Declared,
    Directive,
    Macro,
    Mention,
    Parameter,
    Scope,
    Unit,
    unknown_arguments,
)  # fmt: skip

MOST_LISTS = 24  # lists of arguments of one template, beyond which all are unknown
DEPTH = 40  # of names that are looked up for each other

Arguments = tuple[Value, ...]


class Program:
    """The units of a library and of the text that uses it.

    reached: of each unit that is, its lists of arguments, those of the types around it first.
    decided: what each condition was, for all of these; None: unknown.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.named = defaultdict[str, list[Unit]](list)
        for unit in _with_members(units):
            for name in dict.fromkeys((unit.name, *_more_names(unit))):
                self.named[name].append(unit)
        self.reached: dict[Unit, dict[Arguments, Scope]] = {}
        self.decided = defaultdict[Unit, dict[int, set[bool | None]]](lambda: defaultdict(set))
        self._mentions = defaultdict[str, dict[Arguments | None, None]](dict)
        self._of_members = defaultdict[str, dict[Arguments | None, None]](dict)
        self._queue = list[tuple[Unit, Scope]]()
        self._waiting = dict[Unit, dict[Arguments, Scope]]()
        self._depth = 0

    def run(self) -> None:
        """Reach all that the units without a name reach."""
        for unit in self.units:
            if not unit.name or unit.fixed:
                self._reach(unit, unknown_arguments(unit), {})
        while self._queue:
            unit, scope = self._queue.pop()
            _Walk(self, unit, scope).over(unit.span)

    # ---- what is reached -------------------------------------------------------------------------

    def mention_member(self, name: str, arguments: Arguments | None) -> None:
        """A name stands in what is reached where a type's member can be meant."""
        known = self._of_members[name]
        if arguments in known:
            return
        known[arguments] = None
        for unit in self.named.get(name, ()):
            if unit.parent is not None:
                for outer, scope in list(self.reached.get(unit.parent, {}).items()):
                    self._instantiate(unit, arguments, scope, outer)

    def mention(self, name: str, arguments: Arguments | None) -> None:
        """A name stands in what is reached, with these arguments or none."""
        known = self._mentions[name]
        if arguments in known:
            return
        first = not known
        known[arguments] = None
        for unit in self.named.get(name, ()):
            if unit.parent is None:
                self._instantiate(unit, arguments, {}, ())
        if first:
            for unit in [u for u in self._waiting if not self.absent_types(u)]:
                for own, scope in self._waiting.pop(unit).items():
                    self._reach(unit, own, scope)

    def mention_all(self, event: Directive | Macro) -> None:
        """Names of macros, and what these make of them."""
        for name in event.names:
            self.mention(name, None)
            self.mention_member(name, None)
        if isinstance(event, Directive) and event.pasted:
            for name in [n for n in self.named if n.startswith(event.pasted)]:
                self.mention(name, None)

    def _instantiate(
        self, unit: Unit, arguments: Arguments | None, outer: Scope, before: Arguments
    ) -> None:
        found = self.bound(unit, arguments, outer)
        if found is None:
            return
        own = (*before, *(found.get(p.name, UNKNOWN) for p in unit.parameters))
        scope = {**outer, **found}
        if self.absent_types(unit):
            self._waiting.setdefault(unit, {})[own] = scope
        else:
            self._reach(unit, own, scope)

    def _reach(self, unit: Unit, arguments: Arguments, scope: Scope) -> None:
        known = self.reached.setdefault(unit, {})
        if arguments in known:
            return
        if len(known) >= MOST_LISTS:
            arguments = (UNKNOWN,) * len(arguments)
            if arguments in known:
                return
            scope = dict.fromkeys(scope, UNKNOWN)
        known[arguments] = scope
        self._queue.append((unit, scope))
        if unit.special is not None:
            self._reach_template_of(unit)
        for member in unit.members:
            for asked in list(self._of_members.get(member.name, ())):
                self._instantiate(member, asked, scope, arguments)

    def _reach_template_of(self, special: Unit) -> None:
        """A specialisation needs the template that it is one of: of a type, what declares it."""
        for unit in self.named[special.name]:
            if unit.special is not None or unit.kind != special.kind:
                continue
            if unit.kind != "type":
                self._instantiate(unit, None, {}, ())
                continue
            for k in range(unit.span[0], unit.at):
                self.mention(unit.code.words[k], None)

    def absent_types(self, unit: Unit) -> bool:
        """Whether a function among others of its name takes a type that nothing reached names."""
        return any(not self._mentions.get(name) for name in self._deciding_types.get(unit, ()))

    @cached_property
    def _in_macros(self) -> frozenset[str]:
        """The names in macros, which may define specialisations that nobody sees."""
        return frozenset(
            name
            for unit in self.units
            for event in unit.events.values()
            if isinstance(event, Directive) and event.text.startswith("#define")
            for name in event.names
        )

    @cached_property
    def _deciding_types(self) -> dict[Unit, frozenset[str]]:
        """Of specialisations: the types that they are for. Of overloads: the types that they take,
        where nobody makes these of something else, or by braces."""
        types = {
            name
            for name, units in self.named.items()
            if all(u.kind == "type" and u.parent is None for u in units)
        }
        plain = {name for name in types if not any(map(_is_constructed, self.named[name]))}
        plain.add("double")
        # A list of arguments behind a name is only read as one behind the first template so called.
        kept = {name for unit in self.units for name in _called_with_braces(unit.code)}
        kept |= {
            event.name
            for unit in _with_members(self.units)
            for event in unit.events.values()
            if isinstance(event, Mention) and event.arguments is not None
        }
        found = dict[Unit, frozenset[str]]()
        for name, units in self.named.items():
            for unit in [u for u in units if u.parent is None and not u.fixed]:
                words = unit.code.words
                if unit.special is not None:
                    special = {word for part in unit.special for word in words[slice(*part)]}
                    found[unit] = frozenset(special & types - {unit.name})
                elif unit.kind == "function" and len(units) > 1 and name not in kept:
                    found[unit] = frozenset(words[slice(*unit.signature)]) & plain
        return found

    # ---- arguments of templates ------------------------------------------------------------------

    def bound(self, unit: Unit, arguments: Arguments | None, outer: Scope) -> Scope | None:
        """Its parameters with these arguments; None where they cannot be meant."""
        if unit.kind == "function":
            return self._deduced(unit, arguments or (), outer)
        if arguments is None and unit.is_template:
            return dict.fromkeys((p.name for p in unit.parameters if p.name), UNKNOWN)
        if unit.special is None:
            if self._is_replaced(unit, arguments or ()):
                return None
            return self._filled(unit, unit.parameters, arguments or (), outer)
        matched = self.matched(unit, self.completed(unit.name, arguments or ()))
        return None if matched is None else matched[0]

    def _is_replaced(self, unit: Unit, arguments: Arguments) -> bool:
        """Whether a specialisation is surely meant in place of a type or constant."""
        special = [u for u in self.named[unit.name] if u.special is not None]
        full = self.completed(unit.name, arguments) if special else None
        found = [self.matched(u, full) for u in special]
        return any(m is not None and m[1] for m in found)

    def _deduced(self, unit: Unit, arguments: Arguments, outer: Scope) -> Scope | None:
        """Of a function: what stands in its signature may be anything."""
        listed = unit.parameters
        if unit.special is not None:
            return {}
        if len(arguments) > len(listed) and not any(p.pack for p in listed):
            return None
        if any(_unlike(p, a) for p, a in zip(listed, arguments, strict=False) if not p.pack):
            return None
        taken = {unit.code.words[k] for k in range(*unit.signature)}
        scope = self._filled(unit, listed, arguments, outer)
        for p in listed[len(arguments) :]:
            if p.name in taken or p.default is None:
                scope[p.name] = UNKNOWN
        return scope

    def _filled(
        self, unit: Unit, listed: Sequence[Parameter], arguments: Arguments, outer: Scope
    ) -> Scope:
        """Parameters with arguments, or their defaults."""
        scope = Scope()
        for k, p in enumerate(listed):
            value: Value = UNKNOWN
            if k < len(arguments) and not p.pack:
                value = arguments[k]
            elif not p.pack and (default := self._default(unit, k)):
                value = self.value(*default, {**outer, **scope})
            if p.name:
                scope[p.name] = value
        return scope

    def _default(self, unit: Unit, k: int) -> tuple[Unit, Range] | None:
        """The default of a parameter, which another declaration of the name may have."""
        for other in [unit, *(self.named[unit.name] if unit.kind == "type" else ())]:
            if other.kind == unit.kind and other.special is None and k < len(other.parameters):
                part = other.parameters[k].default
                if part:
                    return other, part
        return None

    def completed(self, name: str, arguments: Arguments) -> Arguments | None:
        """The arguments of a type or constant with defaults; None: nobody knows how many."""
        primary = next((u for u in self.named[name] if u.special is None), None)
        if primary is None or any(p.pack for p in primary.parameters):
            return None
        scope = self._filled(primary, primary.parameters, arguments, {})
        found = list(arguments)
        for p in primary.parameters[len(arguments) :]:
            found.append(scope.get(p.name, UNKNOWN) if p.name else UNKNOWN)
        return tuple(found)

    def matched(self, unit: Unit, arguments: Arguments | None) -> tuple[Scope, bool] | None:
        """The parameters of a specialisation, and whether it is surely meant; None: surely not."""
        assert unit.special is not None
        scope: Scope = dict.fromkeys((p.name for p in unit.parameters if p.name), UNKNOWN)
        if arguments is None:
            return scope, False
        if len(unit.special) != len(arguments):
            return None
        sure, seen = True, set[str]()
        for part, given in zip(unit.special, arguments, strict=True):
            words = unit.code.words[slice(*part)]
            if len(words) == 1 and words[0] in scope:
                sure = sure and words[0] not in seen
                seen.add(words[0])
                scope[words[0]] = given
                continue
            wanted = self.value(unit, part, scope)
            same = _same(wanted, given)
            if same is False:
                return None
            sure = sure and same is True
        return scope, sure

    def candidates(self, name: str, arguments: Arguments) -> list[tuple[Unit, Scope]]:
        """What a type or constant with these arguments can be."""
        full = self.completed(name, arguments)
        units = [u for u in self.named.get(name, ()) if u.kind in ("type", "constant", "alias")]
        special = [(u, self.matched(u, full)) for u in units if u.special is not None]
        found = [(u, m[0]) for u, m in special if m]
        if not any(m and m[1] for _, m in special):
            found += [
                (u, self._filled(u, u.parameters, arguments, {}))
                for u in units
                if u.special is None and (u.kind != "type" or u.body != (0, 0))
            ]
        return found

    # ---- values ----------------------------------------------------------------------------------

    def value(self, unit: Unit, part: Range, scope: Scope) -> Value:
        """Of words of a unit."""
        if self._depth > DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            return value_of(
                unit.code, part, lambda code, steps: self._name(code, steps, unit, scope)
            )
        finally:
            self._depth -= 1

    def _name(self, code: Code, steps: Sequence[Step], unit: Unit, scope: Scope) -> Value:
        """Of a name, with what stands between its `::`."""
        first = steps[0]
        if first.arguments is None:
            value = self._plain(first.word, unit, scope)
        else:
            arguments = tuple(self.value(unit, part, scope) for part in first.arguments)
            value = self._with_arguments(first.word, arguments, code, first.arguments)
        for step in steps[1:]:
            if step.arguments is not None or not isinstance(value, Type):
                return UNKNOWN
            value = self.member(value, step.word)
        return value

    def _plain(self, name: str, unit: Unit, scope: Scope) -> Value:
        if name in scope:
            return scope[name]
        around: Unit | None = unit
        while around is not None:
            if around.kind == "type":
                if name in around.values:
                    return self.value(around, around.values[name], _outer_scope(around, scope))
                if name == around.name and around.parameters:
                    return UNKNOWN
            if around.declared[name] and around.name != name:
                return UNKNOWN
            around = around.parent
        return self._global(name)

    def _global(self, name: str) -> Value:
        if name in BUILTIN:
            return Type(name)
        units = [u for u in self.named.get(name, ()) if u.parent is None]
        kinds = {u.kind for u in units}
        if kinds == {"type"}:
            return UNKNOWN if any(u.is_template for u in units) else Type(name)
        if len(units) == 1 and not units[0].is_template:
            unit = units[0]
            if unit.kind == "constant" and name in unit.values:
                return self.value(unit, unit.values[name], {})
            if unit.kind == "alias":
                return self.value(unit, unit.body, {})
        return UNKNOWN

    def _with_arguments(
        self, name: str, arguments: Arguments, code: Code, parts: Sequence[Range]
    ) -> Value:
        if any("..." in code.words[a:b] for a, b in parts) or name in self._in_macros:
            return UNKNOWN
        units = [u for u in self.named.get(name, ()) if u.parent is None]
        kinds = {u.kind for u in units}
        if kinds == {"type"}:
            full = self.completed(name, arguments)
            return UNKNOWN if full is None else Type(name, full)
        if kinds not in ({"constant"}, {"alias"}):
            return UNKNOWN
        found = [
            self.value(u, u.values.get(name, (0, 0)) if u.kind == "constant" else u.body, scope)
            for u, scope in self.candidates(name, arguments)
        ]
        same = bool(found) and all(value == found[0] for value in found)
        return found[0] if same else UNKNOWN

    def member(self, of: Type, name: str) -> Value:
        """A constant or a type that a type has."""
        if self._depth > DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            found = [self._member_of(u, s, name) for u, s in self.candidates(of.name, of.arguments)]
        finally:
            self._depth -= 1
        return found[0] if found and all(value == found[0] for value in found) else UNKNOWN

    def _member_of(self, unit: Unit, scope: Scope, name: str) -> Value:
        if unit.kind == "alias":
            aliased = self.value(unit, unit.body, scope)
            return self.member(aliased, name) if isinstance(aliased, Type) else UNKNOWN
        if name in unit.values:
            return self.value(unit, unit.values[name], scope)
        if unit.declared[name]:
            return UNKNOWN
        for part in unit.bases:
            base = self.value(unit, part, scope)
            if not isinstance(base, Type):
                return UNKNOWN
            value = self.member(base, name)
            if not isinstance(value, Unknown):
                return value
        return UNKNOWN


class _Walk:
    """Goes through a unit's text for one list of template arguments."""

    def __init__(self, program: Program, unit: Unit, scope: Scope) -> None:
        self.program, self.unit, self.scope = program, unit, dict(scope)

    def over(self, part: Range) -> None:
        """All of a range, in order."""
        k = part[0]
        events = self.unit.events
        for at in self.unit.places(part):
            if at < k:
                continue
            event = events[at]
            if isinstance(event, Mention):
                self._mention(event)
            elif isinstance(event, Directive | Macro):
                self.program.mention_all(event)
            elif isinstance(event, Declared):
                self._declare(event)
            else:
                k = self._condition(event, part[1])

    def _mention(self, event: Mention) -> None:
        arguments: Arguments | None = None
        if event.arguments is None and not event.is_member and _is_own(self.unit, event.name):
            return
        if event.arguments is not None and event.name in self.program.named:
            code = self.unit.code
            if not any("..." in code.words[a:b] for a, b in event.arguments):
                arguments = tuple(
                    self.program.value(self.unit, part, self.scope) for part in event.arguments
                )
        if not event.is_member or event.is_scoped:
            self.program.mention(event.name, arguments)
        inside = self.unit.kind == "type" or self.unit.parent is not None
        if event.is_member or (inside and event.is_call):
            self.program.mention_member(event.name, arguments)

    def _declare(self, event: Declared) -> None:
        for name, part in event.values:
            once = self.unit.declared[name] <= 1
            value = self.program.value(self.unit, part, self.scope) if once else UNKNOWN
            self.scope[name] = value

    def _condition(self, event: Condition, end: int) -> int:
        """Goes through what may run; the word from which on it goes on."""
        value = self.condition(event)
        self.program.decided[self.unit][event.start].add(value)
        if value is None:
            self.over(event.asked)
            self.over(event.then)
            self.over(event.otherwise)
            return event.end
        taken = event.then if value else event.otherwise
        self.over(taken)
        if event.in_block and leaves(self.unit.code, taken):
            return block_end(self.unit.code, event, end)
        return event.end

    def condition(self, event: Condition) -> bool | None:
        """What it is for these arguments."""
        if not event.movable or self.unit.fixed:
            return None
        asked = event.asked if event.is_constexpr else _first_operands(self.unit.code, event.asked)
        value = is_true(self.program.value(self.unit, asked, self.scope))
        if asked != event.asked and value is not None:
            decides = self.unit.code.words[asked[1]] == "||"
            value = value if value == decides else None
        taken = event.then if value else event.otherwise
        return value if event.in_block or taken[0] < taken[1] else None


def leaves(code: Code, part: Range) -> bool:
    """Whether nothing runs behind this statement in its block."""
    k = part[0]
    if k >= part[1]:
        return False
    if code.words[k] != "{":
        return code.words[k] == "return"
    last, k = k, k + 1
    while k < part[1] - 1:
        last, k = k, code.statement_end(k)
    return code.words[last] == "return"


def block_end(code: Code, event: Condition, end: int) -> int:
    """The word that closes the block in which a condition stands."""
    k = event.end
    while k < end and code.words[k] != "}":
        k = code.behind_group(k)
    return k


def _first_operands(code: Code, asked: Range) -> Range:
    """Of a condition that does something, as calls may: the operand that is always asked."""
    words = code.words[slice(*asked)]
    acts = any(
        (word == "(" and words[k - 1].isidentifier() and k > 0) or word in ("++", "--", "=", "->")
        for k, word in enumerate(words)
    )
    if not acts:
        return asked
    for mark in ("||", "&&"):
        parts = code.split(*asked, mark=mark)
        if len(parts) > 1:
            return parts[0]
    return asked


def _with_members(units: Iterable[Unit]) -> Iterator[Unit]:
    for unit in units:
        yield unit
        yield from _with_members(unit.members)


def _more_names(unit: Unit) -> Iterable[str]:
    """Those of constants that stand behind another, in one statement."""
    return unit.values if unit.kind == "constant" else ()


def _is_own(unit: Unit | None, name: str) -> bool:
    """Whether a name without arguments is what the text around it has for itself: the type that it
    is in, with that type's arguments, or one of its own names."""
    while unit is not None and not (unit.kind == "type" and unit.name == name):
        if name in unit.own_names:
            return True
        unit = unit.parent
    return unit is not None


def _outer_scope(around: Unit, scope: Scope) -> Scope:
    """What the template arguments of a type say, in the scope of a member."""
    names = {p.name for p in around.parameters}
    parent = around.parent
    while parent is not None:
        names |= {p.name for p in parent.parameters}
        parent = parent.parent
    return {name: value for name, value in scope.items() if name in names}


def _unlike(parameter: Parameter, value: Value) -> bool:
    """Whether an argument cannot be one of this parameter."""
    if isinstance(value, Unknown):
        return False
    return parameter.number == isinstance(value, Type)


def _same(wanted: Value, given: Value) -> bool | None:
    """Whether two values are one; None: unknown."""
    if isinstance(wanted, Unknown) or isinstance(given, Unknown):
        return None
    if isinstance(wanted, Type) and isinstance(given, Type) and wanted.name == given.name:
        parts = [_same(a, b) for a, b in zip(wanted.arguments, given.arguments, strict=False)]
        if len(wanted.arguments) != len(given.arguments):
            return None
        return False if False in parts else None if None in parts else True
    return wanted == given


def _is_constructed(unit: Unit) -> bool:
    """Whether a type may come from something else: a constructor that is not explicit."""
    code = unit.code
    return any(
        code.words[k] == unit.name
        and code.at(k + 1) == "("
        and code.at(k - 1) in ("}", ";", "{", ">", "FN")
        and code.at(k - 1) != "explicit"
        for k in range(*unit.body)
    )


def _called_with_braces(code: Code) -> Iterator[str]:
    """The names of functions that are called with `{...}` as an argument, without others before."""
    for k, word in enumerate(code.words):
        called = word == "(" and code.at(k - 1).isidentifier()
        if called and any(
            code.words[a] == "{" for a, b in code.split(k + 1, code.partner[k]) if a < b
        ):
            yield code.words[k - 1]
