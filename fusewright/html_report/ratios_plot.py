"""Ratios with their intervals -> a plot of them, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fusewright.html_report.svg_plot import BAD, GOOD, INK, LIBRARY, axes_of, svg_of
from fusewright.report.amounts import times_text
from fusewright.report.speed import FASTER, SLOWER, SpeedRatio

WIDTH, LINE, AXIS = 720, 26, 62  # pixels: of all, of each ratio, and of the axis below
COLOURS = {FASTER: GOOD, SLOWER: BAD}
OVER_EAGER = "times as fast as eager, with the 95 % interval"
LONGEST = 44  # characters of a name
FINE = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
COARSE = tuple(digit * 10.0**power for power in range(-3, 5) for digit in (1.0, 2.0, 5.0))
WIDE = 4.0  # from the lowest to the highest, so many times: then ticks are coarse
MOST_TICKS = 8


@dataclass(frozen=True)
class NamedRatio:
    name: str
    ratio: SpeedRatio


def ratios_plot(rows: Sequence[NamedRatio], axis: str, label: str) -> Markup:
    """rows: the first at the top.  axis: what is compared with what.  label: what the plot shows.

    The axis is logarithmic, so that twice as fast and half as fast are equally far from 1.
    """
    low = min(0.95, *(row.ratio.low for row in rows))
    high = max(1.05, *(row.ratio.high for row in rows))
    titles: dict[str, str] = {}
    with axes_of(WIDTH, LINE * len(rows) + AXIS) as axes:
        axes.set_xscale("log")
        axes.axvline(1.0, color=INK, linewidth=1.0)
        for k, row in enumerate(rows):
            ratio, colour = row.ratio, COLOURS.get(row.ratio.claim, LIBRARY)
            (line,) = axes.plot([ratio.low, ratio.high], [k, k], color=colour, linewidth=3.0)
            line.set_gid(f"interval-{k}")
            (marker,) = axes.plot([ratio.median], [k], "o", color=colour, markersize=8)
            marker.set_gid(f"ratio-{k}")
            titles |= dict.fromkeys((f"interval-{k}", f"ratio-{k}"), _title(row))
        axes.set_yticks(range(len(rows)), [_short(row.name) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(low / 1.04, high * 1.04)
        ticks = _ticks(low, high)
        axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(visible=True, axis="x")
        axes.set_axisbelow(True)
        axes.set_xlabel(axis)
        return svg_of(axes, label, titles)


def _ticks(low: float, high: float) -> list[float]:
    """1 among them, and not so many that their names meet."""
    every = COARSE if high / low > WIDE else FINE
    inside = [tick for tick in every if low / 1.04 <= tick <= high * 1.04]
    while len(inside) > MOST_TICKS:
        one = inside.index(1.0)
        inside = [tick for k, tick in enumerate(inside) if (k - one) % 2 == 0]
    return inside


def _title(row: NamedRatio) -> str:
    ratio = row.ratio
    return (
        f"{row.name}: {times_text(ratio.median)}, 95 % interval {ratio.low:.2f} to "
        f"{ratio.high:.2f}: {ratio.claim}"
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
