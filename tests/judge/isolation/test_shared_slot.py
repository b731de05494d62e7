"""What a worker announces is taken when it is announced: not what it writes later, nor more."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fusewright.judge.isolation import shared_slot as slots
from fusewright.judge.isolation.protocol import ProtocolViolation, Region, TensorRecord, map_region
from fusewright.judge.isolation.shared_slot import Slot

SIZE = 1 << 20


@pytest.fixture
def slot() -> Iterator[Slot]:
    made = Slot(*(Region(name, SIZE) for name in ("in", "out", "taken")))
    yield made
    made.close()


def tensor(offset: int, nbytes: int) -> TensorRecord:
    return TensorRecord("uint8", (nbytes,), offset, nbytes, 0, -1)


def ends(slot: Slot) -> tuple[mmap.mmap, mmap.mmap]:
    """Where the candidate writes, and where the judge reads."""
    return map_region(slot.outputs.fd, writable=True), map_region(slot.taken.fd, writable=False)


def test_what_is_written_later_is_not_seen(slot: Slot) -> None:
    written, read = ends(slot)
    written[64:68], written[200:203] = b"true", b"abc"
    slot.take((tensor(64, 4), tensor(70, 0), tensor(200, 3)))
    written[64:68] = b"late"
    assert read[64:68] == b"true"
    assert read[200:203] == b"abc"
    assert read[68:200] == bytes(132), "only what was announced"


def test_what_is_read_is_what_was_taken(slot: Slot) -> None:
    written, _ = ends(slot)
    written[64:68] = b"true"
    slot.take((tensor(64, 4),))
    written[64:68] = b"late"
    assert slot.read(tensor(64, 4)) == b"true"


def test_what_was_never_written_is_no_result(slot: Slot) -> None:
    ends(slot)[0][:4] = b"some"
    with pytest.raises(ProtocolViolation, match="were written"):
        slot.take((tensor(0, SIZE),))
    with pytest.raises(ProtocolViolation, match="were written"):
        slot.take((tensor(0, 4096), tensor(0, 4096)))


class Unlocked:
    """functools.cached_property as Python 3.12 has it: threads that come together each compute."""

    def __init__(self, computed: Any) -> None:
        self._compute, self._name = computed.func, computed.attrname

    def __get__(self, slot: Slot, _: type) -> object:
        if self._name not in vars(slot):
            value = self._compute(slot)
            time.sleep(0.05)
            vars(slot)[self._name] = value
        return vars(slot)[self._name]


def test_an_answer_in_parts_is_mapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second mapping took the place of the first, and threads wrote to where that had been."""
    size = 64 << 10
    mapped = []
    monkeypatch.setattr(slots, "PART", 1 << 10)
    for name in ("_views", "_addresses"):
        monkeypatch.setattr(Slot, name, Unlocked(vars(Slot)[name]))
    monkeypatch.setattr(
        slots, "map_region", lambda fd, **how: mapped.append(fd) or map_region(fd, **how)
    )
    slot = Slot(*(Region(name, size) for name in ("in", "out", "taken")))
    written, read = ends(slot)
    content = bytes(range(256)) * (size // 256)
    written[:] = content
    slot.take((tensor(0, size),))
    assert read[:] == content
    assert mapped == [slot.outputs.fd, slot.taken.fd]
    slot.close()


def test_a_large_answer_is_there_once(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "KEPT", 10_000)
    written, read = ends(slot)
    for content in (b"x", b"y"):
        written[:20_000] = content * 20_000
        slot.take((tensor(0, 20_000),))
        assert read[:20_000] == content * 20_000
        assert written[:20_000] == bytes(20_000)


def test_nothing_announced_takes_nothing(slot: Slot) -> None:
    slot.take(())
    slot.take((tensor(0, 0),))
    assert ends(slot)[1][:8] == bytes(8)
