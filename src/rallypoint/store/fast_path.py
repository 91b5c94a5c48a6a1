"""The commonest requests, served straight from the bytes of a segment. Pure.

Between two requests of a client, nearly every segment that comes is one small request, or a run of
SETs, which are not answered. Making a request and a list of replies of it would take longer than
serving it. So the common requests are recognised here, in the bytes as they came, and carried out
on the machine's own values.

The other path, `ServerSession` and `KeyValueMachine.apply`, serves every request. The rare ones are
left to it, untouched: a request that is not whole, breaks a limit or a rule, waits or wakes another
client, or is about a queue. Both paths give the same answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rallypoint.errors import ProtocolError
from rallypoint.store.keyvalue import ClientId, KeyValueMachine
from rallypoint.wire.c10d_fields import (
    I64,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    READY,
    STOP_WAITING,
    U64,
    Opcode,
)

_SET = Opcode.SET.value
_ONE = b"\x01" + bytes(7)  # the count of a list of one key
_u64, _i64 = U64.unpack_from, I64.unpack_from
_LEFT = (struct.error, OverflowError, ProtocolError)
"""The errors on which a request is left to the other path: of incomplete lengths, of impossible
positions and of broken protocol rules."""
_pack_u64, _pack_i64 = U64.pack, I64.pack


class FastPath:
    """The quick way to serve simple requests of clients that have no pending or partial request."""

    def __init__(self, machine: KeyValueMachine) -> None:
        self._machine = machine
        self._values = machine.values
        self._waits, self._reserved = machine.waits, machine.reserved
        self._waited_for = machine.waiting_for_key
        self._answer: dict[int, Callable[[bytes], bytes | None]] = {
            Opcode.GET.value: self._get,
            Opcode.WAIT.value: self._wait,
            Opcode.CHECK.value: self._check,
            Opcode.ADD.value: self._add,
            Opcode.COMPARE_SET.value: self._compare_set,
        }

    def serve(self, client: ClientId, data: bytes) -> tuple[bytes, bytes]:
        """Return the reply to the requests at the beginning of `data`, and the unserved rest of it.

        `data` is not empty, and begins with a request.
        """
        if client in self._reserved or client in self._waits:
            return b"", data
        if data[0] == _SET:
            data = data[self._set_all(data) :]
            if not data:
                return b"", b""
        answer = self._answer.get(data[0])
        # No key of so short a request is too long.
        if answer is None or len(data) > MAX_KEY_BYTES:
            return b"", data
        try:
            reply = answer(data)
        except _LEFT:  # with nothing changed
            return b"", data
        if reply is None:
            return b"", data
        self._machine.operations += 1
        return reply, b""

    def _set_all(self, data: bytes) -> int:
        """Carry out simple SET requests at the beginning of `data`; return where that stopped."""
        put, waited_for = self._machine.put, self._waited_for
        at = count = 0
        size = len(data)
        end = min(size, MAX_VALUE_BYTES)  # no value before it is too long
        try:
            while at < size and data[at] == _SET:
                key = at + 9
                key_end = key + _u64(data, at + 1)[0]
                value = key_end + 8
                value_end = value + _u64(data, key_end)[0]
                if value_end > end or key_end - key > MAX_KEY_BYTES:
                    break
                name = data[key:key_end]
                if name in waited_for:
                    break
                put(name, data[value:value_end])
                at = value_end
                count += 1
        except _LEFT:
            pass
        self._machine.operations += count
        return at

    # Each is given a request of its opcode, and answers it if nothing follows it. May raise
    # what _LEFT names, with nothing changed.

    def _get(self, data: bytes) -> bytes | None:
        if _u64(data, 1)[0] != len(data) - 9:
            return None
        value = self._values.get(data[9:], b"")
        return _pack_u64(len(value)) + value

    def _wait(self, data: bytes) -> bytes | None:
        return STOP_WAITING if self._is_there(data) else None

    def _check(self, data: bytes) -> bytes | None:
        return READY if self._is_there(data) else None

    def _is_there(self, data: bytes) -> bool:
        """Return whether the request is for one key that has a value."""
        is_one = data[1:9] == _ONE and _u64(data, 9)[0] == len(data) - 17
        return is_one and data[17:] in self._values

    def _add(self, data: bytes) -> bytes | None:
        end = len(data) - 8
        key = data[9:end]
        if _u64(data, 1)[0] != end - 9 or key in self._waited_for:
            return None
        return _pack_i64(self._machine.add(key, _i64(data, end)[0]))

    def _compare_set(self, data: bytes) -> bytes | None:
        key_end = 9 + _u64(data, 1)[0]
        expected = key_end + 8
        expected_end = expected + _u64(data, key_end)[0]
        desired = expected_end + 8
        key = data[9:key_end]
        is_whole = _u64(data, expected_end)[0] == len(data) - desired
        # A missing key, and a write that wakes somebody, are the other path's.
        if not is_whole or key in self._waited_for or key not in self._values:
            return None
        value = self._values[key]
        if value == data[expected:expected_end]:
            value = data[desired:]
            self._machine.put(key, value)
        return _pack_u64(len(value)) + value
