"""The accuracy contract: honest kernels pass, worse ones do not, whatever the corner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from fusewright.judge.evidence import contract, error_metrics, pytree
from fusewright.judge.evidence.float64_twins import Doubles
from fusewright.judge.evidence.legal_inputs import Illegal
from tests.support import judge_zoo as zoo

NAMES = [entry.name for entry in zoo.ZOO]
TINY = zoo._linear_entry("tiny", zoo.make_linear(1, 4, 1))


def judged(entry: object, model: object, inputs: Sequence[Tensor], state: Mapping[str, Tensor]):
    """The comparison of one model with one output on these inputs."""
    wide = [t.double() for t in inputs]
    truth = entry.model(wide, {name: t.double() for name, t in state.items()})
    eager = entry.model(inputs, state)
    unit = contract.unit_of(eager)
    kappa = contract.sensitivity(entry.model, inputs, state, unit=unit)
    return contract.compare(model(inputs, state)[0], eager[0], truth[0], kappa[0])


def plain(
    candidate: Tensor, eager: Tensor, truth: Tensor | None = None, **options: str
) -> contract.Comparison:
    """A comparison where every kappa is what storing the number costs."""
    true = eager.double() if truth is None else truth
    return contract.compare(candidate, eager, true, torch.zeros_like(true), **options)


@pytest.mark.parametrize("name", NAMES)
def test_what_eager_alone_decides_float64_does_not_refute(name: str) -> None:
    entry = zoo.ZOO[NAMES.index(name)]
    for model, alone, said in zoo.by_eager(entry, {**entry.honest, **entry.bad}, 11):
        assert not (alone and said), (model, said)


@pytest.mark.parametrize("name", NAMES)
def test_yardstick(name: str) -> None:
    """Contract, hazards and probes: every honest variant passes, every bad one is caught."""
    entry = zoo.ZOO[NAMES.index(name)]
    for kind, said in zoo.complaints(entry, entry.honest, 11).items():
        assert said == [], f"false alarm on {kind}"
    for kind, said in zoo.complaints(entry, entry.bad, 11).items():
        assert said, f"{kind} passed"


@pytest.mark.parametrize("kind", sorted(TINY.honest))
def test_no_false_alarm_on_tiny_outputs(kind: str) -> None:
    """One output element: eager may be exact by luck, and its error is no scale for others."""
    for seed in range(200):
        inputs, state = TINY.make(seed)
        said = judged(TINY, TINY.honest[kind], inputs, state)
        assert said.passed, f"seed {seed}: {said.detail}"


def test_a_relu_corner_is_no_error() -> None:
    """Some sums lie within rounding of relu's corner: zero here, 1e-8 there, both right."""
    entry = zoo.ZOO[NAMES.index("linear relu")]
    inputs, state = zoo.make_linear(2000, 32, 200)(0)
    state["bias"] = -(inputs[0][:1] @ state["weight"].t())[0]  # row 0 lies in the corner
    said = judged(entry, entry.honest["sequential"], inputs, state)
    assert said.passed, said.detail


def test_better_than_eager_passes_though_it_differs() -> None:
    """Eager in TF32: exact float32 differs from it by more than allclose 1e-4, and is better."""
    inputs, state = zoo.make_linear(16, 256, 32)(0)
    eager = zoo.rounding(zoo.linear, zoo.tf32)(inputs, state)[0]
    exact = zoo.linear(inputs, state)[0]
    truth = zoo.inside(zoo.linear, torch.float64)
    wide = truth([t.double() for t in inputs], {k: t.double() for k, t in state.items()})[0]
    said = contract.compare(exact, eager, wide, torch.zeros_like(wide))
    assert said.passed
    assert said.grade == "A"
    assert said.more_accurate
    assert said.numbers["outside_allclose_1e-04"] > 0


def test_long_sequential_sum_is_grade_c() -> None:
    """Correct, but much worse than eager: only the loose mode takes it."""
    x = torch.rand(2, 100_000, generator=torch.Generator().manual_seed(0))
    eager, truth = x.sum(-1), x.double().sum(-1)
    kappa = contract.sensitivity(lambda i, s: [i[0].sum(-1)], [x], {}, unit=2.0**-24)[0]
    candidate = zoo.sequential(x)
    strict = contract.compare(candidate, eager, truth, kappa)
    assert (strict.passed, strict.grade, strict.check) == (False, "C", "accuracy")
    assert contract.compare(candidate, eager, truth, kappa, mode="loose").passed


@pytest.mark.parametrize("size", [1e-4, 1e-3, 0.5])
@pytest.mark.parametrize("place", [0, 777, 4095])
def test_one_wrong_element(place: int, size: float) -> None:
    """Hidden in the average of 4096 good ones, but not from the local measures."""
    inputs, state = zoo.make_linear(64, 128, 64)(3)

    def wrong(i: Sequence[Tensor], s: Mapping[str, Tensor]) -> list[Tensor]:
        y = zoo.linear(i, s)[0]
        y.view(-1)[place] += size
        return [y]

    entry = zoo.ZOO[0]
    said = judged(entry, wrong, inputs, state)
    assert not said.passed
    assert str([place // 64, place % 64]) in said.detail


def test_wrong_element_among_large_rows() -> None:
    """The other rows are a million times larger: no absolute tolerance would see it."""
    eager = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    eager[1:] *= 1e6
    candidate = eager.clone()
    candidate[0, 5] += 1e-2
    assert not plain(candidate, eager).passed


NAN, INF, LARGEST = float("nan"), float("inf"), torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("truth", "eager", "candidate", "passed"),
    [
        (NAN, NAN, NAN, True),
        (NAN, NAN, 1.0, False),
        (1.0, 1.0, NAN, False),
        (INF, INF, INF, True),
        (INF, INF, -INF, False),
        (INF, INF, NAN, False),
        (-INF, -INF, 3.0, False),
        (1e39, INF, INF, True),  # beyond float32: infinity is the right answer
        (1e39, INF, 3e38, False),
        (LARGEST, LARGEST, INF, True),  # at the edge both are right
        (2.0, INF, 2.0, True),  # eager overflowed inside: the right answer is right
        (2.0, INF, INF, True),  # and so is eager's
        (2.0, NAN, INF, True),
        (2.0, NAN, 7.0, False),
        (NAN, 1.0, 1.0, True),
        (NAN, 1.0, NAN, True),
    ],
)
def test_nonfinite(truth: float, eager: float, candidate: float, passed: bool) -> None:
    mine, theirs, true = torch.ones(70), torch.ones(70), torch.ones(70, dtype=torch.float64)
    mine[69], theirs[69], true[69] = candidate, eager, truth
    assert plain(mine, theirs, true).passed is passed


def test_nan_everywhere_is_never_accurate() -> None:
    said = plain(torch.full((5, 5), NAN), torch.ones(5, 5))
    assert (said.passed, said.check) == (False, "nonfinite")


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 2)])
def test_empty(shape: tuple[int, ...]) -> None:
    assert plain(torch.zeros(shape), torch.zeros(shape)).passed


@pytest.mark.parametrize("shape", [(), (1,), (63,), (65,), (3, 1, 5), (2, 3, 64, 2), (7, 130)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
)
def test_shapes_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    eager = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    true = eager.to(torch.complex128 if dtype.is_complex else torch.float64)
    kappa = torch.zeros((*shape, 2) if dtype.is_complex else shape, dtype=torch.float64)
    assert contract.compare(eager.clone(), eager, true, kappa).grade == "A"
    assert not contract.compare(eager * 1.2, eager, true, kappa).passed


def test_structure() -> None:
    one = torch.ones(3)
    assert plain(torch.ones(3, 1), one).check == "structure"
    assert plain(one.double(), one).check == "structure"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    eager = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    wrong = torch.tensor([0, 1, 1, 0, 0]).to(dtype)
    true = eager.clone()
    stable, tied = torch.zeros(5), torch.tensor([0.0, 0, 0, 0, 1])
    assert contract.compare(eager.clone(), eager, true, stable).passed
    assert not contract.compare(wrong, eager, true, stable).passed
    assert contract.compare(wrong, eager, true, tied).passed


def test_argmax_ties() -> None:
    """Equal maxima: either index is right; an index out of range is not."""
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [9.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]])

    def run(i: Sequence[Tensor], s: Mapping[str, Tensor]) -> list[Tensor]:
        return [i[0].argmax(-1)]

    eager, kappa = run([x], {})[0], contract.sensitivity(run, [x], {}, unit=2.0**-24, draws=8)[0]
    for index, passed in ((1, True), (2, True), (7, False)):
        candidate = torch.tensor([index, 0, 3])
        assert contract.compare(candidate, eager, eager, kappa).passed is passed
    assert not contract.compare(torch.tensor([1, 1, 3]), eager, eager, kappa).passed


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks give the same numbers, so large tensors may be compared piece by piece."""
    inputs, state = zoo.make_linear(50, 40, 90)(5)
    entry = zoo.ZOO[0]
    whole = judged(entry, entry.bad["touched"], inputs, state)
    monkeypatch.setattr(error_metrics, "CHUNK_BYTES", {"cpu": 4096})
    pieces = judged(entry, entry.bad["touched"], inputs, state)
    assert pieces.detail == whole.detail
    assert pieces.numbers == pytest.approx(whole.numbers)


def test_numbers_agree_with_a_plain_computation() -> None:
    generator = torch.Generator().manual_seed(2)
    true = torch.randn(30, 70, generator=generator, dtype=torch.float64)
    eager = true.float()
    candidate = eager + 1e-5 * torch.randn(30, 70, generator=generator)
    numbers = plain(candidate, eager, true).numbers
    error = (candidate.double() - true).abs()
    assert numbers["rel_l2_candidate"] == pytest.approx(float(error.norm() / true.norm()))
    assert numbers["max_abs_candidate"] == pytest.approx(float(error.max()))
    for tolerance in (1e-2, 1e-4, 1e-5):
        close = torch.isclose(candidate, eager, tolerance, tolerance)
        assert numbers[f"outside_allclose_{tolerance:.0e}"] == int((~close).sum())
    size = true.abs().clamp_min(float(true.square().mean().sqrt()))
    ulp = error / torch.ldexp(torch.full_like(true, 2.0**-23), size.frexp()[1] - 1)
    assert numbers["ulp_max"] == pytest.approx(float(ulp.max()), rel=1e-6)
    assert numbers["ulp_p50"] == pytest.approx(float(ulp.median()), rel=0.2)


def test_sensitivity_follows_conditioning() -> None:
    """x - y near cancellation: kappa is a rounding of x, not of the small difference."""
    x = torch.full((8,), 1.0)

    def run(i: Sequence[Tensor], s: Mapping[str, Tensor]) -> list[Tensor]:
        return [i[0] - s["y"]]

    state = {"y": torch.full((8,), 1.0 - 2.0**-20)}
    kappa = contract.sensitivity(run, [x], state, unit=2.0**-24, draws=64)[0]
    assert kappa.mean() == pytest.approx(2.0**0.5 * 2.0**-24, rel=0.2)
    again = contract.sensitivity(run, [x], state, unit=2.0**-24, draws=64)[0]
    assert torch.equal(kappa, again)


def test_sensitivity_sees_a_step() -> None:
    """One rounding away from a jump: the jump is a few kappa, elsewhere there is none."""
    x = torch.tensor([1.0 + 2.0**-23, 1.5])

    def run(i: Sequence[Tensor], s: Mapping[str, Tensor]) -> list[Tensor]:
        return [(i[0] > 1).double()]

    kappa = contract.sensitivity(run, [x], {}, unit=2.0**-24)[0]
    assert kappa[0] >= 0.25
    assert kappa[1] == 0


def test_reference_fault() -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert contract.reference_fault(x, x.double()) is None
    assert "away from float64" in str(contract.reference_fault(x, 2 * x.double()))
    assert "no finite" in str(contract.reference_fault(x * NAN, x.double()))


def test_null_candidates_fail_on_a_sound_problem() -> None:
    inputs, state = zoo.make_linear(8, 16, 16)(0)
    for name, null in contract.null_candidates(zoo.linear(inputs, state)[0], inputs).items():
        said = judged(zoo.ZOO[0], lambda i, s, null=null: [null], inputs, state)
        assert not said.passed, name


def test_null_candidates_show_a_weak_problem() -> None:
    """The mean of a softmax is always the same: every output computes nothing."""
    eager = torch.full((8, 1), 0.125)
    nulls = contract.null_candidates(eager, [])
    assert plain(nulls["mean"], eager).passed


def test_hazards_have_wider_limits() -> None:
    """An error of 40 kappa: too much on the problem's own inputs, not on a hazard."""
    eager = torch.ones(128)
    candidate = eager * (1 + 40 * 2.0**-24)
    true = torch.ones(128, dtype=torch.float64)
    assert not plain(candidate, eager, true).passed
    assert contract.compare(candidate, eager, true, torch.zeros(128), hazard=True).passed
    assert not contract.compare(
        candidate * 1.001, eager, true, torch.zeros(128), hazard=True
    ).passed


def test_an_unlucky_draw_is_evened_out() -> None:
    """kappa is a hundredth of its neighbours' at one place by chance: no alarm there."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(4, 64, generator=generator, dtype=torch.float64)
    kappa = torch.full((4, 64), 1e-6, dtype=torch.float64)
    kappa[2, 3] = 1e-8
    true[2, 3] = 1.0
    candidate = true.float()
    candidate[2, 3] += 2e-5
    assert contract.compare(candidate, true.float(), true, kappa).passed
    candidate[2, 3] += 2e-3
    assert not contract.compare(candidate, true.float(), true, kappa).passed


def test_no_ulp_is_counted_next_to_a_zero_crossing() -> None:
    """An error of one rounding of the neighbours is no million of ulp where a sum is near zero."""
    true = torch.ones(4, 64, dtype=torch.float64)
    true[0, 0] = 1e-12
    candidate = true.float() + 2.0**-23 * (true < 0.5)
    numbers = plain(candidate, true.float(), true).numbers
    assert numbers["ulp_max"] < 4


@pytest.mark.parametrize("wrong", [0.0, 1e-3])
def test_without_numbers_the_verdict_is_the_same(wrong: float) -> None:
    draws = torch.Generator().manual_seed(3)
    true = torch.randn(30, 70, generator=draws, dtype=torch.float64)
    candidate = true.float()
    candidate[7, 9] += wrong
    kappa = torch.zeros_like(true)
    both = [
        contract.compare(candidate, true.float(), true, kappa, full=full) for full in (True, False)
    ]
    assert both[0].passed == both[1].passed == (wrong == 0.0)
    assert both[0].check == both[1].check
    assert both[0].detail == both[1].detail or not wrong  # what passes needs no numbers
    assert contract.passes(candidate, true.float(), true, kappa) == both[0].passed


def entropy_like(inputs: Sequence[Tensor], state: Mapping[str, Tensor]) -> list[Tensor]:
    """log(1 + exp(-x)): where x is large, all that is lost is lost in rounding the sum."""
    return [torch.log(1 + torch.exp(-inputs[0]))]


def lucky() -> Tensor:
    """x for which that rounding costs next to nothing."""
    x = torch.linspace(13.0, 14.0, 10_000)
    away = entropy_like([x], {})[0].double() - entropy_like([x.double()], {})[0]
    return x[away.abs().argmin()].reshape(1)


@pytest.mark.parametrize(("steps", "passed"), [(1, True), (300, False)])
def test_eager_may_be_lucky(steps: int, passed: bool) -> None:
    """A sum that is off by its last digit is an honest one; one by 300 of them is not."""
    x = lucky()
    eager, true = entropy_like([x], {})[0], entropy_like([x.double()], {})[0]
    kappa = contract.sensitivity(entropy_like, [x], {}, unit=contract.unit_of([eager]))[0]
    candidate = torch.log(1 + torch.exp(-x) + steps * 2.0**-23)
    near = partial(contract.noise, entropy_like, entropy_like, [x], {}, seed=0, doubles=Doubles())
    strict = contract.compare(candidate, eager, true, kappa, hazard=True)
    found = contract.compare(candidate, eager, true, kappa, hazard=True, noise=lambda: near()[0])
    assert not strict.passed
    assert found.passed == passed


def test_nearby_inputs_may_be_no_arguments() -> None:
    """Eager refuses all numbers but its own: what it did there is all that is known."""
    x = torch.full((3,), 0.5)

    def only(i: Sequence[Tensor], s: Mapping[str, Tensor]) -> list[Tensor]:
        if not bool((i[0] == 0.5).all()):
            raise Illegal("no such index")
        return [i[0] / 3]

    (near,) = contract.noise(only, only, [x], {}, seed=0, doubles=Doubles())
    assert 0 < float(near.max()) < 2.0**-24


SHAPES = ((64,), (3, 64), (5, 100), (4, 8, 30, 30), (7,), (130, 192), (1000, 3), (1, 5000))
SPOILT: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda t: t,
    "an element a little": lambda t: _with_element(t, 1 + 3e-5),
    "an element": lambda t: _with_element(t, 1.01),
    "an element, nan": lambda t: _with_element(t, float("nan")),
    "all a little": lambda t: t * (1 + 2.0**-21),
    "all": lambda t: t * (1 + 2.0**-16),
    "a row": lambda t: torch.cat([t[:1] * (1 + 2.0**-18), t[1:]]),
}


def _with_element(t: Tensor, factor: float) -> Tensor:
    spoilt = t.clone()
    spoilt.view(-1)[t.numel() // 2] *= factor
    return spoilt


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_short_way_takes_only_what_the_long_one_takes(
    spoilt: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Units that happen to be tiny, zeros, and sizes far apart included."""
    _compared(spoilt, shape, dtype)


def test_the_short_way_is_taken() -> None:
    """By most honest roundings; where units are too small by chance, it may be the long one."""
    kinds = itertools.product(SHAPES, (torch.float32, torch.bfloat16, torch.float64))
    taken = [_compared("nothing", shape, dtype) for shape, dtype in kinds]
    assert sum(taken) >= 0.9 * len(taken)


def _compared(spoilt: str, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    draws = torch.Generator().manual_seed(len(spoilt) + 100 * len(shape) + dtype.itemsize)
    size = 10 ** torch.randint(-6, 7, shape, generator=draws).double()
    truth = torch.randn(shape, generator=draws, dtype=torch.float64) * size
    truth = torch.where(torch.rand(shape, generator=draws) < 0.1, 0.0, truth)
    eps = torch.finfo(dtype).eps
    unit = truth.abs() * eps * 10 ** -(3 * torch.rand(shape, generator=draws).double())
    kappa = torch.where(torch.rand(shape, generator=draws) < 0.01, 0.0, unit)

    def rounded() -> Tensor:
        noise = torch.randn(shape, generator=draws, dtype=torch.float64)
        return (truth * (1 + eps / 2 * noise)).to(dtype)

    eager, candidate = rounded(), SPOILT[spoilt](rounded())
    slack = contract.SLACK.get(dtype, contract.SLACK_HALF)
    short = error_metrics.within(candidate, eager, truth, kappa, contract._most(slack))
    whole = contract.compare(candidate, eager, truth, kappa)
    assert whole.passed or not short, whole.detail
    least = error_metrics.within_least(candidate, eager, truth, contract._most(slack))
    assert whole.passed or not least, whole.detail
    return short


def test_no_sensitivity_is_drawn_where_the_result_passes_without() -> None:
    """What is right to a few of its own roundings needs none; what is not is asked as ever."""
    truth = torch.randn(200, 130, dtype=torch.float64)
    eager, drawn = truth.float(), list[int]()

    def kappa(pairs: int) -> Tensor:
        drawn.append(pairs)
        return truth.abs() * 2.0**-24

    assert contract.compare(eager * (1 + 2.0**-22), eager, truth, kappa, full=False).passed
    assert not drawn
    assert contract.compare(eager, eager, truth, kappa).passed  # the numbers that a reader wants
    assert drawn == [contract.PAIRS]
    drawn.clear()
    assert not contract.compare(eager * (1 + 2.0**-12), eager, truth, kappa, full=False).passed
    assert drawn[0] == 1


def test_the_sensitivity_does_not_depend_on_how_results_lie() -> None:
    """It is worked out in pieces of memory, whatever the strides, and sizes beyond one piece."""
    x = torch.rand(1200, 600) + 0.5  # of a 0 nothing moves

    def plain(i: Sequence[object], _: object) -> list[Tensor]:
        (given,) = pytree.tensors(i)
        return [given.sin()]

    def turned(i: Sequence[object], _: object) -> list[Tensor]:
        return [plain(i, _)[0].T.contiguous().T, plain(i, _)[0][:1].expand(5, -1)]

    wanted = contract.sensitivity(plain, [x], {}, unit=2.0**-24)[0]
    whole, repeated = contract.sensitivity(turned, [x], {}, unit=2.0**-24)
    assert torch.equal(whole, wanted)
    assert torch.equal(repeated, wanted[:1].expand(5, -1))
    assert bool((wanted > 0).all())
