"""Shared memory that a GPU reads itself: what is registered when, and never pages that may go."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from fusewright.judge.isolation import pinned_memory, tensor_transport
from fusewright.judge.isolation.pinned_memory import LEAST, STEP, Pinned, map_pinned, reach
from fusewright.judge.isolation.protocol import Region

MOST = 64 << 20


class Driver:
    """In the place of CUDA's: what it was asked to register."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.flags: list[int] = []
        self.refuses = False

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.held, "it is registered already"
        self.flags.append(flags)
        if self.refuses:
            return 801
        self.held[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.held[address]
        return 0

    def next_kernel(self, *_: object, **__: object) -> None:
        """It says what was said before, as CUDA's do."""
        if self.refuses:
            raise RuntimeError("CUDA error: operation not supported")

    @property
    def size(self) -> int:
        return sum(self.held.values())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(pinned_memory, "_cudart", lambda: made)
    monkeypatch.setattr(pinned_memory, "_synchronize", lambda: None)
    monkeypatch.setattr(pinned_memory, "_zeros", made.next_kernel)
    return made


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region("test", 1 << 30)
    yield made
    made.close()


def mapped(region: Region, *, writable: bool = True) -> Pinned:
    fd = region.fd if writable else region.read_only()
    return map_pinned(fd, writable=writable, for_gpu=True, most=MOST)


def test_small_copies_are_left_to_the_driver(driver: Driver, region: Region) -> None:
    mapping = mapped(region)
    reach(mapping, LEAST - 1)
    assert driver.size == 0
    reach(mapping, LEAST)
    assert driver.size == LEAST


def test_what_is_registered_grows_in_steps_that_double(driver: Driver, region: Region) -> None:
    mapping, sizes = mapped(region), []
    for end in range(LEAST, MOST, LEAST // 4):
        reach(mapping, end)
        assert driver.size >= end
        assert driver.size % STEP == 0
        assert len(driver.held) == 1, "one piece: a copy may not lie in two"
        sizes.append(driver.size)
    assert len(set(sizes)) <= 5
    assert max(sizes) <= MOST


@pytest.mark.parametrize("most", [MOST, MOST + 128])
def test_what_may_give_its_pages_back_is_not_registered(
    most: int, driver: Driver, region: Region
) -> None:
    """Also where the least that gives them back is not a whole number of steps."""
    mapping = map_pinned(region.fd, writable=True, for_gpu=True, most=most)
    for end in (2 * LEAST, most):
        reach(mapping, end)
        assert end <= driver.size <= most
    reach(mapping, most + 1)
    assert driver.size == 0
    reach(mapping, 2 * LEAST)
    assert driver.size == 0, "its pages may be gone by now"


def test_a_driver_that_refuses_is_asked_once(driver: Driver, region: Region) -> None:
    driver.refuses = True
    mapping = mapped(region)
    for _ in range(3):
        reach(mapping, LEAST)
    assert driver.flags == [0]


def test_pages_are_asked_for_at_once(driver: Driver, region: Region) -> None:
    mapping = mapped(region)
    reach(mapping, 3 * LEAST)
    assert os.fstat(region.fd).st_blocks * 512 == 3 * LEAST == driver.size


def test_a_mapping_that_nobody_may_write_to_says_so(driver: Driver, region: Region) -> None:
    reach(mapped(region, writable=False), LEAST)
    assert driver.flags == [pinned_memory.READ_ONLY]


def test_without_a_gpu_nothing_is_registered(driver: Driver, region: Region) -> None:
    reach(map_pinned(region.fd, writable=True), LEAST)
    assert driver.flags == []


def test_every_copy_is_announced(driver: Driver, region: Region) -> None:
    """All ways through a region: what is sent, received, answered and taken."""
    values = [torch.arange(LEAST, dtype=torch.uint8)]
    answers = Region("answers", 1 << 30)
    sent, received = mapped(region), mapped(region, writable=False)
    answered, taken, looked = mapped(answers), mapped(answers), mapped(answers)
    message = tensor_transport.ship(tensor_transport.pack(values, 0), sent)
    assert len(driver.held) == 1
    (block,) = tensor_transport.fresh_blocks(message, received, "cpu")
    assert len(driver.held) == 2
    (result,) = tensor_transport.values_in(message, [block])
    (record,) = tensor_transport.put_results([result], answered, "cpu", [])
    assert len(driver.held) == 3
    found = tensor_transport.get_result(record.__dict__, taken, "cpu")
    assert len(driver.held) == 4
    assert found is not None
    assert torch.equal(found, values[0])
    assert tensor_transport.holds(record.__dict__, looked, values[0])
    assert len(driver.held) == 5
    answers.close()


@pytest.mark.gpu
def test_a_gpu_copies_both_ways_through_registered_memory(region: Region) -> None:
    there, back = mapped(region), mapped(region, writable=False)
    sent = torch.randint(256, (8 * LEAST,), dtype=torch.uint8, device="cuda")
    tensor_transport.write(sent, there, 0)
    assert there._registered == 8 * LEAST
    for size in (8 * LEAST, 5):
        (block,) = tensor_transport.fresh_blocks(
            {"blocks": [{"offset": 0, "nbytes": size}]}, back, "cuda"
        )
        assert torch.equal(block, sent[:size])
    tensor_transport.write(sent.flip(0), there, 0)
    (block,) = tensor_transport.fresh_blocks(
        {"blocks": [{"offset": 0, "nbytes": 99}]}, back, "cuda"
    )
    assert torch.equal(block, sent.flip(0)[:99])
