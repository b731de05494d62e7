"""A problem -> fresh secret inputs and states, and what eager and float64 answer to them.

Everything random comes from one secret seed and the name of its use, so that any experiment can
be replayed alone.
"""

from __future__ import annotations

import copy
import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fusewright.judge import contract, layout
from fusewright.judge.tree import mapped, upcast
from fusewright.problem import load_problem

FOREVER = float("inf")
# Of a copy's time: several cores and their caches together copy faster than one.
FLOOR_SHARE = {"cpu": 0.25, "cuda": 0.9}
LAUNCH_S = {"cpu": 2e-6, "cuda": 20e-6}
Message = Mapping[str, Any]
State = Mapping[str, Tensor]


class NotJudgeable(Exception):
    """The problem works, but no verdict about it could mean anything."""


@dataclass(frozen=True)
class Expected:
    """What the reference says to one set of arguments."""

    spec: str
    eager: list[Tensor]
    truth: list[Tensor]
    kappa: list[Tensor]
    aliases: list[int]
    blocks: list[Tensor]  # the arguments' memory after eager ran
    state: State  # eager's, after the call
    true_state: State
    differentiable: tuple[bool, ...]


class Lab:
    """One problem with its eager model, its float64 model and its secret randomness."""

    def __init__(self, order: Message) -> None:
        self.device = str(order["device"])
        self.accuracy = str(order["accuracy"])
        self._seed = bytes.fromhex(order["seed"])
        if self.device == "cuda" and not torch.cuda.is_available():
            raise NotJudgeable("this machine has no CUDA device that PyTorch can use")
        self.problem = load_problem(Path(order["problem"]), order["overrides"])
        self.model_seed = self.seed("model") % 2**31
        self._seed_all(self.seed("init inputs"))
        self.init_inputs = self.problem.make_init_inputs()
        torch.manual_seed(self.model_seed)
        self.model = self.problem.make_model(copy.deepcopy(self.init_inputs)).to(self.device)
        self.modes: tuple[str, ...] = ("train", "eval")
        if not self.model.training:
            self.modes = ("eval", "train")
        self.true_model = copy.deepcopy(self.model).double()
        kept = self.model.state_dict(keep_vars=True)
        self.kinds = {n: "P" if isinstance(t, nn.Parameter) else "B" for n, t in kept.items()}
        self.requires = {n: t.requires_grad for n, t in kept.items()}
        self.state = self.new_state("state")
        self.accuracy_numbers: dict[str, float] = {}
        self.calls_compared = 0
        self.typical: Expected | None = None  # for the first timed call
        self._known_differentiable: dict[tuple[object, ...], tuple[bool, ...]] = {}
        self._check_problem()

    # --- randomness -------------------------------------------------------------------------

    def seed(self, *tag: object) -> int:
        digest = hashlib.sha256(self._seed + repr(tag).encode()).digest()
        return int.from_bytes(digest[:7], "little")

    def _seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)

    def inputs(self, *tag: object) -> list[object]:
        """A fresh draw of get_inputs() that nobody has seen."""
        self._seed_all(self.seed("inputs", *tag))
        return mapped(self.problem.make_inputs(), lambda t: t.to(self.device))

    def new_state(self, *tag: object) -> dict[str, Tensor]:
        """Random values for every parameter and buffer, none of them a default."""
        generator = torch.Generator().manual_seed(self.seed("state", *tag))
        made: dict[int, Tensor] = {}  # tied parameters stay tied
        state = {}
        for name, t in self.model.state_dict(keep_vars=True).items():
            if id(t) not in made:
                made[id(t)] = _redrawn(t.detach(), self.kinds[name], generator)
            state[name] = made[id(t)]
        return state

    # --- running ----------------------------------------------------------------------------

    def run(self, model: nn.Module, values: Sequence[object], state: State, mode: str) -> object:
        model.train(mode == "train")
        return functional_call(model, dict(state), tuple(values), strict=False)

    def eager(self, mode: str) -> contract.Run:
        def call(values: Sequence[object], state: State) -> list[Tensor]:
            with torch.no_grad():
                return list(layout.tensors_of(self.run(self.model, values, state, mode)))

        return call

    def accepts(self, values: Sequence[object], mode: str) -> bool:
        """Does eager take these arguments, in this very layout? Then they are legal."""
        shipment = layout.pack(values, 0)
        where = {"tree": shipment.tree, "tensors": shipment.tensors}
        blocks = [layout.aligned(b, self.device) for b in shipment.blocks]
        state = {name: t.clone() for name, t in self.state.items()}
        try:
            self.eager(mode)(layout.values_in(where, blocks), state)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        return True

    def truth(self, mode: str) -> contract.Run:
        def call(values: Sequence[object], state: State) -> list[Tensor]:
            with torch.no_grad(), _default_double():
                return list(layout.tensors_of(self.run(self.true_model, values, state, mode)))

        return call

    def expect(
        self, shipment: layout.Shipment, state: State, mode: str, like: Expected | None = None
    ) -> Expected:
        """Eager on the very bytes that the candidate gets, float64 on the same values.

        With `like`, an expectation for another draw of the same inputs, the sensitivity is taken
        from there, as one number per output: a quarter of the work.
        """
        where = {"tree": shipment.tree, "tensors": shipment.tensors}
        blocks = [layout.aligned(b, self.device) for b in shipment.blocks]
        values = layout.values_in(where, blocks)
        originals = mapped(values, Tensor.clone)
        after = {name: t.clone() for name, t in state.items()}
        outputs: list[Tensor] = []
        probe = self._differentiable(originals, state, mode)
        with torch.no_grad():
            spec = layout.describe(self.run(self.model, values, after, mode), outputs)
        known = [*layout.tensors_of(values), *after.values()]
        aliases = [_alias(t, [*known, *outputs[:i]]) for i, t in enumerate(outputs)]
        eager = [t.detach().clone() for t in outputs]
        wide = mapped(originals, upcast)
        true_state = {name: upcast(t) for name, t in state.items()}
        truth = [t.clone() for t in self.truth(mode)(wide, true_state)]
        unit = contract.unit_of(eager, originals)
        if like is None:
            kappa = contract.sensitivity(
                self.truth(mode), originals, state, unit=unit, seed=self.seed("kappa") % 2**31
            )
        else:
            pairs = zip(like.kappa, truth, strict=True)
            kappa = [k.square().mean().sqrt() + y.abs() * unit for k, y in pairs]
        return Expected(spec, eager, truth, kappa, aliases, blocks, after, true_state, probe)

    def _differentiable(
        self, values: Sequence[object], state: State, mode: str
    ) -> tuple[bool, ...]:
        """Which outputs of eager know how to be differentiated; asked once per kind of call."""
        key = (mode, *(t.requires_grad for t in layout.tensors_of(list(values))))
        if key not in self._known_differentiable:
            ready = {
                n: t.clone().requires_grad_(self.requires[n] and t.is_floating_point())
                for n, t in state.items()
            }
            copies = mapped(values, Tensor.clone)
            with torch.set_grad_enabled(True):
                outputs = layout.tensors_of(self.run(self.model, copies, ready, mode))
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
        ready = {n: t.detach().clone().requires_grad_(self.requires[n]) for n, t in state.items()}
        inputs = [t for t in layout.tensors_of(list(values)) if t.requires_grad]
        with torch.enable_grad():
            outputs = layout.tensors_of(self.run(model, values, ready, mode))
            pairs = [
                (o, v) for o, v in zip(outputs, cotangents, strict=False) if o.grad_fn is not None
            ]
            wanted = inputs + [t for t in ready.values() if t.requires_grad]
            if not pairs or not wanted:
                return [None] * len(wanted)
            ends, vectors = zip(*pairs, strict=True)
            return list(torch.autograd.grad(ends, wanted, vectors, allow_unused=True))

    def true_gradients(
        self, values: Sequence[object], state: State, cotangents: Sequence[Tensor], mode: str
    ) -> list[Tensor | None]:
        with _default_double():
            return self.gradients(self.true_model, values, state, cotangents, mode)

    def floor_seconds(self) -> float:
        """Arguments in and outputs out cannot take less than a share of copying as much."""
        values = self.inputs("floor")
        outputs = self.eager(self.modes[0])(values, {n: t.clone() for n, t in self.state.items()})
        count = sum(t.numel() * t.element_size() for t in (*layout.tensors_of(values), *outputs))
        source = torch.zeros(max(count // 2, 1), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            target.copy_(source)
            if self.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return FLOOR_SHARE[self.device] * max(0.0, min(times) - LAUNCH_S[self.device])

    # --- is the problem fit to be judged? ---------------------------------------------------

    def _check_problem(self) -> None:
        self.random_modes = tuple(m for m in self.modes if not self._repeats(m))
        self.modes = tuple(m for m in self.modes if m not in self.random_modes)
        if not self.modes:
            raise NotJudgeable("the reference gives other values for the same arguments each time")
        values = self.inputs("problem")
        self.weak: list[str] = []
        shipment = layout.pack(values, 0)
        begin = time.monotonic()
        try:
            expected = self.expect(shipment, self.state, self.modes[0])
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise NotJudgeable(f"the reference does not run in float64: {first}") from error
        three = zip(expected.eager, expected.truth, expected.kappa, strict=True)
        self.seconds = time.monotonic() - begin
        self.call_bytes = sum(
            t.numel() * t.element_size() for t in (*layout.tensors_of(values), *expected.eager)
        )
        for eager, truth, kappa in three:
            fault = contract.reference_fault(eager, truth)
            if fault:
                raise NotJudgeable(fault)
            for name, null in contract.null_candidates(eager, values).items():
                if contract.compare(null, eager, truth, kappa).passed:
                    self.weak.append(f"{name} would pass as an output")

    def _repeats(self, mode: str) -> bool:
        self._seed_all(self.seed("twice", 0))
        values = self.inputs("twice")
        answers = []
        for turn in range(2):
            self._seed_all(self.seed("twice", turn, "run"))
            state = {n: t.clone() for n, t in self.state.items()}
            answers.append(self.eager(mode)(mapped(values, Tensor.clone), state))
        pairs = zip(*answers, strict=True)
        return all(torch.allclose(a, b, 1e-2, 1e-5, equal_nan=True) for a, b in pairs)


def _redrawn(t: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Values of the same sign and rough size; constants, which hide mistakes, become random."""
    value = t.clone()
    if not value.is_floating_point() or not value.numel():
        return value
    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device)
    finite = torch.isfinite(value)
    flat = value[finite]
    constant = flat.numel() > 0 and bool((flat == flat[0]).all())
    if constant and bool(flat[0] == 0):
        new = noise - 0.5
    elif constant:
        new = value.double() * (noise + 0.5)
    elif kind == "P":
        turn = int(torch.randint(value.numel(), (), generator=generator))
        new = value.double().flatten().roll(turn).view_as(value) * (0.75 + 0.5 * noise)
    else:
        return value  # a table or a mask: its values mean something
    return torch.where(finite, new.to(value.dtype), value)


def _alias(t: Tensor, known: Sequence[Tensor]) -> int:
    pointer = t.untyped_storage().data_ptr()
    matches = (i for i, k in enumerate(known) if k.untyped_storage().data_ptr() == pointer)
    return next(matches, -1) if pointer else -1


@contextmanager
def _default_double() -> Iterator[None]:
    """Tensors that a forward creates itself shall be float64, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
