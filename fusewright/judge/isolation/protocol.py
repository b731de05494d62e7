"""Bytes between processes -> checked messages: regions of shared memory, frames, fixed records.

The parent and the trusted worker speak JSON to everyone. A candidate's process answers only with
`Record`s: a fixed header, a fixed table of tensors and one capped text, each field range-checked
in `decode_record`. Nothing is ever unpickled. Tensor bytes lie in shared memory whose size is
sealed, so that no process can shrink it under another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAGIC = b"FWJ1"
NONCE_BYTES = 16
MAX_DIMS = 16
MAX_TENSORS = 8192
MAX_TEXT = 256 * 1024
MAX_JSON = 64 * 1024 * 1024
REGION_BYTES = 64 << 30  # address space only: pages exist once they are written
ON_DEVICE = 1 << 50  # offsets from here on are of the memory that two processes share on a GPU

# Position = code on the wire.
DTYPES: tuple[tuple[str, int], ...] = (
    ("bool", 1), ("uint8", 1), ("int8", 1), ("int16", 2), ("int32", 4), ("int64", 8),
    ("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8), ("complex64", 8),
    ("complex128", 16), ("uint16", 2), ("uint32", 4), ("uint64", 8),
)  # fmt: skip
DTYPE_CODES = {name: code for code, (name, _) in enumerate(DTYPES)}
ITEM_BYTES = dict(DTYPES)

READY, DONE, RAISED = 1, 2, 3
NO_ROOM = "no room: "  # how the text of a `raised` begins where a file could not be written
KINDS = {READY: "ready", DONE: "done", RAISED: "raised"}
# What a worker says about one tensor besides its bytes.
REQUIRES_GRAD, HAS_GRAD_FN, OVERLAPPING, ABSENT, OTHER_DEVICE = 1, 2, 4, 8, 16
ALL_FLAGS = REQUIRES_GRAD | HAS_GRAD_FN | OVERLAPPING | ABSENT | OTHER_DEVICE

_FRAME = struct.Struct("<4sI")
_HANDED = b"D"  # what descriptors come with
_HEADER = struct.Struct(f"<{NONCE_BYTES}sIHHIQQQ")  # nonce, sequence, kind, tensors, text, 3 clocks
_TENSOR = struct.Struct(f"<BBHiQQ{MAX_DIMS}q")  # dtype, ndim, flags, alias, offset, bytes, shape


class ProtocolViolation(Exception):
    """A message is not what the protocol allows; the sender is not to be believed."""


class Gone(Exception):
    """The other end closed its channel."""


class Late(Exception):
    """No complete message within the deadline."""


@dataclass(frozen=True)
class TensorRecord:
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    flags: int
    alias: int  # -1: memory of its own; else the number of the tensor whose memory it shares


@dataclass(frozen=True)
class Record:
    """One answer of a candidate's process: claims and a table of bytes, never a verdict."""

    kind: str
    tensors: tuple[TensorRecord, ...]
    text: str
    clocks_ns: tuple[int, int, int]  # host, device events, process CPU time


def encode_record(nonce: bytes, sequence: int, record: Record) -> bytes:
    kind = {name: code for code, name in KINDS.items()}[record.kind]
    text = record.text.encode("utf-8", "replace")[:MAX_TEXT]
    header = _HEADER.pack(nonce, sequence, kind, len(record.tensors), len(text), *record.clocks_ns)
    return header + b"".join(map(_encode_tensor, record.tensors)) + text


def _encode_tensor(t: TensorRecord) -> bytes:
    shape = (*t.shape, *(0,) * (MAX_DIMS - len(t.shape)))
    code = DTYPE_CODES[t.dtype]
    return _TENSOR.pack(code, len(t.shape), t.flags, t.alias, t.offset, t.nbytes, *shape)


def decode_record(
    body: bytes, *, nonce: bytes, sequence: int, region_bytes: int, device_bytes: int = 0
) -> Record:
    """Check every field of an untrusted message; raise ProtocolViolation at the first bad one.

    region_bytes, device_bytes: of the shared memory on the host and on the device.
    """
    if len(body) < _HEADER.size:
        raise ProtocolViolation(f"a message of {len(body)} bytes is shorter than its header")
    found, number, kind, count, text_bytes, *clocks = _HEADER.unpack_from(body)
    if found != nonce:
        raise ProtocolViolation("a message carries the wrong nonce")
    if number != sequence:
        raise ProtocolViolation(f"answer {number} came where answer {sequence} was due")
    if kind not in KINDS:
        raise ProtocolViolation(f"unknown kind of message {kind}")
    if count > MAX_TENSORS or text_bytes > MAX_TEXT:
        raise ProtocolViolation(f"{count} tensors and {text_bytes} bytes of text are too many")
    if len(body) != _HEADER.size + count * _TENSOR.size + text_bytes:
        raise ProtocolViolation("the length of a message contradicts its header")
    at = _HEADER.size
    sizes = region_bytes, device_bytes
    tensors = tuple(_decode_tensor(body, at + i * _TENSOR.size, *sizes) for i in range(count))
    text = body[at + count * _TENSOR.size :].decode("utf-8", "replace")
    return Record(KINDS[kind], tensors, text, (clocks[0], clocks[1], clocks[2]))


def _decode_tensor(body: bytes, at: int, region_bytes: int, device_bytes: int) -> TensorRecord:
    code, ndim, flags, alias, offset, nbytes, *dims = _TENSOR.unpack_from(body, at)
    if code >= len(DTYPES) or ndim > MAX_DIMS or flags & ~ALL_FLAGS:
        raise ProtocolViolation(f"tensor of dtype {code}, {ndim} dimensions, flags {flags}")
    shape = tuple(dims[:ndim])
    if any(d < 0 for d in shape) or any(dims[ndim:]):
        raise ProtocolViolation(f"tensor of shape {dims}")
    name, item = DTYPES[code]
    wanted = 0 if flags & ABSENT else math.prod(shape) * item
    end = ON_DEVICE + device_bytes if device_bytes and offset >= ON_DEVICE else region_bytes
    if nbytes != wanted or offset + nbytes > end:
        raise ProtocolViolation(f"{nbytes} bytes at {offset} for {name}{list(shape)}")
    if not -1 <= alias < MAX_TENSORS:
        raise ProtocolViolation(f"tensor alias {alias}")
    return TensorRecord(name, shape, offset, nbytes, flags, alias)


class Channel:
    """One end of a stream of frames; every read has a deadline."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def shut(self) -> None:
        """Whoever waits at either end hears that nothing comes any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, body: bytes, deadline: float) -> None:
        waiting = memoryview(_FRAME.pack(MAGIC, len(body)) + body)
        while waiting:
            self._wait(select.POLLOUT, deadline)
            try:
                waiting = waiting[self._socket.send(waiting) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(str(error)) from error

    def receive(self, deadline: float, limit: int = MAX_JSON) -> bytes:
        magic, length = _FRAME.unpack(self._read(_FRAME.size, deadline))
        if magic != MAGIC or length > limit:
            raise ProtocolViolation(f"bad frame: {magic!r}, {length} bytes")
        return self._read(length, deadline)

    def send_json(self, message: Mapping[str, object], deadline: float) -> None:
        self.send(json.dumps(message).encode(), deadline)

    def receive_json(self, deadline: float) -> dict[str, object]:
        """From a trusted process only."""
        message: dict[str, object] = json.loads(self.receive(deadline))
        return message

    def send_descriptors(self, descriptors: Sequence[int], deadline: float) -> None:
        """Behind a message that says how many there are; the caller closes its own."""
        self._wait(select.POLLOUT, deadline)
        try:
            socket.send_fds(self._socket, [_HANDED], descriptors)
        except OSError as error:
            raise Gone(str(error)) from error

    def receive_descriptors(self, count: int, deadline: float) -> list[int]:
        """As many as the last message has said."""
        self._wait(select.POLLIN, deadline)
        try:
            said, found, _, _ = socket.recv_fds(self._socket, len(_HANDED), count)
        except OSError as error:
            raise Gone(str(error)) from error
        if said != _HANDED or len(found) != count:
            for descriptor in found:
                os.close(descriptor)
            raise ProtocolViolation(f"{len(found)} descriptors, where {count} were due")
        return found

    def _read(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._wait(select.POLLIN, deadline)
            try:
                part = self._socket.recv(min(count - len(parts), 1 << 20))
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(str(error)) from error
            if not part:
                raise Gone("the channel was closed")
            parts += part
        return bytes(parts)

    def _wait(self, event: int, deadline: float) -> None:
        if self._socket.fileno() < 0:
            raise Gone("the channel is closed")
        poll = select.poll()
        poll.register(self._socket, event)
        left = deadline - time.monotonic()
        if not poll.poll(max(0.0, left) * 1000 if math.isfinite(left) else None):
            raise Late("no message within the deadline")


RECORD_LIMIT = _HEADER.size + MAX_TENSORS * _TENSOR.size + MAX_TEXT


class Region:
    """Shared memory of a sealed size; `fd` is what a worker inherits."""

    def __init__(self, name: str, size: int = REGION_BYTES) -> None:
        self.size = size
        self.fd = os.memfd_create(f"fusewright-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        os.fchmod(self.fd, 0o600)

    def read_only(self) -> int:
        """A new descriptor through which nobody can write."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def clear(self) -> None:
        """Give the pages back; the next reader sees zeros."""
        with mmap.mmap(self.fd, self.size) as mapping:
            mapping.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        os.close(self.fd)


def map_region(fd: int, *, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, protection)
