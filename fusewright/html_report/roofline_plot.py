"""Steps with their bytes, operations and times -> their places under the roofs of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fusewright.html_report.svg_plot import HUE_COLOURS, INK, LIBRARY, PAPER, axes_of, svg_of
from fusewright.report.amounts import flops_text, time_text
from fusewright.targets.machines import Machine

SIZE = (720, 400)
ALL = "all"  # the mark of a whole call


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
    shown = [rate for rate in rates if rate <= max(min(rates), 1.5 * reach)]
    left = min([p.intensity for p in points] + [shown[0] / bandwidth]) / 4
    right = max([p.intensity for p in points] + [max(shown) / bandwidth]) * 6
    titles: dict[str, str] = {}
    from matplotlib.ticker import NullLocator

    with axes_of(*SIZE) as axes:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True, which="major")
        for rate in shown:
            ridge = rate / bandwidth
            axes.plot(
                [left, ridge, right], [left * bandwidth, rate, rate], color=INK, linewidth=1.4
            )
            axes.annotate(
                f"{flops_text(int(rate))}/s, {rates[rate]}", (right, rate), (0, 4),
                textcoords="offset points", ha="right", va="bottom",
            )  # fmt: skip
        for k, point in enumerate(points):
            titles[f"point-{k}"] = _title(point)
            _mark(axes, point, k)
        axes.set_xlim(left, right)
        axes.set_ylim(min([p.rate for p in points] + [left * bandwidth]) / 2, max(shown) * 4)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{flops_text(int(value))}/s")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("operations for each byte moved")
        slope = f"The slope is {bandwidth / 1e9:.4g} GB/s"
        return svg_of(axes, f"Roofline of {machine.name}. {slope}.", titles)


def _mark(axes: object, point: RooflinePoint, k: int) -> None:
    """Filled where it is measured; a square for a call of PyTorch's, a diamond for all together."""
    colour = INK if point.number is None else LIBRARY
    if point.number:
        colour = HUE_COLOURS[(point.number - 1) % len(HUE_COLOURS)]
    shape = "D" if point.number is None else "o" if point.number else "s"
    (marker,) = axes.plot(  # type: ignore[attr-defined]
        [point.intensity], [point.rate], shape, markersize=11, color=colour, markeredgewidth=2.0,
        markerfacecolor=colour if point.measured else PAPER,
    )  # fmt: skip
    marker.set_gid(f"point-{k}")
    mark = ALL if point.number is None else str(point.number or "Py")
    axes.annotate(  # type: ignore[attr-defined]
        mark, (point.intensity, point.rate), (9, -13), textcoords="offset points", color=colour
    )


def _title(point: RooflinePoint) -> str:
    how = "measured" if point.measured else "predicted"
    return (
        f"{point.name}: {point.intensity:.3g} operations a byte, "
        f"{flops_text(int(point.rate))}/s, {time_text(point.seconds)} {how}"
    )
