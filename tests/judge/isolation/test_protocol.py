"""Malformed messages, sealed memory, deadlines: nothing a worker sends can surprise the parent."""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewright.judge.isolation import protocol
from fusewright.judge.isolation.protocol import (
    Channel,
    Gone,
    Late,
    ProtocolViolation,
    Record,
    Region,
    TensorRecord,
    decode_record,
    encode_record,
    map_region,
)

NONCE = bytes(range(16))
REGION = 1 << 20
TENSOR = TensorRecord("float32", (3, 4), 64, 48, 0, -1)
RECORD = Record("done", (TENSOR,), "tensor", (5, 6, 7))


def decode(body: bytes, sequence: int = 3) -> Record:
    return decode_record(body, nonce=NONCE, sequence=sequence, region_bytes=REGION)


def test_a_record_survives_the_trip() -> None:
    assert decode(encode_record(NONCE, 3, RECORD)) == RECORD


@given(st.binary(max_size=600))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


@given(st.data())
def test_a_damaged_record_is_refused_or_within_its_bounds(data: st.DataObject) -> None:
    body = bytearray(encode_record(NONCE, 3, RECORD))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, len(body)))]
    try:
        record = decode(bytes(body))
    except ProtocolViolation:
        return
    for t in record.tensors:
        assert t.dtype in protocol.ITEM_BYTES
        assert all(n >= 0 for n in t.shape)
        absent = bool(t.flags & protocol.ABSENT)
        assert t.nbytes == (0 if absent else math.prod(t.shape) * protocol.ITEM_BYTES[t.dtype])
        assert t.offset + t.nbytes <= REGION


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (TensorRecord("float32", (3, 4), 64, 44, 0, -1), "fewer bytes than the shape has"),
        (TensorRecord("float32", (1 << 40,), 0, 4 << 40, 0, -1), "more than the region holds"),
        (TensorRecord("float32", (3, -4), 0, 0, 0, -1), "a negative size"),
        (TensorRecord("float32", (3, 4), REGION - 40, 48, 0, -1), "beyond the end"),
        (TensorRecord("float32", (3, 4), 0, 48, 128, -1), "an unknown flag"),
        (TensorRecord("float32", (3, 4), 0, 48, 0, -2), "an impossible alias"),
    ],
)
def test_an_impossible_tensor_is_refused(tensor: TensorRecord, why: str) -> None:
    body = encode_record(NONCE, 3, Record("done", (tensor,), "", (0, 0, 0)))
    with pytest.raises(ProtocolViolation):
        decode(body)


def test_an_old_answer_and_a_forged_one_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="answer 2 came where answer 3 was due"):
        decode(encode_record(NONCE, 2, RECORD))
    with pytest.raises(ProtocolViolation, match="nonce"):
        decode(encode_record(bytes(16), 3, RECORD))


def ends() -> tuple[Channel, socket.socket]:
    mine, other = socket.socketpair()
    return Channel(mine), other


def test_a_silent_worker_costs_no_more_than_the_deadline() -> None:
    channel, _other = ends()
    begin = time.monotonic()
    with pytest.raises(Late):
        channel.receive(begin + 0.2)
    assert time.monotonic() - begin < 1.0


def test_a_worker_that_drips_bytes_cannot_stretch_the_deadline() -> None:
    channel, other = ends()
    other.send(protocol.MAGIC + struct.pack("<I", 100) + b"x")
    with pytest.raises(Late):
        channel.receive(time.monotonic() + 0.2)


def test_a_closed_channel_and_a_bad_frame_are_told_apart() -> None:
    channel, other = ends()
    other.send(b"HTTP/1.1 200 OK")
    with pytest.raises(ProtocolViolation):
        channel.receive(time.monotonic() + 1)
    channel, other = ends()
    other.close()
    with pytest.raises(Gone):
        channel.receive(time.monotonic() + 1)
    channel.close()
    with pytest.raises(Gone):
        channel.send(b"x", time.monotonic() + 1)


def test_a_frame_may_not_be_longer_than_its_limit() -> None:
    channel, other = ends()
    other.send(protocol.MAGIC + struct.pack("<I", 1 << 30))
    with pytest.raises(ProtocolViolation):
        channel.receive(time.monotonic() + 1, protocol.RECORD_LIMIT)


def test_nobody_can_shrink_or_grow_a_region_or_write_through_its_read_only_end() -> None:
    region = Region("test", 1 << 16)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd, size)
    reader = region.read_only()
    with pytest.raises(PermissionError):
        mmap.mmap(reader, 1 << 16, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with map_region(region.fd, writable=True) as writing, map_region(reader, writable=False) as r:
        writing[:4] = b"seen"
        assert r[:4] == b"seen"
    os.close(reader)
    region.close()
