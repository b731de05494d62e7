"""Speed ratios on synthetic series: no false claims, honest intervals, enough power."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fusewright.judge.timing import statistics

Series = tuple[list[list[float]], list[list[float]]]
RUNS = 300


def series(seed: int, *, pairs: int = 40, drift: float = 0.05, gain: float = 1.0) -> Series:
    """Two programs in paired turns on a machine whose clock falls and wanders by `drift`."""
    generator = np.random.default_rng(seed)
    walk = generator.normal(size=2 * pairs).cumsum()
    wander = drift * walk / np.abs(walk).max()
    turns: Series = ([], [])
    for pair in range(pairs):
        for place, side in enumerate(generator.permutation(2)):
            at = 2 * pair + place
            level = 1e-3 * (1 + drift * at / (2 * pairs) + wander[at] / 4)
            noise = np.exp(0.01 * generator.normal(size=7) + 0.004 * generator.normal())
            spikes = np.where(generator.random(7) < 0.02, 1.3, 1.0)
            turns[side].append(list(level * noise * spikes / (gain if side == 1 else 1.0)))
    return turns


def measured(seed: int, **options: float) -> statistics.Ratio:
    a, b = series(seed, **options)
    return statistics.ratio([a], [b], seed=seed, resamples=500)


def levels(
    seed: int, count: int, *, spread: float, gain: float = 1.0
) -> tuple[list[list[list[float]]], list[list[list[float]]]]:
    """Several processes a side, each of which settles at a level of its own."""
    generator, sides = (
        np.random.default_rng(seed),
        (list[list[list[float]]](), list[list[list[float]]]()),
    )
    for number in range(count):
        for side, turns in zip(sides, series(100 * seed + number, pairs=6, gain=gain), strict=True):
            level = math.exp(spread * generator.normal())
            side.append([[level * t for t in turn] for turn in turns])
    return sides


def of_processes(seed: int, count: int, *, spread: float, gain: float = 1.0) -> statistics.Ratio:
    sides = levels(seed, count, spread=spread, gain=gain)
    return statistics.ratio(*sides, seed=seed, resamples=500)


@pytest.mark.parametrize("drift", [0.0, 0.05, 0.10])
def test_identical_programs_differ_in_at_most_5_percent(drift: float) -> None:
    wrong = [not r.low <= 1 <= r.high for r in (measured(s, drift=drift) for s in range(RUNS))]
    assert np.mean(wrong) <= 0.05


@pytest.mark.parametrize("pairs", [30, 61])
def test_interval_covers_the_truth(pairs: int) -> None:
    found = (measured(s, drift=0.05, gain=1.1, pairs=pairs) for s in range(1000, 1000 + RUNS))
    assert np.mean([r.low <= 1.1 <= r.high for r in found]) >= 0.93


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.15])
def test_interval_covers_the_truth_where_processes_differ(spread: float) -> None:
    found = [of_processes(s, 5, spread=spread, gain=1.1) for s in range(RUNS)]
    assert np.mean([r.low <= 1.1 <= r.high for r in found]) >= 0.93
    assert {r.processes for r in found} == {5}


def test_one_process_a_side_would_be_sure_of_what_it_settled_at() -> None:
    """Why there are several: its interval leaves out the truth, and the next run contradicts it."""
    found = [of_processes(s, 1, spread=0.15) for s in range(RUNS)]
    assert np.mean([r.low <= 1.0 <= r.high for r in found]) < 0.5


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_interval_covers_the_usual_level_of_two(share: float) -> None:
    """Eager's heap has two states, one of them 1.3 times as slow: most processes' is the truth."""
    truths = {1.0, 1.3} if share == 0.5 else {1.0}
    held = 0
    for seed in range(RUNS):
        generator, sides = np.random.default_rng(seed), ([], [])  # type: ignore[var-annotated]
        for number in range(5):
            slow, fast = series(100 * seed + number, pairs=6)
            level = 1.3 if generator.random() < share else 1.0
            sides[0].append([[level * t for t in turn] for turn in slow])
            sides[1].append(fast)
        found = statistics.ratio(*sides, seed=seed, resamples=500)
        held += any(found.low <= truth <= found.high for truth in truths)
    assert held / RUNS >= 0.93


def test_claims() -> None:
    """Beyond the null of the same machine: 3 % is claimed, nothing is claimed of nothing."""
    claims: dict[float, list[str]] = {1.0: [], 1.03: [], 0.97: []}
    for seed in range(100):
        first, second = series(5000 + seed)
        delta = statistics.null_threshold([first], [second], seed=seed)
        for gain, said in claims.items():
            said.append(statistics.claim(measured(9000 + seed, gain=gain), delta))
    assert claims[1.0].count("no difference shown") == 100
    assert claims[1.03].count("faster") >= 95
    assert claims[0.97].count("slower") >= 95


def test_unpaired_comparison_would_be_fooled() -> None:
    """The series is hard: comparing one side's run with a later one's sees the drift as speed."""
    first, second = series(1, drift=0.10, pairs=80)
    early, late = np.median(np.concatenate(first[:40])), np.median(np.concatenate(second[40:]))
    assert late / early > 1.03


def test_ratio_is_replayable_and_symmetric() -> None:
    a, b = series(4, gain=1.2)
    forward, backward = statistics.ratio([a], [b], seed=1), statistics.ratio([b], [a], seed=1)
    assert forward == statistics.ratio([a], [b], seed=1)
    assert forward.median == pytest.approx(1 / backward.median)
    assert forward.low == pytest.approx(1 / backward.high)
    assert forward.low < forward.median < forward.high


def test_turns_without_a_partner() -> None:
    a, b = series(7)
    with pytest.raises(ValueError, match="do not pair"):
        statistics.ratio([a], [b[:-1]])


@pytest.mark.parametrize("time", [0.0, -1e-6, math.nan, math.inf])
def test_impossible_times(time: float) -> None:
    turns = [[1e-3, 1e-3], [1e-3, time]]
    assert "turn 1, call 1" in str(statistics.fault(turns))
    with pytest.raises(ValueError, match="candidate"):
        statistics.ratio([[[1.0], [1.0]]], [turns])


def test_fault_of_nothing() -> None:
    assert statistics.fault([[1e-9]]) is None
    assert statistics.fault([]) is not None
    assert statistics.fault([[]]) is not None


def test_side() -> None:
    found = statistics.side([[1.0, 2.0, 3.0], [4.0, 5.0, 100.0]])
    assert (found.calls, found.min_s, found.p50_s, found.outliers) == (6, 1.0, 3.5, 1)
    assert found.iqr_s == pytest.approx(2.5)


def test_stop_looks_at_width_only() -> None:
    a, b = series(2)
    fewest = {"min_pairs": 30, "elapsed_s": 1.0, "cap_s": 60.0}
    assert not statistics.stop(a[:29], b[:29], **fewest).done  # type: ignore[arg-type]
    assert statistics.stop(a, b, **fewest).done  # type: ignore[arg-type]
    late = {**fewest, "elapsed_s": 60.0}
    assert "time cap" in statistics.stop(a[:3], b[:3], **late).reason  # type: ignore[arg-type]
    noisy = [[t * math.exp(0.5 * (-1) ** k) for t in turn] for k, turn in enumerate(b)]
    assert not statistics.stop(a, noisy, **fewest).done  # type: ignore[arg-type]


def test_stop_knows_the_clock_resolution() -> None:
    """Calls of 2 microseconds: half an interval of 0.3 microseconds is all that can be had."""
    a, b = ([[t * 2e-3 for t in turn] for turn in side] for side in series(3))
    noisy = [[t * math.exp(0.12 * (-1) ** k) for t in turn] for k, turn in enumerate(b)]
    assert statistics.stop(a, noisy, elapsed_s=1, cap_s=60, min_pairs=30).done


def test_few_pairs_have_a_wide_interval() -> None:
    found = statistics.ratio([[[1.0], [1.1], [1.2]]], [[[1.0], [1.0], [1.0]]])
    assert (found.low, found.high) == pytest.approx((1.0, 1.2))


def test_two_processes_say_next_to_nothing() -> None:
    found = statistics.ratio([[[1.0]] * 3, [[1.1]] * 3], [[[1.0]] * 3, [[1.0]] * 3])
    assert found.low < 0.7
    assert found.high > 1.5
    assert (found.pairs, found.processes) == (6, 2)


def test_what_processes_differ_by_counts_once() -> None:
    """15 % are claimed where processes differ by some percent, and seldom anything of nothing."""
    said: dict[float, list[str]] = {1.0: [], 1.15: []}
    for seed in range(100):
        delta = statistics.null_threshold(*levels(7000 + seed, 5, spread=0.03))
        for gain, claims in said.items():
            found = statistics.ratio(*levels(seed, 5, spread=0.03, gain=gain), resamples=500)
            claims.append(statistics.claim(found, delta))
    assert said[1.15].count("faster") >= 88
    assert said[1.0].count("no difference shown") >= 97
