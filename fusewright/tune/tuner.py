"""A bench + what there is to choose -> TuneResult: what is faster here, beyond the noise.

Round k gives every kernel its k-th alternative at once, since kernels are timed one by one: a model
needs as many builds as its kernel with the most alternatives. What each round computes is compared
with the default's results before it is timed. What does not fit into the time is not tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from fusewright.build.fused_module import NO_TIME
from fusewright.common.timing_lock import Turn
from fusewright.errors import InternalError
from fusewright.kernels.registry import Strategy
from fusewright.tune.bench import WHOLE, BenchProtocol, Outputs, distance, output_epsilon
from fusewright.tune.cache import TuneCache, TuneResult, cache_key
from fusewright.tune.levels import LEVELS, TuneLevel
from fusewright.tune.paired_timing import (
    AGAIN,
    FEWEST_TURNS,
    FIRST,
    Samples,
    Speedup,
    gain,
    time_in_pairs,
)
from fusewright.tune.search_space import MODEL, SearchSpace, TuneChoice

DEFAULT = TuneChoice()
CHOSEN, EAGER = "chosen", "eager"
BUILD_SHARE, KERNEL_SHARE = 0.7, 0.5  # of the time, for builds; of the rest, for single kernels
# Sums in another order differ by so many roundings, or so many times what lies between the default
# and eager, or the default and itself.
ROUNDINGS, TIMES_UNLIKE = 1000, 8
LIBRARY_ROUNDING = 5e-3  # PyTorch's own calls may round as TF32; the judge has the last word


def cached_or(
    memory: TuneCache, level: str, about: Sequence[str], work: Callable[[], TuneResult]
) -> TuneResult:
    """What is known already at this level or a higher one; else what `work` finds, kept.

    about: all that the result depends on.  What had less time than its level has is not kept.
    """
    names = list(LEVELS)
    for name in reversed(names[names.index(level) :]):
        if known := memory.get(cache_key([name, *about])):
            return known
    found = work()
    if found.facts.get("tried") and "seconds" not in found.facts:
        memory.put(cache_key([level, *about]), found)
    return found


def tune(
    bench: BenchProtocol,
    given: SearchSpace,
    level: str,
    turn: Turn,
    clock: Callable[[], float] = time.monotonic,
    seconds: float | None = None,
) -> TuneResult:
    """Try alternatives and keep what is faster; raises InternalError for one that is wrong.

    turn: entered while calls run, after everything is built.  seconds: of all of it, if that is
    less than the level has.
    """
    limit = LEVELS[level]
    if seconds is not None and seconds < limit.seconds:
        found = _tuned(bench, given, level, turn, clock, replace(limit, seconds=seconds))
        return replace(found, facts={**found.facts, "seconds": seconds})
    return _tuned(bench, given, level, turn, clock, limit)


def _tuned(
    bench: BenchProtocol,
    given: SearchSpace,
    level: str,
    turn: Turn,
    clock: Callable[[], float],
    limit: TuneLevel,
) -> TuneResult:
    begin = clock()
    every = [DEFAULT, *given.rounds(limit.most), *(TuneChoice(library=(s,)) for s in given.library)]
    if not given.count:
        return untuned(given, level, "there is nothing to choose")
    said = bench.build(every, begin + limit.seconds * BUILD_SHARE)
    if said[0]:
        return untuned(given, level, said[0])
    built = [choice for choice, why in zip(every, said, strict=True) if not why]
    left = limit.seconds - (clock() - begin)
    with turn():
        found = _Tuning(bench, given, level, clock, clock() + left).run(built)
    refused = [why for why in said if why not in ("", NO_TIME)]
    lines = [f"  tuned: builds that the compiler refused: {len(refused)}"] * bool(refused)
    return replace(found, lines=(*found.lines, *lines), facts={**found.facts, "refused": refused})


@dataclass(frozen=True)
class _Tuning:
    """until: when its time is over, by its clock.  calls: seconds that each has taken so far."""

    bench: BenchProtocol
    given: SearchSpace
    level: str
    clock: Callable[[], float]
    until: float
    calls: list[float] = field(default_factory=list)

    def run(self, built: Sequence[TuneChoice]) -> TuneResult:
        """built: the default, and what is to be compared with it."""
        default = self._outputs(DEFAULT)
        if not self._fits(2 + 3 * FEWEST_TURNS):
            why = f"one call takes {self.calls[0]:.1f} s, too long to compare any"
            return untuned(self.given, self.level, why)
        others = [self._outputs(choice) for choice in (None, DEFAULT)]
        unlike = max(distance(default, other) for other in others)
        allowed = max(ROUNDINGS * output_epsilon(default), TIMES_UNLIKE * unlike)
        right = []
        for choice in built[1:]:
            if self._fits(1 + 3 * FEWEST_TURNS) and self._is_right(choice, default, allowed):
                right.append(choice)
        rounds, library = ([c for c in right if bool(c.library) is kind] for kind in (False, True))
        if self.given.defaults and not self.bench.kernel_times(DEFAULT):
            as_was = untuned(self.given, self.level, "the guard refuses the problem's own inputs")
            return replace(as_was, choice=MODEL) if self.given.model else as_was
        measure = self.bench.kernel_times
        sides = {str(k): partial(measure, choice) for k, choice in enumerate(rounds)}
        sides = {FIRST: partial(measure, DEFAULT), AGAIN: partial(measure, DEFAULT), **sides}
        samples = time_in_pairs(sides, self._left() * KERNEL_SHARE, self.clock) if rounds else {}
        timed = [choice for k, choice in enumerate(rounds) if str(k) in samples]
        strategies, gains = _winners(timed, samples)
        found = TuneChoice(strategies)
        if found not in built and not self._is_built(found, default, allowed):
            found = _best_round(timed, samples)
        tried = sum(len(choice.strategies) for choice in timed)
        return self._chosen(found, gains, library, tried)

    def _left(self) -> float:
        return max(self.until - self.clock(), 0.0)

    def _fits(self, calls: int) -> bool:
        """Is there time for so many calls, as long as the longest so far?"""
        return max(self.calls, default=0.0) * calls <= self._left()

    def _outputs(self, choice: TuneChoice | None) -> Outputs:
        begin = self.clock()
        found = self.bench.outputs(choice)
        self.calls.append(self.clock() - begin)
        return found

    def _is_built(self, found: TuneChoice, default: Outputs, allowed: float) -> bool:
        """Build the winners together; False if there is no time for that and for the last word."""
        last_word = max(self.calls) * (1 + 4 * FEWEST_TURNS)
        (why,) = self.bench.build([found], self.until - last_word)
        if why == NO_TIME:
            return False
        if why:
            raise InternalError(f"Kernels that compile alone do not together: {why}")
        return self._is_right(found, default, allowed)

    def _is_right(self, choice: TuneChoice, default: Outputs, allowed: float) -> bool:
        """True, or an error: results may only differ by rounding."""
        far = distance(self._outputs(choice), default)
        limit = max(allowed, LIBRARY_ROUNDING) if choice.library else allowed
        if not far <= limit:
            raise InternalError(
                f"Tuning: {'; '.join(_changes(choice, self.given).values())} changes results by "
                f"{far:.1e}, and rounding explains {limit:.1e}. --tune off goes without it"
            )
        return True

    def _chosen(
        self,
        found: TuneChoice,
        gains: Mapping[str, Speedup],
        library: Sequence[TuneChoice],
        tried: int,
    ) -> TuneResult:
        """The last word have whole calls: of the default, of the winners, of library calls."""
        by_side = {FIRST: DEFAULT, AGAIN: DEFAULT, CHOSEN: found, EAGER: None}
        by_side |= {choice.library[0]: choice for choice in library}
        if found == DEFAULT:
            del by_side[CHOSEN]
        sides = {n: partial(self.bench.whole_time, choice) for n, choice in by_side.items()}
        samples = time_in_pairs(sides, self._left(), self.clock)
        best, side = found, CHOSEN if found != DEFAULT else FIRST
        if CHOSEN in samples and gain(samples, CHOSEN, WHOLE).slower:
            best, side = DEFAULT, FIRST
        shown = {name: f"{g.times:.2f}x" for name, g in gains.items() if name in best.strategies}
        for choice in library:
            (name,) = choice.library
            if name in samples and (by := gain(samples, name, WHOLE, side)).faster:
                best, side, shown = choice, name, {name: f"{by.times:.2f}x"}
        tried += sum(choice.library[0] in samples for choice in library)
        eager = gain(samples, side, WHOLE, EAGER) if {side, EAGER} <= samples.keys() else None
        tried += self.given.model and eager is not None
        if self.given.model and eager and eager.slower:
            best, shown, eager = MODEL, {MODEL.library[0]: f"{1 / eager.times:.2f}x"}, None
        return _result(self.given, self.level, best, tried, shown, eager)


def _best_round(rounds: Sequence[TuneChoice], samples: Samples) -> TuneChoice:
    """Of what was built and timed, the round whose kernels together gain most; else the default."""
    whole = {side: [{WHOLE: sum(t.values())} for t in turns] for side, turns in samples.items()}
    gains = [(gain(whole, str(k), WHOLE), choice) for k, choice in enumerate(rounds)]
    faster = [(found.log, k) for k, (found, _) in enumerate(gains) if found.faster]
    return rounds[max(faster)[1]] if faster else DEFAULT


def _winners(
    rounds: Sequence[TuneChoice], samples: Samples
) -> tuple[dict[str, Strategy], dict[str, Speedup]]:
    """For each kernel that has one, the alternative that gains most, beyond the noise."""
    strategies, gains = dict[str, Strategy](), dict[str, Speedup]()
    for k, choice in enumerate(rounds):
        for name, strategy in choice.strategies.items():
            found = gain(samples, str(k), name)
            if found.faster and (name not in gains or found.log > gains[name].log):
                strategies[name], gains[name] = strategy, found
    return strategies, gains


def _changes(choice: TuneChoice, given: SearchSpace) -> dict[str, str]:
    """What a choice does otherwise than by default: kernel or stage -> in words."""
    changed = {}
    for name, strategy in choice.strategies.items():
        default = given.defaults[name]
        old, new = _facts(default), _facts(strategy)
        words = [
            f"{what} {value} (not {old[what]})" if what in old else f"{what} {value}"
            for what, value in new.items()
            if what not in old or value != old[what]
        ]
        changed[name] = f"{name} with {', '.join(words)}"
    if choice == MODEL:
        return {MODEL.library[0]: "nothing is replaced, PyTorch's own calls are faster here"}
    return changed | {s: f"the calls that {s} writes stay PyTorch's" for s in choice.library}


def _facts(strategy: Strategy) -> dict[str, object]:
    """The name of a strategy, its fields and those of its tile."""
    facts = asdict(strategy)
    tile = facts.pop("tile", {})
    return {"strategy": type(strategy).__name__, **facts, **tile}


def _result(
    given: SearchSpace,
    level: str,
    best: TuneChoice,
    tried: int,
    shown: Mapping[str, str],
    eager: Speedup | None,
) -> TuneResult:
    """shown: by how much a kernel or stage of the choice is faster than the default."""
    changes = _changes(best, given)
    lines = [f"  tuned: {level}, {tried} of {given.count} alternatives tried"]
    lines += [f"  tuned: {changes[name]}: {shown[name]}" for name in changes]
    lines += [] if changes else ["  tuned: none is faster than the defaults, beyond the noise"]
    against = None
    if eager is not None:
        word = "faster" if eager.faster else "slower" if eager.slower else "no difference shown"
        against = {"times": eager.times, "claim": word}
        lines.append(f"  tuned: a call takes {1 / eager.times:.2f} of eager's time: {word}")
    facts = {"level": level, "tried": tried, "alternatives": given.count, "eager": against}
    return TuneResult(best, tuple(lines), {**facts, "changes": changes, "gains": dict(shown)})


def untuned(given: SearchSpace, level: str, why: str) -> TuneResult:
    """The defaults, because nothing could be timed."""
    facts = {"level": level, "tried": 0, "alternatives": given.count, "why": why}
    return TuneResult(DEFAULT, (f"  tuned: no, {why}",), facts)
