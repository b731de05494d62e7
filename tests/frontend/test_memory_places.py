"""Tensors that lie in one memory: read they are as any, changed they are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.emit.runtime_snippets import SNIPPETS, Snippet
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from fusewright.frontend.memory_places import apart

WHOLE, GIVEN = torch.randn(4, 6), torch.randn(4, 6)
Run = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Both(nn.Module):
    """What `run` does with two arguments; the module holds tensors of one memory."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.weight = nn.Parameter(torch.randn(6), requires_grad=False)
        self.register_buffer("one", torch.randn(6))
        self.register_buffer("two", self.one[:1])
        self.register_buffer("same", self.one)
        self.register_buffer("frozen", self.weight.detach())
        self.register_buffer("given", GIVEN[0])
        self.plain = self.one.view(6)
        self.first, self.second = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.second.running_mean = self.first.running_mean
        self.third = nn.BatchNorm1d(6)

    def forward(self, a, b):  # type: ignore[no-untyped-def]
        return type(self).compute(self, a, b)


def module(run: Run) -> nn.Module:
    """A class of its own, whose `forward` runs these lines."""
    return type("Model", (Both,), {"compute": staticmethod(run)})(run)


A, HALVES, EQUAL = [WHOLE, WHOLE[1:]], [WHOLE[:2], WHOLE[2:]], [WHOLE, WHOLE]
OURS = [WHOLE, GIVEN]  # the module holds a row of the second, too
OTHER = [torch.randn(4, 6), torch.randn(4, 6)]
# name -> what forward does, with what, and who is said to share whose memory; "": captured
KINDS: dict[str, tuple[Run, Sequence[torch.Tensor], str]] = {
    "only read": (lambda m, a, b: b * 2 + a.sum(), A, ""),
    "one twice, read": (lambda m, a, b: a * b, EQUAL, ""),
    "a part of two, changed": (lambda m, a, b: a.add_(1) + b, HALVES, ""),
    "a broadcast one, read": (lambda m, a, b: a + b, [WHOLE, WHOLE[:1].expand(4, 6)], ""),
    "buffers that are read": (lambda m, a, b: a * m.one + m.two + m.plain * m.same, OTHER, ""),
    "a change of what nobody shares": (lambda m, a, b: m.third(a) + m.one * m.two, OTHER, ""),
    "the first": (lambda m, a, b: (a.add_(1), b * 2)[1], A, "changes a .*, and b shares"),
    "the second": (lambda m, a, b: (b.mul_(2), a + 1)[1], A, "changes b .*, and a shares"),
    "overwritten": (lambda m, a, b: (a.zero_(), b * 2)[1], A, "changes a .*, and b shares"),
    "one twice": (lambda m, a, b: (a.relu_(), b * 2)[1], EQUAL, "changes a .*, and b shares"),
    "a view": (lambda m, a, b: (a[..., :1].mul_(3), b * 2)[1], A, "changes a .*, and b shares"),
    "a buffer": (lambda m, a, b: (m.one.add_(1), a * m.two)[1], OTHER, r"self.one .*self.two"),
    "one of two names": (lambda m, a, b: (m.same.add_(1), a * m.one)[1], OTHER, r"self.* share"),
    "a parameter": (lambda m, a, b: (m.frozen.add_(1), a * m.weight)[1], OTHER, "self.frozen"),
    "an argument of the module": (lambda m, a, b: (m.given.add_(1), b * 2)[1], OURS, "self.given"),
    "statistics": (lambda m, a, b: m.second(m.first(a)), OTHER, r"first.running_mean"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_changed_has_its_own_memory(kind: str) -> None:
    run, inputs, says = KINDS[kind]
    if not says:
        assert capture(module(run), inputs).graph.outputs
        return
    with pytest.raises(CaptureFailed, match=says) as caught:
        capture(module(run), inputs)
    text = str(caught.value)
    assert text.startswith(f"{__file__}:")  # the line that changes it
    assert "memory" in text
    assert "\n" not in text


def test_an_attribute_that_changes_is_named() -> None:
    model = module(lambda m, a, b: (m.plain.add_(1), a * m.one)[1])
    with pytest.raises(CaptureFailed, match="plain is mutated"):
        capture(model, OTHER)


def test_a_module_keeps_its_tensors() -> None:
    run, inputs, _ = KINDS["a buffer"]
    model = module(run)
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}, model.plain
    with pytest.raises(CaptureFailed):
        capture(model, inputs)
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert all(after[name] is t for name, t in before[0].items())
    assert model.plain is before[1]


def test_tensors_apart_lie_as_they_did() -> None:
    given = [WHOLE, WHOLE.mT, WHOLE[1:], WHOLE[:1].expand(4, 6), torch.randn(3)]
    found = apart(given)
    assert [t.stride() for t in found] == [t.stride() for t in given]
    assert len({t.untyped_storage().data_ptr() for t in found}) == len(given)
    assert found[0] is WHOLE
    assert found[-1] is given[-1]


@pytest.mark.parametrize(
    ("written", "read", "expected"),
    [
        ([WHOLE], OTHER, True),
        ([WHOLE[:2]], [WHOLE[2:]], True),
        ([WHOLE[0], WHOLE[1]], [WHOLE[2:]], True),
        ([WHOLE[:2]], [WHOLE[1:]], False),
        ([WHOLE[1]], [WHOLE], False),
        ([WHOLE, WHOLE], [], False),
        ([WHOLE[0], WHOLE[:2]], [], False),
        ([torch.empty(0)], [WHOLE], True),
    ],
)
def test_the_guard_asks_for_the_same(
    written: list[torch.Tensor], read: list[torch.Tensor], expected: bool
) -> None:
    asked = what_the_guard_asks()
    for _ in range(2):
        assert asked(0, read, written, tuple(range(len(read), len(read + written)))) is expected
        assert asked(1, written, read, tuple(range(len(written)))) is expected
        assert asked(2, (*written, *read), (), tuple(range(len(written)))) is expected


def test_the_guard_asks_again_where_tensors_have_moved() -> None:
    asked, whole = what_the_guard_asks(), torch.randn(8, 6)
    for _ in range(2):
        assert asked(0, (whole[:2], whole[2:4]), (), (0,))
        assert asked(0, (whole[:2], whole[4:6]), (), (0,))
        assert not asked(0, (whole[:2], whole[1:3]), (), (0,))
    assert not asked(1, (whole[:2], whole[:2]), (), (0,))
    for key in range(2, 100):
        assert asked(key, (whole[:2], whole[2:]), (), (0,))
        assert not asked(key, (whole[:2], whole), (), (0,))


def test_the_guard_asks_of_arguments_where_only_they_have_moved() -> None:
    asked, whole = what_the_guard_asks(), torch.randn(8, 6)
    state = whole[:2], whole[4:6]
    for _ in range(2):
        for argument in (whole[2:4], torch.randn(2, 6), whole[6:]):
            assert asked(0, state, (argument,), (1,))
        for argument in (whole[3:5], whole[5:], whole, whole[4:6]):
            assert not asked(0, state, (argument,), (1,))
    assert asked(0, state, (whole[:2],), (1,)), "what is only read may be read twice"


def what_the_guard_asks() -> Any:
    scope: dict[str, Any] = {}
    exec(SNIPPETS[Snippet.NO_SHARED_MEMORY], scope)
    return scope["_fusewright_no_shared_memory"]
