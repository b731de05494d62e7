"""`--budget` -> how long what of a command may take: one knob for tuning and judging together.

All of it is bounded, from the beginning of the command to its verdict, and approximately: what is
under way when the time is over (a build, an examination, a call) is not cut short.
"""

from __future__ import annotations

from dataclasses import dataclass

TUNING_SHARE, TIMING_SHARE = 0.3, 0.15
SHORTEST_TIMING_S, LONGEST_TIMING_S = 1.0, 20.0
# Less is too short to try anything; with more, all that there is can be tried.
QUICK_S, FULL_S = 4.0, 60.0


@dataclass(frozen=True)
class Budget:
    """Seconds of a command that has begun at this moment of a monotonic clock."""

    seconds: float
    begun: float

    @property
    def level(self) -> str:
        """How much the tuner tries, where nothing else was asked for."""
        if self.tuning_s < QUICK_S:
            return "off"
        return "quick" if self.tuning_s < FULL_S else "full"

    @property
    def tuning_s(self) -> float:
        """Of the tuner at most."""
        return TUNING_SHARE * self.seconds

    @property
    def timing_s(self) -> float:
        """Of timed calls."""
        return min(max(TIMING_SHARE * self.seconds, SHORTEST_TIMING_S), LONGEST_TIMING_S)

    @property
    def end(self) -> float:
        """The moment at which all shall be over."""
        return self.begun + self.seconds

    @property
    def checks_end(self) -> float:
        """The moment at which the checks shall be over, so that calls can be timed."""
        return self.end - self.timing_s
