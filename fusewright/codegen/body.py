"""Nest + BodyPolicy -> KernelText: the generated struct, the same text for C++ and CUDA.

The text has no loop, barrier or vector load: it asks a `team` for them (devicelib/). Every member
of the kernel is one named line; lambdas hold what depends on the column, the rest stands once per
row. A value that a later pass needs again is kept or computed again, as the policy says. Where a
CPU takes rows side by side, `real` is a number of a row, or one of each of many rows.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from fusewright.codegen.cxx_literal import cxx_literal
from fusewright.codegen.kernel_symbols import fallback_struct, symbols
from fusewright.codegen.kernel_text import (
    ABREAST,
    TYPES,
    Does,
    KernelText,
    PassText,
    Pointer,
    compute_type,
    counting,
    operators,
    slots,
    spelling,
    windows,
)
from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.codegen.value_names import NUMBERED, KernelNames, Role, ValueNames
from fusewright.fusion.axes import Load
from fusewright.ir.graph import Attribute, BatchSize, Node, Size, size_text, times
from fusewright.loopnest.nest import AffineAccess, Nest, with_fixed
from fusewright.loopnest.reduction_passes import BEFORE_PASSES, RowPass, plan_row, read_key
from fusewright.loopnest.vector_width import known_factor


def body(
    nest: Nest,
    policy: BodyPolicy,
    launch: Launch,
    in_place: Sequence[tuple[Node, Node]] = (),
    names: ValueNames = NUMBERED,
) -> KernelText:
    """Print one kernel; `in_place` pairs (result, leaf whose memory it takes over)."""
    printed = _Printer(nest, policy, tuple(in_place), names).body(launch)
    if not (other := launch.fallback):
        return printed
    again = body(nest, other.policy, other.launch, in_place, names)
    name = fallback_struct(printed.name)
    text = again.text.replace(f"struct {printed.name} ", f"struct {name} ", 1)
    return replace(printed, fallback=replace(again, name=name, text=text))


class _Printer:
    def __init__(
        self,
        nest: Nest,
        policy: BodyPolicy,
        in_place: tuple[tuple[Node, Node], ...],
        names: ValueNames,
    ) -> None:
        self.nest, self.kernel = with_fixed(nest, policy.fixed_sizes), nest.kernel
        self.policy, self.row = policy, plan_row(nest, policy.keep)
        self.in_place, self.is_map = in_place, not self.kernel.reductions
        self.lifted: set[tuple[str, int]] = set()
        taken = symbols(self.kernel.name).union(policy.struct_constants, nest.free)
        self.given = KernelNames(names, self.kernel.leaves, taken)
        self.pointers = self._pointers()
        named = (m for m in self.kernel.members if m is not self.kernel.anchor)
        self.numbers = {id(m): k for k, m in enumerate(named)}
        self.names = {
            id(m): self.given.give(Role.MEMBER, self.numbers[id(m)], m)
            for m in self.kernel.members
            if id(m) in self.numbers
        }
        self.lines: list[str] = []
        self.row_reads: dict[Hashable, str] = {}
        self.row_numbers = itertools.count()
        self.inverted: dict[str, str] = {}
        self.found: dict[int, str] = {}  # pass -> the name of what it finds together
        self.slot_numbers = slots(self.row)
        self.slots = self._slots()
        self.pointer_of = {id(p.node): p.name for p in self.pointers}
        self.pointer_of.update({id(leaf): self.pointer_of[id(out)] for out, leaf in in_place})

    def _pointers(self) -> tuple[Pointer, ...]:
        taken = {id(leaf) for _, leaf in self.in_place}
        leaves = [n for n in self.kernel.leaves if id(n) not in taken]
        memory = {id(out): leaf for out, leaf in self.in_place}
        roles: tuple[tuple[Role, Does, Sequence[Node]], ...] = (
            (Role.OPERAND, "operand", leaves),
            (Role.RESULT, "result", self.kernel.outputs),
            (Role.COUNTER, "counter", self.kernel.counters),
        )
        return tuple(
            Pointer(self.given.give(role, k, memory.get(id(n), n)), n, TYPES[n.dtype][0], does)
            for role, does, nodes in roles
            for k, n in enumerate(nodes)
        )

    def _slots(self) -> dict[Hashable, str]:
        """The name of the kept row that each kept value has: that of the value, if it is alone."""
        found = self.slot_numbers
        shared = {slot for slot, some in Counter(found.values()).items() if some > 1}
        return {
            key: self.given.give(
                Role.KEPT_ROW, slot, "shared" if slot in shared else self._kept_word(key), slot
            )
            for key, slot in found.items()
        }

    def _kept_word(self, key: Hashable) -> Node | str:
        kept = self.row.keeps[key].node
        return self.names.get(id(kept), kept)

    # -- the struct

    def body(self, launch: Launch) -> KernelText:
        if self.row.ahead:
            loads = PassText(BEFORE_PASSES)
            for m, k in self.row.ahead:
                self._element_argument(loads, m, k)
            self._team_call("each", "", loads)
        for number, sweep in enumerate(self.row.passes):
            self._row_lines(sweep.level)
            (self._reduction_pass if sweep.reductions else self._store_pass)(number, sweep)
        self._row_stores()
        pointers = "  ".join(f"{p.declaration};" for p in self.pointers)
        runs = "class Team, class Range" if self.is_map else "class Team"
        arguments = "long row, Range range, Team team" if self.is_map else "long row, Team team"
        if self.kernel.anchor:
            runs, arguments = f"{runs}, class Accumulator", f"{arguments}, Accumulator accumulator"
        rows = f"  FN long rows() const {{ return {size_text(self.nest.rows)}; }}"
        head = [f"// {operators(self.kernel)}", f"struct {self.kernel.name} {{"]
        head += [f"  {pointers}  long {', '.join(self.nest.free)};", rows]
        if self.policy.simd_rows:
            head.append(f"  FN long beside() const {{ return {size_text(self.nest.beside)}; }}")
        if self.nest.down:
            head.append(f"  FN long lines() const {{ return {size_text(self.nest.outer)}; }}")
        if self.is_map:
            head.append(f"  FN long columns() const {{ return {size_text(self.nest.columns)}; }}")
        if constants := self.policy.struct_constants:
            said = ", ".join(f"{name} = {value}" for name, value in constants.items())
            head.append(f"  static constexpr int {said};")
        head.append(f"  template <{runs}> FN void operator()({arguments}) const {{")
        self.lines = [*self._kept_lines(), *self.lines]
        inside = [*self._kinds(), *self.nest.coordinates, *self.lines]
        text = "\n".join([*head, *(f"    {line}" for line in inside), "  }", "};"])
        return KernelText(
            self.kernel.name, text, self.pointers, self.in_place, self.is_map,
            len(self.row.passes), launch, frozenset(self.lifted), free=self.nest.free,
        )  # fmt: skip

    def _kind(self, n: Node) -> str:
        """The type of a member or of what is read, as the text calls it."""
        return ABREAST[compute_type(n)] if self.policy.simd_rows else compute_type(n)

    def _kinds(self) -> list[str]:
        """What `real`, `truth` and `whole` are to this team."""
        spoken = {word for line in self.lines for word in re.findall(r"\w+", line)}
        return [
            f"using {name} = typename Team::template one<{kind}>;"
            for kind, name in ABREAST.items()
            if self.policy.simd_rows and name in spoken
        ]

    def _row_lines(self, level: int) -> None:
        """Members that are one number per row, as soon as their reductions are done."""
        for m in self.kernel.members:
            swept = m.row.kind == "reduction" and id(m) not in self.row.exponentials
            known = id(m) in self.row.element or swept or id(m) in self.row_reads
            if not known and self.row.level[id(m)] <= level:
                self.row_reads[id(m)] = self.names[id(m)]
                self.lines.append(self._row_line(m))

    def _row_line(self, m: Node) -> str:
        if id(m) not in self.row.exponentials:
            return self._line(m, lambda n, k: self._row_argument(n, k))
        pair = self.row.exponentials[id(m)]
        number = next(k for k, p in enumerate(self.row.passes) if pair.top in p.reductions)
        value = f"{self.found[number]}.sum({self.names[id(pair.shift)]})"
        return f"const {self._kind(m)} {self.names[id(m)]} = {value};"

    # -- passes

    def _reduction_pass(self, number: int, sweep: RowPass) -> None:
        first = sweep.reductions[0]
        text = PassText(number, "divided_alone" * self.policy.inverts_divisors)
        value = self._element_argument(text, first, 0)
        text.lines.append(f"return {value};")
        kind, name = self._kind(first), self.names[id(first)]
        if any(f.op == "m2" for f in sweep.reductions):
            found = self._found(Role.MOMENTS, number, value)
            self._team_call("moments", f"const auto {found} = ", text)
            for f in sweep.reductions:
                self.lines.append(f"const {self._kind(f)} {self.names[id(f)]}({found}.{f.op});")
        elif len(sweep.reductions) > 1:
            found = self._found(Role.ONLINE_SOFTMAX, number, value)
            self._team_call("online_softmax", f"const auto {found} = ", text)
            self.lines.append(f"const {kind} {name} = {found}.max;")
        elif first.row.kind == "scan":
            self._team_call(first.op, "", text, f"{self.slots[id(first)]}, ")
        elif first.op == "mean" and not text.parameters and 0 not in self._sizes():
            self.lines.append(f"const {kind} {name} = {value};")  # of equal numbers, unrounded
        elif first.op == "mean":
            summed = self._kind(first.args[0])
            total = self.given.give(Role.SUM, self.numbers[id(first)], first)
            self._team_call("sum", f"const {summed} {total} = ", text)
            count = cxx_literal(times(self.nest.outer, self.nest.columns), compute_type(first))
            total = total if summed == kind else f"({kind}){total}"
            self.lines.append(f"const {kind} {name} = {total} / {count};")
        else:
            self._team_call(first.op, f"const {kind} {name} = ", text)

    def _found(self, role: Role, number: int, value: str) -> str:
        """The name of what a pass finds together of a value."""
        self.found[number] = self.given.give(role, number, value, number)
        return self.found[number]

    def _store_pass(self, number: int, sweep: RowPass) -> None:
        single = len(sweep.outputs) == 1  # registers
        text = PassText(number, "divided" * (self.policy.inverts_divisors and single))
        for k, n in enumerate(sweep.outputs):
            value = self._element(text, n)
            element = self.given.give(Role.PLACE, k, value if value.isidentifier() else n, k)
            text.parameters.append(f"{self._kind(n)}& {element}")
            place = self._operand("store", self.pointer_of[id(n)], self.nest.writes[id(n)])
            text.operands.append(f"staged_row({place})" if self.policy.placed_reads else place)
            text.lines.append(f"{element} = {value};")
        self._team_call("each", "", text)

    def _team_call(self, verb: str, result: str, text: PassText, row: str = "") -> None:
        parameters = ", ".join(text.parameters)
        operands = "".join(f", {o}" for o in text.operands)
        length = self.kernel.loops.stored_length if verb == "each" else None
        span = "range" if self.is_map else self._span(length)
        returns = " -> real" if self.policy.simd_rows and verb != "each" else ""
        head, tail = (f"divides({text.denominator}, ", ")") if text.denominator else ("", "")
        self.lines.append(f"{result}team.{verb}({span}, {row}{head}[&]({parameters}){returns} {{")
        self.lines += [f"  {line}" for line in text.lines]
        self.lines.append(f"}}{tail}{operands});")

    def _span(self, length: int | None = None) -> str:
        inside = str(length) if length else ", ".join(map(size_text, self._sizes()))
        run_time = any(isinstance(s, BatchSize) for s in self._sizes())
        return f"span({inside})" if run_time else f"fixed<{inside}>"

    def _sizes(self) -> list[Size]:
        """The sizes of a row."""
        return [*[self.nest.outer] * (self.nest.outer != 1), self.nest.columns]

    def _row_stores(self) -> None:
        last = self.row.passes[-1]
        mark = len(self.lines) if last.outputs else None
        self._row_lines(max(self.row.level.values(), default=0))
        self.lines, once = self.lines[:mark], self.lines[mark:] if last.outputs else []
        rows = [n for n in self.kernel.outputs if not any(n is o for o in last.outputs)]
        once += [self._row_write(n) for n in rows] + counting(self.pointers)
        if rows or self.kernel.counters:
            self.lines += ["team.once([&] {", *(f"  {line}" for line in once), "});"]

    def _row_write(self, n: Node) -> str:
        base = self.nest.writes[id(n)].base
        return f"write({self.pointer_of[id(n)]}, {base}, {self.names[id(n)]});"

    # -- values inside a pass

    def _element(self, text: PassText, m: Node) -> str:
        """The name of member `m` in this pass, after the lines that compute it."""
        if id(m) not in self.row.element:
            return self.names[id(m)]
        if id(m) in text.known:
            return text.known[id(m)]
        if m is self.kernel.anchor:
            name = text.known[id(m)] = self.given.give(Role.READ, next(text.numbers), m)
            text.read(name, compute_type(m), "accumulator")
            return name
        name = text.known[id(m)] = self.names[id(m)]
        if self._load_kept(text, id(m), self._kind(m), name):
            return name
        if text.divides and id(m) in self.row.quotients:
            text.lines.append(self._quotient(text, m))
        else:
            text.lines.append(self._line(m, lambda n, k: self._element_argument(text, n, k)))
        self._store_kept(text, id(m), self._kind(m), name)
        return name

    def _quotient(self, text: PassText, m: Node) -> str:
        """A division by a number of the row, which is inverted once; a last pass has but one."""
        value, by = (self._element_argument(text, m, k) for k in range(2))
        if text.denominator not in ("", self.inverted.get(by)):
            return f"const float {self.names[id(m)]} = {value} / {by};"
        if by not in self.inverted:
            number = len(self.inverted)
            self.inverted[by] = self.given.give(Role.DIVISOR, number, m.args[1], by)
            self.lines.append(f"denominator {self.inverted[by]}({by});")
        text.denominator = self.inverted[by] * (text.divides == "divided")
        return f"const float {self.names[id(m)]} = {text.divides}({value}, {self.inverted[by]});"

    def _element_argument(self, text: PassText, m: Node, k: int) -> str:
        edge = self.kernel.loops.edges[id(m), k]
        if not isinstance(edge, Load):
            return self._element(text, edge)
        access = self.nest.reads[id(m), k]
        if not access.varies:
            return self._row_read(edge.leaf, access)
        key = read_key(access)
        if key in text.known:
            return text.known[key]
        name = self.given.give(Role.READ, next(text.numbers), edge.leaf, key)
        text.known[key], kind = name, self._kind(edge.leaf)
        if self._load_kept(text, key, kind, name):
            return name
        shared = self.nest.down and self.nest.down.places.get((id(m), k))
        text.read(name, kind, self._below(*shared) if shared else self._load(edge.leaf, access))
        self._store_kept(text, key, kind, name)
        return name

    def _below(self, number: int, place: int, beside: int) -> str:
        """One place of windows that overlap, which are loaded together."""
        leaf, fill = self.nest.heads[number][0].leaf, self.nest.heads[number][0].fill
        text = windows(self.nest, number, self.pointer_of[id(leaf)], self._number(fill or 0, leaf))
        name = self.given.give(Role.WINDOWS, number, leaf, number)
        line = f"auto {name} = {text};"
        self.lines += [line] * (line not in self.lines)
        return f"window_tap<{place}, {beside}>({name})"

    def _load_kept(self, text: PassText, key: Hashable, kind: str, name: str) -> bool:
        keep = self.row.keeps.get(key)
        if keep is None or text.number == keep.first:
            return False
        text.read(name, kind, f"load({self.slots[key]})")
        return True

    def _store_kept(self, text: PassText, key: Hashable, kind: str, name: str) -> None:
        keep = self.row.keeps.get(key)
        if keep is not None and text.number == keep.first:
            parameter = self.given.give(Role.KEPT_PLACE, self.slot_numbers[key], name, key)
            text.read(parameter, f"{kind}&", f"store({self.slots[key]})")
            text.lines.append(f"{parameter} = {name};")

    def _kept_lines(self) -> list[str]:
        kinds = {self.slots[key]: self._kind(keep.node) for key, keep in self.row.keeps.items()}
        count = times(self.nest.outer, self.nest.columns)
        some = "" if isinstance(count, BatchSize) else f", {count}"
        return [f"auto {at} = team.template keep<{kind}{some}>();" for at, kind in kinds.items()]

    # -- values of a row

    def _row_argument(self, m: Node, k: int) -> str:
        edge = self.kernel.loops.edges[id(m), k]
        if isinstance(edge, Load):
            return self._row_read(edge.leaf, self.nest.reads[id(m), k])
        return self.names[id(edge)]

    def _row_read(self, leaf: Node, access: AffineAccess) -> str:
        if leaf.op == "constant" and not access.limits:
            return self._number(leaf["value"], leaf)
        key = read_key(access)
        if key not in self.row_reads:
            number = next(self.row_numbers)
            self.row_reads[key] = self.given.give(Role.ROW_READ, number, leaf, key)
            value = self._row_value(leaf, access)
            kind = self._kind(leaf) if access.beside else compute_type(leaf)
            self.lines.append(f"const {kind} {self.row_reads[key]} = {value};")
        return self.row_reads[key]

    def _row_value(self, leaf: Node, access: AffineAccess) -> str:
        if leaf.op == "constant":
            text = self._number(leaf["value"], leaf)
        else:
            verb = "team.beside" if self.policy.simd_rows and access.beside else "read"
            text = f"{verb}({self.pointer_of[id(leaf)]}, {access.base})"
        if not access.limits:
            return text
        return f"holds({access.limits}) ? {text} : {self._number(access.fill, leaf)}"

    def _number(self, value: Attribute, leaf: Node) -> str:
        """A number as text of the type in which the leaf is computed."""
        assert isinstance(value, int | float | bool | BatchSize)
        return cxx_literal(value, compute_type(leaf))

    # -- spelling

    def _line(self, m: Node, argument: Callable[[Node, int], str]) -> str:
        arguments = [argument(m, k) for k in range(len(m.args))]
        return f"const {self._kind(m)} {self.names[id(m)]} = {self._spelling(m, arguments)};"

    def _spelling(self, m: Node, arguments: list[str]) -> str:
        text = spelling(m, arguments, self._kind(m))
        if m.row.needs and self.policy.simd_rows and m.op != "where":
            self.lifted.add((m.row.needs, m.row.arity))
        return text

    def _load(self, leaf: Node, access: AffineAccess) -> str:
        """The operand of a value that varies along the row; only some of its elements may exist."""
        if leaf.op == "constant":
            inner = f"everywhere<{compute_type(leaf)}>({self._number(leaf['value'], leaf)})"
        else:
            inner = self._operand("load", self.pointer_of[id(leaf)], access)
            inner = self.policy.placed_reads.get(read_key(access), "{}").format(inner)
        if not access.limits:
            return inner
        fill = f"({compute_type(leaf)}){self._number(access.fill, leaf)}"
        exists = f"[&](long o) {{ return {access.limits}; }}"
        return f"within<{self.nest.index}>({inner}, {fill}, {exists})"

    def _operand(self, verb: str, name: str, access: AffineAccess) -> str:
        inner = self._row_operand(verb, name, access)
        if not self.policy.simd_rows or access.beside == 1:
            return inner
        return f"spaced({inner}, {size_text(access.beside)})"

    def _row_operand(self, verb: str, name: str, access: AffineAccess) -> str:
        if access.wrap and not self.policy.simd_rows:
            inside, further = access.wrap
            row = self._row_operand(verb, name, replace(access, gather="", wrap=None))
            sizes = f"{self.nest.index}, {known_factor(access, self.nest)}"
            return f"wrapped<{sizes}>({row}, {further}, [&](long o) {{ return {inside}; }})"
        if access.gather:
            function = "gather" if verb == "load" else "gather_store"
            offset = access.gather if access.base == "0" else f"{access.base} + {access.gather}"
            return f"{function}({name}, [&](long o, long i) {{ return {offset}; }})"
        start, base = name, access.base
        if access.limits and access.offset != 0 and access.line != "0":  # one address for a window
            start, base = f"{name} + {access.line}", size_text(access.offset)
        outer = [] if self.nest.outer == 1 else [size_text(access.outer)]
        if access.columns == 1:
            verb = self.policy.load if verb == "load" else verb
            return f"{verb}({', '.join([start, base, *outer])})"
        if access in self.policy.staged_reads:
            slot, inner = self.policy.staged_reads.index(access), size_text(access.columns)
            return f"staged<{slot}>({start}, {base}, {inner})"
        function = "strided" if verb == "load" else "strided_store"
        return f"{function}({', '.join([start, base, *outer, size_text(access.columns)])})"
