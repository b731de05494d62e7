"""Sides that can be timed -> samples, taken in pairs -> Speedup: how much faster, beyond the noise.

Each turn has every side once, in random order, so that a machine that slows down slows all of them.
Two sides are the same thing: what separates them is noise.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Times = Mapping[str, float]  # what -> seconds
Samples = Mapping[str, Sequence[Times]]  # side -> one for each turn
FIRST, AGAIN = "default", "default again"
FEWEST_TURNS, MOST_TURNS = 7, 40
MARGIN = 0.01  # what is never believed
ERRORS, MEDIAN_ERROR = 3.0, 1.2533 * 1.4826  # of a median, from the deviation and their number


@dataclass(frozen=True)
class Speedup:
    """log: of a base's time over that of a side.  noise: how much of it may be chance."""

    log: float
    noise: float

    @property
    def faster(self) -> bool:
        return self.log > self.noise

    @property
    def slower(self) -> bool:
        return self.log < -self.noise

    @property
    def times(self) -> float:
        """How many times as fast as the base."""
        return math.exp(self.log)


def time_in_pairs(
    sides: Mapping[str, Callable[[], Times]], seconds: float, clock: Callable[[], float]
) -> Samples:
    """Time the sides for so long; the last ones are left out where there is no time for all.

    Nothing is returned where not even a third side fits beside FIRST and AGAIN. None is called for
    which there is no time, as far as the calls before it tell.
    """
    begin, took, order = clock(), dict[str, float](), random.Random(0)
    for name, side in sides.items():
        start, longest = clock(), max(took.values(), default=0.0)
        fewest = max(3, len(took) + 1)  # sides that would have to take all their turns
        if start + longest * (1 + FEWEST_TURNS * fewest) > begin + seconds:
            break
        side()
        took[name] = clock() - start
    names = list(took)
    while names and FEWEST_TURNS * sum(took[n] for n in names) > seconds - (clock() - begin):
        names.pop()
    if len(names) < 3:
        return {}
    samples: dict[str, list[Times]] = {name: [] for name in names}
    turn = sum(took[n] for n in names)
    while len(samples[FIRST]) < MOST_TURNS:
        if len(samples[FIRST]) >= FEWEST_TURNS and clock() + turn > begin + seconds:
            break
        for name in order.sample(names, len(names)):
            samples[name].append(sides[name]())
    return samples


def gain(samples: Samples, side: str, what: str, base: str = FIRST) -> Speedup:
    """How much faster `side` does `what` than a base; the default counts with both its samples."""
    first, again = _logs(samples, FIRST, what), _logs(samples, AGAIN, what)
    null = [a - b for a, b in zip(first, again, strict=True)]
    both = [(a + b) / 2 for a, b in zip(first, again, strict=True)]
    bases = both if base == FIRST else _logs(samples, base, what)
    gains = [a - b for a, b in zip(bases, _logs(samples, side, what), strict=True)]
    noise = MARGIN + abs(statistics.median(null)) + ERRORS * max(_error(null), _error(gains))
    return Speedup(statistics.median(gains), noise)


def _logs(samples: Samples, side: str, what: str) -> list[float]:
    return [math.log(max(times[what], 1e-9)) for times in samples[side]]


def _error(values: Sequence[float]) -> float:
    """The standard error of their median."""
    middle = statistics.median(values)
    deviation = statistics.median(abs(v - middle) for v in values)
    return MEDIAN_ERROR * deviation / math.sqrt(len(values))
