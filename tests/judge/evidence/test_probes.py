"""Exact-arithmetic probes: they tell a lower precision from another summation order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from fusewright.judge.evidence import probe_inputs, probes
from tests.support import judge_zoo as zoo

State = Mapping[str, Tensor]


ENTRY = {entry.name: entry for entry in zoo.ZOO}


def made(name: str, seed: int = 0) -> dict[str, probes.Probe]:
    entry = ENTRY[name]
    found = probes.probes(entry.model, entry.model, *entry.make(seed), seed=seed)
    return {probe.name: probe for probe in found}


def failing(found: Mapping[str, probes.Probe], model: object) -> set[str]:
    return {
        name
        for name, probe in found.items()
        if probe.applies and probe.check(model(probe.inputs, probe.state))
    }


LINEAR = made("linear")


def test_which_probes_apply_to_a_linear_layer() -> None:
    assert {name for name, probe in LINEAR.items() if probe.applies} == {
        "select-input-0", "select-weight-weight", "select-sparse-row", "select-sparse-sample",
        "integer-weight", "trailing-bits", "influence-0-last", "influence-0-random", "permutation",
    }  # fmt: skip
    assert "not homogeneous" in LINEAR["scaling-up"].why  # because of the bias


@pytest.mark.parametrize("kind", sorted(ENTRY["linear"].honest))
def test_honest_linear(kind: str) -> None:
    assert failing(LINEAR, ENTRY["linear"].honest[kind]) == set()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tf32", {"select-input-0", "select-weight-weight", "select-sparse-row"}),
        ("half", {"select-input-0", "select-weight-weight", "select-sparse-row"}),
        ("bfloat16", {"select-input-0", "select-weight-weight", "select-sparse-row"}),
        ("rounded result", {"trailing-bits", "select-input-0"}),
        ("half accumulator", {"integer-weight"}),
        ("skips last k", {"influence-0-last", "integer-weight"}),
        ("stale tail", {"permutation"}),
        ("touched", {"permutation"}),
    ],
)
def test_bad_linear(kind: str, expected: set[str]) -> None:
    assert expected <= failing(LINEAR, ENTRY["linear"].bad[kind])


def test_one_rounded_operand_is_enough() -> None:
    """Only the weight, or only the input, in TF32."""

    def weight(i: Sequence[Tensor], s: State) -> list[Tensor]:
        return zoo.linear(i, {"weight": zoo.tf32(s["weight"]), "bias": s["bias"]})

    def data(i: Sequence[Tensor], s: State) -> list[Tensor]:
        return zoo.linear([zoo.tf32(i[0])], s)

    assert "select-weight-weight" in failing(LINEAR, weight)
    assert "select-input-0" in failing(LINEAR, data)


def test_averaging_hides_rounding_from_the_error_but_not_from_the_probe() -> None:
    """The sum of 100 000 rounded numbers is nearer to the truth than an honest sequential sum."""
    x = torch.rand(2, 100_000, generator=torch.Generator().manual_seed(0))
    found = probes.probes(zoo.long_sum, zoo.long_sum, [x], {}, 0)
    named = {probe.name: probe for probe in found}
    low = zoo.rounding(zoo.long_sum, zoo.half)
    honest = lambda i, s: [zoo.sequential(i[0])]  # noqa: E731
    truth = x.double().sum(-1)
    assert (low([x], {})[0] - truth).abs().max() < (honest([x], {})[0] - truth).abs().max()
    precision = {n: p for n, p in named.items() if n.startswith(("select", "integer"))}
    assert failing(precision, low) >= {"select-sparse-row", "select-sparse-sample"}
    assert failing(precision, honest) == set()


def test_a_stale_answer_has_no_influence() -> None:
    """A cache keyed on the first element returns the old output."""
    entry = ENTRY["linear"]
    inputs, state = entry.make(0)
    old = entry.model(inputs, state)
    assert {"influence-0-last", "influence-0-random"} <= failing(LINEAR, lambda i, s: old)


def test_leaking_rows() -> None:
    """A changed row must not move another one."""

    def leaks(i: Sequence[Tensor], s: State) -> list[Tensor]:
        return [zoo.linear(i, s)[0] + i[0][-1:, -1:]]

    assert "influence-0-last" in failing(LINEAR, leaks)


@pytest.mark.parametrize(("low", "name"), [("half", "scaling-up"), ("half", "scaling-down")])
def test_scaling_leaves_the_range_of_half(low: str, name: str) -> None:
    """Rounding to half and back is right in 1 +- 1, and overflows or vanishes beyond."""
    found = made("running sum")
    assert found[name].applies
    assert name in failing(found, ENTRY["running sum"].bad["half operands"])


def test_attention_values_pass_through() -> None:
    found = made("attention")
    assert found["select-input-2"].applies
    assert "select-input-2" in failing(found, ENTRY["attention"].bad["half"])
    assert failing(found, ENTRY["attention"].honest["sequential"]) == set()


def test_every_layer_of_a_stack_is_aimed_at() -> None:
    found = made("mlp")
    assert {n for n in found if n.startswith("select-weight")} == {
        f"select-weight-{layer}.weight" for layer in "abc"
    }
    assert failing(found, ENTRY["mlp"].honest["split-K"]) == set()


def test_eager_in_the_lower_class_is_no_yardstick() -> None:
    """Where eager itself is TF32 the candidate may be."""
    entry = ENTRY["linear"]
    eager = zoo.rounding(entry.model, zoo.tf32)
    found = probes.probes(eager, entry.model, *entry.make(0), seed=0)
    selections = [p for p in found if p.name.startswith("select-")]
    assert selections
    assert not any(p.applies for p in selections)


def test_wrong_outputs_are_refused_politely() -> None:
    probe = LINEAR["select-input-0"]
    right = ENTRY["linear"].model(probe.inputs, probe.state)
    assert "0 outputs instead of 1" in str(probe.check([]))
    assert "shape or dtype" in str(probe.check([right[0][:1]]))
    assert "shape or dtype" in str(probe.check([right[0].double()]))
    assert probe.check([torch.full_like(right[0], float("nan"))])
    assert probe.check(right) is None


def test_arguments_are_copies() -> None:
    """A model that writes into its inputs changes neither the problem's own nor a probe's."""
    entry = ENTRY["linear"]
    inputs, state = entry.make(0)
    before = inputs[0].clone()

    def greedy(i: Sequence[Tensor], s: State) -> list[Tensor]:
        outputs = zoo.linear(i, s)
        i[0].zero_()
        return outputs

    found = probes.probes(greedy, greedy, inputs, state, seed=0)
    assert torch.equal(inputs[0], before)
    for probe in found:
        if probe.applies:
            assert probe.check(entry.model(probe.inputs, probe.state)) is None, probe.name


def test_probes_are_replayable() -> None:
    again = made("linear")
    for name, probe in LINEAR.items():
        for one, two in zip(probe.inputs, again[name].inputs, strict=True):
            assert torch.equal(one, two)
        for key in probe.state:
            assert torch.equal(probe.state[key], again[name].state[key])


@pytest.mark.parametrize(
    "inputs",
    [[torch.ones(0, 3)], [torch.tensor(2.0)], [torch.arange(6).view(2, 3)], [torch.ones(1)]],
)
def test_odd_inputs(inputs: list[Tensor]) -> None:
    def double_of(i: Sequence[Tensor], s: State) -> list[Tensor]:
        return [i[0] * 2]

    for probe in probes.iterate(double_of, double_of, inputs, {}, 0):
        if probe.applies:
            assert probe.check(double_of(probe.inputs, probe.state)) is None


def test_a_mask_among_the_buffers() -> None:
    """A buffer of booleans has no sign to take off."""

    def masked(i: Sequence[Tensor], s: State) -> list[Tensor]:
        return [(i[0] @ s["weight"]).masked_fill(s["mask"], 0.0)]

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 5, generator=generator)
    state = {"weight": weight, "mask": torch.ones(4, 5).triu(1).bool()}
    inputs = [torch.randn(4, 6, generator=generator)]
    found = [p for p in probes.iterate(masked, masked, inputs, state, 0) if p.applies]
    assert "integer-weight" in {p.name for p in found}
    assert all(p.check(masked(p.inputs, p.state)) is None for p in found)


@pytest.mark.parametrize(("bits", "value", "expected"), [(11, 8191.0, 8192.0), (8, 255.5, 256.0)])
def test_rounded(bits: int, value: float, expected: float) -> None:
    assert float(probe_inputs.rounded(torch.tensor(value), bits)) == expected


def test_rounding_to_eleven_bits_is_half_precision() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(probe_inputs.rounded(x, 11).float(), x.half().float())


def test_what_only_float64_rounds_is_no_yardstick() -> None:
    """Equal numbers less their mean: eager may be exact by luck, and nobody else has to be."""

    def deviations(i: Sequence[Tensor], s: State) -> list[Tensor]:
        product = i[0] @ s["weight"]
        bits = probe_inputs.LOWER_BITS[torch.float32]
        round_ = torch.equal(i[0].double(), probe_inputs.rounded(i[0], bits))
        return [product * 0 + (1e-18 if round_ else 0.0)]

    generator = torch.Generator().manual_seed(0)
    state = {"weight": torch.randn(6, 5, generator=generator)}
    inputs = [torch.randn(8, 6, generator=generator)]
    found = list(probes.iterate(deviations, deviations, inputs, state, 0))
    selections = [p for p in found if p.name.startswith("select-")]
    assert selections
    assert not any(p.applies for p in selections)
