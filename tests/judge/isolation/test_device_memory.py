"""Memory of a GPU between two processes: what lies there, what does not fit, who may read what."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from fusewright.judge.evidence import model_states
from fusewright.judge.evidence.oracle import Oracle
from fusewright.judge.isolation import device_memory, tensor_transport
from fusewright.judge.isolation.pinned_memory import Pinned, map_pinned
from fusewright.judge.isolation.protocol import (
    ON_DEVICE,
    Channel,
    Gone,
    ProtocolViolation,
    Record,
    Region,
    decode_record,
    encode_record,
)
from fusewright.judge.isolation.tensor_transport import (
    end_of,
    fresh_blocks,
    get_result,
    pack,
    put_results,
    ship,
    ship_only,
    values_in,
)
from tests.support.folders import ROOT

SHARED = 1 << 20
NONCE = bytes(16)
SOON = 20.0


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pinned]:
    """With memory that stands for a GPU's."""
    monkeypatch.setattr(tensor_transport, "settle", lambda: None)
    made = Region("test", 1 << 24)
    mapping = map_pinned(made.fd, writable=True)
    mapping.device = torch.zeros(SHARED, dtype=torch.uint8)
    yield mapping
    made.close()


def received(message: dict[str, object], region: Pinned) -> list[Tensor]:
    return list(values_in(message, fresh_blocks(message, region, "cpu")))


def test_arguments_go_through_the_device_where_they_fit(region: Pinned) -> None:
    x, y = torch.randn(50, 40), torch.arange(90).reshape(9, 10).t()
    message = ship(pack([x, y], 1), region)
    assert all(block["offset"] >= ON_DEVICE for block in message["blocks"])
    found = received(message, region)
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], y)
    assert found[1].stride() == y.stride()
    only = ship_only([x, y], 2, region)
    assert all(block["offset"] >= ON_DEVICE for block in only["blocks"])
    assert torch.equal(received(only, region)[1], y)


def test_what_does_not_fit_goes_through_the_host_as_a_whole(region: Pinned) -> None:
    small, large = torch.randn(8), torch.randn(SHARED // 4)
    for message in (ship(pack([small, large], 1), region), ship_only([small, large], 1, region)):
        assert all(block["offset"] < ON_DEVICE for block in message["blocks"])
        assert torch.equal(received(message, region)[1], large)


@pytest.mark.parametrize("size", [8, SHARED // 4 - 5000])
def test_one_shipment_behind_another(region: Pinned, size: int) -> None:
    x, y = torch.randn(1000), torch.randn(size)
    first = ship_only([x], 1, region)
    second = ship_only([y], 2, region, end_of(first))
    assert torch.equal(received(first, region)[0], x)
    assert torch.equal(received(second, region)[0], y)
    assert (second["blocks"][0]["offset"] >= ON_DEVICE) == (size == 8)


def test_behind_what_went_through_the_host_comes_the_host(region: Pinned) -> None:
    x, y = torch.randn(SHARED // 4), torch.randn(8)
    first = ship_only([x], 1, region)
    second = ship_only([y], 2, region, end_of(first))
    assert torch.equal(received(first, region)[0], x)
    assert torch.equal(received(second, region)[0], y)


@pytest.mark.parametrize("size", [1000, SHARED])
def test_results_come_back_either_way(region: Pinned, size: int) -> None:
    results = [torch.randn(size), torch.tensor(3), torch.zeros(0, 4)]
    records = put_results(results, region, "cpu", [])
    assert [r.offset >= ON_DEVICE for r in records] == [size == 1000] * 3
    for record, result in zip(records, results, strict=True):
        found = get_result(vars(record), region, "cpu")
        assert found is not None
        assert torch.equal(found, result)


def test_an_answer_may_name_no_memory_that_is_not_shared(region: Pinned) -> None:
    records = put_results([torch.randn(1000)], region, "cpu", [])
    body = encode_record(NONCE, 1, Record("done", records, "", (0, 0, 0)))
    limits = {"nonce": NONCE, "sequence": 1, "region_bytes": 1 << 24}
    assert decode_record(body, **limits, device_bytes=SHARED).tensors == records
    for size in (0, 3999):
        with pytest.raises(ProtocolViolation, match="4000 bytes at"):
            decode_record(body, **limits, device_bytes=size)


def test_a_region_without_such_memory_is_as_it_was() -> None:
    made = Region("test", 1 << 24)
    mapping = map_pinned(made.fd, writable=True)
    assert ship(pack([torch.ones(3)], 1), mapping)["blocks"][0]["offset"] == 0
    made.close()


# --- how much ---------------------------------------------------------------------------------

GB = 1 << 30


@pytest.mark.parametrize(
    ("call", "held", "least", "most"),
    [
        (1 << 20, 0, 64 << 20, 80 << 20),
        (1 << 20, GB, 2 * GB, 2.1 * GB),
        (GB, 0, 2 * GB, 2.1 * GB),
        (8.6 * GB, 0, 10 * GB, 11 * GB),  # less room, so that it fits
        (40 * GB, 0, 0, 0),
    ],
)
def test_as_much_is_shared_as_a_gpu_has_room_for(
    call: float, held: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_states, "memory", lambda _: 140 * GB)
    lab = SimpleNamespace(device="cuda", call_bytes=int(call), held=int(held))
    found = Oracle.mapped_bytes(cast(Oracle, lab))
    assert least <= found <= most
    assert not found % (2 << 20)
    lab.device = "cpu"
    assert Oracle.mapped_bytes(cast(Oracle, lab)) == 0


# --- descriptors ------------------------------------------------------------------------------


def test_descriptors_come_behind_a_message() -> None:
    one, other = (Channel(end) for end in socket.socketpair())
    read, write = os.pipe()
    deadline = time.monotonic() + SOON
    one.send_json({"count": 2}, deadline)
    one.send_descriptors([read, write], deadline)
    one.send_json({"next": 1}, deadline)
    assert other.receive_json(deadline) == {"count": 2}
    found = other.receive_descriptors(2, deadline)
    assert other.receive_json(deadline) == {"next": 1}
    os.write(found[1], b"through")
    assert os.read(read, 7) == b"through"
    for descriptor in (read, write, *found):
        os.close(descriptor)


def test_too_few_descriptors_are_none() -> None:
    one, other = (Channel(end) for end in socket.socketpair())
    read, write = os.pipe()
    one.send_descriptors([read], time.monotonic() + SOON)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolViolation, match="1 descriptors, where 2"):
        other.receive_descriptors(2, time.monotonic() + SOON)
    assert len(os.listdir("/proc/self/fd")) == before
    one.close()
    with pytest.raises((Gone, ProtocolViolation)):
        other.receive_descriptors(2, time.monotonic() + SOON)
    for descriptor in (read, write):
        os.close(descriptor)


# --- the driver -------------------------------------------------------------------------------


def test_structures_are_as_long_as_the_driver_s() -> None:
    assert ctypes.sizeof(device_memory._Properties) == 32
    assert ctypes.sizeof(device_memory._Access) == 12


def test_a_driver_that_refuses_is_an_error_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Driver:
        def __getattr__(self, name: str) -> object:
            return lambda *_: (
                801 if name in ("cuMemCreate", "cuMemImportFromShareableHandle") else 0
            )

    monkeypatch.setattr(device_memory, "_driver", Driver)
    monkeypatch.setattr(device_memory, "_zeros", lambda *_, **__: None)
    with pytest.raises(OSError, match="cuMemCreate says 801"):
        device_memory.create(1 << 21)
    read, write = os.pipe()
    with pytest.raises(OSError, match="cuMemImportFromShareableHandle says 801"):
        device_memory.open_shared(read, 1 << 21)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(read)
    os.close(write)


OTHER = """
import os, socket, sys, time
os.setgid(61000); os.setuid(61000)
from fusewright.judge.isolation import device_memory
from fusewright.judge.isolation.protocol import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
(descriptor,) = channel.receive_descriptors(1, time.monotonic() + 60)
memory = device_memory.open_shared(descriptor, int(sys.argv[2]))
memory += 3
device_memory.settle()
channel.send_json({"sum": int(memory.sum())}, time.monotonic() + 60)
channel.receive_json(time.monotonic() + 60)
"""


@pytest.mark.gpu
def test_a_process_of_another_user_maps_the_same_memory() -> None:
    size = 3 * device_memory.GRANULE
    free = torch.cuda.mem_get_info()[0]
    memory, descriptor = device_memory.create(size)
    memory.fill_(4)
    device_memory.settle()
    end, theirs = socket.socketpair()
    channel = Channel(end)
    command = [sys.executable, "-c", OTHER, str(theirs.fileno()), str(size)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT) as process:
        theirs.close()
        channel.send_descriptors([descriptor], time.monotonic() + SOON)
        os.close(descriptor)
        assert channel.receive_json(time.monotonic() + 60) == {"sum": 7 * size}
        assert bool((memory == 7).all())
        channel.send_json({}, time.monotonic() + SOON)
        assert process.wait(60) == 0
    device_memory.discard(memory)
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)
