"""What is asked of a candidate, as generators: each yields steps for it and judges the answers.

`catalogue` names them; the parent decides which run in which process.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusewright.common.call_arguments import like
from fusewright.judge.evidence import contract, weight_changes
from fusewright.judge.evidence.pytree import mapped, upcast
from fusewright.judge.evidence.tied_tensors import each
from fusewright.judge.evidence.trial import Answer, Refused, State, Steps, Trial, named
from fusewright.judge.isolation.protocol import HAS_GRAD_FN

if TYPE_CHECKING:
    from fusewright.judge.evidence.expected_answers import Expected
    from fusewright.judge.evidence.oracle import Oracle

FRESH_CALLS = 5
WARM_CALLS = 12
# How often all of what the memory holds changes, and one element of it. A cache that samples one in
# sixteen sees all three with one in 4,096.
CHANGES = (2, 3)
SOAK_CALLS = 48
LEAK_CALLS = 100
EXACT_CALLS = 2  # under a tool that makes them a hundred times slower
# The caller's stream: one of its own, or the default one. The first call may build something.
STREAMS = ("own", "default", "own", "default")
LEAK_BYTES = 16 << 20
NONDETERMINISTIC = "the same input gave other bits, within the contract"
SMALL_BYTES = 64 << 20  # larger arguments come back, and larger outputs are kept, less often
Judging = Generator[dict[str, Any], Any, bool]


def setup(t: Trial) -> Steps:
    """Import, construct, compare the names, load random values and read them back."""
    lab = t.lab
    try:
        t.label = t.reports_to = "import"
        yield from t.ask("import")
        t.say("import", "pass", "defines ModelNew")
        t.label = t.reports_to = "constructor"
        yield from construct(t, 0)
        t.say("constructor", "pass", f"{len(lab.init_inputs)} arguments")
        t.label = t.reports_to = "parameters"
        answer = yield from t.ask("state", instance=0, values=False)
        wrong = _state_differences(lab, answer)
        if wrong:
            raise Refused(wrong)
        size = sum(v.numel() * v.element_size() for v in lab.state.values())
        if size < SMALL_BYTES or not lab.calls_compared:  # a large one only once
            yield from t.load(lab.state)
            t.stopped = not (yield from unchanged(t, lab.state, "read back"))
        else:
            yield from t.load(lab.state, "inplace")
        t.say("parameters", "pass", f"{len(lab.kinds)} entries pushed and read back")
    except Refused as refusal:
        t.say(t.reports_to, "fail", str(refusal))
        t.stopped = True


def construct(t: Trial, instance: int, dtype: str = "") -> Steps:
    arguments = t.ship(t.lab.init_inputs, constructor=True)
    fields = {"instance": instance, "seed": t.lab.model_seed, "dtype": dtype}
    yield from t.ask("construct", arguments=arguments, **fields)


def _state_differences(lab: Oracle, answer: Answer) -> str:
    entries = named(answer)
    found = {name: kind for name, kind, _ in entries}
    if found != lab.kinds:
        missing = [n for n in lab.kinds if n not in found]
        extra = [n for n in found if n not in lab.kinds]
        other = [n for n in lab.kinds if n in found and found[n] != lab.kinds[n]]
        return f"state_dict: missing {missing[:8]}, extra {extra[:8]}, of another kind {other[:8]}"
    for name, _, record in entries:
        wanted = lab.state[name]
        dtype, shape = str(wanted.dtype).removeprefix("torch."), list(record["shape"])
        if shape != list(wanted.shape) or record["dtype"] != dtype:
            return f"{name} is {record['dtype']}{shape}, not {dtype}{list(wanted.shape)}"
    return ""


def unchanged(t: Trial, state: State, when: str) -> Judging:
    """Are parameters (and here buffers, too) still, bit for bit, what was pushed?"""
    answer = yield from t.ask("state", instance=0, values=True)
    records = {name: record for name, _, record in named(answer)}
    for name, wanted in state.items():
        if name not in records or not t.holds(records[name], wanted):
            t.say("parameters", "fail", f"{when}: {name} is not what was pushed")
            return False
    return True


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b) if x.numel()]
    return not raw or torch.equal(raw[0], raw[1])


def fresh(t: Trial) -> Steps:
    """Fresh draws of get_inputs(); earlier outputs must survive, parameters and inputs, too."""
    kept: list[Tensor] = []
    small = t.lab.call_bytes < SMALL_BYTES
    hold = 64
    sizes = [0] * t.lab.counts.calls("fresh", FRESH_CALLS)
    if t.lab.few and (few := (yield from t.fewer())):
        sizes += [few] * (FRESH_CALLS - len(sizes))
    count = len(sizes)
    for number, rows in enumerate(sizes):
        values = t.lab.inputs("fresh", number, rows=rows)
        echo = small or number == 0
        # The first one with its own sensitivity, even where that is costly.
        outputs = yield from t.call(
            values,
            label=f"fresh {number}",
            echo=echo,
            hold=hold,
            typical=t.lab.costly and number > 0,
        )
        if outputs is None:
            t.stopped = True
            return
        hold = 64 if small else 2 * len(outputs)
        kept = [*kept, *outputs][-hold:]
        if (small or number == count - 1) and not (yield from intact(t, kept)):
            t.fail("output-reuse", "a later call changed an earlier output")
            break
    own = t.lab.state.items()
    parameters = {n: v for n, v in own if t.lab.kinds[n] == "P" and n not in t.lab.touched}
    if (yield from unchanged(t, parameters, "after calls")):
        t.say("parameters", "pass", "unchanged by calls")
    for check, text in (
        ("structure", f"{count} fresh draws"), ("values", f"{count} fresh draws"),
        ("accuracy", _accuracy_line(t)), ("nonfinite", f"{count} fresh draws"),
        ("input-mutation", "bytes compared with eager's"), ("aliasing", "as eager"),
        ("guard-bands", "4 KB on both sides of every input"),
        ("output-reuse", "all earlier outputs intact"),
    ):  # fmt: skip
        t.say(check, "pass", text)


def _accuracy_line(t: Trial) -> str:
    n = t.lab.accuracy_numbers
    if "rms_candidate" not in n:
        return "exact"
    return (
        f"worst rms {n['rms_candidate']:.2g} kappa, eager {n['rms_eager']:.2g}; relative L2 "
        f"{n['rel_l2_candidate']:.2g}, eager {n['rel_l2_eager']:.2g}"
        + (f"; of {t.lab.part} rows, and all close to eager" if t.lab.part else "")
    )


def intact(t: Trial, kept: Sequence[Tensor]) -> Judging:
    """Are the outputs of earlier calls, in the candidate's own memory, still what they were?"""
    records = (yield from t.ask("held"))["tensors"]
    return len(records) == len(kept) and all(map(t.holds, records, kept))


def stale_cache(t: Trial) -> Steps:
    """After many warm calls, the same objects at the same addresses hold something else."""
    check, warm = "stale-cache", t.lab.counts.calls("warm", WARM_CALLS, 3)
    few = yield from t.fewer()
    if few:
        yield from _changed(t, check, warm, few, CHANGES)
        # At full size one of them, and the candidate cannot know which.
        asked = ((1, 0), (0, 1))[t.lab.seed("change at full size") % 2]
    yield from _changed(t, check, warm, 0, asked if few else CHANGES)
    t.say(check, "pass", f"{2 * warm} warm calls, then {1 if few else sum(CHANGES)} changes")


def _changed(t: Trial, check: str, warm: int, rows: int, asked: tuple[int, int]) -> Steps:
    """asked: how often all of the content changes, and how often one element does then."""
    lab = t.lab
    values = lab.inputs("warm", rows=rows)
    yield from t.repeat(warm, t.ship(values))
    t.dirty = True
    yield from t.call(values, label="before the change", reports_to=check, typical=True)
    for number in range(asked[0]):
        values, label = lab.inputs("changed", number, rows=rows), "new content in the same memory"
        yield from t.call(values, label=label, reports_to=check, reuse=True, typical=True)
    if not asked[1]:
        return
    for number in range(asked[1]):
        label, values = _nearly(lab, values, number, rows)
        yield from t.call(values, label=label, reports_to=check, reuse=True, typical=True)
    label, known = "the same content elsewhere", t.known()
    yield from t.call(values, label=label, reports_to=check, known=known, typical=True)


def _nearly(
    lab: Oracle, values: Sequence[object], number: int, rows: int
) -> tuple[str, list[object]]:
    """What was changed, and what came of it: as little as the reference takes."""
    once_more = f" ({number + 1})" if number else ""
    for label, negated in (("one element changed", True), ("one element taken twice", False)):
        near = _nudged(values, lab.seed("nudge", number), negated=negated)
        if lab.takes(label, near):
            return label + once_more, near
    return "another draw" + once_more, lab.inputs("nudge", number, rows=rows)


def _nudged(values: Sequence[object], seed: int, *, negated: bool = True) -> list[object]:
    """One random element of every argument takes another one's value, negated if it is a float."""
    generator = torch.Generator().manual_seed(seed)

    def place(x: Tensor) -> tuple[int, ...]:
        return tuple(int(torch.randint(n, (), generator=generator)) for n in x.shape)

    def change(x: Tensor) -> Tensor:
        new: Tensor = copy.deepcopy(x.detach())  # gaps and all, so that it lies as `x` does
        if x.is_floating_point() and x.numel() > 1:
            taken = new[place(x)].clone()
            new[place(x)] = -taken - 1 if negated else taken
        elif x.numel() > 1:
            at = place(x)
            others = new[new != new[at]]
            if others.numel():
                new[at] = others[int(torch.randint(others.numel(), (), generator=generator))]
        new.requires_grad_(x.requires_grad)
        return new

    return mapped(values, change)


def weight_change(t: Trial) -> Steps:
    lab, check = t.lab, "weight-change"
    if not any(v.is_floating_point() or v.is_complex() for v in lab.state.values()):
        t.say(check, "skip", "the model has no floating point state")
        return
    other = lab.changed
    asked = lab.modes[: lab.counts.calls("modes", len(lab.modes), 1)]
    # Of full size is one with the other state: what was kept of its own would be right with that.
    few, whole = (yield from t.fewer()), (0, 2)[lab.seed("write at full size") % 2]
    writes = (("load_state_dict", other), ("inplace", lab.state), ("data", other))
    for number, (how, state) in enumerate(writes):
        yield from t.load(state, how)
        values = lab.inputs("weights", how, rows=few if number != whole else 0)
        for mode in asked:
            label = f"after {how}, {mode}"
            yield from t.call(
                values, label=label, reports_to=check, typical=True, state=state, mode=mode
            )
            if t.dirty:
                yield from t.load(state, how)
                t.dirty = False
    yield from _one_name(t, few)
    yield from weight_changes.one_element(t, few)
    yield from weight_changes.exchanged(t, few)
    yield from t.load(lab.state, "inplace")
    t.say(check, "pass", "writes of every kind, new memory and new parameters were noticed")


def _one_name(t: Trial, few: int) -> Steps:
    """What is tied is written under one of its names; eager sees it under all."""
    lab, several = t.lab, set()
    for name, first in lab.first.items():
        several |= {first} if name != first else set()
    if not several:
        return
    state = each(lab.state, lambda n, v: v * 1.25 if n in several and v.is_floating_point() else v)
    values = lab.inputs("weights", "tied", rows=few)
    label = "after in-place writes to one of the names of what is tied"
    if lab.takes(label, values, state):
        yield from t.load({n: v for n, v in state.items() if lab.first[n] == n}, "inplace")
        yield from t.call(values, label=label, reports_to="weight-change", state=state)


def modes(t: Trial) -> Steps:
    """Both modes, back and forth; in each the state moves as eager's does."""
    lab = t.lab
    buffers = sorted(lab.touched)
    few = yield from t.fewer()
    sizes = [few, few, few, 0] if few else [0] * lab.counts.calls("modes", 4)
    for number, rows in enumerate(sizes):
        mode = lab.modes[(number + 1) % len(lab.modes)]
        values = lab.inputs("mode", number, rows=rows)
        if buffers:
            yield from t.load({n: lab.state[n] for n in buffers}, "inplace")
        t.dirty = False
        yield from t.call(values, label=f"{mode}()", mode=mode, reports_to="mode", typical=True)
        kept = {n: v for n, v in lab.state.items() if n not in lab.writes.get(mode, ())}
        if buffers and mode == "eval" and not (yield from unchanged(t, kept, "after eval")):
            t.say("mode", "fail", "a call in eval mode changed the state")
    if lab.random_modes:
        other = lab.random_modes[0]
        t.say("mode", "pass", f"{lab.modes[0]} only: eager itself is random in {other}")
    elif lab.raising_modes:
        ((other, why),) = lab.raising_modes.items()
        t.say("mode", "pass", f"{lab.modes[0]} only: eager itself raises in {other}: {why}")
    else:
        t.say("mode", "pass", "train and eval, back and forth")


def buffers(t: Trial) -> Steps:
    """Three steps in train mode, then all that calls write to against float64's."""
    lab, names = t.lab, sorted(t.lab.touched)
    modes = [m for m in lab.modes if lab.writes.get(m) or m == "train"]
    if not names or not modes:
        why = "there are none" if not names else "eager is random, or raises, in train mode"
        t.say("buffers", "skip", why)
        return
    for mode in modes:
        yield from _steps(t, names, mode)
    t.say("buffers", "pass", f"{len(names)} buffers after 3 steps in {' and in '.join(modes)} mode")


def _steps(t: Trial, names: Sequence[str], mode: str) -> Steps:
    lab = t.lab
    yield from t.load(lab.state)
    state, true = dict(lab.state), each(lab.state, lambda _, v: upcast(v))
    draws = [lab.inputs("buffers", mode, number) for number in range(3)]
    for number, values in enumerate(draws):
        t.dirty = False
        label = f"step {number} in {mode} mode"
        yield from t.call(values, label=label, state=state, mode=mode, reports_to="buffers")
        assert t.expected is not None
        state = dict(t.expected.state)
        lab.truth(mode)(mapped(values, upcast), true)
    answer = yield from t.ask("state", instance=0, values=True)
    records = {name: record for name, _, record in named(answer)}
    moved = cache(lambda: dict(zip(names, _sensitivity(lab, draws, mode, names), strict=True)))
    for name in names:
        found = t.result(records[name]) if name in records else None
        # Near 0, an average is as uncertain as its neighbours.
        size = contract.real_view(true[name]).double().abs()
        kappa = (size + size.square().mean().sqrt()) * contract.unit_of([state[name]])
        if found is None:
            t.fail("buffers", f"{name} is gone")
            continue
        compared = contract.compare(found, state[name], true[name], kappa)
        if not compared.passed:  # what went into it may say more than its own size
            kappa = torch.maximum(kappa, moved()[name].view_as(kappa))
            compared = contract.compare(found, state[name], true[name], kappa)
        if not compared.passed:
            t.fail("buffers", f"{name}: {compared.detail}")
    t.dirty = True


def _sensitivity(
    lab: Oracle, draws: Sequence[Sequence[object]], mode: str, names: Sequence[str]
) -> list[Tensor]:
    """How much one rounding of all arguments and of the state moves these buffers, in all steps."""

    def run(values: Sequence[object], state: Mapping[str, Tensor]) -> list[Tensor]:
        left, rest = lab.own(state), iter(values)
        for given in draws:
            lab.truth(mode)(like(given, [next(rest) for _ in given]), left)
        return [left[name] for name in names]

    unit = contract.unit_of([lab.state[name] for name in names])
    every = [value for given in draws for value in given]
    seed = lab.seed("kappa of buffers") % 2**31
    own = contract.Sensitivity(run, every, lab.state, unit=unit, seed=seed, doubles=lab.doubles)
    return own.of(contract.PAIRS)


def instances(t: Trial) -> Steps:
    """Two instances with different weights, interleaved; the first one's output must survive."""
    lab, check = t.lab, "instances"
    states = {0: lab.state, 1: lab.changed}
    buffers = sorted(lab.touched)
    few, whole = (yield from t.fewer()), lab.seed("instance at full size") % 3
    yield from construct(t, 1)
    yield from t.load(states[1], instance=1)
    if buffers:
        yield from t.load({n: lab.state[n] for n in buffers}, "inplace")
    kept: list[Tensor] = []
    hold = 64 if lab.call_bytes < SMALL_BYTES else 2
    for turn, instance in enumerate((0, 1, 0) if lab.costly else (0, 1, 0, 1)):
        t.dirty = False
        rows, label = few if turn != whole else 0, f"instance {instance}"
        values = lab.inputs("instances", turn, rows=rows)
        state = states[instance]
        outputs = yield from t.call(
            values, label=label, reports_to=check, hold=hold, state=state, instance=instance,
            typical=True,
        )  # fmt: skip
        if buffers:
            yield from t.load({n: state[n] for n in buffers}, "inplace", instance=instance)
        kept = [*kept, *(outputs or [])][-hold:]
    if not (yield from intact(t, kept)):
        t.fail(check, "one instance's call changed the other's output")
    t.dirty = False
    t.say(check, "pass", "two instances, interleaved")


def determinism(t: Trial) -> Steps:
    """Two contents in turns: the same one must give the same answer again."""
    turns = max(t.lab.counts.calls("determinism", 8) // 2, 2)
    few = yield from t.fewer()
    if few:
        yield from _in_turns(t, [t.lab.inputs("again", k, rows=few) for k in range(2)], 4)
    draws = [t.lab.inputs("again", number) for number in range(1 if few else 2)]
    yield from _in_turns(t, draws, turns)
    t.say("determinism", "pass", f"{turns} repeats of each of {len(draws)} inputs, in turns")


def _in_turns(t: Trial, draws: Sequence[Sequence[object]], turns: int) -> Steps:
    first: dict[int, Sequence[Tensor]] = {}
    known: dict[int, Expected] = {}
    for turn in range(turns):
        for number, values in enumerate(draws):
            outputs = yield from t.call(
                values, label=f"repeat {turn}", reports_to="determinism",
                known=known.get(number), typical=True,
            )  # fmt: skip
            known[number] = t.known()
            if outputs is not None:
                same = map(same_bits, first.setdefault(number, outputs), outputs)
                if not all(same):
                    t.say("nondeterministic", "note", NONDETERMINISTIC)


def soak(t: Trial) -> Steps:
    """Many fresh calls, each compared; then memory must not grow."""
    few, count = (yield from t.fewer()), t.lab.counts.calls("soak", SOAK_CALLS)
    sizes = [0, *[few] * (SOAK_CALLS - 1)] if few else [0] * count
    for number, rows in enumerate(sizes):
        values = t.lab.inputs("soak", number, rows=rows)
        yield from t.call(values, label=f"call {number} in a fresh process", typical=True)
        if any(outcome == "fail" for _, outcome, _ in t.rows):
            return
    calls = t.lab.counts.calls("leak", LEAK_CALLS, 4, each=t.lab.counts.eager)
    if few:
        yield from _leak(t, few, LEAK_CALLS)
    grown = yield from _leak(t, 0, calls)
    t.say("resources", "pass", f"{calls} calls grew memory by {max(grown, 0) >> 20} MB")
    t.say("values", "pass", f"{len(sizes) + 1} more calls in a fresh process")


def _leak(t: Trial, rows: int, calls: int) -> Generator[dict[str, Any], Any, int]:
    """Many calls that nobody judges, and one that is; how many bytes more are in use."""
    arguments = t.ship(t.lab.inputs("leak", rows=rows) if rows else t.lab.own_values)
    for _ in range(2):  # a leak goes on; an allocator that took more memory once has it now
        answer = yield from t.repeat(calls, arguments)
        text, _, reuse = answer["text"].partition("\n")
        grown = int(text) if text.lstrip("-").isdigit() else LEAK_BYTES + 1
        if reuse and not t.lab.reuses(calls):
            t.say("output-reuse", "fail", reuse[:200])
        if grown <= LEAK_BYTES:
            break
    else:
        t.say("resources", "fail", f"{calls} calls left {grown >> 20} MB more in use")
    # Right for the first few hundred calls, and then no longer?
    values = t.lab.inputs("late", rows=rows)
    yield from t.call(values, label=f"after {2 * calls} more calls", typical=True)
    return grown


def global_state(t: Trial) -> Steps:
    answer = yield from t.ask("flags")
    for line in answer["text"].splitlines()[:10]:
        t.say("global-state", "fail", line)
    t.say("global-state", "pass", "flags, modes, hooks, operators and functions compared")


def grad_mode(t: Trial) -> Steps:
    """Does a call with gradients enabled keep the graph where eager does?"""
    few = yield from t.fewer()
    values, label = t.lab.inputs("graph", rows=few), "with gradients enabled"
    outputs = yield from t.call(values, label=label, grad=True, typical=True)
    if outputs is None or t.expected is None:
        return
    pairs = zip(t.answer["tensors"], t.expected.differentiable(), strict=True)
    if any(wanted and not record["flags"] & HAS_GRAD_FN for record, wanted in pairs):
        t.say("forward-only", "note", "the output has no grad_fn where eager's has one")


def side_stream(t: Trial) -> Steps:
    """CUDA: called early, on streams whose work is still to come; outputs are read there, too."""
    few = yield from t.fewer()
    for number, stream in enumerate(STREAMS):
        rows, label = few if number >= len(STREAMS) // 2 else 0, f"called early on {stream} stream"
        values = t.lab.inputs("stream", number, rows=rows)
        yield from t.call(values, label=label, reports_to="values", stream=stream, typical=True)
    t.say("values", "pass", f"{len(STREAMS)} calls before their inputs were there")


def exact(t: Trial) -> Steps:
    """For the tools that watch memory: every argument ends where its allocation ends."""
    for number in range(EXACT_CALLS):
        values, label = t.lab.inputs("exact", number), "in memory of its exact size"
        yield from t.call(values, label=label, reports_to="values", exact=True, typical=True)
    t.say("values", "pass", f"{EXACT_CALLS} calls in memory of its exact size")
