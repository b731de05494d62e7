"""Attention kernels are as accurate as eager's, and right with every shape, stride and special.

All need a GPU: the kernel is the same text for sm_80 and sm_90a.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support import attention_subjects as subjects
from tests.support.attention_subjects import SCHEDULES, Call, Subject
from tests.support.gemm_subjects import Library

MARK, ROUNDING = -12345.5, 2.0**-23
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("attention")
    return subjects.library(SCHEDULES, folder)


def run(library: Library, call: Call, subject: Subject) -> Tensor:
    """The result, with scratch memory full of NaN, and nothing written outside of the two."""
    shape = (call.batches, call.q.shape[-2], call.v.shape[-1])
    count, need = shape[0] * shape[1] * shape[2], call.workspace_bytes
    room = torch.full((count + 128,), MARK, device="cuda")
    space = torch.full((need + 256,), 0xFF, dtype=torch.uint8, device="cuda")
    out = room[64 : 64 + count]
    code = call.launch(library, subject, out, space)
    torch.cuda.synchronize()
    assert code == 0, f"{subject.entry}: CUDA error {code}"
    assert bool((space[need:] == 0xFF).all()), "writes behind the workspace"
    outside = torch.cat([room[:64], room[64 + count :]])
    assert bool((outside == MARK).all()), "writes outside its output"
    return out.view(shape)


def fitting(call: Call) -> list[Subject]:
    widest = max(call.q.shape[-1], call.v.shape[-1])
    whole = call.v.shape[-1] % 4 == 0
    return [s for s in SCHEDULES if s.width >= widest and (whole or s.vector == 1)]


def largest_error(actual: Tensor, exact: Tensor, size: Tensor) -> tuple[float, float]:
    """Of all elements (root mean square) and of one; in parts of the weighted sum of sizes."""
    wrong = (actual.double() - exact) / size
    return wrong.square().mean().sqrt().item(), wrong.abs().max().item()


def check(library: Library, call: Call, some: list[Subject] | None = None) -> None:
    """Our error is at most eager's and a rounding."""
    failures = []
    for subject in fitting(call) if some is None else some:
        exact = subjects.meaning(call, subject, torch.float64)
        positive = Call(**{**vars(call), "v": call.v.abs(), "residual": None})
        plain = Subject(subject.scores, "copy", subject.width, subject.vector)
        size = subjects.meaning(positive, plain, torch.float64).clamp_min(1e-300)
        size = size if call.residual is None else size + call.residual.view_as(size).abs()
        ours = largest_error(run(library, call, subject), exact, size)
        theirs = largest_error(subjects.meaning(call, subject, torch.float32), exact, size)
        # A few k do not average out what lo * lo would add, and stay PyTorch's, see
        # kernels/attention/match.py.
        few = 4 if call.q.shape[-1] < 32 else 2 if exact.numel() < 256 else 1
        if any(a > 1.1 * b + few * ROUNDING for a, b in zip(ours, theirs, strict=True)):
            failures.append(f"{subject.entry}: {ours}, eager {theirs}")
    assert failures == []


def operands(batches: int, rows: int, length: int, depth: int, columns: int) -> Call:
    torch.manual_seed(rows * 7 + length * 3 + depth + columns)
    sizes = ((rows, depth), (length, depth), (length, columns))
    q, k, v = (torch.randn(batches, n, d, device="cuda") for n, d in sizes)
    mask = torch.rand(rows, length, device="cuda") > 0.6
    mask[:, 0] = False
    bias = torch.randn(rows, length, device="cuda")
    return Call(
        q, k, v, depth**-0.5, mask, bias, torch.randn(batches, rows, columns, device="cuda")
    )


# batches, rows, length, depth, columns
SHAPES = (
    (1, 1, 1, 1, 1), (1, 7, 63, 64, 64), (2, 63, 64, 64, 64), (3, 64, 65, 33, 64),
    (2, 65, 7, 64, 7),
    (1, 127, 130, 40, 37), (2, 130, 200, 128, 128), (1, 200, 513, 80, 80), (2, 513, 127, 65, 128),
    (2, 129, 33, 128, 5), (1, 300, 31, 3, 120), (1, 257, 1, 64, 64), (1, 1, 2049, 100, 100),
    (5, 512, 512, 64, 64), (2, 384, 1000, 128, 128), (70000, 2, 3, 4, 4),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(library: Library, shape: tuple[int, int, int, int, int]) -> None:
    check(library, operands(*shape))


def turned(x: Tensor) -> Tensor:
    """The same numbers with neighbouring rows."""
    return x.mT.contiguous().mT


def heads(x: Tensor) -> Tensor:
    """The same numbers as one head of several, in longer rows that start at odd places."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] * 3 + 1), 7.0, device="cuda")
    wide[..., x.shape[-1] + 1 : 2 * x.shape[-1] + 1] = x
    return wide[..., x.shape[-1] + 1 : 2 * x.shape[-1] + 1]


@pytest.mark.gpu
def test_strides(library: Library) -> None:
    call = operands(3, 133, 197, 72, 60)
    for change in (turned, heads):
        for name in ("q", "k", "v"):
            check(library, Call(**{**vars(call), name: change(getattr(call, name))}))
    for name in ("q", "k", "v"):
        one = getattr(call, name)[1]
        check(library, Call(**{**vars(call), name: one}))


def hazards() -> dict[str, Call]:
    call = operands(2, 150, 320, 64, 64)
    rows = torch.logspace(-30, 30, 150, device="cuda").view(-1, 1)
    depth = torch.logspace(-3, 3, 64, device="cuda")
    keys = torch.logspace(-30, 30, 320, device="cuda").view(-1, 1)
    columns = torch.logspace(-30, 30, 64, device="cuda")
    rising = torch.linspace(-30, 30, 320, device="cuda").expand(150, -1).contiguous()
    tiny = torch.ones(64, device="cuda")
    tiny[7] = 1e-38
    spikes = call.v.clone()
    spikes[:, ::37, 5] = 1e6  # masked for some rows: computed again
    small = call.v.clone()
    small[:, 3::64, 5] = 1e-7
    small[:, 9::32, 5] *= 2.0**-24  # some rows see little else
    place = torch.randint(0, 64, (2, 320, 1), device="cuda")
    heavy = torch.ones_like(call.k).scatter(2, place, 1000.0)
    some = torch.arange(320, device="cuda").view(-1, 1) % 5 == 0
    hot = torch.eye(64, device="cuda").repeat(5, 1)  # each column sees one weight of 64
    steps = (torch.arange(320, device="cuda") % 64).expand(150, -1).contiguous()

    def changed(**some: object) -> Call:
        return Call(**{**vars(call), **some})

    return {
        "small queries": changed(q=call.q * 1e-30, k=call.k * 1e30),
        "large queries": changed(q=call.q * 1e30, k=call.k * 1e-30),
        "opposite depth": changed(q=call.q * depth, k=call.k / depth),
        "rows of queries": changed(q=call.q * rows.clamp(1e-30, 1.0)),
        "rows of keys": changed(k=call.k * keys.clamp(1e-30, 1.0)),
        "columns of values": changed(v=call.v * columns),
        "keys of values": changed(v=call.v * keys.clamp(1e-6, 1e6)),
        "one tiny column": changed(v=call.v * tiny),
        "spikes": changed(v=spikes),
        "positive": changed(q=call.q.abs(), k=call.k.abs(), v=call.v.abs()),
        "far apart": changed(q=call.q * 10),
        "rising": changed(bias=rising),
        "falling": changed(bias=-rising),
        "heavy": changed(q=call.q * heavy[:, :150] / 30, k=call.k * heavy.flip(1) / 30),
        "heavy keys": changed(k=torch.where(some, call.k * heavy / 30, call.k)),
        "heavy queries": changed(q=call.q * heavy[:, :150] / 30),
        "small values": changed(v=small),
        "one-hot values": changed(v=hot.expand(2, -1, -1), bias=steps * -0.5),
        "one-hot, lost weights": changed(v=hot.expand(2, -1, -1), bias=steps * -1.2),
        "subnormal": changed(v=call.v * 1e-40, residual=call.residual * 1e-40),
    }


HAZARDS = (
    "small queries", "large queries", "opposite depth", "rows of queries", "rows of keys",
    "columns of values", "keys of values", "one tiny column", "spikes", "positive", "far apart",
    "rising", "falling", "subnormal", "heavy", "heavy keys", "heavy queries",
    "small values", "one-hot values", "one-hot, lost weights",
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", HAZARDS)
def test_hazards(library: Library, name: str) -> None:
    call = hazards()[name]
    check(library, call, [s for s in fitting(call) if s.body == "copy"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [INFINITY, -INFINITY, NAN, 3e38])
def test_infinities_and_nan_are_where_eager_has_them(
    library: Library, name: str, value: float
) -> None:
    call = operands(2, 70, 140, 64, 60)
    special = getattr(call, name).clone()
    special[0, 3, 5] = value
    special[1, 60, 50] = -value
    call = Call(**{**vars(call), name: special})
    for subject in fitting(call):
        same_specials(run(library, call, subject), subjects.meaning(call, subject, torch.float32))


@pytest.mark.gpu
def test_masks_of_infinity(library: Library) -> None:
    """A row without any score is NaN, as eager's; one of +infinity, too; -infinity only masks."""
    call = operands(2, 70, 140, 64, 60)
    assert call.mask is not None
    assert call.bias is not None
    call.mask[9] = True
    call.mask[10, :128] = True
    call.mask[10, 130] = False
    call.bias[11] = -INFINITY
    call.bias[12, 7] = INFINITY
    call.bias[13, :100] = -INFINITY
    for subject in fitting(call):
        expected = subjects.meaning(call, subject, torch.float32)
        if subject.scores != "scaled":
            assert bool(expected.isnan().any())
        same_specials(run(library, call, subject), expected)


def same_specials(actual: Tensor, expected: Tensor) -> None:
    assert torch.equal(actual.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert torch.equal(actual.isinf(), infinite)
    assert torch.equal(actual[infinite], expected[infinite])
    plain = expected.isfinite()
    assert torch.allclose(actual[plain], expected[plain], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_the_same_bits_every_time(library: Library) -> None:
    call = operands(40, 700, 900, 128, 128)
    narrow = operands(40, 700, 900, 64, 64)
    for case in (call, narrow):
        for subject in fitting(case):
            first = run(library, case, subject)
            again = [run(library, case, subject) for _ in range(3)]
            assert all(torch.equal(first, other) for other in again), subject.entry


@pytest.mark.gpu
def test_nothing_is_done_for_no_rows(library: Library) -> None:
    empty = operands(1, 4, 4, 4, 4)
    none = Call(**{**vars(empty), "q": empty.q[:, :0]})
    out = torch.empty(1, device="cuda")
    space = torch.empty(1 << 16, dtype=torch.uint8, device="cuda")
    assert all(none.launch(library, s, out, space) == 0 for s in fitting(none))
