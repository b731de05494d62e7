"""Times of paired turns of several processes a side -> a speed ratio with an interval; numpy only.

A turn is a run of timed calls in one process; a pair is one turn of the reference and one of the
candidate, close in time and in random order. What drifts slowly (clock, heat) hits both turns of a
pair, so everything here works on the logarithm of the ratio of one pair's two medians.

What a process settles at (where its memory lies, the state of its heap) is the same in all its
turns, and another in the next process. So each side has several processes, and the interval has two
levels: what differs between pairs of one process, and what differs between processes (Kalibera and
Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Turns = Sequence[Sequence[float]]  # [pair][call] in seconds
Processes = Sequence[Turns]  # [process][pair][call]
Claim = Literal["faster", "slower", "no difference shown"]
Floats = NDArray[np.float64]

# Student's t, of which 97.5 % lie below, by degrees of freedom from 1 on.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
HALF_WIDTH = 0.02  # of the log ratio in one process: five of them show 3 %
HALF_WIDTH_S = 0.3e-6  # below the resolution of a CUDA event no interval can be narrower


@dataclass(frozen=True)
class Ratio:
    """Speed of the candidate relative to the reference: above 1 the candidate is faster."""

    median: float
    low: float
    high: float
    pairs: int
    processes: int = 1  # of each side

    @property
    def half_width(self) -> float:
        """Half the interval, in logarithmic units."""
        return (math.log(self.high) - math.log(self.low)) / 2


@dataclass(frozen=True)
class Side:
    """All calls of one side, as a reader of the timing table wants them."""

    calls: int
    min_s: float
    p10_s: float
    p50_s: float
    p90_s: float
    iqr_s: float
    outliers: int  # beyond Tukey's fences: counted, never dropped


@dataclass(frozen=True)
class Stop:
    done: bool
    reason: str


def fault(turns: Turns) -> str | None:
    """Why these times cannot be real (nothing timed, zero, negative, not finite), or None."""
    if not turns:
        return "no turn was timed"
    for pair, turn in enumerate(turns):
        if not len(turn):
            return f"turn {pair} has no timed call"
        for call, seconds in enumerate(turn):
            if not (math.isfinite(seconds) and seconds > 0):
                return f"turn {pair}, call {call}: {seconds!r} s is not a possible time"
    return None


def side(turns: Turns) -> Side:
    """Order statistics of all calls of one side."""
    calls = np.concatenate([np.asarray(turn, dtype=np.float64) for turn in turns])
    p10, p25, p50, p75, p90 = (float(q) for q in np.quantile(calls, [0.1, 0.25, 0.5, 0.75, 0.9]))
    reach = 1.5 * (p75 - p25)
    outside = (calls < p25 - reach) | (calls > p75 + reach)
    return Side(calls.size, float(calls.min()), p10, p50, p90, p75 - p25, int(outside.sum()))


def ratio(
    reference: Processes, candidate: Processes, *, seed: int = 0, resamples: int = 10_000
) -> Ratio:
    """Median of what the processes show, with an interval of 95 %.

    The interval is Student's of the processes' own medians, joined with a block bootstrap over all
    pairs: processes that happen to agree do not make it narrower than their pairs allow. Times that
    fail `fault`, or turns that do not pair up, are a ValueError: the caller must have refused them
    before.
    """
    logs = [_log_ratios(r, c) for r, c in zip(reference, candidate, strict=True)]
    low, high = _interval(np.concatenate(logs), seed, resamples, 0.95)
    shown = np.array([np.median(own) for own in logs])
    n = len(logs)
    if n > 1:
        reach = STUDENT[n - 2] * float(shown.std(ddof=1)) / math.sqrt(n)
        low, high = min(low, float(shown.mean()) - reach), max(high, float(shown.mean()) + reach)
    middle = math.exp(float(np.median(shown)))
    return Ratio(middle, math.exp(low), math.exp(high), sum(own.size for own in logs), n)


def null_threshold(first: Processes, second: Processes, *, seed: int = 0) -> float:
    """Eager against eager -> delta, in log units: what this machine cannot tell apart today.

    Over all pairs, as of one process: what processes differ by, the interval of a ratio has itself,
    and it would count twice.
    """
    pooled = ([turn for turns in side for turn in turns] for side in (first, second))
    null = ratio(*([turns] for turns in pooled), seed=seed)
    return abs(math.log(null.median)) + null.half_width


def claim(measured: Ratio, delta: float) -> Claim:
    """A difference is claimed only where the whole interval lies beyond the null."""
    if math.log(measured.low) > delta:
        return "faster"
    if math.log(measured.high) < -delta:
        return "slower"
    return "no difference shown"


def stop(
    reference_turns: Turns,
    candidate_turns: Turns,
    *,
    elapsed_s: float,
    cap_s: float,
    min_pairs: int,
    seed: int = 0,
) -> Stop:
    """Enough pairs of one process? The rule looks at the interval's width, never at which side it
    favours, and `min_pairs` is the same for all: no candidate chooses how often it is timed."""
    pairs = min(len(reference_turns), len(candidate_turns))
    if elapsed_s >= cap_s:
        return Stop(True, f"time cap of {cap_s:g} s reached after {pairs} pairs")
    if pairs < min_pairs:
        return Stop(False, f"{pairs} of at least {min_pairs} pairs")
    reference, candidate = reference_turns[:pairs], candidate_turns[:pairs]
    half = ratio([reference], [candidate], seed=seed, resamples=2_000).half_width
    typical_s = min(side(reference).p50_s, side(candidate).p50_s)
    wanted = max(HALF_WIDTH, HALF_WIDTH_S / typical_s)
    if half <= wanted:
        return Stop(True, f"interval is ±{half:.2%} after {pairs} pairs")
    return Stop(False, f"interval is ±{half:.2%}, wanted ±{wanted:.2%}")


def _log_ratios(reference_turns: Turns, candidate_turns: Turns) -> Floats:
    if len(reference_turns) != len(candidate_turns):
        raise ValueError(f"{len(reference_turns)} turns do not pair with {len(candidate_turns)}")
    for name, turns in (("reference", reference_turns), ("candidate", candidate_turns)):
        wrong = fault(turns)
        if wrong:
            raise ValueError(f"{name}: {wrong}")
    reference = np.array([np.median(np.asarray(turn, float)) for turn in reference_turns])
    candidate = np.array([np.median(np.asarray(turn, float)) for turn in candidate_turns])
    return np.asarray(np.log(reference) - np.log(candidate), dtype=np.float64)


def interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % of the median of what consecutive rounds have shown."""
    return _interval(np.asarray(values, dtype=np.float64), seed, 2_000, 0.95)


def _interval(logs: Floats, seed: int, resamples: int, confidence: float) -> tuple[float, float]:
    """Percentile interval of the median; blocks keep what neighbouring pairs share together.

    The bootstrap of a median of few pairs is a little too narrow, so it is joined with the
    interval between order statistics, which holds for any distribution of independent pairs.
    """
    n = logs.size
    block = max(1, round(n**0.25))
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, n, size=(resamples, -(-n // block)))
    picks = (starts[:, :, None] + np.arange(block)) % n
    medians = np.median(logs[picks.reshape(resamples, -1)[:, :n]], axis=1)
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(medians, [tail, 1 - tail]))
    rank = _sign_rank(n, tail)
    ordered = np.sort(logs)
    return min(low, float(ordered[rank])), max(high, float(ordered[n - 1 - rank]))


def _sign_rank(n: int, tail: float) -> int:
    """Largest r so that the median lies below the r-th smallest value with chance <= `tail`."""
    below, rank = 0.0, 0
    for k in range(n // 2):
        below += math.exp(_log_binomial(n, k) - n * math.log(2))
        if below > tail:
            break
        rank = k
    return rank


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
