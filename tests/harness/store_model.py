"""What a c10d store must do, written down plainly: a dict, lists, and who waits for what."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from tests.harness.store_process import Field, text

from rallypoint.wire.c10d_fields import Opcode

STOP, CANCELED = b"\x00", b"\x01"
TELLS_WHO = (Opcode.WAIT, Opcode.BARRIER, Opcode.CANCEL_WAIT, Opcode.QUEUE_POP)


class Closed(Exception):
    """The only answer is the end of the connection; nothing has changed."""


class Model:
    """One request at a time; `outbox` is what clients must receive for it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, list[bytes]] = {}
        self.waits: dict[int, tuple[set[bytes], bool]] = {}  # in order of arrival
        self.barriers: dict[int, tuple[bytes, int]] = {}
        self.reserved: dict[int, bytes] = {}
        self.outbox: dict[int, bytes] = {}

    def is_waiting(self, client: int) -> bool:
        return client in self.waits or client in self.barriers

    def step(self, client: int, opcode: Opcode, *fields: Field) -> None:
        """Raises Closed."""
        serve: Callable[..., bytes] = getattr(self, opcode.name.lower())
        released = self.reserved.get(client)
        if opcode is not Opcode.QUEUE_POP or fields[0] != released:
            self.reserved.pop(client, None)
        try:
            reply = serve(client, *fields) if opcode in TELLS_WHO else serve(*fields)
        except Closed:
            if released is not None:
                self.reserved[client] = released
            raise
        self.outbox[client] = reply + self.outbox.get(client, b"")
        self.offer(released)

    def drop(self, client: int) -> None:
        self.forget_wait(client)
        self.offer(self.reserved.pop(client, None))

    def forget_wait(self, client: int) -> None:
        self.waits.pop(client, None)
        self.barriers.pop(client, None)

    def wake(self, client: int) -> None:
        self.outbox[client] = self.outbox.get(client, b"") + STOP

    def wake_all(self, key: bytes) -> None:
        for client, (missing, _) in list(self.waits.items()):
            missing.discard(key)
            if not missing:
                del self.waits[client]
                self.wake(client)

    def offer(self, key: bytes | None) -> None:
        """A free item goes to the first who waits for this queue alone; others have seen it."""
        if key is None or not self.free(key):
            return
        for client, (missing, is_single) in list(self.waits.items()):
            if key in missing:
                missing.discard(key)
                if not missing:
                    del self.waits[client]
                    self.wake(client)
                if is_single:
                    self.reserved[client] = key
                    return

    def free(self, key: bytes) -> int:
        """Items that are reserved for nobody."""
        return len(self.queues.get(key, [])) - list(self.reserved.values()).count(key)

    def is_there(self, key: bytes) -> bool:
        return key in self.values or self.free(key) > 0

    def number(self, key: bytes) -> int:
        if key not in self.values:
            return 0
        found = re.match(rb"[-+]?[0-9]+", self.values[key])
        return in_64_bits(int(found[0]) if found else None)

    # Requests

    def set(self, key: bytes, value: bytes) -> bytes:
        self.values[key] = value
        self.wake_all(key)
        return b""

    def append(self, key: bytes, value: bytes) -> bytes:
        return self.set(key, self.values.get(key, b"") + value)

    def multi_set(self, pairs: list[tuple[bytes, bytes]]) -> bytes:
        for key, value in pairs:
            self.set(key, value)
        return b""

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        if self.values.get(key, b"") == expected:
            self.set(key, desired)
            return text(desired)
        return text(self.values.get(key, expected))

    def add(self, key: bytes, delta: int) -> bytes:
        total = in_64_bits(self.number(key) + delta)
        self.set(key, b"%d" % total)
        return struct.pack("<q", total)

    def get(self, key: bytes) -> bytes:
        return text(self.values.get(key, b""))

    def multi_get(self, keys: list[bytes]) -> bytes:
        return b"".join(map(self.get, keys))

    def check(self, keys: list[bytes]) -> bytes:
        return b"\x00" if all(map(self.is_there, keys)) else b"\x01"

    def getnumkeys(self) -> bytes:
        return struct.pack("<q", len(self.values))

    def delete_key(self, key: bytes) -> bytes:
        return struct.pack("<q", self.values.pop(key, None) is not None)

    def queue_push(self, key: bytes, value: bytes) -> bytes:
        self.queues.setdefault(key, []).append(value)
        self.offer(key)
        return b""

    def queue_pop(self, client: int, key: bytes) -> bytes:
        if self.reserved.get(client) == key:
            del self.reserved[client]
        free = self.free(key)
        return struct.pack("<q", free) + (text(self.queues[key].pop(0)) if free else b"")

    def queue_len(self, key: bytes) -> bytes:
        return struct.pack("<q", self.free(key))

    def wait(self, client: int, keys: list[bytes]) -> bytes:
        missing = {key for key in keys if not self.is_there(key)}
        if not missing:
            if len(keys) == 1 and keys[0] not in self.values:
                self.reserved[client] = keys[0]
            return STOP
        self.waits[client] = missing, len(keys) == 1
        return b""

    def cancel_wait(self, client: int) -> bytes:
        self.forget_wait(client)
        return CANCELED

    def barrier(self, client: int, key: bytes, world_size: int) -> bytes:
        count = in_64_bits(self.number(key) + 1)
        self.values[key] = b"%d" % count
        if count < world_size:
            self.barriers[client] = key, world_size
            return b""
        for other, (where, size) in list(self.barriers.items()):
            if where == key and size <= count:
                del self.barriers[other]
                self.wake(other)
        self.wake_all(key)
        return STOP


def in_64_bits(number: int | None) -> int:
    """Or Closed."""
    if number is None or not -(2**63) <= number < 2**63:
        raise Closed
    return number
