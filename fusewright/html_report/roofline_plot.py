"""Steps with their bytes, operations and times -> their places under the roofs of a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from fusewright.html_report.svg_plot import HUE_COLOURS, INK, LIBRARY, PAPER, axes_of, svg_of
from fusewright.report.amounts import time_text
from fusewright.targets.machines import Machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (720, 400)
ALL = "all"  # the mark of a whole call
ROOM = 60  # times as far to the right as anything stands, for the names of roofs
NEAR = 14  # places of marks in a decade, of which one name each has room


@dataclass(frozen=True)
class RooflinePoint:
    """bytes, flops: of a call.  seconds: that it takes.  measured: and not predicted.  number: of
    its kernel, 0 of a call of PyTorch's, None of all steps together."""

    name: str
    number: int | None
    bytes: int
    flops: int
    seconds: float
    measured: bool

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds

    @property
    def is_drawn(self) -> bool:
        """What computes nothing has no place on logarithmic axes."""
        return self.bytes > 0 and self.flops > 0 and self.seconds > 0.0


def rates_of(machine: Machine) -> dict[float, str]:
    """The flat roofs of a machine, in operations per second, and what each is of."""
    named = (
        (machine.matmul_flops, "float32 products"),
        (machine.tf32_flops, "convolutions of float32"),
        (machine.kernel_flops, "our products of float32"),
        (machine.half_flops, "products of 16 bits"),
    )
    found: dict[float, str] = {}
    for rate, name in named:
        if rate:
            found.setdefault(rate, name)
    return found


def roofline_plot(points: Sequence[RooflinePoint], machine: Machine) -> Markup:
    """Both axes are logarithmic. points: at least one, each `is_drawn`."""
    rates, bandwidth = rates_of(machine), machine.copy_bytes_per_s
    reach = max(p.rate for p in points)
    shown = sorted(rate for rate in rates if rate <= max(min(rates), 1.5 * reach))
    left = min([p.intensity for p in points] + [shown[0] / bandwidth]) / 4
    right = max([p.intensity for p in points] + [max(shown) / bandwidth]) * ROOM
    titles: dict[str, str] = {}
    from matplotlib.ticker import NullLocator

    with axes_of(*SIZE) as axes:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True, which="major")
        for rate, above in zip(shown, [*shown[1:], math.inf], strict=True):
            ridge = rate / bandwidth
            ends = [left, ridge, right], [left * bandwidth, rate, rate]
            axes.plot(*ends, color=INK, linewidth=1.4)
            crowded = above < 2 * rate  # then its name stands below
            axes.annotate(
                f"{rate_text(rate)}, {rates[rate]}", (right, rate), (0, -4 if crowded else 4),
                textcoords="offset points", ha="right", va="top" if crowded else "bottom",
            )  # fmt: skip
        for k, point in enumerate(points):
            titles[f"point-{k}"] = _title(point)
            _mark(axes, point, k)
        _name_marks(axes, points)
        axes.set_xlim(left, right)
        axes.set_ylim(min([p.rate for p in points] + [left * bandwidth]) / 2, max(shown) * 3)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: rate_text(value))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("operations for each byte moved")
        slope = f"The slope is {bandwidth / 1e9:.4g} GB/s"
        return svg_of(axes, f"Roofline of {machine.name}. {slope}.", titles)


def _mark(axes: Axes, point: RooflinePoint, k: int) -> None:
    """Filled where it is measured; a square for a call of PyTorch's, a diamond for all together."""
    colour = INK if point.number is None else LIBRARY
    if point.number:
        colour = HUE_COLOURS[(point.number - 1) % len(HUE_COLOURS)]
    shape = "D" if point.number is None else "o" if point.number else "s"
    (marker,) = axes.plot(
        [point.intensity], [point.rate], shape, markersize=11, color=colour, markeredgewidth=2.0,
        markerfacecolor=colour if point.measured else PAPER,
    )  # fmt: skip
    marker.set_gid(f"point-{k}")


def _name_marks(axes: Axes, points: Sequence[RooflinePoint]) -> None:
    """The numbers of kernels, those of one place together."""
    near: dict[tuple[int, int], list[RooflinePoint]] = {}
    for point in points:
        x, y = (round(NEAR * math.log10(value)) for value in (point.intensity, point.rate))
        near.setdefault((x, y), []).append(point)
    for some in near.values():
        named = [p for p in some if p.number != 0]  # a square says it of a call of PyTorch's
        marks = dict.fromkeys(str(p.number or ALL) for p in named)
        at = some[0].intensity, some[0].rate
        axes.annotate(", ".join(marks), at, (9, -14), textcoords="offset points", color=INK)


def rate_text(rate: float) -> str:
    """Operations per second, in words."""
    unit, size = ("TFLOP/s", 1e12) if rate >= 1e12 else ("GFLOP/s", 1e9)
    return f"{rate / size:.4g} {unit}"


def _title(point: RooflinePoint) -> str:
    how = "measured" if point.measured else "predicted"
    return (
        f"{point.name}: {point.intensity:.3g} operations a byte, "
        f"{rate_text(point.rate)}, {time_text(point.seconds)} {how}"
    )
