"""One output of candidate, eager, float64 and its sensitivity -> error sizes, in bounded memory.

Errors are taken against float64 and given in units of the output's sensitivity kappa, at five
zoom levels: a wrong corner cannot hide in an average, and a wrong average not in a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}  # small ones stay in a CPU's caches
BYTES_PER_ELEMENT = 200  # measured: 25 float64 temporaries live at the widest point of a chunk
TILE = 64
TOLERANCES = (1e-2, 1e-4, 1e-5)
EDGE = 64.0  # within so many kappa of the dtype's largest value, inf and finite are both right
NEAR = 0.25  # share of its neighbours' kappa that an element is given at least
KINK = 16.0  # an exact zero is allowed a 16th of its neighbours' kappa (relu's corner)
LOCAL = ("tile", "peak", "element")  # errors that are of one tile
DOUBTFUL = 1 / 16  # of the tiles may have to be looked at again
BINS, LOWEST, HIGHEST = 256, -8.0, 56.0  # histogram of log2(error in ulp)
LARGEST, SMALLEST = 1e150, 1e-300  # errors and units are cut here: squares and ratios stay finite


@dataclass(frozen=True)
class Errors:
    """One side's errors against float64, in units of kappa (but `rel_l2` and `max_abs`)."""

    rel_l2: float
    max_abs: float
    rms: float  # over the whole tensor
    line: float  # worst row, channel or any other slice of one index
    tile: float  # worst 64 neighbours
    peak: float  # worst element against the RMS of its 64 neighbours' kappa
    element: float  # worst element against its own kappa


@dataclass(frozen=True)
class Measure:
    candidate: Errors
    eager: Errors
    nonfinite: int  # elements whose nan / inf pattern is wrong
    first_nonfinite: int | None  # flat index
    worst: int  # flat index of the candidate's worst element
    gross: bool  # some tile is wrong in its leading digits: not a matter of rounding
    outside: dict[float, int]  # tolerance -> elements outside allclose against eager
    outside_truth: int  # elements off by more than the loose tolerance from float64
    ulp: tuple[float, float, float] | None  # 50th and 99th percentile, maximum; None: not asked


@dataclass(frozen=True)
class Chunk:
    """Rows `start` and on of every tensor, in float64; kappa with its floor."""

    start: int
    candidate: Tensor
    eager: Tensor
    truth: Tensor
    stored: Tensor  # truth as the output's type holds it
    kappa: Tensor
    clean: bool  # no nan and no infinity anywhere


def measure(
    candidate: Tensor, eager: Tensor, truth: Tensor, kappa: Tensor, *, loose: float,
    full: bool = True,
) -> Measure:  # fmt: skip
    """All four have one shape, at least one element; candidate and eager one floating dtype.

    Without `full` only what the contract's limits need: no ulp, no comparison with tolerances.
    """
    shape = _folded(eager.shape)
    sums = _Sums(shape, eager.dtype, _scale(truth, kappa, eager.dtype), loose)
    if full:
        sums.ulp_floor = _rms(truth)
    for chunk in _chunks(candidate, eager, truth, kappa, shape):
        sums.add(chunk, full=full)
    lead, trail = _split(eager.shape)
    return sums.result(lead, trail, full=full)


@dataclass(frozen=True)
class Most:
    """What an error may be at one zoom level: so many units, or so many times eager's."""

    units: float
    times: float


def within(
    candidate: Tensor, eager: Tensor, truth: Tensor, kappa: Tensor, most: Mapping[str, Most]
) -> bool:
    """True only if `measure` finds the candidate's errors within these limits; a third of its work.

    The least that `measure` takes for an element's unit is its own kappa and the rounding of its
    value. With smaller units errors are larger, so what is within limits then is within them in
    any case; eager's side is not needed for that. Only tiles that are not get the units that their
    elements' neighbours show, and eager's errors, of which those in such tiles are some. Where
    something is not finite, or many tiles are not within, the answer is False.
    """
    rows, width = shape = _folded(eager.shape)
    scale, info = _scale(truth, kappa, eager.dtype), torch.finfo(eager.dtype)
    sums = _Sums(shape, eager.dtype, scale, 0.0)
    folded = [t.reshape(rows, width) for t in (candidate, eager, truth, kappa)]
    worst = torch.zeros(2, len(LOCAL), dtype=torch.float64)
    for start, chunk in _parts(folded):
        c, e, y, k = chunk
        c, y, k = (t.to(truth.device).double() for t in (c, y, k))
        size, error = y.abs(), (c - y).abs_()
        hat = torch.add(k, size, alpha=info.eps / 2).add_(info.tiny)
        if not float(size.max()) <= info.max or not math.isfinite(float(error.sum() + hat.sum())):
            return False
        units = hat.div(scale)
        if float(units.min()) < 1 / LARGEST:  # its square would vanish
            if bool(error[units < 1 / LARGEST].any()):
                return False
            units.clamp_min_(1 / LARGEST)
        errors, units = error.div_(scale).square_(), units.square_()
        sums._keep(0, start, errors)
        sums._keep(2, start, units)
        told = _local(_tiled(errors), _tiled(units), _members(units))
        limits = [most[name].units ** 2 for name in LOCAL]
        doubtful = torch.stack([t > limit for t, limit in zip(told, limits, strict=True)]).any(0)
        count = int(doubtful.sum())
        if not count:
            continue
        ragged = width % TILE and bool(doubtful[:, -1].any())
        if ragged or count > DOUBTFUL * doubtful.numel() + 1:
            return False
        three = [_tiled(t.to(truth.device).double())[doubtful] for t in (e, y, hat)]
        worst = torch.maximum(worst, _exact_tiles(errors, three, doubtful, info, scale))
        # Where eager does not count, nothing that comes later makes up for this.
        if not any(most[name].times for name in LOCAL) and not _allowed(worst, most):
            return False
    if not _allowed(worst, most):
        return False
    lead, trail = _split(eager.shape)
    lines = [*_slices(sums.rows, lead), *_slices(sums.columns, trail), sums.rows]
    line = max(float(_ratio(s[0], s[2]).max()) for s in lines)
    rms = float(_ratio(sums.rows[0].sum(), sums.rows[2].sum()))
    return rms <= most["rms"].units and line <= most["line"].units


def within_least(candidate: Tensor, eager: Tensor, truth: Tensor, most: Mapping[str, Most]) -> bool:
    """True only if the candidate is within these limits whatever the sensitivity is.

    No element's unit is smaller than the rounding of its own value, so with that for a unit no
    sensitivity has to be drawn. Eager's errors in such units would be too large, too, and with
    them what is allowed: so only the limits count that do not depend on eager.
    """
    alone = {name: Most(limit.units, 0.0) for name, limit in most.items()}
    return within(candidate, eager, truth, truth.new_zeros(()).expand(truth.shape), alone)


def everywhere(candidate: Tensor, eager: Tensor, borrowed: float, units: float) -> bool:
    """True only if no element is farther from eager's than so many units, each of them a borrowed
    sensitivity and the rounding of eager's value; then no tile and no line is. Nothing is where
    something is not finite."""
    flat = candidate.reshape(-1), eager.reshape(-1)
    step = CHUNK_BYTES[eager.device.type] // BYTES_PER_ELEMENT
    for start in range(0, eager.numel(), step):
        c, e = (t[start : start + step] for t in flat)
        near = _near(c, e, borrowed, units)
        if near is not None and not bool(near.all()):
            return False
    return True


def rows_beyond(candidate: Tensor, eager: Tensor, borrowed: float, units: float) -> Tensor:
    """[rows]: where `everywhere` would not be True for a row alone."""
    rows = eager.shape[0]
    folded = [t.reshape(rows, -1) for t in (candidate, eager)]
    found = torch.zeros(rows, dtype=torch.bool, device=eager.device)
    step = max(1, CHUNK_BYTES[eager.device.type] // (BYTES_PER_ELEMENT * folded[0].shape[1]))
    for start in range(0, rows, step):
        c, e = (t[start : start + step] for t in folded)
        near = _near(c, e, borrowed, units)
        if near is not None:
            found[start : start + step] = ~near.all(dim=1)
    return found


def _near(candidate: Tensor, eager: Tensor, borrowed: float, units: float) -> Tensor | None:
    """Which elements are within so many units of eager's; None if all are, for the borrowed part
    of a unit alone."""
    wide = torch.promote_types(eager.dtype, torch.float32)
    e = eager.to(wide)
    apart = torch.sub(candidate.to(wide), e)
    low, high = torch.aminmax(apart)
    if float(torch.maximum(-low, high)) <= borrowed * units:
        return None
    share = torch.finfo(eager.dtype).eps / 2 * units
    return apart.abs_().le(e.abs().mul_(share).add_(borrowed * units))


def together(given: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The same numbers of all of them, as many at a time as stay in the caches; those of the first
    ones, which are contiguous, may be written to."""
    flat = [t.reshape(-1) for t in given]
    step = CHUNK_BYTES[given[0].device.type] // BYTES_PER_ELEMENT
    for start in range(0, flat[0].numel(), step):
        yield [t[start : start + step] for t in flat]


def _parts(folded: Sequence[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
    """So many rows of all tensors at a time as stay in the caches, or in the memory."""
    rows, width = folded[0].shape
    step = max(1, CHUNK_BYTES[folded[2].device.type] // (BYTES_PER_ELEMENT * width))
    for start in range(0, rows, step):
        yield start, [t[start : start + step] for t in folded]


def _allowed(worst: Tensor, most: Mapping[str, Most]) -> bool:
    """Are the worst squares of whole tiles, the candidate's and eager's, within the limits?"""
    return all(
        mine <= max(most[name].units, most[name].times * theirs)
        for name, mine, theirs in zip(LOCAL, *worst.sqrt().tolist(), strict=True)
    )


def _local(errors: Tensor, units: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squares of the tile's, the peak's and the element's error, of each tile [..., 64]."""
    whole = units.sum(dim=-1)
    tile, peak = errors.sum(dim=-1) / whole, errors.amax(dim=-1) * members / whole
    # Behind the end of a row there is nothing, neither an error nor a unit.
    element = errors / units.clamp_min(torch.finfo(torch.float64).tiny)
    return tile, peak, element.amax(dim=-1)


def _exact_tiles(
    errors: Tensor, three: Sequence[Tensor], doubtful: Tensor, info: torch.finfo, scale: float
) -> Tensor:
    """The worst of some whole tiles, as `measure` has them: candidate and eager, squared."""
    eager, truth, hat = three
    units = (_with_floor(hat, truth.abs(), info) / scale).square_()
    theirs = ((eager - truth).abs_().nan_to_num_(0.0, 0.0, 0.0) / scale).square_()
    both = [_local(t, units, units.new_tensor(TILE)) for t in (_tiled(errors)[doubtful], theirs)]
    return torch.stack([torch.stack([t.max() for t in side]) for side in both]).cpu()


def classes(t: Tensor) -> Tensor:
    """0 finite, 1 nan, 2 plus infinity, 3 minus infinity."""
    return torch.isnan(t).to(torch.int8) + 2 * torch.isposinf(t) + 3 * torch.isneginf(t)


def _split(shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading dimensions, and as few trailing ones as hold a tile of neighbours."""
    cut, width = len(shape), 1
    while cut > 0 and width < TILE:
        cut -= 1
        width *= shape[cut]
    return tuple(shape[:cut]), tuple(shape[cut:])


def _folded(shape: Sequence[int]) -> tuple[int, int]:
    lead, trail = _split(shape)
    return math.prod(lead), math.prod(trail)


def _scale(truth: Tensor, kappa: Tensor, dtype: torch.dtype) -> float:
    """A power of two near the largest kappa, so that squares neither overflow nor vanish."""
    info = torch.finfo(dtype)
    largest = _largest(kappa) + _largest(truth) * (info.eps / 2) + info.tiny
    return 2.0 ** min(math.frexp(largest)[1], 1000) if math.isfinite(largest) else 2.0**1000


def _largest(t: Tensor) -> float:
    """The largest finite magnitude."""
    largest = float(torch.stack(torch.aminmax(t)).abs().max())
    if math.isfinite(largest):
        return largest
    return max(float(p.nan_to_num(0.0, 0.0, 0.0).abs().max()) for p in _pieces(t))


def _rms(truth: Tensor) -> float:
    scale = _largest(truth) or 1.0
    squares = (float((p.nan_to_num(0.0, 0.0, 0.0) / scale).square().sum()) for p in _pieces(truth))
    return math.sqrt(sum(squares) / truth.numel()) * scale


def _pieces(t: Tensor) -> Iterator[Tensor]:
    yield from torch.split(t.reshape(-1), CHUNK_BYTES[t.device.type] // BYTES_PER_ELEMENT)


def _chunks(
    candidate: Tensor, eager: Tensor, truth: Tensor, kappa: Tensor, shape: tuple[int, int]
) -> Iterator[Chunk]:
    folded = [t.reshape(*shape) for t in (candidate, eager, truth, kappa)]
    for start, chunk in _parts(folded):
        c, e, y, k = (t.to(truth.device).double() for t in chunk)
        stored = y.to(eager.dtype).double()
        # A sum of finite numbers is finite, or so large that the careful way is taken for nothing.
        clean = bool(torch.isfinite(c.sum() + e.sum() + stored.sum() + y.sum() + k.sum()))
        yield Chunk(start, c, e, y, stored, _kappa_hat(k, y, eager.dtype, clean=clean), clean)


def _kappa_hat(kappa: Tensor, truth: Tensor, dtype: torch.dtype, *, clean: bool) -> Tensor:
    """kappa with its floors: a few draws may miss what an element's neighbours show.

    Storing the result costs half an ulp, or the smallest normal, anyway. An element is given a
    quarter of its neighbours' kappa, absolute or relative to the value, whichever is less; an
    exact zero has no relative size.
    """
    info, size = torch.finfo(dtype), truth.abs()
    if not clean:
        size, kappa = size.nan_to_num(0.0, 0.0, 0.0), kappa.nan_to_num(0.0, 0.0, 0.0)
    return _with_floor(torch.add(kappa, size, alpha=info.eps / 2).add_(info.tiny), size, info)


def _with_floor(hat: Tensor, size: Tensor, info: torch.finfo) -> Tensor:
    near = _around(hat)
    some = size > 0
    relative = _around(torch.where(some, hat / size.clamp_min(info.tiny), 0.0)).mul_(size)
    floor = torch.where(some, torch.minimum(near, relative).mul_(NEAR), near / KINK)
    return torch.maximum(hat, floor)


def _around(values: Tensor) -> Tensor:
    """RMS over each element's tile."""
    scale = values.max().clamp_min(torch.finfo(torch.float64).tiny)
    squares = _tiled((values / scale).square_()).sum(dim=-1)
    rms = squares.div_(_members(values)).sqrt_().mul_(scale)
    return rms.repeat_interleave(TILE, dim=-1)[:, : values.shape[1]]


def _members(values: Tensor) -> Tensor:
    """How many elements each tile of a row has."""
    width = values.shape[1]
    counts = [min(TILE, width - start) for start in range(0, width, TILE)]
    return torch.tensor(counts, dtype=torch.float64, device=values.device)


def _tiled(values: Tensor) -> Tensor:
    """[rows, width] -> [rows, tiles, 64]; the last tile is filled up with zeros."""
    rows, width = values.shape
    missing = -width % TILE
    return (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(
        rows, -1, TILE
    )


def _ratio(error: Tensor, unit: Tensor) -> Tensor:
    """sqrt(error / unit) of two sums of squares; nothing over nothing is nothing."""
    return (error / unit.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()


class _Sums:
    """What is carried from chunk to chunk; all sums of squares are in units of `scale`."""

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, scale: float, loose: float
    ) -> None:
        rows, width = shape
        self.dtype, self.scale, self.width, self.loose = dtype, scale, width, loose
        self.rows = torch.zeros(3, rows, dtype=torch.float64)  # candidate, eager, kappa
        self.columns = torch.zeros(3, width, dtype=torch.float64)
        self.worst = torch.zeros(2, 4, dtype=torch.float64)  # side x (tile, peak, element, abs)
        self.truth_square = 0.0
        self.nonfinite, self.first_nonfinite, self.worst_at = 0, -1, 0
        self.outside = dict.fromkeys(TOLERANCES, 0)
        self.outside_truth, self.gross = 0, False
        self.ulp_bins = torch.zeros(BINS, dtype=torch.float64)
        self.ulp_floor, self.ulp_max = 0.0, 0.0

    def add(self, chunk: Chunk, *, full: bool) -> None:
        usable = None
        unit = (chunk.kappa / self.scale).clamp_min_(SMALLEST)
        unit2 = unit.square()
        if not chunk.clean:
            self._patterns(chunk)
            usable = torch.isfinite(chunk.stored)
            unit2 = torch.where(usable, unit2, 0.0)
        self._keep(2, chunk.start, unit2)
        for which, values in enumerate((chunk.candidate, chunk.eager)):
            error = (values - chunk.truth).abs_()
            if usable is not None:
                error = torch.where(usable & torch.isfinite(values), error, 0.0)
            self._side(which, chunk.start, error.div_(self.scale).clamp_(max=LARGEST), unit, unit2)
            if which == 0 and full:
                self._digits(chunk, error)
        shown = chunk.truth if usable is None else torch.where(usable, chunk.truth, 0.0)
        shown = (shown / self.scale).clamp_(-LARGEST, LARGEST)
        self.truth_square += float(shown.square_().sum())
        if full:
            self._allclose(chunk)

    def _keep(self, which: int, start: int, squares: Tensor) -> None:
        self.rows[which, start : start + squares.shape[0]] = squares.sum(dim=1).cpu()
        self.columns[which] += squares.sum(dim=0).cpu()

    def _side(self, which: int, start: int, error: Tensor, unit: Tensor, unit2: Tensor) -> None:
        squares = error.square()
        self._keep(which, start, squares)
        tiles, tile_unit = _tiled(squares), _tiled(unit2).sum(dim=-1)
        tile = _ratio(tiles.sum(dim=-1), tile_unit).max()
        members = (_tiled(unit2) > 0).sum(dim=-1).clamp_min(1)
        peak = _ratio(tiles.amax(dim=-1), tile_unit / members).max()
        element = error / unit
        row = torch.stack([tile, peak, element.max(), error.max()]).cpu()
        if which == 0 and row[2] >= self.worst[0, 2]:
            self.worst_at = start * self.width + int(element.argmax())
        self.worst[which] = torch.maximum(self.worst[which], row)

    def _patterns(self, chunk: Chunk) -> None:
        """Where nan and inf may stand; eager and float64 may disagree, then both are right."""
        mine, theirs, right = map(classes, (chunk.candidate, chunk.eager, chunk.stored))
        limit = torch.finfo(self.dtype).max
        edge = (chunk.truth.abs() - limit).abs() <= EDGE * chunk.kappa
        same_sign = (mine == 0) | (mine == torch.where(chunk.truth > 0, 2, 3))
        lost = (theirs != 0) & (
            right == 0
        )  # eager overflowed inside: nothing finite to be equal to
        wrong = ~((mine == theirs) | (mine == right) & (theirs != right) | edge & same_sign | lost)
        count = int(wrong.sum())
        if count and self.first_nonfinite < 0:
            offset = int(wrong.reshape(-1).to(torch.int8).argmax())
            self.first_nonfinite = chunk.start * self.width + offset
        self.nonfinite += count

    def _digits(self, chunk: Chunk, scaled: Tensor) -> None:
        """Errors in ulp of the result, and whether the leading digits are wrong.

        Nothing is smaller than the output's RMS here: next to a zero crossing the ulp vanishes,
        and an error in units of it says nothing about anybody's arithmetic.
        """
        error, info = scaled * self.scale, torch.finfo(self.dtype)
        size = chunk.stored.abs()
        if not chunk.clean:
            size = size.nan_to_num_(0.0, 0.0, 0.0)
        exponent = torch.frexp(size.clamp_min(max(self.ulp_floor, info.tiny)))[1]
        in_ulp = error / torch.ldexp(torch.full_like(error, info.eps), exponent - 1)
        logs = in_ulp.log2().clamp_(LOWEST, HIGHEST).nan_to_num_(HIGHEST)
        self.ulp_bins += torch.histc(logs, BINS, LOWEST, HIGHEST).cpu()
        self.ulp_max = max(self.ulp_max, float(in_ulp.max()))
        around = _tiled(size).amax(dim=-1).repeat_interleave(TILE, dim=-1)[:, : self.width]
        self.outside_truth += int((error > self.loose * (size + around) + info.tiny).sum())
        self.gross |= bool((error > 1e-2 * around + EDGE * chunk.kappa).any())

    def _allclose(self, chunk: Chunk) -> None:
        difference = (chunk.candidate - chunk.eager).abs()
        same = (chunk.candidate == chunk.eager) | (
            torch.isnan(chunk.candidate) & torch.isnan(chunk.eager)
        )
        for tolerance in TOLERANCES:
            close = difference <= tolerance + tolerance * chunk.eager.abs()
            self.outside[tolerance] += int((~(close | same)).sum())

    def result(self, lead: tuple[int, ...], trail: tuple[int, ...], *, full: bool) -> Measure:
        sides = []
        lines = [*_slices(self.rows, lead), *_slices(self.columns, trail), self.rows]
        for which in (0, 1):
            tile, peak, element, largest = (float(v) for v in self.worst[which])
            total = float(self.rows[which].sum())
            sides.append(
                Errors(
                    rel_l2=math.sqrt(total / self.truth_square) if self.truth_square else 0.0,
                    max_abs=largest * self.scale,
                    rms=float(_ratio(self.rows[which].sum(), self.rows[2].sum())),
                    line=max(float(_ratio(s[which], s[2]).max()) for s in lines),
                    tile=tile,
                    peak=peak,
                    element=element,
                )
            )
        first = self.first_nonfinite if self.nonfinite else None
        half, most = (_quantile(self.ulp_bins, share) for share in (0.5, 0.99))
        ulp = (half, most, self.ulp_max) if full else None
        return Measure(
            sides[0], sides[1], self.nonfinite, first, self.worst_at,
            self.gross, self.outside, self.outside_truth, ulp,
        )  # fmt: skip


def _slices(sums: Tensor, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Sums over everything but one index, for each dimension."""
    shaped = sums.view(3, *shape)
    for kept in range(1, len(shape) + 1):
        others = [d for d in range(1, len(shape) + 1) if d != kept]
        yield shaped.sum(dim=others) if others else shaped


def _quantile(bins: Tensor, share: float) -> float:
    """Upper edge of the bin that holds the quantile; 0 for the lowest bin."""
    index = int((bins.cumsum(0) >= share * bins.sum()).to(torch.int8).argmax())
    if index == 0:
        return 0.0
    return float(2.0 ** (LOWEST + (index + 1) * (HIGHEST - LOWEST) / BINS))
