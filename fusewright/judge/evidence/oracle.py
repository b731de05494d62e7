"""A problem -> fresh secret inputs and states, and what eager and float64 answer to them.

Everything random comes from one secret seed and the name of its use, so that any experiment can
be replayed alone.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fusewright.common.call_arguments import Inputs, names_of, places_of, split
from fusewright.common.default_device import Placing, default_device, placing
from fusewright.common.problem_file import load_problem
from fusewright.common.unobserved_layers import unwatched
from fusewright.judge.costs import RUNS
from fusewright.judge.counts import (
    UNPRICED_S,
    WORTH,
    Counts,
    Work,
    counts_of,
    mapped_bytes,
    priced,
    work_of,
)
from fusewright.judge.evidence import contract, hazard_cases, model_states
from fusewright.judge.evidence.expected_answers import USUAL_SHARE, Expected, Kappas, Part, State
from fusewright.judge.evidence.fatal_cuda_calls import Watch
from fusewright.judge.evidence.float64_forward import InDouble, native
from fusewright.judge.evidence.float64_twins import Doubles, generator
from fusewright.judge.evidence.hazard_cases import rows_of, shortened
from fusewright.judge.evidence.input_draws import Draws
from fusewright.judge.evidence.legal_inputs import Illegal, ShortOfMemory, TooLarge, asked, tried
from fusewright.judge.evidence.position_outputs import Taken, both, noted
from fusewright.judge.evidence.pytree import elements, mapped, nbytes, upcast
from fusewright.judge.evidence.same_answers import alike, all_alike, exactly, identical, nearly
from fusewright.judge.evidence.signed_zeros import with_other_zeros
from fusewright.judge.evidence.tied_tensors import each, first_names, place_in, slots
from fusewright.judge.isolation import memory_limit, model_attributes, tensor_transport
from fusewright.judge.isolation import problem_files as beside
from fusewright.judge.isolation.output_reuse import Kept
from fusewright.judge.isolation.tensor_transport import pack, results_of, tensors_of, values_in
from fusewright.judge.timing.roofline_floor import floors

FOREVER = float("inf")
IN_TURNS = ("fresh", "soak", "mode", "again")  # draws that go on from one state after the other
OTHER_BYTE = 0x5A  # memory that nobody has written holds it, where eager is asked again
# Draws of experiments, in the first mode, that ask about something else than values and caches.
BEGUN_ELSEWHERE = ("instances", "again", "soak", "late")
CROWDED = 3.0  # times as long as before: then others are on the device
# Behind a mode: gradients are enabled. Some modules of PyTorch compute otherwise then.
WITH_GRADIENTS = " with gradients"
POOL = 16  # so many times the rows of a call are kept of a draw, or such a part of it
SCARCE = 32  # times the bytes of a call: with less of a GPU's memory, what can be drawn is not kept
MAPPED_SHARE = 12  # what a worker is asked, or answers, may be such a part of a GPU's memory there
KEPT_SHARE = 6  # float64 twins of parameters may fill a sixth of the memory
Message = Mapping[str, Any]


class NotJudgeable(Exception):
    """The problem works, but no verdict about it could mean anything."""


class Oracle:
    """One problem with its eager model, its float64 model and its secret randomness."""

    _opening: dict[tuple[object, ...], list[object]] | None

    def __init__(self, order: Message) -> None:
        self.device = str(order["device"])
        self.left_out = frozenset(order.get("left_out", ()))  # what no process has survived
        self.accuracy: contract.Mode = "loose" if order["accuracy"] == "loose" else "contract"
        self.whole_truth = order.get("truth") == "whole"  # float64 in every comparison
        self._seed = bytes.fromhex(order["seed"])
        if self.device == "cuda" and not torch.cuda.is_available():
            raise NotJudgeable("this machine has no CUDA device that PyTorch can use")
        self._load(order)
        self._name_parameters()
        self._forget()
        planned = order.get("counts")
        self._planned = Counts(**planned) if planned else None  # a replay's
        begin = model_attributes.beginning(self.model)
        self._learn(begin)
        self._find_attributes(begin)
        self.state = self.legal_state("state", any)
        self._ask_twice()
        self._opening = None

    def _load(self, order: Message) -> None:
        """The problem and its model."""
        with beside.reading(Path(order["problem"])) as self.beside:
            self.problem = load_problem(Path(order["problem"]), order["overrides"])
            self.model_seed = self.seed("model") % 2**31
            self._seed_all(self.seed("init inputs"))
            self._draws = Draws(self.problem, self.device)
            self.init_inputs = self.problem.make_init_inputs()
            own = self._own_init_inputs()
            torch.manual_seed(self.model_seed)
            self.model = self.problem.make_model(own).to(self.device)
        self.modes: tuple[str, ...] = ("train", "eval")
        if order.get("mode") == "eval" or not (order.get("mode") or self.model.training):
            self.modes = ("eval", "train")

    def _name_parameters(self) -> None:
        """Parameters and buffers by their names, and the model's float64 twin."""
        kept = self.model.state_dict(keep_vars=True)
        self.true_model = model_states.twin(self.model, kept)
        self.kinds = {n: "P" if isinstance(t, nn.Parameter) else "B" for n, t in kept.items()}
        self.first = first_names(kept)  # of several names of one tensor
        self.slots = [n for n in slots(self.model) if n in kept]
        self.requires = {n: t.requires_grad for n, t in kept.items()}
        self.writes: dict[str, set[str]] = {}  # what a call in a mode has been seen to write to
        self.touched = {n for n, kind in self.kinds.items() if kind == "B"}
        self.doubles = Doubles(
            self.seed("kappa") % 2**31, model_states.memory(self.device) // KEPT_SHARE
        )

    def _forget(self) -> None:
        """Nothing has been learnt of the model yet, and nothing has been compared."""
        self._native, self._widened = torch.float32, False  # of the float64 twin: see InDouble
        self.own_peak = 0  # bytes that one run takes beside its arguments
        self._most = 0  # bytes that the next run may take; 0: any
        self._inventing = False  # is the next run on arguments that get_inputs() never draws?
        self.runs: Counter[str] = Counter()  # of the reference, for the report
        self.raising_modes: dict[str, str] = {}  # the mode, and what the reference says in it
        self._watch = Watch()
        # The last draw, while the problem is opened: it is asked for several times.
        self._opening = {}
        self.places: tuple[str, ...] = ()  # attributes of the model that are a part of each call
        self.attributes: list[list[object]] = []  # values for them: the first ones, and later ones
        self._rebound: set[str] = set()  # buffers for which a call has bound other tensors
        self.placing = Placing()  # whether its runs need a default device
        self.accuracy_numbers: dict[str, float] = {}
        self.output_numbers: defaultdict[int, dict[str, float]] = defaultdict(dict)  # of each
        self.calls_compared = 0
        self.weak: list[str] = []
        self._own_values: list[object] | None = []  # one draw, and what is expected for it
        self.own_rows = self.own_elements = 0  # of that draw
        self.typical: Expected | None = None
        self.seconds = 0.0  # one expectation and one comparison, for deadlines only
        self.counts: Counts
        self._own_s = 0.0  # of one run of eager, where the device may have other users
        self._times = 0.0  # how many times its price on paper a run costs; 0: not known yet
        self.call_bytes = 0
        self.part = 0  # rows that float64 is asked about instead of all of them; 0: all
        self.apart: set[str] = set()  # modes in which no row depends on others
        self._pool: list[object] = []  # what such rows are taken from
        self._known_differentiable: dict[tuple[object, ...], tuple[bool, ...]] = {}
        self.random_modes: tuple[str, ...] = ()

    @property
    def costly(self) -> bool:
        """Is an expectation so costly that it borrows its sensitivity where it may?"""
        return self.counts.costly

    @property
    def few(self) -> int:
        """Rows of a call that need not be of full size; 0: all calls are."""
        return self.counts.few

    def paper(self, values: Sequence[object]) -> Counts:
        """What calls with such arguments cost, and so how many of them are made."""
        given, held = nbytes(tensors_of(values)), self.held
        try:
            work, made = work_of(lambda: self._run_on_copies(values))
        except Illegal:  # it does not run while somebody counts
            made = self._run_on_copies(values)
            work = Work(1, given + held + nbytes(made))
        if not self._times:
            self._times = priced(work, self.device, self._measured(values))
        return counts_of(work, self.device, given, made, held, self._times)

    def _run_on_copies(self, values: Sequence[object], mode: str = "") -> list[Tensor]:
        copies = mapped(values, Tensor.clone)
        return self.run_quietly(copies, self.own(self.state), mode or self.modes[0])

    def _measured(self, values: Sequence[object]) -> float:
        """Seconds of one run, by the clock of this thread: others' programs hardly move it."""
        found = math.inf
        for _ in range(3):
            begin = time.thread_time()
            self._run_on_copies(values)
            if self.device == "cuda":
                torch.cuda.synchronize()
            found = min(found, time.thread_time() - begin)
            if found < UNPRICED_S:
                break
        return found

    # --- randomness -------------------------------------------------------------------------

    def seed(self, *tag: object) -> int:
        digest = hashlib.sha256(self._seed + repr(tag).encode()).digest()
        return int.from_bytes(digest[:7], "little")

    def _seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)

    def inputs(self, *tag: object, rows: int = 0) -> list[object]:
        """A fresh draw of get_inputs() that nobody has seen, or so many rows of one."""
        if rows:
            return self._some_rows(tag, rows)
        if tag[0] in BEGUN_ELSEWHERE and (begun := self._begun_elsewhere(tag)):
            return begun
        if self._opening is not None and tag in self._opening:
            return mapped(self._opening[tag], Tensor.clone)
        values = self._draws.draw(lambda: self._seed_all(self.seed("inputs", *tag)))
        values = self._with_attributes(values, tag)
        if self._opening is not None:
            self._opening = {tag: mapped(values, Tensor.clone)}
        return values

    def _begun_elsewhere(self, tag: Sequence[object]) -> list[object]:
        """The rows of the draw by which the problem was examined, begun at a secret place: on a CPU
        drawing takes longest. Nothing, where calls are cheap, or where rows depend on others."""
        values, size = self._own_values or [], self.own_rows
        if self.device != "cpu" or not self.part or self.places or not values:
            return []
        rows = [t for t in tensors_of(values) if t.ndim and t.shape[0] == size]
        if not all(t.is_floating_point() and t.is_contiguous() for t in rows):
            return []  # what is sorted, for instance, must stay so
        if len({t.untyped_storage().data_ptr() for t in rows}) < len(rows):
            return []
        place = 1 + self.seed("begin", *tag) % (size - 1)

        def moved(t: Tensor) -> Tensor:
            own = t.detach().roll(place, 0) if t.ndim and t.shape[0] == size else t.detach().clone()
            return own.requires_grad_(t.requires_grad)

        return mapped(values, moved)

    def _some_rows(self, tag: Sequence[object], rows: int) -> list[object]:
        """Rows that follow each other in one draw, at a secret place: of it some times as many are
        kept, and no other is drawn for calls with fewer rows."""
        if not self._pool:
            values = self.inputs("rows")
            size = rows_of(values)
            others = {t.shape[0] for t in tensors_of(values) if t.ndim} - {size}
            least = min(max(POOL * rows, size // POOL), size)
            kept = next(n for n in range(least, size + 1) if n not in others)
            self._pool = shortened(values, kept, self.seed("pool") % (size - kept + 1))
        start = self.seed("rows", *tag) % (rows_of(self._pool) - rows + 1)
        return shortened(self._pool, rows, start)

    def _with_attributes(self, values: list[object], tag: Sequence[object]) -> list[object]:
        """The arguments and, where the model has any, values of attributes that its calls change:
        what a first call has left, or, in turns, what it begins with and what more calls leave."""
        if not self.places:
            return values
        turn = tag[-1] if tag[0] in IN_TURNS and isinstance(tag[-1], int) else 1
        copies = mapped(self.attributes[turn % len(self.attributes)], Tensor.clone)
        return Inputs([*values, *copies], names_of(values), self.places)

    def legal_state(self, tag: str, enough: Callable[[Iterable[bool]], bool]) -> dict[str, Tensor]:
        """Random values that the reference takes in enough modes, as far from its own as may be."""
        for spread in model_states.SPREADS:
            state = self.new_state(tag, spread)
            with suppress(Illegal), tried(f"state {tag}-{spread}", self.left_out):
                if enough(self._takes(mode, state) for mode in self.modes):
                    return state
        why = next(iter(self.raising_modes.values()), "they end CUDA for the whole process")
        more = f". {self.placing.says}" if self.placing.says and not self.placing.device else ""
        raise NotJudgeable(f"the reference raises on its inputs and random parameters: {why}{more}")

    def takes(self, name: str, values: Sequence[object], state: State | None = None) -> bool:
        """Does eager, and does float64, answer to these arguments?"""
        mode, state = self.modes[0], state or self.state
        try:
            with tried(name, self.left_out):
                self.run_quietly(mapped(values, Tensor.clone), self.own(state), mode)
                rows = self.part if rows_of(values) == self.own_rows else 0
                some = shortened(values, rows) if rows else values
                self.truth(mode)(mapped(some, upcast), self.doubles.exact(state))
        except Illegal:
            return False
        return True

    def _takes(self, mode: str, state: State) -> bool:
        """Does eager take a draw of its own inputs in this mode? Notes what it says if not."""
        own = self._own_values if self._opening is None else None
        try:
            values = mapped(own, Tensor.clone) if own else self.inputs("opening")
            self.run_quietly(values, each(state, lambda _, t: t.clone()), mode)
        except Illegal as error:
            self.raising_modes[mode] = str(error)
            return False
        self.raising_modes.pop(mode, None)
        return True

    def new_state(self, tag: str, spread: model_states.Spread = "far") -> dict[str, Tensor]:
        """Random values for every parameter and buffer, none of them a default."""

        def redrawn(name: str, t: Tensor) -> Tensor:
            draws = generator(t, self.seed("state", name, tag))
            return model_states.redrawn(t.detach(), self.kinds[name], draws, spread)

        return each(self.model.state_dict(keep_vars=True), redrawn)

    @cached_property
    def changed(self) -> dict[str, Tensor]:
        """A second state, for those who ask whether a change is noticed."""
        return self.legal_state("changed", all)

    def own(self, state: State) -> dict[str, Tensor]:
        """What a run of eager may write to: copies of all that it ever writes to."""
        return each(state, lambda n, t: t.clone() if n in self.touched else t)

    def _own_init_inputs(self) -> Sequence[object]:
        """Arguments that a constructor may change: copies, or, where nobody can copy them (locks,
        generators, modules of Python), the same once more."""
        try:
            return copy.deepcopy(self.init_inputs)
        # An argument's own code may refuse with anything.
        except Exception:  # noqa: BLE001
            self._seed_all(self.seed("init inputs"))
            return self.problem.make_init_inputs()

    @property
    def own_values(self) -> list[object]:
        """The draw by which the problem was examined; its tensors are only read."""
        return self.inputs("problem") if self._own_values is None else self._own_values

    def is_own(self, values: object) -> bool:
        """Are these that draw, whose expectation is known?"""
        return values is self._own_values

    # --- running ----------------------------------------------------------------------------

    def run(self, model: nn.Module, values: Sequence[object], state: State, mode: str) -> object:
        with_gradients = mode.endswith(WITH_GRADIENTS)
        model.train(mode.removesuffix(WITH_GRADIENTS) == "train")
        self.runs[RUNS[model is self.true_model]] += 1
        with asked(), self._ceiling(), self._settled(), self._watched(), unwatched():
            places = places_of(values)
            given = {n: state[n] for n in self.slots if n in state and n not in places}
            model_attributes.give(model, values)
            placed = default_device(self.placing.device)
            if with_gradients:
                leaves = {n: t.detach().requires_grad_(self.requires[n]) for n, t in given.items()}
                with torch.enable_grad(), placed:
                    outputs = _called(model, leaves, values)
            else:
                with placed:
                    outputs = _called(model, given, values)
                self._rebound |= {n for n, t in given.items() if t is not state[n]}
            return model_attributes.with_left(model, values, outputs)

    def _watched(self) -> AbstractContextManager[object]:
        watch, invented = self._watch, self._inventing and self.device == "cuda"
        return watch if watch.learning or watch.needed or invented else nullcontext()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """What the kernels of a GPU have to say is said in here, too, however the run ends."""
        try:
            yield
        finally:
            if self.device == "cuda":
                torch.cuda.synchronize()

    def _learn(self, begin: model_attributes.Beginning) -> None:
        """Which fragile operators the model calls, from runs that are legal in every respect; and
        under which default device it runs, where it runs in no mode without one."""
        self._watch.learning = True
        ran = [self._has_run(mode) for mode in self.modes]
        for mode in self.modes if not any(ran) else ():
            values = self.inputs("opening")
            found = placing(partial(self._run_from, begin, mode, values), self.device)
            self.placing = found if found.says else self.placing
            if found.device:
                for every in self.modes:
                    self._has_run(every)
                break
        self._watch.learning = False

    def _has_run(self, mode: str) -> bool:
        """Does the model take a draw of its own inputs with its own state?"""
        own = each(self.model.state_dict(keep_vars=True), lambda _, t: t.detach().clone())
        try:
            self.run_quietly(self.inputs("opening"), own, mode)
        except Illegal:
            return False
        except ShortOfMemory:  # it is asked again, and then it matters
            pass
        return True

    def _run_from(
        self, begin: model_attributes.Beginning, mode: str, values: Sequence[object]
    ) -> None:
        """One run that raises if the model does, with its attributes as they were at first."""
        places = sorted(begin.changed(self.model))
        model_attributes.give(self.model, Inputs(begin.copies(places), (), places))
        own = each(self.model.state_dict(keep_vars=True), lambda _, t: t.detach().clone())
        self.run_quietly(mapped(values, Tensor.clone), own, mode)

    def _find_attributes(self, begin: model_attributes.Beginning) -> None:
        """Attributes that calls change, if the answers to the same arguments change with them."""
        places = sorted({*begin.changed(self.model), *self._rebound})
        if not places:
            return
        found, answers = [begin.copies(places)], list[list[Tensor]]()
        plain = self.inputs("opening")
        for _ in range(3):
            self._seed_all(self.seed("attributes"))
            own = each(self.model.state_dict(keep_vars=True), lambda _, t: t.detach().clone())
            values = mapped(Inputs([*plain, *found[-1]], names_of(plain), places), Tensor.clone)
            with suppress(Illegal, ShortOfMemory), torch.no_grad():
                made: Any = self.run(self.model, values, own, self.modes[0])
                answers.append([t.clone() for t in results_of(made[0])])
                found.append(mapped([*made[1].values()], Tensor.clone))
        model_attributes.give(self.model, Inputs(begin.copies(places), (), places))
        first = answers[0] if answers else []
        if any(len(a) != len(first) or not all(map(identical, a, first)) for a in answers[1:]):
            self.places, self.attributes = tuple(places), found
            self.touched -= self._rebound
            self._opening = {}  # later draws have these, too

    def _ceiling(self) -> AbstractContextManager[None]:
        """What a run may take where a case is larger than the problem's own."""
        return memory_limit.within(self._most, self.device) if self._most else nullcontext()

    def run_quietly(self, values: Sequence[object], state: State, mode: str) -> list[Tensor]:
        with torch.no_grad():
            made = results_of(self.run(self.model, values, state, mode))
            return [t.detach() for t in made] if mode.endswith(WITH_GRADIENTS) else made

    def reuses(self, calls: int) -> bool:
        """Does eager itself hand memory out again, or own the memory of its earlier outputs?"""
        values, state = self.inputs("reuse"), self.own(self.state)
        kept = Kept([*tensors_of(values), *state.values(), *self.model.buffers()])
        for _ in range(calls):
            kept.add(self.run_quietly(values, state, self.modes[0]))
        return bool(kept.says())

    def eager(self, mode: str) -> contract.Run:
        """Eager as a function: the state that it is given stays as it is."""

        def call(values: Sequence[object], state: State) -> list[Tensor]:
            return self.run_quietly(values, self.own(state), mode)

        return call

    def accepts(self, name: str, values: Sequence[object], mode: str) -> Expected | None:
        """Does eager take these arguments, in this very layout? Then they are legal."""
        grown = elements(values) / max(self.own_elements, 1)
        if grown > 1.0:
            self._most = max(memory_limit.GROWN_BYTES, int(2 * grown * self.own_peak))
        self._inventing = True
        try:
            with tried(name, self.left_out):
                expected = self.expect(pack(values, 0), self.state, mode)
                return expected if self._says_it_again(expected.eager, values, mode) else None
        except ShortOfMemory as error:
            if self._most:
                raise TooLarge(str(error)) from error
            raise
        except Illegal:
            return None
        finally:
            self._most, self._inventing = 0, False

    def _says_it_again(self, eager: Sequence[Tensor], values: Sequence[object], mode: str) -> bool:
        """Does eager give the same in other memory? Kernels that read behind their arguments, or
        what nobody has written, take such arguments without an error, and give anything."""
        with memory_limit.filled(OTHER_BYTE, self.device):
            again = self.run_quietly(mapped(values, Tensor.clone), self.own(self.state), mode)
        return all(a.shape == b.shape and alike(a, b) for a, b in zip(eager, again, strict=True))

    @contextmanager
    def _in_double(self) -> Iterator[None]:
        """Tensors that a forward creates itself shall be float64, too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with InDouble(self._native, widened=self._widened):
                yield
        finally:
            torch.set_default_dtype(before)

    def truth(self, mode: str) -> contract.Run:
        def call(values: Sequence[object], state: State) -> list[Tensor]:
            with torch.no_grad(), self._in_double():
                made = self.run(self.true_model, values, state, mode)
                return [t.detach() for t in results_of(made, wide=True)]

        return call

    def expect(
        self, shipment: tensor_transport.Shipment, state: State, mode: str,
        like: Expected | None = None, most: int = contract.PAIRS, gradients: bool = False,
    ) -> Expected:  # fmt: skip
        """Eager on the very bytes that the candidate gets; float64 on the same values, later.

        With `like`, an expectation for another draw of the same inputs, the sensitivity is taken
        from there, as one number per output: a quarter of the work. most: pairs of draws for it.
        """
        asked_for, mode = mode, mode + WITH_GRADIENTS * gradients
        where = {"tree": shipment.tree, "tensors": shipment.tensors}
        blocks = [tensor_transport.aligned(b, self.device) for b in shipment.blocks]
        home = tensor_transport.Home(self.problem.module)
        values = values_in(where, blocks, home)
        originals = values_in(where, shipment.blocks, home)  # which nobody writes to
        after = self.own(state)
        outputs: list[Tensor] = []
        with torch.no_grad():
            spec = tensor_transport.describe(self.run(self.model, values, after, mode), outputs)
        known = [*tensors_of(values), *after.values()]
        aliases = [place_in([*known, *outputs[:i]], t) for i, t in enumerate(outputs)]
        overlapping = [tensor_transport.overlaps(t) for t in outputs]
        eager = [t.detach().clone() for t in outputs]
        if self.device != "cpu":  # what eager has left as it was is there once
            pairs = zip(blocks, shipment.blocks, strict=True)
            blocks = [sent if identical(b, sent.to(b.device)) else b for b, sent in pairs]
            del values, known, outputs

        unit, given = contract.unit_of(eager, originals), (originals, state)
        work_out = partial(self._work_out, *given, mode, unit, like, most)
        noise = cache(partial(
            contract.noise, self.eager(mode), self.truth(mode), *given,
            seed=self.seed("noise") % 2**31, doubles=self.doubles,
        ))  # fmt: skip
        probe = partial(self._differentiable, *given, asked_for)
        places = cache(partial(self._positions, *given, mode))
        zeros = cache(partial(self._other_zeros, *given, mode))
        elsewhere = cache(partial(self._on_a_cpu, *given, mode))
        beside = overlapping, blocks, after, probe, work_out, noise, places, zeros, elsewhere
        part = partial(self._part_of, *given, mode, eager)
        return Expected(spec, eager, aliases, *beside, some_rows=part, like=like)

    def _part_of(
        self, values: Sequence[object], state: State, mode: str, eager: Sequence[Tensor],
        chosen: Tensor | None,
    ) -> Part | None:  # fmt: skip
        """These rows, or so many from a secret place on, where no row depends on others: then eager
        says to them alone what it says to them among all."""
        size = rows_of(values)
        if not self.part or mode not in self.apart or size < 2 * self.part:
            return None
        start = self.seed("part", self.calls_compared) % (size - self.part + 1)
        rows = slice(start, start + self.part) if chosen is None else chosen
        short = hazard_cases.chosen(values, torch.arange(size, device=self.device)[rows])
        try:
            found = replace(self.expect(pack(short, 0), state, mode), is_part=True)
        except Illegal:
            return None
        sized = all(t.ndim and t.shape[0] == size for t in eager)
        same = sized and all_alike(found.eager, [t[rows] for t in eager], nearly)
        return Part(rows, found) if same else None

    def _work_out(
        self, values: Sequence[object], state: State, mode: str, unit: float,
        like: Expected | None, most: int,
    ) -> tuple[list[Tensor], Kappas]:  # fmt: skip
        """What float64 says, and its sensitivity."""
        wide = self.doubles.exact(state)
        truth = [t.clone() for t in self.truth(mode)(mapped(values, upcast), wide)]
        if like is not None:
            kappa = [y.abs() * unit + k for k, y in zip(like.sizes, truth, strict=True)]
            return truth, lambda _: kappa
        own = contract.Sensitivity(
            self.truth(mode), values, state, unit=unit, truth=truth, doubles=self.doubles,
            seed=self.seed("kappa") % 2**31,
        )  # fmt: skip
        return truth, lambda pairs: own.of(min(pairs, most))

    def _positions(
        self, values: Sequence[object], state: State, mode: str
    ) -> list[tuple[Taken, Taken] | None]:
        wide = mapped(values, upcast)
        low = noted(lambda: self.eager(mode)(mapped(values, Tensor.clone), state))
        high = noted(lambda: self.truth(mode)(wide, self.doubles.exact(state)))
        return both(low, high)

    def _other_zeros(
        self, values: Sequence[object], state: State, mode: str
    ) -> Sequence[Tensor] | None:
        return with_other_zeros(lambda: self.eager(mode)(mapped(values, Tensor.clone), state))

    def _on_a_cpu(
        self, values: Sequence[object], state: State, mode: str
    ) -> Sequence[Tensor] | None:
        """What float64 says there; None if this is one, or the model is at home on a GPU only."""
        if self.device == "cpu":
            return None
        wide = mapped(mapped(values, upcast), Tensor.cpu)
        there = each(self.doubles.exact(state), lambda _, t: t.cpu())
        # A model that names its device, or cannot be copied, may raise anything.
        with suppress(Exception), torch.no_grad(), self._in_double():
            model = copy.deepcopy(self.true_model).cpu()
            return [t.clone() for t in results_of(self.run(model, wide, there, mode))]
        return None

    def _differentiable(
        self, values: Sequence[object], state: State, mode: str
    ) -> tuple[bool, ...]:
        """Which outputs of eager know how to be differentiated; asked once per kind of call."""
        key = (mode, *(t.requires_grad for t in tensors_of(values)))
        if key not in self._known_differentiable:
            ready = each(
                self.own(state),
                lambda n, t: t.detach().requires_grad_(self.requires[n] and t.is_floating_point()),
            )
            copies = mapped(values, Tensor.clone)
            with torch.set_grad_enabled(True):
                outputs = results_of(self.run(self.model, copies, ready, mode))
            self._known_differentiable[key] = tuple(t.grad_fn is not None for t in outputs)
        return self._known_differentiable[key]

    def gradients(
        self,
        model: nn.Module,
        values: Sequence[object],
        state: State,
        cotangents: Sequence[Tensor],
        mode: str,
    ) -> list[Tensor | None]:
        ready = each(state, lambda n, t: t.detach().clone().requires_grad_(self.requires[n]))
        inputs = [t for t in tensors_of(values) if t.requires_grad]
        with torch.enable_grad():
            outputs = results_of(self.run(model, values, ready, mode))
            pairs = [
                (o, v) for o, v in zip(outputs, cotangents, strict=False) if o.grad_fn is not None
            ]
            wanted = inputs + [t for t in ready.values() if t.requires_grad]
            if not pairs or not wanted:
                return [None] * len(wanted)
            ends, vectors = zip(*pairs, strict=True)
            with asked():
                return list(torch.autograd.grad(ends, wanted, vectors, allow_unused=True))

    def true_gradients(
        self, values: Sequence[object], state: State, cotangents: Sequence[Tensor], mode: str
    ) -> list[Tensor | None]:
        with self._in_double():
            return self.gradients(self.true_model, values, state, cotangents, mode)

    def crowded(self) -> str:
        """What a run of eager says about the neighbours; empty if it takes as long as ever."""
        now = min(self._own_run_s() for _ in range(5))  # the first may wait for what was killed
        if now <= CROWDED * max(self._own_s, 1e-3):
            return ""
        return f"eager takes {now:.3g} s on this device, and took {self._own_s:.3g} s before"

    def _own_run_s(self) -> float:
        """Seconds of a run of eager on the problem's own arguments."""
        values = self.own_values
        begin = time.monotonic()
        self._run_on_copies(values)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - begin

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is compared within leaves nothing in the report: it is no candidate's."""
        kept = dict(self.accuracy_numbers), copy.deepcopy(self.output_numbers), self.calls_compared
        try:
            yield
        finally:
            self.accuracy_numbers, self.output_numbers, self.calls_compared = kept

    def floors(self, eager_s: float) -> Mapping[str, float]:
        """What no call can go below, for all that this machine shows."""
        values, state = mapped(self.own_values, Tensor.clone), self.own(self.state)
        run = partial(self.run_quietly, values, state, self.modes[0])
        given = [*tensors_of(values), *state.values()]
        return floors(self.call_bytes, run, given, self.device, eager_s)

    @property
    def held(self) -> int:
        """Bytes of the state."""
        return nbytes(self.state.values())

    def mapped_bytes(self) -> int:
        """Of what a candidate's worker is asked, and as much again of what it answers, in memory of
        a GPU that both map; 0 where these go through the host."""
        if self.device != "cuda":
            return 0
        most = model_states.memory("cuda") / MAPPED_SHARE
        return mapped_bytes(self.call_bytes, self.held, most)

    def cast(self, dtype: torch.dtype) -> Oracle:
        """The same problem after `model.to(dtype)`; its truth is float64 on the cast numbers."""
        other = copy.copy(self)
        other.model = model_states.cast(self.model, dtype, {})
        other.state = each(self.state, lambda _, t: t.to(dtype) if t.is_floating_point() else t)
        if self.typical is not None:
            # One rounding is of another size there, and so is what it does.
            truth, before = self.typical.truth, contract.unit_of(self.typical.eager)
            kappa = [k * (torch.finfo(dtype).eps / 2 / before) for k in self.typical.kappa()]
            other.typical = replace(self.typical, work_out=lambda: (truth, lambda _: kappa))
        return other

    # --- is the problem fit to be judged? ---------------------------------------------------

    def examine(self) -> None:
        """Can anything be said about this problem, and would nothing at all pass as an answer?"""
        values = self.inputs("problem")
        begin = time.monotonic()
        try:
            # One pair shows the size of the sensitivity, if not that of each element.
            judged, packed = values, pack(values, 0)
            with memory_limit.Peak(self.device) as peak:
                made = self._run_on_copies(values)
            self.own_peak = peak.size
            self.counts = self._planned or self.paper(values)
            self._native = native([*tensors_of(values), *self.state.values()])
            exact = self._in_float64(values)
            self._widened = exact is None
            self._own_values = values
            self.own_rows, self.own_elements = rows_of(values), elements(values)
            self.counts = replace(self.counts, few=self._enough_rows(values))
            self.part = self._rows_apart(values, made, exact or ()) if self.few else 0
            if self.part:
                start = self.seed("part of the problem") % (rows_of(values) - self.part + 1)
                judged = shortened(values, self.part, start)
                packed = pack(judged, 0)
            expected = self.expect(packed, self.state, self.modes[0], most=1)
            expected = replace(expected, is_part=bool(self.part))
            self.seconds = time.monotonic() - begin + expected.seconds
        except Illegal as error:
            raise NotJudgeable(f"the reference does not run in float64: {error}") from error
        self.typical = expected
        self._own_s = min(self._own_run_s() for _ in range(2)) if self.device == "cuda" else 0.0
        self.call_bytes = nbytes([*tensors_of(values), *made])
        finite = False
        three = zip(expected.eager, expected.truth, expected.kappa(), strict=True)
        for eager, truth, kappa in three:
            if not contract.nowhere_finite(eager, truth):  # NaN by nature is judged by its places
                finite = True
            fault = contract.reference_fault(eager, truth)
            if fault and not contract.nowhere_finite(eager, truth):
                raise NotJudgeable(fault)
            nulls = contract.null_candidates(eager, judged)
            taken = [n for n, t in nulls.items() if self._passes(t, eager, truth, kappa)]
            self.weak += [f"{name} would pass as an output" for name in taken]
        if expected.eager and not finite:
            raise NotJudgeable("the eager model returns no finite number on its own inputs")
        if self._draws.on_gpu and model_states.memory(self.device) < SCARCE * self.call_bytes:
            self._own_values = None  # it is drawn again in no time

    def _passes(self, *four: Tensor) -> bool:
        """Would the first of them pass? Where calls are shortened, its first rows are looked at
        before the rest."""
        rows = [t[: self.few] for t in four] if self.few and four[1].ndim else None
        return (rows is None or contract.passes(*rows)) and contract.passes(*four)

    def _enough_rows(self, values: Sequence[object]) -> int:
        """How many rows a call has that need not be of full size: where calls are costly, and the
        reference takes fewer rows, which cost less. Of a replay, as it was planned."""
        size = rows_of(values)
        rows = self._planned.few if self._planned else self.counts.rows(size)
        if self.whole_truth or not 0 < rows < size:
            return 0
        short = shortened(values, rows)
        if not self.takes("fewer rows", short):
            return 0
        cheap = self._planned or self.paper(short).call <= WORTH * self.counts.call
        return rows if cheap else 0

    def _in_float64(self, values: Sequence[object]) -> list[Tensor] | None:
        """What float64 says to what eager takes; None where it raises."""
        try:
            with tried("in float64", self.left_out):
                self._run_on_copies(values)
                return self._wide(values, self.modes[0])
        except Illegal:
            return None

    def _rows_apart(
        self, values: Sequence[object], eager: Sequence[Tensor], exact: Sequence[Tensor]
    ) -> int:
        """How many rows float64 is asked about instead of all: a 16th, where the reference says to
        rows alone what it says to them among all, in its own precision and in float64; else 0."""
        size = rows_of(values)
        count, mode = size // USUAL_SHARE, self.modes[0]
        if self.whole_truth or not count or self.places or not exact:
            return 0
        if not all(t.ndim and t.shape[0] == size for t in (*eager, *exact)):
            return 0
        start = self.seed("rows apart") % (size - 2 * count + 1)
        short, more = (shortened(values, n * count, start) for n in (1, 2))
        rows = slice(start, start + count)
        try:
            with tried("rows apart", self.left_out):
                wide = self._wide(short, mode)
                if not all_alike(wide, [t[rows] for t in exact], exactly):
                    return 0
                for mode in self.modes:
                    whole = eager if mode == self.modes[0] else self._run_on_copies(values, mode)
                    low = self._run_on_copies(short, mode)
                    wide = wide if mode == self.modes[0] else self._wide(short, mode)
                    first = [t[:count] for t in self._wide(more, mode) if t.ndim]
                    same = all_alike(low, [t[rows] for t in whole if t.ndim], nearly)
                    if same and not self.writes.get(mode) and all_alike(wide, first, exactly):
                        self.apart.add(mode)
        except Illegal:
            return 0
        return count if self.modes[0] in self.apart else 0

    def _wide(self, values: Sequence[object], mode: str) -> list[Tensor]:
        """What float64 says."""
        return self.truth(mode)(mapped(values, upcast), self.doubles.exact(self.state))

    def _ask_twice(self) -> None:
        """Judged are the modes in which eager answers, and says the same again."""
        repeats = {mode: self._repeats(mode) for mode in self.modes}
        self.random_modes = tuple(mode for mode, same in repeats.items() if same is False)
        self.modes = tuple(mode for mode, same in repeats.items() if same)
        if not self.modes:
            why = next(iter(self.raising_modes.values()), "")
            again = "gives other values for the same arguments each time"
            raise NotJudgeable(f"the reference {again if self.random_modes else f'raises: {why}'}")

    def _repeats(self, mode: str) -> bool | None:
        """Are two answers to one question the same? None if there is none. Notes what eager says
        then, and which parameters a run writes to."""
        self._seed_all(self.seed("twice", 0))
        values = self.inputs("opening")
        answers = []
        for turn in range(2):
            self._seed_all(self.seed("twice", turn, "run"))
            state = each(self.state, lambda _, t: t.clone()) if turn == 0 else self.state
            copies = mapped(values, Tensor.clone)
            try:
                outputs = self.run_quietly(copies, self.own(state) if turn else state, mode)
            except Illegal as error:
                if turn:
                    raise
                self.raising_modes[mode] = str(error)
                return None
            answers.append([t.clone() for t in outputs])
            if turn == 0:
                self.raising_modes.pop(mode, None)
                moved = {n for n, t in state.items() if not model_states.same(t, self.state[n])}
                self.touched |= moved
                self.writes[mode] = moved | (self._rebound & {*self.places})
        pairs = zip(*answers, strict=True)
        return all(
            torch.equal(a, b) or torch.allclose(a, b, 1e-2, 1e-5, equal_nan=True) for a, b in pairs
        )


def _called(model: nn.Module, given: dict[str, Tensor], values: Sequence[object]) -> object:
    """The model with these tensors in its slots; the caller has tied what is tied."""
    return functional_call(model, given, *split(values), tie_weights=False, strict=False)
